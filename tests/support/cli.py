"""``skyward-tui`` as a real process, with its own home and scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.child import Child
from tests.support.forked import Loaded, ending_at_once

if TYPE_CHECKING:
    import pexpect

EXAMPLES = Path(__file__).parents[2] / "skyward_tui" / "examples"
COMMAND = [sys.executable, "-m", "skyward_tui"]
PROGRAM = str(EXAMPLES.parent / "__main__.py")
PATIENCE = 90  # seconds; for what should never take that long; a test has 120 in all

ENDINGS = """
import os, signal, sys
import skyward_core as sky
import neighbour

@sky.function
def fine(n: int = 2):
    print("seen by rank", sky.instance_info().rank, flush=True)
    print("to stderr", file=sys.stderr, flush=True)
    return {"n": n, "word": neighbour.WORD}

@sky.function
def ends(how: str):
    if sky.instance_info().rank == 1:
        if how == "raise": raise KeyError("lost it")
        if how == "exit7": sys.exit(7)
        if how == "exit0": os._exit(0)
        if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
        if how == "lock":
            import threading
            return {"deep": threading.Lock()}
    return how

@sky.function
def waits(marker: str):
    print("waiting", flush=True)
    import threading
    threading.Event().wait()
"""


PRELOADED = """
import importlib, os, pkgutil
import skyward_core.providers.local.provider, skyward_core.tasks.job_file
import skyward_tui.cli.main, skyward_tui.cli.commands
for each in pkgutil.iter_modules(skyward_tui.cli.commands.__path__):
    importlib.import_module(f"skyward_tui.cli.commands.{each.name}")
"""
# As -m has it: first of all of the import path is the working folder.
RUN = "import os, sys\nsys.path[0] = os.getcwd()\n" + ending_at_once("skyward_tui.cli.main.main()")


LOADED = Loaded([sys.executable], PRELOADED, RUN)


def call(
    arguments: Sequence[object], env: Mapping[str, str], folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``skyward-tui`` in a process that has already imported everything that commands need.

    Args:
        folder: Working folder of the command; by default the current one.
    """
    words = list(map(str, arguments))
    with LOADED.start(
        [PROGRAM, *words],
        cwd=folder, env=env, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def begun(*arguments: object, **more: Any) -> Child:
    """Start such a process with pipes for all streams."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return LOADED.start([PROGRAM, *map(str, arguments)], text=True, **pipes | more)


class Cli:
    """``skyward-tui`` with its own home, and a folder with scripts.

    Calling it, and :meth:`begin`, use processes that have already imported everything that commands need. :meth:`start`
    and :meth:`terminal` start processes like a shell does.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = os.environ | {"SKYWARD_HOME": str(folder / "home"), "COLUMNS": "200"}
        (folder / "neighbour.py").write_text("WORD = 'next door'\n")
        self.write("endings.py", ENDINGS)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def __call__(self, *arguments: object, status: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = call(arguments, self.env, self.folder)
        if status is not None:
            assert done.returncode == status, done.stdout + done.stderr
        return done

    def json(self, *arguments: object, status: int | None = 0) -> Any:
        return json.loads(self(*arguments, "--json", status=status).stdout.splitlines()[-1])

    def begin(self, *arguments: object, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE) -> Child:
        """Start a command without waiting for it."""
        return LOADED.start(
            [PROGRAM, *map(str, arguments)],
            cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, text=True, stdout=stdout, stderr=stderr,
        )  # fmt: skip

    def start(self, *arguments: object) -> Child:
        return Child(
            [*COMMAND, *map(str, arguments)],
            cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def terminal(self, *arguments: object, **env: str) -> pexpect.spawn[str]:
        import pexpect  # which ranks do without

        return pexpect.spawn(
            COMMAND[0], [*COMMAND[1:], *map(str, arguments)],
            cwd=str(self.folder), env=self.env | env, timeout=PATIENCE, encoding="utf-8", dimensions=(40, 200),
        )  # fmt: skip

    def pools(self) -> dict[str, Any]:
        return {pool["name"]: pool for pool in self.json("ls")["pools"]}
