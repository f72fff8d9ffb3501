"""A job file or shell command as a launch."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from skyward_core.client.launch.launch_plan import make_options, make_plugins
from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_core.model.errors import JobFileError, UsageError, set_error_field
from skyward_core.model.provider_capabilities import Offers, RunsHere, declared_settings
from skyward_core.model.specs import Image, Options, PoolSpec, Spec
from skyward_core.providers import DEFAULT_PROVIDER, provider_class, provider_names
from skyward_core.providers.pool_planning import make_pool_spec
from skyward_core.providers.provider import make_provider
from skyward_core.store.pruning import (
    TASKS_FOLDER,
    make_clone_folder,
    make_process_folder,
    remove_clone,
    remove_dead_folders,
    temporary_folder,
)
from skyward_core.store.state_folder import state_home
from skyward_core.tasks.function_pickling import make_task
from skyward_core.tasks.shell_and_script_calls import resolve_variables, shell
from skyward_core.util.redaction import MIN_SECRET_LENGTH, strip_credentials

if TYPE_CHECKING:
    from skyward_core.model.function import PendingFunction
    from skyward_core.tasks.job_files.job import JobFile, read_variables
    from skyward_core.tasks.job_files.yaml_document import WantedMachine
    from skyward_core.tasks.task_and_blob_values import Task
    from skyward_core.views.pool_view import PoolView


def __getattr__(name: str) -> Any:
    """Return what job files are read by, which imports pydantic and yaml: launching a command needs neither."""
    if name not in {"JobFile", "read_variables"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from skyward_core.tasks.job_files import job

    return getattr(job, name)


def shell_task(words: Sequence[str], env: Mapping[str, str], secrets: Mapping[str, str]) -> Task:
    """A command, pickled.

    Args:
        words: it: one that has several words is one command, and a single one is what a shell reads.
        env: variables that it has.
        secrets: more of them, whose values are blanked in what it prints.

    Raises:
        UsageError: it is none, or a variable cannot be.
    """
    command = words[0] if len(words) == 1 else shlex.join(words)
    return make_portable_task(shell(command, env={**env, **secrets}, secrets=tuple(secrets.values())))


def parse_variables(option: str, texts: Sequence[str]) -> dict[str, str | None]:
    """Variables as a command line has them: ``NAME=VALUE``, or ``NAME`` for what this shell has.

    Args:
        option: how they were given, for errors.
        texts: they.

    Raises:
        UsageError: one has no name.
    """
    found: dict[str, str | None] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name.strip():
            raise UsageError(f"{option} is given NAME=VALUE, or NAME for what this shell has of that name")
        found[name.strip()] = value if equals else None
    return found


def make_portable_task(call: PendingFunction[None], folder: Path | None = None) -> Task:
    """A call of nothing but this library's own, pickled: any Python can make it.

    Args:
        folder: where large arguments are written.
    """
    return replace(make_task(call, folder=folder), portable=True)


EMPTY_FOLDER = "empty"  # a folder below the home: the working folder of jobs that have none
GIT_TIMEOUT = 600.0  # seconds that a clone may take
# What git asks for user and password: they come by its environment, which others cannot read.
_CREDENTIAL_HELPER = r'!f() { printf "username=%s\npassword=%s\n" "$SKYWARD_GIT_USER" "$SKYWARD_GIT_PASSWORD"; }; f'
# What a file says of a machine, and the setting of a provider that is meant.
_SETTINGS = {"instance_type": "instance_type", "image": "ami", "disk_gb": "disk_gb", "zone": "zones"}
_JOB_FILE_KEYS = {
    "zone": "zone",
    "instance_type": "instance_type",
    "image": "image_id",
    "disk_gb": "disk_size",
}
_OFFER_FIELDS = ("region", "vcpus", "memory_gb", "spot", "max_hourly")
_JOB_FILE_KEYS |= {
    "region": "region",
    "vcpus": "cpus",
    "memory_gb": "memory",
    "spot": "use_spot",
    "max_hourly": "max_hourly_cost",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job file, and the options that it is launched with.

    Attributes:
        job: the file, read.
        options: its pool: ``JOB_OPTIONS`` and ``pool``; without a provider, the file names the clouds.
        idle_timeout: seconds without use after which the pool ends; None for the file's.
    """

    job: JobFile
    options: LaunchRequest
    idle_timeout: float | None = None

    @classmethod
    def from_options(cls, job: JobFile, *, idle_timeout: float | None = None, **options: Any) -> JobRequest:
        """Return the request with these values of ``JOB_OPTIONS`` and ``pool``."""
        return cls(job=job, options=LaunchRequest(script=str(job.path), **options), idle_timeout=idle_timeout)

    @property
    def shapes_pool(self) -> list[str]:
        """Names of the given options that shape a pool, which an existing pool cannot honor."""
        return [*self.options.shapes_pool, *(["-i"] if self.idle_timeout else [])]

    def spec(self, *, clone: bool = True) -> tuple[PoolSpec, list[str]]:
        """The pool that is asked for, and what of the file its provider does not heed, in words.

        Args:
            clone: fetch the repository that is the working folder; else there is none in what is given.

        Raises:
            SkywardError: something makes no sense, or no provider of the file's is here.
        """
        job, notes = self.job, list(self.job.notes)
        ways = list(self._make_specs(notes))
        first = ways[0].provider
        options = Options(**self._pool_options(first))
        image = Image(env={}, workdir=self._upload_folder(first, clone))
        asked: dict[str, Any] = {"name": self.options.pool, "image": image, "options": options}
        asked["plugins"] = make_plugins(self.options)
        if len(ways) == 1 and not isinstance(first, Offers):
            spec = make_pool_spec(
                job.name or str(job.path),
                nodes=job.num_nodes,
                provider=first,
                accelerator=ways[0].accelerator,
                **asked,
            )
        else:
            selection = "first" if job.ordered and len(ways) > 1 else None
            spec = make_pool_spec(job.name or str(job.path), *ways, nodes=job.num_nodes, selection=selection, **asked)
        return spec, notes

    def _make_specs(self, notes: list[str]) -> Iterator[Spec]:
        """Ways to have the machines, by providers that are here."""
        here, missing = set(provider_names()), []
        found: list[Spec] = []
        for way in self.job.ways:
            name = self.options.provider or way.cloud or DEFAULT_PROVIDER
            if name not in here:
                missing.append(name)
                continue
            if (spec := self._make_spec(way, name, notes)) not in found:
                found.append(spec)
        if not found:
            raise UsageError(
                f"no provider here is called {' or '.join(dict.fromkeys(missing))}, where {self.job.path} wants its "
                f"machines: name one that is with --provider ({', '.join(sorted(here))})"
            )
        if missing:
            notes.append(f"ways on {' and '.join(dict.fromkeys(missing))} are left out: no such provider is here")
        if not all(isinstance(each.provider, Offers) for each in found) and len(found) > 1:
            notes.append(f"of {len(found)} ways to have machines the first is taken: the others have no offers")
            found = found[:1]
        yield from found

    def _make_spec(self, way: WantedMachine, name: str, notes: list[str]) -> Spec:
        kind = provider_class(name)
        declared = {each.name for each in declared_settings(kind)}
        texts, unheeded = {}, []
        is_elsewhere = self.options.provider is not None and way.cloud not in ("", name)
        for part, setting in _SETTINGS.items():
            if wanted := getattr(way, part):
                if setting in declared and not is_elsewhere:
                    texts[setting] = str(wanted)
                else:
                    unheeded.append(_JOB_FILE_KEYS[part])
        chosen: dict[str, Any] = {}
        if isinstance(kind, Offers):
            chosen = {
                "vcpus": way.vcpus or None,
                "memory_gb": way.memory_gb or None,
                "max_hourly_cost": way.max_hourly or None,
                "allocation": "spot" if way.spot else None,
                "region": None if is_elsewhere else way.region or None,
            }
            unheeded += ["region"] if is_elsewhere and way.region else []
        else:
            unheeded += [_JOB_FILE_KEYS[part] for part in _OFFER_FIELDS if getattr(way, part)]
        if unheeded:
            said = f"{', '.join(unheeded)}: provider {name} takes machines as they are"
            if said not in notes:
                notes.append(said)
        with set_error_field("provider"):
            provider = make_provider(kind, {**texts, **self.options.settings})
        return Spec(provider=provider, accelerator=way.accelerator or None, **chosen)

    def _pool_options(self, provider: Any) -> dict[str, Any]:
        """Options of the pool."""
        said: dict[str, Any] = {"secrets": tuple(each for each in self.job.blanked if len(each) >= MIN_SECRET_LENGTH)}
        said |= make_options(self.options, provider)
        idle = self.job.idle_seconds if self.idle_timeout is None else self.idle_timeout
        if idle is not None:
            said["idle_timeout"] = idle
        return said

    def _upload_folder(self, provider: Any, clone: bool) -> str | None:
        """The folder that travels; None for the current one, where ranks work in the person's own."""
        if self.job.git is not None:
            return str(_clone_to_folder(*self.job.git)) if clone else None
        if self.job.workdir is not None:
            return str(self.job.workdir)
        if isinstance(provider, RunsHere):
            return None
        folder = state_home() / EMPTY_FOLDER
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return str(folder)


