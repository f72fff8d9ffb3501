"""State folder of the user: its place, its privacy, and the folders in it.

``SKYWARD_HOME`` relocates the whole state folder (ledger, pool folders, settings), for tests and separate environments.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from skyward_core.model.errors import UsageError
from skyward_core.protocol.node_paths import STATE_FILE, NodePaths, pools_folder
from skyward_core.util.safe_file_access import expand_user, resolve_path

# maximum bytes of a base folder's path, so that sockets below it fit into the 104 bytes that some systems allow
MAX_SOCKET_BASE_BYTES = 55

ENVIRONMENTS_FOLDER = "environments"  # name of the folder with the environments of images on this machine
SETTINGS_FILE = "skyward.toml"
PRUNED_FILE = "pruned"  # name of a marker file, whose modification time is the time of the last pruning
# All names of files and folders that this library creates in the state folder.
OWN_NAMES = (STATE_FILE, ENVIRONMENTS_FOLDER, PRUNED_FILE, "ledger.db*", "pools", "local", "aws", "slurm", "tasks",
        "debug", "known_hosts*",
        "ssh_config*", "skyward-*", "empty", SETTINGS_FILE, "*.json", "*.json.draft")  # fmt: skip
PRUNE_INTERVAL = 86400.0  # seconds between two deletions of old files


def state_home() -> Path:
    """Return the folder of all durable state. It is created, private to the user, on first use.

    Raises:
        UsageError: If the folder cannot be created or is not private.
    """
    override = os.environ.get("SKYWARD_HOME")
    if override:
        path = expand_user(override).absolute()
    else:
        import platformdirs

        path = Path(platformdirs.user_state_dir("skyward", appauthor=False))
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if trouble := _make_private(path, named=bool(override)):
            raise UsageError(
                f"{trouble}. Other users could change files that skyward trusts. Run chmod go-w on it, or set "
                "SKYWARD_HOME to a private folder."
            )
        if not (mark := path / STATE_FILE).exists():
            # If a full disk prevents the marker file, the ledger file identifies the state folder.
            with suppress(OSError):
                mark.touch()
    except OSError as error:
        raise UsageError(
            f"Cannot create the private folder {path}: {error}. Set SKYWARD_HOME to another folder."
        ) from error
    return path


def _make_private(path: Path, *, named: bool) -> str:
    """Make the state folder accessible to its user only, unless it also contains other files. Return the remaining
    problem, or "".

    Args:
        path: The folder.
        named: Whether ``SKYWARD_HOME`` names the folder.
    """
    found = path.stat()
    if found.st_uid not in (0, os.getuid()):
        return f"{path} belongs to another user"
    if not found.st_mode & 0o077:
        return ""
    # Do not change a folder with the sticky bit, such as /tmp: it belongs to all users, even if it is empty.
    if not named or (not found.st_mode & stat.S_ISVTX and all(map(_has_own_name, path.iterdir()))):
        path.chmod(0o700)
        return ""
    # Imported late, because most state folders are private already.
    from skyward_core.node.bootstrap.host_inspection import is_writable_by_others

    return f"{path} is writable by other users" if is_writable_by_others(found) else ""


def is_state_folder(folder: str) -> bool:
    """Check whether a folder is a state folder of this program, created by this process, another process, or on a
    host.
    """
    # os.path.exists, because the check runs for many folders and pathlib takes five times as long.
    exists_path = os.path.exists
    if exists_path(f"{folder}/{STATE_FILE}"):
        return True
    inside = pools_folder(folder)
    if not exists_path(inside):
        return False
    try:  # also look for other files, because earlier releases and hosts do not create the marker file
        with os.scandir(inside) as folders:
            return exists_path(f"{folder}/ledger.db") or any(exists_path(NodePaths(each.path).lock) for each in folders)
    except OSError:
        return False


def find_state_folder(path: Path) -> Path | None:
    """Return the state folder to which a path belongs; None if it belongs to none.

    Other files that a user stores in such a folder do not belong to it.
    """
    real = resolve_path(path)
    for folder in (real, *real.parents):
        if is_state_folder(str(folder)) and (folder == real or _has_own_name(Path(real.relative_to(folder).parts[0]))):
            return folder
    return None


def _has_own_name(path: Path) -> bool:
    return any(map(path.match, OWN_NAMES))


def prune_is_due() -> bool:
    """Check whether old files must be pruned now. A new home counts as pruned.

    This check does not import ``store.old_pool_environment_and_clone_pruning``.
    """
    mark = state_home() / PRUNED_FILE
    try:
        return time.time() - mark.stat().st_mtime > PRUNE_INTERVAL
    except FileNotFoundError:
        with suppress(OSError):
            mark.touch()  # create the marker now, because a new state folder has no old files to delete
        return False


def pool_path(pool: str) -> Path:
    """Return the folder of a pool's logs, results and events. It may not exist."""
    return state_home() / "pools" / pool


def ensure_pool_folder(pool: str) -> Path:
    """Return the folder of a pool, and create it if necessary."""
    path = pool_path(pool)
    path.parent.mkdir(exist_ok=True, mode=0o700)
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


LOCAL_FOLDER = "local"  # subfolder of the state folder with a folder for each local pool
ABANDONED_SECONDS = 60.0  # seconds without changes after which an empty folder of a local pool counts as abandoned


def remove_abandoned_folders() -> None:
    """Delete the empty folders of local pools, which killed clients left behind, and the folders of their sockets."""
    for root in (state_home() / LOCAL_FOLDER).glob("*.*"):
        with suppress(OSError):  # rmdir fails if the folder is not empty, or another process has removed it
            if time.time() - root.stat().st_mtime > ABANDONED_SECONDS:
                root.rmdir()
                sockets = ensure_socket_folder(root)
                for each in sockets.iterdir():
                    each.unlink()
                sockets.rmdir()


def ensure_socket_folder(owner: Path) -> Path:
    """Create a private folder with a short path for the Unix sockets of ``owner``, and return it.

    The path of a socket may have about 100 bytes, which folders deep in a home often exceed.

    Raises:
        UsageError: If every candidate belongs to another user or is accessible to others.
    """
    from skyward_core.node.bootstrap.host_inspection import distrust_reason

    wrong: list[str] = []
    # Try several base folders: a name in /tmp may belong to another user, and the home may have a long path or be on a
    # network disk.
    for base in (*_socket_bases(), str(state_home())):
        if len(os.fsencode(base)) > MAX_SOCKET_BASE_BYTES or not os.access(base, os.W_OK):
            continue
        # Skip a base folder in which other users could rename the new folder. In /tmp the sticky bit prevents this.
        if distrust_reason(f"{base}/."):
            continue
        root = Path(base) / f"skyward-{os.getuid()}"
        if not _is_private(root):
            wrong.append(str(root))
            continue
        # Imported late, because hashlib loads OpenSSL, which would delay the first screen of the app.
        from hashlib import blake2s

        path = root / blake2s(os.fsencode(owner), digest_size=8).hexdigest()
        path.mkdir(mode=0o700, exist_ok=True)
        return path
    raise UsageError(
        f"{' and '.join(wrong)} must be a folder that only you can enter. Remove it, or set XDG_RUNTIME_DIR."
        if wrong
        else "No private folder for sockets found. Set XDG_RUNTIME_DIR to a private folder with a short path."
    )


def _socket_bases() -> list[str]:
    import tempfile  # imported late, because most connections need no socket folder

    return [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]


def _is_private(root: Path) -> bool:
    """Check whether a folder is private to this user. A missing folder is created."""
    try:
        root.mkdir(mode=0o700)
    except FileExistsError:
        found = root.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return True
