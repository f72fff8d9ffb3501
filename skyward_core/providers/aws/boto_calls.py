"""Boto3 calls in threads, with retries, rate limits and caching.

All calls can be repeated safely: each call only reads, has an idempotency token, or names a resource that identifies
the pool.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cache, partial
from typing import Any

from skyward_core.model.errors import CredentialsRefused, SkywardError, Unreachable, UsageError, error_message
from skyward_core.providers.aws import ec2_errors
from skyward_core.providers.provider_call_logs_polling_and_cache import AnswerCache
from skyward_core.store.debug_log import get_logger
from skyward_core.transport.background_loop import finish_despite_cancellation
from skyward_core.util.light_dataclass import Value, value

MAX_CONCURRENT_CALLS = 8  # maximum number of calls to AWS at the same time


@cache
def thread_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_CONCURRENT_CALLS, thread_name_prefix="skyward-aws")


async def run_in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    """Run a blocking function, or one that imports boto3, in the thread pool."""
    return await asyncio.get_running_loop().run_in_executor(thread_pool(), work, *arguments)


# Sources of credentials that botocore renews automatically, as long as the machine's role or the credential program
# exists.
RENEWABLE_METHODS = frozenset({"iam-role", "container-role", "custom-process", "assume-role-with-web-identity"})


def credentials_expire_at(session: Any) -> float | None:
    """Return when the credentials of a botocore session expire, as Unix time; None if never or unknown.

    May call a sign-in service, which takes time.
    """
    from botocore.exceptions import BotoCoreError

    try:
        found = session.get_credentials()
        if found is None or found.method in RENEWABLE_METHODS:
            return None
        # fetches the credentials, because credentials that are loaded on demand know their expiry only then
        found.get_frozen_credentials()
    # no error here, because the first call that needs the credentials reports the same error
    except (BotoCoreError, RuntimeError):
        return None
    # private attribute, because botocore has no public attribute for the expiry
    at = getattr(found, "_expiry_time", None)
    return at.timestamp() if isinstance(at, datetime) else None


_log = get_logger("provider")

CONNECT_TIMEOUT, READ_TIMEOUT = 5.0, 30.0  # seconds for connecting to AWS; seconds for an answer
THROTTLE_TIMEOUT = 120.0  # seconds for which a throttled call is retried
MAX_TRIES = 4  # maximum number of attempts of a call that gets no answer
# Names of queries about types, networks and images, whose answers may be cached because they change rarely. Queries
# about machines are never cached.
CACHED_ACTIONS = (
    "describe_images",
    "describe_instance_type",
    "describe_security_groups",
    "describe_subnets",
    "get_parameter",
    "get_caller_identity",
    "list_service_quotas",
)
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0


@value
class AwsAccount(Value):
    """AWS account: credentials profile and endpoint.

    Attributes:
        profile: Profile in ``~/.aws/config``; None for the default one.
        endpoint: Address of all services; None for AWS's own.
    """

    profile: str | None = None
    endpoint: str | None = None


class AwsCalls:
    """Client for the calls of one account. Safe to use from several event loops.

    Args:
        account: The account.
    """

    def __init__(self, account: AwsAccount) -> None:
        self.account = account
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], Any] = {}
        self._session: Any = None
        self._rate_limiters: dict[tuple[str, str], _RateLimiter] = {}
        self._answer_cache = AnswerCache()

    def default_region(self) -> str | None:
        """Return the region that the environment or the profile sets. Reads files and imports boto3."""
        if named := os.environ.get("AWS_REGION"):  # boto3 itself reads only AWS_DEFAULT_REGION
            return named
        with self._lock:
            name: str | None = self._get_session().region_name
            return name

    def credentials_expire_at(self) -> float | None:
        """Return when the credentials expire, as Unix time; None if unknown. May call a sign-in service."""
        with self._lock:
            session = self._get_session()
        return credentials_expire_at(session)

    def ec2_endpoint(self, region: str) -> str:
        """Return the address of EC2 in a region. Reads files and imports boto3."""
        return str(self._client("ec2", region).meta.endpoint_url)

    def supports_parameter(self, service: str, region: str, action: str, parameter: str) -> bool:
        """Check whether the installed boto3 knows a parameter of a call. Imports boto3."""
        shape = self._client(service, region).meta.service_model.operation_model(action).input_shape
        return parameter in shape.members

    async def call(
        self,
        service: str,
        region: str,
        action: str,
        *,
        answered: Callable[[dict[str, Any]], None] | None = None,
        once: bool = False,
        **params: Any,
    ) -> dict[str, Any]:
        """Call AWS, retrying transient errors.

        If the caller is cancelled, the cancellation waits for the call in progress, so that no call runs unobserved.

        Args:
            answered: Receives the answer in the thread that received it, even if the caller was cancelled. With this
                argument, :class:`Unreachable` is raised if an attempt without an answer is followed by rejected
                attempts, because the first attempt may have succeeded.
            once: Never retry, because a second call would repeat the effect.

        Raises:
            SkywardError: If the call fails. The message has the cause and a remedy.
        """
        query = (service, region, action, repr(params))
        is_cacheable = action.startswith(CACHED_ACTIONS)
        if is_cacheable and (before := self._answer_cache.get(query)) is not None:
            return dict(before)
        rate = self._rate_limiters.setdefault((service, region), _RateLimiter())
        deadline, tries = time.monotonic() + THROTTLE_TIMEOUT, 0
        maybe_done = False  # whether an earlier attempt got no answer, so that it may have succeeded
        while True:
            await rate.acquire()
            try:
                work = partial(self._call, service, region, action, answered, params)
                future = asyncio.get_running_loop().run_in_executor(thread_pool(), work)
                answer: dict[str, Any] = await finish_despite_cancellation(future)
            except SkywardError:
                raise
            except Exception as error:
                tries += 1
                throttled = ec2_errors.error_code(error) in ec2_errors.THROTTLED_CODES
                _log.info("%s %s %s: %s: %s", service, region, action, type(error).__name__, error)
                if throttled:
                    rate.slow_down()
                if throttled and not once and time.monotonic() < deadline:
                    continue
                if not (throttled or once) and tries < MAX_TRIES and ec2_errors.is_retryable(error):
                    maybe_done = maybe_done or ec2_errors.may_have_succeeded(error)
                    await asyncio.sleep(random.uniform(0.5, 1.0) * FIRST_PAUSE * 2**tries)
                    continue
                translated = ec2_errors.translate_error(error, service, region, action, self.account.profile)
                if isinstance(translated, CredentialsRefused):
                    self._reset_session()  # discards the session, so that the next call reads the credentials again
                if maybe_done and answered is not None and ec2_errors.is_rejected_early(translated):
                    reason = f"{error_message(translated)}; an earlier attempt got no answer and may have succeeded"
                    translated = Unreachable(reason)
                raise translated from error
            rate.speed_up()
            if is_cacheable:
                self._answer_cache.put(query, dict(answer))
            return answer

    async def call_all(self, service: str, region: str, action: str, key: str, **params: Any) -> list[Any]:
        """Call AWS for all pages of an answer, and return the items under a key of these pages.

        Raises:
            SkywardError: As :meth:`call`.
        """
        found: list[Any] = []
        token = None
        while True:
            page = await self.call(service, region, action, **params | ({"NextToken": token} if token else {}))
            found += page.get(key, ())
            token = page.get("NextToken")
            if not token:
                return found

    def _call(
        self,
        service: str,
        region: str,
        action: str,
        answered: Callable[[dict[str, Any]], None] | None,
        params: dict[str, Any],
    ) -> dict[str, Any]:
        answer: dict[str, Any] = getattr(self._client(service, region), action)(**params)
        if answered is not None:
            answered(answer)
        return answer

    def _client(self, service: str, region: str) -> Any:
        # locked while clients are created, because boto3 sessions are not thread-safe; the clients are
        with self._lock:
            if (service, region) not in self._clients:
                self._clients[service, region] = self._make_client(service, region)
            return self._clients[service, region]

    def _make_client(self, service: str, region: str) -> Any:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        config = Config(
            connect_timeout=CONNECT_TIMEOUT,
            read_timeout=READ_TIMEOUT,
            # no retries by botocore, because ``call`` knows which errors are safe to retry
            retries={"total_max_attempts": 1},
            max_pool_connections=MAX_CONCURRENT_CALLS,
        )
        try:
            return self._get_session().client(
                service, region_name=region, endpoint_url=self.account.endpoint, config=config
            )
        except ValueError as error:  # the region's name contains characters that an address must not contain
            raise UsageError(f"{region!r} is not an AWS region: {error}") from error
        # the AWS configuration is invalid, or a program or service that supplies credentials has failed
        except BotoCoreError as error:
            raise ec2_errors.translate_error(error, service, region, "", self.account.profile) from error

    def _get_session(self) -> Any:
        if self._session is None:
            import boto3
            import botocore.session
            from botocore.exceptions import BotoCoreError

            profile = self.account.profile
            own = botocore.session.Session(profile=profile)
            try:
                own.register_component("data_loader", _service_loader(own.get_config_variable("data_path")))
                self._session = boto3.Session(profile_name=profile, botocore_session=own)
            except BotoCoreError as error:
                raise ec2_errors.translate_error(error, "sts", "", "", profile) from error
        return self._session

    def _reset_session(self) -> None:
        with self._lock:
            self._session = None
            self._clients.clear()
            self._answer_cache.clear()


@cache
def _service_loader(folders: str | None) -> Any:
    """Return a cached loader of botocore's service descriptions. Parsing EC2's takes 0.15 s of CPU time per new
    session.
    """
    from botocore.loaders import create_loader

    return create_loader(folders)


@cache
def shared_calls(account: AwsAccount) -> AwsCalls:
    """Return the :class:`AwsCalls` of an account, which all code in this process shares."""
    return AwsCalls(account)


class _RateLimiter:
    """Adaptive limit on the rate of calls to one service in one region, for the whole process."""

    def __init__(self) -> None:
        self._interval = 0.0  # seconds between two calls; 0 without throttling
        self._next_at = 0.0

    async def acquire(self) -> None:
        """Wait for the next permitted call."""
        now = time.monotonic()
        at = self._next_at = max(now, self._next_at) if self._interval else now
        self._next_at += self._interval
        if at > now:
            await asyncio.sleep(at - now)

    def slow_down(self) -> None:
        """Increase the interval to about twice its value after a throttled call."""
        self._interval = min(LONGEST_PAUSE, max(FIRST_PAUSE, self._interval * random.uniform(1.5, 2.0)))
        self._next_at = max(self._next_at, time.monotonic() + self._interval)

    def speed_up(self) -> None:
        """Shorten the interval after a successful call."""
        self._interval = self._interval * 0.8 if self._interval > FIRST_PAUSE / 4 else 0.0
