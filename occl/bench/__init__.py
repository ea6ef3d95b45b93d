"""Times the collectives of several backends side by side: ``python -m occl.bench --help``."""
