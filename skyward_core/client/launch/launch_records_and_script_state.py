"""Saved launches, with which scripts, job files and shell commands run again, and the state of a launched script.

The state of a script is its hash, its commit and its uncommitted changes.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2s
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from skyward_core.client.launch.launch_option_declarations import NO_SCRIPT, LaunchRequest, options_of
from skyward_core.model.errors import JobFileError, SkywardError, UsageError, convert_errors
from skyward_core.model.provider_settings_schema import declared_settings
from skyward_core.providers import provider_class
from skyward_core.store import pool_folder
from skyward_core.store.default_and_forbidden_working_folders import require_current_folder
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow, RunRow
from skyward_core.store.state_folder import state_home
from skyward_core.tasks.bounded_subprocess import QueryTimeout, git_command, run_bounded
from skyward_core.util.redaction import Redactor, is_secret_name, secret_values, url_secrets
from skyward_core.util.safe_file_access import expand_user, read_bytes, read_text, write_atomic
from skyward_core.util.terminal_safe_text import sanitize_paragraph

if TYPE_CHECKING:
    from skyward_core.client.launch.job_and_shell_launch import JobRequest
    from skyward_core.tasks.job_file import JobFile

T = TypeVar("T")
POOL_LAUNCH = "pool"  # name that replaces the run id in the file name of the launch record that created a pool
MAX_CHANGED_FILES = 100  # maximum number of changed files whose names are saved
MAX_DIFF_BYTES = 1 << 18  # maximum number of saved bytes of the patch
MAX_SCRIPT_BYTES = 1 << 18  # maximum size of a script whose text is saved
SOURCE_PARTS = ("diff", "text")  # fields of ``ScriptState`` that are saved in files of their own
GIT_TIMEOUT = 5.0  # seconds for all git calls; the command cannot exit before they finish


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptState:
    """State of a script and its git repository at a launch.

    Attributes:
        script: Hash of its file; "" if the file could not be read.
        commit: Current commit of the script's git repository; "" without a repository.
        changed: Files that differed from the commit, at most 100.
        diff: Uncommitted changes as a patch, with secrets redacted; at most 256 KiB.
        cut: Whether ``diff`` is incomplete because the patch was longer.
        text: Content of the script's file, saved with secrets redacted; empty if the file is longer than 256 KiB.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  read by ``parse_saved``

    script: str = ""
    commit: str = ""
    changed: tuple[str, ...] = ()
    diff: bytes = field(default=b"", repr=False)
    cut: bool = False
    text: bytes = field(default=b"", repr=False)

    @classmethod
    def from_file(cls, script: Path) -> ScriptState:
        """Return the hash and the text of a script only, without calling git."""
        with suppress(OSError):  # the file may be missing or its path invalid; the hash then stays empty
            text = read_bytes(script)
            digest = blake2s(text, digest_size=16).hexdigest()
            return cls(script=digest, text=text if len(text) <= MAX_SCRIPT_BYTES else b"")
        return cls()

    @classmethod
    def capture(cls, script: Path) -> ScriptState:
        """Return the present state of a script. Calls git, which blocks: do not call on an event loop."""
        deadline = monotonic() + GIT_TIMEOUT
        found, folder = cls.from_file(script), str(script.absolute().parent)
        commit = _run_git(folder, deadline, 1 << 10, "rev-parse", "--verify", "HEAD").strip().decode("ascii", "replace")
        if not commit:
            return found
        # Disable filter programs that the repository's attributes request, because git would run them.
        diff_words, without = ("diff", *_DIFF_OPTIONS), _repository_filters(folder, deadline)
        names = _run_git(
            folder, deadline, _MAX_GIT_OUTPUT, *diff_words, "--name-only", "-z", "HEAD", "--", without=without
        ).split(b"\0")[:-1]
        patch = _run_git(folder, deadline, _MAX_GIT_OUTPUT, *diff_words, "HEAD", "--", without=without)
        cut = len(patch) > MAX_DIFF_BYTES
        if cut:
            patch = patch[:MAX_DIFF_BYTES].rpartition(b"\n")[0] + b"\n"
        changed = tuple(name.decode("utf-8", "replace") for name in names[:MAX_CHANGED_FILES])
        return replace(found, commit=commit, changed=changed, diff=_redact(patch), cut=cut)

    def changes_since(self, before: ScriptState) -> list[str]:
        """Describe the differences between an earlier state and this one."""
        changes = []
        if before.script and before.script != self.script:
            changes.append("the script has changed" if self.script else "the script can no longer be read")
        if before.commit and before.commit != self.commit:
            now = f"{self.commit:.10}" if self.commit else "outside of a repository"
            changes.append(f"commit was {before.commit:.10}, is now {now}")
        same = self.commit == before.commit and self.diff == before.diff and bool(before.diff)
        if before.changed and (before.cut or not same):
            shown = ", ".join(map(sanitize_paragraph, before.changed[:3]))
            more = ", …" if len(before.changed) > 3 else ""
            changes.append(f"files with uncommitted changes at that launch: {shown}{more}")
        return changes


