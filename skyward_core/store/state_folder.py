"""The state folder of a user; the folder that ranks work in.

``SKYWARD_HOME`` overrides every location (ledger, pool and run folders, settings), for tests and for keeping
several worlds apart.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import SpecError, UsageError
from skyward_core.protocol.node_paths import STATE_FILE, NodePaths, pools_folder
from skyward_core.util.user_files import exists, expand_user, is_dir, resolve_path

if TYPE_CHECKING:
    from skyward_core.store.hosts_and_pools_tables import Settings


MAX_SOCKET_BASE_BYTES = (
    55  # bytes of a folder's path below which a socket of ours fits into the 104 that some systems allow
)

ENVIRONMENTS_FOLDER = "environments"  # a folder of the home: what images asked for on this machine
SETTINGS_FILE = "skyward.toml"
PRUNED_FILE = "pruned"  # a file of the home, as old as the last time that room was made in it
# What else there is in the home.
OWN_NAMES = (STATE_FILE, ENVIRONMENTS_FOLDER, PRUNED_FILE, "ledger.db*", "pools", "local", "aws", "slurm", "tasks",
        "debug", "known_hosts*",
        "ssh_config*", "skyward-*", "empty", SETTINGS_FILE, "*.json", "*.json.draft")  # fmt: skip
PRUNE_INTERVAL = 86400.0  # seconds between two such times

provider_override: str | None = None
"""Name of a provider that the pools of this process use in place of the one they name."""
provider_settings: Mapping[str, str] = {}
"""What a person wrote for its settings."""
nodes_override: int | str | None = None
"""How many machines the pools of this process have in place of as many as they say."""
OVERRIDE_VARIABLE = "SKYWARD_OVERRIDE"  # a variable by which these go to processes that the script starts


def set_override(provider: str | None, settings: Mapping[str, str], nodes: int | str | None) -> None:
    """Have the pools of this process and of all that it starts be otherwise than they say."""
    global provider_override, provider_settings, nodes_override
    provider_override, provider_settings, nodes_override = provider, settings, nodes
    os.environ[OVERRIDE_VARIABLE] = json.dumps([provider, dict(settings), nodes])


if OVERRIDE_VARIABLE in os.environ:  # written by the process that has started this one
    provider_override, provider_settings, nodes_override = json.loads(os.environ[OVERRIDE_VARIABLE])


def state_home() -> Path:
    """The folder of all durable state; made, private to the person, when first asked for.

    Raises:
        UsageError: it cannot be made.
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
                f"{trouble}, and what is there would be believed and run: close it, or set SKYWARD_HOME to a folder "
                "of your own"
            )
        if not (mark := path / STATE_FILE).exists():
            with suppress(OSError):  # a full disk; the ledger tells as well what the folder is
                mark.touch()
    except OSError as error:
        raise UsageError(
            f"cannot make the private folder {path}: {error}; set SKYWARD_HOME to another folder"
        ) from error
    return path


def _make_private(path: Path, *, named: bool) -> str:
    """Close the home to others, unless the person keeps other things there as well; gives why it is none, or "".

    Args:
        named: by ``SKYWARD_HOME``.
    """
    found = path.stat()
    if found.st_uid not in (0, os.getuid()):
        return f"{path} belongs to somebody else"
    if not found.st_mode & 0o077:
        return ""
    # An empty /tmp is everybody's.
    if not named or (not found.st_mode & stat.S_ISVTX and all(map(_has_own_name, path.iterdir()))):
        path.chmod(0o700)
        return ""
    from skyward_core.node.bootstrap.host_inspection import (
        is_writable_by_others,  # late: most homes are closed
    )

    return f"{path} can be written by others" if is_writable_by_others(found) else ""


def is_state_folder(folder: str) -> bool:
    """Check whether a folder is a state folder of this program: this process's, another one's, or a host's."""
    there = os.path.exists  # a working folder has many folders, and pathlib takes five times as long
    if there(f"{folder}/{STATE_FILE}"):
        return True
    inside = pools_folder(folder)
    if not there(inside):
        return False
    try:  # earlier releases, and hosts, leave no mark
        with os.scandir(inside) as folders:
            return there(f"{folder}/ledger.db") or any(there(NodePaths(each.path).lock) for each in folders)
    except OSError:
        return False


def find_state_folder(path: Path) -> Path | None:
    """Return the state folder that a path is, or that it is a part of; None if it is not.

    Other files that a user keeps in such a folder are not a part of it.
    """
    real = resolve_path(path)
    for folder in (real, *real.parents):
        if is_state_folder(str(folder)) and (folder == real or _has_own_name(Path(real.relative_to(folder).parts[0]))):
            return folder
    return None


