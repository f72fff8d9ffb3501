"""One run: its outcomes as they come, and how it ends. Its calls on their way: :mod:`.sent_run`; what came of it:
:mod:`.results`."""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from ...model.errors import PoolError
from ...model.outcome import ErrorInfo, Outcome, RootCause, Summary
from ...model.states import OutcomeKind
from ...store.archive import RAISED
from ...store.whole_file import write_whole
from ...transport.incoming_result import Landing
from ...views import events as ev
from ...wire.echoes import SETTLE
from ...wire.frames import Header, Heard
from ..links.link import Link, is_news
from ..pool_end import PoolEnd
from .feeding import Feeding
from .outcome_frame import outcome_of
from .reading import Reading
from .results import Value, load
from .root_cause import is_failure, is_symptom, root_cause
from .sent_run import SentRun
from .sent_run import Surroundings as Surroundings

if TYPE_CHECKING:
    from ...wire.agent_frame_types import AgentItem, AgentOutcome, AgentWant


class Ending(Future["Run"]):
    """A run's end, as a thread waits for it that loads large values when they land, while others still come."""

    def __init__(self) -> None:
        super().__init__()
        self._landed: queue.SimpleQueue[tuple[Run, int] | None] = queue.SimpleQueue()
        self.add_done_callback(lambda _: self._landed.put(None))

    def land(self, run: Run, index: int) -> None:
        """Have the waiting thread load a value that a file holds."""
        self._landed.put((run, index))

    def wait(self) -> Run:
        """The run, when it has ended."""
        while (landed := self._landed.get()) is not None:
            run, index = landed
            run.load_early(index)
        return self.result()


