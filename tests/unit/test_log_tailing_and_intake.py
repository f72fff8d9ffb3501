"""Log tailing on the agent, log intake on the client, and properties of both and of frames."""

from __future__ import annotations

import asyncio
import os
import random
import struct
import tempfile
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.node.agent.log_tailing_and_size_limits import LogTail
from skyward_core.pool import rank_log_receiver
from skyward_core.pool.rank_log_receiver import LogReceiver
from skyward_core.protocol.frame_codec import CHUNK_BYTES, Decoder, WireError, encode_frame
from skyward_core.store.pool_folder import PoolFolder
from skyward_core.store.run_log_reader import LogRange, merge_ranges
from skyward_core.util.redaction import MIN_SECRET_LENGTH, Redactor
from tests.support.any_text import CHARACTERS
from tests.support.examples import examples
from tests.support.waiting import until


class Slow:
    """Fake connection. ``hold`` simulates a client that does not read."""

    def __init__(self) -> None:
        self.is_open = True
        self.got: dict[str, bytearray] = {}
        self.hold = asyncio.Event()
        self.hold.set()
        self.frames = 0
        self.gaps = 0

    @property
    def is_write_paused(self) -> bool:
        return not self.hold.is_set()

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        assert header["t"] == "log"
        have = self.got.setdefault(header["f"], bytearray())
        self.gaps += header["at"] != len(have)
        have += body
        self.frames += 1

    async def drain(self) -> None:
        await self.hold.wait()


def tail_of(
    spool: Path, connection: Slow, cursors: dict[str, int] | None = None, busy: bool = True, secrets: Iterable[str] = ()
) -> LogTail:
    return LogTail(
        spool, cast(Any, connection), cursors or {}, lambda: busy, Redactor(secrets), lambda: None, lambda name: 1 << 62
    )


async def test_existing_and_new_log_bytes_are_sent_once(tmp_path: Path) -> None:
    chance, connection = random.Random(2), Slow()
    (tmp_path / "abc.result").write_bytes(b"not a log")
    written = {"r000.out": b"", "r000.err": b""}
    follower = asyncio.create_task((tail := tail_of(tmp_path, connection)).run())
    for turn in range(60):
        if turn == 30:  # a rank that starts late
            written["r001.out"] = b""
        for name in written:
            piece = chance.randbytes(chance.choice((0, 1, 1000, 100_000)))
            with open(tmp_path / name, "ab") as file:
                file.write(piece)
            written[name] += piece
        if turn % 7 == 0:
            tail.wake()
            await asyncio.sleep(0)
    await until(lambda: {name: bytes(data) for name, data in connection.got.items()} == written)
    assert connection.gaps == 0
    follower.cancel()


