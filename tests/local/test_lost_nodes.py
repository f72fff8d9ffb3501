"""Unreachable, lost and replaced nodes, and pools that end during calls."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.model.errors import LedgerError, PoolError
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.node.bootstrap.host_inspection import find_node_processes
from skyward_core.pool import agent_link, node_recovery
from skyward_core.pool.silent_and_missing_nodes import NodeRoster
from skyward_core.providers.local.provider import Local, _remove_tree
from skyward_core.store import ledger
from skyward_core.store.ledger import Ledger
from skyward_core.tasks.function_pickling import make_task
from skyward_core.views.events import Event, NodeLink, NodePhase
from tests.support.cli import Cli
from tests.support.faults import agent_pids, on_loop, remove
from tests.support.forked_clients import script
from tests.support.loss import REPLACE, Provider, cut, lose, wait_for
from tests.support.pool_logs import last_run, log_of
from tests.support.processes import descendants
from tests.support.sessions import new_session
from tests.support.task_places import pool_rank
from tests.support.waiting import wait_until


@sky.function
def print_and_wait() -> None:
    print("its last words", flush=True)
    while True:
        time.sleep(0.05)


@sky.function
def rank() -> int:
    return sky.instance_info().rank


def test_unreachable_only_node_is_suspected_and_then_lost(home: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False, lost_after=1.0)) as compute:
        (link,) = compute.pool.links
        node = compute.pool.view.nodes[0]
        wait = print_and_wait() > compute
        log = compute.pool.view.logs.rank(0)
        wait_until(lambda: "its last words" in log.lines(0, 99), what="what it prints")
        agent = link.welcome["pid"]
        cut(link)
        wait_until(lambda: "counts as lost at" in node.link_detail, what="the suspicion")
        words = r"unreachable since \d\d:\d\d:\d\d, counts as lost at \d\d:\d\d:\d\d"
        assert re.search(words, node.link_detail), node.link_detail
        error = wait.exception(30)
        assert isinstance(error, sky.RunError)
        assert error.root_cause.outcome == "lost"
        run = last_run(compute)
        wait_until(lambda: (row := Ledger().run(run)) is not None and row.state == "failed", what="its end")
        assert log_of(compute, run, 0) == b"its last words\n"  # nobody told how far its log went
        assert error.root_cause.message == f"node 0 is gone: {node.detail}"
        assert compute.stacks(run=run).returned == (), "nobody knows how far its function came"
        assert node.phase == "gone"
        assert re.search(r"no answer since \d\d:\d\d:\d\d, lost at \d\d:\d\d:\d\d, after 1 s", node.detail)
        Path(f"/proc/{agent}").stat()  # a cut ends no healthy machine
        with pytest.raises(sky.RunError):
            _ = rank() >> compute


def test_node_that_answers_in_time_is_no_longer_suspected(home: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False, lost_after=3.0)) as compute:
        (link,) = compute.pool.links
        node = compute.pool.view.nodes[0]
        there = cut(link)
        wait_until(lambda: "counts as lost at" in node.link_detail, what="the suspicion")
        link.transport.socket = there  # type: ignore[attr-defined]
        wait_until(lambda: node.link_up, what="the link")
        assert "counts as lost at" not in node.link_detail
        on_loop(lambda: None)
        assert not compute.pool.context.recovery.suspects._since
        assert rank() >> compute == 0


def test_node_unreachable_at_attach_is_lost_after_its_timeout(home: Path) -> None:
    with sky.Compute(name="shared", nodes=2, options=sky.Options(console=False, lost_after=1.0)) as compute:
        path: Path = compute.pool.links[1].transport.socket  # type: ignore[attr-defined]
        path.rename(path.with_suffix(".away"))
        code = """
import skyward_core as sky
@sky.function
def rank(): return sky.instance_info().rank
with sky.attach("shared") as compute:
    try:
        rank() @ compute
    except sky.RunError as error:
        print(error.root_cause.outcome, error.root_cause.rank)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
        path.with_suffix(".away").rename(path)
        assert done.stdout == "lost 1\n", done.stderr


# A node goes with all that is on it while no client of its pool is there: whoever comes next tells what it had.


