"""Connection of a client to one agent: frames, requests, file downloads, clocks and reconnection."""

from __future__ import annotations

import asyncio
import os
import pwd
import random
import socket
import sys
import time
from collections.abc import Coroutine, Iterable, Mapping
from functools import cache, lru_cache
from logging import DEBUG, INFO, WARNING
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from skyward_core.model.errors import CredentialsRefused, HostKeyError, PoolError, UsageError
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo
from skyward_core.protocol.frame_codec import (
    MAX_INLINE_BYTES,
    VERSION,
    AnyHeader,
    Decoder,
    Header,
    WireError,
    encode_frame,
    encode_frame_text,
    encode_json,
)
from skyward_core.protocol.frame_schemas_and_size_limits import PREEMPTED, validate_agent_frame, validate_answer
from skyward_core.store.debug_log import get_logger
from skyward_core.transport.file_and_result_downloads import ResultDownload
from skyward_core.transport.transport import Pipe, Transport

if TYPE_CHECKING:
    from skyward_core.protocol import frame_types as frames
    from skyward_core.tasks.pickled_calls_and_blobs import SourceText
    from skyward_core.transport.file_and_result_downloads import IncomingOutput

    RunFrame = (
        frames.AgentOutcome | frames.AgentItem | frames.AgentBegan | frames.AgentStale | frames.AgentRun
        | frames.AgentWant
    )  # fmt: skip


@cache
def describe_client() -> str:
    """Return this process's description, such as ``process 4711 (train.py) of ada@laptop``.

    Omits the command-line arguments, because they may contain secrets.
    """
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    program = Path(sys.argv[0] if sys.argv else "").name or "python"
    return f"process {os.getpid()} ({program:.60}) of {user}@{socket.gethostname()}"


CLOCK_TOLERANCE = 2.0  # seconds; smaller differences between clocks may be transmission delays
MAX_CLOCK_ERROR = 30.0  # seconds; if an event's time differs by more than this, one of the two clocks was set
# Use CLOCK_BOOTTIME, because it continues during suspend, like the wall clock. The event loop's clock stops.
_TICKING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ClockSteps:
    """Detector of changes to this machine's wall clock."""

    def __init__(self) -> None:
        self._ahead = self._now()

    def step(self) -> float:
        """Return the seconds by which the local clock was set forward since the last call; 0 if it only drifted."""
        step = self._now() - self._ahead
        if abs(step) <= CLOCK_TOLERANCE:
            return 0.0
        self._ahead += step
        return step

    @staticmethod
    def _now() -> float:
        return time.time() - time.clock_gettime(_TICKING)


class NodeClock:
    """Offset between the client's and a node's clock.

    Determined from the agent's welcome frame, and from later changes of either clock.
    """

    def __init__(self) -> None:
        self._ahead = 0.0
        self._steps = ClockSteps()

    def on_greeting(self, at: float) -> None:
        """Set the clock offset from the time in the agent's welcome frame."""
        ahead = time.time() - at
        self._ahead, self._steps = ahead if abs(ahead) > CLOCK_TOLERANCE else 0.0, ClockSteps()

    def on_event(self, at: float) -> None:
        """Correct the clock offset with the time of an event that the agent reported as soon as it happened."""
        off = time.time() - at - self.ahead
        if abs(off) > MAX_CLOCK_ERROR:
            self._ahead += off

    @property
    def ahead(self) -> float:
        """Seconds by which the client's clock is ahead; 0 if the clocks agree."""
        self._ahead += self._steps.step()
        return self._ahead


