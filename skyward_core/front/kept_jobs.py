"""Job files as they were launched, kept to be launched again: their text, and what was said beside it. No value of a
secret is kept."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import blake2s
from pathlib import Path
from typing import Any

from ..model.errors import JobFileError, UsageError
from ..store.home import home
from ..store.whole_file import write_whole
from ..tasks.job_files.without_secrets import secret_names, without_secrets
from .job_request import JobFile, JobRequest

KEPT = "jobs"  # a folder below the home: texts of jobs that are launched again, and that stand nowhere else
Overrides = Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptJob:
    """A job file that was launched.

    Attributes:
        path: of the file, as it was named.
        cwd: the folder in which it was launched.
        text: what stood in it, without secrets; "" where ``why_not`` says why that is not kept.
        digest: of all that stood in it.
        env: its variables, but for those that are secret.
        lacks_env, lacks_secrets: variables, and secrets, whose values are not kept.
        joined: whether it went to a pool that was up before.
        provider, settings, budget, wait_for_capacity, idle_timeout, plugins: of the request.
        setup: whether its ``setup`` was run.
        run_alone: whether its ``run`` alone was, as ``exec`` does.
        down: whether the pool was to be torn down behind it.
        why_not: why it cannot be run again.
    """

    path: str
    cwd: Path
    text: str = field(default="", repr=False)
    digest: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    lacks_env: tuple[str, ...] = ()
    lacks_secrets: tuple[str, ...] = ()
    joined: bool = False
    provider: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    budget: float | None = None
    wait_for_capacity: str | None = None
    idle_timeout: float | None = None
    plugins: tuple[str, ...] = ()
    setup: bool = True
    run_alone: bool = False
    down: bool = False
    why_not: str = ""

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
            names = ("provider", "settings", "budget", "wait_for_capacity", "idle_timeout", "plugins")
            said |= {name: getattr(request, name) for name in names}
        kept = cls(
            path=str(job.path),
            cwd=Path.cwd(),
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
            return _digest((self.cwd / self.path).read_text(encoding="utf-8")) == self.digest
        except (OSError, UnicodeDecodeError):
            return False

    def lacking(self, env: Overrides, secrets: Overrides) -> dict[str, str]:
        """What has a value neither in what is given nor among this process's variables: the option for it, by name."""
        wanted = {name: "--env" for name in self.lacks_env if name not in env}
        wanted |= {name: "--secret" for name in self.lacks_secrets if name not in secrets}
        return {name: option for name, option in wanted.items() if name not in os.environ}

    def job(self, env: Overrides, secrets: Overrides) -> JobFile:
        """The job again; paths in it are seen from the current folder.

        Args:
            env, secrets: variables in place of those that are kept, or of those that are not; what lacks a value has
                this process's.

        Raises:
            UsageError: its text is not kept, or a secret has no value.
            JobFileError: it cannot be used any more.
        """
        self.check()
        for name, option in self.lacking(env, secrets).items():
            raise UsageError(
                f"{name} of {self.path} is a secret, of which no value is kept: give {option} {name}, which takes this "
                "shell's variable of that name"
            )
        envs = {**self.env, **dict.fromkeys(self.lacks_env), **env}
        hidden = {**dict.fromkeys(self.lacks_secrets), **secrets}
        return JobFile.from_text(self.text, Path(self.path), env=envs, secrets=hidden)

    def check(self) -> None:
        """See whether it can be run again.

        Raises:
            UsageError: it cannot.
        """
        if self.why_not:
            raise UsageError(
                f"the text of {self.path} is not kept, for {self.why_not}: launch the file again"
            )

    def again(self, job: JobFile, pool: str | None) -> JobRequest:
        """What is asked for again, on a pool of that name, or of a name made up."""
        return JobRequest(
            job=job, pool=pool, provider=self.provider, settings=self.settings, budget=self.budget,
            wait_for_capacity=self.wait_for_capacity, idle_timeout=self.idle_timeout, plugins=self.plugins,
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

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"cwd": str(self.cwd)}

    @classmethod
    def from_json(cls, data: Any) -> KeptJob:
        """What :meth:`to_json` gave.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: it is not that.
        """
        known = {each.name: each.default for each in fields(cls)}
        if strange := sorted(data.keys() - known.keys()):
            raise ValueError(", ".join(strange))
        named = [*data["lacks_env"], *data["lacks_secrets"], *data["env"], *data["env"].values()]
        if not all(
            isinstance(each, str) and "\0" not in each for each in (data["path"], data["cwd"], *named)
        ):
            raise ValueError("a text")
        lacks = {name: tuple(data[name]) for name in ("lacks_env", "lacks_secrets")}
        plugins = tuple(data.get("plugins", ()))
        return cls(**{**data, **lacks, "plugins": plugins, "cwd": Path(data["cwd"])})


def _digest(text: str) -> str:
    return blake2s(text.encode(), digest_size=16).hexdigest()
