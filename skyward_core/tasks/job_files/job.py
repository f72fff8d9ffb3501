"""A job file as a pool, tasks and file mounts."""

from __future__ import annotations

import io
import os
import re
import tarfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from datetime import date
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel, ValidationError

from skyward_core.model.errors import JobFileError
from skyward_core.model.function import Dispatcher, PendingFunction
from skyward_core.runtime.shell_and_scripts import FileMounts, ShellCommand
from skyward_core.store.state_folder import find_state_folder, is_state_folder
from skyward_core.tasks.job_files.yaml_document import (
    IGNORED_KEYS,
    UNSUPPORTED_KEYS,
    AutostopKeys,
    GitKeys,
    JobKeys,
    ResourceKeys,
    ResourceReader,
    WantedMachine,
    YamlDocument,
    YamlPath,
)
from skyward_core.tasks.shell_and_script_calls import resolve_variables
from skyward_core.util.byte_sizes import format_size
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.redaction import MIN_SECRET_LENGTH, is_secret_name, secret_values, strip_credentials
from skyward_core.util.user_files import exists, expand_user, is_dir, is_file, read_text, resolve_path

MAX_UPLOAD_BYTES = 1 << 30  # bytes that one job brings: they go through this process's memory


def make_mount_call(mounts: Mapping[str, Path]) -> PendingFunction[None]:
    """The call that brings files to their places, on each node.

    Args:
        mounts: the path here by the place there.

    Raises:
        JobFileError: one cannot be read, or they are too much.
    """
    packed: dict[str, bytes] = {}
    for target, source in mounts.items():
        # As rsync has it: a file for a place that ends in / comes into that folder, under its own name.
        name = source.name if target.endswith("/") and is_file(source) else "."
        packed[target] = _pack_files(source, MAX_UPLOAD_BYTES - sum(map(len, packed.values())), name=name)
    return PendingFunction(FileMounts("file_mounts"), (packed,))


def make_workdir_update(folder: Path, paths: Sequence[str]) -> PendingFunction[None]:
    """The call that brings files of a working folder to the nodes' copies of it.

    Args:
        paths: which of them, seen from it.

    Raises:
        JobFileError: one cannot be read, or they are too much.
    """
    return PendingFunction(FileMounts("workdir"), ({".": _pack_files(folder, MAX_UPLOAD_BYTES, paths)},))


def _pack_files(source: Path, room: int, paths: Sequence[str] | None = None, *, name: str = ".") -> bytes:
    file = _BoundedBuffer(room)
    if paths is None and (state := find_state_folder(source)) is not None:
        raise JobFileError(
            f"file_mounts: {source} is not brought: {state} is a state folder of skyward, which holds keys"
        )
    try:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            if paths is None:
                # What is named itself; links in it stay links.
                real = source.resolve()
                tar.add(
                    real,
                    arcname=name,
                    filter=lambda each: None if _is_state_entry(real, name, each) else each,
                )
            for path in paths or ():
                tar.add(source / path, arcname=path, recursive=False)
    except _SizeLimitError as error:
        raise JobFileError(
            f"file_mounts: with {source} they are more than {format_size(MAX_UPLOAD_BYTES)}, the most that is "
            "brought so; "
            "have setup fetch it, or put it on the machines before"
        ) from error
    except OSError as error:
        raise JobFileError(f"file_mounts: {error.filename or source}: {error.strerror or error}") from error
    return file.getvalue()


def _is_state_entry(source: Path, name: str, entry: tarfile.TarInfo) -> bool:
    return entry.isdir() and is_state_folder(str(source / PurePosixPath(entry.name).relative_to(name)))


class _SizeLimitError(Exception):
    pass


class _BoundedBuffer(io.BytesIO):
    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        if self.tell() + len(data) > self._room:
            raise _SizeLimitError
        return super().write(data)


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE_REFERENCE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_REPOSITORY = re.compile(r"[a-z+]+://|[\w.-]+@[\w.-]+:")
_BUCKET = re.compile(r"[a-z0-9]+://")
# SkyPilot's shells have read ~/.bashrc, and know conda. So have ours, wherever conda is: its lines in that file come
# behind what ends it in a shell that nobody types into. All in one line, ahead of the person's own.
PRELUDE = (
    "[ -r ~/.bashrc ] && . ~/.bashrc >/dev/null 2>&1; "
    'for __conda in "$(command -v conda)" ~/miniconda3/bin/conda ~/miniforge3/bin/conda ~/anaconda3/bin/conda '
    '/opt/conda/bin/conda; do [ -x "$__conda" ] && . "${__conda%/*/*}/etc/profile.d/conda.sh" 2>/dev/null && break; '
    "done; unset __conda; true\n"
)
Overrides = Mapping[str, str | None]


