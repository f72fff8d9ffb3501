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
from skyward_core.client.ssh_hosts import HostGpuUsage
from skyward_core.model.errors import SkywardError
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.dialogs.dialog import ChoiceScreen
from skyward_tui.screens.base_screen import ListScreen
from skyward_tui.shutdown import run_in_daemon_thread
from skyward_tui.text.error_hints import format_detail, format_error
from skyward_tui.text.hardware_cells import free_text, memory, usage_by_user, utilization
from skyward_tui.text.number_and_time_format import ago, clip, count
from skyward_tui.ui.actions import bindings, with_keys
from skyward_tui.ui.session_futures import flash_errors
from skyward_tui.ui.themes import read_style_sheet, state_style
from skyward_tui.widgets.header_and_hints import Breadcrumbs, Panel
from skyward_tui.widgets.virtual_list import CursorList, Part

if TYPE_CHECKING:
    from skyward_core.client.ssh_hosts import GpuUse, HostGpuUsage, HostGroup
    from skyward_core.model.machines import Check


_ROOMY = 110  # columns from which a GPU's model is shown


@dataclass(frozen=True)
class HostRow:
    """A group, a host of it, or a GPU of that."""

    group: HostGroup
    host: str = ""
    gpu: GpuUse | None = None


class HostList(CursorList[HostRow]):
    """Groups in the order of their files."""

    def __init__(self) -> None:
        super().__init__(id="list")
        self._seen: Mapping[str, HostGpuUsage] = {}

    def row_id(self, row: HostRow) -> tuple[str, str, str]:
        return row.group.name, row.host, row.gpu.id if row.gpu else ""

    def update(self, groups: Sequence[HostGroup], seen: Mapping[str, HostGpuUsage], note: str) -> None:
        """Show what is known now.

        Args:
            seen: by host; of one that is not there nothing is known yet.
            note: what stands there where there is no group.
        """
        self._seen, self.note = seen, note
        self.set_rows(list(_rows(groups, seen)))
        self.refresh()

    def parts(self, row: HostRow, width: int) -> list[Part]:
        return [(" ", ""), *self._parts(row, width - 2)]

    def _parts(self, row: HostRow, width: int) -> list[Part]:
        if not row.host:
            where = f"  {count(len(row.group.hosts), 'host')}, {sanitize_line(str(row.group.file))}"
            name = sanitize_line(row.group.name)
            return [(clip(name, width), "bold"), (clip(where, max(0, width - len(name))), "$muted")]
        if row.gpu is None:
            name, room = f"  {sanitize_line(row.host):<20} ", max(0, width - 23)
            said, style = self._state(row.host)
            return [(clip(name, width), ""), (clip(said, room), style)]
        gpu = row.gpu
        model = f"{clip(sanitize_line(gpu.model), 24):<24} " if width >= _ROOMY else ""
        head = f"    GPU {sanitize_line(gpu.number):<4} {model}{utilization(gpu):>5} {memory(gpu):>16}  "
        mark = state_style("free" if gpu.is_free else "busy")
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
        return free_text(seen), "$text-success" if any(gpu.is_free for gpu in seen.gpus) else "$text-warning"


def _rows(groups: Sequence[HostGroup], seen: Mapping[str, HostGpuUsage]) -> Iterator[HostRow]:
    for group in groups:
        yield HostRow(group)
        for host in group.hosts:
            yield HostRow(group, host)
            if host in seen:
                yield from (HostRow(group, host, gpu) for gpu in seen[host].gpus)


_NONE = "No groups of hosts yet: {hosts.group} begins one, in the skyward.toml of the state folder."


