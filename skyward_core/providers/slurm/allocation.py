"""One allocation: batch script, its folder, its agents."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from skyward_core.model.errors import NoCapacity, PoolError, Unreachable, error_message
from skyward_core.model.machines import Machine
from skyward_core.providers.pool_key_folder import PoolKeyFolder
from skyward_core.providers.provider_calls import report_progress
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
from skyward_core.store.atomic_file import write_atomic


class AllocationFolder(PoolKeyFolder):
    """See the module."""

    provider = "slurm"

    def create(self) -> None:
        """Have it there, before anything is asked for.

        Raises:
            PoolError: it cannot be made.
        """
        try:
            self.path.mkdir(parents=True, mode=0o700, exist_ok=True)
        except OSError as error:
            raise PoolError(f"the folder of pool {self.pool} cannot be made: {error}") from error

    def record_request(self) -> str:
        """Write down that the allocation is about to be asked for; gives the public key that its nodes let in.

        Raises:
            PoolError: it cannot be written.
        """
        from skyward_core.transport.ssh.asyncssh_import import asyncssh

        public = self.path / "id_ed25519.pub"
        try:
            if not (self.login_key.exists() and public.exists()):
                key = asyncssh.generate_private_key("ssh-ed25519", comment=f"skyward-{self.pool}")
                write_atomic(self.login_key, key.export_private_key())
                write_atomic(public, key.export_public_key())
            write_atomic(self._request_path, f"{time.time():.3f}".encode())
            return " ".join(public.read_text(encoding="ascii").split()[:2])
        except OSError as error:
            raise PoolError(f"the key of pool {self.pool} cannot be written to {self.path}: {error}") from error

    @property
    def last_submitted_at(self) -> float | None:
        """When it was asked for last, Unix time; None where it never was, or nobody here knows."""
        try:
            return float(self._request_path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def record_answer(self, *, submitted: bool) -> None:
        """Write down what Slurm has answered.

        Args:
            submitted: whether it has taken the job.

        Raises:
            PoolError: it cannot be written.
        """
        try:
            if submitted:
                self._request_path.replace(self._submitted_path)
            else:
                self._request_path.unlink()
        except OSError as error:
            raise PoolError(f"what Slurm has answered cannot be written to {self.path}: {error}") from error

    @property
    def is_never_submitted(self) -> bool:
        """Whether Slurm was never asked for anything that it might have taken."""
        return self.path.exists() and not (self._request_path.exists() or self._submitted_path.exists())

    def write_known_hosts(self, nodes: Sequence[AllocatedNode]) -> None:
        """Write down which keys the pool's nodes show.

        Raises:
            PoolError: they cannot be written.
        """
        lines = [f"[{node.address}]:{node.port} {node.host_key}\n" for node in nodes]
        try:
            write_atomic(self.known_hosts, "".join(lines).encode())
        except OSError as error:
            raise PoolError(f"the keys of pool {self.pool}'s nodes cannot be written: {error}") from error

    @property
    def _request_path(self) -> Path:
        return self.path / "begun"

    @property
    def _submitted_path(self) -> Path:
        return self.path / "submitted"


POLL_INTERVAL = 5  # seconds between two looks for the agent
ABANDON_SECONDS = 300  # seconds without an agent after which a node leaves the allocation
FIRST_PORT, PORT_COUNT = 20000, 12000

# Neither sh nor srun changes anything in it. @NAME@ are put in; all of them are numbers, names or public keys.
_SCRIPT_TEMPLATE = """\
#!/bin/sh
# A pool of skyward: @POOL@
umask 077
node=$(cat <<'SKYWARD_NODE'
umask 077
D=/tmp/skyward-slurm-$(id -u)-@FOLDER@.$SLURM_NODEID
S= W=
members() {
  grep -slzE '(^|/)@FOLDER@[.]'"$SLURM_NODEID"'(/|:|$)' /proc/[0-9]*/environ /proc/[0-9]*/cmdline |
    cut -d/ -f3 | sort -u
}
leave() {
  trap '' TERM INT HUP
  [ -n "$S" ] && kill "$S" 2>/dev/null
  [ -n "$W" ] && kill "$W" 2>/dev/null
  for k in TERM KILL; do
    q=$(members)
    [ -n "$q" ] || break
    kill -$k $q 2>/dev/null
    [ $k = KILL ] || sleep 0.5 2>/dev/null || sleep 1
  done
  rm -rf "$D"
}
fail() {
  echo "skyward-error $SLURM_NODEID $*" | head -c 400 >"$D/draft"; echo >>"$D/draft"; mv "$D/draft" "$D/report"
  sleep 60 & W=$!; wait $W; exit 1
}
mkdir "$D" || exit 1
trap leave EXIT
trap 'exit 0' TERM INT HUP
for p in /usr/sbin/sshd /usr/local/sbin/sshd /sbin/sshd /usr/bin/sshd; do [ -x "$p" ] && break; p=; done
[ -n "$p" ] || fail "$SLURMD_NODENAME has no sshd, which pools need there"
A=$(scontrol show node -o "$SLURMD_NODENAME" 2>/dev/null | sed -n 's/.* NodeAddr=\\([^ ]*\\) .*/\\1/p')
[ -n "$A" ] || A=$SLURMD_NODENAME
ssh-keygen -q -t ed25519 -N '' -C skyward -f "$D/host" </dev/null 2>"$D/log" || fail "ssh-keygen: $(tail -n 1 "$D/log")"
echo '@KEY@' >"$D/authorized"
cat >"$D/config" <<SKYWARD_SSHD
ListenAddress $A
HostKey $D/host
PidFile $D/pid
AuthorizedKeysFile $D/authorized
AllowUsers $(id -un)
PermitRootLogin prohibit-password
PubkeyAuthentication yes
PasswordAuthentication no
ChallengeResponseAuthentication no
UsePAM no
StrictModes no
AllowAgentForwarding no
X11Forwarding no
MaxSessions 200
MaxStartups 100
PrintMotd no
Subsystem sftp internal-sftp
SKYWARD_SSHD
set --
for v in CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ZE_AFFINITY_MASK; do
  eval "t=\\${$v-}"
  case $t in ''|*[!A-Za-z0-9,._:/-]*) ;; *) set -- "$@" "$v=$t";; esac
