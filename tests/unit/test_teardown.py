"""A teardown's word with each agent, without agents."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.model.specs import Options, PoolSpec
from skyward_core.pool import output_files, teardown
from skyward_core.pool.output_files import FileListing
from skyward_core.pool.pool import Pool
from skyward_core.store.ledger import Ledger
from tests.support.ledger_runs import record_runs
from tests.support.pool_parts import World


class FakeLink:
    """Its agent says goodbye, and the connection stays open."""

    node, up, finished, last_sizes, silence_seconds = 0, True, False, None, 0.0

    told: tuple[str, ...] = ()

    def flush_acknowledgements(self) -> None:
        self.told += ("ack",)

    def send(self, header: dict[str, Any]) -> bool:
        self.told += (header["t"], *header["drop"])
        asyncio.get_running_loop().call_soon(self.bye)
        return True

    def bye(self) -> None:
        self.finished, self.last_sizes = True, {"r000.out": 7}


@pytest.mark.parametrize(
    "here, told", [(7, ""), (5, "2 bytes of the logs of node 0 did not arrive")], ids=["whole", "short"]
)
async def test_a_goodbye_is_the_last_that_is_waited_for(monkeypatch: pytest.MonkeyPatch, here: int, told: str) -> None:
    monkeypatch.setattr(teardown, "GOODBYE", 3600.0)
    archive, options = SimpleNamespace(cursors={"r000.out": here}), SimpleNamespace(grace=1.0)
    news, registry = SimpleNamespace(log_receiver=SimpleNamespace(has_unwritten=False)), SimpleNamespace(runs=["ours"])
    context: Any = SimpleNamespace(archive=archive, options=options, news=news, registry=registry)
    link: Any = FakeLink()
    async with asyncio.timeout(60):
        assert await teardown._shut_down_agent(context, link) == told
    assert link.told == ("ack", "shutdown", "ours")  # what is here, or of no use, is kept by nobody


@pytest.mark.parametrize("runs", [0, 1])
async def test_a_pool_that_had_no_runs_has_lost_nothing_that_ranks_wrote(
    runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody_says(*_: Any, **__: Any) -> FileListing:
        return FileListing([], 0, {}, {0: "the link to node 0 is down"})

    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    monkeypatch.setattr(output_files, "list_files", nobody_says)
    world: Any = World()
    spec = PoolSpec(name="q", provider=world, nodes=1, options=Options(console=False, grace=0.1))
    ledger = Ledger()
    pool = await Pool.register(spec, ledger)
    await pool.start(spec)
    if runs:
        record_runs(ledger, opened=[(pool.row.token, "run", "f", "broadcast", 1, 0.0)])
    receipt = await pool.down()
    assert any("could not be asked what its ranks wrote" in each for each in receipt.lost) == bool(runs)
    ledger.close()
