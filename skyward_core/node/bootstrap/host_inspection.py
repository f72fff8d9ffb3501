"""What a host is like, and what of ours is on it: places that can be believed, agents that run, processes of nodes.

It is sent to hosts ahead of ``bootstrap.host_command_server`` and runs there first: it uses the standard library only,
nothing of the package.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import sys
import time

from skyward_core.protocol.node_paths import NodePaths, deferred_bundle_path, pools_folder

TYPE_CHECKING = False  # typing's would be imported for it

if TYPE_CHECKING:
    from typing import Any

# pathlib would take as long to import as all the rest here takes to run.
# ruff: noqa: PTH103, PTH108, PTH110, PTH111, PTH112, PTH115, PTH118, PTH208, PTH120


ROOTS = ("{cache}/skyward", "/var/tmp/skyward-{uid}", "/tmp/skyward-{uid}")
MIN_LEASE = 60.0  # seconds without a sign of life before a pool's folder may be called left behind
UNKNOWN_LEASE = 86400.0
# In the environment of all that a node runs: its folder, behind those of nodes that it runs in, with colons between.
NODE_VARIABLE = "SKYWARD_NODE"
MAX_EXEC_RETRIES = 3
NVIDIA_DEVICES = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")  # where its driver is, one of them is
AT_SECURE = 23  # in the auxiliary vector
PF_KTHREAD = 0x200000  # the flag of a thread of the kernel's own
MAX_LINKS = 40  # of one path, as the kernel has it
MIN_FREE_BYTES = 32 << 20  # bytes; an agent and its bundle need about 1 MB, its spool the rest


def all_roots() -> list[str]:
    """Where our things may be, the best place first."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return [root.format(cache=cache, uid=os.getuid()) for root in ROOTS]


def choose_root(folder: str) -> tuple[str, list[str], str]:
    """The first place that can be written, or where this pool lives; what was wrong with others; and why the pool's
    own place, which is there, is not to be believed."""
    roots = all_roots()
    for root in roots:
        place = f"{pools_folder(root)}/{folder}"
        if folder and os.path.exists(NodePaths(place).state):
            trouble = distrust_reason(place)
            if not trouble:
                return root, [], ""
            if os.lstat(place).st_uid == os.getuid():
                return "", [trouble], trouble
    wrong: list[str] = []
    for root in roots:
        trouble = unusable_reason(root)
        if not trouble:
            return root, wrong, ""
        wrong.append(root + ": " + trouble)
    return "", wrong, ""


def distrust_reason(path: str) -> str:
    """How somebody else could have put there what lies at a path, or "": each folder on the way, and each link, must
    be ours or root's, and not for others to write. (In a folder such as /tmp nobody can replace what is ours.)"""
    names, at, links = path.split("/")[::-1], "", 0
    while names:
        name = names.pop()
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            continue
        here = at + "/" + name
        try:
            found = os.lstat(here)
        except FileNotFoundError:
            return ""
        if found.st_uid not in (0, os.getuid()):
            return here + " belongs to somebody else"
        if stat.S_ISLNK(found.st_mode):
            target = os.readlink(here)
            links += 1
            if links > MAX_LINKS:
                return here + " is a link that leads nowhere"
            at = "" if target.startswith("/") else at
            names += target.split("/")[::-1]
            continue
        if is_writable_by_others(found) and not (names and found.st_mode & stat.S_ISVTX):
            return here + " can be written by others"
        at = here
    return ""


def is_shared(path: str) -> bool:
    """Whether something of ours lies below a folder such as /tmp, where others take its place once it is gone."""
    at = os.path.realpath(path)
    while at != os.path.dirname(at):
        at = os.path.dirname(at)
        if os.path.isdir(at) and os.stat(at).st_mode & stat.S_ISVTX:
            return True
    return False


def is_writable_by_others(found: os.stat_result) -> bool:
    """Whether not only its owner may write something; a group of the owner's own, as many systems have it, is nobody
    else."""
    return bool(found.st_mode & 0o002 or (found.st_mode & 0o020 and found.st_gid != found.st_uid))


def unusable_reason(root: str) -> str:
    """Why a folder cannot hold our things, or ""."""
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
        trouble = distrust_reason(root) or find_untrusted_entry(root)
        if trouble:
            return trouble
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
    """What no other process has in a file's name: containers that share a home have the same pids."""
    return os.urandom(8).hex()


def find_untrusted_entry(root: str) -> str:
    """What others may have left in a folder of ours that they can enter, or ""."""
    found = os.stat(root)
    if found.st_uid != os.getuid():
        return root + " belongs to somebody else"
    if not found.st_mode & 0o077:
        return ""
    return next(filter(None, (distrust_reason(os.path.join(root, name)) for name in os.listdir(root))), "")


def socket_path(root: str, folder: str) -> str:
    """Where the agent of a pool's folder listens; a socket's path may hold about 100 bytes."""
    path = NodePaths(f"{pools_folder(root)}/{folder}").socket
    if len(path) <= 90:
        return path
    short = f"/tmp/skyward-{os.getuid()}"
    trouble = unusable_reason(short)
    if trouble:
        raise OSError(f"no place for a socket: {path} is too long, and {short}: {trouble}")
    import hashlib

    return os.path.join(short, hashlib.sha256(os.fsencode(path)).hexdigest()[:16] + ".sock")