def job_tasks(job: JobFile, folder: Path, *, setup: bool = True, cwd: str = "") -> Iterator[Task]:
    """The calls of a job, pickled, in order: each is to end on all nodes before the next begins.

    Args:
        folder: where large ones are written.
        setup: whether its ``setup`` is among them.
        cwd: the folder of its commands; "" for the ranks' own.

    Raises:
        JobFileError: a file that it mounts cannot be read.
    """
    for call in job.calls(setup=setup, cwd=cwd):
        yield make_portable_task(call, folder)


def pool_job_tasks(
    job: JobFile, pool: PoolView, folder: Path, *, run_alone: bool = False, setup: bool = True
) -> list[Task]:
    """The same for a pool that is up, behind what brings its nodes what there is now of the job's working folder. On
    this machine the commands run in that folder itself, wherever the ranks of the pool work.

    Args:
        run_alone: the job's ``run``, and neither its mounts nor its ``setup``.

    Raises:
        UsageError: the folder cannot be read, or is too large to travel; or the job has no ``run``, which is wanted.
    """
    work = job.workdir if job.git is None else _clone_to_folder(*job.git, pool=pool.key)
    here = work is not None and isinstance(provider_class(pool.provider), RunsHere)
    cwd = str(work) if here else ""
    synced = _sync_task(work, folder) if work is not None and not here else None
    if job.git is not None and work is not None and not here:
        remove_clone(work)  # it is packed
    if synced is not None and (run_alone or not job.sets_all_up(setup=setup)):
        synced = replace(synced, nodes=job.num_nodes)
    steps = [synced] if synced is not None else []
    if not run_alone:
        return [*steps, *job_tasks(job, folder, setup=setup, cwd=cwd)]
    call = job.run_call(cwd)
    if call is None:
        raise UsageError(f"{job.path} has no run: there is nothing to execute")
    return [*steps, make_portable_task(call)]


