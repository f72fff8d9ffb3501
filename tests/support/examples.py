"""Number of hypothesis examples: all for proofs, otherwise a seventh but at least ten."""

from __future__ import annotations

from hypothesis import settings

ALL = 100  # of the profile "proofs"


def examples(count: int) -> int:
    """Return ``max_examples`` for the current profile, given the number of examples of a proof."""
    profile = settings()  # the one that is loaded
    return max(10, count * profile.max_examples // ALL)
