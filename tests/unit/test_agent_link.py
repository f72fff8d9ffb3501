"""Link of a client to an agent that the test plays: frames, reconnection and downloads."""

from __future__ import annotations

import asyncio
import gc
import random
import time
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from skyward_core.model.errors import CredentialsRefused, HostKeyError, PoolError, UsageError
from skyward_core.pool import agent_link
from skyward_core.pool.agent_link import Link, describe_client
from skyward_core.protocol.frame_codec import MAX_INLINE_BYTES, VERSION, Decoder, Header, WireError, encode_frame
from skyward_core.tasks.pickled_calls_and_blobs import SourceText
from skyward_core.transport.file_and_result_downloads import ResultDownload
from tests.support.waiting import until

WELCOME = {
    "t": "welcome", "version": VERSION, "epoch": 2, "broken": "", "node": 0, "address": "", "ranks_per_node": 1,
    "lease": None, "runs": [],
}  # fmt: skip
OUTCOME = {"t": "outcome", "run": "r", "i": 0, "rank": 0, "node": 0, "kind": "returned"}


class Pipe:
    """Connection whose agent side the test controls."""

    def __init__(self, on_data: Callable[[bytes], None], on_lost: Callable[[Exception | None], None]) -> None:
        self.on_data, self.on_lost = on_data, on_lost
        self.closed = False
        self.sent: list[tuple[Header, bytes]] = []
        self.writes: list[bytes] = []
        self._decoder = Decoder()

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.writes.append(data)
        self.sent += self._decoder.feed(data)

    def close(self) -> None:
        self.closed = True

    # -- the agent's end --

    def say(self, header: Header, body: bytes = b"") -> None:
        self.on_data(encode_frame(header, body))


class Transport:
    """Transport that opens pipes. ``errors`` are raised by the next attempts, ``greet`` is the agent's immediate
    answer.
    """

    shares_files = False

    def __init__(self) -> None:
        self.pipes: list[Pipe] = []
        self.errors: list[Exception] = []
        self.greet: Header | None = WELCOME
        self.files: set[str] = set()

    async def open(self, on_data: Any, on_lost: Any) -> Pipe:
        if self.errors:
            raise self.errors.pop(0)
        pipe = Pipe(on_data, on_lost)
        self.pipes.append(pipe)
        if self.greet is not None:
            asyncio.get_running_loop().call_soon(pipe.say, self.greet)
        return pipe

    async def fetch(self, name: str, target: Path, offset: int, size: int) -> bool:
        if name in self.files:
            target.write_bytes(b"the short way")
        return name in self.files

    async def close(self) -> None:
        return None

    @property
    def pipe(self) -> Pipe:
        return self.pipes[-1]


class Listener:
    def __init__(self) -> None:
        self.frames: list[tuple[Header, bytes]] = []
        self.links: list[tuple[bool, str]] = []
        self.have = {"r000.out": 12}
        self.heard: list[str] = []  # of both, in their order

    def on_frame(self, link: Link, header: Header, body: bytes) -> None:
        self.frames.append((header, body))
        self.heard.append(header["t"])
        if header.get("run") == "nonsense":
            raise WireError("it makes no sense")

    def on_link(self, link: Link, up: bool, detail: str) -> None:
        self.links.append((up, detail))
        self.heard.append("up" if up else "down")

    def cursors(self, node: int) -> dict[str, int]:
        return self.have


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_link, "BACKOFF", (0.001, 0.01))
    monkeypatch.setattr(agent_link, "ACK_DELAY", 0.001)


@pytest.fixture
async def link() -> AsyncIterator[Link]:
    link = Link(3, Transport(), Listener())  # type: ignore[arg-type]
    await link.connect()
    yield link
    await link.close()


@pytest.fixture
def transport(link: Link) -> Transport:
    return link.transport  # type: ignore[return-value]


@pytest.fixture
def listener(link: Link) -> Listener:
    return link._listener  # type: ignore[return-value]


async def up_with(*frames: Header) -> Link:
    """Return a link whose agent sends these frames together with its welcome."""
    transport = Transport()
    transport.greet = None
    link = Link(0, transport, Listener())  # type: ignore[arg-type]
    coming = asyncio.create_task(link.connect())
    await until(lambda: transport.pipes)
    transport.pipe.on_data(b"".join(map(encode_frame, (WELCOME, *frames))))
    await coming
    return link


