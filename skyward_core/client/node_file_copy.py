"""Copying of files and folders between this machine and a node, by SFTP."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from skyward_core.client.ssh_host_groups_and_access import ssh_targets
from skyward_core.model.errors import PoolError, SkywardError, UsageError
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow
from skyward_core.store.state_folder import find_state_folder, is_state_folder
from skyward_core.transport.ssh.asyncssh_patches import asyncssh
from skyward_core.transport.ssh.connection import (
    answer_timeout,
    connect,
    describe_error,
    silent_host_error,
    stalled_host_error,
)
from skyward_core.transport.ssh.host_address_and_python import Target
from skyward_core.util.safe_file_access import is_dir, resolve_path
from skyward_core.util.terminal_safe_text import sanitize_line

ProgressCallback = Callable[[int, int], None]  # called with the number of copied bytes and the total number of bytes
MAX_DEPTH = 64  # maximum depth of nested folders to copy
MIN_DISK_RATE = 1e6  # bytes per second of the slowest expected disk of a node


@dataclass(frozen=True, slots=True)
class CopyResult:
    """Result of a copy: target, number of files, and their bytes."""

    target: str
    files: int
    size: int


@dataclass(frozen=True, slots=True)
class _CopyEntry:
    """File or folder to copy. ``parts`` are the components of its path relative to the copied folder."""

    parts: tuple[str, ...]
    is_folder: bool
    size: int
    mode: int


def copy_to_node(
    ledger: Ledger, pool: PoolRow, node: int, source: Path, target: str, far: ProgressCallback
) -> CopyResult:
    """Copy a file or folder of this machine to a node.

    Args:
        node: Index of the node.
        target: Path on the node, relative to the home folder of the login user. If it is an existing folder, the copy
            goes into the folder. An existing file is replaced, a folder never.
        far: Called with the number of copied bytes and the total.

    Raises:
        UsageError: If the pool's nodes are not reached over SSH. If the source does not exist, or contains anything but
            files and folders. If ``target`` contains ``..``, or an existing folder or link is in the way.
        PoolError: If the node rejects the copy, or the connection was lost.
    """
    return asyncio.run(_upload(_ssh_target(ledger, pool, node), source, list(_local_entries(source)), target, far))


def copy_from_node(
    ledger: Ledger, pool: PoolRow, node: int, source: str, target: Path, far: ProgressCallback
) -> CopyResult:
    """Copy a file or folder of a node to this machine; see :func:`copy_to_node`."""
    return asyncio.run(_download(_ssh_target(ledger, pool, node), source, target, far))


def _ssh_target(ledger: Ledger, pool: PoolRow, node: int) -> Target:
    return ssh_targets(ledger, pool, "whose files are on this machine. Copy them with cp")[node]


async def _upload(
    target: Any, source: Path, entries: Sequence[_CopyEntry], destination: str, far: ProgressCallback
) -> CopyResult:
    async with _sftp(target) as (sftp, limit):
        path = await _remote_target(sftp, destination, resolve_path(source).name, entries[0].is_folder)
        holder = _partial_path(path)
        whole = str(PurePosixPath(holder, PurePosixPath(path).name))
        progress = _Progress(far, sum(each.size for each in entries), limit)
        await sftp.mkdir(holder, asyncssh.SFTPAttrs(permissions=0o700))
        try:
            for each in entries:
                limit.extend()
                place = str(PurePosixPath(whole, *each.parts))
                if each.is_folder:
                    await sftp.mkdir(place, asyncssh.SFTPAttrs(permissions=0o700))
                    continue
                own = os.fsencode(source.joinpath(*each.parts))
                await sftp.put(own, place, follow_symlinks=False, progress_handler=progress.on_file_progress)
                limit.extend(each.size / MIN_DISK_RATE)
                await _sync_remote_file(sftp, place)
                await sftp.chmod(place, each.mode & 0o777)
                progress.finish_file(each.size)
            for each in reversed(entries):
                if each.is_folder:
                    limit.extend()
                    await sftp.chmod(str(PurePosixPath(whole, *each.parts)), each.mode & 0o777)
            limit.extend()
            await (sftp.rename if entries[0].is_folder else sftp.posix_rename)(whole, path)
        finally:
            with suppress(asyncssh.Error, OSError):
                async with asyncio.timeout(answer_timeout()):
                    await sftp.rmtree(holder)
    return _make_result(path, entries)


async def _sync_remote_file(sftp: Any, place: str) -> None:
    """Flush a file on the node to its disk before the file is renamed. After a power failure, the target is the
    complete old or new file.
    """
    async with sftp.open(place, "rb") as file:
        # Ignore servers that do not support fsync.
        with suppress(asyncssh.SFTPOpUnsupported):
            await file.fsync()


async def _remote_target(sftp: Any, destination: str, name: str, is_folder: bool) -> str:
    path = _check_remote_path(destination) or "."
    if destination.endswith("/") or await sftp.isdir(path):
        path = str(PurePosixPath(path, name))
    parent = str(PurePosixPath(path).parent)
    if not await sftp.isdir(parent):
        raise UsageError(f"folder {sanitize_line(parent)} does not exist on the node")
    if await sftp.lexists(path):
        found = await sftp.lstat(path)
        _check_not_taken(path, stat.S_IFMT(found.permissions or 0), is_folder, "on the node")
    return path


def _check_remote_path(path: str) -> str:
    """Return a path on a node relative to the home folder of the login user."""
    path = "" if path == "~" else path.removeprefix("~/")
    if ".." in PurePosixPath(path).parts:
        raise UsageError(f"{sanitize_line(path)}: the path contains .. Write it without")
    return path


async def _download(target: Any, remote_path: str, own: Path, far: ProgressCallback) -> CopyResult:
    async with _sftp(target) as (sftp, limit):
        source = await sftp.realpath(str(PurePosixPath(_check_remote_path(remote_path) or ".").parent))
        name = PurePosixPath(_check_remote_path(remote_path)).name
        if not name:
            raise UsageError(
                f"{sanitize_line(remote_path) or 'POOL:PATH'}: no file given. Name a file or a folder on the node"
            )
        source = str(PurePosixPath(source, name))
        try:
            entries = [each async for each in _remote_entries(sftp, source, (), limit)]
        except asyncssh.SFTPNoSuchFile as error:
            raise UsageError(f"{sanitize_line(source)} does not exist on the node") from error
        path = _local_target(own, name, entries[0].is_folder)
        holder = Path(_partial_path(str(path)))
        whole = holder / path.name
        progress = _Progress(far, sum(each.size for each in entries), limit)
        holder.mkdir(mode=0o700)
        try:
            for each in entries:
                place = whole.joinpath(*each.parts)
                if each.is_folder:
                    place.mkdir(mode=0o700)
                    continue
                remote = str(PurePosixPath(source, *each.parts))
                target, report = os.fsencode(place), progress.on_file_progress
                await sftp.get(remote, target, follow_symlinks=False, progress_handler=report)
                if place.is_symlink() or not place.is_file():
                    raise PoolError(f"{sanitize_line(remote)} became a link or a folder during the copy")
                place.chmod(each.mode & 0o777 | stat.S_IRUSR | stat.S_IWUSR)
                limit.extend(each.size / MIN_DISK_RATE)
                await asyncio.to_thread(_sync_file, place)
                limit.extend()
                progress.finish_file(each.size)
            for each in reversed(entries):
                if each.is_folder:
                    folder = whole.joinpath(*each.parts)
                    folder.chmod(each.mode & 0o777 | stat.S_IRWXU)
                    await asyncio.to_thread(_sync_folder, folder)
            if entries[0].is_folder:
                whole.rename(path)
            else:
                whole.replace(path)
            await asyncio.to_thread(_sync_folder, path.parent)
        finally:
            shutil.rmtree(holder, ignore_errors=True)
    return _make_result(str(path), entries)


def _sync_file(path: Path) -> None:
    """Flush a local file to the disk, before the file is renamed."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _sync_folder(folder: Path) -> None:
    """Flush a local folder's list of entries to the disk, if this is supported and permitted."""
    with suppress(OSError):
        _sync_file(folder)


