"""Selection and upload of the working folder's files, by git and .gitignore rules, and of local packages.

This module is the client's part; ``bootstrap.receive_working_folder`` is the node's part. The client lists the folder
(with git, if installed). The node compares sizes and modification times with its copy. Its answer requests the missing
files. For files that differ only in time, the answer contains hashes, so that a fresh checkout costs no transfer.
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
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from skyward_core.model.errors import PoolError, convert_errors
from skyward_core.model.output_files import BY_PRODUCTS
from skyward_core.model.specs import Interpreter
from skyward_core.node.bootstrap.receive_working_folder import PIECE, VANISHED, FolderItem, to_json
from skyward_core.store.default_and_forbidden_working_folders import NestedStateFolders, unusable_reason
from skyward_core.tasks.bounded_subprocess import git_command
from skyward_core.tasks.python_compatibility import own_interpreter
from skyward_core.util.safe_file_access import UnusableFile, find_matching, is_dir, read_text, resolve_path

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

    from skyward_core.protocol.frame_types import ManifestDone
    from skyward_core.tasks.packages.package_specs_and_local_packages import LocalPackage
    from skyward_core.transport.ssh.host_command_channel import CommandChannel
    from skyward_core.transport.transport import StartBarrier

    IgnoreRules = tuple[tuple[str, GitIgnoreSpec], ...]  # folder of an ignore file, and the file's rules


def walk(folder: Path, never: Callable[[str], bool]) -> Iterator[str]:
    """Yield the paths of files below a folder, except those that ignore files or the function ``never`` exclude."""
    pending: list[tuple[Path, str, IgnoreRules]] = [(folder, "", ())]
    while pending:
        # Use a stack instead of recursion, because folders may be nested more deeply than Python's recursion limit.
        at, below, rules = pending.pop()
        rules = (*rules, *_read_rules(at / ".gitignore", below))
        with os.scandir(at) as entries:
            for entry in entries:
                path, is_folder = below + entry.name, entry.is_dir(follow_symlinks=False)
                if never(path) or _is_ignored(f"{path}/" if is_folder else path, rules):
                    continue
                if is_folder:
                    pending.append((Path(entry.path), f"{path}/", rules))
                else:
                    yield path


def _is_ignored(path: str, rules: IgnoreRules) -> bool:
    """Check whether ignore files exclude a path. The last matching pattern in the nearest ignore file decides."""
    for below, spec in reversed(rules):
        inner = path.removeprefix(below)
        for pattern in reversed(spec.patterns):
            for found in pattern.regex.finditer(inner) if pattern.regex else ():
                # In pathspec, the pattern of a folder also matches the folder's content. Only a match of the whole path
                # counts here, because :func:`walk` does not enter ignored folders anyway.
                if found.groupdict().get("ps_d") is None or found.end("ps_d") == len(inner):
                    return bool(pattern.include)
    return False


def _read_rules(file: Path, below: str) -> IgnoreRules:
    from pathspec import GitIgnoreSpec  # imported late, because git lists the files of most folders

    try:
        lines = read_text(file, errors="surrogateescape").splitlines()
    except (FileNotFoundError, IsADirectoryError, UnusableFile):
        return ()
    return ((below, GitIgnoreSpec.from_lines(lines)),)


# maximum bytes of the working folder; a larger folder probably contains data, which should be stored elsewhere
LIMIT = 1_000_000_000
# maximum bytes of a folder's name within the name of its copy; file systems allow 255, with all suffixes
MAX_COPY_NAME = 100
WARNING = 100_000_000
# maximum bytes that are compressed; compressing more takes longer than a transfer in a local network
COMPRESS_BELOW = 32 << 20

# Names of files with credentials, which are sent only if Image(includes=...) names the file.
SECRET = (".env", ".env.*", ".envrc", "*.pem", "*.key", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".ssh",
          ".aws", ".gnupg", ".netrc", ".pgpass", ".pypirc", ".git-credentials")  # fmt: skip

# Errors if a listed file was removed or replaced by a folder, or if its folder was replaced by a file.
GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class FolderTooLarge(ValueError):
    """Error: the working folder exceeds the size limit."""


class FileUnreadable(ValueError):
    """Error: a file in the working folder cannot be read."""

    def __init__(self, error: OSError, path: Path) -> None:
        super().__init__(
            f"{path} in the working folder cannot be read ({error.strerror}): make it readable (chmod u+r), or exclude "
            "it with Image(excludes=[...]) or .gitignore."
        )


def copy_name(folder: Path) -> str:
    """Return the name of the copies of a folder on nodes. It is unique to the folder and the client."""
    owner = f"{getpass.getuser()}@{socket.gethostname()}:{folder}"
    name = os.fsencode(folder.name)[:MAX_COPY_NAME].decode(errors="ignore") or "root"
    return f"{name}-{hashlib.sha256(os.fsencode(owner)).hexdigest()[:10]}"


class Manifest(NamedTuple):
    """Files to send, files that are not sent because of their names, and include patterns without a match."""

    items: list[FolderItem]
    withheld: list[str]
    unmatched: list[str]


def build_manifest(folder: Path, includes: Sequence[str] = (), excludes: Sequence[str] = ()) -> Manifest:
    """Select the files of the working folder that are sent to nodes.

    Args:
        includes: Glob patterns of ignored files or folders that are sent anyway. Secret files (see :func:`is_secret`)
            are only sent if the pattern itself is secret: ".env" or "certs/*.pem", but not "*".
        excludes: Glob patterns of files or folders to skip.

    Raises:
        FolderTooLarge: If the folder exceeds the limit. The error names the largest entries.
        FileUnreadable: If a file cannot be read.
    """
    state = NestedStateFolders(folder)
    listed = [
        path for path in _list_files(folder, excludes) if not _matches(path, BY_PRODUCTS) and not state.contains(path)
    ]
    included = [path for path in listed if not is_secret(path)]
    unmatched = []
    for pattern in includes:
        may_be_secret = is_secret(pattern) or _matches(pattern, (".git",))
        if not (matches := find_matching(folder, pattern)):
            unmatched.append(pattern)
        for found in matches:
            inside = [found] if not is_dir(found) else [p for p in find_matching(found, "**/*") if not is_dir(p)]
            below = (path.relative_to(folder).as_posix() for path in inside)
            paths = [path for path in below if not state.contains(path)]
            included += [path for path in paths if may_be_secret or not (is_secret(path) or _matches(path, (".git",)))]
    items = []
    for path in sorted(set(included)):
        if _matches(path, excludes):
            continue
        try:
            found_as = (folder / path).lstat()
            link = str((folder / path).readlink()) if stat.S_ISLNK(found_as.st_mode) else ""
        except GONE:
            continue  # git lists a removed file until its removal is staged.
        except PermissionError as error:
            raise FileUnreadable(error, folder / path) from error
        if link or stat.S_ISREG(found_as.st_mode):  # Skip pipes and sockets, which work only on this machine.
            mode = stat.S_IMODE(found_as.st_mode) & 0o755
            items.append(FolderItem(path, 0 if link else found_as.st_size, found_as.st_mtime_ns, mode, link))
    _check_size(folder, items)
    withheld = sorted(path for path in set(listed) - set(included) if not _matches(path, excludes))
    return Manifest(items, withheld, unmatched)


def unmatched_patterns(folder: Path, includes: Sequence[str]) -> list[str]:
    """Return the include patterns that match no file. Does not list the whole folder."""
    return [pattern for pattern in includes if not find_matching(folder, pattern)]


def is_secret(path: str) -> bool:
    """Check whether a file or one of its folders has a name that is typical of keys and passwords."""
    parts = PurePosixPath(path).parts
    return _matches(path, SECRET) or any("." not in part and part.startswith("id_") for part in parts[-1:])


def _matches(path: str, patterns: Sequence[str]) -> bool:
    parts = PurePosixPath(path).parts
    prefixes = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    fits = _combined_pattern(tuple(patterns)).match
    return any(fits(candidate) for candidate in (*prefixes, *parts))


@cache
def _combined_pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return one regular expression that matches any of the glob patterns, because matching many files must be fast."""
    return re.compile("|".join(fnmatch.translate(pattern.rstrip("/")) for pattern in patterns) or r"(?!)")


