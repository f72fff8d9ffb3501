"""Detection of edited source files by inotify or polling."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.pool import edited_modules
from skyward_core.pool.edited_modules import WATCH_AFTER_CHECKS, EditedModules, FolderWatch
from skyward_core.transport.working_folder_upload import copy_name


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


def test_folder_watch_follows_links(watch: FolderWatch, file: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "model.py"
    link.symlink_to(file)
    watch.watch([str(link)])
    assert watch.is_quiet
    file.write_text("other")
    assert not watch.is_quiet


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


# An edit is seen before the next run, whoever tells of it, and calls by the thousand look at few files.

MANY = WATCH_AFTER_CHECKS + 5


class Project:
    """Working folder and its upload to a host, of which no rank has loaded anything yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = [folder / "train.py", folder / "parts" / "model.py"]
        self.files[1].parent.mkdir()
        for file in self.files:
            file.write_text("first")
        transport = SimpleNamespace(sent=self.as_it_is(), shares_files=False)
        there = {"cwd": f"/there/{copy_name(folder)}"}
        self.link = SimpleNamespace(node=0, gone=False, transport=transport, welcome=there)
        startup, setup = SimpleNamespace(send_folder=self.nothing), SimpleNamespace(cwd=str(folder))
        context: Any = SimpleNamespace(links=[self.link], startup=startup, setup=setup)
        self.modules = EditedModules(context)
        link: Any = self.link
        self.modules.update_loaded(link, {})

    def as_it_is(self) -> dict[str, tuple[int, int]]:
        found = {str(file.relative_to(self.folder)): file.stat() for file in self.files}
        return {name: (stat.st_mtime_ns, stat.st_size) for name, stat in found.items()}

    async def nothing(self) -> None:
        pass


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path.resolve())
    yield made
    made.modules.close()


@pytest.fixture
def stamped_paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the files whose state is checked."""
    looked: list[str] = []
    stamp = edited_modules._stamp

    def noting(path: str) -> Any:
        looked.append(path)
        return stamp(path)

    monkeypatch.setattr(edited_modules, "_stamp", noting)
    monkeypatch.setattr(edited_modules, "CHECK_SHARE", 0)
    monkeypatch.setattr(edited_modules, "RARE_SHARE", 1e12)
    monkeypatch.setattr(edited_modules, "LONGEST_WAIT", 1e9)
    return looked


def test_unchanged_folder_needs_no_file_checks(project: Project, stamped_paths: list[str]) -> None:
    for _ in range(MANY):
        assert not project.modules.has_edits
    stamped_paths.clear()
    for _ in range(MANY):
        assert not project.modules.has_edits
    assert not stamped_paths


@pytest.mark.parametrize("which", [0, 1])
def test_edit_of_a_file_not_yet_loaded_is_seen_by_the_next_run(
    project: Project, stamped_paths: list[str], which: int
) -> None:
    for edit in range(3):
        for _ in range(MANY):
            assert not project.modules.has_edits
        file = project.files[which]
        file.write_text(f"other {edit}")
        os.utime(file, ns=(0, 10**9 * edit))
        assert project.modules.has_edits and project.modules.has_edits
        project.link.transport.sent = project.as_it_is()


def test_files_are_polled_without_inotify(
    project: Project, stamped_paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyward_core.pool.edited_modules.MAX_WATCHED_FOLDERS", 0)
    for _ in range(MANY):
        assert not project.modules.has_edits
    project.files[1].write_text("other one")
    assert project.modules.has_edits
