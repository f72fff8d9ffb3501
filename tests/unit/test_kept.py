"""What is kept of a node's folder when nobody is there any more, and what is not."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from skyward_core import Options, SpecError
from skyward_core.model.machines import Machine
from skyward_core.node.agent import retained_results
from skyward_core.node.bootstrap import host_command_server, host_inspection
from skyward_core.protocol.frame_codec import Header, encode_frame
from skyward_core.store.ledger_rows import RetainedResults
from skyward_core.util.redaction import Redactor

DAY = 86400.0


def outcome(run: str, index: int = 0, kind: str = "returned", **more: Any) -> Header:
    return {"t": "outcome", "run": run, "i": index, "kind": kind, "size": 7, "summary": None} | more


def ack(**calls: list[int] | None) -> Header:
    return {"t": "ack", "calls": calls}


def power_cut(root: Path, *frames: Header, keep: float = 7 * DAY, name: str = "p.t.0") -> Path:
    """A node's folder as a power cut leaves it, ten days ago."""
    folder = root / "pools" / name
    (folder / "spool").mkdir(parents=True)
    (folder / "blobs").mkdir()
    (folder / "blobs" / "large").write_bytes(bytes(1000))
    (folder / "agent.json").write_text(json.dumps({"idle_timeout": 600, "keep_results": keep}))
    (folder / "spool" / "r000.out").write_text("printed")
    (folder / "spool" / "journal").write_bytes(b"".join(encode_frame(each, b"1234567") for each in frames) + b"cut sh")
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (time.time() - 10 * DAY,) * 2)
    return folder


def test_a_sweep_after_a_power_cut_keeps_what_nobody_has_fetched(tmp_path: Path) -> None:
    folder = power_cut(tmp_path, outcome("aa"), outcome("aa", 1), outcome("bb", kind="raised"), ack(aa=[0]))
    host_command_server.remove_stale_folders(str(tmp_path))
    left = folder.with_name("kept.p.t.0")
    told = host_inspection.read_retained_facts(str(left))
    assert told["runs"] == {"aa": 7, "bb": 7}
    assert 6.9 * DAY < told["until"] - time.time() <= 7 * DAY
    assert sorted(path.name for path in left.iterdir()) == ["agent.json", "kept.json", "spool"]
    assert [path.name for path in folder.parent.iterdir()] == ["kept.p.t.0"]
    host_command_server.remove_stale_folders(str(tmp_path))
    assert host_inspection.read_retained_facts(str(left)) == told


@pytest.mark.parametrize(
    "frames",
    [
        (),
        (outcome("aa"), ack(aa=None)),
        (outcome("aa", 1), outcome("aa", 2), ack(aa=[1]), ack(aa=[2, 3], bb=None)),
        (outcome("aa", kind="collateral"), outcome("aa", 1, kind="lost")),
    ],
    ids=["nothing", "all fetched", "fetched one by one", "nobody's work"],
)
def test_a_sweep_removes_what_everybody_has(tmp_path: Path, frames: tuple[Header, ...]) -> None:
    folder = power_cut(tmp_path, *frames)
    host_command_server.remove_stale_folders(str(tmp_path))
    assert list(folder.parent.iterdir()) == []


def test_a_sweep_removes_what_is_not_to_be_kept_and_what_was_kept_long_enough(tmp_path: Path) -> None:
    power_cut(tmp_path, outcome("aa"), keep=0)
    late = power_cut(tmp_path, outcome("bb"), name="kept.q.t.0")
    (late / "kept.json").write_text(json.dumps({"until": time.time() - 1, "runs": {"bb": 7}, "bytes": 9}))
    for path in (late, *late.iterdir()):
        os.utime(path, (time.time() - DAY,) * 2)
    host_command_server.remove_stale_folders(str(tmp_path))
    assert not (tmp_path / "pools").exists() or list((tmp_path / "pools").iterdir()) == []


@pytest.mark.parametrize(
    "at",
    [
        0,
        5,
        retained_results.REDACT_CHUNK_BYTES - 4,
        retained_results.REDACT_CHUNK_BYTES,
        2 * retained_results.REDACT_CHUNK_BYTES - 1,
    ],
)
def test_secrets_are_blanked_wherever_they_lie(tmp_path: Path, at: int) -> None:
    secret, log = b"hush-hush-hush", tmp_path / "r000.out"
    log.write_bytes(b"x" * at + secret + b"\ny")
    redactor = Redactor([secret.decode()])
    retained_results.redact_logs(tmp_path, redactor.redact_bytes, redactor.reach)
    assert log.read_bytes() == b"x" * at + b"*" * len(secret) + b"\ny"


@pytest.mark.parametrize(
    "told",
    [
        None, [], {}, {"runs": []}, {"runs": {"../x": 1}, "bytes": 1, "until": 2e9}, {"runs": {"aa": "many"}},
        {"runs": {"aa": 1}, "bytes": 1, "until": 1e300}, {"runs": {"aa": 1}, "bytes": 1, "until": float("nan")},
    ],
)  # fmt: skip
def test_nonsense_that_a_host_tells_is_nothing_kept(told: Any) -> None:
    machine = Machine("h", 0, "h", "", extra={"folder": "p.t.0", "kept": told})
    assert RetainedResults.from_machine("t", machine) is None


@pytest.mark.parametrize(
    "words, seconds",
    [
        ("7d", 7 * DAY),
        ("12 hours", 43200),
        ("1.5h", 5400),
        ("90 s", 90),
        ("2 Weeks", 14 * DAY),
        ("10min", 600),
        (0, 0),
    ],
)
def test_durations_are_seconds_or_words(words: float | str, seconds: float) -> None:
    assert Options(keep_results=words).keep_results == seconds


@pytest.mark.parametrize("wrong", ["", "soon", "7 years", "-1d", -1, float("nan"), float("inf"), None, True, "1e3d"])
def test_other_durations_are_refused(wrong: Any) -> None:
    with pytest.raises(SpecError, match="keep_results"):
        Options(keep_results=wrong)


@pytest.mark.parametrize(
    "words, size",
    [("10 GB", 10**10), ("1.5kB", 1500), ("7", 7), ("200 mb", 2 * 10**8), (0, 0), ("2T", 2 * 10**12)],
)
def test_sizes_are_bytes_or_words(words: int | str, size: int) -> None:
    assert Options(log_limit=words).log_limit == size


@pytest.mark.parametrize("wrong", ["", "much", "-1", "10 GiB!", -1, 1.5, float("nan"), None, True])
def test_other_sizes_are_refused(wrong: Any) -> None:
    with pytest.raises(SpecError, match="log_limit"):
        Options(log_limit=wrong)
