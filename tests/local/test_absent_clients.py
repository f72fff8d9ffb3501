"""Detached, suspended or killed clients: their runs, and results for the next client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.session import Session
from skyward_core.pool import gang_and_rank_setup
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow
from skyward_core.store.state_folder import ensure_socket_folder
from skyward_core.views.pool_view import PoolView
from skyward_tui.cli.commands import launched_and_attached_runs as command
from skyward_tui.cli.console_and_log_printer import Console
from tests.support.child import Child, child, read_line
from tests.support.cli import Cli
from tests.support.fates import gone
from tests.support.faults import on_loop
from tests.support.forked_clients import run_script
from tests.support.processes import exists
from tests.support.waiting import wait_until

SCRIPT = """
import os, pathlib, sys, time
import skyward_core as sky

folder = pathlib.Path(sys.argv[1])

@sky.function
def work():
    rank = sky.instance_info().rank
    (folder / f"new{rank}").write_text(str(os.getpid()))
    (folder / f"new{rank}").rename(folder / f"began{rank}")
    while rank != 1 or not (folder / "fail").exists():
        time.sleep(0.01)
    os._exit(9)

options = sky.Options(console=False)
with sky.Compute(nodes=3, name="shared", options=options) as compute:
    work() @ compute
"""


def leave_pool_with_killed_client(home: Path, folder: Path) -> None:
    """Return a pool whose client was killed during a run of three ranks on three nodes."""
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)]) as client:
        try:
            wait_until(lambda: len(list(folder.glob("began*"))) == 3, what="the ranks")
        finally:
            client.kill()


def test_failed_rank_of_an_orphaned_run_stops_its_peers_and_frees_nodes(home: Path, tmp_path: Path) -> None:
    def pid() -> int:
        return __import__("os").getpid()

    leave_pool_with_killed_client(home, tmp_path)
    others = [int((tmp_path / f"began{rank}").read_text()) for rank in (0, 2)]
    (tmp_path / "fail").touch()
    assert gone(others), "no client is there: their agents end them"
    with sky.attach("shared") as compute:
        try:
            run = compute.runs[0]
            wait_until(lambda: run.state != "running", what=lambda: f"the run's end: {run.state}, {run.counts}")
            assert (run.state, run.counts) == ("failed", {"exited": 1, "collateral": 2})
            cause = run.root_cause
            assert cause is not None
            assert cause.rank == 1
            assert sky.function(pid)() @ compute
        finally:
            receipt = compute.down()
    assert receipt.ok


# A command is killed while its launch is not answered yet: the run goes on, and its lines are in its log.


SAYS = """
import time
from pathlib import Path
import skyward_core as sky

@sky.function
def says(go: str):
    print("its first line", flush=True)
    while not Path(go).exists():
        time.sleep(0.01)
    print("its last line", flush=True)
    return 42
"""
# The run is on its way, and its lines come, but the command does not hear that.
NEVER_ANSWERED = """
import sys
from concurrent.futures import Future
from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.session import Session
from skyward_tui.cli.commands import launched_and_attached_runs as run
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.cli.follow_run import Follower

launch, shows = Session.launch, Follower._show

def answers_nothing(*asked, **more):
    launch(*asked, **more)
    return Future()

def tells(follower, item):
    shows(follower, item)
    if isinstance(item, tuple):
        print("a line came", flush=True)

