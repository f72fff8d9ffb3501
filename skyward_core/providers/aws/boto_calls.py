"""Boto3 calls in threads, bounded and cached.

Whatever is called here may be repeated: it only asks, or has a token, or a name that tells what is ours.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cache
from typing import Any

from skyward_core.model.errors import CredentialsRefused, SkywardError, UsageError
from skyward_core.providers.aws import ec2_errors
from skyward_core.providers.provider_calls import AnswerCache
from skyward_core.store.debug_log import get_logger
from skyward_core.util.light_dataclass import Value, value

MAX_CONCURRENT_CALLS = 8  # calls


@cache
def thread_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_CONCURRENT_CALLS, thread_name_prefix="skyward-aws")


async def run_in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    """Run what takes its time, or imports boto3, beside the loop."""
    return await asyncio.get_running_loop().run_in_executor(thread_pool(), work, *arguments)


# Those that renew themselves for as long as the machine, or the program that gives them, is there.
RENEWABLE_METHODS = frozenset({"iam-role", "container-role", "custom-process", "assume-role-with-web-identity"})
EXPIRY_TIMEOUT = 5.0  # seconds in which credentials say when they end
EXPIRY_WARNING_SECONDS = 3600.0  # seconds; a pool without a time to live is warned of no later end


def credentials_expire_at(session: Any) -> float | None:
    """When the credentials of a botocore session end, in Unix time; None where they do not, or nobody knows. May ask a
    sign-in service, and takes its time."""
    from botocore.exceptions import BotoCoreError

    try:
        found = session.get_credentials()
        if found is None or found.method in RENEWABLE_METHODS:
            return None
        found.get_frozen_credentials()  # those that are fetched when they are needed say it then
    except (BotoCoreError, RuntimeError):  # who needs them is told
        return None
    at = getattr(found, "_expiry_time", None)  # botocore has no other way to ask
    return at.timestamp() if isinstance(at, datetime) else None


async def expiry_warnings(expires: Callable[[], float | None], ttl: float | None) -> list[str]:
    """What to say before a launch of a pool with a time to live.

    Args:
        expires: says when the credentials end; in a thread, as it takes its time.
    """
    try:
        async with asyncio.timeout(EXPIRY_TIMEOUT):
            at = await run_in_thread(expires)
    except (SkywardError, TimeoutError):  # who needs the credentials is told
        return []
    return list(filter(None, [expiry_warning(at, ttl, time.time())]))


def expiry_warning(at: float | None, ttl: float | None, now: float) -> str:
    """What to say of credentials that end then, of a pool with a time to live; "" where there is nothing."""
    if at is None or at - now > (EXPIRY_WARNING_SECONDS if ttl is None else ttl):
        return ""
    ends = time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    left = "they have expired" if at <= now else f"in {max(1, int((at - now) / 60))} min"
    before = "soon" if ttl is None else "before the pool's time to live is over"
    return (
        f"the AWS credentials expire at {ends} ({left}), {before}: renew them by then, by `aws sso login` say, or its "
        "teardown can verify nothing, and its machines end by their lease alone"
    )


_log = get_logger("provider")

CONNECT_TIMEOUT, READ_TIMEOUT = 5.0, 30.0  # seconds for a connection, and for an answer
THROTTLE_TIMEOUT = 120.0  # seconds for which a call that is throttled is tried again
MAX_TRIES = 4  # of a call that got no answer
# What kinds of machines, networks and images there are; never what machines are doing.
CACHED_ACTIONS = (
    "describe_images",
    "describe_instance_type",
    "describe_security_groups",
    "describe_subnets",
    "get_parameter",
    "get_caller_identity",
)
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0


@value
class AwsAccount(Value):
    """Whose AWS it is, and where.

    Attributes:
        profile: of ``~/.aws/config``; None for the usual one.
        endpoint: address of all services; None for AWS's own.
    """

    profile: str | None = None
    endpoint: str | None = None


class AwsCalls:
    """The calls of one account. Safe to use from several loops.

    Args:
        account: whose.
    """

    def __init__(self, account: AwsAccount) -> None:
        self.account = account
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], Any] = {}
        self._session: Any = None
        self._rate_limiters: dict[tuple[str, str], _RateLimiter] = {}
        self._answer_cache = AnswerCache()

    def default_region(self) -> str | None:
        """The region that environment or profile name; reads files, and imports boto3."""
        with self._lock:
            name: str | None = self._get_session().region_name
            return name

    def credentials_expire_at(self) -> float | None:
        """When the credentials end, in Unix time; None where nobody knows. May ask a sign-in service."""
        with self._lock:
            session = self._get_session()
        return credentials_expire_at(session)

    def ec2_endpoint(self, region: str) -> str:
        """The address of EC2 as it is called in a region; reads files, and imports boto3."""
        return str(self._client("ec2", region).meta.endpoint_url)

    def supports_parameter(self, service: str, region: str, action: str, parameter: str) -> bool:
        """Whether the boto3 that is installed knows a parameter of a call; imports it."""
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
        """Call AWS; what may pass is tried again.

        A caller that is cancelled waits until the call which is under way has ended: nothing is done behind its back.

        Args:
            answered: given the answer, by the thread that got it and whoever has been cancelled meanwhile. Who gives it
                is told of what nobody knows, too: a try without an answer, and then none that was let in.
            once: never try it again: it must not be done twice, and nothing keeps it from that.

        Raises:
            SkywardError: it came to nothing; says why and what to do.
        """
        question = (service, region, action, repr(params))
        asks = action.startswith(CACHED_ACTIONS)
        if asks and (before := self._answer_cache.get(question)) is not None:
            return dict(before)
        rate = self._rate_limiters.setdefault((service, region), _RateLimiter())
        deadline, tries = time.monotonic() + THROTTLE_TIMEOUT, 0
        unheard = False  # whether a try got no answer, and may have been done
        while True:
            await rate.acquire()
            try:
                answer: dict[str, Any] = await _run_to_completion(self._call, service, region, action, answered, params)
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
                    unheard = unheard or ec2_errors.may_have_succeeded(error)
                    await asyncio.sleep(random.uniform(0.5, 1.0) * FIRST_PAUSE * 2**tries)
                    continue
                translated = ec2_errors.translate_error(error, service, region, action)
                if isinstance(translated, CredentialsRefused):
                    self._reset_session()  # the next call reads them anew
                if unheard and answered is not None and ec2_errors.is_rejected_early(translated):
                    translated = ec2_errors.no_response_error(translated)
                raise translated from error
            rate.speed_up()
            if asks:
                self._answer_cache.put(question, dict(answer))
            return answer

    async def call_all(self, service: str, region: str, action: str, key: str, **params: Any) -> list[Any]:
        """What all pages of an answer hold under a key.

        Raises:
            SkywardError: as :meth:`call`.
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
        with self._lock:  # sessions are not made for several threads; clients are
            found = self._clients.get((service, region))
            if found is None:
                found = self._clients[service, region] = self._make_client(service, region)
            return found

    def _make_client(self, service: str, region: str) -> Any:
        from botocore.config import Config

        config = Config(
            connect_timeout=CONNECT_TIMEOUT,
            read_timeout=READ_TIMEOUT,
            retries={"total_max_attempts": 1},  # ours know which calls belong together
            max_pool_connections=MAX_CONCURRENT_CALLS,
        )
        try:
            return self._get_session().client(
                service, region_name=region, endpoint_url=self.account.endpoint, config=config
            )
        except ValueError as error:  # a name that cannot be part of an address
            raise UsageError(f"{region!r} is no AWS region: {error}") from error

    def _get_session(self) -> Any:
        if self._session is None:
            import boto3
            import botocore.session
            from botocore.exceptions import ProfileNotFound

            profile = self.account.profile
            own = botocore.session.Session(profile=profile)
            try:
                loader = _service_loader(own.get_config_variable("data_path"))
                own.register_component("data_loader", loader)
                self._session = boto3.Session(profile_name=profile, botocore_session=own)
            except ProfileNotFound as error:
                raise UsageError(f"{error}; name one of ~/.aws/config") from error
        return self._session

    def _reset_session(self) -> None:
        with self._lock:
            self._session = None
            self._clients.clear()
            self._answer_cache.clear()


