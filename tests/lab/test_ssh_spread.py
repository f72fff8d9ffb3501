"""A large payload leaves the client once and goes from host to host."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.model.machines import Machine

from . import Lab
from .pools import pool, rank
from .tools import wait_until

SIZE, MBIT = 40_000_000, 100


def sent(lab: Lab) -> int:
    """Bytes that the client's cable has taken so far."""
    return int(Path(f"/sys/class/net/{lab.client.cable.end}/statistics/tx_bytes").read_text())


@sky.function
def digest(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


@sky.function
def agent_memory() -> int:
    """Bytes that the agent of this rank's node holds (VmRSS)."""
    import os
    from pathlib import Path

    status = Path(f"/proc/{os.getppid()}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def test_a_payload_leaves_the_client_once(lab: Lab) -> None:
    data = os.urandom(SIZE)
    expected = hashlib.sha256(data).hexdigest()
    with pool(lab) as compute:
        lab.client.limit_rate(MBIT)
        before, began = sent(lab), time.monotonic()
        assert digest(data) @ compute == [expected] * 4
        taken = time.monotonic() - began
        once = sent(lab) - before
        assert SIZE < once < 1.2 * SIZE
        # One upload fills the cable for 3 s, four would for 13 s; the rest is room for a busy machine.
        upload = SIZE * 8 / MBIT / 1e6
        assert upload < taken < 3 * upload
        assert digest(data) @ compute == [expected] * 4
        assert sent(lab) - before - once < SIZE / 10  # it is on all nodes already
        assert not [node.detail for node in compute.pool.view.nodes if "client" in node.detail]
        assert max(agent_memory() @ compute) < 25_000_000


@pytest.mark.proof("1 s of a processor")
def test_without_a_way_between_hosts_the_client_sends_all(lab: Lab) -> None:
    data = os.urandom(2_000_000)
    expected = hashlib.sha256(data).hexdigest()
    head = lab.hosts[0]
    head.run(f"ip route add blackhole {lab.hosts[1].address}/32")
    try:
        with pool(lab) as compute:
            before = sent(lab)
            assert digest(data) @ compute == [expected] * 4
            assert 2 * len(data) < sent(lab) - before < 2.5 * len(data)
    finally:
        head.run(f"ip route del blackhole {lab.hosts[1].address}/32")


def listeners(lab: Lab) -> list[list[str]]:
    """What listens for TCP connections on each host."""
    return [host.run("ss -Htln").splitlines() for host in lab.hosts]


@pytest.mark.proof("1 s of a processor")
def test_standalone_workers_talk_to_the_client_only(pair: Lab) -> None:
    data = os.urandom(2_000_000)
    expected = hashlib.sha256(data).hexdigest()
    at_first = listeners(pair)
    with pool(pair, options={"cluster": False}) as compute:
        before = sent(pair)
        assert digest(data) @ compute == [expected] * 2
        assert sent(pair) - before > 2 * len(data)
        assert listeners(pair) == at_first, "sshd and nothing more"
    with pool(pair) as compute:
        assert digest(data) @ compute == [expected] * 2
        assert all(len(now) > len(then) for now, then in zip(listeners(pair), at_first, strict=True))


@pytest.mark.proof("1 s of a processor")
def test_a_standalone_host_is_not_given_up_because_its_peers_do_not_reach_it(
    pair: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    describe = sky.SSH.describe

    async def listened(provider: sky.SSH, name: str, known: Sequence[Machine]) -> list[Machine]:
        machines = await describe(provider, name, known)
        told.extend(machine.state for machine in machines)
        return machines

    monkeypatch.setattr(sky.SSH, "describe", listened)
    victim = pair.hosts[1]
    try:
        with pool(pair, options={"cluster": False}) as compute:
            assert rank() @ compute == [0, 1]
            victim.unplug()
            wait_until(lambda: "lost" in told, f"what the provider finds: {told}")
            victim.plug()
            assert rank() @ compute == [0, 1]
            assert compute.pool.view.state == "up"
    finally:
        victim.plug()
