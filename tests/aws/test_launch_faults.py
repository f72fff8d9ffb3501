"""EC2's refusals and faults during a launch, on a bed without hosts: no leftovers remain."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

import skyward_core as sky
from skyward_core.model.errors import Cancelled, CredentialsRefused, NoCapacity, PoolError, SkywardError, Unreachable
from skyward_core.model.machines_checks_and_gpu_use import Machine, total_hourly
from skyward_core.model.offers_and_rental_plans import MachineRequirements
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.pool import teardown
from skyward_core.pool.pool import Pool
from skyward_core.providers import agent_status_and_termination
from skyward_core.providers.aws import (
    boto_calls,
    ec2_errors,
    instances_and_leftovers,
    security_groups_and_account_checks,
)
from skyward_core.providers.provider_call_logs_polling_and_cache import progress_listener
from skyward_core.store.ledger import Ledger
from tests.aws import Bed, prices
from tests.aws.images import DEEP
from tests.aws.pools import left, rented
from tests.support.waiting import until

TOKEN = "0123456789abcdef"
G_QUOTA = "L-DB2E81BA"


@pytest.fixture
def bed(bed_of_client: Bed, monkeypatch: pytest.MonkeyPatch) -> Bed:
    """Simulated EC2 and a client with credentials. Machines are not inspected, because there are no hosts."""

    async def nothing(machine: Machine, way: Any) -> Machine:
        return replace(machine, state="gone")

    monkeypatch.setattr(agent_status_and_termination, "update_machine", nothing)
    monkeypatch.setattr(teardown, "SILENCE", 0.5)
    monkeypatch.setattr(instances_and_leftovers, "VISIBILITY_TIMEOUT", 2.0)
    return bed_of_client


@pytest.fixture
def ledger(bed: Bed) -> Iterator[Ledger]:
    ledger = Ledger()
    yield ledger
    ledger.close()


def spec(nodes: Any = 2, **wishes: Any) -> PoolSpec:
    return PoolSpec(
        name="q", provider=rented(ssh_from="10.0.0.1/32", **wishes), nodes=nodes, options=Options(console=False)
    )


async def create(nodes: Any = 2, **wishes: Any) -> list[Machine]:
    pool_spec = spec(nodes, **wishes)
    return await pool_spec.provider.create(pool_spec, TOKEN)  # type: ignore[no-any-return]


async def end(made: list[Machine], aws: sky.AWS | None = None, pause: float = 0.05) -> None:
    """End machines and check that nothing remains."""
    aws = aws or rented()
    await aws.terminate("q", made)
    async with asyncio.timeout(60):
        while any(each.state != "gone" for each in await aws.describe("q", made)):
            await asyncio.sleep(pause)
    await aws.teardown("q")


async def test_launch_with_a_lost_answer_is_repeated_with_the_same_token(bed: Bed) -> None:
    bed.lose_answer("RunInstances")
    made = await create()
    assert sorted(each.id for each in made) == sorted(each["id"] for each in bed.instances())
    tokens = [call["params"]["ClientToken"] for call in bed.calls("RunInstances")]
    assert len(tokens) == 2 and len(set(tokens)) == 1
    await end(made)
    assert left(bed) == []


async def test_replacement_of_a_killed_client_is_launched_once(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next client repeats the request minutes later."""
    made = await create(1)
    pool_spec = spec(1)

    async def another() -> Machine:
        return await pool_spec.provider.replace("q", "fedcba98", 0, [], made)  # type: ignore[no-any-return]

    first = await another()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 300)
    assert (await another()).id == first.id and len(bed.instances()) == 2
    bed.client().terminate_instances(InstanceIds=[first.id])  # as its deadman would
    await until(lambda: {each["id"] for each in bed.instances("terminated")} == {first.id})
    again = await another()
    assert again.id != first.id and (await another()).id == again.id
    await end([*made, again])


async def test_start_with_half_of_its_machines_fails_and_ends_them(bed: Bed, ledger: Ledger) -> None:
    bed.fail_half("RunInstances")
    pool = await Pool.register(spec(), ledger)
    with pytest.raises(PoolError, match="EC2 launched 1 machines, but at least 2 were requested"):
        await pool.start(spec())
    row = ledger.pool(pool.row.token)
    assert row.ended_at is not None and row.receipt is not None
    assert row.receipt["machines"] == [each["id"] for each in bed.instances()]
    assert left(bed) == [] and len(bed.instances()) == 1
    bed.heal()


