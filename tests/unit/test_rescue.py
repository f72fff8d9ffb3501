"""Before rented machines end: what lies there that nobody has fetched is brought, or named."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from skyward_core.model.machines import Machine
from skyward_core.node.agent.agent_lifetime import MAX_POSTPONE_INTERVAL
from skyward_core.pool import fetch_retained_results
from skyward_core.pool.ledger_reconciliation import close_if_gone
from skyward_core.providers.aws.instance_launch import MIN_DEADMAN_MINUTES
from skyward_core.store.ledger import Ledger
from skyward_core.store.pool_folder import PoolFolder
from skyward_core.views.events import UnfetchedNews
from tests.support.ledger_runs import record_runs

A, B = "aa", "bb"  # runs


def machine(node: int) -> Machine:
    return Machine(f"i-{node}", node, f"10.0.0.{node}", "", extra={"folder": f"p.x.{node}"})


class Provider:
    """Whose machines are found so; it notes which it was asked about."""

    def __init__(self, *found: Machine) -> None:
        self.found = found
        self.asked: list[str] = []

    async def quiet(self, pool: str, machines: Sequence[Machine]) -> list[Machine]:
        self.asked += [each.id for each in machines]
        return [each for each in self.found if each.id in self.asked]


class Visit:
    """Brings what it is told to; node 9's fails."""

    received_bytes = 0
    made: ClassVar[list[tuple[int, list[str]]]] = []

    def __init__(self, row: Any, machine: Machine, archive: Any, ledger: Any) -> None:
        self.machine = machine

    async def fetch_all(self, *, only: set[str]) -> None:
        if self.machine.node == 9:
            raise OSError("disk full")
        Visit.made.append((self.machine.node, sorted(only)))


def holding(node: int, **runs: int) -> Machine:
    """A machine on which these runs' results lie."""
    kept = {"runs": runs, "bytes": sum(runs.values()), "until": 1e10}
    return replace(machine(node), state="ending", extra=machine(node).extra | {"kept": kept})


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives a pool's context: of a provider, and of what each node said at its end."""
    monkeypatch.setattr(fetch_retained_results, "NodeResultsFetcher", Visit)
    monkeypatch.setattr(Visit, "made", [])

    def make(provider: Any, *told: dict[str, int] | None, runs: int = 1) -> Any:
        return SimpleNamespace(
            archive=SimpleNamespace(folder=tmp_path),
            links=[SimpleNamespace(node=node, retained_results=left) for node, left in enumerate(told)],
            machines=[machine(node) for node in range(len(told))],
            ledger=SimpleNamespace(runs=lambda token: [None] * runs),
            provider=provider, name="p", token="t", row=None,
        )  # fmt: skip

    return make


async def of(
    context: Any, machines: Sequence[Machine], *, give_up: bool = False, troubled: Any = (), said: Any = None
) -> Any:
    words: list[str] = [] if said is None else said
    return await fetch_retained_results.fetch_remaining(context, machines, troubled, words.append, give_up=give_up)


def test_the_machines_deadman_waits_for_it() -> None:
    assert (
        fetch_retained_results.QUERY_TIMEOUT + fetch_retained_results.PATIENCE + 2 * MAX_POSTPONE_INTERVAL
        < MIN_DEADMAN_MINUTES * 60
    )


async def test_machines_that_said_that_nothing_is_left_are_not_asked(pool: Any) -> None:
    provider = Provider()
    assert await of(pool(provider, {}, {}), [machine(0), machine(1)]) == ([], [])
    assert provider.asked == []


async def test_one_whose_end_was_not_clean_is_asked_all_the_same_and_once(pool: Any) -> None:
    provider = Provider(replace(machine(1), state="ending"))
    assert await of(pool(provider, {}, {}), [machine(0), machine(1)], troubled={1}) == ([], [])
    assert provider.asked == ["i-1"]
    assert await of(pool(provider, None, None), [machine(0), machine(1)]) == ([], [])  # the next `down`
    assert provider.asked == ["i-1"]


