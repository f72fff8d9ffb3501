"""Helpers of tests with pools over SSH: pools on a lab's hosts, client processes, and waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.pool import teardown
from skyward_core.providers import agent_status_and_termination
from tests.support.forked_clients import run_script

from . import Host, Lab
from .tools import LabError, program, wait_until

DEADLINE = 90.0  # seconds; for what should never take that long, not for what should be quick


def ssh(lab: Lab, hosts: Sequence[Host] | None = None, **wishes: Any) -> sky.SSH:
    """Return a provider with all or some of the lab's hosts. ``wishes`` replace its settings."""
    chosen: dict[str, Any] = {
        "user": lab.user,
        "keys": str(lab.key),
        "known_hosts": str(lab.known_hosts),
        "config": False,
    }
    return sky.SSH([host.address for host in hosts or lab.hosts], **(chosen | wishes))


def pool(
    lab: Lab, provider: sky.SSH | None = None, *, options: dict[str, Any] | None = None, **wishes: Any
) -> sky.Compute:
    """Start a pool without console output on all of the lab's hosts. ``wishes`` are arguments of
    :class:`skyward_core.Compute`.
    """
    chosen = {"console": False, "grace": 1.0, "start_timeout": DEADLINE} | (options or {})
    return sky.Compute(provider=provider or ssh(lab), options=sky.Options(**chosen), **wishes)


@sky.function
def rank() -> int:
    return sky.instance_info().rank


class Client:
    """Client in its own process. ``ssh`` is the lab's provider and ``quiet`` are options without console output. The
    script, which ends with ``text``, is in the working folder.

    Args:
        hosts: Hosts of the provider; by default all of the lab's.
        behind: Host whose cable carries the client's packets; by default this machine's.
    """

    def __init__(self, lab: Lab, text: str, *, hosts: Sequence[Host] | None = None, behind: Host | None = None) -> None:
        path = Path(f"client{time.monotonic_ns()}.py")
        given = json.dumps(ssh(lab, hosts).to_json())
        network = [] if behind is None else [program("nsenter"), f"--net=/proc/{behind.machine}/ns/net"]
        head = [
            "import json, threading, time",
            "import skyward_core as sky",
            f"ssh = sky.SSH.from_json(json.loads({given!r}))",
            f"quiet = dict(console=False, grace=1.0, start_timeout={DEADLINE})",
        ]
        path.write_text("\n".join([*head, textwrap.dedent(text)]))
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        if network:
            self.process = subprocess.Popen([*network, sys.executable, str(path)], **pipes)
        else:
            self.process = run_script(path, over_ssh=True, **pipes)

    def read_line(self) -> str:
        """Return the client's next line, or the reason why it ended."""
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline().strip()
        return line or f"the client ended: {self.process.stderr.read()}"

    def kill(self) -> None:
        """Send SIGKILL, unless the client has ended."""
        self.process.kill()
        self.process.communicate()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def until(holds: Callable[[], object], what: str) -> None:
    """Wait for a condition that may take long on a busy machine."""
    wait_until(lambda: bool(holds()), what, DEADLINE)


def allowed(seconds: float) -> float:
    """Return a promised duration, extended by the load of this machine."""
    return seconds * (1 + os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def less_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a teardown wait 2 s instead of 10 and 30 s for a host that does not answer."""
    for module, name in (
        (agent_status_and_termination, "STATUS_TIMEOUT"),
        (agent_status_and_termination, "END_TIMEOUT"),
        (teardown, "SILENCE"),
    ):
        monkeypatch.setattr(module, name, 2.0)


def nothing_runs(lab: Lab) -> None:
    """Wait until no process of any pool runs on any host. A channel ends shortly after its client."""
    for host in lab.hosts:
        try:
            until(lambda: not host.processes(), f"the end of all on {host.name}")  # noqa: B023
        except LabError as error:
            raise LabError(f"{error}: {host.processes()}") from error


def listening(host: Host) -> set[str]:
    """Return the addresses where processes of a host listen, except its SSH server."""
    found = set()
    for line in host.run("ss -H -tln").splitlines():
        address, _, port = line.split()[3].rpartition(":")
        if port != "22":
            found.add(address.strip("[]").removeprefix("::ffff:").partition("%")[0])
    assert found
    return found - {"127.0.0.1", "::1"}


def agents(host: Host) -> list[int]:
    """Return the pids of a host's agents, as seen from here. For short times these include channels that are about to
    end and programs that agents start. Workers are not included.
    """
    return [pid for pid, line in host.processes().items() if "skyward-agent" in line]
