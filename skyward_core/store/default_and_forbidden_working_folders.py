"""Working folder of the ranks: the user's choice, the default, and folders that must not be sent."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from skyward_core.model.errors import SpecError, UsageError
from skyward_core.store.state_folder import is_state_folder
from skyward_core.util.safe_file_access import expand_user, is_dir, resolve_path

SYSTEM_FOLDERS = ("/bin", "/boot", "/dev", "/etc", "/lib", "/media", "/mnt", "/opt", "/proc", "/run", "/sbin", "/sys",
          "/tmp", "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/local/bin", "/usr/local/lib", "/var",
          "/var/tmp")  # fmt: skip
# Folders for temporary files, copied from the tempfile module, because that module is slow to import.
TEMPORARY_FOLDERS, TEMPORARY_VARIABLES = ("/tmp", "/var/tmp", "/usr/tmp"), ("TMPDIR", "TEMP", "TMP")


def current_folder() -> Path | None:
    """Return the current folder, or None if it was deleted."""
    try:
        return Path.cwd()
    except OSError:
        return None


def current_paths(name: str) -> list[Path]:
    """Return a list with the path of a file in the current folder; empty if the current folder was deleted."""
    return [] if (folder := current_folder()) is None else [folder / name]


def require_current_folder() -> Path:
    """Return the current folder.

    Raises:
        UsageError: If the folder was deleted.
    """
    if (folder := current_folder()) is None:
        name = f" ({os.environ['PWD']})" if os.environ.get("PWD") else ""
        raise UsageError(f"The current folder{name} was deleted. Start the command again in an existing folder.")
    return folder


def resolve_workdir(folder: str | os.PathLike[str]) -> str:
    """Return the absolute path of a working folder that the user named.

    The user's path may begin with ``~``, or be relative to the current folder.

    Raises:
        SpecError: If the path is not a folder.
    """
    path = expand_user(Path(folder))
    path = path if path.is_absolute() else require_current_folder() / path
    if not is_dir(path):
        raise SpecError(f"{path} is not a folder. Name an existing folder.", "workdir")
    return str(path)


def choose_workdir(path: Path) -> str | None:
    """Return the working folder for a script, for ``Image.workdir``.

    Returns:
        The script's folder. None, which means the current folder, if the current folder contains the script, or if the
            script's folder is unusable.
    """
    at, folder = current_folder(), resolve_path(path).parent
    here = None if at is None else resolve_path(at)
    if unusable_reason(folder) or (here is not None and folder.is_relative_to(here) and not unusable_reason(here)):
        return None
    return str(folder)


def main_script() -> Path | None:
    """Return the script that runs in this process. None for modules, installed programs and interactive sessions."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or getattr(main, "__spec__", None) is not None or not file.endswith(".py"):
        return None
    path = resolve_path(file)
    installed = (resolve_path(prefix) / part for prefix in (sys.prefix, sys.base_prefix) for part in ("bin", "lib"))
    return None if any(map(path.is_relative_to, installed)) else path


def working_folder() -> str:
    """Return the default working folder: :func:`choose_workdir` of the main script, or the current folder."""
    script = main_script()
    return (script and choose_workdir(script)) or str(require_current_folder())


def unusable_reason(folder: Path) -> str:
    """Return why a folder must not be used as a working folder or sent; "" if it may."""
    home = resolve_path(expand_user("~"))
    if folder == home or folder in home.parents:
        return f"{folder} contains your home folder"
    temporary = (
        *TEMPORARY_FOLDERS,
        *(os.environ[name] for name in TEMPORARY_VARIABLES if os.environ.get(name)),
    )
    if str(folder) in SYSTEM_FOLDERS or any(folder == resolve_path(each) for each in temporary):
        return f"{folder} is a system folder"
    if is_state_folder(str(folder)):
        return f"{folder} is a state folder of skyward (SKYWARD_HOME), which contains keys"
    return ""


class NestedStateFolders:
    """State folders below a working folder. The results of :meth:`contains` are cached by folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = resolve_path(folder)
        self._cache = {"": False}

    def contains(self, path: str) -> bool:
        """Check whether a file is inside a state folder, also through a link."""
        above = path.rpartition("/")[0]
        if above not in self._cache:
            self._cache[above] = self.contains(above) or self._is_state(above)
        return self._cache[above]

    def _is_state(self, below: str) -> bool:
        absolute = f"{self._folder}/{below}"
        if not os.path.islink(absolute):  # noqa: PTH114  faster than pathlib
            return is_state_folder(absolute)
        real = resolve_path(absolute)
        inside = real.is_relative_to(self._folder)  # whether the link leads to a path inside the working folder
        above = (each for each in (real, *real.parents) if not (inside and self._folder.is_relative_to(each)))
        return any(is_state_folder(str(each)) for each in above)
