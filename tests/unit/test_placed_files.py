"""Files that a job brings: whose they are where they come to, and who may read them on the way."""

from __future__ import annotations

import os
import resource
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.node.worker.returned_exceptions import describe_error
from skyward_core.runtime import shell_and_scripts
from skyward_core.tasks.job_files.job import make_mount_call


@pytest.fixture(autouse=True)
def in_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        shell_and_scripts, "instance_info", lambda: SimpleNamespace(local_rank=0, node=3, hostname="n3")
    )


def place(source: Path, target: str) -> None:
    call = make_mount_call({target: source})
    call.fn(*call.args)


def test_what_links_lead_to_is_brought_and_a_file_into_a_folder(tmp_path: Path) -> None:
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


def test_what_is_brought_belongs_to_who_gets_it_and_is_open_to_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of a user here is another person's there, and a key may be among the files."""
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


def test_what_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    """What, on which node, where, why, and what to do; no traceback comes with it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "large").write_bytes(bytes(20_000))
    (tmp_path / "file").write_text("in the way")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OSError, match="is incomplete") as large:
            place(tmp_path / "data", f"{tmp_path}/there")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(NotADirectoryError) as through:
        place(tmp_path / "data", f"{tmp_path}/file/data")
    assert str(large.value) == (
        f"file_mounts: {tmp_path}/there on node 3 (n3) is incomplete: File too large. "
        "Allow larger files there (ulimit -f), or choose another file system, then run it again."
    )
    assert str(through.value).endswith(
        "Not a directory. Make room for it there, or choose another place, then run it again."
    )
    words, _ = describe_error(large.value)
    assert words == {"type": "OSError", "message": str(large.value), "traceback": ""}


def test_a_home_of_nobody_is_no_folder_of_that_name_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "word.txt").write_text("word")
    with pytest.raises(FileNotFoundError, match="is incomplete: the user does not exist there"):
        place(tmp_path / "word.txt", "~nobody-at-all/word.txt")
    assert [each.name for each in tmp_path.iterdir()] == ["word.txt"]