Session.launch, Follower._show = answers_nothing, tells
run.run(LaunchRequest(script="says.py", pool="shared", arguments=[f"go={sys.argv[1]}"]), Console())
"""


def test_client_after_one_killed_during_launch_sees_the_whole_run(cli: Cli) -> None:
    cli.write("says.py", SAYS)
    go = cli.folder / "go"
    go.touch()
    cli("run", "says.py", "--pool", "shared", "--arg", f"go={go}", "--keep")
    go.unlink()
    command = [sys.executable, "-c", NEVER_ANSWERED, str(go)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Child(command, cwd=cli.folder, env=cli.env, text=True, **pipes) as client:  # type: ignore[call-overload]
        assert read_line(client) == "a line came"
        os.kill(client.pid, signal.SIGKILL)
        out, err = client.communicate()
    assert "its first line" not in out + err
    (run,) = [each for each in cli.pools()["shared"]["runs"] if each["state"] == "running"]
    with cli.begin("attach", "shared", "--json") as follower:
        assert follower.stderr is not None and run["run"] in follower.stderr.readline()
        go.touch()
        follower.communicate()
    assert follower.returncode == 0
    assert cli("logs", run["run"]).stdout.splitlines() == ["r000| its first line", "r000| its last line"]
    assert [rank["outcome"] for rank in cli.json("results", run["run"])["ranks"]] == ["returned"]


# Two clients of one home at once: what one begins the other finds as it is by then.


MAKES = """
import sys
from pathlib import Path
import skyward_core as sky
folder = sys.argv[1]
wait = f"touch {folder}/began; until test -e {folder}/go; do sleep 0.01; done"
options = sky.Options(console=False)
with sky.Compute(provider=sky.Local(), name="shared", image=sky.Image(setup=[wait]), options=options):
    Path(folder, "up").touch()
    sys.stdin.readline()
"""


@pytest.fixture
def starting_client(home: Path, tmp_path: Path) -> Iterator[None]:
    """Start a client that brings up the pool "shared", and continues when the file "go" exists."""
    command = [sys.executable, "-c", MAKES, str(tmp_path)]
    with Child(command, stdin=subprocess.PIPE, text=True) as client:
        wait_until((tmp_path / "began").exists)
        yield
        (tmp_path / "go").touch()
        assert client.stdin is not None
        client.stdin.write("\n")


def test_attach_follows_a_pool_that_comes_up_after_the_lookup(
    starting_client: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    look = command.live_pool

    def live(*asked: Any) -> PoolView | None:
        found = look(*asked)
        assert found is not None and found.state == "starting"
        (tmp_path / "go").touch()
        wait_until((tmp_path / "up").exists)
        return found

    monkeypatch.setattr(command, "live_pool", live)
    script = tmp_path / "work.py"
    script.write_text("import skyward_core as sky\n@sky.function\ndef work():\n    print('hello')\n    return 1\n")
    assert command.run(LaunchRequest(script=str(script), pool="shared"), Console()) == 0
    assert "hello" in capsys.readouterr().out


# A client dies while it holds the right to start gang runs, and another one comes to start its own.


HOLDS_THE_LOCK = """
import pathlib, sys, time
import skyward_core as sky

folder = pathlib.Path(sys.argv[1])

@sky.function
def work():
    while sky.instance_info().rank and not (folder / "go").exists():
        time.sleep(0.01)
    return "of the one that died"

with sky.Compute(nodes=2, name="shared", options=sky.Options(console=False)) as compute:
    print("up", flush=True)
    sys.stdin.readline()
    work() @ compute
"""


def test_started_run_continues_when_another_client_starts_the_next(home: Path, tmp_path: Path) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", HOLDS_THE_LOCK, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert client.stdin is not None
    assert client.stdout is not None
    assert client.stdout.readline() == "up\n"

    def rank() -> int:  # of no module that the nodes would know
        return sky.instance_info().rank

    # Before there is a run: what the agents say at the welcome knows of none.
    with sky.attach("shared") as compute:
        try:
            client.stdin.write("go on\n")
            client.stdin.flush()
            wait_until(lambda: compute.runs and compute.runs[0].counts == {"returned": 1}, what="rank 0's end")
            client.kill()
            client.communicate()
            first = compute.runs[0]
            with ThreadPoolExecutor() as threads:
                second = threads.submit(lambda: sky.function(rank)() @ compute)
                wait_until(lambda: compute.pool.links[1]._calls, what="the second run's calls")
                (tmp_path / "go").touch()
                assert second.result(90) == [0, 1]
            wait_until(lambda: first.state != "running", what="the first run's end")
            assert (first.state, first.counts) == ("done", {"returned": 2})
        finally:
            receipt = compute.down()
    assert receipt.ok


# A client whose machine dies, or that is stopped (ctrl-z): its connection stays open, and nobody speaks on it.


TWO_RUNS = """
import sys
import skyward_core as sky

