"""SSH hosts of skyward.toml as machines; their settings; Python on them."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, MISSING, asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from skyward_core.model.errors import (
    NoCapacity,
    PoolError,
    SkywardError,
    TooFewHosts,
    UsageError,
    error_hint,
    error_message,
)
from skyward_core.model.machines import FREE, Check, Machine
from skyward_core.model.misuse_errors import StrictKeywords
from skyward_core.model.setting_descriptors import DeclaredSettings, Field, setting, word_list
from skyward_core.model.specs import PoolSpec
from skyward_core.providers.agent_status_and_termination import (
    CHECK_TIMEOUT,
    as_completed_bounded,
    end_machine,
    gather_bounded,
    update_machine,
)
from skyward_core.providers.provider import describe_python
from skyward_core.providers.provider_calls import report_progress
from skyward_core.runtime.instance_info import instance_info
from skyward_core.store.state_folder import host_groups
from skyward_core.transport.background_loop import short_switch_interval, submit
from skyward_core.transport.bundle_builder import bundle
from skyward_core.transport.ssh.effective_ssh_config import PreopenedSockets
from skyward_core.transport.ssh.host_address import HostPythons, Policy, Target, minor_of, newest_per_minor
from skyward_core.util.light_dataclass import Value, value

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import GpusDone
    from skyward_core.providers.ssh.free_gpu_choice import HostGpuUsage
    from skyward_core.transport.ssh.host_address import WantedPython
    from skyward_core.transport.ssh.ssh_transport import SSHTransport


def _parse_hosts(text: str) -> list[str] | str:
    """Hosts as a person lists them; a name alone may be a group's."""
    names = word_list(text)
    return names[0] if len(names) == 1 else names


def _hosts_field() -> Field:
    try:
        groups = sorted(host_groups())
    except UsageError:
        groups = []  # a start tells what is wrong with the file
    listed = ", ".join(groups)
    return Field(
        label="Hosts",
        placeholder=f"gpu1 me@gpu2:2222{f'; a group: {listed}' if groups else ', or a group of skyward.toml'}",
        missing=f"name hosts{f' or a group of skyward.toml ({listed})' if groups else ''}: gpu1 me@gpu2:2222",
        suggestions=groups,
    )


# What imports asyncssh is imported where it is needed: the hosts are dialled before.

MIN_DISK_BYTES = 2 << 30


