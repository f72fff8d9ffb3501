"""Spot preemption: from the notice to the replacement machines."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pytest

import skyward_core as sky
from skyward_core.store.pool_folder import read_events
from skyward_core.views.events import NodeNotice
from tests.aws import Bed
from tests.aws.pools import left, machine_ids, rented, where
from tests.lab.tools import wait_until


@sky.function
def train() -> None:
    """Run until stopped. Rank 2 notices the preemption by SIGTERM, the other ranks by a callback."""
    rank = sky.instance_info().rank
    if rank == 2:
        signal.signal(signal.SIGTERM, lambda *_: print("received SIGTERM", flush=True))
    else:
        sky.on_preempt(lambda seconds, node: print(f"told of node {node}, {seconds < 15}", flush=True))
    print("begun", flush=True)
    time.sleep(600)


@sky.function
def head() -> str:
    return sky.instance_info().head_addr


@pytest.fixture
def rent(bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., sky.Compute]:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    for name, text in bed.environment().items():
        monkeypatch.setenv(name, text)
    spot = rented(ssh_from=f"{bed.client_address()}/32")

    def rent(nodes: int, on_loss: Literal["replace", "restart"] = "replace") -> sky.Compute:
        options = sky.Options(console=False, grace=1.0, on_loss=on_loss)
        return sky.Compute(provider=spot, nodes=nodes, allocation="spot", options=options)

    return rent


@sky.function
def sleep() -> None:
    print("begun", flush=True)
    time.sleep(600)


@pytest.mark.proof("2 s of a processor")
def test_spot_machine_preempted_without_notice_is_named(bed: Bed, rent: Callable[[int], sky.Compute]) -> None:
    with rent(1) as compute, ThreadPoolExecutor(1) as beside:
        running = beside.submit(lambda: sleep() >> compute)
        wait_until(lambda: compute.pool.view.logs.rank(0).lines(0, 9) == ["begun"], "its first line")
        bed.spot_notice(machine_ids()[0], seconds=0)
        with pytest.raises(sky.RunError, match="preempted: the machine of node 0 was preempted by") as caught:
            running.result(60)
        assert caught.value.root_cause.type == "Preempted"
        assert [rank for rank, _, _ in where() @ compute] == [0]
    assert len(bed.instances("terminated")) == 2 and left(bed) == []


@pytest.mark.proof("7 s of a processor")
def test_preempted_spot_machines_are_replaced_including_the_head(bed: Bed, rent: Callable[[int], sky.Compute]) -> None:
    with rent(3) as compute:
        before = {address for address in head() @ compute}
        view, ids = compute.pool.view, machine_ids()

        def printed(rank: int) -> list[str]:
            return view.logs.rank(rank).lines(0, 9)

        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(lambda: train() @ compute)
            wait_until(lambda: all(printed(rank) == ["begun"] for rank in range(3)), "their first lines")
            bed.rebalance(ids[1])
            for node in (0, 2):
                bed.spot_notice(ids[node], seconds=12)
            wait_until(lambda: view.nodes[0].is_preempted and view.nodes[2].is_preempted, "the notices")
            assert all(0 < (view.nodes[node].notice_ends_at or 0) - time.time() < 13 for node in (0, 2))
            reported = [f"told of node {node}, True" for node in (0, 2)]
            wait_until(lambda: sorted(printed(0)[1:]) == sorted(printed(1)[1:]) == reported, "the callbacks")
            wait_until(lambda: printed(2) == ["begun", "received SIGTERM"], "the signal")
            with pytest.raises(sky.RunError, match=r"preempted: the machine of node [02] was preempted by") as caught:
                running.result(60)
        outcomes = caught.value.outcomes
        assert [outcomes[rank].kind for rank in range(3)] == ["lost", "collateral", "lost"]
        assert {each.error.type for each in outcomes.values() if each.error} == {"Preempted", "Stopped"}
        # The next run waits for the machines in their place, and knows the new head.
        after = {address for address in head() @ compute}
        assert len(after) == 1 and after != before
        assert [rank for rank, _, _ in where() @ compute] == [0, 1, 2]
        assert [node.notice for node in view.nodes] == ["", "rebalance", ""]
        kinds = {
            (each.node, each.kind) for each in read_events(compute.pool.archive.folder) if isinstance(each, NodeNotice)
        }
        assert kinds == {(0, "terminate"), (1, "rebalance"), (2, "terminate")}
        now = machine_ids()
        assert now[1] == ids[1] and not {now[0], now[2]} & {ids[0], ids[2]}
    reasons = {each["id"]: each["reason"] for each in bed.instances()}
    assert reasons[ids[0]] == reasons[ids[2]] == "Server.SpotInstanceTermination"
    assert left(bed) == [] and len(bed.instances("terminated")) == 5
    assert compute.receipt is not None and compute.receipt.ok and compute.receipt.created == 5
    billed = {each.instance_id: max(60.0, each.seconds) for each in bed.seconds_billed()}  # EC2's minimum is a minute
    ours = {each.machine: each.until - each.since for each in compute.receipt.bills}
    assert ours.keys() == billed.keys() and all(abs(ours[name] - billed[name]) < 20 for name in ours)


PERIOD = 500  # steps between two periodic checkpoints


@sky.function
def count_steps() -> tuple[int, int, int]:
    """Count steps, save each 500th, and save at SIGTERM. Return the attempt, its first step and the last periodic one.

    The first attempt runs until the signal. It ends between two periodic checkpoints.
    """
    saved = Path(sky.checkpoint_dir(), f"rank-{sky.instance_info().rank}")
    begin = step = int(saved.read_text()) if saved.exists() else 0
    attempt, heard = sky.attempt().number, list[int]()
    signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    print("begun", flush=True)
    while attempt == 1 and not (heard and step % PERIOD > PERIOD // 2):
        step += 1
        if step % PERIOD == 0:
            saved.write_text(str(step))
        time.sleep(0.0005)
    if heard:
        saved.write_text(str(step))
        print(f"stopped at {step}", flush=True)
        time.sleep(2.0)  # a longer save, during which the other machine is requested
        sys.exit(143)
    return attempt, begin, begin // PERIOD * PERIOD


def test_preempted_run_keeps_its_steps_and_continues_before_the_machine_ends(
    bed: Bed, rent: Callable[..., sky.Compute]
) -> None:
    with rent(2, on_loss="restart") as compute, ThreadPoolExecutor(1) as beside:
        logs = compute.pool.view.logs
        running = beside.submit(lambda: count_steps() @ compute)
        wait_until(lambda: all("begun" in logs.rank(rank).lines(0, 9) for rank in range(2)), "their first lines")
        bed.spot_notice(machine_ids()[1], seconds=120)
        results = running.result(100)
        stops = [int(line.split()[-1]) for rank in (0, 1) for line in logs.rank(rank).lines(0, 9) if "stopped" in line]
    assert [attempt for attempt, _, _ in results] == [2, 2]
    calls = [each["action"] for each in bed.calls() if each["action"] in ("RunInstances", "TerminateInstances")]
    assert calls[:3] == ["RunInstances", "RunInstances", "TerminateInstances"]
    kept = sum(begin - periodic for _, begin, periodic in results)
    lost = sum(stop - stop // PERIOD * PERIOD for stop in stops)
    assert len(stops) == 2 and lost > PERIOD // 2 and kept >= 0.8 * lost
    assert left(bed) == [] and len(bed.instances("terminated")) == 3
    assert compute.receipt is not None and compute.receipt.ok and compute.receipt.created == 3
