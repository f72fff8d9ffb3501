"""``Options(on_loss="replace")``: a node that is lost lives on on another machine."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.model.errors import PoolError
from skyward_core.model.machines import Machine
from skyward_core.pool import node_recovery
from skyward_core.store.ledger import Ledger
from skyward_core.tasks.function_pickling import make_task
from tests.support.faults import agent_pids
from tests.support.forked_clients import script
from tests.support.loss import REPLACE, Provider, lose, wait_for
from tests.support.processes import descendants
from tests.support.sessions import new_session
from tests.support.task_places import pool_rank
from tests.support.waiting import wait_until

NOT_INSTALLED = "torch._dynamo"  # what training uses of it has a stand-in


@sky.function
def rank() -> int:
    return pool_rank()


@sky.function
def forever() -> None:
    threading.Event().wait()


@sky.function
def say(word: str) -> str:
    print(word, flush=True)
    return word


def test_a_run_ends_as_lost_and_the_next_has_all_ranks(home: Path, tmp_path: Path) -> None:
    def hang() -> None:
        (tmp_path / f"hangs-{sky.instance_info().rank}").touch()
        time.sleep(600)

    with sky.Compute(nodes=2, options=REPLACE) as compute:
        before = compute.pool.context.machines[1]
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(lambda: sky.function(hang)() @ compute)
            wait_until(lambda: len(list(tmp_path.glob("hangs-*"))) == 2)
            lose(compute, 1)
            with pytest.raises(sky.RunError) as caught:
                running.result(30)
        assert {i: out.kind for i, out in caught.value.outcomes.items()} == {0: "collateral", 1: "lost"}
        assert rank() @ compute == [0, 1]  # waits for the other machine
        wait_for(compute, "up")
        assert compute.pool.context.machines[1].id != before.id
        assert compute.pool.view.nodes[1].phase == "ready"
        ledger = Ledger()
        assert ledger.machines(compute.pool.row.token) == compute.pool.context.machines
        assert ledger.replaced_machines(compute.pool.row.token) == [before]
        assert ledger.replacements(compute.pool.row.token) == []
    assert compute.receipt is not None
    assert (compute.receipt.created, compute.receipt.gone, compute.receipt.ok) == (3, (0, 1, 1), True)
    assert not list((home / "local").glob("*"))


@pytest.mark.proof("4 s of a processor")
def test_a_process_group_spans_a_new_head(home: Path) -> None:
    pytest.importorskip("torch")

    @sky.function
    def add_up() -> tuple[int, int, str]:
        import torch

        info = sky.instance_info()
        value = torch.tensor([10**info.rank])
        torch.distributed.all_reduce(value)
        return info.rank, int(value), os.environ["MASTER_PORT"]

    with sky.Compute(nodes=2, plugins=[sky.plugins.torch()], options=REPLACE) as compute:
        (_, _, before), _ = first = add_up() @ compute
        assert [each[:2] for each in first] == [(0, 11), (1, 11)]
        lose(compute, 0)
        wait_for(compute, "degraded")
        with ThreadPoolExecutor(1) as beside:
            task = beside.submit(lambda: rank() >> compute)  # waits: a process group needs every rank
            after = add_up() @ compute
            assert task.result(60) in (0, 1)
        assert [each[:2] for each in after] == [(0, 11), (1, 11)]
        assert before not in {each[2] for each in after}, "another rendezvous"


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("node", [0, 1])
def test_logs_go_on_where_the_lost_machine_s_ended(home: Path, node: int) -> None:
    with sky.Compute(nodes=2, options=REPLACE) as compute:
        say("before") @ compute
        wait_until(lambda: compute.pool.view.logs.rank(node).lines(0, 9) == ["before"])
        lose(compute, node)
        wait_for(compute, "degraded")
        wait_for(compute, "up")
        say("after") @ compute
        run = list(compute.pool.view.runs)[-1]
        wait_until(lambda: compute.pool.view.logs.rank(node).lines(0, 9) == ["before", "after"])
        name = f"r{node:03d}.out"
        assert compute.pool.archive.read_log_tail(name, 99) == b"before\nafter\n"
    ((_, span),) = [(log, span) for _, ranges in Ledger().outcomes(run) for log, span in ranges.items() if log == name]
    assert span == [len("before\n"), len("before\nafter\n")]


def test_tasks_go_to_the_nodes_that_are_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Provider(monkeypatch)
    monkeypatch.setattr(node_recovery, "REPLACEMENT_PAUSES", (0.05, 0.05))
    with sky.Compute(nodes=2, options=REPLACE) as compute:
        lose(compute, 0)  # the head
        node = compute.pool.view.nodes[0]
        wait_until(lambda: node.retry_at is not None)
        assert "none is left in the shop" in node.detail and node.phase == "requested"
        assert compute.pool.view.state == "degraded"
        assert "none is left in the shop" in compute.pool.view.detail
        assert rank() >> compute == 1
        assert sky.gather(*[rank() for _ in range(5)]) >> compute == (1,) * 5
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(lambda: rank() @ compute)
            wait_until(lambda: len(shop.asked) > 3)
            assert len(set(shop.asked)) == 1, "one intent until a machine is made"
            assert not running.done()
            shop.refuses = False
            assert running.result(30) == [0, 1]
    assert compute.receipt is not None and compute.receipt.ok


@pytest.mark.proof("1 s of a processor")
def test_without_another_machine_broadcasts_are_refused_in_words(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Provider(monkeypatch)
    monkeypatch.setattr(
        node_recovery, "REPLACEMENT_PAUSES", (600.0, 600.0)
    )  # beyond start_timeout: there is one attempt
    with sky.Compute(nodes=2, name="given-up", options=REPLACE) as compute:
        lose(compute, 1)
        wait_until(lambda: "none is left" in compute.pool.view.nodes[1].detail)
        assert (compute.pool.view.nodes[1].phase, len(shop.asked)) == ("gone", 1)
        with pytest.raises(sky.RunError, match=r"node 1 of the pool is lost.*none is left in the shop"):
            rank() @ compute
        assert rank() >> compute == 0
        assert compute.pool.view.state == "degraded"
        shop.refuses = False
        with sky.attach("given-up") as again:  # has it tried anew
            assert rank() @ again == [0, 1]
    assert compute.receipt is not None and compute.receipt.ok


def test_a_teardown_does_not_wait_for_a_machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Provider(monkeypatch)
    with ThreadPoolExecutor(1) as beside:
        with sky.Compute(nodes=2, options=REPLACE) as compute:
            lose(compute, 1)
            wait_until(lambda: compute.pool.view.nodes[1].retry_at is not None)
            running = beside.submit(lambda: rank() @ compute)
            wait_until(lambda: len(compute.pool.context.registry.runs) == 1)
        with pytest.raises(sky.Cancelled, match="torn down"):
            running.result(30)
    assert compute.receipt is not None
    assert (compute.receipt.created, compute.receipt.ok) == (2, True)


def test_a_run_that_waits_can_be_cancelled(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Provider(monkeypatch)
    with sky.Compute(nodes=2, options=REPLACE) as compute:
        lose(compute, 1)
        wait_until(lambda: compute.pool.view.nodes[1].retry_at is not None)
        with new_session() as session:
            session.attach(compute.name).result(30)
            run = session.launch(compute.name, make_task(rank())).result(30)
            session.cancel(compute.name, run.id).result(30)
            session.wait(compute.name, run.id).result(30)
            assert run.state == "cancelled"


def test_a_front_end_knows_what_leaving_does_to_a_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Provider(monkeypatch)
    with sky.Compute(nodes=2, options=REPLACE) as compute, new_session() as session:
        session.attach(compute.name).result(30)
        there = session.launch(compute.name, make_task(forever()), one=True).result(30)
        wait_until(lambda: there.tasks.get(0) is not None)
        assert session.survives_exit(compute.name, there.id).result(30)
        lose(compute, 1 - there.tasks[0].node)
        wait_until(lambda: session.view(compute.name).nodes[1 - there.tasks[0].node].retry_at is not None)
        waits = session.launch(compute.name, make_task(rank())).result(30)
        assert not session.survives_exit(compute.name, waits.id).result(30)
        session.detach_pool(compute.name).result(30)
        assert (there.state, waits.state) == ("running", "cancelled")
        rows = {run: Ledger().run(run) for run in (there.id, waits.id)}
        states = {run: row and row.state for run, row in rows.items()}
        assert states == {there.id: "running", waits.id: "cancelled"}


def test_a_run_that_waits_is_cancelled_when_its_client_leaves(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody could ever answer it: no node has heard of it."""
    shop = Provider(monkeypatch)
    monkeypatch.setattr(node_recovery, "REPLACEMENT_PAUSES", (0.05, 0.05))
    with sky.Compute(nodes=2, options=REPLACE) as compute, ThreadPoolExecutor(2) as beside:
        other = sky.attach(compute.name)
        lose(compute, 1)
        wait_until(lambda: other.pool.context.roster.is_replacing and compute.pool.context.roster.is_replacing)
        waits = beside.submit(lambda: rank() @ other)
        wait_until(lambda: len(other.pool.context.registry.runs) == 1)
        (run,) = other.pool.context.registry.runs
        ours = beside.submit(lambda: rank() @ compute)
        wait_until(lambda: len(compute.pool.context.registry.runs) == 1)
        other.detach()
        with pytest.raises(sky.Cancelled, match="its client detached before the run was sent to a node"):
            waits.result(30)
        row = Ledger().run(run)
        assert row is not None
        assert (row.state, row.ended_at is not None) == ("cancelled", True)
        shop.refuses = False
        assert ours.result(60) == [0, 1], "the other client's goes on waiting"


