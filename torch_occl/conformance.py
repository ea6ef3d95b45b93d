"""``python -m torch_occl.conformance``: the command ``occl conformance``."""

import sys

from occl.cli import main

if __name__ == "__main__":
    sys.exit(main(["conformance", *sys.argv[1:]]))
