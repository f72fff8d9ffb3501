"""The bed's API has EC2's semantics; all tests but the last need no hosts."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from . import Bed
from .waiting import launch, until_state


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


def test_new_instance_is_invisible_for_the_given_duration(bed: Bed, ec2: Any) -> None:
    bed.invisible(3600)
    (name,) = launch(ec2, TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}])
    tagged = [{"Name": "tag:a", "Values": ["b"]}]
    assert not ec2.describe_instances(Filters=tagged)["Reservations"]
    assert refused(ec2.describe_instances, InstanceIds=[name]) == "InvalidInstanceID.NotFound"
    assert refused(ec2.terminate_instances, InstanceIds=[name]) == "InvalidInstanceID.NotFound"
    bed.invisible(0)
    assert ec2.describe_instances(Filters=tagged)["Reservations"]


def test_throttled_calls_are_refused(bed: Bed, ec2: Any) -> None:
    bed.throttle(2)
    ec2.describe_instances()
    ec2.describe_instances()
    assert refused(ec2.describe_instances) == "RequestLimitExceeded"
    assert len(bed.calls("DescribeInstances")) == 3
    bed.throttle(None)
    ec2.describe_instances()


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
