"""Generator of the documented IAM policy from the calls in the code: ``python -m tests.aws.policy``."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import boto3

from skyward_core.providers import aws

SERVICES = ("ec2", "ssm", "pricing", "service-quotas")  # STS needs no permission to tell who one is
PREFIX = {"service-quotas": "servicequotas"}

# What changes or ends something: only where it has our tag, or gets it as it is made.
OURS = {"StringLike": {"aws:ResourceTag/skyward:pool": "*"}}
MAKES = ("CreatePlacementGroup", "CreateSecurityGroup", "ImportKeyPair", "RunInstances")
ON_OURS = {
    "AuthorizeSecurityGroupEgress",
    "AuthorizeSecurityGroupIngress",
    "CreateTags",
    "DeleteKeyPair",
    "DeletePlacementGroup",
    "DeleteSecurityGroup",
    "DeleteVolume",
    "RevokeSecurityGroupIngress",
    "TerminateInstances",
}


def made() -> dict[str, set[str]]:
    """Return the names of the actions that the code calls, by service."""
    words = set()
    for path in Path(aws.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
    found = {}
    for service in SERVICES:
        methods = boto3.client(service, region_name="us-east-1").meta.method_to_api_mapping
        found[service] = {action for method, action in methods.items() if method in words}
    return found


def policy() -> dict[str, Any]:
    """Return the policy in IAM's format."""
    actions = made()
    changes = actions["ec2"] & ON_OURS
    makes = actions["ec2"] & set(MAKES)
    buys = actions["ec2"] & {"PurchaseCapacityBlock"}
    asks = {
        f"{PREFIX.get(service, service)}:{action}"
        for service, names in actions.items()
        for action in names - changes - makes - buys
    }
    as_made = {"StringEquals": {"ec2:CreateAction": sorted(makes | buys)}}
    return {
        "Version": "2012-10-17",
        "Statement": [
            statement("Look", asks),
            statement("Make", {f"ec2:{each}" for each in makes}),
            statement("BuyAhead", {f"ec2:{each}" for each in buys}),
            statement(
                "MakeSpotRole",
                {"iam:CreateServiceLinkedRole"},
                {"StringEquals": {"iam:AWSServiceName": "spot.amazonaws.com"}},
            ),
            statement("TagWhatIsMade", {"ec2:CreateTags"}, as_made),
            statement("ChangeAndEndOurs", {f"ec2:{each}" for each in changes}, OURS),
        ],
    }


def statement(name: str, actions: set[str], condition: dict[str, Any] | None = None) -> dict[str, Any]:
    allowed: dict[str, Any] = {"Sid": name, "Effect": "Allow", "Action": sorted(actions), "Resource": "*"}
    return allowed | ({"Condition": condition} if condition else {})


if __name__ == "__main__":
    print(json.dumps(policy(), indent=2))
