"""Which PyTorch this build works with. Its C++ interfaces change with every minor release."""

SUPPORTED = ((2, 13), (2, 14))
"""From the first version, inclusive, up to the second, exclusive."""


def check(version: str) -> None:
    """Raises ImportError, naming the supported versions, unless ``version`` is one of them."""
    major, minor = (int(part) for part in version.split(".")[:2])
    low, high = SUPPORTED
    if not low <= (major, minor) < high:
        raise ImportError(
            f"torch_occl supports torch>={low[0]}.{low[1]},<{high[0]}.{high[1]}, "
            f"and this is torch {version}. Install a supported torch, or a torch_occl built for this one."
        )


def check_running() -> None:
    """Raises ImportError unless the PyTorch of this process is supported."""
    import torch

    check(torch.__version__)
