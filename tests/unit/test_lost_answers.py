"""A call that makes machines, of which a try got no answer: what comes of later tries says nothing of that one."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from skyward_core.model.errors import CredentialsRefused, Unreachable
from skyward_core.providers.aws import boto_calls
from skyward_core.providers.aws.boto_calls import AwsAccount, AwsCalls
from skyward_core.providers.aws.ec2_errors import CallFailed, CapacityRefused

LOST = ReadTimeoutError(endpoint_url="http://ec2")
NOT_SENT = EndpointConnectionError(endpoint_url="http://ec2")


def refused(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "m"}}, "RunInstances")


class Scripted(AwsCalls):
    """Says one thing after the other, the last again and again."""

    def __init__(self, *said: Exception) -> None:
        super().__init__(AwsAccount())
        self.said = list(said)

    def _call(self, *_: Any) -> dict[str, Any]:
        raise self.said.pop(0) if len(self.said) > 1 else self.said[0]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boto_calls, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(boto_calls, "LONGEST_PAUSE", 0.001)
    monkeypatch.setattr(boto_calls, "THROTTLE_TIMEOUT", 0.05)


async def buys(*said: Exception) -> None:
    await Scripted(*said).call("ec2", "r", "run_instances", answered=lambda _: None)


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "ExpiredToken", "AuthFailure", "UnauthorizedOperation"])
async def test_who_is_turned_away_at_the_door_does_not_know_what_became_of_a_try_before(code: str) -> None:
    with pytest.raises(Unreachable, match="an earlier attempt got no answer and may have succeeded"):
        await buys(LOST, refused(code))


async def test_what_was_looked_at_or_never_sent_is_told_as_it_is() -> None:
    with pytest.raises(CapacityRefused):  # the same token would have brought what the first try made
        await buys(LOST, refused("InsufficientInstanceCapacity"))
    with pytest.raises(CredentialsRefused):
        await buys(NOT_SENT, refused("ExpiredToken"))
    with pytest.raises(CallFailed, match="after minutes"):
        await buys(refused("RequestLimitExceeded"))
    with pytest.raises(CredentialsRefused):  # of what only asks, nobody needs to know
        await Scripted(LOST, refused("ExpiredToken")).call("ec2", "r", "describe_instances")
