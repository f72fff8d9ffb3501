"""What was installed for a pool, written down so that it can be installed again: ``Image(lock=...)`` takes it, and pip
and uv take it as requirements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...node.boot.indexes import PINNED, normal, package_of, scoped
from ...store.user_files import read_text
from ...wire.redact import without_credentials
from .packages import PackagesError, address_of, names

if TYPE_CHECKING:
    from ...model.interpreter import Interpreter


_HEADINGS = re.compile(
    r"# (?:installed for pool \S+ with|nothing was installed for pool \S+: its ranks had) Python (\d+\.\d+)"
)


def heading_of(pool: str, python: Interpreter, *, installed: bool) -> str:
    """The first line of a lock.

    Args:
        pool: its name.
        python: that of its ranks.
        installed: whether anything was installed for it.
    """
    if installed:
        return f"installed for pool {pool} with Python {python.minor}; Image(lock=...) has it installed again"
    return f"nothing was installed for pool {pool}: its ranks had {python}, with these packages"


def python_of(path: Path) -> str:
    """The versions of Python that a lock was kept of, as ``requires-python`` has it; "" of one that is none of ours."""
    try:
        found = _HEADINGS.match(read_text(path, errors="replace")[:1000].partition("\n")[0])
    except OSError as error:
        raise PackagesError(f"{path} cannot be read: {error.strerror}") from None
    return f"=={found[1]}.*" if found else ""


def lock_text(image: Mapping[str, Any], installed: Mapping[str, str], heading: str) -> str:
    """The lock of what an image came to.

    Args:
        image: as JSON.
        installed: see :func:`...node.boot.installed.installed_on`. A node says it, and of what it says only names
            and versions are taken: addresses are those that were asked for.
        heading: a line that says of what it is.
    """
    exact = {name: line for line in _lines(image) for name in names([line])}
    asked = {name: line for line in image.get("pip") or () if address_of(line) for name in names([line])}
    kept = [_line(name, version, exact, asked) for name, version in sorted(installed.items())]
    text = "\n".join([f"# {heading}", *_places(image), *kept]) + "\n"
    return without_credentials(text)


def _lines(image: Mapping[str, Any]) -> Iterator[str]:
    for group in image.get(PINNED) or ():
        yield from group["lines"]


def _line(name: str, version: str, exact: Mapping[str, str], asked: Mapping[str, str]) -> str:
    """A package's line, with the hashes that a lock had for it."""
    found = exact.get(name, "")
    plain, _, hashes = found.partition(" --hash=")
    behind = f" --hash={hashes}" if hashes else ""
    if address_of(found) or (not version and name in asked):
        return (plain or asked[name]).partition(" ;")[0] + behind
    if not version:
        return f"# {name}: from a folder or an address, which is not kept"
    same = package_of(plain) == normal(name) and plain.partition(";")[0].strip().endswith(f"=={version}")
    return f"{name}=={version}" + (behind if same else "")


def _places(image: Mapping[str, Any]) -> Iterator[str]:
    """Where packages are looked for, but for indexes that are kept to some: no such file can say that."""
    if image.get("index"):
        yield f"--index-url {image['index']}"
    everybodys = [each["url"] for each in image.get("pip_indexes") or () if not each.get("packages")]
    of_lock = [each["index"] for each in image.get(PINNED) or () if each["index"]]
    for url in dict.fromkeys([*everybodys, *of_lock]):
        yield f"--extra-index-url {url}"
    for link in image.get("find_links") or ():
        yield f"--find-links {link}"
    if image.get("no_index"):
        yield "--no-index"
    if kept := sorted(scoped(image.get("pip_indexes") or ())):
        yield f"# {', '.join(kept)}: from an index kept to them; give Image(pip_indexes=...) again"