@pytest.mark.proof("1 s of a processor")
async def test_many_machines_are_launched_at_two_calls_per_second(bed: Bed, proofs: bool) -> None:
    count = 50 if proofs else 10
    bed.throttle(2)
    made = await create(count)
    assert [each.node for each in made] == list(range(count))
    assert len({call["params"]["ClientToken"] for call in bed.calls("RunInstances")}) == 1
    await end(made)
    bed.throttle(None)
    assert left(bed) == []
    assert len({each["id"] for each in bed.instances()}) == count
    assert len(bed.calls()) < 60, "throttled ones too"


@pytest.mark.proof("3 s of a processor")
async def test_two_hundred_machines_need_one_call_to_launch_and_one_to_end(bed: Bed) -> None:
    made = await create(200)
    assert [each.node for each in made] == list(range(200))
    await end(made, pause=0.5)
    assert left(bed) == [] and len(bed.instances()) == 200
    counted = Counter(call["action"] for call in bed.calls())
    assert (counted["RunInstances"], counted["TerminateInstances"]) == (1, 1)
    del counted["DescribeInstances"]  # as often as somebody looks whether they have ended
    assert sum(counted.values()) < 30, counted


async def test_node_range_uses_the_first_zone_with_enough_capacity(bed: Bed) -> None:
    bed.no_capacity(zone="us-east-1a", left=1)
    bed.no_capacity(zone="us-east-1b", left=3)
    bed.lose_answer("RunInstances")  # and asked again it is the same
    messages: list[str] = []
    with progress_listener(messages.append):
        made = await create("2:8")
    assert ([each.node for each in made], {each.extra["zone"] for each in made}) == ([0, 1, 2], {"us-east-1b"})
    assert "only 3 of 8 machines were available" in messages[-1]
    counts = {(call["params"]["MinCount"], call["params"]["MaxCount"]) for call in bed.calls("RunInstances")}
    assert counts == {("2", "8")} and len(bed.instances()) == 3
    assert [each.id for each in await create("2:8")] == [each.id for each in made], "the same token makes no others"
    plan = await rented(ssh_from="10.0.0.1/32").plan(spec("2:8"))
    assert plan.hourly is not None and plan.cost == f"${plan.hourly * 2 / 8:,.2f} to ${plan.hourly:,.2f}/h"
    assert plan.creates[0].startswith("2 to 8 machines, each")
    await end(made)
    for zone in "bcdef":
        bed.no_capacity(zone=f"us-east-1{zone}", left=1)
    with pytest.raises(NoCapacity, match="us-east-1a"):
        await spec("2:8").provider.create(spec("2:8"), TOKEN[::-1])
    await rented().teardown("q")
    assert left(bed) == []


@pytest.mark.proof("2 s of a processor")
async def test_gpu_machines_share_a_placement_group_and_are_in_network_order(bed: Bed) -> None:
    made = await create(4)
    answer = bed.client().describe_instances()["Reservations"]
    launched = {each["InstanceId"]: each["AmiLaunchIndex"] for one in answer for each in one["Instances"]}
    assert [launched[each.id] for each in made] == [0, 2, 1, 3], "neighbours by the bed's third layer"
    assert [each.node for each in made] == [0, 1, 2, 3]
    assert [each.extra["folder"].split(".")[2].partition("-")[0] for each in made] == list("0123")
    assert {each.extra["group"] for each in made} == {f"skyward-q-{TOKEN}"}
    assert f"skyward-q-{TOKEN}" in left(bed)
    await end(made)
    assert left(bed) == []
    plan = await rented(ssh_from="10.0.0.1/32").plan(spec(4))
    assert any(each.startswith("a placement group") for each in plan.creates)
    assert plan.requests[0]["Placement"]["GroupName"].startswith("skyward-q-")
    for wishes in ({"placement_group": False}, {"instance_type": "m7i.large"}):
        plan = await rented(**{"ssh_from": "10.0.0.1/32"} | wishes).plan(spec(4))
        assert not any("placement" in each for each in plan.creates)
        assert "GroupName" not in plan.requests[0]["Placement"]
    assert bed.calls("CreatePlacementGroup")[1:] == [], "a plan makes nothing"
    plan = await rented(ssh_from="10.0.0.1/32", instance_type="p4d.24xlarge").plan(spec(2))
    assert any("p4d.24xlarge uses one of its 4 network cards, without EFA" in each for each in plan.notes)


