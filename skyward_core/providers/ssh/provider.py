"""Hosts that already run, reached over SSH: the lab's GPU boxes, a rented server, a corner of a cluster."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ...model.errors import (
    NoCapacity,
    PoolError,
    SkywardError,
    TooFewHosts,
    Unreachable,
    UsageError,
    hint_of,
    what_of,
)
from ...model.machine import Check, Machine
from ...model.spec import PoolSpec
from ...runtime.info import instance_info
from ...store.home import host_groups
from ...transport.background_loop import prompt, submit
from ...transport.ssh.dial import Dials
from ...transport.ssh.target import Policy, Target
from ...transport.upload.bundle import bundle
from .settings import SETTINGS

if TYPE_CHECKING:
    from ...model.setting import Setting
    from ...transport.ssh.transport import SSHTransport
    from ...wire.host_fact_types import GpusDone, ReachDone

# What imports asyncssh is imported where it is needed: the hosts are dialled before.

CHECK_PATIENCE = 5.0  # seconds of attempts for each host of a check-up
GLANCE = 1.0  # seconds for a host that fell silent: whoever waits for it shall know soon
ENDING = 30.0  # seconds that may take to end what runs on a host
ANSWER = 10.0  # seconds that a login shell and Python may take to say how things are
AT_ONCE = 16  # hosts that are checked or ended at the same time
ENOUGH_DISK = 2 << 30


@dataclass(frozen=True)
class SSH:
    """Hosts that already run.

    Args:
        hosts: names, addresses, ``user@host:port`` or aliases of ``~/.ssh/config``; or the name of a group of
            ``[hosts]`` in ``skyward.toml``, alone or, with an ``@`` before it, among other hosts.
        user: who to log in as where neither the host nor the configuration says.
        port: where their SSH servers listen where neither the host nor the configuration says.
        keys: files of private keys; None for those of ``~/.ssh``, its configuration, and the ssh-agent.
        known_hosts: a known_hosts file to verify host keys by, in place of the person's own ones.
        python: the interpreter to use on the hosts; None to look for one of the client's minor version.
        config: whether ``~/.ssh/config`` is read.
        jump: a host to go through, as ``ssh -J`` takes it; several with commas.
        host_keys: what to do about a host key that is not known: "known" refuses it, "ask" asks the person,
            "accept-new" writes it down. A key that has changed is always refused.

    Attributes:
        name: how people name it.
        about: what it is, in a few words, for a form.
        machine: what one of its machines is called there.
        settings: what a person may choose, for a form and a command line.

    Raises:
        UsageError: no hosts, an unknown group, a host named twice, or a policy that does not exist.
    """

    hosts: Sequence[str] | str
    _: KW_ONLY
    user: str | None = None
    port: int | None = None
    keys: Sequence[str] | str | None = None
    known_hosts: str | None = None
    python: str | None = None
    config: bool = True
    jump: str | None = None
    host_keys: Policy = "known"

    name: ClassVar[str] = "ssh"
    about: ClassVar[str] = "hosts of your own"
    machine: ClassVar[str] = "host"
    settings: ClassVar[Sequence[Setting]] = SETTINGS

    def __post_init__(self) -> None:
        if self.host_keys not in ("known", "ask", "accept-new"):
            raise UsageError(f"host_keys={self.host_keys!r}: choose 'known', 'ask' or 'accept-new'.")
        keys = (self.keys,) if isinstance(self.keys, str) else tuple(self.keys or ())
        object.__setattr__(self, "hosts", _expand(self.hosts))
        object.__setattr__(self, "keys", keys)
        for host in self.hosts:
            self.target(host)

    @property
    def default_nodes(self) -> int:
        """Nodes of a pool for which no number is asked: all hosts."""
        return len(self.hosts)

    def asking(self) -> SSH:
        """The same hosts; a host key that is not known is shown to the person."""
        return replace(self, host_keys="ask")

    def target(self, host: str) -> Target:
        """How one of the hosts is reached.

        Args:
            host: as it stands in ``hosts``.

        Raises:
            UsageError: that is no name of a host.
        """
        wishes = Target(
            host="",
            user=self.user,
            port=self.port,
            keys=tuple(self.keys or ()),
            known_hosts=self.known_hosts,
            config=self.config,
            jump=self.jump,
            host_keys=self.host_keys,
        )
        return wishes.named(host)

    # -- the verbs ---------------------------------------------------------------------------------------

    async def create(self, spec: PoolSpec, token: str) -> list[Machine]:
        """The first hosts; nothing is created, and nothing contacted, until a node is prepared.

        Raises:
            TooFewHosts: there are fewer hosts than nodes.
        """
        if spec.nodes > len(self.hosts):
            raise TooFewHosts(
                f"{spec.nodes} nodes were asked for, and there are {len(self.hosts)} hosts: "
                f"{', '.join(self.hosts)}. Ask for fewer nodes, or name more hosts."
            )
        return [
            Machine(
                id=host,
                node=node,
                address=host,
                private_address="",
                extra={"host": host, "folder": f"{spec.name}.{token[:8]}.{node}"},
            )
            for node, host in enumerate(self.hosts[: spec.nodes])
        ]

    async def replace(
        self, pool: str, token: str, node: int, machines: Sequence[Machine], former: Sequence[Machine]
    ) -> Machine:
        """A host that no node of the pool is on and that answers: one that the pool never had, else one that it had.

        As with ``create``, nothing is left there until a node is prepared.

        Raises:
            NoCapacity: all hosts are taken, or none of the others answers.
        """
        taken = {machine.extra["host"] for machine in machines}
        had = [machine.extra["host"] for machine in former]
        spares = sorted((host for host in self.hosts if host not in taken), key=had.count)  # in their order
        asked = await _all(self._answers(host) for host in spares)
        for host, why in zip(spares, asked, strict=True):
            if not why:
                folder = f"{former[-1].extra['folder'].rpartition('.')[0]}.{node}-{token[:6]}"
                return Machine(host, node, host, "", extra={"host": host, "folder": folder})
        advice = "" if set(spares) - set(had) else "; name more hosts than nodes to have spare ones"
        raise NoCapacity(f"no host can take node {node}: {'; '.join(asked)}{advice}")

    async def _answers(self, host: str) -> str:
        """Why a host cannot be had now; "" if it can."""
        transport = self._way(host, patience=CHECK_PATIENCE)
        try:
            (await transport.channel()).close()
        except (PoolError, UsageError, OSError) as error:
            return what_of(error).rstrip(".")
        finally:
            await transport.close()
        return ""

    async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
        """The pool's machines with their state.

        "running" while the agent lives there, "orphaned" when its folder waits for another one, as workers live there
        or the lease is not over, "ending" when only processes are left, "gone" when nothing is; "lost" when neither we
        nor a node that we reach gets an answer from the host, "unreachable" when the trouble may be the way to it.
        """
        return await _all(self._look(pool, machine) for machine in known)

    async def _look(self, pool: str, machine: Machine) -> Machine:
        folder = machine.extra["folder"]
        here = self._live(folder)
        if here is not None and here.untouched:
            return replace(machine, state="gone")  # its start ended before anything was left there
        if here is not None and here.is_up:
            try:
                return await self._ask_for_state(here, machine, ANSWER)
            except (PoolError, UsageError, OSError):
                here = here if not here.is_up else None
        fresh = self.transport(pool, machine, patience=GLANCE)
        asked = asyncio.ensure_future(self._ask_for_state(fresh, machine, GLANCE + ANSWER))
        try:
            if here is not None and await self._silent(folder, here, asked):
                return replace(machine, state="lost")
            return await asked
        except (PoolError, UsageError, OSError) as error:
            return replace(machine, state="unreachable", extra=machine.extra | {"why": what_of(error)})
        finally:
            asked.cancel()
            await fresh.close()

    @staticmethod
    async def _ask_for_state(transport: SSHTransport, machine: Machine, seconds: float) -> Machine:
        try:
            async with asyncio.timeout(seconds):
                channel = await transport.channel(status=True)
        except TimeoutError as error:
            said = f"Host {machine.extra['host']} has not said within {seconds:g} s how things are there."
            raise Unreachable(said) from error
        channel.close()
        facts = channel.facts
        if facts["doubted"]:
            raise PoolError(
                f"Host {machine.extra['host']}: {facts['doubted']}, so nothing there is believed."
            )
        if facts["root"] and facts["running"]:
            return machine
        if facts["root"] and facts["left"]:
            return replace(machine, state="orphaned")  # a new agent takes over what is there
        if facts["root"] and facts["orphans"]:
            return replace(machine, state="ending")  # something that ran there has not quite ended
        told = {"why": facts.get("ended", ""), "kept": facts.get("kept", {})}
        return replace(machine, state="gone", extra=machine.extra | told)

    async def _silent(self, folder: str, lost: SSHTransport, asked: asyncio.Future[Machine]) -> bool:
        """Whether a node that we do reach gets no answer from a host either; False once ``asked`` knows more."""
        pool = folder.rpartition(".")[0]
        peers = [t for t in _live_ones() if t.folder.rpartition(".")[0] == pool and t is not lost and t.is_up]
        if not peers or lost.place is None:
            return False
        peer = asyncio.ensure_future(_reaches(peers[0], lost.place))
        both: list[asyncio.Future[Any]] = [peer, asked]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if asked.done() and asked.exception() is None:
            peer.cancel()
            return False
        try:
            return not await peer
        except (PoolError, OSError):
            return False  # it is we who are cut off, it seems

    @staticmethod
    def _live(folder: str) -> SSHTransport | None:
        return next((t for t in _live_ones() if t.folder == folder), None)

    async def terminate(self, pool: str, machines: Sequence[Machine]) -> None:
        """End the pool's agents and workers on the hosts, and remove their folders; the hosts go on."""
        from ...transport.ssh.transport import send_bundle

        async def finish(machine: Machine) -> None:
            transport = self.transport(pool, machine, patience=CHECK_PATIENCE)
            try:
                async with asyncio.timeout(ENDING):
                    channel = await transport.channel()
                    if channel.facts["root"]:
                        await send_bundle(channel)
                        await channel.ask("end", folder=transport.folder, socket=channel.facts["socket"])
                    channel.close()
            except (PoolError, UsageError, OSError):
                return  # ``describe`` tells of it; the lease ends the pool there
            finally:
                await transport.close()

        await _all(finish(machine) for machine in machines)

    async def teardown(self, pool: str) -> None:
        """Forget the pool's names for ``ssh``; nothing else was made beside the machines' folders."""
        from ...transport.ssh import openssh_config

        openssh_config.remove(pool)

    async def check(self) -> list[Check]:
        """What works on each host, in words."""
        lines = await _all(self._check(host) for host in self.hosts)
        return [line for host in lines for line in host]

    @classmethod
    async def check_all(cls) -> list[Check]:
        """What works on the hosts of each group of ``skyward.toml``, in words."""
        try:
            groups = host_groups()
        except SkywardError as error:
            return [Check("settings", "fail", what_of(error), hint_of(error))]
        if not groups:
            none = "no groups under [hosts] in skyward.toml, so no hosts to look at"
            return [Check(cls.name, "ok", none)]
        lines: list[Check] = []
        for group in groups:
            # Of a host that is in several groups the same is true in each.
            try:
                lines += await cls(f"@{group}").check()
            except (SkywardError, OSError) as error:
                lines.append(Check(f"group {group}", "fail", what_of(error), hint_of(error)))
        return lines

    async def _check(self, host: str) -> list[Check]:
        from ...transport.ssh.transport import CLOCK_SLACK, send_bundle

        transport = self._way(host, patience=CHECK_PATIENCE)
        try:
            began = time.time()
            channel = await transport.channel()
            facts = channel.facts
            # It was asked some time between the two: only beyond them it is off, however slow the login.
            offset = facts["time"] - min(max(facts["time"], began), time.time())
            lines = [
                Check(host, "ok", f"reachable as {facts['hostname']}, its host key is known"),
                Check(host, "ok", f"Python {'.'.join(map(str, facts['version']))} ({facts['python']})"),
            ]
            if not facts["root"]:
                return [*lines, Check(host, "fail", "no folder to write to: " + "; ".join(facts["unusable"]))]
            lines.append(
                Check(
                    host,
                    "ok" if facts["free"] > ENOUGH_DISK else "warn",
                    f"{facts['free'] / 1e9:.1f} GB free in {facts['root']}",
                )
            )
            await send_bundle(channel)
            told: GpusDone = await channel.ask("gpus")
            gpus = told["gpus"]
            lines.append(Check(host, "ok", "; ".join(gpus) if gpus else f"no GPU; {facts['cpus']} CPUs"))
            lines.append(Check(host, "ok", f"peers reach it at {facts['address'] or 'an unknown address'}"))
            exact = abs(offset) <= CLOCK_SLACK
            words = "right" if exact else f"{abs(offset):.0f} s {'ahead' if offset > 0 else 'behind'}"
            lines.append(Check(host, "ok" if exact else "warn", f"its clock is {words}"))
            channel.close()
            return lines
        except (PoolError, UsageError, OSError) as error:
            return [Check(host, "fail", what_of(error), hint_of(error))]
        finally:
            await transport.close()

    @contextmanager
    def warm(self, spec: PoolSpec) -> Iterator[None]:
        """Connect to the hosts that ``create`` will give, and have Python started there."""
        if self.host_keys == "ask":
            yield  # a question comes when its pool is there to be seen
            return
        targets = [self.target(host) for host in self.hosts[: spec.nodes]]
        dials = Dials(targets)
        with prompt():
            try:
                submit(dials.open()).result()
                from ...transport.ssh.command_channel import CommandChannel
                from ...transport.ssh.connect import close_early, open_early

                begin = partial(CommandChannel.begin, python=self.python, name=spec.name)
                try:
                    submit(open_early(targets, dials, begin)).result()
                    threading.Thread(target=_pack, daemon=True).start()
                    yield
                finally:
                    submit(close_early(targets)).result()
            finally:
                submit(dials.close()).result()

    # -- values ------------------------------------------------------------------------------------------

    def transport(self, pool: str, machine: Machine, *, patience: float | None = None) -> SSHTransport:
        """The way to one of the pool's machines.

        Args:
            pool: the pool's name.
            machine: the machine.
            patience: seconds of attempts to connect; None for 30.
        """
        return self._way(machine.extra["host"], machine.extra["folder"], patience)

    def _way(self, host: str, folder: str = "", patience: float | None = None) -> SSHTransport:
        from ...transport.ssh.transport import PATIENCE, SSHTransport

        patience = PATIENCE if patience is None else patience
        return SSHTransport(self.target(host), folder, python=self.python, patience=patience)

    def to_json(self) -> dict[str, Any]:
        return {"provider": self.name} | asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SSH:
        """Rebuild what ``to_json`` wrote.

        Args:
            data: what it wrote.

        Raises:
            UsageError: a value makes no sense.
        """
        return cls(**{key: value for key, value in data.items() if key != "provider"})


