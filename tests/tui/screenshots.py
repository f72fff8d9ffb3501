"""Screenshots of the real app with real runs, for ``screenshots/``: ``python -m tests.tui.screenshots``.

Every pool is real, local, and torn down again. The keys are those that a user would press. Takes about three minutes.
Requires the ``test`` extra (torch for training, resvg and Pillow for pictures). The hosts need the requirements of a
lab.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import resvg_py
from PIL import Image
from textual.pilot import Pilot

import skyward_tui
from skyward_core.client.session import Session
from skyward_core.client.user_settings_and_app_state import settings_path
from skyward_tui.app.app import ReplayApp, SkywardApp
from skyward_tui.screens.history import PastRunList
from skyward_tui.widgets.screen_frame_and_replay_line import DEMO
from tests.lab import Lab
from tests.lab.gpu_host import gpu_host, measure, put_driver, put_users, user_process
from tests.support.app_driver import screen_svg, screen_text

FOLDER = Path(__file__).parents[2] / "screenshots"
EXAMPLES = Path(skyward_tui.__file__).parent / "examples"
SMALL, MIDDLE, LARGE = (80, 24), (120, 40), (160, 48)
COLOURS = 96  # of a picture: as it looks, at a third of the bytes
SWEEP = """\
import time

import skyward_core as sky


@sky.function
def fit(lr: float = 0.1, seed: int = 0) -> dict[str, float]:
    \"\"\"Pretend to fit, better the nearer the rate is to 0.03.\"\"\"
    for step in range(20):
        time.sleep(0.1)
        sky.log(step=step, loss=1.0 / (1 + step) + abs(lr - 0.03) + seed / 100)
    return {"loss": round(abs(lr - 0.03) + seed / 100, 4)}
"""
HANG = """\
import time

import torch
import torch.distributed as dist

import skyward_core as sky


def validate() -> None:
    time.sleep(600)


@sky.function
def train() -> None:
    \"\"\"Train, but rank 2 never comes to the all_reduce of the others.\"\"\"
    print("rank", dist.get_rank(), "trains", flush=True)
    if dist.get_rank() == 2:
        validate()
    dist.all_reduce(torch.ones(4))
"""
STOP = """\
import skyward_core as sky


@sky.function
def check(limit: float = 0.5) -> float:
    \"\"\"Stand still where a value is odd.\"\"\"
    loss = 0.4 + sky.instance_info().rank / 10
    print(f"loss {loss:.2f}", flush=True)
    if loss > limit:
        breakpoint()
    return loss
