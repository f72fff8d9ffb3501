"""Snapshots of every screen at three sizes. ``UPDATE_SNAPSHOTS=1`` writes them again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from skyward_core.client import ssh_host_groups_and_access
from skyward_core.client.ssh_host_groups_and_access import HostGroup
from skyward_core.model.machines_checks_and_gpu_use import Check
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView, RunView
from skyward_tui.app.app import SkywardApp
from skyward_tui.widgets.screen_frame_and_replay_line import FLASH_SECONDS
from tests.support.app_driver import (
    SMALLEST,
    Size,
    Snap,
    at_every_size,
    at_every_size_daily,
    at_usual_sizes,
    press,
    screen_text,
    typed,
    until,
)
from tests.support.fake_session import FakeSession, done, failed_run, logged, value
from tests.support.images import log_image, picture
from tests.support.leftovers import leftovers
from tests.support.machines import measured
from tests.support.past import past_run, some_comparison, some_past
from tests.support.shared_hosts import have_looks
from tests.support.some_stacks import hung, write_failing_train_py, write_train_py
from tests.support.sweeps import learned, swept

SNAPSHOTS = Path(__file__).parent / "snapshots"
SETTLING = 5  # seconds after which a picture is what it is

SCRIPT = """
import skyward_core as sky
import torch

