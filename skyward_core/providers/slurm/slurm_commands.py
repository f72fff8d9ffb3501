"""Slurm's commands (sbatch, squeue, sinfo, scontrol), run locally or over SSH, and parsers of their output."""

from __future__ import annotations

import asyncio
import math
import os
import re
import secrets
import shlex
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from typing import TYPE_CHECKING

from skyward_core.model.errors import PoolError, Unreachable, convert_errors
from skyward_core.providers.provider import contains_words, split_words
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.terminal_safe_text import sanitize_line

if TYPE_CHECKING:
    from skyward_core.transport.ssh.host_address_and_python import Target


COMMAND_TIMEOUT = 50.0  # seconds after which a Slurm command is stopped on its host
CONNECTION_SLACK = 10.0  # seconds that the connection to the login host may take in addition to the command
MAX_OUTPUT_BYTES = 4 << 20  # maximum bytes that are read from a command's output
# Environment variables that commands on this machine get. Other variables are left out: SBATCH_*, SQUEUE_* and SLURM_*
# would change the commands, and sbatch copies its whole environment, including secrets, to the job.
PASSED_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH", "SLURM_CONF")
SET_VARIABLES = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
_NOT_FOUND_STATUS = 127
_TIMEOUT_STATUSES = (124, 137)
# error text of Slurm's commands on a host without slurm.conf
_NO_CLUSTER_MESSAGE = "Could not establish a configuration source"

# Command that prints the output of another command between marks, because a login shell may print text before the
# output. $0 is a unique mark. The command avoids "!" and "'", which some login shells interpret.
_MARKED_COMMAND = 'echo; echo "$0"; "$@"; s=$?; echo; echo "$0 $s"'


class CommandFailed(PoolError):
    """Error: a Slurm command failed. The message has its output."""


class NoSlurm(CommandFailed):
    """Error: the host has no Slurm commands, or Slurm is not configured."""


class SlurmCommands:
    """Runner of Slurm commands.

    Args:
        login: Host that runs the commands; None for this machine.
    """

    def __init__(self, login: Target | None) -> None:
        self.login = login

    @property
    def host_label(self) -> str:
        """Name of the host that runs the commands, for messages."""
        return "this machine" if self.login is None else f"host {self.login.label}"

    @asynccontextmanager
    async def hold_connection(self) -> AsyncIterator[None]:
        """Share one connection among all commands in the ``with`` block, because each login may require input from the
        user.
        """
        if self.login is None:
            yield
            return
        from skyward_core.transport.ssh.connection import shared_connection

        async with shared_connection(self.login):
            yield

    async def __call__(self, program: str, *arguments: str, stdin: str = "", seconds: float = COMMAND_TIMEOUT) -> str:
        """Run a command and return its output.

        Args:
            seconds: Time limit, after which the command is stopped.

        Raises:
            NoSlurm: If the command does not exist or Slurm is not configured.
            CommandFailed: If the command fails. The message has its output.
            Unreachable: If the command times out, or the login host cannot be reached.
        """
        words = ["timeout", "-k", "5", f"{seconds:g}", program, *arguments]
        run = self._run_local if self.login is None else partial(self._run_remote, self.login)
        try:
            async with asyncio.timeout(seconds + CONNECTION_SLACK):
                status, output, errors = await run(words, stdin.encode())
        except TimeoutError as error:
            raise Unreachable(f"{program} on {self.host_label} gave no answer within {seconds:g} s") from error
        if len(output) > MAX_OUTPUT_BYTES:
            raise CommandFailed(f"{program} on {self.host_label} printed more than {MAX_OUTPUT_BYTES >> 20} MB")
        if status == 0:
            return output.decode("utf-8", "replace")
        message = sanitize_line(" ".join(errors[-2000:].decode("utf-8", "replace").split()))
        if status == _NOT_FOUND_STATUS:
            raise NoSlurm(
                f"{program} was not found on {self.host_label}: set login= to a login node of a Slurm cluster"
            )
        if _NO_CLUSTER_MESSAGE in message:
            raise NoSlurm(f"Slurm on {self.host_label} is not configured: {program} finds no slurm.conf")
        if status in _TIMEOUT_STATUSES:
            raise Unreachable(f"{program} on {self.host_label} gave no answer within {seconds:g} s: {message}")
        raise CommandFailed(
            f"{program} on {self.host_label} failed: {message or f'exit status {status} without output'}"
        )

    async def _run_local(self, words: Sequence[str], stdin: bytes) -> tuple[int, bytes, bytes]:
        env = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ} | SET_VARIABLES
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *words, env=env, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", start_new_session=True
            )
        except FileNotFoundError as error:
            raise CommandFailed(f"{words[0]} was not found on {self.host_label}") from error
        try:
            output, errors = await process.communicate(stdin)
        except BaseException:
            with suppress(ProcessLookupError):
                process.terminate()
            raise
        return process.returncode or 0, output, errors

    async def _run_remote(self, login: Target, words: Sequence[str], stdin: bytes) -> tuple[int, bytes, bytes]:
        from skyward_core.transport.ssh.connection import shared_connection
        from skyward_core.transport.ssh.host_command_channel import CommandOutput, open_session

        mark = f"skyward-{secrets.token_hex(8)}"
        prefixed = ["env", *(f"{name}={text}" for name, text in SET_VARIABLES.items()), *words]
        command = f"exec sh -c {shlex.quote(_MARKED_COMMAND)} {mark} {shlex.join(prefixed)}"
        output, lines = CommandOutput(), list[bytes]()
        async with shared_connection(login) as link:
            with convert_errors(f"the connection to {self.host_label} was lost", Unreachable, ConnectionError):
                channel = await open_session(link, command, output)
            with closing(channel):
                # if the host has closed the channel, writing fails, but the host may have sent the reason
                with suppress(OSError):
                    channel.write(stdin)
                    channel.write_eof()
                # this limit applies to the login shell before the command starts; the caller limits the command itself
                activity, limit = "", None
                while (line := await output.read_line(login.label, activity, limit)) is not None:
                    lines.append(line)
                    if line == mark.encode():
                        activity, limit = "a command", math.inf
        status = _exit_status(mark.encode(), lines, self.host_label)
        begin = lines.index(mark.encode()) + 1 if mark.encode() in lines else len(lines)
        return status, b"\n".join(lines[begin:-1]), bytes(output.errors)


