"""``occl report``: what the ranks of a job did, from the traces that they wrote.

    read      one file -> Recording: a process, its groups, its operations
    align     the clocks of all recordings -> one time
    merge     recordings -> Job: ranks, groups of the whole job, operations of all ranks side by side
    analyse   Job -> who waited for whom, the slowest operations, shares, overlap
    perfetto  Job -> events for ui.perfetto.dev
    page      Job -> one HTML page
    text      Job -> the summary that the command prints

It needs nothing but Python. docs/tracing.md says what the numbers mean.
"""
