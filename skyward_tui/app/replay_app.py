"""App for replays: plays a recording on the same screens, read-only and with a clock that can be paused."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from skyward_tui.app.app import SkywardApp


class ReplayApp(SkywardApp):
    """App that plays a recording.

    Args:
        record: File of the recording.
        theme: As in ``app.SkywardApp``.
        plain: As in ``app.SkywardApp``.
    """

    REPLAYS = True

    def __init__(self, record: Path, theme: str = "", plain: bool = False) -> None:
        super().__init__(partial(self.start_replay, record), read_only=True, theme=theme, plain=plain)

    async def _open_session(self) -> None:
        await super()._open_session()
        if self.replay is not None:
            self.show_pool(self.replay.view.key)
