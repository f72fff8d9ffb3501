"""Where things are kept, and the person's settings.

``SKYWARD_HOME`` overrides every location (ledger, pool and run folders, settings), for tests and for keeping
several worlds apart.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..model.errors import UsageError
from ..wire.node_paths import STATE, NodePaths, pools
from .user_files import exists, expanded, resolved

if TYPE_CHECKING:
    from .settings import Settings

BASE_LIMIT = (
    55  # bytes of a folder's path below which a socket of ours fits into the 104 that some systems allow
)

ENVIRONMENTS = "environments"  # a folder of the home: what images asked for on this machine
SETTINGS = "skyward.toml"
PRUNED = "pruned"  # a file of the home, as old as the last time that room was made in it
# What else there is in the home.
OURS = (STATE, ENVIRONMENTS, PRUNED, "ledger.db*", "pools", "local", "aws", "slurm", "tasks", "debug", "known_hosts*",
        "ssh_config*", "skyward-*", "empty", SETTINGS, "*.json", "*.json.draft")  # fmt: skip
PRUNE_EVERY = 86400.0  # seconds between two such times

provider_override: str | None = None
"""Name of a provider that the pools of this process use in place of the one they name."""
provider_settings: Mapping[str, str] = {}
"""What a person wrote for its settings."""
nodes_override: int | str | None = None
"""How many machines the pools of this process have in place of as many as they say."""
OVERRIDE = "SKYWARD_OVERRIDE"  # a variable by which these go to processes that the script starts


def override(provider: str | None, settings: Mapping[str, str], nodes: int | str | None) -> None:
    """Have the pools of this process and of all that it starts be otherwise than they say."""
    global provider_override, provider_settings, nodes_override
    provider_override, provider_settings, nodes_override = provider, settings, nodes
    os.environ[OVERRIDE] = json.dumps([provider, dict(settings), nodes])


if OVERRIDE in os.environ:  # written by the process that has started this one
    provider_override, provider_settings, nodes_override = json.loads(os.environ[OVERRIDE])


def home() -> Path:
    """The folder of all durable state; made, private to the person, when first asked for.

    Raises:
        UsageError: it cannot be made.
    """
    override = os.environ.get("SKYWARD_HOME")
    if override:
        path = expanded(override).absolute()
    else:
        import platformdirs

        path = Path(platformdirs.user_state_dir("skyward", appauthor=False))
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if trouble := _made_private(path, named=bool(override)):
            raise UsageError(
                f"{trouble}, and what is there would be believed and run: close it, or set SKYWARD_HOME to a folder "
                "of your own"
            )
        if not (mark := path / STATE).exists():
            with suppress(OSError):  # a full disk; the ledger tells as well what the folder is
                mark.touch()
    except OSError as error:
        raise UsageError(
            f"cannot make the private folder {path}: {error}; set SKYWARD_HOME to another folder"
        ) from error
    return path


def _made_private(path: Path, *, named: bool) -> str:
    """Close the home to others, unless the person keeps other things there as well; gives why it is none, or "".

    Args:
        named: by ``SKYWARD_HOME``.
    """
    found = path.stat()
    if found.st_uid not in (0, os.getuid()):
        return f"{path} belongs to somebody else"
    if not found.st_mode & 0o077:
        return ""
    if not named or (not found.st_mode & stat.S_ISVTX and _is_ours(path)):  # an empty /tmp is everybody's
        path.chmod(0o700)
        return ""
    from ..node.boot.host import others_write  # late: most homes are closed

    return f"{path} can be written by others" if others_write(found) else ""


def is_state(folder: str) -> bool:
    """Check whether a folder is a state folder of this program: this process's, another one's, or a host's."""
    there = os.path.exists  # a working folder has many folders, and pathlib takes five times as long
    if there(f"{folder}/{STATE}"):
        return True
    inside = pools(folder)
    if not there(inside):
        return False
    try:  # earlier releases, and hosts, leave no mark
        with os.scandir(inside) as folders:
            return there(f"{folder}/ledger.db") or any(there(NodePaths(each.path).lock) for each in folders)
    except OSError:
        return False


