"""A badge of reports: a JSON file in the format that shields.io calls an endpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def badge(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many cases end as they should, which includes what is declared as missing or known.

    Cases that could not be tested do not count.
    """
    cases = [each for report in reports for each in report["cases"] if each["verdict"] != "untested"]
    right = sum(each["verdict"] == each["expected"] or bool(each["known"]) for each in cases)
    return {
        "schemaVersion": 1,
        "label": "torch.distributed conformance",
        "message": f"{right:,} of {len(cases):,}",
        "color": "brightgreen" if cases and right == len(cases) else "red",
    }


def write(path: Path, reports: Sequence[dict[str, Any]]) -> None:
    path.write_text(json.dumps(badge(reports), indent=1) + "\n")
