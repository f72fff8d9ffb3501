"""A file that ranks wrote, on its way into a folder of the client: under a name of its own until it is whole."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path

PARTS = ".skyward-parts"  # the folder for them, beside what has come: to rename is no copy there
PIECE = 1 << 20


class OnItsWay(OSError):
    """Another process is just fetching the same file.

    Attributes:
        at: how many bytes that one has.
    """

    def __init__(self, at: int) -> None:
        super().__init__("another process is fetching it now")
        self.at = at


class IncomingOutput:
    """See the module. What an earlier attempt has left of the same file is gone on with.

    Args:
        folder: what is fetched goes below it.
        name: tells the file from all others that go there.
        size: of it all, in bytes.
        version: of it, as its node tells.

    Attributes:
        at: how many bytes have come.
        sha256: of the whole file, as its node tells once all has come; "" before.

    Raises:
        OnItsWay: another process fetches it now.
        OSError: it cannot be written.
    """

    def __init__(self, folder: Path, name: str, size: int, version: str) -> None:
        self.size = size
        self.version = version
        self.sha256 = ""
        self._parts = folder / PARTS
        self._path = self._parts / f"{_hash(name)}.{_hash(version)}"
        self._file = self._open()
        try:
            self._have_alone()
            self._begin()
        except BaseException:
            self._shut()
            raise

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            # Whoever is done takes the folder away where it is empty, and may do so just now.
            with suppress(FileNotFoundError):
                try:
                    self._parts.mkdir(parents=True, mode=0o700)
                except FileExistsError:
                    refuse_others(self._parts)
                    if not stat.S_ISDIR(self._parts.lstat().st_mode):
                        raise
                return os.open(self._path, flags, 0o666)

    def _have_alone(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it locked when we opened it may have put it in its place since.
            if os.path.samestat(os.fstat(self._file), self._path.stat()):
                return
        except (BlockingIOError, FileNotFoundError):
            pass
        raise OnItsWay(os.fstat(self._file).st_size)

    def _begin(self) -> None:
        """Take up what is there, which was written in order; what is there of an earlier state nobody goes on with."""
        for other in self._parts.glob(f"{self._path.stem}.*"):
            if other != self._path:
                other.unlink(missing_ok=True)
        self._digest = hashlib.sha256()
        self.at = os.fstat(self._file).st_size
        if self.at > self.size:
            self._anew()
        for place in range(0, self.at, PIECE):
            self._digest.update(os.pread(self._file, min(PIECE, self.at - place), place))

    def _anew(self) -> None:
        os.ftruncate(self._file, 0)
        self._digest, self.at = hashlib.sha256(), 0

    def write(self, data: bytes | memoryview) -> None:
        """Take the next bytes.

        Raises:
            OSError: the disk does not, or more came than it should have.
        """
        if len(data) > self.size - self.at:
            raise OSError(f"more came than the {self.size:,} bytes that it was said to have")
        self._digest.update(data)
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._file, rest, self.at)
            rest, self.at = rest[written:], self.at + written

    def check(self) -> None:
        """See that it is what its node has read.

        Raises:
            OSError: it is not; it begins anew.
        """
        if self.at == self.size and self._digest.hexdigest() == self.sha256:
            return
        self._anew()
        raise OSError("what came is not what was sent: its SHA-256 is another")

    def put(self, target: Path, changed_at: float, *, instead: bool) -> None:
        """Give the file, now whole, its name.

        Args:
            changed_at: when ranks last changed it, Unix time.
            instead: whether it takes the place of what is there.

        Raises:
            FileExistsError: there is something, and it does not.
            OSError: it cannot be put there.
        """
        os.utime(self._file, (changed_at, changed_at))
        if instead:
            self._path.replace(target)
        else:
            _without_overwriting(self._path, target)

    def is_like(self, target: Path) -> bool:
        """Whether a file holds the same."""
        if not target.is_file() or target.stat().st_size != self.size:
            return False
        with target.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256

    def close(self) -> None:
        """No more comes by this way; another may go on, so it stays open."""

    def drop(self) -> None:
        """Leave nothing of it."""
        self._path.unlink(missing_ok=True)
        self.leave()

    def leave(self) -> None:
        """Let others go on with it."""
        self._shut()
        with suppress(OSError):  # others are on their way
            self._parts.rmdir()

    def _shut(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def refuse_others(folder: Path) -> None:
    """See that a folder, or a link in its place, is no stranger's where everybody may make one of that name: they could
    change what comes there.

    Raises:
        FileNotFoundError: it is gone.
        OSError: it is theirs.
    """
    found = folder.lstat()
    if found.st_uid not in (0, os.getuid()) and folder.parent.stat().st_mode & stat.S_IWOTH:
        raise OSError(
            f"{folder} belongs to somebody else, who could change what comes there: choose another folder"
        )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _without_overwriting(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except FileExistsError:
        raise
    except OSError:  # a file system without such links
        if os.path.lexists(target):
            raise FileExistsError(f"{target} is there") from None
        source.replace(target)
    else:
        source.unlink()
