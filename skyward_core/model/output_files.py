"""Files that ranks wrote in their working folder: patterns that select them, and the results of fetching them.

The client and the node both apply the patterns, because neither of them trusts file names that the other sends.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.protocol.validators import is_relative_subpath
from skyward_core.util.light_dataclass import Value, value

if TYPE_CHECKING:
    import re


MAX_NAMED_FILES = 5  # maximum number of file names that a message lists for one cause


@value
class WrittenFile(Value):
    """File that a rank wrote in its working folder, as its node reports it.

    Attributes:
        path: Path below the working folder.
        size: Size in bytes.
        changed_at: Unix time of the last change.
        node: Node that has the file.
        version: Identifier that changes with the contents.
        also: Other nodes that report the same file on a shared disk.
    """

    path: str
    size: int
    changed_at: float
    node: int
    version: str
    also: tuple[int, ...] = ()

    @property
    def age(self) -> float:
        """Seconds since the last change of the file."""
        return max(0.0, time.time() - self.changed_at)


@value
class FetchedFile(Value):
    """Result of fetching one file.

    Attributes:
        file: The file.
        target: Path on this machine.
        error: Reason of a failure, or "".
        is_new: Whether the file was downloaded now. False if it had been fetched before.
    """

    file: WrittenFile
    target: Path
    error: str = ""
    is_new: bool = False


def list_failed_files(files: Iterable[FetchedFile]) -> Iterator[tuple[str, int, str]]:
    """Yield files that could not be fetched, their node and the reason. If many share a reason, only a few are
    named.
    """
    found: dict[tuple[int, str], list[str]] = {}
    for each in files:
        if each.error:
            found.setdefault((each.file.node, each.error), []).append(each.file.path)
    for (node, reason), paths in found.items():
        more = f" and {len(paths) - MAX_NAMED_FILES:,} more" if len(paths) > MAX_NAMED_FILES else ""
        yield f"{', '.join(paths[:MAX_NAMED_FILES])}{more}", node, reason


@value
class Unfetched(Value):
    """Unfetched files of a pool's ranks, and what a teardown would do with them.

    Attributes:
        asked: Files that match the image's ``outputs`` patterns. A teardown always downloads these files first.
        others: All other files.
        unlisted: Number of further files, which nodes did not list because of a limit.
        is_lost_with_machines: Whether unfetched files are lost together with the pool's machines. Otherwise the files
            stay on the hosts.
        download_limit: Bytes of the other files that a teardown still downloads, the newest first.
        failures: Node -> reason why it does not answer.
    """

    asked: Sequence[WrittenFile] = ()
    others: Sequence[WrittenFile] = ()
    unlisted: int = 0
    is_lost_with_machines: bool = False
    download_limit: int = 0
    failures: Mapping[int, str] = field(default_factory=dict)

    @property
    def exceeds_limit(self) -> bool:
        """Whether a teardown would lose files, because they exceed the limits of the download."""
        return self.is_lost_with_machines and (
            bool(self.unlisted) or sum(file.size for file in self.others) > self.download_limit
        )


# Error of a node for a changed file; must not change, because clients compare this text.
CHANGED_MESSAGE = "it has changed since it was listed"

# Names of files and folders that programs create for themselves and that users never look for.
BY_PRODUCTS = (".git", "__pycache__", "*.pyc", ".venv", "venv", "node_modules", ".ipynb_checkpoints",
               ".mypy_cache", ".ruff_cache", ".pytest_cache", ".tox", ".DS_Store")  # fmt: skip


def normalize_pattern(text: Any) -> str:
    """Return a pattern in the form that :func:`matches` expects.

    Raises:
        ValueError: If the text is not a pattern or leads out of the working folder.
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
    """Check whether a file matches a pattern.

    ``*`` and ``?`` match within one name, ``**`` matches any number of folders. A pattern without a slash matches names
    in any folder. A pattern that matches a folder includes all of the folder's content.

    Args:
        path: Relative path of the file.
        patterns: Patterns from :func:`normalize_pattern`; if empty, every file matches.
    """
    names = path.split("/")
    return not patterns or any(_matches_prefix(names, _split_names(each)) for each in patterns)


def may_contain(folder: str, patterns: Sequence[str]) -> bool:
    """Check whether a folder may contain a file that matches a pattern."""
    names = folder.split("/")
    return not patterns or any(_next_positions(names, _split_names(each)) for each in patterns)


def _split_names(pattern: str) -> tuple[str, ...]:
    names = tuple(pattern.split("/"))
    return names if len(names) > 1 else ("**", *names)


def _matches_prefix(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Check whether a path or one of its parent folders matches. Takes linear time for any pattern."""
    reached = _next_positions(names, pattern)
    return len(pattern) in reached or (len(pattern) - 1 in reached and pattern[-1] == "**")


def _next_positions(names: Sequence[str], pattern: Sequence[str]) -> set[int]:
    """Return the positions in a pattern that can follow a match of all names; empty if the names do not match."""
    reached = {0}
    for name in names:
        reached = _skip_wildcards(reached, pattern)
        if len(pattern) in reached:
            break
        reached = {
            at + (pattern[at] != "**") for at in reached if pattern[at] == "**" or _regex(pattern[at]).match(name)
        }
    return reached


def _skip_wildcards(reached: set[int], pattern: Sequence[str]) -> set[int]:
    """Return the positions, and those after each ``**`` that matches no folder. A ``**`` at the end is not skipped."""
    more = set(reached)
    for at in sorted(reached):
        while at < len(pattern) - 1 and pattern[at] == "**":
            at += 1
            more.add(at)
    return more


@lru_cache(256)
def _regex(name: str) -> re.Pattern[str]:
    import re  # imported late, because the start of a pool needs no patterns
    from fnmatch import translate

    return re.compile(translate(name))