def detach_from_run(cli: Cli) -> tuple[str, str, str]:
    """Detach from a run after a while. Return its pool, the run, and the folder of node 1."""
    left = cli("run", "endings.py:waits", "--nodes", 2, "--arg", f"marker={cli.folder}/m", "--detach", "--json")
    run = json.loads(left.stdout.splitlines()[-1])["run"]
    with closing(Ledger(cli.folder / "home/ledger.db")) as ledger:
        row = ledger.run(run)
        assert row is not None and not row.has_client
        (machine,) = [each for each in ledger.machines(row.token) if each.node == 1]
    with closing(sqlite3.connect(cli.folder / "home/ledger.db")) as db:
        db.execute("UPDATE runs SET opened_at=opened_at-60")
        db.commit()
    return left.stderr.split("attach ")[1].split()[0], run, machine.extra["folder"]


def destroy(folder: str) -> None:
    """Remove a node with all of its processes and files."""
    for pid in find_node_processes(folder):
        os.kill(pid, signal.SIGKILL)
    remove(folder)


@pytest.mark.proof("2 s of a processor")
def test_run_that_lost_a_node_ends_when_a_client_follows_it(cli: Cli) -> None:
    pool, run, folder = detach_from_run(cli)
    destroy(folder)
    assert cli.pools()[pool]["runs"][0]["state"] == "running", "who only looks stops nothing"
    outcomes = [rank["outcome"] for rank in cli.json("results", run)["ranks"]]
    assert outcomes == ["running", "lost"]
    followed = cli("attach", pool, "--json", status=1)
    found = json.loads(followed.stdout.splitlines()[-1])
    assert [rank["outcome"] for rank in found["ranks"]] == ["collateral", "lost"]
    assert found["root_cause"]["message"] == "node 1 is gone: its machine was already gone"
    assert cli.pools()[pool]["runs"][0]["state"] == "failed"


