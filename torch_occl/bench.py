"""``python -m torch_occl.bench``: the command ``occl bench``."""

import sys

from occl.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
