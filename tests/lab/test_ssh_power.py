"""A host loses power: in the middle of a collective, and under ``skyward-tui run``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.model import errors
from skyward_core.views.events import Event, NodePhase
from tests.support.fewer import without
from tests.support.sessions import new_session

from . import Lab
from .pools import DEADLINE, allowed, less_patience, listening, nothing_runs, pool, rank, ssh, until

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
def test_power_cut_in_the_middle_of_a_collective(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert view.state == "degraded" and f"node {LOST} is gone" in view.detail
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


SLEEPER = """
import time
import skyward_core as sky

@sky.function
def sleeps():
    print("asleep", flush=True)
    time.sleep(600)
"""


@pytest.mark.proof("2 s of a processor")
def test_power_cut_under_the_command_line(lab: Lab, home: Path) -> None:
    """Status and words of ``skyward-tui run``, with hosts by their names in ``~/.ssh/config``."""
    (home / ".ssh").mkdir(mode=0o700)
    (home / ".ssh/config").write_text(lab.ssh_config.read_text())
    Path("sleeper.py").write_text(SLEEPER)
    hosts = ",".join(host.name for host in lab.hosts[: LOST + 1])
    command = [sys.executable, "-m", "skyward_tui", "run", "sleeper.py", "--hosts", hosts]
    with subprocess.Popen(
        command,
        env=os.environ | {"HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            for _ in range(LOST + 1):
                assert process.stdout.readline().endswith("| asleep\n")
            lab.hosts[LOST].power_off()
            out, err = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
    # The teardown that could not be verified outranks the run that failed.
    assert process.returncode == errors.UNVERIFIED, out + err
    assert f"root cause: r00{LOST} lost: node {LOST} is gone" in err
    assert f"unaccounted 1: {lab.hosts[LOST].name}" in err


def test_a_run_on_the_only_host_of_a_pool_is_lost_with_it(lab: Lab) -> None:
    """Nobody can say whether it is the host that is gone, or the way to it."""
    host = lab.hosts[0]
    with pool(lab, ssh(lab, [host]), options={"lost_after": 1.0}, name="single") as compute:
        assert rank() @ compute == [0]
        host.power_off()
        try:
            with pytest.raises(sky.RunError, match=r"no answer since .* lost at .* after 1 s") as caught:
                _ = rank() >> compute
            assert caught.value.root_cause.outcome == "lost"
        finally:
            host.power_on()
            host.plug()