@sky.function
def forever() -> None:
    threading.Event().wait()


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Lock the ledger by another process."""
    other = sqlite3.connect(home / "ledger.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


@pytest.mark.proof("1 s of a processor")
def test_node_replacement_continues_once_the_ledger_is_free(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "LOCK_TIMEOUT", 0.2)
    refused: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, NodePhase) and "locked" in event.detail:
            refused.append(event.detail)

    with sky.Compute(nodes=2, options=REPLACE) as compute:
        assert rank() @ compute == [0, 1]
        compute.pool.news.subscribe(note, None)
        with locked(home):
            lose(compute, 1)
            wait_until(lambda: refused, 60, what="the ledger to be in the way")
        assert rank() @ compute == [0, 1]
        wait_for(compute, "up")


def test_node_whose_examination_failed_is_examined_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failed = NodeRoster._is_decided, list[int]()

    def once(roster: NodeRoster, node: int) -> bool:
        if not failed:
            failed.append(node)
            raise LedgerError("the ledger cannot be read: database is locked")
        return real(roster, node)

    monkeypatch.setattr(NodeRoster, "_is_decided", once)
    with sky.Compute(nodes=2, options=sky.Options(console=False)) as compute, ThreadPoolExecutor(1) as beside:
        running = beside.submit(lambda: forever() @ compute)
        wait_until(lambda: compute.pool.view.runs, what="the run")
        os.kill(compute.pool.links[1].welcome["pid"], signal.SIGTERM)  # its link tries no more then
        # By whether its rank had begun: node 1 is gone: its agent was; rank 1 was lost: the agent of node 1 was.
        with pytest.raises(sky.RunError, match=r"agent (of node 1 )?was ended on its machine"):
            running.result(60)
        wait_until(lambda: failed == [1], what="the look that failed")


def test_frozen_agent_does_not_block_attach(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_link, "WELCOME", 1.0)
    with sky.Compute(name="shared", nodes=2, options=sky.Options(console=False)) as compute:
        assert rank() @ compute == [0, 1]
        agent = compute.pool.links[1].welcome["pid"]
        os.kill(agent, signal.SIGSTOP)
        try:
            with sky.attach("shared") as other:
                messages: list[str] = []

                def note(event: Event) -> None:
                    if isinstance(event, NodeLink):
                        messages.append(event.detail)

                on_loop(lambda: other.pool.news.subscribe(note, None))
                assert other.pool.links[0].up and not other.pool.links[1].up
                wait_until(lambda: any("sent nothing for 1 s" in each for each in messages), what="the news")
                os.kill(agent, signal.SIGCONT)
                wait_until(lambda: other.pool.links[1].up, 60, what="the link")
                assert rank() @ other == [0, 1]
        finally:
            os.kill(agent, signal.SIGCONT)


# A pool ends while this client uses it, and it is not this client that ends it.


QUIET = sky.Options(console=False, grace=1.0)


@sky.function
def sleep_forever() -> None:
    while True:
        time.sleep(0.05)


@sky.function
def trickle():  # type: ignore[no-untyped-def]
    yield 1
    while True:
        time.sleep(0.05)


def end_from_elsewhere(name: str) -> int:
    """Tear a pool down from another process, and return that process's id."""
    code = "import os, sys, skyward_core as sky; sky.attach(sys.argv[1]).down(); print(os.getpid())"
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_waiting_calls_report_which_process_ended_the_pool(home: Path) -> None:
    with sky.Compute(nodes=2, name="shared", options=QUIET) as compute, ThreadPoolExecutor() as threads:
        values = trickle() >> compute
        assert next(values) == 1
        waits: list[Future[Any]] = [
            threads.submit(lambda: sleep_forever() @ compute),
            threads.submit(lambda: sleep_forever() >> compute),
            threads.submit(lambda: sky.gather(*[sleep_forever()] * 4) >> compute),
            threads.submit(lambda: next(values)),
            sleep_forever() > compute,
        ]
        wait_until(lambda: len(compute.pool.context.registry.runs) == 5, what="five runs")
        pid = end_from_elsewhere("shared")
        reported = [wait.exception(30) for wait in waits]
        assert [type(error) for error in reported] == [sky.PoolGone] * 5
        for error in reported:
            assert isinstance(error, sky.PoolGone)
            assert re.fullmatch(rf"process {pid} \(-c\) of \S+@\S+", error.by)
            assert abs(time.time() - error.at) < 60
            assert error.by in str(error)
        with pytest.raises(sky.PoolGone, match=f"process {pid} "):
            _ = rank() @ compute
        with pytest.raises(sky.PoolGone, match=f"process {pid} "):
            _ = list(trickle() >> compute)
        wait_until(lambda: compute.pool.view.state == "gone", what="the view's end")
        assert compute.pool.view.ended_at == Ledger().pool(compute.pool.row.token).ended_at, "not when we saw it"
    assert compute.receipt is not None
    assert compute.receipt.ok


def test_concurrent_teardowns_of_a_local_pool_succeed(home: Path) -> None:
    root = home / "local" / "shared.0123456789abcdef"
    (root / "ended").mkdir(parents=True)
    (root / "spec").touch()

    async def both() -> None:
        await asyncio.gather(*(Local().teardown("shared") for _ in range(4)))

    asyncio.run(both())
    assert not root.exists()


def test_folder_recreated_during_removal_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_dir", lambda path: False)  # so it was when we looked
        _remove_tree(tmp_path)
    assert tmp_path.exists()


def test_run_on_a_pool_after_its_time_to_live_is_an_error(home: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False, ttl=0.5)) as compute:
        wait_until(lambda: compute.pool.context.external_end, what="the news of the end")
        with pytest.raises(sky.PoolGone, match=r"ended itself at .*: its time to live of 0.5 s expired"):
            _ = rank() @ compute


def test_pool_end_unknown_to_agents_is_found_in_the_ledger(home: Path) -> None:
    with sky.Compute(nodes=1, name="shared", options=QUIET) as compute:
        wait = sleep_forever() > compute
        (link,) = compute.pool.links
        there = link.transport.socket  # type: ignore[attr-defined]

        def cut() -> None:
            link.transport.socket = there.with_name("elsewhere")  # type: ignore[attr-defined]
            link._pipe.close()  # type: ignore[union-attr]

        on_loop(cut)
        pid = end_from_elsewhere("shared")
        error = wait.exception(30)
        assert isinstance(error, sky.PoolGone)
        # Where its receipt takes long nobody can say more.
        assert error.by.startswith(f"process {pid} ") or error.by == "another client"


