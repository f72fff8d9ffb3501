"""A command as a rank runs it: as a child of its own, whose output is the rank's and whose status is its outcome."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress

from . import preempt
from .info import instance_info

TYPE_CHECKING = False  # typing's would be imported for it
if TYPE_CHECKING:
    from collections.abc import Mapping
    from subprocess import Popen

    from .info import InstanceInfo

TORCHRUN = "skyward_core.runtime.torchrun"
SHELLS = ("bash", "sh")  # the first that a node has


class CommandEnded(SystemExit):
    """A command ended with a status that is no success.

    Attributes:
        __skyward_words__: what became of it, for the rank's outcome.
    """

    def __init__(self, status: int, words: str) -> None:
        super().__init__(status)
        self.__skyward_words__ = words


class ShellCommand:
    """Runs as a shell script does.

    Args:
        command: what the shell reads.
        name: what it is called.
        env: variables that it has beside those of its rank.
        cwd: its folder; "" for the rank's own, below which it is looked for.
        secrets: values that are blanked in what it prints.
        as_setup: whether it sets nodes up, and is told of its place under SkyPilot's names for that.

    Attributes:
        __skyward_programs__: a folder for names of the rank's Python; the worker says which.
    """

    __skyward_programs__ = ""

    def __init__(
        self,
        command: str,
        name: str,
        env: Mapping[str, str],
        cwd: str,
        secrets: tuple[str, ...],
        *,
        as_setup: bool = False,
    ) -> None:
        self.__name__ = name
        self.command = command
        self.env = dict(env)
        self.cwd = cwd
        self.__skyward_secrets__ = secrets  # the worker tells its agent of them before it runs this
        self.as_setup = as_setup

    def __call__(self) -> None:
        info, together = instance_info(), preempt.in_gang()
        import subprocess
        import tempfile

        unset = () if together else getattr(sys.modules.get(TORCHRUN), "of_task", ())
        here = os.path.join(os.getcwd(), os.path.expanduser(self.cwd))  # noqa: PTH109, PTH111, PTH118  no pathlib here
        if not os.path.isdir(here):  # noqa: PTH112
            raise NotADirectoryError(f"{self.__name__}: this node has no folder {here}")
        shell = next(filter(None, map(shutil.which, SHELLS)), "/bin/sh")
        # Read from a file without a name, not from its arguments: those can be seen by whoever has an account here.
        with tempfile.TemporaryFile() as script:
            script.write(self.command.encode())
            script.seek(0)
            number = script.fileno()
            child = subprocess.Popen(
                [shell, f"/dev/fd/{number}"],
                cwd=here,
                env={name: value for name, value in os.environ.items() if name not in unset}
                | _of_python(self.__skyward_programs__)
                | self._places(info, together=together)
                | self.env,
                stdin=subprocess.DEVNULL,
                pass_fds=(number,),
            )
        if status := _end_of(child):
            said = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
            raise CommandEnded(status if status > 0 else 128 - status, said)

    def _places(self, info: InstanceInfo, *, together: bool) -> dict[str, str]:
        told = places(info, together=together)
        if not self.as_setup:
            return told
        kept = ("NODE_RANK", "NODE_IPS", "NUM_GPUS_PER_NODE")
        return told | {f"SKYPILOT_SETUP_{name}": told[f"SKYPILOT_{name}"] for name in kept}


def _end_of(child: Popen[bytes]) -> int:
    try:
        return child.wait()
    except BaseException:
        child.wait()  # what stops the rank goes to all that it has started: it ends as it likes, while there is time
        raise


def _of_python(programs: str) -> dict[str, str]:
    """Has a command find the rank's Python, with what is installed for it, and its output come line by line.

    Args:
        programs: where its names are made that its own folder lacks, or has another Python by; "" to do without.
    """
    found = {"PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1")}
    own = os.path.dirname(sys.executable)  # noqa: PTH120
    if os.pathsep in own:
        raise OSError(
            f"{own} cannot be an entry of PATH: it has a colon in its name. Make the environment elsewhere."
        )
    first = [programs] if programs and own and _is_named_otherwise(own) and _have_names(programs) else []
    first += [own] if own else []
    path = os.environ.get("PATH", os.defpath)
    if path.split(os.pathsep)[: len(first)] != first:
        found["PATH"] = os.pathsep.join((*first, path))
    if sys.prefix != sys.base_prefix:
        found["VIRTUAL_ENV"] = sys.prefix
    return found


NAMES = ("python", "python3")


def _is_named_otherwise(folder: str) -> bool:
    """Whether the rank's Python is in its folder by its version alone, as Debian and uv have it."""
    for name in NAMES:
        try:
            if not os.path.samefile(os.path.join(folder, name), sys.executable):  # noqa: PTH118, PTH121
                return True
        except OSError:
            return True
    return False


def _have_names(folder: str) -> bool:
    """Have it there by the usual names; says whether it is."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
        for name in NAMES:
            with suppress(FileExistsError):  # by another rank, whose Python is the same
                os.symlink(sys.executable, os.path.join(folder, name))  # noqa: PTH118, PTH211
    except OSError:  # no room, say: the command runs all the same
        return False
    return True


def places(info: InstanceInfo, *, together: bool) -> dict[str, str]:
    """The variables that tell a command of its place, under the names of SkyPilot's and under our own.

    The first are those of https://docs.skypilot.co/en/latest/running-jobs/environment-variables.html.

    Args:
        info: the rank's place.
        together: whether all ranks of its gang run it; one that runs alone is told of no others.
    """
    together = together and bool(info.peers)
    nodes = info.total_nodes if together else 1
    addresses = [peer.address for peer in info.peers] if together else [info.address or "127.0.0.1"]
    told = {
        "NODE_RANK": str(info.node if together else 0),
        "NODE_IPS": "\n".join(addresses),
        "NUM_NODES": str(nodes),
        "NUM_GPUS_PER_NODE": str(info.accelerators),
    }
    return {
        **{f"SKYPILOT_{name}": value for name, value in told.items()},
        "SKYPILOT_TASK_ID": f"{info.pool}-{info.run}",
        **{f"SKYWARD_{name}": value for name, value in told.items()},
        "SKYWARD_RANK": str(info.rank if together else 0),
        "SKYWARD_WORLD_SIZE": str(nodes * info.ranks_per_node if together else 1),
        "SKYWARD_LOCAL_RANK": str(info.local_rank if together else 0),
        "SKYWARD_POOL": info.pool,
        "SKYWARD_RUN": info.run,
    }