async def test_frames_with_the_welcome_are_delivered_after_it() -> None:
    link = await up_with(OUTCOME, {"t": "began", "run": "r", "i": 1, "rank": 1, "node": 0})
    transport, listener = parts(link)
    transport.pipe.say(OUTCOME | {"i": 1})
    assert listener.heard == ["up", "outcome", "began", "outcome"]
    await link.close()


async def test_invalid_frame_with_the_welcome_closes_the_connection() -> None:
    link = await up_with(OUTCOME | {"run": "nonsense"})
    assert parts(link)[0].pipe.closed
    await link.close()


def parts(link: Link) -> tuple[Transport, Listener]:
    return link.transport, link._listener  # type: ignore[return-value]


async def test_link_sends_hello_and_tails_logs_from_the_cursor(
    link: Link, transport: Transport, listener: Listener
) -> None:
    hello, tail, *_ = (header for header, _ in transport.pipe.sent)
    assert hello == {"t": "hello", "watch": True, "observer": False, "who": describe_client()}
    assert tail == {"t": "tail", "cursors": {"r000.out": 12}}
    assert (link.up, link.epoch, link.broken, link.welcome) == (True, 2, "", WELCOME)
    assert listener.links == [(True, "")]


async def test_link_passes_frames_to_its_listener(link: Link, transport: Transport, listener: Listener) -> None:
    transport.pipe.say({"t": "log", "f": "r000.out", "at": 12}, b"hi\n")
    assert listener.frames == [({"t": "log", "f": "r000.out", "at": 12}, b"hi\n")]
    transport.pipe.say({"t": "gang", "epoch": 3, "broken": "rank 1 ended"})
    assert (link.epoch, link.broken) == (3, "rank 1 ended")
    transport.pipe.say({"t": "gang", "epoch": 2, "broken": ""})
    assert (link.epoch, link.broken) == (3, "rank 1 ended"), "old news"


def call_header(run: str, index: int) -> Any:
    return {"t": "call", "run": run, "i": index}


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
async def test_frame_times_reveal_a_changed_node_clock(link: Link, seconds: float) -> None:
    """The clock of a new machine is often corrected some time after its start."""
    pipe = link.transport.pipe  # type: ignore[attr-defined]
    tells = {"t": "began", "run": "ab12", "i": 0, "rank": 0, "node": 0}
    pipe.say(tells | {"at": time.time() - 5})  # it was on its way for long
    assert link.to_client_time(0.0) == 0.0
    pipe.say(tells | {"at": time.time() - seconds})
    assert link.to_client_time(0.0) == pytest.approx(seconds, abs=5)
    pipe.say(tells)  # an older one says no time
    assert link.to_client_time(0.0) == pytest.approx(seconds, abs=5)


async def test_unanswered_calls_are_sent_again_after_reconnection(
    link: Link, transport: Transport, listener: Listener
) -> None:
    for index in range(3):
        link.call(call_header("r", index), b"payload")
    transport.pipe.say(OUTCOME | {"i": 0})  # told to all, without its value
    transport.pipe.say(OUTCOME | {"i": 1}, b"value")
    transport.pipe.say({"t": "stale", "run": "r", "i": 2})
    listener.have = {"r000.out": 99}
    transport.pipe.on_lost(OSError("cable pulled"))
    assert not link.up
    link.call(call_header("r", 5), b"while down")
    assert link.send({"t": "stop"}) is False
    await until(lambda: link.up)
    assert listener.links == [(True, ""), (False, "cable pulled"), (True, "")]
    sent = transport.pipe.sent
    assert sent[1][0] == {"t": "tail", "cursors": {"r000.out": 99}}
    assert [(h["i"], body) for h, body in sent if h["t"] == "call"] == [(0, b"payload"), (5, b"while down")]


def text(content: str, place: str = "/home/me/train.py") -> SourceText:
    return SourceText(content, "train.py", place, content.encode() * 9)


async def test_source_text_is_sent_before_calls_and_after_reconnection(link: Link, transport: Transport) -> None:
    transport.pipe.sent.clear()
    for index, source in enumerate((text("a0"), text("a0"), text("b1", place=""))):
        link.send_sources((source, source))
        link.call(call_header("r", index), b"")
    sent = [(header["t"], header.get("hash", header.get("i"))) for header, _ in transport.pipe.sent]
    assert sent == [("source", "a0"), ("call", 0), ("call", 1), ("source", "b1"), ("call", 2)]
    assert zlib.decompress(transport.pipe.sent[0][1]) == b"a0" * 9
    transport.pipe.on_lost(None)
    link.send_sources((text("c2"),))
    await until(lambda: link.up)
    kinds = [header["t"] for header, _ in transport.pipe.sent]
    assert kinds[2:8] == ["source"] * 3 + ["call"] * 3
    transport.shares_files = True
    link.send_sources((text("d3"), text("e4", place="")))
    assert transport.pipe.sent[-1][0] == {"t": "source", "hash": "e4", "name": "train.py"}
    assert len(transport.pipe.sent) == len(kinds) + 1


