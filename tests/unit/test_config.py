"""Where things are kept, and who may look into them."""

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
from skyward_core.store import state_folder
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
    """A base for sockets of our own; with a short path, or another one would be taken."""
    with tempfile.TemporaryDirectory(prefix="sky") as base:
        monkeypatch.setenv("XDG_RUNTIME_DIR", base)
        yield Path(base)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_home_that_others_could_enter_is_closed_and_somebody_elses_things_are_let_be(world: Path) -> None:
    ours = ("ledger.db", "ledger.db-wal", "pools", "environments", "recent.json", "known_hosts", "skyward-0")
    for content, kept in ((), False), (ours, False), (("thesis.tex",), True), ((*ours, "thesis.tex"), True):
        world.mkdir()
        world.chmod(0o755)
        for name in content:
            (world / name).touch()
        assert mode(state_folder.state_home()) == (0o755 if kept else 0o700)
        shutil.rmtree(world)


def test_a_folder_that_holds_other_things_keeps_its_mode_for_ever(world: Path) -> None:
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
def test_a_home_in_which_others_may_put_things_is_none(world: Path, bits: int, holds: str) -> None:
    """As /tmp is: a ledger, a pool or an environment could be there before ours."""
    world.mkdir()
    (world / holds).touch()
    world.chmod(bits)
    with pytest.raises(UsageError, match=rf"{world} is writable by other users.*SKYWARD_HOME"):
        state_folder.state_home()
    assert mode(world) == bits


@AS_ROOT
@pytest.mark.parametrize("named", [True, False], ids=["by SKYWARD_HOME", "by default"])
@pytest.mark.parametrize("bits", [0o700, 0o755, 0o777])
def test_foreign_home(world: Path, tmp_path: Path, bits: int, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_skyward_home_overrides_and_is_private(world: Path) -> None:
    assert state_folder.state_home() == world
    assert mode(world) == 0o700
    assert state_folder.state_home() == world, "a second time finds it"
    assert state_folder.ensure_pool_folder("p.t1") == world / "pools" / "p.t1"
    assert mode(world / "pools" / "p.t1") == 0o700


def test_home_is_absolute_wherever_one_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", "rel")
    assert state_folder.state_home() == tmp_path / "rel"
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setenv("SKYWARD_HOME", "~/sky")
    assert state_folder.state_home() == tmp_path / "me" / "sky"


def test_without_it_the_platform_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKYWARD_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert state_folder.state_home().is_relative_to(tmp_path / "me")
    assert state_folder.state_home().name == "skyward"


def test_a_home_that_cannot_be_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("SKYWARD_HOME", str(place))
        with pytest.raises(UsageError, match=r"file.*SKYWARD_HOME"):
            state_folder.state_home()


def test_a_socket_folder_is_short_private_and_one_per_owner(tmp_path: Path, runtime: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    first = state_folder.ensure_socket_folder(deep)
    assert first == state_folder.ensure_socket_folder(deep) != state_folder.ensure_socket_folder(tmp_path)
    assert first.is_relative_to(runtime)
    assert mode(first) == mode(first.parent) == 0o700


def test_a_socket_can_be_bound_there_however_deep_the_base_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 50) / ("y" * 50)
    deep.mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    folder = state_folder.ensure_socket_folder(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "1023.sock.w"))
    (folder / "1023.sock.w").unlink()
    folder.rmdir()


def test_a_runtime_folder_that_is_not_there_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))  # as after su, or in a container
    folder = state_folder.ensure_socket_folder(tmp_path)
    assert folder.is_dir()
    assert not folder.is_relative_to(tmp_path / "gone")
    folder.rmdir()


def test_a_runtime_folder_in_which_others_can_rename_is_done_without(tmp_path: Path, runtime: Path) -> None:
    runtime.chmod(0o777)
    folder = state_folder.ensure_socket_folder(tmp_path)
    assert not folder.is_relative_to(runtime)
    folder.rmdir()
    runtime.chmod(0o1777)
    assert state_folder.ensure_socket_folder(tmp_path).is_relative_to(runtime)


@pytest.fixture
def bases(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No place for sockets but one base, and then the home."""
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


def _somebody_elses(root: Path) -> None:
    root.mkdir(mode=0o700)
    os.chown(root, 65534, 65534)


TAKEN = [_open_to_others, _a_link, Path.touch, pytest.param(_somebody_elses, marks=AS_ROOT)]


@pytest.mark.parametrize("take", TAKEN)
def test_socket_folder_of_strangers(bases: Path, runtime: Path, tmp_path: Path, take: Callable[[Path], None]) -> None:
    """Whoever has made a folder of our name in /tmp keeps us from nothing."""
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


def test_settings_of_the_working_folder_come_before_those_at_home(world: Path, tmp_path: Path) -> None:
    assert state_folder.host_groups() == {}
    state_folder.state_home()
    (world / "skyward.toml").write_text('[hosts]\nlab = ["a", "b"]\none = "c"\n[theirs]\nx = 1\n')
    assert state_folder.host_groups() == {"lab": ["a", "b"], "one": ["c"]}
    (tmp_path / "skyward.toml").write_text('[hosts]\none = ["d"]\n')
    assert state_folder.host_groups() == {"lab": ["a", "b"], "one": ["d"]}


@pytest.mark.parametrize("content", [b"nodes = ", b"\xff\xfe", b"a = 1\na = 2\n"])
def test_settings_that_do_not_parse_are_a_clear_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "skyward.toml").write_bytes(content)
    with pytest.raises(UsageError, match=r"Cannot parse .*skyward\.toml: "):
        state_folder.host_groups()


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("hosts = 5", "hosts"),
        ("[hosts]\nlab = 5", r"hosts\.lab"),
        ('[hosts]\nlab = ["a", 7]', r"hosts\.lab\.1"),
    ],
)
def test_settings_that_make_no_sense_are_named(content: str, where: str, tmp_path: Path) -> None:
    (tmp_path / "skyward.toml").write_text(content)
    with pytest.raises(UsageError, match=rf"Invalid settings in .*skyward\.toml: {where}: Input should be"):
        state_folder.host_groups()
    with pytest.raises(UsageError, match="Invalid settings"):
        sky.SSH(hosts="lab")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to somebody else")
@pytest.mark.parametrize("theirs", ["skyward.toml", "."])
def test_settings_that_a_stranger_may_have_left_are_not_believed(theirs: str, tmp_path: Path) -> None:
    """A host of such a group, with a login of theirs, would be given our code and what it is told."""
    (tmp_path / "skyward.toml").write_text('[hosts]\nlab = ["mallory@gpu1"]\n')
    os.chown(tmp_path / theirs, 65534, 65534)
    for ask in (state_folder.host_groups, lambda: sky.SSH(hosts="lab")):
        with pytest.raises(UsageError, match=r"Refusing to read .*skyward\.toml: .* belongs to another user"):
            ask()
    os.chown(tmp_path / theirs, 0, 0)
    assert state_folder.host_groups() == {"lab": ["mallory@gpu1"]}
    tmp_path.chmod(0o777)
    with pytest.raises(UsageError, match="can be written by others"):
        state_folder.host_groups()


def test_settings_that_cannot_be_read_are_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "skyward.toml").mkdir()
    with pytest.raises(UsageError, match=r"Cannot read .*skyward\.toml: "):
        state_folder.host_groups()


def test_a_home_that_cannot_be_is_told_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError) as caught:
        state_folder.state_home()
    said = str(caught.value)
    assert said.startswith(f"Cannot create the private folder {tmp_path / 'file'}: ")
    assert said.endswith(". Set SKYWARD_HOME to another folder.")
