"""Inspection of a host: usable and trustworthy folders, running agents, processes of nodes, GPUs.

The client sends this module to hosts before ``bootstrap.host_command_server``, so it imports only the standard library
and ``protocol.node_paths``.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import sys
import time

from skyward_core.protocol.node_paths import NodePaths, deferred_bundle_path, pools_folder

TYPE_CHECKING = False  # Not imported, because ``from typing import TYPE_CHECKING`` would load the module typing.

if TYPE_CHECKING:
    from typing import Any

# Importing pathlib would take as long as running this module.
# ruff: noqa: PTH103, PTH108, PTH110, PTH111, PTH112, PTH115, PTH118, PTH208, PTH120


ROOTS = ("{cache}/skyward", "/var/tmp/skyward-{uid}", "/tmp/skyward-{uid}")
MIN_LEASE = 60.0  # seconds without activity before a pool's folder can count as a leftover
UNKNOWN_LEASE = 86400.0
# Environment variable of all descendants of a node: its folder, after those of enclosing nodes, separated by colons.
NODE_VARIABLE = "SKYWARD_NODE"
MAX_EXEC_RETRIES = 3
# At least one of these paths exists if the NVIDIA driver is installed.
NVIDIA_DEVICES = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")
AT_SECURE = 23  # AT_SECURE of Linux: key of the process's auxiliary vector
PF_KTHREAD = 0x200000  # PF_KTHREAD of Linux: process flag of kernel threads
MAX_LINKS = 40  # maximum number of symbolic links in one path, as in the Linux kernel
# minimum free bytes on a host's disk; an agent and its bundle need about 1 MB, its log and result files the rest
MIN_FREE_BYTES = 32 << 20


def all_roots() -> list[str]:
    """Return the folders that may contain skyward's files, best first."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return [root.format(cache=cache, uid=os.getuid()) for root in ROOTS]


def choose_root(folder: str) -> tuple[str, list[str], str]:
    """Choose the folder for skyward's files on this host.

    Returns:
        The chosen folder, the problems of the rejected folders, and the reason why the pool's existing folder is not
        trusted ("" if it is). The chosen folder already contains this pool, or else is the first usable one; "" if
        no folder is usable.
    """
    roots = all_roots()
    for root in roots:
        pool_folder = f"{pools_folder(root)}/{folder}"
        if folder and os.path.exists(NodePaths(pool_folder).state):
            problem = distrust_reason(pool_folder)
            if not problem:
                return root, [], ""
            if os.lstat(pool_folder).st_uid == os.getuid():
                return "", [problem], problem
    problems: list[str] = []
    for root in roots:
        problem = unusable_reason(root)
        if not problem:
            return root, problems, ""
        problems.append(root + ": " + problem)
    return "", problems, ""


def distrust_reason(path: str) -> str:
    """Return how another user could have modified a path; "" if no other user could.

    Each parent folder and link of the path must belong to this user or root and must not be writable by others. Folders
    with the sticky bit, such as /tmp, are accepted, because other users cannot replace files there.
    """
    names, parent, links = path.split("/")[::-1], "", 0
    while names:
        name = names.pop()
        if name in ("", "."):
            continue
        if name == "..":
            parent = os.path.dirname(parent)
            continue
        current = parent + "/" + name
        try:
            status = os.lstat(current)
        except FileNotFoundError:
            return ""
        if status.st_uid not in (0, os.getuid()):
            return current + " belongs to another user"
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(current)
            links += 1
            if links > MAX_LINKS:
                return current + " has too many levels of links"
            parent = "" if target.startswith("/") else parent
            names += target.split("/")[::-1]
            continue
        if is_writable_by_others(status) and not (names and status.st_mode & stat.S_ISVTX):
            return current + " can be written by others"
        parent = current
    return ""


def is_shared(path: str) -> bool:
    """Check whether a path is below a folder with the sticky bit, such as /tmp.

    If this user deletes the path, another user may create a path of the same name there.
    """
    folder = os.path.realpath(path)
    while folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
        if os.path.isdir(folder) and os.stat(folder).st_mode & stat.S_ISVTX:
            return True
    return False


def is_writable_by_others(status: os.stat_result) -> bool:
    """Check whether other users may write to a file. A user's private group does not count as others."""
    return bool(status.st_mode & 0o002 or (status.st_mode & 0o020 and status.st_gid != status.st_uid))


