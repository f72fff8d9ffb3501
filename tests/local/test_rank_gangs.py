"""Sweeps whose combinations run on some ranks of a node each: one node of four ranks, in gangs of two.

Functions that fail do so on the rank that a test names, while the other one waits for ever.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.store.ledger import Ledger
from skyward_core.store.run_logs import RunLogs
from tests.support.fates import gone
from tests.support.pool_logs import settled
from tests.support.waiting import wait_until

QUIET = sky.Options(console=False, grace=2.0)


@pytest.fixture(scope="module")
def node(world: Path) -> Iterator[sky.Compute]:
    """One node of four ranks, shared by the tests of this file."""
    with sky.Compute(nodes=1, worker=sky.Worker(ranks_per_node=4), options=QUIET) as compute:
        yield compute
    assert compute.receipt is not None and compute.receipt.ok


@sky.function
def place(n: int) -> tuple[int, ...]:
    info = sky.instance_info()
    return n, info.rank, info.world_size, info.local_rank, info.ranks_per_node, info.total_nodes, info.node


@sky.function
def whole() -> tuple[int, int]:
    return sky.instance_info().rank, sky.instance_info().world_size


@sky.function
def meets(n: int) -> tuple[int, list[str]]:
    """All ranks of the gang meet at its first one, as frameworks do; gives what they said."""
    import socket

    info = sky.instance_info()
    port = int(os.environ["MASTER_PORT"])
    assert os.environ["RANK"] == str(info.rank) and os.environ["WORLD_SIZE"] == str(info.world_size)
    mine = f"{n} from {info.rank}"
    if info.rank:
        while True:
            try:
                with socket.create_connection((os.environ["MASTER_ADDR"], port)) as there:
                    there.sendall(mine.encode())
                    return n, [mine]
            except ConnectionRefusedError:
                threading.Event().wait(0.01)
    said = [mine]
    with socket.create_server((info.head_addr, port)) as server:
        for _ in range(info.world_size - 1):
            there, _ = server.accept()
            with there:
                said.append(there.recv(100).decode())
    return n, said


@sky.function
def fails(n: int, how: str, rank: int, folder: str) -> int:
    """The rank fails that is named, once both have begun; the other waits for ever."""
    me = sky.instance_info().rank
    new = Path(folder, f"new.{n}.{me}")
    new.write_text(str(os.getpid()))
    new.rename(Path(folder, f"{n}.rank{me}"))
    while n and (me != rank or len(list(Path(folder).glob(f"{n}.rank*"))) < 2):
        threading.Event().wait(0.01)
    if n and how == "raise":
        raise ValueError(f"bad {n}")
    if n and how == "exit":
        os._exit(7)
    if n and how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return n


def test_each_gang_is_a_world_of_its_own(node: sky.Compute) -> None:
    assert whole() @ node == [(rank, 4) for rank in range(4)]
    trials = sky.sweep(place, n=range(6)).with_ranks(2) @ node
    assert [trial.value for trial in trials] == [(n, 0, 2, 0, 2, 1, 0) for n in range(6)]
    assert len({trial.run for trial in trials}) == 1, "one run"
    assert whole() @ node == [(rank, 4) for rank in range(4)], "the gang of all ranks is back"
    assert [t.value[1:3] for t in sky.sweep(place, n=[1]).with_ranks(2) @ node] == [(0, 2)]


def test_its_ranks_meet_and_those_of_others_do_not(node: sky.Compute) -> None:
    trials = sky.sweep(meets, n=range(8)).with_ranks(2) @ node
    assert [trial.value for trial in trials] == [(n, [f"{n} from 0", f"{n} from 1"]) for n in range(8)]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("how", "outcome", "said"),
    [
        ("raise", "raised", "bad 1"),
        ("exit", "exited", "exited with status 7"),
        ("kill", "exited", "ended by SIGKILL"),
    ],
)
def test_a_rank_that_fails_ends_its_gang_alone(
    node: sky.Compute, tmp_path: Path, how: str, outcome: str, said: str, rank: int
) -> None:
    trials = sky.sweep(fails, n=range(3), how=how, rank=rank, folder=str(tmp_path)).with_ranks(2) @ node
    assert [trial.outcome for trial in trials] == ["returned", outcome, outcome]
    assert said in str(trials[1].error) and trials[0].value == 0
    settled(node)
    run = node.pool.view.runs[trials[1].run]
    for index in (1, 2):
        of_gang = run.tasks[index].rank
        assert of_gang % 2 == rank, "the rank is named that failed"
    assert gone([int(path.read_text()) for path in tmp_path.glob("[12].rank*")])


def test_who_is_stopped_for_another_ends(node: sky.Compute, tmp_path: Path) -> None:
    trials = sky.sweep(fails, n=[1], how="raise", rank=1, folder=str(tmp_path)).with_ranks(2) @ node
    assert trials[0].outcome == "raised"
    assert gone([int(Path(tmp_path, "1.rank0").read_text())]), "it waited for ever"


def test_a_time_limit_is_for_all_ranks_of_a_gang(node: sky.Compute, tmp_path: Path) -> None:
    limited = sky.function(timeout=0.5)(fails.fn)
    trials = sky.sweep(limited, n=range(2), how="", rank=5, folder=str(tmp_path)).with_ranks(2) @ node
    assert [trial.outcome for trial in trials] == ["returned", "exited"]
    assert "longer than its timeout of 0.5 s" in str(trials[1].error)
    assert gone([int(path.read_text()) for path in tmp_path.glob("1.rank*")])


def test_cancelling_stops_all_ranks_and_begins_nothing_more(node: sky.Compute, tmp_path: Path) -> None:
    trials = sky.sweep(fails, n=range(1, 6), how="", rank=5, folder=str(tmp_path)).with_ranks(2).on_all(node)
    wait_until(lambda: len(list(tmp_path.glob("*.rank*"))) == 4, what="two gangs")
    trials.cancel()
    with pytest.raises(sky.Cancelled):
        trials.wait()
    began = list(tmp_path.glob("*.rank*"))
    assert len(began) == 4 and gone([int(path.read_text()) for path in began])
    assert whole() @ node == [(rank, 4) for rank in range(4)]


def test_the_logs_of_all_ranks_are_the_runs(node: sky.Compute) -> None:
    @sky.function
    def says(n: int) -> None:
        print(f"says {n} on {sky.instance_info().rank}", flush=True)
        sky.log(loss=n + sky.instance_info().rank)

    trials = sky.sweep(says, n=range(4)).with_ranks(2) @ node
    settled(node)
    assert node.pool.view.runs[trials[0].run].width == 2
    logs = RunLogs(Ledger(), trials[0].run)
    said = [line.text for rank in range(4) for line in logs.lines(rank)]
    assert sorted(said) == sorted(f"says {n} on {rank}" for n in range(4) for rank in (0, 1))
    assert [trial.numbers for trial in trials] == [{"loss": float(n)} for n in range(4)], "the first rank's"


def test_broadcasts_and_sweeps_of_other_gangs_take_turns(node: sky.Compute) -> None:
    """All at once: broadcasts, tasks, gangs of two."""
    got: dict[str, Any] = {}

    def keep(name: str, work: Any) -> threading.Thread:
        def run() -> None:
            got[name] = work()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def sweep() -> list[Any]:
        return [trial.value for trial in sky.sweep(meets, n=range(6)).with_ranks(2) @ node]

    threads = [
        keep("first", sweep),
        keep("second", sweep),
        keep("broadcasts", lambda: [whole() @ node for _ in range(3)]),
        keep("tasks", lambda: sky.gather(*[whole() for _ in range(6)]) >> node),
    ]
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    swept = [(n, [f"{n} from 0", f"{n} from 1"]) for n in range(6)]
    assert got["first"] == got["second"] == swept
    assert got["broadcasts"] == [[(rank, 4) for rank in range(4)]] * 3
    assert len(got["tasks"]) == 6


def test_what_cannot_run_on_several_ranks_is_refused(node: sky.Compute, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(sky.UsageError, match="generator, or an argument that is one, is for one rank alone"):
        sky.sweep(place, n=[(each for each in [1, 2])]).with_ranks(2) @ node
    (link,) = node.pool.links
    monkeypatch.setitem(link.welcome, "knows", [])
    with pytest.raises(sky.UsageError, match=r"the agent of node 0 .* knows no such gangs"):
        sky.sweep(place, n=[1]).with_ranks(2) @ node


def test_numbers_of_ranks_that_cannot_be_are_refused(node: sky.Compute) -> None:
    with pytest.raises(sky.UsageError, match=r"on 3 ranks, .* have 4 each, .*: take 2 or 4 ranks"):
        sky.sweep(place, n=[1]).with_ranks(3) @ node
    with pytest.raises(sky.UsageError, match=r"on 6 ranks, .* have 4 each, .*: take 4 or 8 ranks"):
        sky.sweep(place, n=[1]).with_ranks(6) @ node
    with pytest.raises(sky.UsageError, match="to run on 2 nodes, and"):
        sky.sweep(place, n=[1]).with_ranks(8) @ node
    assert [trial.value[2] for trial in sky.sweep(place, n=[1, 2]).with_ranks(1) @ node] == [1, 1], "no gangs"
