"""Measures of plain English: clauses in place of nouns, idioms, long sentences, docstrings without a verb.

The rules are those of the style section of CONTRIBUTING.md. Good documentation has some of these patterns, too, so the
bounds in `tests/unit/test_prose.py` are not zero: the texts of Textual and distributed keep them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.sources import nodes_of

CLAUSE_OPENER = re.compile(r"(?:What|Who(?:ever|se|m)?|Where|Which|Whether|Of|Those)\b(?!.*\?$)")
CLAUSE_AS_NOUN = re.compile(
    r"(?:^|(?<=[.,;:(])|\b(?:of|by|for|to|with|than|from|and|in|is)) *\b(?:what|who)(?:ever)? "
    r"(?!happens|to do|if\b|kind)",
    re.IGNORECASE,
)
IDIOM = re.compile(
    r"\b(?:of late|heed(?:s|ed)?|amiss|anew|to be had|be it|nonsense|told|tells of|(?:says?|said) of|nobody|somebody"
    r"|the person|goes on with|looked at|is believed|brought here|stands (?:in|there)|of (?:theirs|ours)|no more)\b",
    re.IGNORECASE,
)
SECTIONS = re.compile(r"\n\s*(?:Args|Returns|Raises|Yields|Attributes|Example)\b")
GENERATED = ("modules.md", "keys.md", "protocol.md")
# First words that are no verb in the imperative.
NO_VERB = re.compile(
    r"(?:an?|the|all|any|both|each|every|it|its|no|none|one|two|this|that|these|those|their|there|they|we|our|what|who|how"
    r"|where|when|which|why|whether|if|as|at|by|for|from|in|of|on|to|with|true|false|\w+(?:ing|ed|ly|tion|ness|ity)|\w+[^s]s)"
    r"$",
    re.IGNORECASE,
)
# Verbs in spite of their endings.
VERBS = re.compile(
    r"(?:alias|apply|bring|canvas|embed|exceed|feed|focus|mention|multiply|need|ping|position|proceed|question|reply|seed"
    r"|speed|string|succeed|supply)$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Text:
    """A text for readers, and where it stands."""

    place: str
    text: str


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text in Markdown or a docstring; code, tables and headings are left out."""
    text = re.sub(r"```.*?```|``[^`]*``|`[^`]*`", " CODE ", text, flags=re.DOTALL)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for paragraph in re.split(r"\n\s*\n", text):
        if re.match(r"\s*(?:[|#<>]|-{3})", paragraph):
            continue
        line = " ".join(each.strip().lstrip("-*0123456789. ") for each in paragraph.splitlines())
        yield from (each for each in re.split(r"(?<=[.!?])\s+", line) if len(each.split()) > 2)


def pages(root: Path) -> list[Text]:
    """Return the pages of the documentation, without generated ones."""
    paths = [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").rglob("*.md"))]
    return [Text(str(path.relative_to(root)), path.read_text("utf-8")) for path in paths if path.name not in GENERATED]


def docstrings(paths: Iterable[Path]) -> tuple[list[Text], list[Text]]:
    """Return the docstrings of modules, and those of functions without properties and sections."""
    modules, functions = [], []
    for path in paths:
        for node in nodes_of(path):
            if not isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            text = ast.get_docstring(node)
            if text and isinstance(node, ast.Module):
                modules.append(Text(str(path), text))
            elif text and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_property(node):
                functions.append(Text(f"{path}:{node.lineno}", SECTIONS.split(text)[0]))
    return modules, functions


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(each) for each in node.decorator_list)


def messages(paths: Iterable[Path]) -> list[Text]:
    """Return the strings of code that look like texts for users: at least four words on one line."""
    found = []
    for path in paths:
        nodes = list(nodes_of(path))
        docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(each.value) if isinstance(each, ast.Constant) else "X" for each in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                text = node.value
            else:
                continue
            if len(text.split()) >= 4 and re.search("[a-z] [a-z]", text) and "\n" not in text.strip():
                found.append(Text(f"{path}:{node.lineno}", text.strip()))
    return found


def percent_opened_by_clause(texts: Iterable[Text]) -> tuple[float, list[str]]:
    """Return the share of sentences that begin with a clause, and these sentences."""
    every = [(text.place, each) for text in texts for each in sentences(text.text)]
    found = [f"{place}: {each}" for place, each in every if CLAUSE_OPENER.match(each)]
    return 100 * len(found) / max(len(every), 1), found


def per_thousand_words(texts: Iterable[Text], rule: re.Pattern[str]) -> tuple[float, list[str]]:
    """Return the matches of a rule per 1,000 words, and their sentences."""
    every = [(text.place, each) for text in texts for each in sentences(text.text)]
    found = [f"{place}: {each}" for place, each in every for _ in rule.findall(each)]
    return 1000 * len(found) / max(sum(len(each.split()) for _, each in every), 1), found


def percent_long(texts: Iterable[Text], words: int = 30) -> tuple[float, list[str]]:
    """Return the share of sentences of more words than that, and these sentences."""
    every = [(text.place, each) for text in texts for each in sentences(text.text)]
    found = [f"{place}: {each}" for place, each in every if len(each.split()) > words]
    return 100 * len(found) / max(len(every), 1), found


def percent_without_verb(texts: Iterable[Text]) -> tuple[float, list[str]]:
    """Return the share of texts that do not begin with a verb in the imperative, and these texts."""
    every = list(texts)
    found = [f"{each.place}: {each.text.splitlines()[0]}" for each in every if not begins_with_verb(each.text)]
    return 100 * len(found) / max(len(every), 1), found


def begins_with_verb(text: str) -> bool:
    """Check whether the first word can be a verb in the imperative; endings and function words decide."""
    first = re.match(r"[A-Za-z]+", text)
    return first is not None and bool(VERBS.match(first[0]) or not NO_VERB.match(first[0]))