# Options with which git writes a patch for "git apply", whatever the user's git configuration is.
_DIFF_OPTIONS = (
    "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--ignore-submodules=dirty", "--submodule=short",
    "--no-relative", "--src-prefix=a/", "--dst-prefix=b/",
)  # fmt: skip
_FILTER_PATTERN = r"^filter\..*\.(clean|smudge|process|required)$"
_OWN_SCOPES = (b"local", b"worktree")
_MAX_GIT_OUTPUT = MAX_DIFF_BYTES + 1


def _redact(source: bytes, named: Iterable[str] = ()) -> bytes:
    """Redact secrets in source code: values of this process's secret variables, and passwords in URLs.

    Args:
        named: Names of further secret variables.
    """
    values = [os.environ[name] for name in named if name in os.environ]
    values += [*secret_values(os.environ), *url_secrets(source.decode("utf-8", "replace"))]
    return Redactor(values).redact_bytes(source)


def _repository_filters(folder: str, deadline: float) -> list[str]:
    """Return the names of a repository's own filter settings. They must be disabled, because filters run programs on
    the compared files.
    """
    words = "config", "--show-scope", "-z", "--name-only", "--get-regexp", _FILTER_PATTERN
    fields = _run_git(folder, deadline, _MAX_GIT_OUTPUT, *words).split(b"\0")
    scopes, names = fields[::2], fields[1::2]
    return [os.fsdecode(name) for scope, name in zip(scopes, names, strict=False) if scope in _OWN_SCOPES]


def _run_git(folder: str, deadline: float, most: int, *words: str, without: Sequence[str] = ()) -> bytes:
    """Return the first bytes of git's output; empty if git is missing, fails or is too slow."""
    command = git_command(folder, *words, without=without)
    try:
        done = run_bounded(command, (), patience=max(0.1, deadline - monotonic()), most=most)
    except (OSError, ValueError, QueryTimeout):
        return b""
    return b"" if done.returncode and len(done.stdout) < most else done.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    """Saved launch of a script.

    Attributes:
        request: The request; its paths are relative to ``cwd``.
        cwd: Working folder of the client.
        joined: Whether the run used an existing pool.
        source: State of the script.
    """

    request: LaunchRequest
    cwd: Path
    joined: bool = False
    source: ScriptState = field(default_factory=ScriptState)

    def absolute_request(self) -> LaunchRequest:
        """Return the request with absolute paths."""
        request = self.request
        paths = {name: getattr(request, name) for name in ("script", "lock", "requirements")}
        paths["script"] = None if request.script == NO_SCRIPT else request.script
        paths["python"] = request.python if os.sep in (request.python or "") else None
        whole: dict[str, Any] = {name: str(self.cwd / expand_user(path)) for name, path in paths.items() if path}
        return replace(request, **whole)

    def with_arguments(self, arguments: Sequence[str], script_args: Sequence[str] | None) -> LaunchRecord:
        """Return the launch with other arguments.

        Args:
            arguments: Texts ``name=value``, which replace the arguments of the same names.
            script_args: New arguments of a whole script, which replace all previous ones; None keeps the previous ones.

        Raises:
            UsageError: If function arguments are given for a whole script, or script arguments for a function.
        """
        request = self.request
        if arguments and request.script_args is not None:
            raise UsageError("the run executed a whole script, which takes no --arg. Give its arguments after --")
        if script_args is not None and request.script_args is None:
            raise UsageError("the run called a function. Give its arguments as --arg NAME=VALUE, not after --")
        named = {text.partition("=")[0]: text for text in (*request.arguments, *arguments)}
        words = request.script_args if script_args is None else tuple(script_args)
        return replace(self, request=replace(request, arguments=tuple(named.values()), script_args=words))


