"""Atomic file writes, trust in folders, and the alias installer."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward_core.client import skyward_alias_installer
from skyward_core.client import user_settings_and_app_state as settings
from skyward_core.model.errors import UsageError
from skyward_core.node.bootstrap import host_command_server, host_inspection
from skyward_core.util.safe_file_access import write_atomic
from tests.support.child import Child

BEGIN = "import os, signal, sys, time\nfrom pathlib import Path\n"
DIE = "Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
WRITE = "from skyward_core.util.safe_file_access import write_atomic\nwrite_atomic(Path(sys.argv[1]), b'new' * 1000)\n"
REMEMBER = (
    "from skyward_core.client import user_settings_and_app_state as settings\n"
    "settings.save_state('recent', 'new' * 1000)\n"
)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_draft_of_a_killed_process_is_replaced_by_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomic(path, b"old")
    killed = subprocess.run([sys.executable, "-c", BEGIN + DIE + WRITE, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (path.read_bytes(), len(names(tmp_path))) == (b"old", 2)
    write_atomic(path, b"short")
    assert (path.read_bytes(), names(tmp_path)) == (b"short", {"a"})


def test_draft_of_killed_state_save_is_replaced_by_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    settings.save_state("recent", "old")
    killed = subprocess.run([sys.executable, "-c", BEGIN + DIE + REMEMBER], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert settings.load_state("recent") == "old"
    settings.save_state("recent", "newer")
    assert settings.load_state("recent") == "newer"
    assert names(tmp_path) == {".skyward-state", "recent.json"}


def test_concurrent_atomic_writes_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a"
    halt = "was = Path.replace\nPath.replace = lambda *to: (print(flush=True), sys.stdin.read(), was(*to))\n"
    command = [sys.executable, "-c", BEGIN + halt + WRITE, str(path)]
    with Child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None and other.stdout is not None
        other.stdout.readline()
        with pytest.raises(BlockingIOError, match=r"another process is writing .*a\.draft"):
            write_atomic(path, b"ours")
        assert not path.exists()
        other.stdin.close()
        assert other.wait() == 0
    assert (path.read_bytes(), names(tmp_path)) == (b"new" * 1000, {"a"})


def test_atomic_write_leaves_a_file_just_renamed_by_another_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other writer renames the draft between our open and our lock."""
    path = tmp_path / "a"
    (tmp_path / "a.draft").write_bytes(b"theirs")

    def lock(descriptor: int, how: int) -> None:
        (tmp_path / "a.draft").rename(path)

    monkeypatch.setattr("fcntl.flock", lock)
    with pytest.raises(BlockingIOError):
        write_atomic(path, b"ours")
    assert (path.read_bytes(), names(tmp_path)) == (b"theirs", {"a"})


def test_atomic_write_sets_permissions(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", b"mine")
    write_atomic(tmp_path / "b", b"anybody's", mode=0o644)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "ab"] == [0o600, 0o644]


def test_failed_atomic_write_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="a"):
        write_atomic(tmp_path / "a", b"x")
    assert names(tmp_path) == {"a"}


# Which folders of a host are believed: those that nobody but us and root could have put anything into.

STRANGER = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to somebody else")


@pytest.fixture
def pool_folder(tmp_path: Path) -> Iterator[Path]:
    """Pool folder three levels below a root."""
    folder = tmp_path / "cache" / "skyward" / "pools" / "train.a.0"
    folder.mkdir(parents=True, mode=0o700)
    for path in (folder, *list(folder.parents)[:3]):
        path.chmod(0o755)
    yield folder


def test_folder_writable_only_by_its_owner_is_trusted(pool_folder: Path) -> None:
    assert host_inspection.distrust_reason(str(pool_folder)) == ""
    assert host_inspection.distrust_reason(str(pool_folder / "not" / "there")) == ""
    assert host_inspection.distrust_reason(f"{pool_folder}/../train.a.0/.") == ""


@as_root
@pytest.mark.parametrize("up", range(4))
def test_parent_folder_of_another_user_is_distrusted(pool_folder: Path, up: int) -> None:
    theirs = (pool_folder, *pool_folder.parents)[up]
    os.chown(theirs, STRANGER, STRANGER)
    assert host_inspection.distrust_reason(str(pool_folder)) == f"{theirs} belongs to another user"


@pytest.mark.parametrize("up", range(4))
@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_parent_folder_writable_by_others_is_distrusted(pool_folder: Path, up: int, mode: int) -> None:
    open_to_all = (pool_folder, *pool_folder.parents)[up]
    open_to_all.chmod(mode)
    assert host_inspection.distrust_reason(str(pool_folder)) == f"{open_to_all} can be written by others"