def _local_target(path: Path, name: str, is_folder: bool) -> Path:
    if is_dir(path) or str(path) in ("", "."):
        path = path / name
    if not is_dir(path.parent):
        raise UsageError(f"folder {sanitize_line(str(path.parent))} does not exist on this machine")
    if os.path.lexists(path):
        _check_not_taken(str(path), stat.S_IFMT(path.lstat().st_mode), is_folder, "on this machine")
    return path


def _local_entries(source: Path) -> list[_CopyEntry]:
    found: list[_CopyEntry] = []
    if (state := find_state_folder(source)) is not None:
        raise UsageError(
            f"{sanitize_line(str(source))} cannot be copied: {sanitize_line(str(state))} is a state folder of "
            "skyward, which contains keys"
        )

    def look(path: Path, parts: tuple[str, ...]) -> None:
        try:
            facts = path.lstat()
            names = sorted(each.name for each in path.iterdir()) if stat.S_ISDIR(facts.st_mode) else []
        except OSError as error:
            raise UsageError(f"{sanitize_line(str(path))} cannot be copied: {error.strerror}") from error
        _check_kind(str(path), facts.st_mode, parts)
        is_folder = stat.S_ISDIR(facts.st_mode)
        if is_folder and is_state_folder(str(path)):
            return  # skip a state folder, because it is never sent
        found.append(_CopyEntry(parts, is_folder, 0 if is_folder else facts.st_size, facts.st_mode))
        for name in names:
            look(path / name, (*parts, name))

    look(source, ())
    return found


