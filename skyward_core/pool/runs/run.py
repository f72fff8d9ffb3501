"""One run: calls out, outcomes back."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from skyward_core.model.errors import Cancelled, NotPicklableError, PoolError, RunError
from skyward_core.model.outcomes import ErrorInfo, Outcome, OutcomeKind, RootCause, RunKind, RunStatus, Summary
from skyward_core.model.root_cause import ECHO_WAIT, is_failure, is_symptom, root_cause
from skyward_core.pool.agent_link import Link, is_notification
from skyward_core.pool.runs.run_results import (
    Loaded,
    Value,
    already_fetched_error,
    describe_failure,
    describe_place,
    error_with_cause,
    load,
    unloadable_error,
)
from skyward_core.protocol.frame_codec import MAX_INLINE_BYTES, AnyHeader, Header
from skyward_core.store.atomic_file import write_atomic
from skyward_core.store.pool_folder import EXCEPTION_SUFFIX
from skyward_core.tasks.task_and_blob_values import Task
from skyward_core.transport.file_and_result_downloads import ResultDownload
from skyward_core.views import events

if TYPE_CHECKING:
    from skyward_core.pool import PoolContext, PoolEnd
    from skyward_core.protocol.frame_types import AgentItem, AgentOutcome, AgentWant, ClientCall


MAX_KEPT_VALUES = 1024  # values that one rank may be ahead of another
MAX_KEPT_BYTES = 64 << 20  # the same in bytes
MAX_SENT_AHEAD = 8 << 20  # bytes that are sent to a rank ahead of what it has asked for, beside one value

Frames = list[tuple[int, AnyHeader, bytes]]  # each for a call


class ReaderPosition:
    """How far a rank is.

    Attributes:
        next: the first value that it has not got.
        until: the first that it does not want yet.
        sent: the first that was not sent to it.
    """

    def __init__(self) -> None:
        self.next = self.until = self.sent = 0
        self.is_end_sent = False


class StreamEnd(NamedTuple):
    """What comes behind the last value: "end", or "error" and the exception, pickled."""

    word: str
    data: bytes = b""


class ArgumentStream:
    """One argument of one call, which may be many ranks'. Once a rank asks, its values are read in a thread of its own.

    Args:
        run, number: the run, and the argument's number among those that are fed.
        name: the parameter's.
        values: where they come from; closed at the end where it is a generator.
        pickled: pickles a value.
        indices: of the calls that read it.
        send: hands frames on to the nodes that have the calls; called by the thread.
    """

    def __init__(
        self, run: str, number: int, name: str, values: Iterable[object], pickled: Callable[[object], bytes],
        indices: Iterable[int], send: Callable[[Frames], None],
    ) -> None:  # fmt: skip
        self._header: AnyHeader = {"t": "fed", "run": run, "arg": number}
        self._name, self._values, self._pickled, self._send = name, values, pickled, send
        self._readers = {index: ReaderPosition() for index in indices}
        self._kept: deque[bytes] = deque()
        self._kept_bytes = self._first = 0  # number of the first that is kept
        self._end: StreamEnd | None = None
        self._closed = False
        self._reading = False  # user code, which may take its time
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    # -- on the pool's loop ------------------------------------------------------------------------------

    def on_want(self, header: AgentWant) -> None:
        """A rank asks for values."""
        with self._changed:
            reader = self._readers.get(header["i"])
            if reader is None:
                return
            if header["next"] < self._first:
                # Sent by what has got further meanwhile, which takes no notice; or else by another attempt at the call.
                self._send([self._gone_frame(header)])
                return
            reader.next, reader.until = header["next"], header["until"]
            if header.get("again"):  # what was on its way may have been lost
                reader.sent, reader.is_end_sent = reader.next, False
            reader.sent = max(reader.sent, reader.next)
            if self._reading:  # what others have been given need not wait for what comes next
                self._send_due(self._due_values())
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=f"feeds {self._name}", daemon=True)
                self._thread.start()

    def on_call_end(self, index: int) -> None:
        """A call has ended: it reads no more."""
        with self._changed:
            self._readers.pop(index, None)
            self._changed.notify()

    def _gone_frame(self, header: AgentWant) -> tuple[int, AnyHeader, bytes]:
        from skyward_core.node.worker.returned_exceptions import describe_error

        number = header["next"]
        said = f"value {number} of argument {self._name!r} was given to an earlier attempt at the call, and is no more"
        about = self._header | {"i": header["i"], "seq": number, "part": 0, "ends": "error"}
        return header["i"], about, describe_error(PoolError(said))[1]

    def close(self) -> None:
        """The run has ended."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    # -- the thread's ------------------------------------------------------------------------------------

    def _serve(self) -> None:
        values: Iterator[object] | None = None
        try:
            while True:
                with self._changed:
                    self._drop_consumed()
                    while not (self._closed or (due := self._due_values()) or self._can_read()):
                        self._changed.wait()
                        self._drop_consumed()
                    if self._closed:
                        return
                    self._reading = not due
                if due:
                    self._send_due(due)
                else:
                    values = self._read_value(values)
        finally:
            if isinstance(self._values, Generator):
                self._values.close()

    def _send_due(self, due: list[tuple[int, int]]) -> None:
        self._send([frame for index, number in due for frame in self._frames(index, number)])

    def _read_value(self, values: Iterator[object] | None) -> Iterator[object] | None:
        """Read one value. User code runs in here."""
        end: StreamEnd | None = None
        data = b""
        number = self._first + len(self._kept)
        try:
            values = iter(self._values) if values is None else values
            value = next(values)
            try:
                data = self._pickled(value)
            except BaseException as error:  # in this thread no ctrl-c comes, so that it is the value's own
                said = f"value {number} of argument {self._name!r} cannot travel to the nodes: {error}"
                raise NotPicklableError(said) from error
        except StopIteration:
            end = StreamEnd("end")
        except BaseException as error:  # noqa: BLE001  whatever the script's iterator raises is the rank's to hear
            from skyward_core.node.worker.returned_exceptions import describe_error

            if not isinstance(error, Exception):  # an exit of ours is none of the rank's
                error = RuntimeError(f"argument {self._name!r} ended with {type(error).__name__} at value {number}")
            end = StreamEnd("error", describe_error(error)[1])
        with self._changed:
            self._reading = False
            if end is not None:
                self._end = end
            else:
                self._kept.append(data)
                self._kept_bytes += len(data)
        return values

    def _drop_consumed(self) -> None:
        """What all readers have got is needed no more."""
        slowest = min((reader.next for reader in self._readers.values()), default=self._first)
        while self._first < slowest and self._kept:
            self._kept_bytes -= len(self._kept.popleft())
            self._first += 1

    def _can_read(self) -> bool:
        there = self._first + len(self._kept)
        wanted = any(reader.until > there for reader in self._readers.values())
        room = len(self._kept) < MAX_KEPT_VALUES and self._kept_bytes < MAX_KEPT_BYTES
        return self._end is None and wanted and room

    def _due_values(self) -> list[tuple[int, int]]:
        """Calls that can be sent a value, or the end, and its number."""
        there = self._first + len(self._kept)
        due: list[tuple[int, int]] = []
        for index, reader in self._readers.items():
            ahead = sum(len(self._kept[n - self._first]) for n in range(reader.next, reader.sent))
            while reader.sent < min(reader.until, there) and ahead < MAX_SENT_AHEAD:
                due.append((index, reader.sent))
                ahead += len(self._kept[reader.sent - self._first])
                reader.sent += 1
            if self._end is not None and reader.sent == there and not reader.is_end_sent:
                due.append((index, there))
                reader.is_end_sent = True
        return due

    def _frames(self, index: int, number: int) -> Frames:
        """A value, or the end, for a call: in pieces that a frame has room for."""
        at = number - self._first
        about = self._header | {"i": index, "seq": number}
        if at < len(self._kept):
            data = self._kept[at]
        elif self._end is not None:
            data, about = self._end.data, about | {"ends": self._end.word}
        else:
            return []
        pieces = [data[start : start + MAX_INLINE_BYTES] for start in range(0, len(data), MAX_INLINE_BYTES)] or [b""]
        frames: Frames = []
        for part, piece in enumerate(pieces):
            more: Header = {"more": True} if part + 1 < len(pieces) else {}
            frames.append((index, about | {"part": part} | more, piece))
        return frames


