"""State of a script at launch: its hash, commit and uncommitted changes."""

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
from skyward_core.util.safe_file_access import read_bytes
from skyward_core.util.terminal_safe_text import sanitize_paragraph

MAX_CHANGED_FILES = 100  # names of changed files that are saved
MAX_DIFF_BYTES = 1 << 18  # bytes of the patch that are saved
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
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  read by ``parse_saved``

    script: str = ""
    commit: str = ""
    changed: tuple[str, ...] = ()
    diff: bytes = field(default=b"", repr=False)
    cut: bool = False

    @classmethod
    def from_file(cls, script: Path) -> ScriptState:
        """Return the hash of a script only, without calling git."""
        try:
            return cls(script=blake2s(read_bytes(script), digest_size=16).hexdigest())
        except OSError:  # for example an invalid path
            return cls()

    @classmethod
    def capture(cls, script: Path) -> ScriptState:
        """Return the present state of a script. Calls git, which blocks: do not call on an event loop."""
        deadline = monotonic() + GIT_TIMEOUT
        found, folder = cls.from_file(script), str(script.absolute().parent)
        commit = _run_git(folder, deadline, 1 << 10, "rev-parse", "--verify", "HEAD").strip().decode("ascii", "replace")
        if not commit:
            return found
        # Git must not run the filter programs that the repository's attributes request.
        diff_words, without = ("diff", *_DIFF_OPTIONS), _repository_filters(folder, deadline)
        names = _run_git(
            folder, deadline, _MAX_GIT_OUTPUT, *diff_words, "--name-only", "-z", "HEAD", "--", without=without
        ).split(b"\0")[:-1]
        patch = _run_git(folder, deadline, _MAX_GIT_OUTPUT, *diff_words, "HEAD", "--", without=without)
        cut = len(patch) > MAX_DIFF_BYTES
        if cut:
            patch = patch[:MAX_DIFF_BYTES].rpartition(b"\n")[0] + b"\n"
        changed = tuple(name.decode("utf-8", "replace") for name in names[:MAX_CHANGED_FILES])
        return replace(found, commit=commit, changed=changed, diff=_redact_patch(patch), cut=cut)

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


def capture_script_state(request: LaunchRequest) -> ScriptState:
    """Return the present state of the script of a launch; see :meth:`ScriptState.capture`."""
    return ScriptState.capture(Path(request.script))


# Options that produce a patch for git apply, regardless of the user's git configuration.
_DIFF_OPTIONS = (
    "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--ignore-submodules=dirty", "--submodule=short",
    "--no-relative", "--src-prefix=a/", "--dst-prefix=b/",
)  # fmt: skip
_FILTER_PATTERN = r"^filter\..*\.(clean|smudge|process|required)$"
_OWN_SCOPES = (b"local", b"worktree")
_MAX_GIT_OUTPUT = MAX_DIFF_BYTES + 1


def _redact_patch(patch: bytes) -> bytes:
    """Redact secrets in a patch: the values of this process's secret variables, and passwords in URLs."""
    secrets = [*secret_values(os.environ), *url_secrets(patch.decode("utf-8", "replace"))]
    return Redactor(secrets).redact_bytes(patch)


def _repository_filters(folder: str, deadline: float) -> list[str]:
    """Return the names of a repository's own filter settings. They must be disabled, because filters run programs on
    the compared files.
    """
    fields = _run_git(
        folder,
        deadline,
        _MAX_GIT_OUTPUT,
        "config",
        "--show-scope",
        "-z",
        "--name-only",
        "--get-regexp",
        _FILTER_PATTERN,
    ).split(b"\0")
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
