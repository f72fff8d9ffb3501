"""EC2's faults and killed clients in random mixtures: nothing remains, and receipts are true."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from skyward_core.client.session import Session
from tests.aws import Bed, storms
from tests.aws.killed import killed_at
from tests.aws.pools import left
from tests.lab.tools import wait_until


@pytest.mark.proof("2 s of a processor for each of 200 seeds", after=1)
@pytest.mark.parametrize("seed", range(200))
def test_storm_of_faults_and_killed_clients_leaves_nothing_and_true_receipts(
    simulated_bed: Bed, tmp_path: Path, session: Callable[[Bed], Session], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    bed, random = simulated_bed, storms.brew(simulated_bed, seed)
    killed_at(random.choice(storms.KILLS), bed, tmp_path, random.choice(("1:1", "2:2", "2:4")), stormy=True)
    if random.random() < 0.5:
        killed_at(f"down:{random.choice(('none', 'teardown', 'tidying'))}", bed, tmp_path, stormy=True)
    bed.renew_credentials()
    storms.weather(monkeypatch.setattr)
    last = session(bed)

    def end_all() -> bool:
        last.refresh(over=True).result(60)
        for row in last.ledger.live_pools():
            receipt = last.tear_down(row.key).result(60)
            running = {each["id"] for each in bed.instances() if each["state"] in ("pending", "running")}
            assert not (receipt.ok and running), "a machine that runs is named, or the pool is listed"
        return not last.ledger.live_pools()

    wait_until(end_all, what="the end of all pools, some of which a teardown keeps while a resource may still appear")
    bed.lag()
    assert left(bed) == []
    made = {each["id"]: each for each in bed.instances()}
    for row in last.ledger.ended_pools():
        written = row.receipt or {}
        assert written["created"] == len(written["gone"]) == len(written["machines"]) and written["unaccounted"] == []
        assert set(written["machines"]) <= made.keys()
        bills = {each["machine"]: each["until"] - each["since"] for each in written["bills"]}
        assert all(bills[name] > made[name]["seconds"] - 2 for name in written["machines"])
    named = {name for row in last.ledger.ended_pools() for name in (row.receipt or {})["machines"]}
    assert all(each["seconds"] == 0 for name, each in made.items() if name not in named)
    assert not list((tmp_path / "home" / "aws").glob("pair.*"))