def outcome_of(header: AgentOutcome) -> Outcome:
    """An outcome frame's header as an :class:`Outcome`."""
    return Outcome(
        header["i"],
        header["rank"],
        header["node"],
        header["kind"],
        header.get("seconds", 0.0),
        Summary.from_wire(header.get("summary")),
        ErrorInfo.from_wire(header.get("error")),
        header.get("exit_code"),
        header.get("signal"),
        header.get("items", 0),
        Summary.from_wire(header.get("last")),
        header.get("numbers"),
    )


class GeneratorPosition:
    """How far the values of one generator have come, and how far its reader is.

    Args:
        request: the call that asks for them, as it is asked for again when a link has dropped.

    Attributes:
        next: number of the next value to come.
    """

    def __init__(self, request: ClientCall | dict[str, int]) -> None:
        self._request = request
        self._claimed = not request  # another client read the first values
        self._next = self._taken = 0

    @property
    def next(self) -> int:
        return self._next

    @next.setter
    def next(self, number: int) -> None:
        self._next = self._request["next"] = number

    @property
    def has_unconsumed(self) -> bool:
        """Whether values have come that were not taken."""
        return self._taken < self._next

    def is_new(self, number: int) -> bool:
        return number == self._next or (self._claimed and number > self._next)

    def mark_consumed(self, until: int) -> None:
        self._taken = self._request["taken"] = until


MAX_QUEUED_TASKS = 32  # tasks in flight per node while they are quick
QUICK_TASK = 0.02  # seconds of a task below which it is quick


class RunCompletion(Future["Run"]):
    """A run's end, as a thread waits for it that loads large values when they land, while others still come."""

    def __init__(self) -> None:
        super().__init__()
        self._landed: queue.SimpleQueue[tuple[Run, int] | None] = queue.SimpleQueue()
        self.add_done_callback(lambda _: self._landed.put(None))

    def queue_load(self, run: Run, index: int) -> None:
        """Have the waiting thread load a value that a file holds."""
        self._landed.put((run, index))

    def wait(self) -> Run:
        """The run, when it has ended."""
        while (landed := self._landed.get()) is not None:
            run, index = landed
            run.preload(index)
        return self.result()


