"""Safe access to files: paths from users and projects, reads of bounded size, and atomic replacement.

Text is often not a valid path: a name of more than 255 bytes, a null character, a lone surrogate, an unknown user, a
loop of links, an inaccessible folder. :mod:`pathlib` raises several types of exceptions for such text. The functions of
this module return a result instead. Only regular files of a bounded size are read, because reading a named pipe would
block, and reading a device may never end.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import IO, Any, TypeVar

# default limit of a file's size in bytes; the largest lock files of real projects have a few megabytes
MAX_BYTES = 16 << 20
MAX_SETTINGS_BYTES = 1_000_000  # maximum bytes of a skyward.toml
# maximum bytes of a file that this program has written, such as the trial sheet of a large sweep
MAX_OWN_BYTES = 1 << 28
LOCK_TRIES, LOCK_PAUSE = 50, 0.01  # attempts to lock the draft of a file, and seconds between two attempts
MAX_DEPTH = 100  # maximum nesting depth of tables and lists in TOML and JSON
PATH_ERRORS = (OSError, ValueError, RuntimeError)  # exceptions that pathlib raises for text that is not a valid path

_FILE_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}

T = TypeVar("T")


class UnusableFile(OSError):
    """Error: a file must not be read. ``strerror`` is the reason, without the name of the file."""

    def __str__(self) -> str:
        return str(self.strerror)


# These checks use os.path, whose functions return False for text that is not a path; methods of pathlib may raise.
def exists(path: str | Path) -> bool:
    """Check whether a path exists; False if the text is not a valid path."""
    return os.path.exists(Path(path))  # noqa: PTH110


def is_file(path: str | Path) -> bool:
    """Check whether a path is a regular file, or a link to one."""
    return os.path.isfile(Path(path))  # noqa: PTH113


def is_dir(path: str | Path) -> bool:
    """Check whether a path is a folder, or a link to one."""
    return os.path.isdir(Path(path))  # noqa: PTH112


def expand_user(path: str | Path) -> Path:
    """Return a path with ``~`` replaced by the home folder; unchanged if the user is unknown."""
    try:
        return Path(path).expanduser()
    except PATH_ERRORS:
        return Path(path)


def resolve_path(path: str | Path) -> Path:
    """Return a path with its links resolved.

    If that fails, return the absolute path; if the current folder was deleted, return the path itself.
    """
    try:
        return Path(path).resolve()
    except PATH_ERRORS:
        with suppress(OSError):
            return Path(os.path.normpath(path)).absolute()
        return Path(path)


def current_folder() -> Path:
    """Return the path of the current folder; if the folder was deleted, return its former path.

    Opening a file below the former path then fails with an ordinary error.
    """
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path(os.environ.get("PWD", "/"))


def find_matching(folder: Path, pattern: str) -> list[Path]:
    """Return the files and folders below a folder that match a glob pattern.

    Raises:
        ValueError: If the pattern is invalid.
    """
    try:
        return list(folder.glob(pattern))
    except OSError:
        return []
    except (NotImplementedError, IndexError, RuntimeError) as error:
        raise ValueError(str(error)) from error


def list_entries(folder: Path) -> list[Path]:
    """Return the entries of a folder.

    Raises:
        OSError: If the folder cannot be read.
    """
    try:
        return list(folder.iterdir())
    except ValueError as error:
        raise UnusableFile(errno.EINVAL, str(error)) from error


def read_bytes(path: str | Path, most: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file; empty for /dev/null.

    Args:
        path: The file, or a link to it.
        most: Maximum size in bytes.

    Raises:
        OSError: If the file cannot be read, is too large, or is not a regular file.
    """
    try:
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            found = os.fstat(file.fileno())
            if stat.S_ISCHR(found.st_mode) and os.path.samestat(found, os.stat(os.devnull)):
                # Return no content for /dev/null, which users name for "no file", as in "UserKnownHostsFile /dev/null".
                return b""
            if not stat.S_ISREG(found.st_mode):
                kind = _FILE_KINDS.get(stat.S_IFMT(found.st_mode), "something else")
                raise UnusableFile(errno.EINVAL, f"it is {kind}, not a regular file")
            # A file that reports a large size is not read at all, to save memory. A small size may be wrong (files in
            # /proc report 0), so more bytes than the limit may still be read.
            data = (file.read(most + 1) or b"") if found.st_size <= most else None
    except ValueError as error:
        raise UnusableFile(errno.EINVAL, str(error)) from error
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise UnusableFile(errno.EINVAL, "it is a socket, not a regular file") from error
        raise
    if data is None or len(data) > most:
        raise UnusableFile(errno.EFBIG, f"it has more than {most:,} bytes")
    return data


