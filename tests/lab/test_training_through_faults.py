"""Distributed training on hosts that lose their power and whose disks are full: its result stays exact."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.providers import agent_status_and_termination
from tests.support.waiting import wait_until

from . import HostOptions, Lab
from .pools import less_patience, ssh

MakeLab = Callable[..., Lab]
STEPS, SAVE_EVERY = 100, 20


@sky.function
def train(steps: int, every: int, full_at: int, waits_at: int) -> tuple[int, int, float]:
    """Train a model, and save it on rank 0. Return the attempt, its first step and the final loss.

    Args:
        full_at: Step of a save on a full disk, in the first attempt; 0 for none.
        waits_at: Step at which the attempt after the full disk waits for the power cut; 0 for none.
    """
    import time
    from contextlib import suppress

    import torch
    from torch.nn.parallel import DistributedDataParallel

    rank, number = sky.instance_info().rank, sky.attempt().number
    folder = Path(sky.checkpoint_dir())
    saved = sorted(folder.glob("step-*/state.pt"), key=lambda each: int(each.parent.name[5:]))
    torch.manual_seed(0)
    net = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    first = 0
    if saved:
        state = torch.load(saved[-1])
        first = state["step"]
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])

    def save(step: int) -> None:
        (draft := folder / f"step-{step}" / "state.tmp").parent.mkdir(exist_ok=True)
        torch.save({"step": step, "net": net.state_dict(), "optimizer": optimizer.state_dict()}, draft)
        draft.replace(draft.with_suffix(".pt"))

    for step in range(first + 1, steps + 1):
        values = torch.rand(16, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
        loss = (net(values) - values.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sky.log(step=step)
        if rank == 0 and step == full_at and number == 1:
            filler = folder / "filler"
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
            try:
                save(step)
            finally:
                filler.unlink()
        if rank == 0 and step % every == 0:
            save(step)
        while step == waits_at and number == 2:
            time.sleep(0.05)
    total = loss.detach()
    torch.distributed.all_reduce(total)
    return number, first, total.item()


@pytest.mark.proof("torch; 20 s of a processor")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", range(3))
def test_loss_after_a_full_disk_and_a_power_cut_is_that_of_an_undisturbed_run(
    make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch, home: Path, seed: int
) -> None:
    """No step before the last checkpoint that the client has is computed again."""
    pytest.importorskip("torch")
    less_patience(monkeypatch)
    monkeypatch.setattr(agent_status_and_termination, "SILENT_HOST_TIMEOUT", 0.1)
    chance = random.Random(seed)
    full_at, waits_at, lost = chance.randrange(21, 40), chance.randrange(60, 80), chance.randrange(2)
    lab = make_lab(3, HostOptions(home_mb=128))
    options = sky.Options(console=False, grace=0.5, start_timeout=60.0, on_loss="restart", error_restarts=1)
    compute = sky.Compute(
        provider=ssh(lab, python=sys.executable), nodes=2, options=options, plugins=[sky.plugins.torch(backend="gloo")]
    )
    with pytest.raises(sky.TeardownError), compute:
        undisturbed = train(STEPS, SAVE_EVERY, 0, 0) @ compute
        assert [(number, first) for number, first, _ in undisturbed] == [(1, 0)] * 2
        (earlier,) = compute.pool.view.runs

        def cut() -> None:
            wait_until(
                lambda: any(
                    earlier not in str(each) for each in Path("outputs").glob("*/*/checkpoints/*/step-60/state.pt")
                ),
                90,
                "step 60",
            )
            lab.hosts[lost].power_off()

        cutter = threading.Thread(target=cut)
        cutter.start()
        results = train(STEPS, SAVE_EVERY, full_at, waits_at) @ compute
        cutter.join()
        assert [loss for *_, loss in results] == [loss for *_, loss in undisturbed]
        assert [(number, first) for number, first, _ in results] == [(3, 60)] * 2
        view = next(each for run, each in compute.pool.view.runs.items() if run != earlier)
        assert [end.cause for end in view.ended_attempts] == ["error", "loss"]
        assert "rank 0 raised" in view.ended_attempts[0].message
