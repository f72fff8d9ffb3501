"""Files that the app saves, and text that it copies through tmux."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from skyward_core.model.outcomes_states_and_alerts import ErrorInfo
from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.basic_dialogs import AskScreen
from skyward_tui.dialogs.pickers import FilesScreen, PresetsScreen
from skyward_tui.file_export import results_csv, results_json, results_text, save, save_all, save_error_text
from skyward_tui.screens.run import RunScreen
from skyward_tui.screens.stacks_and_profiles import StacksScreen
from skyward_tui.terminal_kind_and_tmux_clipboard import CopyError, copy_to_multiplexer
from tests.support.app_driver import launch_form, on_run_screen, press, running_app, screen_text, typed, until
from tests.support.fake_session import FakeSession, value
from tests.support.some_stacks import hung
from tests.support.terminal import Terminal


def test_saving_overwrites_no_file_and_removes_failed_ones(tmp_path: Path) -> None:
    path = tmp_path / "pool-run-r000.log"
    path.symlink_to(tmp_path / "elsewhere")
    assert save(path, ["a\n"]) == tmp_path / "pool-run-r000-2.log"
    assert save(path, ["b\n"]) == tmp_path / "pool-run-r000-3.log"
    assert (tmp_path / "pool-run-r000-2.log").read_text() == "a\n"
    assert not (tmp_path / "elsewhere").exists()

    def breaks() -> Iterator[str]:
        yield "half"
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        save(tmp_path / "new.log", breaks())
    assert not (tmp_path / "new.log").exists()


def test_several_files_are_saved_completely_or_not_at_all(tmp_path: Path) -> None:
    assert save_all(tmp_path, {"a": ["1"], "b": ["2"]}) == [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(OSError, match="too long") as caught:
        save_all(tmp_path, {"c": ["3"], "d" * 300: ["4"]})
    assert {each.name for each in tmp_path.iterdir()} == {"a", "b"} and save_error_text(
        caught.value, tmp_path
    ).endswith("File name too long")

    def closes_the_folder() -> Iterator[str]:
        (tmp_path / "c").unlink()
        (tmp_path / "c").mkdir()  # root may remove files of a folder that is closed to others, but no folder as a file
        yield "half"
        raise PermissionError(13, "Permission denied")

    with pytest.raises(PermissionError) as caught:
        save_all(tmp_path, {"c": ["3"], "d": closes_the_folder()})
    assert save_error_text(caught.value, tmp_path).endswith("Permission denied; files saved before the error: c")


def test_saved_results_load_with_equal_values(session: FakeSession) -> None:
    view, run = session.pool_with_run("p", 5)
    values: list[Any] = [
        {"loss": 0.1 + 0.2, "rank": 7, "note": 'a,"b"\nc', "deep": {"x": [1, None]}, "big": 2**60},
        {"loss": 1e-320, "ok": True, "none": None},
        None,
        [1, 2.5, "x"],
    ]
    for rank, each in enumerate(values):
        session.end_rank(view, run, rank, summary=value(each))
    session.end_rank(view, run, 4, "raised", error=ErrorInfo("ValueError", "bad\tthing", "trace"))
    loaded = json.loads(results_json(run))
    assert [rank["value"] for rank in loaded["ranks"]] == [*values, None]
    assert loaded["ranks"][4]["error"]["traceback"] == "trace"
    rows = list(csv.DictReader(io.StringIO(results_csv(run))))
    assert float(rows[0]["value.loss"]) == 0.1 + 0.2 and float(rows[1]["value.loss"]) == 1e-320
    assert (int(rows[0]["value.big"]), int(rows[0]["value.rank"]), rows[0]["rank"]) == (2**60, 7, "0")
    assert rows[0]["value.note"] == 'a,"b"\nc' and json.loads(rows[0]["value.deep"]) == {"x": [1, None]}
    assert (rows[1]["value.ok"], rows[1]["value.none"], rows[1]["value.note"]) == ("true", "", "")
    assert json.loads(rows[3]["value"]) == [1, 2.5, "x"]
    assert (rows[4]["error"], rows[4]["message"]) == ("ValueError", "bad\tthing")
    pasted = list(csv.DictReader(io.StringIO(results_text(run)), delimiter="\t"))
    assert float(pasted[0]["value.loss"]) == 0.1 + 0.2
    assert "\n" not in pasted[0]["value.note"]


@pytest.fixture
def tmux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Start a separate tmux, and return a function that queries it."""
    if shutil.which("tmux") is None:
        pytest.skip("needs tmux")
    command = ["tmux", "-S", str(tmp_path / "tmux")]
    file = tmp_path / "told"
    subprocess.run(
        [*command, "-f", "/dev/null", "new-session", "-d", f"echo $TMUX > {file}.part; mv {file}.part {file}; cat"],
        check=True,
    )
    deadline = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    monkeypatch.setenv("TMUX", file.read_text().strip())
    yield command
    subprocess.run([*command, "kill-server"], check=True)


async def copied(app: SkywardApp, session: FakeSession, text: str) -> str:
    """Return the app's message after copying the log."""
    async with app.run_test(size=(160, 48)) as pilot:
        view, _ = session.pool_with_run("p")
        session.print(view, 0, text + "\n")
        await until(pilot, "▶ p")
        await press(pilot, "enter", until=lambda: text in screen_text(app))
        return await _said(app, pilot)


