"""Which interpreter a script is loaded with, and why. Nothing is made or installed here; nothing of the script runs.

The first of these decides: what the person says, the script's inline metadata, the ``.venv`` of its project, the
environment of the shell, and at last the interpreter that runs this program.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..model.errors import ScriptError, UsageError
from ..model.interpreter import Interpreter
from ..model.value import Value, value
from ..node.boot.host import doubt
from ..store.home import ENVIRONMENTS, home
from ..store.user_files import exists, expanded, is_dir, resolved
from . import known_pythons
from .inline_metadata import InlineMetadata, inline_metadata
from .known_pythons import KnownPython, NoPython
from .own_interpreter import OWN, is_own, own
from .project_root import up_to_project
from .python_versions import OLDEST, is_usable, numbers, satisfies

Ask = Callable[[str], KnownPython]

VENV = ".venv"
SHELLS = ("VIRTUAL_ENV", "CONDA_PREFIX")  # variables


def interpreter_of(
    script: Path, python: str | os.PathLike[str] | None = None, *, ask: Ask = known_pythons.read
) -> Interpreter:
    """Choose the interpreter of a script.

    Args:
        python: what the person says: the path of an interpreter, or its name in PATH.
        ask: returns which Python a program is; by default from files alone. A launch runs it.

    Raises:
        UsageError: what the person says is no interpreter that could be used.
        ScriptError: what the script, its project or the shell says cannot be used; says why, and what to do.
    """
    return choose(script, python, os.environ, ask)


def choose(
    script: Path, python: str | os.PathLike[str] | None, environ: Mapping[str, str], ask: Ask
) -> Interpreter:
    """The same, by other variables than the process has (``environ``), and by who else tells what a program is."""
    metadata = inline_metadata(script)
    if python is not None:
        return _said(script, os.fspath(python), metadata, environ, ask)
    if metadata is not None:
        return _inline(script, metadata, environ, ask)
    found, notes = _of_project(script)
    if found is not None:
        return _venv(found, _source_of(found), notes, ask)
    return _of_shell(environ, notes, ask)


@value
class OfferedPython(Value):
    """An interpreter that a person may choose.

    Attributes:
        path: of the program.
        source: what names it, in words; "" where it is only there.
    """

    path: str
    source: str = ""


def offered(script: Path | None, environ: Mapping[str, str]) -> list[OfferedPython]:
    """What there is to choose from for a script, in the order in which one is chosen; none of them is run.

    Args:
        script: None where none is named yet.
        environ: the process's variables.
    """
    found: dict[str, OfferedPython] = {}
    for path, source in _offered(script, environ):
        where = os.path.abspath(path)  # noqa: PTH100  an environment's program is a link, and no other for that
        found.setdefault(where, OfferedPython(where, source))
    return list(found.values())


def _offered(script: Path | None, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    venv, _ = (None, ()) if script is None else _of_project(script)
    folders = [(venv, _source_of(venv))] if venv else []
    folders += [(Path(said), name) for name in SHELLS if (said := environ.get(name))]
    for folder, source in folders:
        if (program := known_pythons.program_of(folder)) is not None:
            yield str(program), source
    yield sys.executable, OWN
    for path in known_pythons.others(environ):
        yield path, ""


def _source_of(venv: Path) -> str:
    return f"{VENV} of project {venv.parent.name or venv.parent}"


def _said(
    script: Path, python: str, metadata: InlineMetadata | None, environ: Mapping[str, str], ask: Ask
) -> Interpreter:
    if not python.strip():
        raise UsageError("--python names no interpreter: give a path, or a name in PATH")
    path = expanded(python)
    if is_dir(path):
        inside = known_pythons.program_of(path)
        advice = f"name the interpreter in it, {inside}" if inside else "name an interpreter"
        raise UsageError(f"--python {python} is a folder: {advice}")
    if os.sep not in python:
        named = shutil.which(python, path=environ.get("PATH", os.defpath))
        if named is None and not exists(path):
            raise UsageError(
                f"--python {python}: there is no program of that name in PATH; give {_instead(python, environ, ask)}"
            )
        path = Path(named or path)
    try:
        known = ask(str(path.absolute()))
    except NoPython as error:
        raise UsageError(f"--python {python:.200} cannot be used: {error}") from None
    notes = (
        (f"the inline metadata of {script.name} is not used, as --python says otherwise",) if metadata else ()
    )
    return Interpreter(known.path, known.prefix, known.version, "--python", notes=notes)


def _instead(python: str, environ: Mapping[str, str], ask: Ask) -> str:
    """What to give in place of a name that no program has: of a version, an interpreter of it that is here."""
    if not re.fullmatch(r"\d+(\.\d+)+", python):
        return "a path"
    wanted = numbers(python)
    for program in (known_pythons.own_base().path, *known_pythons.others(environ)):
        with suppress(NoPython):
            if numbers(ask(program).version)[: len(wanted)] == wanted:
                return program
    return f"a path; no Python {python} was found here"


def _inline(script: Path, metadata: InlineMetadata, environ: Mapping[str, str], ask: Ask) -> Interpreter:
    asks = f"The inline metadata of {script}"
    base = base_for(metadata.requires_python, asks, environ, ask)
    return made_of(base, metadata.environment, f"inline metadata of {script.name}")


def made_of(
    base: KnownPython, asked: Mapping[str, Any], source: str, notes: tuple[str, ...] = ()
) -> Interpreter:
    """The interpreter of an environment that is made for a script before it is loaded, with what is asked for alone.

    Args:
        base: what it is made of.
        asked: as the keys of an image.
        source: what asks for it, in words.
        notes: what was passed over on the way, and why.
    """
    from ..node.boot import environment  # most scripts have none

    image = {**asked, "alone": True}
    key = environment.key(image, base.path, numbers(base.version)[:2])
    folder = home() / ENVIRONMENTS / f"env-{key}"
    return Interpreter(
        str(folder / "bin" / "python"),
        str(folder),
        base.version,
        source,
        base=base.path,
        environment=image,
        notes=notes,
    )


def base_for(
    wanted: str,
    asks: str,
    environ: Mapping[str, str] = os.environ,
    ask: Ask = known_pythons.read,
) -> KnownPython:
    """What an environment is made of: our own version where that will do, else the newest that will.

    Args:
        wanted: as ``requires-python`` has it.
        asks: what says so.

    Raises:
        ScriptError: there is none here.
    """
    base = known_pythons.own_base()
    if satisfies(base.version, wanted):
        return base
    seen = {base.version}
    for program in known_pythons.others(environ):
        try:
            known = ask(program)
        except NoPython:
            continue
        if satisfies(known.version, wanted):
            return known
        seen.add(known.version)
    if not is_usable(wanted):
        oldest = ".".join(map(str, OLDEST))
        raise ScriptError(f'{asks} asks for Python "{wanted}", and {oldest} or later is needed')
    raise ScriptError(
        f'{asks} asks for Python "{wanted}", and there is none here (there is {", ".join(sorted(seen, key=numbers))}): '
        "install one, for instance with uv python install"
    )


def _of_project(script: Path) -> tuple[Path | None, tuple[str, ...]]:
    """The ``.venv`` beside a script or in a folder above it, up to its project's; and why one was passed over."""
    for folder in up_to_project(resolved(script).parent):
        found = folder / VENV
        if not os.path.lexists(found):
            continue
        if why := doubt(str(found)):
            return None, (f"{found} was passed over: {why}",)
        return found, ()
    return None, ()


