"""Registry of all actions and their keys.

Bindings, hints, help, the command palette and ``docs/reference/keys.md`` are generated from this table. The keys that
focus the panels of the run screen come from ``run_screen_panel_list_and_layout``. In the ``[keys]`` table of
``skyward.toml``, the user can assign other keys to action IDs (``"log.follow" = "f"``).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING

from textual.binding import Binding, BindingType
from textual.keys import Keys, format_key

from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views import group_pairs
from skyward_tui.ui.run_screen_panel_list_and_layout import PANELS

if TYPE_CHECKING:
    from skyward_core.client.user_settings_and_app_state import UserCommand

SCOPES = {
    "app": "Everywhere",
    "replay": "Replay of a recording",
    "pools": "Pools",
    "history": "Past runs",
    "compare": "Two runs side by side",
    "leftovers": "Leftovers in cloud accounts",
    "hosts": "Hosts (groups in skyward.toml)",
    "settings": "Settings (your skyward.toml)",
    "launch": "Launch form",
    "run": "Pool and run",
    "panel": "Panels (ranks, nodes, metrics)",
    "metrics": "Metrics panel",
    "log": "Log pane",
    "errors": "Errors",
    "stacks": "Stacks of all ranks",
    "files": "Pickers (file, Python, accelerator)",
    "presets": "Presets (of the launch form)",
    "choice": "Lists (function, pool, provider, packages)",
    "toggles": "Check boxes (plugins, options)",
    "fold": "Collapsible sections of a form",
    "dialog": "Dialogs",
    "help": "Help (the list of keys)",
    "teardown": "Teardown",
    "jump": "Jump (a letter for each focusable widget)",
    "hostkey": "Unknown host key",
}


@dataclass(frozen=True, slots=True)
class Action:
    """A user action.

    Attributes:
        id: ``scope.name``.
        keys: Comma-separated keys, in Textual's names.
        call: Name of the Textual action, with its arguments.
        label: One or two words for the hint line; empty if the hint line never shows the action.
        help: Sentence for the help, the palette and the documentation.
        dangerous: Whether the action stops or deletes something.
        changes: Whether the action creates or changes something outside this app, without stopping or deleting
            anything.
        priority: Whether the binding takes precedence over those of the focused widget.
    """

    id: str
    keys: str
    call: str
    label: str
    help: str
    dangerous: bool = False
    changes: bool = False
    priority: bool = False

    @property
    def scope(self) -> str:
        return self.id.partition(".")[0]

    @property
    def is_read_only(self) -> bool:
        """Whether a read-only session allows the action."""
        return not (self.dangerous or self.changes)

    def shown_keys(self, keymap: Mapping[str, str] = MappingProxyType({})) -> tuple[str, ...]:
        """Return the displayed names of the action's keys.

        Args:
            keymap: The user's own keys by action id.
        """
        return tuple(map(shown_key, keymap.get(self.id, self.keys).split(",")))


# displayed names of keys for which Textual would display an arrow
_SHOWN = {"enter": "enter", "backspace": "backspace"}


def shown_key(key: str) -> str:
    """Return the displayed name of a key, such as ``$`` for Textual's ``dollar_sign``."""
    *modifiers, name = key.split("+")
    return "+".join((*modifiers, _SHOWN.get(name) or format_key(name)))


