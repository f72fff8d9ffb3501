"""Pools that are over, put together again from their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward_core.protocol.output_order_marks import BEFORE, encode_mark
from skyward_core.store import past_pools
from skyward_core.store.past_pools import add_logs
from skyward_core.views.pool_view import PoolView


@pytest.mark.parametrize("at_once", [1, 64])
def test_ranks_are_shown_side_by_side_as_their_times_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """However many are read at once, every line of each is there, in its order."""
    monkeypatch.setattr(past_pools, "MAX_OPEN_FILES", at_once)
    for rank in range(3):
        data = marks = b""
        for step in range(4):
            marks += encode_mark(BEFORE, 1000 + step + rank / 10, len(data), 0, "run")
            data += b"step %d\n" % step
        (tmp_path / f"r00{rank}.out").write_bytes(data)
        (tmp_path / f"r00{rank}.marks").write_bytes(marks)
    view = PoolView("p")
    assert add_logs(view, tmp_path) == {f"r00{rank}": (28, 0) for rank in range(3)}
    book = view.logs.for_run("run")
    for rank in range(3):
        assert book.rank(rank).lines(0, 9) == [f"step {step}" for step in range(4)]
    merged = book.merged.lines(0, 99)
    by_time = [f"r00{rank}| step {step}" for step in range(4) for rank in range(3)]
    assert merged == (by_time if at_once > 1 else sorted(by_time))


def test_a_worker_without_times_is_shown_too(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"r00{rank}.out").write_bytes(b"one\ntwo\n")
    view = PoolView("p")
    add_logs(view, tmp_path)
    assert sorted(view.logs.merged.lines(0, 9)) == ["r000| one", "r000| two", "r001| one", "r001| two"]
