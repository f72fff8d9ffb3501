"""Classification of EC2 errors: cause, scope, whether to retry, and eventual consistency."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
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
from skyward_core.providers.provider_call_logs_polling_and_cache import poll_until_empty, report_progress

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
    {"AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "OptInRequired"}
)
DENIED_CODES = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
# Error codes for missing capacity at a place, at this time or for this account. Another place may have capacity.
NO_CAPACITY_CODES = frozenset(
    {
        "InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity",
        "InsufficientCapacityOnHost", "InsufficientFreeAddressesInSubnet", "SpotMaxPriceTooLow",
        "ReservationCapacityExceeded",
    }
)  # fmt: skip
VCPU_QUOTA_CODES = frozenset({"VcpuLimitExceeded", "MaxSpotInstanceCountExceeded"})
QUOTA_CODES = VCPU_QUOTA_CODES | {"InstanceLimitExceeded", "PendingVerification"}
# Pattern of regions that an account must enable before use.
OPT_IN_REGIONS = re.compile(r"(af|il|me|mx)-|ap-(east-|south-2|southeast-[3-9])|ca-west-|eu-(central-2|south-)")
MAX_QUOTE = 130  # maximum characters of AWS's own text in an error message, so that no message exceeds 300 characters
# Error codes for limits of the account in one region. Another region has limits of its own.
REGION_LIMIT_CODES = frozenset({"SecurityGroupLimitExceeded", "NetworkInterfaceLimitExceeded", "VolumeLimitExceeded"})
# Error code if the account has no role for Spot and these credentials cannot create the role. On-demand machines need
# no such role.
NO_SPOT_ROLE = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
UNAVAILABLE_CODES = NO_CAPACITY_CODES | QUOTA_CODES | {"Unsupported", "UnsupportedOperation"}


class _CodedError(PoolError):
    """Base class of errors with AWS's error code."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class CallFailed(_CodedError):
    """Error: AWS answered a call with an error.

    Attributes:
        code: AWS's error code.
    """


class NoImage(UsageError):
    """Error: a region does not have the machine image."""


class CapacityRefused(_CodedError, NoCapacity):
    """Error: no machine of a type is available at a place.

    Attributes:
        code: AWS's error code.
    """


