"""Hosts of instances: lab hosts that boot like cloud images."""

from __future__ import annotations

import shlex
import shutil
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.transport.ssh.asyncssh_patches import asyncssh
from tests.lab import Host, HostOptions, Lab, LabError
from tests.lab.tools import ip_batch

from .cloud_init import Wish, read
from .gpus import gpus_of, library
from .images import IMAGES
from .metadata import ADDRESS, Metadata
from .power_wire import PowerWire

if TYPE_CHECKING:
    from .machine import Machine

PROGRAMS = Path(__file__).with_name("programs")
_KEY_FILE = "/etc/ssh/ssh_host_ed25519_key"
# A machine has a disk of its own, and user-data writes all over it.
_PRIVATE = ("/etc", "/home", "/opt", "/root", "/srv", "/usr", "/var")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BARE = f"env -i PATH={_PATH} LANG=C.UTF-8"  # as services get it: no HOME, no USER
_LOG = "/run/lab/cloud-init.log"
_INSTANCE = "/var/lib/cloud/instance"
_SOFTLY = """kill -TERM -1
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    left=
    for one in /proc/[0-9]*; do [ "${one#/proc/}" = 1 ] || [ "${one#/proc/}" = $$ ] || left=1; done
    [ -n "$left" ] || break
    sleep 0.05
done"""


