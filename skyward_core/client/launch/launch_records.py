"""Launches of runs as they are saved: the request, and the folder it was made in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_core.client.launch.script_state import ScriptState
from skyward_core.model.errors import UsageError
from skyward_core.store import pool_folder
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import RunRow
from skyward_core.store.state_folder import require_current_folder
from skyward_core.util.user_files import expand_user

if TYPE_CHECKING:
    from skyward_core.client.launch.job_records import CommandRecord, JobRecord, ShellRecord

T = TypeVar("T")


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
