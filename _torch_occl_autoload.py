"""What ``import torch`` calls to find torch_occl (entry point group ``torch.backends``).

A module of its own, outside of the package: PyTorch lets an exception of an entry point end ``import torch``,
and whatever is wrong with torch_occl must not do that.
"""

import warnings


def autoload() -> None:
    """Imports torch_occl. Any failure becomes a warning."""
    try:
        import torch_occl  # noqa: F401
    except Exception as error:  # noqa: BLE001  (everything: see above)
        warnings.warn(
            f"torch_occl could not be loaded, and is not available: {error}", RuntimeWarning, stacklevel=2
        )
