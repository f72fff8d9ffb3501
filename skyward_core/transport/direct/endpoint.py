"""Where nodes listen for connections of our own."""

from __future__ import annotations

from dataclasses import dataclass

CONNECT_TIMEOUT = 2.0  # seconds; there is another way


@dataclass(frozen=True)
class Node:
    """Where a node listens, and what it is called in its certificate."""

    place: tuple[str, int]
    name: str
