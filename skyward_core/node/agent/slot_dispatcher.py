"""Assignment of calls to the worker slots of a node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from time import monotonic
from typing import TYPE_CHECKING

from skyward_core.node.agent.agent_state import NodeState
from skyward_core.node.agent.call_journal import Call
from skyward_core.node.agent.call_outcomes import CallDesk
from skyward_core.node.agent.connected_clients import Audience, Phases
from skyward_core.node.agent.connection import Connection
from skyward_core.node.agent.log_tailing import NEVER
from skyward_core.node.agent.worker_processes import processor_seconds, reap
from skyward_core.node.agent.worker_slot import Apps, Slot
from skyward_core.protocol.frame_codec import Heard, WireError
from skyward_core.protocol.frame_schema import from_worker

if TYPE_CHECKING:
    from skyward_core.node.agent.call_journal import Together
    from skyward_core.node.agent.partial_gangs import Blocks
    from skyward_core.node.agent.worker_processes import SharedLife
    from skyward_core.protocol.frame_types import FromWorker, LifeKeys, WorkerHello


PAUSE = 0.01  # seconds between looks at whether those that were told to end have


class Slots:
    """Those of one agent, and the process that holds plugins' contexts around them.

    Attributes:
        news: set when a worker has greeted or ended.
    """

    def __init__(self, state: NodeState, audience: Audience, desk: CallDesk, phases: Phases) -> None:
        self._state, self._audience, self._desk = state, audience, desk
        self._workers: dict[Connection, Slot] = {}
        self.news = asyncio.Event()
        self._still: StandStill | None = None  # while no rank was at a breakpoint
        self.waits: Blocks | None = None  # while no call was for a block of ranks
        self.apps = Apps(state, self.pump, self.break_gang)
        config = state.config
        first = config.node * config.ranks_per_node
        self.all = [
            Slot(state, desk, self.apps, phases, self, (first + local, number))
            for local in range(config.ranks_per_node)
            for number in range(config.slots + (config.nodes * config.ranks_per_node > 1))
        ]
        for slot in self.all:
            if slot.lone:
                first_of_rank = self.all[self.all.index(slot) - config.slots]
                slot.twin, first_of_rank.twin = first_of_rank, slot

    @property
    def some_live(self) -> bool:
        return any(slot.process for slot in self.all)

    # -- calls -------------------------------------------------------------------------------------------

    def pick(self, call: Call) -> Slot:
        """Whose queue a call belongs into.

        Raises:
            WireError: it is for a rank that is not of this node.
        """
        rank = call.header.get("rank")
        if call.gang or rank is not None:
            found = [slot for slot in self.all if slot.rank == rank and slot.number == 0]
            if found:
                twin = found[0].twin
                return twin if twin is not None and self._state.apart and not call.gang else found[0]
            raise WireError(f"node {self._state.config.node} has no rank {rank}")
        return min(filter(self._takes_tasks, self.all), key=lambda slot: slot.load)

    def _takes_tasks(self, slot: Slot) -> bool:
        return slot.number > 0 if self._state.apart else not slot.lone

    def part(self) -> None:
        """Run tasks in other processes of the ranks than the gang's from now on."""
        self._state.apart = True
        for slot in self.all:
            for call in [each for each in slot.queue if slot.number == 0 and not each.gang]:
                slot.queue.remove(call)
                self.pick(call).give(call)

    def task_for(self, idle: Slot) -> Call | None:
        """Take a task that any slot can run out of the queue of one that is busy, or still starting."""
        for slot in self.all if self._takes_tasks(idle) else ():
            for call in slot.queue if slot is not idle else ():
                if not call.gang and call.header.get("rank") is None:
                    slot.queue.remove(call)
                    return call
        return None

    def stop(self, call: Call, reason: str, grace: float) -> None:
        """End one call: SIGTERM, the grace, SIGKILL; or take it out of its queue."""
        self.reap()  # who died by itself just now is no victim of this
        if call.outcome is not None or call.stop_reason or call.parting:
            return
        if call.parts and self.waits is not None:
            self.waits.stop(call, reason, grace)
            return
        call.stop_reason = reason
        if self.waits is not None and self.waits.drop(call):
            self._desk.not_run(call)
            return
        for slot in self.all:
            if slot.running.get(call.key) is call:
                # Calls of other runs may end with it: nobody has cancelled those.
                slot.stop_process(f"{reason} of run {call.run}", grace)
                return
            if call in slot.queue:
                slot.queue.remove(call)
                self._desk.not_run(call)
                return

    def stop_run(self, run: str, reason: str, grace: float, *, breaks: bool, only: int | None = None) -> None:
        """End all calls of a run that are here, or one.

        Args:
            breaks: its gang ends with it.
            only: the index of the one.
        """
        if breaks:
            self.break_gang(f"run {run} failed")
        for call in self._state.register.of_run(run):
            if call.outcome is None and only in (None, call.index):
                self.stop(call, reason, grace)
        self.pump()

    # -- blocks of ranks ---------------------------------------------------------------------------------

    @property
    def blocks(self) -> Blocks:
        """Gangs of some of the node's ranks."""
        if self.waits is None:
            from skyward_core.node.agent.partial_gangs import Blocks

            self.waits = Blocks(self._state, self._desk, self)
        return self.waits

    def begin_together(self, team: Together) -> None:
        """A call begins on all ranks of a block."""
        self.blocks.begin(team)

    def life_of(self, told: LifeKeys, epoch: int) -> SharedLife:
        """That which a block's processes have together."""
        return self.blocks.life_of(told, epoch)

    def knows(self, connection: Connection, epoch: int | None = None) -> None:
        """A client knows that the gang of an epoch is spent, or is gone."""
        if self.waits is not None:
            self.waits.knows(connection, epoch)

    def another_gang(self) -> None:
        """A client has formed one."""
        if self._state.apart:
            self.part()
        if self.waits is not None:
            self.waits.withdraw()

    def moved(self) -> None:
        """A call or a process has ended: others may have waited for that."""
        if self.waits is not None and not self._state.closing:
            self.waits.look()
            self.pump()

    @property
    def still(self) -> StandStill:
        """For how long ranks stood still."""
        if self._still is None:
            pass

            self._still = StandStill()
        return self._still

    def stand(self, slot: Slot, stands: bool) -> None:
        """A slot's rank stands still at a breakpoint, or goes on."""
        if stands or self._still is not None:
            self.still.tell(slot, stands)

    def stood(self, slot: Slot, call: Call) -> float:
        """For how many seconds what a call needs stood still so far."""
        if self._still is None:
            return 0.0
        return self._still.seconds("all" if call.gang else slot)  # ranks of a gang wait for each other

    def pump(self) -> None:
        """Have each move on."""
        for slot in self.all:
            slot.pump()

    def break_gang(self, why: str) -> None:
        """The gang is no more; a client forms the next one."""
        gang = self._state.gang
        if gang.epoch and not gang.broken and not gang.alone:
            gang.broken = why
            self._audience.tell(gang.state())
            self.pump()

    def spend_gang(self, why: str) -> None:
        """A process of the gang takes no other call: what it has been given goes on; a client forms the next."""
        gang = self._state.gang
        if not gang.spent and not gang.broken:
            gang.spent = why
            self._audience.tell(gang.state())

    def spend_gang_for_all(self, why: str) -> list[Connection]:
        """The same, where nobody may send it a broadcast that is on its way by then: has each client say that it knows;
        see ``partial_gangs.Blocks.knows``. Gives those that were told."""
        gang = self._state.gang
        gang.spent = gang.spent or why
        self._audience.tell(gang.state() | {"ask": True})
        return self._audience.all

    def processor_seconds(self) -> dict[str, float]:
        """What ranks that run something have taken of the processor so far, by rank."""
        spent: dict[str, float] = {}
        for slot in self.all:
            if slot.running and slot.process is not None:
                rank = str(slot.rank)
                spent[rank] = spent.get(rank, 0.0) + processor_seconds(slot.process.pid)
        return spent

    # -- logs --------------------------------------------------------------------------------------------

    def most_logs(self, name: str) -> int:
        """How much of a log file may be sent to clients."""
        return next((slot.logs.limits[name].most for slot in self.all if name in slot.logs.limits), NEVER)

    def mark_logs(self) -> None:
        """Mark what native code and children have printed; what Python prints is marked already."""
        for slot in self.all:
            slot.logs.mark()

    def cut_logs_back(self) -> None:
        for slot in self.all:
            slot.logs.cut_back()

    # -- what workers say --------------------------------------------------------------------------------

    async def listen(self) -> Callable[[], None]:
        """Serve workers from now on; gives how to stop."""
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: Connection(self._frame, self._lost, from_worker), self._state.config.worker_socket
        )
        return server.close

    def _frame(self, connection: Connection, header: FromWorker, body: bytes) -> None:
        slot, redactor = self._workers.get(connection), self._state.redactor
        if slot is None or header["t"] == "hello":
            self._frame_of_others(connection, header, body)
            return
        if header["t"] == "outcome" or header["t"] == "item":
            if redactor:
                told: Heard = header
                parts = ("summary", "error", "last", "numbers")
                told |= {key: redactor.json(told[key]) for key in parts if key in told}
                if told.get("kind") == "raised":
                    body = redactor.data(body)
            call = slot.running.get((header["run"], header["i"]))
            if call is not None and header["t"] == "outcome":
                slot.outcome(call, header, body)
            elif call is not None and header["t"] == "item":
                self._desk.item(call, header, body)
        elif header["t"] == "want":
            if (waits := slot.running.get((header["run"], header["i"]))) is not None:
                self._desk.want(waits, header)
        elif header["t"] == "ready":
            slot.set_up_done()
        elif header["t"] == "phase":
            slot.enter(header["phase"])
        elif header["t"] == "secrets":
            redactor.add(header["values"])
        elif header["t"] == "modules":
            self._learn_modules(slot, header["files"])

    def _frame_of_others(self, connection: Connection, header: FromWorker, body: bytes) -> None:
        """Of who is no worker of a slot, or not yet."""
        around = self.apps.process
        if header["t"] == "hello":
            self._greeted(connection, header, body)
        elif around is not None and around.connection is connection:
            self.apps.on_frame(header, body)
        else:
            connection.close()  # it was sent away, or never greeted

    def _greeted(self, connection: Connection, header: WorkerHello, body: bytes) -> None:
        pid = connection.peer(header["pid"])
        for slot in self.all:
            if slot.process is not None and slot.process.pid == pid:
                self._workers[connection] = slot
                slot.connected(connection, header, body)
                self._learn(header)
                self._learn_modules(slot, header.get("modules", {}))
                self.news.set()
                return
        if self.apps.process is not None and self.apps.process.pid == pid:
            self.apps.connected(connection, header)
            return
        # It may be a worker that another agent started and had no time to write down.
        connection.send({"t": "exit"})
        connection.close()

    def _lost(self, connection: Connection) -> None:
        # The process itself is what counts; its end is seen by SIGCHLD.
        self._workers.pop(connection, None)

    def _learn(self, header: WorkerHello) -> None:
        """What a worker knows that an agent before this one has started."""
        if not self._state.informed.is_set() and "env" in header:
            self._state.learn_env(header["env"])
            self.begin()

    # -- what of the person's own they have loaded --------------------------------------------------------

    def _learn_modules(self, slot: Slot, files: dict[str, str]) -> None:
        """A worker has loaded these, from files with these hashes; of one that is on its way out nobody cares."""
        process, known = slot.process, self._state.modules
        if process is None or (process.epoch is not None and process.epoch < self._state.gang.renewed):
            return
        # Where another one has loaded something else, nobody can tell what the node has.
        news = {name: digest if known.get(name, digest) == digest else "" for name, digest in files.items()}
        if any(known.get(name) != digest for name, digest in news.items()):
            known.update(news)
            self._audience.tell({"t": "modules", "files": known})

    def forget_modules(self) -> None:
        """Other processes take the place of all that have loaded some."""
        from skyward_core.node.agent import source_files  # few pools need it

        source_files.remove(self._state.config.cwd, self._state.modules)
        self._state.modules.clear()
        self._audience.tell({"t": "modules", "files": {}})

    # -- how they begin and end --------------------------------------------------------------------------

    def begin(self) -> None:
        """Have a worker in every rank's slot, now that it is known what to start them with."""
        if self._state.informed.is_set():
            return
        self._state.informed.set()
        for slot in self.all:
            if slot.number == 0 and slot.process is None and not self._state.closing:
                slot.start()
        self.pump()

    def one_less(self) -> None:
        """A worker has ended, perhaps the last one that could have told."""
        self.news.set()
        if not self.some_live:
            self.begin()

    def reap(self) -> None:
        """See which processes have ended."""
        ended = reap()
        for slot in self.all:
            if slot.process is not None and slot.process.pid in ended:
                slot.ended(ended[slot.process.pid])
        if self.apps.process is not None and self.apps.process.pid in ended:
            self.apps.ended(ended[self.apps.process.pid])

    async def close(self) -> None:
        """Have all workers end, then what plugins have around them."""
        grace = self._state.config.grace
        for slot in self.all:
            slot.exit_process("the pool is torn down", grace)
        while self.some_live:
            await asyncio.sleep(PAUSE)
            self.reap()
        self.apps.exit_process(grace)
        while self.apps.process:
            await asyncio.sleep(PAUSE)
            self.reap()


