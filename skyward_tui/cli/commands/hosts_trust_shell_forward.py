"""``skyward-tui hosts``, ``trust``, ``ssh`` and ``forward``: SSH hosts, host keys, and ``ssh`` to nodes."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.cells import cell_len

from skyward_core.client import ssh_host_groups_and_access
from skyward_core.client.run_history import PoolRow
from skyward_core.client.ssh_host_groups_and_access import HostGpuUsage, HostGroup
from skyward_core.model import errors
from skyward_core.model.errors import UsageError, message_with_hint
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.cli.pool_and_run_lookup import live_pools, open_session, split_rank
from skyward_tui.cli.shared_options_and_command_class import command
from skyward_tui.text.error_hint_text import advice
from skyward_tui.text.hardware_and_offer_cells import free_text, memory, utilization
from skyward_tui.text.text_width_tables_and_ascii import Columns


@command()
@click.argument("host")
@click.option("--known-hosts", metavar="FILE", help="Use this known_hosts file instead of the default one.")
@click.option("-y", "--yes", is_flag=True, help="Accept the key without asking.")
def trust(console: Console, host: str, known_hosts: str | None, yes: bool) -> int:
    """Show the fingerprint of a host's key, and trust the key.

    A key that differs from a known key of the host is rejected.
    """
    shown = ssh_host_groups_and_access.fetch_host_key(host, known_hosts)
    key = shown.key
    found = {"host": host, "kind": key.key_type, "fingerprint": key.fingerprint}
    console.note(f"host {host} ({key.name} port {key.port}) has the {key.key_type} key {key.fingerprint}")
    if shown.is_known():
        console.note("this key is already trusted")
        console.result(found | {"accepted": True, "file": None})
        return errors.OK
    if not yes:
        if not console.is_terminal:
            raise UsageError(
                "cannot ask for confirmation without a terminal. Check the fingerprint on the host, then pass --yes"
            )
        if not console.confirm("does the fingerprint match the one that the host itself prints? Trust this key"):
            console.note("key not accepted")
            console.result(found | {"accepted": False, "file": None})
            return errors.FAILED
    file = shown.accept()
    console.note(f"written to {file}")
    console.result(found | {"accepted": True, "file": str(file)})
    return errors.OK


@command("ssh", has_json=False)
@click.argument("target", metavar="POOL[:RANK]")
@click.option("--include", is_flag=True, help="Add the nodes to ~/.ssh/config, for plain ssh.")
def shell(console: Console, target: str, include: bool) -> int:
    """Open a shell on a node of a pool.

    POOL:RANK is the node of that rank. By default, it is the head node.
    """
    pool, rank = split_rank(target)
    node = 0 if rank is None else find_node(pool, rank, console)
    row, file = _ssh_target(pool, node, console)
    if include and (line := ssh_host_groups_and_access.include_ssh_config()):
        console.note(f"added to ~/.ssh/config: {line}; plain `ssh {row.name}-{node}` now works, too")
    sys.stdout.flush()
    os.execvp("ssh", ["ssh", "-F", str(file), f"{row.name}-{node}"])


@command(has_json=False)
@click.argument("target", metavar="POOL[:RANK]")
@click.argument("ports", metavar="[LOCAL:]PORT...", nargs=-1, required=True)
def forward(console: Console, target: str, ports: Sequence[str]) -> int:
    """Forward ports of a node to this machine over SSH.

    For example, a TensorBoard on the head node is then available at http://127.0.0.1:PORT, only on this machine, until
    ctrl-c.
    """
    pool, rank = split_rank(target)
    pairs = [_parse_ports(text) for text in ports]
    for here, there in pairs:
        _check_free(here, there)
    node = find_node(pool, rank or 0, console)
    row, file = _ssh_target(pool, node, console)
    # At its default log level INFO, ssh prints "channel 1: open failed" for each connection while no program listens on
    # the node's port.
    words = ["ssh", "-F", str(file), "-N", "-o", "ExitOnForwardFailure=yes", "-o", "LogLevel=ERROR"]
    for here, there in pairs:
        words += ["-L", f"127.0.0.1:{here}:127.0.0.1:{there}"]
        console.note(f"http://127.0.0.1:{here} is port {there} of node {node} of pool {row.name} until ctrl-c")
    sys.stdout.flush()
    os.execvp("ssh", [*words, f"{row.name}-{node}"])


def _parse_ports(text: str) -> tuple[int, int]:
    here, colon, there = text.partition(":")
    numbers = (here, there) if colon else (here, here)
    if not all(each.isdecimal() and 0 < int(each) < 65536 for each in numbers):
        raise UsageError(f"invalid port {text}. Write PORT or LOCAL:PORT, with numbers from 1 to 65535")
    return int(numbers[0]), int(numbers[1])


def _check_free(here: int, there: int) -> None:
    """Check that a port of this machine is free. ssh would report a port in use only after the address has been
    printed.
    """
    with socket.socket() as tried:
        # ssh sets the same option, so this check and ssh agree on which ports are free
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", here))
        except OSError as error:
            raise UsageError(
                f"cannot listen on port {here} of this machine: {error.strerror}. Choose another local port, such as "
                f"{here % 50_000 + 10_000}:{there}"
            ) from error


def find_node(pool: str, rank: int, console: Console) -> int:
    """Return the node of a rank of a running pool.

    Raises:
        UsageError: If the pool is not running, or has no such rank.
    """
    with open_session(console) as session:
        (row,) = live_pools(session, (pool,))
        view = session.observe(row.key).result()
    if rank >= len(view.nodes) * view.ranks_per_node:
        last = len(view.nodes) * view.ranks_per_node - 1
        raise UsageError(f"pool {row.name} has no rank {rank}. Choose a rank from 0 to {last}")
    return rank // view.ranks_per_node


def _ssh_target(pool: str, node: int, console: Console) -> tuple[PoolRow, Path]:
    """Return a running pool, and the SSH configuration file of its nodes."""
    if shutil.which("ssh") is None:
        raise UsageError("ssh is not in PATH. Install the OpenSSH client")
    with open_session(console) as session:
        (row,) = live_pools(session, (pool,))
        return row, ssh_host_groups_and_access.ssh_config(session.ledger, row, node)


GREEN, RED, YELLOW = 32, 31, 33


@command()
@click.argument("names", metavar="[GROUP|HOST]...", nargs=-1)
def hosts(console: Console, names: Sequence[str]) -> int:
    """Show who uses the GPUs of your hosts.

    For each GPU, shows its user and the used memory, or that the GPU is free. Without names, all host groups of
    skyward.toml are shown. Nothing is installed on the hosts. Exits with 1 if a host does not answer.
    """
    groups = ssh_host_groups_and_access.groups()
    selected = ssh_host_groups_and_access.resolve_hosts(names, groups)
    columns = Columns(max(cell_len(sanitize_line(host)) for host in selected))

    def print_host(seen: HostGpuUsage) -> None:
        for cells, color in () if console.as_json else _rows(seen, groups):
            console.print_line(columns.line(cells), color)

    # ``print_host`` prints each host as soon as the host answers
    found = ssh_host_groups_and_access.list_gpu_use(selected, print_host)
    as_json = ssh_host_groups_and_access.as_json
    console.result({"hosts": [as_json(each) | {"groups": _groups_of(each.host, groups)} for each in found]})
    return errors.OK if all(each.reached for each in found) else errors.FAILED


def _groups_of(host: str, groups: list[HostGroup]) -> list[str]:
    return [group.name for group in groups if host in group.hosts]


def _rows(seen: HostGpuUsage, groups: list[HostGroup]) -> Iterator[tuple[list[str], int]]:
    named = ", ".join(map(sanitize_line, _groups_of(seen.host, groups)))
    if seen.why or not seen.gpus:
        why = message_with_hint(seen.why, advice(seen.hint)) if seen.hint is not None else seen.why
        reason = sanitize_line(why) or "no GPU that the login user may use"
        yield [sanitize_line(seen.host), named, "", "", "", reason], YELLOW if seen.reached else RED
        return
    for number, gpu in enumerate(seen.gpus):
        first = [sanitize_line(seen.host), f"{named} {free_text(seen)}".strip()] if number == 0 else ["", ""]
        name = f"GPU {sanitize_line(gpu.number)}"
        cells = [*first, name, sanitize_line(gpu.model), f"{utilization(gpu)} {memory(gpu)}", gpu.state]
        yield cells, GREEN if gpu.is_free else YELLOW
