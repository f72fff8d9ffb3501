"""``Options(on_loss="replace")`` over SSH: a spare host replaces a host that lost its power."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.node.agent.peer_heartbeats import LOSS_SECONDS
from skyward_core.pool.agent_link import Link
from skyward_core.providers import agent_status_and_termination
from skyward_core.views.events import NodeSilence
from tests.support.child import Child
from tests.support.faults import on_loop
from tests.support.sessions import new_session
from tests.support.waiting import wait_until

from . import Lab
from .host import Host
from .pools import less_patience

MakeLab = Callable[..., Lab]
DEADLINE = 60.0


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    work = tmp_path / "work"
    work.mkdir()
    (work / "own_module.py").write_text("ANSWER = 42\n")
    monkeypatch.chdir(work)
    yield work


def provider(lab: Lab) -> sky.SSH:
    return sky.SSH(
        [host.address for host in lab.hosts],
        user=lab.user,
        keys=str(lab.key),
        known_hosts=str(lab.known_hosts),
        config=False,
    )


@sky.function
def place() -> tuple[str, int, int]:
    import os
    import socket

    from own_module import ANSWER  # type: ignore[import-not-found]

    return socket.gethostname(), sky.instance_info().rank, ANSWER + int(os.environ["EXTRA"])


@sky.function
def sleep_for_long() -> None:
    print("asleep", flush=True)
    time.sleep(600)


def test_spare_host_replaces_a_host_without_power(make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    less_patience(monkeypatch)
    lab = make_lab(3)
    head, victim, spare = lab.hosts
    options = sky.Options(console=False, grace=0.5, start_timeout=60.0, on_loss="replace")
    compute = sky.Compute(
        provider=provider(lab), nodes=2, name="goes-on", options=options, image=sky.Image(env={"EXTRA": "1"})
    )
    with pytest.raises(sky.TeardownError, match=victim.address), compute:
        view = compute.pool.view

        def cut() -> None:
            wait_until(lambda: view.logs.rank(1).lines(0, 1) == ["asleep"], what=lambda: view)
            victim.power_off()

        cutter = threading.Thread(target=cut)
        cutter.start()
        with pytest.raises(sky.RunError) as caught:
            sleep_for_long() @ compute
        cutter.join()
        assert [caught.value.outcomes[rank].kind for rank in (0, 1)] == ["collateral", "lost"]
        assert place() @ compute == [(head.name, 0, 43), (spare.name, 1, 43)]
        wait_until(lambda: view.state == "up", what=lambda: view)
        assert view.nodes[1].address == spare.address
        assert spare.processes()
    # The host without power cannot be asked: the receipt says so. With its power back everything is accounted for.
    assert compute.receipt is not None
    assert (compute.receipt.created, compute.receipt.gone) == (3, (0, 1))
    assert compute.receipt.unaccounted == (victim.address,)
    victim.power_on()
    with new_session() as session:
        receipt = session.tear_down("goes-on").result(DEADLINE)
    assert (receipt.created, receipt.gone, receipt.ok) == (3, (0, 1, 1), True)
    wait_until(lambda: not any(host.processes() for host in lab.hosts), what="the end of the last errand")


@sky.function
def count_to(last: int) -> list[tuple[int, str, int, int]]:
    """Count steps, and save each of them on the head. Wait at step 3 of the first attempt."""
    import json
    import socket
    from pathlib import Path

    attempt, info = sky.attempt(), sky.instance_info()
    saved = Path(sky.checkpoint_dir(), "step.json")
    first = json.loads(saved.read_text()) if saved.exists() else 0
    for step in range(first + 1, last + 1):
        if info.is_head:
            draft = saved.with_suffix(".tmp")
            draft.write_text(json.dumps(step))
            draft.replace(saved)
        while step == 3 and not attempt.is_restart:
            time.sleep(0.05)
    return [(attempt.number, socket.gethostname(), first, step)]


@pytest.mark.proof("8 s of a processor", after=1)
@pytest.mark.parametrize("lost", [0, 1])
def test_restarted_run_continues_from_the_checkpoint_of_the_head(
    lost: int, make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    """Only the head saves. The next attempt begins on all nodes with its checkpoint, even if the head is lost.

    The client and the other node are the witnesses of the loss. One failed connection attempt does not decide.
    """
    less_patience(monkeypatch)
    monkeypatch.setattr(agent_status_and_termination, "SILENT_HOST_TIMEOUT", 0.1)
    lab = make_lab(3)
    options = sky.Options(console=False, grace=0.5, start_timeout=60.0, on_loss="restart")
    compute = sky.Compute(provider=provider(lab), nodes=2, name="continues", options=options)
    with pytest.raises(sky.TeardownError), compute:
        silences = record_silences(compute)

        def cut() -> None:
            wait_until(lambda: [each.read_text() for each in home.glob("outputs/*/[!.]*/**/step.json")] == ["3"])
            lab.hosts[lost].power_off()

        cutter = threading.Thread(target=cut)
        cutter.start()
        results = [one for (one,) in count_to(5) @ compute]
        cutter.join()
        assert [(attempt, first, step) for attempt, _, first, step in results] == [(2, 3, 5)] * 2
        assert results[lost][1] == lab.hosts[2].name
        ended = compute.pool.view.runs.popitem()[1].ended_attempts[0]
    (found,) = [each for each in silences if each.state == "lost"]
    assert found.node == lost and found.silences.keys() == {"client", f"node {1 - lost}"}
    assert min(found.silences.values()) >= LOSS_SECONDS
    assert "no sign of life: client " in ended.message and f", node {1 - lost} " in ended.message


def record_silences(compute: sky.Compute) -> list[NodeSilence]:
    """Return the list of all later testimonies about silent nodes of a pool."""
    found: list[NodeSilence] = []
    on_loop(
        lambda: compute.pool.news.subscribe(lambda e: found.append(e) if isinstance(e, NodeSilence) else None, None)
    )
    return found


@sky.function
def wait_for(path: str) -> int:
    """Wait until a file exists, and return the number of the attempt."""
    while not Path(path).exists():
        time.sleep(0.05)
    return sky.attempt().number


@contextmanager
def waiting_run(lab: Lab, nodes: int) -> Iterator[tuple[sky.Compute, list[NodeSilence]]]:
    """Run a function on all ranks during the block. Check that the run needs one attempt, and loses no node."""
    options = sky.Options(console=False, grace=0.5, start_timeout=60.0, on_loss="restart")
    with sky.Compute(provider=provider(lab), nodes=nodes, name="waits", options=options) as compute:
        silences = record_silences(compute)
        run = wait_for("/tmp/go").on_all(compute)
        wait_until(lambda: len(compute.pool.view.runs) == 1, what=lambda: compute.pool.view)
        yield compute, silences
        for host in lab.hosts:
            host.run("touch /tmp/go")
        assert run.result() == [1] * nodes
    assert [each.node for each in silences if each.state == "lost"] == []
    assert compute.receipt is not None and compute.receipt.created == nodes


def test_node_that_only_the_client_misses_is_not_lost(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    with waiting_run(lab, 2) as (compute, silences):
        link, route = compute.pool.links[1], f"blackhole {lab.client.address}/32"
        lab.hosts[1].run(f"ip route add {route}")
        wait_until(lambda: link.silence_seconds > LOSS_SECONDS + 2, what=lambda: silences)
        lab.hosts[1].run(f"ip route del {route}")
    assert silences == [], "the other node hears it"


@sky.function
def save_and_wait(go: str) -> list[tuple[int, int, int]]:
    """Save a checkpoint on the head, and wait until a file exists. Return the attempt and the world as ranks see it."""
    attempt, info = sky.attempt().number, sky.instance_info()
    assert int(os.environ["WORLD_SIZE"]) == info.world_size and int(os.environ["RANK"]) == info.rank
    if info.is_head:
        draft = Path(sky.checkpoint_dir(), "step.tmp")
        draft.write_text(str(attempt))
        draft.rename(draft.with_name(f"step-{attempt}.json"))
    Path(f"/tmp/attempt-{attempt}").touch()
    while not Path(go).exists():
        time.sleep(0.05)
    return [(attempt, info.world_size, info.rank)]


def ask(link: Link, request: dict[str, str]) -> dict[str, Any]:
    answer, _ = asyncio.run_coroutine_threadsafe(link.ask(request), link.loop).result(10)
    return dict(answer)


@contextmanager
def elastic_run(lab: Lab) -> Iterator[tuple[sky.Compute, Future[list[list[tuple[int, int, int]]]]]]:
    """Run a function on three nodes, in a pool that continues on two. The ranks wait until the block ends."""
    options = sky.Options(console=False, grace=0.5, start_timeout=60.0, on_loss="restart", restart_smaller=True)
    compute = sky.Compute(provider=provider(lab), nodes="2:3", name="elastic", options=options)
    with compute, ThreadPoolExecutor() as beside:
        running = beside.submit(lambda: save_and_wait("/tmp/go") @ compute)
        try:
            until_attempt(lab, 1)
            for link in compute.pool.links[:2]:
                wait_until(lambda link=link: len(ask(link, {"t": "heartbeats"})["silences"]) == 2)  # type: ignore[misc]
            yield compute, running
        finally:
            for host in lab.hosts:
                if host.is_on:
                    host.run("touch /tmp/go")
            running.exception(60)


def until_attempt(lab: Lab, number: int, nodes: int = 3) -> None:
    hosts = lab.hosts[:nodes]
    wait_until(lambda: all(host.run(f"ls /tmp/attempt-{number} 2>&1 || true")[:4] == "/tmp" for host in hosts))


@pytest.mark.proof("9 s of a processor")
def test_run_shrinks_without_a_client_and_grows_when_the_machine_returns(make_lab: MakeLab) -> None:
    """The client's cable is cut, then a host loses its power. Both other nodes are witnesses, and the head decides."""
    lab = make_lab(3)
    with elastic_run(lab) as (compute, running):
        lab.client.unplug()
        lab.hosts[2].power_off()
        until_attempt(lab, 2, nodes=2)
        lab.client.plug()
        view = compute.pool.view
        wait_until(lambda: [(run.attempt, run.nodes, run.total) for run in view.runs.values()] == [(2, (0, 1), 2)])
        (end,) = next(iter(view.runs.values())).ended_attempts
        assert end.cause == "loss" and "on 2 of 3 nodes, because node 2 is lost: no sign of life: node 0" in end.reason
        lab.hosts[2].power_on()
        until_attempt(lab, 3)
        wait_until(lambda: [(run.attempt, run.nodes, run.total) for run in view.runs.values()] == [(3, (), 3)])
    assert running.result() == [[(3, 3, rank)] for rank in range(3)]


