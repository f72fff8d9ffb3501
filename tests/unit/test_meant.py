"""Which run a person means by a word."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.model.errors import UsageError
from skyward_core.model.machines import Machine
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow, Receipt, RetainedResults
from skyward_tui.cli.pool_and_run_lookup import live_and_retained_pools, live_pools, resolve_run
from tests.support.ledger_runs import record_runs

POOLS = {"t1": "train", "t2": "train", "t3": "tune", "t4": "idle"}
RUNS = {"aa11": "t1", "aa22": "t1", "ab33": "t2", "7e44": "t3", "tr55": "t3"}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Any]:
    ledger = Ledger(tmp_path / "ledger.db")
    for token, name in POOLS.items():
        ledger.record_intent(token, name, {}, {})
        ledger.record_teardown(token, Receipt(name, 0, (), (), 0.0))
    record_runs(
        ledger, opened=[(token, run, "f", "broadcast", 1, 100.0 + at) for at, (run, token) in enumerate(RUNS.items())]
    )
    done: Future[list[Any]] = Future()
    done.set_result([])
    yield SimpleNamespace(ledger=ledger, probe_pools=lambda pools: done)
    ledger.close()


@pytest.mark.parametrize(
    ("word", "run"),
    [
        ("aa11", "aa11"),
        ("aa1", "aa11"),
        ("7", "7e44"),
        ("train", "ab33"),  # the latest pool of that name
        ("train.t1", "aa22"),  # the latest run of the pool with that key
        ("tra", "ab33"),
        ("tun", "tr55"),
    ],
)
def test_a_word_that_fits_one_thing_means_it(session: Any, word: str, run: str) -> None:
    assert resolve_run(session, word).run == run


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("aa", r"'aa' may mean aa22 \(f\), aa11 \(f\): write more of it"),
        ("tr", r"'tr' may mean train, tr55 \(f\)"),
        ("idle", "pool idle has had no run"),
        ("nope", "no run or pool 'nope'; skyward-tui ls --all"),
        ("train.t9", "no run or pool"),
        ("%", "no run or pool"),
    ],
)
def test_a_word_that_fits_nothing_or_more_is_refused(session: Any, word: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        resolve_run(session, word)


def test_a_pool_that_is_over_is_called_so(session: Any) -> None:
    with pytest.raises(UsageError, match=r"pool train is not up any more, it ended at .*skyward-tui logs train"):
        live_pools(session, ["train"])


@pytest.fixture
def namesakes(tmp_path: Path) -> Iterator[Any]:
    """Pools of one name: two have ended and left something on their hosts, then one came up."""
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        for token in ("t1", "t2", "t3"):
            ledger.record_intent(token, "train", {}, {})
            if token != "t3":
                kept = [
                    RetainedResults(token, Machine(f"m{node}", node, "h", "h"), {"aa": 7}, 7, 2e9) for node in (0, 1)
                ]
                ledger.record_teardown(token, Receipt("train", 2, (0, 1), (), 0.1), kept)
        yield SimpleNamespace(ledger=ledger, retained_results=ledger.retained_results)


def tokens(found: tuple[list[PoolRow], list[PoolRow]]) -> tuple[list[str], list[str]]:
    return [row.token for row in found[0]], sorted(row.token for row in found[1])


def test_a_name_means_the_pool_that_is_up_and_a_key_any(namesakes: Any) -> None:
    assert tokens(live_and_retained_pools(namesakes, ["train"])) == (["t3"], [])
    assert tokens(live_and_retained_pools(namesakes, ["train", "train.t3", "train.t1"])) == (["t3"], ["t1"])
    with pytest.raises(UsageError, match=r"no pool 'train\.t9' is up; did you mean 'train'"):
        live_pools(namesakes, ["train.t9"])


def test_a_name_means_all_that_had_it_where_none_is_up(namesakes: Any) -> None:
    namesakes.ledger.record_teardown("t3", Receipt("train", 0, (), (), 0.0))
    assert tokens(live_and_retained_pools(namesakes, ["train"])) == ([], ["t1", "t2"])
    assert tokens(live_and_retained_pools(namesakes, ["train.t2"])) == ([], ["t2"])
