"""Files that ranks wrote in their working folder, and the results of fetching them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from skyward_core.util.light_dataclass import Value, value

MAX_NAMED_FILES = 5  # file names that a message lists for one cause


@value
class WrittenFile(Value):
    """File that a rank wrote in its working folder, as its node reports it.

    Attributes:
        path: Path below the working folder.
        size: Size in bytes.
        changed_at: Unix time of the last change.
        node: Node that has the file.
        version: Identifier that changes with the contents.
        also: Other nodes that report the same file on a shared disk.
    """

    path: str
    size: int
    changed_at: float
    node: int
    version: str
    also: tuple[int, ...] = ()

    @property
    def age(self) -> float:
        """Seconds since the last change of the file."""
        return max(0.0, time.time() - self.changed_at)


@value
class FetchedFile(Value):
    """Result of fetching one file.

    Attributes:
        file: The file.
        target: Path on this machine.
        error: Reason of a failure, or "".
        is_new: Whether the file was downloaded now. False if it had been fetched before.
    """

    file: WrittenFile
    target: Path
    error: str = ""
    is_new: bool = False


def list_failed_files(files: Iterable[FetchedFile]) -> Iterator[tuple[str, int, str]]:
    """Yield files that could not be fetched, their node and the reason. If many share a reason, only a few are
    named.
    """
    found: dict[tuple[int, str], list[str]] = {}
    for each in files:
        if each.error:
            found.setdefault((each.file.node, each.error), []).append(each.file.path)
    for (node, reason), paths in found.items():
        more = f" and {len(paths) - MAX_NAMED_FILES:,} more" if len(paths) > MAX_NAMED_FILES else ""
        yield f"{', '.join(paths[:MAX_NAMED_FILES])}{more}", node, reason


@value
class Unfetched(Value):
    """Unfetched files of a pool's ranks, and what a teardown would do with them.

    Attributes:
        asked: Files that match the image's ``outputs`` patterns. A teardown always downloads these files first.
        others: All other files.
        unlisted: Number of further files, which nodes did not list because of a limit.
        is_lost_with_machines: Whether unfetched files are lost together with the pool's machines. Otherwise the files
            stay on the hosts.
        download_limit: Bytes of the other files that a teardown still downloads, the newest first.
        failures: Node -> reason why it does not answer.
    """

    asked: Sequence[WrittenFile] = ()
    others: Sequence[WrittenFile] = ()
    unlisted: int = 0
    is_lost_with_machines: bool = False
    download_limit: int = 0
    failures: Mapping[int, str] = field(default_factory=dict)

    @property
    def exceeds_limit(self) -> bool:
        """Whether a teardown would lose files."""
        return self.is_lost_with_machines and (
            bool(self.unlisted) or sum(file.size for file in self.others) > self.download_limit
        )