@sky.function
def save_after(file: str) -> list[tuple[int, list[str]]]:
    """Save a checkpoint on the head once a file exists there, and wait. Return the attempt and the checkpoints."""
    attempt, folder = sky.attempt(), Path(sky.checkpoint_dir())
    found = [f"{each.name} {each.stat().st_size}" for each in sorted(folder.iterdir())]
    Path(f"/tmp/attempt-{attempt.number}").touch()
    while not attempt.is_restart:
        if Path(file).exists() and sky.instance_info().is_head:
            (folder / "draft.tmp").write_bytes(os.urandom(3_000_000))
            (folder / "draft.tmp").rename(folder / "step-20.pt")
            Path("/tmp/saved").touch()
            file = "/nowhere"
        time.sleep(0.05)
    return [(attempt.number, found)]


def test_restart_without_a_client_begins_on_all_nodes_with_the_checkpoint_of_the_head(make_lab: MakeLab) -> None:
    """The client's cable is cut before the head saves, so that no client can copy the checkpoint."""
    lab = make_lab(2)
    options = sky.Options(console=False, grace=0.5, start_timeout=60.0, on_loss="restart")
    compute = sky.Compute(provider=provider(lab), nodes=2, name="away", options=options)
    with compute, ThreadPoolExecutor() as beside:
        running = beside.submit(lambda: save_after("/tmp/save") @ compute)
        until_attempt(lab, 1, nodes=2)
        lab.client.unplug()
        try:
            lab.hosts[0].run("touch /tmp/save")
            wait_until(lambda: lab.hosts[0].run("ls /tmp/saved 2>&1 || true")[:4] == "/tmp")
            os.kill(workers(lab.hosts[1])[0], signal.SIGKILL)
            until_attempt(lab, 2, nodes=2)
        finally:
            lab.client.plug()
        assert running.result(60) == [[(2, ["step-20.pt 3000000"])]] * 2


