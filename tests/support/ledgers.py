"""Closing of the ledgers that a test opens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skyward_core.store.ledger import Ledger

SPEC = {"nodes": 2}
LOCAL = {"provider": "local"}


@contextmanager
def all_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close all ledgers that are opened inside the block."""
    opened: list[Ledger] = []
    init = Ledger.__init__

    def noted(self: Ledger, path: Path | None = None) -> None:
        init(self, path)
        opened.append(self)

    monkeypatch.setattr(Ledger, "__init__", noted)
    yield
    for ledger in opened:
        ledger.close()
