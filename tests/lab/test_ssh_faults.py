"""Faults of hosts and clients over SSH: lost power, pulled cables, killed agents, workers and clients."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.model import errors
from skyward_core.pool import teardown
from skyward_core.store.pool_folder import PoolFolder
from skyward_core.transport.background_loop import submit
from skyward_core.transport.ssh.host_command_channel import CommandChannel
from skyward_core.views.events import Event, NodePhase
from skyward_tui.text.rank_states_from_views import link_note
from tests.support.fewer import without
from tests.support.sessions import new_session

from . import Host, HostOptions, Lab
from .conftest import MakeLab
from .pools import DEADLINE, Client, agents, allowed, less_patience, listening, nothing_runs, pool, rank, ssh, until


@sky.function
def size(data: bytes) -> int:
    return len(data)


def cut_off(lab: Lab, compute: sky.Compute, node: int) -> None:
    """Close the connection to a node."""
    host = lab.hosts[node]
    host.run("pkill -KILL -f '^sshd.*@' || pkill -KILL -x sshd-session || true")
    until(lambda: not compute.pool.links[node].up, "the link to be down")


def child(host: Host) -> int:
    """Return the process that is about to become a host's agent: a child of the process that serves the client."""
    parents = {}
    for pid in agents(host):
        status = Path(f"/proc/{pid}/status").read_text()
        parents[pid] = int(status.partition("PPid:\t")[2].partition("\n")[0])
    (leaf,) = parents.keys() - parents.values()
    return leaf


