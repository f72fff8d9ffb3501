"""What the launch form shows in room that its fields leave: the code, and how runs of it went before."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import OptionList

from skyward_tui.app.app import SkywardApp
from skyward_tui.launch_form.form import Form
from skyward_tui.launch_form.recent_launches import add_recent
from skyward_tui.widgets.source_view import highlight_python
from tests.support.app_driver import launch_form, screen_text, typed, until
from tests.support.fake_session import FakeSession
from tests.support.past import past_run

SCRIPT = '''\
import skyward_core as sky


@sky.function
def train(epochs: int = 3) -> float:
    """Train."""
    return 0.25 * epochs  # a secret of this function
'''


@pytest.mark.proof("2 s of a processor")
async def test_code_and_earlier_runs_have_the_room_that_fields_leave(
    app: SkywardApp, session: FakeSession, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    session.past = [
        past_run(1, arguments=("epochs=7",)),
        past_run(2, function="other", arguments=("epochs=8",)),
        past_run(3, script="another.py", arguments=("epochs=9",)),
        past_run(4, state="failed", error="r3 OSError: disk full"),
    ]
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("n")
        await until(pilot, lambda: app.focused is not None and app.focused.id == "script")
        await typed(app, pilot, "train.py")
        await until(pilot, lambda: "a secret of this function" in screen_text(app))
        await until(pilot, lambda: "epochs=7" in screen_text(app))
        shown = screen_text(app)
        assert "train.py:5" in shown and "disk full" in shown
        assert "epochs=8" not in shown and "epochs=9" not in shown
        await until(pilot, lambda: not app.screen.query_one("#form").show_vertical_scrollbar)
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: "a secret of this function" not in screen_text(app))
        await pilot.resize_terminal(160, 48)
        await until(pilot, lambda: "a secret of this function" in screen_text(app))
        await typed(app, pilot, "x")
        await until(pilot, lambda: "a secret of this function" not in screen_text(app))


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (160, 48)])
async def test_without_a_script_one_can_begin_with_launches_of_late_and_examples(
    app: SkywardApp, tmp_path: Path, size: tuple[int, int]
) -> None:
    """The lower half of the form was empty."""
    (tmp_path / "train.py").write_text(SCRIPT)
    for epochs in (1, 2):
        add_recent(Form(script=str(tmp_path / "train.py"), function="train", arguments=f"epochs={epochs}", nodes="7"))
    async with app.run_test(size=size) as pilot:
        screen = await launch_form(app, pilot, "")
        await until(pilot, lambda: "train.py:train  epochs=2" in screen_text(app))
        await pilot.press("up")  # from the script's field
        await until(pilot, lambda: isinstance(app.focused, OptionList))
        await pilot.press("down", "enter")
        await until(pilot, lambda: screen.form().script == "train.py" and not screen.query("#starts"))
        assert (screen.form().arguments, screen.form().nodes) == ("epochs=1", "7")
        assert app.focused is not None and app.focused.id == "arguments"
        await pilot.press("shift+tab", "shift+tab", "shift+tab", "ctrl+u")
        await until(pilot, lambda: screen.form().script == "" and "recent launches" in screen_text(app))


@pytest.mark.proof("1 s of a processor")
async def test_what_one_begins_with_is_clicked_and_stays_in_sight(app: SkywardApp, tmp_path: Path) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await launch_form(app, pilot, "")
        await until(pilot, lambda: "packaged examples" in screen_text(app))
        rows = screen_text(app).splitlines()
        assert not any("recent launches" in row for row in rows), "there are none"
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: [each.size.height for each in screen.query("#plan #starts")] == [3])
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: "  streaming " in screen_text(app))
        rows = screen_text(app).splitlines()
        place = next(y for y, row in enumerate(rows) if "  hello " in row)
        await pilot.click(offset=(8, place))
        await until(pilot, lambda: screen.form().script == "example:hello")
        assert not screen.query("#starts")


def test_code_is_coloured_as_far_as_it_is_understood() -> None:
    lines = list(highlight_python(SCRIPT + "x = (\n\x1b[31m"))
    styles = {(line.plain[span.start : span.end], span.style) for line in lines for span in line.spans}
    assert ("def", "$text-accent") in styles and ("train", "bold") in styles
    assert ('"""Train."""', "$muted") in styles and ("# a secret of this function", "$muted") in styles
    assert [line.plain for line in lines[:7]] == SCRIPT.splitlines()
    assert not any("\x1b" in line.plain for line in lines), "a file is no terminal"
