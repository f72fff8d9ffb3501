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
from skyward_core.providers.provider import RememberedAnswers
from skyward_core.store.debug_log import logger
from skyward_core.util.light_dataclass import Value, value

AT_ONCE = 8  # calls


@cache
def threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(AT_ONCE, thread_name_prefix="skyward-aws")


async def in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    """Run what takes its time, or imports boto3, beside the loop."""
    return await asyncio.get_running_loop().run_in_executor(threads(), work, *arguments)


# Those that renew themselves for as long as the machine, or the program that gives them, is there.
RENEWED = frozenset({"iam-role", "container-role", "custom-process", "assume-role-with-web-identity"})
EXPIRY_TIMEOUT = 5.0  # seconds in which credentials say when they end
SOON = 3600.0  # seconds; a pool without a time to live is warned of no later end


def expiry(session: Any) -> float | None:
    """When the credentials of a botocore session end, in Unix time; None where they do not, or nobody knows. May ask a
    sign-in service, and takes its time."""
    from botocore.exceptions import BotoCoreError

    try:
        found = session.get_credentials()
        if found is None or found.method in RENEWED:
            return None
        found.get_frozen_credentials()  # those that are fetched when they are needed say it then
    except (BotoCoreError, RuntimeError):  # who needs them is told
        return None
    at = getattr(found, "_expiry_time", None)  # botocore has no other way to ask
    return at.timestamp() if isinstance(at, datetime) else None


async def warnings(expires: Callable[[], float | None], ttl: float | None) -> list[str]:
    """What to say before a launch of a pool with a time to live.

    Args:
        expires: says when the credentials end; in a thread, as it takes its time.
    """
    try:
        async with asyncio.timeout(EXPIRY_TIMEOUT):
            at = await in_thread(expires)
    except (SkywardError, TimeoutError):  # who needs the credentials is told
        return []
    return list(filter(None, [warning(at, ttl, time.time())]))


def warning(at: float | None, ttl: float | None, now: float) -> str:
    """What to say of credentials that end then, of a pool with a time to live; "" where there is nothing."""
    if at is None or at - now > (SOON if ttl is None else ttl):
        return ""
    ends = time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    left = "they have expired" if at <= now else f"in {max(1, int((at - now) / 60))} min"
    before = "soon" if ttl is None else "before the pool's time to live is over"
    return (
        f"the AWS credentials expire at {ends} ({left}), {before}: renew them by then, by `aws sso login` say, or its "
        "teardown can verify nothing, and its machines end by their lease alone"
    )


_log = logger("provider")

CONNECT, ANSWER = 5.0, 30.0  # seconds for a connection, and for an answer
PATIENCE = 120.0  # seconds for which a call that is throttled is tried again
TRIES = 4  # of a call that got no answer
# What kinds of machines, networks and images there are; never what machines are doing.
QUESTIONS = (
    "describe_images",
    "describe_instance_type",
    "describe_security_groups",
    "describe_subnets",
    "get_parameter",
    "get_caller_identity",
)
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0


@value
class Account(Value):
    """Whose AWS it is, and where.

    Attributes:
        profile: of ``~/.aws/config``; None for the usual one.
        endpoint: address of all services; None for AWS's own.
    """

    profile: str | None = None
    endpoint: str | None = None


