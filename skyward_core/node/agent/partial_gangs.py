"""Gangs of some of a node's ranks.

Block ``i`` of gangs of ``k`` are the node's ranks ``i * k`` to ``i * k + k - 1``. A call waits here until a block has
no other one; then each of the block's slots gets a part of it into its queue, by the order in which calls came: behind
broadcasts that came before, ahead of those that came after. It begins on all ranks in one step, once each of them has
come to its part and has a process that fits; so two of them never wait for each other, nor for a broadcast that waits
for them. Processes live on for the block's next call, as those of a gang do for its next broadcast.
Those that are the node's gang leave it for a block: it is *spent* from then on, and a client forms the next one when it
has use for it. Before the first leaves, all clients have said that they know: a broadcast that one of them sent before
is whole, and goes first.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from skyward_core.node.agent.agent_state import NodeState, ReservedPorts
from skyward_core.node.agent.call_journal import Call, SplitCallParts
from skyward_core.node.agent.call_outcomes import CallLifecycle
from skyward_core.node.agent.connection import Connection
from skyward_core.node.agent.worker_processes import SharedLife
from skyward_core.node.agent.worker_slot import Slot
from skyward_core.protocol.frame_codec import Header, WireError

if TYPE_CHECKING:
    from skyward_core.node.agent.worker_processes import Process, SharedLife
    from skyward_core.protocol.frame_types import AgentOutcome, LifeKeys


CAUSE_KINDS = ("raised", "exited", "lost")


class RankSlot(Protocol):
    """What a team asks of its ranks' slots; see ``worker_slot.Slot``."""

    @property
    def next_call(self) -> Call | None: ...

    @property
    def has_part(self) -> bool: ...

    @property
    def running(self) -> object: ...

    @property
    def process(self) -> Process | None: ...


class RankBlock:
    """Neighbouring ranks of the node, and the life that their processes have together.

    Args:
        first: the first one's place among the node's ranks.
        slots: theirs.


    Attributes:
        life: that of the processes that are there, or were last.
    """

    def __init__(self, first: int, slots: Sequence[RankSlot]) -> None:
        self.first = first
        self.slots = slots
        self.life: SharedLife | None = None

    @property
    def width(self) -> int:
        return len(self.slots)

    def accepts_process(self, process: Process, renewed: int) -> bool:
        """Whether a process can take a part here: it is unused, or in the block's own life while that is whole.

        Args:
            renewed: the last epoch for which all processes had to be fresh.
        """
        if process.life is None:
            return process.epoch is None and not process.has_run_code
        return process.life is self.life and not process.life.broken_reason and process.life.epoch >= renewed


