"""What a provider's account holds that was made for pools, whoever remembers it, as values."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import field

from .value import Value, value


@value
class Leftover(Value):
    """One thing.

    Attributes:
        what: it is, as people call it there.
        id: the provider's own identifier.
        place: where it is.
        pool: name of the pool that it was made for.
        token: the pool's.
        ledger: which ledger knew of that pool.
        ours: whether that is the ledger of this machine's user.
        owner: who made it, as it says.
        is_machine: whether it is a machine.
        since: when it was made, Unix time; None where nobody tells.
        expires: when it should have ended, Unix time; None where nobody tells.
        hourly: dollars for an hour, as they were when it was made; None where nobody tells.
    """

    what: str
    id: str
    place: str
    pool: str
    token: str
    ledger: str
    ours: bool
    owner: str
    is_machine: bool = False
    since: float | None = None
    expires: float | None = None
    hourly: float | None = None

    @property
    def spent(self) -> float | None:
        """Dollars that it has cost; None where nobody can tell."""
        return self.spent_by(time.time())

    def spent_by(self, now: float) -> float | None:
        """The same at some Unix time."""
        if self.hourly is None or self.since is None:
            return None
        return self.hourly * max(0.0, now - self.since) / 3600

    @property
    def is_expired(self) -> bool:
        """Whether it should have ended."""
        return self.expires is not None and self.expires < time.time()


@value
class Inventory(Value):
    """What an account was found to hold.

    Attributes:
        things: what was made for pools.
        unknown: places that could not be looked at, and why.
    """

    things: Sequence[Leftover] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
