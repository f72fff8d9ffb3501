"""Editing of host groups and tables in ``skyward.toml``, and values of a group of calls."""

# ruff: noqa: RUF005, SIM202, SIM300  # how such a value does as a right and a left side is what is tried
from __future__ import annotations

import copy
import json
import pickle
import pickletools
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.api.pool_operations import GroupValues
from skyward_core.client.settings_edits import remove_table, set_table
from skyward_core.client.ssh_host_groups_and_access import HostGroup, groups, new_group, resolve_hosts
from skyward_core.model.errors import UsageError
from skyward_core.store.skyward_toml import host_groups
from tests.support.examples import examples

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
    """Settings file of the state folder, with another working folder."""
    (home := tmp_path / "home").mkdir(mode=0o700)
    (work := tmp_path / "work").mkdir()
    monkeypatch.setenv("SKYWARD_HOME", str(home))
    monkeypatch.chdir(work)
    path = home / "skyward.toml"
    path.write_text(FILE)
    return path


def named(name: str) -> HostGroup:
    return next(group for group in groups() if group.name == name)


def test_host_group_edit_changes_only_its_own_text(file: Path) -> None:
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


def test_first_host_group_creates_the_file_and_last_one_empties_it(file: Path) -> None:
    file.unlink()
    new_group("lab", "gpu1")
    assert file.read_text() == '[hosts]\nlab = ["gpu1"]\n'
    named("lab").delete()
    assert file.read_text() == ""


