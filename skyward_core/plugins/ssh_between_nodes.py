"""Private sshd and ssh configuration of a pool, for launchers such as mpirun that start processes on other nodes.

The sshd runs with the user's normal rights, next to the host's own sshd. The user's keys and configuration are not
changed.
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
from skyward_core.plugins import ssh_command_environment
from skyward_core.plugins.plugin_server_start_and_stop import (
    EXTRA_PATH,
    await_server,
    check_port_free,
    end_with_parent,
    find_program,
    last_line,
    stop_server,
)

if TYPE_CHECKING:
    from skyward_core.runtime.instance_info_and_attempt import InstanceInfo


# environment variable with the identity of the process's node, from which :func:`node_folder` derives the folder
NODE = "SKYWARD_NODE"
SESSION, ABOUT, CONFIG, HOSTS = "session.json", "about.json", "config", "hosts"
KNOWN_AS = "skyward-pool"  # name in known_hosts under which ssh verifies the host keys of all nodes
# name of the program that launchers use instead of ``ssh``; unique, so that PATH finds no other program
AGENT = "pool-ssh"
LOCAL = "127.0.0.1"
CONFIGURATION = """\
Include "{folder}/{hosts}/*"
Host *
  Include ~/.ssh/config
  Include /etc/ssh/ssh_config
"""
# Options for connections to nodes. The user's own configuration is read later and cannot change them, because ssh uses
# the first value of an option.
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
    """Return the folder for ssh between nodes of this process's node.

    Raises:
        PoolError: If the process belongs to no node, or if the folder cannot be an entry of PATH.
    """
    marks = os.environ.get(NODE, "")
    if not marks:
        raise PoolError("this process does not belong to a node of a pool")
    folder = Path("/", f":{marks}".rpartition(":/")[2], "between-nodes")
    if os.pathsep in str(folder):
        raise PoolError(f"{folder} cannot be an entry of PATH: its name contains a colon. Use another home folder.")
    return folder


@contextmanager
def prepare_node_files(info: InstanceInfo, port: int, login: tuple[str, str], host: tuple[str, str]) -> Iterator[Path]:
    """Create the files for ssh that all ranks of a node use, for the duration of a ``with`` block.

    Args:
        info: Place of the node's first rank.
        port: Port of each node's sshd.
        login: Private and public key for logins.
        host: Private and public key of every sshd.

    Raises:
        PoolError: If this node has no ssh.
    """
    ssh = find_program(["ssh"], "openssh-client")
    folder = node_folder()
    shutil.rmtree(folder, ignore_errors=True)  # removes files that a killed process has left in the folder
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
        write_private(folder / SESSION, json.dumps({"process": {"pid": os.getpid()}, "variables": variables}))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_gang_hosts(info: InstanceInfo, slots: int) -> dict[str, str]:
    """Write the host files of a gang, and return the variables that refer to them.

    Args:
        info: Place of a rank of the gang.
        slots: Processes that a launcher starts on each node.
    """
    folder = node_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    places = [peer.address or LOCAL for peer in info.peers] or [info.address or LOCAL]
    rows = [(address, slots * places.count(address)) for address in dict.fromkeys(places)]
    name = _digest(rows)
    hosts, machines = folder / f"hostfile.{name}", folder / f"machines.{name}"
    write_private(hosts, "".join(f"{address} slots={count}\n" for address, count in rows))
    write_private(machines, "".join(f"{address}:{count}\n" for address, count in rows))
    variables = {
        "SKYWARD_HOSTFILE": str(hosts),
        "HYDRA_HOST_FILE": str(machines),
        "I_MPI_HYDRA_HOST_FILE": str(machines),
        # needed in addition, because Intel MPI ignores the numbers of processes in its host file
        "I_MPI_PERHOST": str(rows[0][1]),
    }
    if not os.getuid():  # Open MPI runs as root only if these variables are set
        variables |= {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
    if (folder / CONFIG).exists():
        _write_hosts(folder, info)
        variables |= _ssh_variables(folder, os.environ.get("PATH", os.defpath))
    return variables


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file atomically that only this user can read."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
    fresh.replace(path)


def _write_hosts(folder: Path, info: InstanceInfo) -> None:
    """Write the ssh configuration for a gang's nodes. If the gang is only a part of the pool, node names are omitted,
    because they would be ambiguous.
    """
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
    # The configuration of a gang must come before that of the whole pool: ssh reads the files in the order of their
    # names, and uses the first value of an option.
    name = "b-pool" if whole else f"a-{_digest(places)}"
    write_private(folder / HOSTS / name, f"{''.join(blocks)}Host {every}\n{common}")


def _digest(what: object) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()[:12]


def _ssh_variables(folder: Path, path: str) -> dict[str, str]:
    """Return variables that let launchers find the pool's ssh.

    Args:
        path: The PATH to extend.
    """
    program = str(folder / "bin" / AGENT)
    return {
        "PATH": os.pathsep.join((str(folder / "bin"), path)),
        "SKYWARD_SSH_CONFIG": str(folder / CONFIG),
        # a program name instead of a path, because Open MPI uses the same value on all nodes
        "OMPI_MCA_plm_rsh_agent": AGENT,
        "PRTE_MCA_plm_ssh_agent": AGENT,
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": program,
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": program,
        "PDSH_RCMD_TYPE": "ssh",
    }


PRIVILEGED = "/run/sshd"  # folder that sshd needs for privilege separation when root runs it
START_TIMEOUT = 30.0  # seconds for the sshd to start
RESTART_DELAY = 1.0  # seconds until an sshd that has ended is restarted
GRACE = 5.0  # seconds for the sshd to end after SIGTERM
GREETING = b"SSH-"
SAID = "sshd.log"
# Option that is set to "no". Otherwise failed logins from a node's address would block the node's own commands for some
# time. Old versions of sshd do not have this option.
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
# The permissions of these folders are checked before the start, by rules that also allow folders such as /tmp.
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
# Connections of strangers must not fill the disk with log messages.
LogLevel FATAL
"""


