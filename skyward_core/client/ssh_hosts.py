"""SSH hosts and their groups; copying files."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import shutil
import stat
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from skyward_core import providers
from skyward_core.model.errors import PoolError, SkywardError, UsageError, error_message
from skyward_core.model.machines import Check
from skyward_core.model.machines import GpuUse as GpuUse
from skyward_core.providers.provider import ReachedOverSSH
from skyward_core.providers.ssh.free_gpu_choice import HostGpuUsage as HostGpuUsage
from skyward_core.providers.ssh.provider import SSH
from skyward_core.store import settings_editing
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow
from skyward_core.store.state_folder import find_state_folder, is_state_folder
from skyward_core.transport.ssh import connection, ssh_config_export
from skyward_core.transport.ssh import known_hosts as host_keys
from skyward_core.transport.ssh.asyncssh_import import asyncssh
from skyward_core.transport.ssh.connection import (
    answer_timeout,
    describe_error,
    silent_host_error,
    stalled_host_error,
)
from skyward_core.transport.ssh.connection import connect as open_connection
from skyward_core.transport.ssh.effective_ssh_config import resolve
from skyward_core.transport.ssh.host_address import Target
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.util.user_files import is_dir, resolve_path


@dataclass(frozen=True, slots=True)
class PresentedHostKey:
    """The key that a host shows now, beside what the known_hosts files say; ``host``: as it was asked for."""

    host: str
    key: host_keys.ServerKey
    known: host_keys.KnownKeys

    def is_known(self) -> bool:
        """Whether it is believed already; where not, it may be.

        Raises:
            HostKeyError: it is revoked, or another of its kind is known, so that this one may be a stranger's.
        """
        if self.known.is_revoked(self.key.key):
            raise host_keys.refused_key_error(self.host, "its key is revoked")
        if self.known.verdict(self.key.key) == "known":
            return True
        if any(host_keys.key_type(other) == self.key.key_type for other in self.known.trusted):
            raise host_keys.changed_key_error(self.key, self.known)
        return False

    def accept(self) -> Path:
        """Write it down as known; returns the file.

        Raises:
            HostKeyError: the file cannot be written.
        """
        return host_keys.accept_key(self.key)


def fetch_host_key(host: str, known_hosts: str | None = None) -> PresentedHostKey:
    """Ask a host for its key; nothing else is sent to it.

    Args:
        host: as the person calls it, ``[user@]name[:port]``.
        known_hosts: the file to go by; None for those of the person's SSH configuration and our own.

    Raises:
        HostKeyError: the key of a jump host is not known, or a file cannot be read.
        Unreachable: the host cannot be reached.
        PoolError: it showed no key.
        UsageError: the SSH configuration cannot be used.
    """
    return asyncio.run(_fetch_host_key(host, known_hosts))


async def _fetch_host_key(host: str, known_hosts: str | None) -> PresentedHostKey:
    target = Target("", known_hosts=known_hosts).with_host(host)
    key = await connection.fetch_host_key(target)
    route = await resolve(target)
    return PresentedHostKey(host, key, host_keys.look_up(route.known_hosts, key.name, key.port, route.revoked))


def ssh_config(ledger: Ledger, pool: PoolRow, node: int) -> Path:
    """Write down how to log in to the nodes of a pool that is up, for ``ssh -F FILE POOL-NODE``.

    Raises:
        UsageError: it has no such node, or is not on hosts reached over SSH.
        OSError: the file cannot be written.
    """
    return _write_ssh_config(ledger, pool, node, pool.name)


def _write_ssh_config(ledger: Ledger, pool: PoolRow, node: int, alias: str) -> Path:
    machines = ledger.machines(pool.token)
    provider = providers.provider_from_json(pool.provider)
    if not isinstance(provider, ReachedOverSSH):
        raise UsageError(f"pool {pool.name} is on {provider.name}: there is no host to log in to")
    if node >= len(machines):
        nodes = f"{len(machines)} node{'' if len(machines) == 1 else 's'}"
        raise UsageError(f"pool {pool.name} has {nodes}, 0 to {len(machines) - 1}; not {node}")
    targets = [provider.target(machine.address) for machine in machines]
    return asyncio.run(ssh_config_export.write(alias, targets))


def copy_command(ledger: Ledger, pool: PoolRow, node: int, folder: str) -> str:
    """What a person types to have a folder of a node, also of a pool that has ended.

    Raises:
        UsageError: as :func:`ssh_config`.
        OSError: as there.
    """
    file = _write_ssh_config(ledger, pool, node, pool.key)  # its name may be another pool's by now
    target = f"outputs/{pool.key}"
    words = ["scp", "-r", "-F", str(file), f"{pool.key}-{node}:{folder}", f"{target}/n{node}"]
    return f"mkdir -p {shlex.quote(target)} && {shlex.join(words)}"


def include_ssh_config() -> str:
    """Have the person's own ``~/.ssh/config`` include what :func:`ssh_config` writes; the line added, or ""."""
    return ssh_config_export.include_line() if ssh_config_export.add_include_line() else ""


