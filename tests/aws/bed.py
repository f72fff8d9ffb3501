"""The bed as tests hold it: a child process that is EC2 to whoever calls it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.error import HTTPError

from .agreed import CONTROL, KEY, SECRET

_REPOSITORY = Path(__file__).resolve().parents[2]


class BedError(RuntimeError):
    """The bed could not do what was asked; says why."""


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
        """A boto3 client that tries everything once."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            service,
            region_name=region,
            endpoint_url=self.endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            config=Config(retries={"total_max_attempts": 1}, proxies={}),
        )

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

    def never_boots(self, count: int) -> None:
        """The next instances run and never answer."""
        self._ask("set", never_boots=count)

    def wrong_host_key(self, count: int) -> None:
        """The next instances' sshd shows another key than user-data gave it."""
        self._ask("set", wrong_host_key=count)

    def spot_notice(self, instance_id: str, seconds: float = 120) -> None:
        """An interruption: the instance's metadata tells of it at once, and it ends then."""
        self._ask("take_back", instance_id=instance_id, seconds=seconds)

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
