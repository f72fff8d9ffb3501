"""Files that ranks wrote in their working folder: written, fetched, and unfetched."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from skyward_core.util.light_dataclass import Value, value

MAX_NAMED_FILES = 5  # files that are named of many to which the same has happened


@value
class WrittenFile(Value):
    """A file that a rank wrote in its working folder, as its node tells.

    Attributes:
        path: below the working folder.
        size: in bytes.
        changed_at: when it last was, Unix time.
        node: that it lies on.
        version: what tells it from what it was before.
        also: other nodes that name it, as they share a disk with that one.
    """

    path: str
    size: int
    changed_at: float
    node: int
    version: str
    also: tuple[int, ...] = ()

    @property
    def age(self) -> float:
        """Seconds since it was last changed."""
        return max(0.0, time.time() - self.changed_at)


@value
class FetchedFile(Value):
    """What became of one that was to be fetched.

    Attributes:
        file: what it was.
        target: where it is now, or should be.
        error: why it is not there, in words, or "".
        is_new: whether it has come just now; False where it was there already.
    """

    file: WrittenFile
    target: Path
    error: str = ""
    is_new: bool = False


def list_failed_files(files: Iterable[FetchedFile]) -> Iterator[tuple[str, int, str]]:
    """Which of the files did not come, in words, their node, and why: of many with one cause a few are named."""
    found: dict[tuple[int, str], list[str]] = {}
    for each in files:
        if each.error:
            found.setdefault((each.file.node, each.error), []).append(each.file.path)
    for (node, reason), paths in found.items():
        more = f" and {len(paths) - MAX_NAMED_FILES:,} more" if len(paths) > MAX_NAMED_FILES else ""
        yield f"{', '.join(paths[:MAX_NAMED_FILES])}{more}", node, reason


@value
class Unfetched(Value):
    """What ranks of a pool wrote and nobody has fetched, and what its teardown would make of that.

    Attributes:
        asked: those that the image's patterns name: they are brought here first in any case.
        others: the rest.
        untold: how many more there are.
        goes: whether what is not fetched goes with the pool's machines; else it stays on its hosts.
        room: bytes of the rest that are brought here first, the newest, where they would go.
        failures: node -> why it does not tell.
    """

    asked: Sequence[WrittenFile] = ()
    others: Sequence[WrittenFile] = ()
    untold: int = 0
    goes: bool = False
    room: int = 0
    failures: Mapping[int, str] = field(default_factory=dict)

    @property
    def exceeds_limit(self) -> bool:
        """Whether some would be lost."""
        return self.goes and (bool(self.untold) or sum(file.size for file in self.others) > self.room)
