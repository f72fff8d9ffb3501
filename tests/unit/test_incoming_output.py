"""Files of ranks on their way here: several come at once, and share the folder of what is not whole yet."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skyward_core.transport.downloads import PARTS, IncomingOutput


def test_one_that_is_done_takes_no_folder_from_one_that_begins(tmp_path: Path) -> None:
    def come_and_go(name: str) -> None:
        for _ in range(300):
            IncomingOutput(tmp_path, name, 4, "first").drop()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(come_and_go, ("one", "other")))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to somebody else")
def test_a_folder_that_a_stranger_made_first_is_not_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    parts = tmp_path / PARTS
    parts.mkdir(mode=0o777)
    os.chown(parts, 65534, 65534)
    with pytest.raises(OSError, match="belongs to somebody else, who could change"):
        IncomingOutput(tmp_path, "x", 4, "first")
    parts.rmdir()
    (tmp_path / "elsewhere").mkdir()
    parts.symlink_to("elsewhere")
    with pytest.raises(FileExistsError):
        IncomingOutput(tmp_path, "x", 4, "first")
    os.chown(parts, 65534, 65534, follow_symlinks=False)
    with pytest.raises(OSError, match="belongs to somebody else"):
        IncomingOutput(tmp_path, "x", 4, "first")
    assert list((tmp_path / "elsewhere").iterdir()) == []
