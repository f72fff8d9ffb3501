"""A node that cannot be reached, and of which nobody can say that it is gone."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.store.ledger import Ledger
from tests.support.faults import on_loop
from tests.support.loss import cut
from tests.support.pool_logs import last_run, log_of
from tests.support.waiting import wait_until


@sky.function
def forever() -> None:
    print("its last words", flush=True)
    while True:
        time.sleep(0.05)


@sky.function
def rank() -> int:
    return sky.instance_info().rank


def test_the_only_node_is_suspected_and_then_lost_with_both_times(home: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False, lost_after=1.0)) as compute:
        (link,) = compute.pool.links
        node = compute.pool.view.nodes[0]
        wait = forever() > compute
        log = compute.pool.view.logs.rank(0)
        wait_until(lambda: "its last words" in log.lines(0, 99), what="what it prints")
        agent = link.welcome["pid"]
        cut(link)
        wait_until(lambda: "suspected" in node.link_detail, what="the suspicion")
        words = r"suspected since \d\d:\d\d:\d\d, taken as lost at \d\d:\d\d:\d\d"
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


def test_a_node_that_answers_in_time_is_suspected_no_longer(home: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False, lost_after=3.0)) as compute:
        (link,) = compute.pool.links
        node = compute.pool.view.nodes[0]
        there = cut(link)
        wait_until(lambda: "suspected" in node.link_detail, what="the suspicion")
        link.transport.socket = there  # type: ignore[attr-defined]
        wait_until(lambda: node.link_up, what="the link")
        assert "suspected" not in node.link_detail
        on_loop(lambda: None)
        assert not compute.pool.context.recovery.suspects._since
        assert rank() >> compute == 0


def test_a_node_that_is_out_of_reach_when_a_client_comes_is_bounded_too(home: Path) -> None:
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
