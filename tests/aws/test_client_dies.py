"""The client is killed at each stage of a pool: the next client finds and ends all machines."""

from __future__ import annotations

import asyncio
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.client import leftover_cleanup
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.providers import agent_status_and_termination
from skyward_core.providers.aws import instances_and_leftovers
from skyward_core.store.ledger import Ledger
from skyward_core.store.pool_folder import read_events
from skyward_core.views.events import PoolState
from skyward_tui.text.teardown_and_leftovers import leftovers_line
from tests.aws import Bed
from tests.aws.killed import killed_at
from tests.aws.pools import left
from tests.lab.tools import wait_until


@pytest.fixture
def without_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip all inspections of machines, because there are no hosts."""

    async def nothing(machine: Machine, way: Any) -> Machine:
        return replace(machine, state="gone")

    monkeypatch.setattr(agent_status_and_termination, "update_machine", nothing)


@pytest.mark.proof("2 s of a processor", after=2)
@pytest.mark.parametrize(
    ("stage", "made"),
    [("unanswered", 2), ("group", 0), ("boot", 2), ("intent", 0), ("placed", 0), ("asked", 0), ("answered", 2)],
)
def test_machines_of_a_start_are_found_after_its_client_is_killed(
    simulated_bed: Bed, tmp_path: Path, session: Any, without_hosts: None, stage: str, made: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(instances_and_leftovers, "VISIBILITY_TIMEOUT", 1.0)
    killed_at(stage, simulated_bed, tmp_path)
    assert len(simulated_bed.instances()) == made
    next_one = session(simulated_bed)
    assert machines_left(tmp_path, monkeypatch) == made
    views = next_one.refresh(over=True).result(60)
    (view,) = views
    if made:
        assert "is incomplete: its client exited" in view.detail and "2 machines" in view.detail
        receipt = next_one.tear_down("pair").result(60)
        assert (receipt.ok, receipt.created, receipt.gone) == (True, 2, (0, 1))
    assert left(simulated_bed) == []
    assert not list((tmp_path / "home" / "aws").glob("pair.*"))


def test_leftovers_and_the_next_start_name_machines_of_a_killed_start(
    simulated_bed: Bed, tmp_path: Path, session: Any, without_hosts: None
) -> None:
    killed_at("answered", simulated_bed, tmp_path)
    next_one = session(simulated_bed)
    ids = {each["id"] for each in simulated_bed.instances()}
    found = next_one.scan_leftovers({"aws": ()}).result(60)
    assert {(each.thing.id, each.verdict) for each in found.removable} == {(each, "unfinished") for each in ids}
    assert leftovers_line(found).startswith("leftovers of ended or unfinished pools: 2 machines")
    ended = ids.pop()
    simulated_bed.client().terminate_instances(InstanceIds=[ended])
    with sky.Compute(name="other", nodes=1, options=sky.Options(console=False)) as compute:

        def warned() -> bool:
            states = [each.detail for each in read_events(compute.pool.archive.folder) if isinstance(each, PoolState)]
            named = [_words(each) for each in states if "pool pair exited during the start" in each]
            assert not any(ended in each for each in named)
            return any(ids <= each for each in named)

        wait_until(warned, "the warning about the other pool")
    assert next_one.remove_leftovers(found).result(60) == []
    assert left(simulated_bed) == []


def _words(text: str) -> set[str]:
    return set(re.findall(r"[\w-]+", text))


def machines_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of machines that a user can find by only the account and the ledger's name."""
    mark = tmp_path / "home" / "aws" / "ledger-id"
    with monkeypatch.context() as elsewhere, closing(Ledger(tmp_path / "empty.db")) as empty:
        elsewhere.setenv("SKYWARD_HOME", str(tmp_path / "elsewhere"))
        ledgers = [mark.read_text()] if mark.exists() else []
        found = asyncio.run(
            leftover_cleanup.scan_accounts(empty, leftover_cleanup.find_accounts(empty, {"aws": ()}), ledgers=ledgers)
        )
    assert all(each.verdict == "left" for each in found.found)
    return sum(each.thing.is_machine for each in found.found)


@pytest.mark.proof("2 s of a processor")
def test_machine_exchange_is_found_after_its_client_is_killed(
    bed: Bed, tmp_path: Path, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.lacks_gpus(1)
    killed_at("exchange", bed, tmp_path, "1:1")
    next_one = session(bed)
    assert machines_left(tmp_path, monkeypatch) == 2
    next_one.refresh(over=True).result(60)
    receipt = next_one.tear_down("pair").result(90)
    assert (receipt.ok, receipt.created, receipt.gone) == (True, 2, (0, 0))
    assert left(bed) == [] and len(bed.instances()) == 2


@pytest.mark.proof("5 s of a processor")
@pytest.mark.parametrize("stage", ["run", "install", "teardown", "tidying"])
def test_running_machines_are_found_after_their_client_is_killed(
    bed: Bed, tmp_path: Path, session: Any, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(stage, bed, tmp_path)
    next_one = session(bed)
    there = len(bed.instances("running")) + len(bed.instances("pending"))
    assert machines_left(tmp_path, monkeypatch) == there
    next_one.refresh(over=True).result(60)
    if next_one.ledger.live_pools():
        receipt = next_one.tear_down("pair").result(90)
        assert (receipt.ok, receipt.created, receipt.gone) == (True, 2, (0, 1))
    else:  # it had ended all, and written nothing of that
        assert stage in ("teardown", "tidying")
    assert left(bed) == []
    assert len(bed.instances()) == 2
