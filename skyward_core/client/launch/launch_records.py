"""Saved launches of runs: the request, and the working folder of the launch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from skyward_core.client.launch.launch_request import NO_SCRIPT, LaunchRequest, options_of
from skyward_core.client.launch.script_git_state import ScriptState
from skyward_core.model.errors import SkywardError, UsageError
from skyward_core.model.provider_capability_protocols import declared_settings
from skyward_core.providers import provider_class
from skyward_core.store import pool_folder
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow, RunRow
from skyward_core.store.state_folder import require_current_folder
from skyward_core.util.user_files import expand_user

if TYPE_CHECKING:
    from skyward_core.client.launch.job_records import CommandRecord, JobRecord, ShellRecord

T = TypeVar("T")
POOL_LAUNCH = "pool"  # name of the launch that created a pool, among the launches of its runs


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
    record = {
        "request": asdict(request),
        "cwd": str(require_current_folder()),
        "joined": joined,
        "source": {"script": source.script, "commit": source.commit, "changed": source.changed},
        "cut": source.cut,
    }
    pool_folder.save_launch(pool, run, record)
    if source.diff:
        pool_folder.save_diff(pool, run, source.diff)


def save_before_launch(pool: str, run: str, request: LaunchRequest | ShellRecord, *, joined: bool) -> None:
    """Save a launch before it starts, so that its record exists even if the client dies. Does not call git.

    Errors are ignored, because the save after the launch reports them.
    """
    with suppress(OSError):
        if not isinstance(request, LaunchRequest):
            return pool_folder.save_launch(pool, run, {request.TAG: request.to_json()})
        save_launch_record(pool, run, request, joined=joined, source=ScriptState.from_file(Path(request.script)))


def delete_launch_record(pool: str, run: str) -> None:
    """Delete the record of a launch that did not start."""
    pool_folder.remove_launch(pool, run)


def diff_path(ledger: Ledger, row: RunRow) -> Path:
    """Return the path of the file with the changes that were uncommitted at launch; missing if there were none."""
    return pool_folder.diff_path(ledger.pool(row.token).key, row.run)


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
    the settings of that pool, so that it can create the pool anew.

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
    if isinstance(found, LaunchRecord) and found.request.nodes is None:  # the provider's default
        return replace(found, request=replace(found.request, nodes=pool.spec.get("nodes")))
    return found or LaunchRecord(request=request_from_pool(pool), cwd=Path(pool.spec.get("cwd") or "/"))


def request_from_pool(pool: PoolRow) -> LaunchRequest:
    """Return a request without a script for a pool like a given one, as far as the ledger describes the pool."""
    spec, image = pool.spec, pool.spec.get("image") or {}
    provider = str(spec.get("provider") or pool.provider["provider"])
    settings: dict[str, str] = {}
    with suppress(SkywardError):  # the provider's package is no longer installed
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
    try:
        record, diff = pool_folder.read_launch(pool, run), pool_folder.read_diff(pool, run)
    except (OSError, ValueError) as error:
        raise UsageError(f"the saved launch of {what} cannot be read: {error}") from error
    try:
        if record is None:
            return None
        return _parse_launch_record(record, diff) if "request" in record else _parse_shell_record(record)
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
    if any("\0" in text for text in texts_in(data)):  # not allowed in paths and command lines
        raise ValueError("a zero byte")
    if invalid := invalid_fields(kind, data):
        raise ValueError(", ".join(invalid))
    return _validate(kind, data)


def _validate(kind: type[T], data: Any) -> T:
    import pydantic

    return pydantic.TypeAdapter(kind).validate_json(json.dumps(data), strict=True)


def texts_in(data: Any) -> Iterator[str]:
    """Yield all strings in saved data."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list):
        for each in data.values() if isinstance(data, dict) else data:
            yield from texts_in(each)
        yield from data if isinstance(data, dict) else ()


def _parse_shell_record(record: Mapping[str, Any]) -> JobRecord | CommandRecord:
    from skyward_core.client.launch.job_records import CommandRecord, JobRecord

    return parse_saved(JobRecord, record["job"]) if "job" in record else parse_saved(CommandRecord, record["command"])


def _parse_launch_record(record: Mapping[str, Any], diff: bytes) -> LaunchRecord:
    source = parse_saved(ScriptState, record["source"] | {"cut": bool(record.get("cut"))})
    return LaunchRecord(
        request=parse_saved(LaunchRequest, record["request"]),
        cwd=parse_saved(Path, record["cwd"]),
        joined=bool(record["joined"]),
        source=replace(source, diff=diff),
    )
