"""The same as `occl.distributed.flight_recorder`."""

from occl.distributed.flight_recorder import dump, write

__all__ = ["dump", "write"]
