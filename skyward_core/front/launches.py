"""What made a run: the launch that somebody asked for, the folder it was asked in, and what the script was then."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import blake2s
from pathlib import Path
from typing import Any

from ..model.errors import UsageError
from ..store import kept_launches
from ..store.ledger import Ledger
from ..store.ledger_rows import RunRow
from ..tasks.answers import Silence, answer
from ..wire.safe_text import paragraph
from .launch_request import LaunchRequest

MOST_CHANGED = 100  # names of files that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptState:
    """What a script was when it was launched.

    Attributes:
        script: a hash of its file; "" where it could not be read.
        commit: of the git repository that it lies in; "" where there is none.
        changed: files there that differed from that commit, at most 100 of them.
    """

    script: str = ""
    commit: str = ""
    changed: tuple[str, ...] = ()

    @classmethod
    def of(cls, script: Path) -> ScriptState:
        """What a script is now. Asks git, where there is one: not on an event loop."""
        try:
            told = blake2s(script.read_bytes(), digest_size=16).hexdigest()
        except OSError:
            told = ""
        folder = str(script.absolute().parent)
        commit = _git(folder, "rev-parse", "--verify", "HEAD").strip()
        if not commit:
            return cls(script=told)
        status = _git(folder, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=no")
        names = [entry[3:] for entry in status.split("\0") if entry]
        return cls(script=told, commit=commit, changed=tuple(names[:MOST_CHANGED]))

    def since(self, before: ScriptState) -> list[str]:
        """What is otherwise now than it was before, in words."""
        said = []
        if before.script and before.script != self.script:
            said.append(
                "the script has changed since" if self.script else "the script cannot be read any more"
            )
        if before.commit and before.commit != self.commit:
            now = f"{self.commit:.10}" if self.commit else "in no repository"
            said.append(f"it was of commit {before.commit:.10}, and is {now}")
        if before.changed:
            shown = ", ".join(map(paragraph, before.changed[:3]))
            more = ", …" if len(before.changed) > 3 else ""
            said.append(f"files that differed from their commit then: {shown}{more}")
        return said


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLaunch:
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

    def from_anywhere(self) -> LaunchRequest:
        """What was asked for, with whole paths."""
        request = self.request
        paths = {name: getattr(request, name) for name in ("script", "lock", "requirements")}
        paths["python"] = request.python if os.sep in (request.python or "") else None
        whole: dict[str, Any] = {
            name: str(self.cwd / Path(path).expanduser()) for name, path in paths.items() if path
        }
        return replace(request, **whole)

    def changed_by(self, arguments: Sequence[str], script_args: Sequence[str] | None) -> KeptLaunch:
        """The same with other arguments.

        Args:
            arguments: texts ``name=value``, in place of those of the same names.
            script_args: a whole script's own words, in place of all of them; None for the same.

        Raises:
            UsageError: the run was of a whole script, and takes no named arguments, or the other way round.
        """
        request = self.request
        if arguments and request.script_args is not None:
            raise UsageError(
                "the run was of a whole script, which takes no --arg: what is its own goes behind --"
            )
        if script_args is not None and request.script_args is None:
            raise UsageError(
                "the run was of a function: give its arguments as --arg NAME=VALUE, not behind --"
            )
        named = {text.partition("=")[0]: text for text in (*request.arguments, *arguments)}
        words = request.script_args if script_args is None else tuple(script_args)
        return replace(self, request=replace(request, arguments=tuple(named.values()), script_args=words))


def keep(pool: str, run: str, request: LaunchRequest, *, joined: bool) -> None:
    """Keep what a run was launched with. Asks git: not on an event loop.

    Args:
        pool: its key.
        joined: whether the pool was up before.

    Raises:
        OSError: it cannot be written.
    """
    told = {
        "request": asdict(request),
        "cwd": str(Path.cwd()),
        "joined": joined,
        "source": asdict(ScriptState.of(Path(request.script))),
    }
    kept_launches.keep(pool, run, told)


def kept(ledger: Ledger, row: RunRow) -> KeptLaunch:
    """What a run was launched with.

    Raises:
        UsageError: nothing is kept of it that could be launched again.
        LedgerError: the ledger cannot be read.
    """
    try:
        told = kept_launches.kept(ledger.pool(row.token).key, row.run)
    except (OSError, ValueError) as error:
        raise UsageError(f"what run {row.run} was launched with cannot be read: {error}") from error
    if told is None:
        raise UsageError(
            f"nothing is kept of how run {row.run} was launched: of runs that a script dispatched itself nothing is, "
            "and what is kept goes with the logs"
        )
    try:
        return _launch(told)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"run {row.run} was launched by another version, in words that this one does not know ({error})"
        ) from error


def _launch(told: Mapping[str, Any]) -> KeptLaunch:
    asked, source = dict(told["request"]), dict(told["source"])
    known = {each.name for each in fields(LaunchRequest)}
    if strange := sorted(asked.keys() - known):
        raise ValueError(", ".join(strange))
    source["changed"] = tuple(source["changed"])
    return KeptLaunch(
        request=LaunchRequest(**asked),
        cwd=Path(told["cwd"]),
        joined=bool(told["joined"]),
        source=ScriptState(**source),
    )


def _git(folder: str, *words: str) -> str:
    """What git says of a folder; "" where it says nothing, or there is none."""
    # What a repository has configured to be run is not run for a look.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", folder, *words]
    try:
        done = answer(command, ())
    except (OSError, Silence):
        return ""
    return "" if done.returncode else done.stdout.decode("utf-8", "replace")
