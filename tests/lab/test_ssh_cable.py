"""The client's cable is pulled for 10 s while ranks print, and put back."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import skyward_core as sky
from skyward_core.store.pool_folder import PoolFolder
from skyward_tui.widgets.rank_state import link_note

from . import Host, Lab
from .pools import DEADLINE, Client, agents, pool, rank, until

SECONDS = 10


@sky.function
def print_until_told() -> tuple[int, int, str]:
    """Print until the host's home holds a file named ``enough``; our pid, the lines, their hash."""
    count, printed = 0, hashlib.sha256()
    while not (Path.home() / "enough").exists():
        line = f"line {count}"
        print(line, flush=True)
        printed.update(line.encode() + b"\n")
        count += 1
        time.sleep(0.005)
    return os.getpid(), count, printed.hexdigest()


@sky.function
def pid() -> int:
    return os.getpid()


def lines(archive: PoolFolder, rank: int) -> bytes:
    """What a rank has printed, as far as it is here."""
    return archive.read_log_tail(f"r{rank:03d}.out", 1 << 30)


def test_a_pulled_cable_loses_no_line_and_no_host(pair: Lab) -> None:
    with pool(pair) as compute, ThreadPoolExecutor(1) as beside:
        workers = pid() @ compute
        # The channels that started them are called the same, and end some moments after.
        until(lambda: all(len(agents(host)) == 1 for host in pair.hosts), "one agent on each host")
        living = [agents(host) for host in pair.hosts]
        nodes, archive = compute.pool.view.nodes, compute.pool.archive
        try:
            running = beside.submit(lambda: print_until_told() @ compute)
            until(lambda: all(compute.pool.view.logs.rank(r).end > 9 for r in range(2)), "lines of all ranks")

            pair.client.unplug()
            pulled = time.monotonic()
            until(lambda: all("link down since" in link_note(node) for node in nodes), "the loss to be shown")
            time.sleep(max(0.0, pulled + SECONDS - time.monotonic()))
            assert not running.done()
            assert all("link down since" in link_note(node) for node in nodes)
            assert [node.phase for node in nodes] == ["ready"] * 2
            here = dict(archive.cursors)
            pair.client.plug()

            until(lambda: not any(map(link_note, nodes)), "the links to be up again")
            until(
                lambda: all(archive.cursors[name] > at for name, at in here.items() if name.endswith(".out")),
                "what was printed meanwhile",
            )
        finally:
            pair.client.plug()
            for host in pair.hosts:
                (host.home / "enough").touch()
        results = running.result(DEADLINE)
        assert [worker for worker, *_ in results] == workers
        # Channels that looked after the hosts once they could be reached end, too; and what was printed meanwhile is
        # more than a node sends ahead of an outcome.
        until(lambda: [agents(host) for host in pair.hosts] == living, "the same agents, and none beside them")
        until(
            lambda: all(lines(archive, rank).count(b"\n") >= count for rank, (_, count, _) in enumerate(results)),
            "every line",
        )
        for rank, (_, count, digest) in enumerate(results):
            printed = lines(archive, rank)
            assert printed.count(b"\n") == count
            assert hashlib.sha256(printed).hexdigest() == digest
        assert compute.pool.view.state == "up"
    assert compute.receipt is not None and compute.receipt.ok and compute.receipt.created == 2
    for host in pair.hosts:
        (host.home / "enough").unlink()


# The cable of a client's machine is cut: its connections stay open for hours, and the agents do not wait for them.


def has_all(host: Host) -> bool:
    """Whether the rest of the library is there, too: a channel that brings it would wait for the client behind the cut
    cable for as long as sshd does."""
    return any(host.home.glob(".cache/skyward/*-rest/all.zip")) and len(agents(host)) == 1


def test_a_client_behind_a_cut_cable_keeps_neither_the_lock_nor_the_pool(lab: Lab) -> None:
    *hosts, far = lab.hosts
    with Client(
        lab,
        """
        @sky.function
        def rank():
            return sky.instance_info().rank

        options = sky.Options(**quiet, idle_timeout=4.0)
        with sky.Compute(provider=ssh, name="far", options=options) as compute:
            print(rank() @ compute, flush=True)  # from now on it holds the lock
            time.sleep(600)
        """,
        hosts=hosts,
        behind=far,
    ) as client:
        said = client.said()
        assert said == "[0, 1, 2]", said
        until(lambda: all(map(has_all, hosts)), "the end of the start")
        with sky.attach("far") as compute:
            far.unplug()
            running = rank() > compute  # takes no lock, and shows that our own cable is there
            assert running.result(60) in (0, 1, 2)
            seen: list[str] = []
            compute.pool.news.subscribe(lambda event: seen.append(getattr(event, "detail", "")), None)
            assert rank() @ compute == [0, 1, 2]
            holder = f"process {client.process.pid} ("
            assert any(holder in detail for detail in seen), seen
        assert client.process.poll() is None
        until(lambda: not any(map(agents, hosts)), "the end of the pool's lease")
        assert client.process.poll() is None, "nobody but the agents has ended it"
