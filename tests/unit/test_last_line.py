from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from skyward_core.node.agent.agent_state import LAST_LINE_BYTES, last_line


@pytest.mark.parametrize(
    "text, line",
    [
        ("", ""),
        ("\n \n", ""),
        ("only", "only"),
        ("a\nb\n\n", "b"),
        ("x" * 9000, "x" * LAST_LINE_BYTES),
        ("é" * LAST_LINE_BYTES + "z", "é" * (LAST_LINE_BYTES // 2 - 1) + "z"),
    ],
)
def test_it_is_the_last_with_something_in_it(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    assert last_line(path).lstrip("\N{REPLACEMENT CHARACTER}") == line


def test_a_large_log_is_not_read_for_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as log:
        log.truncate(1 << 30)
        log.seek(0, 2)
        log.write(b"\nsegmentation fault\n")
    tracemalloc.start()
    try:
        assert last_line(path) == "segmentation fault"
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
