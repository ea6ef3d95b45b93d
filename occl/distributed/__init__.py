"""What needs torch.distributed: the backend ``occl``, and what programs ask of its groups.

Importing it raises ImportError where the running PyTorch is not supported.
"""

from occl import versions

versions.check_running()