@contextmanager
def firewall(lab: Lab, kind: str, cut_off: int) -> Iterator[None]:
    """Let a firewall refuse all packets between one host and the others, in both directions.

    Args:
        kind: "reset" answers with TCP resets, and "unreachable" with ICMP messages. A route to the loopback interface,
            on which no process listens, has the effect of the former.
    """
    for number, host in enumerate(lab.hosts):
        for other in lab.hosts if number == cut_off else [lab.hosts[cut_off]]:
            if other is not host:
                route = (
                    f"local {other.address}/32 dev lo table local" if kind == "reset" else f"{kind} {other.address}/32"
                )
                host.run(f"ip route add {route}")
    yield
    for host in lab.hosts:
        for other in lab.hosts:
            route = f"local {other.address}/32 dev lo table local" if kind == "reset" else f"{kind} {other.address}/32"
            if other is not host:
                host.run(f"ip route del {route} 2>/dev/null || true")


@pytest.mark.proof("2 s of a processor", after=1)
@pytest.mark.parametrize("kind", ["reset", "unreachable"])
def test_node_that_a_firewall_hides_from_the_others_is_not_lost(make_lab: MakeLab, kind: str) -> None:
    """The client still sees the node."""
    lab = make_lab(3)
    with waiting_run(lab, 3) as (compute, silences):
        head = compute.pool.links[0]
        wait_until(lambda: len(ask(head, {"t": "heartbeats"})["silences"]) == 2)
        began = time.monotonic()
        with firewall(lab, kind, 2):
            wait_until(lambda: time.monotonic() - began > LOSS_SECONDS + 4)
            seen = ask(head, {"t": "heartbeats"})["silences"]
    assert (seen["2"] > LOSS_SECONDS) == (kind == "unreachable"), "a reset is a sign of life"
    assert silences == []


