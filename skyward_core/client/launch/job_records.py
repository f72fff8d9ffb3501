"""Jobs and commands saved with each run, for running again.

Commands are here, job files in ``launch.job_records``.
"""

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
    """Variables whose names, or whose values, say that they are secret."""
    return [name for name, text in envs.items() if is_secret_name(name) or secret_values({name: text})]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellRecord:
    """What a shell was given to run, by a job file or alone.

    Attributes:
        cwd: the folder in which it was launched.
        env: its variables, but for those that are secret.
        lacks_env, lacks_secrets: variables, and secrets, whose values are not kept.
        joined: whether it went to a pool that was up before.
        why_not: why it cannot be run again.
    """

    TAG: ClassVar[str]  # under which it is kept
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  read by ``parse_saved``

    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    lacks_env: tuple[str, ...] = ()
    lacks_secrets: tuple[str, ...] = ()
    joined: bool = False
    why_not: str = ""

    @property
    def label(self) -> str:
        """What it is called."""
        raise NotImplementedError

    def missing_variables(self, env: Overrides, secrets: Overrides) -> dict[str, str]:
        """What has a value neither in what is given nor among this process's variables: the option for it, by name."""
        wanted = {name: "--env" for name in self.lacks_env if name not in env}
        wanted |= {name: "--secret" for name in self.lacks_secrets if name not in secrets}
        return {name: option for name, option in wanted.items() if name not in os.environ}

    def values(self, env: Overrides, secrets: Overrides) -> tuple[Overrides, Overrides]:
        """Its variables, and its secrets, to be run again with; None stands for this process's value.

        Args:
            env, secrets: in place of those that are kept, or of those that are not.

        Raises:
            UsageError: it cannot be run again, or a secret has no value.
        """
        self.check_rerunnable()
        for name, option in self.missing_variables(env, secrets).items():
            raise UsageError(
                f"{name} of {self.label} is a secret, of which no value is kept: give {option} {name}, which takes "
                "this shell's variable of that name"
            )
        return (
            {**self.env, **dict.fromkeys(self.lacks_env), **env},
            {**dict.fromkeys(self.lacks_secrets), **secrets},
        )

    def check_rerunnable(self) -> None:
        """See whether it can be run again.

        Raises:
            UsageError: it cannot.
        """
        if self.why_not:
            raise UsageError(f"the text of {self.label} is not kept, for {self.why_not}: launch it again yourself")

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"cwd": str(self.cwd)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRecord(ShellRecord):
    """A command that was run.

    Attributes:
        words: it; none where ``why_not`` says why that is not kept.
        nodes: how many of the pool's nodes ran it, or which; None for all.
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
        """It, as a shell reads it."""
        return self.words[0] if len(self.words) == 1 else shlex.join(self.words)

    @classmethod
    def from_command(
        cls,
        words: Sequence[str],
        env: Mapping[str, str],
        secrets: Mapping[str, str],
        nodes: int | tuple[int, ...] | None,
    ) -> CommandRecord:
        """Of a command that is about to run on a pool.

        Args:
            env, secrets: its variables.
        """
        hidden = secret_names(env)
        kept = cls(
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
            return replace(kept, words=(), why_not="a password stands in a URL in it")
        if Redactor(values).redact_bytes(text.encode()) != text.encode():
            return replace(kept, words=(), why_not="the value of a secret stands in it")
        return kept


JOBS_FOLDER = "jobs"  # a folder below the home: texts of jobs that are launched again, and that stand nowhere else


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord(ShellRecord):
    """A job file that was launched.

    Attributes:
        path: of the file, as it was named.
        text: what stood in it, without secrets; "" where ``why_not`` says why that is not kept.
        digest: of all that stood in it.
        provider, settings, budget, wait_for_capacity, idle_timeout, plugins, plugin_settings: of the request.
        setup: whether its ``setup`` was run.
        run_alone: whether its ``run`` alone was, as ``exec`` does.
        down: whether the pool was to be torn down behind it.
    """

    TAG = "job"

    path: str
    text: str = field(default="", repr=False)
    digest: str = ""
    provider: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    budget: float | None = None
    wait_for_capacity: str | None = None
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
    def from_job(cls, job: JobFile, request: JobRequest | None = None, **said: Any) -> JobRecord:
        """Of a job that is about to be launched.

        Args:
            job: it.
            request: what was said of a pool that is made for it; None for one that is up.
            said: other fields.
        """
        hidden = secret_names(job.envs)
        if request is not None:
            said |= {name: getattr(request.options, name) for name in JOB_OPTIONS}
            said["idle_timeout"] = request.idle_timeout
        kept = cls(
            path=str(job.path),
            cwd=require_current_folder(),
            digest=_digest(job.text),
            env={name: text for name, text in job.envs.items() if name not in hidden},
            lacks_env=tuple(hidden),
            lacks_secrets=tuple(job.secrets),
            joined=request is None,
            **said,
        )
        from skyward_core.tasks.job_files.yaml_document import strip_secrets

        try:
            return replace(kept, text=strip_secrets(job.text, hidden, job.blanked))
        except JobFileError as error:
            return replace(kept, why_not=str(error))

    @property
    def is_unchanged(self) -> bool:
        """Whether the file is there, and says what it said."""
        try:
            return _digest(read_text(self.cwd / self.path)) == self.digest
        except (OSError, UnicodeDecodeError):
            return False

    def load_job(self, env: Overrides, secrets: Overrides) -> JobFile:
        """The job again; paths in it are seen from the current folder.

        Args:
            env, secrets: variables in place of those that are kept, or of those that are not; what lacks a value has
                this process's.

        Raises:
            UsageError: its text is not kept, or a secret has no value.
            JobFileError: it cannot be used any more.
        """
        from skyward_core.tasks.job_files.job import JobFile

        envs, hidden = self.values(env, secrets)
        return JobFile.from_text(self.text, Path(self.path), env=envs, secrets=hidden)

    def to_job_request(self, job: JobFile, pool: str | None) -> JobRequest:
        """What is asked for again, on a pool of that name, or of a name made up."""
        said = {name: getattr(self, name) for name in JOB_OPTIONS}
        return JobRequest.from_options(job, pool=pool, idle_timeout=self.idle_timeout, **said)

    def write_file(self, run: str) -> Path:
        """A file with the text that was kept, without secrets.

        Args:
            run: the run that it is kept with.

        Raises:
            UsageError: it cannot be written.
        """
        target = state_home() / JOBS_FOLDER / f"{run}.yaml"
        try:
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomic(target, self.text.encode())
        except OSError as error:
            raise UsageError(f"what was kept of {self.path} cannot be written to {target}: {error}") from error
        return target


def _digest(text: str) -> str:
    return blake2s(text.encode(), digest_size=16).hexdigest()
