"""Faults of hosts and of the client at unlucky moments: what is said of a host is true, and every wait ends."""

from __future__ import annotations

import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.pool import teardown
from skyward_core.transport.background_loop import submit
from skyward_core.transport.ssh.bootstrap_channel import CommandChannel

from . import Host, HostOptions, Lab
from .conftest import MakeLab
from .pools import DEADLINE, agents, less_patience, nothing_runs, pool, rank, ssh, until


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
    with pytest.raises(sky.PoolError, match="was not up after 3 s: node 0 installed"), compute:
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
            assert "could not be sent to the nodes" in str(error)  # in words, and at last
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
