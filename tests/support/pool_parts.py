"""Real ledger, view and links of a pool, with simulated hosts and agents."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.outcomes_states_and_alerts import MachineStatus
from skyward_core.model.specs import Image, Options, PoolSpec
from skyward_core.pool.agent_link import Link
from skyward_core.pool.node_recovery import NodeReplacements
from skyward_core.pool.pool_context import PoolContext
from skyward_core.pool.startup_and_machine_verification import PoolStartup
from skyward_core.protocol.frame_codec import VERSION, Decoder, Header, encode_frame
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow

TOKEN = "t0"


def dead_process() -> int:
    """Return the id of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def machine(node: int, name: str = "") -> Machine:
    name = name or f"m{node}"
    return Machine(name, node, f"host-{name}", "", extra={"host": name, "folder": f"/{name}"})


class World:
    """State of all simulated hosts, their provider and their agents. Tests set it.

    Attributes:
        asked: Tokens passed to the provider's ``replace``.
        ended: Ids of terminated machines.
        prepared: Ids of the machines on which an agent was requested, with its configuration.
        states: Machine id -> state that the provider reports.
        ended_as: Machine id -> reason of the end that the provider reports.
        unfetched: Machine id -> unfetched results that its agent reports.
        refuses: Machine id -> error of connections to its agent.
        room: Maximum number of machines.
        ranks: Machine id -> ranks that its agent reports.
        remembers: Machine id -> runs that its agent reports to every client.
        pipes: Machine id -> latest connection to its agent.
        on_replace, on_prepare, on_terminate: Called first in these methods; may raise or wait.
    """

    name = "played"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.ended: list[str] = []
        self.prepared: list[tuple[str, Header]] = []
        self.states: dict[str, MachineStatus] = {}
        self.refuses: dict[str, Exception] = {}
        self.ended_as: dict[str, dict[str, str]] = {}
        self.unfetched: dict[str, dict[str, int]] = {}
        self.room = 1024
        self.ranks: dict[str, int] = {}
        self.remembers: dict[str, list[Header]] = {}
        self.pipes: dict[str, Pipe] = {}
        self.questions: list[tuple[str, str]] = []
        self.on_create: Callable[[], Awaitable[None]] = nothing
        self.on_replace: Callable[[str], Awaitable[None]] = nothing
        self.on_prepare: Callable[[Machine, Any, bool], Awaitable[None]] = nothing
        self.on_terminate: Callable[[], Awaitable[None]] = nothing

    # -- as a provider --

    async def create(self, spec: PoolSpec, token: str) -> list[Machine]:
        await self.on_create()
        return [machine(node) for node in range(min(self.room, spec.most_nodes))]

    async def replace(
        self, pool: str, token: str, node: int, machines: Sequence[Machine], former: Sequence[Machine]
    ) -> Machine:
        self.asked.append(token)
        await self.on_replace(token)
        return machine(node, f"new-{token}")

    async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
        return [
            replace(each, state=self.states.get(each.id, "running"), extra=each.extra | self.ended_as.get(each.id, {}))
            for each in known
        ]

    async def terminate(self, pool: str, machines: Sequence[Machine]) -> None:
        self.ended += [each.id for each in machines]
        await self.on_terminate()
        self.states |= {each.id: "gone" for each in machines}

    async def teardown(self, pool: str) -> None:
        return None

    def transport(self, pool: str, machine: Machine) -> Any:
        return Transport(self, machine)

    def to_json(self) -> dict[str, Any]:
        return {"provider": self.name}


async def nothing(*_: Any) -> None:
    return None


class Transport:
    """Transport to one simulated machine with an agent."""

    shares_files = False
    direct = None

    def __init__(self, world: World, machine: Machine) -> None:
        self.world, self.machine = world, machine

    async def prepare(self, config: Header, report: Any, gate: Any = None, *, first: bool = False) -> None:
        self.world.prepared.append((self.machine.id, config))
        await self.world.on_prepare(self.machine, gate, first)

    async def open(self, on_data: Any, on_lost: Any) -> Pipe:
        if (error := self.world.refuses.get(self.machine.id)) is not None:
            raise error
        pipe = self.world.pipes[self.machine.id] = Pipe(self, on_data, on_lost)
        return pipe

    async def forward_port(self, address: str, port: int) -> tuple[str, int]:
        return address, port

    async def finish_uploads(self) -> None:
        return None

    async def close(self) -> None:
        return None


