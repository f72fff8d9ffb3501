"""Trust in folders of a host: only those that no other user could have written to."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward_core.node.bootstrap import host_command_server, host_inspection

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
    bundle = tmp_path / "bundle-1" / "all.zip"
    bundle.parent.mkdir()
    bundle.write_bytes(b"theirs")
    os.chown(bundle, STRANGER, STRANGER)
    sent = zlib.compress(b"ours") + b"!"
    monkeypatch.setattr(host_command_server, "receive", lambda size: sent)
    host_command_server.save_bundle(str(tmp_path), "bundle-1/all.zip", len(sent))
    assert bundle.read_bytes() == b"ours!"
    assert bundle.stat().st_uid == 0
