"""App for replays: plays a recording on the same screens, read-only and with a clock that can be paused."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_tui.app.app import SkywardApp
from skyward_tui.ui.actions import bindings

if TYPE_CHECKING:
    from skyward_core.client.session_interface import SessionInterface


class ReplayApp(SkywardApp):
    """App that plays a recording.

    Args:
        record: File of the recording.
        theme: As in ``app.SkywardApp``.
        plain: As in ``app.SkywardApp``.
    """

    REPLAYS = True
    BINDINGS = bindings("replay")
    REFUSAL = "not available in a replay"

    def __init__(self, record: Path, theme: str = "", plain: bool = False) -> None:
        super().__init__(self._open, self._time_of_record, read_only=True, theme=theme, plain=plain)
        self._record = record

    def _open(self) -> SessionInterface:
        from skyward_core.client.replay_session import Playback, Replay, open_recording

        self.replay = Playback(open_recording(self._record))
        return Replay(self.replay)

    def _time_of_record(self) -> float:
        return time.time() if self.replay is None else self.replay.displayed_time()

    def wall_time(self) -> float:
        return time.time()

    async def _open_session(self) -> None:
        await super()._open_session()
        if self.replay is not None:
            self.show_pool(self.replay.view.key)

    def action_ask_quit(self) -> None:
        """Quit without a question, because a replay leaves no pools running."""
        self._quit()

    # Playback

    def action_replay_pause(self) -> None:
        if self.replay is not None:
            self.replay.toggle()

    def action_replay_speed(self, factor: float) -> None:
        if self.replay is not None:
            self.replay.multiply_speed(factor)

    def action_replay_skip(self, seconds: int) -> None:
        if self.replay is not None:
            self.replay.skip(seconds)

    def action_replay_failure(self) -> None:
        if self.replay is not None and not self.replay.seek_failure():
            self.flash("no run fails in this recording")