LONGEST = 60  # characters of a group's name
MARKS = set("@,\"'\\=[]#")


@dataclass(frozen=True, slots=True)
class HostGroup:
    """Hosts by one name.

    Attributes:
        file: the ``skyward.toml`` that it stands in.
    """

    name: str
    file: Path
    hosts: Sequence[str]

    def add_host(self, host: str) -> None:
        """Have one more host in it.

        Raises:
            UsageError: that is none, or is in it; or the file cannot be used or changed.
            OSError: it cannot be written; it is as it was.
        """
        settings_editing.save_host_groups(self.file, self.name, [*self.hosts, self._check_new_host(host)])

    def replace_host(self, host: str, other: str) -> None:
        """Have another host in a host's place; raises as :meth:`added`."""
        new = self._check_new_host(other)
        settings_editing.save_host_groups(self.file, self.name, [new if each == host else each for each in self.hosts])

    def remove_host(self, host: str) -> None:
        """Have it without a host; raises as :meth:`added`, and where it would be empty."""
        left = [each for each in self.hosts if each != host]
        if not left:
            raise UsageError(f"{sanitize_line(host)} is the last host of {sanitize_line(self.name)}: remove the group")
        settings_editing.save_host_groups(self.file, self.name, left)

    def rename(self, name: str) -> None:
        """Call it otherwise; raises as :meth:`added`."""
        settings_editing.rename_group(self.file, self.name, _check_group_name(name))

    def delete(self) -> None:
        """Take it out of its file; raises as :meth:`added`."""
        settings_editing.remove_group(self.file, self.name)

    def _check_new_host(self, host: str) -> str:
        if (host := _check_host(host)) in self.hosts:
            raise UsageError(f"{sanitize_line(host)} is in {sanitize_line(self.name)} already")
        return host


def groups() -> list[HostGroup]:
    """All of them, those of the working folder last.

    Raises:
        UsageError: a ``skyward.toml`` cannot be used.
    """
    return [HostGroup(name, path, hosts) for name, (path, hosts) in settings_editing.read_host_groups().items()]


def new_group(name: str, host: str, file: Path | None = None) -> None:
    """Begin a group with a host.

    Args:
        file: where; None for the one of the state folder, which holds everywhere.

    Raises:
        UsageError: there is one of that name, or there can be none; or the file cannot be used or changed.
        OSError: it cannot be written; it is as it was.
    """
    if (name := _check_group_name(name)) in settings_editing.read_host_groups():
        raise UsageError(f"there is a group {name} already")
    settings_editing.save_host_groups(file or settings_editing.user_settings_file(), name, [_check_host(host)])


def _check_group_name(name: str) -> str:
    name = name.strip()
    if not name or len(name) > LONGEST or not name.isprintable() or " " in name or MARKS & set(name):
        raise UsageError(
            f"a group's name has 1 to {LONGEST} letters that can be seen, no space, and none of @ , \" ' \\ = [ ] #"
        )
    return name