@pytest.mark.proof("1 s of a processor")
def test_a_client_that_leaves_is_told_where_its_run_goes_on(home: Path, tmp_path: Path) -> None:
    @sky.function
    def wait_for_it() -> int:
        (tmp_path / f"here-{sky.instance_info().rank}").touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return sky.instance_info().rank

    with sky.Compute(nodes=2, options=REPLACE) as compute, ThreadPoolExecutor(2) as beside:
        other = sky.attach(compute.name)
        running = beside.submit(lambda: wait_for_it() @ other)
        wait_until(lambda: len(list(tmp_path.glob("here-*"))) == 2)
        (run,) = other.pool.context.registry.runs
        many = beside.submit(lambda: sky.gather(*[wait_for_it() for _ in range(99)]) >> other)
        wait_until(lambda: len(other.pool.context.registry.runs) == 2)
        other.detach()
        with pytest.raises(
            PoolError, match=rf"The run continues. Get its results with sky.attach\(.*\).wait\('{run}'\) gives"
        ):
            running.result(30)
        with pytest.raises(PoolError, match="of 99 tasks had not been sent"):
            many.result(30)
        (tmp_path / "go").touch()
        with sky.attach(compute.name) as again:
            assert again.wait(run) == [0, 1]


def test_a_machine_that_does_not_come_up_is_followed_by_another(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_recovery, "REPLACEMENT_PAUSES", (0.05, 0.05))
    real, broken = sky.Local.replace, list[Machine]()

    async def first_is_broken(local: sky.Local, pool: str, token: str, *more: Any) -> Machine:
        machine = await real(local, pool, token, *more)
        if not broken:
            broken.append(machine)
            Path(machine.extra["socket"]).mkdir()  # no agent can listen there
        return machine

    monkeypatch.setattr(sky.Local, "replace", first_is_broken)
    with sky.Compute(nodes=2, options=REPLACE) as compute:
        lose(compute, 1)
        wait_for(compute, "degraded")
        assert rank() @ compute == [0, 1]
        former = Ledger().replaced_machines(compute.pool.row.token)
        assert [machine.id for machine in former][1:] == [broken[0].id]
    assert compute.receipt is not None
    assert (compute.receipt.created, compute.receipt.gone, compute.receipt.ok) == (4, (0, 1, 1, 1), True)
    assert not list((home / "local").glob("*"))


