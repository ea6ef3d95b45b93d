"""The same as `occl.testing.gpu.suites`."""

from occl.testing.gpu.suites import install

__all__ = ["install"]
