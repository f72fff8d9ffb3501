"""Handlers of the requests of clients."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from skyward_core.node.agent.agent_state import NodeState
from skyward_core.node.agent.call_journal import Call
from skyward_core.node.agent.call_outcomes import CallDesk
from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.connected_clients import Audience, Phases
from skyward_core.node.agent.connection import Connection
from skyward_core.node.agent.gang_queue_and_fail_fast import FailFast, GangRequests
from skyward_core.node.agent.log_tailing import Tail
from skyward_core.node.agent.slot_dispatcher import Slots
from skyward_core.protocol.frame_codec import CHUNK, VERSION, Header, Heard, encoded
from skyward_core.protocol.frame_schema import KNOWS, from_client

if TYPE_CHECKING:
    from skyward_core.node.agent.output_files import OutputDesk
    from skyward_core.node.agent.rank_inspection import DebugDesk, LookDesk
    from skyward_core.node.agent.sampler_process import Meter
    from skyward_core.protocol.frame_types import (
        AgentKnown,
        AgentPong,
        ClientAck,
        ClientCall,
        ClientClaim,
        ClientCredit,
        ClientDebug,
        ClientDrop,
        ClientFeed,
        ClientFetch,
        ClientHalt,
        ClientHello,
        ClientMetrics,
        ClientOutput,
        ClientPeers,
        ClientPing,
        ClientProfile,
        ClientPull,
        ClientShutdown,
        ClientSource,
        ClientStacks,
        ClientStill,
        ClientStop,
        ClientTail,
        ClientUse,
        ClientWarn,
        ClientWritten,
        FromClient,
    )


_ROOT = str(Path(__file__).parents[3])
_CODE = (
    f"import sys; sys.path.insert(0, {_ROOT!r}); "
    "from skyward_core.node.agent.blob_server import main; main(int(sys.argv[1]))"
)


class Exchange:
    """Each client brings certificates of its own, and its listener ends when it leaves."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._helpers: dict[Connection, _Helper] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, connection: Connection, header: ClientPeers | ClientPull) -> None:
        """Do what a "peers" or "pull" request asks for, and answer it."""
        task = asyncio.create_task(self._answer(connection, header))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def leave(self, connection: Connection) -> None:
        """A client is gone."""
        if (helper := self._helpers.pop(connection, None)) is not None:
            helper.close()

    async def _answer(self, connection: Connection, header: ClientPeers | ClientPull) -> None:
        answer: Header
        try:
            if header["t"] == "peers":
                answer = await self._listen(connection, header)
            else:
                answer = await self._pull(connection, header)
        except OSError as error:
            answer = {"error": str(error)}
        connection.send({"t": "known", "id": header["id"]} | answer)

    async def _listen(self, connection: Connection, papers: ClientPeers) -> Header:
        self.leave(connection)  # with those certificates that it brought before
        helper = await _Helper.start()
        if not connection.open:
            helper.close()
            return {}
        self._helpers[connection] = helper
        place = {
            "blobs": str(self._config.blobs),
            "spool": str(self._config.spool),
            "address": self._config.address,
            "work": self._config.cwd,
        }
        return await helper.ask(papers | place)

    async def _pull(self, connection: Connection, header: ClientPull) -> Header:
        blob = self._config.blobs / header["hash"]
        if blob.is_file() and blob.stat().st_size == header["size"]:
            return {}
        if connection not in self._helpers or header["from"] is None:
            raise OSError("it is not there")
        return await self._helpers[connection].ask(header)


class _Helper:
    """The process that talks to peers on behalf of one client; see ``blob_server.main``. It ends with us."""

    def __init__(self) -> None:
        self._connection = Connection(self._answered, self._lost)
        self._waiting: dict[int, asyncio.Future[AgentKnown]] = {}
        self._next_id = 0

    @classmethod
    async def start(cls) -> _Helper:
        """Have one running.

        Raises:
            OSError: no process can be started.
        """
        self = cls()
        ours = _start_process()
        await asyncio.get_running_loop().create_connection(lambda: self._connection, sock=ours)
        return self

    async def ask(self, header: ClientPull | Header) -> Header:
        """Pass a request on, and wait for its answer.

        Raises:
            OSError: the process has ended before it answered.
        """
        self._next_id += 1
        waiting: asyncio.Future[AgentKnown] = asyncio.get_running_loop().create_future()
        self._waiting[self._next_id] = waiting
        if not self._connection.open:
            self._lost(self._connection)
        self._connection.send(header | {"id": self._next_id})
        answer = await waiting
        return {key: value for key, value in answer.items() if key not in ("t", "id")}

    def _answered(self, connection: Connection, header: AgentKnown, body: bytes) -> None:
        waiting = self._waiting.pop(header["id"], None)
        if waiting is not None and not waiting.done():
            waiting.set_result(header)

    def _lost(self, connection: Connection) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(OSError("its process that talks to peers has ended"))
        self._waiting.clear()

    def close(self) -> None:
        self._connection.close()


