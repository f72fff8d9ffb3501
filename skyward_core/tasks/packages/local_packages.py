"""Packages that are installed where they lie, such as by ``pip install -e ../mylib``: other machines have no such
folder, so it has to travel."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...model.value import Value, value
from ...store.user_files import is_dir, json_of, read_bytes, read_text, resolved
from ..parsing import parsed

OURS = "skyward_core"  # other machines have us anyway


@value
class LocalPackage(Value):
    """One of them.

    Attributes:
        name: what it is called.
        folder: where its project lies.
        entry: what the import path needs of that.
        asked: whether a file of the project asks for it; else it is only installed so.
    """

    name: str
    folder: str
    entry: str
    asked: bool = False


def local_packages(image: Mapping[str, Any], prefix: str, minor: str) -> list[LocalPackage]:
    """Those of an image, as JSON, and those of an interpreter.

    Args:
        prefix: the folder of the interpreter's environment.
        minor: its version, such as "3.12".
    """
    asked = {folder: entry for folder, entry in image.get("folders") or ()}
    found = list(_editable(Path(prefix) / "lib" / f"python{minor}" / "site-packages"))
    there = {each.folder for each in found}
    return [
        *(LocalPackage(each.name, each.folder, each.entry, each.folder in asked) for each in found),
        *(
            LocalPackage(Path(folder).name, folder, entry, True)
            for folder, entry in asked.items()
            if folder not in there
        ),
    ]


def travelling(packages: Iterable[LocalPackage], cwd: str) -> list[LocalPackage]:
    """Those that do not lie in the working folder, which travels anyway; the folder of another one counts once."""
    inside = [resolved(cwd)] if cwd else []
    found = []
    for each in sorted(packages, key=lambda package: package.folder):
        if not any(Path(each.folder).is_relative_to(folder) for folder in inside):
            inside.append(Path(each.folder))
            found.append(each)
    return found


def _editable(packages: Path) -> Iterator[LocalPackage]:
    try:
        names = os.listdir(packages)  # noqa: PTH208  each start over SSH waits for it, and most find nothing
    except OSError:
        return
    there = os.path.exists
    said = (
        name for name in names if name[-10:] == ".dist-info" and there(f"{packages}/{name}/direct_url.json")
    )
    for name in sorted(said):
        try:
            origin = json_of(read_bytes(packages / name / "direct_url.json"))
            editable = origin["dir_info"].get("editable") is True and origin["url"].startswith("file://")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # most come from an index
        if not editable:
            continue
        folder = _path_of(origin["url"])
        if is_dir(folder / OURS):
            continue  # where this library is developed; to read how it was installed takes long
        for entry in _entries(packages, name, folder):
            if not is_dir(Path(entry) / OURS):
                yield LocalPackage(name.split("-")[0], str(folder), entry)


def _path_of(url: str) -> Path:
    from urllib.parse import unquote, urlsplit

    return resolved(unquote(urlsplit(url).path))


def _entries(packages: Path, name: str, folder: Path) -> list[str]:
    """Where its modules lie, by what its installer has written: a ``.pth`` file, or a module that finds them."""
    try:
        record = read_text(packages / name / "RECORD").splitlines()
    except (OSError, UnicodeDecodeError):
        record = []
    found: dict[str, None] = {}
    for file in (line.partition(",")[0] for line in record):
        try:
            if file.endswith(".pth"):
                lines = read_text(packages / file).splitlines()
                found |= dict.fromkeys(str(resolved(each)) for each in lines if each.startswith("/"))
            elif file.startswith("__editable__") and file.endswith("_finder.py"):
                found |= dict.fromkeys(_mapped(read_text(packages / file)))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    inside = [each for each in found if Path(each).is_relative_to(folder)]
    if inside:
        return inside
    from .packages import entry_of

    return [entry_of(folder)]


def _mapped(source: str) -> Iterator[str]:
    """The folders above the packages that such a module of setuptools' finds."""
    for node in parsed(source).body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == "MAPPING" and isinstance(node, ast.AnnAssign):
            for module, path in ast.literal_eval(node.value or ast.Dict([], [])).items():
                if "." not in module and Path(path).name in (module, f"{module}.py"):
                    yield str(resolved(path).parent)
