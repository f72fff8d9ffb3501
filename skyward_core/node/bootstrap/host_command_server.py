"""Command server on a host, the first code that the client runs there.

The client sends this module as bytecode, together with ``node.deferred_imports`` and
``bootstrap.host_inspection``, and runs it with ``python -I -S`` through one command channel. The code uses
only the standard library and must not contain secrets.

A request on standard input consists of the length of a header in eight hexadecimal digits, the JSON header, and the
bytes that the header announces. An answer on standard output is a line that begins with a token of the channel, so that
other output, such as a banner, cannot be mistaken for an answer.
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

TYPE_CHECKING = False  # Not imported, because ``from typing import TYPE_CHECKING`` would load the module typing.

if TYPE_CHECKING:
    from typing import Any

# Importing pathlib would take as long as running this module.
# ruff: noqa: PTH103, PTH104, PTH108, PTH110, PTH112, PTH118, PTH208, PTH120


PARTIAL_FILE_AGE = 3600.0  # seconds after which a partial upload counts as abandoned
EXIT_REASON_AGE = 30 * 86400.0  # seconds for which the exit reason of an agent is stored for its client
BUNDLE_ARRIVED, START_AGENT = b"n", b"g"
# seconds between heartbeats; the client gives up on a host that sends nothing for several intervals
HEARTBEAT_INTERVAL = 1.0

_is_answering = False


def receive(size: int) -> bytes:
    """Read exactly ``size`` bytes of standard input, because later bytes may be for another program."""
    data = bytearray()
    while len(data) < size:
        part = os.read(0, min(size - len(data), 1 << 20))
        if not part:
            os._exit(98)  # End of file: the client has disconnected.
        data += part
    return bytes(data)


def receive_request() -> dict[str, Any]:
    return dict(json.loads(receive(int(receive(8), 16))))


def send_answer(token: str, **values: Any) -> None:
    global _is_answering
    data = f"\n{token} {json.dumps(values)}\n".encode()
    _is_answering = True
    while data:
        data = data[os.write(1, data) :]
    _is_answering = False


def send_heartbeat(*_: object) -> None:
    """Send a blank line that shows the client that this process is alive."""
    if not _is_answering:
        try:  # noqa: SIM105  # importing contextlib takes too long
            os.write(1, b"\n")
        except OSError:
            pass  # Ignore the error, because the running command detects the client's disconnection itself.


def save_bundle(root: str, name: str, size: int) -> None:
    """Save a code bundle atomically. Never overwrite a bundle that processes may be reading."""
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
        if not os.path.isdir(target):
            # If the folder exists, another connection of this user has saved the same bundle first.
            raise


def unpack(archive: bytes, path: str) -> None:
    """Write the received zip file of a code bundle to a path, and create its folder."""
    import zlib

    os.makedirs(os.path.dirname(path), exist_ok=True)
    start = zlib.decompressobj()
    with open(path, "wb") as file:
        file.write(start.decompress(archive))
        file.write(start.unused_data)


def load_ephemeral_bundle(archive: bytes) -> str:
    """Load a bundle into memory for the lifetime of this channel, for clients that must not leave files on the host."""
    import zlib

    start = zlib.decompressobj()
    file = os.memfd_create("skyward-bundle")
    data = start.decompress(archive) + start.unused_data
    while data:
        data = data[os.write(file, data) :]
    return f"/proc/self/fd/{file}"


def remove_stale_folders(root: str) -> None:
    """Delete leftover folders of crashed pools whose lease has expired, and expired retained results."""
    for name in os.listdir(root):
        part = os.path.join(root, name)
        # Remove partial uploads of clients that were killed.
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
            from skyward_core.node.agent.results_retained_after_node_end import remove_or_retain

            remove_or_retain(folder, state.get("keep_results", 0.0))
            for path in (socket, worker_socket_path(socket)):
                if os.path.exists(path):
                    os.unlink(path)
        except (OSError, ValueError):
            continue  # Skip a folder that does not belong to a pool, or that another process is deleting.


class PreparedProcess:
    """A child process that later starts the agent. It is forked early, while this process uses little memory.

    Args:
        early: Whether the child imports the agent's modules in advance. It imports the bundle's modules later, when the
            bundle has arrived.
    """

    def __init__(self, root: str, bundle: str, early: bool, token: str) -> None:
        path = os.path.join(root, bundle)
        if early:
            install_lazy_modules()
            # Import modules that both processes need before the fork, so that they are imported only once.
            import contextlib  # noqa: F401
            import pathlib  # noqa: F401
        commands, self._pipe = os.pipe()
        self._child = os.fork()
        if not self._child:
            os.close(self._pipe)
            command = BUNDLE_ARRIVED
            while command == BUNDLE_ARRIVED:
                if early:
                    preload_agent(path)
                command = os.read(commands, 1)
            if not command:
                os._exit(0)  # End of file: the client has disconnected.
            use_bundle(path)
            remove_stale_folders(root)
            from skyward_core.node.agent.__main__ import main

            main(is_client_connected, f"\n{token} ")
        os.close(commands)

    def notify_bundle_arrived(self) -> None:
        """Notify the child process that the bundle has arrived."""
        os.write(self._pipe, BUNDLE_ARRIVED)

    def start(self) -> None:
        """Let the child process start the agent, and exit with its status. The agent's config is on standard input."""
        os.write(self._pipe, START_AGENT)
        _, status = os.waitpid(self._child, 0)
        os._exit(os.waitstatus_to_exitcode(status))


