"""A failure at an unlucky moment, or a pool that ends meanwhile, hangs nothing and is named."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.model.errors import LedgerError
from skyward_core.pool import agent_link
from skyward_core.pool.node_roster import NodeRoster
from skyward_core.providers.local.provider import Local, _remove_tree
from skyward_core.store import ledger
from skyward_core.store.ledger import Ledger
from skyward_core.views.events import Event, NodeLink, NodePhase
from tests.support.faults import on_loop
from tests.support.loss import REPLACE, Provider, cut, lose, wait_for
from tests.support.waiting import wait_until


@sky.function
def forever() -> None:
    threading.Event().wait()


@sky.function
def rank() -> int:
    return sky.instance_info().rank


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Another process has the ledger."""
    other = sqlite3.connect(home / "ledger.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def test_the_calls_of_a_node_that_is_lost_end_although_the_ledger_is_locked(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "LOCK_TIMEOUT", 0.2)
    options = sky.Options(console=False, lost_after=1.0)
    with sky.Compute(nodes=2, options=options) as compute, ThreadPoolExecutor(1) as beside:
        running = beside.submit(lambda: forever() @ compute)
        wait_until(lambda: compute.pool.view.runs, what="the run")
        with locked(home):
            cut(compute.pool.links[1])
            with pytest.raises(sky.RunError, match="node 1 is gone"):
                running.result(60)


@pytest.mark.proof("1 s of a processor")
def test_a_replacement_goes_on_once_the_ledger_is_free(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_node_that_could_not_be_examined_is_examined_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.proof("1 s of a processor")
def test_tasks_with_large_arguments_go_to_nodes_that_have_them(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def weigh(data: bytes, index: int) -> int:
        if index == 0:
            while not (tmp_path / "go").exists():
                pass
        return len(data) + index

    provider = Provider(monkeypatch)
    with sky.Compute(nodes=2, options=REPLACE) as compute, ThreadPoolExecutor(1) as beside:
        assert rank() @ compute == [0, 1]
        lose(compute, 1)
        wait_for(compute, "degraded")
        tasks = [sky.function(weigh)(b"x" * 300_000, index) for index in range(200)]
        running = beside.submit(lambda: list(sky.gather(*tasks) >> compute))
        runs = compute.pool.context.registry.runs
        wait_until(lambda: runs and next(iter(runs.values())).sent, 60, "a call")
        provider.refuses = False
        wait_for(compute, "up")
        (tmp_path / "go").touch()
        assert running.result(60) == [300_000 + index for index in range(200)]


def test_an_agent_that_is_frozen_keeps_no_client_from_its_pool(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_link, "WELCOME", 1.0)
    with sky.Compute(name="shared", nodes=2, options=sky.Options(console=False)) as compute:
        assert rank() @ compute == [0, 1]
        agent = compute.pool.links[1].welcome["pid"]
        os.kill(agent, signal.SIGSTOP)
        try:
            with sky.attach("shared") as other:
                said: list[str] = []

                def note(event: Event) -> None:
                    if isinstance(event, NodeLink):
                        said.append(event.detail)

                on_loop(lambda: other.pool.news.subscribe(note, None))
                assert other.pool.links[0].up and not other.pool.links[1].up
                wait_until(lambda: any("sent nothing for 1 s" in each for each in said), what="the news")
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
    """Tear a pool down by another process; gives that one's id."""
    code = "import os, sys, skyward_core as sky; sky.attach(sys.argv[1]).down(); print(os.getpid())"
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_what_waits_on_a_pool_that_another_process_ends_is_told_who_did(home: Path) -> None:
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
        told = [wait.exception(30) for wait in waits]
        assert [type(error) for error in told] == [sky.PoolGone] * 5
        for error in told:
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


def test_two_who_see_a_pool_gone_may_both_clear_it_away(home: Path) -> None:
    root = home / "local" / "shared.0123456789abcdef"
    (root / "ended").mkdir(parents=True)
    (root / "spec").touch()

    async def both() -> None:
        await asyncio.gather(*(Local().teardown("shared") for _ in range(4)))

    asyncio.run(both())
    assert not root.exists()


def test_a_folder_that_another_makes_anew_as_it_is_cleared_away_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_dir", lambda path: False)  # so it was when we looked
        _remove_tree(tmp_path)
    assert tmp_path.exists()


def test_a_run_on_a_pool_whose_time_is_over_says_so(home: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False, ttl=0.5)) as compute:
        wait_until(lambda: compute.pool.context.external_end, what="the news of the end")
        with pytest.raises(sky.PoolGone, match=r"ended itself at .*: its time to live of 0.5 s expired"):
            _ = rank() @ compute


def test_an_end_that_no_agent_could_tell_is_found_in_the_ledger(home: Path) -> None:
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


def test_an_agent_that_is_ended_on_its_machine_takes_only_its_node(home: Path, tmp_path: Path) -> None:
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
