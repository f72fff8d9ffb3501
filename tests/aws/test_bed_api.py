"""The bed's API has EC2's semantics; these tests need no hosts."""

from __future__ import annotations

import time
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError

from tests.lab.tools import wait_until

from . import Bed
from .images import DEEP, UBUNTU_ARM
from .waiting import launch, until_state

ZONE_A, ZONE_B = ({"AvailabilityZone": f"us-east-1{letter}"} for letter in "ab")
SPOT = {"MarketType": "spot"}


@pytest.fixture
def bed(simulated_bed: Bed) -> Bed:
    return simulated_bed


@pytest.fixture
def ec2(bed: Bed) -> Any:
    return bed.client()


def refused(do: Any, *args: Any, **given: Any) -> str:
    """Return the error code with which a call is rejected."""
    with pytest.raises(ClientError) as caught:
        do(*args, **given)
    return str(caught.value.response["Error"]["Code"])


def status(do: Any, *args: Any, **given: Any) -> int:
    with pytest.raises(ClientError) as caught:
        do(*args, **given)
    return int(caught.value.response["ResponseMetadata"]["HTTPStatusCode"])


@pytest.mark.proof("1 s of a processor")
def test_client_token_launches_instances_once(bed: Bed, ec2: Any) -> None:
    first = launch(ec2, 2, ClientToken="t")
    assert launch(ec2, 2, ClientToken="t") == first
    assert len(bed.instances()) == 2
    assert refused(launch, ec2, 3, ClientToken="t") == "IdempotentParameterMismatch"
    ec2.terminate_instances(InstanceIds=first[:1])
    assert launch(ec2, 2, ClientToken="t") == first
    ec2.terminate_instances(InstanceIds=first)
    assert refused(launch, ec2, 2, ClientToken="t") == "IdempotentInstanceTerminated"


@pytest.mark.proof("1 s of a processor")
def test_client_token_is_scoped_to_zone_and_region(bed: Bed, ec2: Any) -> None:
    launch(ec2, ClientToken="t", Placement=ZONE_A)
    launch(ec2, ClientToken="t", Placement=ZONE_B)
    launch(bed.client(region="us-west-2"), ClientToken="t")
    assert {found["zone"] for found in bed.instances()} == {"us-east-1a", "us-east-1b", "us-west-2a"}


@pytest.mark.proof("1 s of a processor")
def test_lost_answer_hides_executed_launch(bed: Bed, ec2: Any) -> None:
    bed.lose_answer("RunInstances")
    with pytest.raises((ConnectionClosedError, EndpointConnectionError)):
        launch(ec2, 2, ClientToken="t")
    assert len(bed.instances()) == 2
    assert launch(ec2, 2, ClientToken="t") == [found["id"] for found in bed.instances()]


def test_call_that_fails_halfway_affects_half_of_the_instances(bed: Bed, ec2: Any) -> None:
    bed.fail_half("RunInstances")
    assert status(launch, ec2, 4) == 500
    assert len(bed.instances()) == 2
    ids = launch(ec2, 2)
    bed.fail_half("TerminateInstances")
    assert refused(ec2.terminate_instances, InstanceIds=ids) == "InternalError"
    until_state(bed, ids[:1], "terminated")
    assert bed.instances()[-1]["state"] in ("pending", "running")


def test_instance_states_follow_each_other(bed: Bed, ec2: Any) -> None:
    bed.boot(3600)
    bed.stop(3600)
    (name,) = launch(ec2)
    (found,) = ec2.describe_instances(InstanceIds=[name])["Reservations"][0]["Instances"]
    assert found["State"]["Name"] == "pending" and found.get("PublicIpAddress") is None
    bed.boot(0)
    until_state(bed, [name], "running")
    (found,) = ec2.describe_instances(InstanceIds=[name])["Reservations"][0]["Instances"]
    assert found["PublicIpAddress"]
    for _ in range(2):  # once more changes nothing
        ec2.terminate_instances(InstanceIds=[name])
        (found,) = ec2.describe_instances(InstanceIds=[name])["Reservations"][0]["Instances"]
        assert found["State"]["Name"] == "shutting-down"
    bed.stop(0)
    until_state(bed, [name], "terminated")
    (found,) = ec2.describe_instances(InstanceIds=[name])["Reservations"][0]["Instances"]
    assert found["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert (
        ec2.terminate_instances(InstanceIds=[name])["TerminatingInstances"][0]["PreviousState"]["Name"] == "terminated"
    )
    assert not ec2.describe_volumes()["Volumes"]


