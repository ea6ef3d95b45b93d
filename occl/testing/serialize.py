"""Values that travel between the pytest process, the warm processes and the ranks, as bytes."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from occl.testing import child
from occl.testing.outcomes import WrongUse

here: dict[str, Any] = {}
"""In a rank: what is different in each rank, by the name of the argument."""


def tell(kind: str, content: object) -> None:
    """In a rank: sends to the pytest process, which gets ``pickle.loads(message)``, the two arguments."""
    child.tell(pickle.dumps((kind, content)))


class OfEachRank:
    """Stands in the pytest process for a value that each rank has its own of, and becomes that when sent."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<the {self.name} of each rank, known only there>"

    def __reduce__(self) -> Any:
        return of_this_rank, (self.name,)


def of_this_rank(name: str) -> Any:
    """What `OfEachRank` becomes."""
    return here[name]


def packed(arguments: Mapping[str, object]) -> dict[str, bytes]:
    """Each argument on its own, so that an error can name it.

    Raises:
        WrongUse: one cannot be pickled.
    """
    sent = {}
    for name, value in arguments.items():
        try:
            sent[name] = pickle.dumps(value)
        except Exception as error:  # any, of any class's own code
            raise WrongUse(
                f"The fixture or argument {name!r} cannot be sent to the ranks, because it cannot be pickled "
                f"({type(error).__name__}: {error}). The ranks are processes of their own: let it hold plain "
                "data, and make the rest in the test."
            ) from error
    return sent


def unpacked(sent: Mapping[str, bytes]) -> dict[str, Any]:
    """The arguments, in a rank.

    Raises:
        WrongUse: one was pickled, and cannot be made again here.
    """
    arguments = {}
    for name, value in sent.items():
        try:
            arguments[name] = pickle.loads(value)
        except Exception as error:
            raise WrongUse(
                f"The fixture or argument {name!r} cannot be rebuilt in this rank ({type(error).__name__}: "
                f"{error}). Its class must be found by name in a module that the ranks can import."
            ) from error
    return arguments
