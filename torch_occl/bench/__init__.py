"""Times the collectives of several backends side by side: ``python -m torch_occl.bench --help``."""