def test_host_groups_of_the_working_folder_override_the_home(file: Path) -> None:
    Path("skyward.toml").write_text('[hosts]\nlab = ["near"]\n')
    assert named("lab").file == Path("skyward.toml").absolute() and named("lab").hosts == ["near"]
    named("lab").add_host("nearer")
    assert Path("skyward.toml").read_text() == '[hosts]\nlab = ["near", "nearer"]\n' and file.read_text() == FILE
    assert resolve_hosts([], groups()) == ["near", "nearer", "here", "there", "alone"]
    assert resolve_hosts(["desk", "gpu9", "@one", "here"], groups()) == ["here", "there", "gpu9", "alone"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda: named("lab").add_host("gpu1"), "gpu1 is already in lab"),
        (lambda: named("lab").add_host("@desk"), "is not a host"),
        (lambda: named("lab").add_host("a\x1b[2J"), "is not a host"),
        (lambda: named("one").remove_host("alone"), "the last host of one. Remove the group"),
        (lambda: named("lab").rename("desk"), "already has a group desk"),
        (lambda: named("lab").rename("a b"), "a group's name"),
        (lambda: new_group("lab", "gpu1"), "group lab already exists"),
        (lambda: resolve_hosts(["@none"], groups()), "no group 'none'"),
    ],
)
def test_invalid_host_group_edit_is_rejected_and_writes_nothing(file: Path, edit: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        edit()  # type: ignore[operator]
    assert file.read_text() == FILE


def test_host_groups_in_unsupported_toml_form_are_not_edited(file: Path) -> None:
    file.write_text('hosts = { lab = ["gpu1"] }\n')
    with pytest.raises(UsageError, match="Edit the file by hand"):
        named("lab").add_host("gpu2")
    file.write_text('hosts.lab = ["gpu1"]\n')
    with pytest.raises(UsageError, match="Edit the file by hand"):
        named("lab").rename("x")
    assert file.read_text() == 'hosts.lab = ["gpu1"]\n'


# What a group gives is a tuple, and does as a list where scripts of 0.12 take it for one.


def test_group_values_behave_as_a_tuple() -> None:
    values = GroupValues((1, "two", 3.0))
    one, two, three = values
    assert (one, two, three) == values == GroupValues([1, "two", 3.0]) and isinstance(values, tuple)
    assert values != (1, 2) and hash(values) == hash((1, "two", 3.0)) and {values: 1}[(1, "two", 3.0)] == 1  # type: ignore[index]
    assert type(values + (4,)) is type((0,) + values) is tuple and (0,) + values + (4,) == (0, 1, "two", 3.0, 4)


def test_group_values_compare_and_add_like_a_list() -> None:
    values = GroupValues((1, 2, 3))
    assert values == [1, 2, 3] and [1, 2, 3] == values and values != [1, 2] and not values != [1, 2, 3]
    assert values[:2] == [1, 2] and values[:2] == (1, 2) and values[-1] == 3
    assert values + [4] == [1, 2, 3, 4] and [0] + values == [0, 1, 2, 3]
    longer = [0]
    longer += values
    assert longer == [0, 1, 2, 3] and GroupValues() == [] and json.dumps(values) == "[1, 2, 3]"


@pytest.mark.parametrize("name", ["append", "sort", "extend"])
def test_group_values_list_mutators_explain_conversion(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"no method {name}\. Convert them with list\(values\)"):
        getattr(GroupValues([1]), name)
    assert not hasattr(GroupValues(), "nothing")


def test_pickled_group_values_load_without_the_library() -> None:
    values = GroupValues([1, [2]])
    saved = pickle.dumps(values)
    assert pickle.loads(saved) == values and copy.deepcopy(values) == values
    assert not [text for _, text, _ in pickletools.genops(saved) if "skyward" in str(text)]


@pytest.mark.proof("2 s of a processor")
def test_group_values_are_a_jax_pytree() -> None:
    jax = pytest.importorskip("jax")
    doubled = jax.tree.map(lambda each: each * 2, GroupValues([1, (2, 3)]))
    assert doubled == GroupValues([2, (4, 6)]) and type(doubled) is GroupValues
    assert GroupValues([1]) == [1]  # and again: it is told once


# A table of a person's TOML file is changed, and nothing else in it.

THEIRS = """\
# my hosts
[hosts]
lab = [
  "gpu1",
  # ["presets.small"] is no header
  "gpu2",
]   # two

text = '''
[presets.small]
'''

[presets.small]  # the usual one
# quick
script = "train.py"   # ours
nodes = 2
arguments = [
  "epochs=1",
]

# keys of mine
[keys]
"log.follow" = "F"
"""
PATH = ("presets", "small")


def test_set_table_keeps_unchanged_values_and_comments() -> None:
    made = set_table(THEIRS, PATH, {"script": "other.py", "arguments": ["epochs=1"], "provider": "local"})
    assert made == THEIRS.replace('"train.py"   # ours', '"other.py"   # ours').replace(
        'nodes = 2\narguments = [\n  "epochs=1",\n]\n', 'arguments = [\n  "epochs=1",\n]\nprovider = "local"\n'
    )


@pytest.mark.parametrize("before", ["", "[hosts]\nlab = 'a'", "a = 1\r\n", "\n\n"])
def test_set_table_accepts_empty_files_and_any_line_ending(before: str) -> None:
    made = set_table(before, PATH, {"script": "x.py"})
    assert tomllib.loads(made)["presets"] == {"small": {"script": "x.py"}}
    assert tomllib.loads(remove_table(made, PATH)) == tomllib.loads(before)
    assert ("\r\n" in before) == ('x.py"\r\n' in made)


@pytest.mark.parametrize(
    "theirs",
    [
        'presets = { small = { script = "a.py" } }\n',
        '[presets]\nsmall = { script = "a.py" }\n',
        'presets.small.script = "a.py"\n',
        "[[presets]]\nsmall = 1\n",
        '[[presets.small]]\nscript = "a.py"\n',
        "presets = 3\n",
    ],
)
def test_table_in_unsupported_toml_form_is_not_edited(theirs: str) -> None:
    with pytest.raises(UsageError, match="Edit the file by hand"):
        set_table(theirs, PATH, {"script": "b.py"})
    with pytest.raises(UsageError, match="Edit the file by hand"):
        remove_table(theirs, PATH)


def test_set_table_keeps_equal_subtables_and_rewrites_changed_ones() -> None:
    theirs = '[presets.small]\nnodes = 1\n[presets.small.settings]\n# mine\nhosts = "lab"\n\n[z]\na = 1\n'
    same = set_table(theirs, PATH, {"nodes": 1, "settings": {"hosts": "lab"}})
    assert same == theirs
    other = set_table(theirs, PATH, {"nodes": 1, "settings": {"hosts": "gpu1"}})
    assert tomllib.loads(other) == {"presets": {"small": {"nodes": 1, "settings": {"hosts": "gpu1"}}}, "z": {"a": 1}}
    assert "# mine" in other
    assert tomllib.loads(remove_table(theirs, PATH)) == {"z": {"a": 1}}


TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
VALUES = st.dictionaries(
    TEXT,
    st.one_of(
        TEXT, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.lists(TEXT, max_size=3),
        st.floats(allow_nan=False), st.dictionaries(TEXT, TEXT, max_size=2),
    ),
    max_size=4,
)  # fmt: skip


@settings(max_examples=examples(40), deadline=None)
@given(TEXT, VALUES, VALUES)
def test_set_table_round_trips_any_name_and_values(name: str, values: dict, others: dict) -> None:  # type: ignore[type-arg]
    once = set_table(THEIRS, ("presets", name), values)
    twice = set_table(once, ("presets", name), others)
    assert tomllib.loads(once)["presets"][name] == values
    assert tomllib.loads(twice)["presets"][name] == others
    if name != "small":
        assert remove_table(twice, ("presets", name)) == THEIRS
