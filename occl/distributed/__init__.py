"""What needs torch.distributed: the backend ``occl``, and what programs ask of its groups."""