class Hosts:
    """Lab that starts with its first host and grows."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._lab: Lab | None = None
        self._starts = threading.Lock()

    @property
    def lab(self) -> Lab:
        with self._starts:
            if self._lab is None:
                self._lab = self._open.enter_context(Lab(0))
            return self._lab

    def make(self, machine: Machine, is_silent: bool, other_key: bool) -> Box:
        return Box(self.lab, machine, is_silent, other_key)

    def close(self) -> None:
        self._open.close()


class Box:
    """Host of one instance.

    Args:
        is_silent: Whether the host runs but never answers, because its packets are dropped.
        other_key: Whether its sshd presents another key than the one in user-data.
    """

    def __init__(self, lab: Lab, machine: Machine, is_silent: bool, other_key: bool) -> None:
        self._lab = lab
        self._machine = machine
        self._is_silent = is_silent
        self._swallows = False
        self._metadata: Metadata | None = None
        image = IMAGES[machine.order.ami]
        wish = self._wish = read(machine.order.user_data)
        self.host: Host = lab.add()
        self.address = self.host.address
        if wish.host_key and not other_key:
            try:
                self.host.key = asyncssh.import_private_key(wish.host_key)
            except asyncssh.KeyImportError as error:
                wish.problems.append(f"the host key cannot be read: {error}")
        gpus = gpus_of(machine.order.type)
        if machine.lacks_gpus:
            gpus |= {"FAKE_GPUS": gpus["FAKE_GPUS"][1:]}
        self.host.options = HostOptions(
            has_python=image.has_python,
            private=_PRIVATE,
            second_root=image.user,
            host_key_file=_KEY_FILE,
            sshd=("AuthorizedKeysFile .ssh/authorized_keys",),
            variables=gpus,
            before_sshd=self._before_sshd(image.user, wish, has_gpus=bool(gpus), is_first=True),
        )
        if gpus:
            shutil.copy(library(lab.folder), self._etc / "nvml")
        self._wire = PowerWire(machine, self._etc / "power")

    @property
    def _etc(self) -> Path:
        """Return the folder that the host sees as /run/lab."""
        return self.host.root / "etc"

    def power_on(self) -> None:
        """Boot. User-data starts before sshd, and continues after sshd listens."""
        if self._is_silent:
            self._swallow()
            return
        host = self.host
        host.boot()
        host.await_namespaces()
        self._metadata = Metadata(self._machine, host.machine)
        ip_batch(host.wiring())
        host.carry_on()
        host.await_sshd()

    def power_off(self, soft: bool) -> None:
        """Power off. ``soft``: send SIGTERM to all processes and wait one second first."""
        if self._metadata is not None:
            self._metadata.close()
            self._metadata = None
        if self.host.is_on:
            if soft:
                with suppress(LabError):  # it ended by itself meanwhile
                    self.host.run(_SOFTLY)
            self.host.power_off()

    def shut_down(self) -> None:
        """End all processes for a reboot. Of the disk, only the home and the host key remain."""
        self.host.key = asyncssh.import_private_key(self.host.run(f"cat {_KEY_FILE}"))
        self.power_off(soft=True)

    def boot_again(self) -> None:
        """Boot after a reboot. Of user-data, only boot commands, files and per-boot scripts apply."""
        user, has_gpus = IMAGES[self._machine.order.ami].user, bool(self.host.options.variables)
        lines = self._before_sshd(user, self._wish, has_gpus=has_gpus, is_first=False)
        self.host.options = replace(self.host.options, before_sshd=lines)
        self.power_on()

    def let_in(self, allowed: bool) -> None:
        """Set whether packets of this machine reach the host."""
        if allowed and self._swallows and not self._is_silent:
            ip_batch([f"neigh del {self.address} dev {self._lab.client.cable.end}"], force=True)
            self._swallows = False
        elif not allowed:
            self._swallow()

    def _swallow(self) -> None:
        """Send packets for the host to a hardware address that does not exist, so that they vanish."""
        if not self._swallows:
            end = self._lab.client.cable.end
            ip_batch([f"neigh replace {self.address} lladdr 02:00:00:00:00:01 nud permanent dev {end}"])
            self._swallows = True

    def close(self) -> None:
        self.power_off(soft=False)
        self._is_silent = False
        self.let_in(True)
        self._wire.close()
        self._lab.remove(self.host)

    def cloud_init_state(self) -> str | None:
        """Return the state as ``cloud-init status`` prints it: running, done or an error. None before the boot."""
        file = self._etc / "cloud-init.state"
        return file.read_text().strip() if file.exists() else None

    def _before_sshd(self, user: str, wish: Wish, *, has_gpus: bool, is_first: bool) -> str:
        """Return the shell code that runs as root before sshd, and its last part beside sshd. Failures of user-data do
        not stop the boot.
        """
        folder = self._etc / "cloud-init"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "early").write_text("\n".join(wish.early) + "\n")
        for number, script in enumerate(wish.scripts if is_first else (), start=1):
            (folder / f"part-{number:03}").write_bytes(script)
        (folder / "final").write_text(_final(wish))
        home = f"/run/home/{user}"
        key = self._machine.order.public_key.strip()
        no_root = f'command="echo \'Please login as the user \\"{user}\\" rather than the user \\"root\\".\';exit 142"'
        root_key = f"{no_root} {key}" if key else ""
        programs = shlex.quote(str(PROGRAMS))
        lines = [
            "set -eu",
            f"ip address add {ADDRESS}/32 dev lo",
            f"install {programs}/shutdown {programs}/poweroff /usr/sbin/",
            f"install {programs}/sudo {programs}/systemctl {programs}/cloud-init /usr/bin/",
            f"cp /run/lab/nvml /usr/lib/libnvidia-ml.so.1; install {programs}/nvidia-smi /usr/bin/"
            if has_gpus
            else ":",
            "rm -rf /var/lib/cloud /run/cloud-init",
            f"mkdir -p {_INSTANCE}/scripts /run/cloud-init",
            f": > {_LOG} && ln -sf {_LOG} /var/log/cloud-init-output.log",
            "echo running > /run/lab/cloud-init.state",
            f"( cd / && {_BARE} /bin/sh /run/lab/cloud-init/early </dev/null >>{_LOG} 2>&1 ) || :",
            f"rm -f /etc/ssh/ssh_host_* && install -D -m 600 /run/lab/host_key {_KEY_FILE}",
            f"printf '%s\\n' {shlex.quote(self.host.public_key)} > {_KEY_FILE}.pub",
            f"install -d -m 700 {home} {home}/.ssh /run/home/.ssh",
            f"printf '%s\\n' {shlex.quote(key)} > {home}/.ssh/authorized_keys",
            f"printf '%s\\n' {shlex.quote(root_key)} > /run/home/.ssh/authorized_keys",
            f"cd / && {_BARE} setsid /bin/sh /run/lab/cloud-init/final </dev/null >>{_LOG} 2>&1 &",
        ]
        return "\n".join(lines)


def _final(wish: Wish) -> str:
    """Return the shell code of cloud-init's last stage, which runs beside sshd."""
    text = f"error: {'; '.join(wish.problems)}" if wish.problems else "done"
    return f"""until grep -q ':0016 00000000:0000 0A' /proc/net/tcp; do sleep 0.02; done
state={shlex.quote(text)}
for script in /var/lib/cloud/scripts/per-boot/*; do
    [ ! -x "$script" ] || "$script" || state="error: ${{script##*/}} ended with $?"
done
for part in /run/lab/cloud-init/part-*; do
    [ -e "$part" ] || continue
    script={_INSTANCE}/scripts/${{part##*/}}
    cp "$part" "$script" && chmod 700 "$script"
    "$script" || state="error: ${{part##*/}} ended with $?"
done
date > {_INSTANCE}/boot-finished
echo "$state" > /run/lab/cloud-init.state
"""
