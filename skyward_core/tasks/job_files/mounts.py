"""What a job file mounts: paths of this machine that are brought to places on each node."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from ...model.errors import JobFileError
from ...model.function import PendingFunction
from ...model.sizes import size_in_words
from ...runtime.placed_files import FileMounts
from ...store.home import is_state, state_of
from ...store.user_files import is_file

MOST = 1 << 30  # bytes that one job brings: they go through this process's memory


def placing(mounts: Mapping[str, Path]) -> PendingFunction[None]:
    """The call that brings files to their places, on each node.

    Args:
        mounts: the path here by the place there.

    Raises:
        JobFileError: one cannot be read, or they are too much.
    """
    packed: dict[str, bytes] = {}
    for target, source in mounts.items():
        # As rsync has it: a file for a place that ends in / comes into that folder, under its own name.
        name = source.name if target.endswith("/") and is_file(source) else "."
        packed[target] = _packed(source, MOST - sum(map(len, packed.values())), name=name)
    return PendingFunction(FileMounts("file_mounts"), (packed,))


def renewing(folder: Path, paths: Sequence[str]) -> PendingFunction[None]:
    """The call that brings files of a working folder to the nodes' copies of it.

    Args:
        paths: which of them, seen from it.

    Raises:
        JobFileError: one cannot be read, or they are too much.
    """
    return PendingFunction(FileMounts("workdir"), ({".": _packed(folder, MOST, paths)},))


def _packed(source: Path, room: int, paths: Sequence[str] | None = None, *, name: str = ".") -> bytes:
    file = _Bounded(room)
    if paths is None and (state := state_of(source)) is not None:
        raise JobFileError(
            f"file_mounts: {source} is not brought: {state} is a state folder of skyward, which holds keys"
        )
    try:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            if paths is None:
                # What is named itself; links in it stay links.
                real = source.resolve()
                tar.add(real, arcname=name, filter=lambda each: None if _is_state(real, name, each) else each)
            for path in paths or ():
                tar.add(source / path, arcname=path, recursive=False)
    except _TooMuchError as error:
        raise JobFileError(
            f"file_mounts: with {source} they are more than {size_in_words(MOST)}, the most that is brought so; "
            "have setup fetch it, or put it on the machines before"
        ) from error
    except OSError as error:
        raise JobFileError(f"file_mounts: {error.filename or source}: {error.strerror or error}") from error
    return file.getvalue()


def _is_state(source: Path, name: str, entry: tarfile.TarInfo) -> bool:
    return entry.isdir() and is_state(str(source / PurePosixPath(entry.name).relative_to(name)))


class _TooMuchError(Exception):
    pass


class _Bounded(io.BytesIO):
    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        if self.tell() + len(data) > self._room:
            raise _TooMuchError
        return super().write(data)