@value(frozen=True)
class SSH(StrictKeywords, Value):
    """Hosts that already run.

    Args:
        hosts: names, addresses, ``user@host:port`` or aliases of ``~/.ssh/config``; or the name of a group of
            ``[hosts]`` in ``skyward.toml``, alone or, with an ``@`` before it, among other hosts.
        user: who to log in as where neither the host nor the configuration says.
        port: where their SSH servers listen where neither the host nor the configuration says.
        keys: files of private keys; None for those of ``~/.ssh``, its configuration, and the ssh-agent.
        known_hosts: a known_hosts file to verify host keys by, in place of the person's own ones.
        python: the interpreter to use on the hosts; None to look for one of the minor version of the Python that loads
            the script.
        config: whether ``~/.ssh/config`` is read.
        jump: a host to go through, as ``ssh -J`` takes it; several with commas.
        host_keys: what to do about a host key that is not known: "known" refuses it, "ask" asks the person,
            "accept-new" writes it down. A key that has changed is always refused.
        gpus: "free" takes of each host only GPUs that nobody uses, a rank for each; other pools of this software leave
            them alone then. ``Worker(ranks_per_node=)`` and the pool's ``accelerator`` say how many, and of which kind;
            else all that are free. None takes hosts as they are.

    Attributes:
        name: how people name it.
        about: what it is, in a few words, for a form.
        machine: what one of its machines is called there.
        settings: what a person may choose, for a form and a command line.

    Raises:
        UsageError: no hosts, an unknown group, a host named twice, or a policy, or word for GPUs, that does not exist.
    """

    hosts: Sequence[str] | str = setting(
        "name them, or a group of skyward.toml",
        default=MISSING,
        type=_parse_hosts,
        option="--hosts",
        example="gpu1,gpu2",
        names_machines=True,
        field=_hosts_field,
    )
    _: KW_ONLY
    user: str | None = setting("who to log in as where nothing else says")
    port: int | None = setting("where SSH servers listen where nothing else says")
    keys: Sequence[str] | str | None = setting("files of private keys")
    known_hosts: str | None = setting("a file of known host keys, in place of the usual ones")
    python: str | None = setting("the interpreter on the hosts")
    config: bool = setting("whether ~/.ssh/config is read", default=True)
    jump: str | None = setting("a host to go through")
    host_keys: Policy = setting("known, ask or accept-new: what to do about an unknown key", default="known")
    gpus: Literal["free"] | None = setting(
        "free: take only GPUs that nobody uses, a rank for each",
        example="free",
        field=lambda: Field("GPUs", "free: only those that nobody uses, a rank for each", suggestions=["free"]),
    )

    name: ClassVar[str] = "ssh"
    about: ClassVar[str] = "hosts of your own"
    machine: ClassVar[str] = "host"
    settings = DeclaredSettings()

    def __post_init__(self) -> None:
        if self.host_keys not in ("known", "ask", "accept-new"):
            raise UsageError(f"host_keys={self.host_keys!r}: choose 'known', 'ask' or 'accept-new'.")
        if self.gpus not in (None, FREE):
            raise UsageError(f"gpus={self.gpus!r}: choose {FREE!r}, or leave it out.")
        keys = (self.keys,) if isinstance(self.keys, str) else tuple(self.keys or ())
        object.__setattr__(self, "hosts", _expand_groups(self.hosts))
        object.__setattr__(self, "keys", keys)
        for host in self.hosts:
            self.target(host)

    @property
    def default_nodes(self) -> int:
        """Nodes of a pool for which no number is asked: all hosts."""
        return len(self.hosts)

    @property
    def rank_per_gpu(self) -> bool:
        """Whether a pool has a rank for each GPU that it takes, unless it says how many."""
        return self.gpus == FREE

    def needs_python(self, minor: str) -> str:
        """What a plan says of the Python of the hosts.

        Args:
            minor: the version of the one that loads the script.
        """
        return describe_python(minor, self.machine, self.python)

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
        return wishes.with_host(host)

    # -- the verbs ---------------------------------------------------------------------------------------

    async def create(self, spec: PoolSpec, token: str) -> list[Machine]:
        """The first hosts; nothing is created, and nothing contacted, until a node is prepared. Of a range of nodes
        the first hosts that answer.

        Raises:
            TooFewHosts: there are fewer hosts than nodes.
            NoCapacity: too few of them answer; says why of each that does not.
        """
        if spec.least_nodes > len(self.hosts):
            raise TooFewHosts(
                f"{spec.least_nodes} nodes were asked for, and there are {len(self.hosts)} hosts: "
                f"{', '.join(self.hosts)}. Ask for fewer nodes, or name more hosts."
            )
        takes: Mapping[str, Mapping[str, Any]] = {}
        if self.gpus == FREE:
            said, takes = await self._find_free_gpus(spec)
            report_progress("; ".join(said))
            hosts: Sequence[str] = list(takes)
        else:
            hosts = self.hosts[: spec.nodes] if isinstance(spec.nodes, int) else await self._reachable_hosts(spec)
        return [
            Machine(
                id=host,
                node=node,
                address=host,
                private_address="",
                extra={"host": host, "folder": f"{spec.name}.{token[:8]}.{node}"}
                | ({"free_gpus": takes[host]} if host in takes else {}),
            )
            for node, host in enumerate(hosts)
        ]

    async def foresee(self, spec: PoolSpec) -> list[str]:
        """Which GPUs a pool would take now, and who has the others; nothing where it takes hosts as they are.

        Args:
            spec: all that was asked for.

        Raises:
            NoCapacity: too few are free.
        """
        return (await self._find_free_gpus(spec))[0] if self.gpus == FREE else []

    async def _find_free_gpus(self, spec: PoolSpec) -> tuple[list[str], dict[str, dict[str, Any]]]:
        from skyward_core.providers.ssh.free_gpu_choice import choose_hosts, describe_choice, gpus_per_node

        gpus_per_node(spec)  # before anybody is asked
        looks = await gather_bounded(self.look_at(host, _script_python(spec)) for host in self.hosts)
        takes = choose_hosts(looks, spec)
        return describe_choice(looks, takes), takes

    async def look_at(self, host: str, loaded_with: Sequence[str] | None = None) -> HostGpuUsage:
        """The GPUs of one of the hosts, and who uses them; nothing is left there.

        Args:
            host: as it stands in ``hosts``.
            loaded_with: the Python to ask with, as an interpreter's ``for_hosts`` has it; None for our own.
        """
        from skyward_core.providers.ssh.free_gpu_choice import GPU_CACHE, inspect_host

        question = (host, repr((self.to_json(), loaded_with)))
        if (seen := GPU_CACHE.get(question)) is not None:
            return seen  # type: ignore[no-any-return]
        transport = self._make_transport(host, patience=CHECK_TIMEOUT, loaded_with=loaded_with)
        try:
            seen = await inspect_host(transport, host)
        finally:
            await transport.close()
        GPU_CACHE.put(question, seen)
        return seen

    async def _reachable_hosts(self, spec: PoolSpec) -> Sequence[str]:
        """The hosts that a range of nodes has: as many as answer, in their order."""
        asked = await gather_bounded(self._unavailable_reason(host, _script_python(spec)) for host in self.hosts)
        reasons = dict(zip(self.hosts, asked, strict=True))
        there = [host for host, reason in reasons.items() if not reason]
        away = "; ".join(f"{host}: {reason}" for host, reason in reasons.items() if reason)
        if len(there) < spec.least_nodes:
            raise NoCapacity(
                f"{spec.least_nodes} nodes are needed at least, and {len(there)} of {len(reasons)} hosts answer: {away}"
            )
        if away:
            report_progress(f"{len(there)} of {len(reasons)} hosts answer: {away}")
        return there[: spec.most_nodes]

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
        take, loaded_with = former[-1].extra.get("free_gpus"), former[-1].extra.get("loaded_with")
        asked = await gather_bounded(self._replacement_error(host, take, loaded_with) for host in spares)
        for host, (reason, free) in zip(spares, asked, strict=True):
            if not reason:
                folder = f"{former[-1].extra['folder'].rpartition('.')[0]}.{node}-{token[:6]}"
                return Machine(host, node, host, "", extra={"host": host, "folder": folder} | free)
        advice = "" if set(spares) - set(had) else "; name more hosts than nodes to have spare ones"
        raise NoCapacity(f"no host can take node {node}: {'; '.join(reason for reason, _ in asked)}{advice}")

    async def _replacement_error(
        self, host: str, take: Mapping[str, Any] | None, loaded_with: Sequence[str] | None
    ) -> tuple[str, dict[str, Any]]:
        """Why a host cannot be had in another's place; "" if it can, and what of its GPUs it is then."""
        if take is None:
            return await self._unavailable_reason(host, loaded_with), {}
        from skyward_core.providers.ssh.free_gpu_choice import free_gpus

        devices, reason = free_gpus(await self.look_at(host, loaded_with), take)
        return reason, {"free_gpus": {**take, "of": devices}}

    async def _unavailable_reason(self, host: str, loaded_with: Sequence[str] | None) -> str:
        """Why a host cannot be had now; "" if it can."""
        transport = self._make_transport(host, patience=CHECK_TIMEOUT, loaded_with=loaded_with)
        try:
            (await transport.channel()).close()
        except (PoolError, UsageError, OSError) as error:
            return error_message(error).rstrip(".")
        finally:
            await transport.close()
        return ""

    async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
        """The pool's machines with their state.

        "running" while the agent lives there, "orphaned" when its folder waits for another one, as workers live there
        or the lease is not over, "ending" when only processes are left, "gone" when nothing is; "lost" when neither we
        nor a node that we reach gets an answer from the host, "unreachable" when the trouble may be the way to it.
        """
        return await gather_bounded(update_machine(machine, partial(self.transport, pool)) for machine in known)

    async def terminate(self, pool: str, machines: Sequence[Machine]) -> None:
        """End the pool's agents and workers on the hosts, and remove their folders; the hosts go on."""
        await gather_bounded(end_machine(machine, partial(self.transport, pool)) for machine in machines)

    async def teardown(self, pool: str) -> None:
        """Forget the pool's names for ``ssh``; nothing else was made beside the machines' folders."""
        from skyward_core.transport.ssh import ssh_config_export

        ssh_config_export.remove(pool)

    async def check(self) -> list[Check]:
        """What works on each host, in words."""
        return await self.check_for(None)

    async def check_for(self, loaded_with: Sequence[str] | None) -> list[Check]:
        """The same, for scripts that are loaded with another Python.

        Args:
            loaded_with: as an interpreter's ``for_hosts`` has it; None for our own.
        """
        lines = await gather_bounded(self._check_host(host, loaded_with) for host in self.hosts)
        return [line for host in lines for line in host]

    @classmethod
    async def check_all(cls) -> AsyncIterator[Check]:
        """Yield what works on the hosts of the groups of ``skyward.toml``, in words, as each host answers."""
        try:
            groups = host_groups()
        except SkywardError as error:
            yield Check("settings", "fail", error_message(error), error_hint(error))
            return
        if not groups:
            none = "no groups under [hosts] in skyward.toml, so no hosts to look at"
            yield Check(cls.name, "ok", none)
        hosts = dict.fromkeys(host for group in groups.values() for host in group)
        async for lines in as_completed_bounded(map(cls._check_one_host, hosts)):
            for line in lines:
                yield line

    @classmethod
    async def _check_one_host(cls, host: str) -> list[Check]:
        """The same of one host, which may have a name that no host can have."""
        try:
            return await cls([host]).check()
        except (SkywardError, OSError) as error:
            return [Check(host, "fail", error_message(error), error_hint(error))]

    async def _check_host(self, host: str, loaded_with: Sequence[str] | None) -> list[Check]:
        from skyward_core.transport.ssh.bootstrap_channel import NoFittingPython
        from skyward_core.transport.ssh.ssh_transport import (
            CLOCK_SLACK,
            lend_bundle,
            open_inspection_channel,
            query_pythons,
            send_bundle,
        )

        transport = self._make_transport(host, patience=CHECK_TIMEOUT, loaded_with=loaded_with)
        wanted = transport.python
        try:
            began = time.time()
            try:
                channel = await open_inspection_channel(transport)
            except NoFittingPython as error:
                if wanted.named:
                    raise
                known = Check(host, "ok", "reachable, its host key is known")
                return [known, check_line(host, error.found, wanted, None)]
            facts, there = channel.facts, await query_pythons(channel.link)
            # It was asked some time between the two: only beyond them it is off, however slow the login.
            offset = facts["time"] - min(max(facts["time"], began), time.time())
            version = ".".join(map(str, facts["version"]))
            lines = [
                Check(host, "ok", f"reachable as {facts['hostname']}, its host key is known"),
                check_line(host, there, wanted, (version, facts["python"])),
            ]
            if not facts["root"]:
                return [*lines, Check(host, "fail", "no folder to write to: " + "; ".join(facts["unusable"]))]
            lines.append(
                Check(
                    host,
                    "ok" if facts["free"] > MIN_DISK_BYTES else "warn",
                    f"{facts['free'] / 1e9:.1f} GB free in {facts['root']}",
                )
            )
            await (send_bundle if channel.python.minor == wanted.minor else lend_bundle)(channel)
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
            return [Check(host, "fail", error_message(error), error_hint(error))]
        finally:
            await transport.close()

    @contextmanager
    def warm(self, spec: PoolSpec) -> Iterator[None]:
        """Connect to the hosts that ``create`` will give, and have Python started there."""
        if self.host_keys == "ask" or not isinstance(spec.nodes, int) or self.gpus == FREE:
            yield  # a question comes when its pool is there to be seen; which hosts it has, only asking tells
            return
        targets = [self.target(host) for host in self.hosts[: spec.nodes]]
        dials = PreopenedSockets(targets)
        with short_switch_interval():
            try:
                submit(dials.open()).result()
                from skyward_core.transport.ssh.bootstrap_channel import CommandChannel
                from skyward_core.transport.ssh.connection import close_early, open_early
                from skyward_core.transport.ssh.host_address import WantedPython

                python = WantedPython.of(self.python, _script_python(spec))
                begin = partial(CommandChannel.begin, python=python, name=spec.name)
                try:
                    submit(open_early(targets, dials, begin)).result()
                    threading.Thread(target=_pack_bundle, daemon=True).start()
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
        extra = machine.extra
        return self._make_transport(extra["host"], extra["folder"], patience, extra.get("loaded_with"))

    def _make_transport(
        self,
        host: str,
        folder: str = "",
        patience: float | None = None,
        loaded_with: Sequence[str] | None = None,
    ) -> SSHTransport:
        from skyward_core.transport.ssh.ssh_transport import PATIENCE, SSHTransport

        patience = PATIENCE if patience is None else patience
        return SSHTransport(self.target(host), folder, python=self.python, loaded_with=loaded_with, patience=patience)

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


