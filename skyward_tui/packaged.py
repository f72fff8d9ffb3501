"""The examples that come with the package, by name: ``example:ddp``."""

from __future__ import annotations

import ast
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from skyward_core.front.scripts import parsed
from skyward_core.front.user_files import exists
from skyward_core.model.errors import UsageError

FOLDER = Path(__file__).parent / "examples"
PREFIX = "example:"


def examples() -> list[Path]:
    """Their paths, by name."""
    return sorted(path for path in FOLDER.glob("*.py") if not path.name.startswith("_"))


@lru_cache
def about(path: Path) -> str:
    """The first line of a script's docstring, without its markup."""
    try:
        return (ast.get_docstring(parsed(path.read_bytes())) or "").partition("\n")[0].replace("``", "")
    except (OSError, SyntaxError, ValueError):
        return ""


def example(name: str) -> Path:
    """The path of an example.

    Raises:
        UsageError: there is none of that name; says which there are.
    """
    known = {path.stem: path for path in examples()}
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
        raise UsageError(f"no example is named {name!r}; {hint}")
    return known[name]


def located(target: str) -> str:
    """``example:ddp`` and ``example:ddp:train`` with the example's path in its place; anything else as it is.

    Raises:
        UsageError: there is no such example.
    """
    if not target.startswith(PREFIX) or exists(target):
        return target
    name, colon, function = target.removeprefix(PREFIX).partition(":")
    return f"{example(name)}{colon}{function}"


def meant(script: Path) -> str:
    """The example that a script which is not there was perhaps meant to be; "" where there is none."""
    there = exists(script) or script.stem not in {path.stem for path in examples()}
    return "" if there else f"{PREFIX}{script.stem}"


def named(script: str) -> str:
    """A script as it is written on the command line: an example by its name."""
    path = Path(script)
    return f"{PREFIX}{path.stem}" if path.parent == FOLDER else script
