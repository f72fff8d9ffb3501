"""Whoever attaches is shown every line that came after the last client, once and in order."""

from __future__ import annotations

import os

from tests.support.cli import Cli
from tests.support.waiting import wait_until

LINES = 20_000

SCRIPT = f"""
import pathlib
import skyward_core as sky

@sky.function
def work(folder: str):
    print("begun", flush=True)
    folder = pathlib.Path(folder)
    with open(folder / "gate") as fifo:
        fifo.read()
    for number in range({LINES}):
        print("line", number)
    (folder / "printed").touch()
    with open(folder / "gate") as fifo:
        fifo.read()
    print("end", flush=True)
"""


def test_lines_printed_while_nobody_was_there(cli: Cli) -> None:
    cli.write("work.py", SCRIPT)
    gate = cli.folder / "gate"
    os.mkfifo(gate)
    found = cli.json("run", "work.py", "--arg", f"folder={cli.folder}", "--detach")
    gate.write_text("")
    wait_until((cli.folder / "printed").exists, what="the lines")
    with cli.begin("attach", found["pool"]) as watcher:
        assert watcher.stderr is not None
        assert watcher.stderr.readline() == f"run {found['run']}: work on 1 rank\n"
        gate.write_text("")
        out, err = watcher.communicate(timeout=90)
    assert watcher.returncode == 0, err
    shown = [line for line in out.splitlines() if line.startswith("r000| line")]
    assert shown == [f"r000| line {number}" for number in range(LINES)]
    assert "r000| end\n" in out
