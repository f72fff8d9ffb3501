"""A table of a person's TOML file is changed, and nothing else in it."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.client.settings_file import remove_table, set_table
from skyward_core.model.errors import UsageError
from tests.support.examples import examples

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


def test_a_new_table_stands_at_the_end_and_the_rest_is_as_it_was() -> None:
    made = set_table(THEIRS, ("presets", "large run"), {"script": "a b.py", "nodes": 8, "keep": True})
    assert made == THEIRS + '\n[presets."large run"]\nscript = "a b.py"\nnodes = 8\nkeep = true\n'
    assert remove_table(made, ("presets", "large run")) == THEIRS


def test_what_says_the_same_stays_as_it_was_written_and_comments_stay() -> None:
    made = set_table(THEIRS, PATH, {"script": "other.py", "arguments": ["epochs=1"], "provider": "local"})
    assert made == THEIRS.replace('"train.py"   # ours', '"other.py"   # ours').replace(
        'nodes = 2\narguments = [\n  "epochs=1",\n]\n',
        'arguments = [\n  "epochs=1",\n]\nprovider = "local"\n',
    )


def test_a_table_goes_and_the_comment_of_the_next_one_stays() -> None:
    made = remove_table(THEIRS, PATH)
    assert "# keys of mine\n[keys]" in made and "script" not in made
    assert tomllib.loads(made).keys() == {"hosts", "keys"}


@pytest.mark.parametrize("before", ["", "[hosts]\nlab = 'a'", "a = 1\r\n", "\n\n"])
def test_a_file_may_be_empty_or_have_no_last_line_end(before: str) -> None:
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
def test_a_table_that_is_written_otherwise_is_left_alone(theirs: str) -> None:
    with pytest.raises(UsageError, match="change it in an editor"):
        set_table(theirs, PATH, {"script": "b.py"})
    with pytest.raises(UsageError, match="change it in an editor"):
        remove_table(theirs, PATH)


def test_tables_in_it_are_kept_or_written_anew() -> None:
    theirs = '[presets.small]\nnodes = 1\n[presets.small.settings]\n# mine\nhosts = "lab"\n\n[z]\na = 1\n'
    same = set_table(theirs, PATH, {"nodes": 1, "settings": {"hosts": "lab"}})
    assert same == theirs
    other = set_table(theirs, PATH, {"nodes": 1, "settings": {"hosts": "gpu1"}})
    assert tomllib.loads(other) == {
        "presets": {"small": {"nodes": 1, "settings": {"hosts": "gpu1"}}},
        "z": {"a": 1},
    }
    assert "# mine" in other
    assert tomllib.loads(remove_table(theirs, PATH)) == {"z": {"a": 1}}


def test_what_no_file_can_hold_is_refused() -> None:
    with pytest.raises(UsageError, match="no text file"):
        set_table("", PATH, {"script": "\udc80.py"})


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
def test_any_name_and_values_come_back_as_they_were(name: str, values: dict, others: dict) -> None:  # type: ignore[type-arg]
    once = set_table(THEIRS, ("presets", name), values)
    twice = set_table(once, ("presets", name), others)
    assert tomllib.loads(once)["presets"][name] == values
    assert tomllib.loads(twice)["presets"][name] == others
    if name != "small":
        assert remove_table(twice, ("presets", name)) == THEIRS
