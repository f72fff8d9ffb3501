"""How busy a GPU's parts are, by ``dcgmi`` where the host has it: NVML's utilisation only says that something ran.

One ``dcgmi`` prints a line for each GPU and second, until this process ends. What it prints is looked at and not
believed.
"""

# ruff: noqa: PTH117, PTH118

from __future__ import annotations

import os
import subprocess

PROGRAM = "dcgmi"
FIELDS = {"1002": "sm_active", "1004": "tensor_active"}
TRIES = 5  # times that it is started
PAUSE = 60.0  # seconds between them
OLD = 5.0  # seconds after which what it said says nothing
LONGEST = 1 << 16  # bytes without a line


class Dcgm:
    """What it says, by number of the GPU."""

    def __init__(self, folders: str = "") -> None:
        self._program = _find(folders or os.environ.get("PATH", ""))
        self._child: subprocess.Popen[bytes] | None = None
        self._tries, self._next_try = 0, 0.0
        self._said = b""
        self._figures: dict[str, tuple[float, dict[str, float]]] = {}

    def read(self, now: float) -> dict[str, dict[str, float]]:
        """The figures now, as far as it has told of any; never waits."""
        if not self._program:
            return {}
        if self._child is None:
            self._begin(now)
        if self._child is not None:
            self._hear(now)
        return {gpu: figures for gpu, (at, figures) in self._figures.items() if now - at < OLD}

    def close(self) -> None:
        """Have it end."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()

    def _begin(self, now: float) -> None:
        if self._tries >= TRIES or now < self._next_try:
            return
        self._tries += 1
        self._next_try = now + PAUSE
        self._said = b""
        try:
            self._child = subprocess.Popen(
                [self._program, "dmon", "-e", ",".join(FIELDS), "-d", "1000"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )
        except OSError:
            return
        if self._child.stdout is not None:
            os.set_blocking(self._child.stdout.fileno(), False)

    def _hear(self, now: float) -> None:
        child = self._child
        if child is None or child.stdout is None:
            return
        try:
            piece = os.read(child.stdout.fileno(), LONGEST)
        except BlockingIOError:
            return
        *lines, self._said = (self._said + piece).split(b"\n")
        for line in lines:
            if (told := figures_of(line.decode("ascii", "replace"))) is not None:
                self._figures[told[0]] = (now, told[1])
        if not piece or len(self._said) > LONGEST:
            self.close()


def figures_of(line: str) -> tuple[str, dict[str, float]] | None:
    """Which GPU a line tells of, and its figures in percent; None where it is another line."""
    kind, *rest = line.split() or [""]
    if kind != "GPU" or len(rest) != 1 + len(FIELDS):
        return None
    gpu, *told = rest
    if not (gpu.isascii() and gpu.isdigit() and len(gpu) < 4):
        return None
    figures = {}
    for name, text in zip(FIELDS.values(), told, strict=True):
        try:
            share = float(text)
        except ValueError:  # "N/A": this GPU has no such figure
            continue
        if 0 <= share <= 1:
            figures[name] = round(100 * share, 2)
    return gpu, figures


def _find(folders: str) -> str:
    for folder in folders.split(":"):
        path = os.path.join(folder, PROGRAM)
        if os.path.isabs(folder) and os.access(path, os.X_OK):
            return path
    return ""
