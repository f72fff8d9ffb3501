"""The panels of the run screen, a row for each: the screen, the keys, the help and the hints are made of these.

Plain data that imports nothing of ours, so that the registry of actions can read it. What a panel shows, and what it
does, is in the one file that its row names; where it stands at each size is in the style sheet beside that.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PanelSpec:
    """One panel.

    Attributes:
        id: what a person remaps its key by (``run.ID``), and what style sheets call it (``#panel-ID``).
        number: the key that goes there, one digit; it stands in the title.
        title: after the number.
        help: what that key does, for the help, the palette and the documentation.
        made_by: ``module:class`` of its file, a :class:`~skyward_tui.panels.panel.RunPanel`; imported when first shown.
        hints: ids of actions, the most wanted first while it is looked at.
        actions: ids of the actions of the screen that are this panel's to do, wherever the focus is.
        empty: what is said where it has nothing to show; an action's id in braces stands for its key.
        hides: whether it is away as long as it has nothing to show; while it is there, the screen has the class
            ``-ID``, and until then its key says ``empty``.
        instead_of: id of the panel whose place it has, at sizes that have one for both, unless that one is looked at.
    """

    id: str
    number: int
    title: str
    help: str
    made_by: str
    hints: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    empty: str = ""
    hides: bool = False
    instead_of: str = ""


# In the order in which they fill the grid.
PANELS: tuple[PanelSpec, ...] = (
    PanelSpec(
        "ranks", 1, "ranks", "Go to the ranks", "skyward_tui.panels.ranks:RanksPanel",
        hints=(
            "run.debug", "panel.open", "run.errors", "run.cancel", "run.merge", "run.previous_rank", "run.zoom",
            "run.heat",
        ),
        actions=("run.heat",),
    ),
    PanelSpec(
        "log", 2, "log", "Go to the log", "skyward_tui.panels.log:LogPanel",
        hints=(
            "run.debug", "run.follow", "run.find", "run.errors", "run.cancel", "run.previous_rank", "run.merge",
            "run.filter", "run.pause", "run.save", "run.copy", "run.zoom", "run.beside",
        ),
        actions=(
            "run.find", "run.next_hit", "run.previous_hit", "run.filter", "run.follow", "run.pause", "run.times",
            "run.wrap", "run.beside", "run.alone", "run.align", "run.time", "run.editor", "run.pager",
        ),
        empty="no run yet: {run.launch} launches one here",
    ),
    PanelSpec(
        "phases", 3, "nodes", "Go to the nodes", "skyward_tui.panels.node_phases:NodesPanel",
        hints=("run.zoom", "run.errors", "run.cancel"),
    ),
    PanelSpec(
        "numbers", 5, "numbers", "Go to the numbers of the ranks", "skyward_tui.panels.rank_metrics:MetricsPanel",
        hints=(
            "run.previous_rank", "run.merge", "numbers.charts", "numbers.scale", "numbers.smooth", "run.cancel",
            "run.zoom", "run.errors",
        ),
        empty="no numbers so far: ranks send them with sky.log(loss=...), or yield dicts",
        hides=True,
        instead_of="phases",
    ),
    PanelSpec(
        "results", 4, "results", "Go to the results", "skyward_tui.panels.results:ResultsPanel",
        hints=("run.errors", "run.fetch", "run.save", "run.copy", "run.cancel", "run.export", "run.zoom"),
        actions=("run.diff", "run.export", "run.trials"),
    ),
    PanelSpec(
        "machines", 6, "machines", "Go to the machines", "skyward_tui.panels.machine_metrics:MachinesPanel",
        hints=("run.zoom", "run.errors", "run.cancel"),
        empty="no figures of machines so far: they come once a run is there",
        hides=True,
    ),
    PanelSpec(
        "queue", 7, "queue", "Go to the queue: who has nodes, who waits for some",
        "skyward_tui.panels.queue:QueuePanel",
        hints=("run.cancel", "run.copy", "run.zoom"),
        empty="no run waits for nodes, and no two share them",
        hides=True,
        instead_of="phases",
    ),
)  # fmt: skip

HOME_PANEL = "log"  # is looked at first, and is where a rank's lines are read
STARTUP_PANEL = "phases"  # is looked at while a pool comes up, until its first run opens
