"""A source of ranks with its teams: those that stay from call to call, and those of one call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from occl.testing.launch import Source
from occl.testing.team import Team

if TYPE_CHECKING:
    from typing_extensions import Self

AnySource = TypeVar("AnySource", bound=Source)


class Pool(Generic[AnySource]):
    """Teams that stay, each for the key that it was made for. To be used with ``with``, or closed.

    Args:
        source: where the processes come from. It is closed with the pool.
        most: the number of teams that stay. One more ends the team that was used least recently.
    """

    def __init__(self, source: AnySource, most: int | None = None) -> None:
        self.source = source
        self.most = most
        self._teams: dict[Hashable, Team] = {}

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
        team = self._teams.pop(key, None)
        if team is not None and not team.alive:
            team.close()
            team = None
        made = team is None
        if team is None:
            while self.most is not None and len(self._teams) >= self.most:
                self._teams.pop(next(iter(self._teams))).close()
            team = make()
        self._teams[key] = team  # the last one is the one that was used last
        try:
            if made and prepare is not None:
                prepare(team)
            team.forget_printed()
            yield team
        except BaseException:
            team.close()
            raise

    def drop(self) -> None:
        """Ends all teams that have stayed."""
        while self._teams:
            self._teams.popitem()[1].close()

    def close(self) -> None:
        """Ends all teams, and the source."""
        self.drop()
        self.source.close()
