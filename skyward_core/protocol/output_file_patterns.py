"""Names of files that ranks wrote, and patterns that choose among them. Client and node both ask here, as neither takes
the other's word for a name. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from skyward_core.protocol.validators import is_relative_subpath

if TYPE_CHECKING:
    import re

CHANGED_MESSAGE = "it has changed since it was listed"  # a node's answer to who asks for what is no longer so

# What programs make for themselves, and no person looks for.
BY_PRODUCTS = (".git", "__pycache__", "*.pyc", ".venv", "venv", "node_modules", ".ipynb_checkpoints",
               ".mypy_cache", ".ruff_cache", ".pytest_cache", ".tox", ".DS_Store")  # fmt: skip


def normalize_pattern(text: Any) -> str:
    """A pattern as :func:`matches` takes it.

    Raises:
        ValueError: it is none, or leads out of the working folder.
    """
    if not isinstance(text, str):
        raise ValueError(f"should be text (got {type(text).__name__})")
    plain = text.removeprefix("./").rstrip("/")
    if text.startswith(("/", "~")) or ".." in plain.split("/"):
        raise ValueError(
            f"{text!r:.80} leads out of the working folder: ranks' files are named from there, such as 'out/**'"
        )
    if not is_relative_subpath(plain):
        raise ValueError(f"{text!r:.80} names no files: write a path, or a pattern such as 'out/**' or '*.pt'")
    return plain


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern means a file. ``*`` and ``?`` stay within one name, ``**`` is any number of folders; one
    without a slash means names in any folder, and one that means a folder all that is in it.

    Args:
        patterns: as :func:`pattern` gives them; none at all means every file.
    """
    names = path.split("/")
    return not patterns or any(_matches_prefix(names, _split_names(each)) for each in patterns)


def may_contain(folder: str, patterns: Sequence[str]) -> bool:
    """Whether there may be a file, somewhere below a folder, that a pattern means."""
    names = folder.split("/")
    return not patterns or any(_next_positions(names, _split_names(each)) for each in patterns)


def _split_names(pattern: str) -> tuple[str, ...]:
    names = tuple(pattern.split("/"))
    return names if len(names) > 1 else ("**", *names)


def _matches_prefix(names: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether a path, or a folder on the way to it, is as wanted. Place by place: no pattern takes long."""
    reached = _next_positions(names, wanted)
    return len(wanted) in reached or (len(wanted) - 1 in reached and wanted[-1] == "**")


def _next_positions(names: Sequence[str], wanted: Sequence[str]) -> set[int]:
    """How many of the wanted names the path may have had; none where it is another, all as soon as it has them."""
    reached = {0}
    for name in names:
        reached = _skip_wildcards(reached, wanted)
        if len(wanted) in reached:
            break
        reached = {at + (wanted[at] != "**") for at in reached if wanted[at] == "**" or _regex(wanted[at]).match(name)}
    return reached


def _skip_wildcards(reached: set[int], wanted: Sequence[str]) -> set[int]:
    """The same, with each ``**`` but the last also as no folder at all."""
    more = set(reached)
    for at in sorted(reached):
        while at < len(wanted) - 1 and wanted[at] == "**":
            at += 1
            more.add(at)
    return more


@lru_cache(256)
def _regex(name: str) -> re.Pattern[str]:
    import re  # a start of a pool, which has this module for its other half, needs neither
    from fnmatch import translate

    return re.compile(translate(name))
