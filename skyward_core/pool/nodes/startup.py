"""Bringing nodes up: all of a new pool, those of a pool that is found again, one on another machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...model.capabilities import notices_of
from ...model.errors import CredentialsRefused, HostKeyError, PoolError, Unreachable, hint_of, what_of
from ...model.hint import Hint
from ...model.machine import Machine
from ...model.spec import Image, PoolSpec
from ...model.states import NodePhase
from ...plugins.base import bootstrap_steps, check_standalone, transform_image
from ...providers.told import answered, hearing
from ...tasks import import_path
from ...transport.base import Gate, Report
from ...views import events as ev
from ...wire.frames import WireError
from ..background import Background
from ..context import PoolContext
from ..links.link import Link, Listener
from ..news import News
from ..setup_knowledge import SetupKnowledge
from . import hunting
from .arrivals import Arrivals
from .locks import Locks
from .notices import taken_back
from .roster import Roster
from .unwritten import write_down


class Startup:
    """Has agents running on a pool's nodes, and connects to them.

    Args:
        listener: hears of what comes over the links.
        drop: told of a link over which nothing comes any more.

    Attributes:
        locks: what the nodes' ranks have.
    """

    def __init__(
        self, context: PoolContext, news: News, background: Background, knowledge: SetupKnowledge, roster: Roster,
        listener: Listener, drop: Callable[[Link], None],
    ) -> None:  # fmt: skip
        self._context = context
        self._news = news
        self._background = background
        self._knowledge = knowledge
        self._roster = roster
        self._listener = listener
        self._drop = drop
        self.locks = Locks(context, news)
        self._arrivals = Arrivals(context, news, roster)

    async def start(self, spec: PoolSpec) -> None:
        """Create the machines and bring every node to ready.

        Raises:
            PoolError: says which node failed, at what, and what to do; what was created is still there.
        """
        context = self._context
        for node in range(spec.most_nodes):
            self._news.emit(ev.NodePhase(pool=context.name, node=node, phase="requested"))
        with hearing(self._news.complain):
            context.machines[:] = await hunting.machines(context, self._news, spec)
        context.ledger.created(context.token, context.machines)
        self._learn_nodes()
        self._news.learn_price()
        self._refuse_ended()
        self._knowledge.know_secrets(
            [*spec.options.secrets, *(each for plugin in spec.plugins for each in plugin.secrets())]
        )
        context.links[:] = [self._link(machine) for machine in context.machines]
        gate = Gate(len(context.links))
        await _all(self._bring_up(link, gate) for link in context.links)
        await self._measure(context.links)
        self._agree()

    def _learn_nodes(self) -> None:
        """How many nodes there are is known once their machines are: of a range there may be fewer than its most."""
        context = self._context
        if len(context.view.nodes) != len(context.machines):
            context.row = context.ledger.pool(context.token)
            self._news.opened()

    def _refuse_ended(self) -> None:
        """Another client may have torn the pool down meanwhile, and have seen nothing of these machines.

        Raises:
            PoolError: it has; what was created is still there.
        """
        row = self._context.ledger.pool(self._context.token)
        if row.state == "stopping" or row.ended_at is not None:
            raise PoolError(
                f"pool {self._context.name} was torn down by another client while it was starting"
            )

    async def attach(self) -> None:
        """Connect to the nodes that are there.

        Raises:
            Unreachable, HostKeyError, CredentialsRefused: no node answers; by what the first of them says.
            PoolError: no machine is left, or the pool is of another release; or it was never up, and a machine of it is
                not what was bought, and could not be exchanged.
        """
        pool = self._context
        pool.machines[:] = pool.ledger.machines(pool.token)
        self._news.learn_price()
        replaced = {each.node: each for each in pool.ledger.replacements(pool.token)}
        if pool.row.state == "starting" and await write_down(
            pool.name, pool.token, pool.provider, pool.ledger
        ):
            pool.machines[:] = pool.ledger.machines(pool.token)
            self._learn_nodes()
            self._news.learn_price()
        seen = await answered("describe", pool.name, pool.provider.describe(pool.name, pool.machines))
        self._refuse_unfinished(seen)
        coming = any(each.is_alive for each in replaced.values())
        if not seen or (all(machine.state == "gone" for machine in seen) and not coming):
            raise PoolError(f"no machine of pool {pool.name} is left")
        self._news.live.prime()
        pool.links[:] = [self._link(machine) for machine in pool.machines]
        orphans = []
        for link, machine in zip(pool.links, seen, strict=True):
            entry = replaced.get(link.node)
            if entry is not None and (entry.is_alive or machine.state != "running"):
                link.lose()  # another client brings it up, or has left that to be gone on with
                self._phase(link, "requested", "another machine is on its way")
            elif machine.state == "orphaned":
                orphans.append(link)
            elif machine.state == "gone":
                taken = taken_back(link.node, machine)
                link.lose(taken or "its machine was gone when somebody came", taken_back=bool(taken))
                self._phase(link, "gone", taken or "gone when we came")
        there = [link for link in pool.links if not link.gone and link not in orphans]
        results = await asyncio.gather(*(link.connect() for link in there), return_exceptions=True)
        if orphans:
            if any(link.up for link in there):
                await self._knowledge.learn()  # a new agent should know what the one before it did
            results += await asyncio.gather(*map(self._bring_back, orphans), return_exceptions=True)
        failures = [
            (link, error)
            for link, error in zip([*there, *orphans], results, strict=True)
            if isinstance(error, BaseException)
        ]
        if failures and len(failures) == len(results):
            raise _no_answer(pool.name, failures[0][1]) from failures[0][1]
        for link, error in failures:
            if pool.observer:  # it looks again by itself
                self._news.emit(ev.NodeLink(pool=pool.name, node=link.node, up=False, detail=what_of(error)))
            else:
                link.come_back(what_of(error))
        up = [link for link in pool.links if link.up]
        for link in up:
            if pool.observer or not self._is_unfinished or self._arrivals.bought(link.node) is None:
                self._phase(link, "ready", address=pool.machines[link.node].address)
        if not pool.observer:
            await self.finish()

    @property
    def _is_unfinished(self) -> bool:
        """Whether who made the pool was gone before its machines were measured."""
        return self._context.ledger.pool(self._context.token).state == "starting"

    async def finish(self) -> None:
        """Measure the machines of a pool that was never up.

        Raises:
            PoolError: one is not what was bought, and could not be exchanged.
        """
        if self._is_unfinished:
            await self._measure([link for link in self._context.links if link.up])

    async def _measure(self, links: Iterable[Link]) -> None:
        await self._arrivals.see([link.node for link in links], partial(self.take_over, ready=False))

    def _refuse_unfinished(self, seen: Sequence[Machine]) -> None:
        """Of machines that end only with their pool none has an agent yet, and who knew what to tell one is gone; or we
        only look, and to go on with what its client has left would be to set it up.

        Raises:
            PoolError: so it is; says how many machines there are.
        """
        pool = self._context
        if pool.observer and pool.row.state == "starting" and any(each.state == "orphaned" for each in seen):
            raise PoolError(
                f"pool {pool.name} was not finished: its client was gone while it was starting; to use it is to go on "
                "with that",
                hint=Hint("down", pool.name),
            )
        left = [each for each in seen if each.state != "gone"]
        if (
            pool.ends_machines
            and pool.row.state == "starting"
            and left
            and all(each.state == "ending" for each in left)
        ):
            raise PoolError(
                f"pool {pool.name} was not finished: its client was gone before an agent ran on any of its "
                f"{len(left)} machines, which may cost money until they are ended",
                hint=Hint("down", pool.name),
            )

    async def _bring_back(self, link: Link) -> None:
        async with self._roster.deciding(link.node) as decided:
            if decided:
                link.lose()
                self._phase(link, "requested", "another machine is on its way")
                return
            await self.prepare(link)
        await link.connect()

    async def learn(self) -> None:
        """Know what a new agent has to be told.

        Raises:
            OSError: another node has to be asked for it, and none can be now.
        """
        await self._knowledge.learn()

    async def take_over(self, machine: Machine, *, ready: bool = True) -> None:
        """Bring a node up on another machine than it had.

        Args:
            machine: it.
            ready: whether it counts as soon as it is up.

        Raises:
            PoolError: the machine cannot be reached, cannot run an agent, or is not what was bought.
            OSError: another node has to be asked for the environment, and none can be now.
        """
        pool, node = self._context, machine.node
        await self._knowledge.learn()
        pool.machines[node] = machine
        self._news.learn_price()
        link = self._link(machine)
        try:
            await self.prepare(link)
            await self._swap(link)
            self._agree()
            if ready:
                await self._arrivals.approve(node)
        except BaseException:
            self._drop(link)
            self._background.spawn(link.close())
            raise

    async def join(self, machine: Machine) -> None:
        """Connect to the machine that another client has put in a node's place.

        Raises:
            PoolError, OSError: it does not answer.
        """
        pool = self._context
        pool.machines[machine.node] = machine
        self._news.learn_price()
        link = self._link(machine)
        try:
            await self._swap(link)
            await self._knowledge.learn()  # of this node, where no other is there
        except BaseException:
            self._drop(link)
            self._background.spawn(link.close())
            raise
        self._phase(link, "ready", address=machine.address)

    async def _swap(self, link: Link) -> None:
        """Put a new link in the place of one that is gone."""
        links = self._context.links
        self._background.spawn(links[link.node].close())
        links[link.node] = link
        await self._connect(link)

    async def prepare(self, link: Link, gate: Gate | None = None, *, first: bool = False) -> Report:
        """Have an agent running on a node: a new one, or the one that is there.

        Args:
            first: the pool has never been on that machine.

        Returns:
            How to tell of the node's further phases.

        Raises:
            PoolError: the node cannot be reached or cannot run an agent.
        """
        machine = self._context.machines[link.node]

        def report(
            phase: NodePhase, detail: str = "", retry_at: float | None = None, address: str = ""
        ) -> None:
            self._phase(link, phase, detail, retry_at, address or machine.address)

        config = self._config(link.node)
        self.locks.keep(link, config, await link.transport.prepare(config, report, gate, first=first))
        return report

    async def send_folder(self) -> None:
        """Bring the nodes' copies of the working folder up to date.

        Raises:
            PoolError: it cannot travel, or a host cannot be reached.
        """
        links = [link for link in self._context.links if not link.gone]
        gate, known = Gate(len(links)), self._knowledge

        def said(link: Link) -> Callable[[str], None]:
            return lambda line: self._news.complain(f"node {link.node}: {line}")

        await _all(link.transport.send_folder(known.cwd, known.image, gate, said(link)) for link in links)

    async def _bring_up(self, link: Link, gate: Gate) -> None:
        report = await self.prepare(link, gate, first=True)
        await self._connect(link)
        if self._arrivals.bought(link.node) is None:
            report("ready")

    async def _connect(self, link: Link) -> None:
        try:
            await link.connect()
        except (OSError, WireError) as error:
            address = self._context.machines[link.node].address
            said = f"the agent of node {link.node} ({address}) does not answer: {error}"
            raise (PoolError if isinstance(error, WireError) else Unreachable)(said) from error

    def _config(self, node: int) -> dict[str, Any]:
        """What the agent of a node is told; see ``agent.config``."""
        pool, known = self._context, self._knowledge
        worker = pool.row.spec["worker"]
        before, behind = import_path.entries()
        local = [entry for _, entry in known.image.get("folders") or ()]
        return {
            "pool": pool.name,
            "node": node,
            "nodes": len(pool.machines),
            "address": pool.machines[node].private_address,
            "ranks_per_node": worker["ranks_per_node"],
            "free_gpus": pool.machines[node].extra.get("free_gpus") or {},
            "concurrency": worker["concurrency"],
            "executor": worker["executor"],
            "idle_timeout": pool.options.idle_timeout,
            "ttl": pool.options.ttl,
            "deadman": pool.machines[node].extra.get("deadman", 0),
            "notices": notices_of(pool.provider, pool.machines[node]),
            "keep_results": pool.options.keep_results,
            "log_limit": pool.options.log_limit,
            "grace": pool.options.grace,
            "rendezvous": pool.options.rendezvous,
            "debug_wait": pool.options.debug_wait,
            "nice": pool.options.nice,
            "env": known.env,
            "knows_env": known.known,
            "secrets": known.secrets,
            "cwd": known.cwd,
            "interpreter": known.interpreter,
            "path_before": before,
            "path": [*filter(None, (known.image.get("workdir"),)), *local, *behind],
            "image": known.image | {"env": known.env, "allow_apt": pool.options.allow_apt},
        }

    def _link(self, machine: Machine) -> Link:
        pool = self._context
        return Link(
            machine.node,
            pool.provider.transport(pool.name, machine),
            self._listener,
            observer=pool.observer,
            logs_from=machine.logs_from,
            pool=pool.name,
        )

    def _agree(self) -> None:
        """All nodes must have as many ranks.

        Raises:
            PoolError: they have different numbers of GPUs.
        """
        links = [link for link in self._context.links if link.up]
        counts = [link.welcome["ranks_per_node"] for link in links]
        if len(set(counts)) > 1:
            told = ", ".join(f"node {link.node} {link.welcome['ranks_per_node']}" for link in links)
            raise PoolError(
                f'ranks_per_node="gpu" needs nodes with the same number of GPUs, and pool {self._context.name} has: '
                f"{told}; give the number: ranks_per_node={min(counts)}, say"
            )

    def _phase(
        self, link: Link, phase: NodePhase, detail: str = "", retry_at: float | None = None, address: str = ""
    ) -> None:
        self._news.emit(
            ev.NodePhase(
                pool=self._context.name, node=link.node, phase=phase, detail=detail, retry_at=retry_at,
                address=address,
            )
        )  # fmt: skip


def _no_answer(pool: str, failure: BaseException) -> PoolError:
    if isinstance(failure, WireError):
        return PoolError(
            f"pool {pool} is of another release of this software: {failure}. Use it with the one that made it",
            hint=Hint("down", pool),
        )
    kind = type(failure) if isinstance(failure, HostKeyError | CredentialsRefused) else Unreachable
    return kind(f"no node of pool {pool} answers: {what_of(failure)}", hint=hint_of(failure))


def whole_image(spec: PoolSpec) -> Image:
    """What the nodes' environment holds, the plugins' part of it included.

    Raises:
        UsageError, PluginError: a plugin cannot be used so.
    """
    if not spec.options.cluster and spec.may_have_peers:
        check_standalone(spec.plugins)
    image = transform_image(spec.plugins, spec.image, spec)
    return replace(image, setup=(*image.setup, *bootstrap_steps(spec.plugins, spec)))


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all; the first failure cancels the others and is raised itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
