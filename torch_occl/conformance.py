"""``python -m torch_occl.conformance``: the same as ``python -m occl.conformance``."""

import sys

from occl.conformance.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
