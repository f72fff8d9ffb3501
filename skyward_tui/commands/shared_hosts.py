"""``skyward-tui hosts``: the machines of a person's groups, and who uses their GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len

from skyward_core.front import host_groups
from skyward_core.front.host_groups import HostGroup, HostLook
from skyward_core.model import exit_status
from skyward_core.wire.safe_text import field

from ..gpu_cells import free_of, memory, utilization
from ..words import Columns
from .console import Console

GREEN, RED, YELLOW = 32, 31, 33


def hosts(names: tuple[str, ...], console: Console) -> int:
    """Look at hosts, and print a line for each GPU; exit status 1 where one could not be looked at.

    Args:
        names: of groups or hosts; none for all groups.

    Raises:
        UsageError: there is no such group, or are none at all, or a ``skyward.toml`` cannot be used.
    """
    groups = host_groups.groups()
    meant = host_groups.meant(names, groups)
    columns = Columns(max(cell_len(field(host)) for host in meant))

    def say(seen: HostLook) -> None:
        """Print a host's lines as soon as they are known: another one may be waited for."""
        for cells, color in _rows(seen, groups):
            console.say(columns.line(cells), color)

    if console.as_json:
        looks = host_groups.look(meant)
        console.result(
            {"hosts": [host_groups.as_json(each) | {"groups": _of(each.host, groups)} for each in looks]}
        )
    else:
        looks = host_groups.look(meant, say)
    return exit_status.OK if all(each.reached for each in looks) else exit_status.FAILED


def _of(host: str, groups: list[HostGroup]) -> list[str]:
    return [group.name for group in groups if host in group.hosts]


def _rows(seen: HostLook, groups: list[HostGroup]) -> Iterator[tuple[list[str], int]]:
    named = ", ".join(map(field, _of(seen.host, groups)))
    if seen.why or not seen.gpus:
        said = field(seen.why) or "no GPU that our user may use"
        yield [field(seen.host), named, "", "", "", said], YELLOW if seen.reached else RED
        return
    for number, gpu in enumerate(seen.gpus):
        first = [field(seen.host), f"{named} {free_of(seen)}".strip()] if number == 0 else ["", ""]
        cells = [
            *first,
            f"GPU {field(gpu.number)}",
            field(gpu.model),
            f"{utilization(gpu)} {memory(gpu)}",
            gpu.state,
        ]
        yield cells, GREEN if gpu.is_free else YELLOW
