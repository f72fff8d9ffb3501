"""Web pages of a pool's head, such as dashboards, opened in the browser."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from skyward_core.model.errors import SkywardError
from skyward_core.views.pool_view import PoolView
from skyward_tui.dialogs.dialog import ChoiceScreen
from skyward_tui.text.error_hints import format_error
from skyward_tui.ui.session_futures import wait_shielded

if TYPE_CHECKING:
    from skyward_tui.app import SkywardApp

DISPLAY_VARIABLES = ("DISPLAY", "WAYLAND_DISPLAY")  # without one a browser would want this terminal


async def open_dashboard(app: SkywardApp, pool: PoolView | None) -> None:
    """Open the page that answers, or the one that is chosen of several, and say where it is."""
    session = app.session
    if pool is None or session is None or not pool.is_live:
        return app.flash("the pool is not up any more: there is no page to open")
    try:
        found = await wait_shielded(session.dashboards(pool.key))
    except SkywardError as error:
        return app.flash(format_error(error), "error")
    if not found:
        return app.flash(
            f"no page answers on the head of pool {pool.name}: looked for are its plugins', a TensorBoard "
            f"(port 6006) and a Jupyter (8888); skyward-tui forward {pool.name} PORT brings another one here"
        )
    addresses = {each.name: each.address for each in found}

    def opened(name: str | None) -> None:
        if address := addresses.get(name or ""):
            if sys.platform == "darwin" or any(os.environ.get(each) for each in DISPLAY_VARIABLES):
                app.open_url(address)
            app.flash(f"{name}: {address}")

    if len(addresses) == 1:
        opened(found[0].name)
        return None
    choices = [(name, f"{name}  {address}", False) for name, address in addresses.items()]
    app.push_screen(ChoiceScreen("Which page?", f"Pages of pool {pool.name}:", choices, escape=""), opened)
