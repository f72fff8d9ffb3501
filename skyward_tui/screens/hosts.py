"""SSH hosts, alone and shared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from textual import work
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from skyward_core.client import ssh_hosts
from skyward_core.client.ssh_hosts import HostLook
from skyward_core.model.errors import SkywardError
from skyward_core.util.terminal_safe_text import field
from skyward_tui.screens.base_screen import BaseScreen
from skyward_tui.shutdown import beside as in_thread
from skyward_tui.text.error_hints import detail_of, words_of
from skyward_tui.text.hardware_cells import by_whom, free_of, memory, utilization
from skyward_tui.text.number_format import ago, clip, count
from skyward_tui.ui.actions import bindings
from skyward_tui.ui.style_sheets import beside
from skyward_tui.ui.themes import look
from skyward_tui.widgets.header_and_hints import Crumbs, Panel
from skyward_tui.widgets.virtual_list import Roll

if TYPE_CHECKING:
    from skyward_core.client.ssh_hosts import GpuUse, HostGroup, HostLook
    from skyward_core.model.machines import Check


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
            line = line.pad_right(max(0, width - line.cell_length)).stylize_before("on $block-cursor-background")
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


_NONE = "No groups of hosts yet: {hosts.group} begins one, in the skyward.toml of the state folder."


class HostsScreen(BaseScreen[None]):
    """It looks at the hosts when it opens, and again when it is told to: each look is a login."""

    SCOPE = "hosts"
    BINDINGS = bindings("hosts")
    DEFAULT_CSS = beside(__file__, "hosts")

    def __init__(self) -> None:
        super().__init__()
        self._groups: list[HostGroup] = []
        self._failed = ""
        self._is_read = False
        self._writing = asyncio.Lock()
        self._seen: dict[str, HostLook] = {}
        self._checked: dict[str, list[Check]] = {}
        self._looking = 0
        self._looked_at: float | None = None
        self._changes = 0  # of all that is shown
        self._shown: object = None

    def body(self) -> ComposeResult:
        panel = Panel(HostList(), id="hosts")
        panel.border_title = "hosts"
        yield panel
        detail = Panel(VerticalScroll(Static(id="detail")), id="host")
        detail.border_title = "chosen"
        yield detail

    def on_mount(self) -> None:
        self.query_one(HostList).focus()
        self.action_again()
        self.pulse(self.app.clock())

    def shown_time(self, now: float) -> object:
        return self._changes, super().shown_time(now)

    def pulse(self, now: float) -> None:
        if (listed := next(iter(self.query(HostList)), None)) is None:
            return  # a screen that goes has lost its list before it is gone
        if self._shown != self._changes:
            self._shown = self._changes
            listed.update(self._groups, self._seen, self._note())
            self.query_one("#hosts").styles.height = len(listed.rows) + 2 if listed.rows else None
        self.query_one(Crumbs).show(["pools", "hosts"], self._status(now))
        self.query_one("#detail", Static).update(self._detail(listed.chosen))
        super().pulse(now)

    def _status(self, now: float) -> list[Content]:
        parts = []
        gpus = [gpu for seen in self._seen.values() for gpu in seen.gpus]
        if gpus:
            free = sum(gpu.is_free for gpu in gpus)
            parts.append(Content.styled(f"{free} of {count(len(gpus), 'GPU')} free", "$text-success" if free else ""))
        if away := sum(not seen.reached for seen in self._seen.values()):
            parts.append(Content.styled(f"✗ {count(away, 'host')} not reached", "$text-error"))
        if self._looking:
            parts.append(Content.styled("◌ looking …", "$text-warning"))
        elif self._looked_at is not None:
            parts.append(Content.styled(f"looked {ago(now - self._looked_at)}", "$muted"))
        return parts

    def _note(self) -> str:
        from skyward_tui.ui.actions import with_keys

        if not self._is_read:
            return "reading the groups of hosts …"
        return f"✗ {self._failed}" if self._failed else with_keys(_NONE, self.app.keys)

    def _detail(self, row: HostRow | None) -> Content:
        if row is None:
            return Content("")
        if not row.host:
            return self._group(row.group)
        lines = [(f"{field(row.host)}\n", "bold")]
        if row.gpu is not None:
            lines.append((f"{row.gpu}\n", ""))
            for each in row.gpu.processes:
                lines.append((f"process {each.pid}: {each}{'' if each.computes else ', which only draws'}\n", "$muted"))
        elif row.host in self._checked:
            for check in self._checked[row.host]:
                mark = look(check.state)
                lines.append((f"{mark.glyph} {field(detail_of(check))}\n", mark.style))
        elif (seen := self._seen.get(row.host)) is not None:
            lines += [(f"{field(seen.why)}\n", "")] if seen.why else []
            lines += [(f"{line}\n", "") for line in by_whom(seen.gpus)]
        return Content.assemble(*lines)

    def _group(self, group: HostGroup) -> Content:
        gpus = [gpu for host in group.hosts if host in self._seen for gpu in self._seen[host].gpus]
        takes = " --set gpus=free" if gpus else ""
        return Content.assemble(
            (field(group.name), "bold"),
            f"  {', '.join(map(field, group.hosts))}\n",
            ("a run on them:  ", "$muted"),
            (f"skyward-tui run SCRIPT --hosts {field(group.name)}{takes}\n", "$text-accent"),
            *(f"{line}\n" for line in by_whom(gpus)),
            (f"of {field(str(group.file))}", "$muted"),
        )

    def _change(self) -> None:
        self._changes += 1
        if self.is_attached:
            self.pulse(self.app.clock())

    # Looking

    async def _read(self) -> None:
        """Read the files, which may lie on a disk that is slow."""
        try:
            self._groups, self._failed = await in_thread(ssh_hosts.groups), ""
        except (SkywardError, OSError) as error:
            self._groups, self._failed = [], words_of(error)
        self._is_read = True
        self._change()

    @work(group="look")
    async def _look(self, *hosts: str) -> None:
        """Look at some hosts, or at all."""
        meant = list(hosts) or list(dict.fromkeys(host for group in self._groups for host in group.hosts))
        if not meant:
            return
        loop = asyncio.get_running_loop()

        def heard(seen: HostLook) -> None:
            self._seen[seen.host] = seen
            self._change()

        def said(seen: HostLook) -> None:
            with suppress(RuntimeError):  # the loop has ended: nobody waits
                loop.call_soon_threadsafe(heard, seen)

        for host in meant:
            self._seen.pop(host, None)
        self._looking += 1
        self._change()
        try:
            await in_thread(partial(ssh_hosts.look, meant, said))
            self._looked_at = self.app.clock()
        except SkywardError as error:
            self.flash(words_of(error), "error")
        finally:
            self._looking -= 1
            for host in meant:  # also of a look that failed there is none to wait for
                self._seen.setdefault(host, HostLook(host, (), "the look failed", False))
            self._change()

    @work(group="read", exclusive=True)
    async def action_again(self) -> None:
        await self._read()
        self._look()

    @work(group="check", exclusive=True)
    async def action_check(self) -> None:
        if (row := self._chosen) is None or not row.host:
            return
        self.flash(f"checking {field(row.host)} …")
        try:
            self._checked[row.host] = found = await in_thread(partial(ssh_hosts.check, row.host))
        except SkywardError as error:
            return self.flash(words_of(error), "error")
        wrong = [check for check in found if check.state == "fail"]
        self.flash(
            f"{field(row.host)}: {field(wrong[0].detail) if wrong else 'all that a pool needs is there'}",
            "error" if wrong else "done",
        )
        self._change()
        return None

    # Its key

    @work(group="trust", exclusive=True)
    async def action_trust(self) -> None:
        from skyward_core.client.ssh_hosts import shown_key
        from skyward_tui.dialogs.host_key_and_secret import HostKeyScreen

        if (row := self._chosen) is None or not row.host:
            return
        self.flash(f"asking {field(row.host)} for its key …")
        try:
            shown = await in_thread(partial(shown_key, row.host))
            if shown.is_known():
                return self.flash(f"the key of {field(row.host)} is known: {shown.key.fingerprint}", "done")
            if not await self.app.push_screen_wait(HostKeyScreen(shown.key, starts=False)):
                return self.flash("it was not accepted")
            self.flash(f"written to {field(str(shown.accept()))}", "done")
        except (SkywardError, OSError) as error:
            return self.flash(words_of(error), "error")
        self._look(row.host)
        return None

    # Groups

    @property
    def _chosen(self) -> HostRow | None:
        return self.query_one(HostList).chosen if self.is_mounted else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        chosen = self._chosen
        if action in ("check", "trust"):
            return chosen is not None and chosen.host != ""
        if action in ("add", "rename", "remove"):
            return chosen is not None
        return True

    def _edit(self, change: Callable[[], None], said: str) -> None:
        """Change a file, and look at what is new."""
        # The app's worker and not this screen's: how it ended is said although the screen is left.
        self.app.run_worker(self._write(change, said), group="hosts", exclusive=False)

    async def _write(self, change: Callable[[], None], said: str) -> None:
        async with self._writing:
            try:
                await in_thread(change)
            except (SkywardError, OSError) as error:
                return self.app.flash(words_of(error), "error")
            await self._read()
        self.app.flash(said, "done")
        new = [host for group in self._groups for host in group.hosts if host not in self._seen]
        if new and self.is_attached:
            self._look(*dict.fromkeys(new))
        return None

    @work(group="edit", exclusive=True)
    async def action_add(self) -> None:
        from skyward_tui.dialogs.dialog import AskScreen

        if (row := self._chosen) is None:
            return
        if host := await self.app.push_screen_wait(AskScreen(f"Host to add to {field(row.group.name)}")):
            self._edit(partial(row.group.added, host), f"{field(host)} is in {field(row.group.name)} now")

    @work(group="edit", exclusive=True)
    async def action_group(self) -> None:
        from skyward_tui.dialogs.dialog import AskScreen

        if not (name := await self.app.push_screen_wait(AskScreen("Name of the new group"))):
            return
        if host := await self.app.push_screen_wait(AskScreen(f"First host of {field(name)}")):
            file = self._chosen.group.file if self._chosen else None
            self._edit(partial(ssh_hosts.new_group, name, host, file), f"{field(name)} has {field(host)}")

    @work(group="edit", exclusive=True)
    async def action_rename(self) -> None:
        from skyward_tui.dialogs.dialog import AskScreen

        if (row := self._chosen) is None:
            return
        old = row.host or row.group.name
        new = await self.app.push_screen_wait(AskScreen(f"Another name for {field(old)}", field(old)))
        if new and new != old:
            change = partial(row.group.exchanged, old, new) if row.host else partial(row.group.renamed, new)
            self._edit(change, f"{field(old)} is called {field(new)} now")

    @work(group="edit", exclusive=True)
    async def action_remove(self) -> None:
        from skyward_tui.dialogs.dialog import ChoiceScreen

        if (row := self._chosen) is None:
            return
        what = f"host {field(row.host)} of {field(row.group.name)}" if row.host else f"group {field(row.group.name)}"
        text = f"Take {what} out of\n{field(str(row.group.file))}?\n\nThe machines themselves stay as they are."
        choices = [("no", "Keep it", False), ("yes", "Take it out", True)]
        if await self.app.push_screen_wait(ChoiceScreen("Remove", text, choices, escape="no")) == "yes":
            change = partial(row.group.removed, row.host) if row.host else row.group.deleted
            self._edit(change, f"{what} is gone")

    def action_back(self) -> None:
        self.dismiss(None)
