"""A line of a form moves what lies below it only where it takes more or fewer rows than before."""

from __future__ import annotations

from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Label, Static

from skyward_tui.widgets.form_fields import update_label
from tests.support.app_driver import until


class Form(App[None]):
    CSS = "Static { width: 1fr; height: auto; }"

    def compose(self) -> ComposeResult:
        yield Static(id="line", markup=False)
        yield Label("below")


async def test_all_is_laid_out_for_other_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out = []
    refresh = Screen._refresh_layout

    def counted(self: Screen[None], *given: Any, **more: Any) -> None:
        laid_out.append(self)
        refresh(self, *given, **more)

    monkeypatch.setattr(Screen, "_refresh_layout", counted)
    app = Form()
    async with app.run_test(size=(20, 10)) as pilot:
        line, below = app.query_one("#line", Static), app.query_one(Label)

        async def said(text: Content) -> tuple[str, int, bool]:
            laid_out.clear()
            update_label(line, text)
            await pilot.pause()
            shown = "\n".join(strip.text.rstrip() for strip in line.render_lines(line.size.region))
            return shown, below.region.y, bool(laid_out)

        assert await said(Content("wants int")) == ("wants int", 1, True)
        assert await said(Content("wants int")) == ("wants int", 1, False)
        assert await said(Content("wants float")) == ("wants float", 1, False)
        wrapped = "wants a number of\nseconds, minutes or\nhours"
        assert await said(Content(wrapped.replace("\n", " "))) == (wrapped, 3, True)
        assert await said(Content("1\n2")) == ("1\n2", 2, True)
        coloured = Content.styled("1\n2", "red")
        assert await said(coloured) == ("1\n2", 2, False)
        assert line.content is coloured, "other colours are no other rows, but are shown"
        await pilot.resize_terminal(10, 10)
        await until(pilot, lambda: line.size.width == 10)
        assert await said(Content("wants float")) == ("wants\nfloat", 2, False)
