"""Accelerate's ``notebook_launcher``, which forks ranks from a notebook, runs accelerate_digits.py in them.

    OCCL_IN_PLACE_OF=gloo python accelerate_notebook.py

On `dev`, with OCCL_DEVICE=1 ACCELERATE_TORCH_DEVICE=dev:0 before that line too.
"""

import argparse

from accelerate import notebook_launcher
from accelerate_digits import main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on digits from a notebook.")
    parser.add_argument("--epochs", type=int, default=2)
    given = parser.parse_args()
    free_port = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}  # otherwise 29500
    notebook_launcher(main, (given.epochs,), num_processes=2, **free_port)
