"""Argument fields of the launch form, driven by keys, and their synchronisation with the argument line."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input, Select

from skyward_core.model.outcomes_states_and_alerts import ErrorInfo
from skyward_tui.app.app import SkywardApp
from skyward_tui.screens.launch_argument_fields import ArgumentRow
from skyward_tui.widgets.form_fields import Toggles
from tests.support.app_driver import on_launch_form, press, screen_text, typed, until
from tests.support.fake_session import FakeSession

SCRIPT = '''
import enum
from pathlib import Path
from typing import Literal
import skyward_core as sky

class Mode(enum.Enum):
    FAST = "f"
    EXACT = "e"

@sky.function
def train(
    epochs: int, lr: float = 0.1, resume: bool = False, mode: Mode = Mode.FAST,
    kind: Literal["adam", "sgd"] = "adam", data: Path | None = None, **more,
):
    """Train.

    Args:
        epochs: how often all data is seen
    """

@sky.function
def other(note: str = "x"): ...
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


async def test_argument_fields_and_argument_line_stay_equal(app: SkywardApp) -> None:
    async with on_launch_form(app, (120, 40), "train.py") as (pilot, screen):
        line = screen.query_one("#arguments", Input)
        line.value = "lr=1e-2 warmup=3"
        await until(
            pilot,
            lambda: len(screen.query_one("#argument-fields").query(ArgumentRow)) == 6 and "1e-2" in screen_text(app),
        )
        await press(pilot, "tab", "tab", "tab", "tab", until=" how often all data is seen")
        assert screen_text(app).count("int, required") == 1, "the empty field says it"
        await typed(app, pilot, "x", until="✗ must be int, got 'x'")
        assert line.value == "epochs=x lr=1e-2 warmup=3"
        await press(pilot, "backspace", "3", until="int, required  how often all data is seen")
        await press(pilot, "tab", "tab", "space", until=lambda: line.value == "epochs=3 lr=1e-2 resume=true warmup=3")
        await pilot.press("tab", "enter", "down", "down", "enter")
        await until(pilot, lambda: line.value == "epochs=3 lr=1e-2 resume=true mode=EXACT warmup=3")
        await pilot.press("tab", "tab")
        await typed(app, pilot, "a.csv", until="! a.csv does not exist on this machine")
        await until(pilot, lambda: screen.form().arguments.endswith("mode=EXACT data=a.csv warmup=3"))
        # Whoever types fast is not held up by what comes back of it.
        await press(pilot, *"0123456789", until=lambda: "data=a.csv0123456789 " in line.value)
        # And back: the line fills the fields, an enum by its value, too; what is not given is as it was.
        line.value = "epochs=4 mode=e kind=sgd resume=false"
        widgets = {row.argument.name: row.field for row in screen.query_one("#argument-fields").query(ArgumentRow)}
        mode, kind, resume = widgets["mode"], widgets["kind"], widgets["resume"]
        assert isinstance(mode, Select) and isinstance(kind, Select) and isinstance(resume, Toggles)
        await until(pilot, lambda: (mode.value, kind.value, resume.chosen) == ("EXACT", "sgd", set()))
        data = widgets["data"]
        assert isinstance(data, Input) and data.value == ""
        assert line.value == "epochs=4 mode=e kind=sgd resume=false", "nothing is said otherwise by that"


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize(
    ("given", "name", "message"),
    [
        ("lr=0.1 epochs=x", "epochs", "must be int, got 'x'"),
        ("lr=0.1", "epochs", "train needs epochs"),
        ("epochs=3 kind=no", "kind", "must be Literal['adam', 'sgd'], got 'no'"),
        ("epochs=3 resume=maybe", "resume", "must be bool, got 'maybe'"),
        ("epochs=3 lr", "", "invalid argument 'lr'. Write name=value"),
        ("epochs=3 warmup=1 warmup=2", "", "argument warmup of train is repeated"),
    ],
)
async def test_field_of_an_invalid_argument_gets_the_focus(
    app: SkywardApp, session: FakeSession, given: str, name: str, message: str
) -> None:
    async with on_launch_form(app, (120, 40), "train.py") as (pilot, screen):
        line = screen.query_one("#arguments", Input)
        line.value = given
        await until(pilot, lambda: message in " ".join(screen_text(app).split()))
        await pilot.press("ctrl+r")
        own = next(
            (row.field for row in screen.query_one("#argument-fields").query(ArgumentRow) if row.argument.name == name),
            line,
        )
        await until(pilot, lambda: app.focused is own and own.has_class("-wrong"))
        assert len(screen.query("#form .-wrong")) == 1 and session.views == []


@pytest.mark.proof("1 s of a processor")
async def test_chosen_function_determines_the_argument_fields(app: SkywardApp) -> None:
    async with on_launch_form(app, (80, 24), "train.py") as (pilot, screen):
        await until(pilot, lambda: len(screen.query_one("#argument-fields").query(ArgumentRow)) == 6)
        screen.query_one("#function", Select).value = "other"
        await until(
            pilot,
            lambda: [row.argument.name for row in screen.query_one("#argument-fields").query(ArgumentRow)] == ["note"],
        )
        screen.query_one("#function", Select).value = ":whole"
        await until(pilot, lambda: not screen.query_one("#argument-fields").query(ArgumentRow))
        assert "the main program of every rank" in screen_text(app)


@pytest.mark.proof("1 s of a processor")
async def test_argument_choices_are_not_parsed_as_markup(app: SkywardApp, folder: Path) -> None:
    (folder / "train.py").write_text(
        "import skyward_core as sky\nfrom typing import Literal\n\n@sky.function\n"
        'def train(kind: Literal["[/b]", "[red]x"] = "[/b]", note: str = "[/i][link=\'x", odd: list = [1]):\n'
        '    """[/b] Trains.\n\n    Args:\n        note: [/u] of it\n    """\n'
    )
    async with on_launch_form(app, (120, 40), "train.py", until="default: '[/b]'") as (pilot, screen):
        text = screen_text(app)
        assert "[/i][link='x" in text and "list = [1]" in text and "[/b] Trains." in text
        await pilot.press("tab", "tab", "tab", "tab", "enter", "down", "down", "enter")
        await until(pilot, lambda: screen.query_one("#arguments", Input).value == "kind='[red]x'")
        await until(pilot, "[red]x")
        await press(pilot, "tab", until="[/u] of it")


@pytest.mark.proof("1 s of a processor")
async def test_several_values_of_an_argument_are_a_sweep(app: SkywardApp, session: FakeSession) -> None:
    async with on_launch_form(app, (120, 40), "train.py") as (pilot, screen):
        line, options = screen.query_one("#arguments", Input), screen.query_one("#options", Toggles)
        line.value = "epochs=3"
        await until(pilot, lambda: len(screen.query_one("#argument-fields").query(ArgumentRow)) == 6)
        await pilot.press("tab", "tab", "tab", "tab", "tab")  # lr
        await typed(app, pilot, "0.1,0.01", until=lambda: "sweep" in options.chosen and "2 values" in screen_text(app))
        assert line.value == "epochs=3 lr=0.1,0.01" and screen.form().sweep
        line.value = "epochs=1..5 lr=0.1,0.01"
        await until(pilot, "10 trials, each on one rank")
        assert "--sweep" in screen_text(app)
        line.value = "epochs=1..5 lr=0.1,x"
        await until(pilot, "✗ must be float, got 'x'")
        # What the person switches off stays off, and is then no number.
        line.value = "epochs=1..5 lr=0.1"
        await until(pilot, "5 trials, each on one rank")
        options.focus()
        await press(pilot, "right", "right", "right", "space", until="✗ must be int, got '1..5'")
        assert "sweep" not in options.chosen
        await press(
            pilot, "space", "left", "left", "space", until="each combination of a sweep already runs on one rank"
        )
        assert options.has_class("-wrong")
        await pilot.press("space", "ctrl+r")
        await until(pilot, lambda: any(run.kind == "sweep" for view in session.views for run in view.runs.values()))
        (run,) = session.views[-1].runs.values()
        assert run.total == 5 and session.boards[run.id].sheet.rows[4] == ("5", "0.1")


@pytest.mark.proof("1 s of a processor")
async def test_sweep_runs_in_gangs_of_the_entered_number_of_nodes(app: SkywardApp, session: FakeSession) -> None:
    async with on_launch_form(app, (120, 40), "train.py") as (pilot, screen):
        gang = screen.query_one("#gang", Input)
        row = screen.query_one("#gangs")
        assert not row.display
        screen.query_one("#arguments", Input).value = "epochs=1..5"
        await until(pilot, lambda: row.display)
        gang.focus()
        await typed(app, pilot, "2", until="nodes, 2 at a time")
        assert "--gang-nodes 2" in screen_text(app)
        await typed(app, pilot, "0", until="each combination needs 20")
        assert gang.has_class("-wrong")
        gang.value = "all"
        await until(pilot, "each on all ranks, one at a")
        gang.value = "2"
        await until(pilot, "--gang-nodes 2")
        await press(pilot, "ctrl+r", until=lambda: bool(session.boards))
        (board,) = session.boards.values()
        assert board.sheet.gang and board.sheet.nodes == 2 and len(board.sheet.tasks) == 5
        (run,) = session.views[-1].runs.values()
        await until(pilot, lambda: run.id in session.sweeps_over)
        session.end_rank(session.views[-1], run, 1, "raised", error=ErrorInfo("ValueError", "no"))
        session.sweeps_over[run.id].set_result(None)
        message = f"0 of 5 combinations have results; epochs=1 raised (run {run.id}); 4 did not start"
        await until(pilot, lambda: message in " ".join(screen_text(app).split()))
