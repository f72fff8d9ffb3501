"""How the provider that the launch form names is, by its own check-up; nobody waits for that."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from textual.widgets import Input

from skyward_core.model.errors import SkywardError, hint_of, what_of
from skyward_core.model.machine import Check

from ..app_face import settled
from ..launch_form import fields_of, settings_of
from ..widgets.provider_field import CheckLines, ProviderField, state_of

if TYPE_CHECKING:
    from skyward_core.front.scripts import Interpreter

    from ..launch_form import Form
    from .base import BaseScreen

_ROWS = {"-short": 1}  # of what is amiss, where lines are few
_ROWS_USUAL = 4
_OURS = "{}.{}".format(*sys.version_info)

Asked = tuple[str, tuple[tuple[str, str], ...], str]
"""A provider's name, what its settings say, and the version of the script's Python where that is not ours."""


class ProviderChecks:
    """Asks once for each provider and its settings, and not while somebody is typing one of them.

    Args:
        screen: the form's.
    """

    def __init__(self, screen: BaseScreen[None]) -> None:
        self._screen = screen
        self._asked: Asked | None = None
        self._told: dict[Asked, list[Check]] = {}
        self._python: Interpreter | None = None  # another version than ours, which machines need then
        self._of = ("", "")  # the script, and what the form says of its Python

    def learn(self, form: Form, python: Interpreter) -> None:
        """Hear which Python a form's script is loaded with: machines need that one."""
        self._of = form.script, form.python
        self._python = python if python.minor not in ("", _OURS) else None
        self.look(form)

    def look(self, form: Form) -> None:
        """Have what the form says checked where it is not yet."""
        if self._of != (form.script, form.python):
            self._python = None
        session = self._screen.app.session
        own = fields_of(form.provider)
        focused = self._screen.focused
        if (
            session is None
            or self._screen.app.read_only
            or (isinstance(focused, Input) and focused.id in own)
        ):
            return
        given = dict(settings_of(form))
        lacks = [each.name for each in own.values() if each.required and not given.get(each.name)]
        minor = self._python.minor if self._python else ""
        asked = None if form.pool or lacks else (form.provider, tuple(sorted(given.items())), minor)
        if asked == self._asked:
            return
        self._asked = asked
        if asked is None or asked in self._told:
            self._screen.workers.cancel_group(self._screen, "check")
            self._show(form.provider, asked)
        else:
            self._screen.query_one(ProviderField).mark(form.provider, "asked")
            self._screen.query_one(CheckLines).display = False
            self._screen.run_worker(self._ask(asked, self._python), group="check", exclusive=True)

    async def _ask(self, asked: Asked, python: Interpreter | None) -> None:
        session = self._screen.app.session
        if session is None:
            return
        name, given, _ = asked
        try:
            self._told[asked] = await settled(session.check_provider(name, dict(given), python))
        except (SkywardError, OSError) as error:
            self._told[asked] = [Check(name, "fail", what_of(error), hint_of(error))]
        if self._screen.display and self._screen.is_attached and asked == self._asked:
            self._show(name, asked)

    def _show(self, provider: str, asked: Asked | None) -> None:
        lines = [] if asked is None else self._told[asked]
        self._screen.query_one(ProviderField).mark(provider, state_of(lines) if lines else None)
        rows = next((n for name, n in _ROWS.items() if self._screen.has_class(name)), _ROWS_USUAL)
        self._screen.query_one(CheckLines).show(lines, rows)