def save_launch_record(pool: str, run: str, request: LaunchRequest, *, joined: bool, source: ScriptState) -> None:
    """Save the launch of a run.

    Args:
        pool: Key of the pool.
        joined: Whether the pool existed before.
        source: State of the script.

    Raises:
        OSError: If the record cannot be written.
    """
    state = {"script": source.script, "commit": source.commit, "changed": source.changed}
    record = {"request": asdict(request), "cwd": str(require_current_folder()), "joined": joined}
    pool_folder.save_launch(pool, run, record | {"source": state, "cut": source.cut})
    secrets = [text.removeprefix("secret=") for text in request.image_settings if text.startswith("secret=")]
    for kind in SOURCE_PARTS:
        if data := getattr(source, kind):
            pool_folder.save_source(pool, run, kind, _redact(data, secrets))


def save_before_launch(pool: str, run: str, request: LaunchRequest | ShellRecord, *, joined: bool) -> None:
    """Save the record of a launch before the launch starts, in case the client dies. Does not call git.

    Errors are ignored, because the save after the launch reports them.
    """
    with suppress(OSError):
        if not isinstance(request, LaunchRequest):
            return pool_folder.save_launch(pool, run, {request.TAG: request.to_json()})
        save_launch_record(pool, run, request, joined=joined, source=ScriptState.from_file(Path(request.script)))


def diff_path(ledger: Ledger, row: RunRow) -> Path:
    """Return the path of the file with the changes that were uncommitted at launch; missing if there were none."""
    return pool_folder.source_path(ledger.pool(row.token).key, row.run, "diff")


def load_launch_record(ledger: Ledger, row: RunRow) -> LaunchRecord:
    """Return the saved launch of a run of a script.

    Raises:
        UsageError: If the run has no saved launch, or belongs to a job or a shell command.
        LedgerError: If the ledger cannot be read.
    """
    found = load_any_record(ledger, row)
    if not isinstance(found, LaunchRecord):
        raise UsageError(f"run {row.run} executed {found.label}, not a script")
    return found


def load_any_record(ledger: Ledger, row: RunRow) -> LaunchRecord | JobRecord | CommandRecord:
    """Return the saved launch of a run: of a script, a job or a command. The launch of a script on an existing pool has
    the settings of that pool, so that the launch can create the pool again.

    Raises:
        UsageError: If the run has no saved launch.
        LedgerError: If the ledger cannot be read.
    """
    pool = ledger.pool(row.token)
    found = _read_record(pool.key, row.run, f"run {row.run}")
    if found is None:
        raise UsageError(
            f"Run {row.run} has no saved launch. Launches by scripts are not saved, and saved launches are deleted "
            "with the logs."
        )
    if not isinstance(found, LaunchRecord) or not found.joined or found.request.shapes_pool:
        return found
    created = load_pool_record(pool)
    made = created.absolute_request() if isinstance(created, LaunchRecord) else request_from_pool(pool)
    settings: dict[str, Any] = {name: getattr(made, name) for name in options_of()}
    return replace(found, request=replace(found.request, pool=pool.name, **settings))