LONGEST = 60.0  # seconds for which a client's word on other nodes is believed, unless it is said again
ALL = "all"


class StandStill:
    """Clocks that run while something stands still: one for each, and one for all of them."""

    def __init__(self) -> None:
        self._still: dict[Hashable, set[Hashable]] = {}
        self._since: dict[Hashable, float] = {}
        self._before: dict[Hashable, float] = {}
        self._elsewhere: asyncio.TimerHandle | None = None

    def seconds(self, what: Hashable) -> float:
        """For how long something stood still, all in all; with ``ALL``, at least one of them."""
        return self._before.get(what, 0.0) + (monotonic() - self._since[what] if what in self._since else 0.0)

    def tell(self, what: Hashable, stands: bool) -> None:
        """One of them stands still now, or goes on."""
        for clock in (what, ALL):
            still = self._still.setdefault(clock, set())
            (still.add if stands else still.discard)(what)
            if still:
                self._since.setdefault(clock, monotonic())
            elif clock in self._since:
                self._before[clock] = self.seconds(clock)
                del self._since[clock]

    def elsewhere(self, seconds: float) -> None:
        """A rank of another node does, for so many seconds unless that is said again."""
        if self._elsewhere is not None:
            self._elsewhere.cancel()
            self._elsewhere = None
        self.tell("elsewhere", seconds > 0)
        if seconds > 0:
            late = min(seconds, LONGEST)
            self._elsewhere = asyncio.get_running_loop().call_later(late, self.elsewhere, 0.0)
