"""SSH between nodes: MPI launchers start processes on all nodes, and other users are refused."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.plugins.built_in.mpi import Mpi
from tests.support.cli import call
from tests.support.pool_logs import last_run, log_of

from . import Host, Lab
from .pools import nothing_runs, pool, ssh, until

# What a launcher of MPI does: it reads the host file, and starts a process for each slot by the agent it is told of.
LAUNCHER = """
import os, subprocess, sys
agent = os.environ["OMPI_MCA_plm_rsh_agent"]
rows = [line.split() for line in open(os.environ["SKYWARD_HOSTFILE"])]
places = [host for host, slots in rows for _ in range(int(slots.partition("=")[2]))]
started = [subprocess.Popen([agent, place, sys.argv[1]]) for place in places]
sys.exit(max(each.wait() for each in started))
"""
LAUNCH = f"{shlex.quote(sys.executable)} -c {shlex.quote(LAUNCHER)}"
JOB = """
num_nodes: 2
run: |
  if [ "${SKYPILOT_NODE_RANK}" == "0" ]; then
    mpirun --hostfile $SKYWARD_HOSTFILE -np 2 hostname
  fi
"""


@pytest.fixture(scope="module")
def shared_pool(can_lab: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, sky.Compute, str]]:
    """A pool on two hosts whose nodes reach one another, and its home."""
    home = str(tmp_path_factory.mktemp("home"))
    with pytest.MonkeyPatch.context() as patch, Lab(2) as lab:
        patch.chdir(tmp_path_factory.mktemp("work"))
        patch.setenv("SKYWARD_HOME", home)
        image = sky.Image(env={"OF_IMAGE": "kept here"})
        plugins = [sky.plugins.mpi(launcher="")]
        with pool(lab, beside(lab), plugins=plugins, name="reached", image=image) as compute:
            yield lab, compute, home
        nothing_is_left(lab)


@pytest.fixture
def reached(
    shared_pool: tuple[Lab, sky.Compute, str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Lab, sky.Compute]:
    lab, compute, place = shared_pool
    monkeypatch.setenv("SKYWARD_HOME", place)
    return lab, compute


def beside(lab: Lab) -> sky.SSH:
    return ssh(lab, lab.hosts[:2], python=sys.executable)


def command_output(compute: sky.Compute, command: str) -> str:
    """Return the output of a command on the head."""
    sky.shell(f'test "$SKYPILOT_NODE_RANK" != 0 || {{ {command}; }}') @ compute
    return last_output(compute)


def last_output(compute: sky.Compute) -> str:
    return "".join(log_of(compute, last_run(compute), 0, stream).decode() for stream in ("out", "err"))


def plugin_of(compute: sky.Compute) -> Mpi:
    return next(each for each in compute.plugins if isinstance(each, Mpi))


def sshds(host: Host) -> list[str]:
    """Return a host's sshd processes, except its own server."""
    lines = host.run("ps -eo args").splitlines()
    return [line for line in lines if "between-nodes" in line]


def nothing_is_left(lab: Lab) -> None:
    nothing_runs(lab)
    for host in lab.hosts:
        until(lambda: not sshds(host), f"the end of the sshd on {host.name}")  # noqa: B023
        assert host.run("find /run/home /tmp /var/tmp -name between-nodes") == ""


@pytest.mark.proof("1 s of a processor")
def test_mpi_launcher_on_one_node_starts_processes_on_all_nodes(reached: tuple[Lab, sky.Compute]) -> None:
    lab, compute = reached
    lines = command_output(compute, f'{LAUNCH} "uname -n; command -v python; pwd; echo \\$OF_IMAGE" 2>&1').splitlines()
    python = str(Path(sys.executable).with_name("python"))
    assert sorted(lines) == sorted([*(host.name for host in lab.hosts), *[python] * 2, *["/run/home", "kept here"] * 2])


@pytest.mark.proof("2 s of a processor")
def test_ssh_between_nodes_returns_exit_status_and_forwards_stdin(reached: tuple[Lab, sky.Compute]) -> None:
    _, compute = reached
    asked = 'ssh node1 "exit 7"; echo $?; ssh node1 "kill -9 \\$\\$"; echo $?; echo in | ssh reached-worker1 cat'
    assert command_output(compute, asked).splitlines() == ["7", "137", "in"]


