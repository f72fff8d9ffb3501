"""What nobody has fetched outlives agent, lease and teardown: it stays on the host, is told of, and is fetched."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow
from skyward_core.store.state_folder import ensure_socket_folder
from tests.support.cli import Cli
from tests.support.forked_clients import run_script
from tests.support.waiting import wait_until

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


def leave(
    home: Path, how: str = "returns", size: int = 10, idle: float = 600.0, keep: str = "7d"
) -> tuple[PoolRow, str]:
    """Have a client die before a run ends; gives its pool and the run, which goes on to its end."""
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
    """Names of the nodes' folders on this host."""
    return sorted(path.name for path in home.glob("local/*/*") if path.is_dir())


def wait_for_the_end(home: Path) -> None:
    wait_until(lambda: not any(name.startswith("node-") for name in left_there(home)), what="the end by the lease")


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("size", [10, 300_000], ids=["small", "large"])
def test_a_good_run_outlives_the_lease_and_the_next_client_fetches_it(home: Path, size: int) -> None:
    row, run = leave(home, size=size, idle=0.5)
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
        kept = session.retained_results()
    assert [each.machine.node for each in kept] == [0, 1]
    assert all(each.runs[run] >= size for each in kept)
    assert all(6.9 < (each.until - time.time()) / 86400 <= 7 for each in kept)
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
    told = ledger.pool(row.token).receipt
    assert told is not None and told["kept"] == []
    logs = (home / "pools" / row.key / "logs" / "r001.out").read_text()
    assert logs == "done by rank 1 **************\n"
    folder = home / "pools" / row.key / "results"
    modes = {path.name: path.stat().st_mode & 0o777 for path in [folder, *folder.iterdir()]}
    assert modes == {"results": 0o700, f"{run}.0.pickle": 0o600, f"{run}.1.pickle": 0o600}


def test_what_keeps_no_results_keeps_none(home: Path) -> None:
    _, run = leave(home, idle=0.5, keep="0")
    wait_for_the_end(home)
    with closing(Look()) as session:
        session.refresh().result(60)
        assert session.retained_results() == []
    assert left_there(home) == []
    with pytest.raises(sky.PoolError, match="has no results"):
        sky.results(run)


def wait_until_unfetched(run: str) -> None:
    """Until both nodes say that they hold what nobody has fetched."""

    def told() -> bool:
        with closing(Look()) as session:
            view = session.observe("left").result(60)
            return view.unfetched.keys() == {run} and view.runs[run].state != "running"

    wait_until(told, what="the news that something is not fetched")


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("keep", ["7d", "0"])
def test_a_teardown_fetches_what_nobody_has_fetched(home: Path, keep: str) -> None:
    _, run = leave(home, keep=keep)
    wait_until_unfetched(run)
    with closing(Look()) as session:
        receipt = session.tear_down("left").result(60)
    assert receipt.ok
    assert receipt.gone == (0, 1)
    assert receipt.kept == ()
    assert sum(note.startswith(f"fetched run {run} (") for note in receipt.notes) == 2
    assert left_there(home) == []
    assert sky.results(run) == [[0, bytes(10)], [1, bytes(10)]]


@pytest.mark.proof("1 s of a processor")
def test_of_a_run_that_left_nothing_and_whose_end_is_known_nothing_is_said_to_be_fetched(home: Path) -> None:
    _, run = leave(home, how="dies")
    with closing(Look()) as session:
        wait_until(lambda: session.observe("left").result(60).runs[run].state == "failed")
        receipt = session.tear_down("left").result(60)
        assert receipt.ok and receipt.kept == ()
        assert not [note for note in receipt.notes if run in note]
    assert left_there(home) == []


def test_the_empty_folder_that_is_left_then_goes_with_a_later_teardown(home: Path) -> None:
    base = home / "local"
    for name in ("fetched", "being-made", "waits"):
        (base / f"{name}.t").mkdir(parents=True)
    (base / "waits.t" / "kept.node-0").mkdir()
    for name in ("fetched", "waits"):
        os.utime(base / f"{name}.t", (0, 0))
    sockets = ensure_socket_folder(base / "fetched.t")
    with sky.Compute(nodes=1, options=sky.Options(console=False)):
        assert sockets.exists()
    assert {path.name for path in base.iterdir()} == {"being-made.t", "waits.t"}
    assert not sockets.exists()


@pytest.mark.proof("1 s of a processor")
def test_a_teardown_gives_up_what_nobody_has_fetched_where_it_is_told_to(home: Path) -> None:
    _, run = leave(home)
    wait_until_unfetched(run)
    with closing(Look()) as session:
        receipt = session.tear_down("left", give_up=True).result(60)
    assert receipt.ok
    assert sum(note.startswith(f"gave up run {run} (") for note in receipt.notes) == 2
    assert left_there(home) == []
    with pytest.raises(sky.PoolError, match="are not available: its client took them, or they were removed"):
        sky.results(run)


@pytest.mark.proof("1 s of a processor")
def test_what_a_teardown_cannot_fetch_stays_on_its_host_and_the_receipt_says_so(home: Path) -> None:
    row, run = leave(home, how="raises")
    place = home / "pools" / row.key / "results" / f"{run}.1.pickle"
    place.mkdir(parents=True)
    wait_until_unfetched(run)
    with closing(Look()) as session:
        receipt = session.tear_down("left").result(60)
        assert receipt.ok
        (kept,) = receipt.kept
        assert kept.startswith(f"run {run} (") and " on node 1 (127.0.0.1) until " in kept
        assert any("not fetched" in note and "Is a directory" in note for note in receipt.notes)
        wait_until(lambda: left_there(home) == ["kept.node-1"], what="the end of the agent that was to hand it out")
        told = Ledger().pool(row.token).receipt
        assert told is not None and told["kept"] == [kept]
        place.rmdir()
        assert session.fetch(row.token).result(60)
    assert left_there(home) == []
    with pytest.raises(sky.RunError, match="lost it") as caught:
        sky.results(run)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_pool_that_its_own_client_leaves_keeps_nothing(home: Path) -> None:
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
    assert (compute.receipt.notes, compute.receipt.kept) == ((), ())


def test_down_names_what_nobody_has_fetched_and_asks_before_it_is_given_up(home: Path, cli: Cli) -> None:
    _, run = leave(home)
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
def test_results_come_from_the_hosts_of_a_pool_that_has_ended(home: Path, cli: Cli) -> None:
    _, run = leave(home, idle=0.5)
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
@pytest.mark.parametrize("size", [10, 300_000], ids=["small", "large"])
def test_results_come_from_the_nodes_of_a_pool_that_is_up_and_are_had_here_from_then_on(
    home: Path, cli: Cli, tmp_path: Path, size: int
) -> None:
    """Whoever waits for them on the pool, too, has them from the client's files."""
    _, run = leave(home, size=size)
    wait_until_unfetched(run)
    done = cli("results", run, "-o", f"{tmp_path}/all.pickle")
    fetched = [line for line in done.stderr.splitlines() if line.startswith(f"fetched run {run} (")]
    assert [line.partition(") ")[2] for line in fetched] == [f"from node {node} (127.0.0.1)" for node in (0, 1)]
    assert "fetched" not in cli("results", run).stderr
    values = [[0, bytes(size)], [1, bytes(size)]]
    assert sky.results(run) == values
    with sky.attach("left") as compute:
        assert compute.view.unfetched == {}
        assert compute.wait(run) == values
        receipt = compute.down()
    assert receipt.ok and receipt.kept == ()
    assert not [note for note in receipt.notes if "fetched" in note]
    assert left_there(home) == []
