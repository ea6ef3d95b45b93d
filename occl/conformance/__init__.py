"""Whether a backend of ``torch.distributed`` does what PyTorch says: a suite for those that write backends.

    pytest --pyargs occl.conformance --backend NAME --device DEVICE --world-size 4

docs/conformance.md describes it. The rules are in `occl.conformance.rules`; what they share with other
tests of this package is in `tensors`.
"""
