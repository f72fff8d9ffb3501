"""What the client runs on a host before anything is there: sent as bytecode, run by ``python -I -S``, together with
``node.deferred_imports`` and ``bootstrap.host_inspection``.

It speaks through the one command channel that it was started by. Requests come on standard input, each a
header line of JSON (eight hexadecimal digits of length before it) and the bytes it announces; answers go to
standard output as lines that begin with a word made for this channel, so that whatever else is printed there
(a login shell's start-up files, a banner) can never be taken for an answer. Standard library only; no line of
it may be a secret's place, as it is text that everybody has.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from skyward_core.node.bootstrap.host_inspection import (
    collect_facts,
    distrust_reason,
    find_node_processes,
    is_lease_expired,
    is_running,
    last_activity,
    read_retained_facts,
    unique_token,
)
from skyward_core.node.deferred_imports import import_asyncio, install_lazy_modules
from skyward_core.protocol.node_paths import (
    EXIT_REASON_PREFIX,
    RETAINED_PREFIX,
    UMASK,
    NodePaths,
    deferred_bundle_path,
    pools_folder,
    worker_socket_path,
)

TYPE_CHECKING = False  # typing's would be imported for it

if TYPE_CHECKING:
    from typing import Any

# pathlib would take as long to import as all the rest here takes to run.
# ruff: noqa: PTH103, PTH104, PTH108, PTH110, PTH112, PTH118, PTH208, PTH120


PARTIAL_FILE_AGE = 3600.0  # seconds after which nobody can still be writing something that is not whole
EXIT_REASON_AGE = 30 * 86400.0  # seconds that an agent's last word waits for its client
BUNDLE_ARRIVED, START_AGENT = b"n", b"g"
HEARTBEAT_INTERVAL = 1.0  # seconds; the client takes a host for stalled that sends nothing for two of them, or more

_is_answering = False


def receive(size: int) -> bytes:
    """Exactly ``size`` bytes of standard input, and not one more: the rest may be for the next program."""
    data = bytearray()
    while len(data) < size:
        part = os.read(0, min(size - len(data), 1 << 20))
        if not part:
            os._exit(98)  # the client has gone
        data += part
    return bytes(data)


def receive_request() -> dict[str, Any]:
    return dict(json.loads(receive(int(receive(8), 16))))


def send_answer(word: str, **values: Any) -> None:
    global _is_answering
    data = f"\n{word} {json.dumps(values)}\n".encode()
    _is_answering = True
    while data:
        data = data[os.write(1, data) :]
    _is_answering = False


def send_heartbeat(*_: object) -> None:
    """Show the client that this process is alive."""
    if not _is_answering:
        try:  # noqa: SIM105  contextlib would have to be imported
            os.write(1, b"\n")
        except OSError:
            pass  # whatever is being done has to know by itself that the client has gone


def save_bundle(root: str, name: str, size: int) -> None:
    """Write a bundle beside where it shall be, and rename its folder: whole or not at all, and never in the place of
    one that processes read already."""
    folder, file = os.path.split(name)
    target = os.path.join(root, folder)
    partial = f"{target}.{unique_token()}.part"
    if distrust_reason(os.path.join(root, name)):
        import shutil

        shutil.rmtree(target)
    try:
        unpack(receive(size), os.path.join(partial, file))
        os.rename(partial, target)
    except OSError:
        import shutil

        shutil.rmtree(partial, ignore_errors=True)
        if not os.path.isdir(target):  # else another of our channels was quicker
            raise


def unpack(archive: bytes, path: str) -> None:
    """Write a zip file of a bundle, in a folder of its own."""
    import zlib

    os.makedirs(os.path.dirname(path), exist_ok=True)
    start = zlib.decompressobj()
    with open(path, "wb") as file:
        file.write(start.decompress(archive))
        file.write(start.unused_data)


def load_ephemeral_bundle(archive: bytes) -> str:
    """Have a bundle in memory alone, for as long as this channel is open: who only looks leaves nothing here."""
    import zlib

    start = zlib.decompressobj()
    file = os.memfd_create("skyward-bundle")
    data = start.decompress(archive) + start.unused_data
    while data:
        data = data[os.write(file, data) :]
    return f"/proc/self/fd/{file}"


def remove_stale_folders(root: str) -> None:
    """Remove the folders of pools that ended without a word, as by a power cut, once their leases are over, and those
    kept ones whose time is over. What nobody has fetched is kept."""
    for name in os.listdir(root):
        part = os.path.join(root, name)
        # What a client was killed while it sent.
        if name.endswith(".part") and os.path.isdir(part) and time.time() - os.stat(part).st_mtime > PARTIAL_FILE_AGE:
            import shutil

            shutil.rmtree(part, ignore_errors=True)
    base = pools_folder(root)
    for name in os.listdir(base) if os.path.isdir(base) else ():
        folder = os.path.join(base, name)
        try:
            if name.startswith(EXIT_REASON_PREFIX):
                if time.time() - os.stat(folder).st_mtime > EXIT_REASON_AGE:
                    os.unlink(folder)
                continue
            if name.startswith(RETAINED_PREFIX) and read_retained_facts(folder).get("until", 0) > time.time():
                continue
            state, last = last_activity(folder)
            if not is_lease_expired(state, last) or is_running(folder) or find_node_processes(folder):
                continue
            socket = state.get("socket", NodePaths(folder).socket)
            from skyward_core.node.agent.retained_results import remove_or_retain

            remove_or_retain(folder, state.get("keep_results", 0.0))
            for path in (socket, worker_socket_path(socket)):
                if os.path.exists(path):
                    os.unlink(path)
        except (OSError, ValueError):
            continue  # no pool's folder, or somebody removes it just now


class PreparedProcess:
    """A process set aside to become the agent's starter, as long as there is little memory for it to inherit.

    Args:
        early: have it import meanwhile what an agent needs, of the bundle too as soon as that is here.
    """

    def __init__(self, root: str, bundle: str, early: bool, word: str) -> None:
        path = os.path.join(root, bundle)
        if early:
            install_lazy_modules()
            # What both of us need is imported once.
            import contextlib  # noqa: F401
            import pathlib  # noqa: F401
        told, self._pipe = os.pipe()
        self._child = os.fork()
        if not self._child:
            os.close(self._pipe)
            told_of = BUNDLE_ARRIVED
            while told_of == BUNDLE_ARRIVED:
                if early:
                    preload_agent(path)
                told_of = os.read(told, 1)
            if not told_of:
                os._exit(0)  # the client has gone
            use_bundle(path)
            remove_stale_folders(root)
            from skyward_core.node.agent.__main__ import main

            main(is_client_connected, f"\n{word} ")
        os.close(told)

    def notify_bundle_arrived(self) -> None:
        """The bundle is here."""
        os.write(self._pipe, BUNDLE_ARRIVED)

    def start(self) -> None:
        """Have it go on, and end with it; the agent's config is what comes next on standard input."""
        os.write(self._pipe, START_AGENT)
        _, status = os.waitpid(self._child, 0)
        os._exit(os.waitstatus_to_exitcode(status))


