"""Every byte of every log, once and in order, from a client's cursors on."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.node.agent.log_tailing import PIECE_BYTES, POLL, QUIET_POLL, LogTail
from skyward_core.pool import rank_output
from skyward_core.pool.rank_output import LogReceiver
from skyward_core.protocol.frame_codec import CHUNK_BYTES
from skyward_core.store.pool_folder import PoolFolder
from skyward_core.util.redaction import Redactor
from tests.support.examples import examples
from tests.support.waiting import until


class Slow:
    """Stands for a connection; ``hold`` makes it one whose client does not read."""

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
    spool: Path,
    connection: Slow,
    cursors: dict[str, int] | None = None,
    busy: bool = True,
    secrets: Iterable[str] = (),
) -> LogTail:
    return LogTail(
        spool,
        cast(Any, connection),
        cursors or {},
        lambda: busy,
        Redactor(secrets),
        lambda: None,
        lambda name: 1 << 62,
    )


async def test_what_is_there_and_what_comes_is_sent_once(tmp_path: Path) -> None:
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


async def test_it_goes_on_at_the_clients_cursor(tmp_path: Path) -> None:
    (tmp_path / "r000.out").write_bytes(b"seen before|new")
    connection = Slow()
    connection.got["r000.out"] = bytearray(b"seen before|")
    follower = asyncio.create_task(tail_of(tmp_path, connection, {"r000.out": 12}).run())
    await until(lambda: connection.got["r000.out"] == b"seen before|new")
    assert connection.gaps == 0
    follower.cancel()


async def test_after_a_pause_it_looks_for_new_logs_however_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood is looked through once a moment; the moment is long here, and the first look is due."""
    monkeypatch.setattr("skyward_core.node.agent.log_tailing.POLL", asyncio.get_running_loop().time())
    monkeypatch.setattr("skyward_core.node.agent.log_tailing.IDLE_POLL", 1e6)  # only a wake ends the pause
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


