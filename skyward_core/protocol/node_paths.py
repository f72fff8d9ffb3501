"""Paths of the files in the folder of a node.

The client sends this module to hosts before the rest of the package, together with
``bootstrap.host_inspection``, so it imports only ``os``.
"""

from __future__ import annotations

import os

OUT, ERR = ".out", ".err"  # endings of a worker's log files: standard output and standard error
# endings of a worker's files with order marks and metrics; see ``protocol.stdout_stderr_order_marks``
MARKS, METRICS = ".marks", ".metrics"
# Number that is added to a worker's number in the name of its metrics file for images. The file looks like that of
# another worker, because older clients reject names with unknown endings.
IMAGE_SLOTS = 5000
APP_LOG = "app.log"  # name of the file in the spool folder with the output of the plugins' node contexts
# name of the file that marks a folder with skyward's state and keys, which must never be uploaded
STATE_FILE = ".skyward-state"
# prefixes of the names of folders with retained results, and of files with exit reasons
RETAINED_PREFIX, EXIT_REASON_PREFIX = "kept.", "ended."
WORKER_PREFIX = "worker."
# Signal for stack dumps. It is a real-time signal (34 to 64, only on Linux), because users, schedulers and frameworks
# use the other signals. On macOS it is SIGINFO, which processes without a handler ignore.
STACK_SIGNAL = 29 if os.uname().sysname == "Darwin" else 57
# Endings of a worker's files for requests for its current exception, and for its answers.
ASK, ANSWER = ".ask", ".answer"
# byte that requests the exception; signal numbers, which are sent through the same pipe, are lower
EXCEPTION_REQUEST = b"\xff"
UMASK = "SKYWARD_UMASK"  # environment variable with the umask of the user's login, in octal


class PathBelow:
    """Attribute of :class:`NodePaths`: the path of a file or folder below the node's folder."""

    def __init__(self, ending: str) -> None:
        self._ending = ending

    def __get__(self, paths: NodePaths, owner: type[NodePaths]) -> str:
        return paths.folder + self._ending


class NodePaths:
    """Paths of the files and folders of one node.

    Args:
        folder: The node's folder.
    """

    __slots__ = ("folder",)
    lock = PathBelow("/agent.lock")  # lock file that the agent holds until it exits
    state = PathBelow("/agent.json")  # file with the agent's state, which the agent writes when it starts to listen
    errors = PathBelow("/agent.err")  # log file of the agent's own output
    socket = PathBelow("/agent.sock")  # socket of the agent for clients; elsewhere if the path is too long for a socket
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
        """Return the path of a source file that a client sent, from its content hash and its name."""
        return f"{self.sources}/{content}/{name}"

    def worker(self, rank: int, number: int) -> str:
        """Return the path of the file that contains the pid of a worker."""
        return f"{self.folder}/{WORKER_PREFIX}{rank}.{number}"

    def stacks(self, rank: int, number: int) -> str:
        """Return the path of a worker's stack dumps. ``ASK`` and ``ANSWER`` are appended for its exceptions."""
        return f"{self.folder}/stacks.{rank}.{number}"

    def error_file(self, pid: int) -> str:
        """Return the path of the file in which user code may report why its process ends."""
        return f"{self.folder}/spool/error.{pid}.json"

    def debugger(self, rank: int, number: int) -> str:
        """Return the path of the socket where a rank waits for a debugger."""
        return f"{self.folder}/debug.{rank}.{number}"

    @property
    def retained_folder(self) -> str:
        """Path of the folder that contains the retained results after the node's end."""
        head, slash, name = self.folder.rpartition("/")
        return self.folder if name.startswith(RETAINED_PREFIX) else f"{head}{slash}{RETAINED_PREFIX}{name}"

    @property
    def exit_reason(self) -> str:
        """Path of the file, beside the node's folder, with the reason for which the node shut itself down."""
        head, slash, name = self.folder.rpartition("/")
        return f"{head}{slash}{EXIT_REASON_PREFIX}{name}"


def pools_folder(root: str) -> str:
    """Return the folder that contains the folders of all nodes on a host."""
    return root + "/pools"


def worker_socket_path(socket: str) -> str:
    """Return the path of an agent's socket for workers, beside its socket for clients."""
    return socket + ".w"


def log_stem(rank: int, number: int) -> str:
    """Return the name that all log files of a worker begin with."""
    return f"r{rank:03d}.{number}" if number else f"r{rank:03d}"


def deferred_bundle_path(bundle: str) -> str:
    """Return the path of the bundle's second file, with code that is sent later, from the path of its first file."""
    folder, _, file = bundle.rpartition("/")
    return f"{folder}-rest/{file}"


_PREFIX = "m"


def sample_file(start: int) -> str:
    """Return the name of the file of metric samples that begins at an offset."""
    return f"{_PREFIX}{start:015d}"


def sample_files(folder: str) -> list[tuple[int, str]]:
    """Return the offset and the name of each file of metric samples, oldest first."""
    try:
        names = os.listdir(folder)  # noqa: PTH208  # the sampler must not import pathlib
    except FileNotFoundError:
        return []
    return sorted((int(name[1:]), name) for name in names if name.startswith(_PREFIX) and name[1:].isdigit())
