"""What some packages need to know of ``dev`` and ``occl`` (docs/integrations.md).

========== ==================================================
module     for
========== ==================================================
lightning  Lightning's Trainer and Fabric
deepspeed  DeepSpeed's accelerator interface
torchft    torchft's process groups
========== ==================================================

Each module imports its package, and none is imported by torch_occl itself.
"""