class Download:
    """File download over the link that has not finished."""

    def __init__(self, landing: ResultDownload | IncomingOutput) -> None:
        self.sha256 = ""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sink = landing

    def receive(self, header: frames.AgentData, body: bytes) -> bool:
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
                raise OSError(f"only {self._sink.at:,} of {self._sink.size:,} bytes arrived")
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
SILENCE_POLL_INTERVAL = 0.5  # seconds between checks of an agent's silence
SILENCE = 4.0  # seconds without a frame after which the agent counts as silent; it should have answered a ping by then
# Seconds until a pending acknowledgement is sent without a call. Longer than most broadcasts, so that the next
# broadcast is usually sent first and carries it. Not much longer, because agents keep unacknowledged results in memory.
ACK_DELAY = 0.1
ACK_AGE = 0.02  # seconds after which a call carries the pending acknowledgements: shorter calls share one frame
KEEPALIVE_ID = 0  # request id of keepalive pings, whose answers no caller awaits
WELCOME = 15.0  # seconds to wait for the welcome frame: a frozen agent accepts connections but never answers
MAX_SOURCES = 64  # maximum number of script sources that a link retains, because a new agent needs them again
BACKOFF = (0.05, 5.0)  # first and longest pause between connection attempts, in seconds
# Seconds after a rejected login: first and longest pause. Hosts ban addresses with frequent rejected logins.
REJECTED_PAUSES = (15.0, 300.0)


class Listener(Protocol):
    """Receiver of a link's frames and state changes. The link calls its methods on the pool's event loop."""

    def on_frame(self, link: Link, header: frames.FromAgent, body: bytes) -> None: ...

    def on_link(self, link: Link, up: bool, detail: str) -> None:
        """Receive a change of the link's state: up, down or still down.

        If ``up`` is true while ``link.silent`` is still set, the agent had stopped answering and now answers again on
        the same connection. No new welcome frame follows in this case.
        """

    def cursors(self, node: int) -> dict[str, int]:
        """Return the number of downloaded bytes of each log file of a node."""


def _add_acks(target: dict[str, list[int] | None], acks: Mapping[str, list[int] | None]) -> None:
    """Add acknowledged call indices by run to ``target``, in a time that does not grow with ``target``.

    None as indices acknowledges all calls of a run.
    """
    for run, indices in acks.items():
        if indices is None:
            target[run] = None
        elif (known := target.setdefault(run, [])) is not None:
            known.extend(indices)


@lru_cache(16)
def _encode_acks(runs: tuple[str, ...]) -> bytes:
    """Return the frame that acknowledges all calls of the given runs. Cached for all nodes of a pool."""
    return encode_frame({"t": "ack", "calls": dict.fromkeys(runs)})


