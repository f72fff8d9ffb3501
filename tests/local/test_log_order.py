"""Both streams of a rank in their true order, each line with its time and its run: live, re-attached, stored."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.views.log_buffer import Line
from tests.support.pool_logs import last_run, settled, stored
from tests.support.sessions import new_session
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def pool(world: Path) -> Iterator[sky.Compute]:
    """One node, and nobody else's lines."""
    with sky.Compute(provider=sky.Local(), nodes=1, options=sky.Options(console=False)) as compute:
        yield compute


def told(lines: list[Line]) -> list[tuple[str, str]]:
    return [(line.text, line.about.stream) for line in lines]


def seen_by_another(pool: sky.Compute, last: str) -> list[Line]:
    """What another process that comes now is shown, by its own connection and from the files."""
    with new_session() as session:
        view = session.attach(pool.name).result(60)
        ring = view.logs.rank(0)
        wait_until(lambda: last in ring.lines(0, ring.end), what=f"{last} in the other's view")
        return ring.read(0, ring.end)


def test_streams_keep_their_order_live_and_later(pool: sky.Compute) -> None:
    def talk(seed: int) -> list[tuple[str, str]]:
        chance, said = random.Random(seed), []
        for number in range(3000):
            stream = chance.choice(("out", "err"))
            said.append((f"line {number}", stream))
            print(f"line {number}", file=sys.stderr if stream == "err" else sys.stdout)
            if chance.random() < 0.003:
                time.sleep(0.012)
        return said

    (said,) = sky.function(talk)(7) @ pool
    run = last_run(pool)
    settled(pool)
    ring = pool.pool.view.logs.for_run(run).rank(0)
    wait_until(lambda: ring.end == 3000, what="all lines")
    assert told(ring.read(0, 3000)) == said
    assert told(stored(pool, run)) == said
    assert told([line for line in seen_by_another(pool, "line 2999") if line.about.run == run]) == said


def test_children_come_after_what_was_printed_before_them_and_with_their_time(pool: sky.Compute) -> None:
    def parents() -> None:
        print("before", file=sys.stderr)
        time.sleep(0.5)
        subprocess.run(["sh", "-c", "echo from a child; sleep 0.5"], check=True)
        print("after", file=sys.stderr)

    began = time.time()
    sky.function(parents)() @ pool
    run, took = last_run(pool), time.time()
    settled(pool)
    lines = stored(pool, run)
    assert [line.text for line in lines] == ["before", "from a child", "after"]
    times = [line.about.at or 0.0 for line in lines]
    assert began - 0.01 <= times[0] < times[0] + 0.4 < times[1] < times[1] + 0.2 < times[2] <= took


def test_an_unfinished_line_is_its_runs_own(pool: sky.Compute) -> None:
    def leave(word: str, end: str) -> None:
        print(word, end=end)

    leave_it = sky.function(leave)
    leave_it("half", "") @ pool
    first = last_run(pool)
    leave_it("whole", "\n") @ pool
    second = last_run(pool)
    settled(pool)
    ring = pool.pool.view.logs.rank(0)
    wait_until(lambda: ring.lines(ring.end - 1, ring.end) == ["whole"], what="the last line")
    assert [(line.text, line.about.run) for line in ring.read(ring.end - 2, ring.end)] == [
        ("half", first),
        ("whole", second),
    ]
    assert pool.pool.view.logs.for_run(first).rank(0).lines(0, 9) == ["half"]
    assert pool.pool.view.logs.for_run(second).rank(0).lines(0, 9) == ["whole"]
    assert [line.text for line in stored(pool, first)] == ["half"]
