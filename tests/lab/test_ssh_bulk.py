"""Large arguments and results over SSH: direct connections, and distribution between hosts."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.pool.agent_link import Link
from skyward_core.transport.file_and_result_downloads import ResultDownload
from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import SSHTransport
from skyward_core.views.events import Event, NodeLink
from skyward_tui.text.rank_states_from_views import link_note

from . import Host, Lab
from .pools import DEADLINE, Client, pool, until

SIZE = 10_000_000
PORTS = "1024-65534"  # as `ip rule` takes a range


@sky.function
def digest(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


@sky.function
def noise(size: int) -> bytes:
    import random

    return random.Random(sky.instance_info().rank).randbytes(size)


@sky.function
def values(size: int) -> Iterator[bytes]:  # type: ignore[misc]
    import random

    for seed in range(3):
        yield random.Random(seed).randbytes(size)


def expected(size: int) -> list[bytes]:
    return [random.Random(rank).randbytes(size) for rank in range(2)]


def listens(host: Host) -> list[str]:
    """Return the TCP addresses where a host listens, except sshd's: one for each port."""
    found = []
    for line in Path(f"/proc/{host.machine}/net/tcp").read_text().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        address, _, port = local.partition(":")
        if state == "0A" and int(port, 16) != 22:
            found.append(".".join(str(byte) for byte in reversed(bytes.fromhex(address))))
    over_ipv6 = Path(f"/proc/{host.machine}/net/tcp6").read_text().splitlines()[1:]
    assert not [line for line in over_ipv6 if line.split()[3] == "0A"]
    return found


def listeners(pair: Lab) -> list[list[str]]:
    return [[address for address in listens(host) if address != "127.0.0.1"] for host in pair.hosts]


def listeners_for_peers(pair: Lab) -> list[list[str]]:
    """Return the listeners before a large transfer: agents listen for the nodes of their gang."""
    return [[host.address] for host in pair.hosts]


def listeners_for_peers_and_client(pair: Lab) -> list[list[str]]:
    return [2 * [host.address] for host in pair.hosts]


def received(pair: Lab) -> int:
    """Return the bytes received over the client's cable."""
    return int(Path(f"/sys/class/net/{pair.client.cable.end}/statistics/rx_bytes").read_text())


class Ways:
    """Recorder of large files that were sent through SSH: ``up`` are arguments, ``down`` are results."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.up: list[str] = []
        self.down: list[str] = []
        put, fetch = SSHTransport.put, Link.fetch

        async def noted_put(transport: SSHTransport, source: Path, name: str) -> None:
            self.up.append(name)
            await put(transport, source, name)

        async def noted_fetch(link: Link, name: str, landing: ResultDownload) -> None:
            self.down.append(name)
            await fetch(link, name, landing)

        monkeypatch.setattr(SSHTransport, "put", noted_put)
        monkeypatch.setattr(Link, "fetch", noted_fetch)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    return Ways(monkeypatch)


def test_large_files_use_direct_tls_and_small_ones_open_no_listener(pair: Lab, ways: Ways) -> None:
    data = os.urandom(SIZE)
    with pool(pair) as compute:
        assert digest(data[:500_000]) @ compute == [hashlib.sha256(data[:500_000]).hexdigest()] * 2
        assert noise(2_000_000) @ compute == expected(2_000_000)
        assert listeners(pair) == listeners_for_peers(pair)
        ways.up.clear()
        ways.down.clear()
        assert noise(SIZE) @ compute == expected(SIZE)
        assert digest(data) @ compute == [hashlib.sha256(data).hexdigest()] * 2
        assert list(values(SIZE) >> compute) == [*expected(SIZE), random.Random(2).randbytes(SIZE)]
        assert listeners(pair) == listeners_for_peers_and_client(pair)
        assert (ways.up, ways.down) == ([], [])
        assert not [node.detail for node in compute.pool.view.nodes if node.detail]
    assert listeners(pair) == [[], []]


def test_killed_client_leaves_no_listener_on_hosts(pair: Lab) -> None:
    text = f"""
        def give(n): return bytes(n)
        pool = sky.Compute(name="dies", provider=ssh, options=sky.Options(**quiet))
        with pool as compute:
            assert set(map(len, sky.function(give)({SIZE}) @ compute)) == {{{SIZE}}}
            print("done", flush=True)
            time.sleep(1000)
    """
    with Client(pair, text) as client:
        assert client.read_line() == "done"
        assert listeners(pair) == listeners_for_peers_and_client(pair)
        client.kill()
        until(lambda: listeners(pair) == listeners_for_peers(pair), "the end of the listeners")


@pytest.mark.proof("2 s of a processor")
def test_blocked_direct_connection_falls_back_to_ssh_with_one_warning(pair: Lab, ways: Ways) -> None:
    data = os.urandom(SIZE)
    messages: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, NodeLink) and "no direct connection" in event.detail:
            messages.append(event.detail)

    rule = f"ipproto tcp sport {PORTS} to {pair.client.address} blackhole"
    for host in pair.hosts:
        host.run(f"ip rule add {rule} pref 10; ip rule add ipproto tcp sport 22 lookup main pref 5")
    try:
        with pool(pair) as compute:
            compute.pool.news.subscribe(hear, None)
            for _ in range(2):
                assert noise(SIZE) @ compute == expected(SIZE)
            assert digest(data) @ compute == [hashlib.sha256(data).hexdigest()] * 2
            assert (len(ways.up), len(ways.down)) == (1, 4)
            assert len(messages) == 2 and all("go through SSH" in words for words in messages)
    finally:
        for host in pair.hosts:
            host.run("ip rule del pref 10; ip rule del pref 5")


@pytest.mark.proof("2 s of a processor")
def test_interrupted_result_download_resumes_after_a_pulled_cable(pair: Lab) -> None:
    with pool(pair) as compute, ThreadPoolExecutor(1) as beside:
        noise(SIZE) @ compute  # so that the hosts listen
        nodes, before = compute.pool.view.nodes, received(pair)
        try:
            pair.client.limit_rate(25)
            running = beside.submit(lambda: noise(SIZE) @ compute)
            until(lambda: received(pair) - before > SIZE, "a part of it")
            pair.client.unplug()
            until(lambda: all("link down since" in link_note(node) for node in nodes), "the loss to be shown")
            assert received(pair) - before < 2 * SIZE
        finally:
            pair.client.plug()
        assert running.result(DEADLINE) == expected(SIZE)
        assert received(pair) - before < 2.5 * SIZE  # nothing from its beginning again


@pytest.mark.proof("2 s of a processor")
def test_argument_upload_is_complete_after_a_pulled_cable(pair: Lab) -> None:
    data = os.urandom(2 * SIZE)
    with pool(pair) as compute, ThreadPoolExecutor(1) as beside:
        noise(SIZE) @ compute
        nodes = compute.pool.view.nodes
        blobs = pair.hosts[0].home
        try:
            pair.client.limit_rate(50)
            running = beside.submit(lambda: digest(data) @ compute)
            until(lambda: coming(blobs) > SIZE // 2, "a part of it")
            pair.client.unplug()
            until(lambda: all("link down since" in link_note(node) for node in nodes), "the loss to be shown")
            until(lambda: not coming(blobs), "what came to be dropped")
            assert not running.done()
        finally:
            pair.client.plug()
        assert running.result(DEADLINE) == [hashlib.sha256(data).hexdigest()] * 2


def coming(home: Path) -> int:
    """Return the bytes of arguments that a host has received so far. Its files have their final length from the
    start.
    """
    size = 0
    for path in home.glob(".cache/skyward/pools/*/blobs/.*"):
        with suppress(FileNotFoundError):  # it was dropped, or is whole, since it was listed
            size += path.stat().st_blocks * 512
    return size


SPREAD_SIZE, MBIT = 40_000_000, 100


def sent(lab: Lab) -> int:
    """Return the bytes sent over the client's cable so far."""
    return int(Path(f"/sys/class/net/{lab.client.cable.end}/statistics/tx_bytes").read_text())


