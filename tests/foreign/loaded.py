"""Imported first in the warm process of the ranks, which then have this device and never `dev`."""

import os

from tests.foreign import device

device.load()
os.environ["OCCL_DEVICE"] = "0"  # tests.support.devices expects no `dev`
