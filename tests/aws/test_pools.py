"""Pools of EC2 machines, from the start to the receipt."""

from __future__ import annotations

import asyncio
import runpy
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import skyward_core as sky
from skyward_core.client.pool_costs import costs
from skyward_core.client.session import Session
from skyward_core.model.errors import HostKeyError, PoolError
from skyward_core.providers.aws import boto_calls
from skyward_core.store.ledger import Ledger
from skyward_core.store.pool_folder import read_events
from skyward_core.transport.ssh import connection
from skyward_core.transport.ssh.connection import fetch_host_key
from skyward_core.transport.ssh.host_address_and_python import Target
from skyward_core.views.events import PoolState
from tests.aws import Bed
from tests.aws.pools import left, rented, where
from tests.lab.proxy import DelayProxy
from tests.lab.tools import wait_until
from tests.support.cli import EXAMPLES
from tests.support.fewer import without
from tests.support.journey import journey


@pytest.fixture
def cloud(bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    """Simulated EC2 and a client with credentials."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    for name, text in bed.environment().items():
        monkeypatch.setenv(name, text)
    yield bed
    boto_calls.shared_calls.cache_clear()  # a test may have moved the endpoint


@pytest.mark.proof("5 s of a processor")
def test_torch_example_trains_on_aws_and_ends_with_a_receipt(cloud: Bed, tmp_path: Path) -> None:
    example = runpy.run_path(str(EXAMPLES / "ddp.py"))["train"]
    provider = rented(ssh_from=own(cloud), python=sys.executable)  # which has torch: machines reach no package index
    image, plugins = sky.Image(env=without("torch._dynamo")), [sky.plugins.torch()]
    with sky.Compute(name="pair", provider=provider, nodes=2, image=image, plugins=plugins) as compute:
        trained = example(epochs=2) @ compute
        assert [each["rank"] for each in trained] == [0, 1]
        assert len({each["weights"] for each in trained}) == 1, "one model"
        results = where() @ compute
        assert [(rank, nodes) for rank, nodes, _ in results] == [(0, 2), (1, 2)]
        assert len({host for _, _, host in results}) == 2
        view = compute.pool.view
        assert f"{view.price_hourly:.4f}" == "1.0839" and not view.has_unknown_price, (
            "twice 0.526, with disk and address"
        )
        machines = cloud.instances("running")
        assert own_host_keys(tmp_path / "home"), "the key that they booted with is refused"
        wait_until(lambda: all(deadman_is_the_agents(cloud)), "the deadman is put off by the agents")
        assert {each["tags"]["skyward:pool"] for each in machines} == {"pair"}
    ledger = Ledger()
    (row,) = ledger.ended_pools()
    ledger.close()
    receipt = row.receipt or {}
    assert (receipt["created"], receipt["gone"], receipt["unaccounted"], receipt["notes"]) == (2, [0, 1], [], [])
    # From the launch to the order to end, which EC2 tells to the second; the bed bills from a moment later.
    billed = {each.instance_id: max(60.0, each.seconds) for each in cloud.seconds_billed()}  # EC2's minimum is a minute
    ours = {each["machine"]: each for each in receipt["bills"]}
    assert ours.keys() == billed.keys()
    assert all(abs(each["until"] - each["since"] - billed[name]) < 3 for name, each in ours.items())
    cost = sum(each["hourly"] * billed[name] / 3600 for name, each in ours.items())
    assert costs(0.0).dollars == pytest.approx(cost, abs=0.01)
    assert left(cloud) == []
    assert len(cloud.calls("RunInstances")) == 1 and len(cloud.calls("TerminateInstances")) == 1
    assert not list((tmp_path / "home" / "aws").glob("pair.*")), "its keys are gone"


def own_host_keys(home: Path) -> bool:
    """Return, for each machine, whether it presents its own host key, and whether the client trusts only that key."""
    (folder,) = (home / "aws").glob("pair.*")
    booted = " ".join((folder / "host_key.pub").read_text().split()[:2])
    with closing(Ledger()) as ledger:
        machines = ledger.machines(ledger.live_pools()[0].token)
    believed = {each.id: (folder / f"known_hosts.{each.id}").read_text().strip() for each in machines}
    shown = {each.id: f"* {key_of(each.address)}" for each in machines}
    return shown == believed and len({booted, *shown.values()}) == 1 + len(machines)


def key_of(host: str) -> str:
    key = asyncio.run(fetch_host_key(Target(host=host, config=False))).key
    return " ".join(key.export_public_key("openssh").decode().split()[:2])


def deadman_is_the_agents(bed: Bed) -> list[bool]:
    """Return, for each machine, whether an agent has postponed its shutdown: 15 minutes instead of the 20 of the first
    boot.
    """
    return [
        each["ends_at"] is not None and each["ends_at"] - each["launched"] < 18 * 60
        for each in bed.instances("running")
    ]


def test_machine_whose_lease_expired_terminates_itself(cloud: Bed, tmp_path: Path) -> None:
    options = sky.Options(idle_timeout=1.0, console=False)
    spec = sky.PoolSpec(name="short", provider=rented(ssh_from=own(cloud)), options=options)
    session = Session()
    session.create(spec).result(60)
    session.detach()
    wait_until(lambda: len(cloud.instances("terminated")) == 1, "its end, by EC2's word")
    assert cloud.instances()[0]["reason"] == "Client.InstanceInitiatedShutdown"
    assert cloud.calls("TerminateInstances") == []
    session = Session()
    (view,) = session.refresh(over=True).result(60)
    assert view.receipt and view.receipt["unaccounted"] == [] and "shut itself down" in str(view.receipt["notes"])
    session.detach()
    assert left(cloud) == []


def test_machine_schedules_its_shutdown_again_after_a_reboot(cloud: Bed) -> None:
    spec = sky.PoolSpec(name="again", provider=rented(ssh_from=own(cloud)), options=sky.Options(console=False))
    session = Session()
    session.create(spec).result(60)
    session.detach()
    wait_until(lambda: all(deadman_is_the_agents(cloud)), "the shutdown that the agent schedules, in 15 minutes")
    (machine,) = cloud.instances("running")
    cloud.reboot(machine["id"])

    def is_scheduled_by_boot() -> bool:
        ends_at = cloud.instances()[0]["ends_at"]
        return ends_at is not None and ends_at - machine["launched"] > 18 * 60

    wait_until(is_scheduled_by_boot, "the shutdown that the boot schedules, in 20 minutes")
    session = Session()
    assert session.tear_down("again").result(90).ok
    session.detach()
    assert left(cloud) == []


def test_machine_with_another_host_key_is_refused(cloud: Bed) -> None:
    cloud.wrong_host_key(1)
    compute = sky.Compute(name="liar", provider=rented(ssh_from=own(cloud)), nodes=2)
    with pytest.raises(HostKeyError), compute:
        pass
    assert left(cloud) == [] and len(cloud.instances("terminated")) == 2


def test_machine_that_never_answers_is_named_and_ended(cloud: Bed) -> None:
    cloud.never_boots(1)
    options = sky.Options(start_timeout=8.0)
    compute = sky.Compute(name="mute", provider=rented(ssh_from=own(cloud)), nodes=2, options=options)
    with pytest.raises(PoolError, match=r"did not start within 8 s: node 0 running \(connecting to "), compute:
        pass
    assert left(cloud) == [] and len(cloud.instances("terminated")) == 2


@pytest.mark.proof("3 s of a processor")
def test_several_specs_as_in_upstream_guides_are_tried_in_order(cloud: Bed) -> None:
    """The specs use allocation strategies, a price limit and accelerator factories."""
    cloud.no_capacity(region="us-east-1")
    cloud.no_capacity(region="us-west-2", market="spot", zone="us-west-2b")
    messages: list[str] = []
    here: Any = {"ssh_from": own(cloud)}
    compute = sky.Compute(
        sky.Spec(provider=sky.AWS(region="us-east-1", **here), accelerator=sky.accelerators.T4()),
        sky.Spec(
            provider=sky.AWS(region="us-west-2", **here),
            accelerator=sky.accelerators.A10G(count=1),
            max_hourly_cost=2.50,
        ),
        selection="first",
        allocation="spot_if_available",
        name="guides",
    )
    with compute:
        assert (where() >> compute)[:2] == (0, 1)
        (running,) = cloud.instances("running")
        assert (running["type"], running["market"], running["zone"]) == ("g5.xlarge", "spot", "us-west-2a")
        assert f"{compute.pool.view.price_hourly:.4f}" == "0.3782", "0.36 of 1.006, with disk and address"
        messages += [each.detail for each in read_events(compute.pool.archive.folder) if isinstance(each, PoolState)]
    assert compute.receipt is not None and (compute.receipt.created, compute.receipt.gone) == (1, (0,))
    assert left(cloud) == [] and left(cloud, "us-west-2") == []
    # Each attempt, and what became of the one before, where screens and the command line show them.
    attempts = [each for each in messages if "attempt " in each]
    assert attempts[0].startswith("spec 1 (aws): attempt 1 of ") and "g4dn.xlarge in us-east-1" in attempts[0]
    whys = [each for each in attempts if "InsufficientInstanceCapacity" in each]
    assert len(whys) > 5 and "spec 2 (aws): attempt 1 of " in attempts[-2] and "us-west-2b (spot)" in attempts[-2]
    assert "spec 2 (aws): g5.xlarge in us-west-2b (spot): Insufficient" in attempts[-1]
    assert attempts[-1].endswith("g5.xlarge in us-west-2a (spot), $0.38/h each")


def own(bed: Bed) -> str:
    """Return the network that contains only this client's address as machines see it."""
    return f"{bed.client_address()}/32"


class Near(DelayProxy):
    """Account whose API listens at the client's address in the lab, from which the client also connects to machines.
    The provider derives the network for SSH from that address.
    """

    def __init__(self, bed: Bed) -> None:
        super().__init__("127.0.0.1", urlsplit(bed.endpoint).port or 0, delay=0)
        self.address = bed.client_address()


@pytest.mark.proof("1 s of a processor")
def test_calls_continue_after_the_client_address_changed(
    cloud: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SHORT_TIMEOUT", 0.5)
    options = sky.Options(console=False)
    with Near(cloud) as near, sky.Compute(name="moves", provider=rented(), options=options) as compute:
        assert (where() >> compute)[0] == 0
        before = ssh_networks(cloud)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{near.address}:{near.port}")
        monkeypatch.setenv("NO_PROXY", near.address)
        boto_calls.shared_calls.cache_clear()
        cloud.move_client()
        assert (where() >> compute)[0] == 0
        assert (before, ssh_networks(cloud)) == (["127.0.0.1/32"], [own(cloud)])

        def read_output() -> bool:
            states = [each for each in read_events(compute.pool.archive.folder) if isinstance(each, PoolState)]
            return any("address has changed: SSH is now allowed from" in each.detail for each in states)

        wait_until(read_output, "the report about the address")
    assert compute.receipt is not None and compute.receipt.ok
    assert left(cloud) == []


def ssh_networks(bed: Bed) -> list[str]:
    """Return the networks from which machines may be reached by SSH."""
    groups = bed.client().describe_security_groups()["SecurityGroups"]
    rules = [rule for group in groups for rule in group["IpPermissions"] if rule.get("FromPort") == 22]
    return [each["CidrIp"] for rule in rules for each in rule["IpRanges"]]


@pytest.mark.proof("7 s of a processor")
def test_aws_journey_launches_kills_reads_reruns_and_tears_down(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Near(bed) as near:
        here = {"AWS_ENDPOINT_URL": f"http://{near.address}:{near.port}", "NO_PROXY": near.address}
        for name, text in (bed.environment() | here).items():
            monkeypatch.setenv(name, text)
        journey(tmp_path, "aws", {"instance_type": "g4dn.xlarge"})
    assert left(bed) == []
