"""Job file (SkyPilot task YAML) as a pool specification, tasks and file mounts."""

from __future__ import annotations

import io
import os
import re
import tarfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from skyward_core.model.errors import JobFileError
from skyward_core.model.function import Dispatcher, PendingFunction
from skyward_core.runtime.file_mount_unpacker import FileMounts
from skyward_core.runtime.shell_and_scripts import ShellCommand
from skyward_core.store.state_folder import find_state_folder, is_state_folder
from skyward_core.tasks import job_yaml_validation as job_yaml
from skyward_core.tasks.job_file_resources import ResourceReader, WantedMachine
from skyward_core.tasks.shell_and_script_calls import resolve_variables
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.number_size_and_time_format import format_size
from skyward_core.util.redaction import MIN_SECRET_LENGTH, is_secret_name, secret_values, strip_credentials
from skyward_core.util.safe_file_access import exists, expand_user, is_dir, is_file, read_text, resolve_path

MAX_UPLOAD_BYTES = 1 << 30  # maximum bytes of all mounted files of one job, because this process holds them in memory


def make_mount_call(mounts: Mapping[str, Path]) -> PendingFunction[None]:
    """Return the call that copies the mounted files of a job to each node.

    Args:
        mounts: Local paths by path on the node.

    Raises:
        JobFileError: If a file cannot be read, or the files are too large.
    """
    packed: dict[str, bytes] = {}
    for target, source in mounts.items():
        # As rsync does, copy a file into the target folder under its own name if the target ends in "/".
        name = source.name if target.endswith("/") and is_file(source) else "."
        packed[target] = _pack_files(source, MAX_UPLOAD_BYTES - sum(map(len, packed.values())), name=name)
    return PendingFunction(FileMounts("file_mounts"), (packed,))


def make_workdir_update(folder: Path, paths: Sequence[str]) -> PendingFunction[None]:
    """Return the call that copies files of a working folder to the nodes' copies of it.

    Args:
        paths: Files, relative to the folder.

    Raises:
        JobFileError: If a file cannot be read, or the files are too large.
    """
    return PendingFunction(FileMounts("workdir"), ({".": _pack_files(folder, MAX_UPLOAD_BYTES, paths)},))


def _pack_files(source: Path, room: int, paths: Sequence[str] | None = None, *, name: str = ".") -> bytes:
    file = _BoundedBuffer(room)
    if paths is None and (state := find_state_folder(source)) is not None:
        raise JobFileError(
            f"file_mounts: {source} cannot be mounted: {state} is a state folder of skyward, which contains keys"
        )
    try:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            if paths is None:
                # Resolve only the path of the mount itself. Links inside the mounted folder are sent as links.
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
            f"file_mounts: with {source} the files exceed {format_size(MAX_UPLOAD_BYTES)}. "
            "Fetch them in setup, or copy them to the machines beforehand"
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
# SkyPilot's shells read ~/.bashrc and activate conda. In a shell that is not interactive, ~/.bashrc often returns
# before its conda lines, so conda is activated separately. The prelude is one line with the code that ``ShellCommand``
# adds, so line numbers in errors change by one.
PRELUDE = (
    "[ -r ~/.bashrc ] && . ~/.bashrc >/dev/null 2>&1; "
    'for __conda in "$(command -v conda)" ~/miniconda3/bin/conda ~/miniforge3/bin/conda ~/anaconda3/bin/conda '
    '/opt/conda/bin/conda; do [ -x "$__conda" ] && . "${__conda%/*/*}/etc/profile.d/conda.sh" 2>/dev/null && break; '
    "done; unset __conda; "
)
Overrides = Mapping[str, str | None]


