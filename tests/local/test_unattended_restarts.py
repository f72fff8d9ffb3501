"""Restarts of runs whose client is away: killed, cut off, or back in the middle of a restart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.api.attach_and_results import Attached
from skyward_core.client.run_history import past_run
from skyward_core.model.errors import RunError
from skyward_core.store.ledger import Ledger
from skyward_core.transport.background_loop import submit
from tests.support.child import child, read_line
from tests.support.cli import begun
from tests.support.faults import on_loop
from tests.support.loss import cut
from tests.support.pool_logs import last_run, log_of
from tests.support.waiting import wait_until


@sky.function
def work(folder: str) -> tuple[int, str, str]:
    """Wait for the file ``end``. Return the attempt as Python code and scripts see it."""
    path, number, rank = Path(folder), sky.attempt().number, sky.instance_info().rank
    print(f"attempt {number}", flush=True)
    sky.log(step=number)
    (path / f"new{rank}").write_text(str(os.getpid()))
    (path / f"new{rank}").rename(path / f"{number}.{rank}")
    while not (path / "end").exists():
        time.sleep(0.01)
    return number, os.environ["SKYWARD_ATTEMPT"], os.environ["TORCHELASTIC_RESTART_COUNT"]


CLIENT = """
import sys
import skyward_core as sky
from tests.local.test_unattended_restarts import work

smaller = ":" in sys.argv[3]
options = sky.Options(
    console=False, on_loss="restart", restarts=int(sys.argv[2]), grace=0.5, restart_smaller=smaller
)
with sky.Compute(nodes=sys.argv[3] if smaller else int(sys.argv[3]), name="shared", options=options) as compute:
    work(sys.argv[1]) @ compute
"""


def wait_for_attempt(folder: Path, number: int, ranks: int = 2) -> None:
    wait_until(lambda: len(list(folder.glob(f"{number}.?"))) == ranks, what=f"attempt {number}")


def kill_rank(folder: Path, number: int, rank: int) -> None:
    os.kill(int((folder / f"{number}.{rank}").read_text()), signal.SIGKILL)


DIES = "import os\nfrom skyward_core.pool.runs.run import Run\nRun._end = lambda run: os._exit(1)\n"


@contextmanager
def client_of_run(
    folder: Path, restarts: int = 3, first: str = "", nodes: str = "2"
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``work`` by a client that is killed at the end of the block. ``first``: code that it runs before."""
    with subprocess.Popen([sys.executable, "-c", first + CLIENT, str(folder), str(restarts), nodes]) as client:
        try:
            wait_for_attempt(folder, 1, int(nodes[-1]))
            yield client
        finally:
            client.kill()


def test_run_of_a_killed_client_restarts_and_the_next_client_gets_all_of_it(home: Path, tmp_path: Path) -> None:
    with client_of_run(tmp_path):
        pass
    kill_rank(tmp_path, 1, 1)
    wait_for_attempt(tmp_path, 2)
    kill_rank(tmp_path, 2, 0)  # of the head, which decides
    wait_for_attempt(tmp_path, 3)
    with sky.attach("shared") as compute:
        try:
            run = compute.runs[0]
            ends = [(end.number, end.cause, end.step, end.reason) for end in run.ended_attempts]
            reason = "restart {} of 3 after a lost rank"
            assert ends == [(1, "loss", 1.0, reason.format(1)), (2, "loss", 2.0, reason.format(2))]
            assert (run.state, run.attempt) == ("running", 3)
            with ThreadPoolExecutor() as beside:
                waiting = beside.submit(compute.wait, run.id)
                try:
                    wait_until(lambda: run.id in compute.pool.context.registry.runs)
                    kill_rank(tmp_path, 3, 1)  # this client decides
                    wait_for_attempt(tmp_path, 4)
                finally:
                    (tmp_path / "end").touch()
                assert waiting.result(30) == [(4, "4", "3")] * 2
            wait_until(lambda: compute.runs[0].state == "done")
            on_loop(compute.pool.context.news.records.flush)
            row = Ledger().run(run.id)
            assert row is not None
            assert (row.state, row.attempts) == ("done", 4)
            assert [outcome.kind for outcome, _ in Ledger().outcomes(run.id)] == ["returned"] * 2
            for rank in range(2):
                assert log_of(compute, run.id, rank) == b"attempt 1\nattempt 2\nattempt 3\nattempt 4\n"  # type: ignore[arg-type]
        finally:
            receipt = compute.down()
    assert receipt.ok