async def test_large_source_text_is_not_sent_and_few_are_repeated(link: Link, transport: Transport) -> None:
    transport.pipe.sent.clear()
    link.send_sources((SourceText("0", "train.py", "/train.py", random.Random(1).randbytes(MAX_INLINE_BYTES + 1)),))
    assert transport.pipe.sent == []
    link.send_sources(text(f"c{number}") for number in range(agent_link.MAX_SOURCES + 1))
    transport.pipe.on_lost(None)
    await until(lambda: link.up)
    again = [header["hash"] for header, _ in transport.pipe.sent if header["t"] == "source"]
    assert again == [f"c{number}" for number in range(1, agent_link.MAX_SOURCES + 1)]


async def test_acknowledgements_are_batched_and_survive_a_drop(link: Link, transport: Transport) -> None:
    transport.pipe.sent.clear()
    for index in range(3):
        link.acknowledge("r", index)
    link.acknowledge("whole")
    link.acknowledge("whole", 4)
    await until(lambda: bool(transport.pipe.sent))
    assert [header for header, _ in transport.pipe.sent] == [{"t": "ack", "calls": {"r": [0, 1, 2], "whole": None}}]
    transport.pipe.on_lost(None)
    link.acknowledge("late", 1)
    await until(lambda: link.up)
    again = {"r": [0, 1, 2], "whole": None, "late": [1]}
    sent = [header["calls"] for header, _ in transport.pipe.sent if header["t"] == "ack"]
    assert sent == [again], "an agent that died may not have read the first ones"


async def test_call_carries_acknowledgements_that_are_old_enough(
    link: Link, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport.pipe.sent.clear()
    now = time.monotonic()
    monkeypatch.setattr(agent_link, "monotonic", lambda: now)
    link.acknowledge("r0")
    link.call(call_header("r1", 0), b"")
    link.acknowledge("r1")
    now += 2 * agent_link.ACK_AGE
    link.call(call_header("r2", 0), b"")
    kinds = [header["t"] for header, _ in transport.pipe.sent]
    assert kinds == ["call", "ack", "call"], "calls in quick succession share one acknowledgement"
    assert transport.pipe.sent[1][0]["calls"] == {"r0": None, "r1": None}


@pytest.fixture
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_link, "SILENCE", 0.2)


@pytest.mark.parametrize("is_answered", [True, False])
async def test_acknowledgements_are_repeated_until_the_agent_answers_a_ping(
    is_answered: bool, quick_pings: None, link: Link, transport: Transport
) -> None:
    link.acknowledge("r")
    link.flush_acknowledgements()
    await until(lambda: any(header["t"] == "ping" for header, _ in transport.pipe.sent))
    if is_answered:
        transport.pipe.on_data(encode_frame({"t": "pong", "id": agent_link.KEEPALIVE_ID, "lease": None}))
    transport.pipe.on_lost(None)
    await until(lambda: link.up)
    again = [header for header, _ in transport.pipe.sent if header["t"] == "ack"]
    assert again == ([] if is_answered else [{"t": "ack", "calls": {"r": None}}])


async def test_link_reconnects_until_it_succeeds(link: Link, transport: Transport, listener: Listener) -> None:
    kinds: dict[str, type[Exception]] = {
        "refused": ConnectionRefusedError,
        "no route": OSError,
        "odd": WireError,
        "no key": PoolError,
        "no file": UsageError,
    }
    transport.errors = [kind(text) for text, kind in kinds.items()]
    transport.pipe.on_lost(None)
    await until(lambda: link.up)
    details = [detail for up, detail in listener.links if not up]
    assert details[0] == "connection closed"
    assert [detail.split("; next try in ")[0] for detail in details[1:]] == [*kinds]


async def test_changed_host_key_ends_reconnection(transport: Transport, listener: Listener) -> None:
    transport.errors = [HostKeyError("the key has changed")] * 5
    transport.pipe.on_lost(None)
    await until(lambda: len(listener.links) == 3)
    assert listener.links[-1] == (False, "the key has changed; not tried again")
    assert len(transport.errors) == 4