def read_text(path: str | Path, encoding: str = "utf-8", errors: str = "strict", *, most: int = MAX_BYTES) -> str:
    """Return the text of a regular file, with universal newlines.

    Raises:
        OSError: If the file cannot be read, is too large, or is not a regular file.
        UnicodeDecodeError: If the text is not in the encoding.
    """
    return io.TextIOWrapper(io.BytesIO(read_bytes(path, most)), encoding, errors).read()


def parse_toml(text: str) -> dict[str, Any]:
    """Return the value of a TOML text.

    Raises:
        ValueError: If the text is invalid, or nested too deeply.
    """
    import tomllib  # imported late, because most starts read no TOML

    try:
        return _check_depth(tomllib.loads(text))
    except RecursionError:
        raise ValueError(_DEPTH_ERROR) from None


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: If the text is invalid, or nested too deeply.
    """
    import json  # imported late, because most starts of the command line read no JSON

    try:
        return _check_depth(json.loads(text))
    except RecursionError:
        raise ValueError(_DEPTH_ERROR) from None


def read_own_json(path: Path) -> Any:
    """Return the value of a JSON file that this program wrote. None if the file does not exist.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If the file is invalid.
    """
    try:
        text = read_text(path, most=MAX_OWN_BYTES)
    except FileNotFoundError:
        return None
    return parse_json(text)


_DEPTH_ERROR = f"it is nested more than {MAX_DEPTH} levels deep"


def _check_depth(value: T) -> T:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return value
    raise ValueError(_DEPTH_ERROR)


PROJECT_FILE = "pyproject.toml"


def folders_up_to_project(folder: Path) -> Iterator[Path]:
    """Yield a folder and its parents, up to the root folder of the project that contains it.

    The root is the repository's root, otherwise the folder of the project file, otherwise the home folder.

    The home folder itself is excluded, because its files do not belong to a project. Installed packages do not belong
    to a project either, so for a package only its own folder is yielded.
    """
    if "site-packages" in folder.parts:
        yield folder
        return
    above = [folder, *folder.parents]
    marked = [each for mark in (".git", PROJECT_FILE) for each in above if exists(each / mark)]
    own = resolve_path(expand_user("~"))
    for each in above:
        if each == own and each != folder:
            return
        yield each
        if marked and each == marked[0]:
            return


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace a file's content atomically.

    The new content is first written to a locked draft file of a fixed name. The draft of a killed process is reused.

    Args:
        path: Path of the file.
        data: New content.
        mode: Permissions, reduced by the umask.

    Raises:
        OSError: If the file cannot be written, or another process has been writing it for about 0.5 s.
    """
    draft = path.with_name(f"{path.name}.draft")
    for _ in range(LOCK_TRIES):
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, mode), "wb") as file:
            # Another process may have moved this draft into place before this process acquired the lock.
            if lock_file_at(draft, file.fileno()):
                try:
                    file.truncate()
                    file.write(data)
                    file.flush()
                    draft.replace(path)
                except OSError:
                    draft.unlink(missing_ok=True)
                    raise
                return
        sleep(LOCK_PAUSE)
    raise BlockingIOError(f"another process is writing {draft}")


def try_lock(file: IO[Any] | int) -> bool:
    """Lock an open file exclusively. Return False if another process holds a lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_file_at(path: Path, descriptor: int) -> bool:
    """Lock an open file. Return False if another process holds a lock, or has moved or deleted the file at the path."""
    with suppress(FileNotFoundError):
        return try_lock(descriptor) and os.path.samestat(os.fstat(descriptor), path.stat())
    return False
