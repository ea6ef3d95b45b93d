"""A device whose memory the host may not touch. Importing this makes ``torch.device("my_device:0")``."""

import torch  # noqa: F401  (first: where my_backend is installed, torch imports it, and that makes the device)

from my_device.loading import make

make()