def _has_own_name(path: Path) -> bool:
    return any(map(path.match, OWN_NAMES))


def prune_is_due() -> bool:
    """Return whether old files are to be pruned now (``store.pruning``, which most starts need not load). A new home
    has no old files, and is marked as pruned."""
    mark = state_home() / PRUNED_FILE
    try:
        return time.time() - mark.stat().st_mtime > PRUNE_INTERVAL
    except FileNotFoundError:
        with suppress(OSError):
            mark.touch()  # a new home holds nothing old
        return False


def pool_path(pool: str) -> Path:
    """Where the client keeps a pool's logs, results and events; there may be none of them (any more)."""
    return state_home() / "pools" / pool


def ensure_pool_folder(pool: str) -> Path:
    """The same folder, made where it is not there."""
    path = pool_path(pool)
    path.parent.mkdir(exist_ok=True, mode=0o700)
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def ensure_socket_folder(owner: Path) -> Path:
    """A short, private folder for the Unix sockets that belong to ``owner``.

    A socket's path may hold about 100 bytes, which a folder deep in a home often exceeds.

    Raises:
        UsageError: wherever it could be something is there already that belongs to somebody else, or others may enter.
    """
    from skyward_core.node.bootstrap.host_inspection import distrust_reason

    wrong: list[str] = []
    # Others may have come first to /tmp; the home, which is ours alone, may be too deep, or on another machine's disk.
    for base in (*_socket_bases(), str(state_home())):
        if len(os.fsencode(base)) > MAX_SOCKET_BASE_BYTES or not os.access(base, os.W_OK):
            continue
        # Where others can rename what is ours is no place for it; nobody can in /tmp.
        if distrust_reason(f"{base}/."):
            continue
        root = Path(base) / f"skyward-{os.getuid()}"
        if not _is_private(root):
            wrong.append(str(root))
            continue
        from hashlib import blake2s  # OpenSSL comes with it, which the app's first paint need not wait for

        path = root / blake2s(os.fsencode(owner), digest_size=8).hexdigest()
        path.mkdir(mode=0o700, exist_ok=True)
        return path
    raise UsageError(
        f"{' and '.join(wrong)} must be a folder that only you can enter; remove it or set XDG_RUNTIME_DIR"
        if wrong
        else "there is no folder for sockets that only you can write; set XDG_RUNTIME_DIR to a short one"
    )


def _socket_bases() -> list[str]:
    import tempfile  # late, as all that a script can connect without

    return [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]


def _is_private(root: Path) -> bool:
    """Whether a folder, made where it is not there, is one that only we can enter."""
    try:
        root.mkdir(mode=0o700)
    except FileExistsError:
        found = root.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return True


def host_groups() -> dict[str, list[str]]:
    """Groups of hosts by name, of ``skyward.toml`` in the working folder and in :func:`home`; the former's come first.

    Raises:
        UsageError: a file cannot be read or used.
    """
    return {name: hosts for _, each in read_settings_files() for name, hosts in each.hosts.items()}


def pool_tables() -> tuple[dict[str, Any], dict[str, Any]]:
    """The tables ``pools`` and ``providers`` of ``skyward.toml`` in the working folder and in :func:`home`; of values
    that both have, the former's count.

    Raises:
        UsageError: a file cannot be read or used.
    """
    pools: dict[str, Any] = {}
    providers: dict[str, Any] = {}
    for _, each in read_settings_files():
        pools, providers = _merge_tables(pools, each.pools), _merge_tables(providers, each.providers)
    return pools, providers


