"""Slurm provider: settings, offers by partition, and the user's allocations."""

from __future__ import annotations

import asyncio
import math
import re
import shlex
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from skyward_core.model.errors import PoolError, SkywardError, UsageError, error_message
from skyward_core.model.leftovers import Inventory, Leftover
from skyward_core.model.machines_checks_and_gpu_use import Check, Machine
from skyward_core.model.misuse_guards import StrictKeywords
from skyward_core.model.offers_and_rental_plans import (
    MachineRequirements,
    Offer,
    OfferList,
    RentalPlan,
    describe_nearest,
    matching_offers,
)
from skyward_core.model.provider_settings_schema import DeclaredSettings, Field, setting
from skyward_core.model.specs import PoolSpec
from skyward_core.providers.agent_status_and_termination import end_machine, gather_bounded, update_rented_machine
from skyward_core.providers.provider import JsonSettings, describe_python
from skyward_core.providers.provider_call_logs_polling_and_cache import poll_until_empty
from skyward_core.providers.slurm import allocation, slurm_commands
from skyward_core.providers.slurm.allocation import AllocationFolder, Submission
from skyward_core.providers.slurm.slurm_commands import (
    RESTARTED_STATES,
    RUNNING_STATES,
    WAITING_STATES,
    NoSlurm,
    Partition,
    SlurmCommands,
    SlurmJob,
)
from skyward_core.store.ledger import ledger_id
from skyward_core.transport.ssh.host_address_and_python import Policy, Target
from skyward_core.util.terminal_safe_text import sanitize_line

if TYPE_CHECKING:
    from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import SSHTransport


LEDGER_COMMENT_PREFIX = "skyward ledger "
CANCEL_POLL_PAUSES = (0.5, 0.5)  # first and longest pause between two queries for cancelled jobs, in seconds
# seconds for Slurm to end cancelled jobs; Slurm kills their processes after KillWait, 30 s by default
CANCEL_TIMEOUT = 90.0


def make_comment(ledger: str) -> str:
    """Return the comment that marks an allocation of this client's ledger."""
    return f"{LEDGER_COMMENT_PREFIX}{ledger}"


def list_allocations(jobs: Iterable[SlurmJob], where: str, ours: str) -> list[Leftover]:
    """Convert Slurm jobs to leftovers; skip jobs whose name is not the job name of a pool.

    Args:
        where: Name of the host that runs Slurm's commands.
        ours: Id of this client's ledger.
    """
    found = []
    for job in jobs:
        if (identity := allocation.parse_job_name(job.name)) is None:
            continue
        before, prefix, ledger = job.comment.partition(LEDGER_COMMENT_PREFIX)
        ledger = ledger if prefix and not before else ""
        found.append(
            Leftover(
                "allocation", job.id, where, *identity, ledger, ours=bool(ledger) and ledger == ours, owner="you",
                since=job.start, expires=job.end,
            )
        )  # fmt: skip
    return found


async def cancel_allocations(commands: SlurmCommands, allocations: Sequence[Leftover]) -> list[str]:
    """Cancel allocations, and wait until they have ended. Return a description of each allocation that remains."""
    names = {each.id: allocation.job_name(each.pool, each.token) for each in allocations}
    remaining, reason = list(names), "Slurm has not reported its end"

    async def find_remaining() -> list[str]:
        jobs = await allocation.find_jobs(commands, names.values())
        # Compare the name as well, because Slurm eventually reuses job numbers.
        return [job.id for job in jobs if not job.has_ended and names.get(job.id) == job.name]

    try:
        async with commands.hold_connection():
            await allocation.cancel_jobs(commands, await find_remaining())
            remaining = await poll_until_empty(find_remaining, CANCEL_POLL_PAUSES, CANCEL_TIMEOUT)
    except (PoolError, OSError) as error:
        reason = error_message(error)
    return [f"allocation {id}: {reason}" for id in remaining]


def reject_unsupported(requirements: MachineRequirements) -> None:
    """Reject machine requirements that Slurm does not support.

    Raises:
        UsageError: If there is such a requirement. The message names an alternative.
    """
    if requirements.regions or requirements.zones:
        raise UsageError("Slurm has no regions or zones: use partition= instead")
    if requirements.max_hourly is not None:
        raise UsageError("Slurm has no prices: remove the price limit")
    if requirements.allocation == "spot":
        raise UsageError("Slurm has no spot machines: choose a partition= or qos= whose jobs can be preempted")
    if requirements.architecture or requirements.efa:
        raise UsageError("Slurm does not report architectures and networks of nodes: use constraint= instead")


