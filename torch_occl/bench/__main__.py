"""``python -m torch_occl.bench``: see `torch_occl.bench.command`."""

from torch_occl.bench.command import run

if __name__ == "__main__":
    run()
