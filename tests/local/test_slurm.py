"""Pools on a real Slurm with two node daemons on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent
from threading import Thread
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.model.errors import PoolError, PoolGone, UsageError
from skyward_core.providers.slurm import allocation
from skyward_core.providers.slurm.provider import make_comment
from skyward_core.store.ledger import Ledger, ledger_id
from skyward_core.transport.background_loop import submit
from skyward_core.transport.ssh.ssh_config_and_preopened_sockets import write_pool_config
from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import SSHTransport
from tests.support.loopback_hosts import Hosts
from tests.support.sessions import new_session
from tests.support.slurm_cluster import SlurmCluster, missing
from tests.support.waiting import wait_until

QUIET = sky.Options(console=False, grace=1.0)
SHORT = "/tmp" if Path("/tmp").is_dir() else None  # for sockets


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    if why := missing():
        pytest.skip(why)
    with TemporaryDirectory(dir=SHORT, prefix="slurm-") as folder, pytest.MonkeyPatch.context() as patch:
        cluster = SlurmCluster(Path(folder))
        try:
            cluster.start()
            patch.setenv("SLURM_CONF", str(cluster.conf))
            yield cluster
            assert cluster.jobs() == []
        finally:
            cluster.stop()


@sky.function
def devices() -> tuple[int, str]:
    return sky.instance_info().rank, os.environ.get("CUDA_VISIBLE_DEVICES", "")


@sky.function
def waits(begun: str) -> None:
    import threading

    Path(begun).touch()
    threading.Event().wait()


def pool(name: str, nodes: int = 2, **wishes: Any) -> sky.Compute:
    return sky.Compute(provider=sky.Slurm(**wishes), nodes=nodes, name=name, options=QUIET)


def command_lines() -> list[str]:
    """Return the command lines of all processes except Slurm's own, which contain our script."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(file.read_text(errors="replace"))
    return [each for each in found if "SLURM_NODEID" not in each]


def shows_starting_detail(session: Session, words: str) -> bool:
    return any(words in each.detail and each.state == "starting" for each in session.pools())


@pytest.mark.proof("4 s of a processor")
def test_two_slurm_pools_share_nodes_but_no_gpu(cluster: SlurmCluster, home: Path) -> None:
    with pool("one", gres="gpu:a100:1") as one:
        with sky.Compute(
            provider=sky.Slurm(partition="short", memory="100M", time="10"),
            accelerator="A100",
            nodes=2,
            name="two",
            options=QUIET,
        ) as two:
            seen = [devices() @ one, devices() @ two]
            names = sorted(job.split("|")[1].rpartition(".")[0] for job in cluster.jobs("RUNNING"))
            assert names == ["skyward-one", "skyward-two"]
            assert "100M|10:00" in cluster("squeue", "-h", "-o", "%m|%l")
        assert [job.split("|")[2] for job in cluster.jobs()] == ["RUNNING"]
    assert [[rank for rank, _ in each] for each in seen] == [[0, 1], [0, 1]]
    for node in range(2):
        assert sorted(each[node][1] for each in seen) == ["0", "1"]
    for receipt in (one.receipt, two.receipt):
        assert receipt is not None
        assert (receipt.created, receipt.ok) == (2, True)
    assert cluster.jobs() == []
    wait_until(lambda: not list(Path("/tmp").glob(f"skyward-slurm-{os.getuid()}-[ot][nw][eo].*")))
    assert not list((home / "slurm").glob("*.*"))


