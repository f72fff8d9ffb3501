"""Paths of the files in a node's folder.

The client sends this module to hosts before the rest of the package, together with
``bootstrap.host_inspection``, so it imports only ``os``.
"""

from __future__ import annotations

import os

OUT, ERR = ".out", ".err"  # output of a rank
MARKS, METRICS = ".marks", ".metrics"  # order marks and metrics; see ``protocol.stdout_stderr_order_marks``
APP_LOG = "app.log"  # file in the spool folder with the output of the plugins' node contexts
STATE_FILE = ".skyward-state"  # marks a folder that contains skyward's state and keys and must never be uploaded
RETAINED_PREFIX, EXIT_REASON_PREFIX = "kept.", "ended."  # of folders with results, and of files with exit reasons
WORKER_PREFIX = "worker."
# Signal for stack dumps. It is a real-time signal (34 to 64, only on Linux), because users, schedulers and frameworks
# use the other signals. On macOS it is SIGINFO, which processes without a handler ignore.
STACK_SIGNAL = 29 if os.uname().sysname == "Darwin" else 57
# Endings of the files by which an agent asks a worker for the exception that it handles.
ASK, ANSWER = ".ask", ".answer"
EXCEPTION_REQUEST = b"\xff"  # sent through a pipe of signal numbers, which are all lower
UMASK = "SKYWARD_UMASK"  # environment variable with the login's umask in octal


class PathBelow:
    """Attribute of :class:`NodePaths`: the path of a file or folder below the node's folder."""

    def __init__(self, ending: str) -> None:
        self._ending = ending

    def __get__(self, paths: NodePaths, owner: type[NodePaths]) -> str:
        return paths.folder + self._ending


class NodePaths:
    """Paths of one node.

    Args:
        folder: The node's folder.
    """

    __slots__ = ("folder",)
    lock = PathBelow("/agent.lock")  # lock file that the agent holds until it exits
    state = PathBelow("/agent.json")  # file with the agent's state, written when the agent starts to listen
    errors = PathBelow("/agent.err")  # log file of the agent's own output
    socket = PathBelow("/agent.sock")  # socket of the agent, unless the path is too long for a socket
    blobs = PathBelow("/blobs")  # folder of blobs (functions and arguments), named by content hash
    samples = PathBelow("/machine-samples")  # folder of the machine metrics; see ``machine_metrics_sampler``
    sources = PathBelow("/sent-source")  # folder of source files that clients sent
    spool = PathBelow("/spool")  # folder with output of ranks, results, and state for later agents
    journal = PathBelow("/spool/journal")  # file with the journal of calls and outcomes
    epoch = PathBelow("/spool/epoch")  # file with the number of the gang's latest epoch
    # Folder with ``python`` commands for ranks, if the interpreter's own folder lacks them.
    programs = PathBelow("/programs")
    devices = PathBelow("/gpus.json")  # file with the GPUs of each rank on a shared machine
    notices = PathBelow("/notices.json")  # file with preemption notices for the ranks
    retained_facts = PathBelow("/kept.json")  # file that lists the content and expiry of retained results

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def source(self, content: str, name: str) -> str:
        """Return the path of a source file by content hash and name."""
        return f"{self.sources}/{content}/{name}"

    def worker(self, rank: int, number: int) -> str:
        """Return the path of the file with a worker's pid."""
        return f"{self.folder}/{WORKER_PREFIX}{rank}.{number}"

    def stacks(self, rank: int, number: int) -> str:
        """Return the path of a worker's stack dumps. ``ASK`` and ``ANSWER`` are added for requests about exceptions."""
        return f"{self.folder}/stacks.{rank}.{number}"

    def error_file(self, pid: int) -> str:
        """Return the path of the file in which user code may report why its process ends."""
        return f"{self.folder}/spool/error.{pid}.json"

    def debugger(self, rank: int, number: int) -> str:
        """Return the path of the socket where a rank waits for a debugger."""
        return f"{self.folder}/debug.{rank}.{number}"

    @property
    def retained_folder(self) -> str:
        """Folder of retained results after the node's end."""
        head, slash, name = self.folder.rpartition("/")
        return self.folder if name.startswith(RETAINED_PREFIX) else f"{head}{slash}{RETAINED_PREFIX}{name}"

    @property
    def exit_reason(self) -> str:
        """File beside the node's folder. It contains the reason why the node shut itself down."""
        head, slash, name = self.folder.rpartition("/")
        return f"{head}{slash}{EXIT_REASON_PREFIX}{name}"


def pools_folder(root: str) -> str:
    """Return the folder of all nodes on a host."""
    return root + "/pools"


def worker_socket_path(socket: str) -> str:
    """Return the path of an agent's socket for workers, beside its socket for clients."""
    return socket + ".w"


def log_stem(rank: int, number: int) -> str:
    """Return the base name of a worker's log files."""
    return f"r{rank:03d}.{number}" if number else f"r{rank:03d}"


def deferred_bundle_path(bundle: str) -> str:
    """Return the path of a bundle's deferred part, from the path of the bundle's first file."""
    folder, _, file = bundle.rpartition("/")
    return f"{folder}-rest/{file}"


_PREFIX = "m"


def sample_file(start: int) -> str:
    """Return the name of the sample file that begins at an offset."""
    return f"{_PREFIX}{start:015d}"


def sample_files(folder: str) -> list[tuple[int, str]]:
    """Return offset and name of the sample files, oldest first."""
    try:
        names = os.listdir(folder)  # noqa: PTH208  # the sampler must not import pathlib
    except FileNotFoundError:
        return []
    return sorted((int(name[1:]), name) for name in names if name.startswith(_PREFIX) and name[1:].isdigit())
