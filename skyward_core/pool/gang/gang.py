"""The client's part in keeping gang runs in one order and the gang whole; see ``agent.gang`` for the other."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from ..links.link import Link
from .free_nodes import NodeHolds, choose, held
from .keeper import Keeper, NodesWanted

if TYPE_CHECKING:
    from ...wire.agent_frame_types import (
        AgentFormed,
        HereOfGang,
        HoldsAnswer,
        NumberAnswer,
        OfLock,
        PortsAnswer,
        WhereAnswer,
    )
    from ...wire.client_frame_types import ClientGang
    from ...wire.frame_types import Place

PATIENCE = 1.0  # seconds that a turn may take to come before it is said who has it


class GangKeeper(Keeper):
    """Holds the head's lock while gang runs are started, and forms a new epoch where one is needed.

    The lock is kept after a start and given back only when another client wants it, so that a client which is
    alone with the pool sends its calls at once.

    See :class:`Keeper` for what it is made with.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._held = False
        self._holder = ""  # of the lock, while it is another client
        self._wanted = False
        self._unclean = False
        self._granted: asyncio.Future[bool] | None = None
        self._giving: asyncio.Future[None] | None = None

    @property
    def head(self) -> Link:
        return self._links[0]

    @property
    def epoch(self) -> int:
        return self.head.epoch

    @property
    def whole(self) -> bool:
        """Whether all ranks live in one unbroken epoch."""
        epoch = self.head.epoch
        return epoch > 0 and all(
            link.epoch == epoch and not link.broken and not link.members for link in self._links
        )

    @property
    def ready(self) -> bool:
        return all(link.epoch and not link.broken for link in self._links)

    def on_frame(self, link: Link, header: OfLock) -> None:
        """The head's answers about the lock."""
        if link is not self.head:
            return
        if header["t"] == "granted":
            self._held = True
            if self._granted is not None and not self._granted.done():
                self._granted.set_result(header["unclean"])
        elif header["t"] == "held":
            self._holder = header["by"]
        elif header["t"] == "wanted":
            self._wanted = True
            if not self._busy.locked():
                self._giving = asyncio.ensure_future(self._give_back())

    def on_down(self, link: Link) -> None:
        if link is self.head:
            self._held = self._wanted = False
            if self._granted is not None and not self._granted.done():
                self._granted.set_exception(ConnectionError("the link to the head went down"))

    def start_now(self, send: Callable[[int], None]) -> bool:
        """Start a gang run without waiting, when nothing stands in the way; says whether it did."""
        if not self._held or self._wanted or self._busy.locked() or not self.whole:
            return False
        send(self.epoch)
        return True

    async def start(self, send: Callable[[int], None]) -> bool:
        """Start a gang run: ``send(epoch)`` hands its calls to the links.

        Raises:
            ConnectionError: the head cannot be reached now.
        """
        async with self._busy:
            await self._hold()
            if started := self.whole or not held(await self._look(), of_parts=True):
                await self._have_whole()
                send(self.epoch)
            if self._wanted:
                await self._release()
            return started

    async def start_on(
        self, wanted: NodesWanted, send: Callable[[int, tuple[int, ...]], None], job: str = ""
    ) -> bool:
        async with self._busy:
            await self._hold()
            nodes = choose(wanted, await self._look(), job)
            if nodes:
                links = [self._links[node] for node in nodes]
                epoch = links[0].epoch
                if any(link.epoch != epoch or link.broken or link.members != nodes for link in links):
                    epoch = await self._form(nodes)
                send(epoch, nodes)
            if self._wanted:
                await self._release()
            return bool(nodes)

    async def ensure(self) -> None:
        """Have all ranks in a gang, for work that is not a gang run but needs the plugins' contexts. Gangs of some of
        the nodes stay as they are."""
        async with self._busy:
            if self.ready:
                return
            await self._hold()
            await self._look()
            if any(link.members and not link.broken for link in self._links):
                rest = tuple(link.node for link in self._links if not link.epoch or link.broken)
                if rest:
                    await self._form(rest)
            else:
                await self._have_whole()
            if self._wanted:
                await self._release()

    async def _look(self) -> list[NodeHolds]:
        """What the nodes have, as they tell it; another client may have formed gangs there."""
        links = [
            link
            for link in self._links
            if link.up and not link.gone and "queue" in link.welcome.get("knows", ())
        ]
        answers: list[tuple[HoldsAnswer, bytes] | BaseException]
        answers = await asyncio.gather(*(link.ask({"t": "holds"}) for link in links), return_exceptions=True)
        told: dict[int, Mapping[str, HereOfGang]] = {}
        for link, answer in zip(links, answers, strict=True):
            if isinstance(answer, BaseException):
                if link is self.head:
                    raise answer
                continue  # it went down just now: others may do
            header = answer[0]
            told[link.node] = header["runs"]
            if header["epoch"] >= link.epoch and not (link.broken and header["epoch"] == link.epoch):
                link.learn_gang(header)
        return [
            NodeHolds(
                node=link.node,
                there=link.node in told,
                gone=link.gone,
                epoch=link.epoch,
                broken=bool(link.broken) and not link.spent,
                members=link.members,
                runs=told.get(link.node, {}),
            )
            for link in self._links
        ]

    async def _have_whole(self) -> None:
        """Form the next epoch where there is need of it; of one that is only spent, ranks may have yet to begin what
        they have been given."""
        if self.whole:
            return
        links = self._links
        if any(link.spent for link in links) and all(link.spent or not link.broken for link in links):
            await self._until_idle("runs wait for broadcasts that leave no process for them")
        await self._form()

    async def _hold(self) -> None:
        if not self._held:
            if not self.head.send({"t": "lock"}):
                raise ConnectionError("the link to the head is down")
            self._granted = asyncio.get_running_loop().create_future()
            with self._telling():
                self._unclean = await self._granted
        if self._unclean:
            await self._repair()
            self._unclean = False

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Say who is waited for, where that takes long."""
        since = time.strftime("%H:%M:%S")
        told = False

        def tell() -> None:
            nonlocal told
            told = True
            self._tell(
                f"runs wait since {since} for their turn after those of {self._holder or 'another client'}"
            )

        timer = asyncio.get_running_loop().call_later(PATIENCE, tell)
        try:
            yield
        finally:
            timer.cancel()
            if told:
                self._tell("")

    async def _give_back(self) -> None:
        async with self._busy:
            if self._held and self._wanted:
                await self._release()

    async def _release(self) -> None:
        """Let the next client start its runs, once every agent has got ours: else they could overtake them."""
        answers = [link.ask({"t": "ping"}) for link in self._links if link.up]
        await asyncio.gather(*answers, return_exceptions=True)
        self._held = self._wanted = False
        self.head.send({"t": "unlock", "unclean": self._unclean})

    async def _repair(self) -> None:
        """The last holder of the lock vanished: end runs that it had started on some agents only.

        Raises:
            ConnectionError: an agent cannot be asked now what it was given.
        """
        links = [link for link in self._links if not link.gone]
        answers: list[tuple[WhereAnswer, bytes]]
        answers = await asyncio.gather(*(link.ask({"t": "where"}) for link in links))
        runs = [(run, here) for header, _ in answers for run, here in header["runs"].items()]
        calls, active, totals = Counter[str](), Counter[str](), dict[str, int]()
        for run, here in runs:
            calls[run] += here["calls"]
            active[run] += here["active"]
            totals[run] = here["total"]
        why = "its client went away while it was being started"
        for run, total in totals.items():
            if active[run] and calls[run] < total:
                for link, (header, _) in zip(links, answers, strict=True):
                    if link.members and run not in header["runs"]:
                        continue  # it has a gang of some nodes, and the run is on others
                    link.send({"t": "stop", "run": run, "why": why, "break": link.epoch})
                    # Its agent will say so; but what we start next would reach it before we hear of it.
                    link.broken = link.broken or why

    async def renew_processes(self) -> None:
        async with self._busy:
            await self._hold()
            await self._until_idle(
                "runs wait for broadcasts that still use modules as they were before they were edited"
            )
            await self._form(fresh=True)
            if self._wanted:
                await self._release()

    async def _until_idle(self, words: str) -> None:
        """Wait for broadcasts that are under way, and say so. No other is begun meanwhile: the lock is ours."""
        told, pause = False, 0.01
        while True:
            links = [link for link in self._links if not link.gone]
            answers: list[tuple[WhereAnswer, bytes]]
            answers = await asyncio.gather(*(link.ask({"t": "where"}) for link in links))
            if not any(here["active"] for header, _ in answers for here in header["runs"].values()):
                break
            if not told:
                self._tell(words)
            told, pause = True, min(2 * pause, 0.5)
            await asyncio.sleep(pause)
        if told:
            self._tell("")

    async def _form(self, nodes: tuple[int, ...] = (), *, fresh: bool = False) -> int:
        """Form the next epoch, of all nodes or of these, and give its number."""
        await self._know_plugins()
        links = [self._links[node] for node in nodes] or self._links
        # Asked of all at once: forming a gang takes one round trip.
        formed: AgentFormed
        numbered: NumberAnswer
        (formed, _), (numbered, _), (peers, gpus, line) = await asyncio.gather(
            links[0].ask({"t": "form"}),
            self.head.ask({"t": "number", "least": 1 + max(link.epoch for link in self._links)}),
            self._with_ports(links),
        )
        epoch = numbered["epoch"]
        rendezvous = {"head_addr": formed["head_addr"], "head_port": formed["head_port"], "peers": peers}
        info = self._facts | rendezvous | {"total_accelerators": gpus}
        if nodes:
            each = self._facts["world_size"] // self._facts["total_nodes"]
            info |= {"members": list(nodes), "total_nodes": len(nodes), "world_size": len(nodes) * each}
            info["peers"] = [peers[node] | {"node": place} for place, node in enumerate(nodes)]
        header: ClientGang
        header, plugins = self._setup(epoch, info, fresh=fresh)
        if self._fail_fast and len(line) > 1:
            header["line"] = {"key": token_hex(), "nodes": line}
        for link in links:
            if link.send(header, plugins):
                link.epoch, link.broken, link.spent, link.members = epoch, "", False, nodes
        return epoch

    async def _with_ports(self, links: Sequence[Link]) -> tuple[list[Place], int, list[tuple[int, str, int]]]:
        """The nodes with the ports that they keep free for their ranks; their GPUs; where they hear one another."""
        links = [link for link in links if link.up]
        answers: list[tuple[PortsAnswer, bytes] | BaseException]
        answers = await asyncio.gather(*(link.ask({"t": "ports"}) for link in links), return_exceptions=True)
        told = {
            link.node: answer[0]
            for link, answer in zip(links, answers, strict=True)
            if not isinstance(answer, BaseException)  # it went down just now: there will be no whole gang
        }
        ports = {node: answer["ports"] for node, answer in told.items()}
        peers = [peer | {"ports": ports.get(peer["node"], [])} for peer in self._facts["peers"]]
        gpus = sum(answer["accelerators"] for answer in told.values())
        at = {peer["node"]: str(peer["address"]) for peer in peers}
        line = [(node, at[node], answer["line"]) for node, answer in told.items() if answer["line"]]
        return peers, gpus, line
