"""What made a run: the launch that somebody asked for, the folder it was asked in, and what the script was then."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2s
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_core.model.errors import UsageError
from skyward_core.store import pool_folder
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import RunRow
from skyward_core.store.state_folder import require_current_folder
from skyward_core.tasks.bounded_subprocess import QueryTimeout, git_command, run_bounded
from skyward_core.util.redaction import Redactor, secret_values, url_secrets
from skyward_core.util.terminal_safe_text import sanitize_paragraph
from skyward_core.util.user_files import expand_user, read_bytes

if TYPE_CHECKING:
    from skyward_core.client.launch.job_records import CommandRecord, JobRecord, ShellRecord

T = TypeVar("T")

MAX_CHANGED_FILES = 100  # names of files that are kept
MAX_DIFF_BYTES = 1 << 18  # bytes of what differed that are kept
GIT_TIMEOUT = 5.0  # seconds that git has for all of it: a command waits for it before it ends


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptState:
    """What a script was when it was launched.

    Attributes:
        script: a hash of its file; "" where it could not be read.
        commit: of the git repository that it lies in; "" where there is none.
        changed: files there that differed from that commit, at most 100 of them.
        diff: how they did, as a patch, with secrets blanked: its first 256 KiB.
        cut: whether it went on.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  read by ``parse_saved``

    script: str = ""
    commit: str = ""
    changed: tuple[str, ...] = ()
    diff: bytes = field(default=b"", repr=False)
    cut: bool = False

    @classmethod
    def from_file(cls, script: Path) -> ScriptState:
        """What can be told of a script at once."""
        try:
            return cls(script=blake2s(read_bytes(script), digest_size=16).hexdigest())
        except OSError:  # no path at all, perhaps
            return cls()

    @classmethod
    def capture(cls, script: Path) -> ScriptState:
        """What a script is now. Asks git, where there is one: not on an event loop."""
        until = monotonic() + GIT_TIMEOUT
        found, folder = cls.from_file(script), str(script.absolute().parent)
        commit = _run_git(folder, until, 1 << 10, "rev-parse", "--verify", "HEAD").strip().decode("ascii", "replace")
        if not commit:
            return found
        # No program that an attribute of a file asks for is run.
        look, without = ("diff", *_DIFF_OPTIONS), _repository_filters(folder, until)
        names = _run_git(
            folder, until, _MAX_GIT_OUTPUT, *look, "--name-only", "-z", "HEAD", "--", without=without
        ).split(b"\0")[:-1]
        patch = _run_git(folder, until, _MAX_GIT_OUTPUT, *look, "HEAD", "--", without=without)
        cut = len(patch) > MAX_DIFF_BYTES
        if cut:
            patch = patch[:MAX_DIFF_BYTES].rpartition(b"\n")[0] + b"\n"
        changed = tuple(name.decode("utf-8", "replace") for name in names[:MAX_CHANGED_FILES])
        return replace(found, commit=commit, changed=changed, diff=_redact_patch(patch), cut=cut)

    def changes_since(self, before: ScriptState) -> list[str]:
        """What is otherwise now than it was before, in words."""
        said = []
        if before.script and before.script != self.script:
            said.append("the script has changed since" if self.script else "the script cannot be read any more")
        if before.commit and before.commit != self.commit:
            now = f"{self.commit:.10}" if self.commit else "in no repository"
            said.append(f"it was of commit {before.commit:.10}, and is {now}")
        same = self.commit == before.commit and self.diff == before.diff and bool(before.diff)
        if before.changed and (before.cut or not same):
            shown = ", ".join(map(sanitize_paragraph, before.changed[:3]))
            more = ", …" if len(before.changed) > 3 else ""
            said.append(f"files that differed from their commit then: {shown}{more}")
        return said


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    """A launch that was kept.

    Attributes:
        request: what was asked for; its paths are seen from ``cwd``.
        cwd: the folder in which it was asked for.
        joined: whether it went to a pool that was up before.
        source: what the script was then.
    """

    request: LaunchRequest
    cwd: Path
    joined: bool = False
    source: ScriptState = field(default_factory=ScriptState)

    def absolute_request(self) -> LaunchRequest:
        """What was asked for, with whole paths."""
        request = self.request
        paths = {name: getattr(request, name) for name in ("script", "lock", "requirements")}
        paths["python"] = request.python if os.sep in (request.python or "") else None
        whole: dict[str, Any] = {name: str(self.cwd / expand_user(path)) for name, path in paths.items() if path}
        return replace(request, **whole)

    def with_arguments(self, arguments: Sequence[str], script_args: Sequence[str] | None) -> LaunchRecord:
        """The same with other arguments.

        Args:
            arguments: texts ``name=value``, in place of those of the same names.
            script_args: a whole script's own words, in place of all of them; None for the same.

        Raises:
            UsageError: the run was of a whole script, and takes no named arguments, or the other way round.
        """
        request = self.request
        if arguments and request.script_args is not None:
            raise UsageError("the run was of a whole script, which takes no --arg: what is its own goes behind --")
        if script_args is not None and request.script_args is None:
            raise UsageError("the run was of a function: give its arguments as --arg NAME=VALUE, not behind --")
        named = {text.partition("=")[0]: text for text in (*request.arguments, *arguments)}
        words = request.script_args if script_args is None else tuple(script_args)
        return replace(self, request=replace(request, arguments=tuple(named.values()), script_args=words))


