"""Sshd and keys between nodes, for mpirun.

It runs as the pool's user, without any rights more, beside the host's own sshd and the user's own keys, which stay as
they are.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from skyward_core.model.errors import PoolError
from skyward_core.plugins import ssh_forced_command
from skyward_core.plugins.server_ports_and_certificates import (
    await_server,
    check_port_free,
    end_with_parent,
    last_line,
    stop_server,
)

if TYPE_CHECKING:
    from skyward_core.runtime.instance_info import InstanceInfo


NODE = "SKYWARD_NODE"  # a variable: the node's own folder, behind those of nodes that it runs in
SESSION, ABOUT, CONFIG, HOSTS = "session.json", "about.json", "config", "hosts"
KNOWN_AS = "skyward-pool"  # what the key of every node's sshd belongs to
AGENT = "pool-ssh"  # a name under which nobody else has a program
LOCAL = "127.0.0.1"
CONFIGURATION = """\
Include "{folder}/{hosts}/*"
Host *
  Include ~/.ssh/config
  Include /etc/ssh/ssh_config
"""
# First comes first: what a person's own configuration says, which follows for all other hosts, changes none of it.
HOST_OPTIONS = """\
  User {user}
  Port {port}
  HostKeyAlias {known_as}
  UserKnownHostsFile "{folder}/known_hosts"
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  CheckHostIP no
  IdentityFile "{folder}/key"
  IdentitiesOnly yes
  IdentityAgent none
  PreferredAuthentications publickey
  BatchMode yes
  ProxyCommand none
  ControlMaster no
  ControlPath none
  IgnoreUnknown RemoteCommand
  RemoteCommand none
  ClearAllForwardings yes
  ForwardAgent no
  ForwardX11 no
  ConnectTimeout 30
  ServerAliveInterval 30
  ServerAliveCountMax 4
  LogLevel ERROR
"""


def node_folder() -> Path:
    """The folder for all of this, of the node that this process belongs to.

    Raises:
        PoolError: it belongs to none, or its folder cannot be on PATH.
    """
    marks = os.environ.get(NODE, "")
    if not marks:
        raise PoolError("this process belongs to no node of a pool")
    folder = Path("/", f":{marks}".rpartition(":/")[2], "between-nodes")
    if os.pathsep in str(folder):
        raise PoolError(f"{folder} cannot be an entry of PATH: it has a colon in its name. Use another home folder.")
    return folder


def has_remote_nodes(info: InstanceInfo) -> bool:
    """Whether there are nodes on several hosts."""
    return len({peer.address for peer in info.peers}) > 1


@contextmanager
def prepare_node_files(info: InstanceInfo, port: int, login: tuple[str, str], host: tuple[str, str]) -> Iterator[Path]:
    """The files that all ranks of a node use, while the block runs.

    Args:
        port: at which each node's sshd listens.
        login, host: private and public key, of those who come and of every sshd.

    Raises:
        PoolError: this node has no ssh.
    """
    ssh = shutil.which("ssh")
    if ssh is None:
        raise PoolError(
            f"there is no ssh on this node ({socket.gethostname()}), by which it would reach the others: install one "
            "there (Debian: apt-get install openssh-client), or have the pool do so with "
            'sky.Image(apt=["openssh-client"])'
        )
    folder = node_folder()
    shutil.rmtree(folder, ignore_errors=True)  # of one that was killed
    try:
        for each in (folder, folder / "bin", folder / HOSTS):
            each.mkdir(mode=0o700)
        write_private(folder / "key", login[0])
        write_private(folder / "known_hosts", f"{KNOWN_AS} {host[1]}\n")
        write_private(folder / ABOUT, json.dumps({"port": port, "nodes": info.total_nodes}))
        write_private(folder / CONFIG, CONFIGURATION.format(folder=folder, hosts=HOSTS))
        words = shlex.join(["exec", ssh, "-F", str(folder / CONFIG)])
        for name in ("ssh", AGENT):
            write_private(folder / "bin" / name, f'#!/bin/sh\n{words} "$@"\n', 0o700)
        _write_hosts(folder, info)
        path = os.environ.get("PATH", os.defpath)
        variables = _ssh_variables(folder, os.pathsep.join((str(Path(sys.executable).parent), path)))
        if sys.prefix != sys.base_prefix:
            variables["VIRTUAL_ENV"] = sys.prefix
        told = {"process": {"pid": os.getpid()}, "variables": variables}
        write_private(folder / SESSION, json.dumps(told))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_gang_hosts(info: InstanceInfo, slots: int) -> dict[str, str]:
    """Write where the nodes of a gang are; gives the variables that name it.

    Args:
        slots: processes that a launcher starts for each node.
    """
    folder = node_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    places = [peer.address or LOCAL for peer in info.peers] or [info.address or LOCAL]
    rows = [(address, slots * places.count(address)) for address in dict.fromkeys(places)]
    name = _digest(rows)
    hosts, machines = folder / f"hostfile.{name}", folder / f"machines.{name}"
    write_private(hosts, "".join(f"{address} slots={count}\n" for address, count in rows))
    write_private(machines, "".join(f"{address}:{count}\n" for address, count in rows))
    told = {
        "SKYWARD_HOSTFILE": str(hosts),
        "HYDRA_HOST_FILE": str(machines),
        "I_MPI_HYDRA_HOST_FILE": str(machines),
        "I_MPI_PERHOST": str(rows[0][1]),  # of its host file it takes the hosts alone, and fills their cores
    }
    if not os.getuid():  # there is nobody else, and Open MPI asks twice
        told |= {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
    if (folder / CONFIG).exists():
        _write_hosts(folder, info)
        told |= _ssh_variables(folder, os.environ.get("PATH", os.defpath))
    return told


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file that nobody else can read, whole or not at all."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
    fresh.replace(path)


def _write_hosts(folder: Path, info: InstanceInfo) -> None:
    """What ssh has to know of the nodes. Of a gang of some of them no names: they would be others' in another gang."""
    about = json.loads((folder / ABOUT).read_text())
    whole = info.total_nodes == about["nodes"]
    places = {peer.address: [peer.address] for peer in info.peers}
    for peer in info.peers if whole else ():
        names = [f"node{peer.node}", f"{info.pool}-worker{peer.node}" if peer.node else info.pool]
        places[peer.address] += names
    blocks = [f"Host {' '.join(names)}\n  HostName {address.replace('%', '%%')}\n" for address, names in places.items()]
    every = " ".join(name for names in places.values() for name in names)
    user = pwd.getpwuid(os.getuid()).pw_name
    common = HOST_OPTIONS.format(user=user, port=about["port"], known_as=KNOWN_AS, folder=folder)
    # The first that says something counts, by the order of these files.
    name = "b-pool" if whole else f"a-{_digest(places)}"
    write_private(folder / HOSTS / name, f"{''.join(blocks)}Host {every}\n{common}")


