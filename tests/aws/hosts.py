"""The hosts behind instances: lab hosts that boot as cloud images do."""

from __future__ import annotations

import shlex
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab import Host, HostOptions, Lab
from tests.lab.tools import ip_batch, missing

from .images import IMAGES

if TYPE_CHECKING:
    from .machine import Machine

PROGRAMS = Path(__file__).with_name("programs")
_KEY_FILE = "/etc/ssh/ssh_host_ed25519_key"
# A machine has a disk of its own, and user-data writes all over it.
_PRIVATE = ("/etc", "/home", "/opt", "/root", "/srv", "/usr", "/var")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Hosts:
    """A lab that begins with its first host and takes in more."""

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

    def why_not(self) -> str | None:
        return missing()

    def make(self, machine: Machine, is_silent: bool, other_key: bool) -> Box:
        return Box(self.lab, machine, is_silent, other_key)

    def close(self) -> None:
        self._open.close()


class Box:
    """One machine's host.

    Args:
        is_silent: it runs and never answers: what is sent there goes nowhere.
        other_key: its sshd shows another key than the one it was given.
    """

    def __init__(self, lab: Lab, machine: Machine, is_silent: bool, other_key: bool) -> None:
        self._lab = lab
        self._machine = machine
        self._is_silent = is_silent
        user = IMAGES[machine.order.ami].user
        self.host: Host = lab.add()
        self.address = self.host.address
        self.host.options = HostOptions(
            has_python=IMAGES[machine.order.ami].has_python,
            private=_PRIVATE,
            second_root=user,
            host_key_file=_KEY_FILE,
            sshd=("AuthorizedKeysFile .ssh/authorized_keys",),
            before_sshd=self._before_sshd(user),
        )

    def power_on(self) -> None:
        """Boot, and begin with the user-data once sshd listens."""
        if self._is_silent:
            # Its card is known and nobody is there: packets vanish, as they do before a machine has booted.
            end = self._lab.client.cable.end
            ip_batch([f"neigh replace {self.address} lladdr 02:00:00:00:00:01 nud permanent dev {end}"])
            return
        self.host.power_on()

    def power_off(self, soft: bool) -> None:
        """Off; softly is with SIGTERM to all that runs, and a second for it to end."""
        if self._is_silent:
            ip_batch([f"neigh del {self.address} dev {self._lab.client.cable.end}"], force=True)
        elif self.host.is_on:
            self.host.power_off()

    def close(self) -> None:
        self.power_off(soft=False)
        self._lab.remove(self.host)

    def cloud_init_state(self) -> str | None:
        return None

    def _before_sshd(self, user: str) -> str:
        home = f"/run/home/{user}"
        return "\n".join(
            [
                "set -eu",
                f"rm -f /etc/ssh/ssh_host_* && install -D -m 600 /run/lab/host_key {_KEY_FILE}",
                f"install -d -m 700 {home} {home}/.ssh",
                f"printf '%s\\n' {shlex.quote(self._machine.order.public_key)} > {home}/.ssh/authorized_keys",
            ]
        )
