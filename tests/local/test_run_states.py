"""Equal run states for all clients, in any order of events."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

import skyward_core as sky
from skyward_core.client import session as session_module
from skyward_core.client.run_history import RunSearch
from skyward_core.client.session import Session
from skyward_core.model.outcomes_states_and_alerts import RootCause
from skyward_core.pool import agent_link
from skyward_core.providers import provider_from_json
from skyward_core.store.ledger import Ledger
from skyward_core.store.receipts_and_bills import Receipt
from skyward_core.transport.background_loop import submit
from skyward_core.views.pool_view import PoolView
from tests.support.child import read_line
from tests.support.cli import Cli
from tests.support.forked_clients import script
from tests.support.ledger_runs import record_runs
from tests.support.waiting import wait_until


class Look(Session):
    def close(self) -> None:
        self.detach()


def wait_until_gone(name: str) -> None:
    """Wait for the end of a pool by its lease, which the ledger does not record."""
    with closing(Ledger()) as ledger:
        row = ledger.find_pool(name)
        assert row is not None
        machines = ledger.machines(row.token)

    def gone() -> bool:
        seen = submit(provider_from_json(row.provider).describe(name, machines)).result(60)
        return all(machine.state == "gone" for machine in seen)

    wait_until(gone, what="the end by the lease")


class Left:
    """Pool whose client was killed during a run, and that has ended by itself since.

    Its files can be restored, so that each command can be the first one to read them.
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
        wait_until_gone("left")
        shutil.copytree(self.home, folder / "as-it-was", symlinks=True)
        self._copy = folder / "as-it-was"

    def put_back(self) -> None:
        shutil.rmtree(self.home)
        shutil.copytree(self._copy, self.home, symlinks=True)


@pytest.fixture
def ended_pool(home: Path, tmp_path: Path) -> Left:
    return Left(tmp_path, "returns")


@pytest.fixture
def failed_pool(home: Path, tmp_path: Path) -> Left:
    return Left(tmp_path, "raises")


def test_api_calls_agree_about_runs_of_a_pool_that_ended_itself(ended_pool: Left) -> None:
    assert sky.results(ended_pool.run) == [[1, 2]]
    ended_pool.put_back()
    with pytest.raises(sky.PoolGone, match=r"pool left ended itself at .*idle for"):
        sky.attach("left")
    assert sky.results(ended_pool.run) == [[1, 2]]
    with pytest.raises(sky.PoolError, match="no pool named 'left' is up"):
        sky.attach("left")


def test_failed_run_of_a_pool_that_ended_itself_stays_failed(failed_pool: Left, cli: Cli) -> None:
    (rank,) = cli.json("results", failed_pool.run, status=1)["ranks"]
    assert rank["outcome"] == "raised"
    failed_pool.put_back()
    with pytest.raises(KeyError, match="lost it"):
        sky.results(failed_pool.run)
    failed_pool.put_back()
    cli("down", "left", "--yes")
    assert [run["state"] for run in cli.json("failures")["runs"]] == ["failed"]
    with pytest.raises(KeyError, match="lost it"):
        sky.results(failed_pool.run)


@sky.function
def both(fails: bool) -> int:
    rank = sky.instance_info().rank
    if fails and rank == 1:
        raise KeyError("lost it")
    return rank


def test_results_of_a_run_can_be_waited_for_only_once(home: Path) -> None:
    with sky.Compute(nodes=2, name="twice", options=sky.Options(console=False)), sky.attach("twice") as other:
        done = both(False).on_all(other)
        assert done.result() == [0, 1]
        failed = both(True).on_all(other)
        assert isinstance(failed.exception(), KeyError)
        for run in (done.run, failed.run):
            with pytest.raises(sky.PoolError, match=f"The results of run {run} were already fetched"):
                other.wait(run)
        with pytest.raises(sky.PoolError, match=f"the results of run {done.run} are not available"):
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


def test_run_state_is_unchanged_after_the_wait_of_another_client(home: Path) -> None:
    with script(home, LEFT_BEHIND) as client:
        assert client.stdout is not None
        done, failed = client.stdout.readline().split()
    with sky.attach("shared") as compute:
        assert compute.wait(done) == [0]
        with pytest.raises(sky.PoolError, match=f"The results of run {done} were already fetched"):
            compute.wait(done)
        with pytest.raises(KeyError, match="lost it"):
            compute.wait(failed)
        with pytest.raises(sky.PoolError, match=f"The results of run {failed} were already fetched"):
            compute.wait(failed)
        with pytest.raises(sky.PoolError, match=f"the results of run {done} are not available"):
            sky.results(done)
        with pytest.raises(KeyError, match="lost it"):
            sky.results(failed)
        compute.down()
    with pytest.raises(sky.PoolError, match=f"the results of run {done} are not available"):
        sky.results(done)
    with pytest.raises(KeyError, match="lost it"):
        sky.results(failed)