def _list_files(folder: Path, excludes: Sequence[str]) -> list[str]:
    """Return the files that .gitignore does not exclude, according to git if it is installed."""
    listed = None
    if shutil.which("git") is not None:
        if (_git(folder, "rev-parse", "--is-inside-work-tree") or b"").strip() == b"true":
            listed = _git(folder, "ls-files", "-coz", "--exclude-standard")
        else:  # Name an empty repository, so that git applies .gitignore files outside of repositories, too.
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
            below = folder / path  # git lists a nested repository as a folder, so list its files separately.
            paths += [f"{path.rstrip('/')}/{inner}" for inner in _list_files(below, ())]
        elif path:
            paths.append(path)
    return paths


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Run git, and return its output; None if git fails, for example because of its configuration."""
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
        f"The working folder {folder} contains {total / 1e9:.1f} GB; at most {LIMIT / 1e9:.0f} GB can be sent "
        f"with a pool. The largest entries: {named}. Exclude them with Image(excludes=[...]) or .gitignore, or "
        "name a smaller folder with Image(workdir=...)."
    )


def pack(folder: Path, items: Sequence[FolderItem], target: IO[bytes]) -> None:
    """Write the contents of files to an upload, in the format that ``receive_working_folder.FolderCopy.apply`` reads.

    A file is a sequence of chunks, each preceded by its length (four bytes, network order), and ends with the length 0.
    A file that no longer exists is the single length ``receive_working_folder.VANISHED``.
    A tar archive is not suitable: it states a file's size before the content, which may change during the upload; it
    repeats the list of files; it takes up to twice the CPU time for small files; and importing tarfile takes longer
    than most uploads.
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
    """Yield the content of a file in chunks.

    Raises:
        FileUnreadable: If the file cannot be read.
        OSError: One of ``GONE``, if the file no longer exists.
    """
    try:
        # Open without blocking, because opening a named pipe would wait for a writer.
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path))
            while data := file.read(1 << 20):
                yield data
    except GONE:
        raise
    except OSError as error:
        if error.errno == errno.ENXIO:  # The path is a socket, which cannot be opened as a file.
            raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path)) from error
        raise FileUnreadable(error, path) from error


