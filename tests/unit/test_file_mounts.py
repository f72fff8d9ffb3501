"""Placement of job files on nodes: owners, permissions and errors."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.runtime import file_mount_unpacker
from skyward_core.tasks.job_file import make_mount_call


@pytest.fixture(autouse=True)
def rank_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        file_mount_unpacker, "instance_info", lambda: SimpleNamespace(local_rank=0, node=3, hostname="n3")
    )


def place(source: Path, target: str) -> None:
    call = make_mount_call({target: source})
    call.fn(*call.args)


def test_job_files_follow_links_and_are_placed_into_folders(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "word.txt").write_text("word")
    (tmp_path / "data" / "same").symlink_to("word.txt")
    (tmp_path / "folder").symlink_to("data")
    (tmp_path / "file").symlink_to("data/word.txt")
    place(tmp_path / "folder", f"{tmp_path}/there/data")
    place(tmp_path / "file", f"{tmp_path}/there/words.txt")
    place(tmp_path / "data" / "word.txt", f"{tmp_path}/there/into/")
    there = tmp_path / "there"
    assert [(there / name).read_text() for name in ("data/word.txt", "data/same", "into/word.txt")] == ["word"] * 3
    assert not (there / "words.txt").is_symlink() and (there / "words.txt").read_text() == "word"
    assert (there / "data" / "same").is_symlink() and not (there / "data").is_symlink()


def test_placed_job_files_belong_to_their_user_and_stay_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """User ids differ between machines, and the files may contain a key."""
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "keys").mkdir(parents=True)
    (source / "keys" / "id").write_text("secret")
    (source / "keys" / "id").chmod(0o600)
    (source / "train.py").write_text("print()")
    (source / "train.py").chmod(0o755)
    if os.getuid() == 0:
        os.chown(source / "train.py", 12345, 12345)
    before: dict[str, int] = {}

    def chmod(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Any) -> None:
        before[Path(path).name] = Path(path).stat().st_mode & 0o777
        Path(path).chmod(member.mode)

    monkeypatch.setattr(tarfile.TarFile, "chmod", chmod)
    place(source, str(target))
    assert before["id"] == 0o600
    assert {path.stat().st_uid for path in target.rglob("*")} == {os.getuid()}
    modes = {path.name: path.stat().st_mode & 0o777 for path in target.rglob("*")}
    assert modes == {"keys": (source / "keys").stat().st_mode & 0o777, "id": 0o600, "train.py": 0o755}


def test_unknown_home_in_a_mount_path_creates_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "word.txt").write_text("word")
    with pytest.raises(FileNotFoundError, match="is incomplete: the user does not exist there"):
        place(tmp_path / "word.txt", "~nobody-at-all/word.txt")
    assert [each.name for each in tmp_path.iterdir()] == ["word.txt"]