class Link:
    """Connection to one node's agent.

    Args:
        node: Index of the node.
        transport: Opens connections to the agent.
        listener: Receives frames and state changes.
        observer: Whether this client only watches the pool.
        logs_from: Log file -> number of bytes that earlier machines of the node wrote. The link adds this number to the
            agent's offsets, so that the listener gets offsets in the whole file.
        pool: Name of the pool, for the debug log.
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
        self.silent = False  # whether the connection is up although the agent has stopped answering
        self.gone = False  # whether the node is lost for good, so that the link does not reconnect
        self.lost_reason = ""
        self.lost_error_type = "NodeLost"  # error type of the node's calls if the node is lost
        self.clock = NodeClock()
        self.finished = False  # whether the agent has sent its last frame, of type "bye"
        self.epoch = 0
        self.members: tuple[int, ...] = ()  # nodes of the node's gang; empty if the gang has all nodes
        self.broken = ""  # reason why the node's gang accepts no further broadcast; "" if it accepts them
        self.spent = False  # whether the gang accepts no further calls although its present calls continue
        nothing: AnyHeader = {}
        self.welcome: frames.AgentWelcome = nothing  # the agent's welcome frame; empty until it arrives
        # Bytes of each log file at the end of the agent, as stated by its "bye" frame.
        self.last_sizes: dict[str, int] | None = None
        # Run -> bytes of its unacknowledged results at the end of the agent.
        self.retained_results: dict[str, int] | None = None
        self.loop = asyncio.get_running_loop()
        self._listener = listener
        self._observer = observer
        self._logs_from = logs_from or {}
        self._log_extra = {"pool": pool}  # name of the pool, added to records of the debug log
        self._pipe: Pipe | None = None
        # Encoded frames that are collected for one write; None if nothing is being collected.
        self._corked: list[bytes] | None = None
        self._decoder = Decoder(validate_agent_frame)
        # Reason why this client or the agent rejected the connection; reported when the connection ends.
        self._protocol_error: WireError | None = None
        self._calls: dict[Key, tuple[frames.ClientCall, bytes]] = {}
        self._sources: dict[str, SourceText] = {}  # content hash -> source text of a script to which sent calls refer
        self._claims: dict[str, bool] = {}  # claimed run -> whether this client decides about its restarts
        # Request id -> expected type of the answer, and the future that receives the answer.
        self._pending_requests: dict[int, tuple[str, asyncio.Future[tuple[AnyHeader, bytes]]]] = {}
        self._files: dict[int, Download] = {}
        self.pending_acks: dict[str, list[int] | None] = {}  # acknowledgements that were not sent yet
        self._acks_since = 0.0  # monotonic time at which the oldest pending acknowledgement was scheduled
        self._ack_timer: asyncio.TimerHandle | None = None
        # Acknowledgements that were sent before and after the last keepalive ping. They are sent again after a
        # reconnection, because an agent that died may not have read them.
        self._pinged_acks: dict[str, list[int] | None] = {}
        self._sent_acks: dict[str, list[int] | None] = {}
        self._next_id = 0
        self._retry: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._last_frame_at = 0.0
        self._welcomed: asyncio.Future[None] | None = None
        # Frames that arrived before the listener processed the welcome frame.
        self._early_frames: list[tuple[frames.FromAgent, bytes]] | None = None

    # -- connection ----------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Open the connection and wait for the agent's welcome.

        Raises:
            OSError: If no agent answers.
            WireError: If the other side does not speak this protocol.
            PoolError: If the host must not be trusted (its key has changed) or denies access.
        """
        self._decoder, self._protocol_error, self._early_frames = Decoder(validate_agent_frame), None, []
        self._welcomed = welcomed = asyncio.get_running_loop().create_future()
        # Mark an exception of the future as retrieved: if opening the pipe fails, its own exception is raised.
        welcomed.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Ignore the end of an abandoned pipe, because the pipe may report it when the next pipe is already up.
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
                message = f"node {self.node} accepted the connection but sent nothing for {WELCOME:g} s"
                raise ConnectionError(message) from error
            raise
        if self._pipe is None:
            raise ConnectionError(f"node {self.node} closed the connection after its welcome")
        self.up = True
        self._last_frame_at = monotonic()
        if self._watcher is None:
            self._watcher = self.loop.create_task(self._send_keepalives())
        self.request_logs()
        for source in self._sources.values():
            self._write_source(source)
        for header, body in self._calls.values():
            self._write(header, body)
        for run, decides in self._claims.items():
            self._write({"t": "claim", "run": run, "decides": decides})
        unread = self._pinged_acks
        _add_acks(unread, self._sent_acks)
        _add_acks(unread, self.pending_acks)
        self.pending_acks, self._pinged_acks, self._sent_acks = unread, {}, {}
        self.flush_acknowledgements()
        _log.info("node %d: up", self.node, extra=self._log_extra)
        self._listener.on_link(self, True, "")
        early, self._early_frames = self._early_frames or [], None
        try:
            for frame in early:
                self._listener.on_frame(self, *frame)
        except WireError as error:
            self._reject(error)

    def request_logs(self) -> None:
        """Request the log bytes that follow the listener's downloaded bytes of each file."""
        cursors = self._listener.cursors(self.node)
        node_cursors = {name: max(0, at - self._logs_from.get(name, 0)) for name, at in cursors.items()}
        self.send({"t": "tail", "cursors": node_cursors})

    def _on_data(self, data: bytes | memoryview) -> None:
        self._last_frame_at = monotonic()
        if self.silent:
            _log.info("node %d: answers again", self.node, extra=self._log_extra)
            self._listener.on_link(self, True, "")
            self.silent = False
        self._corked = []
        try:
            for header, body in self._decoder.feed(data):
                self._on_frame(header, body)
        except WireError as error:
            self._reject(error)
        finally:
            if self._corked:
                self.uncork()
            self._corked = None

    def _reject(self, error: WireError) -> None:
        """Close the connection after an invalid frame."""
        self._protocol_error = error
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_exception(error)
        self.uncork()  # send the collected answers to the valid frames that came before the invalid one
        if self._pipe is not None:
            self._pipe.close()

    def cork(self) -> bool:
        """Start to collect sent frames until :meth:`uncork` writes them together, because a write costs more than a
        small frame.

        Returns whether this call began the collection.
        """
        if self._corked is not None:
            return False
        self._corked = []
        return True

    def uncork(self) -> None:
        held, self._corked = self._corked, None
        if held and self._pipe is not None:
            self._pipe.write(b"".join(held))

    async def _send_keepalives(self) -> None:
        """Send pings, which show the agent that its client is alive. Report an agent that does not answer.

        The connection stays open: a frozen or starved agent continues later.
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
            self._write({"t": "ping", "id": KEEPALIVE_ID})
            if not self._pinged_acks:
                self._pinged_acks, self._sent_acks = self._sent_acks, {}

    def warn_preemption(self, node: int, seconds: float) -> None:
        """Notify the node's ranks that another node's machine is preempted in ``seconds`` seconds."""
        self.send({"t": "warn", "node": node, "left": seconds})

    def time_of(self, header: frames.Timestamp) -> float:
        """Return the Unix time of a frame's event by the client's clock; now if the frame states no time."""
        return self.to_client_time(float(header["at"])) if "at" in header else time.time()

    def to_client_time(self, at: float) -> float:
        """Convert a time of the node's clock to the client's clock."""
        return at + self.clock.ahead

    def to_node_time(self, at: float) -> float:
        """Convert a time of the client's clock to the node's clock."""
        return at - self.clock.ahead

    @property
    def silence_seconds(self) -> float:
        """Seconds since the agent's last frame."""
        return monotonic() - self._last_frame_at

    @property
    def silence_text(self) -> str:
        """Description of the agent's silence, for error messages."""
        return (
            f"has not answered for {self.silence_seconds:.0f} s" if self._last_frame_at else "has not been reached yet"
        )

    @property
    def load(self) -> int:
        """Number of this client's calls on the node that have no outcome yet."""
        return len(self._calls)

    @property
    def is_reconnecting(self) -> bool:
        """Whether the link is down and tries to reconnect."""
        return self._retry is not None and not self._retry.done()

    def _on_frame(self, header: frames.FromAgent, body: bytes) -> None:
        if _log.isEnabledFor(DEBUG):
            self._log_frame("got", header, body)
        if self._logs_from:
            body = self._move_offsets(header, body)
        match header["t"]:
            case "outcome" | "stale":
                if body or not is_notification(header, body):
                    self._calls.pop((header["run"], header["i"]), None)
            case "began":
                self.clock.on_event(float(header.get("at", self.to_node_time(time.time()))))
            case "gang":
                if header["epoch"] < self.epoch:
                    return  # ignore a frame about an epoch that has already been replaced
                self.update_gang(header)
            case "welcome":
                self._on_welcome(header)
                return
            case "data":
                self._on_file_data(header, body)
                return
            case "pong" | "known" | "formed":
                if header["t"] == "pong" and header.get("id") == KEEPALIVE_ID:
                    # The pong shows that the agent has read all acknowledgements that were sent before the ping.
                    self._pinged_acks = {}
                request_type, waiting = self._pending_requests.get(header.get("id", -1), ("", None))
                if waiting is not None:
                    validate_answer(request_type, header)
                    del self._pending_requests[header["id"]]
                    if not waiting.done():
                        waiting.set_result((header, body))
                if waiting is not None or header["t"] != "pong":
                    return
            case "error" if self._welcomed is not None and not self._welcomed.done():
                # Before the welcome frame, an error frame means that the agent rejects the connection.
                self._protocol_error = WireError(header["message"])
            case "bye":
                self.finished = True
                self.last_sizes = header["logs"]
                self.retained_results = header.get("unfetched")
        if self._early_frames is not None and header["t"] != "bye":
            # Postpone the frame: the listener must first process the welcome, which describes the frame's run.
            self._early_frames.append((header, body))
        else:
            self._listener.on_frame(self, header, body)

    def _move_offsets(self, header: frames.FromAgent, body: bytes = b"") -> bytes:
        """Convert log offsets in a frame from the files of the agent's machine to the node's whole files.

        A replacement machine begins new log files, but the client appends them to the files of the earlier machine.
        Return the frame's body.
        """
        match header["t"]:
            case "log":
                header["at"] += self._logs_from.get(header["f"], 0)
                stem, _, ending = header["f"].rpartition(".")
                if ending == "marks":
                    from skyward_core.protocol.stdout_stderr_order_marks import shift_marks
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

    def _on_welcome(self, header: frames.AgentWelcome) -> None:
        if header["version"] != VERSION:
            raise WireError(f"node {self.node} has protocol version {header['version']}, this client {VERSION}")
        self.welcome = header
        self.clock.on_greeting(header.get("now", time.time()))
        self.update_gang(header)
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_result(None)

    def update_gang(self, header: frames.AgentGang | frames.AgentWelcome | frames.HoldsAnswer) -> None:
        """Copy the state of the node's gang from an agent's frame."""
        self.epoch, self.broken = header["epoch"], header["broken"]
        self.spent = header.get("spent", False)
        self.members = tuple(header.get("members", ()))

    def _on_connection_lost(self, error: Exception | None) -> None:
        was_up, self.up, self._pipe = self.up, False, None
        self.silent = False  # an agent can only count as silent while its link is connected
        error = self._protocol_error or error
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
        """Report that the link is down, and reconnect."""
        level = INFO if self.finished or self.gone else WARNING
        _log.log(level, "node %d: down: %s", self.node, reason, extra=self._log_extra)
        self._listener.on_link(self, False, reason)
        if not self.finished and not self.gone:
            self._retry = asyncio.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        delay, longest = BACKOFF
        rejected_pause = REJECTED_PAUSES[0]
        while not self.gone:
            await asyncio.sleep(delay * random.uniform(0.7, 1.3))
            try:
                await self.connect()
            except HostKeyError as error:  # a retry cannot succeed while the host has another key
                _log.warning("node %d: not tried again: %s", self.node, error, extra=self._log_extra)
                self._listener.on_link(self, False, f"{error.what}; not tried again")
                return
            # Retry after any other error, because the cause may be temporary, such as a missing key file.
            except (OSError, WireError, PoolError, UsageError) as error:
                delay = min(longest, delay * 2)
                if isinstance(error, CredentialsRefused):
                    delay, rejected_pause = rejected_pause, min(REJECTED_PAUSES[1], rejected_pause * 4)
                _log.info("node %d: not reached: %s", self.node, error, extra=self._log_extra)
                self._listener.on_link(self, False, f"{error}; next try in {delay:.1f} s")
            else:
                return

    def mark_lost(self, reason: str = "", *, taken_back: bool = False) -> None:
        """Record that the node is lost for good. ``taken_back``: the node's machine was preempted."""
        _log.warning("node %d: lost: %s", self.node, reason or "reason unknown", extra=self._log_extra)
        self.gone = True
        self.lost_reason = self.lost_reason or reason
        if taken_back:
            self.lost_error_type = PREEMPTED
        self._calls.clear()
        for task in (self._retry, self._watcher):
            if task is not None:
                task.cancel()

    def abandon(self) -> None:
        """Close the connection to a lost node, because a machine without power never closes it."""
        if self._pipe is not None:
            self._pipe.close()
            self._on_connection_lost(None)

    @property
    def lost_error(self) -> ErrorInfo:
        """Error for the calls of a lost node that have no outcome yet."""
        message = ": ".join(filter(None, (f"node {self.node} is gone", self.lost_reason)))
        return ErrorInfo(self.lost_error_type, message if self.lost_error_type == "NodeLost" else self.lost_reason)

    async def close(self) -> None:
        """Close the connection. The agent continues to run."""
        self.finished = True
        for task in (self._retry, self._watcher):
            if task is not None:
                task.cancel()
        if self._pipe is not None:
            self._pipe.close()
        await self.transport.close()

    # -- requests ------------------------------------------------------------------------------------------

    def activate(self) -> None:
        """Notify the agent that this client now uses the pool and no longer only observes it."""
        self._observer = False
        self.send({"t": "use"})

    def send(self, header: Mapping[str, Any], body: bytes = b"", text: str = "") -> bool:
        """Send a frame if the link is up. Return whether it was sent. ``text``: the encoded header, or ""."""
        if not self.up:
            return False
        self._write(header, body, text)
        return True

    def call(self, header: frames.ClientCall, body: bytes, text: str = "") -> None:
        """Send a call. It is sent again after each reconnection until its outcome arrives.

        Args:
            header, body: The call's frame.
            text: The encoded header; "" to encode it.
        """
        self._calls[header["run"], header["i"]] = header, body
        if not self.up:
            return
        # Send the acknowledgements and the call in one write, so that the agent wakes up only once.
        carries = bool(self.pending_acks) and monotonic() - self._acks_since >= ACK_AGE
        self._write(header, body, text, self._take_acks() if carries else b"")

    def send_sources(self, sources: Iterable[SourceText]) -> None:
        """Send script sources that the node lacks, before the calls that refer to them."""
        for source in sources:
            if source.hash in self._sources or (source.place and self.transport.shares_files):
                continue
            if len(self._sources) >= MAX_SOURCES:
                del self._sources[next(iter(self._sources))]
            self._sources[source.hash] = source
            if self.up:
                self._write_source(source)

    def _write_source(self, source: SourceText) -> None:
        data = _compress(source.data)
        if len(data) <= MAX_INLINE_BYTES:
            self._write({"t": "source", "hash": source.hash, "name": source.name}, data)

    def acknowledge(self, run: str, index: int | None = None, *, timed: bool = True) -> None:
        """Schedule an acknowledgement: the results of a run or call have arrived and need not be retained.

        Args:
            run, index: The call; without an index, all calls of the run.
            timed: Whether this link sends it after :data:`ACK_DELAY`. Otherwise the caller flushes it.
        """
        if not self.pending_acks:
            self._acks_since = monotonic()
        if index is None:
            self.pending_acks[run] = None
        elif (indices := self.pending_acks.setdefault(run, [])) is not None:
            indices.append(index)
        if timed and self._ack_timer is None:
            self._ack_timer = self.loop.call_later(ACK_DELAY, self._on_ack_timer)

    def _on_ack_timer(self) -> None:
        self._ack_timer = None
        self.flush_acknowledgements()

    def flush_acknowledgements(self) -> None:
        """Send the pending acknowledgements now if the link is up."""
        # Keep the timer, because cancelling it and starting another one for every call costs more than a timer without
        # work.
        if self.pending_acks and self.up:
            self._write_frame(self._take_acks())

    def _take_acks(self) -> bytes:
        """Return the frame with the pending acknowledgements, which the caller sends."""
        acks, self.pending_acks = self.pending_acks, {}
        _add_acks(self._sent_acks, acks)
        if _log.isEnabledFor(DEBUG):
            self._log_frame("sent", {"t": "ack"}, b"")
        return encode_frame({"t": "ack", "calls": acks}) if any(acks.values()) else _encode_acks(tuple(acks))

    async def ask(self, header: Mapping[str, Any]) -> tuple[AnyHeader, bytes]:
        """Send a request and wait for its answer.

        Args:
            header: The request. Its type determines the type of the answer.

        Returns:
            The answer's header and body.

        Raises:
            ConnectionError: If the link is or goes down.
        """
        if not self.up:
            raise ConnectionError(f"the link to node {self.node} is down")
        self._next_id += 1
        waiting: asyncio.Future[tuple[AnyHeader, bytes]] = asyncio.get_running_loop().create_future()
        self._pending_requests[self._next_id] = header["t"], waiting
        self._write({**header, "id": self._next_id})
        return await waiting

    async def wait_while_heard(self, work: Coroutine[Any, Any, T], patience: float, silence: float) -> T:
        """Wait for an answer as long as the agent sends frames of any kind.

        Args:
            work: Requests the answer.
            patience: Longest wait in seconds.
            silence: Seconds without any frame until the wait ends.

        Returns:
            The answer.

        Raises:
            TimeoutError: If there is no answer in time.
        """
        request = asyncio.ensure_future(work)
        try:
            async with asyncio.timeout(patience):
                while not (await asyncio.wait((request,), timeout=SILENCE_POLL_INTERVAL))[0]:
                    if self.silence_seconds > silence:
                        raise TimeoutError
            return await request
        finally:
            request.cancel()

    async def claim(self, run: str, *, decides: bool = False) -> tuple[frames.ClaimAnswer, bytes]:
        """Make this client the receiver of a run's results. Repeat the request after each reconnection.

        Args:
            run: Id of the run.
            decides: Whether this client decides about restarts of the run from now on.

        Returns:
            The agent's answer with the indices of the calls that it knows, and a body. If ``decides`` is true, the
                answer also contains one call of the run, whose function and arguments are the body.
        """
        self._claims[run] = decides
        answer: frames.ClaimAnswer
        answer, body = await self.ask({"t": "claim", "run": run, "decides": decides})
        return answer, body

    def claim_next_attempt(self, run: str, *, decides: bool) -> None:
        """Make this client the receiver of the results of an attempt that agents have started.

        The request is repeated after each reconnection.

        Args:
            run: Id of the run.
            decides: Whether this client dispatched the run, so that it decides about further attempts.
        """
        self._calls = {key: call for key, call in self._calls.items() if key[0] != run}
        self._claims[run] = decides
        self.send({"t": "claim", "run": run, "decides": decides})

    def release_claim(self, run: str, *, owned: bool) -> None:
        """Notify the agent that this client no longer receives a run's results.

        Args:
            run: Id of the run.
            owned: Whether the agent treats this client as the owner of the run. If so, the link reconnects, because the
                protocol has no frame that revokes ownership.
        """
        self._claims.pop(run, None)
        if owned and self._pipe is not None:
            self._pipe.close()

    async def fetch(self, name: str, landing: ResultDownload) -> None:
        """Download a log or result file from the spool folder of the agent.

        Raises:
            OSError: If the file does not exist or cannot be written here.
            ConnectionError: If the link goes down. The received part is kept for the next attempt.
        """
        if not await self.transport.fetch(name, landing.path, 0, landing.size):
            await self._request_file({"t": "fetch", "f": name, "at": landing.at}, Download(landing))

    async def fetch_output(self, path: str, incoming: IncomingOutput) -> None:
        """Download a file that ranks wrote.

        Raises:
            OSError: If the file has changed or cannot be written here.
            ConnectionError: If the link goes down. The received part is kept for the next attempt.
        """
        request = {"t": "output", "path": path, "version": incoming.version, "at": incoming.at}
        download = Download(incoming)
        await self._request_file(request, download)
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
            # The next bytes of this download are ignored because it is no longer registered.
            self._files.pop(number, None)

    def _on_file_data(self, header: frames.AgentData, body: bytes) -> None:
        download = self._files.get(header["id"])
        if download is not None and download.receive(header, body):
            self._files.pop(header["id"], None)

    def _write(self, header: Mapping[str, Any], body: bytes = b"", text: str = "", before: bytes = b"") -> None:
        """Send a frame. ``text``: the encoded header, or "". ``before``: frames to send in the same write."""
        if _log.isEnabledFor(DEBUG):
            self._log_frame("sent", header, body)
        self._write_frame(encode_frame_text(text or encode_json(header), body, before))

    def _write_frame(self, frame: bytes) -> None:
        if self._corked is not None:
            self._corked.append(frame)
        elif self._pipe is not None:
            self._pipe.write(frame)

    def _log_frame(self, direction: str, header: Mapping[str, Any], body: bytes) -> None:
        """Write a frame's type, size and call to the debug log. Other values may be private."""
        about = [f" {key}={header[key]}" for key in ("run", "i", "id") if key in header]
        message = "node %d: %s %s%s, %d bytes"
        _log.debug(message, self.node, direction, header["t"], "".join(about), len(body), extra=self._log_extra)


@lru_cache(maxsize=4)  # compress each source only once, because all nodes get the same sources
def _compress(data: bytes) -> bytes:
    import zlib  # imported late, because pools on this machine send no sources

    return zlib.compress(data, 1)


def is_notification(header: RunFrame, body: bytes) -> bool:
    """Check whether an outcome or yielded item lacks its value. Only the owner of a run receives values.

    The owner may also receive a frame without value if the agent sent it before the owner's claim arrived. A frame with
    the value follows.
    """
    valued = header.get("t") == "item" or header.get("kind") in ("returned", "raised")
    return valued and not body and "file" not in header
