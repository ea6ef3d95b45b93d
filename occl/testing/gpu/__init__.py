"""PyTorch's own tests for CUDA and NCCL, run on ``dev`` and occl (docs/testing-gpu-suites.md)."""
