"""Slurm allocations of pools: folder on the client, batch script, submission, waiting and cancellation."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skyward_core.model.errors import NoCapacity, PoolError, Unreachable, convert_errors, error_message
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.providers.provider_call_logs_polling_and_cache import report_progress
from skyward_core.providers.slurm import slurm_commands
from skyward_core.providers.slurm.slurm_commands import (
    CONNECTION_SLACK,
    PREEMPTED_STATES,
    RUNNING_STATES,
    AllocatedNode,
    CommandFailed,
    SlurmCommands,
    SlurmJob,
)
from skyward_core.store.pool_folder import PoolKeyFolder
from skyward_core.util.safe_file_access import try_lock, write_atomic


@dataclass(frozen=True)
class Submission:
    """A submission of a pool's allocation.

    Attributes:
        options: Options of sbatch.
        folder: Name of the pool's folders on the nodes, without the node index.
        boot: Seconds within which an agent must run.
        lead: Seconds between Slurm's signal and the end of the allocation; 0 if no signal is requested.
    """

    options: Sequence[str]
    folder: str
    boot: int
    lead: int


class AllocationFolder(PoolKeyFolder):
    """Client-side folder of a Slurm pool: login key, host keys of the nodes, and submission state."""

    provider = "slurm"

    def create(self) -> None:
        """Create the folder before the first request.

        Raises:
            PoolError: If the folder cannot be created.
        """
        with convert_errors(f"cannot create the folder of pool {self.pool}"):
            self.path.mkdir(parents=True, mode=0o700, exist_ok=True)

    @property
    def submission(self) -> Submission:
        """Latest submission.

        Raises:
            PoolError: If this machine has not submitted the allocation.
        """
        unknown = f"this machine did not submit the allocation of pool {self.pool}"
        with convert_errors(unknown, PoolError, (OSError, ValueError, TypeError)):
            return Submission(**json.loads((self.path / "submission").read_bytes()))

    def save_submission(self, submission: Submission) -> None:
        """Save a submission, which a replacement of the allocation repeats.

        Raises:
            PoolError: If the folder cannot be written.
        """
        with convert_errors(f"cannot write to {self.path}"):
            write_atomic(self.path / "submission", json.dumps(vars(submission)).encode())

    def record_request(self) -> str:
        """Record that a request for the allocation will be sent next. Return the public key that the allocation's nodes
        accept for logins.

        Raises:
            PoolError: If the folder cannot be written.
        """
        from skyward_core.transport.ssh.asyncssh_patches import asyncssh

        public = self.path / "id_ed25519.pub"
        with convert_errors(f"cannot write the key of pool {self.pool} to {self.path}"):
            if not (self.login_key.exists() and public.exists()):
                key = asyncssh.generate_private_key("ssh-ed25519", comment=f"skyward-{self.pool}")
                write_atomic(self.login_key, key.export_private_key())
                write_atomic(public, key.export_public_key())
            write_atomic(self._request_path, f"{time.time():.3f}".encode())
            return " ".join(public.read_text(encoding="ascii").split()[:2])

    @property
    def last_submitted_at(self) -> float | None:
        """Unix time of the last unanswered submission; None if there is none."""
        try:
            return float(self._request_path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def record_answer(self, *, submitted: bool) -> None:
        """Record Slurm's answer to a submission.

        Args:
            submitted: Whether Slurm accepted the job.

        Raises:
            PoolError: If the folder cannot be written.
        """
        with convert_errors(f"cannot record Slurm's answer in {self.path}"):
            if submitted:
                self._request_path.replace(self._submitted_path)
            else:
                self._request_path.unlink()

    @property
    def is_never_submitted(self) -> bool:
        """Whether Slurm has certainly not accepted any request: none was sent, or Slurm rejected each one."""
        return self.path.exists() and not (self._request_path.exists() or self._submitted_path.exists())

    @asynccontextmanager
    async def hold_lock(self) -> AsyncIterator[None]:
        """Lock the folder against other clients for the duration of a ``with`` block."""
        with open(self.path / "lock", "w") as lock:
            while not try_lock(lock):
                await asyncio.sleep(0.1)
            yield

    def write_known_hosts(self, nodes: Sequence[AllocatedNode]) -> None:
        """Write the host keys of the pool's nodes.

        Raises:
            PoolError: If the file cannot be written.
        """
        lines = [f"[{node.address}]:{node.port} {node.host_key}\n" for node in nodes]
        with convert_errors(f"cannot write the host keys of pool {self.pool}"):
            write_atomic(self.known_hosts, "".join(lines).encode())

    @property
    def _request_path(self) -> Path:
        return self.path / "begun"

    @property
    def _submitted_path(self) -> Path:
        return self.path / "submitted"


POLL_INTERVAL = 5  # seconds between two checks of the batch script for the node's agent
ABANDON_SECONDS = 300  # seconds without an agent after which a node leaves the allocation
FIRST_PORT, PORT_COUNT = 20000, 12000

# File with the batch script. sh and srun do not change the script. Its placeholders, such as @NAME@, are replaced only
# by numbers, names and public keys.
_SCRIPT_FILE = "allocation_script.sh"

# Program that runs on each node. It prints a preemption notice once the batch script has written the Unix time of the
# end to a file.
_NOTICE_PROGRAM = """import json, os, select, time
path, known = f"/tmp/skyward-slurm-{os.getuid()}-@FOLDER@/notice", ""
while not select.select([0], [], [], 1.0)[0]:
    try:
        with open(path) as file:
            text = file.read(16).strip()
    except OSError:
        continue
    if text != known and text.isdigit():
        known = text
        print(json.dumps({"kind": "terminate", "left": max(0, int(text) - time.time())}), flush=True)