class Snapshot:
    """Working folder at the start of a pool. It is listed once, and packed once for all nodes that miss the same files.

    Args:
        includes: Patterns of :func:`build_manifest`.
        excludes: Patterns of :func:`build_manifest`.

    Attributes:
        withheld: As in :class:`Manifest`, once :meth:`files` has returned.
        unmatched: As in :class:`Manifest`, once :meth:`files` has returned.
    """

    def __init__(self, folder: Path, includes: Sequence[str], excludes: Sequence[str]) -> None:
        self.folder = folder
        self.withheld: list[str] = []
        self.unmatched: list[str] = []
        self._listing = asyncio.ensure_future(asyncio.to_thread(self._list, includes, excludes))
        # Retrieve the exception, so that asyncio does not log it if all nodes fail before they need the list.
        self._listing.add_done_callback(lambda listing: listing.cancelled() or listing.exception())
        self._hashes: dict[int, str] = {}
        self._packing: dict[tuple[int, ...], asyncio.Future[bytes]] = {}

    async def files(self) -> tuple[list[FolderItem], bytes]:
        """Return the working folder's files, and their list as JSON for the nodes.

        Raises:
            FolderTooLarge: If the folder exceeds the limit.
            FileUnreadable: If a file cannot be read.
        """
        return await asyncio.shield(self._listing)

    def _list(self, includes: Sequence[str], excludes: Sequence[str]) -> tuple[list[FolderItem], bytes]:
        items, self.withheld, self.unmatched = build_manifest(self.folder, includes, excludes)
        return items, to_json(items)

    async def find_changed(self, hashes: Mapping[int, str]) -> list[int]:
        """Return the indices of files whose content differs from the given hashes, or that no longer exist.

        Raises:
            FileUnreadable: If a file cannot be read.
        """
        items, _ = await self.files()

        def hash_all() -> None:
            for index in hashes.keys() - self._hashes.keys():
                try:
                    digest = hashlib.blake2b()  # Must be the same hash as in bootstrap.receive_working_folder.
                    for piece in _read_pieces(self.folder / items[index].path):
                        digest.update(piece)
                    self._hashes[index] = digest.hexdigest()
                except GONE:
                    # "" differs from any hash of a host, so the file counts as changed, and is packed as vanished.
                    self._hashes[index] = ""

        await asyncio.to_thread(hash_all)
        return [index for index, digest in hashes.items() if self._hashes[index] != digest]

    async def pack(self, indices: Sequence[int], target: IO[bytes]) -> bool:
        """Write the contents of some files to an upload. Return whether they are compressed (zlib).

        Args:
            indices: Indices of the files.
            target: File to write to.

        Raises:
            FileUnreadable: If a file cannot be read.
        """
        items, _ = await self.files()
        chosen = [items[index] for index in indices]
        if sum(item.size for item in chosen) >= COMPRESS_BELOW:
            await asyncio.to_thread(pack, self.folder, chosen, target)
            return False

        def compressed() -> bytes:
            plain = io.BytesIO()
            pack(self.folder, chosen, plain)
            return zlib.compress(plain.getbuffer(), 1)

        key = tuple(indices)
        if key not in self._packing:
            self._packing[key] = asyncio.ensure_future(asyncio.to_thread(compressed))
        target.write(await asyncio.shield(self._packing[key]))
        return True