class Run(SentRun):
    """See the module. Made and driven on the pool's loop; ``future``, the readers at the end, and what came of it are
    for other threads."""

    __slots__ = ()

    future: Future[Run]

    # -- what comes back ---------------------------------------------------------------------------------

    def on_item(self, link: Link, header: AgentItem, body: bytes) -> None:
        """A generator's value, perhaps once more: what a link or an agent lost on its way is sent again."""
        index = header["i"]
        if index in self.outcomes or is_news(header, body):
            return
        reading = self._readings.get(index)
        if reading is None:
            reading = self._readings[index] = Reading({})
        if reading.is_new(header["seq"]):
            reading.next = header["seq"] + 1
            if (summary := Summary.from_wire(header["summary"])) is not None:
                self._around.news.emit(
                    ev.ItemYielded(
                        pool=self.pool, run=self.id, index=index, rank=header["rank"], seq=header["seq"],
                        summary=summary,
                    )
                )  # fmt: skip
            if self.consumed:
                self.arrivals.put(("item", link, header, body))
        elif header["seq"] > reading.next:
            self._values_lost(link, index, header["rank"], reading.next, header["seq"])
        if not self.consumed:
            self.took(link, index, reading.next)

    def on_want(self, link: Link, header: AgentWant) -> None:
        """A rank waits for values of an argument that this client feeds."""
        index, number = header["i"], header["arg"]
        task = self.tasks[0 if self.kind == "broadcast" else index % len(self.tasks)]
        if index in self.outcomes or self.state != "running":
            return
        if number >= len(task.feeds):
            self._feed_nothing(link, header)
            return
        key = (-1 if self.kind == "broadcast" else index), number
        if (feeding := self._feedings.get(key)) is None:
            calls = range(self.total) if self.kind == "broadcast" else (index,)
            readers = [call for call in calls if call not in self.outcomes]
            about = self.id, number, *task.feeds[number], task.pickled, readers
            feeding = self._feedings[key] = Feeding(*about, partial(self._feed, link.loop))
        feeding.want(header)

    def _feed(self, loop: asyncio.AbstractEventLoop, frames: Sequence[tuple[int, Heard, bytes]]) -> None:
        """Hand values on, each of a call; called by other threads."""

        def hand_on() -> None:
            for index, header, body in frames:
                link = self._where.get(index)
                if link is not None and not link.gone:
                    link.send(header, body)

        loop.call_soon_threadsafe(hand_on)

    def _feed_nothing(self, link: Link, header: AgentWant) -> None:
        from ...node.worker.attempts import describe_error  # nobody but who took a run over comes here

        said = f"an argument of {self.name}() was fed by the client that called it, and that client has left"
        about: Heard = {key: header[key] for key in ("run", "i", "arg")}
        about |= {"t": "fed", "seq": header["next"], "part": 0, "ends": "error"}
        link.send(about, describe_error(PoolError(said))[1])

    def took(self, link: Link, index: int, until: int) -> None:
        """A reader took all values below a number: the generator may make more."""
        if (reading := self._readings.get(index)) is None:
            return  # given up
        reading.took(until)
        link.send({"t": "credit", "run": self.id, "i": index, "next": until})
        if self.state != "running":
            self._acknowledge()

    def _values_lost(self, link: Link, index: int, rank: int, begin: int, end: int) -> None:
        """Values are missing that nobody has any more."""
        what = f"value {begin}" if end == begin + 1 else f"values {begin} to {end - 1}"
        said = (
            f"{what} of {self.name}() on rank {rank} was lost on node {link.node}; those before it are here"
        )
        header = {"t": "stop", "run": self.id, "i": index, "why": said, "grace": self._context.options.grace}
        link.send(header)
        self.logs[index] = {}
        error = ErrorInfo("ValuesLost", said)
        self._take(link, Outcome(index, rank, link.node, "lost", error=error))

    def on_stale(self, index: int, why: str, *, spent: bool = False) -> None:
        """A call was handed back: its gang broke before it began, or is spent, and goes on for runs before this one."""
        self._stale.add(index)
        self._broke = self._broke or why
        if not self._stopping:
            self._stop("its gang broke before all ranks began", breaks=not spent)
        self._check_end()

    def on_outcome(self, link: Link, header: AgentOutcome, body: bytes) -> None:
        index = header["i"]
        if index in self.outcomes or index in self._fetching or is_news(header, body):
            return
        self._begun |= header.get("begun", True)
        self._spent = self._spent or header.get("ends", "")
        outcome = outcome_of(header)
        self.logs[index] = header.get("log", {})
        if outcome.kind == "lost" and self._context.may_be_taken_back(link.node):
            return  # its agent was ended and cannot know why: whoever finds that out ends the call (nodes.watch)
        name = header.get("file")
        reading = self._readings.get(index)
        if outcome.kind == "returned" and reading is not None and reading.next < header.get("items", 0):
            self._values_lost(link, index, outcome.rank, reading.next, header["items"])
        elif name is None:
            self.values[index] = body
            self._take(link, outcome)
        else:
            self._fetching.add(index)
            self._around.background.spawn(self._fetch(link, outcome, name, header["size"]))

    async def _fetch(self, link: Link, outcome: Outcome, name: str, size: int) -> None:
        awaited = isinstance(self.future, Ending) and outcome.kind == "returned"
        path = self._context.archive.results / f"{self.id}.{outcome.index}.pickle"
        landing = Landing(path, size, in_place=awaited)
        try:
            await self._bring(link, name, landing)
            self.values[outcome.index] = landing
            if isinstance(self.future, Ending) and awaited:
                self.future.land(self, outcome.index)
        except Exception as error:  # noqa: BLE001  whatever it was: who waits for the run has to hear of it
            why = str(error) if isinstance(error, OSError) else repr(error)
            info = ErrorInfo(
                "OSError", f"its result of {size:,} bytes could not be fetched to {landing.path}: {why}"
            )
            outcome = Outcome(outcome.index, outcome.rank, outcome.node, "lost", outcome.seconds, error=info)
        finally:
            self._fetching.discard(outcome.index)
        self._take(link, outcome)

    async def _bring(self, link: Link, name: str, landing: Landing) -> None:
        """Bring a file of a node's spool here, however often the link drops.

        Raises:
            OSError: it is not there, cannot be written here, or nothing can come from there any more.
        """
        while True:
            try:
                return await self._around.fetch(link, name, landing)
            except ConnectionError as error:
                if link.gone or self._context.leaving or self._ending is not None:
                    raise OSError(str(error)) from error
                await asyncio.sleep(0.1)  # the link is on its way up again

    def _take(self, link: Link, outcome: Outcome) -> None:
        if self.state == "left":
            return  # whoever claims the run hears of it, and gets what came of it
        self._enter(outcome)
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
                asyncio.get_running_loop().call_later(SETTLE, self._stop, "fail-fast")
            else:
                self._stop("fail-fast")
        if self.kind in ("gather", "sweep"):
            self._refill()
        self._check_end()

    # -- ending ------------------------------------------------------------------------------------------

    def cancel(self, why: str) -> None:
        """Stop everything of this run that still runs."""
        if self.state != "running":
            self._give_up_values()
        if self.state != "running" or self.cancelled:
            return
        self.cancelled = why
        if self.sent:
            self._stop("cancel")
        else:  # no node has got any of it
            self._stopping = True
            self._waiting = deque(range(self.total))
            self._fail_unsent("not started: the run was cancelled", kind="collateral")

    def leave(self) -> None:
        """The client leaves the pool. What no node has got is cancelled; the rest goes on, for whoever claims it."""
        if not self.sent:
            self.cancel("its client left the pool before it was started; it was sent to no node")
        elif self.state == "running":
            if self.kind == "sweep":  # nobody would hand out the rest
                self.stays = True
                self._refill()
            self.state, self._unsent = "left", len(self._waiting)
            self._tell()

    def pool_ended(self, ending: PoolEnd) -> None:
        """The pool has ended under it: nothing more comes, and what its agents hold is left there as it is."""
        if self.state == "running":
            self.state, self._ending = "lost", ending
            self._around.background.later(self._around.ended, self)
            self._tell()

    def _stop(self, why: str, *, breaks: bool = True) -> None:
        """``breaks``: its gang, where it has one, ends with it."""
        if self._stopping or self.state != "running":
            return
        self._stopping = True
        if self.total == len(self.outcomes):
            return
        gang = self.kind == "broadcast" and breaks
        for link in self.links:
            header: Header = {"t": "stop", "run": self.id, "why": why, "grace": self._context.options.grace}
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
            self._end_without_a_node(outcome)
        self._check_end()

    def _end_without_a_node(self, outcome: Outcome) -> None:
        """A call ends of which no node tells, and that none was at."""
        self.logs[outcome.index] = {}
        self._enter(outcome)

    def lose(self, index: int) -> None:
        """The node that has a call is gone: it ends as lost."""
        link = self._where[index]
        said = ": ".join(filter(None, (f"node {link.node} is gone", link.lost_why)))
        if link.lost_as != "NodeLost":
            said = link.lost_why
        self._end_call(link, index, "lost", ErrorInfo(link.lost_as, said))

    def note_rank(self, index: int, rank: int) -> None:
        """A task has begun on a rank."""
        if self.kind in ("gather", "sweep"):
            self._ranks[index] = rank

    def refuse(self, index: int, link: Link, kind: OutcomeKind, error: ErrorInfo) -> None:
        """End a call that no node has got, or that the one which has it does not begin.

        Args:
            link: to the node that it would have been for.
        """
        self._where[index] = link
        self._end_call(link, index, kind, error, begun=False)

    def _end_call(
        self, link: Link, index: int, kind: OutcomeKind, error: ErrorInfo, *, begun: bool = True
    ) -> None:
        """End a call that no node tells of."""
        if index in self.outcomes:
            return
        self._begun |= begun
        first = link.node * self._context.ranks_per_node
        rank = self.place_of(index)[0] if self.kind == "broadcast" else self._ranks.get(index, first)
        self.logs.setdefault(index, {})
        self.values[index] = b""
        self._take(link, Outcome(index, rank, link.node, kind, error=error))

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
            self._around.start_anew(self)
            return
        for index in self._stale - self.outcomes.keys():
            why = f": {self._broke}" if self._broke else ""
            info = ErrorInfo("Stopped", f"its gang broke before it began{why}")
            rank, node = self.place_of(index)
            self._end_without_a_node(Outcome(index, rank, node, "lost", error=info))
        self._end()

    def _end(self) -> None:
        self.root_cause = root_cause(self._arrived)
        if self._spent:
            for link in self.links:
                link.broken = link.broken or self._spent
        if all(outcome.kind == "returned" for outcome in self.outcomes.values()):
            self.state = "done"
        elif self.root_cause is None or self.cancelled:
            self.state = "cancelled"
        else:
            self.state = "failed"
        self._around.background.later(self._wind_up)
        self._tell()

    def _tell(self) -> None:
        """Whoever waits here need not wait any longer."""
        for feeding in self._feedings.values():
            feeding.close()
        self.arrivals.put(("end",))
        # Last: a thread that wakes up while this one has more to do has to wait once more, for the interpreter.
        # A caller may have cancelled the future; the run is over all the same.
        if not self.future.done():
            self.future.set_result(self)

    def _enter(self, outcome: Outcome) -> None:
        """A call has ended: here at once, in view and ledger a moment later."""
        self.outcomes[outcome.index] = outcome
        self._arrived.append(outcome)
        for feeding in self._feedings.values():
            feeding.ended(outcome.index)
        self._around.background.later(self._book, outcome)

    def _book(self, outcome: Outcome) -> None:
        self._around.news.emit(ev.RankEnded(pool=self.pool, run=self.id, outcome=outcome))
        self._around.news.records.outcome(self.id, outcome, self.logs[outcome.index])

    def _wind_up(self) -> None:
        if self.state == "failed":
            self._save_cause()
        self._acknowledge()
        self._around.ended(self)

    def _save_cause(self) -> None:
        """Save the exception behind a failure: its rank's node forgets it, and scripts may ask for it later."""
        culprit = next(each for each in self._arrived if RootCause.of(each) == self.root_cause)
        value = self.values.get(culprit.index)
        if culprit.kind == "raised" and isinstance(value, bytes):
            try:
                write_whole(self._context.archive.results / f"{self.id}{RAISED}", value)
            except OSError as error:
                self._around.news.records.cannot("exceptions", error)

    def _acknowledge(self) -> None:
        """What nodes keep of it is not needed any more, once large values that were yielded have been fetched, too."""
        if self._ending is not None or self.state == "left" or self.stays:
            return
        if not (self.consumed and any(r.behind for r in self._readings.values())):
            for link in self._context.links:
                if self._claimed or link.node in self._asked:
                    link.acknowledge(self.id)

    def _give_up_values(self) -> None:
        """Nobody reads on."""
        if any(reading.behind for reading in self._readings.values()):
            self._readings.clear()
            self._acknowledge()

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
            value = landing = Landing(path, header["size"], in_place=True)
            try:
                asyncio.run_coroutine_threadsafe(self._bring(link, name, landing), link.loop).result()
            except OSError as error:
                if self._ending is not None:
                    raise self.error() from error
                said = f"value {header['seq']} of {self.name}() on rank {header['rank']} cannot be fetched: {error}"
                raise PoolError(said) from error
        loaded, failure = load(value)
        if failure is not None:
            rank = header["rank"]
            about = rank, f"rank {rank} (node {link.node}) yielded, but", f"its value {header['seq']}"
            raise self._not_loaded(header["i"], *about, failure) from failure
        yield loaded
        link.loop.call_soon_threadsafe(self.took, link, header["i"], header["seq"] + 1)