@sky.function
def rank():
    return sky.instance_info().rank

with sky.Compute(nodes=2, name="shared", options=sky.Options(console=False, idle_timeout=1.0)) as compute:
    print(rank() @ compute, flush=True)
    sys.stdin.readline()
    try:
        rank() @ compute
    except sky.PoolGone as error:
        print(error, flush=True)
"""


def test_frozen_client_blocks_neither_the_gang_lock_nor_the_pool(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rank() -> int:  # of no module that the nodes would know
        return sky.instance_info().rank

    # On a busy machine, the agents may miss the other client before it is frozen, and soon afterwards give up on it.
    monkeypatch.setattr(gang_and_rank_setup, "WAIT_REPORT_DELAY", 0.0)
    pipe = subprocess.PIPE
    client = subprocess.Popen([sys.executable, "-c", TWO_RUNS], stdin=pipe, stdout=pipe, text=True)
    assert client.stdin is not None
    assert client.stdout is not None
    assert client.stdout.readline() == "[0, 1]\n"  # from now on it holds the lock
    details: list[str] = []
    try:
        with sky.attach("shared") as compute:
            on_loop(
                lambda: compute.pool.news.subscribe(lambda event: details.append(getattr(event, "detail", "")), None)
            )
            os.kill(client.pid, signal.SIGSTOP)
            assert sky.function(rank)() @ compute == [0, 1]
            assert any(f"process {client.pid} (-c) of " in detail for detail in details), "who holds the lock"
            wait_until(lambda: compute.pool.view.detail == "", what="the end of the wait")
            agents = [link.welcome["pid"] for link in compute.pool.links]
        wait_until(lambda: not any(map(exists, agents)), what="the end of the pool's lease")
    finally:
        os.kill(client.pid, signal.SIGCONT)
    output, _ = client.communicate("go on\n", timeout=60)
    assert "ended itself at" in output and "idle for 1 s" in output, output


COUNT = """
import skyward_core as sky

@sky.function
def count(n: int = 5):
    yield from ({"step": i} for i in range(n))
"""


@pytest.mark.proof("0.5 s of a processor")
def test_json_of_a_generator_run_has_last_value_and_count(cli: Cli) -> None:
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


def test_lines_printed_without_a_client_are_shown_after_attach(cli: Cli) -> None:
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


LEAVES = """
import os, sys, time
from pathlib import Path
import skyward_core as sky

how, size, idle, keep, go = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], Path(sys.argv[5])
keep = 0 if keep == "0" else keep

@sky.function
def work(how, size, go):
    while not go.exists():
        time.sleep(0.01)
    print("done by rank", sky.instance_info().rank, os.environ["A_TOKEN"])
    if how == "dies":
        os._exit(3)
    if how == "raises":
        raise KeyError("lost it")
    return [sky.instance_info().rank, bytes(size)]

options = sky.Options(console=False, idle_timeout=idle, keep_results=keep)
image = sky.Image(env={"A_TOKEN": "hush-hush-hush"})
with sky.Compute(nodes=2, name="left", options=options, image=image) as compute:
    work(how, size, go) @ compute
