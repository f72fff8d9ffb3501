"""What a launch says of its ranks' environment, as the fields of a form."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.client.launch.image_options import IMAGE_FIELDS, field_texts, split_by_field
from tests.support.examples import examples

FIELDS = {each.name: each for each in IMAGE_FIELDS}
VALUES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1).filter(str.strip)
TEXTS = st.one_of(
    st.tuples(st.sampled_from(["pip", "apt", "includes", "excludes", "secret"]), VALUES).map("=".join),
    st.tuples(st.from_regex(r"env\.[A-Z_]+", fullmatch=True), st.text()).map("=".join),
)


@settings(max_examples=examples(100))
@given(st.lists(TEXTS), st.lists(VALUES, max_size=1))
def test_fields_say_what_the_texts_do(texts: list[str], setup: list[str]) -> None:
    texts += [f"setup={each}" for each in setup]
    said = split_by_field(texts)
    assert said.keys() <= FIELDS.keys()
    again = [each for name, text in said.items() for each in field_texts(name, text)]
    assert sorted(again) == sorted(texts)


def test_commands_of_a_setup_are_one_line() -> None:
    assert split_by_field(["setup=make one", "setup=make two"]) == {"setup": "make one && make two"}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("pip", "einops", ""),
        ("pip", "", ""),
        ("pip", "'half", "No closing quotation"),
        ("pip", "https://me:word@host/x.whl", "holds a password or token in a URL"),
        ("setup", "it's one line && 'half", ""),
        ("env", "A=1 B=", ""),
        ("env", "A", "env.A: write what it is to be as env.A=VALUE"),
        ("env", "1A=x", "'1A' is no name of a variable"),
        ("env", "MY_TOKEN=x", "MY_TOKEN is a secret by its name"),
        ("secrets", "MY_TOKEN OTHER", ""),
        ("secrets", "MY-TOKEN", "'MY-TOKEN' is no name of a variable"),
    ],
)
def test_what_is_amiss_is_told_of_its_field(name: str, text: str, words: str) -> None:
    said = FIELDS[name].validation_error(text)
    assert said.startswith(words) if words.startswith(("env.", "'", "No", "MY")) else words in said
    assert bool(said) == bool(words)


def test_words_are_as_a_shell_has_them() -> None:
    assert field_texts("pip", shlex.join(["a b", "c"])) == ["pip=a b", "pip=c"]
