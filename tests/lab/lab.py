"""The lab: hosts, a switch, and the client's own cable."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from copy import copy
from pathlib import Path
from threading import Lock
from types import TracebackType

from skyward_core.transport.ssh.asyncssh_patches import asyncssh

from .cable import Cable
from .etc import Site
from .host import Host, power_off, power_on
from .options import HostOptions
from .registry import FIRST_TWO, Claim, claim, release
from .tools import LabError, call, ip_batch, missing

MOST_HOSTS = 250


class Client:
    """This machine as a client that is connected to the lab's switch."""

    def __init__(self, address: str, cable: Cable) -> None:
        self.address = address
        self.cable = cable

    def unplug(self) -> None:
        """Disconnect the client's cable: no host can be reached, and no process is notified."""
        self.cable.pull()

    def plug(self) -> None:
        self.cable.put_back()

    def limit_rate(self, mbit: float | None) -> None:
        """Limit the total rate of the client's cable in each direction; None removes the limit."""
        self.cable.limit(mbit, None)


class Lab:
    """Lab of some hosts, which run inside ``with Lab(4) as lab`` and are removed at its end.

    Args:
        count: Number of hosts, at most 250. :meth:`add` creates more later.
        options: Options of every host.
        hosts: Options of single hosts, by index.
        by_hand: Whether ``python -m tests.lab down`` may end it.

    Attributes:
        hosts, client: The hosts, and this machine as their client.
        key: Path of the private key that may log in as ``user``.
        known_hosts: Path of a file with every host's key, by name and by address.
        ssh_config: Path of an OpenSSH configuration with the hosts' names.

    Raises:
        LabError: If this machine cannot run a lab, or a host did not start.
    """

    user = "root"

    def __init__(
        self,
        count: int,
        options: HostOptions | None = None,
        hosts: Mapping[int, HostOptions] | None = None,
        by_hand: bool = False,
    ) -> None:
        if not 0 <= count <= MOST_HOSTS:
            raise LabError(f"a lab has at most {MOST_HOSTS} hosts, not {count}")
        self._count = count
        self._options = options or HostOptions()
        self._quirks = dict(hosts or {})
        self._by_hand = by_hand
        self._open = ExitStack()
        self._changes = Lock()  # of who is there
        self.hosts: list[Host] = []
        self._next = count  # index of the next to be added

    def __enter__(self) -> Lab:
        if why := missing():
            raise LabError(why)
        self._claim = claim(self._by_hand)
        self._open.callback(self._remove)
        try:
            self._build(self._claim)
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def first(self, count: int) -> Lab:
        """Return the same lab with only its first hosts, for tests that need no more."""
        fewer = copy(self)
        fewer.hosts = self.hosts[:count]
        return fewer

    def add(self, options: HostOptions | None = None, name: str | None = None) -> Host:
        """Add a host that is powered off. Running hosts know its address but not its name.

        Addresses of earlier hosts are not reused while unused ones are left.
        """
        with self._changes:
            taken = {host.index for host in self.hosts}
            free = [(self._next + i) % MOST_HOSTS for i in range(MOST_HOSTS)]
            index = next((i for i in free if i not in taken), None)
            if index is None:
                raise LabError(f"a lab has at most {MOST_HOSTS} hosts")
            self._next = index + 1
            address = f"{self._site.network}.{index + 1}"
            self._site.names[address] = name or f"{self._site.bridge}-h{index}"
            host = self._make(index, options or self._options)
            self.hosts.append(host)
            return host

    def remove(self, host: Host) -> None:
        """Power a host off and remove it completely."""
        host.power_off()
        call(["umount", "-n", "-l", str(host.home)])
        shutil.rmtree(host.root)
        with self._changes:
            self.hosts.remove(host)
            self._site.names.pop(host.address)

    def heal(self) -> None:
        """Undo power cuts, disconnected cables, limits and full disks, and kill remaining processes of a test."""
        power_on([host for host in self.hosts if not host.is_on])
        cables = [self.client.cable, *(host.cable for host in self.hosts)]
        ip_batch([f"link set {cable.port} up" for cable in cables])
        self.client.limit_rate(None)
        for host in self.hosts:
            host.limit_rate(None)
            host.free_disk()
            host.kill_all()

    def _build(self, mine: Claim) -> None:
        name, network = f"sky{mine.number}", f"{FIRST_TWO}.{mine.number}"
        self.folder = mine.folder
        self.client = Client(f"{network}.254", Cable(f"{name}c", f"{name}pc"))
        ip_batch(
            [
                f"link add {name} type bridge forward_delay 0 mcast_snooping 0",
                f"link set {name} up",
                f"link add {self.client.cable.end} type veth peer name {self.client.cable.port}",
                f"link set {self.client.cable.port} master {name} up",
                f"link set {self.client.cable.end} up",
                f"address add {self.client.address}/24 dev {self.client.cable.end}",
            ]
        )
        names = {f"{network}.{i + 1}": f"{name}-h{i}" for i in range(self._count)}
        names[self.client.address] = f"{name}-client"
        options = [self._quirks.get(i, self._options) for i in range(self._count)]
        clock = self._make_clock() if any(o.clock_offset for o in options) else None
        self._site = Site(name, network, self.client.address, self._make_key(), names, clock)
        for index, quirks in enumerate(options):
            self.hosts.append(self._make(index, quirks))
        self._open_deaf_port()
        power_on(self.hosts)
        self._write_client_files()

    def _make(self, index: int, quirks: HostOptions) -> Host:
        root = self.folder / f"h{index}"
        for part in ("etc", "home", "run", "tmp", "var/tmp", "shm", "bin"):
            (root / part).mkdir(parents=True)
        size = f"size={quirks.home_mb or 4096}m"
        call(["mount", "-n", "-t", "tmpfs", "-o", f"mode=700,{size}", "tmpfs", str(root / "home")])
        return Host(index, root, self._site, quirks)

    def _open_deaf_port(self) -> None:
        """Open the name server port of hosts without names, which receives queries and never answers."""
        deaf = self._open.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        deaf.bind((self.client.address, 53))

    def _make_key(self) -> str:
        key = asyncssh.generate_private_key("ssh-ed25519", comment="lab")
        self.key = self.folder / "id_ed25519"
        self.key.touch(mode=0o600)
        key.write_private_key(self.key)
        return key.export_public_key().decode().strip()

    def _make_clock(self) -> Path:
        library = self.folder / "clock.so"
        source = Path(__file__).with_name("clock.c")
        call(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source)])
        return library

    def _write_client_files(self) -> None:
        self.known_hosts = self.folder / "known_hosts"
        self.known_hosts.write_text("".join(f"{host.name},{host.address} {host.public_key}\n" for host in self.hosts))
        common = f"  User {self.user}\n  IdentityFile {self.key}\n  IdentitiesOnly yes\n"
        # OpenSSH's first choice of key exchange (sntrup761) takes a quarter of a second of processor time.
        common += f"  UserKnownHostsFile {self.known_hosts}\n  KexAlgorithms curve25519-sha256\n"
        self.ssh_config = self.folder / "ssh_config"
        self.ssh_config.write_text(
            "".join(f"Host {host.name}\n  HostName {host.address}\n{common}" for host in self.hosts)
        )

    def _remove(self) -> None:
        power_off(self.hosts)
        release(self._claim)
