"""Which folder ranks work in, where nobody said."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ..model.errors import SpecError, UsageError
from .home import is_state
from .user_files import expanded, is_dir, resolved

SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/media", "/mnt", "/opt", "/proc", "/run", "/sbin", "/sys",
          "/tmp", "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/local/bin", "/usr/local/lib", "/var",
          "/var/tmp")  # fmt: skip
# As the tempfile module has it; to load that takes longer than the rest of this.
TEMPORARY, TEMPORARY_BY = ("/tmp", "/var/tmp", "/usr/tmp"), ("TMPDIR", "TEMP", "TMP")


def current() -> Path | None:
    """The current folder; None where somebody has removed it since."""
    try:
        return Path.cwd()
    except OSError:
        return None


def in_current(name: str) -> list[Path]:
    """The file of that name there, by its whole path; none where that folder is gone."""
    return [] if (folder := current()) is None else [folder / name]


def here() -> Path:
    """The current folder.

    Raises:
        UsageError: somebody has removed it since.
    """
    if (folder := current()) is None:
        name = f" ({os.environ['PWD']})" if os.environ.get("PWD") else ""
        raise UsageError(
            f"the folder that this was started in{name} is not there any more; start it again in one that is"
        )
    return folder


def named(folder: str | os.PathLike[str]) -> str:
    """Return the path of a working folder that the user named, from the current one or from a home (``~``).

    Raises:
        SpecError: It is not a folder.
    """
    path = expanded(Path(folder))
    path = path if path.is_absolute() else here() / path
    if not is_dir(path):
        raise SpecError(f"{path} is not a folder: name one that exists", "workdir")
    return str(path)


def workdir(path: Path) -> str | None:
    """The folder that ranks of a script work in: the current one (None), or the script's own where it lies
    elsewhere; for ``Image.workdir``. No folder that is unfit, such as the person's home, is chosen over another."""
    at, folder = current(), resolved(path).parent
    here = None if at is None else resolved(at)
    if unfit(folder) or (here is not None and folder.is_relative_to(here) and not unfit(here)):
        return None
    return str(folder)


def main_script() -> Path | None:
    """The script that runs this process; None where none does (a module, a program such as pytest, a prompt)."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or getattr(main, "__spec__", None) is not None or not file.endswith(".py"):
        return None
    path = resolved(file)
    installed = (
        resolved(prefix) / part for prefix in (sys.prefix, sys.base_prefix) for part in ("bin", "lib")
    )
    return None if any(map(path.is_relative_to, installed)) else path


def working_folder() -> str:
    """The folder that ranks work in where nobody said: as :func:`workdir` for the script that runs this
    process; the current one where no script does."""
    script = main_script()
    return (script and workdir(script)) or str(here())


def unfit(folder: Path) -> str:
    """Why a folder is no working folder, and never sent, in words; "" where it is one."""
    home = resolved(expanded("~"))
    if folder == home or folder in home.parents:
        return f"{folder} holds your home folder"
    temporary = (*TEMPORARY, *(os.environ[name] for name in TEMPORARY_BY if os.environ.get(name)))
    if str(folder) in SYSTEM or any(folder == resolved(each) for each in temporary):
        return f"{folder} is a folder of the system's"
    if is_state(str(folder)):
        return f"{folder} is a state folder of skyward (SKYWARD_HOME), which holds keys"
    return ""


class StateInside:
    """Which folders below a working folder hold our state, by paths from there."""

    def __init__(self, folder: Path) -> None:
        self._folder = resolved(folder)
        self._known = {"": False}

    def holds(self, path: str) -> bool:
        """Check whether a file lies in one of them, or a link on its way leads into one."""
        above = path.rpartition("/")[0]
        if above not in self._known:
            self._known[above] = self.holds(above) or self._is_state(above)
        return self._known[above]

    def _is_state(self, below: str) -> bool:
        there = f"{self._folder}/{below}"
        if not os.path.islink(there):  # noqa: PTH114  as of is_state
            return is_state(there)
        real = resolved(there)
        inside = real.is_relative_to(self._folder)  # what the working folder itself lies in says nothing then
        above = (each for each in (real, *real.parents) if not (inside and self._folder.is_relative_to(each)))
        return any(is_state(str(each)) for each in above)
