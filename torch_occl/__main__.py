"""``python -m torch_occl``: its commands. See `torch_occl.doctor.command`."""

import sys

from torch_occl.doctor.command import main

if __name__ == "__main__":
    sys.exit(main())