def collect_facts(asked: dict[str, Any]) -> dict[str, Any]:
    """What the client must know of this host before it sends anything."""
    root, wrong, doubted = choose_root(asked["folder"])
    connection = os.environ.get("SSH_CONNECTION", "").split()
    known: dict[str, Any] = {
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
        "unusable": wrong,
        "doubted": doubted,
        "gpus": list_gpus(),
        "nvml": any(map(os.path.exists, NVIDIA_DEVICES)),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }
    if root:
        space = os.statvfs(root)
        known["free"] = space.f_bavail * space.f_frsize
        bundle = os.path.join(root, asked["bundles"][known["nvml"]])
        known["bundle"], known["rest"] = (
            os.path.exists(each) and not distrust_reason(each) for each in (bundle, deferred_bundle_path(bundle))
        )
        known["socket"] = socket_path(root, asked["folder"]) if asked["folder"] else ""
        known["shared"] = is_shared(root) or is_shared(known["socket"])
        place = f"{pools_folder(root)}/{asked['folder']}"
        known["running"] = is_running(place)
        if asked.get("status"):
            kept = NodePaths(place).retained_folder
            # It is about to end, or is being fetched from.
            known["running"] = known["running"] or is_running(kept)
            known["kept"] = read_retained_facts(kept)
            # In any of our places: the folder may be hidden, as by a home that is away, and what runs there goes on.
            places = [f"{pools_folder(each)}/{asked['folder']}" for each in all_roots()]
            known["orphans"] = sorted({pid for each in places for pid in find_node_processes(each)})
            known["left"] = bool(asked["folder"]) and is_recoverable(place, known["orphans"])
            known["ended"], known["ended_at"] = read_exit_reason(place)
    return known


def read_retained_facts(folder: str) -> dict[str, Any]:
    """What a folder holds that its agent has left because nobody had fetched it; see ``agent.retained_results``."""
    try:
        with open(NodePaths(folder).retained_facts, encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return {}


def is_running(folder: str) -> bool:
    """Whether an agent holds a pool's folder."""
    try:
        with open(NodePaths(folder).lock, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def read_exit_reason(folder: str) -> tuple[str, float]:
    """What an agent that ended by itself left as its word, and when, as Unix time; "" and 0 where it left none."""
    try:
        with open(NodePaths(folder).exit_reason, encoding="utf-8") as file:
            return file.read().strip(), os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return "", 0.0


def find_node_processes(folder: str) -> list[int]:
    """Our processes that belong to a node, where the system has /proc: they have its mark, print into its folder, or
    run below one that does. What others run, and whoever only names the folder, is none."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for pid in map(int, filter(str.isdigit, os.listdir("/proc")) if os.path.isdir("/proc") else ()):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                state, parent, *_, flags = file.read().rpartition(b")")[2].split()[:7]
            if state in (b"Z", b"X") or int(flags) & PF_KTHREAD:
                continue
            parents[pid] = int(parent)
            if os.stat(f"/proc/{pid}").st_uid == os.getuid() and belongs_to_node(pid, folder):
                found.add(pid)
        except OSError:
            continue  # it ended while we looked, or hides from us
    while below := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= below
    return sorted(found - {os.getpid()})


def belongs_to_node(pid: int, folder: str) -> bool:
    """Whether a process has a node's mark, or prints into its folder.

    Raises:
        OSError: it has ended, or is not ours.
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
            continue  # closed
    return False


def is_elevated(pid: int) -> bool:
    """Whether a process got its rights from its program's file (set-user-ID: sudo, su), so that another user may have
    started it, with an environment as that one liked; the kernel says so in the auxiliary vector."""
    with open(f"/proc/{pid}/auxv", "rb") as file:
        words = memoryview(file.read()).cast("L").tolist()
    return any(words[at] == AT_SECURE and words[at + 1] for at in range(0, len(words) - 1, 2))


def read_environment(pid: int) -> bytes:
    """What a process was started with; it has none for a moment while it becomes another program."""
    for _ in range(MAX_EXEC_RETRIES):
        with open(f"/proc/{pid}/environ", "rb") as file:
            found = file.read()
        if found:
            break
        time.sleep(0.001)
    return found


def list_gpus() -> list[str]:
    """Names of the NVIDIA GPUs, as the driver lists them; costs no start of another program."""
    names = []
    base = "/proc/driver/nvidia/gpus"
    for entry in sorted(os.listdir(base)) if os.path.isdir(base) else []:
        with open(os.path.join(base, entry, "information"), encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("Model:"):
                    names.append(line.partition(":")[2].strip())
    return names


def is_recoverable(folder: str, workers: list[int]) -> bool:
    """Whether a folder without an agent is there for another agent: work goes on in it; or its lease is not over, and
    the machine is as it was, and did not lose its power."""
    try:
        state, last = last_activity(folder)
    except FileNotFoundError:
        return False
    return bool(workers) or (not is_lease_expired(state, last) and last > boot_time())


def is_lease_expired(state: dict[str, Any], last: float) -> bool:
    """Whether nothing was heard of a pool's folder for longer than its agent would have lived."""
    return bool(time.time() - last >= max(state.get("idle_timeout", UNKNOWN_LEASE), MIN_LEASE))


def boot_time() -> float:
    """When the system was started, or the container that we are in; 0.0 where nothing tells."""
    try:
        with open("/proc/1/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        with open("/proc/uptime", "rb") as file:
            up = float(file.read().split()[0])
    except OSError:
        return 0.0
    return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")


def last_activity(folder: str) -> tuple[dict[str, Any], float]:
    """What an agent wrote of itself, if it came so far, and when something in its folder was last written."""
    spool = NodePaths(folder).spool
    paths = [folder, spool] + [os.path.join(spool, name) for name in os.listdir(spool)]
    last = max(os.stat(path).st_mtime for path in paths)
    try:
        with open(NodePaths(folder).state, encoding="utf-8") as file:
            return dict(json.load(file)), last
    except FileNotFoundError:
        return {}, last