def test_new_instance_is_invisible_for_the_given_duration(bed: Bed, ec2: Any) -> None:
    bed.invisible(3600)
    (name,) = launch(ec2, TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}])
    tagged = [{"Name": "tag:a", "Values": ["b"]}]
    assert not ec2.describe_instances(Filters=tagged)["Reservations"]
    assert refused(ec2.describe_instances, InstanceIds=[name]) == "InvalidInstanceID.NotFound"
    assert refused(ec2.terminate_instances, InstanceIds=[name]) == "InvalidInstanceID.NotFound"
    bed.invisible(0)
    assert ec2.describe_instances(Filters=tagged)["Reservations"]


def test_termination_with_an_unknown_instance_ends_none(bed: Bed, ec2: Any) -> None:
    (name,) = launch(ec2)
    assert refused(ec2.terminate_instances, InstanceIds=[name, "i-0123456789abcdef0"]) == "InvalidInstanceID.NotFound"
    assert bed.instances()[0]["state"] in ("pending", "running")


def test_launch_without_capacity_is_refused_or_partial_by_min_count(bed: Bed, ec2: Any) -> None:
    bed.no_capacity(zone="us-east-1a", type="g4dn.xlarge", left=3)
    kind = {"InstanceType": "g4dn.xlarge", "ImageId": DEEP.ami, "Placement": ZONE_A}
    assert status(launch, ec2, 4, **kind) == 500
    assert refused(launch, ec2, 4, **kind) == "InsufficientInstanceCapacity"
    launch(ec2, 1)  # another type
    assert len(launch(ec2, 4, **{**kind, "MinCount": 1})) == 3
    assert refused(launch, ec2, **kind) == "InsufficientInstanceCapacity"
    assert len(launch(ec2, 4, **{**kind, "Placement": {}})) == 4  # wherever there is room
    assert bed.instances()[-1]["zone"] == "us-east-1b"


def test_launch_with_unknown_resources_is_refused(ec2: Any) -> None:
    assert refused(launch, ec2, InstanceType="g9.huge") == "InvalidParameterValue"
    assert refused(launch, ec2, ImageId="ami-0123456789abcdef0") == "InvalidAMIID.NotFound"
    assert refused(launch, ec2, ImageId=UBUNTU_ARM.ami) == "InvalidParameterValue"
    assert refused(launch, ec2, KeyName="nobody") == "InvalidKeyPair.NotFound"
    assert refused(launch, ec2, SecurityGroupIds=["sg-0123456789abcdef0"]) == "InvalidGroup.NotFound"
    assert refused(launch, ec2, Placement={"GroupName": "none"}) == "InvalidPlacementGroup.Unknown"
    assert refused(launch, ec2, Placement={"AvailabilityZone": "us-east-1z"}) == "InvalidParameterValue"
    unsupported = {"InstanceType": "p4d.24xlarge", "ImageId": DEEP.ami, "Placement": {"AvailabilityZone": "us-east-1f"}}
    assert refused(launch, ec2, **unsupported) == "Unsupported"
    assert refused(launch, ec2, UserData="x" * 20000) == "InvalidParameterValue"
    assert refused(ec2.describe_instance_types, InstanceTypes=["g9.huge"]) == "InvalidInstanceType"