class Pipe:
    """Connection with a simulated agent, whose frames a test chooses."""

    def __init__(self, way: Transport, on_data: Any, on_lost: Any) -> None:
        self._way, self._on_data, self.on_lost = way, on_data, on_lost
        self._decoder = Decoder()

    def write(self, data: bytes) -> None:
        for header, _ in self._decoder.feed(data):
            self._way.world.questions.append((self._way.machine.id, header["t"]))
            if (answer := self._answer(header)) is not None:
                asyncio.get_running_loop().call_soon(self.say, answer)

    def say(self, header: Header, body: bytes = b"") -> None:
        self._on_data(encode_frame(header, body))

    def _answer(self, header: Header) -> Header | None:
        node, name, world = self._way.machine.node, self._way.machine.id, self._way.world
        match header["t"]:
            case "hello":
                return {
                    "t": "welcome", "version": VERSION, "epoch": 1, "broken": "", "node": node, "address": "",
                    "ranks_per_node": world.ranks.get(name, 1), "lease": None,
                    "runs": world.remembers.get(name, []), "unfetched": world.unfetched.get(name, {}),
                }  # fmt: skip
            case "setup":
                data = {"env": {"WORD": "told"}, "known": True, "secrets": [], "apps": False}
                return {"t": "known", "id": header["id"]} | data
            case "claim" if "id" in header:  # one that is told again after a drop asks nothing
                return {"t": "known", "id": header["id"], "calls": [node]}
            case "halt":
                return {"t": "known", "id": header["id"]}
            case "written":
                return {"t": "known", "id": header["id"], "files": [], "more": 0, "folder": ""}
            case "ping" if header["id"]:
                return {"t": "pong", "id": header["id"], "lease": None, "unfetched": {}}
            case "shutdown":
                return {"t": "bye", "logs": {}}
        return None

    def close(self) -> None:
        return None


class Client:
    """One client of a pool, as its nodes see it.

    Attributes:
        renewed: For each returned node, whether this client had brought it up.
        dropped: Nodes whose link was given up.
        greeted: Nodes whose agent has reported its recorded runs, once for each time.
    """

    def __init__(self, world: World, row: PoolRow, *, observer: bool = False) -> None:
        self.world = world
        self.ledger = Ledger()
        self.context = context = PoolContext(row, world, self.ledger, observer=observer)  # type: ignore[arg-type]
        self.news, self.roster, self.setup = context.news, context.roster, context.setup
        self.news.emit_opened()
        self.renewed: list[bool] = []
        self.on_renewed: Callable[[], Awaitable[None]] = nothing
        self.dropped: list[int] = []
        self.greeted: list[int] = []
        context.listener = self
        self._drop_link = context.registry.drop_link
        context.registry.drop_link = self._drop  # type: ignore[method-assign]
        context.setup.on_node_replaced = self._renewed  # type: ignore[method-assign]
        self.startup = context.startup = PoolStartup(context)
        self.replacements = NodeReplacements(context)

    async def _renewed(self, form: bool) -> None:
        self.renewed.append(form)
        await self.on_renewed()

    def _drop(self, link: Link) -> None:
        self.dropped.append(link.node)
        self._drop_link(link)

    # -- as a listener --

    def on_frame(self, link: Link, header: Any, body: bytes) -> None:
        if header["t"] in ("outcome", "item", "began", "run"):
            self.context.registry.on_frame(link, header, body)

    def on_link(self, link: Link, up: bool, detail: str) -> None:
        if up:
            self.context.registry.sync_from_agent(link)
            self.greeted.append(link.node)

    def cursors(self, node: int) -> dict[str, int]:
        return {}

    # -- what tests ask --

    @property
    def details(self) -> list[str]:
        return [node.detail for node in self.context.view.nodes]

    @property
    def phases(self) -> list[str]:
        return [node.phase for node in self.context.view.nodes]

    async def close(self) -> None:
        await self.roster.stop_replacing()
        for link in self.context.links:
            await link.close()
        await self.context.background.stop()
        self.news.close()
        self.ledger.close()


def intended(world: World, nodes: int = 2, **options: Any) -> tuple[PoolSpec, PoolRow]:
    """Register a pool in the ledger, with its machines as if a client had created them."""
    spec = PoolSpec(name="p", provider=world, nodes=nodes, options=Options(console=False, **options))
    ledger = Ledger()
    row = ledger.record_intent(TOKEN, "p", world.to_json(), spec.describe())
    ledger.record_created(TOKEN, [machine(node) for node in range(nodes)])
    ledger.set_pool_state(TOKEN, "up")
    ledger.close()
    return spec, row


async def attached(world: World, row: PoolRow, *, observer: bool = False) -> Client:
    """Attach a client to a pool."""
    client = Client(world, row, observer=observer)
    client.setup.set_image(Image())
    await client.startup.attach_nodes()
    client.roster.save_state()
    return client