@sky.function
def train(epochs: int, lr: float = 0.01, resume: bool = False) -> float: ...
"""


def training(session: FakeSession, nodes: int = 4, ranks_per_node: int = 1) -> tuple[PoolView, RunView]:
    view, run = session.pool_with_run("llama-ft", nodes, ranks_per_node)
    for rank in range(min(8, view.world_size)):
        for step in range(60):
            loss = 2.3 / (step + 1 + rank)
            session.print(view, rank, f"\x1b[2m12:00:{step:02d}\x1b[0m step={step} \x1b[32mloss={loss:.4f}\x1b[0m\n")
    return view, run


class Seen(str):
    """Text that the screen must show before the next key."""


class Text(str):
    """Text that is pasted at once, unlike a key, which is a plain string."""


async def show(app: SkywardApp, snap: Snap, name: str, size: Size, keys: list[str], ready: str) -> None:
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "▶" in screen_text(app) or "No pools yet" in screen_text(app))
        for key in keys:
            if isinstance(key, Text):
                await typed(app, pilot, key)
            elif isinstance(key, Seen):
                await until(pilot, lambda key=key: key in screen_text(app))  # type: ignore[misc]
            else:
                await pilot.press(key)
        await until(pilot, lambda: ready in screen_text(app))
        file = SNAPSHOTS / f"{name}-{size[0]}x{size[1]}.txt"
        began = time.monotonic()
        while True:  # the focus and its hints may come a few beats of the pump after the text
            await pilot.pause(0.15)
            await pilot.pause()
            if screen_text(app) == (file.read_text("utf-8") if file.exists() else "") or (
                time.monotonic() - began > SETTLING
            ):
                break
        snap(app, file.stem)


@at_every_size
async def test_pool_list_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    for name, ago in (("eval-old", 3 * 86_400), ("eval", 5 * 3600)):
        over = session.pool(name, 2, state="gone", age=ago + 600)
        over.ended_at = session.now - ago
        run = session.open_run(over)
        session.end_run(over, run)
    view = session.pool("eval", 2, state="failed", age=2460)
    failed_run(session, session.pool("sweep-7", 8, price=12.5, provider="aws", age=4000))
    starting = session.pool("fresh", 4, state="starting", phase="installed", age=12)
    session.emit(starting, events.PoolState(pool="fresh", state="starting", detail="2 of 4 nodes installed"))
    view.detail = "node 1 was lost"
    logged(*training(session), session)
    session.past = [past_run(each) for each in range(1, 25)]
    await show(app, snap, "pools", size, [], "llama-ft")


@at_every_size_daily
async def test_run_screen_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    view, run = training(session)
    session.end_rank(view, run, 1, summary=value({"loss": 0.21, "accuracy": 0.91}))
    session.end_rank(view, run, 3, summary=value({"loss": 0.23, "accuracy": 0.9}))
    await show(app, snap, "run", size, ["enter"], "step=59")


@at_every_size
async def test_metrics_panel_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    view, run = training(session)
    logged(view, run, session)
    await show(app, snap, "metrics", size, ["enter", "5"], "loss")


@at_usual_sizes
async def test_logged_images_snapshot(
    app: SkywardApp, session: FakeSession, snap: Snap, size: Size, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    view, run = training(session)
    logged(view, run, session)
    for name, step in (("samples", 59), ("attention", None), ("reconstruction", 40)):
        log_image(view, run.id, name, picture() if name != "reconstruction" else b"", step=step)
    await show(app, snap, "images", size, ["enter", "5", "z"], "samples  step 59  r0")


@at_every_size
async def test_merged_metrics_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    view, run = training(session)
    logged(view, run, session)
    await show(app, snap, "metrics-merged", size, ["enter", "a", "5", "down", "z"], "median of 4 ranks")


@at_every_size
async def test_machine_panel_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    view, _ = training(session, 4, 8)
    view.machines = measured(session.now, 4, 8)
    await show(app, snap, "machines", size, ["enter", "6"], "GPU 4: slowed: too hot")


@at_every_size
async def test_machine_panel_without_gpus_snapshot(
    app: SkywardApp, session: FakeSession, snap: Snap, size: Size
) -> None:
    view, run = training(session)
    logged(view, run, session)
    view.machines = measured(session.now, 4, 0)
    await show(app, snap, "machines-no-gpu", size, ["enter", "6"], "net in")


@at_every_size
async def test_starting_pool_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    view = session.pool("llama-ft", 4, state="starting", phase="requested", age=12)
    at = session.now
    phases = [
        events.NodePhase(pool="llama-ft", node=1, phase="connected", at=at - 4, address="10.0.0.2"),
        events.NodePhase(
            pool="llama-ft", node=2, phase="running", detail="waiting for sshd", at=at - 9, retry_at=at + 3
        ),
        events.NodePhase(pool="llama-ft", node=3, phase="ready", at=at - 1, address="10.0.0.4"),
        events.PoolState(pool="llama-ft", state="starting", detail="1 of 4 nodes ready"),
    ]
    for event in phases:
        session.emit(view, event)
    await show(app, snap, "starting", size, ["enter", "3"], "retry 0:03")


@at_every_size
async def test_failed_run_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    view = session.pool("llama-ft")
    failed_run(session, view)
    session.print(view, 2, "step=1\nstep=2\n\x1b[33mwarning:\x1b[0m a shard is empty\n")
    await show(app, snap, "failed", size, ["enter"], "return total")


@at_every_size
async def test_errors_screen_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    write_failing_train_py()
    failed_run(session, session.pool("llama-ft"))
    await show(app, snap, "errors", size, ["enter", "e"], "ROOT CAUSE")


@at_every_size
async def test_stacks_screen_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    _, run = training(session, 8, 8)
    session.taken = hung(run.id, 64)
    write_train_py()
    await show(app, snap, "stacks", size, ["enter", "s"], "all_reduce")


@at_every_size
async def test_leftovers_screen_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    session.swept = leftovers()
    session.pool("llama-ft", 2)
    await show(app, snap, "leftovers", size, ["J", "down"], "delete all" if size == SMALLEST else "no answer within")


@at_every_size
async def test_hosts_screen_snapshot(app: SkywardApp, snap: Snap, size: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("/home/me/.local/state/skyward/skyward.toml")
    groups = [HostGroup("lab", path, ["gpu1", "gpu2"]), HostGroup("desk", path, ["gpu3"])]
    monkeypatch.setattr(ssh_host_groups_and_access, "groups", lambda: groups)
    have_looks(monkeypatch)
    await show(app, snap, "hosts", size, ["at", "down", "down"], "is used by bob")


@at_every_size
async def test_leftover_deletion_dialog_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    session.swept = leftovers()
    session.pool("llama-ft", 2)
    await show(app, snap, "end-left", size, ["J", "down", "ctrl+x"], "Cancel")


@at_every_size
async def test_pool_of_256_ranks_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    view, run = training(session, 32, 8)
    for rank in range(0, 256, 5):
        session.end_rank(view, run, rank, summary=value(rank / 256))
    session.end_rank(view, run, 77, "lost")
    await show(app, snap, "wide", size, ["enter", "1", "down", "right"], "✓")


@at_every_size
async def test_history_screen_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    some_past(session)
    await show(
        app, snap, "history", size, ["H", "space", "down", "space", "up"], "OSE" if size == SMALLEST else "disk full"
    )


async def test_failures_screen_snapshot(app: SkywardApp, session: FakeSession, snap: Snap) -> None:
    some_past(session)
    await show(app, snap, "failures", (80, 24), ["F"], "disk full")


@at_every_size
async def test_comparison_screen_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    some_past(session)
    some_comparison(session)
    await show(app, snap, "comparison", size, ["H", "space", "down", "space", "c"], "loss: llama")


@at_every_size
async def test_trials_table_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    view, run = swept(session)
    for index, loss in ((0, 0.5), (1, 0.25), (3, 0.75), (4, 0.125)):
        learned(session, view, run, index, loss)
    keys = ["enter", "4", Seen("#▲"), *["right"] * 5, "enter", "z"]
    await show(app, snap, "trials", size, keys, "loss▼")


@at_every_size
async def test_results_panel_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    view, run = training(session)
    for rank in (0, 1, 3):
        session.end_rank(view, run, rank, summary=value({"loss": 0.21 + rank / 100, "accuracy": 0.91}))
    await show(app, snap, "results", size, ["enter", "4", "z"], "accuracy")


@at_every_size
async def test_accelerator_picker_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    Path("train.py").write_text(SCRIPT)
    await show(app, snap, "accelerators", size, ["n", "ctrl+g", *"h100", "down"], "bf16")


@at_every_size
@pytest.mark.usefixtures("in_a_home_folder")
async def test_launch_form_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    Path("train.py").write_text(SCRIPT)
    session.check_ups["local"] = done([Check("local", "ok", "8 cores"), Check("local disk", "ok", "52 GB free")])
    await show(
        app,
        snap,
        "launch",
        size,
        ["n", "ctrl+o", Text("train"), "enter", Text("epochs=3")],
        "epochs    3" if size == SMALLEST else "train(epochs=3)",
    )


@at_usual_sizes
@pytest.mark.proof("2 s of a processor")
@pytest.mark.usefixtures("in_a_home_folder")
async def test_launch_form_with_plugins_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    Path("train.py").write_text("import skyward_core as sky\n\n@sky.function\ndef train(): ...\n")
    session.check_ups["local"] = done([Check("local", "ok", "8 cores")])
    keys = [
        "n",
        Text("train.py"),
        *["tab"] * 10,
        "enter",
        Seen("[ ] torch"),
        "tab",
        "space",
        Seen("Plugin parameters  defaults"),
        "tab",
        "enter",
    ]
    keys += [Seen("torch.backend"), "tab", Text("gloo")]
    await show(app, snap, "launch-plugins", size, keys, "torch (backend=gloo)")


@pytest.mark.proof("1 s of a processor")
@at_every_size
@pytest.mark.usefixtures("in_a_home_folder")
async def test_launch_form_with_hosts_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    Path("train.py").write_text(SCRIPT)
    Path("skyward.toml").write_text('[hosts]\nlab = ["gpu1", "gpu2", "me@gpu3:2222"]\n')
    session.check_ups["ssh"] = done([Check("gpu2", "fail", "no answer within 5 s")])
    keys = [
        "n",
        Text("train.py"),
        "tab",
        "tab",
        "tab",
        Text("epochs=3"),
        *["tab"] * 6,  # past the fields of its arguments, too
        "enter",
        "down",
        "down",
        "enter",
        "tab",
        Text("lab"),
        "tab",
    ]
    await show(app, snap, "launch-ssh", size, keys, "hosts    gpu1")


PRESETS = """
[presets.small]
script = "train.py"
function = "train"
arguments = ["epochs=3", "lr=0.01"]
provider = "ssh"
settings = { hosts = "lab" }
nodes = 2

