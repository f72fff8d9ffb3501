"""Every action with its key; the panels.

Screens take their bindings from here, and so do the hint line, the help, the palette and
``docs/reference/keys.md``. The keys that go to the panels of the run screen are made from the table of those.
The ids are what a ``[keys]`` table in the person's ``skyward.toml`` remaps (``"log.follow" = "f"``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from textual.binding import Binding, BindingType
from textual.keys import Keys, format_key

from skyward_tui.ui.panel_table import PANELS

SCOPES = {
    "app": "Everywhere",
    "replay": "Replay of a record",
    "pools": "Pools",
    "history": "Past runs",
    "compare": "Two runs side by side",
    "leftovers": "What accounts hold",
    "hosts": "Hosts (groups of skyward.toml, and who uses their GPUs)",
    "settings": "Settings (your own skyward.toml)",
    "launch": "Launch form",
    "run": "Pool and run",
    "panel": "Panels (ranks, nodes, numbers)",
    "numbers": "Numbers (in their panel)",
    "log": "Log pane",
    "errors": "Errors",
    "stacks": "Stacks (where every rank is)",
    "files": "Pickers (file, Python, accelerator)",
    "presets": "Presets (of the launch form)",
    "choice": "Lists (function, pool, provider, packages)",
    "toggles": "Check boxes (plugins, options)",
    "fold": "Parts of a form that fold",
    "dialog": "Dialogs",
    "help": "Help (the list of keys)",
    "teardown": "Tearing down",
    "jump": "Jump (letters on all that can have the focus)",
    "hostkey": "Unknown host key",
}


@dataclass(frozen=True, slots=True)
class Action:
    """One thing a person can do.

    Attributes:
        id: ``scope.name``.
        keys: comma-separated keys, in Textual's names.
        call: the Textual action.
        label: one or two words, for the hint line; empty where it is not hinted.
        help: a sentence for the help, the palette and the documentation.
        dangerous: whether it ends something.
        changes: whether it makes or changes something beside this app, and ends nothing.
        priority: whether it wins over the focused widget.
        partner: id of the action whose key is hinted beside this one's.
    """

    id: str
    keys: str
    call: str
    label: str
    help: str
    dangerous: bool = False
    changes: bool = False
    priority: bool = False
    partner: str = ""

    @property
    def scope(self) -> str:
        return self.id.partition(".")[0]

    @property
    def is_read_only(self) -> bool:
        """Whether who may only look may do it."""
        return not (self.dangerous or self.changes)

    def shown_keys(self, keymap: Mapping[str, str] = MappingProxyType({})) -> tuple[str, ...]:
        """The keys as a person reads them.

        Args:
            keymap: the person's own keys, by id.
        """
        return tuple(_SHOWN.get(key) or format_key(key) for key in keymap.get(self.id, self.keys).split(","))


_SHOWN = {"enter": "enter", "backspace": "backspace"}  # Textual shows arrows for these

PAGES = "Open a web page of the pool's head: Ray's or Dask's dashboard, a TensorBoard, a Jupyter"
_SIDEWAYS = ", in the grid; the hairline of numbers; the column that trials are sorted by"
ACTIONS: tuple[Action, ...] = (
    Action("app.help", "question_mark,f1", "app.help", "keys", "Show every key"),
    Action("app.palette", "colon,ctrl+p", "app.command_palette", "", "Open the command palette"),
    Action("app.quit", "ctrl+q", "app.ask_quit", "", "Quit; asks first while pools are up", priority=True),
    Action("app.suspend", "ctrl+z", "app.suspend_process", "", "Back to the shell for a while; fg returns"),
    Action("app.about", "f12", "app.about", "", "About this app and this machine, to paste into a bug report"),
    Action("app.jump", "apostrophe,ctrl+l", "app.jump", "", "Jump: type the letter of where to go"),
    # Replay
    Action("replay.pause", "p", "replay_pause", "play", "Pause or go on; at its end, from the beginning"),
    Action("replay.back", "comma", "replay_skip(-10)", "10 s", "Back by 10 s", partner="replay.on"),
    Action("replay.on", "full_stop", "replay_skip(10)", "", "On by 10 s"),
    Action(
        "replay.far_back", "less_than_sign", "replay_skip(-60)", "1 min", "Back by a minute", partner="replay.far_on"
    ),
    Action("replay.far_on", "greater_than_sign", "replay_skip(60)", "", "On by a minute"),
    Action(
        "replay.slower", "minus", "replay_speed(0.5)", "speed", "Half as fast; x0.25 at least", partner="replay.faster"
    ),
    Action("replay.faster", "plus,equals_sign", "replay_speed(2)", "", "Twice as fast; x64 at most"),
    Action("replay.failure", "E", "replay_failure", "failure", "Stop shortly before the first failure"),
    # Pools
    Action("pools.open", "enter", "open", "open", "Open the pool"),
    Action("pools.new", "n", "new", "new", "Launch a script on a new pool"),
    Action("pools.launch", "L", "launch_here", "launch here", "Launch a script on the chosen pool"),
    Action("pools.down", "X", "down", "tear down", "Tear the pool down, or all that are marked", dangerous=True),
    Action("pools.dashboard", "P", "dashboard", "", PAGES),
    Action("pools.refresh", "r", "refresh", "", "Look for pools again"),
    Action("pools.leftovers", "w", "leftovers", "what is left", "See what cloud accounts hold, and what of it is left"),
    Action("pools.quit", "q", "app.ask_quit", "quit", "Quit; asks first while pools are up"),
    Action("pools.history", "H", "history", "history", "See every past run"),
    Action("pools.hosts", "s", "hosts", "hosts", "See your hosts, and who uses their GPUs"),
    Action("pools.settings", "comma", "settings", "settings", "See and change your settings: looks, calls, keys"),
    Action("pools.failures", "F", "failures", "failures", "See failures of late that nobody has dismissed"),
    Action("pools.find", "slash", "find", "find", "Show only pools that have some words; esc shows all"),
    Action("pools.mark", "space", "mark", "mark", "Mark the pool: those that are marked are torn down"),
    Action("pools.turn", "t", "turn", "", "Turn the order round; ← and → choose the column"),
    Action("pools.back", "escape", "back", "", "Show all again; then unmark all"),
    # Past runs
    Action("history.open", "enter", "open", "open", "Open the run: its log, numbers and results"),
    Action("history.find", "slash", "find", "find", "Show only runs that have some words; esc shows all again"),
    Action("history.failed", "f", "failed", "failures", "Show only what failed, or all"),
    Action("history.turn", "t", "turn", "", "Turn the order round; ← and → choose the column"),
    Action("history.mark", "space", "mark", "mark", "Mark the run; two can be marked"),
    Action("history.compare", "c", "compare", "compare", "Compare the two runs that are marked"),
    Action("history.dismiss", "d", "dismiss_chosen", "dismiss", "Of failures: tell of this one no more", changes=True),
    Action(
        "history.dismiss_all",
        "D",
        "dismiss_all",
        "dismiss all",
        "Of failures: tell of none listed any more",
        changes=True,
    ),
    Action("history.again", "r", "again", "", "Read the ledger again"),
    Action("history.back", "escape,q", "back", "back", "Show all again, then back to the pools"),
    # Two runs side by side
    Action("compare.next", "n", "number(1)", "next number", "Draw the next number"),
    Action("compare.previous", "N", "number(-1)", "", "Draw the number before"),
    Action("compare.copy", "y", "copy", "copy", "Copy all rows"),
    Action("compare.back", "escape,q", "back", "back", "Back to the past runs"),
    # What accounts hold
    Action("leftovers.open", "enter", "open", "open", "Open the pool, or look at what another ledger made"),
    Action("leftovers.end", "X", "end", "end it", "End what is left of that thing's pool", dangerous=True),
    Action("leftovers.end_all", "E", "end_all", "end all", "End all that is left", dangerous=True),
    Action("leftovers.again", "r", "again", "look again", "Look again"),
    Action("leftovers.everywhere", "a", "everywhere", "all regions", "Look in all regions, or where pools have been"),
    Action("leftovers.back", "escape,q", "back", "back", "Back to the pools"),
    # Hosts
    Action("hosts.again", "r", "again", "look again", "Look again who uses which GPU"),
    Action("hosts.check", "c", "check", "check", "Check the host: what works there, in words"),
    Action(
        "hosts.trust", "t", "trust", "its key", "Show the host's key, and accept it where it is not known", changes=True
    ),
    Action("hosts.add", "a", "add", "add host", "Add a host to the group", changes=True),
    Action("hosts.group", "n", "group", "new group", "Begin a group of hosts", changes=True),
    Action("hosts.rename", "e", "rename", "rename", "Call the group, or the host, otherwise", changes=True),
    Action("hosts.remove", "d", "remove", "remove", "Take the host, or the group, out; asks first", changes=True),
    Action("hosts.back", "escape,q", "back", "back", "Back to the pools"),
    # Settings
    Action(
        "settings.change",
        "enter",
        "change",
        "change",
        "Change it; a flag the other way round, a key by pressing it",
        changes=True,
    ),
    Action("settings.forget", "d", "forget", "default", "Have the default hold again", changes=True),
    Action("settings.find", "slash", "find", "find", "Show only what has some words in it; esc shows all again"),
    Action("settings.back", "escape,q", "back", "back", "Back to the pools"),
    # Launch form
    Action("launch.launch", "ctrl+r", "launch", "launch", "Create the pool and launch", priority=True, changes=True),
    Action("launch.files", "ctrl+o,o", "files", "pick a script", "Pick a script or a packaged example"),
    Action("launch.python", "ctrl+n", "pythons", "", "Pick the Python that the script is loaded with"),
    Action("launch.accelerators", "ctrl+g", "accelerators", "", "Pick an accelerator: offers, catalogue"),
    Action("launch.copy", "ctrl+y,y", "copy_command", "copy command", "Copy it as a command line"),
    Action("launch.script", "ctrl+t,Y", "copy_script", "", "Copy the same thing as a Python script"),
    Action("launch.presets", "f4", "presets", "presets", "Fill the form from a preset of skyward.toml"),
    Action(
        "launch.save", "f3", "save_preset", "", "Save what the form says as a preset, in skyward.toml", changes=True
    ),
    Action("launch.view", "f2", "turn_plan", "turn plan", "Plan, command line or Python, where not all of it fits"),
    Action("launch.next", "down", "app.focus_next", "", "Next field (tab too)"),
    Action("launch.previous", "up", "app.focus_previous", "", "Previous field (shift+tab too)"),
    Action("launch.plan_down", "pagedown", "scroll_plan(1)", "", "Scroll the plan down"),
    Action("launch.plan_up", "pageup", "scroll_plan(-1)", "", "Scroll the plan up"),
    Action("launch.back", "escape", "back", "back", "Back, nothing launched"),
    # Pool and run
    Action(
        "run.previous_rank", "left_square_bracket", "step_rank(-1)", "rank", "Previous rank", partner="run.next_rank"
    ),
    Action("run.next_rank", "right_square_bracket", "step_rank(1)", "", "Next rank"),
    Action("run.rank", "r", "ask_rank", "", "Go to a rank by number"),
    Action("run.merge", "a", "merge", "all ranks", "All ranks merged, or one rank again"),
    Action("run.collapse", "u", "collapse", "", "All ranks, equal lines as one, or each again"),
    Action("run.only_failed", "M", "only_failed", "", "All ranks merged, but only those with errors; or all again"),
    Action("run.errors", "e", "errors", "errors", "Ranks with errors: root cause, tracebacks"),
    Action("run.find", "slash", "find", "find", "Find in the log; next and previous hit go on"),
    Action("run.next_hit", "n", "next_hit(1)", "", "Next hit"),
    Action("run.previous_hit", "N", "next_hit(-1)", "", "Previous hit"),
    Action("run.filter", "ampersand", "filter", "filter", "Show only the lines that match; ! first inverts"),
    Action("run.follow", "f", "follow", "follow", "Follow the newest line"),
    Action("run.pause", "space", "pause", "pause", "Pause or follow"),
    Action("run.zoom", "z", "zoom", "zoom", "Give the panel the whole screen, or take it back"),
    Action("run.grow", "right_parenthesis", "grow(1)", "", "Give the panel more room; borders can be dragged, too"),
    Action("run.shrink", "left_parenthesis", "grow(-1)", "", "Give the panel less room"),
    Action("run.even", "B", "even", "", "Give all panels their usual room"),
    Action("run.times", "t", "times", "", "Show when each line was printed, or not"),
    Action("run.wrap", "w", "wrap", "", "Wrap long lines"),
    Action("run.diff", "d", "diff", "", "Compare two ranks' results, value by value"),
    Action("run.export", "W", "export", "export", "Write the results to a CSV, JSON, Parquet or pickle file"),
    Action("run.trials", "U", "turn_trials", "", "Of a sweep by gangs: all of its trials, or this run's own results"),
    Action("run.time", "T", "time", "", "Go to a time in the log: 12:30, or -5m before its newest line"),
    Action("run.editor", "O", "editor", "", "Open your editor where the traceback in view, or the hit, points"),
    Action("run.pager", "vertical_line", "pager", "", "Read the whole log in your $PAGER, in this terminal"),
    Action("run.copy", "y", "copy", "copy", "Copy the selection, or what the panel shows"),
    Action("run.save", "S", "save", "save", "Save this log, and results as JSON and CSV"),
    Action("run.fetch", "o", "fetch", "fetch files", "Fetch the files that its ranks wrote, to outputs/", changes=True),
    Action("run.stacks", "s", "stacks", "stacks", "Where every rank is, and who has not joined a collective"),
    Action(
        "run.debug",
        "D",
        "debug",
        "debug",
        "Debug the rank that waits at a breakpoint: its pdb, in this terminal",
        changes=True,
    ),
    Action(
        "run.shell",
        "dollar_sign",
        "shell",
        "",
        "Open a shell on the chosen rank's node, by ssh, in this terminal",
        changes=True,
    ),
    Action("run.dashboard", "P", "dashboard", "", PAGES),
    Action("run.beside", "v", "beside", "beside", "Put another rank's log beside it, or take it away; four at most"),
    Action("run.alone", "V", "alone", "", "Take the log that is looked at away from the others"),
    Action("run.align", "i", "align", "", "Have all logs side by side at the same time, or each for itself"),
    Action("run.heat", "H", "heat", "colour by", "Show ranks by a figure (use, loss), or by state"),
    *(
        Action(f"run.{row.id}", str(row.number), f"panel('{row.id}')", "", row.help)
        for row in sorted(PANELS, key=lambda row: row.number)
    ),
    Action("run.previous_run", "left_curly_bracket", "step_run(-1)", "", "Previous run of the pool"),
    Action("run.next_run", "right_curly_bracket", "step_run(1)", "", "Next run of the pool"),
    Action("run.launch", "L", "launch_here", "", "Launch another run on this pool"),
    Action("run.again", "A", "launch_again", "", "Launch this run again, as it was or otherwise"),
    Action("run.cancel", "C", "cancel", "cancel", "Cancel the run; the pool stays", dangerous=True),
    Action("run.down", "X", "down", "tear down", "Tear the pool down", dangerous=True),
    Action("run.back", "escape", "back", "close", "Close what is open: find, filter, zoom; then back to the pools"),
    Action("run.leave", "q,backspace", "leave", "back", "Back to the pools"),
    # Ranks and nodes
    Action("panel.up", "up,k", "step(-1)", "", "Up; among numbers, the one above"),
    Action("panel.down", "down,j", "step(1)", "", "Down; among numbers, the one below"),
    Action("panel.left", "left,h", "sideways(-1)", "", f"Left{_SIDEWAYS}"),
    Action("panel.right", "right,l", "sideways(1)", "", f"Right{_SIDEWAYS}"),
    Action("panel.page_up", "pageup,ctrl+u", "page(-1)", "", "Page up"),
    Action("panel.page_down", "pagedown,ctrl+d", "page(1)", "", "Page down"),
    Action("panel.first", "home,g", "edge(0)", "", "First"),
    Action("panel.last", "end,G", "edge(-1)", "", "Last"),
    Action(
        "panel.open", "enter", "open", "its log", "Read the rank's log; what was said of a node; turn the trials round"
    ),
    # Numbers
    Action("numbers.charts", "c", "charts", "charts", "A chart of each number, or of the chosen one"),
    Action("numbers.scale", "b", "scale", "log scale", "A logarithmic scale, or a linear one again"),
    Action("numbers.smooth", "x", "smooth", "smooth", "Smooth the lines, with what was sent behind them, or not"),
    # Log pane
    Action("log.up", "up,k", "move(-1)", "", "Up a line"),
    Action("log.down", "down,j", "move(1)", "", "Down a line"),
    Action("log.page_up", "pageup,b", "page(-1)", "", "Page up"),
    Action("log.page_down", "pagedown", "page(1)", "", "Page down"),
    Action("log.half_up", "ctrl+u", "page(-0.5)", "", "Half a page up"),
    Action("log.half_down", "ctrl+d", "page(0.5)", "", "Half a page down"),
    Action("log.start", "home,g", "start", "", "The oldest line held"),
    Action("log.end", "end,G", "follow", "", "The newest line, and follow"),
    Action("log.left", "left,h", "sideways(-1)", "", "Left"),
    Action("log.right", "right,l", "sideways(1)", "", "Right"),
    # Errors
    Action("errors.log", "enter", "log", "log", "Read that rank's log"),
    Action("errors.copy", "y", "copy", "copy", "Copy the traceback"),
    Action("errors.editor", "O", "editor", "", "Open your editor where the traceback points"),
    Action("errors.back", "escape,q,e", "back", "back", "Back"),
    # Stacks
    Action("stacks.log", "enter", "log", "log", "Read the log of that rank, or of the first one"),
    Action("stacks.again", "r", "again", "take again", "Take the stacks again"),
    Action("stacks.threads", "t", "threads", "all threads", "Show all threads, or those that run the function"),
    Action("stacks.signal", "g", "signal", "by a signal", "Ask by a signal those that cannot be read", dangerous=True),
    Action("stacks.profile", "p", "profile", "profile", "Where that rank spends its time: look at it for 10 s"),
    Action("stacks.copy", "y", "copy", "copy", "Copy all stacks"),
    Action("stacks.save", "S", "save", "save", "Save all stacks to a file"),
    Action("stacks.back", "escape,q,s", "back", "back", "Back"),
    # File picker
    Action("files.up", "up", "step(-1)", "", "Up"),
    Action("files.down", "down", "step(1)", "", "Down"),
    Action("files.back", "escape", "close", "back", "Back, nothing chosen"),
    # Presets: a picker, too
    Action(
        "presets.delete", "ctrl+x", "delete", "", "Delete the preset under the cursor", dangerous=True, priority=True
    ),
    # Lists that open
    Action("choice.open", "enter,space", "show_overlay", "", "Open the list; enter chooses, esc closes it"),
    # Check boxes
    Action("toggles.previous", "left,h", "move(-1)", "", "Previous box"),
    Action("toggles.next", "right,l", "move(1)", "", "Next box"),
    Action("toggles.switch", "space,enter", "switch", "", "Switch the box on or off"),
    Action("fold.toggle", "enter,space", "toggle_collapsible", "", "Open the part that folds, or close it"),
    # Dialogs: what holds for all, then what some have beside
    Action("dialog.close", "escape", "close", "", "Close it, nothing chosen"),
    Action("dialog.previous", "left,up", "go(-1)", "", "Previous button (shift+tab too)"),
    Action("dialog.next", "right,down", "go(1)", "", "Next button (tab too)"),
    Action("dialog.jump", "ctrl+l", "app.jump", "", "Jump: type the letter of where to go"),
    Action("help.close", "q,question_mark,f1", "close", "", "Close the list"),
    Action("help.up", "k", "scroll(-1)", "", "Up a line (↑ too)"),
    Action("help.down", "j", "scroll(1)", "", "Down a line (↓ too)"),
    Action("teardown.close", "q", "close", "", "Close; a teardown that has begun goes on"),
    Action("jump.close", "escape", "close", "", "Stay where you are; so does any key that is no letter shown"),
    # Unknown host key: what accepts it is no key that somebody presses for something else as the dialog opens
    Action("hostkey.refuse", "escape,q", "answer(False)", "refuse", "Refuse it: the pool's start ends"),
    Action("hostkey.accept", "A", "answer(True)", "accept", "Accept it: it is written down as known"),
)


# What a person most likely wants next, by what has the focus; the hint line shows of each row what fits.
HINTS: Mapping[str, tuple[str, ...]] = {
    "pools": ("pools.open", "pools.new", "pools.launch"),
    "pools.words": ("pools.back",),
    "history": (
        "history.open", "history.dismiss", "history.dismiss_all", "history.find", "history.failed", "history.mark",
        "history.compare",
    ),
    "history.words": ("history.back",),
    "leftovers": ("leftovers.open", "leftovers.again"),
    "hosts": ("hosts.again", "hosts.check", "hosts.trust", "hosts.add"),
    "settings": ("settings.change", "settings.forget", "settings.find"),
    "launch": ("launch.launch", "launch.files", "launch.copy"),
    **{f"run.{row.id}": row.hints for row in PANELS},
    "run.prompt": ("run.back",),
    "errors": ("errors.log", "errors.copy"),
    "stacks": ("stacks.log", "stacks.again", "stacks.threads"),
    "files": ("files.back",),
    "hostkey": ("hostkey.refuse", "hostkey.accept"),
}  # fmt: skip
# Those that are never cut off, and stand last.
GLOBAL_HINTS = (
    "pools.down", "run.down", "leftovers.end", "leftovers.end_all",
    "pools.quit", "run.leave", "errors.back", "stacks.back", "leftovers.back", "hosts.back",
    "settings.back", "history.back", "compare.back", "launch.back", "app.help",
)  # fmt: skip


_BY_ID = {action.id: action for action in ACTIONS}
_BY_SCOPE = {scope: [action for action in ACTIONS if action.scope == scope] for scope in SCOPES}


def actions_by_id(*ids: str) -> Iterator[Action]:
    """Actions by their ids, in that order."""
    return (_BY_ID[each] for each in ids)


def actions_in(*scopes: str) -> Iterator[Action]:
    """The actions of some scopes, scope by scope."""
    return (action for scope in scopes for action in _BY_SCOPE.get(scope, ()))


def scopes_of(ids: Iterable[str]) -> list[str]:
    """The scopes of some actions, each once, in that order; ids that are none of ours have none."""
    return list(dict.fromkeys(_BY_ID[each].scope for each in ids if each in _BY_ID))


def first_key(id: str, keymap: Mapping[str, str]) -> str:
    """The first key of an action, as a person reads it, after the person's own."""
    return _BY_ID[id].shown_keys(keymap)[0]


