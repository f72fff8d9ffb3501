"""One run of this client: dispatch of its calls, collection of their outcomes, yielded items."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import Cancelled, PoolError, RunError, SkywardError
from skyward_core.model.outcomes_states_and_alerts import (
    ErrorInfo,
    Outcome,
    OutcomeKind,
    RootCause,
    RunKind,
    RunStatus,
    Summary,
)
from skyward_core.model.restart_policy import AttemptEnd, RestartDecision, attempt_keys, decide_restart, describe_end
from skyward_core.model.root_cause import CANCELLED, ECHO, ECHO_WAIT, cause_rank, is_failure, is_symptom, root_cause
from skyward_core.pool.agent_link import ACK_DELAY, Link, is_notification
from skyward_core.pool.runs.iterator_argument_stream import ArgumentStream
from skyward_core.pool.runs.result_loading_and_run_errors import (
    Loaded,
    Value,
    already_fetched_error,
    describe_failure,
    describe_place,
    error_with_cause,
    load,
    unloadable_error,
)
from skyward_core.pool.runs.runs_on_fewer_nodes import watch_growth
from skyward_core.protocol.frame_codec import MAX_INLINE_BYTES, AnyHeader, Header, encode_json
from skyward_core.protocol.frame_schemas_and_size_limits import PREEMPTED, RESULTS_FETCHED
from skyward_core.store.pool_folder import EXCEPTION_SUFFIX
from skyward_core.tasks.pickled_calls_and_blobs import Blob, Task, delete_files
from skyward_core.transport.file_and_result_downloads import ResultDownload
from skyward_core.util.safe_file_access import write_atomic
from skyward_core.views import events

if TYPE_CHECKING:
    from skyward_core.pool import PoolContext, PoolEnd
    from skyward_core.protocol.frame_types import AgentItem, AgentOutcome, AgentWant, CallKeys, ClientCall, RunKeys


def outcome_of(header: AgentOutcome) -> Outcome:
    """Convert an outcome frame's header to an :class:`Outcome`."""
    error, last = header.get("error"), header.get("last")
    return Outcome(
        header["i"],
        header["rank"],
        header["node"],
        header["kind"],
        header.get("seconds", 0.0),
        Summary.from_wire(header.get("summary")),
        error and ErrorInfo.from_wire(error),
        header.get("exit_code"),
        header.get("signal"),
        header.get("items", 0),
        last and Summary.from_wire(last),
        header.get("numbers"),
    )


def _call_body(task: Task) -> bytes:
    """Return the body of a call's frame: the function and the arguments that are not sent as files."""
    return b"".join(blob.data for blob in (task.fn, task.args) if blob.size <= MAX_INLINE_BYTES and blob.data)


class GeneratorPosition:
    """Numbers of received and consumed items of one generator.

    Args:
        request: Frame of the generator's call. Contains the current position, because the frame is sent again after a
            reconnection. Empty if another client dispatched the call.

    Attributes:
        next: Number of the next item to receive.
    """

    def __init__(self, request: ClientCall | dict[str, int]) -> None:
        self._request = request
        self._claimed = not request  # whether an earlier client may already have read the first items
        self._next = self._taken = 0

    @property
    def next(self) -> int:
        return self._next

    @next.setter
    def next(self, number: int) -> None:
        self._next = self._request["next"] = number

    @property
    def has_unconsumed(self) -> bool:
        """Whether received items are not consumed yet."""
        return self._taken < self._next

    def is_new(self, number: int) -> bool:
        return number == self._next or (self._claimed and number > self._next)

    def mark_consumed(self, until: int) -> None:
        self._taken = self._request["taken"] = until


# Kinds of runs with independent tasks, which restart one by one instead of together.
TASK_KINDS = ("gather", "sweep", "map")
MAX_QUEUED_TASKS = 32  # maximum number of waiting tasks that a run of short tasks sends to a node in advance
QUICK_TASK = 0.02  # seconds; a run sends tasks in advance if its tasks take less time than this
UNKNOWN_CALL = -1  # stands for all calls of an adopted run until its function is known


def preload(loaded: dict[int, Future[Loaded]], index: int, value: Value) -> Loaded:
    """Load a return value once, possibly while other calls run, for a later :meth:`Run.value`."""
    if (found := loaded.get(index)) is None:
        found = loaded[index] = Future()
        try:
            found.set_result(load(value))
        except BaseException as error:
            # Also KeyboardInterrupt, so that a later reader of the value does not wait forever.
            found.set_exception(error)
            raise
    return found.result()


class RunCompletion(Future["Run"]):
    """Future for the end of a run. The waiting thread loads large values while other values still arrive."""

    def __init__(self) -> None:
        super().__init__()
        self._landed: queue.SimpleQueue[tuple[dict[int, Future[Loaded]], int, Value] | None] = queue.SimpleQueue()
        self.add_done_callback(lambda _: self._landed.put(None))

    def queue_load(self, run: Run, index: int) -> None:
        """Pass a value whose file has arrived to the waiting thread, which loads it."""
        # Pass the value itself, because a restart may remove it from the run before it is loaded.
        self._landed.put((run._loaded, index, run.values[index]))

    def wait(self) -> Run:
        """Wait for the end and return the run."""
        while (landed := self._landed.get()) is not None:
            preload(*landed)
        return self.result()


