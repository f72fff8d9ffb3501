"""The agent: owns a node's workers, spool and lease; serves any number of clients over a Unix socket."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..wire import CHUNK, VERSION, Header, frame
from .apps import PLACE, Apps
from .calls import Call, Register
from .config import AgentConfig
from .connection import Connection
from .exchange import Exchange
from .gang import Epochs, Gang, GangLock, Port
from .journal import Journal
from .lease import Lease
from .moves import Moves
from .processes import become_reaper, descendants, kill_all, orphans, reap
from .redact import Redactor, secret_values
from .signals import act_on
from .slots import Process, Slot, ended_from_outside, ended_with_worker, exit_words
from .tail import Tail

MORE_PORTS = 8  # kept behind the gang's own, for plugins after the first
SLOW = 0.05  # seconds after which a call that still runs is announced as running
SOON = 1.0  # seconds in which those of them greet that can; it takes them a twentieth
GREETING = 5.0  # seconds in which workers that another agent left have greeted
FREE_SPACE = 1 << 20  # bytes below which a full disk is named as the likely cause of a failure


class Agent:
    """See the module. One instance per process; :meth:`run` is its whole life."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.gang = Gang()
        self._epochs = Epochs(config.spool / "epoch")
        self.closing = False
        self._register = Register()
        self._lease = Lease(config.idle_timeout, config.ttl)
        self._lock = GangLock()
        self._port: Port | None = None
        self._rank_ports: list[Port] = []
        self._clients: dict[Connection, _Client] = {}
        self._workers: dict[Connection, Slot] = {}
        first = config.node * config.ranks_per_node
        self._slots = [
            Slot(self, first + local, number)
            for local in range(config.ranks_per_node)
            for number in range(config.slots)
        ]
        self.apps = Apps(self)
        self.journal = Journal(config.spool / "journal")
        self._exchange = Exchange(config)
        self._moves = Moves(config.address)
        self._redactor = Redactor([*secret_values(config.env), *config.secrets])
        # Of the pool's variables and secrets, as far as anybody here knows them.
        self._informed = asyncio.Event()
        self._news = asyncio.Event()  # a worker has greeted, or ended
        self._end = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    # -- life --------------------------------------------------------------------------------------------

    async def run(self, announce: Callable[[], None]) -> None:
        """Serve until shut down, by a client or by the lease. ``announce`` is called once it listens."""
        loop = asyncio.get_running_loop()
        become_reaper()
        act_on({signal.SIGCHLD: self._reap, signal.SIGTERM: self._end.set})
        # Looking for what others have left takes as long as the machine has processes.
        traces = (Path(self.config.worker_socket), Path(self.config.folder, "agent.json"))
        others_before = any(trace.exists() for trace in traces)
        for path in (self.config.socket, self.config.worker_socket):
            Path(path).unlink(missing_ok=True)
        old = os.umask(0o177)
        try:
            workers = await loop.create_unix_server(
                lambda: Connection(self._worker_frame, self._worker_lost), self.config.worker_socket
            )
            if others_before:
                self._take_over()
                await self._hear_workers()
            if self.config.knows_env or not any(slot.process for slot in self._slots):
                self._begin()
            else:
                loop.call_later(GREETING, self._begin)
            clients = await loop.create_unix_server(self._accept, self.config.socket)
        finally:
            os.umask(old)
        announce()
        lease = asyncio.create_task(self._watch_lease())
        await self._end.wait()
        lease.cancel()
        clients.close()
        await self._close()
        workers.close()

    def _begin(self) -> None:
        """Have a worker in every rank's slot, now that it is known what to start them with."""
        if self._informed.is_set():
            return
        self._informed.set()
        for slot in self._slots:
            if slot.number == 0 and slot.process is None and not self.closing:
                slot.spawn()
        self.pump()

    @property
    def informed(self) -> bool:
        return self._informed.is_set()

    def one_less(self) -> None:
        """A worker has ended, perhaps the last one that could have told."""
        self._news.set()
        if not any(slot.process for slot in self._slots):
            self._begin()

    def _learn(self, header: Header) -> None:
        """What a worker knows that an agent before this one has started."""
        if not self.informed and "env" in header:
            self.config = replace(self.config, env=self.config.env | header["env"], knows_env=True)
            self._redactor.add(secret_values(self.config.env))
            self._begin()

    def _take_over(self) -> None:
        """Go on where an agent that died in this folder stopped: its results, its workers, their calls."""
        left = orphans(self.config.worker_socket)
        for slot in self._slots:
            if pid := left.get((slot.rank, slot.number)):
                slot.adopt(pid)
        if pid := left.get(PLACE):
            self.apps.adopt(pid)
        for header, body in self.journal.read():
            key = (header["run"], header["i"])
            if header["t"] == "given":
                call = Call(
                    *key, header | {"t": "call"}, b"", None, header["rank"], asyncio.get_running_loop().time()
                )
                self._register.add(call)
            elif (known := self._register.calls.get(key)) is not None and known.outcome is None:
                known.result = body
                self._register.end(known, header)
        for call in list(self._register.calls.values()):
            if call.outcome is not None:
                continue
            number = call.header["slot"]
            slot = next(s for s in self._slots if (s.rank, s.number) == (call.rank, number))
            if slot.process is not None:
                slot.running[call.key] = call
            else:
                self.died(slot, call, Process(0), None)

    async def _hear_workers(self) -> None:
        """Let them greet before any client is heard: they know of the gang, and a client would form another."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SOON):
                while any(slot.process and not slot.process.connection for slot in self._slots):
                    self._news.clear()
                    await self._news.wait()

    def restore_gang(self, header: Header, plugins: bytes) -> None:
        """Learn of the gang from a worker that belongs to it."""
        if header["epoch"] > self.gang.epoch:
            self.gang = Gang.told(header, plugins)
            self._epochs.note(self.gang.epoch)
            self._redactor.add(self.gang.secrets)
            if self.gang.apps and self.apps.process is None:
                self.break_gang("the process of its plugins' around_app ended with the agent before this one")

    async def _watch_lease(self) -> None:
        while True:
            left = self._lease.remaining(in_use=self._in_use())
            if not Path(self.config.folder).exists():
                self._end.set()  # somebody removed it: nobody can find this agent any more
                return
            if left is not None and left <= 0 and not self._register.active:
                self._end.set()
                self._say_goodbye(self._lease.reason())
                return
            await asyncio.sleep(min(1.0, max(0.05, left or 1.0)))

    def _in_use(self) -> bool:
        if self._register.active or any(client.renews for client in self._clients.values()):
            self._lease.renew()
            return True
        return False

    def _say_goodbye(self, reason: str) -> None:
        """Leave a word for the next client of this pool; the folder's end is the end of everything else."""
        folder = Path(self.config.folder)
        folder.with_name(f"ended.{folder.name}").write_text(
            f"the node ended itself: {reason}\n", encoding="utf-8"
        )

    async def _close(self) -> None:
        self.closing = True
        for slot in self._slots:
            slot.exit_process(self.config.grace)
        while any(slot.process for slot in self._slots):
            await asyncio.sleep(0.01)
            self._reap()
        self.apps.exit_process(self.config.grace)
        while self.apps.process:
            await asyncio.sleep(0.01)
            self._reap()
        # Whatever escaped its group was handed to us when its parent died.
        while left := descendants(os.getpid()):
            kill_all(left)
            await asyncio.sleep(0.01)
            reap()
        for connection, client in list(self._clients.items()):
            sizes = await client.tail.finish() if client.tail else {}
            connection.send({"t": "bye", "logs": sizes})
            connection.close()
        await asyncio.sleep(0)
        for path in (self.config.socket, self.config.worker_socket):
            Path(path).unlink(missing_ok=True)
        import shutil  # it loads compressors, which no agent needs when it starts

        await asyncio.to_thread(shutil.rmtree, self.config.folder, True)

    def _reap(self) -> None:
        ended = reap()
        for slot in self._slots:
            if slot.process is not None and slot.process.pid in ended:
                slot.ended(ended[slot.process.pid])
        if self.apps.process is not None and self.apps.process.pid in ended:
            self.apps.ended(ended[self.apps.process.pid])

    # -- clients -----------------------------------------------------------------------------------------

    def _accept(self) -> Connection:
        connection = Connection(self._client_frame, self._client_lost)
        self._clients[connection] = _Client()
        return connection

    def _client_lost(self, connection: Connection) -> None:
        client = self._clients.pop(connection, None)
        if client is not None and client.follower is not None:
            client.follower.cancel()
        self._exchange.leave(connection)
        self._moves.leave(connection)
        self._lock.lost(connection)
        for call in self._register.calls.values():
            if call.owner is connection:
                call.owner = None
                self._grant_alone(call)

    def _client_frame(self, connection: Connection, header: Header, body: bytes) -> None:
        handler = self._handlers.get(header.get("t", ""))
        if handler is None:
            connection.send({"t": "error", "message": f"unknown request {header.get('t')!r}"})
            return
        handler(self, connection, header, body)

    def _hello(self, connection: Connection, header: Header, body: bytes) -> None:
        client = self._clients[connection]
        client.watches = bool(header.get("watch"))
        client.renews = not header.get("observer")
        self._lease.renew()
        connection.send(
            {
                "t": "welcome",
                "version": VERSION,
                "pool": self.config.pool,
                "node": self.config.node,
                "pid": os.getpid(),
                "address": self.config.address,
                "ranks_per_node": self.config.ranks_per_node,
                "epoch": self.gang.epoch,
                "broken": self.gang.broken,
                "runs": [record.to_json() for record in self._register.records.values()],
                "lease": self._lease.remaining(in_use=self._in_use()),
                "idle_timeout": self.config.idle_timeout,
            }
        )

    def _tail(self, connection: Connection, header: Header, body: bytes) -> None:
        client = self._clients[connection]
        if client.follower is None:
            client.tail = Tail(
                self.config.spool, connection, header.get("cursors", {}), self._busy, self._redactor
            )
            client.follower = asyncio.create_task(self._follow(client.tail))

    async def _follow(self, tail: Tail) -> None:
        await self._informed.wait()  # of what has to be blanked
        await tail.run()

    def _busy(self) -> bool:
        return self._register.active > 0

    def _call(self, connection: Connection, header: Header, body: bytes) -> None:
        known = self._register.calls.get((header["run"], header["i"]))
        if known is not None:
            self._claim(connection, known, header)
            return
        if self.gang.alone and self.gang.apps and self.apps.process is None:
            # What plugins have around the node is gone, or failed: no other node needs to know of another try.
            self.gang.epoch += 1
            self._epochs.note(self.gang.epoch)
            self._need_apps()
        call = Call(header["run"], header["i"], header, body, connection)
        if self._register.add(call) and len(self._clients) > 1:
            record = self._register.records[call.run]
            self._broadcast({"t": "run"} | record.to_json(), skip=connection)
        self._pick(call).give(call)

    def _claim(self, connection: Connection, call: Call, header: Header) -> None:
        """A client asks again for what it asked before, over a new connection."""
        call.owner = connection
        for item, body in call.items:
            if item["seq"] >= header.get("next", 0):
                connection.send(item, body)
        if call.outcome is not None:
            connection.send(call.outcome, call.result)

    def _take_run(self, connection: Connection, header: Header, body: bytes) -> None:
        """A client wants the results of a run whose own client is gone."""
        calls = self._register.of_run(header["run"])
        connection.send({"t": "known", "id": header.get("id", -1), "calls": [call.index for call in calls]})
        for call in calls:
            self._claim(connection, call, header)

    def _pick(self, call: Call) -> Slot:
        rank = call.header.get("rank")
        if call.gang or rank is not None:
            return next(slot for slot in self._slots if slot.rank == rank and slot.number == 0)
        return min(self._slots, key=lambda slot: slot.load)

    def _ack(self, connection: Connection, header: Header, body: bytes) -> None:
        """The client has these results; ``calls``: run -> indices, or null for all of the run."""
        for run, only in header["calls"].items():
            for call in self._register.of_run(run) if only is None else self._register.some(run, only):
                if call.outcome is not None:
                    self._register.drop(call)
                    if name := call.outcome.get("file"):
                        (self.config.spool / Path(name).name).unlink(missing_ok=True)
        if not self._register.calls:
            self.journal.clear()

    def _credit(self, connection: Connection, header: Header, body: bytes) -> None:
        call = self._register.calls.get((header["run"], header["i"]))
        if call is None:
            return
        for item, _ in call.items:
            if item["seq"] < header.get("next", 0) and (name := item.get("file")):
                (self.config.spool / Path(name).name).unlink(missing_ok=True)
        call.items = [entry for entry in call.items if entry[0]["seq"] >= header.get("next", 0)]
        self._to_worker(call, header)

    def _grant_alone(self, call: Call) -> None:
        """Nobody takes a generator's values now: let it go on, they wait here."""
        if call.header.get("stream") and call.outcome is None and call.items:
            self._to_worker(call, {"t": "credit", "run": call.run, "i": call.index, "n": len(call.items)})

    def _to_worker(self, call: Call, header: Header) -> None:
        for slot in self._slots:
            if call.key in slot.running and slot.process and slot.process.connection:
                slot.process.connection.send(header)

    def _stop(self, connection: Connection, header: Header, body: bytes) -> None:
        run, reason = header["run"], header.get("why", "cancel")
        grace = header.get("grace", self.config.grace)
        if header.get("break") and header["break"] == self.gang.epoch:
            self.break_gang(f"run {run} failed")
        for call in self._register.of_run(run):
            if call.outcome is None and header.get("i", call.index) == call.index:
                self.stop(call, reason, grace)
        self.pump()

    def _fetch(self, connection: Connection, header: Header, body: bytes) -> None:
        task = asyncio.create_task(self._send_file(connection, header))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_file(self, connection: Connection, header: Header) -> None:
        path = self.config.spool / Path(header["f"]).name
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
        alone = not any(other.renews for each, other in self._clients.items() if each is not connection)
        waiting = [call.header for call in self._register.calls.values() if call.outcome is None]
        used = {call[part][0] for call in waiting for part in ("fn", "args")}
        for name in header["blobs"] if alone else ():
            if name not in used:
                (self.config.blobs / Path(name).name).unlink(missing_ok=True)
        connection.send({"t": "known", "id": header["id"]})

    def _want_lock(self, connection: Connection, header: Header, body: bytes) -> None:
        self._lock.want(connection)

    def _unlock(self, connection: Connection, header: Header, body: bytes) -> None:
        self._lock.release(connection, unclean=header.get("unclean", False))

    def _form(self, connection: Connection, header: Header, body: bytes) -> None:
        """On the head: name the next epoch and ports that are free for its rendezvous."""
        if self._port is not None:
            self._port.close()
        self._port = Port(self.config.address, 1 + MORE_PORTS)
        connection.send(
            {
                "t": "formed",
                "id": header.get("id"),
                "epoch": max(self.gang.epoch, self._epochs.latest) + 1,
                "head_addr": self.config.address,
                "head_port": self._port.number,
            }
        )

    def _keep_ports(self, connection: Connection, header: Header, body: bytes) -> None:
        """Name a port for each rank of this node that is free here, and stays so until the next epoch."""
        for port in self._rank_ports:
            port.close()
        self._rank_ports = [Port(self.config.address) for _ in range(self.config.ranks_per_node)]
        numbers = [port.number for port in self._rank_ports]
        connection.send({"t": "known", "id": header["id"], "ports": numbers})

    def _tell_setup(self, connection: Connection, header: Header, body: bytes) -> None:
        """What a client that did not make the pool needs to know to bring up another node of it."""
        task = asyncio.create_task(self._answer_setup(connection, header))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_setup(self, connection: Connection, header: Header) -> None:
        await self._informed.wait()
        gang = self.gang
        told = {
            "env": self.config.env if self.config.knows_env else None,
            "known": bool(gang.epoch) and (bool(gang.plugins) or not gang.hooks),
            "secrets": [*self.config.secrets, *gang.secrets],
            "apps": gang.apps,
        }
        connection.send({"t": "known", "id": header["id"]} | told, gang.plugins)

    def _gang(self, connection: Connection, header: Header, body: bytes) -> None:
        if header["epoch"] > self.gang.epoch:
            if header.get("alone"):
                header["epoch"] = max(header["epoch"], self._epochs.latest + 1)
            self.gang = Gang.told(header, body)
            self._epochs.note(self.gang.epoch)
            self._redactor.add(self.gang.secrets)
            if self.gang.apps:
                self._need_apps()
            self.pump()

    def _need_apps(self) -> None:
        self.apps.need(self.gang.place(self.config, self._slots[0].rank), self.gang.plugins)

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
        self._clients[connection].renews = True

    def _ping(self, connection: Connection, header: Header, body: bytes) -> None:
        left = self._lease.remaining(in_use=self._in_use())
        connection.send({"t": "pong", "id": header.get("id"), "lease": left})

    def _shutdown(self, connection: Connection, header: Header, body: bytes) -> None:
        self._end.set()

    _handlers: dict[str, Callable[[Agent, Connection, Header, bytes], None]] = {  # noqa: RUF012
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

    def _broadcast(self, header: Header, skip: Connection | None = None) -> None:
        for connection, client in self._clients.items():
            if client.watches and connection is not skip:
                connection.send(header)

    # -- workers -----------------------------------------------------------------------------------------

    def _worker_frame(self, connection: Connection, header: Header, body: bytes) -> None:
        kind = header["t"]
        if kind == "hello":
            for slot in self._slots:
                if slot.process is not None and slot.process.pid == header["pid"]:
                    self._workers[connection] = slot
                    slot.connected(connection, header, body)
                    self._learn(header)
                    self._news.set()
                    return
            if self.apps.process is not None and self.apps.process.pid == header["pid"]:
                self.apps.connected(connection, header)
                return
            connection.close()
            return
        if self.apps.process is not None and self.apps.process.connection is connection:
            self.apps.on_frame(header, body)
            return
        slot = self._workers[connection]
        if self._redactor and kind in ("outcome", "item"):
            header |= {key: self._redactor.json(header[key]) for key in ("summary", "error") if key in header}
            if header.get("kind") == "raised":
                body = self._redactor.data(body)
        if kind == "outcome":
            call = slot.running.get((header["run"], header["i"]))
            if call is not None:
                self._outcome(slot, call, header, body)
        elif kind == "item":
            call = slot.running.get((header["run"], header["i"]))
            if call is not None:
                self._item(slot, call, header, body)
        elif kind == "ready":
            slot.set_up_done()

    def _worker_lost(self, connection: Connection) -> None:
        # The process itself is what counts; its end is seen by SIGCHLD.
        self._workers.pop(connection, None)

    def _item(self, slot: Slot, call: Call, header: Header, body: bytes) -> None:
        header = header | {"rank": slot.rank, "node": self.config.node}
        call.items.append((header, body))
        if call.owner is not None:
            call.owner.send(header, body)
        else:
            self._to_worker(call, {"t": "credit", "run": call.run, "i": call.index, "n": 1})
        self._broadcast(header, skip=call.owner)

    def _outcome(self, slot: Slot, call: Call, header: Header, body: bytes) -> None:
        killed = slot.process.killed if slot.process is not None else ""
        if header["kind"] in ("exited", "collateral") and slot.process is not None:
            slot.process.killed = killed or "it is exiting"
            slot.break_gang(slot.process)
        if header.pop("unusable", False) and slot.process is not None:
            slot.process.unusable = True
        if call.stop_reason and header["kind"] != "returned":
            header = header | call.stopped()
        elif header["kind"] == "collateral":
            header = header | (ended_with_worker(killed) if killed else ended_from_outside())
        elif header["kind"] == "raised":
            self._note_full_disk(header)
        self._finish(slot, call, header, body)
        slot.finished(call)

    def _note_full_disk(self, header: Header) -> None:
        error = header.get("error") or {}
        space = os.statvfs(self.config.folder)
        free = space.f_bavail * space.f_frsize
        if error.get("type", "").endswith("OSError") and free < FREE_SPACE:
            error["message"] += (
                f" [the disk under node {self.config.node}'s spool is full: {self.config.folder}]"
            )

    def _finish(self, slot: Slot | None, call: Call, header: Header, body: bytes = b"") -> None:
        call.disarm()
        header["rank"] = call.rank
        header["node"] = self.config.node
        header["begun"] = call.given_at is not None
        if slot is not None and call.given_at is not None:
            header["log"] = log = slot.log_range(call)
            ends = {name: end for name, (_, end) in log.items()} | slot.metrics_end()
            for client in self._clients.values():
                if client.tail is not None:
                    client.tail.flush(ends)
        call.result = body
        data = frame(header, body)
        if call.owner is not None:
            call.owner.write(data)
        self.journal.write(data)
        self._register.end(call, header)
        self._broadcast(header, skip=call.owner)

    # -- what slots ask of the agent ---------------------------------------------------------------------

    def waiting_task(self, idle: Slot) -> Call | None:
        """Take a task that any slot can run out of the queue of one that is busy, or still starting."""
        for slot in self._slots:
            for call in slot.queue if slot is not idle else ():
                if not call.gang and call.header.get("rank") is None:
                    slot.queue.remove(call)
                    return call
        return None

    def call_given(self, slot: Slot, call: Call, *, armed: bool) -> None:
        loop = asyncio.get_running_loop()
        call.timers.append(loop.call_later(SLOW, self._announce, slot, call))
        if armed:
            self.arm(slot, call)

    def arm(self, slot: Slot, call: Call) -> None:
        """Start the clock of a call's time limit."""
        if call.timeout is not None and call.outcome is None:
            loop = asyncio.get_running_loop()
            call.timers.append(loop.call_later(call.timeout, self.stop, call, "timeout", self.config.grace))

    def _announce(self, slot: Slot, call: Call) -> None:
        for client in self._clients.values():
            if client.tail is not None:
                client.tail.wake()
        header = {"t": "began", "run": call.run, "i": call.index, "rank": slot.rank, "node": self.config.node}
        header["log"] = call.log_start
        if record := self._register.records.get(call.run):
            record.began[call.index] = header
        if call.owner is not None:
            call.owner.send(header)
        self._broadcast(header | {"name": call.header.get("name")}, skip=call.owner)

    def stop(self, call: Call, reason: str, grace: float) -> None:
        """End one call: SIGTERM, the grace, SIGKILL; or take it out of its queue."""
        self._reap()  # who died by itself just now is no victim of this
        if call.outcome is not None or call.stop_reason:
            return
        call.stop_reason = reason
        for slot in self._slots:
            if call.key in slot.running:
                slot.stop_process(reason, grace)
                return
            if call in slot.queue:
                slot.queue.remove(call)
                self._finish(None, call, call.no_result() | call.stopped())
                return

    def stale(self, call: Call) -> None:
        """A gang call whose gang is no more was not begun: hand it back for the client to start anew."""
        self._register.end(call, {"t": "stale", "run": call.run, "i": call.index, "kind": "stale"})
        self._register.drop(call)
        self._register.records[call.run].outcomes.pop(call.index, None)
        if call.owner is not None:
            call.owner.send({"t": "stale", "run": call.run, "i": call.index, "epoch": self.gang.epoch})

    def died(self, slot: Slot, call: Call, process: Process, status: int | None) -> None:
        """The worker of a call ended before the call did."""
        header = call.no_result()
        if call.stop_reason:
            header |= call.stopped()
        elif process.killed:
            header |= ended_with_worker(process.killed)
        else:
            fields, words = exit_words(status)
            if process.connection is None:
                words = f"its worker could not start: {words}; {self.last_words(slot.log_files[1])}"
            header |= fields | {"kind": "exited", "error": {"type": "RankExit", "message": words}}
        if call.given_at is not None:
            header["seconds"] = asyncio.get_running_loop().time() - call.given_at
        self._finish(slot, call, header)

    def last_words(self, name: str) -> str:
        """The last line of a file of the spool, in words."""
        path = self.config.spool / name
        lines = path.read_text(encoding="utf-8", errors="replace")[-2000:].strip().splitlines()
        return f"it said: {self._redactor.text(lines[-1])}" if lines else "it said nothing"

    def break_gang(self, why: str) -> None:
        if self.gang.epoch and not self.gang.broken and not self.gang.alone:
            self.gang.broken = why
            for connection in list(self._clients):
                connection.send(self.gang.state())
            self.pump()

    def pump(self) -> None:
        for slot in self._slots:
            slot.pump()


class _Client:
    """What the agent keeps of one client connection."""

    __slots__ = ("follower", "renews", "tail", "watches")

    def __init__(self) -> None:
        self.watches = False
        self.renews = False
        self.tail: Tail | None = None
        self.follower: asyncio.Task[None] | None = None
