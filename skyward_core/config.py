"""Where things are kept, and the person's settings.

``SKYWARD_HOME`` overrides every location (ledger, pool and run folders, settings), for tests and for keeping
several worlds apart.
"""

from __future__ import annotations

import os
import stat
from hashlib import blake2s
from pathlib import Path
from typing import Any

from .errors import UsageError

BASE_LIMIT = (
    55  # bytes of a folder's path below which a socket of ours fits into the 104 that some systems allow
)

provider_override: str | None = None
"""Name of a provider that the pools of this process use in place of the one they name."""


def home() -> Path:
    """The folder of all durable state; made, private to the person, when first asked for.

    Raises:
        UsageError: it cannot be made.
    """
    override = os.environ.get("SKYWARD_HOME")
    if override:
        path = Path(override).expanduser().absolute()
    else:
        import platformdirs

        path = Path(platformdirs.user_state_dir("skyward", appauthor=False))
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(
            f"the folder {path} cannot be made: {error}; set SKYWARD_HOME to another one"
        ) from error
    return path


def pool_dir(pool: str) -> Path:
    """Where the client keeps a pool's logs, results and events."""
    path = home() / "pools" / pool
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def socket_dir(owner: Path) -> Path:
    """A short, private folder for the Unix sockets that belong to ``owner``.

    A socket's path may hold about 100 bytes, which a folder deep in a home often exceeds.

    Raises:
        UsageError: the folder is there and belongs to somebody else, or others may enter it.
    """
    import tempfile  # late, as all that a script can connect without

    bases = (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp")
    usable = (base for base in bases if len(os.fsencode(base)) <= BASE_LIMIT and os.access(base, os.W_OK))
    root = Path(next(usable, bases[-1])) / f"skyward-{os.getuid()}"
    try:
        root.mkdir(mode=0o700)
    except FileExistsError:
        found = root.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise UsageError(
                f"{root} must be a folder that only you can enter; remove it or set XDG_RUNTIME_DIR"
            ) from None
    path = root / blake2s(str(owner).encode(), digest_size=8).hexdigest()
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def settings() -> dict[str, Any]:
    """``skyward.toml`` of the working folder over the one in :func:`home`.

    Raises:
        UsageError: a file cannot be read or does not parse.
    """
    merged: dict[str, Any] = {}
    for path in (home() / "skyward.toml", Path("skyward.toml")):
        try:
            text = path.read_text(encoding="utf-8")
            import tomllib

            merged |= tomllib.loads(text)
        except FileNotFoundError:
            continue
        except ValueError as error:  # not TOML, or not even text
            raise UsageError(f"{path} does not parse: {error}") from error
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error}") from error
    return merged
