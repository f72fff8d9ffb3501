"""Job files as they were launched, kept to be launched again: their text, and what was said beside it. No value of a
secret is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2s
from pathlib import Path
from typing import Any

from ..model.errors import JobFileError, UsageError
from ..store.home import home
from ..store.user_files import read_text
from ..store.whole_file import write_whole
from ..store.working_folder import here
from ..tasks.job_files.without_secrets import without_secrets
from .job_request import JobFile, JobRequest
from .kept_commands import KeptShell, Overrides, secret_names

KEPT = "jobs"  # a folder below the home: texts of jobs that are launched again, and that stand nowhere else


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptJob(KeptShell):
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
    def of(cls, job: JobFile, request: JobRequest | None = None, **said: Any) -> KeptJob:
        """Of a job that is about to be launched.

        Args:
            job: it.
            request: what was said of a pool that is made for it; None for one that is up.
            said: other fields.
        """
        hidden = secret_names(job.envs)
        if request is not None:
            names = (
                "provider",
                "settings",
                "budget",
                "wait_for_capacity",
                "idle_timeout",
                "plugins",
                "plugin_settings",
            )
            said |= {name: getattr(request, name) for name in names}
        kept = cls(
            path=str(job.path),
            cwd=here(),
            digest=_digest(job.text),
            env={name: text for name, text in job.envs.items() if name not in hidden},
            lacks_env=tuple(hidden),
            lacks_secrets=tuple(job.secrets),
            joined=request is None,
            **said,
        )
        try:
            return replace(kept, text=without_secrets(job.text, hidden, job.blanked))
        except JobFileError as error:
            return replace(kept, why_not=str(error))

    @property
    def is_unchanged(self) -> bool:
        """Whether the file is there, and says what it said."""
        try:
            return _digest(read_text(self.cwd / self.path)) == self.digest
        except (OSError, UnicodeDecodeError):
            return False

    def job(self, env: Overrides, secrets: Overrides) -> JobFile:
        """The job again; paths in it are seen from the current folder.

        Args:
            env, secrets: variables in place of those that are kept, or of those that are not; what lacks a value has
                this process's.

        Raises:
            UsageError: its text is not kept, or a secret has no value.
            JobFileError: it cannot be used any more.
        """
        envs, hidden = self.values(env, secrets)
        return JobFile.from_text(self.text, Path(self.path), env=envs, secrets=hidden)

    def again(self, job: JobFile, pool: str | None) -> JobRequest:
        """What is asked for again, on a pool of that name, or of a name made up."""
        return JobRequest(
            job=job, pool=pool, provider=self.provider, settings=self.settings, budget=self.budget,
            wait_for_capacity=self.wait_for_capacity, idle_timeout=self.idle_timeout, plugins=self.plugins,
            plugin_settings=self.plugin_settings,
        )  # fmt: skip

    def file(self, run: str) -> Path:
        """A file with the text that was kept, without secrets.

        Args:
            run: the run that it is kept with.

        Raises:
            UsageError: it cannot be written.
        """
        target = home() / KEPT / f"{run}.yaml"
        try:
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(target, self.text.encode())
        except OSError as error:
            raise UsageError(
                f"what was kept of {self.path} cannot be written to {target}: {error}"
            ) from error
        return target

    @classmethod
    def from_json(cls, data: Any) -> KeptJob:
        """What :meth:`to_json` gave.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: it is not that.
        """
        found = cls.fields_from(data)
        if not isinstance(data["path"], str) or "\0" in data["path"]:
            raise ValueError("a path")
        return cls(**{**found, "plugins": tuple(data.get("plugins", ()))})


def _digest(text: str) -> str:
    return blake2s(text.encode(), digest_size=16).hexdigest()
