"""Files that a job brings beside its working folder, put where it wants them."""

from __future__ import annotations

import errno
import os

from .info import instance_info

TYPE_CHECKING = False  # typing's would be imported for it
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FULL = {errno.ENOSPC, errno.EDQUOT}
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


class FileMounts:
    """Puts files to their places on this node; of ranks that share it the first one does.

    Args:
        name: what that is called.
    """

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, packed: Mapping[str, bytes]) -> None:
        """Do it.

        Args:
            packed: tar archives by the place of what is in each: a folder's content, or one file. ``~`` is the
                person's home there; a path that is not absolute begins in the working folder.

        Raises:
            OSError: one cannot be written; says which, where, and what to do.
        """
        if instance_info().local_rank == 0:
            for target, archive in packed.items():
                self._place(os.path.expanduser(target), archive)  # noqa: PTH111  a rank has no pathlib

    def _place(self, target: str, archive: bytes) -> None:
        import tarfile

        try:
            if target.startswith("~"):
                raise FileNotFoundError(None, "there is no such user there")
            _unpack(target, archive)
        except (OSError, tarfile.TarError) as error:
            info = instance_info()
            place = os.path.abspath(target)  # noqa: PTH100
            file = getattr(error, "filename", None)
            at = f" ({file})" if file and os.path.abspath(file) != place else ""  # noqa: PTH100
            why = getattr(error, "strerror", None) or str(error)
            words = (
                f"{self.__name__}: {place} on node {info.node} ({info.hostname}) is not whole: {why}{at}; "
                f"{_advice(error, place)}, and run it again"
            )
            told: Any = type(error)(words) if isinstance(error, OSError) else OSError(words)
            told.__skyward_words__ = words  # they say it all: nobody needs our own frames
            raise told from None


def _advice(error: Exception, place: str) -> str:
    number = getattr(error, "errno", None)
    if number in FULL:
        while not os.path.isdir(place):  # noqa: PTH112
            place = os.path.dirname(place)  # noqa: PTH120
        disk = os.statvfs(place)
        free = disk.f_bavail * disk.f_frsize
        from ..model.sizes import size_in_words

        return f"free some space there ({size_in_words(free)} are free), or choose a place on another disk"
    if number in FORBIDDEN:
        return "choose a place that this account may write to"
    if number == errno.EFBIG:
        return "allow larger files there (ulimit -f), or choose another file system"
    return "make room for it there, or choose another place"


def _unpack(target: str, archive: bytes) -> None:
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = tar.getmembers()
        if [each.name for each in members] == ["."] and not members[0].isdir():
            members[0].name = os.path.basename(target)  # noqa: PTH119
            target = os.path.dirname(target) or "."  # noqa: PTH120
        os.makedirs(target, exist_ok=True)  # noqa: PTH103
        safe: Any = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}  # Python 3.11.2 has none
        for each in members:  # whoever has that number here is somebody else
            each.uid, each.gid, each.uname, each.gname = os.getuid(), os.getgid(), "", ""
        # A file gets its mode when all is in it: what nobody else may read is never open to them.
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
