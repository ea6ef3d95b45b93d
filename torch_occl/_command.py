"""Whether this process is ``python -m torch_occl``, whose commands must work where the rest does not."""

from __future__ import annotations

import re
import sys


def starting() -> bool:
    """Whether Python imports the package only to find its ``__main__``.

    Meanwhile ``sys.argv[0]`` is "-m". The module's name is missing in ``sys.argv``, but ``sys.orig_argv`` has
    it in the same place, counted from the end.
    """
    if sys.argv[:1] != ["-m"]:
        return False
    asked = sys.orig_argv[-len(sys.argv) :][0]
    return re.fullmatch(r"(-\w*m)?torch_occl(\.__main__)?", asked) is not None
