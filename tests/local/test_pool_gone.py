"""A pool ends while this client uses it, and it is not this client that ends it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.providers.local.provider import Local, _remove_tree
from skyward_core.store.ledger import Ledger
from tests.support.faults import on_loop
from tests.support.waiting import wait_until

QUIET = sky.Options(console=False, grace=1.0)


@sky.function
def forever() -> None:
    while True:
        time.sleep(0.05)


@sky.function
def trickle():  # type: ignore[no-untyped-def]
    yield 1
    while True:
        time.sleep(0.05)


@sky.function
def rank() -> int:
    return sky.instance_info().rank


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
            threads.submit(lambda: forever() @ compute),
            threads.submit(lambda: forever() >> compute),
            threads.submit(lambda: sky.gather(*[forever()] * 4) >> compute),
            threads.submit(lambda: next(values)),
            forever() > compute,
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
        with pytest.raises(sky.PoolGone, match=r"ended itself at .*: its time to live of 0.5 s was over"):
            _ = rank() @ compute


def test_an_end_that_no_agent_could_tell_is_found_in_the_ledger(home: Path) -> None:
    with sky.Compute(nodes=1, name="shared", options=QUIET) as compute:
        wait = forever() > compute
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
