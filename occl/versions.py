"""The version of this package, and the versions of PyTorch that it works with."""

VERSION = "0.1.0"

SUPPORTED = ((2, 13), (2, 14))
"""The versions of PyTorch: from the first, inclusive, to the second, exclusive. One minor version, because
PyTorch's C++ interfaces change with each."""

REQUIREMENT = "torch>={}.{},<{}.{}".format(*SUPPORTED[0], *SUPPORTED[1])
"""The same as pip takes it. ``pyproject.toml`` repeats it for the build, where nothing can be computed."""


def check(version: str) -> None:
    """Raises ImportError, naming the supported versions, unless ``version`` is one of them."""
    major, minor = (int(part) for part in version.split(".")[:2])
    low, high = SUPPORTED
    if not low <= (major, minor) < high:
        raise ImportError(
            f"torch_occl supports {REQUIREMENT}, and this is torch {version}. "
            "Install a supported torch, or a torch_occl built for this one."
        )


def check_running() -> None:
    """Raises ImportError unless the PyTorch of this process is supported."""
    import torch

    check(torch.__version__)
