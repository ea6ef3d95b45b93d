"""``python -m torch_occl.bench``: the same as ``python -m occl.bench``."""

from occl.bench.command import run

if __name__ == "__main__":
    run()