async def test_busy_ranks_that_print_nothing_are_looked_at_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look takes a processor from ranks; a line that comes has them looked at as often as ever."""
    monkeypatch.setattr("skyward_core.node.agent.log_tailing.QUIET_AFTER", 0.0)
    connection, pauses = Slow(), list[float]()
    tail = tail_of(tmp_path, connection)

    async def pause(busy: float) -> None:
        pauses.append(busy)
        connection.is_open = len(pauses) < 2
        monkeypatch.setattr("skyward_core.node.agent.log_tailing.QUIET_AFTER", 1e6)
        (tmp_path / "r000.out").write_bytes(b"a line")

    monkeypatch.setattr(tail, "_pause", pause)
    async with asyncio.timeout(20):
        await tail.run()
    assert pauses == [QUIET_POLL, POLL]


async def test_a_client_that_does_not_read_is_sent_little(tmp_path: Path) -> None:
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


async def test_it_ends_with_its_connection_and_closes_its_files(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    (tmp_path / "r000.out").write_bytes(b"x")
    connection = Slow()
    follower = asyncio.create_task(tail_of(tmp_path, connection, busy=False).run())
    await until(lambda: connection.frames == 1)
    connection.is_open = False
    await asyncio.wait_for(follower, 20)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_a_flush_comes_at_once_and_only_if_it_is_little(tmp_path: Path) -> None:
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


async def test_a_flush_to_a_slow_client_or_of_a_file_that_is_not_there_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "r000.out").write_bytes(b"x")
    connection = Slow()
    tail = tail_of(tmp_path, connection)
    tail.flush({"r007.out": 5})
    connection.hold.clear()
    tail.flush({"r000.out": 1})
    assert connection.frames == 0


@pytest.mark.parametrize("running", [True, False])
async def test_the_end_sends_all_that_is_left(tmp_path: Path, running: bool) -> None:
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


async def test_a_secret_is_blanked_wherever_the_pieces_of_a_log_are_cut(tmp_path: Path) -> None:
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


async def test_a_secret_is_blanked_wherever_the_pieces_are_cut(tmp_path: Path) -> None:
    secret, chance, connection = "hf_abcdefghijklmnop", random.Random(4), Slow()
    words = ("step 1 ", f"token={secret}\n", secret, secret[:9] + "!", "\n")
    text = "".join(chance.choices(words, k=2000)).encode()
    tail = tail_of(tmp_path, connection, secrets=[secret])
    follower = asyncio.create_task(tail.run())
    with open(tmp_path / "r000.out", "ab", buffering=0) as file:
        at = 0
        while at < len(text):
            size = chance.choice((1, 5, 18, 300))
            file.write(text[at : at + size])
            at += size
            if chance.random() < 0.2:
                tail.wake()
                await asyncio.sleep(0)
    assert await tail.finish() == {"r000.out": len(text)}
    follower.cancel()
    assert connection.gaps == 0
    assert connection.got["r000.out"] == text.replace(secret.encode(), b"*" * len(secret))


async def test_a_secret_over_the_end_of_a_piece_is_blanked_on_both_sides(tmp_path: Path) -> None:
    """The file holds more already, so that nothing waits: the next piece begins within the secret."""
    secret, piece = "s3cr3t-value-of-30-characters!", CHUNK_BYTES // 4
    text = b"".join(b"x" * (piece - 15 if n == 0 else piece - 30) + secret.encode() for n in range(3)) + b"end\n"
    (tmp_path / "r000.out").write_bytes(text)
    connection = Slow()
    assert await tail_of(tmp_path, connection, secrets=[secret]).finish() == {"r000.out": len(text)}
    assert connection.frames > 3
    assert connection.got["r000.out"] == text.replace(secret.encode(), b"*" * len(secret))


async def test_a_log_that_stands_still_is_not_looked_through_again(tmp_path: Path) -> None:
    secret = "s3cr3t-value-of-30-characters!"
    (tmp_path / "r000.out").write_text("x" * 5000 + secret[:20])
    tail = tail_of(tmp_path, connection := Slow(), secrets=[secret])
    looked: list[bytes] = []
    begun = tail._redactor.partial_secret_length
    tail._redactor.partial_secret_length = lambda data: looked.append(data) or begun(data)  # type: ignore[method-assign, func-returns-value]
    follower = asyncio.create_task(tail.run())
    await until(lambda: connection.frames == 1)
    for _ in range(20):
        tail.wake()
        await asyncio.sleep(0)
    assert len(looked) == 1
    with open(tmp_path / "r000.out", "a") as log:
        log.write("!")
    await until(lambda: len(connection.got["r000.out"]) == 5021)
    assert connection.got["r000.out"].endswith(b"x" + b"*" * 20 + b"!")
    follower.cancel()


async def test_what_waited_and_was_sent_at_a_calls_end_holds_nothing_back_later(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(("size", "rounds"), [(100, 1), (PIECE_BYTES, 2)])
async def test_it_waits_after_what_was_all_and_goes_on_where_more_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, rounds: int
) -> None:
    """A frame for each line of a flood would cost more than the flood."""
    connection, drained, looks = Slow(), 0, list[int]()

    async def drain() -> None:
        nonlocal drained
        drained += 1

    async def pause(busy: float) -> None:
        looks.append(drained)
        connection.is_open = len(looks) < 3
        with open(tmp_path / "r000.out", "ab") as file:
            file.write(bytes(size))

    (tmp_path / "r000.out").write_bytes(bytes(size))
    connection.drain = drain  # type: ignore[method-assign]
    tail = tail_of(tmp_path, connection)
    monkeypatch.setattr(tail, "_pause", pause)
    async with asyncio.timeout(20):
        await tail.run()
    assert looks == [rounds, 2 * rounds, 3 * rounds]


# Pieces of logs as they come, once more or out of order: each byte is shown once, and written where it belongs.

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
