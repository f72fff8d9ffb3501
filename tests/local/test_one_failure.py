"""One failure at an unlucky moment (a locked ledger, an agent that is frozen) makes nothing final, and nothing hang."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.model.errors import LedgerError
from skyward_core.pool import agent_link
from skyward_core.pool.node_roster import NodeRoster
from skyward_core.store import ledger
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
                wait_until(lambda: any("has said nothing for 1 s" in each for each in said), what="the news")
                os.kill(agent, signal.SIGCONT)
                wait_until(lambda: other.pool.links[1].up, 60, what="the link")
                assert rank() @ other == [0, 1]
        finally:
            os.kill(agent, signal.SIGCONT)
