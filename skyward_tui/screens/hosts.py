"""Screen with the user's groups of SSH hosts, and with the users of each GPU."""

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

from skyward_core.client import ssh_host_groups_and_access
from skyward_core.client.ssh_host_groups_and_access import GpuUse, HostGpuUsage, HostGroup, configured_hosts
from skyward_core.model.errors import SkywardError
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.dialogs.basic_dialogs import ChoiceScreen
from skyward_tui.screens.base_screen import ListScreen
from skyward_tui.shutdown_and_daemon_threads import run_in_daemon_thread
from skyward_tui.text.error_hint_text import format_detail, format_error
from skyward_tui.text.hardware_and_offer_cells import free_text, memory, usage_by_user, utilization
from skyward_tui.text.number_time_and_run_state_format import ago, count
from skyward_tui.text.state_styles import state_style
from skyward_tui.text.text_width_tables_and_ascii import clip
from skyward_tui.ui.actions import bindings, with_keys
from skyward_tui.ui.session_futures import flash_errors
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.widgets.screen_frame_and_replay_line import Breadcrumbs, Panel
from skyward_tui.widgets.virtual_list import CursorList, Part

if TYPE_CHECKING:
    from skyward_core.model.machines_checks_and_gpu_use import Check


_ROOMY = 110  # cells; a narrower list leaves out the GPU model


@dataclass(frozen=True)
class HostRow:
    """Row of the list: a group, a host of a group, or a GPU of a host."""

    group: HostGroup
    host: str = ""
    gpu: GpuUse | None = None