async def test_placement_group_without_capacity_is_given_up(bed: Bed) -> None:
    bed.no_capacity(grouped=True)
    bed.deny("DescribeInstanceTopology")
    heard: list[str] = []
    with progress_listener(heard.append):
        made = await create(3)
    assert [each.rpartition(": ")[2] for each in heard] == [
        "g4dn.xlarge in us-east-1a, in a placement group, $0.54/h each",
        "g4dn.xlarge in us-east-1a, $0.54/h each",
    ]
    assert {each.extra["group"] for each in made} == {""}
    assert len({call["params"]["ClientToken"] for call in bed.calls("RunInstances")}) == 2
    await end(made)
    assert left(bed) == [], "the group that nobody is in, too"


async def test_cheapest_instance_type_is_tried_first_and_its_price_recorded(bed: Bed) -> None:
    bed.no_capacity(type="g4dn.xlarge", zone="us-east-1a")
    heard: list[str] = []
    pool_spec = PoolSpec(name="q", provider=sky.AWS(ssh_from="10.0.0.1/32"), nodes=2, accelerator="T4")
    with progress_listener(heard.append):
        made = await pool_spec.provider.create(pool_spec, TOKEN)
    assert {(each.extra["type"], each.extra["zone"]) for each in made} == {("g4dn.xlarge", "us-east-1b")}
    beside = 100 * prices.GP3_GB_MONTH / 730 + prices.PUBLIC_ADDRESS
    assert total_hourly(made) == pytest.approx(2 * (prices.on_demand("g4dn.xlarge", "us-east-1") + beside))
    first, apart, second = heard
    grouped = "g4dn.xlarge in us-east-1a, in a placement group"
    assert first.startswith("attempt 1 of ") and first.endswith(f": {grouped}, $0.54/h each")
    assert apart.startswith(f"{grouped}: InsufficientInstanceCapacity: ")
    assert apart.endswith(": g4dn.xlarge in us-east-1a, $0.54/h each")
    assert second.startswith("g4dn.xlarge in us-east-1a: InsufficientInstanceCapacity: ")
    assert second.endswith(": g4dn.xlarge in us-east-1b, in a placement group, $0.54/h each")
    (disk,) = {each["Size"] for each in bed.client().describe_volumes()["Volumes"]}
    assert disk == 100
    await end(made)
    assert left(bed) == []


async def test_next_instance_type_is_tried_if_the_cheapest_has_no_capacity(bed: Bed) -> None:
    bed.no_capacity(type="g4dn.xlarge")
    bed.quota(G_QUOTA, 8)
    pool_spec = PoolSpec(name="q", provider=sky.AWS(ssh_from="10.0.0.1/32"), nodes=2, accelerator="T4")
    with pytest.raises(NoCapacity) as caught:
        await pool_spec.provider.create(pool_spec, TOKEN)
    message = str(caught.value)
    tried = [
        each.split(" in ")[0].split()[-1] for each in message.split(": ", 1)[1].split("; ") if " in us-east-1" in each
    ]
    kinds = list(dict.fromkeys(tried))
    assert kinds == ["g4dn.xlarge", "g4dn.2xlarge"], "larger ones exceed the quota, too"
    assert f"--quota-code {G_QUOTA} --desired-value 24" in message and "InsufficientInstanceCapacity" in message
    await rented().teardown("q")
    assert left(bed) == []


async def test_refused_launch_succeeds_later_when_capacity_returns(bed: Bed) -> None:
    bed.no_capacity(zone="us-east-1a")
    with pytest.raises(NoCapacity):
        await create(zones=["us-east-1a"])
    bed.capacity_again()
    made = await create(zones=["us-east-1a"])
    assert len(made) == 2 and len(bed.instances()) == 2
    groups = bed.client().describe_security_groups()["SecurityGroups"]
    assert sum(each["GroupName"] != "default" for each in groups) == 1
    await end(made)
    assert left(bed) == []