@cache
def _service_loader(folders: str | None) -> Any:
    """What loads botocore's descriptions of AWS's services, and keeps them: to read EC2's takes 0.15 s of a processor,
    which each session would do anew, as after credentials that were refused."""
    from botocore.loaders import create_loader

    return create_loader(folders)


@cache
def shared_calls(account: AwsAccount) -> AwsCalls:
    """The calls of an account, shared by all that is done with it in this process."""
    return AwsCalls(account)


async def _run_to_completion(work: Callable[..., Any], *arguments: Any) -> Any:
    """As :func:`run_in_thread`; who is cancelled meanwhile is so only once it has ended."""
    future = asyncio.get_running_loop().run_in_executor(thread_pool(), work, *arguments)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        future.exception()  # somebody has looked at it
        raise cancelled
    return future.result()


class _RateLimiter:
    """How fast a service of a region may be called: all calls of this process wait for one another."""

    def __init__(self) -> None:
        self._interval = 0.0  # seconds between two calls
        self._next_at = 0.0

    async def acquire(self) -> None:
        """Wait for one's turn."""
        now = time.monotonic()
        at = self._next_at = max(now, self._next_at) if self._interval else now
        self._next_at += self._interval
        if at > now:
            await asyncio.sleep(at - now)

    def slow_down(self) -> None:
        """It was too fast."""
        self._interval = min(LONGEST_PAUSE, max(FIRST_PAUSE, self._interval * random.uniform(1.5, 2.0)))
        self._next_at = max(self._next_at, time.monotonic() + self._interval)

    def speed_up(self) -> None:
        """It was not."""
        self._interval = self._interval * 0.8 if self._interval > FIRST_PAUSE / 4 else 0.0