def test_mpirun_of_open_mpi_runs_on_two_hosts(reached: tuple[Lab, sky.Compute], home: Path) -> None:
    lab, compute = reached
    mpirun = shutil.which("mpirun")
    if mpirun is None or b"Open MPI" not in subprocess.check_output([mpirun, "--version"]):
        pytest.skip("mpirun of Open MPI is not installed: apt-get install openmpi-bin")
    names = sorted(host.name for host in lab.hosts)
    assert (
        sorted(command_output(compute, "mpirun --hostfile $SKYWARD_HOSTFILE -np 2 hostname 2>&1").splitlines()) == names
    )
    by_address = 'mpirun -np 2 -H $(echo "$SKYPILOT_NODE_IPS" | paste -sd,) hostname 2>&1'
    assert sorted(command_output(compute, by_address).splitlines()) == names
    Path("job.yaml").write_text(JOB)
    (home / ".ssh").mkdir(mode=0o700)
    (home / ".ssh/config").write_text(lab.ssh_config.read_text())
    words = ("launch", "job.yaml", "--hosts", ",".join(names), "--plugin", "mpi", "--down")
    done = call(words, os.environ | {"HOME": str(home)})
    said_there = [line for line in done.stdout.splitlines() if line.startswith("r000| ")]
    # On a busy machine mpirun warns of a child that was quicker than it.
    said_there = [line for line in said_there if "plm:rsh: Warning: setpgid" not in line]
    assert sorted(said_there) == [f"r000| {name}" for name in names], done.stderr


@pytest.mark.proof("1 s of a processor")
def test_mpiexec_of_mpich_runs_on_two_hosts(reached: tuple[Lab, sky.Compute]) -> None:
    if shutil.which("mpiexec.hydra") is None:
        pytest.skip("mpiexec.hydra is not installed: apt-get install mpich")
    lab, compute = reached
    said_there = command_output(compute, 'mpiexec.hydra -n 2 sh -c "uname -n; echo \\$OF_IMAGE" 2>&1').splitlines()
    assert sorted(said_there) == sorted([*(host.name for host in lab.hosts), *["kept here"] * 2])


def test_stopped_command_ends_its_processes_on_other_nodes(reached: tuple[Lab, sky.Compute]) -> None:
    lab, compute = reached
    with pytest.raises(sky.RunError):
        call = f"test $SKYPILOT_NODE_RANK != 0 || {LAUNCH} 'sleep 1234 & wait'"
        sky.shell(call, timeout=3) @ compute
    for host in lab.hosts:
        until(lambda: "sleep 1234" not in str(host.processes()), "the end of what it had started")  # noqa: B023


def test_sshd_between_nodes_refuses_other_users_and_hides_its_key(reached: tuple[Lab, sky.Compute]) -> None:
    lab, compute = reached
    head, other = lab.hosts
    place = command_output(
        compute, "dirname $SKYWARD_SSH_CONFIG"
    ).strip()  # the first run starts the sshd between the nodes
    port = plugin_of(compute).port_of("reached")
    listens = [line.split()[3] for line in head.run("ss -H -tln").splitlines()]
    assert f"{head.address}:{port}" in listens
    at = f"-p {port} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes {head.address} id"
    own = "ssh-keygen -q -t ed25519 -N '' -f /tmp/stranger 2>/dev/null <<<y; ssh -i /tmp/stranger"
    assert "Permission denied (publickey)" in other.run(f"bash -c '{own} {at} 2>&1 || true'")
    # Somebody with an account on the head who sees all that others may see.
    looks = f"cat {place}/key {place}/config; ls {place}"
    as_nobody = f"setpriv --reuid=65534 --regid=65534 --clear-groups sh -c '{looks}' 2>&1; true"
    assert head.run(as_nobody).count("Permission denied") == 3
    modes = head.run(f"find {place} -perm /077 -not -type l; stat -c '%a %n' {place} {place}/key")
    assert modes.splitlines() == [f"700 {place}", f"600 {place}/key"]
    secret = plugin_of(compute).login[0].splitlines()[2]
    assert secret not in head.run("cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr '\\0' ' '")
    shown = command_output(compute, f"cat {place}/key")
    assert secret not in shown and "PRIVATE KEY" in shown


def test_ssh_between_nodes_refuses_an_unknown_host_key(reached: tuple[Lab, sky.Compute]) -> None:
    _, compute = reached
    other = "cd $(mktemp -d); ssh-keygen -q -t ed25519 -N '' -f other; echo skyward-pool $(cat other.pub) >known"
    asked = f'{other}; ssh -o "UserKnownHostsFile=$PWD/known" node1 id 2>&1 || true; rm -r "$PWD"'
    assert "Host key verification failed" in command_output(compute, asked)


# What DeepSpeed's launcher starts on each node; on processors it has no more to do here than to meet.
MEETS = """
import deepspeed, torch, torch.distributed as dist
deepspeed.init_distributed("gloo", verbose=False)
total = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(total)
print("met", dist.get_rank(), dist.get_world_size(), total.item(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.proof("deepspeed")
@pytest.mark.timeout(300)
def test_deepspeed_launcher_runs_a_script_on_two_hosts(lab: Lab) -> None:
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    if shutil.which("pdsh") is None:
        pytest.skip("pdsh is not installed: apt-get install pdsh")
    Path("meets.py").write_text(MEETS)
    with pool(lab, beside(lab), plugins=[sky.plugins.deepspeed()], name="deep") as compute:
        lines = command_output(compute, "deepspeed --hostfile $SKYWARD_HOSTFILE meets.py 2>&1").splitlines()
        met = sorted(line.partition("met ")[2] for line in lines if "met " in line)
        assert met == ["0 2 3.0", "1 2 3.0"], lines
    nothing_is_left(lab)