@pytest.mark.proof("1 s of a processor")
async def test_machines_start_although_prices_are_not_available(bed: Bed) -> None:
    bed.deny("GetProducts")
    heard: list[str] = []
    with progress_listener(heard.append):
        await end(await create())
    assert heard[0].endswith(", in a placement group, $0.54/h each (price list of this release)")
    made = await create(region="us-west-1")
    assert {each.extra["hourly"] for each in made} == {None} and total_hourly(made) is None
    aws = rented(region="us-west-1")
    await end(made, aws)


async def test_region_without_capacity_is_replaced_by_another_region(bed: Bed) -> None:
    bed.no_capacity(region="us-east-1")
    aws: dict[str, Any] = {"region": ["us-east-1", "us-west-2"], "zones": ["us-east-1a", "us-west-2b"]}
    made = await create(**aws)
    assert {each.extra["zone"] for each in made} == {"us-west-2b"}
    await end(made)
    west = bed.client(region="us-west-2")
    assert left(bed) == [] and west.describe_key_pairs()["KeyPairs"] == []


@pytest.mark.proof("0.3 s of a processor", after=2)
@pytest.mark.parametrize(
    ("fault", "wishes", "kind", "message"),
    [
        (lambda bed: bed.deny("RunInstances"), {}, PoolError, "do not allow RunInstances"),
        (lambda bed: bed.deny("CreateSecurityGroup"), {}, PoolError, "do not allow CreateSecurityGroup"),
        (lambda bed: bed.no_default_vpc(), {}, sky.UsageError, "region us-east-1 has no default VPC"),
        (lambda bed: bed.quota(G_QUOTA, 4), {"zones": ["us-east-1a"]}, NoCapacity, "is 4 vCPUs, and the machines"),
        (lambda bed: bed.expire_credentials(), {}, CredentialsRefused, "credentials have expired"),
        (None, {"ami": "ami-00000000000000000"}, sky.UsageError, r"no (such )?machine image"),
        (None, {"instance_type": "g99.huge"}, sky.UsageError, "no such instance type"),
        (None, {"zones": ["eu-west-1a"]}, sky.UsageError, "none of the zones eu-west-1a; it has us-east-1a"),
        (None, {"endpoint_url": "http://127.0.0.1:9"}, Unreachable, "cannot be reached"),
        (None, {"profile": "nobody"}, sky.UsageError, "nobody"),
        (None, {"region": "not a region"}, sky.UsageError, "is not an AWS region"),
    ],
)  # fmt: skip
async def test_impossible_launch_fails_with_one_sentence(
    bed: Bed, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, fault: Any, wishes: dict[str, Any],
    kind: type[SkywardError], message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(boto_calls, "MAX_TRIES", 2)
    if fault:
        fault(bed)
    pool = await Pool.register(spec(**wishes), ledger)
    with pytest.raises(kind, match=message) as caught:
        await pool.start(spec(**wishes))
    assert "\n" not in str(caught.value)
    assert ledger.pool(pool.row.token).ended_at is not None
    bed.renew_credentials()
    assert left(bed) == [] and bed.instances() == []


async def test_teardown_waits_for_a_launch_call_under_way(bed: Bed, ledger: Ledger) -> None:
    bed.slow("RunInstances", 1.0)
    bed.invisible(0.5)
    pool = await Pool.register(spec(), ledger)
    starting = asyncio.create_task(pool.start(spec()))
    await until(lambda: bool(bed.calls("RunInstances")))
    receipt = await pool.down()
    with pytest.raises(Cancelled):
        await starting
    assert (receipt.ok, receipt.created, receipt.gone) == (True, 2, (0, 1))
    assert left(bed) == [] and len(bed.instances()) == 2


async def test_teardown_with_expired_credentials_names_machines_and_can_be_repeated(bed: Bed, ledger: Ledger) -> None:
    pool_spec = spec()
    row = ledger.record_intent(TOKEN, "q", pool_spec.provider.to_json(), pool_spec.describe())
    ledger.record_created(TOKEN, await create())
    ledger.set_pool_state(TOKEN, "up")
    bed.expire_credentials()
    receipt = await Pool(row, pool_spec.provider, ledger).down()
    assert not receipt.ok
    assert set(receipt.unaccounted) >= {each["id"] for each in bed.instances()}
    assert any("credentials have expired" in note for note in receipt.notes)
    bed.renew_credentials()
    assert (await Pool(ledger.pool(TOKEN), pool_spec.provider, ledger).down()).ok
    assert left(bed) == []


async def test_security_group_deletion_is_retried(bed: Bed) -> None:
    bed.group_lingers(1.0)
    await end(await create())
    assert left(bed) == []


@pytest.mark.proof("1 s of a processor")
async def test_machines_of_other_pools_are_neither_found_nor_ended(bed: Bed) -> None:
    made = await create()
    ec2 = bed.client()
    ec2.run_instances(ImageId=DEEP.ami, MinCount=1, MaxCount=1, InstanceType="g4dn.xlarge")
    assert {each.id for each in await rented().find("q", TOKEN)} == {each.id for each in made}
    assert await rented().find("q", "f" * 16) == []
    await end(made)
    assert len(left(bed)) > 0 and len(bed.instances("running")) == 1


async def test_aws_check_without_aws_settings_reports_no_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (
        *security_groups_and_account_checks.CREDENTIAL_VARIABLES,
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_CONFIG_FILE",
    ):
        monkeypatch.delenv(name, raising=False)
    (line,) = [each async for each in sky.AWS.check_all()]
    assert line.state == "ok" and "nothing to check" in line.detail


def test_terminate_now_skips_os_shutdown_if_boto3_supports_it(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    made = asyncio.run(rented(ssh_from="10.0.0.1/32").create(spec(), TOKEN))
    asyncio.run(rented().terminate_now("q", made))
    (sent,) = (call["params"] for call in bed.calls("TerminateInstances"))
    assert sent["SkipOsShutdown"] == "true" and asyncio.run(rented().why_not_now()) == ""
    monkeypatch.setattr(boto_calls.AwsCalls, "supports_parameter", lambda self, *asked: False)
    assert "pip install -U boto3" in asyncio.run(rented().why_not_now())


def refusing(monkeypatch: pytest.MonkeyPatch, error: Exception, *regions: str, action: str = "") -> None:
    """Reject calls in some regions: all calls, or those of one action."""
    real = boto_calls.AwsCalls._call

    def call(self: Any, service: str, region: str, name: str, *more: Any) -> Any:
        if region in regions and name.startswith(action):
            raise error
        return real(self, service, region, name, *more)

    monkeypatch.setattr(boto_calls.AwsCalls, "_call", call)
    monkeypatch.setattr(boto_calls, "FIRST_PAUSE", 0.001)


NOT_OURS = ClientError({"Error": {"Code": "OptInRequired", "Message": "not enabled"}}, "RunInstances")
SILENT = EndpointConnectionError(endpoint_url="https://ec2.us-west-2.amazonaws.com")
BOTH = ("us-west-2", "us-east-1")


async def test_start_with_all_regions_unreachable_names_each(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, SILENT, *BOTH)
    with pytest.raises(Unreachable, match=r"us-west-2: .*cannot be reached.*; us-east-1: .*cannot be reached"):
        await sky.AWS(region=BOTH, instance_type="g4dn.xlarge")._attempts(spec()).list_attempts(BOTH)
    monkeypatch.undo()


async def test_other_regions_are_not_tried_if_machines_may_exist(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, SILENT, "us-west-2", action="run_instances")
    with pytest.raises(Unreachable, match="us-west-2"):
        await create(region=BOTH)
    assert bed.calls("RunInstances") == []


NO_ROLE = ClientError({"Error": {"Code": ec2_errors.NO_SPOT_ROLE, "Message": "no permission"}}, "RunInstances")


async def test_spot_if_available_uses_on_demand_without_the_spot_role(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = boto_calls.AwsCalls._call

    def call(self: Any, service: str, region: str, name: str, answered: Any, params: Any) -> Any:
        if name == "run_instances" and "InstanceMarketOptions" in params:
            raise NO_ROLE
        return real(self, service, region, name, answered, params)

    monkeypatch.setattr(boto_calls.AwsCalls, "_call", call)
    pool_spec = replace(spec(1), wish=MachineRequirements(allocation="spot-if-available", instance_type="g4dn.xlarge"))
    heard: list[str] = []
    with progress_listener(heard.append):
        (made,) = await pool_spec.provider.create(pool_spec, TOKEN)
    assert made.extra["market"] == "on-demand" and "create-service-linked-role" in heard[-1]
    await end([made])


def limit(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "the limit is reached"}}, "X")


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize(
    ("error", "action"),
    [
        (NOT_OURS, "run_instances"),
        (SILENT, ""),
        (limit("SecurityGroupLimitExceeded"), "create_security_group"),
        (limit("NetworkInterfaceLimitExceeded"), "run_instances"),
        (limit("ParameterNotFound"), "get_parameter"),
        (limit("InvalidAMIID.NotFound"), "run_instances"),
    ],
)
async def test_unreachable_or_unusable_region_is_replaced_by_another_region(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, error: Exception, action: str
) -> None:
    refusing(monkeypatch, error, "us-west-2", action=action)
    heard: list[str] = []
    with progress_listener(heard.append):
        made = await create(region=BOTH)
    assert {each.extra["region"] for each in made} == {"us-east-1"}
    assert any("us-west-2" in each for each in heard)
    await end(made)


async def test_launch_without_quota_sends_one_request_and_names_the_quota(bed: Bed) -> None:
    bed.quota(G_QUOTA, 0)
    with pytest.raises(NoCapacity) as caught:
        await create(2)
    assert len(bed.calls("RunInstances")) == 1
    assert str(caught.value).endswith(
        "the quota 'Running On-Demand G and VT instances' of us-east-1 is 0 vCPUs, and the machines need 8: request "
        f"more with `aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {G_QUOTA} "
        "--desired-value 8 --region us-east-1`"
    )
    plan = await rented(ssh_from="10.0.0.1/32").plan(spec(2))
    assert any("Running On-Demand G and VT instances" in note and G_QUOTA in note for note in plan.notes)
    bed.quota(G_QUOTA, 8)
    plan = await rented(ssh_from="10.0.0.1/32").plan(spec(2))
    assert not any("quota" in note for note in plan.notes)
    bed.deny("ListServiceQuotas")
    plan = await rented(ssh_from="10.0.0.1/32").plan(spec(2))
    assert any("cannot check the quotas" in note for note in plan.notes)
    await rented().teardown("q")
    assert left(bed) == []


async def test_machines_that_ec2_ends_while_they_start_are_requested_elsewhere(bed: Bed) -> None:
    bed.fail_launches(1, "Server.InsufficientInstanceCapacity")
    heard: list[str] = []
    with progress_listener(heard.append):
        made = await create(2)
    assert any("ended during startup" in each for each in heard)
    await until(lambda: len(bed.instances("terminated")) == 2)
    assert {each["id"] for each in bed.instances("running")} == {each.id for each in made}
    await end(made)
    assert left(bed) == []


async def test_start_is_repeated_while_machines_of_the_last_attempt_are_ending(bed: Bed) -> None:
    bed.stop(3600)
    bed.fail_launches(4, "Server.InsufficientInstanceCapacity")
    with pytest.raises(NoCapacity, match="ended during startup"):
        await create(2, zones=["us-east-1a"])
    assert len(bed.instances("shutting-down")) == 4
    assert len(await create(2, zones=["us-east-1a"])) == 2


@pytest.mark.proof("0.3 s of a processor")
async def test_denied_placement_group_is_reported_and_machines_start_without_it(bed: Bed) -> None:
    bed.deny("CreatePlacementGroup")
    heard: list[str] = []
    with progress_listener(heard.append):
        made = await create(2)
    assert "continuing without a placement group: the AWS credentials do not allow" in heard[-1]
    assert len(bed.calls("RunInstances")) == 1
    bed.deny("DeletePlacementGroup")
    await end(made)
    assert left(bed) == []