def error_code(error: BaseException) -> str:
    """Return AWS's error code; "" for other exceptions."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def is_retryable(error: BaseException) -> bool:
    """Check whether the same call may succeed if it is repeated a little later."""
    from botocore import exceptions

    if _is_transient(error_code(error)) or _is_garbled(error):
        return True
    # Without an answer, it is unknown whether the call took effect. A retry is safe, because all calls of this package
    # can be repeated.
    return isinstance(error, exceptions.HTTPClientError | exceptions.ConnectionError)


def _is_transient(code: str) -> bool:
    """Check whether an error is internal to AWS or a gateway; for gateways, botocore uses the HTTP status as the
    code.
    """
    return code in TRANSIENT_CODES or (code.isdecimal() and code.startswith("5"))


def _is_garbled(error: BaseException) -> bool:
    """Check whether the answer is incomplete or comes from another server, for example a proxy."""
    from botocore.parsers import ResponseParserError

    return isinstance(error, ResponseParserError)


def may_have_succeeded(error: BaseException) -> bool:
    """Check whether a failed call was sent, so that AWS may have executed the call."""
    from botocore import exceptions

    return not isinstance(error, exceptions.EndpointConnectionError | exceptions.ConnectTimeoutError)


def is_rejected_early(error: SkywardError) -> bool:
    """Check whether AWS rejected a call before processing it. The result of an earlier attempt remains unknown then."""
    if isinstance(error, CallFailed):
        return error.code in THROTTLED_CODES | DENIED_CODES
    return isinstance(error, CredentialsRefused)


def is_resource_refusal(error: CallFailed) -> bool:
    """Check whether EC2 may have refused a call because of one of its resources.

    The documented policy allows changes of tagged resources only. A resource that no longer exists has no tag, so EC2
    denies the call instead of reporting an unknown resource.
    """
    not_found = error.code.startswith("Invalid") and error.code.endswith((".NotFound", ".Malformed", ".Unknown"))
    return not_found or error.code in DENIED_CODES | {"OperationNotPermitted"}


def translate_error(
    error: BaseException, service: str, region: str, action: str, profile: str | None = None
) -> SkywardError:
    """Return the error that describes a failed call to the user.

    Args:
        profile: Profile in ``~/.aws/config``; None for the default one.
    """
    from botocore import exceptions

    place, text = f"{service} in {region}", _brief(str(error))
    name = "".join(part.capitalize() for part in action.split("_"))
    kind = type(error).__name__
    sign_in = _sign_in_command("aws login" if kind.startswith("Login") else "aws sso login", profile)
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        return CredentialsRefused(
            "no AWS credentials were found: run `aws configure` or `aws sso login`, or set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY"
        )
    if isinstance(error, exceptions.ProfileNotFound):
        return UsageError(f"{text}; choose a profile of ~/.aws/config")
    if kind.endswith("TokenLoadError"):
        return CredentialsRefused(f"there is no AWS sign-in for this profile yet ({text}): run `{sign_in}`")
    if kind.startswith("Login") or isinstance(error, exceptions.TokenRetrievalError | exceptions.SSOError):
        return CredentialsRefused(f"the AWS sign-in has expired ({text}): run `{sign_in}`")
    if isinstance(error, exceptions.CredentialRetrievalError | exceptions.MetadataRetrievalError):
        return CredentialsRefused(
            f"the AWS credentials could not be loaded ({text}): check the profile in ~/.aws/config"
        )
    if isinstance(error, exceptions.InvalidConfigError | exceptions.ConfigParseError):
        return UsageError(f"the AWS configuration cannot be used: {text}. Correct the profile in ~/.aws/config")
    if isinstance(error, exceptions.EndpointConnectionError | exceptions.ConnectTimeoutError):
        return Unreachable(f"{place} cannot be reached ({text}): check the network and the region name {region}")
    if isinstance(error, exceptions.HTTPClientError | exceptions.ConnectionError):
        return Unreachable(f"{place} did not answer {name} ({kind}). Try again later")
    # replaced by a short text, because the exception's text would include the whole invalid answer
    if _is_garbled(error):
        return Unreachable(
            f"invalid answer to {name} from {place}: check for a proxy or a network sign-in page. The call may have "
            "succeeded"
        )
    if isinstance(error, exceptions.ClientError):
        return _rejection_error(error, place, name, sign_in)
    return CallFailed(f"{place}: {name} failed: {kind}: {text}")


def _sign_in_command(command: str, profile: str | None) -> str:
    named = profile or os.environ.get("AWS_PROFILE")
    return f"{command} --profile {shlex.quote(named)}" if named else command


def _brief(text: str, most: int = MAX_QUOTE) -> str:
    """Shorten an error text of AWS or boto3 for a message. The debug log contains the whole text."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _rejection_error(error: Any, place: str, name: str, sign_in: str) -> SkywardError:
    code = error_code(error)
    whole = str(error.response.get("Error", {}).get("Message", "")).rstrip(".")
    message = _brief(whole)
    if code in EXPIRED_CODES:
        clock = ". Check this machine's clock, too" if code == "RequestExpired" else ""
        return CredentialsRefused(
            f"the AWS credentials have expired ({place}, {name}): renew them, for example with `{sign_in}`{clock}"
        )
    if code == "OptInRequired" and "arketplace" in whole:
        link = next(
            (word for word in whole.split() if word.startswith("https://")), "https://aws.amazon.com/marketplace"
        )
        return UsageError(f"the machine image requires a subscription in AWS Marketplace: accept its terms at {link}")
    if code in REJECTED_CREDENTIALS_CODES:
        region = place.rpartition(" ")[2]
        if not OPT_IN_REGIONS.match(region):
            return CredentialsRefused(f"{place} does not accept the AWS credentials ({code}: {message})")
        return CredentialsRefused(
            f"{place} does not accept the AWS credentials ({code}: {_brief(whole, 80)}). If the account has not "
            f"enabled the region: `aws account enable-region --region-name {region}`"
        )
    if code in DENIED_CODES:
        return CallFailed(
            f"the AWS credentials do not allow {name} ({place}): attach the policy from the documentation", code
        )
    if code in THROTTLED_CODES:
        return CallFailed(f"{place} still throttles {name} after minutes of retries ({code}). Try again later", code)
    if _is_transient(code):
        return Unreachable(f"{place} had an internal error and did not execute {name} ({code}). Try again later")
    if code in QUOTA_CODES:
        return CapacityRefused(
            f"{place}: the account's quota is too small ({code}: {message}). Request more in Service Quotas, "
            "or choose another type or region",
            code,
        )
    if code == NO_SPOT_ROLE:
        return CapacityRefused(
            "the account has no role for Spot machines, and these credentials cannot create it: run `aws iam "
            "create-service-linked-role --aws-service-name spot.amazonaws.com`, or allow iam:CreateServiceLinkedRole",
            code,
        )
    if code in UNAVAILABLE_CODES:
        # only the first sentence, because the others just advise to choose another zone
        first = message.partition(". ")[0]
        return CapacityRefused(f"{code}: {first}", code)
    if code.startswith("InvalidAMIID"):
        return NoImage(f"{place} has no such machine image: {message}; image ids differ between regions")
    if code == "InvalidInstanceType" or "InstanceType" in message:
        return UsageError(f"{place} has no such instance type: {message}")
    if code in ("VPCIdNotSpecified", "MissingInput") and "VPC" in message:
        return no_network_error(place.rpartition(" ")[2])
    return CallFailed(f"{place} refused {name} ({code}): {message}", code)


