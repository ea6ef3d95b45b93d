"""All rules. Importing this enters them into `occl.conformance.catalog.RULES`."""

from occl.conformance.rules import (
    collectives,
    failures,
    groups,
    messages,
    offers,
    reconfigure,
    symmetric_memory,
    windows,
    works,
    wrong_arguments,
)

__all__ = [
    "collectives",
    "failures",
    "groups",
    "messages",
    "offers",
    "reconfigure",
    "symmetric_memory",
    "windows",
    "works",
    "wrong_arguments",
]
