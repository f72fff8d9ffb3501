"""Hosts with a quirk: pools work there, or what is wrong is said, and on which host."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.model.errors import PoolError
from skyward_core.model.machine import Check

from . import HostOptions, Lab
from .conftest import MakeLab
from .pools import DEADLINE, pool, ssh, until

HOME = "/run/home/.cache/skyward"


@sky.function
def where() -> tuple[str, int]:
    import socket

    return socket.gethostname(), sky.instance_info().rank


def checked(lab: Lab, **wishes: Any) -> list[Check]:
    """What ``skyward-tui doctor`` is told of the hosts."""
    return asyncio.run(ssh(lab, **wishes).check())


@pytest.mark.parametrize(
    "options",
    [
        HostOptions(banner="Welcome.\nBe nice.\n", startup="echo noise; echo more >&2; sleep 2"),
        HostOptions(max_sessions=2),
        HostOptions(unix_forwarding=False, tcp_forwarding=False),
        HostOptions(max_sessions=2, max_startups="2", unix_forwarding=False, tcp_forwarding=False),
        HostOptions(names="gone"),
    ],
    ids=["noisy slow shell", "MaxSessions 2", "no forwarding", "all limits", "no names"],
)
def test_odd_hosts_work(make_lab: MakeLab, options: HostOptions) -> None:
    lab = make_lab(2, options)
    with pool(lab) as compute:
        assert where() @ compute == [(host.name, rank) for rank, host in enumerate(lab.hosts)]
        assert len(where() @ compute) == 2
    assert compute.receipt is not None and compute.receipt.ok
    assert {check.state for check in checked(lab)} <= {"ok", "warn"}


def test_a_full_queue_of_logins_is_waited_for(make_lab: MakeLab) -> None:
    lab = make_lab(1, HostOptions(max_startups="2"))
    with ExitStack() as others, ThreadPoolExecutor(1) as beside:
        for _ in range(2):  # who have not logged in yet
            link = others.enter_context(socket.create_connection((lab.hosts[0].address, 22), timeout=20))
            assert link.recv(4) == b"SSH-"
        compute = pool(lab)
        try:
            coming = beside.submit(compute.__enter__)
            until(lambda: "MaxStartups" in told(compute) or coming.done(), "the reason to be shown")
            assert not coming.done()
        finally:
            others.close()
        coming.result(DEADLINE)
        try:
            assert where() @ compute == [(lab.hosts[0].name, 0)]
        finally:
            compute.__exit__(None, None, None)
    assert compute.receipt is not None and compute.receipt.ok


def told(compute: sky.Compute) -> str:
    """What is shown of a pool that is coming up."""
    held = compute._pool
    return "" if held is None else " ".join(node.detail for node in held.view.nodes)


def test_a_read_only_home_is_no_hindrance(make_lab: MakeLab) -> None:
    lab = make_lab(2, HostOptions(home_writable=False))
    with pool(lab) as compute:
        assert [name for name, _ in where() @ compute] == [host.name for host in lab.hosts]
        assert not any(list(host.home.glob(".cache/*")) for host in lab.hosts)
    assert compute.receipt is not None and compute.receipt.ok
    assert all("/var/tmp/skyward" in line.detail for line in checked(lab) if "GB free" in line.detail)


def test_a_clock_two_hours_off_is_named_and_no_hindrance(make_lab: MakeLab) -> None:
    lab = make_lab(2, hosts={1: HostOptions(clock_offset=7200)})
    with pool(lab) as compute:
        assert [name for name, _ in where() @ compute] == [host.name for host in lab.hosts]
    assert compute.receipt is not None and compute.receipt.ok
    clocks = {line.subject: line for line in checked(lab) if "clock" in line.detail}
    assert clocks[lab.hosts[0].address].state == "ok"
    assert clocks[lab.hosts[1].address].state == "warn"
    ahead = int(clocks[lab.hosts[1].address].detail.partition("clock is ")[2].split()[0])
    assert 7000 < ahead <= 7201 and "ahead" in clocks[lab.hosts[1].address].detail


def test_a_host_without_python_is_named(make_lab: MakeLab) -> None:
    lab = make_lab(2, hosts={1: HostOptions(has_python=False)})
    expected = rf"Host {lab.hosts[1].address} has no Python .*no Python at all"
    # The client's own interpreter lies on a disk that hosts of the lab share, so another one is asked for.
    with pytest.raises(PoolError, match=expected), pool(lab, ssh(lab, python="python3")):
        pass


def test_a_full_home_is_gone_round(make_lab: MakeLab) -> None:
    lab = make_lab(1, HostOptions(home_mb=64))
    lab.hosts[0].fill_disk()
    # The home has no room: the pool lives in the next place that has some.
    with pool(lab) as compute:
        assert where() @ compute == [(lab.hosts[0].name, 0)]
    assert compute.receipt is not None and compute.receipt.ok


def test_a_full_disk_is_named(make_lab: MakeLab) -> None:
    lab = make_lab(2, HostOptions(home_mb=64))
    full = lab.hosts[1]
    full.fill_disk()
    for folder in ("/tmp", "/var/tmp"):  # one disk for all, full: as on a machine with a single partition
        full.run(
            f"mount -t tmpfs -o size=4k tmpfs {folder}; dd if=/dev/zero of={folder}/filler bs=4k || true"
        )
    expected = rf"Host {full.address} has no folder .*{HOME}.*(No space left|MB free).*Free some space there"
    with pytest.raises(PoolError, match=expected), pool(lab):
        pass
    failed = [line for line in checked(lab) if line.state == "fail"]
    assert [line.subject for line in failed] == [full.address]
    assert HOME in failed[0].detail