def test_client_and_head_share_the_budget_of_restarts(home: Path, tmp_path: Path) -> None:
    with client_of_run(tmp_path, restarts=2):
        kill_rank(tmp_path, 1, 1)
        wait_for_attempt(tmp_path, 2)
    kill_rank(tmp_path, 2, 1)
    wait_for_attempt(tmp_path, 3)
    kill_rank(tmp_path, 3, 1)
    with sky.attach("shared") as compute:
        try:
            with pytest.raises(RunError, match="SIGKILL"):
                compute.wait(compute.runs[0].id)
            wait_until(lambda: compute.runs[0].state == "failed")
            assert compute.runs[0].attempt == 3
            assert not (tmp_path / "4.0").exists()
        finally:
            compute.down()


def test_client_that_dies_with_all_outcomes_leaves_the_decision_to_the_head(home: Path, tmp_path: Path) -> None:
    with client_of_run(tmp_path, first=DIES) as client:
        kill_rank(tmp_path, 1, 1)
        assert client.wait(30) == 1
    with sky.attach("shared") as compute, ThreadPoolExecutor() as beside:
        try:
            waiting = beside.submit(compute.wait)  # the head has not decided yet
            try:
                wait_for_attempt(tmp_path, 2)
            finally:
                (tmp_path / "end").touch()
            assert waiting.result(30) == [(2, "2", "1")] * 2
        finally:
            compute.down()


DIES_LISTING = """
import os
from skyward_core.pool.checkpoint_copies import CheckpointCopies
from skyward_core.views.rank_metrics_and_progress import MetricStore
MetricStore.max_step = lambda store, run: None  # the client sees no progress, so it lists the checkpoints
CheckpointCopies.has_saved_since = lambda *_: os._exit(1)
"""


def test_client_that_dies_while_it_lists_checkpoints_leaves_the_decision_to_the_head(
    home: Path, tmp_path: Path
) -> None:
    with client_of_run(tmp_path, first=DIES_LISTING) as client:
        kill_rank(tmp_path, 1, 1)
        wait_for_attempt(tmp_path, 2)
        kill_rank(tmp_path, 2, 1)
        assert client.wait(30) == 1
    with sky.attach("shared") as compute, ThreadPoolExecutor() as beside:
        try:
            waiting = beside.submit(compute.wait)
            try:
                wait_for_attempt(tmp_path, 3)
            finally:
                (tmp_path / "end").touch()
            assert waiting.result(30) == [(3, "3", "2")] * 2
        finally:
            compute.down()


def known_agent() -> int:
    """Return the process of the agent of node 1 once its heartbeats have reached the head.

    Before, the head cannot tell its death from a firewall that refuses connections.
    """
    with sky.attach("shared") as compute:
        head, other = compute.pool.links[:2]
        for link, watched in ((head, "1"), (other, "0")):
            wait_until(lambda: watched in submit(link.ask({"t": "heartbeats"})).result()[0]["silences"])  # noqa: B023
        return int(other.welcome["pid"])


def kill_agent_and_rank(folder: Path, number: int, agent: int) -> None:
    """Kill the agent of node 1, then rank 2, so that only a client can restart a run on three nodes."""
    os.kill(agent, signal.SIGKILL)
    kill_rank(folder, number, 2)


@contextmanager
def run_without_client_or_agent(folder: Path, nodes: str) -> Iterator[Attached]:
    """Kill the client of a run on three nodes, then the agent of node 1, then rank 2. Return the next client."""
    with client_of_run(folder, nodes=nodes):
        agent = known_agent()
    kill_agent_and_rank(folder, 1, agent)
    if ":" in nodes:
        wait_for_attempt(folder, 2)
    with sky.attach("shared") as compute:
        try:
            yield compute
        finally:
            (folder / "end").touch()
            compute.down()


def test_run_whose_agent_died_goes_on_with_fewer_nodes(home: Path, tmp_path: Path) -> None:
    """The ranks of the dead agent's node go on alone. The next client sees two of three nodes, and both results."""
    with run_without_client_or_agent(tmp_path, "2:3") as compute, ThreadPoolExecutor() as beside:
        run = compute.runs[0]
        assert (run.attempt, run.nodes, run.total) == (2, (0, 2), 2)
        waiting = beside.submit(compute.wait, run.id)
        try:
            wait_until(lambda: run.id in compute.pool.context.registry.runs)
        finally:
            (tmp_path / "end").touch()
        assert waiting.result(30) == [(2, "2", "1")] * 2
        on_loop(compute.pool.context.news.records.flush)
        row = Ledger().run(run.id)
        assert row is not None and past_run(Ledger(), row).note.startswith("2 attempts; on 2 of 3 nodes")
        assert "on 2 of 3 nodes, because node 1 is lost: its agent has ended" in run.ended_attempts[0].reason