def test_quotas_count_vcpus_by_family_and_market(bed: Bed, ec2: Any) -> None:
    bed.quota("L-DB2E81BA", 8)
    kind = {"InstanceType": "g4dn.xlarge", "ImageId": DEEP.ami}
    quota = bed.client("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode="L-DB2E81BA")["Quota"]
    assert (quota["Value"], quota["QuotaName"]) == (8, "Running On-Demand G and VT instances")
    ids = launch(ec2, 2, **kind)
    assert refused(launch, ec2, **kind) == "VcpuLimitExceeded"
    launch(ec2, 1, InstanceMarketOptions=SPOT, **kind)
    ec2.terminate_instances(InstanceIds=ids)
    launch(ec2, 2, **kind)
    bed.quota("L-3819A6DF", 0)
    assert refused(launch, ec2, InstanceMarketOptions=SPOT, **kind) == "MaxSpotInstanceCountExceeded"


def test_throttled_calls_are_refused(bed: Bed, ec2: Any) -> None:
    bed.throttle(2)
    ec2.describe_instances()
    ec2.describe_instances()
    assert refused(ec2.describe_instances) == "RequestLimitExceeded"
    assert len(bed.calls("DescribeInstances")) == 3
    bed.throttle(None)
    ec2.describe_instances()


def test_slow_call_takes_the_given_duration(bed: Bed, ec2: Any) -> None:
    bed.slow("CreateKeyPair", 0.3)
    began = time.monotonic()
    ec2.create_key_pair(KeyName="late")
    assert time.monotonic() - began > 0.3


def test_security_group_deletion_is_refused_while_it_is_in_use(bed: Bed, ec2: Any) -> None:
    bed.group_lingers(3600)
    group = ec2.create_security_group(GroupName="g", Description="g")["GroupId"]
    within = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=within)
    ids = launch(ec2, SecurityGroupIds=[group])
    assert refused(ec2.delete_security_group, GroupId=group) == "DependencyViolation"
    ec2.terminate_instances(InstanceIds=ids)
    until_state(bed, ids, "terminated")
    assert refused(ec2.delete_security_group, GroupId=group) == "DependencyViolation"
    bed.group_lingers(0)
    held = [{"Name": "group-id", "Values": [group]}]
    wait_until(lambda: not ec2.describe_network_interfaces(Filters=held)["NetworkInterfaces"], "the interface to go")
    other = ec2.create_security_group(GroupName="other", Description="-")["GroupId"]
    ec2.authorize_security_group_ingress(GroupId=other, IpPermissions=within)
    assert refused(ec2.delete_security_group, GroupId=group) == "DependencyViolation"
    ec2.delete_security_group(GroupId=other)
    ec2.delete_security_group(GroupId=group)
    assert refused(ec2.delete_security_group, GroupId=group) == "InvalidGroup.NotFound"


