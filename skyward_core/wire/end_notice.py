"""What is said of a machine's end, ahead of it."""

from __future__ import annotations

# What may be said; "rebalance": that it is likelier than it was.
NOTICES = ("terminate", "stop", "hibernate", "rebalance")
LONGEST_NOTICE = 24 * 3600.0  # seconds ahead that are believed
PREEMPTED = "Preempted"  # type of the error in outcomes of ranks that are lost to that


def is_same_end(one: float | None, other: float | None) -> bool:
    """Whether two notices mean the same end of a machine, by one clock; None where nobody knows when."""
    if one is None or other is None:
        return one is other
    return abs(one - other) < 30
