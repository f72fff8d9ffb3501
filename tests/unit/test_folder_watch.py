"""Detection of edited source files by inotify or polling."""

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


def write_in_place(file: Path) -> None:
    file.write_text("other")


def replaced(file: Path) -> None:
    (new := file.with_suffix(".new")).write_text("other")
    new.replace(file)


def restored(file: Path) -> None:
    os.utime(file, ns=(0, 1))


def remove_file(file: Path) -> None:
    file.unlink()


def folder_replaced(file: Path) -> None:
    file.parent.rename(file.parent.with_name("old"))
    file.parent.mkdir()
    file.write_text("other")


@pytest.mark.parametrize("happens", [write_in_place, replaced, restored, remove_file, folder_replaced])
def test_folder_watch_notices_each_kind_of_file_change(
    watch: FolderWatch, file: Path, happens: Callable[[Path], None]
) -> None:
    watch.watch([str(file)])
    assert watch.is_quiet and watch.is_quiet
    happens(file)
    assert not watch.is_quiet
    watch.watch([str(file)])
    assert watch.is_quiet
    file.write_text("third")
    assert not watch.is_quiet, "a folder that is another one now is watched as well"


def test_unwatched_files_always_count_as_changed(
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
    monkeypatch.setattr("skyward_core.pool.edited_modules.MAX_WATCHED_FOLDERS", 0)
    many = FolderWatch()
    many.watch([str(file)])
    assert not many.is_quiet


def test_closed_folder_watch_leaves_no_open_descriptor(file: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    watch = FolderWatch()
    watch.watch([str(file)])
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 1
    watch.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
