"""Files of the working folder that are sent, by git and .gitignore rules.

This is the client's half; the node's is ``bootstrap.receive_working_folder``. The client lists the folder (as git does,
where there is git) and asks; the node compares by size and time of change, and answers with what it wants, and
with its own hashes of files whose time alone differs, so that a fresh checkout costs no transfer.
"""

from __future__ import annotations

import asyncio
import errno
import fnmatch
import getpass
import hashlib
import io
import os
import re
import shutil
import socket
import stat
import subprocess
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, NamedTuple

from skyward_core.node.bootstrap.receive_working_folder import PIECE, VANISHED, FolderItem, to_json
from skyward_core.protocol.output_file_patterns import BY_PRODUCTS
from skyward_core.store.state_folder import NestedStateFolders
from skyward_core.tasks.bounded_subprocess import git_command
from skyward_core.util.user_files import UnusableFile, find_matching, is_dir, read_text

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

    IgnoreRules = tuple[tuple[str, GitIgnoreSpec], ...]  # by the folder that each is in

IGNORE_FILE = ".gitignore"


def walk(folder: Path, never: Callable[[str], bool]) -> Iterator[str]:
    """Yield the paths of the files below a folder that are neither ignored nor ``never`` wanted."""
    left: list[tuple[Path, str, IgnoreRules]] = [(folder, "", ())]
    while left:  # folders may lie deeper in one another than functions may call each other
        at, below, rules = left.pop()
        rules = (*rules, *_read_rules(at / IGNORE_FILE, below))
        with os.scandir(at) as entries:
            for entry in entries:
                path, is_folder = below + entry.name, entry.is_dir(follow_symlinks=False)
                if never(path) or _is_ignored(f"{path}/" if is_folder else path, rules):
                    continue
                if is_folder:
                    left.append((Path(entry.path), f"{path}/", rules))
                else:
                    yield path


def _is_ignored(path: str, rules: IgnoreRules) -> bool:
    """Check whether a path is ignored: the last pattern that names it in the nearest file decides."""
    for below, spec in reversed(rules):
        inner = path.removeprefix(below)
        for pattern in reversed(spec.patterns):
            for found in pattern.regex.finditer(inner) if pattern.regex else ():
                # pathspec lets a folder's pattern match what is in it. Git does not: it enters no ignored folder.
                if found.groupdict().get("ps_d") is None or found.end("ps_d") == len(inner):
                    return bool(pattern.include)
    return False


def _read_rules(file: Path, below: str) -> IgnoreRules:
    from pathspec import GitIgnoreSpec  # late: git lists most folders

    try:
        lines = read_text(file, errors="surrogateescape").splitlines()
    except (FileNotFoundError, IsADirectoryError, UnusableFile):
        return ()
    return ((below, GitIgnoreSpec.from_lines(lines)),)


LIMIT = 1_000_000_000  # bytes; above it the folder holds data, which has better ways to travel
WARNING = 100_000_000
COMPRESS_BELOW = 32 << 20  # above it packing takes longer than a local network

# Never sent unless Image(includes=...) names it: what opens other doors.
SECRET = (".env", ".env.*", ".envrc", "*.pem", "*.key", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".ssh",
          ".aws", ".gnupg", ".netrc", ".pgpass", ".pypirc", ".git-credentials")  # fmt: skip

# What reading a listed file says once it was removed, or there is a file in its folder's place, or a folder in its own.
GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class FolderTooLarge(ValueError):
    """The working folder holds more than may travel."""


class FileUnreadable(ValueError):
    """The working folder holds what we may not, or cannot, read."""

    def __init__(self, error: OSError, path: Path) -> None:
        super().__init__(
            f"{path} in the working folder cannot be read ({error.strerror}): make it readable (chmod u+r), or leave "
            "it out with Image(excludes=[...]) or .gitignore."
        )


def copy_name(folder: Path) -> str:
    """What the folder's copy is called on a node: the same for the same folder of the same client."""
    owner = f"{getpass.getuser()}@{socket.gethostname()}:{folder}"
    return f"{folder.name or 'root'}-{hashlib.sha256(os.fsencode(owner)).hexdigest()[:10]}"


class Manifest(NamedTuple):
    """What travels of a folder, by path; what does not for its name alone; patterns that name nothing there."""

    items: list[FolderItem]
    withheld: list[str]
    unmatched: list[str]