def workers(host: Host) -> list[int]:
    return [pid for pid, line in host.processes().items() if "worker" in line]


@pytest.mark.proof("30 s")
def test_firewall_that_resets_connections_starts_no_second_gang(make_lab: MakeLab) -> None:
    """The client is cut off. The head cannot tell the resets of a firewall from those of a machine without an agent."""
    lab = make_lab(3)
    with elastic_run(lab) as (_, running):
        lab.client.unplug()
        try:
            with firewall(lab, "reset", 2):
                os.kill(workers(lab.hosts[1])[0], signal.SIGKILL)
                time.sleep(20)  # the agents notice after 10 s that the client is away
                assert lab.hosts[0].run("ls /tmp/attempt-2 2>&1 || true")[:4] != "/tmp"
            until_attempt(lab, 2)
        finally:
            lab.client.plug()
    assert running.result() == [[(2, 3, rank)] for rank in range(3)]


@pytest.mark.proof("70 s")
def test_run_shrinks_without_a_client_when_a_machine_reboots_at_once(make_lab: MakeLab) -> None:
    """The machine is away too briefly for the heartbeats. Then it refuses connections, as a firewall does."""
    lab = make_lab(3)
    with elastic_run(lab) as (compute, running):
        lab.client.unplug()
        lab.hosts[2].power_off()
        lab.hosts[2].power_on()
        os.kill(workers(lab.hosts[1])[0], signal.SIGKILL)  # as its collective fails
        until_attempt(lab, 2, nodes=2)
        lab.client.plug()
        view = compute.pool.view
        wait_until(lambda: any(run.ended_attempts for run in view.runs.values()))
        (end,) = next(iter(view.runs.values())).ended_attempts
        assert "on 2 of 3 nodes, because node 2 is lost: its agent has ended" in end.reason
        until_attempt(lab, 3)
    assert running.result() == [[(3, 3, rank)] for rank in range(3)]


@pytest.mark.proof("6 s of a processor")
def test_run_goes_on_with_the_nodes_that_are_left(make_lab: MakeLab) -> None:
    """The client is there, but no spare host. The next call has two ranks from its start."""
    lab = make_lab(3)
    with elastic_run(lab) as (compute, running):
        lab.hosts[2].power_off()
        until_attempt(lab, 2, nodes=2)
        lab.hosts[0].run("touch /tmp/go")
        lab.hosts[1].run("touch /tmp/go")
        assert running.result(60) == [[(2, 2, rank)] for rank in range(2)]
        assert save_and_wait("/tmp/go") @ compute == [[(1, 2, rank)] for rank in range(2)]
        lab.hosts[2].power_on()


