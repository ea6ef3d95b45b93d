"""Imported first in the warm process of the ranks, which then have this device and never `dev`."""

from tests.foreign import device

device.load()
