"""A user's way through the app with any provider: launch, watch, kill a rank, read the cause, rerun, tear down."""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Mapping
from pathlib import Path

from .terminal import Terminal
from .waiting import wait_until

# The ranks wait when they are on a machine for the first time; one can be told from all other processes there.
_SCRIPT = """\
import time
from pathlib import Path

import skyward_core as sky


@sky.function
def work() -> str:
    been_here = Path.home() / "NAME"
    if been_here.exists():
        return "the second time"
    been_here.touch()
    rank = sky.instance_info().rank
    Path("/proc/self/comm").write_text(f"NAME-{rank}")
    print("rank", rank, "waits", flush=True)
    time.sleep(600)
    return "nobody came"
"""


def journey(folder: Path, provider: str, settings: Mapping[str, str]) -> None:
    """Go that way with two nodes, by keys only.

    Args:
        folder: Working folder, which also contains the home.
        provider, settings: Provider of the machines, and its settings.
    """
    name = f"v{secrets.token_hex(4)}"
    (folder / "work.py").write_text(_SCRIPT.replace("NAME", name))
    (folder / "home").mkdir(mode=0o700, exist_ok=True)
    listed = ", ".join(f"{key} = {json.dumps(text)}" for key, text in settings.items())
    lines = ["[presets.mine]", 'script = "work.py"', f'provider = "{provider}"', "nodes = 2", "keep = true"]
    preset = "\n".join([*lines, f"settings = {{ {listed} }}", ""])
    (folder / "home" / "skyward.toml").write_text(preset)
    terminal = Terminal(folder / "home", cwd=folder)
    try:
        terminal.until("No pools yet")
        terminal.press("n", until="pools › launch")
        terminal.press("f4", until="Pick a preset")
        terminal.press("enter", until="runs     work() on all 2 ranks")
        terminal.press("ctrl+r", until="pools › work › ")
        terminal.until("rank 0 waits")
        terminal.press("a", until="rank 1 waits")
        os.kill(_process(f"{name}-1"), signal.SIGKILL)
        terminal.until("✗ FAILED")
        terminal.press("e", until=lambda text: "ROOT CAUSE" in text and "SIGKILL" in text)
        terminal.press("q", until="pools › work › ")
        terminal.press("A", until="runs     work() on all 2 ranks")
        terminal.press("ctrl+r", until="✓ DONE 2/2")
        terminal.until("the second time")
        terminal.press("X", until=lambda text: "Tear down work?" in text and "Cancel" in text)
        focused = terminal.look("Cancel")
        terminal.press("tab", until=lambda text: "Cancel" in text and terminal.look("Cancel") != focused)
        terminal.press("enter", until="created 2, verified gone 2, unaccounted 0")
        terminal.press("enter", "q", until="0 pools up")
        terminal.press("q")
        assert terminal.ended() == 0
    finally:
        terminal.close()


def _process(name: str) -> int:
    """Return the only process of this machine, including lab hosts, with a given name."""
    found: list[int] = []

    def there() -> bool:
        for comm in Path("/proc").glob("[0-9]*/comm"):
            try:
                if comm.read_text().strip() == name:
                    found.append(int(comm.parent.name))
            except OSError:
                continue  # it has just ended
        return bool(found)

    wait_until(there)
    return found[0]
