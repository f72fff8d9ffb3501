"""What machines were measured at, on disk: bounded, in order, whoever died while writing; a full disk ends it, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward_core.store import pool_folder
from skyward_core.store.pool_folder import MetricsWriter, read_metrics


def numbers(folder: Path) -> list[int]:
    return [entry["n"] for entry in read_metrics(folder)]


def test_it_is_read_in_its_order_whoever_wrote_it(tmp_path: Path) -> None:
    for client in range(3):
        kept = MetricsWriter(tmp_path, pytest.fail)
        for number in range(5):
            kept.put({"n": 5 * client + number})
        kept.close()
        kept.put({"n": 99})
    assert numbers(tmp_path) == list(range(15))


def test_what_a_process_that_was_killed_has_left_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    for _ in range(3):
        kept = MetricsWriter(tmp_path, pytest.fail)
        kept.put({"n": 1})
        kept.close()
    first, second, _ = sorted(tmp_path.glob("figures-*"))
    first.write_bytes(first.read_bytes()[:9])
    second.write_bytes(second.read_bytes()[:-3])
    assert numbers(tmp_path) == [1]


def test_the_beginning_and_the_end_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_folder, "METRICS_FILE_BYTES", 300)
    monkeypatch.setattr(pool_folder, "METRICS_TOTAL_BYTES", 1500)
    monkeypatch.setattr(pool_folder, "FLUSH_BYTES", 1)
    kept = MetricsWriter(tmp_path, pytest.fail)
    for number in range(200):
        kept.put({"n": number})
    kept.close()
    found = numbers(tmp_path)
    assert found[0] == 0 and found[-1] == 199 and len(found) < 100
    assert sum(path.stat().st_size for path in tmp_path.glob("figures-*")) < 2000
    assert found == sorted(found)


def test_a_full_disk_ends_it_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(pool_folder, "FLUSH_BYTES", 1)
    kept = MetricsWriter(tmp_path, said.append)
    kept.put({"n": 1})

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.write", full)
    for number in range(2, 5):
        kept.put({"n": number})
    kept.close()
    monkeypatch.undo()
    assert said == ["figures of machines are recorded no more: [Errno 28] No space left on device"]
    assert numbers(tmp_path) == [1]
