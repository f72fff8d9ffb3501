"""Fixtures of many unit tests: a ledger in a fresh home."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from skyward_core.store.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """Ledger in a fresh home, ``tmp_path``."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    with closing(Ledger()) as ledger:
        yield ledger
