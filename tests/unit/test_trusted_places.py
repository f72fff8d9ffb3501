"""Which folders of a host are believed: those that nobody but us and root could have put anything into."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward_core.node.bootstrap import host_command_server, host_inspection

STRANGER = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to somebody else")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A pool's folder in a root of ours, three folders down."""
    folder = tmp_path / "cache" / "skyward" / "pools" / "train.a.0"
    folder.mkdir(parents=True, mode=0o700)
    for path in (folder, *list(folder.parents)[:3]):
        path.chmod(0o755)
    yield folder


def test_what_only_we_can_write_is_believed(place: Path) -> None:
    assert host_inspection.distrust_reason(str(place)) == ""
    assert host_inspection.distrust_reason(str(place / "not" / "there")) == ""
    assert host_inspection.distrust_reason(f"{place}/../train.a.0/.") == ""


@as_root
@pytest.mark.parametrize("up", range(4))
def test_each_folder_on_the_way_counts(place: Path, up: int) -> None:
    theirs = (place, *place.parents)[up]
    os.chown(theirs, STRANGER, STRANGER)
    assert host_inspection.distrust_reason(str(place)) == f"{theirs} belongs to somebody else"


@pytest.mark.parametrize("up", range(4))
@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_each_folder_that_others_write_counts(place: Path, up: int, mode: int) -> None:
    open_to_all = (place, *place.parents)[up]
    open_to_all.chmod(mode)
    assert host_inspection.distrust_reason(str(place)) == f"{open_to_all} can be written by others"


@as_root
def test_a_group_may_write_where_it_is_the_owner_s_own(place: Path) -> None:
    place.parent.chmod(0o775)
    assert host_inspection.distrust_reason(str(place)) == ""
    os.chown(place.parent, 0, 100)
    assert host_inspection.distrust_reason(str(place)) == f"{place.parent} can be written by others"


def test_a_folder_like_tmp_is_no_hindrance_but_no_place_either(place: Path) -> None:
    shared = place.parents[1]
    shared.chmod(0o1777)
    assert host_inspection.distrust_reason(str(place)) == ""
    assert host_inspection.distrust_reason(str(shared)) == f"{shared} can be written by others"


def test_links_are_followed(place: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(place.parent)
    assert host_inspection.distrust_reason(f"{link}/{place.name}") == ""
    place.parent.chmod(0o777)
    assert host_inspection.distrust_reason(f"{link}/{place.name}") == f"{place.parent} can be written by others"
    (tmp_path / "round").symlink_to("round")
    assert "leads nowhere" in host_inspection.distrust_reason(f"{tmp_path}/round/x")


@as_root
def test_a_link_of_somebody_else_s_is_not_followed(place: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("cache/skyward")
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    assert host_inspection.distrust_reason(f"{link}/pools") == f"{link} belongs to somebody else"


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two roots in place of the ones of this machine."""
    places = [tmp_path / "first", tmp_path / "second"]
    monkeypatch.setattr(host_inspection, "ROOTS", tuple(map(str, places)))
    return places


def leave(root: Path, folder: str) -> Path:
    place = root / "pools" / folder
    place.mkdir(parents=True)
    root.chmod(0o755)
    (place / "agent.json").write_text("{}")
    return place


@as_root
def test_a_stranger_s_folder_with_the_pool_s_name_is_passed_over(roots: list[Path]) -> None:
    theirs = leave(roots[0], "train.a.0")
    for path in (roots[0], theirs.parent, theirs, theirs / "agent.json"):
        os.chown(path, STRANGER, STRANGER)
    ours = leave(roots[1], "train.a.0")
    assert host_inspection.choose_root("train.a.0") == (str(roots[1]), [], "")
    (ours / "agent.json").unlink()
    root, wrong, doubted = host_inspection.choose_root("train.a.0")
    assert (root, wrong, doubted) == (str(roots[1]), [f"{roots[0]}: {roots[0]} belongs to somebody else"], "")


def test_of_our_own_folder_that_others_can_write_nothing_is_said_to_be_gone(roots: list[Path]) -> None:
    place = leave(roots[0], "train.a.0")
    place.parent.chmod(0o777)
    why = f"{place.parent} can be written by others"
    assert host_inspection.choose_root("train.a.0") == ("", [why], why)


def test_a_root_in_which_others_can_have_left_something_is_not_used(roots: list[Path]) -> None:
    (roots[0] / "work").mkdir(parents=True)
    roots[0].chmod(0o755)
    (roots[0] / "work").chmod(0o777)
    root, wrong, _ = host_inspection.choose_root("")
    assert (root, wrong) == (str(roots[1]), [f"{roots[0]}: {roots[0]}/work can be written by others"])
    roots[0].chmod(0o700)  # nobody else can come that far
    assert host_inspection.choose_root("")[0] == str(roots[0])


@as_root
def test_a_bundle_that_others_can_have_changed_is_put_there_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