class Run:
    """One run: its calls out, their outcomes back. Made and driven on the pool's loop.

    Its future, and the values and errors at the end, are for other threads.

    Attributes:
        pool: the pool's name.
        state: how it is with the run.
        outcomes: by index, as they have come.
        values: what returned calls gave and failed ones raised, pickled, by index, until it is loaded.
    """

    # There may be thousands in a second, and they have more parts than Python shares the names of.
    __slots__ = (
        "_arrived", "_asked", "_begun", "_broke", "_claimed", "_context", "_ending", "_feedings",
        "_fetching", "_flying", "_loaded", "_ranks", "_readings", "_seconds", "_spent", "_stale", "_stopping",
        "_unread", "_unsent", "_waiting", "_where", "arrivals", "cancelled", "consumed", "future", "id", "is_script",
        "kind", "logs", "name", "nodes", "outcomes", "pool", "root_cause", "sent", "state", "stays", "stocked", "tasks",
        "total", "values", "wanted",
    )  # fmt: skip

    def __init__(
        self,
        context: PoolContext,
        run: str,
        kind: RunKind,
        tasks: Sequence[Task],
        total: int,
        future: Future[Any] | None = None,
    ) -> None:
        self._context = context
        self.pool = context.name
        self.id = run
        self.kind = kind
        self.name = tasks[0].name
        self.total = total
        self.state: RunStatus = "running"
        self.cancelled = ""  # why it was
        self.outcomes: dict[int, Outcome] = {}
        self.values: dict[int, Value] = {}
        self.root_cause: RootCause | None = None
        self._arrived: list[Outcome] = []
        self._loaded: dict[int, Future[Loaded]] = {}
        self._ending: PoolEnd | None = None
        self._unread = threading.Lock()  # held from the first call of `results` on
        self._unsent = 0  # tasks that no node had been given when this client left
        self.tasks = tasks
        self.is_script = any(task.script for task in tasks)
        self.future: Future[Run] = future or Future()
        self.logs: dict[int, dict[str, list[int]]] = {}
        self.arrivals: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.consumed = False  # somebody iterates over a generator's values, and pays for them
        self._seconds: deque[float] = deque(maxlen=8)  # that the latest of them took
        self._waiting: deque[int] = deque()
        self._flying: dict[int, int] = {}
        self._where: dict[int, Link] = {}
        self._asked: set[int] = set()  # nodes that were given a call of it, now or before
        self.sent = False  # a node may know of it
        # Nodes that have its large arguments; None where it has none.
        self.stays = False  # its results are for whoever comes later, though they were told here
        self.stocked: frozenset[Link] | None = None
        self._claimed = False  # another client sent it
        self._stale: set[int] = set()
        self._spent = ""  # why processes of the gang take no other call
        self._broke = ""  # who broke the gang, and how
        self._begun = False
        self._ranks: dict[int, int] = {}  # of tasks that are under way, as far as it was told
        self._stopping = False
        self._fetching: set[int] = set()  # calls that have ended, and whose values are on their way here
        self._readings: dict[int, GeneratorPosition] = {}
        self._feedings: dict[tuple[int, int], ArgumentStream] = {}  # by call, or -1 for all ranks, and argument
        self.wanted: int | tuple[int, ...] | None = tasks[0].nodes if kind == "broadcast" else None
        self.nodes: tuple[int, ...] = ()  # that it has got, where it wants some only

    def name_of(self, index: int) -> str:
        return self.tasks[index % len(self.tasks)].name

    @property
    def links(self) -> Sequence[Link]:
        """To the nodes that may have something of it."""
        if self.wanted is None:
            return self._context.links
        return [self._context.links[node] for node in self.nodes]

    def place_of(self, index: int) -> tuple[int, int]:
        """Rank and node of a broadcast's call, in the pool; -1 where it has got no nodes yet."""
        each = self._context.ranks_per_node
        if self.wanted is None:
            return index, index // each
        if not self.nodes:
            return -1, -1
        node = self.nodes[index // each]
        return node * each + index % each, node

    # -- dispatch ----------------------------------------------------------------------------------------

    def send_broadcast(self, epoch: int, nodes: tuple[int, ...] = ()) -> None:
        """Hand a broadcast's calls to all links, or to those of some nodes, if it is still wanted."""
        if self.state != "running":
            return
        if nodes:
            self.nodes = nodes
            self._emit_placed()
        task = self.tasks[0]
        new = {link for link in self.links if not (link.gone or self._is_stocked(link))}
        all_or_none = self._context.options.fail_fast or not self._context.is_standalone
        for index in range(self.total):
            rank, node = self.place_of(index)
            link = self._context.links[node]
            if link in new or (new and all_or_none):
                self._reject_new_node(index, link, new)
            else:
                how: AnyHeader = {"gang": True, "rank": rank, "epoch": epoch}
                self._send(link, index, task, how | {"nodes": list(nodes)} if nodes else how)

    def _emit_placed(self) -> None:
        self._context.news.records.set_columns(self.id, nodes=self.nodes)
        self._context.news.emit(events.RunPlaced(pool=self.pool, run=self.id, nodes=list(self.nodes)))

    def _reject_new_node(self, index: int, link: Link, new: Collection[Link]) -> None:
        """A broadcast's arguments are on no node that came after them, and here neither any more."""
        late = min(each.node for each in new)
        reason = f"node {late} got another machine after the arguments had been sent; run it again"
        self.reject(index, link, "lost" if link in new else "collateral", ErrorInfo("NodeLost", reason))

    def mark_waiting(self) -> None:
        """Wait until the pool can take it; :meth:`release` ends that, and so does a cancellation."""
        self._waiting.extend(range(self.total))

    def end_waiting(self) -> bool:
        """End :meth:`mark_waiting`; says whether the run is still wanted."""
        self._waiting.clear()
        return self.state == "running"

    def dispatch(self) -> None:
        """Hand tasks to nodes, in turns, as long as they can take more, if they are still wanted."""
        if self.state != "running":
            return
        if self.tasks[0].rank is not None:
            for index, task in enumerate(self.tasks):
                self._send(self._context.link_of(task.rank or 0), index, task, {"rank": task.rank})
            return
        self._waiting.extend(range(self.total))
        held = [link for link in self._context.links if link.cork()] if self.total > 1 else []
        try:
            self._refill()
        finally:
            for link in held:
                link.uncork()

    def _refill(self) -> None:
        if self._stopping or not self._waiting:
            return
        there = [link for link in self._context.links if not link.gone and self._is_stocked(link)]
        links = self._context.without_preempted(there)
        if not links:
            whose = "of the pool" if self.stocked is None else "that had its arguments"
            self._fail_unsent(f"every node {whose} is gone")
            return
        if self.kind == "sweep":
            # Other runs may have a node for hours: those that have less to do for us come first.
            links = sorted(links, key=lambda link: link.load)
        limit = self._most_in_flight()
        moved = True
        while moved and self._waiting:
            moved = False
            for link in links if self.kind != "single" else [self._context.next_link(links)]:
                if self._waiting and self._flying.get(link.node, 0) < limit:
                    index = self._waiting.popleft()
                    self._flying[link.node] = self._flying.get(link.node, 0) + 1
                    self._send(link, index, self.tasks[index], {})
                    moved = True

    def _most_in_flight(self) -> int:
        """How many tasks a node is given at once."""
        slots = self._context.slots_per_node
        if self.kind != "sweep":
            return slots + (MAX_QUEUED_TASKS if self._is_quick() else 1)
        # One may take hours: none waits behind it while another node is idle, as long as we are there to see to that.
        return self.total if self.stays else slots

    def _is_stocked(self, link: Link) -> bool:
        """Whether a node has what the calls need: one that came later has not."""
        return self.stocked is None or link in self.stocked

    def _is_quick(self) -> bool:
        recent = self._seconds
        return bool(recent) and sum(recent) / len(recent) < QUICK_TASK

    def claim_from(self, links: Sequence[Link], nodes: tuple[int, ...] = ()) -> None:
        """Expect the calls of a run that another client dispatched.

        Args:
            nodes: that have it, where these are not all.
        """
        self.sent = self._claimed = True
        if nodes:
            self.wanted = self.nodes = nodes
        if self.kind == "broadcast":
            self._where = {index: links[self.place_of(index)[1]] for index in range(self.total)}
        elif len(links) == 1:
            self._where = dict.fromkeys(range(self.total), links[0])

    def has_call(self, index: int) -> bool:
        """Whether it has such a call."""
        return index < self.total

    def row_of(self, index: int, rank: int) -> int:
        """Where screens show a call that a rank is at."""
        return index

    def is_sent_to(self, link: Link, index: int) -> bool:
        """Whether a node has been given a call; of another client's calls only the nodes know where they are."""
        where = self._where.get(index)
        return self._claimed if where is None else where.node == link.node

    def _send(self, link: Link, index: int, task: Task, extra: AnyHeader) -> None:
        header: ClientCall = {
            "t": "call",
            "run": self.id,
            "i": index,
            "name": self.name,
            "kind": self.kind,
            "total": self.total,
            "fn": (task.fn.hash, task.fn.size),
            "args": (task.args.hash, task.args.size),
        }
        if task.timeout is not None:
            header["timeout"] = task.timeout
        if task.stream:
            header["stream"] = True
            self._readings[index] = GeneratorPosition(header)
        if task.feeds:
            header["fed"] = True
        if task.script:
            header["script"] = True
        if task.job:
            header["job"], header["more"] = task.job, task.more
        if self._context.is_standalone:
            header["alone"] = True
        elif self._context.links[0].gone:
            header["headless"] = True  # nobody can form a gang any more
        body = b"".join(blob.data for blob in (task.fn, task.args) if blob.size <= MAX_INLINE_BYTES and blob.data)
        if task.fn.sources or task.args.sources:
            link.send_sources((*task.fn.sources, *task.args.sources))
        self._where[index] = link
        self._asked.add(link.node)
        self.sent = True
        if link.gone:
            self.mark_lost(index)
        else:
            header |= extra
            link.call(header, body)

    # -- what comes back ---------------------------------------------------------------------------------

    def on_item(self, link: Link, header: AgentItem, body: bytes) -> None:
        """A generator's value, perhaps once more: what a link or an agent lost on its way is sent again."""
        index = header["i"]
        if index in self.outcomes or is_notification(header, body):
            return
        reading = self._readings.get(index)
        if reading is None:
            reading = self._readings[index] = GeneratorPosition({})
        if reading.is_new(header["seq"]):
            reading.next = header["seq"] + 1
            if (summary := Summary.from_wire(header["summary"])) is not None:
                self._context.news.emit(
                    events.ItemYielded(
                        pool=self.pool, run=self.id, index=index, rank=header["rank"], seq=header["seq"],
                        summary=summary,
                    )
                )  # fmt: skip
            if self.consumed:
                self.arrivals.put(("item", link, header, body))
        elif header["seq"] > reading.next:
            self._on_values_lost(link, index, header["rank"], reading.next, header["seq"])
        if not self.consumed:
            self.on_consumed(link, index, reading.next)

    def on_want(self, link: Link, header: AgentWant) -> None:
        """A rank waits for values of an argument that this client feeds."""
        index, number = header["i"], header["arg"]
        task = self.tasks[0 if self.kind == "broadcast" else index % len(self.tasks)]
        if index in self.outcomes or self.state != "running":
            return
        if number >= len(task.feeds):
            self._reject_want(link, header)
            return
        key = (-1 if self.kind == "broadcast" else index), number
        if (feeding := self._feedings.get(key)) is None:
            calls = range(self.total) if self.kind == "broadcast" else (index,)
            readers = [call for call in calls if call not in self.outcomes]
            about = self.id, number, *task.feeds[number], task.pickled, readers
            feeding = self._feedings[key] = ArgumentStream(*about, partial(self._send_values, link.loop))
        feeding.on_want(header)

    def _send_values(self, loop: asyncio.AbstractEventLoop, frames: Sequence[tuple[int, AnyHeader, bytes]]) -> None:
        """Hand values on, each of a call; called by other threads."""

        def hand_on() -> None:
            for index, header, body in frames:
                link = self._where.get(index)
                if link is not None and not link.gone:
                    link.send(header, body)

        loop.call_soon_threadsafe(hand_on)

    def _reject_want(self, link: Link, header: AgentWant) -> None:
        from skyward_core.node.worker.returned_exceptions import (
            describe_error,  # nobody but who took a run over comes here
        )

        said = f"an argument of {self.name}() was fed by the client that called it, and that client has left"
        about: AnyHeader = {key: header[key] for key in ("run", "i", "arg")}
        about |= {"t": "fed", "seq": header["next"], "part": 0, "ends": "error"}
        link.send(about, describe_error(PoolError(said))[1])

    def on_consumed(self, link: Link, index: int, until: int) -> None:
        """A reader took all values below a number: the generator may make more."""
        if (reading := self._readings.get(index)) is None:
            return  # given up
        reading.mark_consumed(until)
        link.send({"t": "credit", "run": self.id, "i": index, "next": until})
        if self.state != "running":
            self._acknowledge()

    def _on_values_lost(self, link: Link, index: int, rank: int, begin: int, end: int) -> None:
        """Values are missing that nobody has any more."""
        what = f"value {begin}" if end == begin + 1 else f"values {begin} to {end - 1}"
        said = f"{what} of {self.name}() on rank {rank} was lost on node {link.node}; those before it are here"
        header = {"t": "stop", "run": self.id, "i": index, "why": said, "grace": self._context.options.grace}
        link.send(header)
        self.logs[index] = {}
        error = ErrorInfo("ValuesLost", said)
        self._on_call_end(link, Outcome(index, rank, link.node, "lost", error=error))

    def on_stale(self, index: int, reason: str, *, spent: bool = False) -> None:
        """A call was handed back: its gang broke before it began, or is spent, and goes on for runs before this one."""
        self._stale.add(index)
        self._broke = self._broke or reason
        if not self._stopping:
            self._stop("its gang broke before all ranks began", breaks=not spent)
        self._check_end()

    def on_outcome(self, link: Link, header: AgentOutcome, body: bytes) -> None:
        index = header["i"]
        if index in self.outcomes or index in self._fetching or is_notification(header, body):
            return
        self._begun |= header.get("begun", True)
        self._spent = self._spent or header.get("ends", "")
        outcome = outcome_of(header)
        self.logs[index] = header.get("log", {})
        if outcome.kind == "lost" and self._context.may_be_preempted(link.node):
            return  # its agent was ended and cannot know why: whoever finds that out ends the call (nodes.watch)
        name = header.get("file")
        reading = self._readings.get(index)
        if outcome.kind == "returned" and reading is not None and reading.next < header.get("items", 0):
            self._on_values_lost(link, index, outcome.rank, reading.next, header["items"])
        elif name is None:
            self.values[index] = body
            self._on_call_end(link, outcome)
        else:
            self._fetching.add(index)
            self._context.background.spawn(self._fetch(link, outcome, name, header["size"]))

    async def _fetch(self, link: Link, outcome: Outcome, name: str, size: int) -> None:
        awaited = isinstance(self.future, RunCompletion) and outcome.kind == "returned"
        path = self._context.archive.results / f"{self.id}.{outcome.index}.pickle"
        landing = ResultDownload(path, size, in_place=awaited)
        try:
            await self._fetch_with_retries(link, name, landing)
            self.values[outcome.index] = landing
            if isinstance(self.future, RunCompletion) and awaited:
                self.future.queue_load(self, outcome.index)
        except Exception as error:  # noqa: BLE001  whatever it was: who waits for the run has to hear of it
            reason = str(error) if isinstance(error, OSError) else repr(error)
            info = ErrorInfo(
                "OSError", f"its result of {size:,} bytes could not be fetched to {landing.path}: {reason}"
            )
            outcome = Outcome(outcome.index, outcome.rank, outcome.node, "lost", outcome.seconds, error=info)
        finally:
            self._fetching.discard(outcome.index)
        self._on_call_end(link, outcome)

    async def _fetch_with_retries(self, link: Link, name: str, landing: ResultDownload) -> None:
        """Bring a file of a node's spool here, however often the link drops.

        Raises:
            OSError: it is not there, cannot be written here, or nothing can come from there any more.
        """
        while True:
            try:
                return await self._context.registry.fetch(link, name, landing)
            except ConnectionError as error:
                if link.gone or self._context.leaving or self._ending is not None:
                    raise OSError(str(error)) from error
                await asyncio.sleep(0.1)  # the link is on its way up again

    def _on_call_end(self, link: Link, outcome: Outcome) -> None:
        if self.state == "left":
            return  # whoever claims the run hears of it, and gets what came of it
        self._add_outcome(outcome)
        if self._ending is not None:
            return  # what is on the nodes stays there
        self._seconds.append(outcome.seconds)
        self._ranks.pop(outcome.index, None)
        # With its kind: of a run that is begun anew the outcomes are no more when a reader hears of them.
        self.arrivals.put(("outcome", outcome.index, outcome.kind))
        if self.kind != "broadcast":
            self._flying[link.node] = self._flying.get(link.node, 1) - 1
            if outcome.index not in self._readings and not self.stays:
                link.acknowledge(self.id, outcome.index)
        fails_fast = self._context.options.fail_fast and self.kind != "sweep"
        if is_failure(outcome) and not self._stopping and fails_fast:
            if is_symptom(outcome) and self.total > 1:
                asyncio.get_running_loop().call_later(ECHO_WAIT, self._stop, "fail-fast")
            else:
                self._stop("fail-fast")
        if self.kind in ("gather", "sweep"):
            self._refill()
        self._check_end()

    # -- ending ------------------------------------------------------------------------------------------

    def cancel(self, reason: str) -> None:
        """Stop everything of this run that still runs."""
        if self.state != "running":
            self._discard_values()
        if self.state != "running" or self.cancelled:
            return
        self.cancelled = reason
        if self.sent:
            self._stop("cancel")
        else:  # no node has got any of it
            self._stopping = True
            self._waiting = deque(range(self.total))
            self._fail_unsent("not started: the run was cancelled", kind="collateral")

    def detach(self) -> None:
        """The client leaves the pool. What no node has got is cancelled; the rest goes on, for whoever claims it."""
        if not self.sent:
            self.cancel("its client left the pool before it was started; it was sent to no node")
        elif self.state == "running":
            if self.kind == "sweep":  # nobody would hand out the rest
                self.stays = True
                self._refill()
            self.state, self._unsent = "left", len(self._waiting)
            self._notify_waiters()

    def pool_ended(self, ending: PoolEnd) -> None:
        """The pool has ended under it: nothing more comes, and what its agents hold is left there as it is."""
        if self.state == "running":
            self.state, self._ending = "lost", ending
            self._context.background.defer(self._context.registry.on_run_end, self)
            self._notify_waiters()

    def _stop(self, reason: str, *, breaks: bool = True) -> None:
        """``breaks``: its gang, where it has one, ends with it."""
        if self._stopping or self.state != "running":
            return
        self._stopping = True
        if self.total == len(self.outcomes):
            return
        gang = self.kind == "broadcast" and breaks
        for link in self.links:
            header: Header = {"t": "stop", "run": self.id, "why": reason, "grace": self._context.options.grace}
            link.send(header | ({"break": link.epoch} if gang else {}))
            if breaks and self.calls_on(link):
                # What is stopped there takes a gang's worker with it; the agent will say so, but a run that
                # is started meanwhile must not count on it.
                link.broken = link.broken or "a run was stopped"
        words = "not started: the run was cancelled" if self.cancelled else "not started: another task failed"
        self._fail_unsent(words, kind="collateral")

    def _fail_unsent(self, words: str, kind: str = "lost") -> None:
        while self._waiting:
            index = self._waiting.popleft()
            rank, node = self.place_of(index) if self.kind == "broadcast" else (-1, -1)
            outcome = Outcome(index, rank, node, kind, error=ErrorInfo("Stopped", words))  # type: ignore[arg-type]
            self._end_unsent_call(outcome)
        self._check_end()

    def _end_unsent_call(self, outcome: Outcome) -> None:
        """A call ends of which no node tells, and that none was at."""
        self.logs[outcome.index] = {}
        self._add_outcome(outcome)

    def mark_lost(self, index: int) -> None:
        """The node that has a call is gone: it ends as lost."""
        link = self._where[index]
        self._end_call(link, index, "lost", link.lost_error)

    def set_rank(self, index: int, rank: int) -> None:
        """A task has begun on a rank."""
        if self.kind in ("gather", "sweep"):
            self._ranks[index] = rank

    def reject(self, index: int, link: Link, kind: OutcomeKind, error: ErrorInfo) -> None:
        """End a call that no node has got, or that the one which has it does not begin.

        Args:
            link: to the node that it would have been for.
        """
        self._where[index] = link
        self._end_call(link, index, kind, error, begun=False)

    def _end_call(self, link: Link, index: int, kind: OutcomeKind, error: ErrorInfo, *, begun: bool = True) -> None:
        """End a call that no node tells of."""
        if index in self.outcomes:
            return
        self._begun |= begun
        first = link.node * self._context.ranks_per_node
        rank = self.place_of(index)[0] if self.kind == "broadcast" else self._ranks.get(index, first)
        self.logs.setdefault(index, {})
        self.values[index] = b""
        self._on_call_end(link, Outcome(index, rank, link.node, kind, error=error))

    def calls_on(self, link: Link) -> list[int]:
        """Indices of calls on this link that have not ended yet, as far as is known here."""
        if not self.sent:
            return []  # it is to be begun anew: its first calls are no more
        calls = (index for index, where in self._where.items() if where is link)
        return [index for index in calls if index not in self.outcomes and index not in self._fetching]

    def _check_end(self) -> None:
        if self.state != "running" or self._fetching:
            return
        if self._stale and len(self.outcomes.keys() | self._stale) == self.total:
            self._end_stale()
        elif len(self.outcomes) == self.total:
            self._end()

    def _end_stale(self) -> None:
        if not self._begun and not self.cancelled:
            # Nobody ran a line of it: start it anew with a whole gang.
            self.outcomes.clear()
            self._arrived.clear()
            self._stale.clear()
            self._stopping = self.sent = False
            self._broke = ""
            for link in self.links:
                link.send({"t": "ack", "calls": {self.id: None}})  # else the agent answers from memory
            self._context.scheduler.restart(self)
            return
        for index in self._stale - self.outcomes.keys():
            reason = f": {self._broke}" if self._broke else ""
            info = ErrorInfo("Stopped", f"its gang broke before it began{reason}")
            rank, node = self.place_of(index)
            self._end_unsent_call(Outcome(index, rank, node, "lost", error=info))
        self._end()

    def _end(self) -> None:
        if self._spent:
            for link in self.links:
                link.broken = link.broken or self._spent
        if all(outcome.kind == "returned" for outcome in self.outcomes.values()):
            self.state = "done"
        else:
            self.root_cause = root_cause(self._arrived)
            self.state = "cancelled" if self.root_cause is None or self.cancelled else "failed"
        self._context.background.defer(self._finalize)
        self._notify_waiters()

    def _notify_waiters(self) -> None:
        """Whoever waits here need not wait any longer."""
        for feeding in self._feedings.values():
            feeding.close()
        self.arrivals.put(("end",))
        # Last: a thread that wakes up while this one has more to do has to wait once more, for the interpreter.
        # A caller may have cancelled the future; the run is over all the same.
        if not self.future.done():
            self.future.set_result(self)

    def _add_outcome(self, outcome: Outcome) -> None:
        """A call has ended: here at once, in view and ledger a moment later."""
        self.outcomes[outcome.index] = outcome
        self._arrived.append(outcome)
        for feeding in self._feedings.values():
            feeding.on_call_end(outcome.index)
        self._context.background.defer(self._save_outcome, outcome)

    def _save_outcome(self, outcome: Outcome) -> None:
        self._context.news.emit(events.RankEnded(pool=self.pool, run=self.id, outcome=outcome))
        self._context.news.records.add_outcome(self.id, outcome, self.logs[outcome.index])

    def _finalize(self) -> None:
        if self.state == "failed":
            self._save_cause()
        self._acknowledge()
        self._context.registry.on_run_end(self)

    def _save_cause(self) -> None:
        """Save the exception behind a failure: its rank's node forgets it, and scripts may ask for it later."""
        culprit = next(each for each in self._arrived if RootCause.from_outcome(each) == self.root_cause)
        value = self.values.get(culprit.index)
        if culprit.kind == "raised" and isinstance(value, bytes):
            try:
                write_atomic(self._context.archive.results / f"{self.id}{EXCEPTION_SUFFIX}", value)
            except OSError as error:
                self._context.news.records.warn_write_failed("exceptions", error)

    def _acknowledge(self) -> None:
        """What nodes keep of it is not needed any more, once large values that were yielded have been fetched, too."""
        if self._ending is not None or self.state == "left" or self.stays:
            return
        if not (self.consumed and any(r.has_unconsumed for r in self._readings.values())):
            for link in self._context.links:
                if self._claimed or link.node in self._asked:
                    link.acknowledge(self.id)

    def _discard_values(self) -> None:
        """Nobody reads on."""
        if any(reading.has_unconsumed for reading in self._readings.values()):
            self._readings.clear()
            self._acknowledge()

    # -- for threads that wait for it -------------------------------------------------------------------

    def value(self, index: int) -> Any:
        """Load what a rank returned; user code may run in here, so never on the loop.

        Raises:
            RunError: it cannot be loaded here; the cause says why.
        """
        value, early = self.values.pop(index), self._loaded.pop(index, None)
        loaded, failure = load(value) if early is None else early.result()
        if failure is not None:
            raise self._result_load_failure(index, failure) from failure
        return loaded

    def _result_load_failure(self, index: int, error: BaseException) -> RunError:
        outcome = self.outcomes[index]
        place = describe_place(self.kind, outcome)
        return self._load_failure(index, outcome.rank, f"{place} returned, but", "its result", error)

    def _load_failure(self, index: int, rank: int, place: str, what: str, error: BaseException) -> RunError:
        """Return the failure of a run of which one value does not load here; values of the others are in it."""
        ended = [(i, out.kind) for i, out in sorted(self.outcomes.items()) if i != index]
        loaded = {i: self.preload(i) for i, kind in ended if kind == "returned" and i in self.values}
        results = {i: value for i, (value, failure) in loaded.items() if failure is None}
        return unloadable_error(self.id, self.name_of(index), self.outcomes, rank, place, what, error, results)

    def _load_values(self) -> tuple[dict[int, Any], RunError | None]:
        """The values that are here and load, by index, and the first failure of one that does not."""
        values: dict[int, Any] = {}
        failure: RunError | None = None
        for index in sorted(self.values):
            if self.outcomes[index].kind == "returned":
                try:
                    values[index] = self.value(index)
                except RunError as error:
                    failure = failure or error
        return values, failure

    def preload(self, index: int) -> Loaded:
        """Load what a rank returned, once, perhaps while others still run; :meth:`value` then gives it."""
        if (found := self._loaded.get(index)) is None:
            found = self._loaded[index] = Future()
            try:
                found.set_result(load(self.values[index]))
            except BaseException as error:  # the user's ctrl-c
                found.set_exception(error)
                raise
        return found.result()

    def results(self) -> list[Any]:
        """Return all values by index, the first time.

        Raises:
            RunError, Cancelled: it did not succeed, or a value cannot be loaded here; the others are in ``results``.
            PoolGone: the pool ended before it had.
            PoolError: this client left the pool before it had, or another caller has got the values.
        """
        if not self._unread.acquire(blocking=False):
            raise already_fetched_error(self.id)
        if self.state != "done":
            raise self.error()
        values, failure = self._load_values()
        if failure is not None:
            failure.results = values
            raise failure
        return [values[index] for index in range(self.total)]

    def error(self) -> Exception:
        """The failure as an exception, the user's own one as its cause."""
        if self._ending is not None:
            return self._ending.error()
        if self.state == "left":
            goes_on = f"it goes on there, and sky.attach({self.pool!r}).wait({self.id!r}) gives its results"
            missing = []
            if here := len(self.outcomes) if self.kind != "broadcast" else 0:
                missing.append(f"{here} of its {self.total} results had come here, and no node keeps those")
            if self._unsent:
                missing.append(f"{self._unsent} of its {self.total} tasks had been sent to no node, and are not run")
            goes_on = "; ".join(missing) or goes_on
            left = f"this client left pool {self.pool} while run {self.id} of {self.name} was under way"
            return PoolError(f"{left}; {goes_on}")
        if self.state == "cancelled" or self.root_cause is None:
            reason = f" ({self.cancelled})" if self.cancelled else ""
            return Cancelled(f"run {self.id} of {self.name} was cancelled{reason}")
        cause = self.root_cause
        culprit = next(o for o in self._arrived if RootCause.from_outcome(o) == cause)
        partial, _ = self._load_values()
        name = self.name_of(culprit.index)
        error = RunError(
            describe_failure(name, self.kind, self.outcomes.values(), culprit),
            run=self.id,
            function=name,
            outcomes=self.outcomes,
            root_cause=cause,
            results=partial,
        )
        return error_with_cause(error, culprit, self.values.get(culprit.index))

    # -- for the thread that reads a generator -----------------------------------------------------------

    def items(self, index: int) -> Iterator[Any]:
        """A generator's values as they come; only for runs of one task, and only for one reader.

        Raises:
            RunError, Cancelled: after the values that came before the failure.
        """
        while True:
            kind, *rest = self.arrivals.get()
            if kind == "item":
                yield from self.item(*rest)
            elif kind == "end":
                if self.state != "done":
                    raise self.error()
                return

    def item(self, link: Link, header: AgentItem, body: bytes) -> Iterator[Any]:
        """One value that a generator yielded; once it is taken, the generator may make another.

        Raises:
            PoolError: it is large, and cannot be fetched.
            RunError: it cannot be loaded here; the cause says why.
        """
        value: Value = body
        if (name := header.get("file")) is not None:
            path = self._context.archive.results / f"{self.id}.{header['i']}.{header['seq']}.item"
            value = landing = ResultDownload(path, header["size"], in_place=True)
            try:
                asyncio.run_coroutine_threadsafe(self._fetch_with_retries(link, name, landing), link.loop).result()
            except OSError as error:
                if self._ending is not None:
                    raise self.error() from error
                said = f"value {header['seq']} of {self.name}() on rank {header['rank']} cannot be fetched: {error}"
                raise PoolError(said) from error
        loaded, failure = load(value)
        if failure is not None:
            rank = header["rank"]
            about = rank, f"rank {rank} (node {link.node}) yielded, but", f"its value {header['seq']}"
            raise self._load_failure(header["i"], *about, failure) from failure
        yield loaded
        link.loop.call_soon_threadsafe(self.on_consumed, link, header["i"], header["seq"] + 1)
