"""Pieces of logs as they come, once more or out of order: each byte is shown once, and written where it belongs."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.pool import rank_output
from skyward_core.pool.rank_output import LogReceiver
from skyward_core.store.pool_folder import PoolFolder
from tests.support.examples import examples

NAME = "r000.out"


class Shown:
    """An intake, and what it has shown of one log."""

    def __init__(self) -> None:
        self.archive = PoolFolder("p.t")
        self.data = bytearray()
        self.asked = 0
        self.failed: list[Exception] = []
        self.log_receiver = LogReceiver(
            self.archive, self._show, self._ask, lambda what, error: self.failed.append(error)
        )

    def _show(self, name: str, at: int, data: bytes) -> None:
        assert name == NAME and at == len(self.data) and data, "each byte once, and in order"
        self.data += data

    def _ask(self) -> None:
        self.asked += 1

    @property
    def written(self) -> bytes:
        return (self.archive.logs / NAME).read_bytes()

    def close(self) -> None:
        self.log_receiver.stop()
        self.archive.close()


@settings(max_examples=examples(30))
@given(
    st.binary(min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(0, 59), st.integers(1, 60)), max_size=20),
)
def test_each_byte_is_shown_and_written_once_however_often_it_comes(log: bytes, pieces: list[tuple[int, int]]) -> None:
    """Nodes send from a cursor on; what comes again begins at or before what is here."""

    async def take() -> None:
        shown = Shown()
        try:
            for back, size in pieces:
                start = max(0, min(len(shown.data), len(log) - 1) - back)
                shown.log_receiver.receive(NAME, start, log[start : start + size])
            for start in range(len(log)):
                shown.log_receiver.receive(NAME, start, log[start:])
            assert bytes(shown.data) == shown.written == log and not shown.log_receiver.has_unwritten
        finally:
            shown.close()

    with tempfile.TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYWARD_HOME", home)
        asyncio.run(take())


async def test_what_the_disk_did_not_take_is_asked_for_and_not_shown_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    monkeypatch.setattr(rank_output, "RETRY_INTERVAL", 0.001)
    shown = Shown()
    write = shown.archive.write_log

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(shown.archive, "write_log", full)
    shown.log_receiver.receive(NAME, 0, b"one\n")
    assert (bytes(shown.data), shown.log_receiver.has_unwritten, len(shown.failed)) == (b"one\n", True, 1)
    monkeypatch.setattr(shown.archive, "write_log", write)
    shown.log_receiver.receive(NAME, 4, b"two\n")
    assert bytes(shown.data) == b"one\ntwo\n" and not (shown.archive.logs / NAME).exists(), "no hole is left behind"
    async with asyncio.timeout(30):
        while not shown.asked:
            await asyncio.sleep(0.001)
    shown.log_receiver.receive(NAME, 0, b"one\ntwo\n")
    assert bytes(shown.data) == shown.written == b"one\ntwo\n" and not shown.log_receiver.has_unwritten
    shown.close()
