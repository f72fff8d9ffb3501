"""What happens to files is known without a look at each of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skyward_core.pool.edited_modules import FolderWatch


@pytest.fixture
def watch() -> Iterator[FolderWatch]:
    made = FolderWatch()
    yield made
    made.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "elsewhere").mkdir()
    made = tmp_path / "project" / "model.py"
    made.write_text("first")
    return made


def in_place(file: Path) -> None:
    file.write_text("other")


def replaced(file: Path) -> None:
    (new := file.with_suffix(".new")).write_text("other")
    new.replace(file)


def restored(file: Path) -> None:
    os.utime(file, ns=(0, 1))


def gone(file: Path) -> None:
    file.unlink()


def folder_replaced(file: Path) -> None:
    file.parent.rename(file.parent.with_name("old"))
    file.parent.mkdir()
    file.write_text("other")


@pytest.mark.parametrize("happens", [in_place, replaced, restored, gone, folder_replaced])
def test_a_change_is_told_once(watch: FolderWatch, file: Path, happens: Callable[[Path], None]) -> None:
    watch.watch([str(file)])
    assert watch.is_quiet and watch.is_quiet
    happens(file)
    assert not watch.is_quiet
    watch.watch([str(file)])
    assert watch.is_quiet
    file.write_text("third")
    assert not watch.is_quiet, "a folder that is another one now is watched as well"


def test_what_a_link_leads_to_is_watched(watch: FolderWatch, file: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "model.py"
    link.symlink_to(file)
    watch.watch([str(link)])
    assert watch.is_quiet
    file.write_text("other")
    assert not watch.is_quiet


def test_where_nobody_can_tell_it_is_never_quiet(
    watch: FolderWatch, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not watch.is_quiet, "nothing is watched yet"
    watch.watch([str(file)])
    assert watch.is_quiet
    watch.watch([str(file.parent / "there is no such folder" / "model.py")])
    assert not watch.is_quiet
    shutil.rmtree(file.parent)
    closed = FolderWatch()
    closed.close()
    assert not closed.is_quiet
    monkeypatch.setattr("skyward_core.pool.edited_modules.MOST", 0)
    many = FolderWatch()
    many.watch([str(file)])
    assert not many.is_quiet


def test_nothing_stays_open(file: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    watch = FolderWatch()
    watch.watch([str(file)])
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 1
    watch.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
