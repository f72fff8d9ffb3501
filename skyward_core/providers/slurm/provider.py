"""Slurm as a provider: settings, partitions, what a person has there."""

from __future__ import annotations

import asyncio
import math
import re
import shlex
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from skyward_core.model.errors import PoolError, SkywardError, UsageError, error_hint, error_message
from skyward_core.model.machines import Check, Inventory, Leftover, Machine
from skyward_core.model.misuse_errors import StrictKeywords
from skyward_core.model.offers import (
    MachineRequirements,
    Offer,
    OfferList,
    RentalPlan,
    describe_nearest,
    matching_offers,
)
from skyward_core.model.setting_descriptors import DeclaredSettings, Field, setting
from skyward_core.model.specs import PoolSpec
from skyward_core.providers.agent_status_and_termination import end_machine, gather_bounded, update_machine
from skyward_core.providers.pool_key_folder import ledger_id
from skyward_core.providers.provider import describe_python
from skyward_core.providers.slurm import allocation, slurm_commands
from skyward_core.providers.slurm.allocation import AllocationFolder
from skyward_core.providers.slurm.slurm_commands import (
    RUNNING_STATES,
    WAITING_STATES,
    NoSlurm,
    Partition,
    SlurmCommands,
    SlurmJob,
)
from skyward_core.transport.ssh.host_address import Policy, Target

if TYPE_CHECKING:
    from skyward_core.transport.ssh.ssh_transport import SSHTransport


LEDGER_COMMENT_PREFIX = "skyward ledger "
CANCEL_TIMEOUT = 90.0  # seconds in which Slurm ends what it was told to; KillWait is 30 s where nobody has changed it


def make_comment(ledger: str) -> str:
    """What the comment of an allocation says."""
    return f"{LEDGER_COMMENT_PREFIX}{ledger}"


def list_allocations(jobs: Iterable[SlurmJob], where: str, ours: str) -> list[Leftover]:
    """Allocations as what an account holds; one whose name is no pool's is none.

    Args:
        where: Slurm is asked, for people to read.
        ours: which ledger is this client's.
    """
    found = []
    for job in jobs:
        if (whose := allocation.parse_job_name(job.name)) is None:
            continue
        before, prefix, ledger = job.comment.partition(LEDGER_COMMENT_PREFIX)
        ledger = ledger if prefix and not before else ""
        found.append(
            Leftover(
                "allocation", job.id, where, *whose, ledger, ours=bool(ledger) and ledger == ours, owner="you",
                since=job.start, expires=job.end,
            )
        )  # fmt: skip
    return found


async def cancel_allocations(commands: SlurmCommands, wanted: Sequence[Leftover]) -> list[str]:
    """Cancel them, and see them gone; gives what is left, in words."""
    names = {each.id: allocation.job_name(each.pool, each.token) for each in wanted}
    left, until = list(names), time.monotonic() + CANCEL_TIMEOUT
    reason = "Slurm has not said that it ended"
    try:
        async with commands.hold_connection():
            # By their numbers, which are given anew one day, only while the names are still theirs.
            here = await allocation.find_jobs(commands, names.values())
            await allocation.cancel_jobs(commands, [job.id for job in here if names.get(job.id) == job.name])
            while True:
                here = await allocation.find_jobs(commands, names.values())
                left = [job.id for job in here if not job.has_ended and names.get(job.id) == job.name]
                if not left or time.monotonic() > until:
                    break
                await asyncio.sleep(0.5)
    except (PoolError, OSError) as error:
        reason = error_message(error)
    return [f"allocation {id}: {reason}" for id in left]


