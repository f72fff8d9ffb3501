"""A run that prints without end fills no disk: its log ends with a word about that, and the next run's is whole."""

from __future__ import annotations

from pathlib import Path

import skyward_core as sky
from skyward_core.transport.background_loop import submit
from skyward_core.views.events import NodeLink
from tests.support.faults import on_loop
from tests.support.processes import read_log
from tests.support.waiting import wait_until

LIMIT = 200_000


def test_what_is_printed_beyond_the_limit_is_dropped_with_a_word_and_no_other_run_sees_it(home: Path) -> None:
    def prints(lines: int, word: str) -> None:
        for number in range(lines):
            print(f"{word} {number:010d}", flush=number % 100 == 0)

    told: list[str] = []
    options = sky.Options(console=False, log_limit=LIMIT)
    with sky.Compute(nodes=1, options=options) as compute:
        pool = compute.pool
        pool.news.subscribe(lambda event: told.append(event.detail) if isinstance(event, NodeLink) else None, None)
        for lines, word in ((10, "before"), (60_000, "flood"), (10, "after"), (60_000, "again")):
            sky.function(prints)(lines, word) >> compute
        on_loop(pool.context.background.run_deferred)
        runs = list(pool.view.runs)
        for run in runs:
            submit(pool.news.wait_logs_complete(run)).result(60)
        on_loop(pool.news.records.flush)
        wait_until(lambda: len(told) >= 2, what="the news that something is dropped")
        ledger = pool.ledger
        before, flood, after, again = (read_log(ledger, run, 0).decode() for run in runs)
    assert before == "".join(f"before {number:010d}\n" for number in range(10))
    assert after == "".join(f"after {number:010d}\n" for number in range(10))
    for word, text in (("flood", flood), ("again", again)):
        kept, said = text[:LIMIT], text[LIMIT:]
        whole = "".join(f"{word} {number:010d}\n" for number in range(LIMIT // 10))
        assert kept == whole[:LIMIT]
        assert said.startswith("\nskyward: this run has printed 200,000 bytes here, which is its limit")
        assert said.count("\n") == 2
    assert f"during {runs[1]}: the rest of it in r000.out is dropped" in told[0]
