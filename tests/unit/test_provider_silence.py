"""A provider that never answers: whoever waits for it is told, in words, and after a while does something else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from skyward_core.model.errors import PoolError
from skyward_core.model.machines import Machine
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.pool import teardown
from skyward_core.pool.ledger_reconciliation import close_if_gone
from skyward_core.pool.pool import Pool
from skyward_core.providers import provider
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import Receipt
from tests.support.pool_parts import Client, World, intended

MESSAGE = "the provider of pool .* has not answered within 0.05 s"


class Silent(World):
    """Its provider has stopped to answer some of what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.unanswered: set[str] = set()

    async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
        await self._answer("describe")
        return await super().describe(pool, known)

    async def terminate(self, pool: str, machines: Sequence[Machine]) -> None:
        await self._answer("terminate")
        await super().terminate(pool, machines)

    async def teardown(self, pool: str) -> None:
        await self._answer("teardown")

    async def _answer(self, verb: str) -> None:
        if verb in self.unanswered:
            await asyncio.Event().wait()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Silent:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    monkeypatch.setattr(provider, "QUERY_TIMEOUT", 0.05)
    monkeypatch.setattr(teardown, "RENTED", 0.2)
    return Silent()


@pytest.mark.parametrize("verbs", [{"describe"}, {"terminate"}, {"describe", "terminate"}])
async def test_a_teardown_ends_with_the_names_of_what_may_still_run(world: Silent, verbs: set[str]) -> None:
    world.unanswered = verbs
    spec = PoolSpec(name="q", provider=world, nodes=2, options=Options(console=False, grace=0.1))
    ledger = Ledger()
    pool = await Pool.register(spec, ledger)
    await pool.start(spec)
    said: list[str] = []
    pool.news.subscribe(lambda event: said.append(getattr(event, "detail", "")), None)
    async with asyncio.timeout(60):
        receipt = await pool.down()
    assert not receipt.ok and receipt.unaccounted == ("m0", "m1")
    assert ledger.pool(pool.row.token).ended_at is None
    if "describe" in verbs:
        assert any("has not answered within 0.05 s (describe)" in each for each in said)
    if verbs == {"describe"}:
        assert set(world.ended) == {"m0", "m1"}, "told to end, though nobody says that they have"
    ledger.close()


async def test_who_comes_to_a_pool_is_told(world: Silent) -> None:
    world.unanswered = {"describe"}
    _, row = intended(world, 2)
    ledger = Ledger()
    ledger.set_pool_state(row.token, "up")
    client = Client(world, row)
    async with asyncio.timeout(60):
        with pytest.raises(PoolError, match=MESSAGE):
            await client.startup.attach_nodes()
        with pytest.raises(PoolError, match=MESSAGE):
            await close_if_gone(ledger.pool(row.token), cast(Any, world), ledger)
    await client.close()
    ledger.close()


async def test_a_node_that_is_away_is_not_waited_for_without_words(world: Silent) -> None:
    spec = PoolSpec(name="q", provider=world, nodes=2, options=Options(console=False, grace=0.1))
    ledger = Ledger()
    pool = await Pool.register(spec, ledger)
    await pool.start(spec)
    said: list[str] = []
    pool.news.subscribe(lambda event: said.append(getattr(event, "detail", "")), None)
    world.unanswered = {"describe"}
    pool.links[1].mark_lost("for a test")
    async with asyncio.timeout(60):
        await pool.context.recovery.reconnect_lost()
    assert any("has not answered within 0.05 s (describe)" in each for each in said)
    world.unanswered = set()
    assert (await pool.down()).ok
    ledger.close()


async def test_what_cannot_be_cleared_up_is_named_and_done_by_the_next_teardown(world: Silent) -> None:
    world.unanswered = {"teardown"}
    spec = PoolSpec(name="q", provider=world, nodes=1, options=Options(console=False, grace=0.1))
    ledger = Ledger()
    pool = await Pool.register(spec, ledger)
    await pool.start(spec)
    async with asyncio.timeout(60):
        receipt = await pool.down()
    assert (receipt.created, receipt.gone) == (1, (0,)) and "made beside its machines" in receipt.unaccounted[0]
    assert not receipt.ok and ledger.pool(pool.row.token).ended_at is None
    ledger.close()


async def test_what_another_pool_of_that_name_has_stays(world: Silent, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = PoolSpec(name="q", provider=world, nodes=1, options=Options(console=False, grace=0.1))
    ledger = Ledger()
    pool = await Pool.register(spec, ledger)
    await pool.start(spec)
    cleared: list[str] = []
    describe = world.describe

    async def meanwhile(name: str, known: Sequence[Machine]) -> list[Machine]:
        """Another client ends the pool, too, and is done first; somebody makes a new one."""
        seen = await describe(name, known)
        if ledger.pool(pool.row.token).ended_at is None:
            ledger.record_teardown(pool.row.token, Receipt("q", 1, (0,), (), 0.1, ()))
            ledger.record_intent("another", "q", world.to_json(), spec.describe())
        return seen

    async def clear(name: str) -> None:
        cleared.append(name)

    monkeypatch.setattr(world, "describe", meanwhile)
    monkeypatch.setattr(world, "teardown", clear)
    receipt = await pool.down()
    assert receipt.ok and cleared == []
    ledger.close()


async def test_so_it_does_where_somebody_only_looks(world: Silent, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, row = intended(world, 1)
    ledger = Ledger()
    ledger.set_pool_state(row.token, "up")
    cleared: list[str] = []

    async def all_gone(name: str, known: Sequence[Machine]) -> list[Machine]:
        ledger.record_teardown(row.token, Receipt("q", 1, (0,), (), 0.1, ()))  # by another client, meanwhile
        ledger.record_intent("another", row.name, world.to_json(), spec.describe())
        return [replace(each, state="gone") for each in known]

    async def clear(name: str) -> None:
        cleared.append(name)

    monkeypatch.setattr(world, "describe", all_gone)
    monkeypatch.setattr(world, "teardown", clear)
    closed = await close_if_gone(ledger.pool(row.token), cast(Any, world), ledger)
    assert closed is not None and closed.ok and cleared == []
    ledger.close()
