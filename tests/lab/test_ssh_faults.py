"""Faults of hosts and of the client at unlucky moments: what is said of a host is true, and every wait ends."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.pool import teardown
from skyward_core.transport.background_loop import submit
from skyward_core.transport.ssh.bootstrap_channel import CommandChannel
from skyward_core.views.events import Event, NodeLink, NodePhase, RankEnded

from . import Host, HostOptions, Lab
from .conftest import MakeLab
from .pools import DEADLINE, agents, allowed, less_patience, nothing_runs, pool, rank, ssh, until


@sky.function
def size(data: bytes) -> int:
    return len(data)


def cut_off(lab: Lab, compute: sky.Compute, node: int) -> None:
    """The connection to a node ends."""
    host = lab.hosts[node]
    host.run("pkill -KILL -f '^sshd.*@' || pkill -KILL -x sshd-session || true")
    until(lambda: not compute.pool.links[node].up, "the link to be down")


def child(host: Host) -> int:
    """What is to become the agent of a host: a child of the process that serves the client there."""
    parents = {}
    for pid in agents(host):
        status = Path(f"/proc/{pid}/status").read_text()
        parents[pid] = int(status.partition("PPid:\t")[2].partition("\n")[0])
    (leaf,) = parents.keys() - parents.values()
    return leaf


def test_an_agent_does_not_start_for_a_client_that_waits_no_longer(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    host, frozen, ask = lab.hosts[1], list[int](), CommandChannel.ask

    async def ask_and_freeze(channel: CommandChannel, what: str, *given: Any, **more: Any) -> dict[str, Any]:
        answer = await ask(channel, what, *given, **more)
        if what == "start" and not frozen and any("skyward-agent" in each for each in host.processes().values()):
            frozen.append(child(host))
            os.kill(frozen[0], signal.SIGSTOP)  # before it has read what it is to do
        return answer

    monkeypatch.setattr(CommandChannel, "ask", ask_and_freeze)
    compute = pool(lab, ssh(lab, [host]), options={"start_timeout": 3.0, "idle_timeout": 600.0})
    with pytest.raises(sky.PoolError, match="did not start within 3 s: node 0 installed"), compute:
        pass
    os.kill(frozen[0], signal.SIGCONT)
    assert compute.receipt is not None and compute.receipt.ok
    nothing_runs(lab)


def test_a_host_whose_shells_hang_does_not_hold_up_a_teardown(
    make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    less_patience(monkeypatch)
    lab = make_lab(2, hosts={1: HostOptions(startup="while [ -e $HOME/hang ]; do sleep 0.1; done")})
    hang = lab.hosts[1].home / "hang"
    compute = pool(lab)
    with pytest.raises(sky.TeardownError, match=f"unaccounted 1: {lab.hosts[1].address}"), compute:
        assert rank() @ compute == [0, 1]
        hang.touch()
    hang.unlink()
    nothing_runs(lab)


@pytest.mark.proof("1 s of a processor")
def test_a_key_file_that_is_away_while_a_large_call_is_sent(lab: Lab, tmp_path: Path) -> None:
    key, away = tmp_path / "key", tmp_path / "away"
    shutil.copy(lab.key, key)
    key.chmod(0o600)
    with pool(lab, ssh(lab, lab.hosts[:2], keys=str(key))) as compute, ThreadPoolExecutor(1) as beside:
        assert rank() @ compute == [0, 1]
        key.rename(away)
        cut_off(lab, compute, 1)
        running = beside.submit(lambda: size(b"x" * 300_000) @ compute)
        until(lambda: compute.pool.view.runs, "the run")
        until(lambda: "key" in compute.pool.view.nodes[1].link_detail, "a try without the key")
        away.rename(key)
        try:
            assert running.result(DEADLINE) == [300_000, 300_000]
        except sky.RunError as error:
            assert "cannot send the arguments to the nodes" in str(error)  # in words, and at last
        until(lambda: compute.pool.links[1].up, "the link")
        assert size(b"x" * 300_000) @ compute == [300_000, 300_000]


@pytest.mark.proof("2 s of a processor")
def test_a_teardown_without_the_key_file_tells_what_it_could_not_reach(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    less_patience(monkeypatch)
    key, away = tmp_path / "key", tmp_path / "away"
    shutil.copy(lab.key, key)
    key.chmod(0o600)
    with pool(lab, ssh(lab, lab.hosts[:2], keys=str(key))) as compute:
        assert rank() @ compute == [0, 1]
        key.rename(away)
        cut_off(lab, compute, 1)
        receipt = submit(compute.pool.down()).result(DEADLINE)
        assert not receipt.ok
        assert receipt.unaccounted == (lab.hosts[1].address,)
        away.rename(key)
        assert submit(compute.pool.down()).result(DEADLINE).ok
    nothing_runs(lab)


@pytest.mark.proof("2 s of a processor")
def test_a_folder_that_is_hidden_hides_no_worker(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    host = lab.hosts[1]
    compute = pool(lab, ssh(lab, lab.hosts[:2]))
    with compute:
        assert rank() @ compute == [0, 1]
        host.run("mount -t tmpfs -o ro none ~/.cache")
        try:
            for pid in agents(host):
                os.kill(pid, signal.SIGKILL)
            until(lambda: not compute.pool.links[1].up, "the link to be down")
            with monkeypatch.context() as patch:
                patch.setattr(teardown, "VERIFY", 3.0)  # it cannot be verified; the second one takes its time
                receipt = submit(compute.pool.down()).result(DEADLINE)
            assert not (receipt.ok and host.processes())
        finally:
            host.run("umount ~/.cache")
        assert submit(compute.pool.down()).result(DEADLINE).ok
    nothing_runs(lab)


# Processes that die on hosts: agents are followed by new ones, workers are named with how they ended.


def test_an_agent_that_dies_is_followed_by_one_that_adopts_its_workers(pair: Lab) -> None:
    def work() -> tuple[int, int]:
        print("before", flush=True)
        while not (Path.home() / "go").exists():
            time.sleep(0.02)
        print("after", flush=True)
        return sky.instance_info().rank, os.getpid()

    def which() -> int:
        return os.getpid()

    with pool(pair) as compute:
        before = sky.function(which)() @ compute
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(lambda: sky.function(work)() @ compute)
            until(lambda: compute.pool.view.logs.rank(1).end == 1, "the run's first line")
            old = {link.node: link.welcome["pid"] for link in compute.pool.links}
            for pid in agents(pair.hosts[1]):
                os.kill(pid, signal.SIGKILL)
            until(lambda: compute.pool.links[1].welcome["pid"] != old[1], "a new agent")
            for host in pair.hosts:
                (host.home / "go").touch()
            assert running.result(DEADLINE) == list(enumerate(before)), "no worker was started anew"
        until(lambda: compute.pool.view.logs.rank(1).lines(0, 9) == ["before", "after"], "the last line")
        assert rank() @ compute == [0, 1]
    assert compute.receipt is not None and compute.receipt.ok
    nothing_runs(pair)
    for host in pair.hosts:
        (host.home / "go").unlink()


@pytest.mark.proof("1 s of a processor")
def test_agent_and_workers_that_die_together_are_followed_by_new_ones(pair: Lab) -> None:
    with pool(pair) as compute:
        assert rank() @ compute == [0, 1]
        old = compute.pool.links[1].welcome["pid"]
        pair.hosts[1].kill_all()  # its sshd and its disk are well
        until(lambda: compute.pool.links[1].welcome["pid"] != old, "a new agent")
        assert rank() @ compute == [0, 1]
        assert compute.pool.view.state == "up"
    assert compute.receipt is not None and compute.receipt.ok
    assert compute.receipt.created == 2


def test_what_ended_an_agent_may_end_the_next_one_as_it_starts(pair: Lab) -> None:
    news: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, NodeLink | NodePhase) and event.node == 1:
            news.append(event.detail)

    def told(words: str) -> int:
        return sum(words in each for each in news)

    def cannot_start(ends: int) -> bool:
        if told("connecting") >= ends:  # what asks how it is there lives; what starts the agent does not
            pair.hosts[1].kill_all()
        return told("Cannot prepare") == ends

    with pool(pair) as compute:
        assert rank() @ compute == [0, 1]
        old = compute.pool.links[1].welcome["pid"]
        compute.pool.news.subscribe(note, None)
        pair.hosts[1].kill_all()
        for ends in (1, 2):
            until(lambda: cannot_start(ends), f"start {ends} to fail")  # noqa: B023
        until(lambda: compute.pool.links[1].welcome["pid"] != old, "a new agent")
        assert rank() @ compute == [0, 1]
        assert compute.pool.view.state == "up"
    assert compute.receipt is not None and compute.receipt.ok


@pytest.mark.proof("2 s of a processor", after=1)
@pytest.mark.parametrize(
    ("how", "code", "number"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), None, signal.SIGKILL),
        (None, None, signal.SIGKILL),  # from outside and without a word, as the kernel does it
        (lambda: ctypes.string_at(0), None, signal.SIGSEGV),
        (os.abort, None, signal.SIGABRT),
        (lambda: os._exit(7), 7, None),
    ],
    ids=["SIGKILL", "out of memory", "segfault", "abort", "_exit"],
)
def test_a_worker_that_dies_is_named_with_how(pair: Lab, how, code, number) -> None:  # type: ignore[no-untyped-def]
    def body() -> None:
        if sky.instance_info().rank == 1:
            print(time.time(), flush=True)
            if how is not None:
                how()
            held = b"x" * 200_000_000
            (Path.home() / "full").write_text(f"{os.getpid()} {len(held)}")
        time.sleep(600)

    ended: list[float] = []  # when rank 1's end was told

    def note(event: Event) -> None:
        if isinstance(event, RankEnded) and event.outcome.rank == 1:
            ended.append(event.at)

    with pool(pair) as compute, ThreadPoolExecutor(1) as beside:
        compute.pool.news.subscribe(note, None)
        running = beside.submit(lambda: sky.function(body)() @ compute)
        if how is None:
            full = pair.hosts[1].home / "full"
            until(
                lambda: running.done() or (full.exists() and full.read_text().endswith(" 200000000")),
                "the memory to be taken",
            )
            died = time.time()
            pair.hosts[1].run(f"kill -KILL {full.read_text().split()[0]}; rm ~/full")
        with pytest.raises(sky.RunError, match="rank 1") as caught:
            running.result(DEADLINE)
        if how is not None:
            said = compute.pool.view.logs.rank(1)  # a crash's stack, on standard error, may come before it
            died = next(float(line) for line in said.lines(0, said.end) if line.startswith("1"))
        until(lambda: ended, "the news of the end, which comes after the waiting thread has its own")
        assert 0 <= ended[0] - died < allowed(2)
        outcome = caught.value.outcomes[1]
        assert (outcome.kind, outcome.exit_code, outcome.signal) == ("exited", code, number)
        assert caught.value.root_cause.rank == 1
        assert rank() @ compute == [0, 1]
