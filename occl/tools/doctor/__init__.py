"""``occl doctor``: what this machine offers, what occl makes of it, and whether it works.

The command itself needs only the standard library. What needs PyTorch runs in processes of its own
(``probe.py`` and ``rank.py``), so that an import that fails, crashes or hangs is a finding like any other.
"""