def test_smaller_run_grows_when_the_next_client_waits_for_it(home: Path, tmp_path: Path) -> None:
    """The client starts an agent on the node that the run has left."""
    with run_without_client_or_agent(tmp_path, "2:3") as compute, ThreadPoolExecutor() as beside:
        run = compute.runs[0]
        waiting = beside.submit(compute.wait, run.id)
        try:
            run.checkpoint_at = time.time()
            wait_for_attempt(tmp_path, 3, 3)
        finally:
            (tmp_path / "end").touch()
        assert waiting.result(30) == [(3, "3", "2")] * 3
        assert [end.cause for end in run.ended_attempts] == ["loss", "growth"]


@pytest.mark.proof("4 s of a processor")
def test_next_client_continues_the_run_that_only_a_client_can_restart(home: Path, tmp_path: Path) -> None:
    with run_without_client_or_agent(tmp_path, "3") as compute, ThreadPoolExecutor() as beside:
        wait_for_attempt(tmp_path, 2, 3)
        run = compute.runs[0]
        waiting = beside.submit(compute.wait, run.id)
        try:
            wait_until(lambda: not compute.pool.context.registry.runs[run.id].is_retained)
        finally:
            (tmp_path / "end").touch()
        assert waiting.result(30) == [(2, "2", "1")] * 3
        assert [(end.number, end.reason) for end in run.ended_attempts] == [(1, "restart 1 of 3 after a lost rank")]
        wait_until(lambda: compute.runs[0].state == "done")
        on_loop(compute.pool.context.news.records.flush)
        row = Ledger().run(run.id)
        assert row is not None and (row.state, row.attempts) == ("done", 2)
        assert past_run(Ledger(), row).note.startswith("2 attempts")


@pytest.mark.proof("1.5 s of a processor", after=1)
@pytest.mark.parametrize("killed", ["between both attempts", "in the second attempt", "never"])
def test_waiting_client_follows_the_restarts_of_the_client_of_the_run(home: Path, tmp_path: Path, killed: str) -> None:
    """A second client gets the results of the last attempt, and decides from the death of the first one on."""
    first = DIES if killed == "between both attempts" else ""
    with (
        client_of_run(tmp_path, first=first) as client,
        sky.attach("shared") as compute,
        ThreadPoolExecutor() as beside,
    ):
        run, registry = compute.runs[0].id, compute.pool.context.registry
        waiting = beside.submit(compute.wait, run)
        try:
            wait_until(lambda: run in registry.runs)
            kill_rank(tmp_path, 1, 1)
            wait_for_attempt(tmp_path, 2)
            if killed == "in the second attempt":
                client.kill()
                client.wait()
                wait_until(lambda: registry.runs[run].is_adopted)
                kill_rank(tmp_path, 2, 0)
                wait_for_attempt(tmp_path, 3)
        finally:
            (tmp_path / "end").touch()
        number = 3 if killed == "in the second attempt" else 2
        assert waiting.result(30) == [(number, str(number), str(number - 1))] * 2
        assert [(end.number, end.cause) for end in compute.runs[0].ended_attempts][-1] == (number - 1, "loss")
        if killed == "never":
            assert client.wait(30) == 0
        else:
            compute.down()


@pytest.mark.proof("1.5 s of a processor")
def test_waiting_client_gets_the_failure_that_the_client_of_the_run_gets(home: Path, tmp_path: Path) -> None:
    with client_of_run(tmp_path, restarts=0) as client, sky.attach("shared") as compute, ThreadPoolExecutor() as beside:
        run = compute.runs[0].id
        waiting = beside.submit(compute.wait, run)
        wait_until(lambda: run in compute.pool.context.registry.runs)
        kill_rank(tmp_path, 1, 1)
        with pytest.raises(RunError, match="SIGKILL"):
            waiting.result(30)
        assert client.wait(30) == 1


ADOPTS = """
import asyncio, sys, time
import skyward_core as sky
from skyward_core.pool.runs.run_registry_claims_and_frames import RunRegistry

async def adopt(self, run):
    print("takes over", flush=True)
    await asyncio.Event().wait()

if sys.argv[1] == "takes over":
    RunRegistry._adopt = adopt
pool = sky.attach("shared").pool
while "2" not in str([run.attempt for run in pool.view.runs.values()]):
    time.sleep(0.01)
print("has restarted it", flush=True)
sys.stdin.readline()
"""


