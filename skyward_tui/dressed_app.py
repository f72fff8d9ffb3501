"""How the app looks: theme, colours or none, plain ASCII; as the person has set it, or chose it when it ran last."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING

from textual.filter import LineFilter, Monochrome, NoColor
from textual.reactive import Reactive

from skyward_core.front import settings
from skyward_core.front.settings import OwnSettings
from skyward_core.model.errors import SkywardError

from .app_face import AppFace
from .ends import beside
from .hints import words_of
from .kept_state import KeptScreen, KeptState, Unusable, kept_state, write_down
from .theme import OWN, SKYWARD, UNCOLOURED, legible, muted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.theme import Theme

PATIENCE = 5.0  # seconds for the home's disk, which holds nobody up who quits


class DressedApp(AppFace):
    """An app that looks as its person wants it.

    Args:
        theme: the name of the theme of this start, whatever is set or was chosen before; "" for none.
        plain: whether to paint nothing but ASCII, whatever is set.

    Attributes:
        own: what the person has set; the defaults before :meth:`dress`.
        remarks: what of all that is not used, in words.
    """

    # Worn from the beginning: one that is put on later has all styles worked out twice before the first paint.
    theme: Reactive[str] = Reactive(SKYWARD.name)
    _current: Theme | None = None

    def __init__(self, theme: str, plain: bool) -> None:
        super().__init__()
        self.own = OwnSettings()
        self.remarks: list[str] = []
        self._asked_theme, self._plain = theme, plain
        self._kept = KeptState()
        self._changed: dict[str, str] = {}
        self._changed_screens: dict[str, KeptScreen] = {}
        self._writing = asyncio.Lock()
        self._painters: list[LineFilter] = []
        self._worn = SKYWARD.name
        self.add_class(f"-theme-{SKYWARD.name}", update=False)  # as Textual does where a theme comes later

    @property
    def available_themes(self) -> dict[str, Theme]:
        """Textual's, and ours."""
        return {**super().available_themes, **{each.name: each for each in OWN}}

    @property
    def current_theme(self) -> Theme:
        """The one that is worn. It is asked for several times by each widget that is painted."""
        if self._current is None or self._current.name != self.theme:
            self._current = super().current_theme
        return self._current

    def dress(self) -> None:
        """Look as the person wants it, before anything is painted."""
        try:
            self.own = settings.own_settings()
            self._kept = kept_state()
        except SkywardError:
            pass  # there is no home, which the session says
        except Unusable as unusable:
            self.remarks.append(str(unusable))
        self.remarks += self.own.refused
        self._level = self.animation_level
        self._move_and_paint()
        if os.environ.get("NO_COLOR") and not self._asked_theme:
            from .filters import Colourless

            self._painters.append(Colourless())
            self.theme = UNCOLOURED
        self.no_color = self.theme == UNCOLOURED
        if self.no_color:
            return
        name, wrong = self._kept.theme_of(self.own.theme, self._asked_theme, self.available_themes)
        self.remarks += [wrong] if wrong else []
        self.theme = name or SKYWARD.name

    def _move_and_paint(self) -> None:
        self.animation_level = self._level if self.own.motion else "none"
        is_plain = self._plain or self.own.ascii
        if is_plain or self._painters:
            from .filters import PlainAscii  # late: few need it, and the app is starting

            self._painters = [each for each in self._painters if not isinstance(each, PlainAscii)]
            self._painters += [PlainAscii()] if is_plain else []

    def dress_again(self, own: OwnSettings) -> None:
        """Look as the settings say now."""
        before, self.own = self.own, own
        self._move_and_paint()
        if self.own.ascii != before.ascii:
            for screen in self.screen_stack:
                for each in (screen, *screen.walk_children()):
                    each.refresh()
        if self.own.theme != before.theme and not (self._asked_theme or self.no_color):
            name = self.own.theme or SKYWARD.name
            if name in self.available_themes:
                self._worn = name  # no choice of the palette's
                self.theme = name

    @property
    def moves(self) -> bool:
        return self.own.motion and not self.no_color

    def keep_what_is_chosen(self) -> None:
        """From now on another theme is the person's choice."""
        self._worn = self.theme
        self.theme_changed_signal.subscribe(self, self._theme_chosen)

    def _theme_chosen(self, theme: Theme) -> None:
        """Keep what the person has chosen, for the next start."""
        if theme.name == self._worn:
            return
        if self.no_color:
            self.theme = self._worn
            return self.flash("NO_COLOR is set, and no theme shows; --theme NAME shows one all the same")
        self._worn = theme.name
        self._changed |= {"theme": theme.name, "over": self.own.theme}
        self.run_worker(self.write_down(), group="keep")
        return None

    def kept_of(self, scope: str) -> KeptScreen:
        return self._kept.screens.get(scope, {})

    def keep(self, scope: str, screen: KeptScreen) -> None:
        if screen != self.kept_of(scope):
            self._change(scope, screen)
            self.run_worker(self.write_down(), group="keep", exclusive=False)

    async def forget(self, scope: str) -> bool:
        """Keep nothing of a screen any more; says whether the next start will know."""
        self._change(scope, {})
        return await self.write_down()

    def _change(self, scope: str, screen: KeptScreen) -> None:
        self._kept = self._kept._replace(screens={**self._kept.screens, scope: screen})
        self._changed_screens[scope] = screen

    async def write_down(self) -> bool:
        """Keep what has changed for the next start, one change after the other; another app's changes stay. Says
        whether it is kept."""
        async with self._writing:
            changed, screens = self._changed, self._changed_screens
            if not (changed or screens):
                return True
            self._changed, self._changed_screens = {}, {}
            try:
                await asyncio.wait_for(beside(partial(write_down, changed, screens)), PATIENCE)
            except (OSError, TimeoutError, SkywardError) as error:
                self.flash(f"how the app looks is not kept: {words_of(error)}", "error")
                return False
            return True

    def get_css_variables(self) -> dict[str, str]:
        """The theme's, in which states can be read."""
        self.theme_variables = legible(super().get_css_variables(), ansi=self.current_theme.ansi)
        return self.theme_variables

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's, but that no colours means none, and no greys."""
        return [*filter(_is_no_grey, super().get_line_filters()), *self._painters]

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """What our screens need of a theme beyond Textual's own variables."""
        theme = self.current_theme
        return {} if "muted" in theme.variables else {"muted": muted(theme)}


def _is_no_grey(each: LineFilter) -> bool:
    """Whether a filter is none by which Textual has its own notion of no colours: greys, or a cursor that is lost."""
    return not isinstance(each, Monochrome | NoColor)