async def test_rejected_logins_pause_reconnection_for_longer(
    transport: Transport, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_link, "REJECTED_PAUSES", (0.04, 1000.0))
    monkeypatch.setattr("random.uniform", lambda low, high: 1.0)
    transport.errors = [CredentialsRefused("no key")] * 9
    transport.pipe.on_lost(None)
    await until(lambda: len(listener.links) == 5)
    details = [detail for up, detail in listener.links if not up]
    assert details[1:] == [f"no key; next try in {seconds} s" for seconds in (0.0, 0.2, 0.6)]


async def connect_without_welcome() -> tuple[Link, Transport, Listener, asyncio.Task[None]]:
    """Start to connect to an agent that has not answered yet."""
    transport, listener = Transport(), Listener()
    transport.greet = None
    link = Link(0, transport, listener)  # type: ignore[arg-type]
    connecting = asyncio.create_task(link.connect())
    await until(lambda: bool(transport.pipes))
    return link, transport, listener, connecting


async def test_link_lost_right_after_the_welcome_is_not_up() -> None:
    link, transport, listener, connecting = await connect_without_welcome()
    transport.pipe.say(WELCOME)
    transport.pipe.on_lost(None)  # before whoever waits for the welcome could run
    with pytest.raises(ConnectionError, match="node 0"):
        await connecting
    assert not link.up
    assert listener.links == []


async def test_agent_of_another_protocol_version_is_rejected() -> None:
    transport, listener = Transport(), Listener()
    transport.greet = WELCOME | {"version": VERSION + 1}
    link = Link(0, transport, listener)  # type: ignore[arg-type]
    with pytest.raises(WireError, match=f"node 0 has protocol version {VERSION + 1}"):
        await link.connect()
    assert transport.pipe.closed


async def test_invalid_bytes_instead_of_a_welcome_are_rejected() -> None:
    _, transport, _, connecting = await connect_without_welcome()
    transport.pipe.on_data(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(WireError):
        await connecting
    assert transport.pipe.closed


async def test_late_loss_of_an_old_pipe_does_not_affect_the_new_one(link: Link, transport: Transport) -> None:
    first = transport.pipe
    first.on_lost(None)
    await until(lambda: link.up)
    first.on_lost(OSError("again"))
    assert link.up
    assert link.send({"t": "ping"})


async def test_concurrent_requests_get_their_own_answers(link: Link, transport: Transport) -> None:
    asked = [asyncio.create_task(link.ask({"t": "drop"})) for _ in range(2)]
    await until(lambda: len(link._pending_requests) == 2)
    first, second = sorted(link._pending_requests)
    transport.pipe.say({"t": "known", "id": second}, b"two")
    transport.pipe.say({"t": "known", "id": first}, b"one")
    transport.pipe.say({"t": "pong", "id": 999, "lease": None})
    assert [body for _, body in await asyncio.gather(*asked)] == [b"one", b"two"]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("where", {"t": "known"}),
        ("setup", {"t": "known", "env": {"A": 1}, "secrets": [], "known": True, "apps": False}),
        ("ping", {"t": "formed", "head_addr": "", "head_port": 1}),
        ("ports", {"t": "known", "ports": [-1]}),
    ],
)
async def test_invalid_answer_ends_connection(link: Link, asked: str, answer: Header, transport: Transport) -> None:
    waiting = asyncio.create_task(link.ask({"t": asked}))
    await until(lambda: bool(link._pending_requests))
    transport.pipe.say(answer | {"id": next(iter(link._pending_requests))})
    assert transport.pipe.closed
    transport.pipe.on_lost(None)
    with pytest.raises(ConnectionError, match=r"invalid (type|value) of key|is not an answer"):
        await waiting


async def test_file_download_must_have_the_announced_length(link: Link, tmp_path: Path, transport: Transport) -> None:
    for pieces, words in (
        ([b"x" * 9], "received more than the announced 8 bytes"),
        ([b"x" * 7, b""], "only 7 of 8 bytes arrived"),
    ):
        landing = ResultDownload(tmp_path / words, 8)
        fetching = asyncio.create_task(link.fetch("f", landing))
        await until(lambda: bool(link._files))
        number = next(iter(link._files))
        for piece in pieces:
            transport.pipe.say({"t": "data", "id": number, "last": not piece}, piece)
        with pytest.raises(OSError, match=words):
            await fetching
        assert not link._files


async def test_lost_connection_fails_pending_requests(link: Link, transport: Transport) -> None:
    asked = asyncio.create_task(link.ask({"t": "form"}))
    await until(lambda: bool(link._pending_requests))
    transport.pipe.on_lost(OSError("cut"))
    with pytest.raises(ConnectionError, match="connection to node 3 was lost: cut"):
        await asked
    link.up = False
    with pytest.raises(ConnectionError, match="link to node 3 is down"):
        await link.ask({"t": "ping"})


