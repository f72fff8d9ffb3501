"""Real Slurm on this machine: slurmctld, one slurmd per node, and a separate munged.

Requires Debian's slurm-wlm and munge, and root. ``missing()`` names what is missing.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
from contextlib import closing
from pathlib import Path

from tests.support.waiting import wait_until

CONF = """\
ClusterName=trial
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,default_queue_depth=50,sched_min_interval=0
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=2
MinJobAge=60
SlurmdTimeout=10
MessageTimeout=20
GresTypes=gpu
OverTimeLimit=0
NodeName=n[1-{count}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}] CPUs=2 RealMemory=500 \
Gres=gpu:a100:2 State=UNKNOWN
PartitionName=short Nodes=ALL Default=YES MaxTime=60 State=UP
PartitionName=lone Nodes=n1 MaxTime=INFINITE State=UP
"""
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "sinfo", "scancel", "scontrol")


def missing() -> str:
    """Return the reason why Slurm cannot run here; "" if it can."""
    if os.geteuid() != 0:
        return "a Slurm for tests is started by root"
    lacking = [name for name in (*PROGRAMS, "sshd") if _program(name) is None]
    return f"not installed: {', '.join(lacking)} (Debian: slurm-wlm munge openssh-server)" if lacking else ""


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def _free_ports(count: int) -> int:
    """Return the first of several consecutive free ports."""
    for first in range(17000 + os.getpid() % 2000 * 5, 32000, count):
        try:
            for port in range(first, first + count):
                with closing(socket.socket()) as trial:
                    trial.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise OSError("no free ports")


class SlurmCluster:
    """Slurm cluster; see the module.

    Args:
        folder: Folder of the cluster, with a short path because of sockets.
        count: Number of nodes, named n1, n2, ...

    Attributes:
        env: Environment of programs that use the cluster.
    """

    def __init__(self, folder: Path, count: int = 2) -> None:
        self.folder = folder
        self.count = count
        self.conf = folder / "slurm.conf"
        self.env = os.environ | {"SLURM_CONF": str(self.conf)}
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        host, first = socket.gethostname().partition(".")[0], _free_ports(self.count + 1)
        ports = (first, first + 1, first + self.count)
        (self.folder / "state").mkdir()
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd of root wants it
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.conf.write_text(CONF.format(host=host, ports=ports, folder=self.folder, count=self.count))
        for number in range(2):  # as if they were GPUs
            os.mknod(self.folder / f"gpu{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        gpus = f"NodeName=n[1-{self.count}] Name=gpu Type=a100 File={self.folder}/gpu[0-1]\n"
        (self.folder / "gres.conf").write_text(gpus)
        self._run(
            "munged", "--foreground", "--force", "--num-threads=1", f"--key-file={key}",
            f"--socket={self.folder}/munge.sock", f"--pid-file={self.folder}/munged.pid",
            f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munged.seed",
        )  # fmt: skip
        wait_until((self.folder / "munge.sock").exists)
        self._run("slurmctld", "-D", "-f", str(self.conf), "-L", str(self.folder / "slurmctld.log"))
        for number in range(1, self.count + 1):
            self.boot(f"n{number}")
        wait_until(self._is_idle)

    def _is_idle(self) -> bool:
        try:
            return self("sinfo", "-h", "-N", "-p", "short", "-o", "%t").split() == ["idle"] * self.count
        except subprocess.CalledProcessError:
            return False  # the controller is just starting

    def boot(self, node: str) -> None:
        """Start a node's slurmd."""
        log = str(self.folder / f"slurmd.{node}.log")
        self._run("slurmd", "-D", "-N", node, "-f", str(self.conf), "-L", log, name=node)

    def _run(self, program: str, *arguments: str, name: str = "") -> None:
        path = _program(program)
        assert path is not None
        with open(self.folder / "output", "ab") as output:
            self._started[name or program] = subprocess.Popen(
                [path, *arguments], env=self.env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/"
            )

    def __call__(self, *command: str) -> str:
        """Run a Slurm command and return its output.

        Raises:
            CalledProcessError: If a query fails.
        """
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60)
        if command[0] in ("squeue", "sinfo"):
            done.check_returncode()
        return done.stdout

    def jobs(self, *states: str) -> list[str]:
        """Return number, name, state and reason of the jobs: waiting and running ones, or those in given states."""
        return self("squeue", "-h", "-o", "%i|%j|%T|%r", *(("-t", ",".join(states)) if states else ())).splitlines()

    def stop(self) -> None:
        self("scancel", "-u", "root")
        for name, process in reversed(self._started.items()):
            process.send_signal(signal.SIGKILL if name.startswith("n") else signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
