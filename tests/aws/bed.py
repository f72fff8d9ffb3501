"""The bed as tests hold it: a child process that is EC2 to whoever calls it."""

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
    """The bed could not do what was asked; says why."""


@dataclass(frozen=True, slots=True)
class Bill:
    """One instance on the bill."""

    instance_id: str
    type: str
    zone: str
    market: str
    hourly: float
    seconds: float

    @property
    def cost(self) -> float:
        """In US dollars, by the second; EC2's minimum of a minute is not counted."""
        return self.hourly * self.seconds / 3600


class Bed:
    """``with Bed() as bed``: EC2's API at ``bed.endpoint``, whose instances are hosts of a lab.

    Args:
        simulated: instances exist in the API alone: no hosts, no sshd, no root needed.
        boot: seconds from the call to "running".

    Attributes:
        endpoint: where it answers; clients find it by :meth:`environment`.
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
        """What a client's environment holds to come here, and nowhere else."""
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
        """A boto3 client that tries everything once; made once, which takes long."""
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
        """As at the start: no instances, no faults, nothing remembered."""
        self._ask("heal")

    def instances(self, state: str | None = None) -> list[dict[str, Any]]:
        """All that were launched since the last healing, as the bed knows them."""
        return [found for found in self._ask("machines") if state in (None, found["state"])]

    def calls(self, action: str | None = None) -> list[dict[str, Any]]:
        """Every call of the API since the last healing: at, service, region, action, params."""
        return [call for call in self._ask("calls") if action in (None, call["action"])]

    def simulate(self) -> None:
        """Until the next healing, new instances have no hosts."""
        self._ask("set", simulated=True)

    # Faults.

    def boot(self, seconds: float) -> None:
        """How long instances are pending."""
        self._ask("set", boot=seconds)

    def minutes(self, seconds: float) -> None:
        """How long a minute of ``shutdown +N`` lasts in an instance."""
        self._ask("set", minute=seconds)

    def no_capacity(
        self,
        zone: str | None = None,
        type: str | None = None,
        region: str | None = None,
        market: str | None = None,
        left: int = 0,
        grouped: bool | None = None,
    ) -> None:
        """Where all that are given fit, there are only ``left`` machines more; ``grouped``: in placement groups."""
        self._ask("no_capacity", zone=zone, type=type, region=region, market=market, left=left, grouped=grouped)

    def capacity_again(self) -> None:
        """There is enough of everything."""
        self._ask("set", no_capacity=[])

    def quota(self, code: str, vcpus: float) -> None:
        """How many vCPUs may run at once, of the kinds that the quota's code (L-...) stands for, in each region."""
        self._ask("put", rule="quota", key=code, value=vcpus)

    def throttle(self, per_second: float | None = 2) -> None:
        """How many calls a second are taken; None for any number."""
        self._ask("set", throttle=per_second)

    def deny(self, action: str) -> None:
        """No permission for it: also not as a dry run."""
        self._ask("add", rule="denied", value=action)

    def allow(self, action: str) -> None:
        """Permission for it again."""
        self._ask("take", rule="denied", value=action)

    def lose_answer(self, action: str, times: int = 1) -> None:
        """The next calls act, and then their connection is cut."""
        self._ask("put", rule="lost", key=action, value=times)

    def fail_half(self, action: str) -> None:
        """The next RunInstances makes half of the instances (TerminateInstances ends the first half), any other
        action all it was asked for; then it answers InternalError."""
        self._ask("add", rule="half", value=action)

    def require_policy(self) -> None:
        """From now on, only what the documentation's policy allows, with its conditions on tags."""
        text = (_REPOSITORY / "docs" / "where" / "aws.md").read_text(encoding="utf-8")
        self._ask("set", policy=json.loads(text.partition("```json\n")[2].partition("```")[0]))

    def allow_all(self) -> None:
        """Check no policy any more."""
        self._ask("set", policy=None)

    def lag(self, seed: int | None = None, **seconds: float) -> None:
        """Let queries show the past: ``lag(instance=300)``, with ``_`` for the hyphen of a kind (``aging.KINDS``).

        Args:
            seed: Seed of random lags up to those given; None for exactly those.
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
        """Restart its operating system: processes and /run are lost; its home, host key and user-data's files stay."""
        self._ask("reboot", instance_id=instance_id)

    def slow(self, action: str, seconds: float) -> None:
        """It begins to act so much later, whether or not somebody still waits for the answer."""
        self._ask("put", rule="slow", key=action, value=seconds)

    def invisible(self, seconds: float) -> None:
        """How long look-ups, terminations and tags by id do not find a new instance."""
        self._ask("set", invisible=seconds)

    def stop(self, seconds: float) -> None:
        """How long instances are shutting down."""
        self._ask("set", stop=seconds)

    def group_lingers(self, seconds: float) -> None:
        """How long the interface of a terminated instance is there, and holds its security group."""
        self._ask("set", lingers=seconds)

    def no_default_vpc(self, region: str = "us-east-1") -> None:
        """The account has none there any more."""
        self._ask("no_default_vpc", region=region)

    def expire_credentials(self) -> None:
        """From now on every call is refused."""
        self._ask("set", expired=True)

    def expire_credentials_after(self, calls: int) -> None:
        """Refuse every call after that number of calls."""
        self._ask("set", expires_after=calls)

    def renew_credentials(self) -> None:
        """The same keys are good again."""
        self._ask("set", expired=False, expires_after=None)

    def never_boots(self, count: int) -> None:
        """The next instances run and never answer."""
        self._ask("set", never_boots=count)

    def wrong_host_key(self, count: int) -> None:
        """The next instances' sshd shows another key than user-data gave it."""
        self._ask("set", wrong_host_key=count)

    def lacks_gpus(self, count: int) -> None:
        """The next instances have one GPU less than their type."""
        self._ask("set", lacks_gpus=count)

    def spot_notice(self, instance_id: str, seconds: float = 120) -> None:
        """An interruption: the instance's metadata tells of it at once, and it ends then."""
        self._ask("take_back", instance_id=instance_id, seconds=seconds)

    def rebalance(self, instance_id: str) -> None:
        """The instance's metadata tells that an interruption is likely."""
        self._ask("rebalance", instance_id=instance_id)

    def move_client(self) -> None:
        """Let rules for loopback no longer count: machines see only this machine's address in the lab."""
        self._ask("set", client_moved=True)

    def unplug(self, instance_id: str) -> None:
        """Pull its cable; EC2 still calls it running."""
        self._ask("host", instance_id=instance_id, does="unplug")

    def plug(self, instance_id: str) -> None:
        """Put the cable back."""
        self._ask("host", instance_id=instance_id, does="plug")

    def power_off(self, instance_id: str) -> None:
        """The machine under it dies; EC2 still calls it running."""
        self._ask("host", instance_id=instance_id, does="power_off")

    def seconds_billed(self) -> list[Bill]:
        """What each instance ran and costs: from "running" until it began to end."""
        rows = [(found, found["seconds"]) for found in self._ask("machines")]
        return [Bill(f["id"], f["type"], f["zone"], f["market"], f["hourly"], s) for f, s in rows]

    def client_address(self) -> str:
        """This machine's address as instances see it."""
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
