"""Budgets for the English of documentation, docstrings, messages and commit titles."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support import prose_rules as rules
from tests.support.prose_rules import Text

ROOT = Path(__file__).parents[2]
KINDS = ("pages", "module docstrings", "function docstrings", "messages")
TITLE = re.compile(r"(?:feat|fix|perf|refactor|test|docs|ci|build|style|chore)(?:\([a-z0-9_ ,/.-]+\))?!?: (.+)")
TITLES = 40  # of the latest commits

Measure = Callable[[list[Text]], tuple[float, list[str]]]
# A measure, its upper bound, and a text that is above it.
BUDGETS: dict[str, tuple[Measure, float, str]] = {
    "opened by a clause, %": (rules.percent_opened_by_clause, 2, "What an agent is told when it is started."),
    "clauses in place of nouns per 1,000 words": (
        lambda texts: rules.per_thousand_words(texts, rules.CLAUSE_AS_NOUN),
        3,
        "The run ends for who leaves the app.",
    ),
    "private idioms per 1,000 words": (
        lambda texts: rules.per_thousand_words(texts, rules.IDIOM),
        3,
        "Runs of late are looked at anew.",
    ),
}


@cache
def texts(kind: str) -> list[Text]:
    """Return the texts of one kind."""
    paths = [path for package in ("skyward_core", "skyward_tui") for path in sorted((ROOT / package).rglob("*.py"))]
    if kind == "pages":
        return rules.pages(ROOT)
    if kind == "messages":
        return rules.messages(paths)
    return rules.docstrings(paths)[kind == "function docstrings"]


@pytest.mark.parametrize("measure", BUDGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_texts_stay_within_their_prose_budget(kind: str, measure: str) -> None:
    rate, bound, _ = BUDGETS[measure]
    value, found = rate(texts(kind))
    assert value <= bound, "\n".join(found[:20])


@pytest.mark.parametrize("measure", BUDGETS)
def test_offending_text_exceeds_its_prose_budget(measure: str) -> None:
    rate, bound, offence = BUDGETS[measure]
    assert rate([Text("offence", offence)])[0] > bound


def test_documentation_pages_have_short_sentences() -> None:
    value, found = rules.percent_long(texts("pages"))
    assert value <= 8, "\n".join(found[:20])
    assert rules.percent_long([Text("offence", "A sentence with " + "word " * 30)])[0] == 100


def test_function_docstrings_begin_with_a_verb() -> None:
    value, found = rules.percent_without_verb(texts("function docstrings"))
    assert value <= 10, "\n".join(found[:40])
    assert [*map(rules.begins_with_verb, ("The ranks of a node.", "Seconds until it ends.", "Focus a panel."))] == [
        False, False, True,
    ]  # fmt: skip


def test_latest_commit_titles_are_conventional() -> None:
    command = ["git", "log", "--no-merges", f"-{TITLES}", "--format=%s"]
    log = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if log.returncode:
        pytest.skip("this is not a git checkout")
    assert [title for title in log.stdout.splitlines() if not is_conventional(title)] == []


def is_conventional(title: str) -> bool:
    """Check a title for the form ``type(scope): imperative`` in at most 72 characters."""
    parts = TITLE.fullmatch(title)
    return parts is not None and len(title) <= 72 and rules.begins_with_verb(parts[1])


@pytest.mark.parametrize(
    "title", ["fix: the app leaves a run", "exit cleanly", "fix(tui): exit cleanly while " + "runs " * 12]
)
def test_unconventional_title_is_an_offence(title: str) -> None:
    assert not is_conventional(title)
