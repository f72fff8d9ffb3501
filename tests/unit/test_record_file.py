"""Records: what is written is read, up to wherever the file ends; what is none, or means harm, is refused in words."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skyward_core.model.errors import UsageError
from skyward_core.store import recording_file
from skyward_core.store.recording_file import RecordingReader, RecordingWriter
from tests.support.examples import examples

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)

ENTRIES = st.lists(st.dictionaries(st.text(), PLAIN, max_size=4), max_size=12)


def written(path: Path, entries: list[dict[str, Any]], every: int = 3) -> bytes:
    path.unlink(missing_ok=True)
    writer = RecordingWriter(path, {"pool": "p"})
    for place, entry in enumerate(entries, 1):
        writer.put(entry)
        if place % every == 0:
            writer.flush()
    writer.close()
    return path.read_bytes()


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(entries=ENTRIES)
def test_what_is_put_is_read_in_its_order(tmp_path: Path, entries: list[dict[str, Any]]) -> None:
    written(tmp_path / "a", entries)
    record = RecordingReader.read(tmp_path / "a")
    assert list(record.entries())[1:] == entries
    assert record.about["pool"] == "p" and not record.is_truncated


def test_a_file_that_is_cut_at_any_byte_gives_what_came_before(tmp_path: Path) -> None:
    entries = [{"n": number, "text": os.urandom(20).hex()} for number in range(20)]
    data = written(tmp_path / "a", entries)
    longest = 0
    for end in range(len(data)):
        try:
            record = RecordingReader(data[:end], "a")
        except UsageError:
            assert longest == 0, "once it has a beginning it can be read"
            continue
        found = list(record.entries())[1:]
        assert found == entries[: len(found)] and len(found) >= longest
        longest = len(found)
    assert longest >= 18


def test_a_byte_that_is_another_one_ends_it_there(tmp_path: Path) -> None:
    entries = [{"n": number} for number in range(20)]
    data = bytearray(written(tmp_path / "a", entries))
    data[len(data) // 2] ^= 0xFF
    record = RecordingReader(bytes(data), "a")
    found = list(record.entries())[1:]
    assert record.is_truncated and found == entries[: len(found)] != entries


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"SKYWARD-RECORD", b"SKYWARD-RECORD x\n", b"\x80\x04N."])
def test_another_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(UsageError, match="is no record of a pool"):
        RecordingReader.read(tmp_path / "a")


def test_one_of_a_newer_release_is_refused_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"SKYWARD-RECORD 2\n")
    with pytest.raises(UsageError, match="version 2, and this release reads up to version 1"):
        RecordingReader.read(tmp_path / "a")


def block(lines: bytes, raw: int | None = None) -> bytes:
    packed = zlib.compress(lines, 9)
    return (
        recording_file._BLOCK_HEADER.pack(b"blk1", len(packed), len(lines) if raw is None else raw, zlib.crc32(packed))
        + packed
    )


BEGIN = b"SKYWARD-RECORD 1\n" + block(b'{"k":"about"}\n')


def test_what_unpacks_to_more_than_it_says_is_left_out() -> None:
    bomb = block(bytes(64 << 20), raw=10)
    record = RecordingReader(BEGIN + bomb, "a")
    assert list(record.entries()) == [{"k": "about"}] and record.is_truncated


def test_a_large_block_and_many_blocks_are_refused_before_they_are_unpacked() -> None:
    record = RecordingReader(BEGIN + block(b"\n" * (recording_file.MAX_RAW_BLOCK_BYTES + 1)), "a")
    assert list(record.entries()) == [{"k": "about"}] and record.is_truncated
    many = block(b"\n" * recording_file.MAX_RAW_BLOCK_BYTES) * (
        recording_file.MAX_TOTAL_BYTES // recording_file.MAX_RAW_BLOCK_BYTES + 1
    )
    with pytest.raises(UsageError, match="would unpack to more than 512 MB"):
        RecordingReader(BEGIN + many, "a")


def test_lines_that_are_none_are_passed_over() -> None:
    lines = b'[1]\n{"a"\n' + b"[" * 100_000 + b'\n{"a":1}\n'
    assert list(RecordingReader(BEGIN + block(lines), "a").entries()) == [{"k": "about"}, {"a": 1}]


def test_nothing_that_is_there_is_written_over_and_no_link_followed(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("there", "link"):
        with pytest.raises(FileExistsError):
            RecordingWriter(tmp_path / name, {})
    assert (tmp_path / "there").read_text() == "mine" and not (tmp_path / "elsewhere").exists()


def test_a_full_disk_leaves_what_was_written_before_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RecordingWriter(tmp_path / "a", {})
    writer.put({"n": 1})
    writer.flush()
    real, room = os.write, [30]

    def write(file: int, data: Any) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        taken = real(file, bytes(data)[: room[0]])
        room[0] -= taken
        return taken

    monkeypatch.setattr(os, "write", write)
    writer.put({"n": 2, "text": json.dumps(list(range(200)))})
    with pytest.raises(OSError, match="No space left"):
        writer.flush()
    monkeypatch.undo()
    writer.put({"n": 3})
    writer.close()
    assert [entry.get("n") for entry in RecordingReader.read(tmp_path / "a").entries()] == [None, 1, 3]


def test_a_pipe_is_no_record_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is no record of a pool"):
        RecordingReader.read(tmp_path / "pipe")
