"""Which run a person means by a word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.model.errors import UsageError
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import Receipt
from skyward_tui.commands.reach import meant, up

POOLS = {"t1": "train", "t2": "train", "t3": "tune", "t4": "idle"}
RUNS = {"aa11": "t1", "aa22": "t1", "ab33": "t2", "7e44": "t3", "tr55": "t3"}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Any]:
    ledger = Ledger(tmp_path / "ledger.db")
    for token, name in POOLS.items():
        ledger.intend(token, name, {}, {})
        ledger.ended(token, Receipt(name, 0, (), (), 0.0))
    ledger.record(
        opened=[(token, run, "f", "broadcast", 1, 100.0 + at) for at, (run, token) in enumerate(RUNS.items())]
    )
    yield SimpleNamespace(ledger=ledger)
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
    assert meant(session, word).run == run


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
        meant(session, word)


def test_a_pool_that_is_over_is_called_so(session: Any) -> None:
    with pytest.raises(
        UsageError, match=r"pool train is not up any more, it ended at .*skyward-tui logs train"
    ):
        up(session, ["train"])
