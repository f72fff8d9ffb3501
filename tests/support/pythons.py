"""Other Python interpreters of this machine, and environments of them."""

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
    """Return the newest supported interpreter of each other minor version on this machine."""
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
    """Return one of them. Skips the test if there is none."""
    for known in other_pythons().values():
        return known
    pytest.skip(f"there is no Python here that is 3.11 or later, other than {sys.version.split()[0]}")


def make_environment(python: str, folder: Path, *wheels: Path) -> Path:
    """Create an environment that contains only some wheels, and return its interpreter."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
    return folder / "bin" / "python"


def hanging_python(environment: Path) -> Path:
    """Create a fake environment whose interpreter never answers. Return the file with its children's pids."""
    (environment / "bin").mkdir(parents=True)
    (environment / "pyvenv.cfg").touch()
    program, children = environment / "bin" / "python", environment / "children"
    program.write_text(f"#!/bin/sh\nsleep 600 &\necho $! >> {children}\nwait\n")
    program.chmod(0o755)
    return children


def all_ended(children: Path) -> bool:
    """Check whether a hanging interpreter has started processes and none of them still runs."""
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