def _pack() -> None:
    """Have the bundle packed by the time that a host may ask for it."""
    with suppress(PoolError, OSError):  # who needs it is told
        _ = bundle().archive


def _live_ones() -> list[SSHTransport]:
    """The transports of this loop."""
    from ...transport.ssh.transport import SSHTransport

    loop = asyncio.get_running_loop()
    return [transport for transport in SSHTransport.live if transport.loop is loop]


async def _reaches(transport: SSHTransport, place: tuple[str, int]) -> bool:
    """Whether a host answers at an address, asked from another one."""
    channel = await transport.channel()
    answer: ReachDone = await channel.ask("reach", places=[place], seconds=GLANCE)
    channel.close()
    return answer["reached"] == [True]


async def _all(work: Any) -> list[Any]:
    """The results of coroutines, a bounded number of them at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(item: Any) -> Any:
        async with gate:
            return await item

    return await asyncio.gather(*(one(item) for item in work))


def _expand(hosts: Sequence[str] | str) -> tuple[str, ...]:
    """Host names, with groups of ``skyward.toml`` replaced by what they hold."""
    named = [hosts] if isinstance(hosts, str) else list(hosts)
    from ...tasks import loader

    if instance_info().pool or loader.loading:
        # In a rank, which imports the script's modules and has none of the person's settings; or where the script is
        # loaded: no pool of its own is made, and its project may lack what reads settings.
        return tuple(named)
    groups = host_groups()
    found: list[str] = []
    for name in named:
        group = name.removeprefix("@")
        if group in groups and (name.startswith("@") or isinstance(hosts, str)):
            found += groups[group]
        elif name.startswith("@"):
            known = f"which names {', '.join(sorted(groups)) or 'none'}"
            raise UsageError(f"There is no group {group!r} under [hosts] in skyward.toml, {known}.")
        else:
            found.append(name)
    if not found:
        raise UsageError("SSH needs at least one host: SSH(hosts=['gpu1', 'gpu2']).")
    if twice := sorted({host for host in found if found.count(host) > 1}):
        raise UsageError(f"Named twice: {', '.join(twice)}. Each host is one node; for more, ranks_per_node.")
    return tuple(found)


PROVIDER = SSH
