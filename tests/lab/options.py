"""Options of a lab host that differ from a plain one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Options of a host. The defaults are those of OpenSSH and of a healthy machine.

    Args:
        banner: Text that sshd sends before the login.
        startup: Shell code at the top of the user's startup files (``echo hello; sleep 2``).
        max_sessions: sshd's MaxSessions (channels of one connection).
        max_startups: sshd's MaxStartups (connections that have not logged in yet), such as "2".
        tcp_forwarding: sshd's AllowTcpForwarding.
        unix_forwarding: sshd's AllowStreamLocalForwarding.
        has_python: Whether folders of the PATH contain python, pypy or uv.
        home_writable: Whether the home is writable.
        home_mb: Size of the home's file system in MiB; None for 4 GiB.
        clock_offset: Seconds by which the clock is wrong for all programs of a login. A preloaded library shifts the
            clock, because Linux has no namespace for it. Programs without the C library see the true time.
        names: "good": the host's and its peers' names resolve both ways, and others fail at once. "gone": only
            localhost resolves, and every query waits for an answer that never comes.
        private: Folders of which the host has its own copy, like a machine with its own disk. Other hosts and this
            machine never see its changes.
        second_root: Second name for root ("ubuntu"), with its own home inside the home; empty for none.
        before_sshd: Shell code that root runs after all other set-up, before sshd starts.
        sshd: Lines at the top of sshd's configuration. The first value of an option counts.
        host_key_file: Path of the host key for sshd. If it is not the default, ``before_sshd`` creates the file.
        variables: Environment variables of every login.
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
    private: tuple[str, ...] = ()
    second_root: str = ""
    before_sshd: str = ""
    sshd: tuple[str, ...] = ()
    host_key_file: str = "/run/lab/host_key"
    variables: Mapping[str, str] = field(default_factory=dict)