def unusable_reason(root: str) -> str:
    """Return why a folder is not usable for skyward's files, or ""."""
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
        problem = distrust_reason(root) or find_untrusted_entry(root)
        if problem:
            return problem
        trial = os.path.join(root, f".trial-{unique_token()}")
        with open(trial, "wb") as file:
            file.write(b"x" * 4096)
        os.unlink(trial)
        space = os.statvfs(root)
    except OSError as error:
        return error.strerror or str(error)
    free = space.f_bavail * space.f_frsize
    return "" if free >= MIN_FREE_BYTES else f"only {free >> 20} MB free"


def unique_token() -> str:
    """Return a name that no other process uses: containers with a shared home may have equal pids."""
    return os.urandom(8).hex()


def find_untrusted_entry(root: str) -> str:
    """Return why a folder is not trusted, or "". If others can access the folder, check its entries, too."""
    status = os.stat(root)
    if status.st_uid != os.getuid():
        return root + " belongs to another user"
    if not status.st_mode & 0o077:
        return ""
    return next(filter(None, (distrust_reason(os.path.join(root, name)) for name in os.listdir(root))), "")


def socket_path(root: str, folder: str) -> str:
    """Return the path of an agent's socket, which must not exceed the system's limit of about 100 bytes."""
    path = NodePaths(f"{pools_folder(root)}/{folder}").socket
    if len(path) <= 90:
        return path
    short = f"/tmp/skyward-{os.getuid()}"
    problem = unusable_reason(short)
    if problem:
        raise OSError(f"cannot create a socket: {path} is too long and {short} is not usable: {problem}")
    import hashlib

    return os.path.join(short, hashlib.sha256(os.fsencode(path)).hexdigest()[:16] + ".sock")


def collect_facts(request: dict[str, Any]) -> dict[str, Any]:
    """Return the facts about this host that the client needs before it sends any files."""
    root, problems, distrust = choose_root(request["folder"])
    connection = os.environ.get("SSH_CONNECTION", "").split()
    facts: dict[str, Any] = {
        "python": sys.executable,
        "version": list(sys.version_info[:3]),
        "home": os.path.expanduser("~"),
        "hostname": os.uname().nodename,
        "system": os.uname().sysname,
        "machine": os.uname().machine,
        "uid": os.getuid(),
        "address": connection[2] if len(connection) == 4 else "",
        "port": int(connection[3]) if len(connection) == 4 else 0,
        "time": time.time(),
        "root": root,
        "unusable": problems,
        "doubted": distrust,
        "gpus": list_gpus(),
        "nvml": any(map(os.path.exists, NVIDIA_DEVICES)),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }
    if root:
        space = os.statvfs(root)
        facts["free"] = space.f_bavail * space.f_frsize
        bundle = os.path.join(root, request["bundles"][facts["nvml"]])
        facts["bundle"], facts["rest"] = (
            os.path.exists(each) and not distrust_reason(each) for each in (bundle, deferred_bundle_path(bundle))
        )
        facts["socket"] = socket_path(root, request["folder"]) if request["folder"] else ""
        facts["shared"] = is_shared(root) or is_shared(facts["socket"])
        pool_folder = f"{pools_folder(root)}/{request['folder']}"
        facts["running"] = is_running(pool_folder)
        if request.get("status"):
            retained = NodePaths(pool_folder).retained_folder
            # An agent that runs in this folder is about to end, or serves retained results.
            facts["running"] = facts["running"] or is_running(retained)
            facts["kept"] = read_retained_facts(retained)
            # Search all candidate folders: the pool's folder may be inaccessible while its processes run.
            pool_folders = [f"{pools_folder(each)}/{request['folder']}" for each in all_roots()]
            facts["orphans"] = sorted({pid for each in pool_folders for pid in find_node_processes(each)})
            facts["left"] = bool(request["folder"]) and is_recoverable(pool_folder, facts["orphans"])
            facts["ended"], facts["ended_at"] = read_exit_reason(pool_folder)
    return facts