[presets."sweep on A100"]
script = "sweeps/rates.py"
accelerator = "A100-80GB:8"
nodes = "2:8"

[presets.nightly]
script = "eval.py"
script_args = ["--all"]
"""


@at_every_size
@pytest.mark.proof("1 s of a processor")
async def test_presets_picker_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    Path("skyward.toml").write_text(PRESETS)
    await show(app, snap, "presets", size, ["n", "f4"], "sweep on A100")


@at_every_size
async def test_teardown_dialog_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    training(session)
    await show(app, snap, "teardown", size, ["X"], "is active and will be")


async def test_teardown_dialog_of_a_free_pool_snapshot(app: SkywardApp, session: FakeSession, snap: Snap) -> None:
    view, run = training(session)
    session.end_run(view, run)
    await show(app, snap, "teardown-free", (80, 24), ["X"], "Cancel")


async def test_receipt_snapshot(app: SkywardApp, session: FakeSession, snap: Snap) -> None:
    training(session)
    keys = ["X", "tab", "enter"]
    await show(app, snap, "torn-down", (80, 24), keys, "unaccounted 0")


@pytest.mark.usefixtures("painted")
async def test_merged_log_with_search_snapshot(app: SkywardApp, session: FakeSession, snap: Snap) -> None:
    training(session)
    keys = ["enter", "a", "/", Text("step=5"), "enter"]
    await show(app, snap, "merged", (120, 40), keys, "n N match")


async def test_help_screen_snapshot(app: SkywardApp, session: FakeSession, snap: Snap) -> None:
    training(session)
    await show(app, snap, "help", (80, 24), ["enter", "?"], "esc: close")


async def test_first_start_snapshot(app: SkywardApp, snap: Snap) -> None:
    await show(app, snap, "first", (80, 24), [], "Press n")


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("looks", ["skyward-light", "skyward-contrast", "ansi-dark", "no-colour", "ascii"])
async def test_run_screen_in_each_theme_snapshot(
    session: FakeSession, snap: Snap, looks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if looks == "no-colour":
        monkeypatch.setenv("NO_COLOR", "1")
    theme = looks if "-" in looks and looks != "no-colour" else ""
    app = SkywardApp(lambda: session, clock=lambda: session.now, theme=theme, plain=looks == "ascii")
    view, run = training(session, 4, 8)
    logged(view, run, session)
    view.machines = measured(session.now, 4, 8)
    session.end_rank(view, run, 3, "lost")
    session.end_rank(view, run, 5, summary=value({"loss": 0.2}))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.session is not None and "llama-ft" in screen_text(app))
        await press(pilot, "enter", "2", until=lambda: "step=59" in screen_text(app) and "Xid 79" in screen_text(app))
        session.now += FLASH_SECONDS + 1
        await until(pilot, lambda: "0:48 elapsed" in screen_text(app) and "! throttled" not in screen_text(app))
        snap(app, f"looks-{looks}-120x40")
