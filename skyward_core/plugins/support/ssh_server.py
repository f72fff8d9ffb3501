"""An sshd of a node's own, by which the pool's other nodes, and nobody else, run commands on it.

It runs as the pool's user, without any rights more, beside the host's own sshd and the user's own keys, which stay as
they are.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from ...model.errors import PoolError
from . import ssh_session
from .host_files import SESSION, write_private
from .own_servers import check_free

PROGRAM = "sshd"
ELSEWHERE = "/usr/sbin:/sbin:/usr/local/sbin:/usr/local/bin"  # what a login over SSH may not have in its PATH
PRIVILEGED = "/run/sshd"  # where root's sshd goes for what needs no rights
PATIENCE = 30.0  # seconds for the server to be there
PAUSE = 0.02  # seconds between looks
AGAIN = 1.0  # seconds until one that has ended is started anew
GRACE = 5.0  # seconds that it has to end
PR_SET_PDEATHSIG = 1
GREETING = b"SSH-"
SAID = "sshd.log"
# Who guesses keys from a node's own address must not have the node's commands refused; older ones refuse nobody.
NEWER = "PerSourcePenalties"
SETTINGS = f"""\
{NEWER} no
Port {{port}}
ListenAddress {{address}}
HostKey "{{folder}}/host_key"
AuthorizedKeysFile "{{folder}}/authorized_keys"
ForceCommand {{command}}
AllowUsers {{user}}
PidFile none
# Who could write on the way there has been looked at already, by rules that know folders such as /tmp.
StrictModes no
AuthenticationMethods publickey
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PermitUserEnvironment no
PermitUserRC no
DisableForwarding yes
UsePAM no
UseDNS no
PrintMotd no
PrintLastLog no
LoginGraceTime 20
MaxStartups 1000
MaxSessions 1000
ClientAliveInterval 30
ClientAliveCountMax 4
# Strangers that knock fill no disk.
LogLevel FATAL
"""


@contextmanager
def server(plugin: str, folder: Path, address: str, port: int, host_key: str, admits: str) -> Iterator[None]:
    """Have it while the block runs; with it ends all that others run here by it.

    Args:
        plugin: which has it.
        folder: of the node's own, where it has its files.
        address: this node's, at which others reach it.
        port: at that address.
        host_key: the private key that it shows itself by.
        admits: the public key of who may come.

    Raises:
        PoolError: no sshd is installed, or it does not start.
    """
    program = _program()
    check_free(plugin, address, port)
    write_private(folder / "host_key", host_key)
    write_private(folder / "authorized_keys", f"restrict,pty {admits}\n")
    write_private(folder / "session.py", inspect.getsource(ssh_session))
    settings = folder / "sshd_config"
    write_private(settings, _settings(folder, address, port))
    if NEWER in _run([program, "-t", "-f", str(settings)]):
        write_private(settings, settings.read_text().replace(f"{NEWER} no\n", ""))
    keeper = _Keeper([program, "-D", "-e", "-f", str(settings)], folder / SAID)
    try:
        keeper.start(address, port)
        yield
    finally:
        keeper.end()


class _Keeper:
    """The server's process, started anew where it ends by itself: what runs on other nodes may not have noticed."""

    def __init__(self, command: Sequence[str], said: Path) -> None:
        self._command, self._said = command, said
        self._over = Event()
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, address: str, port: int) -> None:
        child = self._begin()
        until = time.monotonic() + PATIENCE
        while child.poll() is None:
            with suppress(OSError), socket.create_connection((address, port), PATIENCE) as probe:
                if probe.recv(len(GREETING)) == GREETING:
                    Thread(target=self._keep, name="sshd", daemon=True).start()
                    return
            if time.monotonic() > until:
                raise PoolError(f"sshd does not listen at {address}:{port} after {PATIENCE:g} s")
            time.sleep(PAUSE)
        raise PoolError(f"sshd ended with status {child.returncode}: {_last(self._said)}")

    def end(self) -> None:
        self._over.set()
        child = self._child
        if child is None:
            return
        # Those of its connections outlive it, and have to end too; it goes first, so that no more come.
        below = _below(child.pid)
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE)
        child.kill()
        child.wait()
        for pid in below:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _begin(self) -> subprocess.Popen[bytes]:
        libc = ctypes.CDLL(None)

        def with_us() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

        # What a node runs is known by where it prints, where its environment does not tell: sshd writes over that.
        with open(os.open(self._said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as said:
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, preexec_fn=with_us
            )
        return self._child

    def _keep(self) -> None:
        # Started by this thread, it would end with it: so it lives as long as this process.
        while self._child is not None:
            status = self._child.wait()
            if self._over.wait(AGAIN):
                return
            sys.stderr.write(f"sshd ended with status {status}, and is started anew: {_last(self._said)}\n")
            sys.stderr.flush()
            self._begin()


def _program() -> str:
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), ELSEWHERE))
    if found := shutil.which(PROGRAM, path=path):
        return str(Path(found).absolute())  # it starts itself again for each connection
    raise PoolError(
        f"there is no sshd on this node ({socket.gethostname()}), by which the others would run commands on it: "
        "install one there (Debian: apt-get install openssh-server), or have the pool do so with "
        'sky.Image(apt=["openssh-server"])'
    )


def _settings(folder: Path, address: str, port: int) -> str:
    if set(str(folder)) & set('"%\\\n'):
        raise PoolError(f"{str(folder)!r} has a character in its name that sshd does not read as it is")
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError as error:
        raise PoolError(
            f"user {os.getuid()} has no name on this node, and sshd admits none without"
        ) from error
    if not os.getuid():
        with suppress(OSError):
            Path(PRIVILEGED).mkdir(mode=0o755, exist_ok=True)
    words = [sys.executable, "-ISs", str(folder / "session.py"), str(folder / SESSION)]
    return SETTINGS.format(
        port=port,
        address=f"[{address}]" if ":" in address else address,
        folder=folder,
        command=f"exec {shlex.join(words)}",
        user=user,
    )


def _run(command: Sequence[str]) -> str:
    """What a program says."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE
    )
    return done.stdout.decode(errors="replace")


def _below(pid: int) -> list[int]:
    """What has been started below a process, and still is."""
    found: list[int] = []
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(each), *_below(int(each))]
    return found


def _last(said: Path) -> str:
    lines = said.read_text(errors="replace").split("\n")
    return next(filter(None, map(str.strip, reversed(lines))), "it said nothing")