def test_launch_creates_all_requested_resources(bed: Bed, ec2: Any) -> None:
    """Describe calls with filters find everything that a complete launch request names."""
    subnets = ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": ["us-east-1b"]}])["Subnets"]
    group = ec2.create_security_group(GroupName="g", Description="g", VpcId=subnets[0]["VpcId"])["GroupId"]
    card = {"DeviceIndex": 0, "SubnetId": subnets[0]["SubnetId"], "Groups": [group], "AssociatePublicIpAddress": True}
    disk = {"VolumeSize": 120, "VolumeType": "gp3", "DeleteOnTermination": True}
    tags = [{"Key": "skyward:pool", "Value": "p"}]
    ids = launch(
        ec2,
        2,
        ClientToken="full",
        InstanceMarketOptions={**SPOT, "SpotOptions": {"SpotInstanceType": "one-time", "MaxPrice": "9"}},
        NetworkInterfaces=[card],
        BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": disk}],
        MetadataOptions={"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
        TagSpecifications=[
            {"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume", "network-interface")
        ],
    )
    until_state(bed, ids, "running")
    for name, value in (("client-token", "full"), ("tag:skyward:pool", "p"), ("instance-lifecycle", "spot")):
        found = ec2.describe_instances(Filters=[{"Name": name, "Values": [value]}])["Reservations"]
        assert [each["InstanceId"] for each in found[0]["Instances"]] == ids
    (first, _) = found[0]["Instances"]
    assert first["Placement"]["AvailabilityZone"] == "us-east-1b" and first["PublicIpAddress"]
    assert [each["GroupId"] for each in first["NetworkInterfaces"][0]["Groups"]] == [group]
    volumes = ec2.describe_volumes(Filters=[{"Name": "tag:skyward:pool", "Values": ["p"]}])["Volumes"]
    assert [(each["Size"], each["VolumeType"]) for each in volumes] == [(120, "gp3")] * 2
    cheap = {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.0001"}}
    assert refused(launch, ec2, InstanceMarketOptions=cheap) == "SpotMaxPriceTooLow"
    assert refused(launch, ec2, IamInstanceProfile={"Name": "nobody"}) == "InvalidParameterValue"


def test_heal_resets_the_bed(bed: Bed, ec2: Any) -> None:
    launch(ec2, 2)
    ec2.create_security_group(GroupName="g", Description="g")
    bed.deny("DescribeInstances")
    bed.heal()
    assert not ec2.describe_instances()["Reservations"]
    assert [group["GroupName"] for group in ec2.describe_security_groups()["SecurityGroups"]] == ["default"]


def test_unknown_credentials_are_refused(bed: Bed) -> None:
    stranger = boto3.client(
        "ec2",
        region_name="us-east-1",
        endpoint_url=bed.endpoint,
        aws_access_key_id="AKIASTRANGER",
        aws_secret_access_key="none",
    )
    assert refused(stranger.describe_instances) == "AuthFailure"


# EC2 at its strictest: conditions on tags, ended instances forgotten, queries of the past, launches that fail late.

OURS: Any = {"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "skyward:pool", "Value": "p"}]}]}


def test_policy_allows_changes_of_existing_tagged_resources_only(bed: Bed, ec2: Any) -> None:
    (plain,) = launch(ec2)
    (ours,) = launch(ec2, **OURS)
    bed.require_policy()
    assert refused(ec2.terminate_instances, InstanceIds=[plain]) == "UnauthorizedOperation"
    assert refused(ec2.terminate_instances, InstanceIds=[ours, plain]) == "UnauthorizedOperation"
    assert refused(ec2.terminate_instances, InstanceIds=["i-00000000000000000"]) == "UnauthorizedOperation"
    assert refused(ec2.delete_key_pair, KeyName="gone") == "UnauthorizedOperation"
    assert refused(ec2.delete_security_group, GroupId="sg-00000000000000000") == "UnauthorizedOperation"
    assert refused(ec2.stop_instances, InstanceIds=[ours]) == "UnauthorizedOperation"
    assert refused(ec2.create_tags, Resources=[plain], Tags=[{"Key": "a", "Value": "b"}]) == "UnauthorizedOperation"
    ec2.create_tags(Resources=[ours], Tags=[{"Key": "a", "Value": "b"}])
    ec2.terminate_instances(InstanceIds=[ours])
    until_state(bed, [ours], "terminated")


def test_ended_instance_is_forgotten_after_the_given_time(bed: Bed, ec2: Any) -> None:
    ids = launch(ec2, 2)
    ec2.terminate_instances(InstanceIds=ids[:1])
    until_state(bed, ids[:1], "terminated")
    assert shown(ec2) == {ids[0]: "terminated", ids[1]: "running"}
    bed.forget_ended(0.0)
    assert shown(ec2) == {ids[1]: "running"}
    assert refused(ec2.terminate_instances, InstanceIds=ids) == "InvalidInstanceID.NotFound"


def test_lagging_queries_show_the_past_of_their_resource_type(bed: Bed, ec2: Any) -> None:
    (before,) = launch(ec2)
    until_state(bed, [before], "running")
    bed.lag(instance=3600.0, security_group=3600.0)
    group = ec2.create_security_group(GroupName="late", Description="-")["GroupId"]
    key = ec2.create_key_pair(KeyName="now")["KeyName"]
    (new,) = launch(ec2)
    ec2.terminate_instances(InstanceIds=[before])
    until_state(bed, [before], "terminated")
    assert shown(ec2) == {before: "running"}
    assert ec2.describe_key_pairs()["KeyPairs"][0]["KeyName"] == key
    assert group not in [each["GroupId"] for each in ec2.describe_security_groups()["SecurityGroups"]]
    bed.lag()
    until_state(bed, [new], "running")
    assert shown(ec2) == {before: "terminated", new: "running"}
    assert group in [each["GroupId"] for each in ec2.describe_security_groups()["SecurityGroups"]]


def shown(ec2: Any) -> dict[str, str]:
    """Return the instances and states that EC2 describes."""
    found = ec2.describe_instances()["Reservations"]
    return {each["InstanceId"]: each["State"]["Name"] for one in found for each in one["Instances"]}


def test_launch_can_fail_after_its_answer_with_a_reason(bed: Bed, ec2: Any) -> None:
    bed.fail_launches(1, "Server.InsufficientInstanceCapacity")
    ids = launch(ec2, 2)
    (failed,) = until_state(bed, ids[:1], "terminated")
    assert failed["reason"] == "Server.InsufficientInstanceCapacity" and failed["seconds"] == 0
    until_state(bed, ids[1:], "running")


def test_call_can_fail_several_times_without_effect(bed: Bed, ec2: Any) -> None:
    bed.fail("RunInstances", 2)
    assert [refused(launch, ec2) for _ in range(2)] == ["InternalError"] * 2
    assert bed.instances() == [] and len(launch(ec2)) == 1
