"""The same as `occl.distributed.attention`."""

from occl.distributed.attention import register

__all__ = ["register"]