def _check_host(host: str) -> str:
    host = host.strip()
    if not host.isprintable() or not host or " " in host or "," in host or host.startswith("@"):
        raise UsageError(f"{sanitize_line(host) or 'nothing'} is no host: write gpu1, me@gpu1:2222 or an address")
    Target("").with_host(host)
    return host


def resolve_hosts(names: Sequence[str], known: Iterable[HostGroup]) -> list[str]:
    """The hosts of some groups, and those that are named themselves, each once.

    Args:
        names: of groups, with or without ``@``, or of hosts; none for all groups.

    Raises:
        UsageError: there is no such group, or are none at all.
    """
    by_name = {group.name: group.hosts for group in known}
    found: list[str] = []
    for name in names or by_name:
        group = name.removeprefix("@")
        if name.startswith("@") and group not in by_name:
            raise UsageError(f"There is no group {sanitize_line(group)!r} under [hosts] in skyward.toml.")
        found += by_name.get(group, [name])
    if not found:
        raise UsageError("there are no groups under [hosts] in skyward.toml: name hosts, or write some there")
    return list(dict.fromkeys(found))


def list_gpu_use(hosts: Sequence[str], said: Callable[[HostGpuUsage], None] = lambda seen: None) -> list[HostGpuUsage]:
    """Each host's GPUs and who uses them, in the order of the hosts; nothing is left on them.

    Waits for all: for a host that does not answer some seconds.

    Args:
        said: hears each as soon as it is known, in the thread that called; also of one whose name is no host's.
    """

    async def one(host: str) -> HostGpuUsage:
        try:
            seen = await SSH([host]).look_at(host)
        except UsageError as error:
            seen = HostGpuUsage(host, (), error_message(error).rstrip("."), False)
        said(seen)
        return seen

    async def every() -> list[HostGpuUsage]:
        return await asyncio.gather(*map(one, hosts))

    return asyncio.run(every())


def check(host: str) -> list[Check]:
    """What works on a host, in words: reachable, its key, Python, disk, GPUs, address, clock.

    Raises:
        UsageError: that is no host's name.
    """
    provider = SSH([host])
    return asyncio.run(provider.check())


def as_json(seen: HostGpuUsage) -> dict[str, Any]:
    """A look for programs: bytes, percent, and of each GPU its state in words."""
    return {
        "host": seen.host,
        "reached": seen.reached,
        "why": seen.why,
        "free": sum(gpu.is_free for gpu in seen.gpus),
        "gpus": [
            {
                "number": gpu.number,
                "id": gpu.id,
                "model": gpu.model,
                "memory_used": gpu.used,
                "memory_total": gpu.total,
                "utilization": gpu.util,
                "free": gpu.is_free,
                "state": gpu.state,
                "taken_by": gpu.holder or None,
                "processes": [
                    {
                        "pid": each.pid,
                        "user": each.user or None,
                        "command": each.command or None,
                        "memory": each.memory,
                        "computes": each.computes,
                    }
                    for each in gpu.processes
                ],
            }
            for gpu in seen.gpus
        ],
    }


ProgressCallback = Callable[[int, int], None]  # far(bytes done, bytes in all)
MAX_DEPTH = 64  # folders within folders
MIN_DISK_RATE = 1e6  # bytes that a node's disk takes in a second, at least


@dataclass(frozen=True, slots=True)
class CopyResult:
    """What was copied: where it is now, how many files, and their bytes."""

    target: str
    files: int
    size: int


@dataclass(frozen=True, slots=True)
class _CopyEntry:
    """A file or folder below what is copied; ``parts``: its place there."""

    parts: tuple[str, ...]
    is_folder: bool
    size: int
    mode: int


def copy_to_node(
    ledger: Ledger, pool: PoolRow, node: int, source: Path, target: str, far: ProgressCallback
) -> CopyResult:
    """Copy a file or folder of this machine to a node.

    Args:
        node: its index.
        target: a path there, from the login's home; a folder that is there gets it inside. A file that is there is
            replaced, a folder never.
        far: told now and then how far it is.

    Raises:
        UsageError: the pool is not on hosts reached over SSH; there is no such file; it is, or holds, what is
            neither file nor folder; ``target`` leads up by ``..``, or is a folder or a link that is there already.
        PoolError: the node refuses, or the connection was lost.
    """
    entries = list(_local_entries(source))
    return asyncio.run(_upload(_ssh_target(ledger, pool, node), source, entries, target, far))


