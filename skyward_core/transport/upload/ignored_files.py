"""What ``.gitignore`` files leave out, where there is no git to read them; the rules are gitignore(5)'s."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from ...model.value import Value, value
from ...store.user_files import UnusableFile, read_text

NAME = ".gitignore"


@value
class Rule(Value):
    """One line of a file; ``pattern`` matches whole paths below the walk's folder."""

    pattern: re.Pattern[str]
    folders_only: bool
    keeps: bool


def walk(folder: Path, never: Callable[[str], bool]) -> Iterator[str]:
    """Paths of the files below a folder that are not ignored, and not ``never`` wanted."""
    left: list[tuple[Path, str, tuple[Rule, ...]]] = [(folder, "", ())]
    while left:  # folders may lie deeper in one another than functions may call each other
        at, below, rules = left.pop()
        rules += _rules(at / NAME, below)
        with os.scandir(at) as entries:
            for entry in entries:
                path, is_folder = below + entry.name, entry.is_dir(follow_symlinks=False)
                if never(path) or _ignored(path, is_folder, rules):
                    continue
                if is_folder:
                    left.append((Path(entry.path), f"{path}/", rules))
                else:
                    yield path


def _ignored(path: str, is_folder: bool, rules: tuple[Rule, ...]) -> bool:
    """The last rule that fits decides; of what lies in an ignored folder nobody asks."""
    fitting = (r for r in reversed(rules) if (is_folder or not r.folders_only) and r.pattern.fullmatch(path))
    rule = next(fitting, None)
    return rule is not None and not rule.keeps


def _rules(file: Path, below: str) -> tuple[Rule, ...]:
    try:
        lines = read_text(file, errors="surrogateescape").splitlines()
    except (FileNotFoundError, IsADirectoryError, UnusableFile):
        return ()
    return tuple(rule for line in lines if (rule := _rule(line, below)) is not None)


def _rule(line: str, below: str) -> Rule | None:
    text = re.sub(r"(?<!\\) +$", "", line)
    if not text or text.startswith("#"):
        return None
    keeps = text.startswith("!")
    text = text.removeprefix("!")
    folders_only = text.endswith("/")
    text = text.removesuffix("/")
    anywhere = "" if "/" in text else "(?:.*/)?"
    try:
        pattern = re.compile(re.escape(below) + anywhere + _translated(text.removeprefix("/")), re.DOTALL)
    except re.error:  # git takes such a line for one that fits nothing
        return None
    return Rule(pattern, folders_only, keeps)


_PIECES = re.compile(
    r"(?P<folders>(?:^|(?<=/))\*\*/)|(?P<all>(?<=/)\*\*$)|(?P<some>\*+)|(?P<one>\?)"
    r"|(?P<set>\[[!^]?\]?(?:\\.|[^\]\\])*\])|\\(?P<quoted>.)|(?P<plain>.)",
    re.DOTALL,
)


def _translated(glob: str) -> str:
    return "".join(map(_piece, _PIECES.finditer(glob)))


def _piece(match: re.Match[str]) -> str:
    kinds = {"folders": "(?:.*/)?", "all": ".*", "some": "[^/]*", "one": "[^/]"}
    if match.lastgroup in kinds:
        return kinds[match.lastgroup]
    if match.lastgroup == "set":
        inner = match["set"][1:-1].replace("[", r"\[")
        negated = inner[:1] in ("!", "^")
        return "(?!/)[" + ("^" + inner[1:] if negated else inner) + "]"
    if match["plain"] == "[":
        raise re.error("a set without an end")
    return re.escape(match[match.lastgroup or "plain"])