def test_agent_does_not_start_after_its_client_stopped_waiting(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_host_whose_shells_hang_does_not_delay_a_teardown(make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_call_during_a_missing_key_file_ends_and_the_node_reconnects(lab: Lab, tmp_path: Path) -> None:
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
def test_teardown_reports_no_success_while_the_pool_folder_is_hidden(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
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


COMMAND = [sys.executable, "-m", "skyward_tui"]


def test_hosts_remove_a_pool_whose_client_does_not_return(make_lab: MakeLab, capfd: pytest.CaptureFixture[str]) -> None:
    lab = make_lab(2)
    for name in ("left", "too"):
        with Client(
            lab,
            f"""
            options = sky.Options(**quiet, idle_timeout=1.0)
            with sky.Compute(provider=ssh, name={name!r}, options=options):
                print("up", flush=True)
                time.sleep(600)
            """,
        ) as first:
            assert first.read_line() == "up"
    nothing_runs(lab)
    for host in lab.hosts:
        assert not [path for path in host.home.glob(".cache/skyward/pools/*") if path.is_dir()]

    message = "the node ended itself: idle for 1 s"
    # A start with the name says what became of the pool that had it; so does the list, of the others.
    with pool(lab, nodes=1, name="left", options={"console": True}) as again:
        assert rank() @ again == [0]
    assert f"pool left: previous pool of this name: {message}" in capfd.readouterr().err
    listed = subprocess.run([*COMMAND, "ls"], capture_output=True, text=True, timeout=DEADLINE)
    assert f"pool too: {message}" in listed.stderr
    assert "no pools are up" in listed.stdout


# The client is killed in the middle of a run of 6 s: the run goes on, and those who come back miss nothing.


SECONDS = 6


def test_run_continues_without_its_client_and_each_line_is_logged_once(pair: Lab) -> None:
    with Client(
        pair,
        f"""
        @sky.function
        def work():
            import hashlib
            rank, number, printed = sky.instance_info().rank, 0, hashlib.sha256()
            began = time.monotonic()
            while time.monotonic() < began + {SECONDS}:
                line = f"rank {{rank}} line {{number}}"
                print(line, flush=True)
                printed.update(line.encode() + b"\\n")
                number += 1
                time.sleep(0.01)
            return rank, number, printed.hexdigest(), time.monotonic() - began, bytes(300_000)

        # Shorter than the run: a pool that is busy outlives its lease.
        options = sky.Options(**quiet, idle_timeout=3.0)
        with sky.Compute(provider=ssh, name="goes-on", options=options) as compute:
            threading.Thread(target=lambda: work() @ compute, daemon=True).start()
            while not all(compute.pool.archive.cursors.get(f"r{{rank:03d}}.out") for rank in range(2)):
                time.sleep(0.01)
            print(compute.pool.archive.logs, flush=True)
            time.sleep(600)
        """,
    ) as first:
        logs = Path(first.read_line())
        assert logs.is_dir(), logs
    seen = [(logs / f"r{rank:03d}.out").stat().st_size for rank in range(2)]  # by the one that is dead

    command = [sys.executable, "-m", "skyward_tui", "attach", "goes-on"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as beside:
        try:
            assert beside.stderr is not None
            assert b"work on 2 ranks" in beside.stderr.readline()
            with sky.attach("goes-on") as compute:
                (run,) = compute.runs
                assert run.state == "running"
                # The other client does not own the results: it shows their summaries, whoever fetches them.
                results = compute.wait()
                until(lambda: run.state == "done", "the run's end in the view")
                assert [rank for rank, *_ in results] == [0, 1]
                assert all(lasted >= SECONDS and len(large) == 300_000 for *_, lasted, large in results)
                submit(compute.pool.news.wait_logs_complete(run.id)).result(DEADLINE)
                out, err = beside.communicate(timeout=DEADLINE)
                receipt = compute.down()
        finally:
            beside.kill()
    assert receipt.ok and receipt.created == 2
    nothing_runs(pair)

    for number, count, digest, *_ in results:
        printed = (logs / f"r{number:03d}.out").read_bytes()
        assert printed.count(b"\n") == count
        assert hashlib.sha256(printed).hexdigest() == digest
        # Shown by the command line: all that came after the dead client's last byte, once and in order.
        prefix = f"r{number:03d}| ".encode()
        shown = [line for line in out.splitlines() if line.startswith(prefix)]
        assert shown == [prefix + line for line in printed[seen[number] :].splitlines()]
    assert beside.returncode == 0, err


@sky.function
def print_until_told() -> tuple[int, int, str]:
    """Print until the host's home has a file named ``enough``. Return the pid, the number of lines and their hash."""
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
    """Return the lines of a rank that have arrived."""
    return archive.read_log_tail(f"r{rank:03d}.out", 1 << 30)


def test_pulled_cable_loses_no_line_and_no_host(pair: Lab) -> None:
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
        # Channels that diagnosed the hosts end, too. The ranks have printed more in the meantime than a node sends
        # before an outcome.
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
    """Check whether the deferred part of the library has arrived. A channel that uploads it would otherwise wait for
    the client behind the cut cable until sshd gives up.
    """
    return any(host.home.glob(".cache/skyward/*-rest/all.zip")) and len(agents(host)) == 1


def test_client_behind_a_cut_cable_releases_lock_and_pool(lab: Lab) -> None:
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
        text = client.read_line()
        assert text == "[0, 1, 2]", text
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


LOST = 2


@sky.function
def meets() -> list[str]:
    return [os.environ["MASTER_ADDR"], os.environ["GLOO_SOCKET_IFNAME"]]


@sky.function
def reduce_for_ever() -> None:
    import torch
    import torch.distributed as dist

    place = torch.tensor([10.0 ** sky.instance_info().rank])
    dist.all_reduce(place)
    assert place.item() == 111, "each host's part is there"
    print("reduced once", flush=True)
    while True:
        dist.all_reduce(torch.ones(1))
        time.sleep(0.01)  # as a step takes; else it has the processors of all hosts, which are this machine's


@pytest.mark.proof("8 s of a processor")
def test_power_cut_during_a_collective_loses_one_rank_and_stops_its_peers(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    less_patience(monkeypatch)  # with the host that has no power, when all is over
    lab = lab.first(3)
    gone: list[tuple[float, int]] = []

    def note(event: Event) -> None:
        if isinstance(event, NodePhase) and event.phase == "gone":
            gone.append((time.monotonic(), event.node))

    # The client's own interpreter has the framework; the hosts reach no package index.
    image = sky.Image(env=without("torch._dynamo"))
    compute = pool(lab, ssh(lab, python=sys.executable), plugins=[sky.plugins.torch()], image=image, name="cut")
    with ThreadPoolExecutor(1) as beside, pytest.raises(sky.RunError) as caught, compute:
        view = compute.pool.view
        compute.pool.news.subscribe(note, None)
        for _ in range(2):
            assert rank() @ compute == [0, 1, 2]
        for address, interface in meets() @ compute:
            assert address == lab.hosts[0].address and interface != "lo"
        running = beside.submit(lambda: reduce_for_ever() @ compute)
        # Gloo itself prints, too, before that.
        until(
            lambda: all("reduced once" in view.logs.rank(rank).lines(0, 99) for rank in range(3)),
            "the first collective of all",
        )
        for host in lab.hosts:
            assert listening(host) <= {host.address}
        lab.hosts[LOST].power_off()
        cut = time.monotonic()
        error = running.exception(DEADLINE)
        stopped = time.monotonic()
        assert gone[0][1] == LOST and gone[0][0] - cut < allowed(5)
        assert stopped - gone[0][0] < allowed(5)  # peers that hang in a collective take SIGTERM, then SIGKILL
        assert view.state == "degraded" and f"node {LOST} is lost" in view.detail
        assert error is not None
        raise error
    assert {rank: outcome.kind for rank, outcome in caught.value.outcomes.items()} == {
        0: "collateral",
        1: "collateral",
        2: "lost",
    }
    assert caught.value.root_cause.rank == LOST
    assert f"rank {LOST} (node {LOST}) was lost" in str(caught.value)
    assert errors.error_exit_code(caught.value) == errors.FAILED

    # A host without power cannot be asked: the receipt says so, and does not call it gone.
    receipt = compute.receipt
    assert receipt is not None and (receipt.created, receipt.gone) == (3, (0, 1))
    assert receipt.unaccounted == (lab.hosts[LOST].address,)
    nothing_runs(lab)
    lab.hosts[LOST].power_on()
    lab.hosts[LOST].plug()
    with new_session() as session:
        assert "cut" not in [pool.name for pool in session.refresh().result(DEADLINE) if pool.is_live]
