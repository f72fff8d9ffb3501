"""A pool of rented machines, from nothing to its receipt."""

from __future__ import annotations

from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.store.ledger import Ledger
from tests.aws import Bed
from tests.aws.pools import left, rented, where
from tests.lab.tools import wait_until


@pytest.fixture
def cloud(bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    """The bed, and a client whose credentials are for it."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    for name, text in bed.environment().items():
        monkeypatch.setenv(name, text)
    return bed


def test_two_machines_from_nothing_to_a_receipt(cloud: Bed, tmp_path: Path) -> None:
    with sky.Compute(name="pair", provider=rented(), nodes=2) as compute:
        results = where() @ compute
        assert [(rank, nodes) for rank, nodes, _ in results] == [(0, 2), (1, 2)]
        assert len({host for _, _, host in results}) == 2
        machines = cloud.instances("running")
        wait_until(lambda: all(deadman_is_the_agents(cloud)), "the deadman is put off by the agents")
        assert {each["tags"]["skyward:pool"] for each in machines} == {"pair"}
    ledger = Ledger()
    (row,) = ledger.over()
    ledger.close()
    receipt = row.receipt or {}
    assert (receipt["created"], receipt["gone"], receipt["unaccounted"], receipt["notes"]) == (
        2,
        [0, 1],
        [],
        [],
    )
    assert left(cloud) == []
    assert len(cloud.calls("RunInstances")) == 1 and len(cloud.calls("TerminateInstances")) == 1
    assert not list((tmp_path / "home" / "aws").glob("pair.*")), "its keys are gone"


def deadman_is_the_agents(bed: Bed) -> list[bool]:
    """Of each machine, whether an agent has put its end off: by 15 minutes, after 20 by its first boot."""
    return [
        each["ends_at"] is not None and each["ends_at"] - each["launched"] < 18 * 60
        for each in bed.instances("running")
    ]
