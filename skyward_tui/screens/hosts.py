"""A person's hosts by group: who uses their GPUs, what works there, whose key to believe; and the groups edited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from textual import work
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from skyward_core.front import host_groups
from skyward_core.front.host_groups import HostLook
from skyward_core.model.errors import SkywardError
from skyward_core.wire.safe_text import field

from ..actions import bindings
from ..ends import beside as in_thread
from ..gpu_cells import by_whom
from ..hints import detail_of, words_of
from ..styles import beside
from ..theme import look
from ..widgets.chrome import Crumbs, Panel
from ..widgets.host_list import HostList, HostRow
from ..words import ago, count
from .base import BaseScreen

if TYPE_CHECKING:
    from skyward_core.front.host_groups import HostGroup
    from skyward_core.model.machine import Check

_NONE = "No groups of hosts yet: {hosts.group} begins one, in the skyward.toml of the state folder."


class HostsScreen(BaseScreen[None]):
    """It looks at the hosts when it opens, and again when it is told to: each look is a login."""

    SCOPE = "hosts"
    BINDINGS = bindings("hosts")
    DEFAULT_CSS = beside(__file__)

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
            parts.append(
                Content.styled(f"{free} of {count(len(gpus), 'GPU')} free", "$text-success" if free else "")
            )
        if away := sum(not seen.reached for seen in self._seen.values()):
            parts.append(Content.styled(f"✗ {count(away, 'host')} not reached", "$text-error"))
        if self._looking:
            parts.append(Content.styled("◌ looking …", "$text-warning"))
        elif self._looked_at is not None:
            parts.append(Content.styled(f"looked {ago(now - self._looked_at)}", "$muted"))
        return parts

    def _note(self) -> str:
        from ..actions import with_keys

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
                lines.append(
                    (f"process {each.pid}: {each}{'' if each.computes else ', which only draws'}\n", "$muted")
                )
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
            self._groups, self._failed = await in_thread(host_groups.groups), ""
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
            await in_thread(partial(host_groups.look, meant, said))
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
            self._checked[row.host] = found = await in_thread(partial(host_groups.check, row.host))
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
        from skyward_core.front.hosts import shown_key

        from ..dialogs.host_key import HostKeyScreen

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
        from ..dialogs.ask import AskScreen

        if (row := self._chosen) is None:
            return
        if host := await self.app.push_screen_wait(AskScreen(f"Host to add to {field(row.group.name)}")):
            self._edit(partial(row.group.added, host), f"{field(host)} is in {field(row.group.name)} now")

    @work(group="edit", exclusive=True)
    async def action_group(self) -> None:
        from ..dialogs.ask import AskScreen

        if not (name := await self.app.push_screen_wait(AskScreen("Name of the new group"))):
            return
        if host := await self.app.push_screen_wait(AskScreen(f"First host of {field(name)}")):
            file = self._chosen.group.file if self._chosen else None
            self._edit(partial(host_groups.new_group, name, host, file), f"{field(name)} has {field(host)}")

    @work(group="edit", exclusive=True)
    async def action_rename(self) -> None:
        from ..dialogs.ask import AskScreen

        if (row := self._chosen) is None:
            return
        old = row.host or row.group.name
        new = await self.app.push_screen_wait(AskScreen(f"Another name for {field(old)}", field(old)))
        if new and new != old:
            change = partial(row.group.exchanged, old, new) if row.host else partial(row.group.renamed, new)
            self._edit(change, f"{field(old)} is called {field(new)} now")

    @work(group="edit", exclusive=True)
    async def action_remove(self) -> None:
        from ..dialogs.ask import ChoiceScreen

        if (row := self._chosen) is None:
            return
        what = (
            f"host {field(row.host)} of {field(row.group.name)}"
            if row.host
            else f"group {field(row.group.name)}"
        )
        text = (
            f"Take {what} out of\n{field(str(row.group.file))}?\n\nThe machines themselves stay as they are."
        )
        choices = [("no", "Keep it", False), ("yes", "Take it out", True)]
        if await self.app.push_screen_wait(ChoiceScreen("Remove", text, choices, escape="no")) == "yes":
            change = partial(row.group.removed, row.host) if row.host else row.group.deleted
            self._edit(change, f"{what} is gone")

    def action_back(self) -> None:
        self.dismiss(None)
