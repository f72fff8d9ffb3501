"""Host of the lab."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from skyward_core.transport.ssh.asyncssh_patches import asyncssh

from .cable import Cable
from .etc import HOME, Site, write_etc
from .options import HostOptions
from .tools import NOT_OURS, LabError, ip_batch, program, started_at, wait_until

_REPOSITORY = Path(__file__).resolve().parents[2]
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_APART = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child=SIGKILL"]
_LISTENS = "00000000:0016 00000000:0000 0A"  # port 22, state LISTEN, as /proc/net/tcp writes it


class Host:
    """Machine with a power switch and a network cable. Its home survives a power cut, like a disk.

    Attributes:
        name: Host name, unique among the labs of this machine.
        address: Address in the lab.
        home: Home folder as seen from here.
        options: Options of the host. Changes take effect at the next power-on.
    """

    def __init__(self, index: int, root: Path, site: Site, options: HostOptions) -> None:
        self.index = index
        self.address = f"{site.network}.{index + 1}"
        self.name = site.names[self.address]
        self.options = options
        self.root = root
        self.home = root / "home"
        self.cable = Cable("eth0", f"{site.bridge}p{index}")
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        self._site = site
        self._machine: subprocess.Popen[bytes] | None = None
        self._pid1: int | None = None

    @property
    def is_on(self) -> bool:
        return self._pid1 is not None and started_at(self._pid1) is not None

    @property
    def machine(self) -> int:
        """Pid of a process in the host's network namespace that lives as long as the host."""
        if self._machine is None:
            raise LabError(f"{self.name} is off")
        return self._machine.pid

    @property
    def public_key(self) -> str:
        """Public host key, as ``ssh-ed25519 AAAA...``."""
        return " ".join(self.key.export_public_key().decode().split()[:2])

    def power_on(self) -> None:
        """Start the host and wait until its sshd listens."""
        power_on([self])

    def power_off(self) -> None:
        """Cut the power: every process dies at once, and no packet announces it."""
        if self.is_on:
            self.unplug()
        power_off([self])

    def unplug(self) -> None:
        """Disconnect the cable: packets are lost, and no process is notified."""
        self.cable.pull()

    def plug(self) -> None:
        """Reconnect the cable."""
        self.cable.put_back()

    def limit_rate(self, mbit: float | None) -> None:
        """Limit the host's cable in each direction; None lifts the limit."""
        self.cable.limit(mbit, self.machine)

    def lengthen(self, delay: float) -> AbstractContextManager[None]:
        """Delay each frame of the host's cable by ``delay`` seconds in each direction."""
        return self.cable.lengthen(delay, self._site.bridge)

    @contextmanager
    def steal_processor(self, share: float, period: float = 0.1) -> Iterator[None]:
        """Stop all processes of the host for a share of the time, as a hypervisor does with busy machines."""
        stopped = threading.Event()

        def steal() -> None:
            while not stopped.is_set():
                pids = list(self.processes())
                _send_signal(pids, signal.SIGSTOP)
                time.sleep(share * period)
                _send_signal(pids, signal.SIGCONT)
                stopped.wait((1 - share) * period)

        thief = threading.Thread(target=steal)
        thief.start()
        try:
            yield
        finally:
            stopped.set()
            thief.join()

    def reinstall(self) -> None:
        """Simulate another machine at the same address: power cut, empty disk, new host key, power on."""
        self.power_off()
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        self.wipe_home()
        self.power_on()

    def wipe_home(self) -> None:
        """Remove every file of the host's home."""
        for path in self.home.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def run(self, command: str, timeout: float = 30.0) -> str:
        """Run a shell command on the host as root, without using sshd or the cable. Return its standard output.

        Raises:
            LabError: If the host is off or the command failed. The message has its standard error.
        """
        if not self.is_on:
            raise LabError(f"{self.name} is off")
        namespaces = [f"--target={self._pid1}", "--net", "--uts", "--ipc", "--pid", "--mount"]
        shell = ["/usr/bin/env", "-i", f"PATH={_PATH}", f"HOME={HOME}", "/bin/sh", "-c"]
        done = subprocess.run(
            [program("nsenter"), *namespaces, *shell, f"cd {HOME} || exit\n{command}"],
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if done.returncode:
            raise LabError(f"{command!r} on {self.name} exited with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def processes(self) -> dict[int, str]:
        """Return the command lines of the host's processes except sshd, by pid as seen from here.

        Processes are identified by their program instead of their command line, which is empty during an exec. Ended
        processes, reaped or not, have no program.
        """
        if not self.is_on:
            return {}
        namespace = Path(f"/proc/{self._pid1}/ns/pid").readlink()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(*NOT_OURS):
                if (folder / "ns/pid").readlink() != namespace:
                    continue
                runs = (folder / "exe").readlink().name
                if not runs.startswith("sshd"):
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(folder.name)] = line.strip() or f"[{runs}]"
        return found

    def kill_all(self) -> None:
        """Send SIGKILL to all processes of the host except sshd, until none is left."""

        def none_left() -> bool:
            left = self.processes()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        wait_until(none_left, f"the end of what runs on {self.name}")

    def log(self) -> str:
        """Return sshd's log since the host was created: who connected, with which key, and for what."""
        path = self.root / "etc" / "sshd.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def fill_disk(self) -> None:
        """Fill the home's disk. Set ``home_mb``, because this takes long otherwise."""
        block = b"\0" * 65536
        with suppress(OSError), (self.home / ".filler").open("wb", buffering=0) as file:
            while True:
                file.write(block)

    def free_disk(self) -> None:
        """Undo :meth:`fill_disk`."""
        (self.home / ".filler").unlink(missing_ok=True)

    # The steps of a start and of an end, for many hosts to take them side by side.

    def boot(self) -> None:
        if self.is_on:
            raise LabError(f"{self.name} is on already")
        write_etc(self.root / "etc", self.name, self.key.export_private_key(), self.options, self._site)
        if self.options.startup:
            for name in (".bashrc", ".profile"):
                (self.home / name).write_text(f"{self.options.startup}\n")
        if _kept() and self.options.has_python:
            self._have_python()  # where no host believes the path of the client's
        environment = {
            "PATH": _PATH,
            "ROOT": str(self.root),
            "NAME": self.name,
            "ADDRESS": self.address,
            "HOME_WRITABLE": str(int(self.options.home_writable)),
            "HAS_PYTHON": str(int(self.options.has_python)),
            "PRIVATE": " ".join(self.options.private),
            "KEEP": " ".join(_kept()),
            "SSHD": program("sshd"),
        }
        with (self.root / "boot.log").open("wb") as log:
            self._machine = subprocess.Popen(
                [program("unshare"), *_APART, "/bin/sh", str(Path(__file__).with_name("boot.sh"))],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # ctrl-c at the lab's terminal is no power cut
            )

    def _have_python(self) -> None:
        """Make this interpreter available on the host under its name with the version."""
        python = self.home / ".local/bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)

    def await_namespaces(self) -> None:
        wait_until(self._is_apart, f"the namespaces of {self.name}")

    def wiring(self) -> list[str]:
        """Return the ``ip`` commands that connect the host. Like a network card, it keeps its MAC after a power cut."""
        mac = f"02:53:4b:{int(self._site.network.split('.')[2]):02x}:00:{self.index + 1:02x}"
        end = f"{self.cable.end} address {mac} netns {self.machine}"
        return [
            f"link add {self.cable.port} type veth peer name {end}",
            f"link set {self.cable.port} master {self._site.bridge} up",
        ]

    def carry_on(self) -> None:
        if self._machine is not None and self._machine.stdin is not None:
            with suppress(BrokenPipeError):  # it did not boot; the next wait says why
                self._machine.stdin.write(b"\n")
                self._machine.stdin.close()

    def await_sshd(self) -> None:
        wait_until(self._listens, f"sshd of {self.name}")
        if self.cable.mbit is not None:
            self.limit_rate(self.cable.mbit)

    def cut(self) -> None:
        if self._machine is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid1 or self._machine.pid, signal.SIGKILL)

    def settle(self) -> list[str]:
        """Wait until all processes of the host have ended. Return the ``ip`` commands that remove its cable."""
        if self._machine is not None:
            self._machine.wait()  # ends after PID 1, and PID 1 after all others
            if self._machine.stdin is not None:
                with suppress(BrokenPipeError):
                    self._machine.stdin.close()
        self._machine = self._pid1 = None
        return [f"link del {self.cable.port}"]

    def _is_apart(self) -> bool:
        self._check_boot()
        children = Path(f"/proc/{self.machine}/task/{self.machine}/children").read_text().split()
        self._pid1 = int(children[0]) if children else None
        return self._pid1 is not None

    def _listens(self) -> bool:
        self._check_boot()
        return _LISTENS in Path(f"/proc/{self.machine}/net/tcp").read_text()

    def _check_boot(self) -> None:
        if self._machine is not None and self._machine.poll() is not None:
            output = (self.root / "boot.log").read_text(errors="replace") + self.log()[-500:]
            raise LabError(f"{self.name} did not boot: {output.strip()}")


def _send_signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def power_on(hosts: Sequence[Host]) -> None:
    """Start hosts concurrently, and wait until every sshd listens."""
    for host in hosts:
        host.boot()
    for host in hosts:
        host.await_namespaces()
    ip_batch([line for host in hosts for line in host.wiring()])
    for host in hosts:
        host.carry_on()
    for host in hosts:
        host.await_sshd()


def power_off(hosts: Sequence[Host]) -> None:
    """Kill all processes of the hosts, concurrently."""
    for host in hosts:
        host.cut()
    gone = [line for host in hosts for line in host.settle()]
    # The kernel takes an interface away with its namespace, but some time later.
    ip_batch(gone, force=True)


def _kept() -> list[str]:
    """Return the folders that every host must see although they are below a /tmp or /var/tmp of its own."""
    folders = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), _REPOSITORY}
    return sorted(str(folder) for folder in folders if any(map(folder.is_relative_to, ("/tmp", "/var/tmp"))))