def copy_from_node(
    ledger: Ledger, pool: PoolRow, node: int, source: str, target: Path, far: ProgressCallback
) -> CopyResult:
    """Copy a file or folder of a node to this machine; see :func:`copy_to_node`."""
    return asyncio.run(_download(_ssh_target(ledger, pool, node), source, target, far))


def _ssh_target(ledger: Ledger, pool: PoolRow, node: int) -> Any:
    machines = ledger.machines(pool.token)
    provider = providers.provider_from_json(pool.provider)
    if not isinstance(provider, ReachedOverSSH):
        raise UsageError(f"pool {pool.name} is on {provider.name}: its files are here already, so cp copies them")
    return provider.target(machines[node].address)


# -- there --------------------------------------------------------------------------------------------------


async def _upload(
    target: Any, source: Path, entries: Sequence[_CopyEntry], wanted: str, far: ProgressCallback
) -> CopyResult:
    async with _sftp(target) as (sftp, limit):
        path = await _remote_target(sftp, wanted, resolve_path(source).name, entries[0].is_folder)
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
    """Have a file of the node on its disk before it gets its name: one that loses power then has the old or the new."""
    async with sftp.open(place, "rb") as file:
        with suppress(asyncssh.SFTPOpUnsupported):  # not every server knows of it
            await file.fsync()


async def _remote_target(sftp: Any, wanted: str, name: str, is_folder: bool) -> str:
    path = _check_remote_path(wanted) or "."
    if wanted.endswith("/") or await sftp.isdir(path):
        path = str(PurePosixPath(path, name))
    parent = str(PurePosixPath(path).parent)
    if not await sftp.isdir(parent):
        raise UsageError(f"there is no folder {sanitize_line(parent)} on the node")
    if await sftp.lexists(path):
        found = await sftp.lstat(path)
        _check_not_taken(path, stat.S_IFMT(found.permissions or 0), is_folder, "on the node")
    return path


def _check_remote_path(path: str) -> str:
    """A path on a node, from the login's home."""
    path = "" if path == "~" else path.removeprefix("~/")
    if ".." in PurePosixPath(path).parts:
        raise UsageError(f"{sanitize_line(path)}: write the path without ..")
    return path


# -- here ---------------------------------------------------------------------------------------------------


async def _download(target: Any, wanted: str, own: Path, far: ProgressCallback) -> CopyResult:
    async with _sftp(target) as (sftp, limit):
        source = await sftp.realpath(str(PurePosixPath(_check_remote_path(wanted) or ".").parent))
        name = PurePosixPath(_check_remote_path(wanted)).name
        if not name:
            raise UsageError(f"{sanitize_line(wanted) or 'POOL:PATH'}: name a file or a folder on the node")
        source = str(PurePosixPath(source, name))
        try:
            entries = [each async for each in _remote_entries(sftp, source, (), limit)]
        except asyncssh.SFTPNoSuchFile as error:
            raise UsageError(f"there is no {sanitize_line(source)} on the node") from error
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
                there = str(PurePosixPath(source, *each.parts))
                await sftp.get(
                    there,
                    os.fsencode(place),
                    follow_symlinks=False,
                    progress_handler=progress.on_file_progress,
                )
                if place.is_symlink() or not place.is_file():
                    raise PoolError(f"{sanitize_line(there)} became a link, or a folder, while it was copied")
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
    """Have a file on the disk, before it gets its name."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, where its file system knows how to, and we may read it."""
    with suppress(OSError):
        _sync_file(folder)


def _local_target(path: Path, name: str, is_folder: bool) -> Path:
    if is_dir(path) or str(path) in ("", "."):
        path = path / name
    if not is_dir(path.parent):
        raise UsageError(f"there is no folder {sanitize_line(str(path.parent))} here")
    if os.path.lexists(path):
        _check_not_taken(str(path), stat.S_IFMT(path.lstat().st_mode), is_folder, "here")
    return path


