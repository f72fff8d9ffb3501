"""Names of the files in a node's folder.

Sent to hosts ahead of everything else, with ``bootstrap.host_inspection``: it imports nothing, and paths are text.
"""

from __future__ import annotations

import os

OUT, ERR = ".out", ".err"  # what a rank prints
MARKS, METRICS = ".marks", ".metrics"  # what comes beside that; see ``protocol.output_order_marks``
APP_LOG = "app.log"  # in the spool: what plugins print that are around the node
STATE_FILE = ".skyward-state"  # marks a folder with our state and keys, which is never sent to another machine
RETAINED_PREFIX, EXIT_REASON_PREFIX = "kept.", "ended."  # before a folder's name
WORKER_PREFIX = "worker."
# At which a rank writes down where its threads are: a real-time signal, as what people take for themselves, and what
# schedulers and frameworks send, are others. (Linux has 34 to 64 for them, other systems none.)
STACK_SIGNAL = 57
UMASK = "SKYWARD_UMASK"  # a variable: what the login makes files with, in octal digits


class NodePaths:
    """Those of one node.

    Args:
        folder: the node's own.
    """

    __slots__ = ("folder",)

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @property
    def lock(self) -> str:
        """Held by the agent for its whole life."""
        return self.folder + "/agent.lock"

    @property
    def state(self) -> str:
        """What the agent says of itself once it listens."""
        return self.folder + "/agent.json"

    @property
    def errors(self) -> str:
        """What the agent itself prints."""
        return self.folder + "/agent.err"

    @property
    def socket(self) -> str:
        """Where the agent listens, unless that is too long for a socket's path."""
        return self.folder + "/agent.sock"

    @property
    def blobs(self) -> str:
        """Functions and arguments, by content."""
        return self.folder + "/blobs"

    @property
    def samples(self) -> str:
        """What the machine was measured at; see ``machine_metrics.sampler``."""
        return self.folder + "/machine-samples"

    @property
    def sources(self) -> str:
        """What scripts are made of, as clients sent it."""
        return self.folder + "/sent-source"

    def source(self, content: str, name: str) -> str:
        """One text, by the name of its content and its own."""
        return f"{self.sources}/{content}/{name}"

    @property
    def spool(self) -> str:
        """What ranks print, results, and what the next agent has to know."""
        return self.folder + "/spool"

    @property
    def journal(self) -> str:
        """What the agent was given, and what came of it."""
        return self.folder + "/spool/journal"

    @property
    def epoch(self) -> str:
        """The number of the gang's latest epoch."""
        return self.folder + "/spool/epoch"

    def worker(self, rank: int, number: int) -> str:
        """Which process was started for that place."""
        return f"{self.folder}/{WORKER_PREFIX}{rank}.{number}"

    @property
    def programs(self) -> str:
        """Names for the ranks' Python where its own folder has another by them."""
        return self.folder + "/programs"

    @property
    def devices(self) -> str:
        """Which GPUs each rank was given, where the node shares its machine's with others."""
        return self.folder + "/gpus.json"

    def stacks(self, rank: int, number: int) -> str:
        """Where that process writes down where its threads are, when it is asked by a signal."""
        return f"{self.folder}/stacks.{rank}.{number}"

    def error_file(self, pid: int) -> str:
        """Where user code may write why its process ends."""
        return f"{self.folder}/spool/error.{pid}.json"

    def debugger(self, rank: int, number: int) -> str:
        """Where a rank listens that waits at a breakpoint for somebody who debugs it."""
        return f"{self.folder}/debug.{rank}.{number}"

    @property
    def notices(self) -> str:
        """Which machines of the pool are about to be taken back, for the ranks."""
        return self.folder + "/notices.json"

    @property
    def retained_facts(self) -> str:
        """What a folder holds that was kept, and until when."""
        return self.folder + "/kept.json"

    @property
    def retained_folder(self) -> str:
        """The folder's name once the node has ended with something that nobody has fetched."""
        head, slash, name = self.folder.rpartition("/")
        return self.folder if name.startswith(RETAINED_PREFIX) else f"{head}{slash}{RETAINED_PREFIX}{name}"

    @property
    def exit_reason(self) -> str:
        """Beside the folder: why the node ended itself."""
        head, slash, name = self.folder.rpartition("/")
        return f"{head}{slash}{EXIT_REASON_PREFIX}{name}"


def pools_folder(root: str) -> str:
    """Where a host has the folders of its nodes."""
    return root + "/pools"


def worker_socket_path(socket: str) -> str:
    """Where an agent listens to its workers, beside the socket for clients."""
    return socket + ".w"


def log_stem(rank: int, number: int) -> str:
    """What the log files of a rank's worker are called, without their endings."""
    return f"r{rank:03d}.{number}" if number else f"r{rank:03d}"


def deferred_bundle_path(bundle: str) -> str:
    """Where the rest of a bundle lies, by the path of its first file: in a folder beside the first one's."""
    folder, _, file = bundle.rpartition("/")
    return f"{folder}-rest/{file}"


_PREFIX = "m"


def sample_file(start: int) -> str:
    """What the file is called that begins with this byte."""
    return f"{_PREFIX}{start:015d}"


def sample_files(folder: str) -> list[tuple[int, str]]:
    """The files there, oldest first: place of the first byte, and name."""
    try:
        names = os.listdir(folder)  # noqa: PTH208  where it is read from little is imported
    except FileNotFoundError:
        return []
    return sorted((int(name[1:]), name) for name in names if name.startswith(_PREFIX) and name[1:].isdigit())
