"""The state of a run is the same whoever asks, in whichever order, and whatever has happened to its pool."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.model.outcome import RootCause
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import Receipt
from tests.support.cli import Cli
from tests.support.forked_clients import script
from tests.support.waiting import wait_until


class Left:
    """A pool whose client was killed during a run, and that has ended itself since.

    Its files can be put back to what they were then: each command can be the first one that reads them.
    """

    def __init__(self, folder: Path, how: str) -> None:
        self.home = folder / "home"
        go = folder / "go"
        text = f"""
            import sys, time
            from pathlib import Path

            @sky.function
            def returns(go):
                print("before", flush=True)
                while not Path(go).exists():
                    time.sleep(0.01)
                print("after", flush=True)
                return [1, 2]

            @sky.function
            def raises(go):
                returns.fn(go)
                raise KeyError("lost it")

            options = sky.Options(console=False, idle_timeout=0.3)
            with sky.Compute(nodes=1, name="left", options=options) as compute:
                future = {how}({str(go)!r}) > compute
                print(future.run, flush=True)
                future.result()
        """
        with script(self.home, text) as client:
            assert client.stdout is not None
            self.run = client.stdout.readline().strip()
            with closing(Ledger()) as ledger:
                wait_until(lambda: ledger.run(self.run), what="the run's row in the ledger")
            client.kill()
        go.touch()
        wait_until(lambda: not list(self.home.glob("local/*/node-*")), what="the end by the lease")
        shutil.copytree(self.home, folder / "as-it-was", symlinks=True)
        self._copy = folder / "as-it-was"

    def put_back(self) -> None:
        shutil.rmtree(self.home)
        shutil.copytree(self._copy, self.home, symlinks=True)


@pytest.fixture
def left(home: Path, tmp_path: Path) -> Left:
    return Left(tmp_path, "returns")


@pytest.fixture
def failed(home: Path, tmp_path: Path) -> Left:
    return Left(tmp_path, "raises")


def test_each_command_is_right_about_a_pool_that_ended_itself(left: Left, cli: Cli) -> None:
    def outcomes() -> list[str]:
        return [rank["outcome"] for rank in cli.json("results", left.run)["ranks"]]

    assert outcomes() == ["returned"]
    left.put_back()
    assert cli("logs", left.run).stdout == "r000| before\nr000| after\n"
    left.put_back()
    assert [(run["run"], run["state"]) for run in cli.json("history")["runs"]] == [(left.run, "kept")]
    left.put_back()
    assert cli.json("failures")["runs"] == []
    assert [run["state"] for run in cli.json("history")["runs"]] == ["kept"]
    left.put_back()
    cli("down", "left", "--yes")
    assert outcomes() == ["returned"]
    assert cli.json("failures")["runs"] == []


def test_each_call_is_right_about_a_pool_that_ended_itself(left: Left) -> None:
    assert sky.results(left.run) == [[1, 2]]
    left.put_back()
    with pytest.raises(sky.PoolGone, match=r"pool left ended itself at .*nobody used it"):
        sky.attach("left")
    assert sky.results(left.run) == [[1, 2]]
    with pytest.raises(sky.PoolError, match="no pool named 'left' is up"):
        sky.attach("left")


def test_a_failed_run_of_a_pool_that_ended_itself_is_failed(failed: Left, cli: Cli) -> None:
    (rank,) = cli.json("results", failed.run, status=1)["ranks"]
    assert rank["outcome"] == "raised"
    failed.put_back()
    with pytest.raises(KeyError, match="lost it"):
        sky.results(failed.run)
    failed.put_back()
    cli("down", "left", "--yes")
    assert [run["state"] for run in cli.json("failures")["runs"]] == ["failed"]
    with pytest.raises(KeyError, match="lost it"):
        sky.results(failed.run)


@sky.function
def both(fails: bool) -> int:
    rank = sky.instance_info().rank
    if fails and rank == 1:
        raise KeyError("lost it")
    return rank


def test_a_run_is_waited_for_once(home: Path) -> None:
    with sky.Compute(nodes=2, name="twice", options=sky.Options(console=False)), sky.attach("twice") as other:
        done = both(False).on_all(other)
        assert done.result() == [0, 1]
        failed = both(True).on_all(other)
        assert isinstance(failed.exception(), KeyError)
        for run in (done.run, failed.run):
            with pytest.raises(sky.PoolError, match=f"the results of run {run} have been fetched before"):
                other.wait(run)
        with pytest.raises(sky.PoolError, match=f"the results of run {done.run} were given to the client"):
            sky.results(done.run)
        with pytest.raises(KeyError, match="lost it"):
            sky.results(failed.run)


LEFT_BEHIND = """
    @sky.function
    def both(fails):
        time.sleep(0.3)
        if fails:
            raise KeyError("lost it")
        return sky.instance_info().rank

    with sky.Compute(nodes=1, name="shared", options=sky.Options(console=False)) as compute:
        done = both(False).on_all(compute)
        failed = both(True).on_all(compute)
        print(done.run, failed.run, flush=True)
        os.kill(os.getpid(), 9)
"""


def test_after_another_clients_wait_the_run_says_the_same(home: Path) -> None:
    with script(home, LEFT_BEHIND) as client:
        assert client.stdout is not None
        done, failed = client.stdout.readline().split()
    with sky.attach("shared") as compute:
        assert compute.wait(done) == [0]
        with pytest.raises(sky.PoolError, match=f"the results of run {done} have been fetched before"):
            compute.wait(done)
        with pytest.raises(KeyError, match="lost it"):
            compute.wait(failed)
        with pytest.raises(sky.PoolError, match=f"the results of run {failed} have been fetched before"):
            compute.wait(failed)
        with pytest.raises(sky.PoolError, match=f"the results of run {done} were given to the client"):
            sky.results(done)
        with pytest.raises(KeyError, match="lost it"):
            sky.results(failed)
        compute.down()
    with pytest.raises(sky.PoolError, match=f"the results of run {done} were given to the client"):
        sky.results(done)
    with pytest.raises(KeyError, match="lost it"):
        sky.results(failed)


def test_a_failure_that_belongs_to_no_call_is_reported(home: Path) -> None:
    cause = RootCause(-1, "lost", "PoolError", "its client is gone, who gave it its items")
    with closing(Ledger()) as ledger:
        ledger.intend("t", "p", sky.Local().to_json(), {})
        opened = [("t", "abc", "f", "map", 2, 1.0)]
        ledger.record(opened=opened, ends=[("abc", "failed", 2.0, cause)])
        ledger.ended("t", Receipt("p", 0, (), (), 0.0))
    with pytest.raises(sky.RunError, match="f failed: its client is gone, who gave it its items"):
        sky.results("abc")
