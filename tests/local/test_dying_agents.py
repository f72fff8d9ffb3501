"""An agent that is killed, or freezes, or whose folder is removed: what becomes of its workers and their calls."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.runtime.instance_info import set_phase
from skyward_core.transport.background_loop import submit
from tests.support.child import read_line
from tests.support.faults import agent_pids, remove, worker_pids
from tests.support.forked_clients import script
from tests.support.processes import descendants, exists
from tests.support.waiting import wait_until

QUIET = sky.Options(console=False)


@sky.function
def rank() -> int:
    return sky.instance_info().rank


def test_an_agent_whose_folder_is_removed_ends(home: Path) -> None:
    client = script(
        home,
        """
        with sky.Compute(nodes=1, options=sky.Options(console=False)) as c:
            print(c.pool.links[0].welcome["pid"], c.pool.context.machines[0].extra["folder"], flush=True)
            time.sleep(600)
        """,
    )
    pid, folder = read_line(client).split()
    workers = descendants(int(pid))
    client.kill()
    client.wait()
    remove(Path(folder).parent)
    wait_until(lambda: not exists(int(pid)), what="the agent's end")
    assert not any(exists(worker) for worker in workers)


def test_a_killed_agent_is_followed_by_one_that_adopts_its_workers(home: Path, tmp_path: Path) -> None:
    def work() -> tuple[int, int]:
        rank = sky.instance_info().rank
        for i in range(3):
            print("before", i)
        (tmp_path / f"working-{rank}").touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        for i in range(3):
            print("after", i)
        return rank, os.getpid()

    with sky.Compute(nodes=2, options=QUIET) as compute:
        workers = worker_pids(compute)
        agents = agent_pids(compute)
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(lambda: sky.function(work)() @ compute)
            wait_until(lambda: len(list(tmp_path.glob("working-*"))) == 2)
            os.kill(agents[1], signal.SIGKILL)
            wait_until(lambda: agent_pids(compute)[1] != agents[1], what="a new agent")
            (tmp_path / "go").touch()
            results = running.result(90)
        assert [rank for rank, _ in results] == [0, 1]
        assert sorted(pid for _, pid in results) == workers, "the workers went on, none was started anew"
        lines = [f"{word} {i}" for word in ("before", "after") for i in range(3)]
        wait_until(lambda: compute.pool.view.logs.rank(1).lines(0, 99) == lines)
        assert rank() @ compute == [0, 1]
        assert compute.pool.view.state == "up"
    assert compute.receipt is not None
    assert compute.receipt.ok
    assert not any(exists(pid) for pid in workers)


def test_an_agent_killed_with_its_worker_reports_the_call_it_lost(home: Path, tmp_path: Path) -> None:
    def hang() -> None:
        (tmp_path / f"hangs-{sky.instance_info().rank}").touch()
        time.sleep(600)

    with sky.Compute(nodes=2, options=QUIET) as compute:
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(lambda: sky.function(hang)() @ compute)
            wait_until(lambda: len(list(tmp_path.glob("hangs-*"))) == 2)
            agent = agent_pids(compute)[0]
            for pid in [agent, *descendants(agent)]:  # it must not tell of its worker's end before its own
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(sky.RunError, match="rank 0") as caught:
                running.result(90)
        assert caught.value.outcomes[0].kind == "exited"
        assert rank() @ compute == [0, 1]


def test_a_broadcast_waits_for_the_new_agent_of_a_head_that_lost_its_own(home: Path) -> None:
    with sky.Compute(nodes=2, options=QUIET) as compute:
        assert rank() @ compute == [0, 1]
        head = compute.pool.links[0]
        (agent, _) = agent_pids(compute)
        for pid in [*descendants(agent), agent]:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not head.up or head.welcome["pid"] != agent, what="the link's end")
        assert rank() @ compute == [0, 1]
        assert agent_pids(compute)[0] != agent


def test_a_frozen_agent_is_shown_and_goes_on_where_it_was(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyward_core.pool.agent_link.SILENCE", 0.4)
    with sky.Compute(nodes=2, options=QUIET) as compute:
        node = compute.pool.view.nodes[1]
        os.kill(agent_pids(compute)[1], signal.SIGSTOP)
        try:
            wait_until(lambda: node.link_up is False, what="the news that the agent does not answer")
            assert "no answer" in node.link_detail
            running = rank() > compute  # may well go to the frozen node: it waits there
        finally:
            os.kill(agent_pids(compute)[1], signal.SIGCONT)
        wait_until(lambda: node.link_up is True)
        assert running.result(90) in (0, 1)
        assert rank() @ compute == [0, 1]


def test_a_frozen_agent_that_goes_on_changes_no_phase_of_its_ranks(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyward_core.pool.agent_link.SILENCE", 0.4)

    def prepares() -> None:
        set_phase("joining")
        while not (tmp_path / "go").exists():
            time.sleep(0.01)

    def phases() -> list[str]:
        return [phase for phase, _ in compute.pool.view.rank_phases.values()]

    with sky.Compute(nodes=1, options=QUIET) as compute:
        view, (agent,) = compute.pool.view, agent_pids(compute)
        running = sky.function(prepares)() > compute
        wait_until(lambda: phases() == ["joining"])  # of which the agent's greeting told nothing
        os.kill(agent, signal.SIGSTOP)
        try:
            wait_until(lambda: view.nodes[0].link_up is False, what="the news that the agent does not answer")
        finally:
            os.kill(agent, signal.SIGCONT)
        wait_until(lambda: view.nodes[0].link_up is True)
        submit(compute.pool.links[0].ask({"t": "ping"})).result(60)  # what was done with that news is done
        assert phases() == ["joining"]
        (tmp_path / "go").touch()
        running.result(90)


@pytest.mark.parametrize("stays", [False, True], ids=["stopped", "stopped for good"])
def test_a_frozen_agent_is_ended_from_outside(home: Path, monkeypatch: pytest.MonkeyPatch, stays: bool) -> None:
    monkeypatch.setattr("skyward_core.pool.teardown.AGENT_SILENCE_TIMEOUT", 0.5)
    over = threading.Event()
    with sky.Compute(nodes=2, options=QUIET) as compute:
        pids = [agent_pids(compute)[1], *worker_pids(compute)]

        def freeze() -> None:
            while not over.is_set() and exists(pids[0]):
                with suppress(ProcessLookupError):
                    os.kill(pids[0], signal.SIGSTOP)
                time.sleep(0.001)

        holder = threading.Thread(target=freeze)
        os.kill(pids[0], signal.SIGSTOP)
        if stays:
            holder.start()
    over.set()
    assert compute.receipt is not None and compute.receipt.ok
    assert "node 1 did not answer" in str(compute.receipt.notes)
    assert not any(exists(pid) for pid in pids)