def build_manifest(folder: Path, includes: Sequence[str] = (), excludes: Sequence[str] = ()) -> Manifest:
    """The files that travel.

    Args:
        includes: glob patterns of files or folders to take although ignored. What is :func:`is_secret` is taken only
            by a pattern that is so as well: ".env" or "certs/*.pem", and not "*".
        excludes: glob patterns of files or folders to leave out.

    Raises:
        TooLarge: names what takes the room.
        Unreadable: names what cannot be looked at.
    """
    state = NestedStateFolders(folder)
    listed = [
        path for path in _list_files(folder, excludes) if not _matches(path, BY_PRODUCTS) and not state.contains(path)
    ]
    wanted = [path for path in listed if not is_secret(path)]
    unmatched = []
    for pattern in includes:
        named = is_secret(pattern) or _matches(pattern, (".git",))
        if not (there := find_matching(folder, pattern)):
            unmatched.append(pattern)
        for found in there:
            inside = [found] if not is_dir(found) else [p for p in find_matching(found, "**/*") if not is_dir(p)]
            below = (path.relative_to(folder).as_posix() for path in inside)
            paths = [path for path in below if not state.contains(path)]
            wanted += [path for path in paths if named or not (is_secret(path) or _matches(path, (".git",)))]
    items = []
    for path in sorted(set(wanted)):
        if _matches(path, excludes):
            continue
        try:
            found_as = (folder / path).lstat()
            link = str((folder / path).readlink()) if stat.S_ISLNK(found_as.st_mode) else ""
        except GONE:
            continue  # git still lists a file that was removed
        except PermissionError as error:
            raise FileUnreadable(error, folder / path) from error
        if link or stat.S_ISREG(found_as.st_mode):  # pipes and sockets are of this machine
            mode = stat.S_IMODE(found_as.st_mode) & 0o755
            items.append(FolderItem(path, 0 if link else found_as.st_size, found_as.st_mtime_ns, mode, link))
    _check_size(folder, items)
    withheld = sorted(path for path in set(listed) - set(wanted) if not _matches(path, excludes))
    return Manifest(items, withheld, unmatched)


def unmatched_patterns(folder: Path, includes: Sequence[str]) -> list[str]:
    """Patterns that name nothing in a folder, as :class:`Manifest` has them; the folder is not listed for that."""
    return [pattern for pattern in includes if not find_matching(folder, pattern)]


def is_secret(path: str) -> bool:
    """Whether a file, or a folder on the way to it, has a name that keys and passwords go by."""
    parts = PurePosixPath(path).parts
    return _matches(path, SECRET) or any("." not in part and part.startswith("id_") for part in parts[-1:])


def _matches(path: str, patterns: Sequence[str]) -> bool:
    parts = PurePosixPath(path).parts
    prefixes = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    fits = _combined_pattern(tuple(patterns)).match
    return any(fits(candidate) for candidate in (*prefixes, *parts))


@cache
def _combined_pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """What fits where one of the patterns does: many files are looked at while somebody waits."""
    return re.compile("|".join(fnmatch.translate(pattern.rstrip("/")) for pattern in patterns) or r"(?!)")


def _list_files(folder: Path, excludes: Sequence[str]) -> list[str]:
    """Paths of the folder's files without what .gitignore names; git knows that best, where there is one."""
    listed = None
    if shutil.which("git") is not None:
        if (_git(folder, "rev-parse", "--is-inside-work-tree") or b"").strip() == b"true":
            listed = _git(folder, "ls-files", "-coz", "--exclude-standard")
        else:  # git reads .gitignore for a folder outside of any repository too, given an empty one
            with tempfile.TemporaryDirectory() as empty:
                _git(folder, "init", "--quiet", "--bare", empty)
                alone = (f"--git-dir={empty}", f"--work-tree={folder}")
                listed = _git(folder, *alone, "ls-files", "-oz", "--exclude-standard")
    if listed is None:
        try:
            return list(walk(folder, lambda path: _matches(path, (*BY_PRODUCTS, *excludes))))
        except PermissionError as error:
            raise FileUnreadable(error, Path(error.filename)) from error
    paths = []
    for path in listed.decode("utf-8", "surrogateescape").split("\0"):
        if path and is_dir(folder / path) and not (folder / path).is_symlink():
            below = folder / path  # another repository inside of this one
            paths += [f"{path.rstrip('/')}/{inner}" for inner in _list_files(below, ())]
        elif path:
            paths.append(path)
    return paths


