"""Groups of hosts, their hosts, and the GPUs of these, a row each, with a cursor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.content import Content

from skyward_core.wire.safe_text import field

from ..gpu_cells import free_of, memory, utilization
from ..theme import look
from ..words import clip, count
from .roll import Roll

if TYPE_CHECKING:
    from skyward_core.front.host_groups import GpuUse, HostGroup, HostLook

_ROOMY = 110  # columns from which a GPU's model is shown


@dataclass(frozen=True)
class HostRow:
    """A group, a host of it, or a GPU of that."""

    group: HostGroup
    host: str = ""
    gpu: GpuUse | None = None

    @property
    def id(self) -> tuple[str, str, str]:
        return self.group.name, self.host, self.gpu.id if self.gpu else ""


class HostList(Roll):
    """Groups in the order of their files."""

    def __init__(self) -> None:
        super().__init__(id="list")
        self.rows: list[HostRow] = []
        self.cursor = 0
        self._note = ""
        self._seen: Mapping[str, HostLook] = {}

    @property
    def chosen(self) -> HostRow | None:
        return self.rows[self.cursor] if self.rows else None

    def update(self, groups: Sequence[HostGroup], seen: Mapping[str, HostLook], note: str) -> None:
        """Show what is known now.

        Args:
            seen: by host; of one that is not there nothing is known yet.
            note: what stands there where there is no group.
        """
        chosen = self.chosen.id if self.chosen else ()
        self._seen, self._note = seen, note
        self.rows = list(_rows(groups, seen))
        places = [index for index, row in enumerate(self.rows) if row.id == chosen]
        self.cursor = places[0] if places else min(self.cursor, max(0, len(self.rows) - 1))
        self.refresh()

    def shown(self) -> list[Content]:
        return super().shown() if self.rows else [self.blank(self._note)]

    def row_count(self, width: int) -> int:
        return len(self.rows)

    def keep_in_view(self) -> range:
        return range(self.cursor, self.cursor + 1)

    def row(self, index: int, width: int) -> Content:
        row, here = self.rows[index], index == self.cursor
        mark = ("▶ " if here else "  ", "$text-accent")
        line = Content.assemble(mark, *self._parts(row, width - 2))
        if here:
            line = line.pad_right(max(0, width - line.cell_length)).stylize_before(
                "on $block-cursor-background"
            )
        return line

    def _parts(self, row: HostRow, width: int) -> list[tuple[str, str]]:
        if not row.host:
            where = f"  {count(len(row.group.hosts), 'host')}, {field(str(row.group.file))}"
            name = field(row.group.name)
            return [(clip(name, width), "bold"), (clip(where, max(0, width - len(name))), "$muted")]
        if row.gpu is None:
            name, room = f"  {field(row.host):<20} ", max(0, width - 23)
            said, style = self._state(row.host)
            return [(clip(name, width), ""), (clip(said, room), style)]
        gpu = row.gpu
        model = f"{clip(field(gpu.model), 24):<24} " if width >= _ROOMY else ""
        head = f"    GPU {field(gpu.number):<4} {model}{utilization(gpu):>5} {memory(gpu):>16}  "
        mark = look("free" if gpu.is_free else "busy")
        return [
            (clip(head, width), ""),
            (clip(f"{mark.glyph} {gpu.state}", max(0, width - len(head))), mark.style),
        ]

    def _state(self, host: str) -> tuple[str, str]:
        if (seen := self._seen.get(host)) is None:
            return "◌ looking …", "$muted"
        if not seen.reached:
            return f"✗ {seen.why}", "$text-error"
        if seen.why or not seen.gpus:
            return seen.why or "no GPU that our user may use", "$muted"
        return free_of(seen), "$text-success" if any(gpu.is_free for gpu in seen.gpus) else "$text-warning"

    def action_step(self, rows: int) -> None:
        self.cursor = min(max(0, self.cursor + rows), max(0, len(self.rows) - 1))
        self.refresh()

    def action_edge(self, end: int) -> None:
        self.action_step(len(self.rows) if end else -len(self.rows))


def _rows(groups: Sequence[HostGroup], seen: Mapping[str, HostLook]) -> Iterator[HostRow]:
    for group in groups:
        yield HostRow(group)
        for host in group.hosts:
            yield HostRow(group, host)
            if host in seen:
                yield from (HostRow(group, host, gpu) for gpu in seen[host].gpus)