class HostsScreen(ListScreen[HostList]):
    """It looks at the hosts when it opens, and again when it is told to: each look is a login."""

    SCOPE = "hosts"
    BINDINGS = bindings("hosts")
    DEFAULT_CSS = read_style_sheet(__file__, "hosts")

    def __init__(self) -> None:
        super().__init__(HostList())
        self._groups: list[HostGroup] = []
        self._failed = ""
        self._is_read = False
        self._writing = asyncio.Lock()
        self._seen: dict[str, HostGpuUsage] = {}
        self._checked: dict[str, list[Check]] = {}
        self._looking = 0
        self._looked_at: float | None = None
        self._changes = 0  # of all that is shown
        self._shown: object = None

    def body(self) -> ComposeResult:
        yield Panel(self.listed, id="hosts", title="hosts")
        yield Panel(VerticalScroll(Static(id="detail")), id="host", title="chosen")

    def on_mount(self) -> None:
        self.action_again()

    def time_token(self, now: float) -> object:
        return self._changes, super().time_token(now)

    def tick(self, now: float) -> None:
        if (listed := next(iter(self.query(HostList)), None)) is None:
            return  # a screen that goes has lost its list before it is gone
        if self._shown != self._changes:
            self._shown = self._changes
            listed.update(self._groups, self._seen, self._note())
            self.query_one("#hosts").styles.height = len(listed.rows) + 2 if listed.rows else None
        self.query_one(Breadcrumbs).update_trail(["pools", "hosts"], self._status(now))
        self.query_one("#detail", Static).update(self._detail(listed.chosen))
        super().tick(now)

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
        if not self._is_read:
            return "reading the groups of hosts …"
        return f"✗ {self._failed}" if self._failed else with_keys(_NONE, self.app.keys)

    def _detail(self, row: HostRow | None) -> Content:
        if row is None:
            return Content("")
        if not row.host:
            return self._group(row.group)
        lines = [(f"{sanitize_line(row.host)}\n", "bold")]
        if row.gpu is not None:
            lines.append((f"{row.gpu}\n", ""))
            for each in row.gpu.processes:
                lines.append((f"process {each.pid}: {each}{'' if each.computes else ', which only draws'}\n", "$muted"))
        elif row.host in self._checked:
            for check in self._checked[row.host]:
                mark = state_style(check.state)
                lines.append((f"{mark.glyph} {sanitize_line(format_detail(check))}\n", mark.style))
        elif (seen := self._seen.get(row.host)) is not None:
            lines += [(f"{sanitize_line(seen.why)}\n", "")] if seen.why else []
            lines += [(f"{line}\n", "") for line in usage_by_user(seen.gpus)]
        return Content.assemble(*lines)

    def _group(self, group: HostGroup) -> Content:
        gpus = [gpu for host in group.hosts if host in self._seen for gpu in self._seen[host].gpus]
        takes = " --set gpus=free" if gpus else ""
        return Content.assemble(
            (sanitize_line(group.name), "bold"),
            f"  {', '.join(map(sanitize_line, group.hosts))}\n",
            ("a run on them:  ", "$muted"),
            (f"skyward-tui run SCRIPT --hosts {sanitize_line(group.name)}{takes}\n", "$text-accent"),
            *(f"{line}\n" for line in usage_by_user(gpus)),
            (f"of {sanitize_line(str(group.file))}", "$muted"),
        )

    def _mark_changed(self) -> None:
        self._changes += 1
        if self.is_attached:
            self.tick(self.app.clock())

    # Looking

    async def _load_groups(self) -> None:
        """Read the files, which may lie on a disk that is slow."""
        try:
            self._groups, self._failed = await run_in_daemon_thread(ssh_hosts.groups), ""
        except (SkywardError, OSError) as error:
            self._groups, self._failed = [], format_error(error)
        self._is_read = True
        self._mark_changed()

    @work(group="look")
    async def _probe_hosts(self, *hosts: str) -> None:
        """Look at some hosts, or at all."""
        meant = list(hosts) or list(dict.fromkeys(host for group in self._groups for host in group.hosts))
        if not meant:
            return
        loop = asyncio.get_running_loop()

        def heard(seen: HostGpuUsage) -> None:
            self._seen[seen.host] = seen
            self._mark_changed()

        def said(seen: HostGpuUsage) -> None:
            with suppress(RuntimeError):  # the loop has ended: nobody waits
                loop.call_soon_threadsafe(heard, seen)

        for host in meant:
            self._seen.pop(host, None)
        self._looking += 1
        self._mark_changed()
        try:
            with flash_errors(self.app):
                await run_in_daemon_thread(partial(ssh_hosts.list_gpu_use, meant, said))
                self._looked_at = self.app.clock()
        finally:
            self._looking -= 1
            for host in meant:  # also of a look that failed there is none to wait for
                self._seen.setdefault(host, HostGpuUsage(host, (), "the look failed", False))
            self._mark_changed()

    @work(group="read", exclusive=True)
    async def action_again(self) -> None:
        await self._load_groups()
        self._probe_hosts()

    @work(group="check", exclusive=True)
    async def action_check(self) -> None:
        if (row := self.listed.chosen) is None or not row.host:
            return
        self.flash(f"checking {sanitize_line(row.host)} …")
        with flash_errors(self.app):
            self._checked[row.host] = found = await run_in_daemon_thread(partial(ssh_hosts.check, row.host))
            wrong = [check for check in found if check.state == "fail"]
            said = wrong[0].detail if wrong else "all that a pool needs is there"
            self.flash(f"{row.host}: {said}", "error" if wrong else "done")
            self._mark_changed()

    # Its key

    @work(group="trust", exclusive=True)
    async def action_trust(self) -> None:
        from skyward_tui.dialogs.host_key_and_secret_prompts import HostKeyScreen

        if (row := self.listed.chosen) is None or not row.host:
            return
        self.flash(f"asking {sanitize_line(row.host)} for its key …")
        with flash_errors(self.app):
            shown = await run_in_daemon_thread(partial(ssh_hosts.fetch_host_key, row.host))
            if shown.is_known():
                return self.flash(f"the key of {sanitize_line(row.host)} is known: {shown.key.fingerprint}", "done")
            if not await self.app.push_screen_wait(HostKeyScreen(shown.key, starts=False)):
                return self.flash("it was not accepted")
            self.flash(f"written to {sanitize_line(str(shown.accept()))}", "done")
            self._probe_hosts(row.host)

    # Groups

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        chosen = self.listed.chosen
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
        with flash_errors(self.app):
            async with self._writing:
                await run_in_daemon_thread(change)
                await self._load_groups()
            self.app.flash(said, "done")
            new = [host for group in self._groups for host in group.hosts if host not in self._seen]
            if new and self.is_attached:
                self._probe_hosts(*dict.fromkeys(new))

    @work(group="edit", exclusive=True)
    async def action_add(self) -> None:
        if (row := self.listed.chosen) is None:
            return
        if host := await self.app.ask(f"Host to add to {sanitize_line(row.group.name)}"):
            self._edit(
                partial(row.group.add_host, host),
                f"{sanitize_line(host)} is in {sanitize_line(row.group.name)} now",
            )

    @work(group="edit", exclusive=True)
    async def action_group(self) -> None:
        if not (name := await self.app.ask("Name of the new group")):
            return
        if host := await self.app.ask(f"First host of {sanitize_line(name)}"):
            file = self.listed.chosen.group.file if self.listed.chosen else None
            self._edit(
                partial(ssh_hosts.new_group, name, host, file),
                f"{sanitize_line(name)} has {sanitize_line(host)}",
            )

    @work(group="edit", exclusive=True)
    async def action_rename(self) -> None:
        if (row := self.listed.chosen) is None:
            return
        old = row.host or row.group.name
        new = await self.app.ask(f"Another name for {sanitize_line(old)}", sanitize_line(old))
        if new and new != old:
            change = partial(row.group.replace_host, old, new) if row.host else partial(row.group.rename, new)
            self._edit(change, f"{sanitize_line(old)} is called {sanitize_line(new)} now")

    @work(group="edit", exclusive=True)
    async def action_remove(self) -> None:
        if (row := self.listed.chosen) is None:
            return
        group = sanitize_line(row.group.name)
        what = f"host {sanitize_line(row.host)} of {group}" if row.host else f"group {group}"
        text = f"Take {what} out of\n{sanitize_line(str(row.group.file))}?\n\nThe machines themselves stay as they are."
        choices = [("no", "Keep it", False), ("yes", "Take it out", True)]
        if await self.app.push_screen_wait(ChoiceScreen("Remove", text, choices, escape="no")) == "yes":
            change = partial(row.group.remove_host, row.host) if row.host else row.group.delete
            self._edit(change, f"{what} is gone")
