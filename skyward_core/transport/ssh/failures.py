"""What asyncssh and the operating system raise, as errors of ours. No other module here translates them."""

from __future__ import annotations

import socket

from ...model.errors import CredentialsRefused, PoolError, Unreachable, UsageError
from ...store.user_files import UnusableFile
from ...wire.safe_text import field as safe
from .asyncssh_import import asyncssh
from .keepalive import ANSWER_TIMEOUT
from .route import Route
from .target import Target


# asyncssh raises much more than its own errors and the system's: ValueError for an option that it cannot use,
# UnicodeError for a name, whatever a key's file, an agent or a proxy leads to. All of it is about one host.
def not_reached(target: Target, route: Route | None, error: Exception) -> PoolError:
    """Return the error for a login that failed: what went wrong, and what to do about it.

    Args:
        route: None if the configuration did not even yield one.
    """
    if isinstance(error, UnicodeError) and not isinstance(error, UnicodeDecodeError):  # of a name's encoding
        name = target.host if route is None else route.host
        return Unreachable(
            f"Host {target.host}: its name {name!r} cannot be looked up ({safe(str(error.__cause__ or error))}). Check "
            "the spelling, or give its address (or HostName in ~/.ssh/config)."
        )
    if route is None or not isinstance(error, OSError | asyncssh.Error):
        return Unreachable(
            f"Host {target.host} cannot be connected to: {odd(error)}. Check its name, its entries in ~/.ssh/config "
            f"and its key files: `ssh {target.host}` must work without a password."
        )
    refused = isinstance(error, asyncssh.PermissionDenied | asyncssh.IllegalUserName)
    return (CredentialsRefused if refused else Unreachable)(_in_words(target, route, error))


def key_unusable(target: Target, error: Exception) -> UsageError | None:
    """The error for a key file that was given and is missing or none; None if that is not what went wrong."""
    unread = asyncssh.KeyImportError | FileNotFoundError | PermissionError | IsADirectoryError | UnusableFile
    if target.keys and isinstance(error, unread):
        return UsageError(f"A key given for host {target.host} cannot be used: {error}.")
    return None


def no_channel(host: str, error: Exception, *, lost: bool) -> PoolError | ConnectionError:
    """The error for a command that could not be begun.

    Args:
        lost: whether the connection is gone.
    """
    if not isinstance(error, OSError | asyncssh.Error):
        return PoolError(f"Host {host} opens no command channel: {odd(error)}.")
    if not isinstance(error, asyncssh.ChannelOpenError):
        return link_lost(host, error)
    if lost:
        return link_lost(host)
    return PoolError(
        f"Host {host} opens no command channel ({error.reason}): its SSH server's "
        "MaxSessions may be used up, or commands are not allowed for this key."
    )


def link_lost(host: str, why: Exception | None = None) -> ConnectionError:
    """The error for a connection that was there: who has it tries again."""
    return ConnectionError(f"lost the connection to host {host}" + (f": {why}" if why else ""))


def silent(host: str, seconds: float, said: str = "") -> Unreachable:
    """Return the error for a host that sends nothing before our program runs there.

    Args:
        seconds: How long it sent nothing.
        said: What its login shell printed before.
    """
    printed = f" It printed: {safe(said)}." if said else ""
    return Unreachable(
        f"Host {host} accepted the login and then sent nothing for {seconds:g} s: its shell start-up probably reads "
        f"our input or waits.{printed} Guard such lines of its start-up files (~/.bashrc, ~/.zshrc) with "
        f"`case $- in *i*) ...;; esac`; for a slow host set {ANSWER_TIMEOUT}=30."
    )


def swallowed(host: str) -> PoolError:
    """Return the error for a host whose start-up files took a part of what was sent to our program."""
    return PoolError(
        f"Host {host} lost a part of what was sent to it: its shell start-up reads our input. Guard such lines of "
        "its start-up files (~/.bashrc, ~/.zshrc) with `case $- in *i*) ...;; esac`."
    )


def chattering(host: str, seconds: float, said: str) -> Unreachable:
    """Return the error for a login shell that prints without end."""
    return Unreachable(
        f"Host {host} accepted the login, and its shell start-up prints without end; for {seconds:g} s nothing else "
        f"came. It printed: {safe(said)}. Guard such lines of its start-up files with `case $- in *i*) ...;; esac`."
    )


def stalled(host: str, seconds: float, doing: str) -> Unreachable:
    """Return the error for a host that stopped to answer while it worked for us."""
    return Unreachable(
        f"Host {host} sent nothing for {seconds:g} s while it was asked for {doing}: a disk or file server of it may "
        f"hang. For a slow host set {ANSWER_TIMEOUT}=30."
    )


def odd(error: Exception) -> str:
    """Return what an error that is not one of ours says, behind its type, which often says more."""
    said = safe(str(error)).rstrip(".")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def may_pass(error: Exception) -> bool:
    """Whether the same attempt may succeed a little later."""
    if not isinstance(error, OSError | asyncssh.Error):
        return False
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_AGAIN
    return not isinstance(
        error,
        asyncssh.PermissionDenied
        | asyncssh.KeyExchangeFailed
        | asyncssh.ProtocolNotSupported
        | asyncssh.IllegalUserName,
    )


def reason(error: Exception) -> str:
    """Why an attempt failed, in few words."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, socket.gaierror):
        return error.strerror or "name not found"
    if isinstance(error, asyncssh.ConnectionLost):
        return "it closed the connection before the login was done (at its limit, MaxStartups?)"
    return str(error) or type(error).__name__


def _in_words(target: Target, route: Route, error: Exception) -> str:
    host = f"Host {target.host} ({route}{' through ' + route.jump if route.jump else ''})"
    if isinstance(error, socket.gaierror):
        return (
            f"Host {target.host}: its name {route.host!r} cannot be resolved ({error.strerror}). Check the "
            "spelling, your name service, or give its address (or HostName in ~/.ssh/config)."
        )
    if isinstance(error, asyncssh.PermissionDenied):
        keys = ", ".join(target.keys) or "those of ~/.ssh, its config and your ssh-agent"
        return (
            f"{host} accepts none of the keys offered for user {route.user!r} (tried: {keys}). Put your "
            f"public key into its ~/.ssh/authorized_keys (ssh-copy-id), or name the right user or key; "
            f"`ssh {target.host}` must work without a password. A key with a passphrase has to be in your "
            "ssh-agent (ssh-add)."
        )
    if isinstance(error, ConnectionRefusedError):
        return f"{host} refuses the connection: it is up, but no SSH server listens on port {route.port}."
    if isinstance(error, TimeoutError):
        return f"{host} does not answer: it is off, unreachable from here, or a firewall drops the packets."
    if isinstance(error, asyncssh.ConnectionLost):
        return (
            f"{host} closed the connection before the login was done. Its SSH server may be at its limit of "
            "connections (MaxStartups), or block this address."
        )
    return f"{host} could not be reached: {reason(error)}."