@value(kw_only=True, frozen=True)
class JobFile(Value):
    """Job described by a file in the format of SkyPilot's task YAML.

    Attributes:
        path: Path of the file.
        name: Name of the job; "" for none.
        workdir: Folder that is sent to the nodes; None for none.
        git: URL and branch or tag of the repository that is cloned as the working folder; None for none.
        num_nodes: Number of nodes that run the job.
        ways: Alternative machines.
        ordered: Whether the alternatives are in order of preference. Otherwise the cheapest comes first.
        envs: Environment variables of the commands.
        secrets: Variables whose values are redacted in logs.
        mounts: Local paths by path on the nodes.
        setup: Commands that every node runs first; "" for none.
        run: Commands of the job; "" for none.
        idle_seconds: Idle time after which the pool ends, in seconds; None if the file does not set it.
        restarts_on_loss: Whether the job starts again after lost ranks or machines (``job_recovery``).
        error_restarts: Restarts of the job after errors.
        notes: Notes about keys without effect.
        text: Text of the file.
    """

    path: Path
    name: str = ""
    workdir: Path | None = None
    # Hidden in repr, because the URL of the repository may contain a password.
    git: tuple[str, str] | None = field(default=None, repr=False)
    num_nodes: int = 1
    ways: tuple[WantedMachine, ...] = (WantedMachine(),)
    ordered: bool = False
    # Hidden in repr, because values of variables may be secrets.
    envs: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    mounts: Mapping[str, Path] = field(default_factory=dict)
    setup: str = ""
    run: str = ""
    idle_seconds: float | None = None
    restarts_on_loss: bool = False
    error_restarts: int = 0
    notes: tuple[str, ...] = ()
    text: str = field(default="", repr=False)

    @classmethod
    def from_yaml(
        cls, path: str | os.PathLike[str], *, env: Overrides | None = None, secrets: Overrides | None = None
    ) -> JobFile:
        """Read a job file.

        Args:
            path: Path of the file.
            env: Variables that replace or extend the file's ``envs``. None stands for the value in this process's
                environment.
            secrets: The same for the file's ``secrets``.

        Raises:
            JobFileError: If the file is invalid. The message names the line and the reason.
        """
        file = Path(path)
        if file.suffix == ".py":
            raise JobFileError(f"{file} is a script, not a job file. Run it with `run {file}`")
        return cls.from_text(_read_file(file), file, env=env, secrets=secrets)

    @classmethod
    def from_text(
        cls, text: str, path: Path, *, env: Overrides | None = None, secrets: Overrides | None = None
    ) -> JobFile:
        """Parse the text of a job file.

        Args:
            text: Text of the file.
            path: Name of the file.
            env: As in ``from_yaml``.
            secrets: As in ``from_yaml``.

        Raises:
            JobFileError: In the same cases as in ``from_yaml``.
        """
        document = job_yaml.YamlDocument(text, str(path))
        notes = list(job_yaml.check_keys(document, document.values, job_yaml.JobKeys, ()))
        try:
            keys = job_yaml.JobKeys.model_validate(document.values)
        except ValidationError as error:
            raise job_yaml.translate_validation_error(document, error) from error
        declared = {name: text for name, text in (env or {}).items() if name in (keys.secrets or {})}
        env = {name: text for name, text in (env or {}).items() if name not in declared}
        secrets = {**declared, **(secrets or {})}
        envs = _resolve_variables(document, "envs", keys.envs, env)
        hidden = _resolve_variables(document, "secrets", keys.secrets, secrets)
        if both := sorted(envs.keys() & hidden.keys()):
            raise document.make_error(f"{both[0]} is in envs and in secrets. Keep one", ("secrets", both[0]))
        git = keys.workdir if isinstance(keys.workdir, job_yaml.GitKeys) else None
        folder = keys.workdir if isinstance(keys.workdir, str) else None
        mounts = _resolve_mounts(document, keys, envs)
        workdir = None if folder is None else _resolve_workdir(document, _substitute(folder, envs))
        resources, reader = keys.resources or job_yaml.ResourceKeys(), ResourceReader(document)
        recovery, place = resources.job_recovery, ("resources", "job_recovery")
        if not isinstance(recovery, job_yaml.RecoveryKeys):
            recovery = job_yaml.RecoveryKeys(strategy=recovery or "none")
        restarts = (recovery.strategy or "").lower() != "none"
        if recovery.max_restarts_on_errors and not restarts:
            raise document.make_error("job_recovery: none allows no restarts. Remove max_restarts_on_errors", place)
        if restarts and recovery.strategy is not None:
            notes.append(
                f"strategy {recovery.strategy!r} of job_recovery (line {document.line_of(place)}) has no effect: the "
                "provider of a lost machine replaces it"
            )
        ways = tuple(reader.read_alternatives(resources, ("resources",)))
        short = [name for name, text in hidden.items() if len(text) < MIN_SECRET_LENGTH]
        notes += [
            f"secrets: {name} has fewer than {MIN_SECRET_LENGTH} characters, so it is not redacted in logs"
            for name in short
        ]
        notes += [
            f"envs: {name} has the name of a secret and is redacted in logs. Move it to secrets"
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
            restarts_on_loss=restarts,
            error_restarts=recovery.max_restarts_on_errors,
            notes=tuple(notes),
            text=text,
        )

    @property
    def folder(self) -> str:
        """Description of the working folder: the path, the repository, or "none"."""
        if self.git is not None:
            return strip_credentials(" ".join(filter(None, self.git)))
        return str(self.workdir or "none")

    @property
    def gpus(self) -> int:
        """GPUs per node."""
        return max(way.gpus for way in self.ways)

    @property
    def blanked(self) -> tuple[str, ...]:
        """Values to redact in the output of the job's ranks."""
        return (*secret_values(self.envs), *self.secrets.values())

    def files_call(self) -> PendingFunction[None] | None:
        """Return the call that copies the job's files to the nodes; None if the job mounts no files.

        Raises:
            JobFileError: If a file cannot be read, or the files are too large.
        """
        return make_mount_call(self.mounts) if self.mounts else None

    def setup_call(self, cwd: str = "") -> PendingFunction[None] | None:
        """Return the call of the job's ``setup``; None if there is no ``setup``.

        Args:
            cwd: Working folder of the commands; "" for the working folder of the ranks.
        """
        if not self.setup.strip():
            return None
        return PendingFunction(self._shell_command(self.setup, "setup", cwd, as_setup=True))

    def run_call(self, cwd: str = "") -> PendingFunction[None] | None:
        """Return the call of the job's ``run``; None if there is no ``run``.

        Args:
            cwd: As in ``setup_call``.
        """
        if not self.run.strip():
            return None
        return PendingFunction(self._shell_command(self.run, self.name or "run", cwd)).with_nodes(self.num_nodes)

    def calls(self, *, setup: bool = True, cwd: str = "") -> Iterator[PendingFunction[None]]:
        """Yield all calls of the job in order. Each call must end on all nodes of the job before the next one starts.

        Args:
            setup: Whether to include ``setup``.
            cwd: As in ``setup_call``.

        Raises:
            JobFileError: In the same cases as in ``files_call``.
        """
        for call in filter(None, [self.files_call(), self.setup_call(cwd) if setup else None]):
            yield call if self.sets_all_up(setup=setup) else call.with_nodes(self.num_nodes)
        if (run := self.run_call(cwd)) is not None:
            yield run

    def sets_all_up(self, *, setup: bool) -> bool:
        """Check whether the calls before ``run`` must run on all nodes of a pool, because a later run may get other
        nodes.

        Args:
            setup: Whether ``setup`` runs.
        """
        return setup and bool(self.setup.strip())

    def run_on(self, pool: Dispatcher, *, setup: bool = True) -> None:
        """Copy the job's files to the nodes of a pool, set the nodes up, and run the job.

        The pool must have the working folder of the job.

        Args:
            pool: Pool that runs the job.
            setup: Whether to run ``setup``.

        Raises:
            JobFileError: In the same cases as in ``files_call``, or if the pool has another working folder.
            RunError: If a node failed; later calls do not start.
        """
        if self.git is not None:
            raise JobFileError(
                f"{self.path}: run_on does not clone repositories. Clone it, pass the folder as "
                "image=sky.Image(workdir=...), and remove workdir from the file; or use the command `launch`"
            )
        there = getattr(pool, "working_folder", "")
        if self.workdir is not None and there and resolve_path(there) != resolve_path(self.workdir):
            raise JobFileError(
                f"{self.path}: its workdir is {self.workdir}, but the pool works in {there}. Create the pool with "
                f"image=sky.Image(workdir={str(self.workdir)!r})"
            )
        call = None
        for call in self.calls(setup=setup):
            call @ pool
        if call is None:
            warnings.warn(f"{self.path} has no run, setup or file_mounts: nothing was run", stacklevel=2)

    def _shell_command(self, text: str, name: str, cwd: str, *, as_setup: bool = False) -> ShellCommand:
        gpus = {"SKYPILOT_SETUP_NUM_GPUS_PER_NODE" if as_setup else "SKYPILOT_NUM_GPUS_PER_NODE": str(self.gpus)}
        given = {**gpus, **self.envs, **self.secrets}
        return ShellCommand(text, name, given, cwd, self.blanked, as_setup=as_setup, startup=PRELUDE)


