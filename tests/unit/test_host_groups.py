"""Groups of hosts in ``skyward.toml`` are edited where they stand, and all else stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward_core.client.ssh_hosts import HostGroup, groups, new_group, resolve_hosts
from skyward_core.model.errors import UsageError
from skyward_core.store.state_folder import host_groups

FILE = """\
# Mine.
[app]
theme = "nord"

[hosts]
# The big boxes.
lab = [
    "gpu1",  # eight H100
    "me@gpu2:2222",
    'gpu3'   # slow disk
]
desk = ["here", "there"]  # under the desk
one = "alone"

[presets.x]
nodes = 2
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder's, and another folder to work in."""
    (home := tmp_path / "home").mkdir(mode=0o700)
    (work := tmp_path / "work").mkdir()
    monkeypatch.setenv("SKYWARD_HOME", str(home))
    monkeypatch.chdir(work)
    path = home / "skyward.toml"
    path.write_text(FILE)
    return path


def named(name: str) -> HostGroup:
    return next(group for group in groups() if group.name == name)


def test_each_edit_changes_what_it_says_and_no_other_letter(file: Path) -> None:
    expected = FILE

    def becomes(old: str, new: str) -> None:
        nonlocal expected
        assert old in expected
        expected = expected.replace(old, new)
        assert file.read_text() == expected

    named("lab").add_host("gpu4")
    becomes("    'gpu3'   # slow disk\n", "    'gpu3',   # slow disk\n    \"gpu4\"\n")
    named("lab").replace_host("me@gpu2:2222", "gpu2")
    becomes('"me@gpu2:2222"', '"gpu2"')
    named("lab").remove_host("gpu1")
    becomes('    "gpu1",  # eight H100\n', "")
    named("lab").remove_host("gpu4")
    becomes('    "gpu4"\n', "")
    named("desk").add_host("beside")
    becomes('"there"]', '"there", "beside"]')
    named("desk").remove_host("here")
    becomes('["here", ', "[")
    named("desk").remove_host("beside")
    becomes(', "beside"]', "]")
    named("desk").rename("office")
    becomes("desk =", "office =")
    named("one").add_host("two")
    becomes('one = "alone"', 'one = ["alone", "two"]')
    named("office").delete()
    becomes('office = ["there"]  # under the desk\n', "")
    new_group("far", "10.0.0.7")
    becomes('"two"]\n', '"two"]\nfar = ["10.0.0.7"]\n')
    assert host_groups() == {"lab": ["gpu2", "gpu3"], "one": ["alone", "two"], "far": ["10.0.0.7"]}
    assert [path.name for path in file.parent.iterdir() if "toml" in path.name] == ["skyward.toml"]


def test_the_first_group_makes_the_file_and_the_last_one_takes_the_table(file: Path) -> None:
    file.unlink()
    new_group("lab", "gpu1")
    assert file.read_text() == '[hosts]\nlab = ["gpu1"]\n'
    named("lab").delete()
    assert file.read_text() == ""


def test_the_working_folder_has_its_own_file(file: Path) -> None:
    Path("skyward.toml").write_text('[hosts]\nlab = ["near"]\n')
    assert named("lab").file == Path("skyward.toml").absolute() and named("lab").hosts == ["near"]
    named("lab").add_host("nearer")
    assert Path("skyward.toml").read_text() == '[hosts]\nlab = ["near", "nearer"]\n' and file.read_text() == FILE
    assert resolve_hosts([], groups()) == ["near", "nearer", "here", "there", "alone"]
    assert resolve_hosts(["desk", "gpu9", "@one", "here"], groups()) == ["here", "there", "gpu9", "alone"]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda: named("lab").add_host("gpu1"), "gpu1 is in lab already"),
        (lambda: named("lab").add_host("@desk"), "is no host"),
        (lambda: named("lab").add_host("a\x1b[2J"), "is no host"),
        (lambda: named("one").remove_host("alone"), "the last host of one: remove the group"),
        (lambda: named("lab").rename("desk"), "has a group desk already"),
        (lambda: named("lab").rename("a b"), "a group's name"),
        (lambda: new_group("lab", "gpu1"), "there is a group lab already"),
        (lambda: resolve_hosts(["@none"], groups()), "no group 'none'"),
    ],
)
def test_what_cannot_be_is_refused_in_words_and_nothing_is_written(file: Path, edit: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        edit()  # type: ignore[operator]
    assert file.read_text() == FILE


def test_a_file_that_is_written_otherwise_is_left_to_an_editor(file: Path) -> None:
    file.write_text('hosts = { lab = ["gpu1"] }\n')
    with pytest.raises(UsageError, match="change it in an editor"):
        named("lab").add_host("gpu2")
    file.write_text('hosts.lab = ["gpu1"]\n')
    with pytest.raises(UsageError, match="change it in an editor"):
        named("lab").rename("x")
    assert file.read_text() == 'hosts.lab = ["gpu1"]\n'