"""


class Look(Session):
    def close(self) -> None:
        self.detach()


def leave_run_with_dead_client(
    home: Path, how: str = "returns", size: int = 10, idle: float = 600.0, keep: str = "7d"
) -> tuple[PoolRow, str]:
    """Kill a client before its run ends. Return its pool and the run, which continues to its end."""
    go = home.with_name("go")
    words = [how, str(size), str(idle), keep, str(go)]
    script = home.with_name("leaves.py")
    script.write_text(LEAVES)
    with run_script(script, *words) as client:
        ledger = Ledger()

        def run() -> str:
            row = ledger.find_pool("left")
            runs = ledger.runs(row.token) if row is not None else []
            return runs[0].run if runs else ""

        wait_until(run, what="the run's row in the ledger")
        client.kill()
    go.touch()
    row = ledger.find_pool("left")
    assert row is not None
    return row, run()


def left_there(home: Path) -> list[str]:
    """Return the names of the nodes' folders on this host."""
    return sorted(path.name for path in home.glob("local/*/*") if path.is_dir())


def wait_for_the_end(home: Path) -> None:
    wait_until(lambda: not any(name.startswith("node-") for name in left_there(home)), what="the end by the lease")


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("size", [10, 300_000], ids=["small", "large"])
def test_results_of_a_run_outlive_the_lease_and_are_fetched_later(home: Path, size: int) -> None:
    row, run = leave_run_with_dead_client(home, size=size, idle=0.5)
    wait_for_the_end(home)
    assert left_there(home) == ["kept.node-0", "kept.node-1"]
    ended = max(path.stat().st_mtime for path in home.glob("local/*/ended.*"))
    with closing(Look()) as session:
        (view,) = session.refresh().result(60)
        while view.state == "unreachable":  # its process may have a moment to go
            (view,) = session.refresh().result(60)
        assert view.state == "gone"
        assert view.ended_at == ended, "when it was, not when somebody came to see it"
        assert "idle for" in view.detail and run in view.detail
        retained = session.retained_results()
    assert [each.machine.node for each in retained] == [0, 1]
    assert all(each.runs[run] >= size for each in retained)
    assert all(6.9 < (each.until - time.time()) / 86400 <= 7 for each in retained)
    found = Ledger().run(run)
    assert found is not None and found.state == "kept"
    values = [[0, bytes(size)], [1, bytes(size)]]
    assert sky.results(run) == values
    assert sky.results(run) == values
    assert left_there(home) == []
    ledger = Ledger()
    found = ledger.run(run)
    assert found is not None and found.state == "done"
    assert ledger.retained_results() == []
    receipt = ledger.pool(row.token).receipt
    assert receipt is not None and receipt["kept"] == []
    logs = (home / "pools" / row.key / "logs" / "r001.out").read_text()
    assert logs == "done by rank 1 **************\n"
    folder = home / "pools" / row.key / "results"
    modes = {path.name: path.stat().st_mode & 0o777 for path in [folder, *folder.iterdir()]}
    assert modes == {"results": 0o700, f"{run}.0.pickle": 0o600, f"{run}.1.pickle": 0o600}


def test_pool_that_keeps_no_results_retains_none_after_its_lease(home: Path) -> None:
    _, run = leave_run_with_dead_client(home, idle=0.5, keep="0")
    wait_for_the_end(home)
    with closing(Look()) as session:
        session.refresh().result(60)
        assert session.retained_results() == []
    assert left_there(home) == []
    with pytest.raises(sky.PoolError, match="has no results"):
        sky.results(run)


def wait_until_unfetched(run: str) -> None:
    """Wait until both nodes report unfetched results."""

    def is_reported() -> bool:
        with closing(Look()) as session:
            view = session.observe("left").result(60)
            return view.unfetched.keys() == {run} and view.runs[run].state != "running"

    wait_until(is_reported, what="the news that something is not fetched")


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("keep", ["7d", "0"])
def test_teardown_fetches_unfetched_results(home: Path, keep: str) -> None:
    _, run = leave_run_with_dead_client(home, keep=keep)
    wait_until_unfetched(run)
    with closing(Look()) as session:
        receipt = session.tear_down("left").result(60)
    assert receipt.ok
    assert receipt.gone == (0, 1)
    assert receipt.retained == ()
    assert sum(note.startswith(f"fetched run {run} (") for note in receipt.notes) == 2
    assert left_there(home) == []
    assert sky.results(run) == [[0, bytes(10)], [1, bytes(10)]]