class Calls:
    """The calls of one account. Safe to use from several loops.

    Args:
        account: whose.
    """

    def __init__(self, account: Account) -> None:
        self.account = account
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], Any] = {}
        self._session: Any = None
        self._rates: dict[tuple[str, str], _Rate] = {}
        self._remembered = RememberedAnswers()

    def region(self) -> str | None:
        """The region that environment or profile name; reads files, and imports boto3."""
        with self._lock:
            name: str | None = self._get_session().region_name
            return name

    def expiry(self) -> float | None:
        """When the credentials end, in Unix time; None where nobody knows. May ask a sign-in service."""
        with self._lock:
            session = self._get_session()
        return expiry(session)

    def endpoint(self, region: str) -> str:
        """The address of EC2 as it is called in a region; reads files, and imports boto3."""
        return str(self._client("ec2", region).meta.endpoint_url)

    def takes(self, service: str, region: str, action: str, parameter: str) -> bool:
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
        asks = action.startswith(QUESTIONS)
        if asks and (before := self._remembered.find(question)) is not None:
            return dict(before)
        rate = self._rates.setdefault((service, region), _Rate())
        deadline, tries = time.monotonic() + PATIENCE, 0
        unheard = False  # whether a try got no answer, and may have been done
        while True:
            await rate.turn()
            try:
                answer: dict[str, Any] = await _seen_through(self._call, service, region, action, answered, params)
            except SkywardError:
                raise
            except Exception as error:
                tries += 1
                throttled = ec2_errors.code_of(error) in ec2_errors.THROTTLED
                _log.info("%s %s %s: %s: %s", service, region, action, type(error).__name__, error)
                if throttled:
                    rate.slow_down()
                if throttled and not once and time.monotonic() < deadline:
                    continue
                if not (throttled or once) and tries < TRIES and ec2_errors.may_pass(error):
                    unheard = unheard or ec2_errors.may_be_done(error)
                    await asyncio.sleep(random.uniform(0.5, 1.0) * FIRST_PAUSE * 2**tries)
                    continue
                translated = ec2_errors.in_words(error, service, region, action)
                if isinstance(translated, CredentialsRefused):
                    self._forget()  # the next call reads them anew
                if unheard and answered is not None and ec2_errors.is_at_the_door(translated):
                    translated = ec2_errors.unheard(translated)
                raise translated from error
            rate.speed_up()
            if asks:
                self._remembered.keep(question, dict(answer))
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
                found = self._clients[service, region] = self._make(service, region)
            return found

    def _make(self, service: str, region: str) -> Any:
        from botocore.config import Config

        config = Config(
            connect_timeout=CONNECT,
            read_timeout=ANSWER,
            retries={"total_max_attempts": 1},  # ours know which calls belong together
            max_pool_connections=AT_ONCE,
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
                loader = _descriptions(own.get_config_variable("data_path"))
                own.register_component("data_loader", loader)
                self._session = boto3.Session(profile_name=profile, botocore_session=own)
            except ProfileNotFound as error:
                raise UsageError(f"{error}; name one of ~/.aws/config") from error
        return self._session

    def _forget(self) -> None:
        with self._lock:
            self._session = None
            self._clients.clear()
            self._remembered.forget()


@cache
def _descriptions(folders: str | None) -> Any:
    """What loads botocore's descriptions of AWS's services, and keeps them: to read EC2's takes 0.15 s of a processor,
    which each session would do anew, as after credentials that were refused."""
    from botocore.loaders import create_loader

    return create_loader(folders)


@cache
def calls_of(account: Account) -> Calls:
    """The calls of an account, shared by all that is done with it in this process."""
    return Calls(account)


async def _seen_through(work: Callable[..., Any], *arguments: Any) -> Any:
    """As :func:`in_thread`; who is cancelled meanwhile is so only once it has ended."""
    future = asyncio.get_running_loop().run_in_executor(threads(), work, *arguments)
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


class _Rate:
    """How fast a service of a region may be called: all calls of this process wait for one another."""

    def __init__(self) -> None:
        self._gap = 0.0  # seconds between two calls
        self._next = 0.0

    async def turn(self) -> None:
        """Wait for one's turn."""
        now = time.monotonic()
        at = self._next = max(now, self._next) if self._gap else now
        self._next += self._gap
        if at > now:
            await asyncio.sleep(at - now)

    def slow_down(self) -> None:
        """It was too fast."""
        self._gap = min(LONGEST_PAUSE, max(FIRST_PAUSE, self._gap * random.uniform(1.5, 2.0)))
        self._next = max(self._next, time.monotonic() + self._gap)

    def speed_up(self) -> None:
        """It was not."""
        self._gap = self._gap * 0.8 if self._gap > FIRST_PAUSE / 4 else 0.0