def state_of(path: Path) -> Path | None:
    """Return the state folder that a path is, or that it is a part of; None if it is not.

    Other files that a user keeps in such a folder are not a part of it.
    """
    real = resolved(path)
    for folder in (real, *real.parents):
        if is_state(str(folder)) and (folder == real or _is_named_as_ours(folder, real)):
            return folder
    return None


def _is_named_as_ours(folder: Path, path: Path) -> bool:
    return any(map(Path(path.relative_to(folder).parts[0]).match, OURS))


def prune_is_due() -> bool:
    """Whether it is time to look for what is long over; see :mod:`.prune`, which most starts need not load. A new home,
    which holds nothing old, is marked as looked at."""
    mark = home() / PRUNED
    try:
        return time.time() - mark.stat().st_mtime > PRUNE_EVERY
    except FileNotFoundError:
        with suppress(OSError):
            mark.touch()  # a new home holds nothing old
        return False


def _is_ours(path: Path) -> bool:
    """Whether a folder that the person named holds nothing else than our things, as far as can be seen."""
    return all(any(map(each.match, OURS)) for each in path.iterdir())


def pool_path(pool: str) -> Path:
    """Where the client keeps a pool's logs, results and events; there may be none of them (any more)."""
    return home() / "pools" / pool


def pool_dir(pool: str) -> Path:
    """The same folder, made where it is not there."""
    path = pool_path(pool)
    path.parent.mkdir(exist_ok=True, mode=0o700)
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def socket_dir(owner: Path) -> Path:
    """A short, private folder for the Unix sockets that belong to ``owner``.

    A socket's path may hold about 100 bytes, which a folder deep in a home often exceeds.

    Raises:
        UsageError: wherever it could be something is there already that belongs to somebody else, or others may enter.
    """
    from ..node.boot.host import doubt

    wrong: list[str] = []
    # Others may have come first to /tmp; the home, which is ours alone, may be too deep, or on another machine's disk.
    for base in (*_bases(), str(home())):
        if len(os.fsencode(base)) > BASE_LIMIT or not os.access(base, os.W_OK):
            continue
        # Where others can rename what is ours is no place for it; nobody can in /tmp.
        if doubt(f"{base}/."):
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


def _bases() -> list[str]:
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
    return {name: hosts for each in _settings() for name, hosts in each.hosts.items()}


def pool_tables() -> tuple[dict[str, Any], dict[str, Any]]:
    """The tables ``pools`` and ``providers`` of ``skyward.toml`` in the working folder and in :func:`home`; of values
    that both have, the former's count.

    Raises:
        UsageError: a file cannot be read or used.
    """
    pools: dict[str, Any] = {}
    providers: dict[str, Any] = {}
    for each in _settings():
        pools, providers = _over(pools, each.pools), _over(providers, each.providers)
    return pools, providers


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Tables with what lies over them, down to single values."""
    both = {
        key: _over(below[key], value)
        for key, value in above.items()
        if isinstance(below.get(key), dict) and isinstance(value, dict)
    }
    return below | above | both


def _settings() -> Iterator[Settings]:
    """What is there, the weaker file first.

    Raises:
        UsageError: somebody else could have put it into the working folder: a group of hosts says whose machines are
            given the person's code.
    """
    own = home() / SETTINGS
    for path in (own, Path(SETTINGS)):
        if exists(path):
            from ..node.boot.host import doubt

            if path != own and (why := doubt(str(path.absolute()))):
                raise UsageError(
                    f"{path.absolute()} is not believed: {why}. What you need of it goes to {own}; or work in a "
                    "folder of your own"
                )
            from .settings import read  # and pydantic, which takes as long to import as a node takes to start

            yield read(path)