"""
FONT = "DejaVu Sans Mono"
PATIENCE = 120.0


class Camera:
    """App at one size, and operations on it."""

    def __init__(self, app: SkywardApp, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot

    async def press(self, *keys: str, until: str | Callable[[str], bool] = "") -> None:
        await self.pilot.press(*keys)
        if until:
            await self.until(until)

    async def until(self, seen: str | Callable[[str], bool], *, again: str = "") -> None:
        """Wait for a text on the screen. With ``again``, press that key repeatedly until the text appears."""
        true = seen if callable(seen) else lambda text: seen in text
        deadline = time.monotonic() + PATIENCE
        while not true(screen_text(self.app)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{seen!r} never showed:\n{screen_text(self.app)}")
            await asyncio.sleep(1.0 if again else 0.05)
            await self.press(*filter(None, [again]))
            await self.pilot.pause()

    async def shoot(self, name: str, size: tuple[int, int]) -> None:
        await self.pilot.resize_terminal(*size)
        await self.pilot.pause(0.5)  # two beats of the pump at the new size
        svg = screen_svg(self.app)
        FOLDER.mkdir(exist_ok=True)
        if size == MIDDLE:
            (FOLDER / f"{name}.svg").write_text(svg, "utf-8")
        else:
            png = resvg_py.svg_to_bytes(svg_string=svg, monospace_family=FONT, font_family=FONT)
            image = Image.open(io.BytesIO(bytes(png))).convert("RGB")
            small = image.quantize(COLOURS, dither=Image.Dither.NONE)
            small.save(FOLDER / f"{name}-{size[0]}x{size[1]}.png", optimize=True)
        await self.pilot.resize_terminal(*LARGE)
        await self.pilot.pause()

    async def all_sizes(self, name: str) -> None:
        for size in (SMALL, MIDDLE, LARGE):
            await self.shoot(name, size)

    async def launch(self, script: str, arguments: str = "") -> None:
        """Go from the list of pools to the run screen."""
        await self.press("n")
        await self.until(lambda _: self.app.focused is not None and self.app.focused.id == "script")
        await self.press(*script, "tab", "tab", "tab", *arguments)
        await self.until("creates  pool")


@asynccontextmanager
async def camera_on(app: SkywardApp) -> AsyncIterator[Camera]:
    async with app.run_test(size=LARGE) as pilot:
        camera = Camera(app, pilot)
        await camera.until(lambda text: re.search(r"\d pools? up|No pools yet", text) is not None)
        yield camera


async def take() -> None:
    async with camera_on(SkywardApp()) as camera:
        await camera.shoot("first", SMALL)

        await camera.launch("ddp.py", "epochs=20")
        await camera.until("train(epochs=20)")
        await camera.all_sizes("launch")
        await camera.press("ctrl+r", until=lambda text: text.count("epoch ") > 6)
        await camera.all_sizes("ddp-training")
        await camera.press("a")
        await camera.shoot("ddp-all-ranks", LARGE)
        await camera.press("a", "v", until=lambda text: text.count("epoch ") > 6)
        await camera.all_sizes("side-by-side")
        await camera.press("escape", until="✓ DONE 4/4")
        await camera.all_sizes("ddp-done")
        await camera.press("5", "z", *["left"] * 5)
        await camera.all_sizes("metrics")
        await camera.press("z", "q")

        await camera.launch("broken.py")
        await camera.press("ctrl+r", until="✗ FAILED")
        await camera.all_sizes("broken")
        await camera.press("e", until="ROOT CAUSE")
        await camera.all_sizes("errors")
        await camera.press("escape", "q")

        await camera.launch("streaming.py", "pause=0.1")
        await camera.press("ctrl+r", until=lambda text: re.search(r"#\d\d step", text) is not None)
        await camera.shoot("streaming", LARGE)
        await camera.until("✓ DONE")
        await camera.press("q", until="3 pools up")
        await camera.all_sizes("pools")

        await camera.press("enter", "X", until="Cancel")
        await camera.shoot("teardown", SMALL)
        await camera.press("escape", "q", "q", "right", "enter")
        await camera.until(lambda text: text.count("verified gone 4") >= 3)
        await camera.shoot("receipt", LARGE)
        await camera.press("enter")


async def take_sweep() -> None:
    async with camera_on(SkywardApp()) as camera:
        await camera.launch("sweep.py", "lr=0.1,0.03,0.01 seed=1..3")
        await camera.until("9 trials")
        await camera.all_sizes("launch-sweep")
        await camera.press("ctrl+r", until="#▲")
        await camera.until("✓ DONE")
        await camera.press("4", "z")
        await camera.all_sizes("trials")


async def take_hang() -> None:
    async with camera_on(SkywardApp()) as camera:
        await camera.launch("hang.py")
        await camera.press("ctrl+r", until="rank 0 trains")
        await camera.press("s")
        # That the others are inside of it, and rank 2 where it stays, nothing but the lens can see.
        await camera.until("ranks 0-1,3 are in all_reduce (torch); rank 2 is not: validate", again="r")
        await camera.all_sizes("hang")


async def take_breakpoint() -> None:
    async with camera_on(SkywardApp()) as camera:
        os.environ["SKYWARD_DEBUG_WAIT"] = "60"
        await camera.launch("stop.py")
        await camera.press("ctrl+r", until="r2-3 ◍ paused   at a breakpoint")
        await camera.press("right_square_bracket", "right_square_bracket")
        await camera.all_sizes("breakpoint")


async def take_queue() -> None:
    """Take a picture of jobs of other clients that share the nodes of a pool or wait for nodes."""
    async with camera_on(SkywardApp()) as camera:
        await camera.launch("hello.py")
        await camera.press("ctrl+r", until="✓ DONE 4/4")
        jobs = []
        try:
            for nodes, seen in (("2", 1), ("1", 2), ("4", 3)):
                words = ("exec", "--nodes", nodes, "hello", "sleep", "120")
                jobs.append(await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "skyward_tui", *words,
                    stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
                ))  # fmt: skip
                while len(waiting_or_running(camera.app)) < seen:
                    await asyncio.sleep(0.1)
            await camera.press("7", until="needs 4 nodes")
            await camera.all_sizes("queue")
        finally:
            for job in jobs:
                job.terminate()
                await job.wait()


def waiting_or_running(app: SkywardApp) -> list[str]:
    """Return the active runs of all pools."""
    found = [run.id for pool in app.pools() for run in pool.runs.values() if run.state == "running"]
    return sorted({*found, *(each.run for pool in app.pools() for each in pool.waiting)})


async def take_hosts() -> None:
    """Take a picture of two lab hosts and one that does not answer. Only the driver of their GPUs is simulated."""
    home, before = Path.cwd() / "person", os.environ["HOME"]
    with Lab(2, gpu_host("www"), {1: gpu_host("wwww")}) as lab:
        try:
            output = lab.ssh_config.read_text("utf-8")
            for number, host in enumerate(lab.hosts, 1):
                put_driver(host)
                output = re.sub(rf"\b{host.name}\b", f"gpu{number}", output)
            shared, full = lab.hosts
            train = user_process(shared, uid=put_users(shared, "bob")["bob"])
            users = put_users(full, "ann", "cem")
            tune, serve = (user_process(full, uid=uid) for uid in users.values())
            measure(shared, f"util=98 pids={train}:67900 used=67900", "used=18432")
            measure(
                full,
                f"util=91 pids={tune}:40210 used=40210",
                f"util=93 pids={tune}:40188 used=40188",
                f"util=97 pids={serve}:71010 used=71010",
                f"util=96 pids={serve}:71012 used=71012",
            )
            (home / ".ssh").mkdir(parents=True)
            down = "Host gpu3\nHostName 127.0.0.1\nPort 9\n"
            (home / ".ssh" / "config").write_text(output + down, "utf-8")
            os.environ["HOME"] = str(home)
            settings_path().write_text('[hosts]\nlab = ["gpu1", "gpu2"]\ndesk = ["gpu3"]\n')
            async with camera_on(SkywardApp()) as camera:
                await camera.press("@")
                await camera.until(lambda text: "updated" in text and "refuses the connection" in text)
                await camera.all_sizes("hosts")
        finally:
            os.environ["HOME"] = before


async def take_past() -> None:
    """Take a picture of the past runs of all other pictures."""
    async with camera_on(SkywardApp()) as camera:
        await camera.press("F", until="broken")
        await camera.all_sizes("failures")
        await camera.press("escape", "H", until="train")
        listed = camera.app.screen.query_one(PastRunList)
        while listed.chosen is None or listed.chosen.function != "fit":
            await camera.press("down")
        await camera.until("loss by lr")
        await camera.all_sizes("history")
        await camera.press("space", "down", "space", "c")  # with the one below
        await camera.until("compare")
        await camera.all_sizes("compare")


async def take_demo() -> None:
    """Take a picture of the packaged recording at a given time."""
    app = ReplayApp(DEMO)
    async with app.run_test(size=LARGE) as pilot:
        camera = Camera(app, pilot)
        await camera.until("REPLAY")
        assert app.replay is not None
        app.replay.toggle()
        app.replay.seek(app.replay.state().start + 83.0)
        await camera.until("+2 more")
        await camera.all_sizes("demo")
        await camera.press("6", "z")
        await camera.all_sizes("machines")


def main() -> None:
    amiss = False
    folder = Path(tempfile.mkdtemp(prefix="skyward-demo-"))
    try:
        for script in EXAMPLES.glob("*.py"):
            shutil.copy(script, folder)
        for name, text in (("sweep", SWEEP), ("hang", HANG), ("stop", STOP)):
            (folder / f"{name}.py").write_text(text, "utf-8")
        os.environ["SKYWARD_HOME"] = str(folder / "home")
        os.chdir(folder)
        try:
            scenes = (take_demo, take, take_sweep, take_hang, take_breakpoint, take_queue, take_hosts, take_past)
            expected = sys.argv[1:]  # names of scenes; none for all
            for scene in scenes:
                if not expected or scene.__name__.removeprefix("take_") in expected:
                    try:
                        asyncio.run(scene())
                    except Exception as error:  # noqa: BLE001  the other pictures are made all the same
                        print(f"{scene.__name__}: {error}", file=sys.stderr)
                        amiss = True
        finally:
            _take_down_what_is_left()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if amiss:
        raise SystemExit(1)


def _take_down_what_is_left() -> None:
    session = Session()
    for row in session.ledger.live_pools():
        session.tear_down(row.name).result(60)
    session.detach()


if __name__ == "__main__":
    main()
