"""Leftover scans of an account: they find only this ledger's resources, and delete only unused ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skyward_core.client import leftover_cleanup
from skyward_core.client.leftover_cleanup import LeftoverScan
from skyward_core.client.session import Session
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.providers import agent_status_and_termination
from skyward_core.providers.aws import instance_tags_and_launch_journal, instances_and_leftovers
from skyward_core.store.ledger import Ledger, ledger_id
from skyward_tui.text.teardown_and_leftovers import leftovers_line, other_ledgers_lines, unchecked_line
from tests.aws import Bed
from tests.aws.pools import left, rented
from tests.aws.waiting import launch
from tests.support.cli import Cli

TOKEN = "0123456789abcdef"
LIVES = {"state": "gone"}  # of an agent on each machine, as SSH would tell


@pytest.fixture
def bed(bed_of_client: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    async def look(machine: Machine, way: Any) -> Machine:
        return replace(machine, state=LIVES["state"])  # type: ignore[arg-type]

    monkeypatch.setattr(agent_status_and_termination, "update_machine", look)
    monkeypatch.setitem(LIVES, "state", "gone")
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    return bed_of_client


def spec(name: str = "q", nodes: int = 2) -> PoolSpec:
    return PoolSpec(name=name, provider=rented(ssh_from="10.0.0.1/32"), nodes=nodes, options=Options(console=False))


def rent(token: str = TOKEN, name: str = "q", nodes: int = 2) -> list[Machine]:
    """Launch machines that no ledger contains."""
    pool_spec = spec(name, nodes)
    return asyncio.run(pool_spec.provider.create(pool_spec, token))  # type: ignore[no-any-return]


@contextmanager
def session() -> Iterator[Session]:
    opened = Session()
    try:
        yield opened
    finally:
        opened.detach()


def look(**how: Any) -> LeftoverScan:
    with session() as opened:
        return opened.scan_leftovers({"aws": ()}, **how).result(60)


def kinds(scan: LeftoverScan) -> list[tuple[str, str]]:
    return sorted((each.thing.what, each.verdict) for each in scan.found)


def test_leftovers_without_a_ledger_row_are_found_and_ended(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mine = rent()
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "another"))
    theirs = {each.id for each in rent("f" * 16, "theirs")} | set(launch(bed.client()))
    another = ledger_id("aws")
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    found = look()
    beside = [("key pair", "left"), ("placement group", "left"), ("security group", "left")]
    assert kinds(found) == [("instance", "left")] * 2 + beside
    assert {each.thing.id for each in found.found if each.thing.is_machine} == {each.id for each in mine}
    assert all(0 <= time.time() - (each.thing.since or 0) < 300 for each in found.found if each.thing.is_machine)
    assert [found.others[key] for key in found.others if key[0] == another] == [(2, 3)]
    assert leftovers_line(found).startswith("leftovers of ended pools: 2 machines ($1.08/h) and 3 other resources; ")
    assert f"2 machines and 3 other resources of ledger {another}" in next(other_ledgers_lines(found))

    cli = Cli(tmp_path)
    shown = cli("leftovers", "--provider", "aws")
    assert "Remove the leftovers with --yes" in shown.stderr
    assert len(bed.instances("running")) == 5
    ended = cli.json("leftovers", "--yes")
    assert ended["ended"] and ended["remains"] == [] and len(ended["found"]) == 5
    assert {each["id"] for each in bed.instances("running")} == theirs
    assert not any("-q-" in name for name in left(bed)) and any("-theirs-" in name for name in left(bed))
    assert not list((tmp_path / "home" / "aws").glob("q.*")) and kinds(look()) == []


@pytest.mark.proof("2 s of a processor")
def test_leftovers_of_a_lost_ledger_are_found_by_its_id(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rent()
    lost = ledger_id("aws")
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "new laptop"))
    forged = [
        {"Key": instance_tags_and_launch_journal.LEDGER, "Value": ""},
        {"Key": instance_tags_and_launch_journal.OWNER, "Value": "me\nall is well\u202e"},
    ]
    launch(bed.client(), TagSpecifications=[{"ResourceType": "instance", "Tags": forged}])
    found = look()
    assert found.found == () and {key[0] for key in found.others} == {lost, ""}
    assert all(line.isprintable() for line in other_ledgers_lines(found))
    with session() as opened:
        found = opened.scan_leftovers({"aws": ()}, everywhere=True, ledgers=[lost]).result(60)
        assert len(found.removable) == 5
        assert opened.remove_leftovers(found).result(60) == []
    assert len(bed.instances("running")) == 1 and not any("-q-" in name for name in left(bed))
    assert not (tmp_path / "new laptop" / "aws" / "ledger-id").exists(), "to look makes nothing"


@pytest.mark.proof("1 s of a processor")
def test_leftovers_of_an_expired_pool_are_confirmed_by_its_agents(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Ledger()) as ledger:
        ledger.record_intent(TOKEN, "q", spec().provider.to_json(), spec().describe())
        made = rent()
        ledger.record_created(TOKEN, made)
        beside = [("key pair", "up"), ("placement group", "up"), ("security group", "up")]
        assert kinds(look()) == [("instance", "up")] * 2 + beside
        asyncio.run(spec().provider.date("q", made, time.time() - 60))
        monkeypatch.setitem(LIVES, "state", "running")
        assert look().removable == []
        monkeypatch.setitem(LIVES, "state", "gone")
        found = look()
        assert [each.verdict for each in found.removable] == ["expired"] * 2
        assert {each.pool for each in found.removable} == {f"q.{TOKEN}"}
    with session() as opened:
        monkeypatch.setitem(LIVES, "state", "running")
        assert "its agent is, or may be, alive again" in opened.remove_leftovers(found).result(60)[0]
        assert len(bed.instances("running")) == 2
        monkeypatch.setitem(LIVES, "state", "gone")
        messages: list[str] = []
        assert opened.remove_leftovers(found, messages.append).result(60) == [] and "verified gone 2" in messages[0]
    assert left(bed) == [] and look().found == ()


def test_leftover_scan_reads_all_pages(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances_and_leftovers, "PAGE_SIZE", 5)
    marks = instance_tags_and_launch_journal.tag_specifications(
        ["instance"], instance_tags_and_launch_journal.pool_tags("q", TOKEN)
    )
    for _ in range(7):  # the bed has a page of so many launches
        launch(bed.client(), TagSpecifications=marks)
    found = look()
    assert len(found.found) == 7 and all(each.thing.hourly is None for each in found.found)
    assert len(bed.calls("DescribeInstances")) == 2


def test_leftover_scan_names_unchecked_regions(bed: Bed) -> None:
    rent()
    bed.deny("DescribeVolumes")
    found = look()
    assert found.removable == [] and "us-east-1 (the AWS credentials do not allow DescribeVolumes" in unchecked_line(
        found
    )


def test_leftover_scan_without_cloud_pools_sends_no_request(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.httpsession import URLLib3Session  # what goes out from now on: an earlier call may still be heard

    sent: list[object] = []
    monkeypatch.setattr(URLLib3Session, "send", lambda self, request: sent.append(request))
    with closing(Ledger()) as ledger:
        ledger.record_intent("a" * 16, "here", {"provider": "local"}, {})
        ledger.record_intent("b" * 16, "away", {"provider": "no-such-package"}, {})
        assert leftover_cleanup.find_accounts(ledger) == []
        for token, region in (("c" * 16, None), ("d" * 16, "us-east-1"), ("e" * 16, ["us-west-2", "us-east-1"])):
            ledger.record_intent(token, token[0], rented(region=region).to_json(), {})
        both = {"provider": "several", "of": [{"provider": "local"}, rented(profile="mine").to_json()]}
        ledger.record_intent("f" * 16, "f", both, {})
        accounts = leftover_cleanup.find_accounts(ledger)
        assert [each.region for each in accounts] == [("us-east-1", "us-west-2"), None, None]
        assert [each.profile for each in accounts] == [None, None, "mine"]
    assert sent == []


# Machines and their disks say when they end, in few calls.


def test_expiry_of_all_machines_of_a_pool_is_tagged_in_one_call(bed: Bed) -> None:
    provider = rented(ssh_from="127.0.0.1/32")
    ec2 = bed.client()

    def read_tags() -> set[str]:
        machines = [each for some in ec2.describe_instances()["Reservations"] for each in some["Instances"]]
        marks = [
            instance_tags_and_launch_journal.parse_tags(each)
            for each in (*machines, *ec2.describe_volumes()["Volumes"])
        ]
        assert len(marks) == 6
        return {each[instance_tags_and_launch_journal.EXPIRES] for each in marks}

    made = asyncio.run(provider.create(PoolSpec(name="p", provider=provider, nodes=3), "t" * 16))
    (at_first,) = read_tags()  # 5 minutes to start, the lease of 10, and 5 beyond it
    assert (
        abs(
            (instance_tags_and_launch_journal.tagged_expiry({instance_tags_and_launch_journal.EXPIRES: at_first}) or 0)
            - time.time()
            - 20 * 60
        )
        < 60
    )
    asyncio.run(provider.date("p", made, 1_893_456_000.0))
    assert (
        read_tags() == {"2030-01-01T00:00:00Z"}
        and instance_tags_and_launch_journal.tagged_expiry(
            {instance_tags_and_launch_journal.EXPIRES: read_tags().pop()}
        )
        == 1_893_456_000.0
    )
    assert len(bed.calls("CreateTags")) == 1
