"""Connection to one agent."""

from __future__ import annotations

import asyncio
import os
import pwd
import random
import socket
import sys
import time
from collections.abc import Coroutine, Iterable, Mapping
from functools import cache
from logging import DEBUG, INFO, WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from skyward_core.model.errors import HostKeyError, PoolError, UsageError
from skyward_core.model.outcomes import ErrorInfo
from skyward_core.protocol.frame_codec import (
    MAX_INLINE_BYTES,
    VERSION,
    AnyHeader,
    Decoder,
    Header,
    WireError,
    encode_frame,
)
from skyward_core.protocol.frame_schema import PREEMPTED, validate_agent_frame, validate_answer
from skyward_core.store.debug_log import get_logger
from skyward_core.transport.file_and_result_downloads import ResultDownload
from skyward_core.transport.transport import Pipe, Transport

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import (
        AgentBegan,
        AgentData,
        AgentGang,
        AgentItem,
        AgentOutcome,
        AgentRun,
        AgentStale,
        AgentWant,
        AgentWelcome,
        ClaimAnswer,
        ClientCall,
        FromAgent,
        HoldsAnswer,
        Timestamp,
    )
    from skyward_core.tasks.task_and_blob_values import SourceText
    from skyward_core.transport.file_and_result_downloads import IncomingOutput

    RunFrame = AgentOutcome | AgentItem | AgentBegan | AgentStale | AgentRun | AgentWant


@cache
def describe_client() -> str:
    """``process 4711 (train.py) of ada@laptop``: arguments are left out, they may hold secrets."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    program = Path(sys.argv[0] if sys.argv else "").name or "python"
    return f"process {os.getpid()} ({program:.60}) of {user}@{socket.gethostname()}"


CLOCK_TOLERANCE = 2.0  # seconds between two clocks that show the same time, and an answer on its way
MAX_CLOCK_ERROR = 30.0  # seconds by which what is told as it happens is off that it was not only on its way for long
# Goes on while the machine sleeps, as its clock does; the loop's time does not.
_TICKING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ClockSteps:
    """Of this machine, as somebody looks again and again."""

    def __init__(self) -> None:
        self._ahead = self._now()

    def step(self) -> float:
        """Seconds by which the clock was set forward since the last look; what it drifts by is none."""
        step = self._now() - self._ahead
        if abs(step) <= CLOCK_TOLERANCE:
            return 0.0
        self._ahead += step
        return step

    @staticmethod
    def _now() -> float:
        return time.time() - time.clock_gettime(_TICKING)


class NodeClock:
    """By how much our clock is ahead of a node's: as its agent greets, and as either has been set since."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._steps = ClockSteps()

    def on_greeting(self, at: float) -> None:
        """Its agent says what time it is."""
        ahead = time.time() - at
        self._ahead, self._steps = ahead if abs(ahead) > CLOCK_TOLERANCE else 0.0, ClockSteps()

    def on_event(self, at: float) -> None:
        """Its agent tells of something as it happens, and when that is."""
        off = time.time() - at - self.ahead
        if abs(off) > MAX_CLOCK_ERROR:
            self._ahead += off

    @property
    def ahead(self) -> float:
        """Seconds; 0 where they show the same."""
        self._ahead += self._steps.step()
        return self._ahead


class DownloadSink(Protocol):
    """Where the bytes of a file go as they come."""

    size: int
    at: int

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class Download:
    """A file on its way here."""

    def __init__(self, landing: DownloadSink) -> None:
        self.sha256 = ""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sink = landing

    def receive(self, header: AgentData, body: bytes) -> bool:
        if header.get("error"):
            self.fail(OSError(header["error"]))
            return True
        try:
            self._sink.write(body)
            if not header["last"]:
                return False
            self.sha256 = header.get("sha256", "")
            self._sink.close()
            if self._sink.at < self._sink.size:
                raise OSError(f"only {self._sink.at:,} bytes came of {self._sink.size:,}")
        except OSError as error:
            self.fail(error)
            return True
        if not self.done.done():
            self.done.set_result(None)
        return True

    def fail(self, error: Exception) -> None:
        self._sink.close()
        if not self.done.done():
            self.done.set_exception(error)


_log = get_logger("link")

