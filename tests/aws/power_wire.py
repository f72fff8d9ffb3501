"""Pipe in a host's folder that reports ``shutdown`` commands of a machine to the simulation."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .machine import Machine


class PowerWire:
    """Listener that notifies a machine of every ``shutdown`` in it, until closed."""

    def __init__(self, machine: Machine, pipe: Path) -> None:
        self._machine = machine
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe, 0o600)
        # For reading and writing: so it does not end with the writer that happens to be the last.
        self._end = os.open(pipe, os.O_RDWR)
        threading.Thread(target=self._listen, daemon=True, name=f"power-{machine.id}").start()

    def close(self) -> None:
        os.write(self._end, b"close\n")

    def _listen(self) -> None:
        with os.fdopen(self._end, "r", buffering=1) as lines:
            while (line := lines.readline().split()) != ["close"]:
                if line == ["cancel"]:
                    self._machine.disarm()
                elif len(line) == 2 and line[0] == "poweroff" and line[1].isdigit():
                    self._machine.arm(int(line[1]))
