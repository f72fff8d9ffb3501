"""Calls take lines of their own, beside SSH, once there are more of them; what breaks one costs nothing."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import skyward_core as sky
from skyward_core.views.events import Event, NodeLink
from skyward_tui.widgets.rank_state import link_note

from . import Host, Lab
from .pools import DEADLINE, agents, nothing_runs, on_lines, pool, rank, ssh, until

PORTS = "1024-65534"  # as `ip rule` takes a range


@sky.function
def chatter(name: str) -> tuple[int, int, str]:
    """Print until the host's home holds a file of that name; our pid, the lines, their hash."""
    count, printed = 0, hashlib.sha256()
    while not (Path.home() / name).exists():
        line = f"line {count} " + "x" * 50
        print(line, flush=True)
        printed.update(line.encode() + b"\n")
        count += 1
        time.sleep(0.002)
    return os.getpid(), count, printed.hexdigest()


def call_twice(compute: sky.Compute) -> None:
    for _ in range(2):
        assert rank() @ compute == [0, 1]
    on_lines(compute)


def off_lines(compute: sky.Compute) -> bool:
    return not any(link.direct for link in compute.pool.links)


class Chatter:
    """Ranks that print beside what a test does to them; afterwards every line must be here once."""

    def __init__(self, lab: Lab, compute: sky.Compute, name: str) -> None:
        self.lab, self.compute, self.name = lab, compute, name

    def __enter__(self) -> Chatter:
        self.beside = ThreadPoolExecutor(1)
        archive = self.compute.pool.archive
        self.before = {r: archive.cursors.get(f"r{r:03d}.out", 0) for r in range(2)}
        self.running = self.beside.submit(lambda: chatter(self.name) @ self.compute)
        self.await_more("lines of all ranks")
        return self

    def await_more(self, what: str) -> None:
        """Wait until more has come of every rank."""
        logs = self.compute.pool.view.logs
        before = [logs.rank(r).end for r in range(2)]
        until(lambda: all(logs.rank(r).end > before[r] for r in range(2)), what)

    def __exit__(self, *_: object) -> None:
        for host in self.lab.hosts:
            (host.home / self.name).touch()
        self.beside.shutdown()
        for host in self.lab.hosts:
            (host.home / self.name).unlink()

    def check(self) -> None:
        for r, (_, count, digest) in enumerate(self.running.result(DEADLINE)):
            printed = self.compute.pool.archive.tail(f"r{r:03d}.out", 1 << 30)
            printed = printed[
                len(printed) - (self.compute.pool.archive.cursors[f"r{r:03d}.out"] - self.before[r]) :
            ]
            assert printed.count(b"\n") == count
            assert hashlib.sha256(printed).hexdigest() == digest


def test_calls_move_to_lines_while_ranks_print_and_no_line_is_lost(pair: Lab) -> None:
    with pool(pair, worker=sky.Worker(concurrency=2)) as compute:
        with Chatter(pair, compute, "moved") as chatting:
            pids = [link.welcome["pid"] for link in compute.pool.links]
            assert off_lines(compute)
            tasks = [rank() for _ in range(40)]
            for _ in range(2):  # in the slots beside the printing ranks
                sky.gather(*tasks) >> compute
            on_lines(compute)
            chatting.await_more("lines of text over those")
            sky.gather(*tasks) >> compute
        chatting.check()
        assert [link.welcome["pid"] for link in compute.pool.links] == pids
        assert not [node.detail for node in compute.pool.view.nodes if node.detail]
    nothing_runs(pair)


def test_one_run_alone_sets_up_no_line(pair: Lab) -> None:
    with pool(pair) as compute:
        assert rank() @ compute == [0, 1]
        until(lambda: not compute.pool.runs, "the end of its books")
        assert not compute.pool.book.direct._tasks


def test_a_pulled_cable_on_lines_loses_nothing(pair: Lab) -> None:
    with pool(pair) as compute:
        call_twice(compute)
        living = [agents(host) for host in pair.hosts]
        nodes = compute.pool.view.nodes
        with Chatter(pair, compute, "pulled") as chatting:
            try:
                pair.client.unplug()
                until(
                    lambda: all("link down since" in link_note(node) for node in nodes),
                    "the loss to be shown",
                )
                assert not chatting.running.done()
            finally:
                pair.client.plug()
            until(lambda: not any(map(link_note, nodes)), "the links to be up again")
            assert off_lines(compute)
            chatting.await_more("what was printed meanwhile")
        chatting.check()
        # While one host was silent another was asked whether it reaches that; its server is told late that we left.
        until(lambda: [agents(host) for host in pair.hosts] == living, "the agents alone, the same as before")
        call_twice(compute)
    assert compute.receipt is not None and compute.receipt.ok


def block(host: Host, client: str, ports: str) -> None:
    rule = f"ipproto tcp sport {ports} to {client} blackhole"
    host.run(f"ip rule add {rule} pref 10; ip rule add ipproto tcp sport 22 lookup main pref 5")


def unblock(host: Host) -> None:
    host.run("ip rule del pref 10; ip rule del pref 5")


def test_a_firewall_that_closes_over_a_line_sends_calls_back_to_ssh(pair: Lab) -> None:
    told: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, NodeLink) and "no direct line" in event.detail:
            told.append(event.detail)

    with pool(pair) as compute:
        compute.pool.news.subscribe(hear, None)
        call_twice(compute)
        with Chatter(pair, compute, "walled") as chatting:
            try:
                for host in pair.hosts:
                    block(host, pair.client.address, PORTS)
                until(lambda: off_lines(compute), "the lines to be given up")
                until(lambda: all(link.up for link in compute.pool.links), "the links to be up again")
                chatting.await_more("lines of text through SSH")
                for host in pair.hosts:
                    (host.home / "walled").touch()
                chatting.running.result(DEADLINE)
                for _ in range(2):
                    assert rank() @ compute == [0, 1]
                until(lambda: len(told) == 2, "the news that there is no line")
                assert rank() @ compute == [0, 1]
                assert len(told) == 2 and off_lines(compute)
                assert all("calls and large files go through SSH" in words for words in told)
            finally:
                for host in pair.hosts:
                    unblock(host)
        chatting.check()
    assert compute.receipt is not None and compute.receipt.ok


def test_a_killed_agent_is_replaced_and_its_successor_gets_a_line(pair: Lab) -> None:
    with pool(pair) as compute:
        call_twice(compute)
        with Chatter(pair, compute, "orphaned") as chatting:
            (agent,) = agents(pair.hosts[1])
            os.kill(agent, signal.SIGKILL)
            link = compute.pool.links[1]
            until(lambda: link.up and not link.direct, "a new agent")
            chatting.await_more("lines of text from all, the adopted worker's too")
        chatting.check()
        call_twice(compute)


def test_two_clients_on_lines_see_the_same(pair: Lab) -> None:
    with pool(pair, ssh(pair), name="shared") as compute:
        call_twice(compute)
        other = sky.attach("shared")
        with ThreadPoolExecutor(2) as beside:
            ours = [beside.submit(lambda: rank() @ compute) for _ in range(25)]
            theirs = [beside.submit(lambda: rank() @ other) for _ in range(25)]
            assert [run.result(DEADLINE) for run in ours + theirs] == [[0, 1]] * 50
        until(lambda: all(link.direct for link in other.pool.links), "lines for the other client's calls")
        assert rank() @ other == [0, 1]
        other.detach()
        assert rank() @ compute == [0, 1]