def test_two_clients_see_the_new_machine_and_one_makes_it(home: Path) -> None:
    with sky.Compute(nodes=2, options=REPLACE) as compute:
        with new_session() as session:
            other = session.attach(compute.name).result(30)
            lose(compute, 1)
            wait_for(compute, "degraded")
            wait_for(compute, "up")
            wait_until(lambda: other.state == "up" and other.nodes[1].phase == "ready", 30.0, "the other client")
            run = session.launch(compute.name, make_task(rank())).result(30)
            session.wait(compute.name, run.id).result(30)
            assert [out.summary.json for out in run.outcomes() if out.summary] == [0, 1]
        assert rank() @ compute == [0, 1]
        assert len(Ledger().replaced_machines(compute.pool.row.token)) == 1
    assert compute.receipt is not None
    assert (compute.receipt.created, compute.receipt.ok) == (3, True)


@sky.function
def which() -> int:
    print("one of two clients", flush=True)
    return sky.instance_info().rank


def test_two_clients_of_different_minds_end_up_with_one_machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To one a machine is gone, while the other finds it fit for a new agent: one decides, the other follows."""
    asked = asyncio.Event()
    gone = asyncio.Event()
    real, real_terminate = sky.Local.describe, sky.Local.terminate

    async def patience(event: asyncio.Event) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), 1.0)

    with sky.Compute(nodes=2, options=REPLACE) as compute, sky.attach(compute.name) as other:
        which() @ compute
        (second,) = {other.pool.context.provider} - {compute.pool.context.provider}

        async def describe(local: sky.Local, pool: str, known: Sequence[Machine]) -> list[Machine]:
            seen = await real(local, pool, known)
            if (
                len(known) > 1
                or seen[0].id != compute.pool.context.machines[1].id
                or (asked.is_set() and gone.is_set())
            ):
                return seen
            if local is second:
                asked.set()
                await patience(gone)
                return seen
            await patience(asked)
            return [dataclasses.replace(seen[0], state="gone")]

        async def terminate(local: sky.Local, pool: str, machines: Sequence[Machine]) -> None:
            await real_terminate(local, pool, machines)
            gone.set()

        with monkeypatch.context() as patch:
            patch.setattr(sky.Local, "describe", describe)
            patch.setattr(sky.Local, "terminate", terminate)
            agent = compute.pool.links[1].welcome["pid"]
            for pid in (agent, *descendants(agent)):
                os.kill(pid, signal.SIGKILL)

            def agreed() -> bool:
                ours, theirs = (
                    [link.welcome.get("pid") if link.up else None for link in pool.links]
                    for pool in (compute.pool, other.pool)
                )
                views = (compute.pool.view, other.pool.view)
                known = {None, agent}.isdisjoint(ours) and all(view.state == "up" for view in views)
                return known and ours == theirs

            wait_until(agreed, what="the same nodes, on the old machine or on another one")
        assert which() @ compute == which() @ other == [0, 1]
        assert agent_pids(compute) == agent_pids(other), "and they stay so"  # type: ignore[arg-type]
        assert other.pool.context.machines == compute.pool.context.machines == Ledger().machines(compute.pool.row.token)
        lines = ["one of two clients"] * 3
        for pool in (compute.pool, other.pool):
            wait_until(lambda pool=pool: pool.view.logs.rank(1).lines(0, 9) == lines)  # type: ignore[misc]
    assert compute.receipt is not None and compute.receipt.ok


KILLED_HALF_WAY = """
    import signal
    sys.path.append(REPOSITORY)
    from skyward_core.transport.local_transport import LocalTransport
    from skyward_core.providers.local.provider import Local
    from contextlib import suppress
    from tests.support.faults import remove
    from tests.support.processes import descendants
    async def die(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGKILL)
    options = sky.Options(console=False, grace=0.5, on_loss="replace", idle_timeout=60.0)
    with sky.Compute(nodes=2, name="half", options=options, image=sky.Image(env={"EXTRA": "1"})) as compute:
        WHERE = die
        agent = compute.pool.links[1].welcome["pid"]
        below = descendants(agent)
        remove(compute.pool.context.machines[1].extra["folder"])
        for pid in (agent, *below):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(60)
    """.replace("REPOSITORY", repr(str(Path(__file__).parents[2])))


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("where", ["Local.replace", "LocalTransport.prepare"])
def test_a_client_killed_half_way_leaks_nothing_and_the_next_goes_on(home: Path, where: str) -> None:
    @sky.function
    def extra() -> tuple[int, str | None]:
        return sky.instance_info().rank, os.environ.get("EXTRA")

    client = script(home, KILLED_HALF_WAY.replace("WHERE", where))
    assert client.wait(60) == -signal.SIGKILL, client.communicate()
    row = Ledger().live_pools()[0]
    (entry,) = Ledger().replacements(row.token)
    assert (entry.node, entry.made, entry.is_owner_alive) == (1, where != "Local.replace", False)
    with sky.attach("half") as compute:
        assert extra() @ compute == [(0, "1"), (1, "1")]
        wait_until(lambda: not Ledger().replacements(row.token))
        receipt = compute.down()
    assert (receipt.created, receipt.gone, receipt.ok) == (3, (0, 1, 1), True)
    assert not list((home / "local").glob("*"))


@pytest.mark.proof("1 s of a processor")
def test_a_client_killed_half_way_can_be_followed_by_a_teardown(home: Path) -> None:
    client = script(home, KILLED_HALF_WAY.replace("WHERE", "LocalTransport.prepare"))
    assert client.wait(60) == -signal.SIGKILL, client.communicate()
    with new_session() as session:
        receipt = session.tear_down("half").result(30)
    assert (receipt.created, receipt.gone, receipt.ok) == (3, (0, 1, 1), True)
    assert Ledger().live_pools() == []
    assert not list((home / "local").glob("*"))