def make_offers(partitions: Iterable[Partition], requirements: MachineRequirements, provider: str) -> list[Offer]:
    """Return the offers for a request, one for each kind of node in each partition.

    A job may use a part of a node: each offer has the requested number of GPUs, or all GPUs of the node if it has
    fewer.

    Args:
        partitions: Partitions from sinfo; partitions that are down are skipped.
        provider: Name of the provider.
    """
    found: dict[tuple[str, str], Offer] = {}
    for each in partitions:
        if each.is_up:
            for kind, accelerator, count in _matching_gpus(each, requirements):
                gpus = f"-{count}x{kind or 'gpu'}" if count else ""
                offer = Offer(
                    provider=provider, instance_type=f"{each.cpus}cpu-{each.memory_gb:g}gb{gpus}", region=each.name,
                    accelerator=accelerator, count=count, vcpus=each.cpus, memory_gb=each.memory_gb,
                    memory_each_gb=(requirements.accelerator and requirements.accelerator.memory_gb) or 0.0,
                )  # fmt: skip
                found.setdefault((offer.region, offer.instance_type), offer)
    return list(found.values())


def select_offers(found: list[Offer], requirements: MachineRequirements) -> list[Offer]:
    """Return the fitting offers, in order.

    Raises:
        UsageError: If no offer fits. The message names the nearest ones.
    """
    order = matching_offers(found, requirements)
    if not order:
        near = "; ".join(describe_nearest(found, requirements))
        raise UsageError(f"no Slurm node fits the request{f'; the nearest: {near}' if near else ''}")
    return order


def _matching_gpus(partition: Partition, requirements: MachineRequirements) -> Iterator[tuple[str, str, int]]:
    """Yield Slurm's GPU type, the accelerator's name and the number of the GPUs that a job may use on a node."""
    accelerator = requirements.accelerator
    if accelerator is None:
        if not requirements.any_accelerator:
            yield "", "", 0
        for kind, count in partition.gpus if requirements.any_accelerator else ():
            yield kind, kind or "GPU", count
        return
    fit = slurm_commands.matching_gpu_types(
        accelerator.name, accelerator.memory_gb, [kind for kind, _ in partition.gpus]
    )
    for kind, count in partition.gpus:
        if kind in fit:
            yield kind, accelerator.name, min(count, accelerator.count)


# By ended allocation: the task that submits the next allocation, and the number of nodes that wait for this task.
_moving: dict[str, tuple[asyncio.Task[list[Machine]], int]] = {}
SIGNAL_TOLERANCE = 60  # seconds by which Slurm may send its signal before the requested time
ABANDON_MARGIN = 300.0  # seconds after the start timeout until a node without an agent leaves its allocation
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


def limit_seconds(time: str) -> int:
    """Return the seconds of a time limit as for sbatch."""
    days, dash, clock = time.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if dash:
        parts = [*parts, 0, 0][:3]
    elif len(parts) < 3:
        parts = [0, *parts, 0][:3]  # without a colon or a day, the limit is MINUTES or MINUTES:SECONDS
    hours, minutes, seconds = parts
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