@value(kw_only=True, frozen=True)
class JobFile(Value):
    """A job as a file describes it, in the format of SkyPilot's task YAML.

    Attributes:
        path: of the file.
        name: the job's; "" for none.
        workdir: the folder that travels to the nodes; None for none.
        git: the repository that is cloned to be that folder, and the branch or tag of it; None for none.
        num_nodes: how many nodes run it.
        ways: the machines that will do.
        ordered: whether the first of these comes before others that are cheaper.
        envs: variables of its commands.
        secrets: more of them, whose values are blanked in logs.
        mounts: paths of this machine by the places that they are brought to.
        setup: commands that every node runs before it; "" for none.
        run: commands of the job; "" for none.
        idle_seconds: without use after which the pool ends; None where the file says nothing.
        notes: what stands in it and changes nothing here, in words.
        text: all that stands in it.
    """

    path: Path
    name: str = ""
    workdir: Path | None = None
    git: tuple[str, str] | None = field(default=None, repr=False)  # a password may stand in it
    num_nodes: int = 1
    ways: tuple[WantedMachine, ...] = (WantedMachine(),)
    ordered: bool = False
    envs: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    mounts: Mapping[str, Path] = field(default_factory=dict)
    setup: str = ""
    run: str = ""
    idle_seconds: float | None = None
    notes: tuple[str, ...] = ()
    text: str = field(default="", repr=False)

    @classmethod
    def from_yaml(
        cls, path: str | os.PathLike[str], *, env: Overrides | None = None, secrets: Overrides | None = None
    ) -> JobFile:
        """Read a job file.

        Args:
            path: of it.
            env: variables that come in the place of its ``envs``, or beside them; None has the value of this process.
            secrets: the same for its ``secrets``.

        Raises:
            JobFileError: it cannot be used; says which line, and why.
        """
        file = Path(path)
        if file.suffix == ".py":
            raise JobFileError(f"{file} is a script, not a job file: the command `run {file}` runs it")
        return cls.from_text(_read_file(file), file, env=env, secrets=secrets)

    @classmethod
    def from_text(
        cls, text: str, path: Path, *, env: Overrides | None = None, secrets: Overrides | None = None
    ) -> JobFile:
        """The same from what stands in the file.

        Args:
            text: what stands in it.
            path: how the file is called.
            env: as ``from_yaml`` takes it.
            secrets: as ``from_yaml`` takes it.

        Raises:
            JobFileError: as ``from_yaml``.
        """
        document = YamlDocument(text, str(path))
        notes = list(_check_keys(document, document.values, JobKeys, ()))
        try:
            keys = JobKeys.model_validate(document.values)
        except ValidationError as error:
            raise _translate_validation_error(document, error) from error
        envs = _resolve_variables(document, "envs", keys.envs, env)
        hidden = _resolve_variables(document, "secrets", keys.secrets, secrets)
        if both := sorted(envs.keys() & hidden.keys()):
            raise document.make_error(f"{both[0]} stands in envs and in secrets: keep one", ("secrets", both[0]))
        git = keys.workdir if isinstance(keys.workdir, GitKeys) else None
        folder = keys.workdir if isinstance(keys.workdir, str) else None
        mounts = _resolve_mounts(document, keys, envs)
        workdir = None if folder is None else _resolve_workdir(document, _substitute(folder, envs))
        resources, reader = keys.resources or ResourceKeys(), ResourceReader(document)
        ways = tuple(reader.read_alternatives(resources, ("resources",)))
        short = [name for name, text in hidden.items() if len(text) < MIN_SECRET_LENGTH]
        notes += [
            f"secrets: {name} has fewer than {MIN_SECRET_LENGTH} characters, and is not blanked in logs"
            for name in short
        ]
        notes += [
            f"envs: {name} is a secret by its name, and blanked in logs: secrets is the place for it"
            for name in envs
            if is_secret_name(name) and secret_values({name: envs[name]})
        ]
        return cls(
            path=path,
            name=_substitute(keys.name or "", envs),
            workdir=workdir,
            git=None if git is None else (_substitute(git.url, envs), _substitute(git.ref or "", envs)),
            num_nodes=keys.num_nodes or 1,
            ways=ways,
            ordered=resources.ordered is not None or isinstance(resources.accelerators, list),
            envs=envs,
            secrets=hidden,
            mounts=mounts,
            setup=_join_lines(keys.setup),
            run=_join_lines(keys.run),
            idle_seconds=reader.read_idle_seconds(resources.autostop, ("resources", "autostop")),
            notes=tuple(notes),
            text=text,
        )

    @property
    def folder(self) -> str:
        """What its working folder is, in words."""
        if self.git is not None:
            return strip_credentials(" ".join(filter(None, self.git)))
        return str(self.workdir or "none travels")

    @property
    def gpus(self) -> int:
        """GPUs of each node that it asks for."""
        return max(way.gpus for way in self.ways)

    @property
    def blanked(self) -> tuple[str, ...]:
        """Values that are blanked in what its ranks print."""
        return (*secret_values(self.envs), *self.secrets.values())

    def files_call(self) -> PendingFunction[None] | None:
        """The call that brings its files to the nodes; None where it mounts none.

        Raises:
            JobFileError: one cannot be read, or they are too much.
        """
        return make_mount_call(self.mounts) if self.mounts else None

    def setup_call(self, cwd: str = "") -> PendingFunction[None] | None:
        """The call of its ``setup``; None where it has none.

        Args:
            cwd: the folder of its commands; "" for the ranks' own.
        """
        if not self.setup.strip():
            return None
        return PendingFunction(self._shell_command(self.setup, "setup", cwd, as_setup=True))

    def run_call(self, cwd: str = "") -> PendingFunction[None] | None:
        """The call of its ``run``; None where it has none.

        Args:
            cwd: as of ``setup_call``.
        """
        if not self.run.strip():
            return None
        return PendingFunction(self._shell_command(self.run, self.name or "run", cwd)).with_nodes(self.num_nodes)

    def calls(self, *, setup: bool = True, cwd: str = "") -> Iterator[PendingFunction[None]]:
        """All of them, in order; each is to have ended on all its nodes before the next one begins. Those of a job
        without ``setup`` are for as many nodes as it asks for.

        Args:
            setup: whether its ``setup`` is among them.
            cwd: as of ``setup_call``.

        Raises:
            JobFileError: as ``files_call``.
        """
        made = [self.files_call(), self.setup_call(cwd) if setup else None]
        for call in filter(None, made):
            yield call if self.sets_all_up(setup=setup) else call.with_nodes(self.num_nodes)
        if (run := self.run_call(cwd)) is not None:
            yield run

    def sets_all_up(self, *, setup: bool) -> bool:
        """Whether what comes before its ``run`` is for all nodes of a pool, not only for those that it gets: a later
        run of it may get others, and rely on that they are set up.

        Args:
            setup: whether its ``setup`` is run.
        """
        return setup and bool(self.setup.strip())

    def run_on(self, pool: Dispatcher, *, setup: bool = True) -> None:
        """Bring its files to the nodes of a pool, set them up, and run it. The pool's working folder is to be the
        job's.

        Args:
            pool: it.
            setup: whether the nodes are set up.

        Raises:
            JobFileError: as ``files_call``; or the pool works in another folder than the job names.
            RunError: a node failed; what comes after is not begun.
        """
        if self.git is not None:
            raise JobFileError(
                f"{self.path}: run_on brings no repository: clone it, name that folder as the pool's image=sky.Image("
                "workdir=...), and leave workdir out of the file; or run it by the command `launch`"
            )
        there = getattr(pool, "working_folder", "")
        if self.workdir is not None and there and resolve_path(there) != resolve_path(self.workdir):
            raise JobFileError(
                f"{self.path}: its workdir is {self.workdir}, and the pool works in {there}: make the pool with "
                f"image=sky.Image(workdir={str(self.workdir)!r})"
            )
        call = None
        for call in self.calls(setup=setup):
            call @ pool
        if call is None:
            warnings.warn(f"{self.path} has no run, and nothing else to do: nothing was done", stacklevel=2)

    def _shell_command(self, text: str, name: str, cwd: str, *, as_setup: bool = False) -> ShellCommand:
        gpus = {"SKYPILOT_SETUP_NUM_GPUS_PER_NODE" if as_setup else "SKYPILOT_NUM_GPUS_PER_NODE": str(self.gpus)}
        given = {**gpus, **self.envs, **self.secrets}
        return ShellCommand(PRELUDE + text, name, given, cwd, self.blanked, as_setup=as_setup)