def save_launch_record(pool: str, run: str, request: LaunchRequest, *, joined: bool, source: ScriptState) -> None:
    """Keep what a run was launched with.

    Args:
        pool: its key.
        joined: whether the pool was up before.
        source: what its script was.

    Raises:
        OSError: it cannot be written.
    """
    told = {
        "request": asdict(request),
        "cwd": str(require_current_folder()),
        "joined": joined,
        "source": {"script": source.script, "commit": source.commit, "changed": source.changed},
        "cut": source.cut,
    }
    pool_folder.save_launch(pool, run, told)
    if source.diff:
        pool_folder.save_diff(pool, run, source.diff)


def save_before_launch(pool: str, run: str, request: LaunchRequest | ShellRecord, *, joined: bool) -> None:
    """Keep what a run is about to be launched with, without asking git: should this process end now, it is known.

    What cannot be kept hinders no launch; who keeps all of it afterwards is told.
    """
    with suppress(OSError):
        if not isinstance(request, LaunchRequest):
            return pool_folder.save_launch(pool, run, {request.TAG: request.to_json()})
        save_launch_record(pool, run, request, joined=joined, source=ScriptState.from_file(Path(request.script)))


def capture_script_state(request: LaunchRequest) -> ScriptState:
    """What the script of a launch is now; see :meth:`ScriptState.of`."""
    return ScriptState.capture(Path(request.script))


def delete_launch_record(pool: str, run: str) -> None:
    """A launch came to nothing."""
    pool_folder.remove_launch(pool, run)


def diff_path(ledger: Ledger, row: RunRow) -> Path:
    """The file with what differed from the commit when a run was launched; there is one where something did."""
    return pool_folder.diff_path(ledger.pool(row.token).key, row.run)


def load_launch_record(ledger: Ledger, row: RunRow) -> LaunchRecord:
    """What a run of a script was launched with.

    Raises:
        UsageError: nothing is kept of it that could be launched again, or it is a step of a job.
        LedgerError: the ledger cannot be read.
    """
    found = load_any_record(ledger, row)
    if not isinstance(found, LaunchRecord):
        raise UsageError(f"run {row.run} is of {found.label}, and no run of a script")
    return found


def load_any_record(ledger: Ledger, row: RunRow) -> LaunchRecord | JobRecord | CommandRecord:
    """What a run was launched with, or the job that it was a step of, or the command that it was.

    Raises:
        UsageError: nothing is kept of it that could be launched again.
        LedgerError: the ledger cannot be read.
    """
    try:
        key = ledger.pool(row.token).key
        told, diff = pool_folder.read_launch(key, row.run), pool_folder.read_diff(key, row.run)
    except (OSError, ValueError) as error:
        raise UsageError(f"what run {row.run} was launched with cannot be read: {error}") from error
    if told is None:
        raise UsageError(
            f"nothing is kept of how run {row.run} was launched: nothing is of runs that a script dispatched itself, "
            "and what is kept goes with the logs"
        )
    try:
        return _parse_launch_record(told, diff) if "request" in told else _parse_shell_record(told)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"run {row.run} was launched by another version, in words that this one does not know ({error})"
        ) from error