Key = tuple[str, int]
T = TypeVar("T")
SILENCE_POLL_INTERVAL = 0.5  # seconds between two checks of an agent's silence
SILENCE = 4.0  # seconds without a word from an agent after which it should have answered a ping
ACK_DELAY = 0.02  # seconds; what waits for it is in agents' memory
WELCOME = 15.0  # seconds in which an agent that took a connection must say so: one that is frozen never does
MAX_SOURCES = 64  # texts of scripts that an agent is sent again when it is new
BACKOFF = (0.05, 5.0)  # seconds before the first and between later attempts


class Listener(Protocol):
    """Who hears of what comes over a link; all calls on the loop."""

    def on_frame(self, link: Link, header: FromAgent, body: bytes) -> None: ...

    def on_link(self, link: Link, up: bool, detail: str) -> None:
        """The link is up, down, or still down. Where it is up and ``silent``, its agent answers again on the same
        connection, without a greeting."""

    def cursors(self, node: int) -> dict[str, int]:
        """How many bytes of each log file of a node are here."""


class Link:
    """One node's connection.

    Args:
        logs_from: log file -> bytes of it that earlier machines of the node wrote. The agent counts from there; the
            offsets that the listener sees, and gives, are of the whole.
        pool: name of the node's pool, for the log.
    """

    def __init__(
        self,
        node: int,
        transport: Transport,
        listener: Listener,
        *,
        observer: bool = False,
        logs_from: Mapping[str, int] | None = None,
        pool: str = "",
    ) -> None:
        self.node = node
        self.transport = transport
        self.up = False
        self.silent = False  # connected, but no answer
        self.gone = False  # the node was found to be gone; nobody tries again
        self.lost_reason = ""
        self.lost_error_type = "NodeLost"  # what errors of its calls are called
        self.clock = NodeClock()
        self.finished = False  # the agent said goodbye
        self.epoch = 0
        self.members: tuple[int, ...] = ()  # the nodes of the gang that is there, where these are not all
        self.broken = ""  # why the gang takes no other broadcast
        self.spent = False  # that is: what it has been given goes on
        nothing: AnyHeader = {}
        self.welcome: AgentWelcome = nothing  # until it has come
        self.last_sizes: dict[str, int] | None = None  # of the log files, told at the agent's end
        self.retained_results: dict[str, int] | None = (
            None  # runs with results that nobody has confirmed, and bytes: the same
        )
        self.loop = asyncio.get_running_loop()
        self._listener = listener
        self._observer = observer
        self._logs_from = logs_from or {}
        self._log_extra = {"pool": pool}  # what the log says it is about
        self._pipe: Pipe | None = None
        self._corked: list[bytes] | None = None  # frames that are written together soon
        self._decoder = Decoder(validate_agent_frame)
        self._protocol_error: WireError | None = None  # what it said that cannot be
        self._calls: dict[Key, tuple[ClientCall, bytes]] = {}
        self._sources: dict[str, SourceText] = {}  # that calls name
        self._claims: set[str] = set()
        self._pending_requests: dict[int, tuple[str, asyncio.Future[tuple[AnyHeader, bytes]]]] = {}  # what was asked
        self._files: dict[int, Download] = {}
        self._acks: dict[str, list[int] | None] = {}
        self._ack_timer: asyncio.TimerHandle | None = None
        self._next_id = 0
        self._retry: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._last_frame_at = 0.0
        self._welcomed: asyncio.Future[None] | None = None
        self._early_frames: list[tuple[FromAgent, bytes]] | None = (
            None  # what came before the listener knew the welcome
        )

    # -- connection --------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Open the connection and say hello.

        Raises:
            OSError: no agent answers there.
            WireError: what answers does not speak this protocol.
            PoolError: it must not be talked to (its host key has changed), or lets nobody in.
        """
        self._decoder, self._protocol_error, self._early_frames = Decoder(validate_agent_frame), None, []
        self._welcomed = welcomed = asyncio.get_running_loop().create_future()
        # It may fail while the pipe is being opened, and that fails for the same reason.
        welcomed.add_done_callback(lambda done: done.cancelled() or done.exception())
        # A pipe that we gave up may tell of its end while the next one is up: that is no news of the next.
        self._pipe = await self.transport.open(
            self._on_data,
            lambda error: self._on_connection_lost(error) if self._welcomed is welcomed else None,
        )
        self._write({"t": "hello", "watch": True, "observer": self._observer, "who": describe_client()})
        try:
            async with asyncio.timeout(WELCOME):
                await welcomed
        except BaseException as error:
            if self._pipe is not None:
                self._pipe.close()
            if isinstance(error, TimeoutError):
                said = f"node {self.node} took the connection, and has said nothing for {WELCOME:g} s"
                raise ConnectionError(said) from error
            raise
        if self._pipe is None:
            raise ConnectionError(f"node {self.node} answered and was gone at once")
        self.up = True
        self._last_frame_at = self.loop.time()
        if self._watcher is None:
            self._watcher = self.loop.create_task(self._send_keepalives())
        self.request_logs()
        for source in self._sources.values():
            self._write_source(source)
        for header, body in self._calls.values():
            self._write(header, body)
        for run in self._claims:
            self._write({"t": "claim", "run": run})
        self._send_acks()
        _log.info("node %d: up", self.node, extra=self._log_extra)
        self._listener.on_link(self, True, "")
        early, self._early_frames = self._early_frames or [], None
        try:
            for frame in early:
                self._listener.on_frame(self, *frame)
        except WireError as error:
            self._reject(error)

    def request_logs(self) -> None:
        """Have the logs sent from where the listener has them."""
        cursors = self._listener.cursors(self.node)
        there = {name: max(0, at - self._logs_from.get(name, 0)) for name, at in cursors.items()}
        self.send({"t": "tail", "cursors": there})

    def _on_data(self, data: bytes | memoryview) -> None:
        self._last_frame_at = self.loop.time()
        if self.silent:
            _log.info("node %d: answers again", self.node, extra=self._log_extra)
            self._listener.on_link(self, True, "")
            self.silent = False
        begun = self.cork()
        try:
            for header, body in self._decoder.feed(data):
                self._on_frame(header, body)
        except WireError as error:
            self._reject(error)
        finally:
            if begun:
                self.uncork()

    def _reject(self, error: WireError) -> None:
        """What the agent says makes no sense: its connection ends."""
        self._protocol_error = error
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_exception(error)
        self.uncork()  # what it made us say before
        if self._pipe is not None:
            self._pipe.close()

    def cork(self) -> bool:
        """Keep the frames that are sent from now on, to be written in one go by :meth:`release`: a write takes longer
        than a small frame. Says whether it is this call that has begun it."""
        if self._corked is not None:
            return False
        self._corked = []
        return True

    def uncork(self) -> None:
        held, self._corked = self._corked, None
        if held and self._pipe is not None:
            self._pipe.write(b"".join(held))

    async def _send_keepalives(self) -> None:
        """Let an agent hear that we are there, which it judges us by, and tell the listener when it does not answer.

        The connection stays: an agent that is frozen, or starved, goes on where it was.
        """
        while not self.finished and not self.gone:
            await asyncio.sleep(SILENCE / 2)
            quiet = self.silence_seconds
            if not self.up:
                continue
            if quiet > SILENCE * 2 and not self.silent:
                self.silent = True
                _log.warning("node %d: silent for %.1f s", self.node, quiet, extra=self._log_extra)
                self._listener.on_link(self, False, f"connected, but no answer for {quiet:.0f} s")
            self._write({"t": "ping", "id": 0})

    def warn_preemption(self, node: int, left: float) -> None:
        """Have its ranks told that another node's machine is taken back, in so many seconds."""
        self.send({"t": "warn", "node": node, "left": left})

    def time_of(self, header: Timestamp) -> float:
        """When it happened on the node, by our clock; now, where that is not said."""
        return self.to_client_time(float(header["at"])) if "at" in header else time.time()

    def to_client_time(self, at: float) -> float:
        """A time of the node's clock."""
        return at + self.clock.ahead

    def to_node_time(self, at: float) -> float:
        """A time of ours, as the node's clock had it."""
        return at - self.clock.ahead

    @property
    def silence_seconds(self) -> float:
        """Seconds since the agent's last word."""
        return self.loop.time() - self._last_frame_at

    @property
    def silence_text(self) -> str:
        """How long the agent has said nothing, in words; of one that we never heard there is no such time."""
        return (
            f"has said nothing for {self.silence_seconds:.0f} s"
            if self._last_frame_at
            else "has not been reached from here"
        )

    @property
    def load(self) -> int:
        """Calls of ours that it was given and that have no outcome yet."""
        return len(self._calls)

    @property
    def is_reconnecting(self) -> bool:
        """Whether it is down and tries to come up again."""
        return self._retry is not None and not self._retry.done()

    def _on_frame(self, header: FromAgent, body: bytes) -> None:
        if _log.isEnabledFor(DEBUG):
            self._log_frame("got", header, body)
        if self._logs_from:
            body = self._move_offsets(header, body)
        match header["t"]:
            case "outcome" | "stale":
                if not is_notification(header, body):
                    self._calls.pop((header["run"], header["i"]), None)
            case "began":
                self.clock.on_event(float(header.get("at", self.to_node_time(time.time()))))
            case "gang":
                if header["epoch"] < self.epoch:
                    return  # news of an epoch that we have replaced meanwhile
                self.update_gang(header)
            case "welcome":
                self._on_welcome(header)
                return
            case "data":
                self._on_file_data(header, body)
                return
            case "pong" | "known" | "formed":
                asked, waiting = self._pending_requests.get(header.get("id", -1), ("", None))
                if waiting is not None:
                    validate_answer(asked, header)
                    del self._pending_requests[header["id"]]
                    if not waiting.done():
                        waiting.set_result((header, body))
                if waiting is not None or header["t"] != "pong":
                    return
            case "bye":
                self.finished = True
                self.last_sizes = header["logs"]
                self.retained_results = header.get("unfetched")
        if self._early_frames is not None and header["t"] != "bye":
            # News of what the welcome tells of, which the listener hears in a moment: it would know of no such run.
            self._early_frames.append((header, body))
        else:
            self._listener.on_frame(self, header, body)

    def _move_offsets(self, header: FromAgent, body: bytes = b"") -> bytes:
        """From offsets in the agent's log files to those in the node's, in a frame; gives its body."""
        match header["t"]:
            case "log":
                header["at"] += self._logs_from.get(header["f"], 0)
                stem, _, ending = header["f"].rpartition(".")
                if ending == "marks":
                    from skyward_core.protocol.output_order_marks import shift_marks
                    from skyward_core.views.stdout_stderr_order import STREAMS

                    return shift_marks(body, *(self._logs_from.get(f"{stem}.{name}", 0) for name in STREAMS))
            case "bye":
                sizes = header["logs"].items()
                header["logs"] = {name: size + self._logs_from.get(name, 0) for name, size in sizes}
            case "outcome":
                header["log"] = {
                    name: [at + self._logs_from.get(name, 0) for at in span]
                    for name, span in header.get("log", {}).items()
                }
            case "welcome":
                for record in header.get("runs", ()):
                    for outcome in record["outcomes"]:
                        self._move_offsets(outcome)
        return body

    def _on_welcome(self, header: AgentWelcome) -> None:
        if header["version"] != VERSION:
            said = f"node {self.node} speaks version {header['version']} of the protocol, this client {VERSION}"
            raise WireError(said)
        self.welcome = header
        self.clock.on_greeting(header.get("now", time.time()))
        self.update_gang(header)
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_result(None)

    def update_gang(self, header: AgentGang | AgentWelcome | HoldsAnswer) -> None:
        """Which gang is there, and how it is."""
        self.epoch, self.broken = header["epoch"], header["broken"]
        self.spent = header.get("spent", False)
        self.members = tuple(header.get("members", ()))

    def _on_connection_lost(self, error: Exception | None) -> None:
        was_up, self.up, self._pipe = self.up, False, None
        self.silent = False  # that was said of a connection
        error = error or self._protocol_error
        failure = ConnectionError(f"the connection to node {self.node} was lost" + (f": {error}" if error else ""))
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_exception(failure)
        for _, waiting in self._pending_requests.values():
            if not waiting.done():
                waiting.set_exception(failure)
        self._pending_requests.clear()
        for download in list(self._files.values()):
            download.fail(failure)
        self._files.clear()
        if was_up:
            self.start_reconnecting(str(error or "connection closed"))

    def start_reconnecting(self, reason: str) -> None:
        """It is down: tell so, and try until it is up again."""
        level = INFO if self.finished or self.gone else WARNING
        _log.log(level, "node %d: down: %s", self.node, reason, extra=self._log_extra)
        self._listener.on_link(self, False, reason)
        if not self.finished and not self.gone:
            self._retry = asyncio.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        delay, longest = BACKOFF
        while not self.gone:
            await asyncio.sleep(delay * random.uniform(0.7, 1.3))
            try:
                await self.connect()
            except HostKeyError as error:  # more tries would make it no better
                _log.warning("node %d: not tried again: %s", self.node, error, extra=self._log_extra)
                self._listener.on_link(self, False, f"{error.what}; not tried again")
                return
            # A key file that is away, say, may come back.
            except (OSError, WireError, PoolError, UsageError) as error:
                delay = min(longest, delay * 2)
                _log.info("node %d: not reached: %s", self.node, error, extra=self._log_extra)
                self._listener.on_link(self, False, f"{error}; next try in {delay:.1f} s")
            else:
                return

    def mark_lost(self, reason: str = "", *, taken_back: bool = False) -> None:
        """The node is gone for good; ``taken_back``: its machine's provider wanted it."""
        _log.warning("node %d: lost: %s", self.node, reason or "it is gone", extra=self._log_extra)
        self.gone = True
        self.lost_reason = self.lost_reason or reason
        if taken_back:
            self.lost_error_type = PREEMPTED
        self._calls.clear()
        for task in (self._retry, self._watcher):
            if task is not None:
                task.cancel()

    @property
    def lost_error(self) -> ErrorInfo:
        """Why calls end as lost that the node has not answered."""
        said = ": ".join(filter(None, (f"node {self.node} is gone", self.lost_reason)))
        return ErrorInfo(self.lost_error_type, said if self.lost_error_type == "NodeLost" else self.lost_reason)

    async def close(self) -> None:
        """Leave; the agent goes on."""
        self.finished = True
        for task in (self._retry, self._watcher):
            if task is not None:
                task.cancel()
        if self._pipe is not None:
            self._pipe.close()
        await self.transport.close()

    # -- requests ----------------------------------------------------------------------------------------

    def activate(self) -> None:
        """Tell the agent that we are no mere observer any more."""
        self._observer = False
        self.send({"t": "use"})

    def send(self, header: Mapping[str, Any], body: bytes = b"") -> bool:
        """Send if the link is up; says whether it was."""
        if not self.up:
            return False
        self._write(header, body)
        return True

    def call(self, header: ClientCall, body: bytes) -> None:
        """Ask for a call; asked again, as it then stands, after every reconnection until its outcome is here."""
        self._calls[header["run"], header["i"]] = header, body
        if self.up:
            self._write(header, body)

    def send_sources(self, sources: Iterable[SourceText]) -> None:
        """Send what scripts are made of to a node that has not got it; calls that name it come after it."""
        for source in sources:
            if source.hash in self._sources or (source.place and self.transport.shares_files):
                continue
            if len(self._sources) >= MAX_SOURCES:
                del self._sources[next(iter(self._sources))]
            self._sources[source.hash] = source
            if self.up:
                self._write_source(source)

    def _write_source(self, source: SourceText) -> None:
        import zlib  # most pools are of this machine, and send none

        data = zlib.compress(source.data, 1)
        if len(data) <= MAX_INLINE_BYTES:
            self._write({"t": "source", "hash": source.hash, "name": source.name}, data)

    def acknowledge(self, run: str, index: int | None = None) -> None:
        """Tell the agent, soon, that the results of a run (or of one call) are here and need not be kept."""
        if index is None:
            self._acks[run] = None
        elif (indices := self._acks.setdefault(run, [])) is not None:
            indices.append(index)
        if self._ack_timer is None:
            self._ack_timer = self.loop.call_later(ACK_DELAY, self._send_acks)

    def flush_acknowledgements(self) -> bool:
        """Tell the agent now what waits to be told; says whether anything does."""
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        if waits := bool(self._acks):
            self._send_acks()
        return waits

    def _send_acks(self) -> None:
        self._ack_timer = None
        if self.send({"t": "ack", "calls": self._acks}):
            self._acks = {}

    async def ask(self, header: Mapping[str, Any]) -> tuple[AnyHeader, bytes]:
        """Send a request and wait for its answer, header and body; of which type that is depends on the request.

        Raises:
            ConnectionError: the link is down, or went down meanwhile.
        """
        if not self.up:
            raise ConnectionError(f"the link to node {self.node} is down")
        self._next_id += 1
        waiting: asyncio.Future[tuple[AnyHeader, bytes]] = asyncio.get_running_loop().create_future()
        self._pending_requests[self._next_id] = header["t"], waiting
        self._write({**header, "id": self._next_id})
        return await waiting

    async def wait_while_heard(self, work: Coroutine[Any, Any, T], patience: float, silence: float) -> T:
        """Wait for an answer as long as the agent sends anything: an agent that hangs keeps no caller.

        Args:
            work: Requests the answer.
            patience: Seconds for the answer at most.
            silence: Seconds without any frame after which no answer is expected.

        Raises:
            TimeoutError: There is no answer in time.
        """
        asked = asyncio.ensure_future(work)
        try:
            async with asyncio.timeout(patience):
                while not (await asyncio.wait((asked,), timeout=SILENCE_POLL_INTERVAL))[0]:
                    if self.silence_seconds > silence:
                        raise TimeoutError
            return await asked
        finally:
            asked.cancel()

    async def claim(self, run: str) -> list[int]:
        """Be the one who gets the results of a run, after reconnections too; gives the calls known there."""
        self._claims.add(run)
        answer: ClaimAnswer
        answer, _ = await self.ask({"t": "claim", "run": run})
        return list(answer["calls"])

    def release_claim(self, run: str, *, owned: bool) -> None:
        """Want the results of a run no more.

        Args:
            owned: its agent takes us for their owner. It does so for as long as the connection lasts, and there is no
                word for less: so a new one is made, over which all else goes on.
        """
        self._claims.discard(run)
        if owned and self._pipe is not None:
            self._pipe.close()

    async def fetch(self, name: str, landing: ResultDownload) -> None:
        """Bring a file of the agent's spool here.

        Raises:
            OSError: it is not there, or cannot be written here.
            ConnectionError: the link went down; what has come is kept for the next attempt.
        """
        if not await self.transport.fetch(name, landing.path, 0, landing.size):
            await self._request_file({"t": "fetch", "f": name, "at": landing.at}, Download(landing))

    async def fetch_output(self, path: str, incoming: IncomingOutput) -> None:
        """Bring a file that ranks wrote here.

        Raises:
            OSError: it is no more as it was, or cannot be written here.
            ConnectionError: the link went down; what has come is kept for the next attempt.
        """
        asked = {"t": "output", "path": path, "version": incoming.version, "at": incoming.at}
        download = Download(incoming)
        await self._request_file(asked, download)
        incoming.sha256 = download.sha256

    async def _request_file(self, header: Header, download: Download) -> None:
        self._next_id += 1
        number = self._next_id
        self._files[number] = download
        try:
            if not self.send({**header, "id": number}):
                raise ConnectionError(f"the link to node {self.node} is down")
            await download.done
        finally:
            self._files.pop(number, None)  # what may still come is nobody's

    def _on_file_data(self, header: AgentData, body: bytes) -> None:
        download = self._files.get(header["id"])
        if download is not None and download.receive(header, body):
            self._files.pop(header["id"], None)

    def _write(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        if _log.isEnabledFor(DEBUG):
            self._log_frame("sent", header, body)
        if self._corked is not None:
            self._corked.append(encode_frame(header, body))
        elif self._pipe is not None:
            self._pipe.write(encode_frame(header, body))

    def _log_frame(self, way: str, header: Mapping[str, Any], body: bytes) -> None:
        """Have the log tell of a frame: of values in it, which may be anybody's, none but which call it is about."""
        about = [f" {key}={header[key]}" for key in ("run", "i", "id") if key in header]
        said = "node %d: %s %s%s, %d bytes"
        _log.debug(said, self.node, way, header["t"], "".join(about), len(body), extra=self._log_extra)


def is_notification(header: RunFrame, body: bytes) -> bool:
    """Whether an outcome, or what was yielded, is only told, as to every client, without the value that its owner gets.

    An owner may hear of it so, when its claim crosses the outcome on their ways; the value is still to come.
    """
    valued = header.get("t") == "item" or header.get("kind") in ("returned", "raised")
    return valued and not body and "file" not in header
