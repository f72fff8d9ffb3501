"""State folder, socket folder and settings files: locations, permissions and trust."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.model.errors import UsageError
from skyward_core.store import skyward_toml, state_folder
from skyward_core.store.ledger import Ledger

AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to somebody else")


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "state"
    monkeypatch.setenv("SKYWARD_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    return home


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Base folder for sockets with a short path, because long paths are rejected."""
    with tempfile.TemporaryDirectory(prefix="sky") as base:
        monkeypatch.setenv("XDG_RUNTIME_DIR", base)
        yield Path(base)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_state_folder_with_only_own_files_is_made_private(world: Path) -> None:
    ours = ("ledger.db", "ledger.db-wal", "pools", "environments", "recent.json", "known_hosts", "skyward-0")
    for content, is_unchanged in ((), False), (ours, False), (("thesis.tex",), True), ((*ours, "thesis.tex"), True):
        world.mkdir()
        world.chmod(0o755)
        for name in content:
            (world / name).touch()
        assert mode(state_folder.state_home()) == (0o755 if is_unchanged else 0o700)
        shutil.rmtree(world)


def test_state_folder_with_foreign_files_keeps_its_mode(world: Path) -> None:
    world.mkdir()
    world.chmod(0o755)
    (world / "thesis.tex").touch()
    for _ in range(2):
        Ledger(state_folder.state_home() / "ledger.db").close()
        assert mode(world) == 0o755
    assert mode(state_folder.ensure_pool_folder("p.1").parent) == 0o700


@pytest.mark.parametrize(
    ("bits", "holds"), [(0o777, "theirs"), (0o1777, "theirs"), (0o757, "theirs"), (0o1777, "pools")]
)
def test_state_folder_writable_by_others_is_rejected(world: Path, bits: int, holds: str) -> None:
    """In a folder like /tmp, another user could create a ledger, a pool or an environment first."""
    world.mkdir()
    (world / holds).touch()
    world.chmod(bits)
    with pytest.raises(UsageError, match=rf"{world} is writable by other users.*SKYWARD_HOME"):
        state_folder.state_home()
    assert mode(world) == bits


@AS_ROOT
@pytest.mark.parametrize("named", [True, False], ids=["by SKYWARD_HOME", "by default"])
@pytest.mark.parametrize("bits", [0o700, 0o755, 0o777])
def test_state_folder_of_another_user_is_rejected(
    world: Path, tmp_path: Path, bits: int, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not named:
        monkeypatch.delenv("SKYWARD_HOME")
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    place = world if named else tmp_path / "xdg" / "skyward"
    place.mkdir(parents=True)
    os.chown(place, 65534, 65534)
    place.chmod(bits)
    with pytest.raises(UsageError, match=rf"{place} belongs to another user.*SKYWARD_HOME"):
        state_folder.state_home()
    assert mode(place) == bits and not list(place.iterdir())


def test_relative_and_tilde_skyward_home_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", "rel")
    assert state_folder.state_home() == tmp_path / "rel"
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setenv("SKYWARD_HOME", "~/sky")
    assert state_folder.state_home() == tmp_path / "me" / "sky"


def test_default_state_folder_is_the_platform_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKYWARD_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert state_folder.state_home().is_relative_to(tmp_path / "me")
    assert state_folder.state_home().name == "skyward"


def test_state_folder_that_is_a_file_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("SKYWARD_HOME", str(place))
        with pytest.raises(UsageError, match=r"file.*SKYWARD_HOME"):
            state_folder.state_home()


def test_socket_folder_is_private_and_unique_per_state_folder(tmp_path: Path, runtime: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    first = state_folder.ensure_socket_folder(deep)
    assert first == state_folder.ensure_socket_folder(deep) != state_folder.ensure_socket_folder(tmp_path)
    assert first.is_relative_to(runtime)
    assert mode(first) == mode(first.parent) == 0o700


def test_socket_path_stays_bindable_below_a_deep_runtime_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 50) / ("y" * 50)
    deep.mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    folder = state_folder.ensure_socket_folder(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "1023.sock.w"))
    (folder / "1023.sock.w").unlink()
    folder.rmdir()


def test_missing_runtime_folder_is_not_used_for_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))  # as after su, or in a container
    folder = state_folder.ensure_socket_folder(tmp_path)
    assert folder.is_dir()
    assert not folder.is_relative_to(tmp_path / "gone")
    folder.rmdir()


