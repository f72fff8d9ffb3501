"""Capacity reservations and purchases on AWS, expiry of credentials, and errors of AWS calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.exceptions import ClientError, EndpointConnectionError, UnauthorizedSSOTokenError
from botocore.parsers import ResponseParserError

import skyward_core as sky
from skyward_core.client import offers_and_block_purchases
from skyward_core.model.errors import NoCapacity, Unreachable
from skyward_core.model.offers_and_rental_plans import Block, MachineRequirements, Offer, Reservation
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.pool import startup_and_machine_verification as startup
from skyward_core.providers.aws import boto_calls, launch_and_reservations, security_groups_and_account_checks
from skyward_core.providers.aws.boto_calls import AwsAccount, AwsCalls
from skyward_core.providers.aws.ec2_errors import translate_error
from skyward_core.store.ledger import Ledger

HELD = Reservation(
    id="cr-1", instance_type="p5.48xlarge", region="r", zone="ra", count=2, free=2, state="active", is_block=True,
    starts_at=1e9, ends_at=1e9 + 86400,
)  # fmt: skip
BLOCK = Block(
    provider="aws", id="cb-1", instance_type="p5.48xlarge", region="r", zone="ra", count=1, hours=24, starts_at=1e9,
    upfront=10.0,
)  # fmt: skip
CALLS = AwsCalls(AwsAccount())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": "scheduled", "starts_at": 2e9}, "begins at 20.*Start the pool then"),
        ({"state": "payment-pending"}, "begins at"),
        ({"state": "expired"}, "is expired: choose another one"),
        ({"state": ""}, "is in an unknown state"),
        ({"free": 1}, "has 1 of its 2 machines free, but 2 are needed"),
    ],
)
async def test_unusable_reservation_is_no_capacity(
    change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find(*_: Any) -> Reservation:
        return replace(HELD, **change)

    monkeypatch.setattr(launch_and_reservations, "_find_reservation", find)
    with pytest.raises(NoCapacity, match=message):
        await launch_and_reservations.find_reserved_capacity(CALLS, ["r"], "cr-1", MachineRequirements(), 2)


def test_block_is_prepaid_and_plain_reservation_is_not() -> None:
    offer = Offer(provider="aws", instance_type="p5.48xlarge", region="r", hourly=55.0, beside_hourly=0.5)
    block, plain = (
        launch_and_reservations.ReservedCapacity(HELD),
        launch_and_reservations.ReservedCapacity(replace(HELD, is_block=False, ends_at=None)),
    )
    assert (block.market, block.price_offer(offer).billed_hourly) == ("capacity-block", 0.5)
    assert (plain.market, plain.price_offer(offer).billed_hourly) == ("on-demand", 55.5)
    assert "EC2 terminates them at" in block.note and "EC2 terminates" not in plain.note
    wish = block.narrow_request(MachineRequirements(regions=("a", "b")))
    assert (wish.instance_type, wish.zones, wish.regions) == ("p5.48xlarge", ("ra",), ("r",))


async def test_purchase_with_unreadable_reply_is_not_repeated(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    block = replace(BLOCK, starts_at=datetime.now(UTC).timestamp())
    asked: list[str] = []

    def call(self: Any, service: str, region: str, action: str, *more: Any) -> Any:
        asked.append(action)
        raise ValueError("half an answer")

    monkeypatch.setattr(AwsCalls, "_call", call)
    with pytest.raises(Unreachable, match="half an answer"):
        await launch_and_reservations.buy_block(CALLS, block, "t")
    assert asked == ["purchase_capacity_block"]


@pytest.mark.parametrize("answer", [{}, {"CapacityReservations": []}, {"CapacityReservation": {"State": "x"}}])
async def test_purchase_without_a_reservation_in_the_reply_is_unreachable(
    answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AwsCalls, "_call", lambda *_: answer)
    with pytest.raises(Unreachable, match="contains no reservation"):
        await launch_and_reservations.buy_block(CALLS, BLOCK, "t")


def client_error(code: str, status: int = 400) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]
        "RunInstances",
    )


@pytest.mark.parametrize("code", ["502", "504"])
async def test_purchase_with_gateway_error_is_unreachable(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*_: Any) -> Any:
        raise client_error(code, int(code))

    monkeypatch.setattr(AwsCalls, "_call", call)
    with pytest.raises(Unreachable, match="had an internal error"):
        await CALLS.call("ec2", "r", "purchase_capacity_block", once=True)


@pytest.mark.parametrize(("upfront", "entered"), [(10.0, float("nan")), (float("nan"), 10.0), (10.0, float("inf"))])
def test_price_that_is_not_finite_never_matches(upfront: float, entered: float) -> None:
    block = replace(BLOCK, upfront=upfront)
    assert not offers_and_block_purchases.same_price(block, entered)


# Whoever launches with credentials that end before the pool is told so; whose renew themselves is not.

NOW = 1e9


def credentials(method: str, minutes: float = 30.0) -> RefreshableCredentials:
    """Return credentials as botocore creates them from a sign-in, a role, or an instance's metadata."""
    ends = datetime.now(UTC) + timedelta(minutes=minutes)

    def again() -> dict[str, str]:
        return {"access_key": "a", "secret_key": "b", "token": "c", "expiry_time": ends.isoformat()}

    return RefreshableCredentials.create_from_metadata(again(), again, method)


