"""Commands that run where PyTorch or the extension cannot be loaded, and what they share."""