def test_runtime_folder_writable_by_others_is_not_used_for_sockets(tmp_path: Path, runtime: Path) -> None:
    runtime.chmod(0o777)
    folder = state_folder.ensure_socket_folder(tmp_path)
    assert not folder.is_relative_to(runtime)
    folder.rmdir()
    runtime.chmod(0o1777)
    assert state_folder.ensure_socket_folder(tmp_path).is_relative_to(runtime)


@pytest.fixture
def bases(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Limit the candidates for sockets to one base folder, and then the home."""
    monkeypatch.setattr(state_folder, "_socket_bases", lambda: [str(runtime)])
    short = runtime / "home"
    monkeypatch.setenv("SKYWARD_HOME", str(short))
    return short


def _open_to_others(root: Path) -> None:
    root.mkdir()
    root.chmod(0o701)


def _a_link(root: Path) -> None:
    (root.parent / "elsewhere").mkdir(mode=0o700)
    root.symlink_to(root.parent / "elsewhere")


def make_folder_of_another_user(root: Path) -> None:
    root.mkdir(mode=0o700)
    os.chown(root, 65534, 65534)


TAKEN = [_open_to_others, _a_link, Path.touch, pytest.param(make_folder_of_another_user, marks=AS_ROOT)]


@pytest.mark.parametrize("take", TAKEN)
def test_socket_folder_taken_by_another_user_is_avoided(
    bases: Path, runtime: Path, tmp_path: Path, take: Callable[[Path], None]
) -> None:
    """A folder of our name in /tmp, created by another user, must not prevent the start."""
    root = runtime / f"skyward-{os.getuid()}"
    take(root)
    folder = state_folder.ensure_socket_folder(tmp_path)
    assert folder.is_relative_to(bases) and mode(folder) == mode(folder.parent) == 0o700
    assert not root.is_dir() or list(root.iterdir()) == []
    root = bases / f"skyward-{os.getuid()}"
    folder.rmdir()
    root.rmdir()
    take(root)
    with pytest.raises(UsageError, match="only you can enter"):
        state_folder.ensure_socket_folder(tmp_path)


def test_settings_of_the_working_folder_override_those_of_the_home(world: Path, tmp_path: Path) -> None:
    assert skyward_toml.host_groups() == {}
    state_folder.state_home()
    (world / "skyward.toml").write_text('[hosts]\nlab = ["a", "b"]\none = "c"\n[theirs]\nx = 1\n')
    assert skyward_toml.host_groups() == {"lab": ["a", "b"], "one": ["c"]}
    (tmp_path / "skyward.toml").write_text('[hosts]\none = ["d"]\n')
    assert skyward_toml.host_groups() == {"lab": ["a", "b"], "one": ["d"]}


@pytest.mark.parametrize("content", [b"nodes = ", b"\xff\xfe", b"a = 1\na = 2\n"])
def test_settings_with_a_syntax_error_are_a_usage_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "skyward.toml").write_bytes(content)
    with pytest.raises(UsageError, match=r"Cannot parse .*skyward\.toml: "):
        skyward_toml.host_groups()


@pytest.mark.parametrize(
    ("content", "where"),
    [("hosts = 5", "hosts"), ("[hosts]\nlab = 5", r"hosts\.lab"), ('[hosts]\nlab = ["a", 7]', r"hosts\.lab\.1")],
)
def test_invalid_settings_error_names_the_key(content: str, where: str, tmp_path: Path) -> None:
    (tmp_path / "skyward.toml").write_text(content)
    with pytest.raises(UsageError, match=rf"Invalid settings in .*skyward\.toml: {where}: Input should be"):
        skyward_toml.host_groups()
    with pytest.raises(UsageError, match="Invalid settings"):
        sky.SSH(hosts="lab")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to somebody else")
@pytest.mark.parametrize("theirs", ["skyward.toml", "."])
def test_settings_writable_by_another_user_are_not_read(theirs: str, tmp_path: Path) -> None:
    """A forged host group would send our code and its arguments to a host of another user."""
    (tmp_path / "skyward.toml").write_text('[hosts]\nlab = ["mallory@gpu1"]\n')
    os.chown(tmp_path / theirs, 65534, 65534)
    for ask in (skyward_toml.host_groups, lambda: sky.SSH(hosts="lab")):
        with pytest.raises(UsageError, match=r"Refusing to read .*skyward\.toml: .* belongs to another user"):
            ask()
    os.chown(tmp_path / theirs, 0, 0)
    assert skyward_toml.host_groups() == {"lab": ["mallory@gpu1"]}
    tmp_path.chmod(0o777)
    with pytest.raises(UsageError, match="can be written by others"):
        skyward_toml.host_groups()
