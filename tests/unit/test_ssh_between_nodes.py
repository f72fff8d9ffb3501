"""SSH between nodes for MPI: checks, keys, commands and the server, on one host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.plugins import ssh_between_nodes
from skyward_core.plugins.built_in.mpi import Mpi
from skyward_core.plugins.plugin import check_plugins, check_standalone
from skyward_core.plugins.plugin_server_start_and_stop import EXTRA_PATH
from skyward_core.runtime.instance_info_and_attempt import InstanceInfo, Peer
from tests.support.plugin_gang import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a node that this process belongs to."""
    monkeypatch.setenv("SKYWARD_NODE", f"/of/another:{tmp_path}")
    return tmp_path


def test_node_folder_with_a_colon_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_NODE", "/of/another:/home/14:55/node-0")
    with pytest.raises(sky.PoolError, match=r"^/home/14:55/node-0/between-nodes cannot be an entry of PATH"):
        ssh_between_nodes.node_folder()


def place(node: int, *addresses: str) -> InstanceInfo:
    peers = tuple(Peer(number, address) for number, address in enumerate(addresses))
    return InstanceInfo(
        node=node, total_nodes=len(peers), head_addr=addresses[0], peers=peers, pool="p", ranks_per_node=2
    )


def needs_sshd() -> None:
    if not any(os.access(f"{folder}/sshd", os.X_OK) for folder in EXTRA_PATH.split(":")):
        pytest.skip("sshd is not installed: apt-get install openssh-server")


def test_missing_mpi_or_ssh_program_error_names_the_package(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = place(0, "127.0.0.1", "127.0.0.2")
    (node / "bin").mkdir()
    monkeypatch.setenv("PATH", str(node / "bin"))
    monkeypatch.setattr(ssh_between_nodes, "EXTRA_PATH", str(node / "bin"))
    for plugin, words in (
        (sky.plugins.mpi(), r"mpirun is not installed on this node \(.*install openmpi-bin.*mpi\(launcher=\"\"\)"),
        (sky.plugins.mpi(launcher="srun"), "srun is not installed on this node"),
        (sky.plugins.deepspeed(), r"pdsh is not installed on this node \(.*apt-get install pdsh"),
        (sky.plugins.mpi(launcher=""), r"ssh is not installed on this node \(.*apt-get install openssh-client"),
    ):
        with pytest.raises(sky.PoolError, match=words), plugin.around_app(info):
            pass
    (node / "bin/ssh").touch(mode=0o700)
    with (
        pytest.raises(sky.PoolError, match=r"sshd is not installed on this node \(.*apt-get install openssh-server"),
        sky.plugins.mpi(launcher="").around_app(info),
    ):
        pass
    assert not (node / "between-nodes").exists()  # no key is left where it could not begin


def test_mpi_on_one_host_needs_neither_ssh_nor_keys(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = place(1, "127.0.0.1", "127.0.0.1")
    plugin = sky.plugins.mpi(launcher="")
    with plugin.around_app(info), plugin.around_process(info):
        assert Path(os.environ["SKYWARD_HOSTFILE"]).read_text() == "127.0.0.1 slots=4\n"
        assert Path(os.environ["HYDRA_HOST_FILE"]).read_text() == "127.0.0.1:4\n"
        assert "SKYWARD_SSH_CONFIG" not in os.environ
        assert sorted(path.name.partition(".")[0] for path in (node / "between-nodes").iterdir()) == [
            "hostfile",
            "machines",
        ]
    assert "SKYWARD_HOSTFILE" not in os.environ


def test_invalid_mpi_parameters_are_rejected() -> None:
    with pytest.raises(sky.UsageError, match="port must be from 1024 to 65535, got 80"):
        sky.plugins.mpi(port=80)
    with pytest.raises(sky.UsageError, match="slots must be 1 or more, got 0"):
        sky.plugins.mpi(slots=0)
    with pytest.raises(sky.UsageError, match="deepspeed and mpi cannot be combined"):
        check_plugins([sky.plugins.mpi(), sky.plugins.deepspeed()])
    with pytest.raises(sky.UsageError, match="ssh between the nodes"):
        check_standalone([sky.plugins.mpi()])


def test_each_pool_has_its_own_ssh_keys_marked_as_secret() -> None:
    one, other = sky.plugins.mpi(), sky.plugins.mpi()
    assert not set(one.secrets()) & set(other.secrets())
    body = [line for line in one.login[0].splitlines()[2:-1] if len(line) > 20]
    assert set(body) <= set(one.secrets()) and one.login[0] not in repr(one)


class Nodes:
    """Two nodes on this machine with separate addresses and sshds."""

    def __init__(self, folder: Path) -> None:
        self.plugin = Mpi(launcher="", port=free_port())
        self.folders = [folder / "node0", folder / "node1"]
        self.infos = [place(number, "127.0.0.1", "127.0.0.2") for number in (0, 1)]

    def __enter__(self) -> Nodes:
        with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
            for folder, info in zip(self.folders, self.infos, strict=True):
                folder.mkdir()
                patch.setenv("SKYWARD_NODE", str(folder))
                stack.enter_context(self.plugin.around_app(info))
            patch.setenv("SKYWARD_NODE", str(self.folders[0]))
            with self.plugin.around_process(self.infos[0]):
                self.variables = dict(os.environ)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ssh(self, *words: str, **wishes: object) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(["ssh", *words], env=self.variables, text=True, **(pipes | wishes))  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory):
    needs_sshd()
    folder = tmp_path_factory.mktemp("nodes")
    with Nodes(folder) as made:
        yield made
    assert [path for each in made.folders for path in each.rglob("*")] == []


def test_ssh_command_between_nodes_has_rank_variables(nodes: Nodes) -> None:
    done = nodes.ssh("node1", "command -v python ssh; exit 3")
    output, _ = done.communicate()
    bin = nodes.folders[1] / "between-nodes/bin"
    python, ssh = output.splitlines()
    assert python == str(Path(sys.executable).with_name("python"))
    assert ssh == str(bin / "ssh") and done.returncode == 3


def test_ssh_command_between_nodes_ends_with_its_connection(nodes: Nodes) -> None:
    going = nodes.ssh("node1", "sh -c 'echo $$; trap : TERM; sleep 99 & sleep 99' & wait")
    assert going.stdout is not None
    pid = int(going.stdout.readline())
    going.send_signal(signal.SIGKILL)
    going.communicate()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), what="its end")


def test_background_process_of_an_ssh_command_keeps_running(nodes: Nodes) -> None:
    done = nodes.ssh("node1", "sleep 99 >/dev/null 2>&1 & echo $!")
    pid = int(done.communicate()[0])
    assert Path(f"/proc/{pid}/stat").read_text().split()[2] not in "ZX"
    os.kill(pid, signal.SIGKILL)


@pytest.mark.proof("1 s of a processor")
def test_killed_ssh_server_between_nodes_is_restarted(nodes: Nodes) -> None:
    at = f"0100007F:{nodes.plugin.port:04X}"
    listens = lambda: at in Path("/proc/net/tcp").read_text()  # noqa: E731
    assert nodes.ssh("node0", "true").wait() == 0 and listens()
    for pid in Path("/proc/self/task").glob("*/children"):
        for child in pid.read_text().split():
            line = Path(f"/proc/{child}/cmdline").read_bytes()
            if b"listener" in line and str(nodes.folders[0]).encode() in line:
                os.kill(int(child), signal.SIGKILL)
    wait_until(lambda: nodes.ssh("node0", "true").wait() == 0, what="another one")