class Run:
    """One run: dispatch of its calls and collection of their outcomes. Created and used on the pool's loop.

    Other threads may use only the future, and, after the end, the values and errors.

    Attributes:
        pool: Name of the pool.
        state: State of the run.
        attempt: Number of the attempt, from 1; see :mod:`restart_policy`.
        outcomes: Outcomes by index, in order of arrival. A new attempt begins without outcomes.
        values: By index: pickled return values of returned calls and exceptions of failed ones, until they are loaded.
    """

    # Slots save time and memory: a run has too many attributes for Python's key-sharing dictionaries, and a client may
    # create thousands of runs per second.
    __slots__ = (
        "_arrived", "_asked", "_attempt_ends", "_begun", "_broke", "_claimed", "_context", "_end_reason", "_end_rows",
        "_ending", "_feedings", "_fetching", "_flying", "_has_saved", "_is_growing", "_loaded", "_log_starts", "_ranks",
        "_readings", "_seconds", "_spent", "_stale", "_stopping", "_task_ends", "_unread", "_unsaved", "_unsent",
        "_waiting", "_where", "arrivals", "attempt", "awaits_decision", "cancelled", "consumed", "future", "id",
        "is_adopted", "is_elastic", "is_retained", "is_script", "kind", "logs", "name", "nodes", "outcomes", "pool",
        "requested_nodes", "root_cause", "sent", "state", "stocked", "tasks", "total", "values",
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
        self.attempt = 1
        self._attempt_ends: list[AttemptEnd] = []
        # Index of a task -> its failed attempts, if the task was restarted by itself.
        self._task_ends: dict[int, list[AttemptEnd]] = {}
        self._log_starts: dict[str, int] = {}  # log file -> offset at which the first attempt began to print
        self._end_reason = ""  # reason why the run was not restarted after its last attempt
        self.cancelled = ""  # reason of the run's cancellation; "" if it is not cancelled
        self.root_cause: RootCause | None = None
        self._unsaved: list[Outcome] = []  # outcomes that are not in the view and the ledger yet
        self._ending: PoolEnd | None = None
        # Acquired by the first call of `results`, because the values are returned only once.
        self._unread = threading.Lock()
        self._unsent = 0  # number of tasks of a gather or sweep that were never sent because this client detached
        self.tasks = tasks
        self.is_script = any(task.script for task in tasks)
        self.future: Future[Run] = future or Future()
        self.arrivals: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.consumed = False  # whether a reader consumes a generator's items one by one
        self._seconds: deque[float] = deque(maxlen=8)  # durations of the latest tasks, in seconds
        self._where: dict[int, Link] = {}
        self._asked: set[int] = set()  # nodes that have received calls of the run
        self.is_retained = False  # whether another client fetches the results, while this client receives the outcomes
        self._claimed = False  # whether another client dispatched the run
        self.is_adopted = False  # whether this client decides about restarts of a run that another one dispatched
        self.awaits_decision = False  # whether another client decides about restarts of this run
        self._fetching: set[int] = set()  # ended calls whose values are being downloaded
        self._readings: dict[int, GeneratorPosition] = {}
        # Index of a call (-1 if all ranks read the same stream) and number of an argument -> its stream.
        self._feedings: dict[tuple[int, int], ArgumentStream] = {}
        self.requested_nodes: int | tuple[int, ...] | None = tasks[0].nodes if kind == "broadcast" else None
        self.nodes: tuple[int, ...] = ()  # assigned nodes; empty if the run uses all nodes
        self.is_elastic = False  # whether an attempt may have fewer nodes than the pool
        self._reset()

    def _reset(self) -> None:
        """Begin an attempt without outcomes, so that the calls can be sent.

        The nodes keep the published outcomes of the former attempt until they receive this one: if this client dies
        before that, the head decides about the restart.
        """
        self.outcomes: dict[int, Outcome] = {}
        self.values: dict[int, Value] = {}
        # A new dictionary, because a waiting thread may still load a value into the former one.
        self._loaded: dict[int, Future[Loaded]] = {}
        self.logs: dict[int, dict[str, list[int]]] = {}
        self._arrived: list[Outcome] = []
        self._stale: set[int] = set()
        # Index of an active task -> rank that executes it, as far as the agent has reported it.
        self._ranks: dict[int, int] = {}
        self._flying: dict[int, int] = {}
        self._waiting: deque[int] = deque()
        self._stopping = self._begun = False
        self.sent = False  # whether a frame of the attempt was sent, so that a node may know it
        self._is_growing = False  # whether the ranks are stopped because the next attempt has more nodes
        # Reasons why the gang of the run broke, and why its processes accept no further call.
        self._broke = self._spent = ""
        # Nodes that have the run's large arguments. None: the run has no large arguments.
        self.stocked: frozenset[Link] | None = None
        # Whether ranks saved a checkpoint file during this attempt; None if the files were not listed.
        self._has_saved: bool | None = None

    def name_of(self, index: int) -> str:
        return self.tasks[index % len(self.tasks)].name

    @property
    def links(self) -> Sequence[Link]:
        """Links to the nodes that may have calls of the run."""
        links = self._context.links
        return links if self.requested_nodes is None else [links[node] for node in self.nodes]

    def place_of(self, index: int) -> tuple[int, int]:
        """Return the rank and the node on which a broadcast's call runs; -1 for both if no nodes are assigned yet."""
        each = self._context.ranks_per_node
        if self.requested_nodes is None:
            return index, index // each
        if not self.nodes:
            return -1, -1
        node = self.nodes[index // each]
        return node * each + index % each, node

    # -- dispatch ------------------------------------------------------------------------------------------

    def send_broadcast(self, epoch: int, nodes: tuple[int, ...] = ()) -> None:
        """Send a broadcast's calls to all nodes or to the given nodes, if the run is still active."""
        # Agents may have started the attempt themselves while the client was disconnected.
        if self.state != "running" or self.sent:
            return
        if nodes:
            self.nodes = nodes
            self._context.news.records.set_columns(self.id, nodes=nodes)
            self._context.news.emit(events.RunPlaced(pool=self.pool, run=self.id, nodes=list(nodes)))
        task = self.tasks[0]
        new = set() if self.stocked is None else {each for each in self.links if not each.gone} - self.stocked
        all_or_none = self._context.options.fail_fast or not self._context.is_standalone
        common = self._call_header(task, 0)
        common["gang"], common["epoch"] = True, epoch
        if nodes:
            common["nodes"] = list(nodes)
        # Encoded once, because pools may have many ranks.
        text = encode_json({key: value for key, value in common.items() if key != "i"})[:-1]
        body = _call_body(task)
        for index in range(self.total):
            rank, node = self.place_of(index)
            link = self._context.links[node]
            if link in new or (new and all_or_none):
                self._reject_new_node(index, link, new)
            else:
                header: ClientCall = {**common, "i": index, "rank": rank}
                self._send_call(link, task, header, body, f'{text},"i":{index},"rank":{rank}}}')
        if self.may_restart:
            self._context.recovery.silence_watch.begin()

    def _reject_new_node(self, index: int, link: Link, new: Collection[Link]) -> None:
        """End a broadcast's call because a replacement node lacks the arguments. The client cannot send them again."""
        late = min(each.node for each in new)
        reason = f"node {late} was replaced after the arguments were sent. Run the function again."
        self.reject(index, link, "lost" if link in new else "collateral", ErrorInfo("NodeLost", reason))

    def place(self, nodes: Sequence[int]) -> None:
        """Set the nodes of the next attempt, which may have fewer or more ranks than the last one."""
        context = self._context
        if tuple(nodes) == (self.nodes or tuple(range(len(context.links)))):
            return
        self.nodes = () if len(nodes) == len(context.links) else tuple(nodes)
        self.requested_nodes = self.nodes or None
        self.total = len(nodes) * context.ranks_per_node
        self._where.clear()
        context.news.records.set_columns(self.id, nodes=tuple(nodes), total=self.total)
        context.news.emit(events.RunPlaced(pool=self.pool, run=self.id, nodes=list(self.nodes)))

    def grow(self) -> None:
        """Let the ranks save and end, because the next attempt has more nodes."""
        # If a failure has already stopped the ranks, the run has failed and does not grow.
        self._is_growing = not self._stopping
        self._stop("growth", grace=self._context.longest_grace)

    def mark_waiting(self) -> None:
        """Mark all calls as waiting until :meth:`end_waiting` or a cancellation."""
        self._waiting.extend(range(self.total))

    def end_waiting(self) -> bool:
        """Undo :meth:`mark_waiting`. Return whether the run is still active."""
        self._waiting.clear()
        return self.state == "running"

    def dispatch(self) -> None:
        """Send tasks to the nodes in turn until all nodes are full. Do nothing if the run is no longer active."""
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
        candidates = [link for link in self._context.links if not link.gone and self._is_stocked(link)]
        links = self._context.without_preempted(candidates)
        if not links:
            scope = "of the pool" if self.stocked is None else "that had its arguments"
            self._fail_unsent(f"every node {scope} is lost")
            return
        if self.kind == "sweep":
            # Other runs may occupy a node for hours, so the least loaded nodes come first.
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
        """Return the number of the run's tasks that a node may have at the same time."""
        slots = self._context.slots_per_node
        if self.kind != "sweep":
            recent = self._seconds
            is_quick = bool(recent) and sum(recent) / len(recent) < QUICK_TASK
            return slots + (MAX_QUEUED_TASKS if is_quick else 1)
        # A trial may take hours, so no trial may wait on a busy node while another node is idle. But a client that will
        # leave sends all trials at once, because it cannot send any later.
        return self.total if self.is_retained else slots

    def _is_stocked(self, link: Link) -> bool:
        """Check whether a node has the run's large arguments. Nodes that joined later lack them."""
        return self.stocked is None or link in self.stocked

    def claim_from(
        self, links: Sequence[Link], nodes: tuple[int, ...] = (), attempt: int = 1, *, decides: bool = False
    ) -> None:
        """Prepare to receive the outcomes of a run that another client dispatched.

        Args:
            links: Links to all nodes.
            nodes: Nodes of the run; empty if it uses all nodes.
            attempt: Number of its latest attempt.
            decides: Whether this client decides about further attempts. The run then ends after :meth:`adopt` only.
        """
        self.sent = self._claimed = True
        self.is_adopted = self.is_retained = decides
        self._fetching.update([UNKNOWN_CALL] if decides else ())
        self.attempt = attempt
        if nodes:
            self.requested_nodes = self.nodes = nodes
        if self.kind == "broadcast":
            self._where = {index: links[self.place_of(index)[1]] for index in range(self.total)}
        elif len(links) == 1:
            self._where = dict.fromkeys(range(self.total), links[0])

    def adopt(self, call: CallKeys | None, body: bytes) -> None:
        """Continue another client's run with the function and arguments of one of its calls.

        Raises:
            PoolError: If the nodes do not have the function and arguments, or if these are too large.
        """
        if call is None or max(call["fn"][1], call["args"][1]) > MAX_INLINE_BYTES:
            raise PoolError("its nodes do not have its function and arguments, or these are too large")
        attempt, (fn, size), (args, rest) = call["attempt"], call["fn"], call["args"]
        blobs = Blob(fn, size, data=body[:size]), Blob(args, rest, data=body[size:])
        more: AnyHeader = {key: call[key] for key in ("timeout", "script", "job", "more") if key in call}
        self.tasks = [Task(self.name, *blobs, **more)]
        self.is_script = self.tasks[0].script
        self.is_elastic = "least_nodes" in attempt
        # Keep the newer state of this run if the agents have just started a later attempt.
        if attempt["number"] >= self.attempt:
            self._attempt_ends = [AttemptEnd.from_keys(keys) for keys in attempt["ends"]]
        self._fetching.discard(UNKNOWN_CALL)
        self._check_end()
        watch_growth(self._context, self)

    def stop_following(self, outcomes: Iterable[Outcome] = ()) -> bool:
        """End the run after its last attempt, because the client that decides about restarts starts no other attempt.

        Args:
            outcomes: Outcomes in the ledger.

        Returns:
            Whether the run has ended or will end when its results are downloaded. False if results are missing.
        """
        self.awaits_decision = False
        for outcome in outcomes:
            # Agents report no outcome of this call, for example because its node was lost.
            if outcome.kind != "returned" and outcome.index not in self.outcomes:
                self._end_unsent_call(outcome)
        self._check_end()
        return self.state != "running" or bool(self._fetching)

    def has_call(self, index: int) -> bool:
        """Check whether the run has a call with the given index."""
        return index < self.total

    def row_of(self, index: int, rank: int) -> int:
        """Return the index of the row in which screens show a call."""
        return index

    def is_sent_to(self, link: Link, index: int) -> bool:
        """Check whether this client has sent a call to a node. For another client's run, assume that it was sent."""
        where = self._where.get(index)
        return self._claimed and self.has_call(index) if where is None else where.node == link.node

    def _send(self, link: Link, index: int, task: Task, extra: AnyHeader) -> None:
        header = self._call_header(task, index)
        if (ends := self._task_ends.get(index)) is not None:
            header["attempt"] = attempt_keys(len(ends) + 1, self._context.options, ends)
        self._send_call(link, task, header | extra, _call_body(task))

    def _call_header(self, task: Task, index: int) -> ClientCall:
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
        if task.feeds:
            header["fed"] = True
        if task.script:
            header["script"] = True
        if task.job:
            header["job"], header["more"] = task.job, task.more
        if self.may_restart:
            least = self._context.least_nodes if self.is_elastic else None
            header["attempt"] = attempt_keys(self.attempt, self._context.options, self._attempt_ends, least)
        if self._context.options.uses_checkpoints:
            header["checkpoints"] = self._context.options.resume or self.id
        if self._context.is_standalone:
            header["alone"] = True
        elif self._context.links[0].gone:
            header["headless"] = True  # run without a gang, because no gang can be formed without the head
        return header

    def _send_call(self, link: Link, task: Task, header: ClientCall, body: bytes, text: str = "") -> None:
        """Send a call. ``text``: the encoded header; "" to encode it."""
        index = header["i"]
        if header.get("stream"):
            self._readings[index] = GeneratorPosition(header)
        if task.fn.sources or task.args.sources:
            link.send_sources((*task.fn.sources, *task.args.sources))
        self._where[index] = link
        self._asked.add(link.node)
        self.sent = True
        if link.gone:
            self.mark_lost(index)
        else:
            link.call(header, body, text)

    # -- attempts ------------------------------------------------------------------------------------------

    @property
    def may_restart(self) -> bool:
        """Whether a failure may start the whole run again. Tasks of gathers, sweeps and maps run again one by one."""
        return (
            self._context.options.on_loss == "restart"
            and self.kind in ("broadcast", "single")
            and not ((self._claimed and not self.is_adopted) or self.consumed)
        )

    @property
    def lost_job_node(self) -> int | None:
        """Node that lost its machine during a step of a job; None if there is none.

        The earlier steps of the job must be repeated, because they have not run on the replacement machine.
        """
        if not self.tasks[0].job:
            return None
        links, nodes = self._context.links, self._context.view.nodes
        lost = (
            each.node
            for each in self._where.values()
            if each.gone or each is not links[each.node] or nodes[each.node].is_preempted
        )
        return next(lost, None)

    @property
    def step_obstacle(self) -> str:
        """Reason why a step of a job cannot continue on a replacement machine; "" if it can."""
        if (lost := self.lost_job_node) is None or self.tasks[0].before is not None:
            return ""
        return f"node {lost} lost its machine, and this client cannot set up another one. Launch the job file again"

    def _restart_task(self, link: Link, outcome: Outcome, task: Task) -> bool:
        """Send a failed task of a gather, sweep or map again if the policy allows it. Return whether it does."""
        context, index, error = self._context, outcome.index, outcome.error
        is_over = self._stopping or self.cancelled or self.state != "running" or context.leaving
        if context.options.on_loss != "restart" or is_over or self._claimed or self.is_retained:
            return False
        # A PoolError means that no node received the task.
        if not is_failure(outcome) or (error is not None and error.type == "PoolError"):
            return False
        ends = self._task_ends.setdefault(index, [])
        root = RootCause.from_outcome(outcome)
        preempted = context.view.nodes[link.node].is_preempted
        ends.append(describe_end(len(ends) + 1, root, [outcome], None, preempted=preempted))
        decision = decide_restart(ends, context.options)
        if decision.reason:
            then = decision.reason if decision.restarts else f"not restarted: {decision.reason}"
            context.news.emit_warning(f"{task.name}, call {index} of run {self.id}: {ends[-1].message}; {then}")
        if not decision.restarts:
            return False
        self.values.pop(index, None)
        self.logs.pop(index, None)
        self._ranks.pop(index, None)
        del self._where[index]
        self._flying[link.node] = max(0, self._flying.get(link.node, 0) - 1)
        self._waiting.appendleft(index)
        if all(each.gone for each in context.links):
            context.background.spawn(self._refill_replacements())
        else:
            self._refill()
        return True

    async def _refill_replacements(self) -> None:
        await asyncio.sleep(0)  # let the recovery of the last lost node begin, so that the next line waits for it
        await self._context.roster.wait_replacements()
        self._refill()

    def _try_restart(self, cause: RootCause) -> bool:
        """Restart a failed run if the policy allows it. Return whether it restarts."""
        context = self._context
        # A call that no rank has begun was rejected: a node is lost for good, or the arguments could not be sent.
        if not self.may_restart or self.cancelled or not self._begun or context.leaving or context.external_end:
            return False
        has_ended = any(each.error is not None and each.error.type == RESULTS_FETCHED for each in self._arrived)
        if has_ended:
            return False
        context.background.run_deferred()  # publish the outcomes before the end of the attempt
        preempted = any(context.view.nodes[each.node].is_preempted for each in self._arrived if each.node >= 0)
        progress = context.view.metrics.max_step(self.id)
        end = describe_end(self.attempt, cause, self._arrived, progress, preempted=preempted)
        end = replace(end, has_saved=bool(self._has_saved))
        if self._is_growing:
            end = replace(end, cause="growth", message="stopped to continue on more nodes", lost_ranks=())
        decision = decide_restart([*self._attempt_ends, end], context.options)
        if decision.restarts and (reason := self.step_obstacle):
            decision = RestartDecision(False, reason)
        if decision.idle and self._has_saved is None:
            context.background.spawn(self._find_saved_files())
            return True  # decide after the checkpoint files are listed
        end = replace(end, reason=decision.reason, at=time.time())
        self._attempt_ends.append(end)
        context.registry.others.publish_end(self.id, end, decision)
        context.news.save_attempt_ends(self.id)
        if not decision.restarts:
            self._end_reason = decision.reason
            return False
        # Do not restart, because a receiver of the event may have cancelled the run.
        if self.cancelled or context.leaving:
            return False
        for log in self.logs.values():
            for name, (start, _) in log.items():
                self._log_starts.setdefault(name, start)
        self._reset()
        self.attempt += 1
        context.news.records.restart_run(self.id, self.attempt)
        for link in self.links:
            # Mark the gang as broken, because the next attempt needs new processes and thus a new gang.
            link.broken = link.broken or f"attempt {self.attempt - 1} of a run ended"
        context.scheduler.restart(self, decision.pause)
        return True

    async def _find_saved_files(self) -> None:
        """Find out whether ranks saved a checkpoint during this attempt, and then decide about the next attempt."""
        attempt, found, since = self.attempt, False, self._attempt_ends[-1].at
        try:
            found = await self._context.checkpoints.has_saved_since(self.id, since)
        except (SkywardError, OSError) as error:
            words = f"cannot list the checkpoints of run {self.id}, so only logged steps count as progress: {error}"
            self._context.news.emit_warning(words)
        if self.state == "running" and self.attempt == attempt:
            self._has_saved = found
            self._end()

    def on_attempt(self, record: RunKeys) -> None:
        """Continue with an attempt that agents started while this client was not connected."""
        number = record.get("attempt", 1)
        is_known = number < self.attempt or (number == self.attempt and (self.sent or not record.get("unattended")))
        if is_known or self.state != "running":
            return
        ends = [AttemptEnd.from_keys(keys) for keys in record.get("ends", ())]
        self._context.registry.others.publish_ends(self.id, ends)
        self._context.news.save_attempt_ends(self.id)
        self._attempt_ends = ends
        # Publish the outcomes of the last attempt before the new attempt is published.
        self._context.background.run_deferred()
        self._reset()
        self.attempt, self.sent, self._begun = number, True, True
        self._context.news.records.restart_run(self.id, number)
        links = self._context.links
        if self.kind == "broadcast":
            self.place(record.get("nodes") or range(len(links)))
            self._where = {index: links[self.place_of(index)[1]] for index in range(self.total)}
        # Replace the calls of the earlier attempt in each link, so that the link does not repeat them.
        for link in links:
            link.claim_next_attempt(self.id, decides=self.may_restart)
        watch_growth(self._context, self)

    # -- outcomes and items --------------------------------------------------------------------------------

    def on_item(self, link: Link, header: AgentItem, body: bytes) -> None:
        """Store a generator's item for the reader. Ignore items that are repeated after a reconnection."""
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
        """Pass a rank's request for values to the streamed argument."""
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
            feeding = self._feedings[key] = ArgumentStream(
                *about, lambda values: link.loop.call_soon_threadsafe(self._send_values, values)
            )
        feeding.on_want(header)

    def _send_values(self, values: Sequence[tuple[int, AnyHeader, bytes]]) -> None:
        """Send values to the ranks of their calls."""
        for index, header, body in values:
            link = self._where.get(index)
            if link is not None and not link.gone:
                link.send(header, body)

    def _reject_want(self, link: Link, header: AgentWant) -> None:
        # Imported late: only a client that claimed a run gets here.
        from skyward_core.node.worker.returned_exceptions import describe_error

        message = f"an argument of {self.name}() was streamed by a client that has exited"
        about: AnyHeader = {key: header[key] for key in ("run", "i", "arg")}
        about |= {"t": "fed", "seq": header["next"], "part": 0, "ends": "error"}
        link.send(about, describe_error(PoolError(message))[1])

    def on_consumed(self, link: Link, index: int, until: int) -> None:
        """Acknowledge that the reader has consumed all items below ``until``, so that the generator may continue."""
        if (reading := self._readings.get(index)) is None:
            return  # ignore the acknowledgement, because the reader has stopped, for example by a break
        reading.mark_consumed(until)
        link.send({"t": "credit", "run": self.id, "i": index, "next": until})
        if self.state != "running":
            self._acknowledge()

    def _on_values_lost(self, link: Link, index: int, rank: int, begin: int, end: int) -> None:
        """End a call some of whose items are lost for good."""
        items = f"value {begin}" if end == begin + 1 else f"values {begin} to {end - 1}"
        message = f"{items} of {self.name}() on rank {rank} was lost on node {link.node}; earlier values have arrived"
        link.send({"t": "stop", "run": self.id, "i": index, "why": message})
        self.logs[index] = {}
        self._on_call_end(link, Outcome(index, rank, link.node, "lost", error=ErrorInfo("ValuesLost", message)))

    def on_stale(self, index: int, reason: str, *, spent: bool = False) -> None:
        """Record that an agent returned a call unexecuted, because its gang broke or accepts no more calls."""
        self._stale.add(index)
        self._broke = self._broke or reason
        if not self._stopping:
            self._stop("the gang broke before all ranks began", breaks=not spent)
        self._check_end()

    def on_outcome(self, link: Link, header: AgentOutcome, body: bytes) -> None:
        index = header["i"]
        if index in self.outcomes or index in self._fetching or (not body and is_notification(header, body)):
            return
        attempt = len(self._task_ends[index]) + 1 if index in self._task_ends else self.attempt
        if header.get("attempt", 1) != attempt and (
            self.may_restart or index in self._task_ends or (self._claimed and self.kind not in TASK_KINDS)
        ):
            return  # ignore the outcome of an earlier attempt, which an agent repeats
        self._begun |= header.get("begun", True)
        self._spent = self._spent or header.get("ends", "")
        outcome = outcome_of(header)
        if self.cancelled and is_failure(outcome) and is_symptom(outcome):
            # The rank lost peers that were stopped earlier, for example in a collective of gloo.
            info = ErrorInfo("Stopped", f"lost the other ranks: {CANCELLED}")
            outcome = replace(outcome, kind="collateral", error=info)
        log = header.get("log", {})
        if self._log_starts:
            log = {name: [self._log_starts.get(name, at), end] for name, (at, end) in log.items()}
        self.logs[index] = log
        if outcome.kind == "lost" and self._context.may_be_preempted(link.node):
            # The node's recovery ends the call, because only the recovery can find out whether the machine was
            # preempted.
            return
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
        except Exception as error:  # noqa: BLE001  any error must reach the callers that wait for the run
            reason = str(error) if isinstance(error, OSError) else repr(error)
            info = ErrorInfo("OSError", f"cannot download the result of {size:,} bytes to {landing.path}: {reason}")
            outcome = Outcome(outcome.index, outcome.rank, outcome.node, "lost", outcome.seconds, error=info)
        finally:
            self._fetching.discard(outcome.index)
        self._on_call_end(link, outcome)

    async def _fetch_with_retries(self, link: Link, name: str, landing: ResultDownload) -> None:
        """Download a file of a node's spool and resume after each loss of the link.

        Raises:
            OSError: If the file does not exist, cannot be written here, or the node is lost.
        """
        while True:
            try:
                return await self._context.registry.fetch(link, name, landing)
            except ConnectionError as error:
                if link.gone or self._context.leaving or self._ending is not None:
                    raise OSError(str(error)) from error
                await asyncio.sleep(0.1)  # pause before the next try, because the link is still reconnecting

    def _on_call_end(self, link: Link, outcome: Outcome) -> None:
        if self.state == "left":
            return  # this client has detached, so the client that claims the run receives the outcome
        if self.kind in ("gather", "sweep") and self._restart_task(link, outcome, self.tasks[outcome.index]):
            return
        self._add_outcome(outcome)
        if self._ending is not None:
            return  # do not download the result, because the pool has ended
        self._seconds.append(outcome.seconds)
        self._ranks.pop(outcome.index, None)
        # The entry contains the kind, because a restarted run may clear its outcomes before the reader gets this entry.
        self.arrivals.put(("outcome", outcome.index, outcome.kind))
        if self.kind != "broadcast":
            self._flying[link.node] = self._flying.get(link.node, 1) - 1
            # A run that may restart is acknowledged at its end: a late acknowledgement must not meet the next attempt.
            # So is a run of one call.
            if self.total > 1 and not (outcome.index in self._readings or self.is_retained or self.may_restart):
                link.acknowledge(self.id, outcome.index)
        if outcome.error is not None and cause_rank(outcome) == ECHO and self.may_restart:
            self._context.recovery.silence_watch.on_collective_error(link)
        fails_fast = self._context.options.fail_fast and self.kind != "sweep" and not self.awaits_decision
        if fails_fast and not self._stopping and is_failure(outcome):
            if is_symptom(outcome) and self.total > 1:
                asyncio.get_running_loop().call_later(ECHO_WAIT, self._stop_after_echo, self.attempt)
            else:
                self._stop("fail-fast")
        if self.kind in ("gather", "sweep"):
            self._refill()
        self._check_end()

    # -- ending --------------------------------------------------------------------------------------------

    def cancel(self, reason: str, how: str = "cancel", grace: float | None = None) -> None:
        """Stop all active calls of the run.

        Args:
            reason: Reason of the cancellation.
            how: "save" gives the ranks the grace period to save their work; otherwise "cancel".
            grace: This period in seconds; None for the pool's.
        """
        if self.state != "running":
            self._discard_values()
        if self.state != "running" or self.cancelled:
            return
        self.cancelled = reason
        if self.sent:
            self._stop(how, grace=grace)
        else:  # no node has received a call of the run, so end its calls here
            self._stopping = True
            self._waiting = deque(range(self.total))
            self._fail_unsent(f"not started: {CANCELLED}", kind="collateral")

    def detach(self) -> None:
        """Detach from the run. Cancel a run that was not sent. Other runs continue until a client claims them."""
        if not (self.sent or self.is_adopted):
            self.cancel("its client detached before the run was sent to a node")
        elif self.state == "running":
            # Send all remaining trials to the nodes now, because no client will send them later.
            if self.kind == "sweep":
                self.is_retained = True
                self._refill()
            if self.may_restart:
                delete_files(self.tasks)
                # Clear the process id in the ledger, because this client starts no further attempt.
                self._context.news.records.set_columns(self.id, pid=None)
            self.state, self._unsent = "left", len(self._waiting)
            self._notify_waiters()

    def pool_ended(self, ending: PoolEnd) -> None:
        """End the run because the pool has ended. No further outcomes arrive, and no further results are downloaded."""
        if self.awaits_decision:
            self.stop_following()
        if self.state == "running":
            self.state, self._ending = "lost", ending
            self._context.background.defer(self._context.registry.on_run_end, self)
            self._notify_waiters()

    def _stop_after_echo(self, attempt: int) -> None:
        if self.attempt == attempt:
            nodes = self._context.view.nodes
            saves = self.may_restart and any(nodes[link.node].is_preempted for link in self.links)
            # Also stop ranks that are still saving, because their peers have ended.
            self._stop("preemption" if saves else "fail-fast")

    def _stop(self, reason: str, *, breaks: bool = True, grace: float | None = None) -> None:
        """Stop the active calls. ``breaks``: also end the gang of the run."""
        if self._stopping or self.state != "running":
            return
        self._stopping = True
        if self.total == len(self.outcomes):
            return
        if reason == "fail-fast" and any(
            each.error and each.error.type == PREEMPTED for each in self.outcomes.values()
        ):
            # Stop as for a preemption, for which the agents extend the grace period until the end of the machine.
            reason = "preemption"
        for link in self.links:
            self._send_stop(link, reason, breaks=breaks, grace=grace)
            if breaks and self.calls_on(link):
                # A stopped call ends a worker of the gang. The agent's report about the broken gang may arrive after
                # the start of the next run.
                link.broken = link.broken or "a run was stopped"
        words = f"not started: {CANCELLED}" if self.cancelled else "not started: another task failed"
        self._fail_unsent(words, kind="collateral")

    def _send_stop(self, link: Link, reason: str, *, breaks: bool = True, grace: float | None = None) -> None:
        header: Header = {"t": "stop", "run": self.id, "why": reason} | ({} if grace is None else {"grace": grace})
        link.send(header | ({"break": link.epoch} if self.kind == "broadcast" and breaks else {}))

    def on_connect(self, link: Link) -> None:
        """Repeat a stop that an agent may not have received because its link was down."""
        if self._stopping and self.state == "running" and self.calls_on(link):
            self._send_stop(link, "cancel" if self.cancelled else "growth" if self._is_growing else "fail-fast")

    def _fail_unsent(self, words: str, kind: str = "lost") -> None:
        while self._waiting:
            index = self._waiting.popleft()
            rank, node = self.place_of(index) if self.kind == "broadcast" else (-1, -1)
            outcome = Outcome(index, rank, node, kind, error=ErrorInfo("Stopped", words))  # type: ignore[arg-type]
            self._end_unsent_call(outcome)
        self._check_end()

    def _end_unsent_call(self, outcome: Outcome) -> None:
        """End a call that no node has received."""
        self.logs[outcome.index] = {}
        self._add_outcome(outcome)

    def mark_lost(self, index: int) -> None:
        """End a call with the outcome "lost", because its node is lost."""
        link = self._where[index]
        self._end_call(link, index, "lost", link.lost_error)

    def set_rank(self, index: int, rank: int) -> None:
        """Store the rank that executes a task."""
        if self.kind in ("gather", "sweep"):
            self._ranks[index] = rank

    def reject(self, index: int, link: Link, kind: OutcomeKind, error: ErrorInfo) -> None:
        """End a call that was not sent or cannot begin.

        Args:
            index: Index of the call.
            link: Link to the intended node.
            kind: Kind of the outcome.
            error: Error of the outcome.
        """
        self._where[index] = link
        self._end_call(link, index, kind, error, begun=False)

    def _end_call(self, link: Link, index: int, kind: OutcomeKind, error: ErrorInfo, *, begun: bool = True) -> None:
        """Record the end of a call for which no node will send an outcome."""
        if index in self.outcomes:
            return
        self._begun |= begun
        first = link.node * self._context.ranks_per_node
        rank = self.place_of(index)[0] if self.kind == "broadcast" else self._ranks.get(index, first)
        self.logs.setdefault(index, {})
        self.values[index] = b""
        self._on_call_end(link, Outcome(index, rank, link.node, kind, error=error))

    def calls_on(self, link: Link) -> list[int]:
        """Return the indices of known active calls on a link."""
        if not self.sent:
            return []  # during a restart no call is active, because the calls of the earlier attempt no longer count
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
            # No rank has run any user code, so the run can restart with a complete gang.
            stocked = self.stocked
            self._context.background.run_deferred()  # publish the outcomes before the restart removes them
            self._reset()
            self.stocked = stocked
            for link in self.links:
                # The agents would otherwise answer the repeated calls with the old outcomes.
                link.send({"t": "ack", "calls": {self.id: None}})
            self._context.scheduler.restart(self)
            return
        for index in self._stale - self.outcomes.keys():
            reason = f": {self._broke}" if self._broke else ""
            info = ErrorInfo("Stopped", f"the gang broke before the call began{reason}")
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
            cause = root_cause(self._arrived)
            if cause is not None and (self._try_restart(cause) or (self.awaits_decision and not self.cancelled)):
                return
            self.root_cause = cause
            self.state = "cancelled" if cause is None or self.cancelled else "failed"
        self._context.background.defer(self._finalize)
        self._notify_waiters()

    def _notify_waiters(self) -> None:
        """Wake all threads that wait for the run."""
        for feeding in self._feedings.values():
            feeding.close()
        self.arrivals.put(("end",))
        # This is the last step, because the woken thread needs the interpreter lock, which this thread would still
        # hold. If a caller has cancelled the future, the run has ended nevertheless.
        if not self.future.done():
            self.future.set_result(self)

    def _add_outcome(self, outcome: Outcome) -> None:
        """Record the end of a call: in this object at once, in the view and the ledger slightly later."""
        self.outcomes[outcome.index] = outcome
        self._arrived.append(outcome)
        for feeding in self._feedings.values():
            feeding.on_call_end(outcome.index)
        if not self._unsaved:
            self._context.background.defer(self._save_outcomes)
        self._unsaved.append(outcome)

    def _save_outcomes(self) -> None:
        outcomes, self._unsaved = self._unsaved, []
        for outcome in outcomes:
            self._context.news.emit(events.RankEnded(pool=self.pool, run=self.id, outcome=outcome))
            self._context.news.records.add_outcome(self.id, outcome, self.logs[outcome.index])

    def _finalize(self) -> None:
        if self.state == "failed":
            self._save_cause()
        self._acknowledge()
        self._context.registry.on_run_end(self)

    def _save_cause(self) -> None:
        """Save the exception behind a failure for later queries, because the rank's node will discard the exception."""
        culprit = next(each for each in self._arrived if RootCause.from_outcome(each) == self.root_cause)
        value = self.values.get(culprit.index)
        if culprit.kind == "raised" and isinstance(value, bytes):
            try:
                write_atomic(self._context.archive.results / f"{self.id}{EXCEPTION_SUFFIX}", value)
            except OSError as error:
                self._context.news.records.warn_write_failed("exceptions", error)

    def _acknowledge(self) -> None:
        """Acknowledge the run, so that the nodes discard its results, unless the reader still has unconsumed items."""
        if self._ending is not None or self.state == "left" or self.is_retained:
            return
        if not (self.consumed and any(r.has_unconsumed for r in self._readings.values())):
            links = [link for link in self._context.links if self._claimed or link.node in self._asked]
            for link in links:
                link.acknowledge(self.id, timed=len(links) == 1)
            if len(links) > 1:  # One timer for all links instead of one timer per link.
                asyncio.get_running_loop().call_later(ACK_DELAY, self._flush_acknowledgements, links)

    def _flush_acknowledgements(self, links: Sequence[Link]) -> None:
        for link in links:
            if self.id in link.pending_acks:
                link.flush_acknowledgements()

    def _discard_values(self) -> None:
        """Discard unread items, because the reader has stopped."""
        if any(reading.has_unconsumed for reading in self._readings.values()):
            self._readings.clear()
            self._acknowledge()

    # -- for waiting threads -------------------------------------------------------------------------------

    def value(self, index: int) -> Any:
        """Load the return value of a call by running user code. Never call this on the loop.

        Raises:
            RunError: If the value cannot be loaded. The cause is the reason.
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
        """Return the error for a run with a value that cannot be loaded. The error contains the run's other values."""
        ended = [(i, out.kind) for i, out in sorted(self.outcomes.items()) if i != index]
        loaded = {
            i: preload(self._loaded, i, self.values[i]) for i, kind in ended if kind == "returned" and i in self.values
        }
        results = {i: value for i, (value, failure) in loaded.items() if failure is None}
        return unloadable_error(self.id, self.name_of(index), self.outcomes, rank, place, what, error, results)

    def _load_values(self) -> tuple[dict[int, Any], RunError | None]:
        """Load all values. Return the values by index, and the first failure or None."""
        values: dict[int, Any] = {}
        failure: RunError | None = None
        for index in sorted(self.values):
            if self.outcomes[index].kind == "returned":
                try:
                    values[index] = self.value(index)
                except RunError as error:
                    failure = failure or error
        return values, failure

    def results(self) -> list[Any]:
        """Return all values by index. Only the first call succeeds.

        Raises:
            RunError, Cancelled: If the run failed or a value cannot be loaded. The error's ``results`` contains the
                values of other calls.
            PoolGone: If the pool ended before the run.
            PoolError: If this client left the pool before the run's end, or the values were already fetched.
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
        """Return the failure as an exception whose cause is the user's own exception."""
        if self._ending is not None:
            return self._ending.error()
        if self.state == "left":
            advice = f"The run continues. Get its results with sky.attach({self.pool!r}).wait({self.id!r})."
            missing = []
            if received := len(self.outcomes) if self.kind != "broadcast" else 0:
                missing.append(f"{received} of {self.total} results had already been downloaded and are lost")
            if self._unsent:
                missing.append(f"{self._unsent} of {self.total} tasks had not been sent and will not run")
            advice = f"{'; '.join(missing)}." if missing else advice
            error_text = (
                f"No results of run {self.id} of {self.name}: this client detached from pool {self.pool} during the run"
            )
            return PoolError(f"{error_text}. {advice}")
        if self.state == "cancelled" or self.root_cause is None:
            reason = f" ({self.cancelled})" if self.cancelled else ""
            return Cancelled(f"run {self.id} of {self.name} was cancelled{reason}")
        cause = self.root_cause
        culprit = next(o for o in self._arrived if RootCause.from_outcome(o) == cause)
        partial, _ = self._load_values()
        name = self.name_of(culprit.index)
        failure = describe_failure(name, self.kind, self.outcomes.values(), culprit)
        error = RunError(
            f"{failure}. This was attempt {self.attempt}: {self._end_reason}" if self._end_reason else failure,
            run=self.id,
            function=name,
            outcomes=self.outcomes,
            root_cause=cause,
            results=partial,
        )
        return error_with_cause(error, culprit, self.values.get(culprit.index))

    # -- for the thread that reads a generator -------------------------------------------------------------

    def items(self, index: int) -> Iterator[Any]:
        """Yield a generator's items as they arrive. Only for runs of one task and for a single reader.

        Raises:
            RunError, Cancelled: After the items that arrived before the failure.
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
        """Yield one item. Acknowledge the item once it is consumed, so that the generator continues.

        Raises:
            PoolError: If a large item cannot be fetched.
            RunError: If the item cannot be loaded. The cause is the reason.
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
                message = f"Cannot fetch value {header['seq']} of {self.name}() on rank {header['rank']}: {error}"
                raise PoolError(message) from error
        loaded, failure = load(value)
        if failure is not None:
            rank = header["rank"]
            about = rank, f"rank {rank} (node {link.node}) yielded, but", f"its value {header['seq']}"
            raise self._load_failure(header["i"], *about, failure) from failure
        yield loaded
        link.loop.call_soon_threadsafe(self.on_consumed, link, header["i"], header["seq"] + 1)