def reject_unsupported(requirements: MachineRequirements) -> None:
    """Refuse what a wish asks that Slurm cannot be told.

    Raises:
        UsageError: it does; says what to say in its place.
    """
    if requirements.regions or requirements.zones:
        raise UsageError("Slurm has partitions, and neither regions nor zones: say partition=")
    if requirements.max_hourly is not None:
        raise UsageError("Slurm tells no prices: leave the highest price out")
    if requirements.allocation == "spot":
        raise UsageError("Slurm has no spot machines: say the partition or qos whose jobs can be preempted")
    if requirements.architecture or requirements.efa:
        raise UsageError("Slurm does not tell architectures and networks of nodes: say constraint=")


def make_offers(there: Iterable[Partition], requirements: MachineRequirements, provider: str) -> list[Offer]:
    """What can be had for a wish, each kind of node of each partition once.

    A job takes of a node what it asks for: the GPUs are as many as are wished, where the node has so many.

    Args:
        there: as sinfo tells it; partitions that are down are none.
        provider: its name.
    """
    found: dict[tuple[str, str], Offer] = {}
    for each in there:
        if each.is_up:
            for kind, accelerator, count in _matching_gpus(each, requirements):
                gpus = f"-{count}x{kind or 'gpu'}" if count else ""
                offer = Offer(
                    provider=provider,
                    instance_type=f"{each.cpus}cpu-{each.memory_gb:g}gb{gpus}",
                    region=each.name,
                    accelerator=accelerator,
                    count=count,
                    memory_each_gb=(requirements.accelerator and requirements.accelerator.memory_gb) or 0.0,
                    vcpus=each.cpus,
                    memory_gb=each.memory_gb,
                )
                found.setdefault((offer.region, offer.instance_type), offer)
    return list(found.values())


def select_offers(found: list[Offer], requirements: MachineRequirements) -> list[Offer]:
    """Those that do, in their order.

    Raises:
        UsageError: none does; says what comes nearest.
    """
    order = matching_offers(found, requirements)
    if not order:
        near = "; ".join(describe_nearest(found, requirements))
        raise UsageError(f"Slurm has no node for that{f': {near}' if near else ''}")
    return order


def _matching_gpus(there: Partition, requirements: MachineRequirements) -> Iterator[tuple[str, str, int]]:
    """Type, name and number of the GPUs that a job may take of a node, for a wish."""
    wanted = requirements.accelerator
    if wanted is None:
        if not requirements.any_accelerator:
            yield "", "", 0
        for kind, count in there.gpus if requirements.any_accelerator else ():
            yield kind, kind or "GPU", count
        return
    fit = slurm_commands.matching_gpu_types(wanted.name, wanted.memory_gb, [kind for kind, _ in there.gpus])
    for kind, count in there.gpus:
        if kind in fit:
            yield kind, wanted.name, min(count, wanted.count)


ABANDON_MARGIN = 300.0  # seconds for which a node without an agent waits longer than the pool may take to start
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,@+-]{0,127}")
_FEATURES = re.compile(r"[A-Za-z0-9_\[(][A-Za-z0-9_.,:|&*()\[\]-]{0,255}")
_PATTERNS = {
    "partition": _NAME,
    "account": _NAME,
    "qos": _NAME,
    "reservation": _NAME,
    "time": re.compile(r"(?:[0-9]{1,4}-)?[0-9]{1,6}(?::[0-9]{1,2}){0,2}"),
    "gres": re.compile(r"[A-Za-z0-9_]+(?::[A-Za-z0-9_.-]+)*(?:,[A-Za-z0-9_]+(?::[A-Za-z0-9_.-]+)*)*"),
    "memory": re.compile(r"[0-9]{1,9}[KMGT]?"),
    "constraint": _FEATURES,
}
_OPTIONS = {"memory": "mem", "cpus": "cpus-per-task"}