def test_empty_pool_folders_are_removed_by_the_next_start_and_teardown(home: Path) -> None:
    base = home / "local"
    for name in ("fetched", "being-made", "waits"):
        (base / f"{name}.t").mkdir(parents=True)
    (base / "waits.t" / "kept.node-0").mkdir()
    for name in ("fetched", "waits"):
        os.utime(base / f"{name}.t", (0, 0))
    sockets = ensure_socket_folder(base / "fetched.t")
    with sky.Compute(nodes=1, options=sky.Options(console=False)):
        assert not sockets.exists()
        (base / "late.t").mkdir()
        os.utime(base / "late.t", (0, 0))
    assert {path.name for path in base.iterdir()} == {"being-made.t", "waits.t"}


@pytest.mark.proof("1 s of a processor")
def test_teardown_with_discard_drops_unfetched_results(home: Path) -> None:
    _, run = leave_run_with_dead_client(home)
    wait_until_unfetched(run)
    with closing(Look()) as session:
        receipt = session.tear_down("left", give_up=True).result(60)
    assert receipt.ok
    assert sum(note.startswith(f"deleted run {run} (") for note in receipt.notes) == 2
    assert left_there(home) == []
    with pytest.raises(sky.PoolError, match="are not available: its client took them, or they were removed"):
        sky.results(run)


@pytest.mark.proof("1 s of a processor")
def test_results_that_teardown_cannot_fetch_stay_and_are_in_the_receipt(home: Path) -> None:
    row, run = leave_run_with_dead_client(home, how="raises")
    place = home / "pools" / row.key / "results" / f"{run}.1.pickle"
    place.mkdir(parents=True)
    wait_until_unfetched(run)
    with closing(Look()) as session:
        receipt = session.tear_down("left").result(60)
        assert receipt.ok
        (description,) = receipt.retained
        assert description.startswith(f"run {run} (") and " on node 1 (127.0.0.1) until " in description
        assert any("still retained" in note and "Is a directory" in note for note in receipt.notes)
        wait_until(lambda: left_there(home) == ["kept.node-1"], what="the end of the agent that was to hand it out")
        stored_receipt = Ledger().pool(row.token).receipt
        assert stored_receipt is not None and stored_receipt["kept"] == [description]
        place.rmdir()
        assert session.fetch(row.token).result(60)
    assert left_there(home) == []
    with pytest.raises(sky.RunError, match="lost it") as caught:
        sky.results(run)
    assert isinstance(caught.value.__cause__, KeyError)


def test_pool_torn_down_by_its_own_client_retains_nothing(home: Path) -> None:
    def slow(go: Path) -> int:
        if sky.instance_info().rank:
            while not go.exists():
                time.sleep(0.01)
        return 1

    with ThreadPoolExecutor() as threads:
        with sky.Compute(nodes=2, options=sky.Options(console=False, grace=0.2)) as compute:
            pool = compute.pool
            assert sky.function(slow)(Path("/")) @ compute == [1, 1]
            waiting = threads.submit(lambda: sky.function(slow)(home / "never") @ compute)
            wait_until(
                lambda: any(len(run.outcomes) == 1 for run in pool.context.registry.runs.values()), what="rank 0's end"
            )
        with pytest.raises(sky.Cancelled):
            waiting.result(60)
    assert compute.receipt is not None
    assert (compute.receipt.notes, compute.receipt.retained) == ((), ())