def invalid_fields(kind: type, data: Any) -> list[str]:
    """Return the names of a dataclass's fields for which saved data has no valid value, and of values for no field."""
    try:
        _validate(kind, data)
    except ValueError as error:
        return [str(next(iter(each["loc"]), "")) for each in error.errors()]  # type: ignore[attr-defined]
    return []


def parse_saved(kind: type[T], data: Any) -> T:
    """Return the dataclass that saved data describes.

    Raises:
        ValueError: A value has another type, or is for no field.
    """
    if any("\0" in text for text in texts_in(data)):  # which no path and no command line may have
        raise ValueError("a zero byte")
    if wrong := invalid_fields(kind, data):
        raise ValueError(", ".join(wrong))
    return _validate(kind, data)


def _validate(kind: type[T], data: Any) -> T:
    import pydantic

    return pydantic.TypeAdapter(kind).validate_json(json.dumps(data), strict=True)


def texts_in(data: Any) -> Iterator[str]:
    """Yield all texts of saved data."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list):
        for each in data.values() if isinstance(data, dict) else data:
            yield from texts_in(each)
        yield from data if isinstance(data, dict) else ()


def _parse_shell_record(told: Mapping[str, Any]) -> JobRecord | CommandRecord:
    from skyward_core.client.launch.job_records import CommandRecord, JobRecord

    return parse_saved(JobRecord, told["job"]) if "job" in told else parse_saved(CommandRecord, told["command"])


def _parse_launch_record(told: Mapping[str, Any], diff: bytes) -> LaunchRecord:
    source = parse_saved(ScriptState, told["source"] | {"cut": bool(told.get("cut"))})
    return LaunchRecord(
        request=parse_saved(LaunchRequest, told["request"]),
        cwd=parse_saved(Path, told["cwd"]),
        joined=bool(told["joined"]),
        source=replace(source, diff=diff),
    )


# As git apply takes it, whatever is configured.
_DIFF_OPTIONS = (
    "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--ignore-submodules=dirty", "--submodule=short",
    "--no-relative", "--src-prefix=a/", "--dst-prefix=b/",
)  # fmt: skip
_FILTER_PATTERN = r"^filter\..*\.(clean|smudge|process|required)$"
_OWN_SCOPES = (b"local", b"worktree")
_MAX_GIT_OUTPUT = MAX_DIFF_BYTES + 1


def _redact_patch(patch: bytes) -> bytes:
    """The same with the values of this process's secret variables, and passwords of URLs, blanked."""
    secrets = [*secret_values(os.environ), *url_secrets(patch.decode("utf-8", "replace"))]
    return Redactor(secrets).redact_bytes(patch)


def _repository_filters(folder: str, until: float) -> list[str]:
    """Return the settings by which a repository, and not its user, has programs run on the files that git compares."""
    told = _run_git(
        folder,
        until,
        _MAX_GIT_OUTPUT,
        "config",
        "--show-scope",
        "-z",
        "--name-only",
        "--get-regexp",
        _FILTER_PATTERN,
    ).split(b"\0")
    scopes, names = told[::2], told[1::2]
    return [os.fsdecode(name) for scope, name in zip(scopes, names, strict=False) if scope in _OWN_SCOPES]


def _run_git(folder: str, until: float, most: int, *words: str, without: Sequence[str] = ()) -> bytes:
    """The first that git says of a folder; nothing where it says nothing in time, or there is none."""
    command = git_command(folder, *words, without=without)
    try:
        done = run_bounded(command, (), patience=max(0.1, until - monotonic()), most=most)
    except (OSError, ValueError, QueryTimeout):
        return b""
    return b"" if done.returncode and len(done.stdout) < most else done.stdout