def test_agent_killed_on_its_machine_loses_only_its_node(home: Path, tmp_path: Path) -> None:
    def hold(there: str) -> None:
        open(f"{there}/{sky.instance_info().rank}", "w").close()
        while True:
            time.sleep(0.05)

    with sky.Compute(nodes=2, options=QUIET) as compute:
        with ThreadPoolExecutor() as threads:
            wait = threads.submit(lambda: sky.function(hold)(str(tmp_path)) @ compute)
            wait_until(lambda: all((tmp_path / rank).exists() for rank in "01"), what="both ranks")
            os.kill(compute.pool.links[1].welcome["pid"], signal.SIGTERM)
            error = wait.exception(30)
        assert isinstance(error, sky.RunError)
        assert (error.root_cause.rank, error.root_cause.outcome) == (1, "lost")
        assert error.root_cause.message == "the agent of node 1 was ended on its machine"
        wait_until(lambda: compute.pool.links[1].gone, what="the loss of the node")
        assert rank() >> compute == 0


NOT_INSTALLED = "torch._dynamo"  # what training uses of it has a stand-in


@sky.function
def serving_rank() -> int:
    return pool_rank()


@sky.function
def say(word: str) -> str:
    print(word, flush=True)
    return word


def test_run_on_a_lost_node_fails_and_the_next_has_all_ranks(home: Path, tmp_path: Path) -> None:
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
        assert serving_rank() @ compute == [0, 1]  # waits for the other machine
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


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("node", [0, 1])
def test_node_logs_continue_after_a_machine_replacement(home: Path, node: int) -> None:
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