@sky.function
def agent_memory() -> int:
    """Return the memory of the agent of this rank's node in bytes (VmRSS)."""
    import os
    from pathlib import Path

    status = Path(f"/proc/{os.getppid()}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def test_client_uploads_a_broadcast_payload_once(lab: Lab) -> None:
    data = os.urandom(SPREAD_SIZE)
    expected = hashlib.sha256(data).hexdigest()
    with pool(lab) as compute:
        lab.client.limit_rate(MBIT)
        before, began = sent(lab), time.monotonic()
        assert digest(data) @ compute == [expected] * 4
        taken = time.monotonic() - began
        once = sent(lab) - before
        assert SPREAD_SIZE < once < 1.2 * SPREAD_SIZE
        # One upload fills the cable for 3 s, four would for 13 s; the rest is room for a busy machine.
        upload = SPREAD_SIZE * 8 / MBIT / 1e6
        assert upload < taken < 3 * upload
        assert digest(data) @ compute == [expected] * 4
        assert sent(lab) - before - once < SPREAD_SIZE / 10  # it is on all nodes already
        assert not [node.detail for node in compute.pool.view.nodes if "client" in node.detail]
        assert max(agent_memory() @ compute) < 25_000_000


@pytest.mark.proof("1 s of a processor")
def test_client_uploads_to_every_host_if_hosts_cannot_reach_each_other(lab: Lab) -> None:
    data = os.urandom(8_000_000)  # much more than the deferred part of the bundle
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


def listening_sockets(lab: Lab) -> list[list[str]]:
    """Return the TCP listeners of each host."""
    return [host.run("ss -Htln").splitlines() for host in lab.hosts]


@pytest.mark.proof("1 s of a processor")
def test_nodes_without_cluster_connect_to_the_client_only(pair: Lab) -> None:
    data = os.urandom(2_000_000)
    expected = hashlib.sha256(data).hexdigest()
    at_first = listening_sockets(pair)
    with pool(pair, options={"cluster": False}) as compute:
        before = sent(pair)
        assert digest(data) @ compute == [expected] * 2
        assert sent(pair) - before > 2 * len(data)
        assert listening_sockets(pair) == at_first, "sshd and nothing more"
    with pool(pair) as compute:
        assert digest(data) @ compute == [expected] * 2
        assert all(len(now) > len(then) for now, then in zip(listening_sockets(pair), at_first, strict=True))
