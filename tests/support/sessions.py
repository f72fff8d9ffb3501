"""Client sessions of tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from skyward_core.client.session import Session


@contextmanager
def new_session() -> Iterator[Session]:
    """Open a session that leaves its pools running at the end of the block."""
    session = Session()
    try:
        yield session
    finally:
        session.detach()
