"""Times the collectives of several backends side by side: ``occl bench --help``."""