def no_network_error(region: str) -> UsageError:
    """Return the error for a region without a default network."""
    return UsageError(
        f'region {region} has no default VPC with a subnet: pass subnet="subnet-...", or create a default VPC with '
        "`aws ec2 create-default-vpc`"
    )


T = TypeVar("T")


def is_attempt_failure(error: SkywardError) -> bool:
    """Check whether another type or zone of the same region may still have capacity after this error."""
    return isinstance(error, CapacityRefused) or (isinstance(error, CallFailed) and error.code in THROTTLED_CODES)


def is_region_failure(error: SkywardError) -> bool:
    """Check whether another region may still work after this error.

    Another region may work if this region does not answer, denies the action, has reached a limit of the account, or
    lacks the machine image.
    """
    if isinstance(error, CallFailed):
        return error.code in DENIED_CODES | REGION_LIMIT_CODES
    return isinstance(error, CredentialsRefused | Unreachable | NoImage)


async def query_regions(
    regions: Sequence[str], ask: Callable[[str], Awaitable[T]]
) -> tuple[list[T], list[tuple[str, SkywardError]]]:
    """Query regions concurrently; return the answers, and the regions that failed with their errors.

    Raises:
        SkywardError: If all regions fail. The message names each region.
    """
    found = await asyncio.gather(*map(ask, regions), return_exceptions=True)
    answers: list[T] = []
    failed: list[tuple[str, SkywardError]] = []
    for region, each in zip(regions, found, strict=True):
        if isinstance(each, SkywardError) and (is_region_failure(each) or isinstance(each, UsageError)):
            failed.append((region, each))
        elif isinstance(each, BaseException):
            raise each
        else:
            answers.append(each)
    if not answers:
        raise failed[0][1] if len(failed) == 1 else combine_errors(failed)
    for region, error in failed:
        report_progress(f"skipping region {region}: {error_message(error)}")
    return answers, failed


GROUP_NOT_FOUND = ("InvalidGroup.NotFound", "InvalidGroupId.NotFound")
KEY_NOT_FOUND = ("InvalidKeyPair.NotFound",)
PLACEMENT_GROUP_NOT_FOUND = ("InvalidPlacementGroup.Unknown",)
VISIBILITY_TIMEOUT = 300.0  # seconds until all parts of EC2 know a new resource, according to EC2's API reference
POLL_PAUSES = (0.2, 2.0)  # first and longest pause between two attempts, in seconds


async def retry_while(
    codes: Container[str],
    ask: Callable[[], Awaitable[T]],
    limit: float = VISIBILITY_TIMEOUT,
    pauses: tuple[float, float] | None = None,
) -> T:
    """Repeat a call while it fails with transient codes, for example until EC2 knows a new resource.

    Args:
        codes: EC2's codes of the transient failures.
        ask: Makes the call; runs once per attempt.
        limit: Total time in seconds.
        pauses: First and longest pause between two attempts, in seconds.

    Raises:
        SkywardError: If the last attempt fails.
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


# seconds until queries no longer show a deleted resource; a denied deletion counts as an error only after this time
LOOK_TIMEOUT = 10.0


async def delete_unless_gone(
    delete: Callable[[], Awaitable[Any]], find: Callable[[], Awaitable[Sequence[Any]]]
) -> None:
    """Delete a resource. If EC2 denies the deletion, return without an error as soon as queries no longer show the
    resource.

    Args:
        delete: Makes the call.
        find: Returns the resource as long as EC2 shows it.

    Raises:
        SkywardError: If the resource still exists.
    """
    try:
        await delete()
    except CallFailed as error:
        shown = await poll_until_empty(find, POLL_PAUSES, LOOK_TIMEOUT) if error.code in DENIED_CODES else ()
        if shown or not is_resource_refusal(error):
            raise