def _check_keys(document: YamlDocument, values: Any, model: type[BaseModel], place: YamlPath) -> Iterator[str]:
    """Refuse keys that have no place here; gives words for those that change nothing.

    Raises:
        JobFileError: a key is unknown, or cannot be heeded; says what to use.
    """
    if not isinstance(values, Mapping):
        return
    for key in values:
        name = ".".join(part for part in (*place, key) if isinstance(part, str))
        name = re.sub(r"\.(any_of|ordered)", "", name)
        if words := UNSUPPORTED_KEYS.get(name):
            raise document.make_error(f"{name} is not supported: {words}", (*place, key))
        if key not in model.model_fields:
            near = get_close_matches(key, model.model_fields, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(model.model_fields)}"
            raise document.make_error(f"there is no key {key!r:.60}{hint}", (*place, key))
        if name in IGNORED_KEYS and values[key] is not None:
            yield f"{name} (line {document.line_of((*place, key))}) changes nothing: {IGNORED_KEYS[name]}"
    if model is JobKeys:
        yield from _check_keys(document, values.get("workdir"), GitKeys, ("workdir",))
        yield from _check_keys(document, values.get("resources"), ResourceKeys, ("resources",))
    elif model is ResourceKeys:
        yield from _check_keys(document, values.get("autostop"), AutostopKeys, (*place, "autostop"))
        for name in ("any_of", "ordered"):
            said = values.get(name)
            for number, each in enumerate(said if isinstance(said, list) else ()):
                yield from _check_keys(document, each, ResourceKeys, (*place, name, number))


