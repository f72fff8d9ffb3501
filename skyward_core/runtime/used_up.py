"""Whether this process can take another call: some leave nothing in it that a next one could start from.

Whoever knows says so; the worker looks at the end of a call, and then ends as a process does. The ranks' next call
finds fresh ones, and a rendezvous of their own.
"""

from __future__ import annotations

_why = ""


def say(why: str) -> None:
    """This process takes no call after the present one.

    Args:
        why: in words.
    """
    global _why
    _why = why


def why() -> str:
    """Why it takes no other call; "" while it does."""
    return _why
