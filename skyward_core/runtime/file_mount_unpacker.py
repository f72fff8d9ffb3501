"""File mounts of jobs: files that a rank unpacks to their target paths on its node."""

from __future__ import annotations

import errno
import os
from typing import Any

from skyward_core.runtime.instance_info_and_attempt import instance_info

TYPE_CHECKING = False  # not imported from typing, to avoid loading that module

if TYPE_CHECKING:
    from collections.abc import Mapping


class FileMounts:
    """Callable that writes files to their target paths on this node. Only the first rank of a node writes.

    Args:
        name: Display name.
    """

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, packed: Mapping[str, bytes]) -> None:
        """Write the files.

        Args:
            packed: Tar archives by target: the content of a folder, or one file. ``~`` is the user's home on the node.
                A relative path starts in the working folder.

        Raises:
            OSError: If a file cannot be written. The message names the file, the node and the fix.
        """
        if instance_info().local_rank == 0:
            for target, archive in packed.items():
                self._mount(os.path.expanduser(target), archive)  # noqa: PTH111  a rank has no pathlib

    def _mount(self, target: str, archive: bytes) -> None:
        import tarfile

        try:
            if target.startswith("~"):
                raise FileNotFoundError(None, "the user does not exist there")
            _unpack(target, archive)
        except (OSError, tarfile.TarError) as error:
            info = instance_info()
            place = os.path.abspath(target)  # noqa: PTH100
            file = getattr(error, "filename", None)
            at = f" ({file})" if file and os.path.abspath(file) != place else ""  # noqa: PTH100
            reason = getattr(error, "strerror", None) or str(error)
            words = (
                f"{self.__name__}: {place} on node {info.node} ({info.hostname}) is incomplete: {reason}{at}. "
                f"{_error_hint(error, place)}, then run it again."
            )
            failure: Any = type(error)(words) if isinstance(error, OSError) else OSError(words)
            # The message is complete, so the client shows the error without a traceback of this library.
            failure.__skyward_words__ = words
            raise failure from None


def _error_hint(error: Exception, place: str) -> str:
    number = getattr(error, "errno", None)
    if number in {errno.ENOSPC, errno.EDQUOT}:
        while not os.path.isdir(place):  # noqa: PTH112
            place = os.path.dirname(place)  # noqa: PTH120
        disk = os.statvfs(place)
        free = disk.f_bavail * disk.f_frsize
        from skyward_core.util.number_size_and_time_format import format_size

        return f"Free some space there (now {format_size(free)}), or choose a place on another disk"
    if number in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return "Choose a place that this account may write to"
    if number == errno.EFBIG:
        return "Allow larger files there (ulimit -f), or choose another file system"
    return "Remove what is in the way, or choose another target path"


def _unpack(target: str, archive: bytes) -> None:
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = tar.getmembers()
        if [each.name for each in members] == ["."] and not members[0].isdir():
            members[0].name = os.path.basename(target)  # noqa: PTH119
            target = os.path.dirname(target) or "."  # noqa: PTH120
        os.makedirs(target, exist_ok=True)  # noqa: PTH103
        # Python 3.11.2 has no extraction filters.
        safe: Any = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
        for each in members:  # Drop the files' owners, because user ids differ between machines.
            each.uid, each.gid, each.uname, each.gname = os.getuid(), os.getgid(), "", ""
        # tarfile sets the mode only after writing. Until then, the umask keeps private files private.
        hidden: list[tarfile.TarInfo] = []
        others: list[tarfile.TarInfo] = []
        for each in members:
            (hidden if each.isreg() and not each.mode & 0o077 else others).append(each)
        before = os.umask(0o077)
        try:
            tar.extractall(target, hidden, **safe)
        finally:
            os.umask(before)
        tar.extractall(target, others, **safe)