class SplitCall:
    """See the module.

    Args:
        whole: the client's call.
        parts: one for each rank of the block, in their order.
        stop: ends a part: why.
        over: told of the call's outcome, with its result.
    """

    def __init__(
        self, whole: Call, block: RankBlock, parts: list[Call],
        stop: Callable[[Call, str], None], over: Callable[[SplitCall, AgentOutcome, bytes], None],
    ) -> None:  # fmt: skip
        self.whole = whole
        self.block = block
        self.parts = parts
        self.is_started = False
        self._stop = stop
        self._on_finished = over
        self._is_finished = False
        self._ended_parts: list[Call] = []  # in the order in which they did
        self._stopping: asyncio.TimerHandle | None = None
        for part in parts:
            part.split_call = self
        whole.parts = parts

    def accepts_process(self, process: Process, renewed: int) -> bool:
        """Whether a process can take a part of it; see :meth:`RankBlock.fits`."""
        return self.block.accepts_process(process, renewed)

    def is_ready(self, renewed: int) -> bool:
        """Whether all ranks are there for it: each has nothing else to do first, and a process that fits."""
        lives = set()
        for slot, part in zip(self.block.slots, self.parts, strict=True):
            process = slot.process
            if slot.next_call is not part or slot.running or process is None:
                return False
            if process.connection is None or process.kill_reason or process.is_unusable:
                return False
            if not self.block.accepts_process(process, renewed):
                return False
            lives.add(process.life)
        return len(lives) == 1

    def on_part_ended(self, part: Call) -> None:
        """A part has its outcome."""
        if part in self._ended_parts:
            return
        self._ended_parts.append(part)
        if part.outcome is not None and part.outcome["kind"] != "returned":
            self._on_failure()
        if len(self._ended_parts) == len(self.parts) and not self._is_finished:
            self._finish()  # unless the end of one that was stopped for this has done so

    def _on_failure(self) -> None:
        life = self.block.life
        if self.is_started and life is not None:
            life.broken_reason = life.broken_reason or f"a rank failed in run {self.whole.run}"
        if len(self._ended_parts) == len(self.parts):
            return
        from skyward_core.model.outcomes import ECHO_WAIT, REAL

        if any(_cause_rank(each) == REAL for each in self._ended_parts if each.outcome["kind"] != "returned"):  # type: ignore[index]
            self._stop_others()
        elif self._stopping is None:
            self._stopping = asyncio.get_running_loop().call_later(ECHO_WAIT, self._stop_others)

    def _stop_others(self) -> None:
        for part in self.parts:
            if part.outcome is None:
                self._stop(part, "fail-fast")

    def _finish(self) -> None:
        self._is_finished = True
        if self._stopping is not None:
            self._stopping.cancel()
        stands = self._decisive_part()
        outcome = stands.outcome
        if outcome is None:
            raise RuntimeError("a part that has ended has no outcome")
        logs = {name: span for part in self.parts if part.outcome for name, span in part.outcome.get("log", {}).items()}
        told: AgentOutcome = outcome | {"log": logs} if logs else outcome
        told.pop("ends", None)  # its process is the block's affair
        self._on_finished(self, told, stands.result)

    def _decisive_part(self) -> Call:
        """The part of which the call's outcome is: the first rank's where all have returned, else the one whose failure
        was a cause; of those that were stopped, the first."""
        outcomes = [(part, part.outcome) for part in self._ended_parts if part.outcome is not None]
        failed = [part for part, outcome in outcomes if outcome["kind"] in CAUSE_KINDS]
        if failed:
            return min(failed, key=_cause_rank)
        stopped = [part for part, outcome in outcomes if outcome["kind"] != "returned"]
        return next(iter([*stopped, *self.parts]))


def _cause_rank(part: Call) -> int:
    """How far a part's failure is from being a cause."""
    from skyward_core.model.outcomes import consequence_rank

    outcome = part.outcome
    if outcome is None:
        return 0
    error = outcome.get("error")
    words = (error["type"], error["message"]) if error else None
    return consequence_rank(outcome["kind"], outcome.get("signal"), words)


BLOCK_ANSWER_TIMEOUT = 2.0  # seconds for one that does not answer: it is of an older release, or stands still


class BroadcastAcks:
    """Those of one piece of news.

    Args:
        clients: who was told.
        then: called once all of them know, are gone, or have had their time.
    """

    def __init__(self, clients: Iterable[Connection], then: Callable[[], None]) -> None:
        self._missing = set(clients)
        self._then = then
        self._timer = asyncio.get_running_loop().call_later(BLOCK_ANSWER_TIMEOUT, then)

    def cancel(self) -> None:
        """Nobody waits for them any more."""
        self._missing.clear()
        self._timer.cancel()

    def on_ack(self, client: Connection) -> None:
        """A client knows, or is gone."""
        if client not in self._missing:
            return
        self._missing.remove(client)
        if not self._missing:
            self._timer.cancel()
            self._then()


JOIN_GRACE = 2.0  # seconds that a process which joins the gang of all ranks still has, before a block takes it
MORE_PORTS = 4  # kept behind a block's own, for plugins after the first
NO_APPS = (
    "a plugin of this pool is around the whole node (around_app), and a gang of some of its ranks cannot have it for "
    "itself: take all ranks of nodes"
)


class SlotControl(Protocol):
    """What blocks ask of all slots; see ``slot_dispatcher.SlotDispatcher``."""

    slots: list[Slot]

    def mark_gang_spent_with_acks(self, why: str) -> list[Connection]: ...

    def stop(self, call: Call, reason: str, grace: float) -> None: ...

    def pump(self) -> None: ...


