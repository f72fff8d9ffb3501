"""Hosts and trust."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.cells import cell_len

from skyward_core.client import ssh_hosts
from skyward_core.client.run_history import PoolRow
from skyward_core.client.ssh_hosts import HostGpuUsage, HostGroup
from skyward_core.model import errors
from skyward_core.model.errors import UsageError
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.cli.console import Console
from skyward_tui.cli.pool_and_run_lookup import live_pools, open_session
from skyward_tui.text.hardware_cells import free_text, memory, utilization
from skyward_tui.text.number_format import Columns


def trust(host: str, known_hosts: str | None, yes: bool, console: Console) -> int:
    """Show a host's key, and write it down as known if the person says so.

    Raises:
        HostKeyError: another key of the host is known, so this one may be a stranger's.
        UsageError: there is nobody to ask.
    """
    shown = ssh_hosts.fetch_host_key(host, known_hosts)
    key = shown.key
    found = {"host": host, "kind": key.key_type, "fingerprint": key.fingerprint}
    console.note(f"host {host} ({key.name} port {key.port}) shows the {key.key_type} key {key.fingerprint}")
    if shown.is_known():
        console.note("it is known already")
        console.result(found | {"accepted": True, "file": None})
        return errors.OK
    if not yes:
        if not console.is_terminal:
            raise UsageError("nobody is here to compare fingerprints: look at it on the host, then give --yes")
        if not console.confirm("is it the one that the host itself prints? then accept it"):
            console.note("it was not accepted")
            console.result(found | {"accepted": False, "file": None})
            return errors.FAILED
    file = shown.accept()
    console.note(f"written to {file}")
    console.result(found | {"accepted": True, "file": str(file)})
    return errors.OK


def shell(pool: str, node: int, include: bool, console: Console) -> int:
    """Become ``ssh`` to a node of a pool.

    Raises:
        UsageError: no such pool is up, it has no such node, or it is not on hosts reached over SSH; or there is
            no ``ssh`` here.
    """
    row, file = _ssh_target(pool, node, console)
    if include and (line := ssh_hosts.include_ssh_config()):
        console.note(f"added to ~/.ssh/config: {line}; now plain `ssh {row.name}-{node}` works too")
    sys.stdout.flush()
    os.execvp("ssh", ["ssh", "-F", str(file), f"{row.name}-{node}"])


def forward(target: str, ports: tuple[str, ...], console: Console) -> int:
    """Become ``ssh`` that brings ports of a node to this machine's loopback, until it is ended.

    Args:
        target: ``POOL`` or ``POOL:RANK``.
        ports: ``PORT``, or ``LOCAL:PORT`` where it has another number here.

    Raises:
        UsageError: as :func:`shell`; or a port is none, or cannot be had here.
    """
    pool, colon, rank = target.partition(":")
    if colon and not rank.isdecimal():
        raise UsageError(f"{target}: write a pool, or POOL:RANK, such as {pool}:0")
    pairs = [_parse_ports(text) for text in ports]
    for here, there in pairs:
        _check_free(here, there)
    node = find_node(pool, int(rank or 0), console)
    row, file = _ssh_target(pool, node, console)
    words = ["ssh", "-F", str(file), "-N", "-o", "ExitOnForwardFailure=yes"]
    for here, there in pairs:
        words += ["-L", f"127.0.0.1:{here}:127.0.0.1:{there}"]
        console.note(f"http://127.0.0.1:{here} is port {there} of node {node} of pool {row.name}, until ctrl-c")
    sys.stdout.flush()
    os.execvp("ssh", [*words, f"{row.name}-{node}"])


def _parse_ports(text: str) -> tuple[int, int]:
    here, colon, there = text.partition(":")
    numbers = (here, there) if colon else (here, here)
    if not all(each.isdecimal() and 0 < int(each) < 65536 for each in numbers):
        raise UsageError(f"{text}: a port is a number from 1 to 65535, or LOCAL:PORT where it has another one here")
    return int(numbers[0]), int(numbers[1])


def _check_free(here: int, there: int) -> None:
    """Whether a port of this machine can be had: ssh would say otherwise when we have told where the page is."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ssh has it
        try:
            tried.bind(("127.0.0.1", here))
        except OSError as error:
            raise UsageError(
                f"port {here} of this machine cannot be had: {error.strerror}; write another one for it, such as "
                f"{here % 50_000 + 10_000}:{there}"
            ) from error


def find_node(pool: str, rank: int, console: Console) -> int:
    """The node of a rank of a pool that is up.

    Raises:
        UsageError: no such pool is up, or it has no such rank.
    """
    with open_session(console) as session:
        (row,) = live_pools(session, (pool,))
        view = session.observe(row.key).result()
    if rank >= len(view.nodes) * view.ranks_per_node:
        last = len(view.nodes) * view.ranks_per_node - 1
        raise UsageError(f"pool {row.name} has ranks 0 to {last}; not {rank}")
    return rank // view.ranks_per_node


def _ssh_target(pool: str, node: int, console: Console) -> tuple[PoolRow, Path]:
    """A pool that is up, and the file by which ssh finds its nodes."""
    if shutil.which("ssh") is None:
        raise UsageError("there is no ssh on this machine's PATH: install OpenSSH's client")
    with open_session(console) as session:
        (row,) = live_pools(session, (pool,))
        return row, ssh_hosts.ssh_config(session.ledger, row, node)


GREEN, RED, YELLOW = 32, 31, 33


def hosts(names: tuple[str, ...], console: Console) -> int:
    """Look at hosts, and print a line for each GPU; exit status 1 where one could not be looked at.

    Args:
        names: of groups or hosts; none for all groups.

    Raises:
        UsageError: there is no such group, or are none at all, or a ``skyward.toml`` cannot be used.
    """
    groups = ssh_hosts.groups()
    meant = ssh_hosts.resolve_hosts(names, groups)
    columns = Columns(max(cell_len(sanitize_line(host)) for host in meant))

    def say(seen: HostGpuUsage) -> None:
        """Print a host's lines as soon as they are known: another one may be waited for."""
        for cells, color in _rows(seen, groups):
            console.print_line(columns.line(cells), color)

    if console.as_json:
        looks = ssh_hosts.list_gpu_use(meant)
        console.result(
            {"hosts": [ssh_hosts.as_json(each) | {"groups": _groups_of(each.host, groups)} for each in looks]}
        )
    else:
        looks = ssh_hosts.list_gpu_use(meant, say)
    return errors.OK if all(each.reached for each in looks) else errors.FAILED


def _groups_of(host: str, groups: list[HostGroup]) -> list[str]:
    return [group.name for group in groups if host in group.hosts]


def _rows(seen: HostGpuUsage, groups: list[HostGroup]) -> Iterator[tuple[list[str], int]]:
    named = ", ".join(map(sanitize_line, _groups_of(seen.host, groups)))
    if seen.why or not seen.gpus:
        said = sanitize_line(seen.why) or "no GPU that our user may use"
        yield [sanitize_line(seen.host), named, "", "", "", said], YELLOW if seen.reached else RED
        return
    for number, gpu in enumerate(seen.gpus):
        first = [sanitize_line(seen.host), f"{named} {free_text(seen)}".strip()] if number == 0 else ["", ""]
        cells = [
            *first,
            f"GPU {sanitize_line(gpu.number)}",
            sanitize_line(gpu.model),
            f"{utilization(gpu)} {memory(gpu)}",
            gpu.state,
        ]
        yield cells, GREEN if gpu.is_free else YELLOW