def test_failure_without_a_failed_call_is_reported_by_results(home: Path) -> None:
    cause = RootCause(-1, "lost", "PoolError", "its client, which supplied the items, has exited")
    with closing(Ledger()) as ledger:
        ledger.record_intent("t", "p", sky.Local().to_json(), {})
        opened = [("t", "abc", "f", "map", 2, 1.0)]
        record_runs(ledger, opened=opened, ends=[("abc", "failed", 2.0, cause)])
        ledger.record_teardown("t", Receipt("p", 0, (), (), 0.0))
    with pytest.raises(sky.RunError, match="f failed: its client, which supplied the items, has exited"):
        sky.results("abc")


def test_unresponsive_pool_does_not_delay_listing_of_others(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_link, "WELCOME", 600.0)
    monkeypatch.setattr(session_module, "PROBE_TIMEOUT", 0.05)
    options = sky.Options(console=False)

    def others_are_reached() -> bool:
        """Probe with increasing patience, because a busy machine may need long to reach a pool that answers."""
        monkeypatch.setattr(session_module, "PROBE_TIMEOUT", session_module.PROBE_TIMEOUT * 2)
        views[:] = session.probe_pools().result()
        return len(views) == 1

    views: list[PoolView] = []
    with (
        sky.Compute(nodes=1, name="fine", options=options),
        sky.Compute(nodes=1, name="stands", options=options) as stands,  # the newest is looked at first
    ):
        agent = stands.pool.links[0].welcome["pid"]
        os.kill(agent, signal.SIGSTOP)
        try:
            with closing(Look()) as session:
                wait_until(others_are_reached)
        finally:
            os.kill(agent, signal.SIGCONT)
    (view,) = views
    message = f"no answer within {session_module.PROBE_TIMEOUT:g} s"
    assert (view.name, view.state, view.detail) == ("stands", "unreachable", message)


OWNER = """
    @sky.function
    def ends(go, how):
        open(go + ".began", "x").close()
        while not os.path.exists(go):
            time.sleep(0.005)
        if how == "raises":
            raise KeyError("lost it")
        return how

    compute = sky.attach("model")
    future = ends({go!r}, {how!r}) > compute
    while not os.path.exists({go!r} + ".began"):
        time.sleep(0.005)
    print(future.run, flush=True)
    if {detaches}:
        compute.detach()
    error = future.exception()
    print("KeyError" if isinstance(error, KeyError) else type(error).__name__, flush=True)
    compute.detach()
"""


@dataclass(eq=False)
class Modelled:
    """Expected state of a run.

    Attributes:
        owner: Client that waits for the run; None after it has detached or was killed.
        state: Expected state in the ledger.
        place: Place of the result or exception: "nodes", "files" of this machine, or "given" to a client.
    """

    run: str
    how: str
    go: Path
    owner: subprocess.Popen[str] | None
    state: str = "running"
    place: str = "nodes"

    @property
    def end(self) -> str:
        return "failed" if self.how == "raises" else "done"


