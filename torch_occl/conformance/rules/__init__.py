"""All rules. Importing this enters them into `torch_occl.conformance.catalog.RULES`."""

from torch_occl.conformance.rules import (
    collectives,
    failures,
    groups,
    messages,
    offers,
    works,
    wrong_arguments,
)

__all__ = ["collectives", "failures", "groups", "messages", "offers", "works", "wrong_arguments"]