PAGES = "Open a dashboard of the pool: Ray, Dask, TensorBoard or Jupyter"
_SIDEWAYS = " in a grid; read a chart's values at another step; change the sort column of trials"
ACTIONS: tuple[Action, ...] = (
    Action("app.help", "question_mark,f1", "app.help", "keys", "Show every key"),
    Action("app.palette", "colon,ctrl+p", "app.command_palette", "", "Open the command palette"),
    Action("app.quit", "ctrl+q", "app.ask_quit", "", "Quit; while pools are up, ask first", priority=True),
    Action("app.suspend", "ctrl+z", "app.suspend_process", "", "Suspend to the shell; fg returns"),
    Action("app.about", "f12", "app.about", "", "Show versions and machine details for a bug report"),
    Action("app.jump", "apostrophe,ctrl+l", "app.jump", "", "Focus a widget by the letter shown on it"),
    # Actions of a replay
    Action("replay.pause", "p", "app.replay_pause", "play", "Pause or resume; at the end, restart"),
    Action("replay.back", "less_than_sign", "app.replay_skip(-10)", "10 s", "Go back 10 s"),
    Action("replay.on", "greater_than_sign", "app.replay_skip(10)", "", "Go forward 10 s"),
    Action("replay.far_back", "ctrl+left", "app.replay_skip(-60)", "1 min", "Go back one minute"),
    Action("replay.far_on", "ctrl+right", "app.replay_skip(60)", "", "Go forward one minute"),
    Action("replay.slower", "minus", "app.replay_speed(0.5)", "speed", "Halve the speed; x0.25 at least"),
    Action("replay.faster", "equals_sign", "app.replay_speed(2)", "", "Double the speed; x64 at most"),
    Action("replay.failure", "E", "app.replay_failure", "failure", "Seek to the next failure and pause there"),
    # Actions of the list of pools
    Action("pools.open", "enter", "open", "open", "Open the run or pool"),
    Action("pools.new", "n", "new", "new", "Launch a script on a new pool"),
    Action("pools.again", "A", "launch_again", "run again", "Edit the selected run's launch, and run it again"),
    Action("pools.launch", "L", "launch_here", "launch here", "Launch a script on the selected pool"),
    Action("pools.ended", "a", "all", "all pools", "Show or hide the table of all pools, including ended ones"),
    Action("pools.down", "X", "down", "tear down", "Tear down the pool, or all marked pools", dangerous=True),
    Action("pools.dashboard", "P", "dashboard", "", PAGES),
    Action("pools.refresh", "r", "refresh", "", "Refresh the list of pools"),
    Action("pools.leftovers", "J", "show('leftovers')", "leftovers", "Show leftovers in cloud accounts"),
    Action("pools.quit", "q", "app.ask_quit", "quit", "Quit; while pools are up, ask first"),
    Action("pools.history", "H", "show('history')", "history", "Show past runs"),
    Action("pools.hosts", "at", "show('hosts')", "hosts", "Show hosts and the users of their GPUs"),
    Action("pools.settings", "comma", "show('settings')", "settings", "Settings: theme, notifications, keys"),
    Action("pools.demo", "d", "demo", "demo", "Play the recorded demo"),
    Action("pools.failures", "F", "failures", "failures", "Show recent failures"),
    Action("pools.find", "slash", "find", "find", "Filter runs by words; esc shows all"),
    Action("pools.mark", "space", "mark", "mark", "Mark the pool for teardown"),
    Action("pools.back", "escape", "back", "", "Clear the filter; without one, clear all marks"),
    # Actions of the history of runs
    Action("history.open", "enter", "open", "open", "Open the run: its log, metrics and results"),
    Action("history.rerun", "A", "launch_again", "run again", "Edit the run's launch, and run it again"),
    Action("history.find", "slash", "find", "find", "Filter runs by words; esc shows all"),
    Action("history.failed", "F", "failed", "failures", "Show only failures, or all runs"),
    Action("history.sort", "o", "sort", "sort", "Sort by the next column; ← and → too"),
    Action("history.turn", "R", "turn", "", "Reverse order"),
    Action("history.mark", "space", "mark", "mark", "Mark up to eight runs, which are drawn in one chart"),
    Action("history.note", "quotation_mark", "note", "note", "Edit note and #tags of the run", changes=True),
    Action("history.axis", "m", "axis", "", "Switch the x axis of the chart between step and time"),
    Action("history.compare", "c", "compare", "compare", "Compare the two runs marked last"),
    Action("history.dismiss", "delete,Q", "dismiss_chosen", "dismiss", "Dismiss the failure of this run", changes=True),
    Action("history.dismiss_all", "Z", "dismiss_all", "dismiss all", "Dismiss all listed failures", changes=True),
    Action("history.again", "r", "again", "", "Reload the ledger"),
    Action("history.back", "escape,q", "back", "back", "Clear the filter; without one, go back to the pools"),
    # Actions of the comparison of two runs
    Action("compare.next", "right_square_bracket", "number(1)", "next metric", "Chart the next metric"),
    Action("compare.previous", "left_square_bracket", "number(-1)", "", "Chart the previous metric"),
    Action("compare.diff", "c", "diff", "diff", "Show the differences between the texts of both scripts"),
    Action("compare.equal", "u", "equal", "differences", "Show only differences, or all rows"),
    Action("compare.axis", "m", "axis", "x axis", "Switch the x axis between step and time"),
    Action("compare.copy", "y", "copy", "copy", "Copy all rows"),
    Action("compare.back", "escape,q", "back", "back", "Go back to the past runs"),
    # Actions of the leftovers screen
    Action("leftovers.open", "enter", "open", "open", "Open the pool, or scan resources of another ledger"),
    Action("leftovers.end", "X", "end", "delete", "Delete the leftovers of this pool", dangerous=True),
    Action("leftovers.end_all", "ctrl+x", "end_all", "delete all", "Delete all leftovers", dangerous=True),
    Action("leftovers.again", "r", "again", "refresh", "Scan the accounts again"),
    Action("leftovers.everywhere", "a", "everywhere", "all regions", "Scan all regions, or only regions used before"),
    Action("leftovers.back", "escape,q", "back", "back", "Go back to the list of pools"),
    # Actions of the hosts screen
    Action("hosts.again", "r", "again", "refresh", "Refresh the users of all GPUs"),
    Action("hosts.check", "enter", "check", "check", "Check whether the host is ready for pools"),
    Action("hosts.trust", "K", "trust", "host key", "Show the host's key; accept an unknown key", changes=True),
    Action("hosts.add", "plus", "add", "add host", "Add a host to the group", changes=True),
    Action("hosts.group", "n", "group", "new group", "Create a group of hosts", changes=True),
    Action("hosts.rename", "f6", "rename", "rename", "Rename the group or host", changes=True),
    Action("hosts.remove", "X", "remove", "remove", "Remove the host or group", dangerous=True),
    Action("hosts.back", "escape,q", "back", "back", "Go back to the list of pools"),
    # Actions of the settings screen
    Action(
        "settings.change",
        "enter",
        "change",
        "change",
        "Change the value, toggle the flag, or set the key",
        changes=True,
    ),
    Action("settings.forget", "X", "forget", "default", "Reset to default", changes=True),
    Action("settings.find", "slash", "find", "find", "Filter settings by words; esc shows all"),
    Action("settings.back", "escape,q", "back", "back", "Go back to the list of pools"),
    # Actions of the launch form
    Action("launch.launch", "ctrl+r", "launch", "launch", "Create pool and launch script", priority=True, changes=True),
    Action("launch.files", "ctrl+o", "files", "pick a script", "Pick a script or a packaged example"),
    Action("launch.python", "ctrl+n", "pythons", "", "Pick the Python that loads the script"),
    Action("launch.accelerators", "ctrl+g", "accelerators", "", "Pick an accelerator from offers or the catalogue"),
    Action("launch.copy", "ctrl+y,y", "copy_command", "copy command", "Copy the launch as a command line"),
    Action("launch.script", "ctrl+t,Y", "copy_script", "", "Copy the launch as a Python script"),
    Action("launch.clear", "f5", "clear_arguments", "", "Clear the arguments"),
    Action("launch.presets", "f4", "presets", "presets", "Fill the form from a preset of skyward.toml"),
    Action("launch.save", "f3", "save_preset", "", "Save the form as a preset in skyward.toml", changes=True),
    Action("launch.view", "f2", "turn_plan", "next view", "Switch between plan, command line and Python script"),
    Action("launch.next", "down", "app.focus_next", "", "Next field (tab too)"),
    Action("launch.previous", "up", "app.focus_previous", "", "Previous field (shift+tab too)"),
    Action("launch.plan_down", "pagedown", "scroll_plan(1)", "", "Scroll the plan down"),
    Action("launch.plan_up", "pageup", "scroll_plan(-1)", "", "Scroll the plan up"),
    Action("launch.back", "escape", "back", "back", "Back without launching"),
    # Actions of the screen with a pool and a run
    Action("run.previous_rank", "left_square_bracket", "step_rank(-1)", "rank", "Previous rank"),
    Action("run.next_rank", "right_square_bracket", "step_rank(1)", "", "Next rank"),
    Action("run.rank", "number_sign", "ask_rank", "", "Go to a rank by number"),
    Action("run.merge", "a", "merge", "all ranks", "Merge the logs of all ranks, or show one rank"),
    Action("run.collapse", "u", "collapse", "", "Merge the logs of all ranks, show equal lines once"),
    Action("run.only_failed", "M", "only_failed", "", "Merge only ranks with errors, or all ranks"),
    Action("run.errors", "e", "errors", "errors", "Show errors: root cause, tracebacks"),
    Action("run.find", "slash", "find", "find", "Find in log"),
    Action("run.next_hit", "n", "next_hit(1)", "match", "Next hit"),
    Action("run.previous_hit", "N", "next_hit(-1)", "", "Previous hit"),
    Action("run.filter", "ampersand", "filter", "filter", "Show only matching lines; a leading ! inverts"),
    Action("run.follow", "f", "follow", "follow", "Go to the newest line, and follow new lines"),
    Action("run.pause", "p", "pause", "pause", "Stop or resume following new lines"),
    Action("run.zoom", "z", "zoom", "zoom", "Zoom panel"),
    Action("run.grow", "right_parenthesis", "grow(1)", "", "Enlarge the panel; borders can also be dragged"),
    Action("run.shrink", "left_parenthesis", "grow(-1)", "", "Shrink the panel"),
    Action("run.even", "0", "even", "", "Reset layout"),
    Action("run.times", "t", "times", "", "Show or hide the time of each line"),
    Action("run.wrap", "w", "wrap", "", "Wrap long lines, or cut them"),
    Action("run.diff", "c", "diff", "", "Compare two ranks' results, value by value"),
    Action("run.export", "W", "export", "export", "Export the results to a CSV, JSON, Parquet or pickle file"),
    Action("run.trials", "U", "turn_trials", "", "Show all trials of the sweep, or this run's results"),
    Action("run.time", "T", "time", "", "Go to a time in the log: 12:30, or -5m before its newest line"),
    Action("run.editor", "O", "editor", "", "Open the file of the traceback or match in your editor"),
    Action("run.pager", "vertical_line", "pager", "", "Open the whole log in your $PAGER"),
    Action("run.copy", "y", "copy", "copy", "Copy the selection, or the panel's content"),
    Action("run.save", "S", "save", "save", "Save this log, and results as JSON and CSV"),
    Action(
        "run.fetch", "B", "fetch", "fetch files", "Fetch the files that the ranks wrote into outputs/", changes=True
    ),
    Action("run.stacks", "s", "stacks", "stacks", "Show the stacks of all ranks, and ranks missing from a collective"),
    Action(
        "run.debug", "D", "debug", "debug", "Debug the rank at a breakpoint with pdb in this terminal", changes=True
    ),
    Action("run.shell", "dollar_sign", "shell", "", "Open an SSH shell on the selected rank's node", changes=True),
    Action("run.dashboard", "P", "dashboard", "", PAGES),
    Action("run.beside", "v", "beside", "beside", "Show the next rank's log beside this one; four at most"),
    Action("run.pick_beside", "V", "pick_beside", "", "Show or hide the log of a given rank beside this one"),
    Action("run.align", "i", "align", "", "Scroll all logs to the same time, or each alone"),
    Action("run.heat", "asterisk", "heat", "colour by", "Colour ranks by a metric (utilization, loss) or by state"),
    *(
        Action(f"run.{row.id}", str(row.number), f"panel('{row.id}')", "", row.help)
        for row in sorted(PANELS, key=lambda row: row.number)
    ),
    Action("run.previous_run", "left_curly_bracket", "step_run(-1)", "", "Show the previous run of the pool"),
    Action("run.next_run", "right_curly_bracket", "step_run(1)", "", "Show the next run of the pool"),
    Action("run.launch", "L", "launch_here", "other", "Launch another run on this pool"),
    Action("run.again", "A", "launch_again", "run again", "Edit the run's launch, and run it again"),
    Action("run.on_change", "semicolon", "on_change", "", "Run again after each edit of the script", changes=True),
    Action("run.cancel", "C", "cancel", "cancel", "Cancel the run; the pool stays", dangerous=True),
    Action("run.down", "X", "down", "tear down", "Tear the pool down", dangerous=True),
    Action("run.back", "escape", "back", "close", "Close search, filter, added log or zoom; else go back to the pools"),
    Action("run.leave", "q,backspace", "leave", "back", "Go back to the list of pools"),
    # Actions of lists of ranks and nodes
    Action("panel.up", "up,k", "step(-1)", "", "Move up; in charts, go to the metric above"),
    Action("panel.down", "down,j", "step(1)", "", "Move down; in charts, go to the metric below"),
    Action("panel.left", "left,h", "sideways(-1)", "values", f"Move left{_SIDEWAYS}"),
    Action("panel.right", "right,l", "sideways(1)", "", f"Move right{_SIDEWAYS}"),
    Action("panel.page_up", "pageup,ctrl+u", "page(-1)", "", "Page up"),
    Action("panel.page_down", "pagedown,ctrl+d", "page(1)", "", "Page down"),
    Action("panel.first", "home,g", "edge(0)", "", "First"),
    Action("panel.last", "end,G", "edge(-1)", "", "Last"),
    Action("panel.open", "enter", "open", "open", "Open the rank's log or node's messages; reverse the trials' order"),
    # Actions of the charts of metrics
    Action("metrics.charts", "I", "charts", "one chart", "Chart all metrics, or only the selected one"),
    Action("metrics.scale", "b", "scale", "scale", "Switch between automatic, logarithmic and linear scale"),
    Action("metrics.axis", "m", "axis", "x axis", "Switch the x axis between step and time"),
    Action("metrics.smooth", "x", "smooth", "smooth", "Smooth the lines; raw values stay visible behind them"),
    # Actions of a focused log
    Action("log.up", "up,k", "move(-1)", "", "Up a line"),
    Action("log.down", "down,j", "move(1)", "", "Down a line"),
    Action("log.page_up", "pageup", "page(-1)", "", "Page up"),
    Action("log.page_down", "pagedown", "page(1)", "", "Page down"),
    Action("log.half_up", "ctrl+u", "page(-0.5)", "", "Scroll half a page up"),
    Action("log.half_down", "ctrl+d", "page(0.5)", "", "Scroll half a page down"),
    Action("log.start", "home,g", "start", "", "Go to the oldest available line"),
    Action("log.end", "end,G", "follow", "", "Go to the newest line, and follow new lines"),
    Action("log.left", "left,h", "sideways(-1)", "", "Left"),
    Action("log.right", "right,l", "sideways(1)", "", "Right"),
    # Actions of the screen with failures
    Action("errors.log", "enter", "log", "log", "Open the selected rank's log"),
    Action("errors.copy", "y", "copy", "copy", "Copy the traceback"),
    Action("errors.editor", "O", "editor", "editor", "Open the failing source line in your editor"),
    Action("errors.back", "escape,q,e", "back", "back", "Back"),
    # Actions of the screen with stacks
    Action("stacks.log", "enter", "log", "log", "Open the log of the selected rank (default: first rank)"),
    Action("stacks.again", "r", "again", "refresh", "Refresh the stacks"),
    Action("stacks.threads", "a", "threads", "all threads", "Show all threads, or only those that run the function"),
    Action(
        "stacks.signal",
        "exclamation_mark",
        "signal",
        "via signal",
        "Read stacks by a signal from ranks that py-spy cannot read",
        dangerous=True,
    ),
    Action("stacks.profile", "percent_sign", "profile", "profile", "Profile the selected rank for 10 s"),
    Action("stacks.copy", "y", "copy", "copy", "Copy all stacks"),
    Action("stacks.save", "S", "save", "save", "Save all stacks to a file"),
    Action("stacks.back", "escape,q,s", "back", "back", "Back"),
    # Actions of the file picker
    Action("files.up", "up", "step(-1)", "", "Up"),
    Action("files.down", "down", "step(1)", "", "Down"),
    Action("files.back", "escape", "close", "back", "Back without choosing"),
    # Actions of the picker of presets
    Action(
        "presets.delete", "ctrl+x", "delete", "", "Delete the preset under the cursor", dangerous=True, priority=True
    ),
    # Actions of drop-down lists
    Action("choice.open", "enter,space", "show_overlay", "", "Open the list; enter chooses, esc closes it"),
    # Actions of rows of check boxes
    Action("toggles.previous", "left,h", "move(-1)", "", "Previous box"),
    Action("toggles.next", "right,l", "move(1)", "", "Next box"),
    Action("toggles.switch", "space,enter", "switch", "", "Toggle the box"),
    Action("fold.toggle", "enter,space", "toggle_collapsible", "", "Expand or collapse the section"),
    # Actions of all dialogs, then actions of single dialogs
    Action("dialog.close", "escape", "close", "", "Close without choosing"),
    Action("dialog.previous", "left,up", "go(-1)", "", "Previous button (shift+tab too)"),
    Action("dialog.next", "right,down", "go(1)", "", "Next button (tab too)"),
    Action("dialog.jump", "ctrl+l", "app.jump", "", "Focus a widget by the letter shown on it"),
    Action("help.close", "q,question_mark,f1", "close", "", "Close the list of keys"),
    Action("help.find", "slash", "find", "find", "Filter the keys by words; esc shows all"),
    Action("help.up", "k", "scroll(-1)", "", "Up a line (↑ too)"),
    Action("help.down", "j", "scroll(1)", "", "Down a line (↓ too)"),
    Action("teardown.close", "q", "close", "", "Close the dialog; a started teardown continues"),
    Action("jump.close", "escape", "close", "", "Cancel the jump; any other key does, too"),
    # Actions of the dialog about an unknown host key. A user may be typing when the dialog opens, so no common letter
    # may accept the key.
    Action("hostkey.refuse", "escape,q", "answer(False)", "refuse", "Reject the key; the pool's start fails"),
    Action("hostkey.accept", "K", "answer(True)", "accept", "Accept the key and save it as known"),
)


