"""The version of this package, and the versions of PyTorch that it works with."""

from collections.abc import Iterable
from pathlib import Path

VERSION = "0.1.0.dev0"
"""Ends in .dev0 except in the commit that is tagged (RELEASING.md)."""

SUPPORTED = ((2, 11), (2, 16))
"""The minor versions of PyTorch that the sources can be built for: from the first, inclusive, to the second,
exclusive."""

REQUIREMENT = "torch>={}.{},<{}.{}".format(*SUPPORTED[0], *SUPPORTED[1])
"""The same as pip takes it. ``pyproject.toml`` repeats it for the build, where nothing can be computed."""

DEFAULT = "2.13.0"
"""What `make` installs: the version with a small build for the CPU."""

EXTENSIONS = Path(__file__).with_name("extensions")
"""Has a folder, such as ``torch_2_13``, for each minor version that this installation has an extension for.
An extension works with no other one, because PyTorch's C++ interfaces differ. setup.py makes the folders."""

PACKAGES = "torch_occl", "torch_occl_kits"
"""The distributions. The second has ``occl.testing`` and ``occl.conformance`` only (folder kits)."""

Minor = tuple[int, int]


def minor(version: str) -> Minor:
    """Major and minor of a version such as 2.13.0+cpu."""
    first, second = (int(part) for part in version.split(".")[:2])
    return first, second


def extension_of(version: str) -> Path:
    """The folder of the extension for this PyTorch, whether or not it exists."""
    return EXTENSIONS / "torch_{}_{}".format(*minor(version))


def built() -> list[Minor]:
    """The minor versions that there is an extension for, in order."""
    names = [folder.name.split("_") for folder in EXTENSIONS.glob("torch_*_*") if any(folder.glob("_C.*"))]
    return sorted((int(first), int(second)) for _, first, second in names)


def commit_of(version: str) -> str:
    """The commit that the extension for this PyTorch was built from; "" if that is not known.

    A ``+`` at its end: files differed from that commit.
    """
    try:
        return (extension_of(version) / "commit").read_text().strip()
    except OSError:
        return ""


def commits() -> str:
    """The commits that the extensions of this installation were built from, of which a wheel has one."""
    found = {commit_of("{}.{}".format(*each)) for each in built()} - {""}
    return f"commit {' and '.join(sorted(found))}" if found else "an unknown commit"


def name_of_build(version: str) -> str:
    """This package and its commit, which all ranks of a group must agree in."""
    commit = commit_of(version)
    return f"torch_occl {VERSION}{f' ({commit})' if commit else ''}"


def requirement_of_build(minors: Iterable[Minor]) -> str:
    """What a package needs that has extensions for these versions, of one major version, as pip takes it."""
    inside = sorted(minors)
    (major, low), (_, high) = inside[0], inside[-1]
    without = "".join(f",!={major}.{n}.*" for n in range(low, high) if (major, n) not in inside)
    return f"torch>={major}.{low},<{major}.{high + 1}{without}"


def check(version: str) -> None:
    """Raises ImportError, naming the supported versions, unless ``version`` is one of them."""
    low, high = SUPPORTED
    if not low <= minor(version) < high:
        raise ImportError(
            f"torch_occl supports {REQUIREMENT}, and this is torch {version}. "
            "Install a supported torch, or a torch_occl built for this one."
        )


def check_build(version: str) -> None:
    """Raises ImportError, naming what to install, if there are extensions, and none for this PyTorch."""
    minors = built()
    if minors and minor(version) not in minors:
        names = " and ".join("{}.{}".format(*each) for each in minors)
        raise ImportError(
            f"The extension of torch_occl was built for torch {names}, and this is torch {version}. "
            f'Install "{requirement_of_build(minors)}", or build torch_occl for this one, in a checkout: '
            "pip install --no-build-isolation ."
        )


def check_running() -> None:
    """Raises ImportError unless the PyTorch of this process is supported, and the one built for."""
    import torch

    check(torch.__version__)
    check_build(torch.__version__)


def check_backend(wanted: str) -> None:
    """Raises ImportError, naming what is installed, if it is the kits, which have no backend."""
    if not Path(__file__).with_name("distributed").is_dir():
        whole, kits = PACKAGES
        raise ImportError(
            f"{wanted} is of {whole}, and only {kits} is installed, which has occl.testing, "
            f"occl.conformance and occl.launch: install {whole} in the place of {kits}"
        )
