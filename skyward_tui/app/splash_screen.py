"""Opens the app, as quick as it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skyward_tui.app.garbage_collection import kept_for_good, put_off

if TYPE_CHECKING:
    from skyward_core.client.session_protocol import Front
    from skyward_tui.app.app import SkywardApp


def new_app(*, read_only: bool = False, theme: str = "", plain: bool = False) -> SkywardApp:
    """The app on this machine's pools; see ``app.SkywardApp``."""
    with kept_for_good():
        from skyward_tui.app.app import SkywardApp
        from skyward_tui.screens import pool_list  # noqa: F401  the first one
    if read_only:
        return SkywardApp(_looking_only, read_only=True, theme=theme, plain=plain)
    return SkywardApp(theme=theme, plain=plain)


def _looking_only() -> Front:
    """A session that changes nothing."""
    from skyward_core.client.session import LookingOnly

    return LookingOnly()


def run(app: SkywardApp) -> int:
    """Run an app until the person leaves; the exit status."""
    put_off()
    app.run()
    return app.return_code or 0