def _script_python(spec: PoolSpec) -> list[str] | None:
    return spec.interpreter.for_hosts if spec.interpreter else None


def _pack_bundle() -> None:
    """Have the bundle packed by the time that a host may ask for it."""
    with suppress(PoolError, OSError):  # who needs it is told
        _ = bundle().archive


def _expand_groups(hosts: Sequence[str] | str) -> tuple[str, ...]:
    """Host names, with groups of ``skyward.toml`` replaced by what they hold."""
    named = [hosts] if isinstance(hosts, str) else list(hosts)
    from skyward_core.tasks import script_loader

    if instance_info().pool or script_loader.loading:
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


def check_line(host: str, there: HostPythons, wanted: WantedPython, runs: tuple[str, str] | None) -> Check:
    """The line of a host.

    Args:
        there: what it has.
        wanted: what ranks need: of a script that is known, else of one without a Python of its own.
        runs: version and path of the one that was asked there; None where none could be.
    """
    others = newest_per_minor(each for each in there.usable if minor_of(each) != wanted.minor)
    if runs is not None and minor_of(runs[0]) == wanted.minor:
        more = [f"{_join_names(others)} for projects of other versions"] if others else []
        more += ["its uv fetches others"] if there.has_uv else []
        return Check(host, "ok", "; ".join([f"Python {runs[0]} ({runs[1]})", *more]))
    lacks = f"no Python {wanted.minor}, the version that {wanted.version_origin}; {there}"
    if there.has_uv and not wanted.named:
        return Check(host, "ok", f"{lacks}; its uv fetches it at the first start")
    remedy = f"install python{wanted.minor} or uv there"
    if wanted.is_client_version and others:
        scripts = f"only scripts of projects with Python {_join_names(map(minor_of, others))} run there"
        return Check(host, "warn", f"{lacks}: {scripts}. For others {remedy}")
    return Check(host, "fail", f"{lacks}: {remedy}")


def _join_names(names: Iterable[str]) -> str:
    return " and ".join(", ".join(names).rsplit(", ", 1))