def _git(folder: Path, *arguments: str) -> bytes | None:
    """What git prints; None where it fails, over its configuration for one."""
    done = subprocess.run(git_command(str(folder), *arguments), capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None


def _check_size(folder: Path, items: Sequence[FolderItem]) -> None:
    total = sum(item.size for item in items)
    if total <= LIMIT:
        return
    by_top: Counter[str] = Counter()
    for item in items:
        by_top[item.path.split("/")[0]] += item.size
    named = ", ".join(f"{name} ({size / 1e6:,.0f} MB)" for name, size in by_top.most_common(3))
    raise FolderTooLarge(
        f"The working folder {folder} holds {total / 1e9:.1f} GB; at most {LIMIT / 1e9:.0f} GB travels "
        f"with a pool. Largest in it: {named}. Leave it out with Image(excludes=[...]) or .gitignore, or "
        "name a smaller folder with Image(workdir=...)."
    )


def pack(folder: Path, items: Sequence[FolderItem], target: IO[bytes]) -> None:
    """Write the files' contents one after another, as ``receive_working_folder.FolderCopy.apply`` takes them.

    Each is a row of pieces, which begin with their length (four bytes, network order); a length of 0 ends it. One
    that has vanished meanwhile is a single piece of the length ``receive_working_folder.VANISHED``.

    That is no tar archive, which tells a file's size ahead of its content, while somebody may be writing the file; says
    once more what the list has said that the node has compared already; takes up to twice the processor time for many
    small files; and tarfile takes longer to import than most folders to send.
    """
    for item in items:
        if item.link:
            continue
        try:
            for data in _read_pieces(folder / item.path):
                target.write(PIECE.pack(len(data)) + data)
        except GONE:
            target.write(PIECE.pack(VANISHED))
            continue
        target.write(PIECE.pack(0))


def _read_pieces(path: Path) -> Iterator[bytes]:
    """What is in a file.

    Raises:
        Unreadable: it cannot be read.
        OSError: one of ``GONE``; it is no file any more.
    """
    try:
        # A pipe in its place would have us wait for somebody who writes.
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise FileNotFoundError(errno.ENOENT, "it is no file", str(path))
            while data := file.read(1 << 20):
                yield data
    except GONE:
        raise
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise FileNotFoundError(errno.ENOENT, "it is no file", str(path)) from error
        raise FileUnreadable(error, path) from error


class Snapshot:
    """The working folder as one start of a pool sees it: listed once, and packed once for all nodes that lack the same.

    Args:
        includes, excludes: see :func:`build_manifest`.

    Attributes:
        withheld, unmatched: see :class:`Manifest`; known with :meth:`files`.
    """

    def __init__(self, folder: Path, includes: Sequence[str], excludes: Sequence[str]) -> None:
        self.folder = folder
        self.withheld: list[str] = []
        self.unmatched: list[str] = []
        self._listing = asyncio.ensure_future(asyncio.to_thread(self._list, includes, excludes))
        # Where no node comes so far as to ask, nobody else hears of what went wrong.
        self._listing.add_done_callback(lambda listing: listing.cancelled() or listing.exception())
        self._hashes: dict[int, str] = {}
        self._packing: dict[tuple[int, ...], asyncio.Future[bytes]] = {}

    async def files(self) -> tuple[list[FolderItem], bytes]:
        """The files, and the same as what travels.

        Raises:
            TooLarge: names what takes the room.
            Unreadable: names what cannot be looked at.
        """
        return await asyncio.shield(self._listing)

    def _list(self, includes: Sequence[str], excludes: Sequence[str]) -> tuple[list[FolderItem], bytes]:
        items, self.withheld, self.unmatched = build_manifest(self.folder, includes, excludes)
        return items, to_json(items)

    async def find_changed(self, hashes: Mapping[int, str]) -> list[int]:
        """Those of the files (by index) that have another content than these hashes tell, or vanished meanwhile.

        Raises:
            Unreadable: names a file that cannot be read.
        """
        items, _ = await self.files()

        def hash_all() -> None:
            for index in hashes.keys() - self._hashes.keys():
                try:
                    digest = hashlib.blake2b()  # as node.boot.working_copy.file_hash does
                    for piece in _read_pieces(self.folder / items[index].path):
                        digest.update(piece)
                    self._hashes[index] = digest.hexdigest()
                except GONE:
                    self._hashes[index] = ""  # no file's hash: it is packed, and so told as vanished

        await asyncio.to_thread(hash_all)
        return [index for index, digest in hashes.items() if self._hashes[index] != digest]

    async def pack(self, wanted: Sequence[int], target: IO[bytes]) -> bool:
        """Write the contents of files (by index); says whether they are compressed (zlib).

        Raises:
            Unreadable: names a file that cannot be read.
        """
        items, _ = await self.files()
        chosen = [items[index] for index in wanted]
        if sum(item.size for item in chosen) >= COMPRESS_BELOW:
            await asyncio.to_thread(pack, self.folder, chosen, target)
            return False

        def compressed() -> bytes:
            plain = io.BytesIO()
            pack(self.folder, chosen, plain)
            return zlib.compress(plain.getbuffer(), 1)

        key = tuple(wanted)
        if key not in self._packing:
            self._packing[key] = asyncio.ensure_future(asyncio.to_thread(compressed))
        target.write(await asyncio.shield(self._packing[key]))
        return True
