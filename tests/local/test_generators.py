"""A generator's values come exactly once and in order, whatever becomes of the link and of the agent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.pool.agent_link import Link
from skyward_core.pool.runs.run import Run
from tests.support.faults import on_loop
from tests.support.waiting import wait_until

COUNT = 120
LARGE = 100_000  # bytes; travels as a file of the spool


@sky.function
def values(count: int) -> Iterator[object]:
    for i in range(count):
        time.sleep(0.002)
        yield i if i % 10 else (i, b"x" * LARGE)


def number(value: object) -> object:
    return value[0] if isinstance(value, tuple) else value


def drop_link(compute: sky.Compute) -> None:
    on_loop(lambda: compute.pool.links[0]._pipe and compute.pool.links[0]._pipe.close())  # type: ignore[func-returns-value]


def kill_agent(compute: sky.Compute) -> None:
    """Also waits for the next one, else that would be a node that is gone."""
    link = compute.pool.links[0]
    pid = link.welcome["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: link.up and link.welcome["pid"] != pid, what="a new agent")


def test_values_come_once_and_in_order_over_links_that_drop(home: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False)) as compute:
        got = []
        for value in values(COUNT) >> compute:
            got.append(number(value))
            if len(got) % 12 == 5:
                drop_link(compute)
        assert got == list(range(COUNT))
        spool = Path(compute.pool.context.machines[0].extra["folder"], "spool")
        wait_until(lambda: not [*spool.glob("*.item"), *spool.glob("*.yields")], what="the spool's end of it")


def test_values_come_once_and_in_order_from_agents_that_are_killed(home: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False)) as compute:
        got = []
        for value in values(COUNT) >> compute:
            got.append(number(value))
            if len(got) in (5, 60):
                kill_agent(compute)
        assert got == list(range(COUNT))


def test_a_reader_that_was_cut_off_gets_what_was_made_meanwhile(home: Path, tmp_path: Path) -> None:
    """More than a window of it: the rank goes on while nobody takes its values."""
    mark = tmp_path / "made"

    def produce() -> Iterator[int]:
        yield from range(200)
        mark.touch()

    with sky.Compute(nodes=1, options=sky.Options(console=False)) as compute:
        taken = sky.function(produce)() >> compute
        assert next(taken) == 0
        link = compute.pool.links[0]
        there = link.transport.socket  # type: ignore[attr-defined]

        def cut() -> None:
            link.transport.socket = there.with_name("elsewhere")  # type: ignore[attr-defined]
            link._pipe.close()  # type: ignore[union-attr]

        on_loop(cut)
        wait_until(mark.exists, what="the generator's end")
        os.kill(link.welcome["pid"], signal.SIGKILL)  # what waits for the reader waits on the disk
        link.transport.socket = there  # type: ignore[attr-defined]
        assert list(taken) == list(range(1, 200))


def test_values_that_are_gone_are_an_error_that_says_from_where(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False)) as compute:
        taken = values(COUNT) >> compute
        assert number(next(taken)) == 0
        pass_on = Run.on_item

        def lose_one(run: Run, link: Link, header: Any, body: bytes) -> None:
            if header["seq"] != 40:
                pass_on(run, link, header, body)

        monkeypatch.setattr(Run, "on_item", lose_one)
        got = []
        with pytest.raises(sky.RunError, match=r"value 40 of values\(\).* was lost") as caught:
            for value in taken:
                got.append(number(value))
        assert got == list(range(1, 40))
        assert caught.value.root_cause.outcome == "lost"
