"""A source of ranks with its teams: those that stay from call to call, and those of one call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from occl.testing.launch import Source
from occl.testing.team import Team

if TYPE_CHECKING:
    from typing_extensions import Self

AnySource = TypeVar("AnySource", bound=Source)

MOST_RANKS = 64
"""Ranks that stay in all pools of this process together. Each of them takes some 70 MB."""

_kept: dict[tuple[Pool[Any], Hashable], Team] = {}
"""The teams that stay and are not lent, by pool and key. The one that was used last comes last."""


class Pool(Generic[AnySource]):
    """Teams that stay, each for the key that it was made for. To be used with ``with``, or closed.

    If more than `MOST_RANKS` ranks would stay, in whatever pools, those that were used least recently end.

    Args:
        source: where the processes come from. It is closed with the pool.
    """

    def __init__(self, source: AnySource) -> None:
        self.source = source

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def lend(
        self, key: Hashable, make: Callable[[], Team], prepare: Callable[[Team], object] | None = None
    ) -> Iterator[Team]:
        """The team of this key. It stays for the next call, unless it is closed or has lost a rank by then.

        What its ranks have printed before belongs to other calls, and is forgotten. An exception of the
        block, or of ``prepare``, closes the team: nobody knows what its ranks do.

        Args:
            make: makes a team where none has stayed.
            prepare: what is done once with a team that has been made.
        """
        team = _kept.pop((self, key), None)
        if team is not None and not team.alive:
            team.close()
            team = None
        made = team is None
        if team is None:
            team = make()
            _make_room(team.size)
        try:
            if made and prepare is not None:
                prepare(team)
            team.forget_printed()
            yield team
        except BaseException:
            team.close()
            raise
        _kept[self, key] = team

    def drop(self) -> None:
        """Ends all teams that have stayed."""
        for place in [place for place in _kept if place[0] is self]:
            _kept.pop(place).close()

    def close(self) -> None:
        """Ends all teams, and the source."""
        self.drop()
        self.source.close()


def _make_room(ranks: int) -> None:
    """Ends teams until `MOST_RANKS` leaves room for this number of new ranks."""
    while _kept and ranks + sum(team.size for team in _kept.values()) > MOST_RANKS:
        _kept.pop(next(iter(_kept))).close()
