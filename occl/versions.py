"""The version of this package, and the versions of PyTorch that it works with."""

from pathlib import Path

VERSION = "0.1.0"

SUPPORTED = ((2, 11), (2, 16))
"""The minor versions of PyTorch that the sources can be built for: from the first, inclusive, to the second,
exclusive."""

REQUIREMENT = "torch>={}.{},<{}.{}".format(*SUPPORTED[0], *SUPPORTED[1])
"""The same as pip takes it. ``pyproject.toml`` repeats it for the build, where nothing can be computed."""

DEFAULT = "2.13.0"
"""What `make` installs, and what wheels are built with: the version with a small build for the CPU."""

BUILT_FOR = Path(__file__).with_name("_C.built_for")
"""Contains the minor version that the extension beside it was built for, whose C++ interfaces no other one
has. It can be read before the extension is loaded. setup.py writes it."""


def minor(version: str) -> tuple[int, int]:
    """Major and minor of a version such as 2.13.0+cpu."""
    first, second = (int(part) for part in version.split(".")[:2])
    return first, second


def requirement_of_build(version: str) -> str:
    """What an extension needs that was built with this PyTorch, as pip takes it."""
    first, second = minor(version)
    return f"torch>={first}.{second},<{first}.{second + 1}"


def check(version: str) -> None:
    """Raises ImportError, naming the supported versions, unless ``version`` is one of them."""
    low, high = SUPPORTED
    if not low <= minor(version) < high:
        raise ImportError(
            f"torch_occl supports {REQUIREMENT}, and this is torch {version}. "
            "Install a supported torch, or a torch_occl built for this one."
        )


def check_build(version: str) -> None:
    """Raises ImportError, naming what to install, if the extension was built for another PyTorch."""
    built = BUILT_FOR.read_text().strip() if BUILT_FOR.exists() else None
    if built is not None and minor(built) != minor(version):
        raise ImportError(
            f"The extension of torch_occl was built for torch {built}, and this is torch {version}. "
            f'Install "{requirement_of_build(built)}", or build torch_occl for this one: '
            "pip install --no-build-isolation --no-deps --force-reinstall torch_occl, "
            "in a checkout make setup."
        )


def check_running() -> None:
    """Raises ImportError unless the PyTorch of this process is supported, and the one built for."""
    import torch

    check(torch.__version__)
    check_build(torch.__version__)
