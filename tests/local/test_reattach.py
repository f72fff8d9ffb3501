"""What a client that comes later sees of a run: what was yielded, its numbers, and when it all was."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from skyward_core.client.session import Session
from skyward_core.views.pool_view import RunView
from skyward_core.views.rank_metrics import MetricStore
from tests.support.cli import Cli
from tests.support.waiting import wait_until

SCRIPT = """
import sys, threading, time
from pathlib import Path
import skyward_core as sky

folder = Path(sys.argv[1])

@sky.function
def train():
    for step in range(3):
        yield {"step": step, "loss": 1.0 / (step + 1)}
    (folder / "begun").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    for step in range(3, 40):
        yield {"step": step, "loss": 1.0 / (step + 1)}
    (folder / "made").touch()
    while not (folder / "end").exists():
        time.sleep(0.01)

with sky.Compute(name="shared", nodes=1, options=sky.Options(console=False)) as compute:
    for value in train() >> compute:
        print(value, flush=True)
"""


def latest(session: Session) -> tuple[RunView, MetricStore]:
    (pool,) = [pool for pool in session.refresh().result() if pool.name == "shared"]
    (run,) = pool.runs.values()
    return run, pool.metrics


def test_whoever_comes_later_sees_what_was_yielded_and_when(home: Path, tmp_path: Path) -> None:
    client = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.DEVNULL)
    wait_until((tmp_path / "begun").exists, what="the first values")
    begun = time.time()
    time.sleep(0.2)  # else the announcement of the rank's beginning may still be on its way
    client.kill()
    client.wait()
    (tmp_path / "go").touch()
    wait_until((tmp_path / "made").exists, what="values that nobody was there for")
    time.sleep(0.3)
    session = Session()
    try:
        run, numbers = latest(session)
        task = run.tasks[0]
        (pool,) = [pool for pool in session.pools() if pool.name == "shared"]
        wait_until(lambda: bool(pool.nodes[0].said), what="what was said of the node on its way")
        assert "starting an agent in" in pool.nodes[0].said[0][2]
        assert task.items == 40
        assert task.last_item is not None
        assert task.last_item.json == {"step": 39, "loss": 1 / 40}
        assert task.began_at is not None and task.began_at <= begun

        def steps() -> list[float]:
            return [value for _, value in numbers.history(run.id, 0, "step")]

        # The latest value comes with the agent's welcome, those before it with the log.
        wait_until(lambda: 39 in steps() and min(steps()) < 3, what="the first and the last numbers")
        assert steps() == sorted(set(steps())), "each once"
        ended = time.time()
        (tmp_path / "end").touch()
        wait_until(lambda: run.state != "running", what="the run's end")
        assert run.ended_at is not None and run.ended_at >= ended
        later = time.time()
        third = Session()
        try:
            run, _ = latest(third)
            assert (run.state, run.tasks[0].items) == ("done", 40)
            assert run.tasks[0].last_item is not None and run.tasks[0].last_item.json["step"] == 39
            assert run.ended_at is not None and run.ended_at <= later
        finally:
            third.detach()
    finally:
        session.tear_down("shared").result()
        session.detach()


COUNT = """
import skyward_core as sky

@sky.function
def count(n: int = 5):
    yield from ({"step": i} for i in range(n))
"""


def test_a_generators_run_as_json_has_its_last_value_and_their_number(cli: Cli) -> None:
    cli.write("count.py", COUNT)
    (rank,) = cli.json("run", "count.py")["ranks"]
    assert (rank["items"], rank["last"], rank["value"]) == (5, {"step": 4}, None)


# Whoever attaches is shown every line that came after the last client, once and in order.


LINES = 20_000

PRINTS = f"""
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
    cli.write("work.py", PRINTS)
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
