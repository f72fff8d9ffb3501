"""How one host of the lab differs from a plain one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class HostOptions:
    """The quirks of a host. The defaults are those of OpenSSH and of a healthy machine.

    Args:
        banner: what sshd sends before the login.
        startup: shell text at the top of the user's start-up files (``echo hello; sleep 2``).
        max_sessions: sshd's MaxSessions (channels of one connection).
        max_startups: sshd's MaxStartups (connections that have not logged in yet), such as "2".
        tcp_forwarding: sshd's AllowTcpForwarding.
        unix_forwarding: sshd's AllowStreamLocalForwarding.
        has_python: False leaves no python, pypy or uv in any folder of the PATH.
        home_writable: False mounts the home read-only.
        home_mb: size of the home's file system in MiB; None for 4 GiB.
        clock_offset: seconds that the clock is off, for all programs of a login. Linux has no namespace for
            this clock, so a preloaded library does it; programs without the C library see the true time.
        names: "good": its own and its peers' names resolve both ways, others fail at once; "gone": nothing
            but localhost resolves, and every question waits for an answer that never comes.
    """

    banner: str = ""
    startup: str = ""
    max_sessions: int | None = None
    max_startups: str | None = None
    tcp_forwarding: bool = True
    unix_forwarding: bool = True
    has_python: bool = True
    home_writable: bool = True
    home_mb: int | None = None
    clock_offset: int = 0
    names: Literal["good", "gone"] = "good"