def _sync_task(work: Path, folder: Path) -> Task | None:
    from skyward_core.tasks.job_files.job import make_workdir_update
    from skyward_core.transport.working_folder_upload import FileUnreadable, FolderTooLarge, build_manifest

    try:
        paths = [item.path for item in build_manifest(work).items]
    except (FolderTooLarge, FileUnreadable) as error:
        raise UsageError(str(error)) from error
    return make_portable_task(make_workdir_update(work, paths), folder) if paths else None


def _clone_to_folder(url: str, ref: str, *, pool: str = "") -> Path:
    """A repository's files, in a new folder that stays as long as its pool: ranks of this machine work in it, and nodes
    that come later get theirs of it."""
    folder = make_clone_folder(pool)
    try:
        _run_git_clone(url, ref, folder)
    except BaseException:
        remove_clone(folder)
        raise
    return folder


def _run_git_clone(url: str, ref: str, folder: Path) -> None:
    # Whoever has an account here sees what a program is started with, and words go to screens and logs.
    plain, said, login = strip_credentials(url), [], _url_credentials(url)
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    if login is not None:
        said = ["-c", "credential.helper=", "-c", f"credential.helper={_CREDENTIAL_HELPER}"]
        environment |= {"SKYWARD_GIT_USER": login[0], "SKYWARD_GIT_PASSWORD": login[1]}
    for words in (
        ["init", "--quiet"],
        ["fetch", "--quiet", "--depth", "1", "--", url if login is None else plain, ref or "HEAD"],
        ["checkout", "--quiet", "FETCH_HEAD"],
    ):
        try:
            done = subprocess.run(
                ["git", *said, "-C", str(folder), *words],
                env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=GIT_TIMEOUT,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise JobFileError(f"workdir: git did not bring {plain} within {GIT_TIMEOUT / 60:g} minutes") from error
        except OSError as error:
            raise JobFileError(f"workdir: git cannot bring {plain}: {error}") from error
        if done.returncode:
            reason = strip_credentials(done.stderr.strip())
            raise JobFileError(f"workdir: git cannot bring {ref or 'what is newest'} of {plain}: {reason}")


def _url_credentials(url: str) -> tuple[str, str] | None:
    """The user and the password that stand in a URL; None where there is no password."""
    try:
        parts = urlsplit(url)
    except ValueError:  # git says what is wrong with it
        return None
    if parts.scheme not in ("http", "https") or not parts.password:
        return None
    return unquote(parts.username or ""), unquote(parts.password)


__all__ = [
    "TASKS_FOLDER",
    "JobFile",
    "JobRequest",
    "job_tasks",
    "make_process_folder",
    "parse_variables",
    "pool_job_tasks",
    "read_variables",
    "remove_dead_folders",
    "resolve_variables",
    "shell_task",
    "temporary_folder",
]
