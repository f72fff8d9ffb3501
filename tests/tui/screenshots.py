"""Pictures of the real app on real runs, for ``screenshots/``: ``python -m tests.tui.screenshots``.

Every pool is real, local, and torn down again; the keys are those a person would press. Takes about a minute.
Needs the ``test`` extra (torch for the training, resvg for the pictures).
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import resvg_py
from textual.pilot import Pilot

import skyward_tui
from skyward_core.front.session import Session
from skyward_tui.app import SkywardApp
from skyward_tui.record_commands import DEMO
from skyward_tui.replay_app import ReplayApp
from tests.support.app_driver import screen_svg, screen_text

FOLDER = Path(__file__).parents[2] / "screenshots"
EXAMPLES = Path(skyward_tui.__file__).parent / "examples"
SMALL, LARGE = (80, 24), (160, 48)
FONT = "DejaVu Sans Mono"
PATIENCE = 120.0


class Camera:
    """An app at one size, and what is done with it."""

    def __init__(self, app: SkywardApp, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def until(self, seen: str | Callable[[str], bool]) -> None:
        true = seen if callable(seen) else lambda text: seen in text
        deadline = time.monotonic() + PATIENCE
        while not true(screen_text(self.app)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{seen!r} never showed:\n{screen_text(self.app)}")
            await asyncio.sleep(0.05)
            await self.pilot.pause()

    async def shoot(self, name: str, size: tuple[int, int]) -> None:
        await self.pilot.resize_terminal(*size)
        await self.pilot.pause(0.5)  # two beats of the pump at the new size
        svg = screen_svg(self.app)
        png = resvg_py.svg_to_bytes(svg_string=svg, monospace_family=FONT, font_family=FONT)
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{name}-{size[0]}x{size[1]}.png").write_bytes(bytes(png))
        await self.pilot.resize_terminal(*LARGE)
        await self.pilot.pause()

    async def both(self, name: str) -> None:
        for size in (SMALL, LARGE):
            await self.shoot(name, size)

    async def launch(self, script: str, arguments: str = "") -> None:
        """From the pools list to the run screen."""
        await self.press("n")
        await self.until(lambda _: self.app.focused is not None and self.app.focused.id == "script")
        await self.press(*script, "tab", "tab", "tab", *arguments)
        await self.until("creates  pool")


async def take() -> None:
    app = SkywardApp()
    async with app.run_test(size=LARGE) as pilot:
        camera = Camera(app, pilot)
        await camera.until("No pools yet")
        await camera.shoot("first", SMALL)

        await camera.launch("ddp.py", "epochs=20")
        await camera.until("train(epochs=20)")
        await camera.both("launch")
        await camera.press("ctrl+r")
        await camera.until(lambda text: text.count("epoch") > 12)
        await camera.both("ddp-training")
        await camera.press("a")
        await camera.shoot("ddp-all-ranks", LARGE)
        await camera.press("a")
        await camera.until("✓ DONE 4/4")
        await camera.both("ddp-done")
        await camera.press("q")

        await camera.launch("broken.py")
        await camera.press("ctrl+r")
        await camera.until("✗ FAILED")
        await camera.both("broken")
        await camera.press("e")
        await camera.until("ROOT CAUSE")
        await camera.both("errors")
        await camera.press("escape", "q")

        await camera.launch("streaming.py", "pause=0.1")
        await camera.press("ctrl+r")
        await camera.until(lambda text: re.search(r"#\d\d step", text) is not None)
        await camera.shoot("streaming", LARGE)
        await camera.until("✓ DONE")
        await camera.press("q")
        await camera.until("3 pools up")
        await camera.both("pools")

        await camera.press("enter", "X")
        await camera.until("Cancel")
        await camera.shoot("teardown", SMALL)
        await camera.press("escape", "q", "q", "right", "enter")
        await camera.until(lambda text: text.count("verified gone 4") >= 3)
        await camera.shoot("receipt", LARGE)
        await camera.press("enter")


async def take_demo() -> None:
    """The packaged record, at a time of it."""
    app = ReplayApp(DEMO)
    async with app.run_test(size=LARGE) as pilot:
        camera = Camera(app, pilot)
        await camera.until("REPLAY")
        assert app.replay is not None
        app.replay.toggle()
        app.replay.seek(app.replay.state().start + 83.0)
        await camera.until("+2 more")
        await camera.both("demo")


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="skyward-demo-"))
    try:
        for script in EXAMPLES.glob("*.py"):
            shutil.copy(script, folder)
        os.environ["SKYWARD_HOME"] = str(folder / "home")
        os.chdir(folder)
        try:
            asyncio.run(take_demo())
            asyncio.run(take())
        finally:
            _take_down_what_is_left()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _take_down_what_is_left() -> None:
    session = Session()
    for row in session.ledger.live():
        session.down(row.name).result(60)
    session.detach()


if __name__ == "__main__":
    main()