def _translate_validation_error(document: YamlDocument, error: ValidationError) -> JobFileError:
    """The first thing that is wrong, in words."""
    # Where several types were tried, the one that got furthest is the one that was meant.
    found = max(error.errors(), key=lambda each: len(each["loc"]))
    # Behind the key stand names of types that were tried.
    place: YamlPath = ()
    at: Any = document.values
    for part in found["loc"]:
        try:
            at = at[part]
        except (KeyError, IndexError, TypeError):
            continue
        place = (*place, part)
    name = ".".join(map(str, place)) or "it"
    if found["type"] == "missing":
        return document.make_error(f"{name} lacks {found['loc'][-1]}", place)
    words = _EXPECTED.get(found["type"]) or found["msg"].removeprefix("Value error, ")
    words = words.format(**found.get("ctx", {}))
    shown = _describe_value(at)
    if place[:1] in (("envs",), ("secrets",)):
        shown = "what stands there"  # nobody's business
    elif found["type"] == "string_type" and isinstance(at, int | float | date):
        words += ": put it in quotes"
    return document.make_error(f"{name} cannot be {shown}: {words[:1].lower()}{words[1:]}", place)


_EXPECTED = {
    **dict.fromkeys(("string_type", "string_too_short"), "a text is wanted"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "keys with values are wanted"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "a whole number is wanted"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number is wanted"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false is wanted"),
    "list_type": "a list is wanted",
    "greater_than_equal": "{ge} or more is wanted",
    "greater_than": "more than {gt:g} is wanted",
    "less_than_equal": "{le} or less is wanted",
    "too_short": "a list of one thing or more is wanted",
    "string_pattern_mismatch": "write a number, such as 32, 32+ or 64GB",
}


def _describe_value(value: Any) -> str:
    """What stands in a file, for an error."""
    if isinstance(value, Mapping | list):
        return "what stands there" if value else "empty"
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    return f"{value!r:.60}" if isinstance(value, str) else f"{value!s:.60}"


def _resolve_variables(
    document: YamlDocument, table: str, said: Mapping[str, str | None] | None, given: Overrides | None
) -> dict[str, str]:
    option = "--env" if table == "envs" else "--secret"
    merged: dict[str, str | None] = {**(said or {}), **resolve_variables(option, given or {})}
    found: dict[str, str] = {}
    for name, text in merged.items():
        place = (table, name)
        if not _VARIABLE.fullmatch(name):
            raise document.make_error(f"{table}: {name!r:.60} is no name of a variable", place)
        if text is None:
            # Others on this machine see what a program is started with: no secret is to be written there.
            how = f"{name}=VALUE" if table == "envs" else f"{name}, which takes this shell's variable of that name"
            raise document.make_error(f"{table}: {name} has no value: give it with {option} {how}", place)
        if "\0" in text:
            raise document.make_error(f"{table}: {name} has a zero byte in it", place)
        found[name] = text
    return found


