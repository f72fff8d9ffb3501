"""Two clients of one home at once: what one begins the other finds as it is by then."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_core.views.pool_view import PoolView
from skyward_tui.cli.commands import run as command
from skyward_tui.cli.console import Console
from tests.support.child import Child
from tests.support.waiting import wait_until

MAKES = """
import sys
from pathlib import Path
import skyward_core as sky
folder = sys.argv[1]
wait = f"touch {folder}/began; until test -e {folder}/go; do sleep 0.01; done"
options = sky.Options(console=False)
with sky.Compute(provider=sky.Local(), name="shared", image=sky.Image(setup=[wait]), options=options):
    Path(folder, "up").touch()
    sys.stdin.readline()
"""


@pytest.fixture
def other(home: Path, tmp_path: Path) -> Iterator[None]:
    """A client that is bringing up the pool "shared"; it goes on once the file "go" is there."""
    command = [sys.executable, "-c", MAKES, str(tmp_path)]
    with Child(command, stdin=subprocess.PIPE, text=True) as client:
        wait_until((tmp_path / "began").exists)
        yield
        (tmp_path / "go").touch()
        assert client.stdin is not None
        client.stdin.write("\n")


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("detach", [False, True])
def test_a_pool_that_comes_up_after_it_was_looked_at_is_followed(
    other: None,
    tmp_path: Path,
    detach: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    look = command.live_pool

    def live(*asked: Any) -> PoolView | None:
        found = look(*asked)
        assert found is not None and found.state == "starting"
        (tmp_path / "go").touch()
        wait_until((tmp_path / "up").exists)
        return found

    monkeypatch.setattr(command, "live_pool", live)
    script = tmp_path / "work.py"
    script.write_text("import skyward_core as sky\n@sky.function\ndef work():\n    print('hello')\n    return 1\n")
    assert command.run(LaunchRequest(script=str(script), pool="shared", detach=detach), Console()) == 0
    if not detach:
        assert "hello" in capsys.readouterr().out