def _exit_status(mark: bytes, lines: Sequence[bytes], where: str) -> int:
    """Return the exit status of a command, which the shell prints after the mark at the end of the command's output."""
    word, _, status = lines[-1].partition(b" ") if lines else (b"", b"", b"")
    if word != mark or not status.isdigit():
        raise Unreachable(f"{where} closed the connection before the command had finished")
    return int(status)


# Output format of squeue: number, state, nodes, start, end, name, comment, reason. The fields that may contain any text
# are last.
SQUEUE_FORMAT = "%i|%T|%N|%S|%e|%j|%k|%r"
SINFO_FORMAT = "%P|%a|%D|%c|%m|%l|%t|%G"

_ID = re.compile(r"[0-9]{1,12}")
_SBATCH_OUTPUT = re.compile(r"([0-9]{1,12})(;[\w.-]{1,64})?")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_STATE = re.compile(r"[A-Z_]{1,32}")
_NODES = re.compile(r"[A-Za-z0-9\[\],._-]{0,65536}")
_GRES = re.compile(r"gpu:(?:([A-Za-z0-9_.-]{1,64}):)?([0-9]{1,5})")
_NODE_REPORT = re.compile(
    r"skyward-node ([0-9]{1,6}) ([A-Za-z0-9][A-Za-z0-9._-]{0,254}) ([A-Za-z0-9][A-Za-z0-9._:-]{0,254}) ([0-9]{1,5}) "
    r"([A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}) (ssh-ed25519 [A-Za-z0-9+/=]{60,100})"
)
_NODE_ERROR = re.compile(r"skyward-error ([0-9]{1,6}) (.{1,500})")