done
[ $# -eq 0 ] || echo "SetEnv $*" >>"$D/config"
i=0
while :; do
  i=$((i + 1)); [ $i -le 20 ] || fail "$SLURMD_NODENAME: sshd does not start: $(tail -n 1 "$D/log")"
  P=$((@FIRST_PORT@ + $(od -An -N2 -tu2 /dev/urandom) % @PORTS@))
  "$p" -D -f "$D/config" -p $P -E "$D/log" </dev/null &
  S=$!
  n=0
  until [ -s "$D/pid" ]; do
    kill -0 $S 2>/dev/null || break
    n=$((n + 1)); [ $n -le 100 ] || break
    sleep 0.1 2>/dev/null || sleep 1
  done
  [ -s "$D/pid" ] && kill -0 $S 2>/dev/null && break
  kill $S 2>/dev/null
done
echo "skyward-node $SLURM_NODEID $SLURMD_NODENAME $A $P $(id -un) $(cut -d' ' -f1,2 "$D/host.pub")" >"$D/draft"
mv "$D/draft" "$D/report"
alive() {
  for r in "${XDG_CACHE_HOME:-$HOME/.cache}/skyward" "/var/tmp/skyward-$(id -u)" "/tmp/skyward-$(id -u)"; do
    f=$r/pools/@FOLDER@.$SLURM_NODEID
    [ -e "$f/agent.lock" ] || continue
    command -v flock >/dev/null 2>&1 || return 0
    flock -n -s "$f/agent.lock" true 2>/dev/null || return 0
  done
  return 1
}
seen=$(date +%s) limit=@BOOT@
while kill -0 $S 2>/dev/null; do
  sleep @LOOK@ & W=$!; wait $W
  now=$(date +%s)
  if alive; then seen=$now limit=@GONE@; fi
  [ $((now - seen)) -le $limit ] || break
done
SKYWARD_NODE
)
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --mem=0 --cpu-bind=none \\
  --kill-on-bad-exit=0 --wait=0 --input=none sh -c "$node" &
