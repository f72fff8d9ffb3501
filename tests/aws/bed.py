"""Simulated EC2 as tests use it: a child process that answers API calls."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.error import HTTPError

from .agreed import CONTROL, KEY, SECRET

_REPOSITORY = Path(__file__).resolve().parents[2]


class BedError(RuntimeError):
    """The simulated EC2 could not execute a test's request. The message has the reason."""


@dataclass(frozen=True, slots=True)
class Bill:
    """Cost of one instance."""

    instance_id: str
    type: str
    zone: str
    market: str
    hourly: float
    seconds: float

    @property
    def cost(self) -> float:
        """Cost in US dollars, billed by the second, without EC2's minimum of one minute."""
        return self.hourly * self.seconds / 3600


class Bed:
    """Simulated EC2 whose instances are hosts of a lab. The API is at ``bed.endpoint`` inside ``with Bed() as bed``.

    Args:
        simulated: Whether instances exist in the API only: no hosts, no sshd, no root required.
        boot: Seconds from the call to "running".

    Attributes:
        endpoint: Address of the API. Clients get it from :meth:`environment`.
    """

    def __init__(self, simulated: bool = False, boot: float = 0.05) -> None:
        self._arguments = ["--boot", str(boot), *(["--simulated"] if simulated else [])]
        self.endpoint = ""
        self._clients: dict[tuple[str, str], Any] = {}

    def __enter__(self) -> Bed:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.aws.child", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_REPOSITORY,
            start_new_session=True,  # ctrl-c is for whoever holds it
        )
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise BedError(f"the bed did not come up: its process ended with {self._child.wait()}")
        self.endpoint = f"http://127.0.0.1:{json.loads(line)['port']}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child.stdin is not None and self._child.stdout is not None
        with suppress(BrokenPipeError):  # it died
            self._child.stdin.write(b"end\n")
            self._child.stdin.close()
        self._child.wait(60)
        self._child.stdout.close()

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which a client uses only this simulated EC2."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "NO_PROXY": "127.0.0.1",
        }

    def client(self, service: str = "ec2", region: str = "us-east-1") -> Any:
        """Return a boto3 client without retries. Cached, because creating one takes long."""
        if client := self._clients.get((service, region)):
            return client
        import boto3
        from botocore.config import Config

        client = self._clients[service, region] = boto3.client(
            service,
            region_name=region,
            endpoint_url=self.endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            config=Config(retries={"total_max_attempts": 1}, proxies={}),
        )
        return client

    def heal(self) -> None:
        """Reset the simulation: no instances, no faults, no history."""
        self._ask("heal")

    def instances(self, state: str | None = None) -> list[dict[str, Any]]:
        """Return all instances that were launched since the last reset."""
        return [found for found in self._ask("machines") if state in (None, found["state"])]

    def calls(self, action: str | None = None) -> list[dict[str, Any]]:
        """Return all API calls since the last reset: at, service, region, action, params."""
        return [call for call in self._ask("calls") if action in (None, call["action"])]

    def simulate(self) -> None:
        """Create new instances without hosts until the next reset."""
        self._ask("set", simulated=True)

    # Faults.

    def boot(self, seconds: float) -> None:
        """Set how long instances are pending."""
        self._ask("set", boot=seconds)

    def no_capacity(
        self,
        zone: str | None = None,
        type: str | None = None,
        region: str | None = None,
        market: str | None = None,
        left: int = 0,
        grouped: bool | None = None,
    ) -> None:
        """Limit the capacity of matching requests to ``left`` machines. ``grouped``: only in placement groups."""
        self._ask("no_capacity", zone=zone, type=type, region=region, market=market, left=left, grouped=grouped)

    def capacity_again(self) -> None:
        """Remove all capacity limits."""
        self._ask("set", no_capacity=[])

    def quota(self, code: str, vcpus: float) -> None:
        """Set the number of vCPUs that may run at once in each region, for the quota with the code L-..."""
        self._ask("put", rule="quota", key=code, value=vcpus)

    def throttle(self, per_second: float | None = 2) -> None:
        """Set the number of accepted calls per second. None for no limit."""
        self._ask("set", throttle=per_second)

    def deny(self, action: str) -> None:
        """Deny an action, also as a dry run."""
        self._ask("add", rule="denied", value=action)

    def allow(self, action: str) -> None:
        """Allow an action again."""
        self._ask("take", rule="denied", value=action)

    def lose_answer(self, action: str, times: int = 1) -> None:
        """Execute the next calls of an action, but close the connection without an answer."""
        self._ask("put", rule="lost", key=action, value=times)

    def fail_half(self, action: str) -> None:
        """Let the next call of an action do part of its work and then answer InternalError. RunInstances launches half
        of the instances, TerminateInstances ends the first half, and any other action does all of its work.
        """
        self._ask("add", rule="half", value=action)

    def require_policy(self) -> None:
        """Allow only what the documented IAM policy allows, including its conditions on tags."""
        text = (_REPOSITORY / "docs" / "where" / "aws.md").read_text(encoding="utf-8")
        self._ask("set", policy=json.loads(text.partition("```json\n")[2].partition("```")[0]))

    def allow_all(self) -> None:
        """Stop checking the IAM policy."""
        self._ask("set", policy=None)

    def lag(self, seed: int | None = None, **seconds: float) -> None:
        """Let queries return earlier states, for example ``lag(instance=300)``. Write the hyphen of a kind as ``_``
        (``aging.KINDS``).

        Args:
            seed: Seed of random lags up to the given ones. None for exactly the given lags.
            seconds: Seconds by kind of resource.
        """
        self._ask("lag", seed=seed, seconds={kind.replace("_", "-"): each for kind, each in seconds.items()})

    def forget_ended(self, seconds: float) -> None:
        """Set how long a terminated instance is known; EC2 forgets it after about an hour."""
        self._ask("set", forgets=seconds)

    def fail_launches(self, count: int, code: str = "Server.InternalError") -> None:
        """Let the next instances end instead of running, after the answer that names them."""
        self._ask("set", fails_after=count, fail_code=code)

    def fail(self, action: str, times: int) -> None:
        """Let the next calls fail with InternalError, without any effect."""
        self._ask("put", rule="failing", key=action, value=times)

    def reboot(self, instance_id: str) -> None:
        """Restart the operating system of an instance. Processes and /run are lost. The home, the host key and the
        files of user-data remain.
        """
        self._ask("reboot", instance_id=instance_id)

    def slow(self, action: str, seconds: float) -> None:
        """Delay the effect of an action, whether or not the client still waits for the answer."""
        self._ask("put", rule="slow", key=action, value=seconds)

    def invisible(self, seconds: float) -> None:
        """Set how long queries, terminations and tags by id do not find a new instance."""
        self._ask("set", invisible=seconds)

    def stop(self, seconds: float) -> None:
        """Set how long instances are shutting down."""
        self._ask("set", stop=seconds)

    def group_lingers(self, seconds: float) -> None:
        """Set how long the network interface of a terminated instance exists and holds its security group."""
        self._ask("set", lingers=seconds)

    def no_default_vpc(self, region: str = "us-east-1") -> None:
        """Remove the account's default VPC in a region."""
        self._ask("no_default_vpc", region=region)

    def expire_credentials(self) -> None:
        """Reject every call from now on, because the credentials have expired."""
        self._ask("set", expired=True)

    def expire_credentials_after(self, calls: int) -> None:
        """Refuse every call after that number of calls."""
        self._ask("set", expires_after=calls)

    def renew_credentials(self) -> None:
        """Accept the same credentials again."""
        self._ask("set", expired=False, expires_after=None)

    def never_boots(self, count: int) -> None:
        """Let the next instances run without ever answering."""
        self._ask("set", never_boots=count)

    def wrong_host_key(self, count: int) -> None:
        """Let the next instances present another host key than the one in their user-data."""
        self._ask("set", wrong_host_key=count)

    def lacks_gpus(self, count: int) -> None:
        """Give the next instances one GPU less than their type has."""
        self._ask("set", lacks_gpus=count)

    def spot_notice(self, instance_id: str, seconds: float = 120) -> None:
        """Preempt an instance: the metadata shows the notice at once, and the instance ends after the given time."""
        self._ask("take_back", instance_id=instance_id, seconds=seconds)

    def rebalance(self, instance_id: str) -> None:
        """Show a rebalance recommendation in an instance's metadata."""
        self._ask("rebalance", instance_id=instance_id)

    def move_client(self) -> None:
        """Ignore rules for loopback from now on: machines see this client only at its address in the lab."""
        self._ask("set", client_moved=True)

    def seconds_billed(self) -> list[Bill]:
        """Return the billed time and the cost of each instance, from "running" to the start of its shutdown."""
        rows = [(found, found["seconds"]) for found in self._ask("machines")]
        return [Bill(f["id"], f["type"], f["zone"], f["market"], f["hourly"], s) for f, s in rows]

    def client_address(self) -> str:
        """Address of this client as instances see it."""
        address: str = self._ask("client_address")
        return address

    def _ask(self, verb: str, **given: Any) -> Any:
        request = urllib.request.Request(f"{self.endpoint}{CONTROL}{verb}", json.dumps(given).encode())
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except HTTPError as error:
            raise BedError(json.load(error)["error"]) from None