async def _remote_entries(
    sftp: Any, path: str, parts: tuple[str, ...], limit: _AnswerLimit
) -> AsyncIterator[_CopyEntry]:
    limit.extend()
    facts = await sftp.lstat(path)
    mode = facts.permissions or 0
    _check_kind(path, mode, parts)
    is_folder = stat.S_ISDIR(mode)
    yield _CopyEntry(parts, is_folder, 0 if is_folder else facts.size or 0, mode)
    if not is_folder:
        return
    names = list[str]()
    async for each in _list_names(sftp, path):
        limit.extend()
        names.append(each)
    for name in sorted(names):
        async for entry in _remote_entries(sftp, str(PurePosixPath(path, name)), (*parts, name), limit):
            yield entry


async def _list_names(sftp: Any, path: str) -> AsyncIterator[str]:
    async for each in sftp.scandir(path):
        name = str(each.filename)
        if name in (".", ".."):
            continue
        if not name or "/" in name or "\0" in name:
            raise PoolError(
                f"the node lists {sanitize_line(name)!r} in {sanitize_line(path)}, which is not a file name"
            )
        yield name


def _check_kind(path: str, mode: int, parts: tuple[str, ...]) -> None:
    if len(parts) > MAX_DEPTH:
        raise UsageError(f"{sanitize_line(path)} is nested more than {MAX_DEPTH} folders deep")
    if stat.S_ISLNK(mode):
        raise UsageError(f"{sanitize_line(path)} is a link. Copy its target instead")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UsageError(f"{sanitize_line(path)} is neither a file nor a folder")


def _check_not_taken(path: str, kind: int, is_folder: bool, where: str) -> None:
    """Check that nothing exists at the target of a copy. A file may replace a file."""
    if is_folder or not stat.S_ISREG(kind):
        what = "a link" if stat.S_ISLNK(kind) else "another file or folder"
        raise UsageError(f"{sanitize_line(path)} already exists {where} as {what}. Remove it, or give another name")


def _partial_path(path: str) -> str:
    """Return an unpredictable name for the private folder of an unfinished copy."""
    whole = PurePosixPath(path)
    return str(whole.with_name(f".{whole.name[:200]}.{secrets.token_hex(8)}.part"))


def _make_result(path: str, entries: Sequence[_CopyEntry]) -> CopyResult:
    files = [each for each in entries if not each.is_folder]
    return CopyResult(path, len(files), sum(each.size for each in files))


class _Progress:
    """Sum of the copied bytes of all files, reported to the caller."""

    def __init__(self, far: ProgressCallback, total: int, limit: _AnswerLimit) -> None:
        self._far, self._total, self._done, self._limit = far, total, 0, limit

    def on_file_progress(self, _source: bytes, _target: bytes, done: int, _size: int) -> None:
        """Report the progress on the current file, and extend the deadline for the node's answer."""
        self._limit.extend()
        self._far(self._done + done, self._total)

    def finish_file(self, size: int) -> None:
        self._done += size


class _AnswerLimit:
    """Deadline for the node's next answer, measured from its last answer."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self.answered = False

    def extend(self, more: float = 0.0) -> None:
        """Extend the deadline after an answer of the node.

        Args:
            more: Seconds to add to the usual time limit of an answer.
        """
        self.answered = True
        self._timeout.reschedule(asyncio.get_running_loop().time() + answer_timeout() + more)


@asynccontextmanager
async def _sftp(target: Any) -> AsyncIterator[tuple[Any, _AnswerLimit]]:
    link = await connect(target)
    try:
        try:
            async with asyncio.timeout(answer_timeout()) as timeout:
                limit = _AnswerLimit(timeout)
                # Do not close the SFTP session, because this would wait for the node without limit. Closing the
                # connection ends it.
                sftp = await link.ssh.start_sftp_client(path_errors="surrogateescape")
                limit.extend()
                yield sftp, limit
        except TimeoutError as error:
            if limit.answered:
                raise stalled_host_error(target.host, answer_timeout(), "a copy") from error
            raise silent_host_error(target.host, answer_timeout()) from error
        except asyncssh.SFTPError as error:
            raise PoolError(f"{target.host} rejected the copy: {sanitize_line(error.reason)}") from error
        except asyncssh.ChannelOpenError as error:
            raise PoolError(
                f"{target.host} does not support SFTP, which copies need: {sanitize_line(str(error))}"
            ) from error
        except (asyncssh.Error, OSError) as error:
            raise PoolError(f"the copy was interrupted: {sanitize_line(str(error))}") from error
        except SkywardError:
            raise
        except Exception as error:  # asyncssh may raise anything if the node sends invalid data
            raise PoolError(f"the copy was interrupted: {describe_error(error)}") from error
    finally:
        await link.close()
