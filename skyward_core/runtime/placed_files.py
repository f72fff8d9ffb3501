"""Files that a job brings beside its working folder, put where it wants them."""

from __future__ import annotations

import os

from .info import instance_info

TYPE_CHECKING = False  # typing's would be imported for it
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


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
            OSError: one cannot be written.
        """
        if instance_info().local_rank == 0:
            for target, archive in packed.items():
                _unpack(os.path.expanduser(target), archive)  # noqa: PTH111  a rank has no pathlib


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
