"""What a client remembers to have fetched: nothing of it is lost by a line that a full disk or a crash cut short."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skyward_core.model.output_files import WrittenFile
from skyward_core.pool import output_files
from skyward_core.pool.output_files import OutputRecord


def test_a_line_that_was_cut_short_takes_no_other_with_it(tmp_path: Path) -> None:
    target, record = tmp_path / "model.pt", tmp_path / "outputs.jsonl"
    target.write_text("weights")
    first, second = (WrittenFile("model.pt", 7, 0.0, node, "v") for node in (0, 1))
    OutputRecord(record).add(first, target)
    with record.open("ab") as file:
        file.write(record.read_bytes().strip()[:40])
    OutputRecord(record).add(second, target)
    found = OutputRecord(record)
    assert found.latest_at(target) is not None and [row.node for row in found.copies_of(second)] == [1]


def test_what_came_from_one_node_of_a_shared_disk_is_here_though_another_names_it(tmp_path: Path) -> None:
    target, record = tmp_path / "model.pt", OutputRecord(tmp_path / "outputs.jsonl")
    target.write_text("weights")
    record.add(WrittenFile("model.pt", 7, 0.0, 1, "7.99.3"), target)
    assert [row.node for row in record.copies_of(WrittenFile("model.pt", 7, 0.0, 0, "7.99.3"))] == [1]
    assert record.copies_of(WrittenFile("model.pt", 7, 0.0, 0, "7.100.3")) == []


def test_a_full_disk_that_takes_half_a_line_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model.pt"
    target.write_text("weights")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: len(data) // 2]))
    with pytest.raises(OSError, match="No space left"):
        OutputRecord(tmp_path / "outputs.jsonl").add(WrittenFile("model.pt", 7, 0.0, 0, "v"), target)


def test_threads_that_read_the_record_together_skip_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of different nodes are fetched in threads; a skipped line is a file that is fetched twice."""
    record = OutputRecord(tmp_path / "outputs.jsonl")
    files = [WrittenFile(f"model{number}.pt", 1, 0.0, number, "v") for number in range(4)]
    for file in files:
        (tmp_path / file.path).write_text("w")
    together = threading.Barrier(2)

    def open_together(*args: Any) -> Any:
        source = open(*args)  # noqa: SIM115
        with suppress(threading.BrokenBarrierError):
            together.wait(0.2)  # one thread alone goes on after that
        return source

    record.add(files[0], tmp_path / files[0].path)
    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setattr(output_files, "open", open_together, raising=False)
        list(threads.map(record.copies_of, files[:2]))
    for file in files[1:]:
        record.add(file, tmp_path / file.path)
    assert [len(record.copies_of(file)) for file in files] == [1, 1, 1, 1]