class RunStates(RuleBasedStateMachine):
    """Pool with one rank. Its clients attach, detach and are killed, and its runs follow one another."""

    runs = Bundle("runs")

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.folder = Path(tempfile.mkdtemp())
        self.home = self.folder / "home"
        self.patch.setenv("SKYWARD_HOME", str(self.home))
        self.patch.setattr(session_module, "PROBE_TIMEOUT", 60.0)  # its pool answers, or has ended
        self.all: list[Modelled] = []
        self.holder: Session | None = Session()  # as long as it is there, the pool does not end itself
        options = sky.Options(console=False, grace=0.5, idle_timeout=0.5)
        spec = sky.PoolSpec(name="model", provider=sky.Local(), nodes=1, options=options)
        self.key = self.holder.create(spec).result(60).key
        self.up = True

    def teardown(self) -> None:
        for each in self.all:
            self._leaves(each)
        if self.up:
            self.down()
        if self.holder is not None:
            self.holder.detach()
        self.patch.undo()
        shutil.rmtree(self.folder)

    def _leaves(self, run: Modelled) -> None:
        if run.owner is not None:
            run.owner.kill()
            run.owner.communicate()
            run.owner = None

    @property
    def running(self) -> Modelled | None:
        return next((each for each in self.all if each.state == "running"), None)

    @precondition(lambda self: self.up and self.running is None)
    @rule(target=runs, how=st.sampled_from(["returns", "raises"]), detaches=st.booleans())
    def start(self, how: str, detaches: bool) -> Modelled:
        go = self.folder / f"go{len(self.all)}"
        owner = script(self.home, OWNER.format(go=str(go), how=how, detaches=detaches))
        run = Modelled(read_line(owner), how, go, owner)
        self.all.append(run)
        if detaches:
            assert read_line(owner) == "PoolError"
            owner.communicate()
            run.owner = None
        return run

    @precondition(lambda self: self.running is not None)
    @rule()
    def kill_its_client(self) -> None:
        assert self.running is not None
        self._leaves(self.running)

    @precondition(lambda self: self.running is not None)
    @rule()
    def finish(self) -> None:
        run = self.running
        assert run is not None and self.holder is not None
        run.go.touch()
        if run.owner is not None:
            assert read_line(run.owner) == ("NoneType" if run.how == "returns" else "KeyError")
            run.owner.communicate()
            run.owner, run.place = None, "given"
        self.holder.wait(self.key, run.run).result(60)
        run.state = run.end

    @precondition(lambda self: self.running is not None)
    @rule()
    def cancel(self) -> None:
        run = self.running
        assert run is not None and self.holder is not None
        self.holder.cancel(self.key, run.run).result(60)
        if run.owner is not None:
            assert read_line(run.owner) == "Cancelled"
            run.owner.communicate()
            run.owner, run.place = None, "given"
        self.holder.wait(self.key, run.run).result(60)
        run.state = "cancelled"

    @precondition(lambda self: self.up)
    @rule()
    def end_by_its_lease(self) -> None:
        """Kill or detach all clients. The active run ends while no client is connected."""
        assert self.holder is not None
        running = self.running
        if running is not None:
            self._leaves(running)
        self.holder.detach()
        self.holder, self.up = None, False
        if running is not None:
            running.go.touch()
            running.state = running.end
        wait_until_gone("model")

    @precondition(lambda self: self.up)
    @rule()
    def down(self) -> None:
        running = self.running
        with closing(Look()) as other:
            assert other.tear_down("model").result(60).ok
        self.up = False
        for each in self.all:
            self._leaves(each)
            if each.place == "nodes":
                each.place = "files"
        if running is not None:
            running.state = "cancelled"

    @precondition(lambda self: self.up)
    @rule(run=runs)
    def wait(self, run: Modelled) -> None:
        if run.state == "running":
            return
        with sky.attach("model") as compute:
            if run.place == "given":
                with pytest.raises(sky.PoolError, match=f"The results of run {run.run} were already fetched"):
                    compute.wait(run.run)
                return
            self._check(run, lambda: compute.wait(run.run))
        if run.place == "nodes":
            run.place = "given"

    @precondition(lambda self: not self.up)
    @rule()
    def attach(self) -> None:
        with pytest.raises(sky.PoolError, match=r"pool model ended itself|no pool named 'model' is up"):
            sky.attach("model")

    @rule(run=runs)
    def results(self, run: Modelled) -> None:
        if self.up and (run.state == "running" or (run.place == "nodes" and run.state != "cancelled")):
            with pytest.raises(sky.PoolError, match=r"pool model is up\. .*sky\.attach\('model'\)\.wait"):
                sky.results(run.run)
            return
        if not self.up and run.place == "nodes":
            run.place = "files"
        if run.state == "cancelled":
            with pytest.raises(sky.PoolError, match="it ended as"):
                sky.results(run.run)
        elif run.how == "returns" and run.place == "given":
            with pytest.raises(sky.PoolError, match=f"the results of run {run.run} are not available"):
                sky.results(run.run)
        else:
            self._check(run, lambda: sky.results(run.run))

    @rule(run=runs)
    def fetch(self, run: Modelled) -> None:
        """Fetch results, as the command ``results`` does."""
        with closing(Look()) as session:
            session.probe_pools().result(60)
            row = session.ledger.run(run.run)
            assert row is not None
            (session.fetch_run(run.run) if self.up else session.fetch(row.token)).result(60)
        if run.place == "nodes" and run.state not in ("running", "cancelled"):
            run.place = "files"

    @rule()
    def history(self) -> None:
        with closing(Look()) as session:
            session.probe_pools().result(60)
            found = {run.run: run.state for run in session.past_runs(RunSearch()).result(60) if run.run}
            failed = {run.run for run in session.failures().result(60)}
        for each in self.all:
            state = found.pop(each.run)
            assert state == each.state or (state == "kept" and each.place == "nodes" and not self.up)
            assert (each.run in failed) == (state == "failed")
        assert not found

    def _check(self, run: Modelled, values: Callable[[], list[Any]]) -> None:
        if run.state == "cancelled":
            with pytest.raises(sky.Cancelled):
                values()
        elif run.how == "raises":
            with pytest.raises(KeyError, match="lost it"):
                values()
        else:
            assert values() == ["returns"]


def test_all_clients_report_equal_run_states_in_any_order_of_events(proofs: bool) -> None:
    count = 60 if proofs else 3
    # An example takes half a second: a failure is shown as it was found.
    phases = (Phase.reuse, Phase.generate)
    run_state_machine_as_test(RunStates, settings=settings(max_examples=count, stateful_step_count=15, phases=phases))