def _resolve_variables(
    document: job_yaml.YamlDocument, table: str, values: Mapping[str, str | None] | None, given: Overrides | None
) -> dict[str, str]:
    option = "--env" if table == "envs" else "--secret"
    merged: dict[str, str | None] = {**(values or {}), **resolve_variables(option, given or {})}
    found: dict[str, str] = {}
    for name, text in merged.items():
        place = (table, name)
        if not _VARIABLE.fullmatch(name):
            raise document.make_error(f"{table}: {name!r:.60} is not a variable name", place)
        if text is None:
            # Do not suggest to put a secret on the command line, where other users of this machine could see it.
            form = f"{name}=VALUE" if table == "envs" else f"{name} (takes this shell's variable)"
            raise document.make_error(f"{table}: {name} has no value. Set it with {option} {form}", place)
        if "\0" in text:
            raise document.make_error(f"{table}: {name} contains a zero byte", place)
        found[name] = text
    return found


def _resolve_mounts(
    document: job_yaml.YamlDocument, keys: job_yaml.JobKeys, envs: Mapping[str, str]
) -> dict[str, Path]:
    mounts: dict[str, Path] = {}
    for target, source in (keys.file_mounts or {}).items():
        place = ("file_mounts", target)
        if isinstance(source, Mapping) or _BUCKET.match(source):
            words = (
                "buckets, volumes and repositories cannot be mounted. Fetch the files in setup "
                "(aws s3 cp, hf download, git clone)"
            )
            raise document.make_error(f"file_mounts: {target}: {words}", place)
        there, text = _substitute(target, envs), _substitute(source, envs)
        if not there or not text:
            raise document.make_error(f"file_mounts: {target}: expected a path on the nodes and a local path", place)
        here = _local_path(document, text, place)
        if not exists(here):
            words = ". Clone a repository in setup" if _REPOSITORY.match(text) else ""
            raise document.make_error(f"file_mounts: {target}: {here} does not exist{words}", place)
        mounts[there] = here
    for target, source_path in mounts.items():
        if _local_target(target) != source_path and _is_inside(target, source_path):
            raise document.make_error(
                f"file_mounts: {target} is inside of its own source {source_path}",
                ("file_mounts",),
            )
        for other, other_path in mounts.items():
            if other != target and _is_inside(target, other_path) and _is_inside(other, source_path):
                raise document.make_error(
                    f"file_mounts: {target} and {other} form a circle (sources: {source_path}, {other_path})",
                    ("file_mounts",),
                )
    return mounts


