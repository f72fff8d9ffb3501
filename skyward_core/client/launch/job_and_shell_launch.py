"""Launch of a job file or a shell command: its pool, and its pickled calls."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.launch.launch_plan import make_options, make_plugins
from skyward_core.model.errors import JobFileError, UsageError, convert_errors, set_error_field
from skyward_core.model.provider_capability_protocols import Offers, RunsHere
from skyward_core.model.provider_settings_schema import declared_settings, make_provider
from skyward_core.model.specs import Image, Options, PoolSpec, Spec
from skyward_core.providers import DEFAULT_PROVIDER, provider_class, provider_names
from skyward_core.providers.pool_spec_and_provider_choice import make_pool_spec
from skyward_core.store.old_pool_environment_and_clone_pruning import TASKS_FOLDER as TASKS_FOLDER
from skyward_core.store.old_pool_environment_and_clone_pruning import make_clone_folder, remove_clone
from skyward_core.store.old_pool_environment_and_clone_pruning import make_process_folder as make_process_folder
from skyward_core.store.old_pool_environment_and_clone_pruning import remove_dead_folders as remove_dead_folders
from skyward_core.store.old_pool_environment_and_clone_pruning import temporary_folder as temporary_folder
from skyward_core.store.state_folder import state_home
from skyward_core.tasks.function_pickling import make_task
from skyward_core.tasks.shell_and_script_calls import resolve_variables as resolve_variables
from skyward_core.tasks.shell_and_script_calls import shell
from skyward_core.util.redaction import MIN_SECRET_LENGTH, secret_values, strip_credentials

if TYPE_CHECKING:
    from skyward_core.model.function import PendingFunction
    from skyward_core.tasks.job_file import JobFile as JobFile
    from skyward_core.tasks.job_file import Overrides
    from skyward_core.tasks.job_file_resources import WantedMachine
    from skyward_core.tasks.pickled_calls_and_blobs import Task
    from skyward_core.views.pool_view import PoolView


def read_job_file(path: str | os.PathLike[str], env: Overrides, secrets: Overrides) -> JobFile:
    """Read a job file; see ``JobFile.from_yaml``."""
    # Imported late, because shell commands need neither pydantic nor yaml.
    from skyward_core.tasks.job_file import JobFile

    return JobFile.from_yaml(path, env=env, secrets=secrets)


def read_job_variables(path: str | os.PathLike[str]) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """Return the ``envs`` and ``secrets`` of a job file; see ``job_file.read_variables``."""
    from skyward_core.tasks.job_file import read_variables  # imported late, because the module imports yaml

    return read_variables(path)


def shell_task(words: Sequence[str], env: Mapping[str, str], secrets: Mapping[str, str]) -> Task:
    """Return the pickled call of a shell command.

    Args:
        words: A single word is a line for the shell; several words are a program and its arguments.
        env: Variables of the command. Values of those with secret names are redacted in its output, too.
        secrets: Further variables, whose values are redacted in the output of the command.

    Raises:
        UsageError: If the command is empty, or a variable is invalid.
    """
    command = words[0] if len(words) == 1 else shlex.join(words)
    return make_portable_task(shell(command, env={**env, **secrets}, secrets=(*secrets.values(), *secret_values(env))))


def parse_variables(option: str, texts: Sequence[str]) -> dict[str, str | None]:
    """Parse variables of a command line: ``NAME=VALUE``, or ``NAME`` for the value in the client's environment.

    Args:
        option: Name of the option, for error messages.
        texts: Values of the option.

    Raises:
        UsageError: If a name is empty.
    """
    found: dict[str, str | None] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name.strip():
            raise UsageError(f"{option} needs NAME=VALUE, or NAME for the value in this shell")
        found[name.strip()] = value if equals else None
    return found


def make_portable_task(call: PendingFunction[None], folder: Path | None = None) -> Task:
    """Pickle a call that any Python version can run, because it uses only this library's code.

    Args:
        folder: Folder for large arguments.
    """
    return replace(make_task(call, folder=folder), portable=True)


EMPTY_FOLDER = "empty"  # name of an empty folder in the state folder, in which jobs without a working folder run
GIT_TIMEOUT = 600.0  # seconds for a clone of a job's git repository
# Git gets user and password through its environment, which other users of this machine cannot read.
_CREDENTIAL_HELPER = r'!f() { printf "username=%s\npassword=%s\n" "$SKYWARD_GIT_USER" "$SKYWARD_GIT_PASSWORD"; }; f'
# Property of a machine -> its key in a job file, and the setting of the provider that selects it.
_SETTINGS = {
    "instance_type": ("instance_type", "instance_type"),
    "image": ("image_id", "ami"),
    "disk_gb": ("disk_size", "disk_gb"),
    "zone": ("zone", "zones"),
}
# Property by which a provider chooses offers -> its key in a job file.
_OFFER_KEYS = {"region": "region", "vcpus": "cpus", "memory_gb": "memory", "spot": "use_spot"}
_OFFER_KEYS["max_hourly"] = "max_hourly_cost"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """Job file with the options of its launch.

    Attributes:
        job: Parsed job file.
        options: Pool options: ``JOB_OPTIONS`` and ``pool``; without a provider, the file selects the clouds.
        idle_timeout: Idle time in seconds after which the pool ends; None for the value in the file.
    """

    job: JobFile
    options: LaunchRequest
    idle_timeout: float | None = None

    @classmethod
    def from_options(cls, job: JobFile, *, idle_timeout: float | None = None, **options: Any) -> JobRequest:
        """Return the request with the given values of ``JOB_OPTIONS`` and ``pool``."""
        return cls(job=job, options=LaunchRequest(script=str(job.path), **options), idle_timeout=idle_timeout)

    @property
    def shapes_pool(self) -> list[str]:
        """Names of the given options that shape a pool, which an existing pool cannot honor."""
        return [*self.options.shapes_pool, *(["--idle"] if self.idle_timeout else [])]

    def spec(self, *, clone: bool = True) -> tuple[PoolSpec, list[str]]:
        """Return the specification of the requested pool, and notes about keys of the file that its provider ignores.

        Args:
            clone: Whether to clone the repository that the job file names as its working folder; otherwise the result
                has no working folder.

        Raises:
            SkywardError: If a value is invalid, or no provider of the file is available.
        """
        job, notes = self.job, list(self.job.notes)
        ways = list(self._make_specs(notes))
        first = ways[0].provider
        options = Options(**self._pool_options(first))
        image = Image(env={}, workdir=self._upload_folder(first, clone), checkpoints=self.options.checkpoints)
        asked: dict[str, Any] = {"name": self.options.pool, "image": image, "options": options}
        asked["plugins"] = make_plugins(self.options)
        name = job.name or str(job.path)
        if len(ways) == 1 and not isinstance(first, Offers):
            asked |= {"provider": first, "accelerator": ways[0].accelerator}
            return make_pool_spec(name, nodes=job.num_nodes, **asked), notes
        selection = "first" if job.ordered and len(ways) > 1 else None
        return make_pool_spec(name, *ways, nodes=job.num_nodes, selection=selection, **asked), notes

    def _make_specs(self, notes: list[str]) -> Iterator[Spec]:
        """Yield the pool specification of each alternative in the job file whose provider is available."""
        available, missing = set(provider_names()), []
        found: list[Spec] = []
        for way in self.job.ways:
            name = self.options.provider or way.cloud or DEFAULT_PROVIDER
            if name not in available:
                missing.append(name)
                continue
            if (spec := self._make_spec(way, name, notes)) not in found:
                found.append(spec)
        if not found:
            raise UsageError(
                f"{self.job.path} needs provider {' or '.join(dict.fromkeys(missing))}, which is not available. "
                f"Choose another one with --provider ({', '.join(sorted(available))})"
            )
        if missing:
            notes.append(f"alternatives on {' and '.join(dict.fromkeys(missing))} are ignored: no such provider")
        if not all(isinstance(each.provider, Offers) for each in found) and len(found) > 1:
            notes.append(f"the first of {len(found)} alternatives is used: not all providers have offers to compare")
            found = found[:1]
        yield from found

    def _make_spec(self, way: WantedMachine, name: str, notes: list[str]) -> Spec:
        kind = provider_class(name)
        declared = {each.name for each in declared_settings(kind)}
        texts, ignored = {}, []
        is_elsewhere = self.options.provider is not None and way.cloud not in ("", name)
        for part, (key, setting) in _SETTINGS.items():
            if resources := getattr(way, part):
                if setting in declared and not is_elsewhere:
                    texts[setting] = str(resources)
                else:
                    ignored.append(key)
        chosen: dict[str, Any] = {}
        if isinstance(kind, Offers):
            chosen = {
                "vcpus": way.vcpus or None,
                "memory_gb": way.memory_gb or None,
                "max_hourly_cost": way.max_hourly or None,
                "allocation": "spot" if way.spot else None,
                "region": None if is_elsewhere else way.region or None,
            }
            ignored += ["region"] if is_elsewhere and way.region else []
        else:
            ignored += [key for part, key in _OFFER_KEYS.items() if getattr(way, part)]
        if ignored:
            note = f"{', '.join(ignored)}: ignored by provider {name}"
            if note not in notes:
                notes.append(note)
        with set_error_field("provider"):
            provider = make_provider(kind, {**texts, **self.options.settings})
        return Spec(provider=provider, accelerator=way.accelerator or None, **chosen)

    def _pool_options(self, provider: Any) -> dict[str, Any]:
        options: dict[str, Any] = {
            "secrets": tuple(each for each in self.job.blanked if len(each) >= MIN_SECRET_LENGTH)
        }
        if self.job.restarts_on_loss:
            options |= {"on_loss": "restart", "error_restarts": self.job.error_restarts}
        options |= make_options(self.options, provider)
        idle = self.job.idle_seconds if self.idle_timeout is None else self.idle_timeout
        if idle is not None:
            options["idle_timeout"] = idle
        return options

    def _upload_folder(self, provider: Any, clone: bool) -> str | None:
        """Return the folder to upload; None for the current folder, if the ranks work in the user's own folder."""
        if self.job.git is not None:
            return str(_clone_to_folder(*self.job.git)) if clone else None
        if self.job.workdir is not None:
            return str(self.job.workdir)
        if isinstance(provider, RunsHere):
            return None
        folder = state_home() / EMPTY_FOLDER
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return str(folder)