async def test_what_does_not_come_is_named(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_retained_results, "MAX_BYTES", 1000)
    away = replace(machine(1), state="unreachable", extra={"why": "no route"})
    provider = Provider(holding(0, aa=100, bb=5000), away, holding(9, aa=100))
    said: list[str] = []
    notes, lost = await of(pool(provider, {A: 1}, None), [machine(0), machine(1), machine(9)], said=said)
    assert said[0] == "looking for results and logs that nobody has fetched"
    assert said[1] == "results and logs that nobody has fetched are brought here: 0 bytes of 200 bytes"
    assert Visit.made == [(0, [A])]
    assert notes == ["fetched run aa (100 bytes) on node 0 (10.0.0.0)"]
    assert lost == [
        "node 1 (10.0.0.1) could not be asked for results, logs and files that nobody has fetched (no route)",
        "run bb (5 kB) on node 0 (10.0.0.0): more than 1 kB is not brought at a pool's end",
        "run aa (100 bytes) on node 9 (10.0.0.9): disk full",
    ]


async def test_what_takes_too_long_is_given_up_and_named(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(self: Visit, *, only: set[str]) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Visit, "fetch_all", hangs)
    monkeypatch.setattr(fetch_retained_results, "PATIENCE", 0.01)
    _, lost = await of(pool(Provider(holding(0, aa=1)), {A: 1}), [machine(0)])
    assert lost == ["run aa (1 bytes) on node 0 (10.0.0.0): it was not here after 0.01 s"]


async def test_machines_that_take_too_long_to_answer_are_named(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Provider):
        async def quiet(self, pool: str, machines: Sequence[Machine]) -> list[Machine]:
            await asyncio.Event().wait()
            return []

    monkeypatch.setattr(fetch_retained_results, "QUERY_TIMEOUT", 0.01)
    _, lost = await of(pool(Silent(), {A: 1}), [machine(0)])
    assert lost == ["what nobody had fetched: node 0 (10.0.0.0) did not all answer within 0.01 s"]


async def test_what_is_given_up_is_named_and_not_looked_for(pool: Any) -> None:
    provider = Provider()
    notes, lost = await of(pool(provider, {A: 5000}), [machine(0)], give_up=True)
    assert notes == ["gave up what nobody had fetched of run aa (5 kB)"] and not lost and not provider.asked


async def test_a_pool_without_runs_has_left_nothing(pool: Any) -> None:
    assert await of(pool(Provider(), None, runs=0), [machine(0)]) == ([], [])


async def test_machines_of_a_provider_that_cannot_be_asked_are_named(pool: Any) -> None:
    _, lost = await of(pool(object(), {A: 5000, B: 1}), [machine(0)])
    assert lost == ["what nobody had fetched of run aa (5 kB), run bb (1 bytes)"]


async def test_what_went_with_machines_that_ended_themselves_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))

    class Ended(Provider):
        async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
            return [replace(each, state="gone") for each in known]

        async def teardown(self, pool: str) -> None:
            return None

    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        row = ledger.record_intent("t", "p", {}, {"options": {}})
        ledger.record_created("t", [machine(0)])
        archive = PoolFolder("p.t")
        for waiting in ({"dd": 5}, {"cc": 5}):  # the other was fetched meanwhile
            last = UnfetchedNews(pool="p", runs=waiting)
            archive.add_event(last)
        archive.close()
        record_runs(
            ledger, opened=[("t", run, "f", "broadcast", 1, float(at)) for at, run in enumerate((A, B, "cc", "dd"))]
        )
        record_runs(ledger, ends=[(run, "done", 2.0, None) for run in (B, "cc", "dd")])
        receipt = await close_if_gone(row, Ended(), ledger)  # type: ignore[arg-type]
        assert ledger.pool("t").ended_at == last.at, "no machine tells when: it was heard of then"
    assert receipt is not None
    assert receipt.lost == ("what nobody had fetched of run aa", "what nobody had fetched of run cc")
