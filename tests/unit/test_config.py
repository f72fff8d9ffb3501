"""Where things are kept, and who may look into them."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.model.errors import UsageError
from skyward_core.store import home as config


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
    for content, kept in ((), False), (("ledger.db",), False), (("thesis.tex",), True):
        world.mkdir()
        world.chmod(0o755)
        for name in content:
            (world / name).touch()
        assert mode(config.home()) == (0o755 if kept else 0o700)
        assert mode(config.pool_dir("p.1").parent) == 0o700
        shutil.rmtree(world)


def test_skyward_home_overrides_and_is_private(world: Path) -> None:
    assert config.home() == world
    assert mode(world) == 0o700
    assert config.home() == world, "a second time finds it"
    assert config.pool_dir("p.t1") == world / "pools" / "p.t1"
    assert mode(world / "pools" / "p.t1") == 0o700


def test_home_is_absolute_wherever_one_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", "rel")
    assert config.home() == tmp_path / "rel"
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setenv("SKYWARD_HOME", "~/sky")
    assert config.home() == tmp_path / "me" / "sky"


def test_without_it_the_platform_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKYWARD_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert config.home().is_relative_to(tmp_path / "me")
    assert config.home().name == "skyward"


def test_a_home_that_cannot_be_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("SKYWARD_HOME", str(place))
        with pytest.raises(UsageError, match=r"file.*SKYWARD_HOME"):
            config.home()


def test_a_socket_folder_is_short_private_and_one_per_owner(tmp_path: Path, runtime: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    first = config.socket_dir(deep)
    assert first == config.socket_dir(deep) != config.socket_dir(tmp_path)
    assert first.is_relative_to(runtime)
    assert mode(first) == mode(first.parent) == 0o700


def test_a_socket_can_be_bound_there_however_deep_the_base_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 50) / ("y" * 50)
    deep.mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    folder = config.socket_dir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "1023.sock.w"))
    (folder / "1023.sock.w").unlink()
    folder.rmdir()


def test_a_runtime_folder_that_is_not_there_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))  # as after su, or in a container
    folder = config.socket_dir(tmp_path)
    assert folder.is_dir()
    assert not folder.is_relative_to(tmp_path / "gone")
    folder.rmdir()


def test_a_runtime_folder_in_which_others_can_rename_is_done_without(tmp_path: Path, runtime: Path) -> None:
    runtime.chmod(0o777)
    folder = config.socket_dir(tmp_path)
    assert not folder.is_relative_to(runtime)
    folder.rmdir()
    runtime.chmod(0o1777)
    assert config.socket_dir(tmp_path).is_relative_to(runtime)


def test_a_socket_folder_that_others_may_enter_is_refused(tmp_path: Path, runtime: Path) -> None:
    root = runtime / f"skyward-{os.getuid()}"
    root.mkdir()
    for bits in (0o750, 0o701, 0o777):
        root.chmod(bits)
        with pytest.raises(UsageError, match="only you can enter"):
            config.socket_dir(tmp_path)


def test_a_socket_folder_that_is_a_link_or_a_file_is_refused(tmp_path: Path, runtime: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    root = runtime / f"skyward-{os.getuid()}"
    root.symlink_to(elsewhere)
    with pytest.raises(UsageError, match="only you can enter"):
        config.socket_dir(tmp_path)
    root.unlink()
    root.write_text("")
    with pytest.raises(UsageError, match="only you can enter"):
        config.socket_dir(tmp_path)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to somebody else")
def test_a_socket_folder_of_somebody_else_is_refused(tmp_path: Path, runtime: Path) -> None:
    root = runtime / f"skyward-{os.getuid()}"
    root.mkdir(mode=0o700)
    os.chown(root, 65534, 65534)
    with pytest.raises(UsageError, match="only you can enter"):
        config.socket_dir(tmp_path)


def test_settings_of_the_working_folder_come_before_those_at_home(world: Path, tmp_path: Path) -> None:
    assert (config.host_groups(), config.keys()) == ({}, {})
    config.home()
    (world / "skyward.toml").write_text(
        '[hosts]\nlab = ["a", "b"]\none = "c"\n[keys]\nquit = "x"\n[theirs]\nx = 1\n'
    )
    assert config.host_groups() == {"lab": ["a", "b"], "one": ["c"]}
    assert config.keys() == {"quit": "x"}
    (tmp_path / "skyward.toml").write_text('[hosts]\none = ["d"]\n')
    assert config.host_groups() == {"lab": ["a", "b"], "one": ["d"]}
    assert config.keys() == {"quit": "x"}


@pytest.mark.parametrize("content", [b"nodes = ", b"\xff\xfe", b"a = 1\na = 2\n"])
def test_settings_that_do_not_parse_are_a_clear_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "skyward.toml").write_bytes(content)
    with pytest.raises(UsageError, match=r"skyward\.toml does not parse: "):
        config.host_groups()


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("hosts = 5", "hosts"),
        ("[hosts]\nlab = 5", r"hosts\.lab"),
        ('[hosts]\nlab = ["a", 7]', r"hosts\.lab\.1"),
        ("[keys]\nquit = 1", r"keys\.quit"),
    ],
)
def test_settings_that_make_no_sense_are_named(content: str, where: str, tmp_path: Path) -> None:
    (tmp_path / "skyward.toml").write_text(content)
    with pytest.raises(UsageError, match=rf"skyward\.toml cannot be used: {where}: Input should be"):
        config.host_groups()
    with pytest.raises(UsageError, match="cannot be used"):
        sky.SSH(hosts="lab")


def test_settings_that_cannot_be_read_are_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "skyward.toml").mkdir()
    with pytest.raises(UsageError, match=r"skyward\.toml cannot be read: "):
        config.keys()


def test_a_home_that_cannot_be_is_told_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError) as caught:
        config.home()
    said = str(caught.value)
    assert said.startswith(f"cannot make the private folder {tmp_path / 'file'}: ")
    assert said.endswith("; set SKYWARD_HOME to another folder")