@dataclass(frozen=True)
class Slurm(JsonSettings, StrictKeywords):
    """Nodes of a cluster that Slurm allocates.

    Slurm's commands run on this machine or on a login host. On each node the allocation starts the pool's own SSH
    server, so users need no permission to log in to nodes.

    Args:
        partition: Partition; None for the cluster's default one.
        login: Host that runs Slurm's commands and through which the nodes are reached. ``ssh`` options apply. None for
            this machine.
        account: Account to charge; None for the user's default one.
        qos: Quality of service.
        time: Time limit of the allocation, as for sbatch ("2:00:00", "1-0", minutes). None for the pool's ``ttl`` plus
            the start timeout, or for the partition's default if the pool has no ``ttl``.
        gres: Resources of each node, as for sbatch ("gpu:a100:4"), as an alternative to the pool's accelerator.
        cpus: CPUs of each node; None for the cluster's default for one task.
        memory: Memory of each node, as for sbatch ("64G"); None for the cluster's default.
        constraint: Features that nodes must have, as for sbatch.
        reservation: Reservation of the cluster.
        exclusive: Whether the nodes are not shared with other jobs.
        save_before: Seconds before the end of the allocation at which ranks save their work, if runs restart.
        keys: Files of private keys for the login host; None for the default ones.
        known_hosts: A known_hosts file for the login host, instead of the default ones.
        host_keys: Policy for an unknown host key of the login host: "known", "ask" or "accept-new".
        python: Interpreter on the nodes; None to search for one with the Python version that loads the script.

    Attributes:
        name: Name of the provider in commands and settings.
        about: Short description, for forms.
        machine: Noun for one of its machines, for messages.
        settings: Settings for forms and the command line.

    Raises:
        UsageError: If a value is invalid.
    """

    _: KW_ONLY
    partition: str | None = setting(
        "partition (default: that of the cluster)",
        example="gpu",
        field=lambda: Field("Partition", placeholder="default partition of the cluster"),
    )
    login: str | None = setting(
        "SSH host that runs Slurm's commands (default: this machine)",
        example="me@login1",
        field=lambda: Field("Login host", placeholder="this machine, or me@login1"),
    )
    account: str | None = setting(
        "account to charge", field=lambda: Field("Account", placeholder="your default account")
    )
    qos: str | None = setting("quality of service")
    time: str | None = setting("time limit as for sbatch (default: that of the partition)", example="2:00:00")
    gres: str | None = setting("resources of each node, instead of an accelerator", example="gpu:a100:4")
    cpus: int | None = setting("CPUs of each node (default: those of one task)")
    memory: str | None = setting("memory of each node, as for sbatch", example="64G")
    constraint: str | None = setting("features that nodes must have")
    reservation: str | None = setting("reservation of the cluster")
    exclusive: bool = setting("whether to use nodes exclusively", default=False)
    save_before: int = setting("seconds before the time limit to save, with on_loss=restart", default=120)
    keys: Sequence[str] | str | None = setting("files of private keys for the login host")
    known_hosts: str | None = setting("known_hosts file for the login host (default: those of ssh)")
    host_keys: Policy = setting("policy for unknown host keys: known (reject), ask or accept-new", default="known")
    python: str | None = setting("Python interpreter on the nodes")

    name: ClassVar[str] = "slurm"
    about: ClassVar[str] = "nodes that Slurm allocates"
    machine: ClassVar[str] = "Slurm node"
    settings = DeclaredSettings()

    def __post_init__(self) -> None:
        for field, form in _PATTERNS.items():
            given = getattr(self, field)
            if given is not None and not (isinstance(given, str) and form.fullmatch(given)):
                raise UsageError(f"{field}={given!r:.80}: not a valid {field} for sbatch")
        if self.cpus is not None and (isinstance(self.cpus, bool) or not 0 < self.cpus < 100_000):
            raise UsageError(f"cpus={self.cpus!r}: must be between 1 and 99,999")
        if isinstance(self.save_before, bool) or not 10 <= self.save_before < 65536:
            raise UsageError(f"save_before={self.save_before!r}: must be between 10 and 65,535 seconds")
        if self.host_keys not in ("known", "ask", "accept-new"):
            raise UsageError(f"host_keys={self.host_keys!r}: choose 'known', 'ask' or 'accept-new'.")
        keys = (self.keys,) if isinstance(self.keys, str) else tuple(self.keys or ())
        object.__setattr__(self, "keys", keys)
        if self.login is None and (keys or self.known_hosts):
            raise UsageError("keys and known_hosts require a login host: set login='me@login1'")
        _ = self._commands

    def asking(self) -> Slurm:
        """Return the same provider with a policy that asks the user about unknown host keys of the login host."""
        return replace(self, host_keys="ask")

    @property
    def _commands(self) -> SlurmCommands:
        if self.login is None:
            return SlurmCommands(None)
        target = Target("", keys=tuple(self.keys or ()), known_hosts=self.known_hosts, host_keys=self.host_keys)
        return SlurmCommands(target.with_host(self.login))

    async def create(self, spec: PoolSpec, token: str) -> list[Machine]:
        """Submit one job for all nodes, and wait until Slurm allocates them, reporting why the job waits.

        Raises:
            NoCapacity: If Slurm preempted the nodes before the pool was up.
            PoolError: If Slurm rejects the job or cannot be queried, the job was cancelled, or a node cannot be used.
            UsageError: If Slurm does not support a requirement.
        """
        if spec.options.on_loss == "replace":
            raise UsageError("Slurm cannot replace a lost node of an allocation: remove on_loss='replace'")
        folder, commands = AllocationFolder(spec.name, token), self._commands
        async with commands.hold_connection():
            folder.create()
            existing = await allocation.find_allocations(commands, folder)
            if existing:  # an earlier call with this token has submitted the job
                return await self._take_nodes(folder, existing[0].id)
            options = await self._options(commands, spec, allocation.job_name(spec.name, token))
            boot = math.ceil(spec.options.start_timeout + ABANDON_MARGIN)
            lead = self.save_before if spec.options.on_loss == "restart" else 0
            inside = allocation.folder_name(spec.name, token)
            return await self._take_nodes(folder, await self._submit(folder, Submission(options, inside, boot, lead)))

    async def _submit(self, folder: AllocationFolder, submission: Submission) -> str:
        """Submit an allocation, and return its number."""
        folder.save_submission(submission)
        script = allocation.make_script(folder.pool, folder.record_request(), submission)
        return await allocation.submit_job(self._commands, folder, submission.options, script)

    async def _take_nodes(self, folder: AllocationFolder, id: str) -> list[Machine]:
        """Wait for the nodes of an allocation, and return them as machines."""
        commands, made = self._commands, folder.submission
        job = await allocation.wait_for_nodes(commands, allocation.job_name(folder.pool, folder.token), id)
        names = await allocation.list_nodes(commands, job)
        nodes = await allocation.fetch_node_reports(commands, job, made.folder, len(names))
        folder.write_known_hosts(nodes)
        return [allocation.to_machine(folder, job, node, made, len(nodes)) for node in nodes]

    async def _options(self, commands: SlurmCommands, spec: PoolSpec, name: str) -> list[str]:
        """Return the options of sbatch.

        Raises:
            UsageError: If the partition has no such accelerator.
        """
        least, most = spec.least_nodes, spec.most_nodes
        count = str(least) if least == most else f"{least}-{most}"
        options = [
            f"--job-name={name}", f"--comment={make_comment(ledger_id('slurm'))}",
            f"--nodes={count}",
            "--ntasks-per-node=1", "--no-requeue", "--output=/dev/null", "--error=/dev/null", "--chdir=/",
            "--export=ALL",  # exports only the environment of the sbatch command, which PASSED_VARIABLES limits
        ]  # fmt: skip
        requirements = spec.needs
        reject_unsupported(requirements)
        requested = {
            "cpus": self.cpus or requirements.vcpus or None,
            "memory": self.memory
            or (f"{math.ceil(requirements.memory_gb * 1024)}M" if requirements.memory_gb else None),
        }
        given = {field: requested.get(field, getattr(self, field)) for field in (*_PATTERNS, "cpus")}
        options += [f"--{_OPTIONS.get(field, field)}={value}" for field, value in given.items() if value is not None]
        if self.time is None and spec.options.ttl is not None:
            options.append(f"--time={math.ceil((spec.options.ttl + spec.options.start_timeout) / 60)}")
        if spec.options.on_loss == "restart":
            if self.time is not None and limit_seconds(self.time) <= self.save_before + SIGNAL_TOLERANCE:
                raise UsageError(
                    f"time={self.time!r} leaves no time for work: Slurm may announce the end {SIGNAL_TOLERANCE} s "
                    f"earlier than save_before={self.save_before}. Set a longer time or a shorter save_before."
                )
            options.append(f"--signal=B:USR1@{self.save_before}")
        if self.exclusive:
            options.append("--exclusive")
        if spec.accelerator is not None:
            options.append(await self._gpus(commands, spec))
        return options

    async def _gpus(self, commands: SlurmCommands, spec: PoolSpec) -> str:
        accelerator = spec.needs.accelerator
        if accelerator is None:
            return ""
        if self.gres is not None:
            raise UsageError(f"gres={self.gres!r} cannot be combined with an accelerator: remove one of the two")
        partitions = slurm_commands.select_partition(await self._partitions(commands), self.partition)
        types = [kind for each in partitions for kind, _ in each.gpus]
        fitting = slurm_commands.matching_gpu_types(accelerator.name, accelerator.memory_gb, types)
        where = f"partition {self.partition}" if self.partition else "the cluster"
        if len(fitting) != 1:
            listed = ", ".join(
                sorted({f"gpu:{kind}:{n}" if kind else f"gpu:{n}" for each in partitions for kind, n in each.gpus})
            )
            several = f"several types match ({', '.join(fitting)}); " if fitting else ""
            raise UsageError(
                f"{where} has no unique GPU type for {accelerator}: {several}its GPUs: {listed or 'none'}. Remove the "
                f"accelerator, and set gres='gpu:TYPE:{accelerator.count}'"
            )
        return f"--gres=gpu:{fitting[0]}:{accelerator.count}"

    @property
    def payer(self) -> str:
        """Account, and host that runs Slurm's commands. Together they identify who pays."""
        return f"{self.account or 'your account'} at {self._commands.host_label}"

    def within(self, regions: Sequence[str]) -> Slurm:
        """Reject regions, which Slurm does not have.

        Args:
            regions: Names of the regions.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"Slurm has no regions (got {regions[0]!r:.60}): use partition= instead")

    async def offers(self, requirements: MachineRequirements) -> OfferList:
        """Return the offers of the partitions for a request.

        Args:
            requirements: Requirements of a node.

        Raises:
            UsageError: If Slurm does not support a requirement.
            PoolError: If Slurm cannot be queried.
        """
        try:
            partitions = await self._partitions(self._commands)
        except NoSlurm:
            if self.login is not None:
                raise
            return OfferList(offers=())  # a host without Slurm has no offers
        reject_unsupported(requirements)
        return OfferList(offers=make_offers(partitions, requirements, self.name))

    async def plan(self, spec: PoolSpec) -> RentalPlan:
        """Return the request that would be sent to Slurm; submits nothing.

        Args:
            spec: Everything that the user requested.

        Raises:
            UsageError: If no partition has fitting nodes. The message names the nearest ones.
            PoolError: If Slurm cannot be queried.
        """
        commands, least, most = self._commands, spec.least_nodes, spec.most_nodes
        async with commands.hold_connection():
            partitions = slurm_commands.select_partition(await self._partitions(commands), self.partition)
            options = await self._options(commands, spec, allocation.job_name(spec.name, "TOKEN"))
        return RentalPlan(
            nodes=most,
            least=least if least < most else None,
            attempts=select_offers(make_offers(partitions, spec.needs, self.name), spec.needs),
            creates=["one job, which ends with the pool", "a key pair, generated locally"],
            requests=[{"sbatch": shlex.join(options)}],
            notes=["Slurm chooses the nodes and has no prices"],
        )

    async def _partitions(self, commands: SlurmCommands) -> list[slurm_commands.Partition]:
        named = [f"--partition={self.partition}"] if self.partition else []
        return slurm_commands.parse_partitions(
            await commands("sinfo", "--noheader", *named, "-o", slurm_commands.SINFO_FORMAT)
        )

    async def replace(
        self, pool: str, token: str, node: int, machines: Sequence[Machine], former: Sequence[Machine]
    ) -> Machine:
        """Return a machine for the node in a new allocation of the same size. The whole former allocation must have
        ended.

        All lost nodes of an allocation share one request.

        Raises:
            PoolError: If the allocation still runs, or another one cannot be submitted.
        """
        last = former[-1]
        job = last.extra["job"]
        moving, waiting = _moving.get(job) or (asyncio.create_task(self._move(pool, token, last)), 0)
        _moving[job] = moving, waiting + 1
        try:
            # ``wait`` does not cancel the request if this node's wait is cancelled, because other nodes may wait for it
            await asyncio.wait([moving])
        finally:
            _moving[job] = moving, _moving[job][1] - 1
            if _moving[job][1] == 0:
                del _moving[job]
                # If the request is still active, all waits were cancelled, because the pool ends. Wait for its end:
                # sbatch may have just submitted a job, which the teardown must find.
                if moving.cancel():
                    await asyncio.wait([moving])
        return next(each for each in moving.result() if each.node == node)

    async def _move(self, pool: str, token: str, last: Machine) -> list[Machine]:
        """Submit an allocation that replaces an ended one, unless a former client has already submitted it. Wait for
        its nodes.
        """
        folder, commands, job = AllocationFolder(pool, last.extra["token"]), self._commands, last.extra["job"]
        async with commands.hold_connection():
            # locked, because another client may replace the same allocation for another node
            async with folder.hold_lock():
                found = await allocation.find_allocations(commands, folder)
                if any(each.id == job and each.state in WAITING_STATES | RUNNING_STATES for each in found):
                    raise PoolError(f"allocation {job} still runs, and Slurm cannot add a node to it")
                if not (others := [each.id for each in found if each.id != job]):
                    made = folder.submission
                    options = [each for each in made.options if not each.startswith("--nodes=")]
                    # the new allocation must have the number of nodes of the ended one; the saved options may contain a
                    # range
                    options.append(f"--nodes={last.extra['nodes']}")
                    made = replace(made, folder=allocation.folder_name(pool, token), options=options)
                    others = [await self._submit(folder, made)]
            return await self._take_nodes(folder, others[0])

    async def find(self, pool: str, token: str) -> list[Machine]:
        """Return all nodes that Slurm has allocated for a pool, or its waiting job, found by the job name.

        Args:
            pool: Name of the pool.
            token: Token that was passed to ``create``.

        Raises:
            PoolError: If Slurm cannot be queried now.
        """
        folder, commands = AllocationFolder(pool, token), self._commands
        found: list[Machine] = []
        async with commands.hold_connection():
            for job in await allocation.find_allocations(commands, folder):
                names = await allocation.list_nodes(commands, job) if job.nodes else []
                found += allocation.pending_machines(folder, job, names)
        return found

    async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
        """Return the pool's machines with their state.

        "gone": the allocation has ended, or Slurm no longer knows it. "ending": Slurm is ending the allocation.
        "agentless": the allocation waits, or runs without an agent on the node. The other states come from the node
        over SSH, as for ``SSH`` hosts.

        Raises:
            PoolError: If Slurm cannot be queried now.
        """
        if not known:
            return []
        commands = self._commands
        async with commands.hold_connection():
            names = (allocation.job_name(pool, each.extra["token"]) for each in known)
            jobs = {job.id: job for job in await allocation.find_settled_jobs(commands, names)}
            lost = {each.extra["job"] for each in known} - jobs.keys()
            ends = {id: await allocation.fetch_end_reason(commands, id) for id in lost}
            return await gather_bounded(
                self._update_machine(pool, each, jobs.get(each.extra["job"]), ends) for each in known
            )

    async def _update_machine(
        self, pool: str, machine: Machine, job: SlurmJob | None, ends: Mapping[str, str]
    ) -> Machine:
        if job is None or job.has_ended:
            id = machine.extra["job"]
            forgotten = ends.get(id) or f"Slurm no longer knows allocation {id}"
            reason = {"why": forgotten if job is None else job.end_reason}
            if job is not None and "lead" in machine.extra and job.state in RESTARTED_STATES:
                reason["preempted"] = job.end_reason
            return replace(machine, state="gone", extra=machine.extra | reason)
        if job.state not in WAITING_STATES | RUNNING_STATES:
            return replace(machine, state="ending")
        if job.state in WAITING_STATES or "port" not in machine.extra:
            return replace(machine, state="agentless")
        login_key = AllocationFolder(pool, machine.extra["token"]).login_key
        return await update_rented_machine(machine, partial(self.transport, pool), login_key)

    def notices(self, machine: Machine) -> str:
        """Return a program that reports the end of a node's allocation; "" if runs do not restart.

        Args:
            machine: The node.
        """
        return allocation.notice_program(machine.extra["folder"]) if "lead" in machine.extra else ""

    async def quiet(self, pool: str, machines: Sequence[Machine]) -> list[Machine]:
        """Stop everything that runs on nodes, over SSH; return the nodes with their retained results.

        Args:
            pool: Name of the pool.
            machines: The machines to stop work on.
        """
        for each in await self.describe(pool, machines):
            if each.state in ("running", "orphaned"):
                await end_machine(each, partial(self.transport, pool))
        return await self.describe(pool, machines)

    async def terminate(self, pool: str, machines: Sequence[Machine]) -> None:
        """Cancel each allocation whose nodes are all listed. In other allocations, only stop the agents on listed
        nodes.

        Raises:
            PoolError: If Slurm does not accept the request.
        """
        over = allocation.complete_allocations(machines)
        await allocation.cancel_jobs(self._commands, over)
        rest = [each for each in machines if each.extra["job"] not in over and "port" in each.extra]
        await gather_bounded(end_machine(each, partial(self.transport, pool)) for each in rest)

    async def why_not_now(self) -> str:
        """Return "", because Slurm can always end nodes without their agents."""
        return ""

    async def terminate_now(self, pool: str, machines: Sequence[Machine]) -> None:
        """Terminate nodes like ``terminate``, which needs no connection to the agents.

        Args:
            pool: Name of the pool.
            machines: The nodes to end.

        Raises:
            PoolError: If Slurm does not accept the request.
        """
        await self.terminate(pool, machines)

    async def teardown(self, pool: str) -> None:
        """Remove the pool's keys and its aliases for ``ssh``."""
        from skyward_core.transport.ssh.ssh_config_and_preopened_sockets import remove_pool_config

        remove_pool_config(pool)
        for folder in AllocationFolder.find_all(pool):
            folder.remove()

    def needs_python(self, minor: str) -> str:
        """Return the sentence in a plan about the Python on the nodes.

        Args:
            minor: Version of the Python that loads the script.
        """
        return describe_python(minor, "node", self.python)

    async def check(self) -> list[Check]:
        """Return checks of Slurm and the partition."""
        commands = self._commands
        try:
            async with commands.hold_connection():
                version = "".join((await commands("sbatch", "--version")).split()[-1:])
                partitions = await self._partitions(commands)
        except (SkywardError, OSError) as error:
            return [Check.from_error("Slurm", error)]
        answer = f"Slurm {sanitize_line(version)[:32] or 'of unknown version'} answers on {commands.host_label}"
        lines = [Check("Slurm", "ok", answer)]
        if not partitions:
            partition = f"partition {self.partition}" if self.partition else "partition"
            return [*lines, Check("Slurm", "fail", f"no visible {partition}")]
        return [*lines, *(Check(each.name, "ok" if each.is_up else "warn", str(each)) for each in partitions)]

    @classmethod
    async def check_all(cls) -> AsyncIterator[Check]:
        """Yield the checks if Slurm's commands are on this machine; a login host needs explicit settings."""
        slurm = cls()
        try:
            await slurm._partitions(slurm._commands)
        except NoSlurm as error:
            yield Check(cls.name, "ok", f"{error_message(error)}; nothing to check")
            return
        except SkywardError:
            pass  # the checks that follow report the same error
        for line in await slurm.check():
            yield line

    @classmethod
    def accounts(cls, used: Sequence[Slurm]) -> list[Slurm]:
        """Return a provider for each cluster that some providers use.

        Args:
            used: The providers.
        """
        ways = {(each.login, each.keys, each.known_hosts, each.host_keys) for each in used}
        return [
            cls(login=login, keys=keys, known_hosts=known, host_keys=policy)
            for login, keys, known, policy in sorted(ways, key=str)
        ]

    async def inventory(self, *, everywhere: bool) -> Inventory:
        """Return the user's allocations with names of pools. Changes nothing.

        Args:
            everywhere: Ignored, because a login host belongs to one cluster.

        Raises:
            PoolError: If Slurm cannot be queried.
        """
        commands = self._commands
        try:
            output = await commands("squeue", "--me", "--noheader", "-o", slurm_commands.SQUEUE_FORMAT)
        except NoSlurm:
            if self.login is not None:
                raise
            return Inventory()  # a host without Slurm has no allocations
        return Inventory(
            list_allocations(
                slurm_commands.parse_jobs(output, ours=allocation.NAME_PREFIX), commands.host_label, ledger_id("slurm")
            )
        )

    async def remove(self, things: Sequence[Leftover]) -> list[str]:
        """Cancel allocations, and wait until they have ended. Return a description of each allocation that remains.

        Args:
            things: Leftovers from ``inventory``.
        """
        return await cancel_allocations(self._commands, things)

    @contextmanager
    def warm(self, spec: PoolSpec) -> Iterator[None]:
        """Do nothing: only the queue takes time, and preparations cannot shorten it."""
        yield

    def transport(self, pool: str, machine: Machine, *, patience: float | None = None) -> SSHTransport:
        """Return the transport to one of the pool's machines.

        Args:
            pool: Name of the pool.
            machine: The machine.
            patience: Limit for connection attempts, in seconds; None for 30.
        """
        from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import SSHTransport

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
        folder_name, loaded_with = machine.extra["folder"], machine.extra.get("loaded_with")
        return SSHTransport(target, folder_name, python=self.python, loaded_with=loaded_with, patience=patience)


PROVIDER = Slurm