def load_pool_record(pool: PoolRow) -> LaunchRecord | JobRecord | CommandRecord:
    """Return the saved launch that created a pool. For a pool that a script created, return a launch without a script,
    which has the settings of the pool.

    Raises:
        UsageError: If the saved launch cannot be read.
    """
    found = _read_record(pool.key, POOL_LAUNCH, f"pool {pool.name}")
    # Replace "the provider's default" by the pool's actual number of nodes.
    if isinstance(found, LaunchRecord) and found.request.nodes is None:
        return replace(found, request=replace(found.request, nodes=pool.spec.get("nodes")))
    return found or LaunchRecord(request=request_from_pool(pool), cwd=Path(pool.spec.get("cwd") or "/"))


def request_from_pool(pool: PoolRow) -> LaunchRequest:
    """Return a request without a script for a pool like a given one, as far as the ledger describes the pool."""
    spec, image = pool.spec, pool.spec.get("image") or {}
    provider = str(spec.get("provider") or pool.provider["provider"])
    settings: dict[str, str] = {}
    with suppress(SkywardError):  # settings stay unknown if the package of the provider is no longer installed
        for each in declared_settings(provider_class(provider)):
            value = pool.provider.get(each.name)
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            if value not in (None, each.default) and each.read(text) == value:
                settings[each.name] = text
    return LaunchRequest(
        script=NO_SCRIPT,
        pool=pool.name,
        provider=provider,
        settings=settings,
        nodes=spec.get("nodes"),
        ranks_per_node=spec.get("worker", {}).get("ranks_per_node"),
        accelerator=spec.get("accelerator"),
        budget=spec.get("options", {}).get("budget"),
        plugins=spec.get("plugins") or (),
        image_settings=[f"{name}={each}" for name in ("pip", "apt") for each in image.get(name) or ()],
        lock=image.get("lock"),
        requirements=image.get("requirements"),
        project=bool(image.get("project")),
        outputs=image.get("outputs") or (),
    )


def _read_record(pool: str, run: str, what: str) -> LaunchRecord | JobRecord | CommandRecord | None:
    with convert_errors(f"the saved launch of {what} cannot be read", UsageError, (OSError, ValueError)):
        record = pool_folder.read_launch(pool, run)
        source = {kind: pool_folder.read_source(pool, run, kind) for kind in SOURCE_PARTS}
    try:
        if record is None:
            return None
        return _parse_launch_record(record, source) if "request" in record else _parse_shell_record(record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"the launch of {what} was saved by another version in an unknown format ({error})") from error


def invalid_fields(kind: type, data: Any) -> list[str]:
    """Return the names of the dataclass's fields whose saved values are invalid, and the names of saved values that
    match no field.
    """
    try:
        _validate(kind, data)
    except ValueError as error:
        return [str(next(iter(each["loc"]), "")) for each in error.errors()]  # type: ignore[attr-defined]
    return []


def parse_saved(kind: type[T], data: Any) -> T:
    """Return the dataclass instance that saved data describes.

    Raises:
        ValueError: If a value has another type, or matches no field.
    """
    if any("\0" in text for text in texts_in(data)):  # paths and command lines cannot contain zero bytes
        raise ValueError("a zero byte")
    if invalid := invalid_fields(kind, data):
        raise ValueError(", ".join(invalid))
    return _validate(kind, data)


def _validate(kind: type[T], data: Any) -> T:
    import pydantic

    return pydantic.TypeAdapter(kind).validate_json(json.dumps(data), strict=True)