"""

# Script of a second job step. It prints the addresses and host keys of the nodes once their SSH servers listen.
_REPORT_TEMPLATE = (
    "D=/tmp/skyward-slurm-$(id -u)-@FOLDER@.$SLURM_NODEID;n=0;"
    'until [ -O "$D" ] && [ -O "$D/report" ];do n=$((n+1));[ $n -le 180 ]||{ '
    'echo "skyward-error $SLURM_NODEID its SSH server did not start within 90 s";exit 0;};sleep 0.5;done;'
    'cat "$D/report"'
)


def notice_program(folder: str) -> str:
    """Return the program that reports the end of an allocation on a node.

    Args:
        folder: Name of the pool's folder on the node.
    """
    return _NOTICE_PROGRAM.replace("@FOLDER@", folder)


def make_script(pool: str, key: str, submission: Submission) -> str:
    """Return the batch script of an allocation.

    Args:
        pool: Name of the pool.
        key: Public key that the nodes accept.
        submission: The submission.
    """
    values = {
        "POOL": pool, "FOLDER": submission.folder, "KEY": key, "BOOT": submission.boot, "LEAD": submission.lead,
        "GONE": ABANDON_SECONDS, "POLL_INTERVAL": POLL_INTERVAL, "FIRST_PORT": FIRST_PORT, "PORTS": PORT_COUNT,
    }  # fmt: skip
    script = Path(__file__).with_name(_SCRIPT_FILE).read_text("utf-8")
    for name, replacement in values.items():
        script = script.replace(f"@{name}@", str(replacement))
    return script


NAME_PREFIX = "skyward-"
POLL_PAUSES = (0.3, 15.0)  # first and longest pause between two queries of Slurm's queue, in seconds
END_TIMEOUT = 6.0  # seconds after a cancellation in which most jobs end
SUBMIT_TIMEOUT = 30.0  # seconds after which sbatch is stopped on its host, even if the client has exited
REPORT_TIMEOUT = 120.0  # seconds for all nodes to report their addresses
_VISIBILITY_SECONDS = 2.0  # seconds after which squeue shows a submitted job


def job_name(pool: str, token: str) -> str:
    """Return the unique job name of a pool's allocation, by which squeue finds the job."""
    return f"{NAME_PREFIX}{pool}.{token}"


def parse_job_name(name: str) -> tuple[str, str] | None:
    """Return the pool and token in a job name; None for names of other jobs."""
    pool, _, token = name.removeprefix(NAME_PREFIX).rpartition(".")
    return (pool, token) if name.startswith(NAME_PREFIX) and pool and token.isalnum() else None