async def _said(app: SkywardApp, pilot: Pilot[None]) -> str:
    await press(pilot, "y", until="log lines")
    return next(line for line in screen_text(app).splitlines() if "log lines" in line)


@pytest.mark.proof("0.5 s of a processor")
async def test_copied_text_is_in_the_buffer_of_tmux(app: SkywardApp, session: FakeSession, tmux: list[str]) -> None:
    text = await copied(app, session, "größer ✓")
    assert "copied log lines (8 characters), only to tmux's buffer" in text  # nobody sits before it here
    assert shown(tmux) == "größer ✓"


def shown(tmux: list[str]) -> str:
    return subprocess.run([*tmux, "show-buffer"], capture_output=True, check=True).stdout.decode()


async def test_failed_copy_is_reported(app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMUX", "/nowhere/socket,1,0")
    assert "could not copy log lines: tmux" in await copied(app, session, "hello")


def test_copy_inside_gnu_screen_is_refused_with_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    assert copy_to_multiplexer("x") == ""
    monkeypatch.setenv("STY", "1.pts")
    with pytest.raises(CopyError, match=r"\{run.save\} saves"):
        copy_to_multiplexer("x")


def test_older_tmux_receives_the_copy_in_its_own_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "tmux"
    fake.write_text(
        f"#!{sys.executable}\nimport sys\nif '-w' in sys.argv: sys.exit('unknown option -- w')\n"
        f"open({str(tmp_path / 'got')!r}, 'w').write(sys.stdin.read())\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("TMUX", "x")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "paste with prefix ]" in copy_to_multiplexer("hello")
    assert (tmp_path / "got").read_text() == "hello"


# A log in the person's pager: what is left of it where the app is killed meanwhile.


READS = """
import os, sys
sys.path.insert(0, {tests!r})
os.environ["PAGER"] = "sh -c 'echo the pager has it; read x'"
from tests.support.fake_session import FakeSession
import pytest

from skyward_tui.app.app import SkywardApp
session = FakeSession()
view, _ = session.pool_with_run("warm")
session.print(view, 0, "a secret\\n")
SkywardApp(lambda: session, clock=lambda: session.now).run()
"""


@pytest.mark.proof("1 s of a processor")
async def test_log_file_of_a_killed_app_is_removed_at_the_next_start(
    session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    program = ("-c", READS.format(tests=str(Path(__file__).parents[2])))
    with closing(Terminal(home, cwd=tmp_path, program=program)) as terminal:
        terminal.until("▶ warm")
        terminal.press("enter", until="a secret")
        terminal.press("|", until=lambda text: "the pager has it" in text)
        os.kill(terminal.child.pid, signal.SIGKILL)
        terminal.ended_alone()
    assert [each.read_text() for each in home.glob("paged/*/*")] == ["a secret\n"]
    monkeypatch.setenv("SKYWARD_HOME", str(home))
    app = SkywardApp(lambda: session, clock=lambda: session.now)
    async with app.run_test() as pilot:
        await until(pilot, lambda: not list(home.glob("paged/*")))


# The folder that the app was started in is removed while it is open: a worktree, a scratch folder of a job.


GONE = "no longer exists. Start the app"


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Current folder that the test deletes."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PWD", str(folder))
    return folder


async def test_app_continues_after_its_working_folder_was_deleted(
    app: SkywardApp, session: FakeSession, gone: Path
) -> None:
    view, run = session.pool_with_run("llama-ft", 8)
    session.print(view, 0, "hello\n")
    session.taken = hung(run.id, 8)
    async with on_run_screen(app, (160, 48), view.key) as (pilot, _):
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and "hello" in screen_text(app))
        gone.rmdir()
        await press(pilot, "S", until=f"could not save: the folder {gone} {GONE}")
        await pilot.press("s")
        await until(pilot, lambda: isinstance(app.screen, StacksScreen) and "rank 5 is not" in screen_text(app))
        await press(pilot, "S", until=GONE)
        await pilot.press("escape", "T", "escape", "O", "o", "W")
        await typed(app, pilot, "all.csv")
        await press(pilot, "enter", until=lambda: isinstance(app.screen, RunScreen))
        assert app.is_running


@pytest.mark.proof("0.5 s of a processor")
async def test_absolute_script_is_launched_from_a_deleted_working_folder(
    app: SkywardApp, session: FakeSession, gone: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import skyward_core as sky\n\n@sky.function\ndef train(): ...\n")
    async with running_app(app, (160, 48), until="No pools") as pilot:
        gone.rmdir()
        screen = await launch_form(app, pilot, str(script))
        for keys, opened in ((["ctrl+o"], FilesScreen), (["escape", "f4"], PresetsScreen)):
            await pilot.press(*keys)
            await until(pilot, lambda opened=opened: isinstance(app.screen, opened))  # type: ignore[misc]
        await press(pilot, "escape", "ctrl+y", "ctrl+t", "f2", "f3", until=lambda: isinstance(app.screen, AskScreen))
        await typed(app, pilot, "mine")
        await press(pilot, "enter", until=lambda: app.screen is screen and "The current folder (" in screen_text(app))
        assert "creates  pool train" in screen_text(app)  # a script's whole path is enough
