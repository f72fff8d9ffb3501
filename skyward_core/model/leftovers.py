"""Leftovers: resources in a provider account that were created for pools and still exist."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import field

from skyward_core.util.light_dataclass import Value, value


@value
class Leftover(Value):
    """One resource that an account still holds.

    Attributes:
        what: Type of the resource, as the provider names it.
        id: The provider's identifier.
        place: Location of the resource.
        pool: Name of the pool for which the resource was created.
        token: Token of that pool.
        ledger: Ledger that recorded the pool.
        ours: Whether ``ledger`` is the ledger of this machine's user.
        owner: Creator, according to the resource's tags.
        is_machine: Whether the resource is a machine.
        since: Unix time of creation. None if unknown.
        expires: Unix time when the resource should have ended. None if unknown.
        hourly: Price in dollars per hour at creation. None if unknown.
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
        """Cost so far in dollars. None if unknown."""
        return self.spent_by(time.time())

    def spent_by(self, now: float) -> float | None:
        """Return the cost in dollars up to a Unix time. None if unknown."""
        return None if self.hourly is None or self.since is None else self.hourly * max(0.0, now - self.since) / 3600


@value
class Inventory(Value):
    """Contents of a provider account.

    Attributes:
        things: Resources that were created for pools.
        unknown: Places that could not be inspected, with the reasons.
        is_configured: Whether this machine has any settings for the account, such as credentials.
    """

    things: Sequence[Leftover] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    is_configured: bool = True