@pytest.mark.proof("1 s of a processor")
def test_pending_reason_of_an_allocation_is_reported(cluster: SlurmCluster, home: Path) -> None:
    cluster("sbatch", "-p", "lone", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 100")
    wait_until(lambda: cluster.jobs("RUNNING"))
    blocking = cluster.jobs("RUNNING")[0].split("|")[0]
    session = Session()
    try:
        provider = sky.Slurm(partition="lone")
        coming = session.create(sky.PoolSpec(name="late", provider=provider, nodes=1, options=QUIET))
        wait_until(lambda: shows_starting_detail(session, "waits in the queue: no nodes are free (Resources)"))
        cluster("scancel", blocking)
        assert coming.result(60).state == "up"
        assert session.tear_down("late").result(60).ok
    finally:
        cluster("scancel", blocking)
        session.detach()


def test_cancelled_slurm_start_leaves_no_job(cluster: SlurmCluster, home: Path) -> None:
    with new_session() as session:
        spec = sky.PoolSpec(name="held", provider=sky.Slurm(time="100"), nodes=1, options=QUIET)
        coming = session.create(spec)  # more than the partition allows
        wait_until(lambda: shows_starting_detail(session, "will never start; reduce time= (PartitionTimeLimit)"))
        assert session.tear_down("held").result(60).ok
        with pytest.raises(sky.Cancelled):
            coming.result(60)
    assert cluster.jobs() == []


def test_job_cancelled_in_the_queue_is_not_submitted_again(cluster: SlurmCluster, home: Path) -> None:
    session = Session()
    options = sky.Options(console=False, wait_for_capacity="1h")
    try:
        spec = sky.PoolSpec(name="gone", provider=sky.Slurm(time="100"), nodes=1, options=options)
        coming = session.create(spec)
        wait_until(lambda: shows_starting_detail(session, "waits in the queue"))
        cluster("scancel", cluster.jobs()[0].split("|")[0])
        with pytest.raises(PoolError, match=r"it was cancelled \(scancel\).* before the pool was up"):
            coming.result(60)
    finally:
        session.detach()
    assert cluster.jobs() == []


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize(
    ("how", "why"),
    [
        (("scancel",), r"allocation \d+ ended: it was cancelled \(scancel\)"),
        (("scontrol", "update", "nodename=n2", "reason=trial", "state=down"), r"a node failed"),
    ],
)
def test_allocation_that_ends_during_a_run_is_reported(
    cluster: SlurmCluster, home: Path, tmp_path: Path, how: tuple[str, ...], why: str
) -> None:
    compute = pool("under")
    with pytest.raises((PoolGone, sky.RunError), match=why), compute:
        (job,) = cluster.jobs("RUNNING")
        order = how if len(how) > 1 else (*how, job.split("|")[0])
        begun = tmp_path / "begun"

        def end_it() -> None:
            wait_until(begun.exists)
            cluster(*order)

        end = Thread(target=end_it)
        end.start()
        try:
            waits(str(begun)) @ compute
        finally:
            end.join()
            cluster("scontrol", "update", "nodename=n2", "state=resume")
    assert compute.receipt is not None and compute.receipt.ok
    folder = job.split("|")[1].removeprefix("skyward-")[: len("under.") + 8]
    wait_until(lambda: not any(folder in each for each in command_lines()), what="the end of agents")
    wait_until(lambda: cluster("sinfo", "-h", "-p", "short", "-o", "%t").split() == ["idle"])


@sky.function
def count_steps(folder: str) -> tuple[int, str, int, int]:
    """Count steps until SIGTERM in the first attempt, and ten more in the next."""
    attempt, saved = sky.attempt(), Path(folder, f"steps-{sky.instance_info().rank}")
    begin = step = int(saved.read_text()) if saved.exists() else 0
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    Path(folder, "begun").touch()
    while not heard and (step < begin + 10 or not attempt.is_restart):
        step += 1
        time.sleep(0.01)
    saved.write_text(str(step))
    return attempt.number, attempt.cause, begin, step


@pytest.mark.proof("6 s of a processor", after=1)
@pytest.mark.parametrize("how", ["preemption signal", "time limit", "failed node"])
def test_run_saves_before_its_allocation_ends_and_continues_in_another(
    cluster: SlurmCluster, home: Path, tmp_path: Path, how: str
) -> None:
    """Slurm signals the batch script before the time limit; the test stands for the administrator otherwise."""
    provider = sky.Slurm(time="2" if how == "time limit" else "10", save_before=50)
    options = sky.Options(console=False, on_loss="restart", start_timeout=90.0)
    with (
        sky.Compute(provider=provider, nodes=2, name="saves", options=options) as compute,
        ThreadPoolExecutor() as beside,
    ):
        (first,) = cluster.jobs("RUNNING")
        running = beside.submit(lambda: count_steps(str(tmp_path)) @ compute)
        wait_until((tmp_path / "begun").exists)
        if how == "preemption signal":
            cluster("scancel", "--batch", "--signal=USR1", first.split("|")[0])
        elif how == "failed node":
            cluster("scontrol", "update", "nodename=n2", "reason=trial", "state=down")
            wait_until(lambda: not cluster.jobs("RUNNING"))
            cluster("scontrol", "update", "nodename=n2", "state=resume")
        results = running.result(120)
        (second,) = cluster.jobs("RUNNING")
        assert second.split("|")[:2] != first.split("|")[:2]
        assert compute.pool.view.runs[next(iter(compute.pool.view.runs))].attempt == 2
    for rank, (number, cause, begin, step) in enumerate(results):
        assert (number, cause, step) == (2, "preemption", int((tmp_path / f"steps-{rank}").read_text()))
        assert step == begin + 10 and (begin > 0 or how == "failed node")
    assert compute.receipt is not None and compute.receipt.ok
    assert cluster.jobs() == []


@pytest.mark.proof("1 s of a processor")
def test_nodes_without_needed_agents_leave_the_allocation(
    cluster: SlurmCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocation, "ABANDON_SECONDS", 1)
    monkeypatch.setattr(allocation, "POLL_INTERVAL", 1)
    session = Session()
    options = sky.Options(console=False, idle_timeout=1.0)
    spec = sky.PoolSpec(name="left", provider=sky.Slurm(), nodes=2, options=options)
    assert session.create(spec).result(60).state == "up"
    session.detach()
    wait_until(lambda: cluster.jobs() == [])
    later = Session()
    try:
        later.refresh().result(60)
        (view,) = later.refresh(over=True).result(60)
        assert view.is_over and "its nodes had no agent" in view.detail
    finally:
        later.detach()


KILLED = """
    import os, signal, sys
    import skyward_core as sky
    from skyward_core.providers.slurm import allocation, slurm_commands as commands

    def die(*given, **more):
        os.kill(os.getpid(), signal.SIGKILL)

    if sys.argv[1] == "after":
        commands.parse_job_id = die
    else:
        # sbatch is late, and its client dies while it waits for the controller.
        real = commands.SlurmCommands._run_local
        async def late(self, words, stdin):
            import asyncio
            if "sbatch" in words:
                words = ["sh", "-c", 'sleep 3; exec "$@"', "-", *words]
                asyncio.get_running_loop().call_later(1, die)
            return await real(self, words, stdin)
        commands.SlurmCommands._run_local = late
    with sky.Compute(provider=sky.Slurm(), nodes=2, name="killed", options=sky.Options(console=False)):
        pass
"""


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("when", ["after", "meanwhile"])
def test_client_killed_at_submission_leaves_no_job(
    cluster: SlurmCluster, home: Path, tmp_path: Path, when: str
) -> None:
    script = tmp_path / "killed.py"
    script.write_text(dedent(KILLED))
    assert subprocess.run([sys.executable, script, when], cwd=tmp_path, timeout=60).returncode == -9
    ledger = Ledger()
    row = ledger.find_pool("killed")
    assert row is not None and ledger.machines(row.token) == []
    ledger.close()
    if when == "after":
        wait_until(lambda: cluster.jobs("RUNNING"))
    with new_session() as session:
        receipt = session.tear_down("killed").result(90)
    assert receipt.ok and receipt.created in (1, 2)
    assert cluster.jobs() == []
    assert [job.split("|")[2] for job in cluster.jobs("all") if "skyward-killed" in job][-1] == "CANCELLED"


def test_unknown_allocation_of_this_ledger_is_a_leftover(cluster: SlurmCluster, home: Path) -> None:
    for ledger, token in ((ledger_id("slurm"), "a" * 16), ("0" * 16, "b" * 16)):
        cluster(
            "sbatch", f"--job-name=skyward-lost.{token}", f"--comment={make_comment(ledger)}", "-o",
            "/dev/null", "--wrap",
            "sleep 100",
        )  # fmt: skip
    session = Session()
    try:
        found = session.scan_leftovers({"slurm": []}).result(60)
        assert [(each.verdict, each.thing.pool, each.thing.token) for each in found.removable] == [
            ("left", "lost", "a" * 16)
        ]
        assert list(found.others.values()) == [(0, 1)]
        assert session.remove_leftovers(found).result(90) == []
        (other,) = cluster.jobs()
        assert "b" * 16 in other
    finally:
        session.detach()
        cluster("scancel", f"--name=skyward-lost.{'b' * 16}")
        wait_until(lambda: cluster.jobs() == [])


@pytest.mark.proof("2 s of a processor")
def test_slurm_login_host_runs_commands_and_leads_to_the_nodes(
    cluster: SlurmCluster, home: Path, tmp_path: Path
) -> None:
    hosts = Hosts(tmp_path / "hosts")
    try:
        (login, _) = hosts.slots
        login.noise = "echo Welcome; printf 'no newline'"
        login.rewrite = lambda command: f"export SLURM_CONF={cluster.conf}; {command}"
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("SLURM_CONF")
            patch.delenv("SSH_AUTH_SOCK", raising=False)
            wishes: dict[str, Any] = {"keys": str(login.client_key), "known_hosts": str(hosts.known)}
            with pool("far", login=f"127.0.0.1:{login.port}", **wishes) as compute:
                assert [rank for rank, _ in devices() @ compute] == [0, 1]
                transport = compute.pool.context.links[0].transport
                assert isinstance(transport, SSHTransport)
                submit(write_pool_config("far", [transport.target])).result(30)
                entry = (home / "ssh_config.d" / "far.conf").read_text()
                assert f"ProxyJump 127.0.0.1:{login.port}\n" in entry
        assert compute.receipt is not None and compute.receipt.ok
        assert login.logins < 10
    finally:
        hosts.stop()


def test_invalid_slurm_request_is_rejected(cluster: SlurmCluster, home: Path) -> None:
    with pytest.raises(PoolError, match=r"sbatch on this machine failed: .*invalid partition specified: nowhere"):
        pool("bad", partition="nowhere").__enter__()
    with pytest.raises(UsageError, match=r"the cluster has no unique GPU type for H100.*: its GPUs: gpu:a100:2"):
        sky.Compute(provider=sky.Slurm(), accelerator="H100", nodes=1, name="bad", options=QUIET).__enter__()
    assert cluster.jobs() == []


def test_slurm_plan_lists_attempts(cluster: SlurmCluster, home: Path) -> None:
    compute = sky.Compute(
        provider=sky.Slurm(time="10"), accelerator="A100:2", memory_gb=0.25, nodes=2, name="planned", options=QUIET
    )
    plan = compute.plan()
    assert [str(each) for each in plan.attempts] == ["2cpu-0.4gb-2xa100 in short"]
    (request,) = plan.requests
    assert {"--nodes=2", "--gres=gpu:a100:2", "--mem=256M", "--time=10"} <= set(request["sbatch"].split())
    with pytest.raises(UsageError, match="has no prices"):
        sky.Compute(provider=sky.Slurm(), max_hourly_cost=3.0, nodes=1, name="dear", options=QUIET).plan()
    assert cluster.jobs() == []