def _job_tasks(job: JobFile, folder: Path, *, setup: bool, cwd: str = "") -> Iterator[Task]:
    """Yield the pickled calls of a job in order. Each call must end on all nodes before the next one starts.

    Args:
        folder: Folder for large pickled values.
        setup: Whether to include ``setup``.
        cwd: Working folder of the commands; "" for that of the ranks.

    Raises:
        JobFileError: If a mounted file cannot be read.
    """
    yield from (make_portable_task(call, folder) for call in job.calls(setup=setup, cwd=cwd))


def job_steps(
    job: JobFile, pool: PoolView | None, folder: Path, *, run_alone: bool = False, setup: bool = True
) -> list[Task]:
    """Return the calls of a job. On an existing pool, the first call updates the job's working folder on the nodes.

    If the nodes are this machine, the commands run in the folder itself, not in a copy.

    Args:
        pool: The existing pool; None for a new pool.
        folder: Folder for large pickled calls.
        run_alone: Include only the job's ``run``, without mounts and ``setup``.

    Raises:
        UsageError: If the folder cannot be read or is too large, or ``run_alone`` is true and the job has no ``run``.
        JobFileError: If a mounted file cannot be read.
    """
    if pool is None:
        return list(_job_tasks(job, folder, setup=setup))
    work = job.workdir if job.git is None else _clone_to_folder(*job.git, pool=pool.key)
    here = work is not None and isinstance(provider_class(pool.provider), RunsHere)
    cwd = str(work) if here else ""
    synced = _sync_task(work, folder) if work is not None and not here else None
    if job.git is not None and work is not None and not here:
        remove_clone(work)  # remove the clone, because the call that sends its files already contains them
    if synced is not None and (run_alone or not job.sets_all_up(setup=setup)):
        synced = replace(synced, nodes=job.num_nodes)
    steps = [synced] if synced is not None else []
    if not run_alone:
        return [*steps, *_job_tasks(job, folder, setup=setup, cwd=cwd)]
    call = job.run_call(cwd)
    if call is None:
        raise UsageError(f"{job.path} has no run to execute")
    return [*steps, make_portable_task(call)]