def _merge_tables(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Tables with what lies over them, down to single values."""
    both = {
        key: _merge_tables(below[key], value)
        for key, value in above.items()
        if isinstance(below.get(key), dict) and isinstance(value, dict)
    }
    return below | above | both


def read_settings_files() -> Iterator[tuple[Path, Settings]]:
    """Yield the path and the content of each ``skyward.toml``, the weaker file first.

    Raises:
        UsageError: somebody else could have put it into the working folder: a group of hosts says whose machines are
            given the person's code.
    """
    own = state_home() / SETTINGS_FILE
    for path in (own, Path(SETTINGS_FILE)):
        if exists(path):
            from skyward_core.node.bootstrap.host_inspection import distrust_reason

            if path != own and (reason := distrust_reason(str(path.absolute()))):
                raise UsageError(
                    f"{path.absolute()} is not believed: {reason}. What you need of it goes to {own}; or work in a "
                    "folder of your own"
                )
            from skyward_core.store.hosts_and_pools_tables import read_settings_file

            yield path.absolute(), read_settings_file(path)


SYSTEM_FOLDERS = ("/bin", "/boot", "/dev", "/etc", "/lib", "/media", "/mnt", "/opt", "/proc", "/run", "/sbin", "/sys",
          "/tmp", "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/local/bin", "/usr/local/lib", "/var",
          "/var/tmp")  # fmt: skip
# As the tempfile module has it; to load that takes longer than the rest of this.
TEMPORARY_FOLDERS, TEMPORARY_VARIABLES = ("/tmp", "/var/tmp", "/usr/tmp"), ("TMPDIR", "TEMP", "TMP")


def current_folder() -> Path | None:
    """The current folder; None where somebody has removed it since."""
    try:
        return Path.cwd()
    except OSError:
        return None


def current_paths(name: str) -> list[Path]:
    """The file of that name there, by its whole path; none where that folder is gone."""
    return [] if (folder := current_folder()) is None else [folder / name]


def require_current_folder() -> Path:
    """The current folder.

    Raises:
        UsageError: somebody has removed it since.
    """
    if (folder := current_folder()) is None:
        name = f" ({os.environ['PWD']})" if os.environ.get("PWD") else ""
        raise UsageError(
            f"the folder that this was started in{name} is not there any more; start it again in one that is"
        )
    return folder


def resolve_workdir(folder: str | os.PathLike[str]) -> str:
    """Return the path of a working folder that the user named, from the current one or from a home (``~``).

    Raises:
        SpecError: It is not a folder.
    """
    path = expand_user(Path(folder))
    path = path if path.is_absolute() else require_current_folder() / path
    if not is_dir(path):
        raise SpecError(f"{path} is not a folder: name one that exists", "workdir")
    return str(path)


def choose_workdir(path: Path) -> str | None:
    """The folder that ranks of a script work in: the current one (None), or the script's own where it lies
    elsewhere; for ``Image.workdir``. No folder that is unfit, such as the person's home, is chosen over another."""
    at, folder = current_folder(), resolve_path(path).parent
    here = None if at is None else resolve_path(at)
    if unusable_reason(folder) or (here is not None and folder.is_relative_to(here) and not unusable_reason(here)):
        return None
    return str(folder)


def main_script() -> Path | None:
    """The script that runs this process; None where none does (a module, a program such as pytest, a prompt)."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or getattr(main, "__spec__", None) is not None or not file.endswith(".py"):
        return None
    path = resolve_path(file)
    installed = (resolve_path(prefix) / part for prefix in (sys.prefix, sys.base_prefix) for part in ("bin", "lib"))
    return None if any(map(path.is_relative_to, installed)) else path


def working_folder() -> str:
    """The folder that ranks work in where nobody said: as :func:`workdir` for the script that runs this
    process; the current one where no script does."""
    script = main_script()
    return (script and choose_workdir(script)) or str(require_current_folder())


def unusable_reason(folder: Path) -> str:
    """Why a folder is no working folder, and never sent, in words; "" where it is one."""
    home = resolve_path(expand_user("~"))
    if folder == home or folder in home.parents:
        return f"{folder} holds your home folder"
    temporary = (
        *TEMPORARY_FOLDERS,
        *(os.environ[name] for name in TEMPORARY_VARIABLES if os.environ.get(name)),
    )
    if str(folder) in SYSTEM_FOLDERS or any(folder == resolve_path(each) for each in temporary):
        return f"{folder} is a folder of the system's"
    if is_state_folder(str(folder)):
        return f"{folder} is a state folder of skyward (SKYWARD_HOME), which holds keys"
    return ""


class NestedStateFolders:
    """Which folders below a working folder hold our state, by paths from there."""

    def __init__(self, folder: Path) -> None:
        self._folder = resolve_path(folder)
        self._cache = {"": False}

    def contains(self, path: str) -> bool:
        """Check whether a file lies in one of them, or a link on its way leads into one."""
        above = path.rpartition("/")[0]
        if above not in self._cache:
            self._cache[above] = self.contains(above) or self._is_state(above)
        return self._cache[above]

    def _is_state(self, below: str) -> bool:
        there = f"{self._folder}/{below}"
        if not os.path.islink(there):  # noqa: PTH114  as of is_state
            return is_state_folder(there)
        real = resolve_path(there)
        inside = real.is_relative_to(self._folder)  # what the working folder itself lies in says nothing then
        above = (each for each in (real, *real.parents) if not (inside and self._folder.is_relative_to(each)))
        return any(is_state_folder(str(each)) for each in above)
