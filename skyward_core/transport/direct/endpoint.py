"""Where nodes listen for connections of our own."""

from __future__ import annotations

from ...model.value import Value, value

CONNECT_TIMEOUT = 2.0  # seconds; there is another way


@value
class Endpoint(Value):
    """Where a node listens, and what it is called in its certificate."""

    place: tuple[str, int]
    name: str