async def send_workdir(
    channel: CommandChannel, cwd: str, image: Mapping[str, Any], gate: StartBarrier | None
) -> tuple[str, str, Sequence[FolderItem]]:
    """Update the host's copy of the working folder. Return its path, a description of the transfer, and its files.

    Raises:
        PoolError: If the folder is too large or has unreadable files, if it is invalid although the image names it, or
            if the host requests files outside of the folder.
    """
    if not cwd:
        return "", "no working folder", ()
    snapshot = get_snapshot(cwd, image, gate)
    if isinstance(snapshot, str):
        if image.get("workdir"):
            raise PoolError(
                f"{snapshot}, so it cannot be sent to the nodes: choose another folder with Image(workdir=...)."
            )
        return "", f"{snapshot}, so it is not sent: put the script into a folder of its own", ()
    with convert_errors("", PoolError, (FolderTooLarge, FileUnreadable)):
        copy, detail = await _send_snapshot(channel, snapshot)
        return copy, detail, (await snapshot.files())[0]


async def send_packages(
    channel: CommandChannel, packages: Sequence[LocalPackage], cwd: str, gate: StartBarrier | None
) -> tuple[dict[str, str], list[str]]:
    """Update the host's copies of local packages outside the working folder.

    Returns:
        The path of each folder's copy, and descriptions of the transfers.

    Raises:
        PoolError: If a package that the project requires cannot be sent.
    """
    if not packages:
        return {}, []
    # Imported late, because few projects have local packages outside the working folder.
    from skyward_core.tasks.packages.package_specs_and_local_packages import packages_to_send

    copies, details = dict[str, str](), list[str]()
    for package in packages_to_send(packages, cwd):
        snapshot = get_snapshot(package.folder, {}, gate)
        try:
            if isinstance(snapshot, str):
                raise FolderTooLarge(snapshot)
            copies[package.folder], detail = await _send_snapshot(channel, snapshot)
        except (FolderTooLarge, FileUnreadable) as error:
            if package.is_requested:
                raise PoolError(f"Cannot send package {package.name} of {package.folder}: {error}") from error
            detail = f"not sent, so ranks cannot import it: {error}"
        details.append(f"{package.name}: {detail}")
    return copies, details