def _of_shell(environ: Mapping[str, str], notes: tuple[str, ...], ask: Ask) -> Interpreter:
    for name in SHELLS:
        said = environ.get(name)
        if not said:
            continue
        if not is_dir(said):  # of a shell that has outlived it
            notes = (*notes, f"{name} was passed over: there is no folder {said}")
            continue
        if is_own(said):  # the shell is ready for this program, which says nothing of scripts
            break
        return _venv(Path(said), name, notes, ask)
    return own(notes)


def _venv(folder: Path, source: str, notes: tuple[str, ...], ask: Ask) -> Interpreter:
    if is_own(str(folder)):
        return own(notes, source, chosen=True)
    program = known_pythons.program_of(folder)
    remedy = "make it anew, or remove it" if source.startswith(VENV) else f"make it anew, or unset {source}"
    if program is None:
        raise ScriptError(f"{folder} ({source}) has no bin/python: {remedy}")
    if not exists(program):
        raise ScriptError(
            f"{folder} ({source}) is broken: its bin/{program.name} leads to {os.path.realpath(program)}, which is not "
            f"there: {remedy}"
        )
    try:
        known = ask(str(program))
    except NoPython as error:
        raise ScriptError(f"{program} ({source}) cannot be used: {error}; {remedy}") from None
    return Interpreter(known.path, known.prefix, known.version, source, notes=notes)
