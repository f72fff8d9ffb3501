"""Files of ranks on their way here: several come at once, and share the folder of what is not whole yet."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from skyward_core.transport.incoming_output import IncomingOutput


def test_one_that_is_done_takes_no_folder_from_one_that_begins(tmp_path: Path) -> None:
    def come_and_go(name: str) -> None:
        for _ in range(300):
            IncomingOutput(tmp_path, name, 4, "first").drop()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(come_and_go, ("one", "other")))
    assert list(tmp_path.iterdir()) == []