class PartialGangs:
    """Those of one node."""

    def __init__(self, state: NodeState, desk: CallLifecycle, others: SlotControl) -> None:
        self._state, self._lifecycle, self._slot_control = state, desk, others
        self._slots = [slot for slot in others.slots if slot.number == 0]
        self._blocks: dict[tuple[int, int], RankBlock] = {}
        self._lives: dict[str, SharedLife] = {}
        self._ports: dict[str, list[ReservedPorts]] = {}  # by life
        self._waiting: deque[Call] = deque()
        self._split_calls: list[SplitCall] = []
        self._pending_acks: BroadcastAcks | None = None  # of the gang that is spent
        self._announced_epoch = self._known_epoch = 0  # of which all have been told, and know
        self._min_order = 0  # the least order of what begins from now on

    # -- which block a call gets -------------------------------------------------------------------------

    def validate(self, call: Call) -> None:
        """See whether the node has blocks as a call wants them.

        Raises:
            WireError: it has not.
        """
        has = len(self._slots)
        if not 1 < call.width < has or has % call.width:
            raise WireError(f"node {self._state.config.node} has no blocks of {call.width} ranks: it has {has}")

    def enqueue(self, call: Call) -> None:
        """A call has come."""
        self._waiting.append(call)
        self.schedule()

    def drop(self, call: Call) -> bool:
        """Forget a call that no block has; says whether it waited."""
        with suppress(ValueError):
            self._waiting.remove(call)
            return True
        return False

    def schedule(self) -> None:
        """Give blocks that have nothing to do the calls that wait."""
        while self._waiting and not self._state.is_closing:
            call = self._waiting[0]
            free = [
                block for block in self._blocks_of_width(call.width) if not any(slot.has_part for slot in block.slots)
            ]
            if not free or not self._ensure_clients_know(call):
                return
            self._waiting.popleft()
            self._assign(call, min(free, key=self._cost))

    def _ensure_clients_know(self, call: Call) -> bool:
        """Whether all clients know that the gang takes no other broadcast; tells them, where they do not."""
        gang = self._state.gang
        if not gang.epoch or gang.is_standalone or gang.broken_reason or gang.epoch == self._known_epoch:
            return True
        if gang.epoch != self._announced_epoch:
            if self._pending_acks is not None:
                self._pending_acks.cancel()  # a client has formed another gang meanwhile
            self._announced_epoch = gang.epoch
            why = f"ranks of node {self._state.config.node} run {call.run} in gangs of {call.width}"
            if clients := self._slot_control.mark_gang_spent_with_acks(why):
                self._pending_acks = BroadcastAcks(clients, self._on_all_acks)
            else:
                self._mark_known()
        return gang.epoch == self._known_epoch

    def _mark_known(self) -> None:
        self._known_epoch, self._pending_acks = self._announced_epoch, None
        self._min_order = self._state.registry.next_order()  # behind what they sent before that

    def on_ack(self, connection: Connection, epoch: int | None = None) -> None:
        """A client says that it knows of a gang that it is spent; or is gone, and sends nothing more."""
        if self._pending_acks is not None and epoch in (None, self._announced_epoch):
            self._pending_acks.on_ack(connection)

    def _on_all_acks(self) -> None:
        self._mark_known()
        self.schedule()

    def requeue_unstarted(self) -> None:
        """There is another gang: what no block has begun waits until clients know that this one is spent, too."""
        waits = [
            each for each in self._split_calls if not each.is_started and all(not part.outcome for part in each.parts)
        ]
        for team in reversed(waits):
            for slot, part in zip(self._slots_of(team.block), team.parts, strict=True):
                slot.queue.remove(part)
            self._split_calls.remove(team)
            team.whole.parts = []
            self._waiting.appendleft(team.whole)
        self.schedule()

    def _blocks_of_width(self, width: int) -> list[RankBlock]:
        return [self._get_block(first, width) for first in range(0, len(self._slots), width)]

    def _get_block(self, first: int, width: int) -> RankBlock:
        if (first, width) not in self._blocks:
            self._blocks[first, width] = RankBlock(first, list(self._slots[first : first + width]))
        return self._blocks[first, width]

    def _cost(self, block: RankBlock) -> tuple[int, bool]:
        """How long a call may wait there: what its ranks have to do, and whether their processes are to be new."""
        new = any(
            p is None or not block.accepts_process(p, self._state.gang.renewed_epoch)
            for p in (s.process for s in block.slots)
        )
        return max(slot.load for slot in self._slots_of(block)), new

    def _slots_of(self, block: RankBlock) -> Sequence[Slot]:
        return self._slots[block.first : block.first + block.width]

    def _assign(self, call: Call, block: RankBlock) -> None:
        gang, slots = self._state.gang, self._slots_of(block)
        if gang.has_app_hooks:
            self._lifecycle.report_start_failure(call, NO_APPS)
            return
        call.order = max(call.order, self._min_order)
        team = SplitCall(
            call, block, [self._make_part(call, slot.rank) for slot in slots], self._stop, self._on_finished
        )
        self._split_calls.append(team)
        call.rank = slots[0].rank
        for slot, part in zip(slots, team.parts, strict=True):
            slot.enqueue(part)

    @staticmethod
    def _make_part(call: Call, rank: int) -> Call:
        told = call.header.copy()
        told["gang"], told["rank"] = True, rank
        part = Call(call.run, call.index, told, call.body, None, rank)
        part.order = call.order
        return part

    # -- how its ranks begin -----------------------------------------------------------------------------

    def is_ready(self, team: SplitCallParts) -> bool:
        """Whether a call may begin: all of its ranks have come to it."""
        return not team.is_started and team.is_ready(self._state.gang.renewed_epoch)

    def is_next(self, team: SplitCallParts) -> bool:
        """Whether no rank of the node is at a broadcast that came before a call, or waits for one: till then the gang
        stays as it is."""
        return not any(call.order < team.whole.order for call in self._broadcasts())

    def _broadcasts(self) -> Iterator[Call]:
        """Calls of broadcasts that ranks of the node are at, or wait for."""
        calls = (call for slot in self._slots for call in (*slot.running.values(), *slot.queue))
        return (call for call in calls if call.is_gang_call and call.split_call is None)

    def is_within_grace(self, process: Process) -> bool:
        """Whether a process that joins the gang of all ranks may still do so before a block takes it: who has formed
        that gang may be about to send its broadcast. Ranks of other nodes may never come to it."""
        loop = asyncio.get_running_loop()
        if not process.join_deadline:
            process.join_deadline = loop.time() + JOIN_GRACE
            loop.call_later(JOIN_GRACE, self._slot_control.pump)
        return loop.time() < process.join_deadline

    def start(self, asked: SplitCallParts) -> None:
        """Have all ranks begin."""
        team = next(each for each in self._split_calls if each is asked)
        slots = self._slots_of(team.block)
        first = slots[0].process
        team.is_started = self._state.has_partial_gangs = True  # before others look at what they can do
        if first is not None and first.life is None and not self._set_up_ranks(team, slots):
            return
        whole = team.whole
        whole.started_at, whole.started_unix = time.monotonic(), time.time()
        for slot in slots:
            whole.log_start |= slot.logs.ends
        self._state.journal.write(whole.given_frame())
        for slot in slots:
            slot.start_part()

    def _set_up_ranks(self, team: SplitCall, slots: Sequence[Slot]) -> bool:
        """Set fresh processes up as the ranks of a small gang; says whether that can be."""
        state, block = self._state, team.block
        if block.life is not None:
            self._release_life(block.life)
        life = SharedLife(str(time.time_ns()), state.gang.epoch, block.first, block.width)
        address = state.config.address
        try:
            ports = [ReservedPorts(address, 1 + MORE_PORTS), *(ReservedPorts(address) for _ in slots)]
        except OSError as error:
            for slot, part in zip(slots, list(team.parts), strict=True):
                slot.queue.remove(part)
                self._lifecycle.report_start_failure(part, f"its ranks have no port to meet at: {error}")
            return False
        self._lives[life.name], self._ports[life.name], block.life = life, ports, life
        for place, slot in enumerate(slots):
            slot.set_up_in_block(life, self._setup_header(life, ports, place))
        return True

    def _setup_header(self, life: SharedLife, ports: Sequence[ReservedPorts], place: int) -> Header:
        state = self._state
        config, devices = state.config, state.devices(life.first, life.width)
        peer = {"node": 0, "address": config.address, "ports": [port.number for port in ports[1:]]}
        of_node = config.accelerators or 0
        own = of_node * life.width // config.ranks_per_node if config.devices else of_node
        gpus = len(devices) if devices else own  # one GPU is there for all
        info = state.rank_info(config.node * config.ranks_per_node + life.first + place) | {
            "node": 0,
            "total_nodes": 1,
            "rank": place,
            "world_size": life.width,
            "local_rank": place,
            "ranks_per_node": life.width,
            "workers_per_rank": 1,
            "head_addr": config.address,
            "head_port": ports[0].number,
            "peers": [peer],
            "accelerators": gpus,
            "total_accelerators": gpus,
        }
        info.pop("members", None)
        header = {"t": "setup", "epoch": life.epoch, "info": info, "gang": True, "life": life.to_json()}
        return header | state.machine_share(life.first, life.width)

    # -- how it ends -------------------------------------------------------------------------------------

    def stop(self, call: Call, reason: str, grace: float) -> None:
        """End a call of which a block has the parts."""
        call.stop_reason = reason
        for part in list(call.parts):
            self._slot_control.stop(part, reason, grace)

    def _stop(self, part: Call, reason: str) -> None:
        self._slot_control.stop(part, reason, self._state.config.grace)

    def _on_finished(self, team: SplitCall, header: AgentOutcome, body: bytes) -> None:
        """All parts of a call have ended."""
        for part in team.parts:
            name = part.outcome.get("file") if part.outcome is not None else None
            if name and name != header.get("file"):
                (self._state.config.spool / Path(name).name).unlink(missing_ok=True)
        self._split_calls.remove(team)
        self._state.has_partial_gangs = any(each.is_started for each in self._split_calls)
        team.whole.parts = []
        self._lifecycle.publish_outcome(team.whole, header, body)

    def _release_life(self, life: SharedLife) -> None:
        self._lives.pop(life.name, None)
        for port in self._ports.pop(life.name, ()):
            port.close()

    # -- going on where another agent stopped ------------------------------------------------------------

    def get_shared_life(self, told: LifeKeys, epoch: int) -> SharedLife:
        """The life that a worker has told, which another agent has begun."""
        name = told["name"]
        if name not in self._lives:
            life = self._lives[name] = SharedLife(name, epoch, told["first"], told["width"])
            block = self._get_block(told["first"], told["width"])
            if block.life is None or int(block.life.name) < int(name):
                block.life = life
        return self._lives[name]

    def adopt(self, whole: Call) -> None:
        """Take over a call that another agent gave to a block, with the parts that it wrote down."""
        first = whole.rank - self._state.config.node * self._state.config.ranks_per_node
        block = self._get_block(first, whole.width)
        slots = self._slots_of(block)
        known = {part.rank: part for part in whole.parts}
        parts = [known.get(slot.rank) or self._make_part(whole, slot.rank) for slot in slots]
        team = SplitCall(whole, block, parts, self._stop, self._on_finished)
        self._split_calls.append(team)
        team.is_started = self._state.has_partial_gangs = True
        if block.life is None:
            # It is known once they greet; those that still enter their plugins' contexts cannot tell it.
            block.life = SharedLife("0", 0, first, whole.width)
            block.life.broken_reason = "its agent ended while its processes were being set up"
        for slot, part in zip(slots, team.parts, strict=True):
            if slot.process is not None and slot.process.life is None:
                slot.process.life = block.life
            if slot.process is not None and part.started_at is not None and part.outcome is None:
                slot.adopt_call(part)
        for slot, part in zip(slots, list(team.parts), strict=True):
            if part.outcome is not None:
                team.on_part_ended(part)
            elif part.started_at is None:
                self._lifecycle.report_start_failure(part, "its agent ended as it began")
            elif slot.process is None:
                slot.adopt_call(part)

    def on_recovery_done(self) -> None:
        """All workers have greeted that were going to."""
        for life in list(self._lives.values()):
            held = [slot for slot in self._slots if slot.process is not None and slot.process.life is life]
            if len(held) < life.width:
                life.broken_reason = life.broken_reason or "a rank of it ended while the node had no agent"
        self._slot_control.pump()