def test_tasks_go_to_available_nodes_during_a_replacement(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Provider(monkeypatch)
    monkeypatch.setattr(node_recovery, "REPLACEMENT_PAUSES", (0.05, 0.05))
    with sky.Compute(nodes=2, options=REPLACE) as compute:
        lose(compute, 0)  # the head
        node = compute.pool.view.nodes[0]
        wait_until(lambda: node.retry_at is not None)
        assert "none is left in the shop" in node.detail and node.phase == "requested"
        assert compute.pool.view.state == "degraded"
        assert "none is left in the shop" in compute.pool.view.detail
        assert serving_rank() >> compute == 1
        assert sky.gather(*[serving_rank() for _ in range(5)]) >> compute == (1,) * 5
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(lambda: serving_rank() @ compute)
            wait_until(lambda: len(shop.asked) > 3)
            assert len(set(shop.asked)) == 1, "one intent until a machine is made"
            assert not running.done()
            shop.refuses = False
            assert running.result(30) == [0, 1]
    assert compute.receipt is not None and compute.receipt.ok


@pytest.mark.proof("1 s of a processor")
def test_broadcast_without_a_replacement_machine_is_rejected(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Provider(monkeypatch)
    monkeypatch.setattr(
        node_recovery, "REPLACEMENT_PAUSES", (600.0, 600.0)
    )  # beyond start_timeout: there is one attempt
    with sky.Compute(nodes=2, name="given-up", options=REPLACE) as compute:
        lose(compute, 1)
        wait_until(lambda: "none is left" in compute.pool.view.nodes[1].detail)
        assert (compute.pool.view.nodes[1].phase, len(shop.asked)) == ("gone", 1)
        with pytest.raises(sky.RunError, match=r"node 1 of the pool is lost.*none is left in the shop"):
            serving_rank() @ compute
        assert serving_rank() >> compute == 0
        assert compute.pool.view.state == "degraded"
        shop.refuses = False
        with sky.attach("given-up") as again:  # has it tried anew
            assert serving_rank() @ again == [0, 1]
    assert compute.receipt is not None and compute.receipt.ok


def test_teardown_does_not_wait_for_a_replacement_machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Provider(monkeypatch)
    with ThreadPoolExecutor(1) as beside:
        with sky.Compute(nodes=2, options=REPLACE) as compute:
            lose(compute, 1)
            wait_until(lambda: compute.pool.view.nodes[1].retry_at is not None)
            running = beside.submit(lambda: serving_rank() @ compute)
            wait_until(lambda: len(compute.pool.context.registry.runs) == 1)
        with pytest.raises(sky.Cancelled, match="torn down"):
            running.result(30)
    assert compute.receipt is not None
    assert (compute.receipt.created, compute.receipt.ok) == (2, True)


def test_session_knows_whether_a_run_survives_its_exit(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Provider(monkeypatch)
    with sky.Compute(nodes=2, options=REPLACE) as compute, new_session() as session:
        session.attach(compute.name).result(30)
        there = session.launch(compute.name, make_task(forever()), one=True).result(30)
        wait_until(lambda: there.tasks.get(0) is not None)
        assert session.survives_exit(compute.name, there.id).result(30)
        lose(compute, 1 - there.tasks[0].node)
        wait_until(lambda: session.view(compute.name).nodes[1 - there.tasks[0].node].retry_at is not None)
        waits = session.launch(compute.name, make_task(serving_rank())).result(30)
        assert not session.survives_exit(compute.name, waits.id).result(30)
        session.detach_pool(compute.name).result(30)
        assert (there.state, waits.state) == ("running", "cancelled")
        rows = {run: Ledger().run(run) for run in (there.id, waits.id)}
        states = {run: row and row.state for run, row in rows.items()}
        assert states == {there.id: "running", waits.id: "cancelled"}


def test_run_waiting_for_a_node_is_cancelled_when_its_client_leaves(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No node knows the run, so no other client could continue it."""
    shop = Provider(monkeypatch)
    monkeypatch.setattr(node_recovery, "REPLACEMENT_PAUSES", (0.05, 0.05))
    with sky.Compute(nodes=2, options=REPLACE) as compute, ThreadPoolExecutor(2) as beside:
        other = sky.attach(compute.name)
        lose(compute, 1)
        wait_until(lambda: other.pool.context.roster.is_replacing and compute.pool.context.roster.is_replacing)
        waits = beside.submit(lambda: serving_rank() @ other)
        wait_until(lambda: len(other.pool.context.registry.runs) == 1)
        (run,) = other.pool.context.registry.runs
        ours = beside.submit(lambda: serving_rank() @ compute)
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
def test_leaving_client_is_told_where_its_run_continues(home: Path, tmp_path: Path) -> None:
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
            PoolError, match=rf"The run continues. Get its results with sky.attach\(.*\).wait\('{run}'\)\."
        ):
            running.result(30)
        with pytest.raises(PoolError, match="of 99 tasks had not been sent"):
            many.result(30)
        (tmp_path / "go").touch()
        with sky.attach(compute.name) as again:
            assert again.wait(run) == [0, 1]


@pytest.mark.proof("0.6 s of a processor")
def test_replacement_machine_that_does_not_start_is_replaced(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert serving_rank() @ compute == [0, 1]
        former = Ledger().replaced_machines(compute.pool.row.token)
        assert [machine.id for machine in former][1:] == [broken[0].id]
    assert compute.receipt is not None
    assert (compute.receipt.created, compute.receipt.gone, compute.receipt.ok) == (4, (0, 1, 1, 1), True)
    assert not list((home / "local").glob("*"))


@sky.function
def which() -> int:
    print("one of two clients", flush=True)
    return sky.instance_info().rank


def test_clients_that_judge_a_lost_machine_differently_agree_on_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client sees the machine as gone, the other as usable; one decides and the other follows."""
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
    from skyward_core.transport.local_transport_and_environments import LocalTransport
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
def test_next_client_continues_the_replacement_of_a_killed_client(home: Path, where: str) -> None:
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
def test_teardown_after_a_client_killed_during_replacement_is_complete(home: Path) -> None:
    client = script(home, KILLED_HALF_WAY.replace("WHERE", "LocalTransport.prepare"))
    assert client.wait(60) == -signal.SIGKILL, client.communicate()
    with new_session() as session:
        receipt = session.tear_down("half").result(30)
    assert (receipt.created, receipt.gone, receipt.ok) == (3, (0, 1, 1), True)
    assert Ledger().live_pools() == []
    assert not list((home / "local").glob("*"))
