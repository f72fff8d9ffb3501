"""Runs of ``map`` whose memory use does not grow with the number of items.

The run drops ended calls. Screens and the ledger have one row per rank, with the number of the rank's finished items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from skyward_core.model.errors import RunError
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome, OutcomeKind, Summary
from skyward_core.model.root_cause import is_failure, root_cause, summarize_outcomes
from skyward_core.pool.agent_link import Link
from skyward_core.pool.blob_distribution import BlobFile
from skyward_core.pool.runs.result_loading_and_run_errors import Value, load
from skyward_core.pool.runs.run import Run
from skyward_core.protocol.frame_codec import AnyHeader
from skyward_core.tasks.pickled_calls_and_blobs import Task
from skyward_core.views import events

if TYPE_CHECKING:
    from skyward_core.pool import PoolContext
    from skyward_core.protocol.frame_types import AgentOutcome


EXTRA_CALLS = 2  # maximum number of calls that wait on a rank in addition to the active one


class MapChunk(NamedTuple):
    """A call of a map that has not ended.

    Attributes:
        task: Its task.
        items: Number of its items.
        stock: Nodes that have the call's large arguments. None: the call has no large arguments.
    """

    task: Task
    items: int
    stock: frozenset[Link] | None = None


class MapValues(NamedTuple):
    """Loader of the values of one call. Loading runs user code, so it must not happen on the event loop."""

    run: MapRun
    outcome: Outcome
    data: Value

    def __call__(self) -> list[Any]:
        """Load the values of the call by unpickling them.

        Raises:
            RunError: If the values cannot be loaded. The exception's cause is the reason.
        """
        values, failure = load(self.data)
        if failure is not None:
            raise self.not_loaded(failure) from failure
        found: list[Any] = values
        return found

    def not_loaded(self, error: BaseException) -> RunError:
        return self.run.not_loaded(self.outcome, error)


class RankProgress:
    """Progress of one rank in a map."""

    def __init__(self) -> None:
        self.items, self.seconds = 0, 0.0
        self.last: Summary | None = None
        self.log: dict[str, list[int]] = {}

    def add(self, items: int, outcome: Outcome, log: dict[str, list[int]]) -> None:
        self.seconds += outcome.seconds
        for name, (begin, end) in log.items():
            span = self.log.setdefault(name, [begin, end])
            span[:] = min(span[0], begin), max(span[1], end)
        if outcome.kind == "returned":
            self.items += items
            self.last = outcome.summary


class MapRun(Run):
    """A map over items. The reader, which is the thread that consumes the values, also submits the items.

    The reader receives tuples through ``arrivals``: ("values", number of the call, loader of its values, number of
    items, seconds, bytes of the pickle), and finally ("end",).

    Args:
        context: The pool.
        run: Id of the run.
        task: The function, without arguments.
        ranks: Number of ranks of the pool.
    """

    __slots__ = ("_failed", "_fed", "_given", "_last_call", "_shares", "_tallies")

    def __init__(self, context: PoolContext, run: str, task: Task, ranks: int) -> None:
        super().__init__(context, run, "map", [task], ranks)
        self._shares: dict[int, MapChunk] = {}
        self._tallies: dict[int, RankProgress] = {}
        self._failed: dict[int, Outcome] = {}  # rank -> outcome of a failed call of this rank
        self._given = 0
        self._last_call = False  # whether the reader has submitted the last call of the map
        self._fed = False  # whether the pool has started the run, so that calls can be dispatched

    def reject(self, index: int, link: Link, kind: OutcomeKind, error: ErrorInfo) -> None:
        if index in self._shares:
            super().reject(index, link, kind, error)
            return
        # The error concerns no single call, so report it for the first rank of the node.
        self._note_failure(Outcome(index, link.node * self._context.ranks_per_node, link.node, kind, error=error))
        self._stop("it could not begin", breaks=False)

    def not_loaded(self, outcome: Outcome, error: BaseException) -> RunError:
        """Return the error for a map with a call whose values cannot be loaded."""
        self.outcomes[outcome.index] = outcome
        return self._result_load_failure(outcome.index, error)

    # -- requests of the reader, on the loop ---------------------------------------------------------------

    def submit_next(self, task: Task, items: int) -> None:
        """Submit the next call of the map."""
        number, self._given = self._given, self._given + 1
        if self.state != "running" or self._stopping:
            task.args.delete_file()
            return
        self._shares[number] = MapChunk(task, items)
        if task.args.path is not None:
            parcel = BlobFile(task.args.hash, task.args.path, task.args.size)
            self._context.background.spawn(self._upload_arguments(number, [parcel]))
        else:
            self._enqueue(number)

    def finish(self) -> None:
        """Record that the map gets no further calls."""
        self._last_call = True
        self._check_end()

    async def _upload_arguments(self, number: int, parcels: Sequence[BlobFile]) -> None:
        share = self._shares[number]
        try:
            stock = await self._context.registry.blobs.ensure_uploaded(f"{self.id}.{number}", parcels)
        except OSError as error:
            words = f"cannot send the arguments to the nodes: {error}"
            self.reject(number, self._context.links[0], "lost", ErrorInfo("PoolError", words))
            return
        finally:
            share.task.args.delete_file()
        if number in self._shares:
            self._shares[number] = share._replace(stock=stock)
            self._enqueue(number)

    def _enqueue(self, number: int) -> None:
        self._waiting.append(number)
        self._refill()

    # -- dispatch ------------------------------------------------------------------------------------------

    def mark_waiting(self) -> None:
        """Do nothing, because a map always stores its calls until :meth:`dispatch`."""

    def end_waiting(self) -> bool:
        return self.state == "running"

    def dispatch(self) -> None:
        self._fed = True
        self._refill()

    def _refill(self) -> None:
        if not self._fed or self._stopping or self.state != "running":
            return
        most = self._context.slots_per_node * (1 + EXTRA_CALLS)
        while self._waiting:
            candidates = [link for link in self._context.links if not link.gone and self._is_stocked(link)]
            links = self._context.without_preempted(candidates)
            number = self._waiting[0]
            share = self._shares[number]
            if share.stock is not None:
                links = [link for link in links if link in share.stock]
            if not links:
                self._waiting.popleft()
                reason = (
                    "every node of the pool is lost"
                    if share.stock is None
                    else "every node that had the arguments is lost"
                )
                self.reject(number, self._context.links[0], "lost", ErrorInfo("NodeLost", reason))
                continue
            link = min(links, key=lambda link: self._flying.get(link.node, 0))
            if self._flying.get(link.node, 0) >= most:
                return
            self._waiting.popleft()
            self._flying[link.node] = self._flying.get(link.node, 0) + 1
            self._send(link, number, share.task, {"items": share.items})

    def has_call(self, index: int) -> bool:
        return index < self._given

    def row_of(self, index: int, rank: int) -> int:
        return rank

    # -- outcomes ------------------------------------------------------------------------------------------

    def is_sent_to(self, link: Link, index: int) -> bool:
        where = self._where.get(index)
        # A node may repeat the outcome of an ended call, for which ``where`` is None.
        return self.has_call(index) if where is None else where.node == link.node

    def on_outcome(self, link: Link, header: AgentOutcome, body: bytes) -> None:
        if header["i"] in self._shares and header["i"] in self._where:
            super().on_outcome(link, header, body)

    def _on_call_end(self, link: Link, outcome: Outcome) -> None:
        number = outcome.index
        if number in self._where and self._restart_task(link, outcome, self._shares[number].task):
            return
        share = self._shares.pop(number, None)
        if share is None or self.state == "left" or self._ending is not None:
            return
        if self._where.pop(number, None) is not None:
            self._flying[link.node] = max(0, self._flying.get(link.node, 0) - 1)
            link.acknowledge(self.id, number)
        if share.stock is not None:
            self._context.registry.blobs.release(f"{self.id}.{number}")
        value, log = self.values.pop(number, b""), self.logs.pop(number, {})
        tally = self._tallies.setdefault(outcome.rank, RankProgress())
        tally.add(share.items, outcome, log)
        if outcome.kind == "returned":
            self._emit_progress(outcome.rank, tally)
            size = len(value) if isinstance(value, bytes) else value.size
            values = MapValues(self, outcome, value)
            self.arrivals.put(("values", number, values, share.items, outcome.seconds, size))
        else:
            self._note_failure(outcome)
            self.values[number] = value
            if is_failure(outcome):
                self._stop("fail-fast", breaks=False)
            elif root_cause([outcome]) is None and not self._stopping:
                # If a call ended without a failure here, another client has cancelled the run. Nodes report no outcomes
                # of its other calls.
                self.cancel("another client cancelled it")
        self._refill()
        self._check_end()

    def _emit_progress(self, rank: int, tally: RankProgress) -> None:
        if tally.items and tally.last is not None:
            self._context.news.emit(
                events.ItemYielded(
                    pool=self.pool,
                    run=self.id,
                    index=rank,
                    rank=rank,
                    seq=tally.items - 1,
                    summary=tally.last,
                )
            )

    def _note_failure(self, outcome: Outcome) -> None:
        self._arrived.append(outcome)
        self.outcomes[outcome.index] = outcome
        if outcome.rank not in self._failed or not is_failure(self._failed[outcome.rank]):
            self._failed[outcome.rank] = outcome

    def calls_on(self, link: Link) -> list[int]:
        return [i for i, where in self._where.items() if where is link and i not in self._fetching]

    # -- ending --------------------------------------------------------------------------------------------

    def cancel(self, reason: str, how: str = "cancel", grace: float | None = None) -> None:
        if self.state == "running" and not self.cancelled:
            self.cancelled = reason
            self._stop(how, breaks=False, grace=grace)

    def detach(self) -> None:
        """Cancel the run, because no other client could supply its items."""
        self.cancel("its client detached from the pool")
        if self.state == "running":
            self.state = "left"
            self._notify_waiters()

    def _stop(self, reason: str, *, breaks: bool = True, grace: float | None = None) -> None:
        if self._stopping or self.state != "running":
            return
        self._stopping = True
        for number in self._waiting:
            self._shares.pop(number).task.args.delete_file()
        self._waiting.clear()
        # Discard calls whose arguments are still being uploaded.
        for number in [n for n in self._shares if n not in self._where]:
            del self._shares[number]
        stop: AnyHeader = {"t": "stop", "run": self.id, "why": reason} | ({} if grace is None else {"grace": grace})
        for link in self._context.links:
            if self.calls_on(link):
                link.send(stop)
                # The stop ends a worker of the gang, so the gang cannot accept further calls.
                link.broken = link.broken or "a run was stopped"
        self._check_end()

    def _check_end(self) -> None:
        if self.state == "running" and not self._shares and (self._last_call or self._stopping):
            self._end()

    def _end(self) -> None:
        self.state, self.root_cause = summarize_outcomes(self._arrived)
        if self.cancelled:
            self.state = "cancelled"
        self._context.background.defer(self._save_rows)
        self._notify_waiters()

    def _save_rows(self) -> None:
        """Save one row per rank in the view and the ledger, and acknowledge the run."""
        for rank in range(self.total):
            tally = self._tallies.get(rank, RankProgress())
            row = self._row(rank, tally)
            self._context.news.emit(events.RankEnded(pool=self.pool, run=self.id, outcome=row))
            self._context.news.records.add_outcome(self.id, row, tally.log)
        # Failed calls that have no rank, because no node received them.
        for rank in sorted(self._failed.keys() - range(self.total)):
            self._context.news.records.add_outcome(self.id, self._failed[rank], {})
        self._finalize()

    def _row(self, rank: int, tally: RankProgress) -> Outcome:
        node = self._context.link_of(rank).node
        failed = self._failed.get(rank)
        if failed is None:
            return Outcome(rank, rank, node, "returned", tally.seconds, items=tally.items, last=tally.last)
        return Outcome(
            rank, rank, node, failed.kind, tally.seconds, error=failed.error, exit_code=failed.exit_code,
            signal=failed.signal, items=tally.items, last=tally.last,
        )  # fmt: skip

    def pool_ended(self, ending: object) -> None:
        self._shares.clear()
        super().pool_ended(ending)  # type: ignore[arg-type]
