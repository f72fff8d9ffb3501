"""What a provider says: of its machines, and of how it is with itself."""

from __future__ import annotations

from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any, Literal

from .states import MachineStatus
from .value import Value, value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .hint import Hint


@value
class Machine(Value):
    """One machine of a pool, as its provider knows it. Everything in it can be written to the ledger.

    Attributes:
        id: the provider's own identifier.
        node: index of the node it is.
        address: where the client reaches it; for people to read.
        private_address: where its peers reach it.
        state: what the provider found when it looked last.
        extra: what the provider needs to reach it again. No secrets. "loaded_with": the Python that pickles its
            pool's functions, as :attr:`.interpreter.Interpreter.for_hosts` has it. Of one that is gone also "why", in
            words, and "kept": what of it was not fetched and lies on its host (see ``agent.unfetched``). Of one that is
            rented "hourly", what an hour of it costs in dollars, all told; None where nobody knows.
        logs_from: of a machine in another's place: log file -> bytes of it that came from those before it.
    """

    id: str
    node: int
    address: str
    private_address: str
    state: MachineStatus = "running"
    extra: dict[str, Any] = field(default_factory=dict)
    logs_from: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def hourly_of(machines: Iterable[Machine]) -> float | None:
    """What an hour of machines costs, all together, in dollars; None where that of one is not known."""
    prices = [each.extra.get("hourly") for each in machines]
    known = [float(price) for price in prices if price is not None]
    return sum(known) if known and len(known) == len(prices) else None


@value
class Check(Value):
    """One line of a check-up: what was looked at, how it went, in words; and what to do about it, where that is
    not among them."""

    subject: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    hint: Hint | None = None