def test_down_lists_unfetched_results_and_asks_before_discarding(home: Path, cli: Cli) -> None:
    _, run = leave_run_with_dead_client(home)
    wait_until_unfetched(run)
    assert cli.json("ls")["pools"][0]["unfetched"].keys() == {run}
    assert "--yes" in cli("down", "left", "--discard", status=2).stderr
    asks = cli.terminal("down", "left", "--discard")
    asks.expect(f"unfetched results to be DISCARDED: run {run} of left")
    asks.sendline("n")
    asks.expect("nothing was torn down")
    asks.wait()
    asks = cli.terminal("down", "left")
    asks.expect(f"results to be downloaded first: run {run} of left")
    asks.sendline("y")
    asks.expect(f"fetched run {run}")
    asks.wait()
    assert "done by rank 1" in cli("logs", run).stdout


@pytest.mark.proof("1 s of a processor")
def test_results_command_fetches_from_hosts_of_an_ended_pool(home: Path, cli: Cli) -> None:
    _, run = leave_run_with_dead_client(home, idle=0.5)
    wait_for_the_end(home)
    assert f"with unfetched run {run} (" in cli("ls").stdout
    (first, second) = cli.json("ls")["kept"]
    assert (first["pool"], first["node"], second["node"]) == ("left", 0, 1)
    done = cli("results", run)
    assert f"fetched run {run}" in done.stderr
    assert "returned" in done.stdout
    assert cli.json("ls")["kept"] == []
    assert left_there(home) == []


@pytest.mark.proof("1 s of a processor")
def test_results_command_fetches_from_a_running_pool_once(home: Path, cli: Cli, tmp_path: Path) -> None:
    """A client that waits for the run in the pool reads the downloaded results, too."""
    _, run = leave_run_with_dead_client(home)
    wait_until_unfetched(run)
    done = cli("results", run, "-o", f"{tmp_path}/all.pickle")
    fetched = [line for line in done.stderr.splitlines() if line.startswith(f"fetched run {run} (")]
    assert [line.partition(") ")[2] for line in fetched] == [f"from node {node} (127.0.0.1)" for node in (0, 1)]
    assert "fetched" not in cli("results", run).stderr
    values = [[0, bytes(10)], [1, bytes(10)]]
    assert sky.results(run) == values
    with sky.attach("left") as compute:
        assert compute.view.unfetched == {}
        assert compute.wait(run) == values
        receipt = compute.down()
    assert receipt.ok and receipt.retained == ()
    assert not [note for note in receipt.notes if "fetched" in note]
    assert left_there(home) == []


@pytest.mark.proof("1 s of a processor")
def test_run_without_results_is_not_reported_as_fetched_at_teardown(home: Path) -> None:
    _, run = leave_run_with_dead_client(home, how="dies")
    with closing(Look()) as session:
        wait_until(lambda: session.observe("left").result(60).runs[run].state == "failed")
        receipt = session.tear_down("left").result(60)
        assert receipt.ok and receipt.retained == ()
        assert not [note for note in receipt.notes if run in note]
    assert left_there(home) == []


WAITED_FOR = """
import pathlib, sys, time
import skyward_core as sky

folder = pathlib.Path(sys.argv[1])

@sky.function
def work():
    rank = sky.instance_info().rank
    (folder / f"began{rank}").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    return rank

with sky.Compute(nodes=3, name="shared", options=sky.Options(console=False)) as compute:
    print(work() @ compute, flush=True)
    if sys.argv[2] == "stays":
        sys.stdin.readline()
"""


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("client", ["stays", "is killed"])
def test_waiting_client_gets_results_of_a_connected_client_too(home: Path, tmp_path: Path, client: str) -> None:
    with child(WAITED_FOR, tmp_path, client) as first:
        wait_until(lambda: len(list(tmp_path.glob("began*"))) == 3, what="the ranks")
        with sky.attach("shared") as pool, ThreadPoolExecutor() as threads:
            waiting = threads.submit(pool.wait)
            wait_until(lambda: bool(pool.pool.context.registry.own_runs), what="the second client has claimed the run")
            if client == "is killed":
                first.kill()
                first.wait()
            (tmp_path / "go").touch()
            if client == "stays":
                assert read_line(first) == "[0, 1, 2]"
            assert waiting.result(60) == [0, 1, 2]
            first.kill()
            pool.down()