@pytest.mark.proof("3 s of a processor", after=1)
@pytest.mark.parametrize("state", ["takes over", "has restarted it"])
def test_second_waiting_client_takes_over_if_the_first_one_dies(home: Path, tmp_path: Path, state: str) -> None:
    """The first client dies while it takes over a waiting run, or in the attempt that it has started."""
    with client_of_run(tmp_path, nodes="3"):
        agent = known_agent()
    kill_agent_and_rank(tmp_path, 1, agent)
    with child(ADOPTS, state) as first:
        while read_line(first) != state:
            pass
        if state == "has restarted it":
            wait_for_attempt(tmp_path, 2, 3)
        with sky.attach("shared") as compute, ThreadPoolExecutor() as beside:
            run, registry = compute.runs[0].id, compute.pool.context.registry
            waiting = beside.submit(compute.wait, run)
            try:
                wait_until(lambda: run in registry.runs)
                assert registry.runs[run].awaits_decision
                first.kill()
                first.wait()
                wait_for_attempt(tmp_path, 2, 3)
                wait_until(lambda: registry.runs[run].is_adopted)
            finally:
                (tmp_path / "end").touch()
            assert waiting.result(30) == [(2, "2", "1")] * 3
            compute.down()


def test_attach_command_continues_a_waiting_run(home: Path, tmp_path: Path) -> None:
    """The first command continues the run and is killed. The second one only watches until the run waits again."""
    with client_of_run(tmp_path, nodes="3"):
        agent = known_agent()
    kill_agent_and_rank(tmp_path, 1, agent)
    with begun("attach", "shared") as first:
        wait_for_attempt(tmp_path, 2, 3)
        with begun("attach", "shared", "--json") as second:
            assert second.stderr is not None and "on 3 ranks" in second.stderr.readline()
            agent = known_agent()
            first.kill()
            kill_agent_and_rank(tmp_path, 2, agent)
            try:
                wait_for_attempt(tmp_path, 3, 3)
            finally:
                (tmp_path / "end").touch()
            out, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    run = json.loads(out.splitlines()[-1])
    assert [(end["number"], end["restarts"]) for end in run["attempts"]] == [(1, True), (2, True)]
    assert (run["attempt"], run["root_cause"], "restart 2 of 3 after a lost rank" in err) == (3, None, True)
    with sky.attach("shared") as compute:
        compute.down()


@pytest.mark.parametrize("seconds", [None, 0.0, 2.0, 3.0, 4.0])
@pytest.mark.proof("5 s of a processor", after=1)
def test_client_that_was_cut_off_continues_with_the_attempt_of_the_agents(
    home: Path, tmp_path: Path, seconds: float | None
) -> None:
    """The connections return after the restart, or a few seconds after the failure: exactly one side decides."""
    options = sky.Options(console=False, grace=0.5, on_loss="restart", restarts=3)
    with sky.Compute(nodes=2, options=options) as compute, ThreadPoolExecutor() as beside:
        running = beside.submit(lambda: work(str(tmp_path)) @ compute)
        try:
            wait_for_attempt(tmp_path, 1)
            sockets = [cut(link) for link in compute.pool.links]
            kill_rank(tmp_path, 1, 1)
            if seconds is None:
                wait_for_attempt(tmp_path, 2)
            else:
                time.sleep(seconds)
            for link, path in zip(compute.pool.links, sockets, strict=True):
                on_loop(lambda link=link, path=path: setattr(link.transport, "socket", path))  # type: ignore[misc]
            wait_for_attempt(tmp_path, 2)
            kill_rank(tmp_path, 2, 0)  # the client decides about this one, if it is connected by then
            wait_for_attempt(tmp_path, 3)
        finally:
            (tmp_path / "end").touch()
        assert running.result(30) == [(3, "3", "2")] * 2
        run = last_run(compute)
        wait_until(lambda: compute.pool.view.runs[run].state == "done")
        view = compute.pool.view.runs[run]
        assert [(end.number, end.cause) for end in view.ended_attempts] == [(1, "loss"), (2, "loss")]
        assert log_of(compute, run, 0) == b"attempt 1\nattempt 2\nattempt 3\n"
        assert {number for number, *_ in work(str(tmp_path)) @ compute} == {1}