CLIENT = """
import json, sys
import skyward_core as sky
from skyward_core.providers import provider_from_json
from tests.lab.test_ssh_replace import save_and_wait
options = sky.Options(console=False, grace=0.5, start_timeout=60.0, lost_after=2.0, on_loss="restart")
with sky.Compute(provider=provider_from_json(json.loads(sys.argv[1])), nodes=3, name="left", options=options) as pool:
    save_and_wait("/tmp/go") @ pool
"""


@pytest.mark.proof("10 s of a processor", after=1)
def test_new_client_replaces_a_host_without_power_and_continues_the_run(
    make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is killed, then a host loses its power. The spare host gets the function from the other nodes."""
    less_patience(monkeypatch)
    lab = make_lab(4)
    command = [sys.executable, "-c", CLIENT, json.dumps(provider(lab).to_json())]
    root = str(Path(__file__).parents[2])
    with Child(command, env=os.environ | {"PYTHONPATH": root}, cwd=Path.cwd(), text=True) as client:
        until_attempt(lab, 1)
        with sky.attach("left") as pool:
            for link in pool.pool.links[:2]:
                wait_until(lambda link=link: len(ask(link, {"t": "heartbeats"})["silences"]) == 2)  # type: ignore[misc]
        client.kill()
        client.wait()
    lab.hosts[2].power_off()
    with sky.attach("left") as pool, ThreadPoolExecutor() as beside:
        for host in (*lab.hosts[:2], lab.hosts[3]):
            wait_until(lambda host=host: host.run("ls /tmp/attempt-2 2>&1 || true")[:4] == "/tmp")  # type: ignore[misc]
        (run,) = pool.runs
        waiting = beside.submit(pool.wait, run.id)
        try:
            wait_until(lambda: not pool.pool.context.registry.runs[run.id].is_retained)
        finally:
            for host in (*lab.hosts[:2], lab.hosts[3]):
                host.run("touch /tmp/go")
        assert waiting.result(60) == [[(2, 3, rank)] for rank in range(3)]
        (end,) = run.ended_attempts
        assert (end.cause, end.reason) == ("loss", "restart 1 of 3 after a lost rank")
        lab.hosts[2].power_on()
        pool.down()


STEAL_SECONDS = float(os.environ.get("STEAL_SECONDS", "180"))


@pytest.mark.timeout(STEAL_SECONDS + 120)
@pytest.mark.proof("3 minutes; set STEAL_SECONDS=1800 for the promised time")
def test_slow_machines_and_a_cut_client_lose_no_node(make_lab: MakeLab) -> None:
    """Half of each host's processor time is stolen, packets take 200 ms more between hosts, the client is cut."""
    lab = make_lab(3)
    with waiting_run(lab, 3), ExitStack() as troubles:
        for host in lab.hosts:
            troubles.enter_context(host.lengthen(0.1))
            troubles.enter_context(host.steal_processor(0.5))
        time.sleep(STEAL_SECONDS / 2)
        lab.client.unplug()
        time.sleep(10)
        lab.client.plug()
        time.sleep(STEAL_SECONDS / 2)


@pytest.mark.proof("1 s of a processor")
def test_host_that_returns_replaces_itself_if_there_is_no_spare(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    head, victim = lab.hosts
    options = sky.Options(console=False, grace=0.5, start_timeout=60.0, on_loss="replace")
    image = sky.Image(env={"EXTRA": "1"})
    with sky.Compute(provider=provider(lab), name="again", options=options, image=image) as compute:
        view = compute.pool.view
        assert place() @ compute == [(head.name, 0, 43), (victim.name, 1, 43)]
        victim.power_off()
        wait_until(lambda: view.nodes[1].retry_at is not None, what=lambda: view)
        assert "no host is available for node 1" in view.nodes[1].detail
        assert "list more hosts than nodes" in view.nodes[1].detail
        victim.power_on()
        assert place() @ compute == [(head.name, 0, 43), (victim.name, 1, 43)]
        assert view.nodes[1].address == victim.address
        folders = {machine.extra["folder"] for machine in compute.pool.context.machines}
        assert len(folders) == 2 and all(host.processes() for host in lab.hosts)
    assert compute.receipt is not None
    assert (compute.receipt.created, compute.receipt.gone, compute.receipt.ok) == (3, (0, 1, 1), True)
    wait_until(lambda: not any(host.processes() for host in lab.hosts), what="the end of the last errand")