async def test_goodbye_ends_a_link_without_reconnection(link: Link, transport: Transport, listener: Listener) -> None:
    transport.pipe.say({"t": "bye", "logs": {"r000.out": 40}})
    assert (link.finished, link.last_sizes) == (True, {"r000.out": 40})
    transport.pipe.on_lost(None)
    assert len(transport.pipes) == 1
    assert link._retry is None
    assert listener.links[-1] == (False, "connection closed")


async def test_link_to_a_lost_node_stops_reconnecting(link: Link, transport: Transport) -> None:
    transport.errors = [OSError("no")] * 1000
    transport.pipe.on_lost(None)
    await until(lambda: len(transport.errors) < 1000)
    link.mark_lost()
    retry = link._retry
    assert retry is not None
    await asyncio.wait([retry])
    assert retry.cancelled()


# -- files -------------------------------------------------------------------------------------------------------


async def fetching(link: Link, landing: ResultDownload) -> tuple[asyncio.Task[None], Header]:
    transport, _ = parts(link)
    transport.pipe.sent.clear()
    task = asyncio.create_task(link.fetch("x.result", landing))
    await until(lambda: bool(transport.pipe.sent))
    return task, transport.pipe.sent[0][0]


def data(request: Header, at: int, last: bool = False, **more: Any) -> Header:
    return {"t": "data", "id": request["id"], "at": at, "last": last} | more


async def test_file_download_resumes_after_a_drop(link: Link, tmp_path: Path, transport: Transport) -> None:
    landing = ResultDownload(tmp_path / "x", 10)
    task, request = await fetching(link, landing)
    assert (request["t"], request["f"], request["at"]) == ("fetch", "x.result", 0)
    transport.pipe.say(data(request, 0), b"01234")
    transport.pipe.on_lost(None)
    with pytest.raises(ConnectionError):
        await task
    await until(lambda: link.up)
    task, request = await fetching(link, landing)
    assert request["at"] == 5, "what has come is kept"
    transport.pipe.say(data(request, 5), b"56789")
    transport.pipe.say(data(request, 10, last=True))
    await task
    assert landing.path.read_bytes() == b"0123456789"


async def test_download_of_a_missing_file_is_an_error(link: Link, tmp_path: Path, transport: Transport) -> None:
    task, request = await fetching(link, ResultDownload(tmp_path / "x", 10))
    transport.pipe.say(data(request, 0, last=True, error="No such file"))
    with pytest.raises(OSError, match="No such file"):
        await task
    transport.pipe.say(data(request, 0, last=True))  # what still comes of it is passed over


async def test_pipe_lost_while_opening_is_reported_once() -> None:
    class Broken(Transport):
        async def open(self, on_data: Any, on_lost: Any) -> Pipe:
            on_lost(OSError("it broke"))
            raise ConnectionError("no way there")

    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    link = Link(3, Broken(), Listener())  # type: ignore[arg-type]
    with pytest.raises(ConnectionError, match="no way there"):
        await link.connect()
    del link
    gc.collect()
    assert unheard == []


async def test_invalid_frame_ends_the_connection(link: Link, transport: Transport, listener: Listener) -> None:
    for wrong in ({"t": "log", "f": "r0./../../../x", "at": 0}, {"t": "bye"}):
        before = transport.pipe
        transport.pipe.say(wrong)
        assert before.closed
        before.on_lost(None)
        await until(lambda: transport.pipe is not before and link.up)  # noqa: B023
        assert f"of frame '{wrong['t']}'" in listener.links[-2][1]
    assert listener.frames == []


async def test_replies_to_valid_frames_of_a_broken_batch_are_sent(
    link: Link, transport: Transport, listener: Listener
) -> None:
    listener.on_frame = lambda link, header, body: link.call(call_header("s", 1), b"")  # type: ignore[method-assign, assignment]
    pipe = transport.pipe
    pipe.on_data(encode_frame(OUTCOME) + encode_frame(OUTCOME | {"i": "no number"}))
    assert pipe.closed
    assert [h["i"] for h, _ in pipe.sent if h["t"] == "call"] == [1]
    pipe.on_lost(None)
    await until(lambda: len(transport.pipes) == 2 and link.up)
    # There it may have come too late; on the next one it is asked again.
    assert [h["i"] for h, _ in transport.pipe.sent if h["t"] == "call"] == [1]
