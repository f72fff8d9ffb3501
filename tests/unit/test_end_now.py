"""``down --now``: nothing is asked of machines, they are ended first of all; who cannot do that refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skyward_core.model.errors import UsageError
from skyward_core.model.machines import Machine
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.pool.pool import Pool
from skyward_core.store.ledger import Ledger
from tests.support.pool_parts import World


class Abrupt(World):
    """A provider that can end machines at once, or says why not."""

    def __init__(self) -> None:
        super().__init__()
        self.why = ""
        self.at_once: list[str] = []

    async def why_not_now(self) -> str:
        return self.why

    async def terminate_now(self, pool: str, machines: Sequence[Machine]) -> None:
        self.at_once += [each.id for each in machines]
        self.states |= {each.id: "gone" for each in machines}


@asynccontextmanager
async def started(world: World) -> AsyncIterator[Pool]:
    spec = PoolSpec(name="q", provider=world, nodes=2, options=Options(console=False, grace=0.1))
    ledger = Ledger()
    pool = await Pool.register(spec, ledger)
    await pool.start(spec)
    yield pool
    assert (await pool.down()).ok
    ledger.close()


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))


async def test_machines_end_first_and_what_goes_with_them_is_named() -> None:
    world = Abrupt()
    async with started(world) as pool:
        pool.view.unfetched = {"run-1": 1234}
        before = len(world.questions)
        receipt = await pool.down(now=True)
        assert not {"shutdown", "halt"} & {what for _, what in world.questions[before:]}
    assert receipt.ok and sorted(set(world.at_once)) == ["m0", "m1"] and world.ended == []
    assert receipt.lost[0] == "run run-1 (1,234 bytes)" and "unfetched" in receipt.lost[1]
    assert receipt.notes[0] == "its machines were terminated at once, as requested"


async def test_who_cannot_do_that_ends_nothing() -> None:
    abrupt = Abrupt()
    abrupt.why = "its library is too old"
    for world, said in ((World(), "does not support it"), (abrupt, "its library is too old")):
        async with started(world) as pool:
            with pytest.raises(
                UsageError, match=f"Cannot terminate the machines at once: .*{said}. Tear the pool down without --now"
            ):
                await pool.down(now=True)
            assert not pool.context.leaving and world.ended == []
            assert pool.view.state == "up"
