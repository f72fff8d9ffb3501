"""How one host of the lab differs from a plain one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
        private: folders of which the host has a copy of its own, as a machine with its own disk has; what it
            writes there, the others and this machine never see.
        second_root: another name for root ("ubuntu"), with a home of its own in the home; empty for none.
        before_sshd: shell text that root runs once all else is in place, before sshd starts.
        sshd: lines at the top of sshd's configuration, where the first that says something counts.
        host_key_file: where sshd finds its host key; other than by default, ``before_sshd`` puts it there.
        variables: environment of every login.
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
