"""Atomic file writes: killed, concurrent and failing writers."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skyward_core.util import safe_file_access
from skyward_core.util.safe_file_access import write_atomic
from tests.support.child import Child

BEGIN = "import os, signal, sys, time\nfrom pathlib import Path\n"
DIE = "Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
WRITE = "from skyward_core.util.safe_file_access import write_atomic\nwrite_atomic(Path(sys.argv[1]), b'new' * 1000)\n"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_draft_of_a_killed_process_is_replaced_by_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomic(path, b"old")
    killed = subprocess.run([sys.executable, "-c", BEGIN + DIE + WRITE, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (path.read_bytes(), len(names(tmp_path))) == (b"old", 2)
    write_atomic(path, b"short")
    assert (path.read_bytes(), names(tmp_path)) == (b"short", {"a"})


def test_concurrent_atomic_writes_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a"
    halt = "was = Path.replace\nPath.replace = lambda *to: (print(flush=True), sys.stdin.read(), was(*to))\n"
    command = [sys.executable, "-c", BEGIN + halt + WRITE, str(path)]
    with Child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None and other.stdout is not None
        other.stdout.readline()
        with pytest.raises(BlockingIOError, match=r"another process is writing .*a\.draft"):
            write_atomic(path, b"ours")
        assert not path.exists()
        other.stdin.close()
        assert other.wait() == 0
    assert (path.read_bytes(), names(tmp_path)) == (b"new" * 1000, {"a"})


def test_atomic_write_leaves_a_file_just_renamed_by_another_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other writer renames the draft between our open and our lock."""
    path = tmp_path / "a"
    (tmp_path / "a.draft").write_bytes(b"theirs")
    found: list[bytes] = []

    def lock(descriptor: int, how: int) -> None:
        if not found:
            (tmp_path / "a.draft").rename(path)
        found.append(path.read_bytes())

    monkeypatch.setattr("fcntl.flock", lock)
    write_atomic(path, b"ours")
    assert found == [b"theirs", b"theirs"], "the renamed file is not written into"
    assert (path.read_bytes(), names(tmp_path)) == (b"ours", {"a"})


def test_atomic_write_waits_for_a_writer_of_the_same_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, draft = tmp_path / "a", tmp_path / "a.draft"
    with draft.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        pauses: list[float] = []

        def finish_third(seconds: float) -> None:
            pauses.append(seconds)
            assert not path.exists()
            if len(pauses) == 3:
                other.close()

        monkeypatch.setattr(safe_file_access, "sleep", finish_third)
        write_atomic(path, b"ours")
    assert (path.read_bytes(), names(tmp_path), len(pauses)) == (b"ours", {"a"}, 3)


def test_atomic_write_sets_permissions(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", b"mine")
    write_atomic(tmp_path / "b", b"anybody's", mode=0o644)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "ab"] == [0o600, 0o644]


def test_failed_atomic_write_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="a"):
        write_atomic(tmp_path / "a", b"x")
    assert names(tmp_path) == {"a"}