@contextmanager
def run_sshd(plugin: str, folder: Path, address: str, port: int, host_key: str, admits: str) -> Iterator[None]:
    """Run the sshd for the duration of a ``with`` block. When the sshd ends, all commands that other nodes have started
    here end, too.

    Args:
        plugin: Name of the plugin.
        folder: Folder of the node for its files.
        address: This node's address for other nodes.
        port: Port at that address.
        host_key: Private host key of the sshd.
        admits: Public key that is accepted for logins.

    Raises:
        PoolError: If sshd is not installed, or does not start.
    """
    # The path is absolute, because sshd executes itself again for each connection.
    program = str(Path(find_program(["sshd"], "openssh-server", EXTRA_PATH)).absolute())
    check_port_free(plugin, address, port)
    write_private(folder / "host_key", host_key)
    write_private(folder / "authorized_keys", f"restrict,pty {admits}\n")
    write_private(folder / "session.py", inspect.getsource(ssh_command_environment))
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
    """Keeper of the sshd process. Restarts it after an unexpected end, because launchers on other nodes may not notice
    the end.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command, self._log_path = command, log
        self._over = Event()
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, address: str, port: int) -> None:
        def greets() -> bool:
            with socket.create_connection((address, port), START_TIMEOUT) as probe:
                return probe.recv(len(GREETING)) == GREETING

        await_server("sshd", self._start_process(), greets, START_TIMEOUT, self._log_path)
        Thread(target=self._restart_on_exit, name="sshd", daemon=True).start()

    def end(self) -> None:
        self._over.set()
        child = self._child
        if child is None:
            return
        # The processes of connections do not end with the server. Stop the server first, so that no new connections
        # start, then end these processes.
        below = _find_descendants(child.pid)
        stop_server(child, GRACE)
        for pid in below:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _start_process(self) -> subprocess.Popen[bytes]:
        # The server's log file identifies the processes of this node for the agent, because sshd overwrites its
        # environment variables.
        with open(os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as log:
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=end_with_parent()
            )
        return self._child

    def _restart_on_exit(self) -> None:
        # This thread must live as long as the child process, because the kernel kills the child when the thread that
        # started it ends.
        while self._child is not None:
            status = self._child.wait()
            if self._over.wait(RESTART_DELAY):
                return
            sys.stderr.write(f"sshd ended with status {status} and is restarted: {last_line(self._log_path)}\n")
            sys.stderr.flush()
            self._start_process()


def _format_settings(folder: Path, address: str, port: int) -> str:
    if set(str(folder)) & set('"%\\\n'):
        raise PoolError(
            f"the folder name {str(folder)!r} contains a character that sshd cannot read. Use another home folder."
        )
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError as error:
        raise PoolError(f"user {os.getuid()} has no name on this node, which sshd requires") from error
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
    """Return the combined output of a program."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=START_TIMEOUT,
    )
    return done.stdout.decode(errors="replace")


def _find_descendants(pid: int) -> list[int]:
    """Return the process ids of all running descendants of a process."""
    found: list[int] = []
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(each), *_find_descendants(int(each))]
    return found


# minimum characters of a line of a private key that is redacted in logs; a shorter line reveals too little
SHORTEST = 20


def make_key_pair() -> tuple[str, str]:
    """Return a new private key in OpenSSH's format, and its public key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private.decode(), public.decode()


def secret_lines(private: str) -> Sequence[str]:
    """Return the lines of a private key to redact in logs."""
    _, _, *rest = private.splitlines()  # skips the first two lines, which are the same for all keys
    return [line for line in rest if not line.startswith("-----") and len(line) >= SHORTEST]
