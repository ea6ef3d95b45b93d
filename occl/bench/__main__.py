"""``python -m occl.bench``: see `occl.bench.command`."""

from occl.bench.command import run

if __name__ == "__main__":
    run()
