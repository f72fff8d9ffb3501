"""State of a script when it was launched: its hash, commit and uncommitted changes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2s
from pathlib import Path
from time import monotonic

from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_core.tasks.bounded_subprocess import QueryTimeout, git_command, run_bounded
from skyward_core.util.redaction import Redactor, secret_values, url_secrets
from skyward_core.util.terminal_safe_text import sanitize_paragraph
from skyward_core.util.user_files import read_bytes

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


def capture_script_state(request: LaunchRequest) -> ScriptState:
    """What the script of a launch is now; see :meth:`ScriptState.of`."""
    return ScriptState.capture(Path(request.script))


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