_NAMED = re.compile(r"\{([a-z]+\.[a-z_]+)\}")


def with_keys(text: str, keymap: Mapping[str, str]) -> str:
    """A text in which actions are named in braces, ``{run.errors} shows why``, with their keys there."""
    return _NAMED.sub(lambda found: first_key(found[1], keymap) if found[1] in _BY_ID else found[0], text)


def bindings(scope: str) -> list[BindingType]:
    """A scope's Textual bindings; their ids are the actions' own."""
    return [
        Binding(a.keys, a.call, a.label or a.help, show=False, id=a.id, priority=a.priority) for a in actions_in(scope)
    ]


def keys_page() -> str:
    """``docs/reference/keys.md``: every key, as Markdown."""
    lines = [
        "# Keys",
        "",
        "Made from `skyward_tui/ui/actions.py` by `python -m skyward_tui.ui.actions`; a test keeps it true.",
        "In the app, `?` shows the same. Remap any of them by its id in [your `skyward.toml`](settings.md):",
        "",
        "```toml",
        "[keys]",
        '"run.follow" = "F"',
        "```",
        "",
        "`ctrl+c` never ends a run: it copies a selection, or says how to quit. tab and shift+tab move",
        "between panels and fields.",
        "Keys marked † end something and ask first.",
    ]
    for scope, title in SCOPES.items():
        lines += ["", f"## {title}", "", "| key | what it does | id |", "|---|---|---|"]
        for action in actions_in(scope):
            keys = " ".join(f"`{key}`" for key in action.shown_keys())
            lines.append(f"| {keys} | {action.help}{' †' if action.dangerous else ''} | `{action.id}` |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(keys_page())


# Scopes whose keys live at once, in what has the focus and in the screen around it.
CONCURRENT_SCOPES = (
    *(("app", scope) for scope in SCOPES if scope != "app"),
    *(("panel", scope) for scope in ("pools", "history", "leftovers", "hosts", "settings", "run", "errors", "stacks")),
    ("run", "log"),
    *((scope, "numbers") for scope in ("run", "panel")),
    *(("launch", scope) for scope in ("choice", "toggles", "fold")),
    *(("dialog", scope) for scope in ("help", "files", "teardown", "hostkey")),
)
# A terminal sends the same for these and for enter and tab; the last one copies, and ends nothing.
RESERVED_KEYS = {
    "ctrl+j": "is enter to a terminal",
    "ctrl+m": "is enter to a terminal",
    "ctrl+i": "is tab to a terminal",
    "ctrl+c": "copies what is selected",
}
_MODIFIERS = ("ctrl", "alt", "shift", "super", "meta", "hyper")


def resolve_keymap(requested: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Of the keys that somebody wants, those that can be had, and in words why not the others. For these the app's own
    hold.

    Args:
        requested: keys in Textual's names, or as they are typed, with commas between them, by the action's id.
    """
    keymap: dict[str, str] = {}
    refused: list[str] = []
    for given, text in requested.items():
        id = re.sub(r"^(pools\.)?sweep\b", r"\1leftovers", given)  # ids of earlier releases
        if id not in _BY_ID:
            near = get_close_matches(id, _BY_ID, 1)
            refused.append(f"keys.{id}: there is no such action{f'; {near[0]} is one' if near else ''}")
            continue
        # A comma alone is one of them.
        keys = [_textual_key(",")] if text.strip() == "," else [_textual_key(key.strip()) for key in text.split(",")]
        wrong = [reason for key in keys if (reason := _key_error(key))]
        if wrong:
            refused.append(f"keys.{id}: {wrong[0]}")
        else:
            keymap[id] = ",".join(dict.fromkeys(keys))
    while clash := _find_clash(keymap):
        loser, winner, key = clash
        del keymap[loser]
        refused.append(f"keys.{loser}: {winner} has {key} already")
    return keymap, refused


def _textual_key(key: str) -> str:
    """A key in Textual's names."""
    if key == ",":
        return "comma"
    return next(iter(Binding.make_bindings([(key, "", "")]))).key if len(key) == 1 else key


_NAMES = {key.value for key in Keys} | {_textual_key(chr(code)) for code in range(0x21, 0x7F)}


def _key_error(key: str) -> str:
    """Why a key can be none, or ""."""
    if not key:
        return "it names no key"
    if key in RESERVED_KEYS:
        return f"{key} {RESERVED_KEYS[key]}"
    *modifiers, name = key.split("+")
    is_key = name in _NAMES or (len(name) == 1 and name.isprintable())
    return "" if is_key and all(each in _MODIFIERS for each in modifiers) else f"{key!r} is no key"


def _find_clash(keymap: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Two that would have one key: which of them has to do without it, the other, and the key. What the app itself has
    twice, such as q in a dialog and in the screen below, is meant so."""
    holders: dict[str, list[str]] = {}
    for id, action in _BY_ID.items():
        for key in keymap.get(id, action.keys).split(","):
            holders.setdefault(key, []).append(id)
    for id in reversed(list(keymap)):
        for key in keymap[id].split(","):
            for other in holders[key]:
                is_meant = all(key in _BY_ID[each].keys.split(",") for each in (id, other))
                if other != id and not is_meant and _share_screen(_BY_ID[id], _BY_ID[other]):
                    return id, other, key
    return None


def _share_screen(one: Action, other: Action) -> bool:
    pair = {one.scope, other.scope}
    return len(pair) == 1 or any(pair == set(each) for each in CONCURRENT_SCOPES)