def _digest(what: object) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()[:12]


def _ssh_variables(folder: Path, path: str) -> dict[str, str]:
    """The variables by which whatever looks for ssh finds the nodes.

    Args:
        path: the PATH, in front of which ours comes.
    """
    program = str(folder / "bin" / AGENT)
    return {
        "PATH": os.pathsep.join((str(folder / "bin"), path)),
        "SKYWARD_SSH_CONFIG": str(folder / CONFIG),
        "OMPI_MCA_plm_rsh_agent": AGENT,  # which Open MPI passes on to other nodes: it is found there by its name
        "PRTE_MCA_plm_ssh_agent": AGENT,
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": program,
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": program,
        "PDSH_RCMD_TYPE": "ssh",
    }


PROGRAM = "sshd"
EXTRA_PATH = "/usr/sbin:/sbin:/usr/local/sbin:/usr/local/bin"  # what a login over SSH may not have in its PATH
PRIVILEGED = "/run/sshd"  # where root's sshd goes for what needs no rights
START_TIMEOUT = 30.0  # seconds for the server to be there
RESTART_DELAY = 1.0  # seconds until one that has ended is started anew
GRACE = 5.0  # seconds that it has to end
GREETING = b"SSH-"
SAID = "sshd.log"
# Who guesses keys from a node's own address must not have the node's commands refused; older ones refuse nobody.
NEWER = "PerSourcePenalties"
SETTINGS = f"""\
{NEWER} no
Port {{port}}
ListenAddress {{address}}
HostKey "{{folder}}/host_key"
AuthorizedKeysFile "{{folder}}/authorized_keys"
ForceCommand {{command}}
AllowUsers {{user}}
PidFile none
# Who could write on the way there has been looked at already, by rules that know folders such as /tmp.
StrictModes no
AuthenticationMethods publickey
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PermitUserEnvironment no
PermitUserRC no
DisableForwarding yes
UsePAM no
UseDNS no
PrintMotd no
PrintLastLog no
LoginGraceTime 20
MaxStartups 1000
MaxSessions 1000
ClientAliveInterval 30
ClientAliveCountMax 4
# Strangers that knock fill no disk.
LogLevel FATAL
"""


