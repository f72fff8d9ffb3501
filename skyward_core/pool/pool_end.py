"""How a pool came to an end that this client did not bring about: another one tore it down, or its limits were over."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from ..model.errors import PoolGone
from ..store.ledger_rows import PoolRow

if TYPE_CHECKING:
    from ..wire.agent_frame_types import AgentEnding


class PoolEnd(NamedTuple):
    """``by``: who ended it, "" where it did so itself; ``at``: Unix time in seconds; ``why``: "" where nobody said."""

    pool: str
    by: str
    why: str
    at: float

    @classmethod
    def by_itself(cls, pool: str, why: str) -> PoolEnd:
        """Its limits were over, just now."""
        return cls(pool, "", why, time.time())

    @classmethod
    def told(cls, pool: str, header: AgentEnding) -> PoolEnd:
        """As one of its agents says when it begins to end."""
        return cls(pool, header["by"], header["why"], time.time())

    @classmethod
    def written(cls, row: PoolRow) -> PoolEnd:
        """As the ledger knows it; of a pool that is just being torn down it does not know by whom."""
        if row.ended_at is None:
            return cls(row.name, "another client", "", time.time())
        receipt = row.receipt or {}
        whys = sorted({note.partition(": ")[2] or note for note in receipt.get("notes", ())})
        return cls(row.name, receipt.get("by", ""), "; ".join(whys), row.ended_at)

    def error(self) -> PoolGone:
        """What is raised by all that waits, or is begun later: a fresh one for each thread."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at))
        ended = f"was ended at {when} by {self.by}" if self.by else f"ended itself at {when}"
        why = f": {self.why}" if self.why else ""
        return PoolGone(f"pool {self.pool} {ended}{why}", by=self.by, at=self.at, why=self.why)
