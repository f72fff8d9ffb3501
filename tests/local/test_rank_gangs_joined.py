"""Sweeps by gangs of some ranks, with a plugin that all ranks of a gang enter together: two nodes of four ranks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from tests.support.faults import agent_pids, worker_pids
from tests.support.joining_plugin import Joins, joined
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("joins")


@pytest.fixture(scope="module")
def nodes(world: Path, folder: Path) -> Iterator[sky.Compute]:
    options = sky.Options(console=False, grace=1.0)
    worker = sky.Worker(ranks_per_node=4)
    with sky.Compute(nodes=2, worker=worker, plugins=[Joins(str(folder))], options=options) as compute:
        yield compute
    assert compute.receipt is not None and compute.receipt.ok


@pytest.fixture(autouse=True)
def nothing_fails(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


@sky.function
def world_of(n: int = 0) -> tuple[int, list[int]]:
    from tests.support.joining_plugin import joined

    return n, joined


ONE, TWO, ALL = [1], [2], [8]


def swept(nodes: sky.Compute, many: int = 8) -> list[Any]:
    return [trial.value for trial in sky.sweep(world_of, n=range(many)).with_ranks(2) @ nodes]


def test_a_gang_has_the_contexts_of_its_own_world(nodes: sky.Compute) -> None:
    assert world_of() @ nodes == [(0, ALL)] * 8
    epoch = nodes.pool.links[0].epoch
    assert swept(nodes) == [(n, TWO) for n in range(8)]
    assert nodes.pool.links[0].epoch == epoch, "a sweep has the gang of all ranks formed for nothing"
    assert world_of() @ nodes == [(0, ALL)] * 8
    assert world_of() >> nodes == (0, ONE)
    assert swept(nodes, 1) == [(0, TWO)]
    assert world_of() >> nodes == (0, ONE)
    assert joined == []


def test_broadcasts_tasks_and_sweeps_at_once_all_end(nodes: sky.Compute) -> None:
    got: dict[str, Any] = {}

    def begin(name: str, work: Callable[[], Any]) -> threading.Thread:
        def run() -> None:
            got[name] = work()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    threads = [
        begin("sweep", lambda: swept(nodes, 12)),
        begin("another", lambda: swept(nodes, 12)),
        begin("broadcasts", lambda: [world_of() @ nodes for _ in range(3)]),
        begin("task", lambda: [world_of() >> nodes for _ in range(2)]),
    ]
    for thread in threads:
        thread.join(80)
        assert not thread.is_alive(), got
    assert got["sweep"] == got["another"] == [(n, TWO) for n in range(12)]
    assert got["broadcasts"] == [[(0, ALL)] * 8] * 3 and got["task"] == [(0, ONE)] * 2


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize(
    ("how", "kind", "said"), [("raise", "raised", "joins failed in"), ("exit", "exited", "status 3")]
)
def test_a_rank_that_cannot_be_set_up_fails_its_gang(
    nodes: sky.Compute, folder: Path, how: str, kind: str, said: str
) -> None:
    assert world_of() @ nodes == [(0, ALL)] * 8  # so that gangs are set up anew
    (folder / "fails.2.1").write_text(how)
    trials = sky.sweep(world_of, n=range(3)).with_ranks(2) @ nodes
    assert [trial.outcome for trial in trials] == [kind] * 3
    assert said in str(trials[0].error)
    (folder / "fails.2.1").unlink()
    assert swept(nodes, 2) == [(0, TWO), (1, TWO)]


@pytest.mark.proof("2 s of a processor", after=1)
@pytest.mark.parametrize("also", ["", "ranks"])
def test_an_agent_that_is_killed_while_ranks_are_set_up(nodes: sky.Compute, folder: Path, also: str) -> None:
    assert world_of() @ nodes == [(0, ALL)] * 8  # so that gangs are set up anew
    (folder / "fails.2.1").touch()
    trials = sky.sweep(world_of, n=range(6)).with_ranks(2).on_all(nodes)
    wait_until((folder / "enters.2.1").exists)
    agents, ranks = agent_pids(nodes), worker_pids(nodes) if also else []
    for pid in (*agents, *ranks):
        os.kill(pid, signal.SIGSTOP)
    for pid in (*agents, *ranks):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(link.up for link in nodes.pool.links) and set(agents).isdisjoint(agent_pids(nodes)))
    (folder / "fails.2.1").unlink()
    trials.wait()
    assert {trial.outcome for trial in trials} <= {"returned", "exited"}
    assert [trial.value for trial in trials if trial.ok] == [(t.place, TWO) for t in trials if t.ok]
    assert swept(nodes, 4) == [(n, TWO) for n in range(4)]
    assert world_of() @ nodes == [(0, ALL)] * 8
