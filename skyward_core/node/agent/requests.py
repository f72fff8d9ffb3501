"""The clients of an agent: their connections, and what they may ask for."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...wire.frames import CHUNK, VERSION, WINDOW, WORK, Header
from ...wire.messages import from_client
from .blob_exchange import Exchange
from .calls import Call
from .connection import Connection
from .gang import Gang, GangLock, Port
from .own_stream import Moves
from .tail import Tail
from .yields import Yields

if TYPE_CHECKING:
    from .agent import Agent

FAREWELL = 10.0  # seconds in which clients must take the rest of the logs, and a goodbye
LOOK = 1.0  # seconds
# Looks at which a client that speaks every two seconds has not: its machine is dead, or it is stopped.
SILENT = 15
MORE_PORTS = 8  # kept behind the gang's own, for plugins after the first


class _Client:
    """What the agent keeps of one client connection."""

    __slots__ = ("follower", "renews", "tail", "watches")

    def __init__(self) -> None:
        self.watches = False
        self.renews = False
        self.tail: Tail | None = None
        self.follower: asyncio.Task[None] | None = None


class Clients:
    """All of them; several may use a pool at once, or watch it."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._register = agent.register
        self._open: dict[Connection, _Client] = {}
        self._lock = GangLock()
        self._port: Port | None = None
        self._rank_ports: list[Port] = []
        self._sent: dict[str, int] = {}  # log file -> bytes that a client has been sent
        self._exchange = Exchange(agent.config)
        self._moves = Moves(agent.config.address)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def in_use(self) -> bool:
        """Whether one of them is there to use the pool."""
        return any(client.renews for client in self._open.values())

    def unfetched(self) -> dict[str, int]:
        """Runs with results that wait for a client to come for them, and bytes of those."""
        waiting: dict[str, int] = {}
        for call in self._register.calls.values():
            if call.owner is None and call.outcome is not None and call.outcome.get("kind") in WORK:
                waiting[call.run] = waiting.get(call.run, 0) + call.outcome.get("size", 0)
        return waiting

    def sent(self) -> dict[str, int]:
        """How many bytes of each log file some client has been sent."""
        for client in self._open.values():
            self._note_sent(client)
        return self._sent

    def _note_sent(self, client: _Client) -> None:
        for name, at in client.tail.cursors.items() if client.tail is not None else ():
            self._sent[name] = max(at, self._sent.get(name, 0))

    def tell(self, header: Header) -> None:
        for connection in list(self._open):
            connection.send(header)

    def broadcast(self, header: Header, skip: Connection | None = None) -> None:
        """Tell those that watch."""
        for connection, client in self._open.items():
            if client.watches and connection is not skip:
                connection.send(header)

    def flush(self, ends: dict[str, int]) -> None:
        """Have each get the logs up to there ahead of what is sent next."""
        for client in self._open.values():
            if client.tail is not None:
                client.tail.flush(ends)

    def wake(self) -> None:
        """Have each look at the logs at once."""
        for client in self._open.values():
            if client.tail is not None:
                client.tail.wake()

    async def judge(self) -> None:
        """Let go of clients that do not speak any more, and of what they hold; one that only slept comes back.

        Their connections may stay open for hours (an SSH server's, when a machine dies without a word). Counted in
        looks, so that an agent which was stopped itself blames nobody for that.
        """
        while True:
            await asyncio.sleep(LOOK)
            for connection in list(self._open):
                connection.quiet += 1
                if connection.quiet > SILENT:
                    connection.drop()

    async def part(self) -> None:
        """Send each the rest of the logs and a goodbye, and wait until they have taken it: what this process has not
        given to the kernel ends with it."""
        parted = list(self._open.items())  # who comes now gets no goodbye, and is not waited for
        for connection, client in parted:
            sizes = await client.tail.finish() if client.tail else {}
            connection.send({"t": "bye", "logs": sizes})
            connection.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FAREWELL
        while any(connection.open for connection, _ in parted) and loop.time() < deadline:
            await asyncio.sleep(0.002)

    # -- connections -------------------------------------------------------------------------------------

    def accept(self) -> Connection:
        connection = Connection(self._frame, self._lost, from_client)
        self._open[connection] = _Client()
        return connection

    def _lost(self, connection: Connection) -> None:
        client = self._open.pop(connection, None)
        if client is not None and client.follower is not None:
            client.follower.cancel()
        if client is not None:
            self._note_sent(client)
        self._exchange.leave(connection)
        self._moves.leave(connection)
        self._lock.lost(connection)
        for call in self._register.calls.values():
            if call.owner is connection:
                call.owner = None
                self.credit(call)

    def _frame(self, connection: Connection, header: Header, body: bytes) -> None:
        handler = self._handlers.get(header.get("t", ""))
        if handler is None:
            connection.send({"t": "error", "message": f"unknown request {header.get('t')!r}"})
            return
        handler(self, connection, header, body)

    # -- what they ask for -------------------------------------------------------------------------------

    def _hello(self, connection: Connection, header: Header, body: bytes) -> None:
        agent, client = self._agent, self._open[connection]
        client.watches = bool(header.get("watch"))
        client.renews = not header.get("observer")
        connection.who = str(header.get("who", ""))[:200]
        if client.renews:
            agent.lease.renew()
        connection.send(
            {
                "t": "welcome",
                "version": VERSION,
                "pool": agent.config.pool,
                "node": agent.config.node,
                "pid": os.getpid(),
                "now": time.time(),
                "address": agent.config.address,
                "ranks_per_node": agent.config.ranks_per_node,
                "epoch": agent.gang.epoch,
                "broken": agent.gang.broken,
                "phases": agent.phases.frames(),
                "runs": [record.to_json() for record in self._register.records.values()],
                "lease": agent.lease.remaining(in_use=agent.in_use()),
                "idle_timeout": agent.config.idle_timeout,
                "unfetched": self.unfetched(),
            }
        )

    def _tail(self, connection: Connection, header: Header, body: bytes) -> None:
        client = self._open[connection]
        if client.follower is not None:
            client.follower.cancel()  # it asks again for what its disk did not take
        spool, redactor = self._agent.config.spool, self._agent.redactor
        client.tail = Tail(
            spool,
            connection,
            header.get("cursors", {}),
            self._busy,
            redactor,
            self._agent.mark_logs,
            self._agent.most_logs,
        )
        client.follower = asyncio.create_task(self._follow(client.tail))

    async def _follow(self, tail: Tail) -> None:
        await self._agent.informed.wait()  # of what has to be blanked
        await tail.run()

    def _busy(self) -> bool:
        return self._register.active > 0

    def _call(self, connection: Connection, header: Header, body: bytes) -> None:
        agent = self._agent
        known = self._register.calls.get((header["run"], header["i"]))
        if known is not None:
            self._claim(connection, known, header)
            return
        if agent.gang.alone and agent.gang.apps and agent.apps.process is None:
            # What plugins have around the node is gone, or failed: no other node needs to know of another try.
            agent.gang.epoch += 1
            agent.epochs.note(agent.gang.epoch)
            agent.need_apps()
        call = Call(header["run"], header["i"], header, body, connection)
        slot = agent.pick(call)  # before anything remembers it
        if self._register.add(call) and len(self._open) > 1:
            record = self._register.records[call.run]
            self.broadcast({"t": "run"} | record.to_json(), skip=connection)
        slot.give(call)

    def _claim(self, connection: Connection, call: Call, header: Header) -> None:
        """A client asks again for what it asked before, over a new connection."""
        call.owner = connection
        self._agent.open_yields(call)
        if call.yields is not None:
            call.yields.taken(header.get("taken", 0))
            call.yields.sent = header.get("next", 0)
            self._deliver(connection, call, call.yields)
            self.credit(call)
        elif call.outcome is not None:
            connection.send(call.outcome, call.result)

    def hand_on(self, call: Call, yields: Yields, data: bytes) -> None:
        """A generator's new value, to who reads them; behind those that it has not been sent yet."""
        if call.owner is None:
            return
        if yields.sent == yields.next - 1 < yields.first + WINDOW:
            yields.sent += 1
            call.owner.write(data)
        else:
            self._deliver(call.owner, call, yields)

    @staticmethod
    def _deliver(owner: Connection, call: Call, yields: Yields) -> None:
        """Send a reader what its window has room for, and the outcome behind the last of it."""
        for data in yields.due():
            owner.write(data)
        if call.outcome is not None and yields.sent >= yields.next:
            owner.send(call.outcome, call.result)

    def credit(self, call: Call) -> None:
        """Tell a generator how far its reader is; where nobody reads, its values wait here, and it goes on."""
        if call.yields is not None and call.outcome is None:
            until = call.yields.next if call.owner is None else call.yields.first
            self._agent.to_worker(call, {"t": "credit", "run": call.run, "i": call.index, "next": until})

    def _take_run(self, connection: Connection, header: Header, body: bytes) -> None:
        """A client wants the results of a run whose own client is gone."""
        calls = self._register.of_run(header["run"])
        connection.send({"t": "known", "id": header.get("id", -1), "calls": [call.index for call in calls]})
        for call in calls:
            self._claim(connection, call, header)

    def _ack(self, connection: Connection, header: Header, body: bytes) -> None:
        """The client has these results; ``calls``: run -> indices, or null for all of the run."""
        self._agent.acknowledge(header["calls"])

    def _credit(self, connection: Connection, header: Header, body: bytes) -> None:
        call = self._register.calls.get((header["run"], header["i"]))
        if call is None or call.yields is None:
            return
        call.yields.taken(header["next"])
        if call.yields.sent < call.yields.next:
            self._deliver(connection, call, call.yields)
        self.credit(call)

    def _stop(self, connection: Connection, header: Header, body: bytes) -> None:
        agent = self._agent
        run, reason = header["run"], header.get("why", "cancel")
        grace = header.get("grace", agent.config.grace)
        if header.get("break") and header["break"] == agent.gang.epoch:
            agent.break_gang(f"run {run} failed")
        for call in self._register.of_run(run):
            if call.outcome is None and header.get("i", call.index) == call.index:
                agent.stop(call, reason, grace)
        agent.pump()

    def _fetch(self, connection: Connection, header: Header, body: bytes) -> None:
        task = asyncio.create_task(self._send_file(connection, header))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_file(self, connection: Connection, header: Header) -> None:
        path = self._agent.config.spool / Path(header["f"]).name
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

    def _exchange_blobs(self, connection: Connection, header: Header, body: bytes) -> None:
        self._exchange.take(connection, header)

    def _offer_line(self, connection: Connection, header: Header, body: bytes) -> None:
        self._moves.offer(connection, header)

    def _move(self, connection: Connection, header: Header, body: bytes) -> None:
        self._moves.go(connection)

    def _drop_blobs(self, connection: Connection, header: Header, body: bytes) -> None:
        """Make room for other blobs; those that somebody may be about to use stay."""
        alone = not any(other.renews for each, other in self._open.items() if each is not connection)
        waiting = [call.header for call in self._register.calls.values() if call.outcome is None]
        used = {call[part][0] for call in waiting for part in ("fn", "args")}
        for name in header["blobs"] if alone else ():
            if name not in used:
                (self._agent.config.blobs / Path(name).name).unlink(missing_ok=True)
        connection.send({"t": "known", "id": header["id"]})

    def _want_lock(self, connection: Connection, header: Header, body: bytes) -> None:
        self._lock.want(connection)

    def _unlock(self, connection: Connection, header: Header, body: bytes) -> None:
        self._lock.release(connection, unclean=header.get("unclean", False))

    def _form(self, connection: Connection, header: Header, body: bytes) -> None:
        """On the head: name the next epoch and ports that are free for its rendezvous."""
        if self._port is not None:
            self._port.close()
        self._port = Port(self._agent.config.address, 1 + MORE_PORTS)
        connection.send(
            {
                "t": "formed",
                "id": header.get("id"),
                "epoch": max(self._agent.gang.epoch, self._agent.epochs.latest) + 1,
                "head_addr": self._agent.config.address,
                "head_port": self._port.number,
            }
        )

    def _keep_ports(self, connection: Connection, header: Header, body: bytes) -> None:
        """Name a port for each rank of this node that is free here, and stays so until the next epoch."""
        for port in self._rank_ports:
            port.close()
        config = self._agent.config
        self._rank_ports = [Port(config.address) for _ in range(config.ranks_per_node)]
        numbers = [port.number for port in self._rank_ports]
        connection.send({"t": "known", "id": header["id"], "ports": numbers})

    def _tell_setup(self, connection: Connection, header: Header, body: bytes) -> None:
        """What a client that did not make the pool needs to know to bring up another node of it."""
        task = asyncio.create_task(self._answer_setup(connection, header))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_setup(self, connection: Connection, header: Header) -> None:
        await self._agent.informed.wait()
        config, gang = self._agent.config, self._agent.gang
        told = {
            "env": config.env if config.knows_env else None,
            "known": bool(gang.epoch) and (bool(gang.plugins) or not gang.hooks),
            "secrets": [*config.secrets, *gang.secrets],
            "apps": gang.apps,
        }
        connection.send({"t": "known", "id": header["id"]} | told, gang.plugins)

    def _gang(self, connection: Connection, header: Header, body: bytes) -> None:
        agent = self._agent
        if header["epoch"] > agent.gang.epoch:
            if header.get("alone"):
                header["epoch"] = max(header["epoch"], agent.epochs.latest + 1)
            agent.gang = Gang.told(header, body)
            agent.epochs.note(agent.gang.epoch)
            agent.redactor.add(agent.gang.secrets)
            if agent.gang.apps:
                agent.need_apps()
            agent.pump()

    def _where(self, connection: Connection, header: Header, body: bytes) -> None:
        """How many calls of each gang run came here, and how many are active: lets a client repair a start that
        another left half done."""
        runs = {
            record.run: {
                "calls": record.active + len(record.outcomes),
                "active": record.active,
                "total": record.total,
            }
            for record in self._register.records.values()
            if record.kind == "broadcast"
        }
        connection.send({"t": "known", "id": header["id"], "runs": runs})

    def _use(self, connection: Connection, header: Header, body: bytes) -> None:
        self._open[connection].renews = True

    def _ping(self, connection: Connection, header: Header, body: bytes) -> None:
        left = self._agent.lease.remaining(in_use=self._agent.in_use())
        connection.send({"t": "pong", "id": header.get("id"), "lease": left, "unfetched": self.unfetched()})

    def _shutdown(self, connection: Connection, header: Header, body: bytes) -> None:
        self._agent.give_up(header.get("drop", []), header.get("keep", 0.0))
        self._agent.end_by(connection.who or "another client", "")

    _handlers: dict[str, Callable[[Clients, Connection, Header, bytes], None]] = {  # noqa: RUF012
        "hello": _hello,
        "tail": _tail,
        "call": _call,
        "claim": _take_run,
        "ack": _ack,
        "credit": _credit,
        "stop": _stop,
        "fetch": _fetch,
        "peers": _exchange_blobs,
        "pull": _exchange_blobs,
        "drop": _drop_blobs,
        "line": _offer_line,
        "move": _move,
        "lock": _want_lock,
        "unlock": _unlock,
        "form": _form,
        "ports": _keep_ports,
        "setup": _tell_setup,
        "gang": _gang,
        "where": _where,
        "use": _use,
        "ping": _ping,
        "shutdown": _shutdown,
    }