def find_local_packages_once(
    config: Mapping[str, Any], gate: StartBarrier | None
) -> asyncio.Future[list[LocalPackage]]:
    """Return the packages that only this machine has, because they are installed from its folders.

    The search runs once for all nodes of a start.
    """
    python = Interpreter.from_json(config["interpreter"]) if config.get("interpreter") else own_interpreter()

    def find() -> list[LocalPackage]:
        from skyward_core.tasks.packages.package_specs_and_local_packages import find_local_packages

        return find_local_packages(config.get("image") or {}, python.prefix, python.minor)

    def begin() -> asyncio.Future[list[LocalPackage]]:
        return asyncio.ensure_future(asyncio.to_thread(find))

    return gate.compute_once("local packages", begin) if gate is not None else begin()


async def _send_snapshot(channel: CommandChannel, snapshot: Snapshot) -> tuple[str, str]:
    from skyward_core.transport.ssh.host_command_channel import CHUNK  # imported late, because it imports asyncssh

    items, listing = await snapshot.files()
    name = copy_name(snapshot.folder)
    total = sum(item.size for item in items)
    note = f"; {total / 1e6:.0f} MB is large for a working folder" if total > WARNING else ""
    if snapshot.withheld:
        names = _shorten(snapshot.withheld)
        note += f"; not sent because of typical names of secrets: {names} (to send them, use Image(includes=...))"
    if snapshot.unmatched:
        note += f"; Image(includes=...) patterns without a match: {_shorten(snapshot.unmatched)}"
    answer: ManifestDone = await channel.ask("manifest", listing, name=name)
    if answer.get("current"):
        return answer["folder"], f"none of {len(items)} files has changed{note}"
    doubtful = dict(answer["doubtful"])
    _check_indices(channel.link.target.host, items, answer["wanted"], doubtful)
    changed = await snapshot.find_changed(doubtful) if doubtful else []
    indices = sorted({*answer["wanted"], *changed})
    with tempfile.SpooledTemporaryFile(max_size=CHUNK * 128) as contents:
        compressed = bool(indices) and await snapshot.pack(indices, contents)
        size = contents.tell()
        same = sorted(doubtful.keys() - set(changed))
        await channel.ask("files", contents, name=name, same=same, wanted=indices, compressed=compressed)
    return answer["folder"], f"{len(indices)} of {len(items)} files sent ({size / 1e3:.0f} kB){note}"


def _check_indices(host: str, items: Sequence[FolderItem], indices: Sequence[int], doubtful: Mapping[int, str]) -> None:
    """Check that a host requests only files that are in the list.

    Links are never hashed for a host: their targets may be outside the folder, and the host must not learn their
    hashes.
    """
    from skyward_core.transport.ssh.host_command_channel import HostCommandFailed

    for index in (*indices, *doubtful):
        if index >= len(items):
            raise HostCommandFailed(
                f"Host {host} requests file {index:,} of a working folder with {len(items):,} files."
            )
    for index in doubtful:
        if items[index].link:
            raise HostCommandFailed(
                f"Host {host} requests the target of the link {items[index].path}, which is not allowed."
            )


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def get_snapshot(cwd: str, image: Mapping[str, Any], gate: StartBarrier | None) -> Snapshot | str:
    """Return the working folder's snapshot, which all nodes of a start share, or the reason why it cannot be sent."""

    def make() -> Snapshot | str:
        folder = resolve_path(cwd)
        if unfit := unusable_reason(folder) or ("" if is_dir(folder) else f"{folder} is not a folder"):
            return unfit
        return Snapshot(folder, image.get("includes") or (), image.get("excludes") or ())

    return gate.compute_once(("snapshot", cwd), make) if gate is not None else make()


def map_paths(paths: Sequence[str], cwd: str, copy: str, gate: StartBarrier | None = None) -> list[str]:
    """Replace import paths inside the working folder by the paths of the folder's copy on the host."""
    if not (cwd and copy):
        return []

    def relative() -> list[Path]:
        root = resolve_path(cwd)
        return [path.relative_to(root) for path in map(resolve_path, paths) if path.is_relative_to(root)]

    key = ("paths", cwd, *paths)
    inside = gate.compute_once(key, relative) if gate is not None else relative()
    return [str(Path(copy) / path) for path in inside]