def is_client_connected() -> bool:
    """Check whether the client is connected. Standard input becomes readable only when the channel is closed."""
    import select

    return not select.select([0], [], [], 0)[0]


def preload_agent(path: str) -> None:
    """Import the modules that an agent needs, except for those in the part of the bundle that has not arrived."""
    import_asyncio()
    if os.path.exists(path):
        use_bundle(path)
        from skyward_core.node.agent.__main__ import preload_modules

        preload_modules()


def use_bundle(path: str) -> None:
    """Make the modules of a bundle importable.

    Does not run the package's ``__init__``, which would load unneeded modules.
    """
    if path not in sys.path:
        sys.path.insert(0, path)
        package = type(sys)("skyward_core")
        package.__path__ = [os.path.join(path, "skyward_core")]
        sys.modules["skyward_core"] = package
        from skyward_core.node.library_bundle_importer import install_bundle_importer

        install_bundle_importer(path)


def serve(request: dict[str, Any]) -> None:
    """Answer requests of the client until it closes the channel."""
    token = request["word"]
    login = os.umask(0o077)
    os.umask(login | 0o022)  # Forbid other users to write to our files, whatever the login's umask is.
    os.environ[UMASK] = f"{login:o}"  # Files of the ranks get the permissions of the user's login.
    try:
        facts = collect_facts(request)
    except OSError as error:
        send_answer(token, error=str(error), kind=type(error).__name__)
        return
    send_answer(token, **facts)
    root, bundle = facts["root"], request["bundles"][facts["nvml"]]
    path = os.path.join(root, bundle)
    early = bool(root and request.get("starts")) and not facts["running"]
    starter = PreparedProcess(root, bundle, early, token)
    signal.signal(signal.SIGALRM, send_heartbeat)
    signal.setitimer(signal.ITIMER_REAL, HEARTBEAT_INTERVAL, HEARTBEAT_INTERVAL)
    while True:
        header = receive_request()
        action = header.pop("do")
        try:
            if action == "bundle":
                save_bundle(root, bundle, header["size"])
                starter.notify_bundle_arrived()
                send_answer(token)
            elif action == "lend":
                path = load_ephemeral_bundle(receive(header["size"]))
                send_answer(token)
            elif action == "rest":
                save_bundle(root, deferred_bundle_path(bundle), header["size"])
                send_answer(token)
            elif action == "start":
                send_answer(token)
                starter.start()
            else:
                use_bundle(path)
                from skyward_core.node.bootstrap import host_commands

                send_answer(
                    token,
                    **host_commands.run_host_command(
                        action, header, root, receive, lambda line: send_answer(token, line=line)
                    ),
                )
        except (OSError, ValueError) as error:
            send_answer(token, error=str(error), kind=type(error).__name__)


if __name__ == "__main__":
    serve(receive_request())