@as_root
def test_group_writable_folder_is_trusted_only_for_the_own_group(pool_folder: Path) -> None:
    pool_folder.parent.chmod(0o775)
    assert host_inspection.distrust_reason(str(pool_folder)) == ""
    os.chown(pool_folder.parent, 0, 100)
    reason = host_inspection.distrust_reason(str(pool_folder))
    assert reason == f"{pool_folder.parent} can be written by others"


def test_sticky_parent_folder_is_trusted_but_not_as_target(pool_folder: Path) -> None:
    shared = pool_folder.parents[1]
    shared.chmod(0o1777)
    assert host_inspection.distrust_reason(str(pool_folder)) == ""
    assert host_inspection.distrust_reason(str(shared)) == f"{shared} can be written by others"


def test_trust_check_follows_links(pool_folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(pool_folder.parent)
    assert host_inspection.distrust_reason(f"{link}/{pool_folder.name}") == ""
    pool_folder.parent.chmod(0o777)
    assert (
        host_inspection.distrust_reason(f"{link}/{pool_folder.name}")
        == f"{pool_folder.parent} can be written by others"
    )
    (tmp_path / "round").symlink_to("round")
    assert "too many levels of links" in host_inspection.distrust_reason(f"{tmp_path}/round/x")


@as_root
def test_link_of_another_user_is_distrusted(pool_folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("cache/skyward")
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    assert host_inspection.distrust_reason(f"{link}/pools") == f"{link} belongs to another user"


@pytest.fixture
def pool_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two roots that replace those of this machine."""
    places = [tmp_path / "first", tmp_path / "second"]
    monkeypatch.setattr(host_inspection, "ROOTS", tuple(map(str, places)))
    return places


def make_pool_folder(root: Path, folder: str) -> Path:
    place = root / "pools" / folder
    place.mkdir(parents=True)
    root.chmod(0o755)
    (place / "agent.json").write_text("{}")
    return place


@as_root
def test_pool_folder_of_another_user_is_skipped(pool_roots: list[Path]) -> None:
    theirs = make_pool_folder(pool_roots[0], "train.a.0")
    for path in (pool_roots[0], theirs.parent, theirs, theirs / "agent.json"):
        os.chown(path, STRANGER, STRANGER)
    ours = make_pool_folder(pool_roots[1], "train.a.0")
    assert host_inspection.choose_root("train.a.0") == (str(pool_roots[1]), [], "")
    (ours / "agent.json").unlink()
    root, wrong, doubted = host_inspection.choose_root("train.a.0")
    assert (root, wrong, doubted) == (
        str(pool_roots[1]),
        [f"{pool_roots[0]}: {pool_roots[0]} belongs to another user"],
        "",
    )


def test_own_pool_folder_writable_by_others_is_reported(pool_roots: list[Path]) -> None:
    place = make_pool_folder(pool_roots[0], "train.a.0")
    place.parent.chmod(0o777)
    why = f"{place.parent} can be written by others"
    assert host_inspection.choose_root("train.a.0") == ("", [why], why)


def test_root_folder_with_content_writable_by_others_is_skipped(pool_roots: list[Path]) -> None:
    (pool_roots[0] / "work").mkdir(parents=True)
    pool_roots[0].chmod(0o755)
    (pool_roots[0] / "work").chmod(0o777)
    root, wrong, _ = host_inspection.choose_root("")
    assert (root, wrong) == (str(pool_roots[1]), [f"{pool_roots[0]}: {pool_roots[0]}/work can be written by others"])
    pool_roots[0].chmod(0o700)  # nobody else can come that far
    assert host_inspection.choose_root("")[0] == str(pool_roots[0])


@as_root
def test_bundle_changeable_by_others_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import zlib

    bundle = tmp_path / "bundle-1" / "all.zip"
    bundle.parent.mkdir()
    bundle.write_bytes(b"theirs")
    os.chown(bundle, STRANGER, STRANGER)
    sent = zlib.compress(b"ours") + b"!"
    monkeypatch.setattr(host_command_server, "receive", lambda size: sent)
    host_command_server.save_bundle(str(tmp_path), "bundle-1/all.zip", len(sent))
    assert bundle.read_bytes() == b"ours!"
    assert bundle.stat().st_uid == 0


# The older name in an environment of a person's: written, found, and taken away; nothing else is touched.

SCRIPT = """
import skyward as sky, skyward_core
from skyward.accelerators import A100
import skyward.plugins
print(sky is skyward_core, sky.function.__module__, A100().name)
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Environment that contains this library and its dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (site / "these.pth").write_text("\n".join([str(ROOT), *ours]) + "\n")
    return folder


def python_of(environment: Path) -> str:
    return str(environment / "bin" / "python")


def test_installed_skyward_alias_works_in_scripts_until_removed(environment: Path, tmp_path: Path) -> None:
    python, script = python_of(environment), tmp_path / "script.py"
    script.write_text(SCRIPT)
    shim = skyward_alias_installer.install(python)
    assert shim.changed and shim.path.read_text().startswith(skyward_alias_installer.MARK)
    assert not skyward_alias_installer.install(python).changed
    output = subprocess.run([python, str(script)], capture_output=True, text=True, check=True).stdout
    assert output == "True skyward_core.model.function A100\n"
    assert skyward_alias_installer.remove(python).changed and not shim.path.exists()
    assert not skyward_alias_installer.remove(python).changed
    assert list(shim.path.parent.glob(".skyward-*")) == []


def test_skyward_alias_installer_keeps_files_of_other_packages(environment: Path) -> None:
    python = python_of(environment)
    (site,) = environment.glob("lib/python*/site-packages")
    other = site / "skyward.py"
    other.write_text("# somebody else's\n")
    try:
        with pytest.raises(UsageError, match=r"has another package skyward, at .*Uninstall it first"):
            skyward_alias_installer.install(python)
        with pytest.raises(UsageError, match="was not written by this program"):
            skyward_alias_installer.remove(python)
    finally:
        other.unlink()


def test_later_installed_skyward_package_takes_precedence(environment: Path) -> None:
    """Python finds a package folder before a module of the same name."""
    python = python_of(environment)
    shim = skyward_alias_installer.install(python)
    real = shim.path.with_suffix("")
    real.mkdir()
    (real / "__init__.py").write_text("")
    try:
        with pytest.raises(UsageError, match=r"at .*/skyward/__init__.py, which takes precedence"):
            skyward_alias_installer.install(python)
        assert skyward_alias_installer.remove(python).changed and not shim.path.exists() and real.exists()
    finally:
        shutil.rmtree(real)
        skyward_alias_installer.remove(python)


def test_skyward_module_in_user_site_packages_is_reported(environment: Path, tmp_path: Path) -> None:
    """User site packages precede those of an environment that includes system packages."""
    python = python_of(environment)
    seen = environment / "pyvenv.cfg"
    before = seen.read_text()
    seen.write_text(before.replace("include-system-site-packages = false", "include-system-site-packages = true"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONUSERBASE", str(tmp_path))
        own = Path(subprocess.run([python, "-m", "site", "--user-site"], capture_output=True, text=True).stdout.strip())
        own.mkdir(parents=True)
        (own / "skyward.py").write_text("")
        try:
            assert own.is_relative_to(tmp_path)
            with pytest.raises(UsageError, match=r"has another package skyward, at .*which takes precedence"):
                skyward_alias_installer.install(python)
        finally:
            seen.write_text(before)


def test_partial_skyward_alias_files_are_removed_by_the_next_install(environment: Path) -> None:
    python = python_of(environment)
    (site,) = environment.glob("lib/python*/site-packages")
    for name, text in (("none", ""), ("part", skyward_alias_installer.MARK + "import")):
        (site / f"{skyward_alias_installer._PREFIX}{name}").write_text(text)
    other = site / f"{skyward_alias_installer._PREFIX}core.pth"
    other.write_text("# somebody else's\n")
    shim = skyward_alias_installer.install(python)
    subprocess.run([python, "-c", "import skyward"], check=True, env={})
    assert [*site.glob(f"{skyward_alias_installer._PREFIX}*")] == [other] and [*site.glob("__pycache__/skyward.*")]
    assert skyward_alias_installer.remove(python).changed and not shim.path.exists()
    assert not [*site.glob("__pycache__/skyward.*")] and other.exists()


def test_unusable_python_is_rejected_by_the_alias_installer(environment: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Cannot find the packages of .*: No such file or directory$"):
        skyward_alias_installer.install(str(tmp_path / "nothing"))
    for text, why in {"echo no; exit 3": "it exited with status 3", "echo hello": "unexpected output",
                      "echo oh >&2; exit 1": "it exited with status 1: oh"}.items():  # fmt: skip
        (other := tmp_path / "other").write_text(f"#!/bin/sh\n{text}\n")
        other.chmod(0o755)
        with pytest.raises(UsageError, match=rf"Cannot find the packages of .*: {why}"):
            skyward_alias_installer.install(str(other))
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    with pytest.raises(UsageError, match=r"has no skyward_core, .*Install this package there first"):
        skyward_alias_installer.install(python_of(bare))
