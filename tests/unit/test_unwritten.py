"""Machines that a provider made and nobody wrote down: whoever looks at their pool next knows of them. The provider
and the agents are played."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skyward_core.model.errors import Cancelled, CredentialsRefused, PoolError
from skyward_core.model.machines import Machine
from skyward_core.model.provider_capabilities import Finds
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.pool import teardown
from skyward_core.pool.ledger_reconciliation import close_if_gone, save_unknown_machines
from skyward_core.pool.pool import Pool
from skyward_core.store.ledger import Ledger
from tests.support.pool_parts import TOKEN, World, dead_process, intended, machine
from tests.support.waiting import until


class Finder(World):
    """Its provider knows the machines that it made.

    Attributes:
        made: token of a pool -> its machines.
        trouble: what is raised in place of an answer to each of some verbs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[str, list[Machine]] = {}
        self.trouble: dict[str, Exception] = {}
        self.halt = asyncio.Event()
        self.halt.set()

    async def create(self, spec: PoolSpec, token: str) -> list[Machine]:
        self.made[token] = [machine(node) for node in range(spec.most_nodes)]
        await self.halt.wait()
        return self.made[token]

    async def find(self, pool: str, token: str) -> list[Machine]:
        self._raise("find")
        return list(self.made.get(token, ()))

    async def describe(self, pool: str, known: Any) -> list[Machine]:
        self._raise("describe")
        return await super().describe(pool, known)

    async def terminate(self, pool: str, machines: Any) -> None:
        self._raise("terminate")
        await super().terminate(pool, machines)

    async def teardown(self, pool: str) -> None:
        self._raise("teardown")

    def _raise(self, verb: str) -> None:
        if verb in self.trouble:
            raise self.trouble[verb]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Finder:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    monkeypatch.setattr(teardown, "SILENCE", 0.2)
    monkeypatch.setattr(teardown, "AGAIN", 0.01)
    return Finder()


@pytest.fixture
async def ledger(world: Finder) -> AsyncIterator[Ledger]:
    ledger = Ledger()
    yield ledger
    ledger.close()


def spec(world: World, nodes: int = 2) -> PoolSpec:
    return PoolSpec(name="q", provider=world, nodes=nodes, options=Options(console=False, grace=0.1))


async def test_a_start_that_is_given_up_inside_create_leaves_nothing(world: Finder, ledger: Ledger) -> None:
    world.halt.clear()
    pool = await Pool.register(spec(world), ledger)
    starting = asyncio.create_task(pool.start(spec(world)))
    await until(lambda: bool(world.made))
    receipt = await pool.down()
    with pytest.raises(Cancelled):
        await starting
    assert receipt.ok and (receipt.created, receipt.gone) == (2, (0, 1))
    assert sorted(world.ended) == ["m0", "m1"]


async def test_what_cannot_be_looked_for_is_not_called_gone(world: Finder, ledger: Ledger) -> None:
    pool = await Pool.register(spec(world), ledger)
    await pool.start(spec(world))
    world.trouble["find"] = CredentialsRefused("the key has expired")
    receipt = await pool.down()
    assert not receipt.ok and receipt.gone == (0, 1)
    assert receipt.unaccounted == ("machines of which nothing is written down (the key has expired)",)
    assert ledger.pool(pool.row.token).ended_at is None, "whoever comes next has it ended"
    world.trouble.clear()
    assert (await pool.down()).ok


async def test_a_provider_that_refuses_is_no_end_of_a_teardown(world: Finder, ledger: Ledger) -> None:
    pool = await Pool.register(spec(world), ledger)
    await pool.start(spec(world))
    refused = CredentialsRefused("the key has expired")
    world.trouble = {"describe": refused, "terminate": refused}
    receipt = await pool.down()
    assert receipt.unaccounted == ("m0", "m1") and "the key has expired" in receipt.notes
    world.trouble.clear()
    assert (await pool.down()).ok


async def test_what_is_left_beside_machines_is_accounted_for(world: Finder, ledger: Ledger) -> None:
    pool = await Pool.register(spec(world), ledger)
    await pool.start(spec(world))
    world.trouble["teardown"] = PoolError("security group sg-1 is still in use")
    receipt = await pool.down()
    assert receipt.unaccounted == ("security group sg-1 is still in use",)
    world.trouble.clear()
    assert (await pool.down()).ok


async def test_a_client_that_died_inside_create_is_cleared_up_after(world: Finder, ledger: Ledger) -> None:
    row = ledger.record_intent("t9", "q", world.to_json(), spec(world).describe())
    died(ledger, "t9")
    world.made["t9"] = [machine(0), machine(1)]
    world.states = {"m0": "ending", "m1": "ending"}
    assert await close_if_gone(ledger.pool("t9"), world, ledger) is None  # type: ignore[arg-type]
    assert [each.id for each in ledger.machines("t9")] == ["m0", "m1"]
    pool = Pool(row, world, ledger)  # type: ignore[arg-type]
    with pytest.raises(PoolError, match=r"not finished: .* on any of its 2 machines"):
        await pool.attach()
    receipt = await pool.down()
    assert receipt.ok and receipt.gone == (0, 1)


async def test_one_that_died_before_anything_was_made_is_closed(world: Finder, ledger: Ledger) -> None:
    ledger.record_intent("t9", "q", world.to_json(), spec(world).describe())
    died(ledger, "t9")
    receipt = await close_if_gone(ledger.pool("t9"), world, ledger)  # type: ignore[arg-type]
    assert receipt is not None and receipt.created == 0


async def test_machines_in_another_s_place_are_kept_among_the_former(world: Finder, ledger: Ledger) -> None:
    intended(world, 2)
    world.made[TOKEN] = [machine(0), machine(1), machine(1, "lost"), machine(2, "late")]
    new = await save_unknown_machines("p", TOKEN, world, ledger)  # type: ignore[arg-type]
    assert [each.id for each in new] == ["lost", "late"]
    assert [each.id for each in ledger.machines(TOKEN)] == ["m0", "m1", "late"]
    assert [each.id for each in ledger.replaced_machines(TOKEN)] == ["lost"]
    assert await save_unknown_machines("p", TOKEN, world, ledger) == [], "each once"  # type: ignore[arg-type]


async def test_a_pool_torn_down_by_another_client_while_its_machines_come_does_not_start(
    world: Finder, ledger: Ledger
) -> None:
    world.halt.clear()
    pool = await Pool.register(spec(world), ledger)
    starting = asyncio.create_task(pool.start(spec(world)))
    await until(lambda: bool(world.made))
    ledger.set_pool_state(pool.row.token, "stopping")
    world.halt.set()
    with pytest.raises(PoolError, match="torn down by another client while it was starting"):
        await starting
    assert sorted(set(world.ended)) == ["m0", "m1"]


def died(ledger: Ledger, token: str) -> None:
    ledger._write([("UPDATE pools SET pid=? WHERE token=?", (dead_process(), token))])


def test_only_who_finds_is_asked(world: Finder) -> None:
    assert isinstance(world, Finds) and not isinstance(World(), Finds)