def is_client_connected() -> bool:
    """Whether the channel is open, in which the client says nothing any more until the agent has answered."""
    import select

    return not select.select([0], [], [], 0)[0]


def preload_agent(path: str) -> None:
    """Import what an agent needs, but for the bundle where it is not here yet."""
    import_asyncio()
    if os.path.exists(path):
        use_bundle(path)
        from skyward_core.node.agent.__main__ import preload_modules

        preload_modules()


def use_bundle(path: str) -> None:
    """Make the bundle's modules importable, past the package's own start: neither a host task nor an agent needs what
    that loads."""
    if path not in sys.path:
        sys.path.insert(0, path)
        package = type(sys)("skyward_core")
        package.__path__ = [os.path.join(path, "skyward_core")]
        sys.modules["skyward_core"] = package
        from skyward_core.node.bundle_importer import install_bundle_importer

        install_bundle_importer(path)


def serve(asked: dict[str, Any]) -> None:
    """Answer requests until the client has had enough."""
    word = asked["word"]
    login = os.umask(0o077)
    os.umask(login | 0o022)  # what we make is for nobody else to write, whatever the login says
    os.environ[UMASK] = f"{login:o}"  # what ranks make is the person's affair
    try:
        known = collect_facts(asked)
    except OSError as error:
        send_answer(word, error=str(error), kind=type(error).__name__)
        return
    send_answer(word, **known)
    root, bundle = known["root"], asked["bundles"][known["nvml"]]
    path = os.path.join(root, bundle)
    early = bool(root and asked.get("starts")) and not known["running"]
    starter = PreparedProcess(root, bundle, early, word)
    signal.signal(signal.SIGALRM, send_heartbeat)
    signal.setitimer(signal.ITIMER_REAL, HEARTBEAT_INTERVAL, HEARTBEAT_INTERVAL)
    while True:
        wanted = receive_request()
        what = wanted.pop("do")
        try:
            if what == "bundle":
                save_bundle(root, bundle, wanted["size"])
                starter.notify_bundle_arrived()
                send_answer(word)
            elif what == "lend":
                path = load_ephemeral_bundle(receive(wanted["size"]))
                send_answer(word)
            elif what == "rest":
                save_bundle(root, deferred_bundle_path(bundle), wanted["size"])
                send_answer(word)
            elif what == "start":
                send_answer(word)
                starter.start()
            else:
                use_bundle(path)
                from skyward_core.node.bootstrap import host_commands

                send_answer(
                    word,
                    **host_commands.run_host_command(
                        what, wanted, root, receive, lambda line: send_answer(word, line=line)
                    ),
                )
        except (OSError, ValueError) as error:
            send_answer(word, error=str(error), kind=type(error).__name__)


if __name__ == "__main__":
    serve(receive_request())
