"""How many examples hypothesis tries: all of them as proofs, a seventh otherwise, and ten at least."""

from __future__ import annotations

from hypothesis import settings

ALL = 100  # of the profile "proofs"


def examples(count: int) -> int:
    """As many of them as the profile has of a hundred; for ``max_examples``."""
    profile = settings()  # the one that is loaded
    return max(10, count * profile.max_examples // ALL)