def _resolve_workdir(document: job_yaml.YamlDocument, text: str) -> Path:
    folder = _local_path(document, text, ("workdir",))
    if is_dir(folder):
        return folder
    words = f"workdir: {folder} is not a folder" if exists(folder) else f"workdir: folder {folder} does not exist"
    if _REPOSITORY.match(text):
        words = f"workdir: write a repository as workdir: {{url: {strip_credentials(text)}}}"
    raise document.make_error(words, ("workdir",))


def _is_inside(target: str, folder: Path) -> bool:
    return (place := _local_target(target)) is not None and place.is_relative_to(folder)


def _local_target(target: str) -> Path | None:
    """Return the path of a mount's target on this machine. None if only the node can determine the path."""
    if not target.startswith(("/", "~")):
        return None
    place = expand_user(target)  # for the home of another user, such as "~ada", only the node may know the path
    return place.absolute() if place.is_absolute() else None


def _local_path(document: job_yaml.YamlDocument, path: str, place: job_yaml.YamlPath) -> Path:
    here = expand_user(path)
    if path.startswith("~") and not here.is_absolute():
        raise document.make_error(f"{place[0]}: {path}: this machine has no such user", place)
    return here.absolute()


def _substitute(text: str, envs: Mapping[str, str]) -> str:
    """Replace references to the job's variables in a text. All other references are kept."""
    return _VARIABLE_REFERENCE.sub(lambda found: envs.get(found[1] or found[2], found[0]), text)


def _join_lines(lines: str | list[str] | None) -> str:
    return "\n".join(lines) if isinstance(lines, list) else lines or ""


Task = JobFile
"""Alias for ``sky.Task``."""


def read_variables(path: str | os.PathLike[str]) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """Return the ``envs`` and ``secrets`` of a job file. None stands for a variable that still needs a value.

    Args:
        path: Path of the file.

    Raises:
        JobFileError: If the file cannot be read, or is not YAML.
    """
    values = job_yaml.YamlDocument(_read_file(Path(path)), str(path)).values
    envs, hidden = (values.get(table) for table in ("envs", "secrets"))
    return _as_texts(envs), _as_texts(hidden)


def _read_file(file: Path) -> str:
    try:
        return read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is not text"
        raise JobFileError(f"{file} cannot be read: {words}") from error


def _as_texts(table: Any) -> dict[str, str | None]:
    if not isinstance(table, Mapping):
        return {}
    return {str(name): None if text is None else str(text) for name, text in table.items()}