async def find_jobs(commands: SlurmCommands, names: Iterable[str]) -> list[SlurmJob]:
    """Return Slurm's information on allocations, including allocations that ended recently.

    Raises:
        PoolError: If Slurm cannot be queried.
    """
    sorted_names = sorted(set(names))
    options = "--me", "--noheader", "--states=all", f"--name={','.join(sorted_names)}"
    listed = await commands("squeue", *options, "-o", slurm_commands.SQUEUE_FORMAT)
    return [each for each in slurm_commands.parse_jobs(listed) if each.name in sorted_names]


async def find_settled_jobs(commands: SlurmCommands, names: Iterable[str]) -> list[SlurmJob]:
    """Return Slurm's information like :func:`find_jobs`, but first wait until ending jobs have ended, because Slurm
    reports the reason only then.

    Raises:
        PoolError: If Slurm cannot be queried.
    """
    names, until = list(names), time.monotonic() + END_TIMEOUT
    while True:
        jobs = await find_jobs(commands, names)
        if not any(each.state in slurm_commands.ENDING_STATES for each in jobs) or time.monotonic() > until:
            return jobs
        await asyncio.sleep(0.3)


async def find_allocations(commands: SlurmCommands, folder: AllocationFolder) -> list[SlurmJob]:
    """Return a pool's allocations that have not ended.

    If a submission has no recorded answer, this function waits, because sbatch may outlive a killed client.

    Raises:
        PoolError: If Slurm cannot be queried.
    """
    while True:
        if folder.is_never_submitted:
            return []
        begun = folder.last_submitted_at
        jobs = [each for each in await find_jobs(commands, [job_name(folder.pool, folder.token)]) if not each.has_ended]
        until = 0.0 if begun is None else begun + SUBMIT_TIMEOUT + CONNECTION_SLACK
        found = any(each.state not in slurm_commands.ENDING_STATES for each in jobs)
        if found or time.time() >= until or begun is None or begun > time.time() + CONNECTION_SLACK:
            return jobs
        await asyncio.sleep(min(_VISIBILITY_SECONDS, max(0.1, until - time.time())))


async def submit_job(commands: SlurmCommands, folder: AllocationFolder, options: Sequence[str], script: str) -> str:
    """Submit a batch job for an allocation; return its number.

    Raises:
        PoolError: If Slurm rejects the job or cannot be queried. The message has the reason.
    """
    submission = asyncio.ensure_future(commands("sbatch", "--parsable", *options, stdin=script, seconds=SUBMIT_TIMEOUT))
    try:
        output = await asyncio.shield(submission)
    except asyncio.CancelledError:
        # If the start is cancelled, wait for the answer of sbatch, because it contains the number of the job to cancel.
        await asyncio.wait([submission], timeout=SUBMIT_TIMEOUT)
        if submission.done() and not submission.cancelled() and submission.exception() is None:
            folder.record_answer(submitted=True)
        raise
    except CommandFailed as error:
        # if sbatch timed out, Slurm may still accept the job, so the request counts as unanswered
        if "timed out" not in str(error):
            folder.record_answer(submitted=False)
        raise
    folder.record_answer(submitted=True)
    return slurm_commands.parse_job_id(output)


async def wait_for_nodes(commands: SlurmCommands, name: str, id: str) -> SlurmJob:
    """Wait until an allocation has its nodes, reporting why it waits.

    Raises:
        NoCapacity: If Slurm preempted the nodes before the pool was up.
        PoolError: If the job ended for another reason, for example a cancellation; it is not submitted again.
    """
    pause, reported = POLL_PAUSES[0], ""
    while True:
        try:
            found = [each for each in await find_jobs(commands, [name]) if each.id == id]
        # Slurm's controller may be restarting, which does not affect its queue, so try again
        except (Unreachable, CommandFailed) as error:
            reported = _report_change(
                reported, f"job {id} probably still waits; Slurm does not answer: {error_message(error)}"
            )
            found = []
        else:
            if not found:
                raise PoolError(f"Slurm no longer knows job {id}. It was probably cancelled")
        for job in found:
            if job.state in RUNNING_STATES:
                return job
            if job.has_ended:
                kind = NoCapacity if job.state in PREEMPTED_STATES else PoolError
                raise kind(f"{job.end_reason} before the pool was up")
            when = ""
            if job.start and job.start > time.time():
                when = time.strftime("; Slurm expects it to start at %H:%M on %Y-%m-%d", time.localtime(job.start))
            reported = _report_change(reported, f"job {id} waits in the queue: {job.wait_reason}{when}")
        await asyncio.sleep(pause)
        pause = min(POLL_PAUSES[1], pause * 1.4)


