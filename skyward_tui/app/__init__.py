"""The Textual app: :func:`new_app` creates it, and :func:`run` starts it with deferred garbage collection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skyward_tui.app.garbage_collection import defer_collection, freeze_imports

if TYPE_CHECKING:
    from skyward_core.client.session_interface import SessionInterface
    from skyward_tui.app.app import SkywardApp as SkywardApp


def new_app(*, read_only: bool = False, theme: str = "", plain: bool = False) -> SkywardApp:
    """Return the app for this machine's pools; see ``app.SkywardApp`` for the arguments."""
    with freeze_imports():
        from skyward_tui.app.app import SkywardApp
    if read_only:
        return SkywardApp(_read_only_session, read_only=True, theme=theme, plain=plain)
    return SkywardApp(theme=theme, plain=plain)


def _read_only_session() -> SessionInterface:
    from skyward_core.client.session import ReadOnlySession

    return ReadOnlySession()


def run(app: SkywardApp) -> int:
    """Run an app until the user quits, and return the exit status."""
    defer_collection()
    app.run()
    return app.return_code or 0