@contextmanager
def run_sshd(plugin: str, folder: Path, address: str, port: int, host_key: str, admits: str) -> Iterator[None]:
    """Have it while the block runs; with it ends all that others run here by it.

    Args:
        plugin: which has it.
        folder: of the node's own, where it has its files.
        address: this node's, at which others reach it.
        port: at that address.
        host_key: the private key that it shows itself by.
        admits: the public key of who may come.

    Raises:
        PoolError: no sshd is installed, or it does not start.
    """
    program = _find_program()
    check_port_free(plugin, address, port)
    write_private(folder / "host_key", host_key)
    write_private(folder / "authorized_keys", f"restrict,pty {admits}\n")
    write_private(folder / "session.py", inspect.getsource(ssh_forced_command))
    settings = folder / "sshd_config"
    write_private(settings, _format_settings(folder, address, port))
    if NEWER in _read_output([program, "-t", "-f", str(settings)]):
        write_private(settings, settings.read_text().replace(f"{NEWER} no\n", ""))
    keeper = _ServerKeeper([program, "-D", "-e", "-f", str(settings)], folder / SAID)
    try:
        keeper.start(address, port)
        yield
    finally:
        keeper.end()


class _ServerKeeper:
    """The server's process, started anew where it ends by itself: what runs on other nodes may not have noticed."""

    def __init__(self, command: Sequence[str], said: Path) -> None:
        self._command, self._said = command, said
        self._over = Event()
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, address: str, port: int) -> None:
        def greets() -> bool:
            with socket.create_connection((address, port), START_TIMEOUT) as probe:
                return probe.recv(len(GREETING)) == GREETING

        await_server("sshd", self._start_process(), greets, START_TIMEOUT, self._said)
        Thread(target=self._restart_on_exit, name="sshd", daemon=True).start()

    def end(self) -> None:
        self._over.set()
        child = self._child
        if child is None:
            return
        # Those of its connections outlive it, and have to end too; it goes first, so that no more come.
        below = _find_descendants(child.pid)
        stop_server(child, GRACE)
        for pid in below:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _start_process(self) -> subprocess.Popen[bytes]:
        # What a node runs is known by where it prints, where its environment does not tell: sshd writes over that.
        with open(os.open(self._said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as said:
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, preexec_fn=end_with_parent()
            )
        return self._child

    def _restart_on_exit(self) -> None:
        # Started by this thread, it would end with it: so it lives as long as this process.
        while self._child is not None:
            status = self._child.wait()
            if self._over.wait(RESTART_DELAY):
                return
            sys.stderr.write(f"sshd ended with status {status}, and is started anew: {last_line(self._said)}\n")
            sys.stderr.flush()
            self._start_process()


def _find_program() -> str:
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), EXTRA_PATH))
    if found := shutil.which(PROGRAM, path=path):
        return str(Path(found).absolute())  # it starts itself again for each connection
    raise PoolError(
        f"there is no sshd on this node ({socket.gethostname()}), by which the others would run commands on it: "
        "install one there (Debian: apt-get install openssh-server), or have the pool do so with "
        'sky.Image(apt=["openssh-server"])'
    )


def _format_settings(folder: Path, address: str, port: int) -> str:
    if set(str(folder)) & set('"%\\\n'):
        raise PoolError(f"{str(folder)!r} has a character in its name that sshd does not read as it is")
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError as error:
        raise PoolError(f"user {os.getuid()} has no name on this node, and sshd admits none without") from error
    if not os.getuid():
        with suppress(OSError):
            Path(PRIVILEGED).mkdir(mode=0o755, exist_ok=True)
    words = [sys.executable, "-ISs", str(folder / "session.py"), str(folder / SESSION)]
    return SETTINGS.format(
        port=port,
        address=f"[{address}]" if ":" in address else address,
        folder=folder,
        command=f"exec {shlex.join(words)}",
        user=user,
    )


def _read_output(command: Sequence[str]) -> str:
    """What a program says."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=START_TIMEOUT,
    )
    return done.stdout.decode(errors="replace")


def _find_descendants(pid: int) -> list[int]:
    """What has been started below a process, and still is."""
    found: list[int] = []
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(each), *_find_descendants(int(each))]
    return found


SHORTEST = 20  # characters of a line that is worth blanking


def make_key_pair() -> tuple[str, str]:
    """A private key as OpenSSH writes it, and its public one."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private.decode(), public.decode()


def secret_lines(private: str) -> Sequence[str]:
    """What of a private key must be seen nowhere, as logs have it: line by line."""
    _, _, *rest = private.splitlines()  # the first says no more than that it is a key
    return [line for line in rest if not line.startswith("-----") and len(line) >= SHORTEST]