def session(found: Any) -> Any:
    def get() -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    return SimpleNamespace(get_credentials=get)


@pytest.mark.parametrize(
    ("make", "known"),
    [
        (partial(credentials, "sso"), True), (partial(credentials, "assume-role"), True),
        (partial(credentials, "env"), True), (partial(credentials, "iam-role"), False),
        (partial(credentials, "container-role"), False), (partial(credentials, "custom-process"), False),
        (partial(Credentials, "a", "b", "token of nobody knows when"), False), (lambda: None, False),
        (UnauthorizedSSOTokenError, False), (partial(credentials, "sso", -1), False),
    ],
)  # fmt: skip
def test_expiry_is_known_only_of_credentials_that_end(make: Callable[[], Any], known: bool) -> None:
    at = boto_calls.credentials_expire_at(session(make()))
    assert (at is not None) == known
    if at is not None:
        assert abs(at - datetime.now(UTC).timestamp() - 1800) < 120


@pytest.mark.parametrize(
    ("at", "ttl", "message"),
    [
        (None, 60.0, ""),
        (NOW + 601, 600.0, ""),
        (NOW + 599, 600.0, "(in 9 min), before the pool's time to live ends"),
        (NOW - 1, 600.0, "(already expired), before"),
        (NOW + 3601, None, ""),
        (NOW + 3599, None, "(in 59 min), soon: renew them"),
    ],
)
def test_expiry_warning_depends_on_the_time_to_live(at: float | None, ttl: float | None, message: str) -> None:
    found = security_groups_and_account_checks.expiry_warning(at, ttl, NOW)
    assert message in found and bool(found) == bool(message)


async def test_expiry_warning_precedes_the_creation_of_a_pool(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, ledger: Ledger
) -> None:
    boto_calls.shared_calls.cache_clear()
    monkeypatch.setattr(boto_calls.AwsCalls, "credentials_expire_at", lambda self: datetime.now(UTC).timestamp() + 600)
    provider = sky.AWS(region="us-east-1")
    spec = PoolSpec(name="p", provider=provider, options=Options(ttl=7200))
    found = await startup.write_intent(spec, ledger, str(tmp_path))
    assert found.notice.startswith("the AWS credentials expire at ")
    monkeypatch.setattr(boto_calls.AwsCalls, "credentials_expire_at", lambda self: None)
    assert await provider.warnings(spec) == []


# What a call that came to nothing says.


def test_error_does_not_quote_a_page_that_is_not_from_aws() -> None:
    page = b"<!doctype html>\n<title>Sign in</title>\n"
    error = ResponseParserError(f"Unable to parse response (syntax error), invalid XML received:\n{page!r}")
    message = str(translate_error(error, "ec2", "us-east-1", "describe_instances"))
    assert "check for a proxy or a network sign-in page" in message and "<title>" not in message


def test_error_names_an_unknown_region() -> None:
    error = EndpointConnectionError(endpoint_url="https://ec2.us-eats-1.amazonaws.com/")
    assert "the region name us-eats-1" in str(translate_error(error, "ec2", "us-eats-1", "describe_instances"))