step=$!
trap 'kill $step 2>/dev/null' TERM INT HUP
wait $step
"""

# What a second step prints of the nodes, once their servers listen.
_REPORT_TEMPLATE = (
    "D=/tmp/skyward-slurm-$(id -u)-@FOLDER@.$SLURM_NODEID;n=0;"
    'until [ -O "$D" ] && [ -O "$D/report" ];do n=$((n+1));[ $n -le 180 ]||{ '
    'echo "skyward-error $SLURM_NODEID its SSH server has not come up within 90 s";exit 0;};sleep 0.5;done;'
    'cat "$D/report"'
)


def make_script(pool: str, folder: str, key: str, boot: int) -> str:
    """The batch script.

    Args:
        pool: the pool's name.
        folder: what the folders of the pool's nodes are called, but for their index.
        key: the line of the public key that is let in.
        boot: seconds within which an agent has to run.
    """
    given = {
        "POOL": pool,
        "FOLDER": folder,
        "KEY": key,
        "BOOT": boot,
        "GONE": ABANDON_SECONDS,
        "LOOK": POLL_INTERVAL,
        "FIRST_PORT": FIRST_PORT,
        "PORTS": PORT_COUNT,
    }
    text = _SCRIPT_TEMPLATE
    for name, what in given.items():
        text = text.replace(f"@{name}@", str(what))
    return text


NAME_PREFIX = "skyward-"
POLL_PAUSES = (0.3, 15.0)  # seconds between two looks at the queue, at first and at most
END_TIMEOUT = 6.0  # seconds in which most of those that are told to end have ended
SUBMIT_TIMEOUT = 30.0  # seconds that sbatch may take, whatever becomes of its client
REPORT_TIMEOUT = 120.0  # seconds in which nodes say how they are reached
_VISIBILITY_SECONDS = 2.0  # seconds until squeue shows what sbatch has submitted


def job_name(pool: str, token: str) -> str:
    """What a pool's allocation is called, by nobody else: squeue finds it by that."""
    return f"{NAME_PREFIX}{pool}.{token}"


def parse_job_name(name: str) -> tuple[str, str] | None:
    """The pool and the token that such a name has; None where it is no such name."""
    pool, _, token = name.removeprefix(NAME_PREFIX).rpartition(".")
    return (pool, token) if name.startswith(NAME_PREFIX) and pool and token.isalnum() else None


async def find_jobs(commands: SlurmCommands, names: Iterable[str]) -> list[SlurmJob]:
    """What Slurm knows of allocations, those that ended lately among them.

    Raises:
        PoolError: it cannot be asked.
    """
    wanted = sorted(set(names))
    options = ("--me", "--noheader", "--states=all", f"--name={','.join(wanted)}", "-o", slurm_commands.SQUEUE_FORMAT)
    told = await commands("squeue", *options)
    return [each for each in slurm_commands.parse_jobs(told) if each.name in wanted]


async def find_settled_jobs(commands: SlurmCommands, names: Iterable[str]) -> list[SlurmJob]:
    """The same; those that are just ending are waited for, for a while: only then Slurm says why they end.

    Raises:
        PoolError: it cannot be asked.
    """
    names, until = list(names), time.monotonic() + END_TIMEOUT
    while True:
        there = await find_jobs(commands, names)
        if not any(each.state in slurm_commands.ENDING_STATES for each in there) or time.monotonic() > until:
            return there
        await asyncio.sleep(0.3)


async def find_allocations(commands: SlurmCommands, folder: AllocationFolder) -> list[SlurmJob]:
    """A pool's allocations that are not over. A submission of which nobody has heard what became of it is waited for:
    the client may have died while its sbatch went on.

    Raises:
        PoolError: Slurm cannot be asked.
    """
    while True:
        if folder.is_never_submitted:
            return []
        begun = folder.last_submitted_at
        there = [
            each for each in await find_jobs(commands, [job_name(folder.pool, folder.token)]) if not each.has_ended
        ]
        until = 0.0 if begun is None else begun + SUBMIT_TIMEOUT + CONNECTION_SLACK
        if there or time.time() >= until or begun is None or begun > time.time() + CONNECTION_SLACK:
            return there
        await asyncio.sleep(min(_VISIBILITY_SECONDS, max(0.1, until - time.time())))


async def submit_job(commands: SlurmCommands, folder: AllocationFolder, options: Sequence[str], script: str) -> str:
    """Ask Slurm for an allocation; gives the number of its job.

    Raises:
        PoolError: it refuses, or cannot be asked; says why.
    """
    asked = asyncio.ensure_future(commands("sbatch", "--parsable", *options, stdin=script, seconds=SUBMIT_TIMEOUT))
    try:
        told = await asyncio.shield(asked)
    except asyncio.CancelledError:
        # Who breaks off its start waits for the answer, which tells what is to be cancelled.
        await asyncio.wait([asked], timeout=SUBMIT_TIMEOUT)
        if asked.done() and not asked.cancelled() and asked.exception() is None:
            folder.record_answer(submitted=True)
        raise
    except CommandFailed as error:
        if "timed out" not in str(error):  # else Slurm may take it all the same
            folder.record_answer(submitted=False)
        raise
    folder.record_answer(submitted=True)
    return slurm_commands.parse_job_id(told)