def read_retained_facts(folder: str) -> dict[str, Any]:
    """Return a description of the retained results in a folder; {} for folders without retained results.

    Returns:
        ``until`` (Unix time of expiry), ``runs`` (unfetched bytes by run) and ``bytes`` (size on disk).
    """
    try:
        with open(NodePaths(folder).retained_facts, encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return {}


def is_running(folder: str) -> bool:
    """Check whether an agent holds the lock of a pool's folder."""
    try:
        with open(NodePaths(folder).lock, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def read_exit_reason(folder: str) -> tuple[str, float]:
    """Return the exit reason that an agent wrote, and its Unix time; "" and 0 if there is none."""
    try:
        with open(NodePaths(folder).exit_reason, encoding="utf-8") as file:
            return file.read().strip(), os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return "", 0.0


def find_node_processes(folder: str) -> list[int]:
    """Find this user's processes that belong to a node.

    A process belongs to a node if it has the node's mark in its environment, prints into the node's folder, or descends
    from such a process. Requires /proc.
    """
    parents = parent_pids()
    found: set[int] = set()
    for pid in parents:
        try:
            if os.stat(f"/proc/{pid}").st_uid == os.getuid() and belongs_to_node(pid, folder):
                found.add(pid)
        except OSError:
            continue  # The process has ended, or this user may not read its files in /proc.
    return sorted(with_descendants(found, parents) - {os.getpid()})


def parent_pids() -> dict[int, int]:
    """Return pid -> parent's pid of all running processes, without kernel threads; {} without /proc."""
    parents: dict[int, int] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc")) if os.path.isdir("/proc") else ()):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                state, parent, *_, flags = file.read().rpartition(b")")[2].split()[:7]
        except OSError:
            continue  # The process has ended, or this user may not read its files in /proc.
        if state not in (b"Z", b"X") and not int(flags) & PF_KTHREAD:
            parents[pid] = int(parent)
    return parents


def with_descendants(pids: set[int], parents: dict[int, int]) -> set[int]:
    """Return the given processes together with all their descendants."""
    found = set(pids)
    while below := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= below
    return found


def belongs_to_node(pid: int, folder: str) -> bool:
    """Check whether a process has a node's mark in its environment, or prints into the node's folder.

    Raises:
        OSError: If the process has ended or belongs to another user.
    """
    marks = b"\0" + read_environment(pid)
    _, has, value = marks.partition(b"\0" + NODE_VARIABLE.encode() + b"=")
    if has and b":" + os.fsencode(folder) + b":" in b":" + value.partition(b"\0")[0] + b":":
        return not is_elevated(pid)
    for number in (1, 2):
        try:
            if os.readlink(f"/proc/{pid}/fd/{number}").startswith(folder + "/"):
                return True
        except FileNotFoundError:
            continue  # The process has closed the descriptor since the listing.
    return False


def is_elevated(pid: int) -> bool:
    """Check whether a process gained rights from a set-user-ID program (sudo, su), according to its auxiliary vector.

    Another user may have started such a process, so its environment is not trusted.
    """
    with open(f"/proc/{pid}/auxv", "rb") as file:
        words = memoryview(file.read()).cast("L").tolist()
    return any(words[at] == AT_SECURE and words[at + 1] for at in range(0, len(words) - 1, 2))


def read_environment(pid: int) -> bytes:
    """Return the environment with which a process started. Retry, because it is briefly empty during exec()."""
    for _ in range(MAX_EXEC_RETRIES):
        with open(f"/proc/{pid}/environ", "rb") as file:
            found = file.read()
        if found:
            break
        time.sleep(0.001)
    return found


def list_gpus() -> list[str]:
    """Return the names of the NVIDIA GPUs from /proc, without starting a program."""
    names = []
    base = "/proc/driver/nvidia/gpus"
    for entry in sorted(os.listdir(base)) if os.path.isdir(base) else []:
        with open(os.path.join(base, entry, "information"), encoding="utf-8", errors="replace") as file:
            names += [line.partition(":")[2].strip() for line in file if line.startswith("Model:")]
    return names


def is_recoverable(folder: str, workers: list[int]) -> bool:
    """Check whether a new agent can take over the folder of an agent that has ended.

    Workers must still run, or the lease must be valid and the machine must not have restarted.
    """
    try:
        state, last = last_activity(folder)
    except FileNotFoundError:
        return False
    return bool(workers) or (not is_lease_expired(state, last) and last > boot_time())


def is_lease_expired(state: dict[str, Any], last: float) -> bool:
    """Check whether a pool's folder has been inactive for longer than the lease allows."""
    return bool(time.time() - last >= max(state.get("idle_timeout", UNKNOWN_LEASE), MIN_LEASE))


def boot_time() -> float:
    """Return when the system or the enclosing container started, as Unix time; 0.0 if unknown."""
    try:
        with open("/proc/1/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        with open("/proc/uptime", "rb") as file:
            up = float(file.read().split()[0])
    except OSError:
        return 0.0
    return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")


def last_activity(folder: str) -> tuple[dict[str, Any], float]:
    """Return the state that a folder's agent saved ({} if none), and the Unix time of the folder's latest change."""
    spool = NodePaths(folder).spool
    paths = [folder, spool] + [os.path.join(spool, name) for name in os.listdir(spool)]
    last = max(os.stat(path).st_mtime for path in paths)
    try:
        with open(NodePaths(folder).state, encoding="utf-8") as file:
            return dict(json.load(file)), last
    except FileNotFoundError:
        return {}, last
