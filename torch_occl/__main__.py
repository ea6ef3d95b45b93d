"""``python -m torch_occl``: the command `occl.cli`."""

import sys

from occl.cli import main

if __name__ == "__main__":
    sys.exit(main())