def _start_process() -> socket.socket:
    """Our end of the socket that the new process has the other end of."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-I", "-S", "-c", _CODE, str(theirs.fileno())]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    process.returncode = 0  # the agent collects every child itself
    return ours


FEEDER_AWAY = 300  # seconds that a call waits for a client that feeds it an argument


class Life(Protocol):
    """What they ask of the agent's own life; see ``agent.Agent``."""

    def in_use(self) -> bool: ...

    def give_up(self, runs: list[str], keep: float) -> None: ...

    def end_by(self, who: str, why: str) -> None: ...

    async def halt(self, who: str) -> None: ...

    def notices(self) -> list[Header]: ...

    def warn(self, node: int, left: float) -> None: ...

    def meter(self) -> Meter: ...


class Requests:
    """Those of all clients of one agent."""

    def __init__(
        self,
        state: NodeState,
        audience: Audience,
        desk: CallDesk,
        slots: Slots,
        phases: Phases,
        fail_fast: FailFast,
        life: Life,
    ) -> None:
        self._state, self._audience, self._desk = state, audience, desk
        self._slots, self._phases, self._life = slots, phases, life
        self._register = state.register
        self._gang = GangRequests(state, slots, audience, fail_fast)
        self._exchange = Exchange(state.config)
        self._outputs: OutputDesk | None = None
        self._looks: LookDesk | None = None
        self._debugs: DebugDesk | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._handlers: dict[str, Callable[[Connection, Heard, bytes], None]] = {
            "hello": self._hello,
            "tail": self._tail,
            "metrics": self._measure,
            "call": self._call,
            "source": self._keep_source,
            "claim": self._take_run,
            "ack": self._ack,
            "credit": self._credit,
            "fed": self._feed,
            "stop": self._stop,
            "fetch": self._fetch,
            "written": self._name_outputs,
            "output": self._give_output,
            "peers": self._exchange_blobs,
            "pull": self._exchange_blobs,
            "drop": self._drop_blobs,
            "stacks": self._take_stacks,
            "profile": self._take_profile,
            "debug": self._debug,
            "still": self._stand_still,
            "use": self._use,
            "warn": self._warn,
            "ping": self._ping,
            "halt": self._halt,
            "shutdown": self._shutdown,
            **self._gang.handlers,
        }

    def accept(self) -> Connection:
        """Take in one more client."""
        connection = Connection(self._frame, self._lost, from_client)
        self._audience.join(connection)
        return connection

    def _lost(self, connection: Connection) -> None:
        self._audience.leave(connection)
        self._exchange.leave(connection)
        if self._debugs is not None:
            self._debugs.leave(connection)
        self._gang.leave(connection)
        self._desk.disown(connection)
        for call in self._desk.starving():
            asyncio.get_running_loop().call_later(FEEDER_AWAY, self._give_up_feeder, call)

    def _give_up_feeder(self, call: Call) -> None:
        """Nobody but its own client has the values that a call waits for, and machines cost money meanwhile."""
        away = asyncio.get_running_loop().time() - call.away_since
        if self._desk.starves(call) and away >= FEEDER_AWAY:
            words = f"its client, which feeds it an argument, has been away for {FEEDER_AWAY} s"
            self._slots.stop(call, words, self._state.config.grace)

    def _frame(self, connection: Connection, header: FromClient, body: bytes) -> None:
        handler = self._handlers.get(header["t"])
        if handler is None:
            connection.send({"t": "error", "message": f"unknown request {header['t']!r}"})
            return
        handler(connection, header, body)

    # -- who they are ------------------------------------------------------------------------------------

    def _hello(self, connection: Connection, header: ClientHello, body: bytes) -> None:
        state, client = self._state, self._audience[connection]
        client.watches = bool(header.get("watch"))
        client.renews = not header.get("observer")
        connection.who = str(header.get("who", ""))[:200]
        if client.renews:
            state.lease.renew()
        connection.send(
            {
                "t": "welcome",
                "version": VERSION,
                "pool": state.config.pool,
                "node": state.config.node,
                "pid": os.getpid(),
                "now": time.time(),
                "address": state.config.address,
                "ranks_per_node": state.config.ranks_per_node,
                "epoch": state.gang.epoch,
                "phases": self._phases.frames(),
                "runs": [record.to_json() for record in self._register.records.values()],
                "lease": state.lease.remaining(in_use=self._life.in_use()),
                "idle_timeout": state.config.idle_timeout,
                "unfetched": self._desk.unfetched(),
                "modules": state.modules,
                "cwd": state.config.cwd,
                "notices": self._life.notices(),
                "knows": list(KNOWS),
                "queue": self._gang.waiting,
            }
            | state.gang.health()
        )

    def _use(self, connection: Connection, header: ClientUse, body: bytes) -> None:
        self._audience[connection].renews = True

    def _warn(self, connection: Connection, header: ClientWarn, body: bytes) -> None:
        self._life.warn(header["node"], header["left"])

    def _ping(self, connection: Connection, header: ClientPing, body: bytes) -> None:
        left = self._state.lease.remaining(in_use=self._life.in_use())
        told: AgentPong = {"t": "pong", "lease": left, "unfetched": self._desk.unfetched()}
        if self._register.active:
            told["processor"] = self._slots.processor_seconds()
        connection.send({"id": header.get("id")} | told)

    def _halt(self, connection: Connection, header: ClientHalt, body: bytes) -> None:
        self._keep(asyncio.create_task(self._halted(connection, header)))

    async def _halted(self, connection: Connection, header: ClientHalt) -> None:
        await self._life.halt(connection.who or "another client")
        connection.send({"t": "known", "id": header["id"]})

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _shutdown(self, connection: Connection, header: ClientShutdown, body: bytes) -> None:
        self._life.give_up(header.get("drop", []), header.get("keep", 0.0))
        self._life.end_by(connection.who or "another client", "")

    # -- calls and what comes of them --------------------------------------------------------------------

    def _call(self, connection: Connection, header: ClientCall, body: bytes) -> None:
        known = self._register.calls.get((header["run"], header["i"]))
        if known is not None:
            self._desk.claim(connection, known, header)
            return
        self._gang.begin_anew()
        call = Call(header["run"], header["i"], header, body, connection)
        if call.width > 1:
            self._slots.blocks.check(call)
        slot = self._slots.pick(call)  # before anything remembers it
        if self._register.add(call) and len(self._audience) > 1:
            record = self._register.records[call.run]
            self._audience.broadcast({"t": "run"} | record.to_json(), skip=connection)
        if self._register.is_cancelled(call.run):
            call.rank, call.stop_reason = slot.rank, "cancel"
            self._desk.not_run(call)
        elif call.width > 1:
            self._slots.blocks.take(call)
        else:
            slot.give(call)

    def _take_run(self, connection: Connection, header: ClientClaim, body: bytes) -> None:
        """A client wants the results of a run whose own client is gone."""
        calls = self._register.of_run(header["run"])
        connection.send({"t": "known", "id": header.get("id", -1), "calls": [call.index for call in calls]})
        for call in calls:
            self._desk.claim(connection, call, header)

    def _ack(self, connection: Connection, header: ClientAck, body: bytes) -> None:
        """The client has these results; ``calls``: run -> indices, or null for all of the run."""
        self._desk.acknowledge(header["calls"])

    def _credit(self, connection: Connection, header: ClientCredit, body: bytes) -> None:
        call = self._register.calls.get((header["run"], header["i"]))
        if call is not None:
            self._desk.taken(call, header["next"])

    def _feed(self, connection: Connection, header: ClientFeed, body: bytes) -> None:
        call = self._register.calls.get((header["run"], header["i"]))
        if call is not None and call.owner is connection and call.worker is not None:
            call.worker.reply(encoded(header), body)

    def _stop(self, connection: Connection, header: ClientStop, body: bytes) -> None:
        state, run = self._state, header["run"]
        reason, grace = header.get("why", "cancel"), header.get("grace", state.config.grace)
        self._gang.drop(run, connection.who)
        if reason == "cancel" and "i" not in header:
            self._register.cancel(run)
        # Who does not know on which nodes a run is tells all of them.
        is_here = not state.gang.members or run in self._register.records
        breaks = bool(header.get("break")) and header["break"] == state.gang.epoch and is_here
        self._slots.stop_run(run, reason, grace, breaks=breaks, only=header.get("i"))

    # -- files -------------------------------------------------------------------------------------------

    def _tail(self, connection: Connection, header: ClientTail, body: bytes) -> None:
        client = self._audience[connection]
        if client.follower is not None:
            client.follower.cancel()  # it asks again for what its disk did not take
        client.tail = Tail(
            self._state.config.spool,
            connection,
            header.get("cursors", {}),
            self._busy,
            self._state.redactor,
            self._slots.mark_logs,
            self._slots.most_logs,
        )
        client.follower = asyncio.create_task(self._follow(client.tail))

    async def _follow(self, tail: Tail) -> None:
        await self._state.informed.wait()  # of what has to be blanked
        await tail.run()

    def _busy(self) -> bool:
        return self._register.active > 0

    def _measure(self, connection: Connection, header: ClientMetrics, body: bytes) -> None:
        self._keep(asyncio.create_task(self._life.meter().serve(connection, header.get("at", 0))))

    def _fetch(self, connection: Connection, header: ClientFetch, body: bytes) -> None:
        self._keep(asyncio.create_task(self._send_file(connection, header)))

    async def _send_file(self, connection: Connection, header: ClientFetch) -> None:
        path = self._state.config.spool / Path(header["f"]).name
        at = int(header.get("at", 0))
        try:
            with open(path, "rb") as source:
                source.seek(at)
                while connection.open:
                    data = source.read(CHUNK // 4)  # larger pieces stay with the agent as freed memory
                    connection.send({"t": "data", "id": header["id"], "at": at, "last": not data}, data)
                    at += len(data)
                    if not data:
                        return
                    await connection.drain()
        except OSError as error:
            connection.send({"t": "data", "id": header["id"], "at": at, "last": True, "error": str(error)})

    def _name_outputs(self, connection: Connection, header: ClientWritten, body: bytes) -> None:
        self._of_ranks().name(connection, header)

    def _give_output(self, connection: Connection, header: ClientOutput, body: bytes) -> None:
        self._of_ranks().give(connection, header)

    def _of_ranks(self) -> OutputDesk:
        if self._outputs is None:
            from skyward_core.node.agent.output_files import OutputDesk

            self._outputs = OutputDesk(self._state)
        return self._outputs

    def _keep_source(self, connection: Connection, header: ClientSource, body: bytes) -> None:
        from skyward_core.node.agent.source_files import keep

        try:
            keep(self._state.config.paths, header["hash"], header["name"], body)
        except (OSError, ValueError) as error:
            connection.send({"t": "error", "message": f"the source of {header['name']} is not kept: {error}"})

    def _exchange_blobs(self, connection: Connection, header: ClientPeers | ClientPull, body: bytes) -> None:
        self._exchange.take(connection, header)

    def _drop_blobs(self, connection: Connection, header: ClientDrop, body: bytes) -> None:
        """Make room for other blobs; those that somebody may be about to use stay."""
        alone = not any(other.renews for other in self._audience.others(connection))
        waiting = [call.header for call in self._register.calls.values() if call.outcome is None]
        used = {call[part][0] for call in waiting for part in ("fn", "args")}
        for name in header["blobs"] if alone else ():
            if name not in used:
                (self._state.config.blobs / Path(name).name).unlink(missing_ok=True)
        connection.send({"t": "known", "id": header["id"]})

    # -- the inside of ranks -----------------------------------------------------------------------------

    def _take_stacks(self, connection: Connection, header: ClientStacks, body: bytes) -> None:
        self._inside().stacks(connection, header)

    def _take_profile(self, connection: Connection, header: ClientProfile, body: bytes) -> None:
        self._inside().profile(connection, header)

    def _debug(self, connection: Connection, header: ClientDebug, body: bytes) -> None:
        if self._debugs is None:
            from skyward_core.node.agent.rank_inspection import DebugDesk

            self._debugs = DebugDesk(self._state, self._slots)
        self._debugs.debug(connection, header)

    def _stand_still(self, connection: Connection, header: ClientStill, body: bytes) -> None:
        self._slots.still.elsewhere(header["seconds"])

    def _inside(self) -> LookDesk:
        if self._looks is None:
            from skyward_core.node.agent.rank_inspection import LookDesk

            self._looks = LookDesk(self._state, self._slots)
        return self._looks