def _local_entries(source: Path) -> list[_CopyEntry]:
    found: list[_CopyEntry] = []
    if (state := find_state_folder(source)) is not None:
        raise UsageError(
            f"{sanitize_line(str(source))} is not copied: {sanitize_line(str(state))} is a state folder of "
            "skyward, which holds keys"
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
            return  # never sent
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
                f"the node lists {sanitize_line(name)!r} in {sanitize_line(path)}, which is no name of a file"
            )
        yield name


def _check_kind(path: str, mode: int, parts: tuple[str, ...]) -> None:
    if len(parts) > MAX_DEPTH:
        raise UsageError(f"{sanitize_line(path)} lies more than {MAX_DEPTH} folders deep")
    if stat.S_ISLNK(mode):
        raise UsageError(f"{sanitize_line(path)} is a link, and links are not copied: copy what it leads to")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UsageError(f"{sanitize_line(path)} is neither a file nor a folder")


def _check_not_taken(path: str, kind: int, is_folder: bool, where: str) -> None:
    """A file may take the place of a file, and nothing else of anything."""
    if is_folder or not stat.S_ISREG(kind):
        what = "a link" if stat.S_ISLNK(kind) else "something of that name"
        raise UsageError(f"there is {what} already {where}: {sanitize_line(path)}; remove it, or give another name")


def _partial_path(path: str) -> str:
    """Of what is under way: a folder beside its place, nobody else's, by a name that nobody can foresee."""
    whole = PurePosixPath(path)
    return str(whole.with_name(f".{whole.name[:200]}.{secrets.token_hex(8)}.part"))


def _make_result(path: str, entries: Sequence[_CopyEntry]) -> CopyResult:
    files = [each for each in entries if not each.is_folder]
    return CopyResult(path, len(files), sum(each.size for each in files))


class _Progress:
    """How far all files are together."""

    def __init__(self, far: ProgressCallback, total: int, limit: _AnswerLimit) -> None:
        self._far, self._total, self._done, self._limit = far, total, 0, limit

    def on_file_progress(self, _source: bytes, _target: bytes, done: int, _size: int) -> None:
        """asyncssh's word on the file under way."""
        self._limit.extend()
        self._far(self._done + done, self._total)

    def finish_file(self, size: int) -> None:
        self._done += size


class _AnswerLimit:
    """Limit of the time in which the node sends nothing: the answer time-out, from its last answer on."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self.answered = False

    def extend(self, more: float = 0.0) -> None:
        """Extend the limit, because the node has answered.

        Args:
            more: Seconds that the next answer may take beyond the answer time-out.
        """
        self.answered = True
        self._timeout.reschedule(asyncio.get_running_loop().time() + answer_timeout() + more)


@asynccontextmanager
async def _sftp(target: Any) -> AsyncIterator[tuple[Any, _AnswerLimit]]:
    link = await open_connection(target)
    try:
        try:
            async with asyncio.timeout(answer_timeout()) as timeout:
                limit = _AnswerLimit(timeout)
                # Its end is that of the connection: to leave it in order may take as long as the node likes.
                sftp = await link.ssh.start_sftp_client(path_errors="surrogateescape")
                limit.extend()
                yield sftp, limit
        except TimeoutError as error:
            seconds = answer_timeout()
            raise (
                stalled_host_error(target.host, seconds, "a copy")
                if limit.answered
                else silent_host_error(target.host, seconds)
            ) from error
        except asyncssh.SFTPError as error:
            raise PoolError(f"{target.host} refuses: {sanitize_line(error.reason)}") from error
        except asyncssh.ChannelOpenError as error:
            raise PoolError(f"{target.host} serves no SFTP, which copies go by: {sanitize_line(str(error))}") from error
        except (asyncssh.Error, OSError) as error:
            raise PoolError(f"the copy was broken off: {sanitize_line(str(error))}") from error
        except SkywardError:
            raise
        except Exception as error:  # see failures.not_reached
            raise PoolError(f"the copy was broken off: {describe_error(error)}") from error
    finally:
        await link.close()