def _sync_task(work: Path, folder: Path) -> Task | None:
    from skyward_core.tasks.job_file import make_workdir_update
    from skyward_core.transport.working_folder_upload import FileUnreadable, FolderTooLarge, build_manifest

    with convert_errors("", UsageError, (FolderTooLarge, FileUnreadable)):
        paths = [item.path for item in build_manifest(work).items]
    return make_portable_task(make_workdir_update(work, paths), folder) if paths else None


def _clone_to_folder(url: str, ref: str, *, pool: str = "") -> Path:
    """Clone a repository into a new folder, which is removed with its pool.

    On this machine, ranks work in the folder. Replacement nodes get a copy of it.
    """
    folder = make_clone_folder(pool)
    try:
        _run_git_clone(url, ref, folder)
    except BaseException:
        remove_clone(folder)
        raise
    return folder


def _run_git_clone(url: str, ref: str, folder: Path) -> None:
    # Keep login data out of git's command line, because other users can see it, and screens and logs show it.
    plain, git_options, login = strip_credentials(url), [], _url_credentials(url)
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    if login is not None:
        git_options = ["-c", "credential.helper=", "-c", f"credential.helper={_CREDENTIAL_HELPER}"]
        environment |= {"SKYWARD_GIT_USER": login[0], "SKYWARD_GIT_PASSWORD": login[1]}
    for words in (
        ["init", "--quiet"],
        ["fetch", "--quiet", "--depth", "1", "--", url if login is None else plain, ref or "HEAD"],
        ["checkout", "--quiet", "FETCH_HEAD"],
    ):
        try:
            done = subprocess.run(
                ["git", *git_options, "-C", str(folder), *words],
                env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=GIT_TIMEOUT,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise JobFileError(f"workdir: git did not fetch {plain} within {GIT_TIMEOUT / 60:g} minutes") from error
        except OSError as error:
            raise JobFileError(f"workdir: git cannot fetch {plain}: {error}") from error
        if done.returncode:
            reason = strip_credentials(done.stderr.strip())
            raise JobFileError(f"workdir: git cannot fetch {ref or 'HEAD'} of {plain}: {reason}")


def _url_credentials(url: str) -> tuple[str, str] | None:
    """Return user and password of a URL; None if it has no password."""
    try:
        parts = urlsplit(url)
    except ValueError:  # ignore an invalid URL, because git will report it
        return None
    if parts.scheme not in ("http", "https") or not parts.password:
        return None
    return unquote(parts.username or ""), unquote(parts.password)
