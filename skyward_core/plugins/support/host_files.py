"""Where the nodes of a pool are, in files that ssh, mpirun and deepspeed read, and the variables that name these."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...model.errors import PoolError

if TYPE_CHECKING:
    from ...runtime.info import InstanceInfo

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
OF_HOSTS = """\
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


def folder_here() -> Path:
    """The folder for all of this, of the node that this process belongs to.

    Raises:
        PoolError: it belongs to none, or its folder cannot be on PATH.
    """
    marks = os.environ.get(NODE, "")
    if not marks:
        raise PoolError("this process belongs to no node of a pool")
    folder = Path("/", f":{marks}".rpartition(":/")[2], "between-nodes")
    if os.pathsep in str(folder):
        raise PoolError(
            f"{folder} cannot be an entry of PATH: it has a colon in its name. Use another home folder."
        )
    return folder


def are_apart(info: InstanceInfo) -> bool:
    """Whether there are nodes on several hosts."""
    return len({peer.address for peer in info.peers}) > 1


@contextmanager
def of_node(info: InstanceInfo, port: int, login: tuple[str, str], host: tuple[str, str]) -> Iterator[Path]:
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
    folder = folder_here()
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
        variables = _of_ssh(folder, os.pathsep.join((str(Path(sys.executable).parent), path)))
        if sys.prefix != sys.base_prefix:
            variables["VIRTUAL_ENV"] = sys.prefix
        told = {"process": {"pid": os.getpid()}, "variables": variables}
        write_private(folder / SESSION, json.dumps(told))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def of_gang(info: InstanceInfo, slots: int) -> dict[str, str]:
    """Write where the nodes of a gang are; gives the variables that name it.

    Args:
        slots: processes that a launcher starts for each node.
    """
    folder = folder_here()
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
        told |= {
            f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")
        }
    if (folder / CONFIG).exists():
        _write_hosts(folder, info)
        told |= _of_ssh(folder, os.environ.get("PATH", os.defpath))
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
    blocks = [
        f"Host {' '.join(names)}\n  HostName {address.replace('%', '%%')}\n"
        for address, names in places.items()
    ]
    every = " ".join(name for names in places.values() for name in names)
    user = pwd.getpwuid(os.getuid()).pw_name
    common = OF_HOSTS.format(user=user, port=about["port"], known_as=KNOWN_AS, folder=folder)
    # The first that says something counts, by the order of these files.
    name = "b-pool" if whole else f"a-{_digest(places)}"
    write_private(folder / HOSTS / name, f"{''.join(blocks)}Host {every}\n{common}")


def _digest(what: object) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()[:12]


def _of_ssh(folder: Path, path: str) -> dict[str, str]:
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
