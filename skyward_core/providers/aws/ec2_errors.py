"""EC2's errors: meaning, scope, retry, eventual consistency."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import Any, TypeVar

from skyward_core.model.errors import (
    CredentialsRefused,
    NoCapacity,
    PoolError,
    SkywardError,
    Unreachable,
    UsageError,
    combine_errors,
    error_message,
)
from skyward_core.providers.provider_calls import report_progress

THROTTLED_CODES = frozenset(
    {
        "RequestLimitExceeded", "Throttling", "ThrottlingException", "ThrottledException", "TooManyRequestsException",
        "EC2ThrottledException", "PriorRequestNotComplete", "RequestThrottled", "RequestThrottledException",
    }
)  # fmt: skip
TRANSIENT_CODES = frozenset(
    {"InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable", "InternalServerError"}
)
EXPIRED_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
REJECTED_CREDENTIALS_CODES = frozenset(
    {
        "AuthFailure",
        "InvalidClientTokenId",
        "UnrecognizedClientException",
        "SignatureDoesNotMatch",
        "OptInRequired",
    }
)
DENIED_CODES = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
# There is none to be had here, now or for this account: another place may have some.
NO_CAPACITY_CODES = frozenset(
    {
        "InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity",
        "InsufficientCapacityOnHost", "InsufficientFreeAddressesInSubnet", "SpotMaxPriceTooLow",
        "ReservationCapacityExceeded",
    }
)  # fmt: skip
QUOTA_CODES = frozenset(
    {
        "VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded", "VolumeLimitExceeded",
        "PendingVerification",
    }
)  # fmt: skip
UNAVAILABLE_CODES = NO_CAPACITY_CODES | QUOTA_CODES | {"Unsupported", "UnsupportedOperation"}


class CallFailed(PoolError):
    """AWS has answered a call with an error.

    Attributes:
        code: its own name for it.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class CapacityRefused(NoCapacity):
    """There is no machine of a kind to be had at a place.

    Attributes:
        code: AWS's name for why.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def error_code(error: BaseException) -> str:
    """AWS's own name for what went wrong; "" of what came from elsewhere."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def is_retryable(error: BaseException) -> bool:
    """Whether the same call may succeed a little later."""
    from botocore import exceptions

    if _is_transient(error_code(error)) or _is_garbled(error):
        return True
    # Of a call that got no answer nobody knows whether it was done: only calls that may be repeated come here.
    return isinstance(error, exceptions.HTTPClientError | exceptions.ConnectionError)


def _is_transient(code: str) -> bool:
    """Whether AWS, or a gateway before it, has trouble of its own; botocore names a gateway's by its HTTP status."""
    return code in TRANSIENT_CODES or (code.isdecimal() and code.startswith("5"))


def _is_garbled(error: BaseException) -> bool:
    """Whether something answered that is not AWS, such as a proxy, or only the half of AWS's answer has come."""
    from botocore.parsers import ResponseParserError

    return isinstance(error, ResponseParserError)


def may_have_succeeded(error: BaseException) -> bool:
    """Whether a call that may pass later may have been done all the same: it was sent."""
    from botocore import exceptions

    return not isinstance(error, exceptions.EndpointConnectionError | exceptions.ConnectTimeoutError)


def is_rejected_early(error: SkywardError) -> bool:
    """Whether AWS has turned a call away before it looked at what was asked: that says nothing of an earlier try."""
    if isinstance(error, CallFailed):
        return error.code in THROTTLED_CODES | DENIED_CODES
    return isinstance(error, CredentialsRefused)


def no_response_error(last: SkywardError) -> Unreachable:
    """The error for a call of which a try got no answer, and none after it was let in."""
    return Unreachable(f"{error_message(last)}; and an earlier try got no answer, and may have been done")


def translate_error(error: BaseException, service: str, region: str, action: str) -> SkywardError:
    """The error for a call that came to nothing."""
    from botocore import exceptions

    place = f"{service} in {region}"
    name = "".join(part.capitalize() for part in action.split("_"))
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        return CredentialsRefused(
            "there are no AWS credentials: run `aws configure` or `aws sso login`, or set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY"
        )
    if isinstance(error, exceptions.ProfileNotFound):
        return UsageError(f"{error}; name one of ~/.aws/config")
    if isinstance(error, exceptions.TokenRetrievalError | exceptions.UnauthorizedSSOTokenError):
        return CredentialsRefused(f"the AWS sign-in has expired ({error}): run `aws sso login`")
    if isinstance(error, exceptions.EndpointConnectionError | exceptions.ConnectTimeoutError):
        return Unreachable(
            f"{place} cannot be reached ({error}): check the network, and that there is a region {region}"
        )
    if isinstance(error, exceptions.HTTPClientError | exceptions.ConnectionError):
        return Unreachable(f"{place} did not answer {name} ({type(error).__name__}): try again later")
    if _is_garbled(error):  # it has all of the answer in its text
        return Unreachable(
            f"what answers {name} is not {place}: look for a proxy, or a network's sign-in page, in between; it may "
            "have been done"
        )
    if isinstance(error, exceptions.ClientError):
        return _rejection_error(error, place, name)
    return CallFailed(f"{place}: {name} failed: {type(error).__name__}: {error}")