class HostList(CursorList[HostRow]):
    """Groups in the order of their files, with their hosts and GPUs."""

    def __init__(self) -> None:
        super().__init__(id="list")
        self._seen: Mapping[str, HostGpuUsage] = {}

    def row_id(self, row: HostRow) -> tuple[str, str, str]:
        return row.group.name, row.host, row.gpu.id if row.gpu else ""

    def update(self, groups: Sequence[HostGroup], seen: Mapping[str, HostGpuUsage], note: str) -> None:
        """Show groups of hosts with their GPUs.

        Args:
            seen: Probe results by host; a host is missing until its first probe has ended.
            note: Text shown if there are no groups.
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
            text, style = self._state(row.host)
            return [(clip(name, width), ""), (clip(text, room), style)]
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
            return "◌ probing …", "$muted"
        if not seen.reached:
            return f"✗ {seen.why}", "$text-error"
        if seen.why or not seen.gpus:
            return seen.why or "no GPU that the SSH user may use", "$muted"
        return free_text(seen), "$text-success" if any(gpu.is_free for gpu in seen.gpus) else "$text-warning"


def _rows(groups: Sequence[HostGroup], seen: Mapping[str, HostGpuUsage]) -> Iterator[HostRow]:
    for group in groups:
        yield HostRow(group)
        for host in group.hosts:
            yield HostRow(group, host)
            if host in seen:
                yield from (HostRow(group, host, gpu) for gpu in seen[host].gpus)


_NONE = "No host groups yet. {hosts.group}: new group."


class HostsScreen(ListScreen[HostList]):
    """Screen with host groups. Each probe is a login, so hosts are probed only when the screen opens and on request."""

    SCOPE = "hosts"
    BINDINGS = bindings("hosts")
    DEFAULT_CSS = read_style_sheet(__file__)

    def __init__(self) -> None:
        super().__init__(HostList())
        self._groups: list[HostGroup] = []
        self._failed = ""
        self._is_read = False
        self._writing = asyncio.Lock()
        self._seen: dict[str, HostGpuUsage] = {}
        self._checked: dict[str, list[Check]] = {}
        self._probes = 0  # number of probes of hosts that are in progress
        self._probed_at: float | None = None
        # counter of changes to the list's content, so that :meth:`tick` updates the list only after a change
        self._changes = 0
        self._shown: object = None

    def body(self) -> ComposeResult:
        yield Panel(self.listed, id="hosts", title="hosts")
        yield Panel(VerticalScroll(Static(id="detail")), id="host", title="details")

    def on_mount(self) -> None:
        self.action_again()

    def time_token(self, now: float) -> object:
        return self._changes, super().time_token(now)

    def tick(self, now: float) -> None:
        if (listed := next(iter(self.query(HostList)), None)) is None:
            return  # the screen is closing, and Textual has already removed the list
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
        if unreachable := sum(not seen.reached for seen in self._seen.values()):
            parts.append(Content.styled(f"✗ {count(unreachable, 'host')} not reached", "$text-error"))
        if self._probes:
            parts.append(Content.styled("◌ probing …", "$text-warning"))
        elif self._probed_at is not None:
            parts.append(Content.styled(f"updated {ago(now - self._probed_at)}", "$muted"))
        return parts

    def _note(self) -> str:
        if not self._is_read:
            return "reading host groups …"
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
                lines.append((f"process {each.pid}: {each}{'' if each.computes else ' (graphics only)'}\n", "$muted"))
        elif row.host in self._checked:
            marked = [(state_style(check.state), check) for check in self._checked[row.host]]
            lines += [(f"{mark.glyph} {sanitize_line(format_detail(check))}\n", mark.style) for mark, check in marked]
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
            ("run on these:  ", "$muted"),
            (f"skyward-tui run SCRIPT --hosts {sanitize_line(group.name)}{takes}\n", "$text-accent"),
            *(f"{line}\n" for line in usage_by_user(gpus)),
            (f"in {sanitize_line(str(group.file))}", "$muted"),
        )

    def _mark_changed(self) -> None:
        self._changes += 1
        if self.has_widgets:
            self.tick(self.app.clock())

    async def _load_groups(self) -> None:
        """Read the groups of hosts in a thread, because the disk may be slow."""
        try:
            self._groups, self._failed = await run_in_daemon_thread(ssh_host_groups_and_access.groups), ""
        except (SkywardError, OSError) as error:
            self._groups, self._failed = [], format_error(error)
        self._is_read = True
        self._mark_changed()

    @work(group="look")
    async def _probe_hosts(self, *hosts: str) -> None:
        """Probe the given hosts; without arguments, all hosts."""
        probed = list(hosts) or list(dict.fromkeys(host for group in self._groups for host in group.hosts))
        if not probed:
            return
        loop = asyncio.get_running_loop()

        def show(seen: HostGpuUsage) -> None:
            self._seen[seen.host] = seen
            self._mark_changed()

        def on_result(seen: HostGpuUsage) -> None:
            with suppress(RuntimeError):  # the app has exited, so its event loop no longer accepts calls
                loop.call_soon_threadsafe(show, seen)

        for host in probed:
            self._seen.pop(host, None)
        self._probes += 1
        self._mark_changed()
        try:
            with flash_errors(self.app):
                await run_in_daemon_thread(partial(ssh_host_groups_and_access.list_gpu_use, probed, on_result))
                self._probed_at = self.app.clock()
        finally:
            self._probes -= 1
            for host in probed:  # a host without a result would otherwise be shown as being probed forever
                self._seen.setdefault(host, HostGpuUsage(host, (), "the probe failed", False))
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
            self._checked[row.host] = checks = await run_in_daemon_thread(
                partial(ssh_host_groups_and_access.check, row.host)
            )
            problems = [check for check in checks if check.state == "fail"]
            result = problems[0].detail if problems else "ready"
            self.flash(f"{row.host}: {result}", "error" if problems else "done")
            self._mark_changed()

    @work(group="trust", exclusive=True)
    async def action_trust(self) -> None:
        from skyward_tui.dialogs.host_key_and_secret_variables import HostKeyScreen

        if (row := self.listed.chosen) is None or not row.host:
            return
        self.flash(f"fetching the host key of {sanitize_line(row.host)} …")
        with flash_errors(self.app):
            shown = await run_in_daemon_thread(partial(ssh_host_groups_and_access.fetch_host_key, row.host))
            if shown.is_known():
                return self.flash(
                    f"the host key of {sanitize_line(row.host)} is known: {shown.key.fingerprint}", "done"
                )
            if not await self.app.push_screen_wait(HostKeyScreen(shown.key, starts=False)):
                return self.flash("the key was not accepted")
            self.flash(f"saved the key in {sanitize_line(str(shown.accept()))}", "done")
            self._probe_hosts(row.host)

    # Changes to host groups

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        chosen = self.listed.chosen
        if action in ("check", "trust"):
            return chosen is not None and chosen.host != ""
        if action in ("add", "rename", "remove"):
            return chosen is not None
        return True

    def _edit(self, change: Callable[[], None], message: str) -> None:
        """Change a settings file, then probe new hosts."""
        # The worker belongs to the app, so that the result is shown even if the user has left this screen.
        self.app.run_worker(self._write(change, message), group="hosts", exclusive=False)

    async def _write(self, change: Callable[[], None], message: str) -> None:
        with flash_errors(self.app):
            async with self._writing:
                await run_in_daemon_thread(change)
                await self._load_groups()
            self.app.flash(message, "done")
            new = [host for group in self._groups for host in group.hosts if host not in self._seen]
            if new and self.has_widgets:
                self._probe_hosts(*dict.fromkeys(new))

    @work(group="edit", exclusive=True)
    async def action_add(self) -> None:
        if (row := self.listed.chosen) is None:
            return
        if host := await self.app.ask(f"Host to add to {sanitize_line(row.group.name)}", "", configured_hosts()):
            message = f"added {sanitize_line(host)} to {sanitize_line(row.group.name)}"
            self._edit(partial(row.group.add_host, host), message)

    @work(group="edit", exclusive=True)
    async def action_group(self) -> None:
        if not (name := await self.app.ask("Name of the new group")):
            return
        if host := await self.app.ask(f"First host of {sanitize_line(name)}", "", configured_hosts()):
            file = self.listed.chosen.group.file if self.listed.chosen else None
            message = f"created {sanitize_line(name)} with {sanitize_line(host)}"
            self._edit(partial(ssh_host_groups_and_access.new_group, name, host, file), message)

    @work(group="edit", exclusive=True)
    async def action_rename(self) -> None:
        if (row := self.listed.chosen) is None:
            return
        old = row.host or row.group.name
        new = await self.app.ask(f"New name of {sanitize_line(old)}", sanitize_line(old))
        if new and new != old:
            change = partial(row.group.replace_host, old, new) if row.host else partial(row.group.rename, new)
            self._edit(change, f"renamed {sanitize_line(old)} to {sanitize_line(new)}")

    @work(group="edit", exclusive=True)
    async def action_remove(self) -> None:
        if (row := self.listed.chosen) is None:
            return
        group = sanitize_line(row.group.name)
        what = f"host {sanitize_line(row.host)} of {group}" if row.host else f"group {group}"
        text = f"Remove {what} from\n{sanitize_line(str(row.group.file))}?\n\nThe machines themselves do not change."
        choices = [("no", "Cancel", False), ("yes", "Remove", True)]
        if await self.app.push_screen_wait(ChoiceScreen("Remove", text, choices, escape="no")) == "yes":
            change = partial(row.group.remove_host, row.host) if row.host else row.group.delete
            self._edit(change, f"removed {what}")
