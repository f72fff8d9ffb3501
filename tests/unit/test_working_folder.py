"""Upload of the working folder: files that are listed, sent and removed, and folders that are never sent."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
import shutil
import socket
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skyward_core.client import node_file_copy
from skyward_core.model.errors import JobFileError, UsageError
from skyward_core.node.agent.output_checkpoint_and_source_files import find_written_files
from skyward_core.node.bootstrap import host_commands, receive_working_folder
from skyward_core.protocol.node_paths import STATE_FILE
from skyward_core.store import default_and_forbidden_working_folders
from skyward_core.store.state_folder import is_state_folder, state_home
from skyward_core.tasks.job_file import make_mount_call
from skyward_core.transport import working_folder_upload


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    write(path, "train.py", "print(1)")
    write(path, "lib/model.py", "x = 1")
    write(path, "lib/__pycache__/model.cpython-311.pyc", "no")
    write(path, "data/big.bin", "0" * 1000)
    write(path, ".gitignore", "data/\n*.log\n")
    write(path, "a.log", "noise")
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "node"


@pytest.fixture
def node_copy(root: Path, folder: Path) -> Path:
    """Path of the folder's copy on a node."""
    return root / "work" / working_folder_upload.copy_name(folder)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def tracked(folder: Path) -> None:
    """Make a folder a git repository that contains all of its files."""
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "add", "."], cwd=folder, check=True)


def names(folder: Path, **wishes: list[str]) -> set[str]:
    return {item.path for item in working_folder_upload.build_manifest(folder, **wishes).items}


def sync(folder: Path, root: Path, say: Callable[[str], None] = print) -> list[str]:
    """Run one complete upload between client and node, and return the sent paths."""
    items = receive_working_folder.from_json(
        receive_working_folder.to_json(working_folder_upload.build_manifest(folder).items)
    )
    copy = receive_working_folder.FolderCopy(root, working_folder_upload.copy_name(folder), say)
    requested, doubtful = copy.compare(items)
    same = [
        index
        for index, digest in doubtful.items()
        if receive_working_folder.file_hash(folder / items[index].path) == digest
    ]
    requested += [index for index in doubtful if index not in same]
    contents = io.BytesIO()
    working_folder_upload.pack(folder, [items[index] for index in requested], contents)
    contents.seek(0)
    copy.apply(items, same, requested, contents)
    copy.close()
    return sorted(items[index].path for index in requested)


