"""Sessions of clients, as tests open them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from skyward_core.client.session import Session


@contextmanager
def new_session() -> Iterator[Session]:
    """A session that leaves its pools where they are when the block ends."""
    session = Session()
    try:
        yield session
    finally:
        session.detach()
