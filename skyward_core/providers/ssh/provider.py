"""SSH provider: existing hosts that accept SSH logins.

Settings, choice of hosts or free GPUs, and checks of the hosts and the Python on them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import KW_ONLY, MISSING, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from skyward_core.model.errors import NoCapacity, PoolError, SkywardError, UsageError, error_message
from skyward_core.model.machines_checks_and_gpu_use import FREE, Check, Machine
from skyward_core.model.misuse_guards import StrictKeywords
from skyward_core.model.provider_capability_protocols import check_host_count
from skyward_core.model.provider_settings_schema import DeclaredSettings, Field, setting, word_list
from skyward_core.model.specs import PoolSpec
from skyward_core.providers.agent_status_and_termination import (
    CHECK_TIMEOUT,
    as_completed_bounded,
    end_machine,
    gather_bounded,
    in_order_bounded,
    update_machine,
)
from skyward_core.providers.provider import JsonSettings, describe_python
from skyward_core.providers.provider_call_logs_polling_and_cache import report_progress
from skyward_core.runtime.instance_info_and_attempt import instance_info
from skyward_core.store.skyward_toml import host_groups
from skyward_core.transport.background_loop import short_switch_interval, submit
from skyward_core.transport.bundle_builder import bundle
from skyward_core.transport.ssh.host_address_and_python import HostPythons, Policy, Target, minor_of, newest_per_minor
from skyward_core.transport.ssh.ssh_config_and_preopened_sockets import PreopenedSockets, remove_pool_config, resolve
from skyward_core.util.light_dataclass import Value, value

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import GpusDone
    from skyward_core.providers.ssh.free_gpu_choice import HostGpuUsage
    from skyward_core.transport.ssh.host_address_and_python import WantedPython
    from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import SSHTransport


def _parse_hosts(text: str) -> list[str] | str:
    """Parse a list of hosts; a single name may also be a group."""
    names = word_list(text)
    return names[0] if len(names) == 1 else names


def _hosts_field() -> Field:
    try:
        groups = sorted(host_groups())
    except UsageError:
        groups = []  # no error here, because a launch reports the error in the settings file
    listed = ", ".join(groups)
    return Field(
        label="Hosts",
        placeholder=f"gpu1 me@gpu2:2222{f'; or a group: {listed}' if groups else ', or a group of skyward.toml'}",
        missing=f"enter hosts{f' or a group of skyward.toml ({listed})' if groups else ''}: gpu1 me@gpu2:2222",
        suggestions=groups,
    )


# asyncssh is imported late, because its import is slow and the TCP connections to the hosts can be opened before.

MIN_DISK_BYTES = 2 << 30
ONE_NODE_PER_HOST = "Each host is one node. For several ranks on a host, set ranks_per_node."


@value(frozen=True)
class SSH(JsonSettings, StrictKeywords, Value):
    """Existing hosts, reached over SSH.

    Args:
        hosts: Names, addresses, ``user@host:port`` or aliases of ``~/.ssh/config``; or the name of a group of
            ``[hosts]`` in ``skyward.toml``, alone or, with a leading ``@``, among other hosts.
        user: Login name if neither the host nor the configuration names one.
        port: Port of the SSH servers if neither the host nor the configuration names one.
        keys: Files of private keys; None for the keys in ``~/.ssh``, in its configuration, and in the ssh-agent.
        known_hosts: A known_hosts file for host key verification, instead of the user's files.
        python: Interpreter on the hosts; None to search for one with the minor version of the Python that loads the
            script.
        config: Whether ``~/.ssh/config`` is read.
        jump: Jump host, in the syntax of ``ssh -J``; several separated by commas.
        host_keys: Policy for unknown host keys: "known" rejects them, "ask" asks the user, "accept-new" saves them.
            Changed keys are always rejected.
        gpus: "free" uses only free GPUs of each host, one rank per GPU, and reserves them against other pools of this
            software. ``Worker(ranks_per_node=)`` and the pool's ``accelerator`` set their number and model (default:
            all free GPUs). None uses hosts without reserving GPUs.

    Attributes:
        name: Name of the provider in commands and settings.
        about: Short description, for forms.
        machine: Noun for one of its machines, for messages.
        settings: Settings for forms and the command line.

    Raises:
        UsageError: If there are no hosts, a group does not exist, a host is named twice, or a value is invalid.
    """

    hosts: Sequence[str] | str = setting(
        "host names, or a group of skyward.toml",
        default=MISSING,
        type=_parse_hosts,
        option="--hosts",
        example="gpu1,gpu2",
        names_machines=True,
        field=_hosts_field,
    )
    _: KW_ONLY
    user: str | None = setting("login name (default: from ~/.ssh/config)")
    port: int | None = setting("port of the SSH servers (default: from ~/.ssh/config)")
    keys: Sequence[str] | str | None = setting("files of private keys")
    known_hosts: str | None = setting("known_hosts file (default: those of ssh)")
    python: str | None = setting("Python interpreter on the hosts")
    config: bool = setting("whether ~/.ssh/config is read", default=True)
    jump: str | None = setting("jump host")
    host_keys: Policy = setting("policy for unknown host keys: known (reject), ask or accept-new", default="known")
    gpus: Literal["free"] | None = setting(
        "free: use only free GPUs, one rank per GPU",
        example="free",
        field=lambda: Field("GPUs", "free: only unused GPUs, one rank per GPU", suggestions=["free"]),
    )

    name: ClassVar[str] = "ssh"
    about: ClassVar[str] = "hosts of your own"
    machine: ClassVar[str] = "host"
    settings = DeclaredSettings()

    def __post_init__(self) -> None:
        if self.host_keys not in ("known", "ask", "accept-new"):
            raise UsageError(f"host_keys={self.host_keys!r}: choose 'known', 'ask' or 'accept-new'.")
        if self.gpus not in (None, FREE):
            raise UsageError(f"gpus={self.gpus!r}: choose {FREE!r}, or omit it.")
        keys = (self.keys,) if isinstance(self.keys, str) else tuple(self.keys or ())
        object.__setattr__(self, "hosts", _expand_groups(self.hosts))
        object.__setattr__(self, "keys", keys)
        for host in self.hosts:
            self.target(host)

    @property
    def default_nodes(self) -> int:
        """Number of nodes if the user states no number: one node per host."""
        return len(self.hosts)

    @property
    def rank_per_gpu(self) -> bool:
        """Whether each GPU gets its own rank by default."""
        return self.gpus == FREE

    def needs_python(self, minor: str) -> str:
        """Return the sentence in a plan about the Python on the hosts.

        Args:
            minor: Version of the Python that loads the script.
        """
        return describe_python(minor, self.machine, self.python)

    def asking(self) -> SSH:
        """Return the same hosts with a policy that asks the user about unknown host keys."""
        return replace(self, host_keys="ask")

    def target(self, host: str) -> Target:
        """Return how one of the hosts is reached.

        Args:
            host: Host as written in ``hosts``.

        Raises:
            UsageError: If ``host`` is not a valid host name.
        """
        return Target(
            host="",
            user=self.user,
            port=self.port,
            keys=tuple(self.keys or ()),
            known_hosts=self.known_hosts,
            config=self.config,
            jump=self.jump,
            host_keys=self.host_keys,
        ).with_host(host)

    async def create(self, spec: PoolSpec, token: str) -> list[Machine]:
        """Choose the first hosts of the list; for a range of nodes, the first hosts that answer.

        Creates nothing on the hosts. With a fixed number of nodes, contacts no host.

        Raises:
            TooFewHosts: If there are fewer hosts than nodes.
            NoCapacity: If too few hosts answer. The message has the reason for each host that does not.
            UsageError: If two names mean the same machine.
        """
        check_host_count(self, spec.least_nodes)
        await self._check_distinct()
        takes: Mapping[str, Mapping[str, Any]] = {}
        if self.gpus == FREE:
            notes, takes = await self._find_free_gpus(spec)
            report_progress("; ".join(notes))
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

    async def _check_distinct(self) -> None:
        """Check that the names of the hosts mean different machines.

        Raises:
            UsageError: If two names have the same address and port.
        """
        names: dict[object, list[str]] = {}
        routes = await asyncio.gather(*(resolve(self.target(host)) for host in self.hosts), return_exceptions=True)
        for host, route in zip(self.hosts, routes, strict=True):
            # an address that cannot be resolved is ignored, because connecting to the host reports the error
            if not isinstance(route, BaseException):
                names.setdefault((route.host.lower(), route.port, route.jump, route.proxy_command), []).append(host)
        if equal := next((each for each in names.values() if len(each) > 1), ()):
            raise UsageError(f"Named twice: {', '.join(equal)} are one machine. {ONE_NODE_PER_HOST}")

    async def foresee(self, spec: PoolSpec) -> list[str]:
        """Describe the GPUs that a pool would use now, and the users of all other GPUs. Empty if no GPUs are reserved.

        Args:
            spec: Everything that the user requested.

        Raises:
            NoCapacity: If too few GPUs are free.
        """
        return (await self._find_free_gpus(spec))[0] if self.gpus == FREE else []

    async def _find_free_gpus(self, spec: PoolSpec) -> tuple[list[str], dict[str, dict[str, Any]]]:
        from skyward_core.providers.ssh.free_gpu_choice import choose_hosts, describe_choice, gpus_per_node

        gpus_per_node(spec)  # called only to validate the request before any host is contacted
        looks = await gather_bounded(self.look_at(host, _script_python(spec)) for host in self.hosts)
        takes = choose_hosts(looks, spec)
        return describe_choice(looks, takes), takes

    async def look_at(self, host: str, loaded_with: Sequence[str] | None = None) -> HostGpuUsage:
        """Return the GPUs of a host and their users; leaves nothing on the host.

        Args:
            host: Host as written in ``hosts``.
            loaded_with: Interpreter of the script, in the format of ``Interpreter.for_hosts``; None for this process's.
        """
        from skyward_core.providers.ssh.free_gpu_choice import GPU_CACHE, inspect_host

        question = (host, repr((self.to_json(), loaded_with)))
        if (seen := GPU_CACHE.get(question)) is not None:
            return seen  # type: ignore[no-any-return]
        async with self._brief_transport(host, loaded_with) as transport:
            seen = await inspect_host(transport, host)
        GPU_CACHE.put(question, seen)
        return seen

    async def _reachable_hosts(self, spec: PoolSpec) -> Sequence[str]:
        """Return the hosts that answer, in their order, but not more than the range of nodes allows."""
        asked = await gather_bounded(self._unavailable_reason(host, _script_python(spec)) for host in self.hosts)
        reasons = dict(zip(self.hosts, asked, strict=True))
        available = [host for host, reason in reasons.items() if not reason]
        errors = "; ".join(f"{host}: {reason}" for host, reason in reasons.items() if reason)
        if len(available) < spec.least_nodes:
            raise NoCapacity(
                f"at least {spec.least_nodes} nodes are needed, but only {len(available)} of {len(reasons)} hosts "
                f"answer: {errors}"
            )
        if errors:
            report_progress(f"{len(available)} of {len(reasons)} hosts answer: {errors}")
        return available[: spec.most_nodes]

    async def replace(
        self, pool: str, token: str, node: int, machines: Sequence[Machine], former: Sequence[Machine]
    ) -> Machine:
        """Return a host that answers and has no node of the pool; prefers hosts that the pool never used.

        Creates nothing on the host.

        Raises:
            NoCapacity: If all hosts are in use, or no unused host answers.
        """
        taken = {machine.extra["host"] for machine in machines}
        had = [machine.extra["host"] for machine in former]
        # Hosts that the pool has used least often come first. Hosts with equal counts keep their order.
        spares = sorted((host for host in self.hosts if host not in taken), key=had.count)
        take, loaded_with = former[-1].extra.get("free_gpus"), former[-1].extra.get("loaded_with")
        reasons = []
        async with aclosing(
            in_order_bounded(self._replacement_error(host, take, loaded_with) for host in spares)
        ) as asked:
            for host in spares:
                reason, free = await anext(asked)
                # stop at the first host that is available, because the lost host, which is last, may not answer
                if not reason:
                    folder = f"{former[-1].extra['folder'].rpartition('.')[0]}.{node}-{token[:6]}"
                    return Machine(host, node, host, "", extra={"host": host, "folder": folder} | free)
                reasons.append(reason)
        advice = "" if set(spares) - set(had) else "; list more hosts than nodes to have spare hosts"
        raise NoCapacity(f"no host is available for node {node}: {'; '.join(reasons)}{advice}")

    async def _replacement_error(
        self, host: str, take: Mapping[str, Any] | None, loaded_with: Sequence[str] | None
    ) -> tuple[str, dict[str, Any]]:
        """Return why a host cannot replace a lost host ("" if it can), and the values for ``Machine.extra`` that
        reserve its GPUs.
        """
        if take is None:
            return await self._unavailable_reason(host, loaded_with), {}
        from skyward_core.providers.ssh.free_gpu_choice import free_gpus

        devices, reason = free_gpus(await self.look_at(host, loaded_with), take)
        return reason, {"free_gpus": {**take, "of": devices}}

    async def _unavailable_reason(self, host: str, loaded_with: Sequence[str] | None) -> str:
        """Return why a host is not available now; "" if it is."""
        async with self._brief_transport(host, loaded_with) as transport:
            try:
                (await transport.channel()).close()
            except (PoolError, UsageError, OSError) as error:
                return error_message(error).rstrip(".")
        return ""

    @asynccontextmanager
    async def _brief_transport(self, host: str, loaded_with: Sequence[str] | None) -> AsyncIterator[SSHTransport]:
        """Create a transport to inspect a host, and close it at the end of the ``with`` block."""
        transport = self._make_transport(host, patience=CHECK_TIMEOUT, loaded_with=loaded_with)
        try:
            yield transport
        finally:
            await transport.close()

    async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
        """Return the pool's machines with their state.

        "running": the agent runs. "orphaned": the folder waits for a new agent, because workers run or the lease has
        not expired. "ending": only processes remain. "gone": nothing remains. "lost": neither this client nor a
        reachable node gets an answer from the host. "unreachable": the connection from this client may be the problem.
        """
        return await gather_bounded(update_machine(machine, partial(self.transport, pool)) for machine in known)

    async def terminate(self, pool: str, machines: Sequence[Machine]) -> None:
        """Stop the pool's agents and workers on the hosts, and remove their folders; the hosts keep running."""
        await gather_bounded(end_machine(machine, partial(self.transport, pool)) for machine in machines)

    async def teardown(self, pool: str) -> None:
        """Remove the pool's aliases for ``ssh``; ``terminate`` removes everything else."""
        remove_pool_config(pool)

    async def check(self) -> list[Check]:
        """Return the checks of each host."""
        return await self.check_for(None)

    async def check_for(self, loaded_with: Sequence[str] | None) -> list[Check]:
        """Return the checks of each host, for scripts with another interpreter.

        Args:
            loaded_with: Interpreter of the script, in the format of ``Interpreter.for_hosts``; None for this process's.
        """
        lines = await gather_bounded(self._check_host(host, loaded_with) for host in self.hosts)
        return [line for host in lines for line in host]

    @classmethod
    async def check_all(cls) -> AsyncIterator[Check]:
        """Yield the checks of the hosts in the groups of ``skyward.toml``, as each host answers."""
        try:
            groups = host_groups()
        except SkywardError as error:
            yield Check.from_error("settings", error)
            return
        if not groups:
            yield Check(cls.name, "ok", "no groups under [hosts] in skyward.toml, so no hosts to check")
        hosts = dict.fromkeys(host for group in groups.values() for host in group)
        async for lines in as_completed_bounded(map(cls._check_one_host, hosts)):
            for line in lines:
                yield line

    @classmethod
    async def _check_one_host(cls, host: str) -> list[Check]:
        """Return the checks of one host; an invalid host name is a failed check."""
        try:
            return await cls([host]).check()
        except (SkywardError, OSError) as error:
            return [Check.from_error(host, error)]

    async def _check_host(self, host: str, loaded_with: Sequence[str] | None) -> list[Check]:
        try:
            async with self._brief_transport(host, loaded_with) as transport:
                return await self._inspect_host(host, transport)
        except (PoolError, UsageError, OSError) as error:
            return [Check.from_error(host, error)]

    async def _inspect_host(self, host: str, transport: SSHTransport) -> list[Check]:
        from skyward_core.transport.ssh.host_command_channel import NoFittingPython
        from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import (
            CLOCK_SLACK,
            lend_bundle,
            open_inspection_channel,
            query_pythons,
            send_bundle,
        )

        required_python = transport.python
        began = time.time()
        try:
            channel = await open_inspection_channel(transport)
        except NoFittingPython as error:
            if required_python.named:
                raise
            known = Check(host, "ok", "reachable, its host key is known")
            return [known, check_line(host, error.found, required_python, None)]
        facts, pythons = channel.facts, await query_pythons(channel.link)
        # The host read its clock at a time between ``began`` and now. Only a time outside this range is an offset, so a
        # slow login is not reported as a wrong clock.
        offset = facts["time"] - min(max(facts["time"], began), time.time())
        version = ".".join(map(str, facts["version"]))
        lines = [
            Check(host, "ok", f"reachable as {facts['hostname']}, its host key is known"),
            check_line(host, pythons, required_python, (version, facts["python"])),
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
        await (send_bundle if channel.python.minor == required_python.minor else lend_bundle)(channel)
        answer: GpusDone = await channel.ask("gpus")
        gpus = answer["gpus"]
        lines.append(Check(host, "ok", "; ".join(gpus) if gpus else f"no GPU; {facts['cpus']} CPUs"))
        lines.append(Check(host, "ok", f"peers reach it at {facts['address'] or 'an unknown address'}"))
        exact = abs(offset) <= CLOCK_SLACK
        words = "right" if exact else f"{abs(offset):.0f} s {'ahead' if offset > 0 else 'behind'}"
        lines.append(Check(host, "ok" if exact else "warn", f"its clock is {words}"))
        if channel.link.login.silent_agent:
            lines.append(Check(host, "warn", channel.link.login.silent_agent))
        channel.close()
        return lines

    @contextmanager
    def warm(self, spec: PoolSpec) -> Iterator[None]:
        """Connect to the hosts that ``create`` will return, and start Python there."""
        if self.host_keys == "ask" or not isinstance(spec.nodes, int) or self.gpus == FREE:
            # Do nothing: questions about host keys need a pool, and with a range of nodes or with free GPUs, the hosts
            # are known only after queries.
            yield
            return
        targets = [self.target(host) for host in self.hosts[: spec.nodes]]
        dials = PreopenedSockets(targets)
        with short_switch_interval():
            try:
                submit(dials.open()).result()
                from skyward_core.transport.ssh.connection import close_early, open_early
                from skyward_core.transport.ssh.host_address_and_python import WantedPython
                from skyward_core.transport.ssh.host_command_channel import CommandChannel

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

    def transport(self, pool: str, machine: Machine, *, patience: float | None = None) -> SSHTransport:
        """Return the transport to one of the pool's machines.

        Args:
            pool: Name of the pool.
            machine: The machine.
            patience: Limit for connection attempts, in seconds; None for 30.
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
        from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import SSHTransport

        return SSHTransport(self.target(host), folder, python=self.python, loaded_with=loaded_with, patience=patience)


def _script_python(spec: PoolSpec) -> list[str] | None:
    return spec.interpreter.for_hosts if spec.interpreter else None


def _pack_bundle() -> None:
    """Build the bundle in advance, before a host requests it."""
    # no error here, because the transport that needs the bundle reports the same error
    with suppress(PoolError, OSError):
        _ = bundle().archive


def _expand_groups(hosts: Sequence[str] | str) -> tuple[str, ...]:
    """Return the host names, with groups of ``skyward.toml`` replaced by their hosts."""
    named = [hosts] if isinstance(hosts, str) else list(hosts)
    from skyward_core.tasks import script_loader_child

    if instance_info().pool or script_loader_child.loading:
        # A rank has no user settings. A process that only loads the script creates no pool, and the script's
        # environment may lack the packages that read settings.
        return tuple(named)
    groups = host_groups()
    found: list[str] = []
    for name in named:
        group = name.removeprefix("@")
        if group in groups and (name.startswith("@") or isinstance(hosts, str)):
            found += groups[group]
        elif name.startswith("@"):
            known = f"which has {', '.join(sorted(groups)) or 'no groups'}"
            raise UsageError(f"There is no group {group!r} under [hosts] in skyward.toml, {known}.")
        else:
            found.append(name)
    if not found:
        raise UsageError("SSH needs at least one host: SSH(hosts=['gpu1', 'gpu2']).")
    if twice := sorted({host for host in found if found.count(host) > 1}):
        raise UsageError(f"Named twice: {', '.join(twice)}. {ONE_NODE_PER_HOST}")
    return tuple(found)


PROVIDER = SSH


def check_line(host: str, there: HostPythons, required_python: WantedPython, runs: tuple[str, str] | None) -> Check:
    """Return the check of the Python on a host.

    Args:
        there: Interpreters on the host.
        required_python: Interpreter of the ranks: the script's interpreter, or the default one if no script is known.
        runs: Version and path of the host's interpreter that would run the ranks; None if none is suitable.
    """
    others = newest_per_minor(each for each in there.usable if minor_of(each) != required_python.minor)
    if runs is not None and minor_of(runs[0]) == required_python.minor:
        more = [f"{_join_names(others)} for projects of other versions"] if others else []
        more += ["its uv downloads others"] if there.has_uv else []
        return Check(host, "ok", "; ".join([f"Python {runs[0]} ({runs[1]})", *more]))
    missing = f"no Python {required_python.minor}, the version that {required_python.version_origin}; {there}"
    if there.has_uv and not required_python.named:
        return Check(host, "ok", f"{missing}; its uv downloads it at the first start")
    remedy = f"install python{required_python.minor} or uv there"
    if required_python.is_client_version and others:
        scripts = f"only scripts of projects with Python {_join_names(map(minor_of, others))} run there"
        return Check(host, "warn", f"{missing}: {scripts}. For others {remedy}")
    return Check(host, "fail", f"{missing}: {remedy}")


def _join_names(names: Iterable[str]) -> str:
    return " and ".join(", ".join(names).rsplit(", ", 1))