async def wait_for_nodes(commands: SlurmCommands, name: str, id: str) -> SlurmJob:
    """Wait until an allocation has its nodes, and tell meanwhile why it waits.

    Raises:
        NoCapacity: Slurm took its nodes away again before anybody could use them.
        PoolError: it ended otherwise, as by somebody who cancelled it: it is not submitted anew.
    """
    pause, said = POLL_PAUSES[0], ""
    while True:
        try:
            found = [each for each in await find_jobs(commands, [name]) if each.id == id]
        except (Unreachable, CommandFailed) as error:  # a controller may be started anew, and the queue stays
            said = _report_change(said, f"job {id} waits, as far as is known: {error_message(error)}")
            found = []
        else:
            if not found:
                raise PoolError(f"Slurm does not know job {id} any more; somebody has cancelled it, it seems")
        for job in found:
            if job.state in RUNNING_STATES:
                return job
            if job.has_ended:
                kind = NoCapacity if job.state in PREEMPTED_STATES else PoolError
                raise kind(f"{job.end_reason}, before the pool was up")
            when = ""
            if job.start and job.start > time.time():
                when = time.strftime("; Slurm expects it to start at %H:%M on %Y-%m-%d", time.localtime(job.start))
            said = _report_change(said, f"job {id} waits in the queue: {job.wait_reason}{when}")
        await asyncio.sleep(pause)
        pause = min(POLL_PAUSES[1], pause * 1.4)


def _report_change(before: str, now: str) -> str:
    if now != before:
        report_progress(now)
    return now


async def list_nodes(commands: SlurmCommands, job: SlurmJob) -> list[str]:
    """The names of an allocation's nodes.

    Raises:
        PoolError: they cannot be told.
    """
    return slurm_commands.parse_hostnames(await commands("scontrol", "show", "hostnames", job.nodes))


async def fetch_node_reports(commands: SlurmCommands, job: SlurmJob, folder: str, count: int) -> list[AllocatedNode]:
    """How its nodes are reached, once their SSH servers listen.

    Args:
        folder: what the folders of the pool's nodes are called, but for their index.
        count: how many nodes it has.

    Raises:
        PoolError: one cannot be; says why.
    """
    report = _REPORT_TEMPLATE.replace("@FOLDER@", folder)
    told = await commands(
        "srun", f"--jobid={job.id}", "--overlap", "--mem=0", "--gres=none", f"--nodes={count}", f"--ntasks={count}",
        "--ntasks-per-node=1", "--cpu-bind=none", "--input=none", "sh", "-c", report,
        seconds=REPORT_TIMEOUT,
    )  # fmt: skip
    return slurm_commands.parse_node_reports(told, count)


async def fetch_end_reason(commands: SlurmCommands, id: str) -> str:
    """How an allocation ended that squeue does not know any more, by the cluster's accounting; "" where it has none."""
    try:
        told = await commands("sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={id}", "--format=State")
    except PoolError:
        return ""
    return slurm_commands.job_end_reason(id, told)


def complete_allocations(machines: Iterable[Machine]) -> list[str]:
    """The allocations of which all nodes are among some machines: one ends as a whole, or not at all."""
    counts = Counter((each.extra["job"], each.extra["nodes"]) for each in machines)
    return sorted(job for (job, nodes), count in counts.items() if count >= nodes)


async def cancel_jobs(commands: SlurmCommands, wanted: Sequence[str]) -> None:
    """Have allocations ended; those that are over stay so.

    Raises:
        PoolError: Slurm was not told.
    """
    if wanted:
        await commands("scancel", "--quiet", *wanted)


def to_machine(folder: AllocationFolder, job: SlurmJob, node: AllocatedNode, name: str, count: int) -> Machine:
    """A node of an allocation, as a machine.

    Args:
        count: how many nodes it has.
        name: what its folder is called, but for its index.
    """
    extra: dict[str, Any] = {
        "nodes": count,
        "job": job.id, "token": folder.token, "port": node.port, "user": node.user, "folder": f"{name}.{node.index}"
    }  # fmt: skip
    return Machine(f"{job.id}/{node.name}", node.index, node.address, "", extra=extra)


def pending_machines(folder: AllocationFolder, job: SlurmJob, names: Sequence[str]) -> list[Machine]:
    """An allocation that nobody could use yet, as machines: one for each node that it has, or one while it waits."""
    extra = {"job": job.id, "token": folder.token, "nodes": max(1, len(names))}
    if not names:
        return [Machine(job.id, 0, "", "", extra=extra)]
    return [Machine(f"{job.id}/{name}", index, "", "", extra=extra) for index, name in enumerate(names)]


def folder_name(pool: str, token: str) -> str:
    """What the folders of a pool's nodes are called there, but for their index."""
    return f"{pool}.{token[:8]}"