def texts_in(data: Any) -> Iterator[str]:
    """Yield all strings in nested JSON data, including the keys of objects."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list):
        for each in data.values() if isinstance(data, dict) else data:
            yield from texts_in(each)
        yield from data if isinstance(data, dict) else ()


def _parse_shell_record(record: Mapping[str, Any]) -> JobRecord | CommandRecord:
    return parse_saved(JobRecord, record["job"]) if "job" in record else parse_saved(CommandRecord, record["command"])


def _parse_launch_record(record: Mapping[str, Any], parts: Mapping[str, Any]) -> LaunchRecord:
    source = parse_saved(ScriptState, record["source"] | {"cut": bool(record.get("cut"))})
    request, cwd = parse_saved(LaunchRequest, record["request"]), parse_saved(Path, record["cwd"])
    return LaunchRecord(request=request, cwd=cwd, joined=bool(record["joined"]), source=replace(source, **parts))


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

    TAG: ClassVar[str]  # key of the saved record that identifies the kind of launch
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  read by ``parse_saved``

    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    lacks_env: tuple[str, ...] = ()
    lacks_secrets: tuple[str, ...] = ()
    joined: bool = False
    why_not: str = ""

    @property
    def label(self) -> str:
        """Name of the launch in messages, such as the path of the job file."""
        raise NotImplementedError

    def missing_variables(self, env: Overrides, secrets: Overrides) -> dict[str, str]:
        """Return the variables that neither the given values nor this process's environment contain, each with the
        option that sets it.
        """
        missing = {name: "--env" for name in self.lacks_env if name not in env}
        missing |= {name: "--secret" for name in self.lacks_secrets if name not in secrets}
        return {name: option for name, option in missing.items() if name not in os.environ}

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


JOBS_FOLDER = "jobs"  # folder in the state folder for the texts of saved job files whose original files changed


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord(ShellRecord):
    """Saved launch of a job file.

    Attributes:
        path: Path of the file, as the user gave it.
        text: Content of the file without secrets; "" if it is not saved, for the reason in ``why_not``.
        digest: Hash of the whole content.
        options, idle_timeout: As in the request.
        setup: Whether ``setup`` ran.
        run_alone: Whether only ``run`` ran, as with ``exec``.
        down: Whether the pool was torn down afterwards.
    """

    TAG = "job"

    path: str
    text: str = field(default="", repr=False)
    digest: str = ""
    options: LaunchRequest = field(default_factory=lambda: LaunchRequest(script=NO_SCRIPT))
    idle_timeout: float | None = None
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
            values |= {"options": request.options, "idle_timeout": request.idle_timeout}
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
        from skyward_core.tasks.job_yaml_validation import strip_secrets

        try:
            return replace(record, text=strip_secrets(job.text, hidden, job.blanked))
        except JobFileError as error:
            return replace(record, why_not=str(error))

    @property
    def is_unchanged(self) -> bool:
        """Whether the file exists and its content has not changed."""
        with suppress(OSError, UnicodeDecodeError):
            return _digest(read_text(self.cwd / self.path)) == self.digest
        return False

    def load_job(self, env: Overrides, secrets: Overrides) -> JobFile:
        """Return the job; its paths are relative to the current folder.

        Args:
            env, secrets: Values that override or complete the saved ones. This process's environment supplies the rest.

        Raises:
            UsageError: If the text of the job file is not saved, or a secret has no value.
            JobFileError: If the file is no longer valid.
        """
        from skyward_core.tasks.job_file import JobFile

        envs, hidden = self.values(env, secrets)
        return JobFile.from_text(self.text, Path(self.path), env=envs, secrets=hidden)

    def to_job_request(self, job: JobFile) -> JobRequest:
        """Return the request for a rerun on a new pool with a generated name."""
        from skyward_core.client.launch.job_and_shell_launch import JobRequest

        options = replace(self.options, script=str(job.path), pool=None)
        return JobRequest(job=job, options=options, idle_timeout=self.idle_timeout)

    def write_file(self, run: str) -> Path:
        """Write the saved text, without secrets, to a file.

        Args:
            run: ID of the run that was launched from the file.

        Raises:
            UsageError: If the file cannot be written.
        """
        target = state_home() / JOBS_FOLDER / f"{run}.yaml"
        with convert_errors(f"the saved text of {self.path} cannot be written to {target}", UsageError):
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomic(target, self.text.encode())
        return target


def _digest(text: str) -> str:
    return blake2s(text.encode(), digest_size=16).hexdigest()