def _resolve_mounts(document: YamlDocument, keys: JobKeys, envs: Mapping[str, str]) -> dict[str, Path]:
    mounts: dict[str, Path] = {}
    for target, source in (keys.file_mounts or {}).items():
        place = ("file_mounts", target)
        if isinstance(source, Mapping) or _BUCKET.match(source):
            words = (
                "buckets, volumes and repositories are not mounted: have setup fetch what is needed "
                "(aws s3 cp, hf download, git clone)"
            )
            raise document.make_error(f"file_mounts: {target}: {words}", place)
        there, text = _substitute(target, envs), _substitute(source, envs)
        if not there or not text:
            raise document.make_error(
                f"file_mounts: {target}: a place on the nodes, and a path here, are wanted", place
            )
        here = _local_path(document, text, place)
        if not exists(here):
            words = ": have setup clone a repository" if _REPOSITORY.match(text) else ""
            raise document.make_error(f"file_mounts: {target}: there is no {here}{words}", place)
        mounts[there] = here
    for target, source_path in mounts.items():
        if _local_target(target) != source_path and _is_inside(target, source_path):
            raise document.make_error(
                f"file_mounts: {target} lies in what is brought there ({source_path}), which would never end",
                ("file_mounts",),
            )
        for other, of_other in mounts.items():
            if other != target and _is_inside(target, of_other) and _is_inside(other, source_path):
                raise document.make_error(
                    f"file_mounts: {target} comes from {source_path} and {other} from {of_other}: a circle",
                    ("file_mounts",),
                )
    return mounts


def _resolve_workdir(document: YamlDocument, text: str) -> Path:
    folder = _local_path(document, text, ("workdir",))
    if is_dir(folder):
        return folder
    words = f"workdir: {folder} is no folder" if exists(folder) else f"workdir: there is no folder {folder}"
    if _REPOSITORY.match(text):
        words = f"workdir: a repository is written workdir: {{url: {strip_credentials(text)}}}"
    raise document.make_error(words, ("workdir",))


def _is_inside(target: str, folder: Path) -> bool:
    return (place := _local_target(target)) is not None and place.is_relative_to(folder)


def _local_target(target: str) -> Path | None:
    """Where a place of a node is, if the node is this machine; None where that is nowhere."""
    if not target.startswith(("/", "~")):
        return None
    place = expand_user(target)  # somebody's home may be known to the node only
    return place.absolute() if place.is_absolute() else None


def _local_path(document: YamlDocument, path: str, place: YamlPath) -> Path:
    here = expand_user(path)
    if path.startswith("~") and not here.is_absolute():
        raise document.make_error(f"{place[0]}: {path}: there is no such user here", place)
    return here.absolute()


def _substitute(text: str, envs: Mapping[str, str]) -> str:
    """A text with the job's variables in it; what is none of them stays."""
    return _VARIABLE_REFERENCE.sub(lambda found: envs.get(found[1] or found[2], found[0]), text)


def _join_lines(said: str | list[str] | None) -> str:
    return "\n".join(said) if isinstance(said, list) else said or ""


Task = JobFile
"""What ``sky.Task`` is."""


def read_variables(path: str | os.PathLike[str]) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """What a job file says under ``envs`` and ``secrets``, for who asks for what it leaves open; None is that.

    Args:
        path: of the file.

    Raises:
        JobFileError: it cannot be read, or is no YAML.
    """
    values = YamlDocument(_read_file(Path(path)), str(path)).values
    envs, hidden = (values.get(table) for table in ("envs", "secrets"))
    return _as_texts(envs), _as_texts(hidden)


def _read_file(file: Path) -> str:
    try:
        return read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is no text"
        raise JobFileError(f"{file} cannot be read: {words}") from error


def _as_texts(said: Any) -> dict[str, str | None]:
    if not isinstance(said, Mapping):
        return {}
    return {str(name): None if text is None else str(text) for name, text in said.items()}
