"""Client that is killed at a chosen point of a pool's life. ``main`` runs in its own process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.pool.fetch_retained_results import NodeResultsFetcher
from skyward_core.providers.aws.boto_calls import AwsCalls
from skyward_core.providers.aws.launch_and_reservations import InstanceLaunch
from skyward_core.providers.aws.provider import AWS
from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import SSHTransport
from tests.aws import storms
from tests.aws.pools import rented, where


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _around_call(action: str, *, after: bool, turn: int = 1) -> Callable[[], None]:
    """Return a function that makes this process die at an AWS call: before it, or before its answer is used.

    Args:
        turn: Number of the call of that action, from 1.
    """
    turns = iter(range(1, 1000))

    def patch() -> None:
        call = AwsCalls._call

        def dying(self: AwsCalls, service: str, region: str, name: str, answered: Any, params: Any) -> Any:
            if name == action and next(turns) == turn:
                if after:
                    call(self, service, region, name, None, params)
                die()
            return call(self, service, region, name, answered, params)

        AwsCalls._call = dying  # type: ignore[method-assign, assignment]

    return patch


def _at(owner: Any, name: str) -> Callable[[], None]:
    return lambda: setattr(owner, name, die)


STAGES: dict[str, Callable[[], None]] = {
    "intent": _at(AWS, "create"),
    "group": _around_call("create_security_group", after=True),
    "placed": _around_call("create_placement_group", after=True),
    "asked": _around_call("run_instances", after=False),
    "unanswered": _around_call("run_instances", after=True),
    "answered": _at(InstanceLaunch, "_wait_until_running"),
    "boot": _at(SSHTransport, "__init__"),
    "exchange": _around_call("run_instances", after=True, turn=2),
    "install": _at(SSHTransport, "_send_workdir"),
    "run": lambda: None,
    "teardown": _around_call("terminate_instances", after=True),
    "fetching": _at(NodeResultsFetcher, "fetch_all"),
    "tidying": _around_call("delete_key_pair", after=True),
}


def main() -> None:
    """Start a pool, use it and tear it down, until this process is killed. To die while fetching, tear down a running
    pool.
    """
    verb, _, stage = sys.argv[1].rpartition(":")
    if "stormy" in sys.argv:
        storms.weather()
    STAGES.get(stage, lambda: None)()
    if verb == "down":
        Session().tear_down("pair").result()
        return
    if stage == "fetching":
        Session().tear_down("left").result()
    options = sky.Options(console=False, grace=0.5)
    provider, nodes = rented(ssh_from=sys.argv[2]), sys.argv[3]
    with sky.Compute(name="pair", provider=provider, nodes=nodes, options=options) as compute:
        _ = where() @ compute
        if stage == "run":
            die()
