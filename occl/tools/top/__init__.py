"""What the ranks of this host's groups do, read from what their processes publish.

``occl top`` shows it; `torch_occl.stats` reads the records of its own process. Nothing here
imports PyTorch, writes to another process, or sends it anything.
"""