WAITING_STATES = {
    "PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT",
}  # fmt: skip
RUNNING_STATES = {"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
ENDING_STATES = {"COMPLETING"}
END_REASONS = {
    "TIMEOUT": "its time limit was reached",
    "CANCELLED": "it was cancelled (scancel)",
    "NODE_FAIL": "a node failed",
    "PREEMPTED": "Slurm gave its nodes to another job (preemption)",
    "OUT_OF_MEMORY": "it used more memory than allocated",
    "BOOT_FAIL": "its nodes could not be booted",
    "DEADLINE": "its deadline was reached",
    "FAILED": "its script failed",
    "COMPLETED": "its nodes had no agent",
    "REVOKED": "it moved to another cluster",
}
# states of jobs that ended for a cause that another submission may avoid
PREEMPTED_STATES = {"NODE_FAIL", "PREEMPTED", "BOOT_FAIL"}
RESTARTED_STATES = PREEMPTED_STATES | {"TIMEOUT"}  # states of jobs after which a run may continue in another allocation
WAIT_REASONS = {
    "Resources": "no nodes are free",
    "Priority": "jobs with higher priority come first",
    "Dependency": "it depends on another job",
    "JobHeldUser": "it is held; release it with scontrol release",
    "JobHeldAdmin": "an administrator holds it",
    "PartitionTimeLimit": "it requests more time than the partition allows and will never start; reduce time=",
    "PartitionNodeLimit": "it requests more nodes than the partition has and will never start",
    "PartitionDown": "the partition is down",
    "ReqNodeNotAvail": "a requested node is not available",
    "Reservation": "its reservation has not begun",
    "BeginTime": "its start time has not come",
    "None": "Slurm has not scheduled it yet",
}


def job_end_reason(id: str, output: str) -> str:
    """Return why a job ended, from the output of sacct; "" if the output has no final state."""
    state = next(iter(output.split()), "")
    return f"allocation {id} ended: {END_REASONS[state]}" if state in END_REASONS else ""


@value
class SlurmJob(Value):
    """One line of squeue; times are Unix times, or None if not set."""

    id: str
    state: str
    nodes: str
    start: float | None
    end: float | None
    name: str
    comment: str
    reason: str

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended completely."""
        return self.state not in WAITING_STATES | RUNNING_STATES | ENDING_STATES

    @property
    def end_reason(self) -> str:
        """Sentence on the end of the job."""
        reason = END_REASONS.get(self.state, f"its state is {self.state}")
        is_complete = self.reason in ("None", "") or self.state in ("TIMEOUT", "PREEMPTED")
        return f"allocation {self.id} ended: {reason}{'' if is_complete else f'; {sanitize_line(self.reason)}'}"

    @property
    def wait_reason(self) -> str:
        """Reason why the job waits, with Slurm's code in parentheses."""
        if self.state != "PENDING":
            return self.state.lower().replace("_", " ")
        code = re.split(r"[ ,(]", self.reason)[0]
        reason = WAIT_REASONS.get(code)
        if code == "None":
            return WAIT_REASONS[code]
        return f"{reason} ({sanitize_line(self.reason)})" if reason else sanitize_line(self.reason)


def parse_jobs(text: str, *, ours: str = "") -> list[SlurmJob]:
    """Parse lines of squeue.

    Args:
        ours: Prefix of the job names to include. Jobs with other names are skipped, because their names are arbitrary.

    Raises:
        PoolError: If a line is invalid.
    """
    found = []
    for line in filter(None, text.splitlines()):
        parts = line.split("|", 7)
        if ours and not (len(parts) > 5 and parts[5].startswith(ours)):
            continue
        if len(parts) != 8 or not (
            _ID.fullmatch(parts[0]) and _STATE.fullmatch(parts[1]) and _NODES.fullmatch(parts[2])
        ):
            raise PoolError(f"invalid output line of squeue: {sanitize_line(line)[:200]}")
        id, state, nodes, start, end, *words = parts
        found.append(SlurmJob(id, state, nodes, _parse_time(start), _parse_time(end), *map(sanitize_line, words)))
    return found


def _parse_time(text: str) -> float | None:
    return float(text) if _ID.fullmatch(text) else None


def parse_job_id(text: str) -> str:
    """Return the job number in the output of sbatch.

    Raises:
        PoolError: If the output has no job number.
    """
    lines = text.split()
    found = _SBATCH_OUTPUT.fullmatch(lines[-1]) if lines else None
    if found is None:
        raise PoolError(f"sbatch printed no job number: {sanitize_line(text)[:200] or 'no output'}")
    return found[1]


def parse_hostnames(text: str) -> list[str]:
    """Parse the output of ``scontrol show hostnames``.

    Raises:
        PoolError: If a line is not a host name.
    """
    names = text.split()
    for name in names:
        if not _HOST.fullmatch(name):
            raise PoolError(f"invalid node name in the output of scontrol: {sanitize_line(name)[:200]}")
    return names


@value
class AllocatedNode(Value):
    """Node of an allocation, with the pool's own SSH server."""

    index: int
    name: str
    address: str
    port: int
    user: str
    host_key: str


def parse_node_reports(text: str, count: int) -> list[AllocatedNode]:
    """Parse the reports of an allocation's nodes; return the nodes by index.

    Args:
        count: Number of nodes.

    Raises:
        PoolError: If a node reports an error, or sends no valid report.
    """
    nodes: dict[int, AllocatedNode] = {}
    errors: dict[int, str] = {}
    for line in text.splitlines():
        if found := _NODE_REPORT.fullmatch(line):
            index, port = int(found[1]), int(found[4])
            if index >= count or not 0 < port < 65536 or index in nodes:
                raise PoolError(f"invalid report from a node of the allocation: {sanitize_line(line)[:200]}")
            nodes[index] = AllocatedNode(index, found[2], found[3], port, found[5], found[6])
        elif found := _NODE_ERROR.fullmatch(line):
            errors[int(found[1])] = sanitize_line(found[2])
    if errors:
        raise PoolError("; ".join(f"node {index}: {reason}" for index, reason in sorted(errors.items())))
    if missing := [str(index) for index in range(count) if index not in nodes]:
        raise PoolError(f"no report from node {', '.join(missing)} of the allocation")
    return [nodes[index] for index in range(count)]


@value
class Partition(Value):
    """One line of sinfo: equal nodes of a partition.

    Attributes:
        is_default: Whether jobs that name no partition go to this one.
        gpus: Type ("" if unnamed) and number of each kind of GPU.
    """

    name: str
    is_default: bool
    is_up: bool
    nodes: int
    cpus: int
    memory_mb: int
    limit: str
    state: str
    gpus: tuple[tuple[str, int], ...]

    @property
    def memory_gb(self) -> float:
        """Memory of each node in GB, rounded down to tenths."""
        return self.memory_mb * 10 // 1024 / 10

    def __str__(self) -> str:
        gpus = ", ".join(f"{number} × {kind or 'GPU'}" for kind, number in self.gpus) or "no GPU"
        size = f"{self.cpus} CPUs, {self.memory_gb:g} GB, {gpus}"
        nodes = f"{self.nodes} node{'s' * (self.nodes != 1)}"
        return f"{nodes} {self.state}, each {size}; time limit {self.limit}"


def parse_partitions(text: str) -> list[Partition]:
    """Parse lines of sinfo; skips invalid lines."""
    found = []
    for line in text.splitlines():
        parts = line.split("|", 7)
        if len(parts) != 8:
            continue
        name, up, nodes, cpus, memory, limit, state, gres = map(sanitize_line, parts)
        numbers = [each.rstrip("+") for each in (nodes, cpus, memory)]
        if not all(_ID.fullmatch(each) for each in numbers):
            continue
        count, cores, size = map(int, numbers)
        gpus = tuple((kind or "", int(number)) for kind, number in _GRES.findall(gres))
        found.append(
            Partition(name.removesuffix("*"), name.endswith("*"), up == "up", count, cores, size, limit, state, gpus)
        )
    return found


def select_partition(listed: Sequence[Partition], named: str | None) -> list[Partition]:
    """Return the lines of the partition to which a job goes: the named partition, else the default one."""
    if named:
        return list(listed)  # sinfo was already asked for this partition only
    return [each for each in listed if each.is_default] or list(listed)


def matching_gpu_types(name: str, memory_gb: float | None, types: Iterable[str]) -> list[str]:
    """Return the GPU types of a cluster that match an accelerator.

    Args:
        name: Name of the accelerator in the catalog.
        memory_gb: Memory of the accelerator in GB; None for any.
        types: The cluster's names of GPU types.
    """
    words = split_words(name)
    fitting = [kind for kind in dict.fromkeys(types) if kind and contains_words(split_words(kind), words)]
    if memory_gb is not None:
        fitting = [kind for kind in fitting if f"{memory_gb:g}gb" in split_words(kind)] or fitting
    return fitting