def content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_text()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_nested_repository_is_listed_below_a_subfolder(folder: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    inner = folder / "lib" / "other"
    write(inner, "util.py", "y = 2")
    subprocess.run(["git", "init", "-q"], cwd=inner, check=True)
    assert names(folder / "lib") == {"model.py", "other/util.py"}


IGNORING = """
# comment
\\#odd
*.tmp
!keep.tmp
/top
deep/er
build/
**/cache/**
a/**/z
sp ace.txt{space}

[ab]?.x
[!a-c]y.log
foo*bar
\\!bang
logs/*
!logs/keep
[broken
inner
outer/
!/outer/
"""
TREE = """
#odd x.tmp keep.tmp sub/keep.tmp top sub/top deep/er/f sub/deep/er/f build/f sub/build/f sub/build2 cache/f/g a/z a/b/z
a/b/c/z b/a/z sp ace.txt a1.x c1.x dy.log ay.log foobar foo/bar fooXbar !bang logs/x logs/keep logs/sub/f in/.hidden
in/own.txt in/x.tmp in/other/own.txt [broken outer/inner/f outer/f
"""


def test_gitignore_is_read_as_git_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TREE.replace("sp ace", "sp_ace").split():
        write(tmp_path, name.replace("sp_ace", "sp ace"), "x")
    write(tmp_path, "build3/build", "a file of that name")
    write(tmp_path, ".gitignore", IGNORING.replace("{space}", "   "))
    write(tmp_path, "in/.gitignore", "/own.txt\n!x.tmp\n.hid*\n")
    by_git = names(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert names(tmp_path) == by_git
    assert len(by_git) > 10


KEYS = {".env", ".env.local", "sub/.env", "certs/tls.pem", "certs/tls.key", "id_ed25519", "id_deploy", ".ssh/config",
        "sub/.netrc", "id_rsa.bak", "id_dsa.old", "id_ecdsa.1", "id_ed25519.bak", ".envrc", ".aws/credentials",
        ".gnupg/ring.gpg", ".pgpass", ".pypirc", "sub/.git-credentials"}  # fmt: skip


@pytest.mark.parametrize("git", [True, False])
def test_key_files_are_sent_only_if_named(folder: Path, git: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    others = {".gitignore", "train.py", "lib/model.py", "lib/id_map.py", "environment.yml", "keys.py"}
    for name in {*KEYS, *others} - {".gitignore"}:
        write(folder, name, "x")
    tracked(folder)
    if not git:
        monkeypatch.setenv("PATH", "")
    found = working_folder_upload.build_manifest(folder)
    assert {item.path for item in found.items} == others
    assert set(found.withheld) == KEYS
    for pattern in ("*", "certs", "sub", "**/*"):
        assert not names(folder, includes=[pattern]) & KEYS, pattern
        assert not [name for name in names(folder, includes=[pattern]) if name.startswith(".git/")]
    assert names(folder, includes=[".env", "certs/*.pem", "id_deploy"]) & KEYS == {".env", "certs/tls.pem", "id_deploy"}
    assert working_folder_upload.build_manifest(folder, excludes=["sub", ".env*"]).withheld == sorted(
        name for name in KEYS if not name.startswith(("sub", ".env"))
    )
    assert ".git/HEAD" in names(folder, includes=[".git"])


def test_include_patterns_without_matches_are_reported(folder: Path) -> None:
    write(folder, "data/a.csv", "x")
    write(folder, "empty/.keep", "x")
    found = working_folder_upload.build_manifest(folder, includes=["data/*.csv", "dta/*.csv", "empty", "*.pt"])
    assert found.unmatched == ["dta/*.csv", "*.pt"]


@pytest.mark.parametrize("repository", [True, False])
def test_folder_is_listed_without_git_if_git_fails(
    folder: Path, repository: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an empty list would remove the files on the nodes."""
    if repository:
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    expected = names(folder)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(write(tmp_path, "gitconfig", "[broken")))
    assert names(folder) == expected == {".gitignore", "train.py", "lib/model.py"}


def test_includes_and_excludes_select_files(folder: Path) -> None:
    assert "data/big.bin" in names(folder, includes=["data"])
    assert "a.log" in names(folder, includes=["*.log"])
    assert names(folder, excludes=["lib"]) == {".gitignore", "train.py"}
    assert names(folder, excludes=["*.py"]) == {".gitignore"}
    assert "data/big.bin" not in names(folder, includes=["data"], excludes=["*.bin"])


def test_removed_tracked_file_is_omitted(folder: Path) -> None:
    tracked(folder)
    (folder / "train.py").unlink()
    assert names(folder) == {".gitignore", "lib/model.py"}


def test_tracked_file_below_a_former_folder_is_omitted(folder: Path) -> None:
    tracked(folder)
    with_its_folder(folder / "lib/model.py")
    assert names(folder) == {".gitignore", "lib", "train.py"}


def test_only_changed_files_are_sent(folder: Path, root: Path, node_copy: Path) -> None:
    assert sync(folder, root) == [".gitignore", "lib/model.py", "train.py"]
    assert content(node_copy) == {".gitignore": "data/\n*.log\n", "lib/model.py": "x = 1", "train.py": "print(1)"}
    assert sync(folder, root) == []
    write(folder, "lib/model.py", "x = 2")
    assert sync(folder, root) == ["lib/model.py"]
    assert (node_copy / "lib/model.py").read_text() == "x = 2"


def test_new_modification_time_alone_sends_nothing(folder: Path, root: Path, node_copy: Path) -> None:
    sync(folder, root)
    os.utime(folder / "train.py", ns=(1, 12345))
    assert sync(folder, root) == []
    assert (node_copy / "train.py").stat().st_mtime_ns == 12345


def test_removed_files_are_removed_on_the_node_except_files_of_ranks(folder: Path, root: Path, node_copy: Path) -> None:
    sync(folder, root)
    write(node_copy, "checkpoint.pt", "made on the node")
    (folder / "train.py").unlink()
    sync(folder, root)
    assert not (node_copy / "train.py").exists()
    assert (node_copy / "checkpoint.pt").read_text() == "made on the node"


def test_files_changed_by_ranks_are_set_aside(folder: Path, root: Path, node_copy: Path) -> None:
    messages: list[str] = []
    for name in ("model.pt", "config.yaml", "gone.pt", "empty.txt", "out", "thing"):
        write(folder, name, "before")
    sync(folder, root, messages.append)
    for name in ("model.pt", "config.yaml", "gone.pt", "thing"):
        write(node_copy, name, "trained")
    write(node_copy, "new/a.pt", "trained")
    write(node_copy, "empty.txt", "")
    (node_copy / "out").unlink()
    write(node_copy, "out/epoch1.pt", "trained")
    # The person edits another file, and these; removes one; makes a folder of a file, and a file of what ranks made.
    write(folder, "train.py", "print(2)")
    write(folder, "config.yaml", "edited")
    write(folder, "out", "edited")
    write(folder, "new", "edited")
    (folder / "gone.pt").unlink()
    (folder / "thing").unlink()
    write(folder, "thing/inner.py", "edited")
    changed = ["config.yaml", "empty.txt", "new", "out", "thing/inner.py", "train.py"]
    assert sync(folder, root, messages.append) == changed
    found = content(node_copy)
    assert {found[each] for each in changed} == {"edited", "before", "print(2)"}
    assert found["model.pt"] == found["gone.pt"] == "trained"
    aside = ["config.yaml.of-ranks", "new.of-ranks/a.pt", "out.of-ranks/epoch1.pt", "thing.of-ranks"]
    assert [found[each] for each in aside] == ["trained"] * 4
    assert len(messages) == 4 and messages[0].startswith("config.yaml was changed by you and by ranks")
    # What is as it was sent makes way, and a second time nothing that ranks wrote takes the first one's place.
    assert sync(folder, root, messages.append) == [] and len(messages) == 4
    write(node_copy, "config.yaml", "trained again")
    write(folder, "config.yaml", "edited again")
    sync(folder, root, messages.append)
    assert content(node_copy)["config.yaml.of-ranks-2"] == "trained again"
    write(folder, "config.yaml", "once more")
    sync(folder, root, messages.append)
    assert content(node_copy)["config.yaml"] == "once more" and len(messages) == 5


def test_nothing_is_removed_behind_a_link_of_ranks(folder: Path, root: Path, node_copy: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "large disk"
    write(folder, "inputs/x.csv", "1")
    write(folder, "inputs/y.csv", "1")
    sync(folder, root)
    shutil.move(node_copy / "inputs", elsewhere)  # with the times that they were given
    (node_copy / "inputs").symlink_to(elsewhere)
    (folder / "inputs/x.csv").unlink()
    sync(folder, root)
    write(folder, "inputs/y.csv", "edited")
    sync(folder, root)
    assert content(elsewhere) == {"x.csv": "1", "y.csv": "1"}
    assert content(node_copy)["inputs/y.csv"] == "edited"


def test_files_of_an_interrupted_upload_do_not_count_as_changed_by_ranks(
    folder: Path, root: Path, node_copy: Path
) -> None:
    sync(folder, root)
    write(folder, "lib/model.py", "x = 2")
    write(folder, "train.py", "print(2)")
    items = working_folder_upload.build_manifest(folder).items
    half = receive_working_folder.FolderCopy(root, working_folder_upload.copy_name(folder), print)
    contents = io.BytesIO()
    working_folder_upload.pack(folder, items, contents)
    contents.truncate(contents.tell() - 6)
    contents.seek(0)
    with pytest.raises(ValueError, match="contents are incomplete"):
        half.apply(items, [], range(len(items)), contents)
    half.close()
    write(folder, "lib/model.py", "x = 3")
    sync(folder, root)
    found = content(node_copy)
    assert found.pop(".gitignore") and found == {"lib/model.py": "x = 3", "train.py": "print(2)"}


def test_file_folder_and_link_may_replace_each_other_in_an_upload(folder: Path, root: Path, node_copy: Path) -> None:
    (folder / "link").symlink_to("train.py")
    write(folder, "thing", "a file")
    sync(folder, root)
    (folder / "thing").unlink()
    write(folder, "thing/inner.py", "now a folder")
    (folder / "link").unlink()
    write(folder, "link", "now a file")
    sync(folder, root)
    assert (node_copy / "thing/inner.py").read_text() == "now a folder"
    assert (node_copy / "link").read_text() == "now a file" and (node_copy / "train.py").read_text() == "print(1)"


def test_unusual_file_names_and_modes_are_uploaded(folder: Path, root: Path, node_copy: Path) -> None:
    write(folder, "mit leer\nzeichen ü.txt", "1")
    write(folder, "run.sh", "#!/bin/sh").chmod(0o755)
    (folder / os.fsdecode(b"caf\xe9.txt")).write_text("2")
    sync(folder, root)
    assert content(node_copy)["mit leer\nzeichen ü.txt"] == "1"
    assert (node_copy / os.fsdecode(b"caf\xe9.txt")).read_text() == "2"
    assert os.access(node_copy / "run.sh", os.X_OK)


@pytest.mark.parametrize("letter", ["x", "ü"])
def test_longest_folder_and_file_names_are_uploaded(tmp_path: Path, letter: str) -> None:
    folder = tmp_path / (letter * (240 // len(letter.encode())))
    name = letter * (255 // len(letter.encode()))
    write(folder, name, "1")
    root, messages = tmp_path / "node", list[str]()
    sync(folder, root, messages.append)
    (copy,) = root.glob("work/*[!.]" + "[0-9a-f]" * 9)
    write(copy, name, "written by ranks")
    write(folder, name, "edited")
    sync(folder, root, messages.append)
    assert sorted(content(copy).values()) == ["edited", "written by ranks"] and len(messages) == 1


def test_file_outside_the_folder_is_refused(tmp_path: Path) -> None:
    copy = receive_working_folder.FolderCopy(tmp_path, "x", print)
    evil = receive_working_folder.FolderItem("../evil", 1, 1, 0o644)
    (tmp_path / "src").mkdir()
    (tmp_path / "evil").write_text("!")
    with pytest.raises(ValueError, match="outside the working folder"):
        copy.apply([evil], [], [0], io.BytesIO(receive_working_folder.PIECE.pack(0)))
    assert (tmp_path / "evil").read_text() == "!"


@contextlib.contextmanager
def unprivileged_user() -> Iterator[Path]:
    """Run as a user with limited permissions and a separate folder."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o777)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            yield Path(place)
        finally:
            if root:
                os.seteuid(0)


@pytest.mark.parametrize("step", ["packed", "compared"])
async def test_unreadable_file_is_named_with_a_fix(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # root's git is not for everybody
    await asyncio.to_thread(int)  # nobody may not even read what Python would load for that
    with unprivileged_user() as folder:
        (locked := write(folder, "locked", "x")).chmod(0)
        snapshot = working_folder_upload.Snapshot(folder, (), ())
        await snapshot.files()
        with pytest.raises(working_folder_upload.FileUnreadable) as caught:
            await (snapshot.pack([0], io.BytesIO()) if step == "packed" else snapshot.find_changed({0: "hash"}))
    message = (
        f"{locked} in the working folder cannot be read (Permission denied): make it readable (chmod u+r), or exclude "
    )
    assert str(caught.value) == f"{message}it with Image(excludes=[...]) or .gitignore."


@pytest.mark.parametrize("mode", [0o000, 0o444])
def test_unreadable_subfolder_of_the_working_folder_is_named(mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # git passes it over
    with unprivileged_user() as folder:
        locked = write(folder, "locked/train.py", "x").parent
        locked.chmod(mode)
        try:
            with pytest.raises(
                working_folder_upload.FileUnreadable, match=f"{locked}.* in the working folder cannot be read"
            ):
                working_folder_upload.build_manifest(folder)
            assert working_folder_upload.build_manifest(folder, excludes=["locked"]).items == []
        finally:
            locked.chmod(0o755)


@pytest.mark.parametrize("git", [True, False])
def test_pipes_and_sockets_in_the_working_folder_are_omitted(
    folder: Path, git: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = names(folder)
    tracked(folder)
    a_pipe(folder / "lib/model.py")
    os.mkfifo(folder / "pipe")
    a_socket(folder / "socket")
    if not git:
        monkeypatch.setenv("PATH", "")
    for includes in ([], ["*"]):
        assert names(folder, includes=includes, excludes=["a.log", "data", "*.pyc"]) == before - {"lib/model.py"}


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    path.unlink(missing_ok=True)
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as sock:  # a whole path may be too long for one
        sock.bind(path.name)


def removed(path: Path) -> None:
    path.unlink()


def with_its_folder(path: Path) -> None:
    """Remove a file together with its folder, in whose place a file is created."""
    shutil.rmtree(path.parent)
    path.parent.write_text("a file")


def now_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("vanish", [removed, with_its_folder, now_a_folder, a_pipe, a_socket])
async def test_file_removed_during_comparison_is_omitted(
    folder: Path, vanish: Callable[[Path], None], root: Path
) -> None:
    """The file was listed, and only its modification time was new to the node."""
    sync(folder, root)
    os.utime(folder / "lib/model.py", ns=(1, 12345))
    snapshot = working_folder_upload.Snapshot(folder, (), ())
    items, _ = await snapshot.files()
    copy = receive_working_folder.FolderCopy(root, working_folder_upload.copy_name(folder), print)
    requested, doubtful = copy.compare(items)
    assert not requested and [items[index].path for index in doubtful] == ["lib/model.py"]
    vanish(folder / "lib/model.py")
    changed = await snapshot.find_changed(doubtful)
    assert changed == list(doubtful)
    packed = io.BytesIO()
    await snapshot.pack(changed, packed)
    packed.seek(0)
    copy.apply(items, doubtful.keys() - set(changed), changed, receive_working_folder.DecompressedSource(packed))
    copy.close()
    assert content(copy.folder).keys() == {".gitignore", "train.py"}
    sync(folder, root)
    assert content(copy.folder) == {name: (folder / name).read_text() for name in names(folder)}


def test_too_large_folder_error_names_the_subfolder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_folder_upload, "LIMIT", 500)
    with pytest.raises(working_folder_upload.FolderTooLarge, match=r"data .*excludes"):
        working_folder_upload.build_manifest(folder, includes=["data"])


def test_home_and_system_folders_are_unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home" / "me"
    (home / "project").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for folder in (home, tmp_path, Path("/")):
        assert default_and_forbidden_working_folders.unusable_reason(folder) == f"{folder} contains your home folder"
    for name in ("/usr", "/etc"):
        assert default_and_forbidden_working_folders.unusable_reason(Path(name)) == f"{name} is a system folder"
    assert default_and_forbidden_working_folders.unusable_reason(home / "project") == ""


def test_linked_temporary_folder_is_a_system_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch, link = tmp_path / "scratch", tmp_path / "link"
    scratch.mkdir()
    link.symlink_to(scratch)
    assert default_and_forbidden_working_folders.unusable_reason(scratch) == ""
    monkeypatch.setenv("TMPDIR", str(link))
    assert default_and_forbidden_working_folders.unusable_reason(scratch) == f"{scratch} is a system folder"
    monkeypatch.delenv("TMPDIR")
    # /tmp is a link on some systems
    monkeypatch.setattr(
        default_and_forbidden_working_folders, "TEMPORARY_FOLDERS", (str(link),)
    )  # as /tmp is one on some systems
    assert default_and_forbidden_working_folders.unusable_reason(scratch) == f"{scratch} is a system folder"


async def sent_manifest(
    folder: Path, root: Path
) -> tuple[list[receive_working_folder.FolderItem], io.BytesIO, Path, Callable[[], object]]:
    """Send a folder's manifest. Return its files, the channel, the copy, and the receiver of the contents."""
    snapshot, contents = working_folder_upload.Snapshot(folder, (), ()), io.BytesIO()
    items, _ = await snapshot.files()
    assert await snapshot.pack(range(len(items)), contents)
    sent = receive_working_folder.to_json(items)
    channel = io.BytesIO(sent + contents.getvalue() + b"next")
    request = {"name": "src", "size": len(sent), "same": [], "wanted": range(len(items)), "compressed": True}
    found = host_commands.run_host_command("manifest", request, str(root), channel.read, print)
    files = request | {"size": len(contents.getvalue())}
    return (
        items,
        channel,
        Path(found["folder"]),
        lambda: host_commands.run_host_command("files", files, str(root), channel.read, print),
    )


@pytest.mark.parametrize("size", [0, 300, 450, 500, 5_000, 20_000])
async def test_upload_contents_are_read_to_the_last_byte(tmp_path: Path, size: int) -> None:
    """Unread bytes would be parsed as the next request."""
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "data.bin").write_bytes(random.Random(size).randbytes(size))
    _, channel, copy, receive = await sent_manifest(folder, tmp_path)
    receive()
    assert channel.read() == b"next"
    assert (copy / "data.bin").read_bytes() == (folder / "data.bin").read_bytes()


async def test_upload_contents_that_cannot_be_unpacked_are_read_to_the_end(folder: Path, tmp_path: Path) -> None:
    (folder / "large.bin").write_bytes(random.Random(1).randbytes(50_000))
    items, channel, copy, receive = await sent_manifest(folder, tmp_path)
    (copy / f"{items[0].path}.skyward-part").mkdir(parents=True)  # in the way
    with pytest.raises(IsADirectoryError):
        receive()
    assert channel.read() == b"next"


def state(folder: Path, *, marked: bool = True) -> Path:
    """Create a state folder as this release or an earlier one does."""
    for name in ("ledger.db", "pools/p.1/events.jsonl", "aws/p.1/login.key", "known_hosts"):
        write(folder, name, "ours")
    if marked:
        write(folder, STATE_FILE, "")
        (folder / "ledger.db").unlink()
    return folder


@pytest.mark.parametrize("git", [True, False])
def test_state_folder_is_never_sent(folder: Path, tmp_path: Path, git: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    state(folder / "home")
    state(folder / "lib" / "another name", marked=False)
    write(folder, "cache/skyward/pools/p.1/agent.lock", "ours")  # of a host that shares this folder
    write(folder, "cache/skyward/pools/p.1/tls.key", "ours")
    elsewhere = state(tmp_path / "elsewhere")
    (folder / "link").symlink_to(elsewhere)
    (folder / "inside").symlink_to(elsewhere / "pools")
    (folder / "around").symlink_to("home/pools")
    if git:
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
        subprocess.run(["git", "add", "-f", "."], cwd=folder, check=True)
    else:
        monkeypatch.setenv("PATH", "")
    patterns = ["home", "home/pools/**/*", "lib", "link/*", "link/pools/p.1/*", "inside/*/*", "around/*/*", "**/*"]
    for includes in ([], *([pattern] for pattern in patterns)):
        found = {name for name in names(folder, includes=includes) if not (folder / name).is_symlink()}
        assert {"train.py", "lib/model.py"} <= found
        assert not [name for name in found if (folder / name).read_text() == "ours"], includes
    assert not [name for name in working_folder_upload.build_manifest(folder).withheld if "home" in name]


def test_project_inside_a_state_folder_is_sent(tmp_path: Path) -> None:
    home = state(tmp_path / "home")
    write(home, "clones/abc/train.py", "x")
    (home / "clones" / "abc" / "out").symlink_to(home / "pools")
    assert names(home / "clones" / "abc", includes=["out/*/*"]) == {"train.py", "out"}
    assert default_and_forbidden_working_folders.unusable_reason(home / "clones" / "abc") == ""
    assert (
        default_and_forbidden_working_folders.unusable_reason(home)
        == f"{home} is a state folder of skyward (SKYWARD_HOME), which contains keys"
    )


def test_new_skyward_home_is_marked_as_a_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "new"))
    assert is_state_folder(str(state_home())) and (tmp_path / "new" / STATE_FILE).exists()


@pytest.mark.parametrize("part", ["", "pools", "pools/p.1/events.jsonl", "aws/p.1/login.key"])
def test_state_folder_is_neither_copied_nor_mounted(folder: Path, tmp_path: Path, part: str) -> None:
    ours = state(folder / "home") / part
    (tmp_path / "link").symlink_to(ours)
    assert not [each for each in node_file_copy._local_entries(folder) if each.parts[:1] == ("home",)]
    with pytest.raises(UsageError, match="home is a state folder of skyward, which contains keys"):
        node_file_copy._local_entries(ours)
    with pytest.raises(JobFileError, match="home is a state folder of skyward, which contains keys"):
        make_mount_call({"/there": tmp_path / "link"})
    ((packed,), _) = make_mount_call({"/there": folder}).args, None
    with tarfile.open(fileobj=io.BytesIO(packed["/there"])) as tar:
        assert {"./train.py", "./lib/model.py"} <= set(tar.getnames())
        assert not [name for name in tar.getnames() if "home" in name]


def test_user_files_in_a_state_folder_can_be_copied(tmp_path: Path) -> None:
    mine = write(state(tmp_path / "home"), "mine/data.bin", "x")
    assert node_file_copy._local_entries(mine) and node_file_copy._local_entries(mine.parent)


def test_state_folders_of_ranks_are_no_outputs(tmp_path: Path) -> None:
    copy = tmp_path / "work" / "copy"
    write(copy, "out.txt", "x")
    state(copy / "home")
    copy.with_name("copy.json").write_text("[]")
    found, _ = find_written_files(str(copy), ["**"], 0, float("inf"))
    assert [each["path"] for each in found] == ["out.txt"]