@dataclass(frozen=True)
class Slurm(StrictKeywords):
    """Nodes of a cluster that Slurm allocates.

    Slurm's commands run on this machine, or on a login host. On each node an SSH server of the pool's own is started
    within the allocation; nobody has to be allowed to log in to nodes otherwise.

    Args:
        partition: which; None for the cluster's default one.
        login: the host on which Slurm's commands run, reached over SSH as ``ssh`` would, and through which the nodes
            are; None for this machine.
        account: which is charged; None for the person's default one.
        qos: quality of service.
        time: the allocation's time limit, as sbatch has it ("2:00:00", "1-0", minutes). None for the pool's ``ttl`` and
            what it may take to start, where it has one, else for the partition's default.
        gres: what each node needs, as sbatch has it ("gpu:a100:4"), where the pool's accelerator does not say it.
        cpus: processors of each node; None for what the cluster gives for one task.
        memory: memory of each node, as sbatch has it ("64G"); None for the cluster's default.
        constraint: features that nodes must have, as sbatch has it.
        reservation: of the cluster.
        exclusive: whether nobody else's jobs share the nodes.
        keys: files of private keys for the login host; None for the usual ones.
        known_hosts: a known_hosts file for the login host, in place of the usual ones.
        host_keys: what to do about a host key of the login host that is not known: "known", "ask" or "accept-new".
        python: the interpreter on the nodes; None to look for one of the version that loads the script.

    Attributes:
        name: how people name it.
        about: what it is, in a few words, for a form.
        machine: what one of its machines is called there.
        settings: what a person may choose, for a form and a command line.

    Raises:
        UsageError: a value makes no sense.
    """

    _: KW_ONLY
    partition: str | None = setting(
        "the partition; else the cluster's default one",
        example="gpu",
        field=lambda: Field("Partition", placeholder="the cluster's default one"),
    )
    login: str | None = setting(
        "the host on which Slurm's commands run, by SSH; else this one",
        example="me@login1",
        field=lambda: Field("Login host", placeholder="this machine, or me@login1"),
    )
    account: str | None = setting(
        "the account that is charged", field=lambda: Field("Account", placeholder="your default one")
    )
    qos: str | None = setting("the quality of service")
    time: str | None = setting("the allocation's time limit, as sbatch has it; else the partition's", example="2:00:00")
    gres: str | None = setting("what each node needs, where the accelerator does not say it", example="gpu:a100:4")
    cpus: int | None = setting("processors of each node; else what the cluster gives for one task")
    memory: str | None = setting("memory of each node, as sbatch has it", example="64G")
    constraint: str | None = setting("features that nodes must have")
    reservation: str | None = setting("a reservation of the cluster")
    exclusive: bool = setting("whether nobody else's jobs share the nodes", default=False)
    keys: Sequence[str] | str | None = setting("files of private keys for the login host")
    known_hosts: str | None = setting("a file of known host keys for the login host, in place of the usual ones")
    host_keys: Policy = setting("known, ask or accept-new: what to do about an unknown key", default="known")
    python: str | None = setting("the interpreter on the nodes")

    name: ClassVar[str] = "slurm"
    about: ClassVar[str] = "nodes that Slurm allocates"
    machine: ClassVar[str] = "Slurm node"
    settings = DeclaredSettings()

    def __post_init__(self) -> None:
        for field, form in _PATTERNS.items():
            given = getattr(self, field)
            if given is not None and not (isinstance(given, str) and form.fullmatch(given)):
                raise UsageError(f"{field}={given!r:.80}: sbatch has no such {field}")
        if self.cpus is not None and (isinstance(self.cpus, bool) or not 0 < self.cpus < 100_000):
            raise UsageError(f"cpus={self.cpus!r}: a node has 1 or more")
        if self.host_keys not in ("known", "ask", "accept-new"):
            raise UsageError(f"host_keys={self.host_keys!r}: choose 'known', 'ask' or 'accept-new'.")
        keys = (self.keys,) if isinstance(self.keys, str) else tuple(self.keys or ())
        object.__setattr__(self, "keys", keys)
        if self.login is None and (keys or self.known_hosts):
            raise UsageError("keys and known_hosts are for the login host: name one, login='me@login1'")
        _ = self._commands

    def asking(self) -> Slurm:
        """The same; a host key of the login host that is not known is shown to the person."""
        return replace(self, host_keys="ask")

    @property
    def _commands(self) -> SlurmCommands:
        if self.login is None:
            return SlurmCommands(None)
        wishes = Target("", keys=tuple(self.keys or ()), known_hosts=self.known_hosts, host_keys=self.host_keys)
        return SlurmCommands(wishes.with_host(self.login))

    # -- the verbs ---------------------------------------------------------------------------------------

    async def create(self, spec: PoolSpec, token: str) -> list[Machine]:
        """Submit one job for all nodes, and wait until Slurm has given them; why it waits is told meanwhile.

        Raises:
            NoCapacity: Slurm took the nodes away again before the pool was up.
            PoolError: Slurm refuses the job, somebody cancelled it, or Slurm cannot be asked; or a node cannot be used.
            UsageError: a wish makes no sense there.
        """
        if spec.options.on_loss == "replace":
            raise UsageError(
                "an allocation of Slurm gets no other node for one that is lost: leave on_loss='replace' out"
            )
        folder, commands = AllocationFolder(spec.name, token), self._commands
        name, inside = allocation.job_name(spec.name, token), allocation.folder_name(spec.name, token)
        async with commands.hold_connection():
            folder.create()
            there = await allocation.find_allocations(commands, folder)
            if there:  # by this token already
                id = there[0].id
            else:
                options = await self._options(commands, spec, name)
                boot = math.ceil(spec.options.start_timeout + ABANDON_MARGIN)
                script = allocation.make_script(spec.name, inside, folder.record_request(), boot)
                id = await allocation.submit_job(commands, folder, options, script)
            job = await allocation.wait_for_nodes(commands, name, id)
            names = await allocation.list_nodes(commands, job)
            nodes = await allocation.fetch_node_reports(commands, job, inside, len(names))
        folder.write_known_hosts(nodes)
        return [allocation.to_machine(folder, job, node, inside, len(nodes)) for node in nodes]

    async def _options(self, commands: SlurmCommands, spec: PoolSpec, name: str) -> list[str]:
        """What sbatch is told.

        Raises:
            UsageError: the partition has no such accelerator.
        """
        least, most = spec.least_nodes, spec.most_nodes
        count = str(least) if least == most else f"{least}-{most}"
        options = [
            f"--job-name={name}", f"--comment={make_comment(ledger_id('slurm'))}",
            f"--nodes={count}",
            "--ntasks-per-node=1", "--no-requeue", "--output=/dev/null", "--error=/dev/null", "--chdir=/",
            "--export=ALL",  # of what commands have in their environment, which is next to nothing
        ]  # fmt: skip
        requirements = spec.needs
        reject_unsupported(requirements)
        requested = {
            "cpus": self.cpus or requirements.vcpus or None,
            "memory": self.memory
            or (f"{math.ceil(requirements.memory_gb * 1024)}M" if requirements.memory_gb else None),
        }
        for field in (*_PATTERNS, "cpus"):
            if (given := requested.get(field, getattr(self, field))) is not None:
                options.append(f"--{_OPTIONS.get(field, field)}={given}")
        if self.time is None and spec.options.ttl is not None:
            options.append(f"--time={math.ceil((spec.options.ttl + spec.options.start_timeout) / 60)}")
        if self.exclusive:
            options.append("--exclusive")
        if spec.accelerator is not None:
            options.append(await self._gpus(commands, spec))
        return options

    async def _gpus(self, commands: SlurmCommands, spec: PoolSpec) -> str:
        wanted = spec.needs.accelerator
        if wanted is None:
            return ""
        if self.gres is not None:
            raise UsageError(f"gres={self.gres!r} and an accelerator each say which GPUs: leave one of them out")
        there = slurm_commands.select_partition(await self._partitions(commands), self.partition)
        types = [kind for each in there for kind, _ in each.gpus]
        fitting = slurm_commands.matching_gpu_types(wanted.name, wanted.memory_gb, types)
        where = f"partition {self.partition}" if self.partition else "the cluster"
        if len(fitting) != 1:
            listed = ", ".join(
                sorted({f"gpu:{kind}:{n}" if kind else f"gpu:{n}" for each in there for kind, n in each.gpus})
            )
            several = f"several kinds may be {wanted.name}: {', '.join(fitting)}; " if fitting else ""
            raise UsageError(
                f"{where} names no {wanted} among its GPUs: {several}it has {listed or 'none'}. Say which is meant "
                f"with gres='gpu:TYPE:{wanted.count}', without an accelerator"
            )
        return f"--gres=gpu:{fitting[0]}:{wanted.count}"

    @property
    def payer(self) -> str:
        """Whose account it uses."""
        return f"{self.account or 'your account'} at {self._commands.host_label}"

    def within(self, regions: Sequence[str]) -> Slurm:
        """Slurm has no regions.

        Args:
            regions: what cannot be heeded.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"Slurm has partitions, and no region {regions[0]!r:.60}: say partition=")

    async def offers(self, requirements: MachineRequirements) -> OfferList:
        """What the partitions have for a wish.

        Args:
            requirements: what a node has to be.

        Raises:
            UsageError: a part of the wish makes no sense there.
            PoolError: Slurm cannot be asked.
        """
        try:
            there = await self._partitions(self._commands)
        except NoSlurm:
            if self.login is not None:
                raise
            return OfferList(offers=())  # who has no Slurm is offered nothing of it
        reject_unsupported(requirements)
        return OfferList(offers=make_offers(there, requirements, self.name))

    async def plan(self, spec: PoolSpec) -> RentalPlan:
        """What Slurm would be asked for; nothing is submitted.

        Args:
            spec: all that was asked for.

        Raises:
            UsageError: no partition has such nodes; says what comes nearest.
            PoolError: Slurm cannot be asked.
        """
        commands, least, most = self._commands, spec.least_nodes, spec.most_nodes
        async with commands.hold_connection():
            there = slurm_commands.select_partition(await self._partitions(commands), self.partition)
            options = await self._options(commands, spec, allocation.job_name(spec.name, "TOKEN"))
        return RentalPlan(
            nodes=most,
            least=least if least < most else None,
            attempts=select_offers(make_offers(there, spec.needs, self.name), spec.needs),
            creates=["one job, which ends with the pool", "a key pair, made here"],
            requests=[{"sbatch": shlex.join(options)}],
            notes=["Slurm chooses the nodes, and tells no prices"],
        )

    async def _partitions(self, commands: SlurmCommands) -> list[slurm_commands.Partition]:
        named = [f"--partition={self.partition}"] if self.partition else []
        return slurm_commands.parse_partitions(
            await commands("sinfo", "--noheader", *named, "-o", slurm_commands.SINFO_FORMAT)
        )

    async def replace(
        self, pool: str, token: str, node: int, machines: Sequence[Machine], former: Sequence[Machine]
    ) -> Machine:
        """No other node comes to an allocation.

        Raises:
            PoolError: always.
        """
        raise PoolError("an allocation of Slurm gets no other node for one that is lost; start another pool")

    async def find(self, pool: str, token: str) -> list[Machine]:
        """All nodes that Slurm holds for a pool, or its job where that waits for them, by the job's name.

        Args:
            pool: the pool's name.
            token: as ``create`` was given it.

        Raises:
            PoolError: Slurm cannot be asked now.
        """
        folder, commands = AllocationFolder(pool, token), self._commands
        found: list[Machine] = []
        async with commands.hold_connection():
            for job in await allocation.find_allocations(commands, folder):
                names = await allocation.list_nodes(commands, job) if job.nodes else []
                found += allocation.pending_machines(folder, job, names)
        return found

    async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
        """The pool's machines with their state.

        "gone" is one whose allocation Slurm calls over, or does not know any more; how it ended is told. What lives on
        one whose allocation runs, SSH tells, as for hosts of one's own; one without an agent is "ending".

        Raises:
            PoolError: Slurm cannot be asked now.
        """
        if not known:
            return []
        commands = self._commands
        async with commands.hold_connection():
            names = (allocation.job_name(pool, each.extra["token"]) for each in known)
            there = {job.id: job for job in await allocation.find_settled_jobs(commands, names)}
            lost = {each.extra["job"] for each in known} - there.keys()
            ends = {id: await allocation.fetch_end_reason(commands, id) for id in lost}
            return await gather_bounded(
                self._update_machine(pool, each, there.get(each.extra["job"]), ends) for each in known
            )

    async def _update_machine(
        self, pool: str, machine: Machine, job: SlurmJob | None, ends: Mapping[str, str]
    ) -> Machine:
        if job is None or job.has_ended:
            id = machine.extra["job"]
            forgotten = ends.get(id) or f"Slurm does not know allocation {id} any more"
            reason = {"why": forgotten if job is None else job.end_reason}
            return replace(machine, state="gone", extra=machine.extra | reason)
        if job.state in WAITING_STATES or job.state not in RUNNING_STATES or "port" not in machine.extra:
            return replace(machine, state="ending")
        if not AllocationFolder(pool, machine.extra["token"]).login_key.exists():
            reason = {"why": "the key to log in with is not on this machine"}
            return replace(machine, state="unreachable", extra=machine.extra | reason)
        there = await update_machine(machine, partial(self.transport, pool))
        return replace(there, state="ending") if there.state == "gone" else there

    async def quiet(self, pool: str, machines: Sequence[Machine]) -> list[Machine]:
        """End what runs on nodes, over SSH alone; gives them with what lies there that nobody has fetched.

        Args:
            pool: the pool's name.
            machines: those that are meant.
        """
        for each in await self.describe(pool, machines):
            if each.state in ("running", "orphaned"):
                await end_machine(each, partial(self.transport, pool))
        return await self.describe(pool, machines)

    async def terminate(self, pool: str, machines: Sequence[Machine]) -> None:
        """Have Slurm end the allocation. Of one that other nodes of the pool go on in, only agents are ended.

        Raises:
            PoolError: Slurm was not told.
        """
        over = allocation.complete_allocations(machines)
        await allocation.cancel_jobs(self._commands, over)
        rest = [each for each in machines if each.extra["job"] not in over and "port" in each.extra]
        await gather_bounded(end_machine(each, partial(self.transport, pool)) for each in rest)

    async def why_not_now(self) -> str:
        """Why nodes cannot be ended without asking their agents; never."""
        return ""

    async def terminate_now(self, pool: str, machines: Sequence[Machine]) -> None:
        """As ``terminate``.

        Args:
            pool: the pool's name.
            machines: the nodes to end.

        Raises:
            PoolError: Slurm was not told.
        """
        await self.terminate(pool, machines)

    async def teardown(self, pool: str) -> None:
        """Forget the pool's keys and its names for ``ssh``."""
        from skyward_core.transport.ssh import ssh_config_export

        ssh_config_export.remove(pool)
        for folder in AllocationFolder.find_all(pool):
            folder.remove()

    def needs_python(self, minor: str) -> str:
        """What a plan says of the Python of the nodes.

        Args:
            minor: the version of the one that loads the script.
        """
        return describe_python(minor, "node", self.python)

    async def check(self) -> list[Check]:
        """Whether Slurm answers, and what the partition has, in words."""
        commands = self._commands
        try:
            async with commands.hold_connection():
                version = (await commands("sbatch", "--version")).split()
                there = await self._partitions(commands)
        except (SkywardError, OSError) as error:
            return [Check("Slurm", "fail", error_message(error), error_hint(error))]
        answer = f"Slurm {slurm_commands.parse_version(version)} answers on {commands.host_label}"
        lines = [Check("Slurm", "ok", answer)]
        if not there:
            wanted = f"partition {self.partition}" if self.partition else "partition"
            return [*lines, Check("Slurm", "fail", f"there is no {wanted} that you may see")]
        return [*lines, *(Check(each.name, "ok" if each.is_up else "warn", str(each)) for each in there)]

    @classmethod
    async def check_all(cls) -> AsyncIterator[Check]:
        """As ``check``, where Slurm's commands are on this machine; a login host has to be named."""
        slurm = cls()
        try:
            await slurm._partitions(slurm._commands)
        except NoSlurm as error:
            yield Check(cls.name, "ok", f"{error_message(error)}; nothing to look at, unless a login host is named")
            return
        except SkywardError:
            pass  # the check tells of it
        for line in await slurm.check():
            yield line

    @classmethod
    def accounts(cls, used: Sequence[Slurm]) -> list[Slurm]:
        """The clusters of some providers, each once.

        Args:
            used: the providers.
        """
        ways = {(each.login, each.keys, each.known_hosts, each.host_keys) for each in used}
        return [
            cls(login=login, keys=keys, known_hosts=known, host_keys=policy)
            for login, keys, known, policy in sorted(ways, key=str)
        ]

    async def inventory(self, *, everywhere: bool) -> Inventory:
        """The person's allocations that have names of pools; reads only.

        Args:
            everywhere: makes no difference; a login host leads to one cluster.

        Raises:
            PoolError: Slurm cannot be asked.
        """
        commands = self._commands
        try:
            told = await commands("squeue", "--me", "--noheader", "-o", slurm_commands.SQUEUE_FORMAT)
        except NoSlurm:
            if self.login is not None:
                raise
            return Inventory()  # who has no Slurm has nothing in it
        return Inventory(
            list_allocations(
                slurm_commands.parse_jobs(told, ours=allocation.NAME_PREFIX), commands.host_label, ledger_id("slurm")
            )
        )

    async def remove(self, things: Sequence[Leftover]) -> list[str]:
        """Cancel allocations, and see them gone; gives what is left of them, in words.

        Args:
            things: as ``inventory`` names them.
        """
        return await cancel_allocations(self._commands, things)

    @contextmanager
    def warm(self, spec: PoolSpec) -> Iterator[None]:
        """Nothing: what takes time is the queue."""
        yield

    # -- values ------------------------------------------------------------------------------------------

    def transport(self, pool: str, machine: Machine, *, patience: float | None = None) -> SSHTransport:
        """The way to one of the pool's machines.

        Args:
            pool: the pool's name.
            machine: the machine.
            patience: seconds of attempts to connect; None for 30.
        """
        from skyward_core.transport.ssh.ssh_transport import PATIENCE, SSHTransport

        folder = AllocationFolder(pool, machine.extra["token"])
        target = Target(
            host=machine.address,
            user=machine.extra["user"],
            port=machine.extra["port"],
            keys=(str(folder.login_key),),
            known_hosts=str(folder.known_hosts),
            config=False,
            via=self._commands.login,
        )
        patience = PATIENCE if patience is None else patience
        folder_name, loaded_with = machine.extra["folder"], machine.extra.get("loaded_with")
        return SSHTransport(target, folder_name, python=self.python, loaded_with=loaded_with, patience=patience)

    def to_json(self) -> dict[str, Any]:
        return {"provider": self.name} | asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Slurm:
        """Rebuild what ``to_json`` wrote.

        Args:
            data: what it wrote.

        Raises:
            UsageError: a value makes no sense.
        """
        return cls(**{key: value for key, value in data.items() if key != "provider"})


PROVIDER = Slurm
