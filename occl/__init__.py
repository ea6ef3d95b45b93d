"""All of torch_occl but the device ``dev``: importing it imports no PyTorch.

| package | what it holds |
|---|---|
| ``distributed`` | the backend ``occl``, the place of Gloo, groups, statistics, traces |
| ``testing`` | tests of several ranks with pytest |
| ``conformance`` | a suite for backends of ``torch.distributed`` |
| ``bench`` | measurements of collectives |
| ``tools`` | ``occl doctor``, ``occl top``, ``occl report``: they run without PyTorch |

``import torch_occl`` makes the device, and offers the functions that programs use.
"""

from occl.versions import VERSION as __version__

__all__ = ["__version__"]
