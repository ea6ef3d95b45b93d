"""A cost model of groups over several nodes: `python -m benchmarks.nodes --help`."""