# IDs of the most useful actions, by focused part of a screen. The hint line shows as many of a row's actions as fit.
HINTS: Mapping[str, tuple[str, ...]] = {
    "pools": ("pools.open", "pools.new", "pools.demo", "pools.again", "pools.launch"),
    "pools.words": ("pools.back",),
    "history": (
        "history.open", "history.rerun", "history.sort", "history.dismiss", "history.dismiss_all", "history.find",
        "history.mark", "history.compare", "history.failed", "history.note",
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
# By ID of an action: ID of the action whose key the hint line shows together with the key of this action.
PARTNERS = {
    "replay.back": "replay.on", "replay.far_back": "replay.far_on", "replay.slower": "replay.faster",
    "history.sort": "history.turn", "run.previous_rank": "run.next_rank", "run.next_hit": "run.previous_hit",
    "panel.left": "panel.right",
}  # fmt: skip
# Actions that are always shown, at the end of the hint line.
GLOBAL_HINTS = (
    "pools.down", "run.down", "leftovers.end", "leftovers.end_all",
    "pools.quit", "run.leave", "errors.back", "stacks.back", "leftovers.back", "hosts.back",
    "settings.back", "history.back", "compare.back", "launch.back", "app.help",
)  # fmt: skip


_BY_ID = {action.id: action for action in ACTIONS}
_BY_SCOPE = {scope: list(actions) for scope, actions in groupby(ACTIONS, attrgetter("scope"))}


def actions_by_id(*ids: str) -> Iterator[Action]:
    """Yield actions by their ids, in the given order."""
    return (_BY_ID[each] for each in ids)


def actions_in(*scopes: str) -> Iterator[Action]:
    """Yield the actions of the given scopes, one scope after the other."""
    return (action for scope in scopes for action in _BY_SCOPE.get(scope, ()))


def scopes_of(ids: Iterable[str]) -> list[str]:
    """Return the distinct scopes of actions, in the given order. Unknown IDs are ignored."""
    return list(dict.fromkeys(_BY_ID[each].scope for each in ids if each in _BY_ID))


def first_key(id: str, keymap: Mapping[str, str]) -> str:
    """Return the displayed name of an action's first key.

    Args:
        keymap: The user's own keys by action id.
    """
    return _BY_ID[id].shown_keys(keymap)[0]


def with_partner(key: str, action: Action, keymap: Mapping[str, str]) -> str:
    """Return a key of an action, followed by the first key of the action's partner."""
    return f"{key} {first_key(PARTNERS[action.id], keymap)}" if action.id in PARTNERS else key


_NAMED = r"\{([a-z]+\.[a-z_]+)\}"


def with_keys(text: str, keymap: Mapping[str, str], can: Callable[[str], bool] | None = None) -> str:
    """Replace action IDs in braces, as in ``{run.errors} shows details``, by the keys of the actions.

    Args:
        text: The text.
        keymap: The user's own keys by action id.
        can: Returns whether a Textual action is available. Remarks about unavailable actions, such
            as ``({run.errors}: details)``, are left out.
    """
    if can is not None:
        calls = {id: action.call.partition("(")[0] for id, action in _BY_ID.items()}
        text = re.sub(rf" ?\({_NAMED}[^()]*\)", lambda found: found[0] if can(calls.get(found[1], "")) else "", text)
    return re.sub(_NAMED, lambda found: first_key(found[1], keymap) if found[1] in _BY_ID else found[0], text)


def bindings(scope: str) -> list[BindingType]:
    """Return the Textual bindings of a scope. The IDs of bindings are the IDs of their actions."""
    return [
        Binding(a.keys, a.call, a.label or a.help, show=False, id=a.id, priority=a.priority) for a in actions_in(scope)
    ]


def keys_page() -> str:
    """Return the content of ``docs/reference/keys.md``."""
    lines = [
        "# Keys",
        "",
        "<!-- Generated from skyward_tui/ui/actions.py by `python -m skyward_tui.ui.actions`; a test compares them -->",
        "",
        "In the app, `?` shows the same list. Remap a key by its id in [your `skyward.toml`](settings.md):",
        "",
        "```toml",
        "[keys]",
        '"run.follow" = "F"',
        "```",
        "",
        "`ctrl+c` never ends a run: it copies a selection, or shows how to quit. tab and shift+tab move",
        "between panels and fields.",
        "Keys marked † end or delete something and ask first.",
    ]
    for scope, title in SCOPES.items():
        lines += ["", f"## {title}", "", "| key | action | id |", "|---|---|---|"]
        for action in actions_in(scope):
            keys = " ".join(f"`{key}`" for key in action.shown_keys())
            lines.append(f"| {keys} | {action.help}{' †' if action.dangerous else ''} | `{action.id}` |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(keys_page())


# Pairs of scopes whose keys apply at the same time: the scope of a focused widget, and the scope of its screen.
CONCURRENT_SCOPES = (
    *(("app", scope) for scope in SCOPES if scope != "app"),
    *(("panel", scope) for scope in ("pools", "history", "leftovers", "hosts", "settings", "run", "errors", "stacks")),
    ("run", "log"),
    *((scope, "metrics") for scope in ("run", "panel")),
    *(("launch", scope) for scope in ("choice", "toggles", "fold")),
    *(("dialog", scope) for scope in ("help", "files", "teardown", "hostkey")),
)
# Keys that users cannot bind. For the first three keys, terminals send the same bytes as for enter or tab.
RESERVED_KEYS = {
    "ctrl+j": "is the same as enter in a terminal",
    "ctrl+m": "is the same as enter in a terminal",
    "ctrl+i": "is the same as tab in a terminal",
    "ctrl+c": "copies the selection",
}
_MODIFIERS = ("ctrl", "alt", "shift", "super", "meta", "hyper")


def resolve_keymap(requested: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Validate the keys in the user's settings.

    Args:
        requested: Comma-separated keys by action ID, in Textual's names or as typed.

    Returns:
        The valid keys by action ID, and an error text for each rejected entry. Actions of rejected entries keep their
        default keys.
    """
    keymap: dict[str, str] = {}
    refused: list[str] = []
    for given, text in requested.items():
        # Convert action IDs that earlier releases used.
        id = re.sub(r"\bnumbers\b", "metrics", re.sub(r"^(pools\.)?sweep\b", r"\1leftovers", given))
        if id not in _BY_ID:
            near = get_close_matches(id, _BY_ID, 1)
            refused.append(f"keys.{id}: unknown action{f'; did you mean {near[0]}?' if near else ''}")
            continue
        # A text that is just a comma means the comma key, although commas separate keys.
        keys = [_textual_key(",")] if text.strip() == "," else [_textual_key(key.strip()) for key in text.split(",")]
        wrong = [reason for key in keys if (reason := _key_error(key))]
        if wrong:
            refused.append(f"keys.{id}: {wrong[0]}")
        else:
            keymap[id] = ",".join(dict.fromkeys(keys))
    while clash := _find_clash(keymap):
        loser, winner, key = clash
        del keymap[loser]
        refused.append(f"keys.{loser}: {shown_key(key)} is already bound to {winner}")
    return keymap, refused


def resolve_commands(commands: Iterable[UserCommand], keymap: Mapping[str, str]) -> tuple[list[Action], list[str]]:
    """Return the user's commands as actions of the app, and an error text for each one whose key cannot be bound.

    Args:
        commands: The commands.
        keymap: The user's own keys by action id.
    """
    holders = {key: id for id, action in _BY_ID.items() for key in keymap.get(id, action.keys).split(",")}
    holders |= dict.fromkeys(("tab", "shift+tab"), "the next or previous field")
    actions, refused = list[Action](), list[str]()
    for number, command in enumerate(commands):
        key, id = _textual_key(command.key), f"commands.{command.name}"
        if reason := _key_error(key) or (
            f"{shown_key(key)} is already bound to {holder}" if (holder := holders.get(key)) else ""
        ):
            refused.append(f"{id}: {reason}")
            continue
        holders[key] = id
        help = sanitize_line(f"{command.name}: {shlex.join(command.words)}")
        actions.append(Action(id, key, f"app.own_command({number})", "", help, changes=True))
    return actions, refused


def _textual_key(key: str) -> str:
    """Return Textual's name of a key."""
    if key == ",":
        return "comma"
    return next(iter(Binding.make_bindings([(key, "", "")]))).key if len(key) == 1 else key


def _key_error(key: str) -> str:
    """Return the reason why a key cannot be bound, or ""."""
    if not key:
        return "no key given"
    if key in RESERVED_KEYS:
        return f"{key} {RESERVED_KEYS[key]}"
    *modifiers, name = key.split("+")
    is_key = len(name) == 1 and name.isprintable()
    is_key |= name in {*(key.value for key in Keys), *map(_textual_key, map(chr, range(0x21, 0x7F)))}
    return "" if is_key and all(each in _MODIFIERS for each in modifiers) else f"{key!r} is not a key"


def _find_clash(keymap: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Return two actions with the same key, as (loser, winner, key); None if there are none.

    Two actions whose default keys are equal, such as q in a dialog and in the screen below, do not clash.
    """
    holders = group_pairs((key, id) for id, action in _BY_ID.items() for key in keymap.get(id, action.keys).split(","))
    for id in reversed(list(keymap)):
        for key in keymap[id].split(","):
            for other in holders[key]:
                by_default = all(key in _BY_ID[each].keys.split(",") for each in (id, other))
                scopes = {_BY_ID[id].scope, _BY_ID[other].scope}
                concurrent = len(scopes) == 1 or any(scopes == set(pair) for pair in CONCURRENT_SCOPES)
                if other != id and not by_default and concurrent:
                    return id, other, key
    return None
