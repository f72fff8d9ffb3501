"""Whoever launches with credentials that end before the pool is told so; whose renew themselves is not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.exceptions import UnauthorizedSSOTokenError

import skyward_core as sky
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.pool import startup
from skyward_core.providers.aws import boto_calls
from skyward_core.store.ledger import Ledger

NOW = 1e9


def credentials(method: str, minutes: float = 30.0) -> RefreshableCredentials:
    """As botocore makes them of a sign-in, a role, or an instance's metadata."""
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
        (partial(credentials, "sso"), True),
        (partial(credentials, "assume-role"), True),
        (partial(credentials, "env"), True),
        (partial(credentials, "iam-role"), False),
        (partial(credentials, "container-role"), False),
        (partial(credentials, "custom-process"), False),
        (partial(Credentials, "a", "b", "token of nobody knows when"), False),
        (lambda: None, False),
        (UnauthorizedSSOTokenError, False),
        (partial(credentials, "sso", -1), False),
    ],
)
def test_what_botocore_says_of_their_end(make: Callable[[], Any], known: bool) -> None:
    at = boto_calls.credentials_expire_at(session(make()))
    assert (at is not None) == known
    if at is not None:
        assert abs(at - datetime.now(UTC).timestamp() - 1800) < 120


@pytest.mark.parametrize(
    ("at", "ttl", "said"),
    [
        (None, 60.0, ""),
        (NOW + 601, 600.0, ""),
        (NOW + 599, 600.0, "(in 9 min), before the pool's time to live is over"),
        (NOW - 1, 600.0, "(they have expired), before"),
        (NOW + 3601, None, ""),
        (NOW + 3599, None, "(in 59 min), soon: renew them by then"),
    ],
)
def test_when_it_is_said(at: float | None, ttl: float | None, said: str) -> None:
    found = boto_calls.expiry_warning(at, ttl, NOW)
    assert said in found and bool(found) == bool(said)


async def test_it_is_said_of_a_pool_before_anything_of_it_exists(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    boto_calls.shared_calls.cache_clear()
    monkeypatch.setattr(boto_calls.AwsCalls, "credentials_expire_at", lambda self: datetime.now(UTC).timestamp() + 600)
    provider = sky.AWS(region="us-east-1")
    spec = PoolSpec(name="p", provider=provider, options=Options(ttl=7200))
    ledger = Ledger()
    try:
        found = await startup.write_intent(spec, ledger, str(tmp_path))
        assert found.notice.startswith("the AWS credentials expire at ")
        monkeypatch.setattr(boto_calls.AwsCalls, "credentials_expire_at", lambda self: None)
        assert await provider.warnings(spec) == []
    finally:
        ledger.close()