def _rejection_error(error: Any, place: str, name: str) -> SkywardError:
    code = error_code(error)
    said = str(error.response.get("Error", {}).get("Message", "")).rstrip(".")
    if code in EXPIRED_CODES:
        return CredentialsRefused(
            f"the AWS credentials have expired ({place}, {name}): renew them, by `aws sso login` say, and try again"
        )
    if code in REJECTED_CREDENTIALS_CODES:
        return CredentialsRefused(f"{place} does not accept the AWS credentials ({code}: {said})")
    if code in DENIED_CODES:
        return CallFailed(
            f"the AWS credentials may not do {name} ({place}): have the action allowed, as the policy in the "
            "documentation does",
            code,
        )
    if code in THROTTLED_CODES:
        return CallFailed(f"{place} still answers {name} with {code} after minutes: try again later", code)
    if _is_transient(code):
        return Unreachable(f"{place} has trouble of its own and did not do {name} ({code}): try again later")
    if code in QUOTA_CODES:
        return CapacityRefused(
            f"{place}: the account's quota does not allow it ({code}: {said}); ask AWS for more in its Service Quotas "
            "console, or choose another type or region",
            code,
        )
    if code in UNAVAILABLE_CODES:
        return CapacityRefused(f"{code}: {said}", code)
    if code.startswith("InvalidAMIID"):
        return UsageError(f"{place} has no such machine image: {said}; images have another id in each region")
    if code == "InvalidInstanceType" or "InstanceType" in said:
        return UsageError(f"{place} has no such instance type: {said}")
    if code in ("VPCIdNotSpecified", "MissingInput") and "VPC" in said:
        return no_network_error(place.rpartition(" ")[2])
    return CallFailed(f"{place} refused {name} ({code}): {said}", code)


def no_network_error(region: str) -> UsageError:
    """The error for a region in which nothing says which network machines belong in."""
    return UsageError(
        f'region {region} has no default VPC with a subnet: name a subnet of yours (subnet="subnet-..."), or make a '
        "default VPC with `aws ec2 create-default-vpc`"
    )


T = TypeVar("T")


def is_attempt_failure(error: SkywardError) -> bool:
    """Whether another machine of the same region may be had all the same."""
    return isinstance(error, CapacityRefused) or (isinstance(error, CallFailed) and error.code in THROTTLED_CODES)


def is_region_failure(error: SkywardError) -> bool:
    """Whether another region may do: this one does not answer, or lets these credentials do nothing."""
    if isinstance(error, CallFailed):
        return error.code in DENIED_CODES
    return isinstance(error, CredentialsRefused | Unreachable)


async def query_regions(
    regions: Sequence[str], ask: Callable[[str], Awaitable[T]]
) -> tuple[list[T], list[tuple[str, SkywardError]]]:
    """What regions say, all asked at once; and those that say nothing, with why.

    Raises:
        SkywardError: none says anything; names each.
    """
    found = await asyncio.gather(*map(ask, regions), return_exceptions=True)
    said: list[T] = []
    silent: list[tuple[str, SkywardError]] = []
    for region, each in zip(regions, found, strict=True):
        if isinstance(each, SkywardError) and (is_region_failure(each) or isinstance(each, UsageError)):
            silent.append((region, each))
        elif isinstance(each, BaseException):
            raise each
        else:
            said.append(each)
    if not said:
        raise silent[0][1] if len(silent) == 1 else combine_errors(silent)
    for region, error in silent:
        report_progress(f"region {region} is left out: {error_message(error)}")
    return said, silent


GROUP_NOT_FOUND = ("InvalidGroup.NotFound", "InvalidGroupId.NotFound")
KEY_NOT_FOUND = ("InvalidKeyPair.NotFound",)
PLACEMENT_GROUP_NOT_FOUND = ("InvalidPlacementGroup.Unknown",)
VISIBILITY_TIMEOUT = 30.0  # seconds until all know of it
POLL_PAUSES = (0.2, 2.0)  # seconds between two tries, at first and at most


async def retry_while(
    codes: Container[str],
    ask: Callable[[], Awaitable[T]],
    limit: float = VISIBILITY_TIMEOUT,
    pauses: tuple[float, float] | None = None,
) -> T:
    """Return what a call gives, once it no longer fails with some codes: EC2 does not know yet what it is about, say.

    Args:
        codes: EC2's names of failures that pass.
        ask: Makes the call; may do so again and again.
        limit: Seconds in all.
        pauses: Seconds between two tries, at first and at most.

    Raises:
        SkywardError: It came to nothing; says why.
    """
    deadline, (pause, longest) = time.monotonic() + limit, pauses or POLL_PAUSES
    while True:
        try:
            return await ask()
        except CallFailed as error:
            if error.code not in codes or time.monotonic() + pause > deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(longest, pause * 2)