async def test_new_log_files_are_found_after_every_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The polling interval is long in this test, and the first poll is due."""
    monkeypatch.setattr("skyward_core.node.agent.log_tailing_and_size_limits.POLL", asyncio.get_running_loop().time())
    monkeypatch.setattr(
        "skyward_core.node.agent.log_tailing_and_size_limits.IDLE_POLL", 1e6
    )  # only a wake ends the pause
    connection = Slow()
    (tmp_path / "r000.out").write_bytes(b"first")
    follower = asyncio.create_task((tail := tail_of(tmp_path, connection, busy=False)).run())
    await until(lambda: connection.got.get("r000.out") == b"first")
    for _ in range(10):
        await asyncio.sleep(0)  # it pauses
    (tmp_path / "r001.out").write_bytes(b"of a rank that starts late")
    tail.wake()
    await until(lambda: connection.got.get("r001.out") == b"of a rank that starts late")
    follower.cancel()


async def test_client_that_does_not_read_is_sent_one_frame(tmp_path: Path) -> None:
    (tmp_path / "r000.out").write_bytes(os.urandom(3 * CHUNK_BYTES))
    connection = Slow()
    connection.hold.clear()
    follower = asyncio.create_task(tail_of(tmp_path, connection).run())
    await until(lambda: connection.frames > 0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert connection.frames == 1
    connection.hold.set()
    await until(lambda: len(connection.got["r000.out"]) == 3 * CHUNK_BYTES)
    assert connection.gaps == 0
    follower.cancel()


async def test_tail_ends_with_its_connection_and_closes_files(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    (tmp_path / "r000.out").write_bytes(b"x")
    connection = Slow()
    follower = asyncio.create_task(tail_of(tmp_path, connection, busy=False).run())
    await until(lambda: connection.frames == 1)
    connection.is_open = False
    await asyncio.wait_for(follower, 20)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_log_flush_sends_at_most_one_chunk_at_once(tmp_path: Path) -> None:
    (tmp_path / "r000.out").write_bytes(b"last words")
    (tmp_path / "r000.err").write_bytes(os.urandom(2 * CHUNK_BYTES))
    connection = Slow()
    tail = tail_of(tmp_path, connection)
    tail.flush({"r000.out": 10, "r000.err": 2 * CHUNK_BYTES})
    assert connection.got["r000.out"] == b"last words"
    assert len(connection.got["r000.err"]) <= CHUNK_BYTES
    frames = connection.frames
    tail.flush({"r000.out": 10})
    assert connection.frames == frames, "nothing new, nothing sent"
    assert await tail.finish() == {"r000.out": 10, "r000.err": 2 * CHUNK_BYTES}
    assert connection.got["r000.err"] == (tmp_path / "r000.err").read_bytes()
    assert connection.gaps == 0


async def test_rest_of_a_limited_log_flush_is_sent_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyward_core.node.agent.log_tailing_and_size_limits.IDLE_POLL", 1e6)
    connection = Slow()
    follower = asyncio.create_task((tail := tail_of(tmp_path, connection, busy=False)).run())
    for _ in range(10):
        await asyncio.sleep(0)  # it pauses
    (tmp_path / "r000.out").write_bytes(os.urandom(2 * CHUNK_BYTES))
    tail.flush({"r000.out": 2 * CHUNK_BYTES})
    await until(lambda: len(connection.got["r000.out"]) == 2 * CHUNK_BYTES)
    follower.cancel()


async def test_log_flush_to_a_slow_client_or_of_absent_file_sends_nothing(tmp_path: Path) -> None:
    (tmp_path / "r000.out").write_bytes(b"x")
    connection = Slow()
    tail = tail_of(tmp_path, connection)
    tail.flush({"r007.out": 5})
    connection.hold.clear()
    tail.flush({"r000.out": 1})
    assert connection.frames == 0


@pytest.mark.parametrize("running", [True, False])
async def test_finishing_a_log_tail_sends_all_remaining_bytes(tmp_path: Path, running: bool) -> None:
    data = os.urandom(3 * CHUNK_BYTES + 17)
    (tmp_path / "r000.out").write_bytes(data)
    (tmp_path / "r001.out").write_bytes(b"")
    connection = Slow()
    tail = tail_of(tmp_path, connection)
    follower = asyncio.create_task(tail.run()) if running else None
    await asyncio.sleep(0)
    assert await tail.finish() == {"r000.out": len(data), "r001.out": 0}
    assert connection.got["r000.out"] == data
    assert connection.gaps == 0
    if follower is not None:
        follower.cancel()


async def test_secret_is_redacted_at_every_cut_of_a_log(tmp_path: Path) -> None:
    secret = "s3cr3t-value-of-30-characters!"
    text = (b"x" * 65_530 + secret.encode()) * 8 + b"the end\n"
    log, connection = tmp_path / "r000.out", Slow()
    log.touch()
    follower = asyncio.create_task((tail := tail_of(tmp_path, connection, secrets=[secret])).run())
    with log.open("ab", buffering=0) as out:
        for start in range(0, len(text), 9_973):
            out.write(text[start : start + 9_973])
            tail.wake()
            await asyncio.sleep(0)
        out.write(secret.encode()[:20])
        await until(lambda: len(connection.got.get("r000.out", b"")) == len(text))
        assert connection.got["r000.out"] == text.replace(secret.encode(), b"*" * len(secret))
        out.write(secret.encode()[20:])
        await until(lambda: connection.got["r000.out"].endswith(b"end\n" + b"*" * 30))
        out.write(secret.encode()[:3])
    follower.cancel()
    await asyncio.gather(follower, return_exceptions=True)
    again = tail_of(tmp_path, connection, {"r000.out": len(text) + 30}, secrets=[secret])
    assert await again.finish() == {"r000.out": len(text) + 33}
    assert connection.got["r000.out"].endswith(b"*s3c"), "at the end nothing is held back"
    assert connection.gaps == 0


async def test_secret_across_two_frames_is_redacted_in_both(tmp_path: Path) -> None:
    """The file already has more bytes, so the next frame begins within the secret."""
    secret, piece = "s3cr3t-value-of-30-characters!", CHUNK_BYTES // 4
    text = b"".join(b"x" * (piece - 15 if n == 0 else piece - 30) + secret.encode() for n in range(3)) + b"end\n"
    (tmp_path / "r000.out").write_bytes(text)
    connection = Slow()
    assert await tail_of(tmp_path, connection, secrets=[secret]).finish() == {"r000.out": len(text)}
    assert connection.frames > 3
    assert connection.got["r000.out"] == text.replace(secret.encode(), b"*" * len(secret))


async def test_flushed_secret_prefix_withholds_nothing_later(tmp_path: Path) -> None:
    secret = "s3cr3t-value-of-30-characters!"
    log, connection = tmp_path / "r000.out", Slow()
    log.write_text("at 12:0" + secret[:5])
    tail = tail_of(tmp_path, connection, secrets=[secret])
    follower = asyncio.create_task(tail.run())
    await until(lambda: connection.got.get("r000.out") == b"at 12:0")
    tail.flush({"r000.out": 12})
    with log.open("a") as out:
        out.write("5 new")  # as many bytes as waited before
    await until(lambda: connection.got["r000.out"] == log.read_bytes())
    follower.cancel()


# Pieces of logs as they come, once more or out of order: each byte is shown once, and written where it belongs.

NAME = "r000.out"


class Shown:
    """Log receiver, and the shown output of one log."""

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
@given(st.binary(min_size=1, max_size=60), st.lists(st.tuples(st.integers(0, 59), st.integers(1, 60)), max_size=20))
def test_repeated_log_bytes_are_shown_and_written_once(log: bytes, pieces: list[tuple[int, int]]) -> None:
    """Nodes send logs from a cursor, so repeated bytes begin at or before the bytes already received."""

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


async def test_bytes_that_the_disk_refused_are_requested_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    monkeypatch.setattr(rank_log_receiver, "RETRY_INTERVAL", 0.001)
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


# What holds whatever comes in, and however it happens to be cut: properties of the parts that take in data.

CUTS = st.lists(st.integers(0, 400), max_size=12)


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:stop] for start, stop in pairwise(edges)] or [data]


# -- secrets ---------------------------------------------------------------------------------------------

ALPHABET = st.characters(codec="ascii", min_codepoint=33, exclude_characters="*")
SECRET = st.text(ALPHABET, min_size=MIN_SECRET_LENGTH, max_size=24).filter(lambda value: len(set(value)) > 3)


class Sent:
    """Fake connection to a client."""

    is_open, is_write_paused = True, False

    def __init__(self) -> None:
        self.data = b""

    def send(self, header: dict[str, Any], body: bytes) -> None:
        assert header["at"] == len(self.data)
        self.data += body


def followed(pieces: Sequence[bytes], redactor: Redactor) -> bytes:
    """Return the bytes that a client gets from a log that is written and read in pieces."""
    with tempfile.TemporaryDirectory() as folder:
        log, sent = Path(folder, "r000.out"), Sent()
        log.touch()
        with open(log, "ab", buffering=0) as file:
            tail = LogTail(Path(folder), sent, {}, lambda: True, redactor, lambda: None, lambda name: 1 << 62)  # type: ignore[arg-type]
            tail._open_new_files()
            for piece in pieces:
                file.write(piece)
                while tail._send("r000.out", CHUNK_BYTES):
                    pass
            tail.flush({"r000.out": sum(map(len, pieces))})
        for descriptor in tail._files.values():
            os.close(descriptor)
        return sent.data


@given(
    st.lists(SECRET, min_size=1, max_size=3),
    st.lists(st.one_of(st.integers(0, 2), st.binary(max_size=20)), max_size=8),
    CUTS,
)
def test_no_secret_survives_in_a_log_at_any_cut(
    secrets: list[str], parts: list[int | bytes], places: list[int]
) -> None:
    texts = [part if isinstance(part, bytes) else secrets[part % len(secrets)].encode() for part in parts]
    redactor, data = Redactor(secrets), b" ".join(texts)
    shown = followed(cut(data, places), redactor)
    assert shown == redactor.redact_bytes(data)
    assert len(shown) == len(data)
    assert not any(secret.encode() in shown for secret in secrets)


# -- frames ----------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(CHARACTERS, max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(CHARACTERS, max_size=4), inner, max_size=3),
    max_leaves=6,
)
HEADERS = st.builds(
    lambda more, kind: more | {"t": kind},
    st.dictionaries(st.text(CHARACTERS, max_size=8), JSON, max_size=4),
    st.text(CHARACTERS, max_size=8),
)
FRAMES = st.lists(st.tuples(HEADERS, st.binary(max_size=40)), max_size=5)


def decoded(pieces: Sequence[bytes]) -> tuple[list[tuple[dict[str, Any], bytes]], bool]:
    """Return the frames in pieces, and whether the bytes after them were invalid."""
    decoder, found = Decoder(), []
    try:
        for piece in pieces:
            for each in decoder.feed(piece):
                found.append(each)
    except WireError:
        return found, True
    return found, False


@given(FRAMES, CUTS)
def test_frames_decode_at_any_cut(frames: list[tuple[dict[str, Any], bytes]], places: list[int]) -> None:
    stream = b"".join(encode_frame(header, body) for header, body in frames)
    assert decoded(cut(stream, places)) == (frames, False)


@given(
    FRAMES,
    st.binary(max_size=60) | st.binary(max_size=30).map(lambda head: struct.pack("!II", len(head), 0) + head),
    CUTS,
)
def test_any_bytes_decode_to_frames_or_an_error(
    frames: list[tuple[dict[str, Any], bytes]], garbage: bytes, places: list[int]
) -> None:
    stream = b"".join(encode_frame(header, body) for header, body in frames) + garbage
    whole = decoded([stream])
    assert whole[0][: len(frames)] == frames
    assert decoded(cut(stream, places)) == whole


@given(HEADERS, st.binary(min_size=1, max_size=20))
def test_extra_bytes_after_a_frame_header_are_an_error(header: dict[str, Any], more: bytes) -> None:
    head = encode_frame(header)[8:] + more
    assert decoded([struct.pack("!II", len(head), 0) + head]) == ([], True)


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 15)).map(lambda it: (it[0], sum(it))), max_size=12)


@given(st.data())
def test_merged_log_ranges_hold_every_byte_once(data: st.DataObject) -> None:
    """Calls begin and end at moments of one worker, at which its files only grow."""
    steps = data.draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
    moments = list(accumulate(steps, lambda at, step: (at[0] + step[0], at[1] + step[1]), initial=(0, 0)))
    moment = st.integers(0, len(moments) - 1)
    calls = data.draw(st.lists(st.tuples(st.sampled_from(["r000", "r000.1"]), moment, moment), max_size=12))
    parts = [LogRange(stem, moments[min(ends)], moments[max(ends)]) for stem, *ends in calls]
    out = merge_ranges(parts)
    for stem, stream in product(("r000", "r000.1"), (0, 1)):
        held = [n for part in out if part.stem == stem for n in range(part.start[stream], part.end[stream])]
        offsets = {n for part in parts if part.stem == stem for n in range(part.start[stream], part.end[stream])}
        assert held == sorted(offsets)


@given(st.binary(min_size=1, max_size=80), SPANS, SPANS)
def test_two_clients_writing_one_log_leave_it_complete(
    data: bytes, first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as home, patch.dict(os.environ, {"SKYWARD_HOME": home}):
        clients = PoolFolder("p.t1"), PoolFolder("p.t1")
        for client, spans in zip(clients, (first, second), strict=True):
            for start, stop in [*spans, (0, len(data))]:
                if piece := data[start:stop]:
                    client.write_log("r000.out", start, piece)
        assert (clients[0].logs / "r000.out").read_bytes() == data
        assert clients[0].log_sizes() == clients[1].log_sizes() == {"r000.out": len(data)}
        for client in clients:
            client.close()
