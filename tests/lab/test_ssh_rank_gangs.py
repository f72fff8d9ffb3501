"""Sweeps by gangs of two of each host's four ranks, over SSH: a host loses power, cables are pulled."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import skyward_core as sky

from . import Host, Lab
from .pools import Client, agents, less_patience, nothing_runs, pool, ssh, until

FOUR = sky.Worker(ranks_per_node=4)


@sky.function
def waits(n: int, free: int) -> tuple[int, int, int]:
    """Combinations below ``free`` end at once, the others once the host's home holds a file named ``go``."""
    import os
    import threading

    info = sky.instance_info()
    new = Path.home() / f"new.{n}.{info.rank}.{os.getpid()}"
    new.touch()
    new.rename(Path.home() / f"begun.{n}.{info.rank}.{os.getpid()}")
    while n >= free and not (Path.home() / "go").exists():
        threading.Event().wait(0.02)
    print(f"ends {n} on {info.rank}", flush=True)
    return n, info.rank, info.world_size


@sky.function
def world() -> int:
    return sky.instance_info().world_size


def begun(host: Host) -> Counter[int]:
    """On how many ranks of a host each combination has begun."""
    return Counter(int(path.name.split(".")[1]) for path in host.home.glob("begun.*"))


def ranks_told(compute: sky.Compute) -> set[int]:
    """The first ranks of the gangs that are known to be at a combination."""
    tasks = [task for run in compute.pool.view.runs.values() for task in run.tasks.values()]
    return {task.rank for task in tasks if task.state == "running"}


def clean(lab: Lab) -> None:
    for host in lab.hosts:
        for path in (*host.home.glob("begun.*"), host.home / "go"):
            path.unlink(missing_ok=True)


@pytest.mark.proof("3 s of a processor")
def test_a_host_without_power_loses_its_combinations_alone(pair: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    less_patience(monkeypatch)
    clean(pair)
    with pool(pair, worker=FOUR, options={"lost_after": 2.0}, name="gangs") as compute:
        assert world() @ compute == [8] * 8
        trials = sky.sweep(waits, n=range(12), free=0).with_ranks(2).on_all(compute)
        until(lambda: [begun(host).total() for host in pair.hosts] == [4, 4], "two gangs on each host")
        until(lambda: ranks_told(compute) == {0, 2, 4, 6}, "news of all of them")
        on_cut = set(begun(pair.hosts[1]))
        pair.hosts[1].power_off()
        try:
            until(lambda: compute.pool.view.state == "degraded", "the loss")
            (pair.hosts[0].home / "go").touch()
            trials.wait()
            lost = [n for n, trial in enumerate(trials) if trial.outcome == "lost"]
            assert set(lost) == on_cut
            assert [t.value for t in trials if t.ok] == [(n, 0, 2) for n in range(12) if n not in lost]
            tasks = compute.pool.view.runs[trials[0].run].tasks
            assert sorted(tasks[n].rank // 2 for n in lost) == [2, 3], "each on its own ranks"
            again = sky.sweep(waits, n=range(4), free=9).with_ranks(2) @ compute
            assert [trial.value for trial in again] == [(n, 0, 2) for n in range(4)]
        finally:
            pair.hosts[1].power_on()
            pair.hosts[1].plug()


@pytest.mark.proof("3 s of a processor")
def test_a_pulled_cable_loses_no_combination(pair: Lab) -> None:
    clean(pair)
    with pool(pair, worker=FOUR, name="gangs") as compute:
        assert world() @ compute == [8] * 8
        trials = sky.sweep(waits, n=range(12), free=0).with_ranks(2).on_all(compute)
        until(lambda: [begun(host).total() for host in pair.hosts] == [4, 4], "two gangs on each host")
        living = [agents(host) for host in pair.hosts]
        pair.hosts[1].unplug()
        try:
            (pair.hosts[1].home / "go").touch()
            until(lambda: not compute.pool.links[1].up, "the loss of the link")
            (pair.hosts[0].home / "go").touch()
        finally:
            pair.hosts[1].plug()
        trials.wait()
        assert [trial.value for trial in trials] == [(n, 0, 2) for n in range(12)]
        assert sum((begun(host) for host in pair.hosts), Counter()) == {n: 2 for n in range(12)}, "each once"
        until(lambda: [agents(host) for host in pair.hosts] == living, "the same agents")
        assert world() @ compute == [8] * 8
    assert compute.receipt is not None and compute.receipt.ok
    nothing_runs(pair)


BESIDE = """
    @sky.function
    def world():
        return sky.instance_info().world_size

    with sky.attach("gangs") as compute:
        print("attached", flush=True)
        input()
        print(world() @ compute, flush=True)
"""


@pytest.mark.proof("3 s of a processor")
def test_a_client_behind_a_pulled_cable_holds_no_sweep_up(lab: Lab) -> None:
    """Whom no word reaches has two seconds to say that it knows; then gangs begin without it."""
    hosts, behind = lab.hosts[:1], lab.hosts[3]
    clean(lab)
    with pool(lab, ssh(lab, hosts), worker=FOUR, name="gangs") as compute:
        assert world() @ compute == [4] * 4
        with Client(lab, BESIDE, hosts=hosts, behind=behind) as beside:
            assert beside.said() == "attached"
            behind.unplug()
            try:
                trials = sky.sweep(waits, n=range(4), free=9).with_ranks(2) @ compute
                assert [trial.value for trial in trials] == [(n, 0, 2) for n in range(4)]
                assert world() @ compute == [4] * 4
                more = sky.sweep(waits, n=range(4), free=9).with_ranks(2) @ compute
                assert all(trial.ok for trial in more)
            finally:
                behind.plug()