def _report_change(before: str, now: str) -> str:
    if now != before:
        report_progress(now)
    return now


async def list_nodes(commands: SlurmCommands, job: SlurmJob) -> list[str]:
    """Return the names of an allocation's nodes.

    Raises:
        PoolError: If Slurm cannot be queried.
    """
    return slurm_commands.parse_hostnames(await commands("scontrol", "show", "hostnames", job.nodes))


async def fetch_node_reports(commands: SlurmCommands, job: SlurmJob, folder: str, count: int) -> list[AllocatedNode]:
    """Return the addresses and host keys of an allocation's nodes, once their SSH servers listen.

    Args:
        folder: Name of the pool's folders on the nodes, without the node index.
        count: Number of nodes.

    Raises:
        PoolError: If a node cannot be used. The message has the reason.
    """
    report = _REPORT_TEMPLATE.replace("@FOLDER@", folder)
    output = await commands(
        "srun", f"--jobid={job.id}", "--overlap", "--mem=0", "--gres=none", f"--nodes={count}", f"--ntasks={count}",
        "--ntasks-per-node=1", "--cpu-bind=none", "--input=none", "sh", "-c", report,
        seconds=REPORT_TIMEOUT,
    )  # fmt: skip
    return slurm_commands.parse_node_reports(output, count)


async def fetch_end_reason(commands: SlurmCommands, id: str) -> str:
    """Return why an allocation that is no longer in the queue has ended; "" if Slurm has no accounting."""
    try:
        output = await commands("sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={id}", "--format=State")
    except PoolError:
        return ""
    return slurm_commands.job_end_reason(id, output)


def complete_allocations(machines: Iterable[Machine]) -> list[str]:
    """Return the allocations whose nodes are all in ``machines``. Only these can end, because Slurm ends whole jobs."""
    counts = Counter((each.extra["job"], each.extra["nodes"]) for each in machines)
    return sorted(job for (job, nodes), count in counts.items() if count >= nodes)


async def cancel_jobs(commands: SlurmCommands, jobs: Sequence[str]) -> None:
    """Cancel allocations. Has no effect on allocations that have ended.

    Raises:
        PoolError: If Slurm does not accept the request.
    """
    if jobs:
        await commands("scancel", "--quiet", *jobs)


def to_machine(folder: AllocationFolder, job: SlurmJob, node: AllocatedNode, made: Submission, count: int) -> Machine:
    """Convert a node of an allocation to a machine.

    Args:
        folder: Client-side folder of the pool.
        job: The allocation.
        node: The node.
        made: Submission of the allocation.
        count: Number of nodes.
    """
    extra: dict[str, Any] = {
        "nodes": count, "job": job.id, "token": folder.token, "port": node.port, "user": node.user,
        "folder": f"{made.folder}.{node.index}",
    } | ({"lead": made.lead} if made.lead else {})  # fmt: skip
    return Machine(f"{job.id}/{node.name}", node.index, node.address, "", extra=extra)


def pending_machines(folder: AllocationFolder, job: SlurmJob, names: Sequence[str]) -> list[Machine]:
    """Return the machines of an allocation that no pool uses yet: one per node, or a single one while the job waits in
    the queue.
    """
    extra = {"job": job.id, "token": folder.token, "nodes": max(1, len(names))}
    if not names:
        return [Machine(job.id, 0, "", "", extra=extra)]
    return [Machine(f"{job.id}/{name}", index, "", "", extra=extra) for index, name in enumerate(names)]


def folder_name(pool: str, token: str) -> str:
    """Return the name of a pool's folders on the nodes, without the node index."""
    return f"{pool}.{token[:8]}"
