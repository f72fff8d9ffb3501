"""Other interpreters of this machine, for tests that need one, and environments of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import pytest

from skyward_core.tasks.script_interpreter_and_environment import (
    PythonInfo,
    UnusablePython,
    find_other_pythons,
    query_python,
)
from tests.support.processes import exists


@cache
def other_pythons() -> dict[str, PythonInfo]:
    """The newest Python that we can use of each other minor version that is here."""
    found: dict[str, PythonInfo] = {}
    for program in find_other_pythons(os.environ):
        try:
            known = query_python(program)
        except UnusablePython:
            continue
        found.setdefault(".".join(known.version.split(".")[:2]), known)
    found.pop(f"{sys.version_info[0]}.{sys.version_info[1]}", None)
    return found


def another_python() -> PythonInfo:
    """One of them; skips the test where there is none."""
    for known in other_pythons().values():
        return known
    pytest.skip(f"there is no Python here that is 3.11 or later, other than {sys.version.split()[0]}")


def make_environment(python: str, folder: Path, *wheels: Path) -> Path:
    """An environment of an interpreter with what some wheels hold, and nothing else; gives its program."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
    return folder / "bin" / "python"


def hanging_python(environment: Path) -> Path:
    """What looks like an environment, and whose interpreter never says a word; gives the file of its children's ids."""
    (environment / "bin").mkdir(parents=True)
    (environment / "pyvenv.cfg").touch()
    program, children = environment / "bin" / "python", environment / "children"
    program.write_text(f"#!/bin/sh\nsleep 600 &\necho $! >> {children}\nwait\n")
    program.chmod(0o755)
    return children


def all_ended(children: Path) -> bool:
    """Whether what a hanging interpreter has started runs no more; it must have started some."""
    return not any(exists(int(pid)) for pid in children.read_text().split())


def python_without(module: str, folder: Path) -> Path:
    """Return an interpreter whose standard library lacks a module, as in distributions that split it."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library = folder / "lib" / version
    library.mkdir(parents=True)
    for entry in Path(os.__file__).parent.iterdir():
        if entry.name != module:
            (library / entry.name).symlink_to(entry)
    program = folder / "bin" / version
    program.parent.mkdir()
    shutil.copy(Path(sys.executable).resolve(), program)  # a link would lead to the complete library
    return program
