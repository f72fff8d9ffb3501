"""Saved launches of job files and shell commands, from which they can run again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2s
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from skyward_core.client.launch.job_launch import JobRequest
from skyward_core.client.launch.launch_request import JOB_OPTIONS
from skyward_core.model.errors import JobFileError, UsageError
from skyward_core.store.atomic_file import write_atomic
from skyward_core.store.state_folder import require_current_folder, state_home
from skyward_core.util.redaction import Redactor, is_secret_name, secret_values, url_secrets
from skyward_core.util.user_files import read_text

if TYPE_CHECKING:
    from skyward_core.tasks.job_files.job import JobFile

Overrides = Mapping[str, str | None]


def secret_names(envs: Mapping[str, str]) -> list[str]:
    """Return the variables that are secret, judged by their names or values."""
    return [name for name, text in envs.items() if is_secret_name(name) or secret_values({name: text})]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellRecord:
    """Saved launch of shell commands, by a job file or by ``exec``.

    Attributes:
        cwd: Working folder of the client.
        env: Variables, except secret ones.
        lacks_env, lacks_secrets: Names of variables and secrets whose values are not saved.
        joined: Whether the run used an existing pool.
        why_not: Reason why the launch cannot run again; "" if it can.
    """

    TAG: ClassVar[str]  # key in the saved record
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  read by ``parse_saved``

    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    lacks_env: tuple[str, ...] = ()
    lacks_secrets: tuple[str, ...] = ()
    joined: bool = False
    why_not: str = ""

    @property
    def label(self) -> str:
        """Name for messages."""
        raise NotImplementedError

    def missing_variables(self, env: Overrides, secrets: Overrides) -> dict[str, str]:
        """Return the variables that have no value, each with the option that sets it. Given values and this process's
        environment count.
        """
        wanted = {name: "--env" for name in self.lacks_env if name not in env}
        wanted |= {name: "--secret" for name in self.lacks_secrets if name not in secrets}
        return {name: option for name, option in wanted.items() if name not in os.environ}

    def values(self, env: Overrides, secrets: Overrides) -> tuple[Overrides, Overrides]:
        """Return the variables and secrets for another run; None means the value in this process's environment.

        Args:
            env, secrets: Values that override or complete the saved ones.

        Raises:
            UsageError: If the launch cannot run again, or a secret has no value.
        """
        self.check_rerunnable()
        for name, option in self.missing_variables(env, secrets).items():
            raise UsageError(
                f"{name} of {self.label} is a secret whose value is not saved. Give {option} {name}, which takes "
                "this shell's variable of that name"
            )
        return (
            {**self.env, **dict.fromkeys(self.lacks_env), **env},
            {**dict.fromkeys(self.lacks_secrets), **secrets},
        )

    def check_rerunnable(self) -> None:
        """Check that the launch can run again.

        Raises:
            UsageError: If the launch cannot run again.
        """
        if self.why_not:
            raise UsageError(
                f"{self.label} cannot be rerun: its text was not saved because {self.why_not}. Launch it by hand"
            )

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"cwd": str(self.cwd)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRecord(ShellRecord):
    """Saved launch of a shell command.

    Attributes:
        words: Words of the command; empty if they are not saved, for the reason in ``why_not``.
        nodes: Number or indexes of the nodes that ran it; None for all.
    """

    TAG = "command"

    words: tuple[str, ...]
    nodes: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not self.words and not self.why_not:
            raise ValueError("no words")

    @property
    def label(self) -> str:
        return f"the command {self.words[0]}" if self.words else "the command"

    @property
    def command_line(self) -> str:
        """Command as text for a shell."""
        return self.words[0] if len(self.words) == 1 else shlex.join(self.words)

    @classmethod
    def from_command(
        cls,
        words: Sequence[str],
        env: Mapping[str, str],
        secrets: Mapping[str, str],
        nodes: int | tuple[int, ...] | None,
    ) -> CommandRecord:
        """Return the record of a command that is about to run on a pool.

        Args:
            env, secrets: Variables of the command.
        """
        hidden = secret_names(env)
        record = cls(
            words=tuple(words),
            nodes=nodes,
            cwd=require_current_folder(),
            env={name: text for name, text in env.items() if name not in hidden},
            lacks_env=tuple(hidden),
            lacks_secrets=tuple(secrets),
            joined=True,
        )
        text = "\n".join(words)
        values = [*(env[name] for name in hidden), *secrets.values(), *secret_values(os.environ)]
        if url_secrets(text):
            return replace(record, words=(), why_not="a URL in it contains a password")
        if Redactor(values).redact_bytes(text.encode()) != text.encode():
            return replace(record, words=(), why_not="it contains the value of a secret")
        return record


JOBS_FOLDER = "jobs"  # folder in the state folder: job files of rerun jobs whose original files changed


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord(ShellRecord):
    """Saved launch of a job file.

    Attributes:
        path: Path of the file, as the user gave it.
        text: Content of the file without secrets; "" if it is not saved, for the reason in ``why_not``.
        digest: Hash of the whole content.
        provider, settings, budget, wait_for_capacity, grace, idle_timeout, plugins, plugin_settings: As in the request.
        setup: Whether ``setup`` ran.
        run_alone: Whether only ``run`` ran, as with ``exec``.
        down: Whether the pool was torn down afterwards.
    """

    TAG = "job"

    path: str
    text: str = field(default="", repr=False)
    digest: str = ""
    provider: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    budget: float | None = None
    wait_for_capacity: str | None = None
    grace: float | None = None
    idle_timeout: float | None = None
    plugins: tuple[str, ...] = ()
    plugin_settings: Mapping[str, str] = field(default_factory=dict)
    setup: bool = True
    run_alone: bool = False
    down: bool = False

    @property
    def label(self) -> str:
        return self.path

    @classmethod
    def from_job(cls, job: JobFile, request: JobRequest | None = None, **values: Any) -> JobRecord:
        """Return the record of a job that is about to be launched.

        Args:
            job: The job.
            request: Request for the new pool; None for an existing pool.
            values: Further fields.
        """
        hidden = secret_names(job.envs)
        if request is not None:
            values |= {name: getattr(request.options, name) for name in JOB_OPTIONS}
            values["idle_timeout"] = request.idle_timeout
        record = cls(
            path=str(job.path),
            cwd=require_current_folder(),
            digest=_digest(job.text),
            env={name: text for name, text in job.envs.items() if name not in hidden},
            lacks_env=tuple(hidden),
            lacks_secrets=tuple(job.secrets),
            joined=request is None,
            **values,
        )
        from skyward_core.tasks.job_files.job_yaml_reader import strip_secrets

        try:
            return replace(record, text=strip_secrets(job.text, hidden, job.blanked))
        except JobFileError as error:
            return replace(record, why_not=str(error))

    @property
    def is_unchanged(self) -> bool:
        """Whether the file exists and its content has not changed."""
        try:
            return _digest(read_text(self.cwd / self.path)) == self.digest
        except (OSError, UnicodeDecodeError):
            return False

    def load_job(self, env: Overrides, secrets: Overrides) -> JobFile:
        """Return the job; its paths are relative to the current folder.

        Args:
            env, secrets: Values that override or complete the saved ones. This process's environment supplies the rest.

        Raises:
            UsageError: If the text of the job file is not saved, or a secret has no value.
            JobFileError: If the file is no longer valid.
        """
        from skyward_core.tasks.job_files.job import JobFile

        envs, hidden = self.values(env, secrets)
        return JobFile.from_text(self.text, Path(self.path), env=envs, secrets=hidden)

    def to_job_request(self, job: JobFile, pool: str | None) -> JobRequest:
        """Return the request for a rerun on a pool with the given name, or with a generated name."""
        options = {name: getattr(self, name) for name in JOB_OPTIONS}
        return JobRequest.from_options(job, pool=pool, idle_timeout=self.idle_timeout, **options)

    def write_file(self, run: str) -> Path:
        """Write the saved text, without secrets, to a file.

        Args:
            run: ID of the run that was launched from the file.

        Raises:
            UsageError: If the file cannot be written.
        """
        target = state_home() / JOBS_FOLDER / f"{run}.yaml"
        try:
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomic(target, self.text.encode())
        except OSError as error:
            raise UsageError(f"the saved text of {self.path} cannot be written to {target}: {error}") from error
        return target


def _digest(text: str) -> str:
    return blake2s(text.encode(), digest_size=16).hexdigest()
