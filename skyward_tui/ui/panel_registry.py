"""Table of the run screen's panels.

The run screen, key bindings, help and hints are built from its rows. The table is plain data and imports nothing from
the project, because the registry of actions reads it. Each row names the file that implements the panel; a style sheet
next to that file defines the layout.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PanelSpec:
    """One panel of the run screen.

    Attributes:
        id: Name in key settings (``run.ID``) and in style sheets (``#panel-ID``).
        number: Digit key that focuses the panel, shown in the panel's title.
        title: Title after the number.
        help: Description of the digit key, for help, palette and documentation.
        made_by: ``module:class`` of a :class:`~skyward_tui.panels.panel.RunPanel`, imported when the panel is first
            shown.
        hints: IDs of the actions in the hint line while the panel has the focus, the most important first.
        actions: IDs of screen actions that this panel handles, even while another panel has the focus.
        empty: Text shown while the panel has no content. An action ID in braces stands for the action's key.
        hides: Whether the panel is hidden while it has no content. While it is shown, the screen has the class ``-ID``.
            While it is hidden, its key shows ``empty`` as a message.
        instead_of: ID of the panel that shares the same place if the screen has room for only one of both. The focused
            panel is shown.
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


# In the order of their places in the grid.
PANELS: tuple[PanelSpec, ...] = (
    PanelSpec(
        "ranks", 1, "ranks", "Go to the ranks", "skyward_tui.panels.rank_states_and_heat_map:RanksPanel",
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
        empty="no run on this pool yet ({run.launch}: launch)",
    ),
    PanelSpec(
        "phases", 3, "nodes", "Go to the nodes", "skyward_tui.panels.node_phases:NodesPanel",
        hints=("run.zoom", "run.errors", "run.cancel"),
    ),
    PanelSpec(
        "numbers", 5, "metrics", "Go to the metrics of the ranks", "skyward_tui.panels.rank_metrics:MetricsPanel",
        hints=(
            "run.previous_rank", "run.merge", "numbers.charts", "numbers.scale", "numbers.smooth", "run.cancel",
            "run.zoom", "run.errors",
        ),
        empty="no metrics yet: call sky.log(loss=...) or yield dicts",
        hides=True,
        instead_of="phases",
    ),
    PanelSpec(
        "results", 4, "results", "Go to the results", "skyward_tui.panels.results_and_sweep_trials:ResultsPanel",
        hints=("run.errors", "run.fetch", "run.save", "run.copy", "run.cancel", "run.export", "run.zoom"),
        actions=("run.diff", "run.export", "run.trials"),
    ),
    PanelSpec(
        "machines", 6, "machines", "Go to the machines", "skyward_tui.panels.machine_metrics:MachinesPanel",
        hints=("run.zoom", "run.errors", "run.cancel"),
        empty="machine metrics appear once a run starts",
        hides=True,
    ),
    PanelSpec(
        "queue", 7, "queue", "Go to the queue of runs that hold or wait for nodes",
        "skyward_tui.panels.queue:QueuePanel",
        hints=("run.cancel", "run.copy", "run.zoom"),
        empty="no run is queued, and no two runs share the nodes",
        hides=True,
        instead_of="phases",
    ),
)  # fmt: skip

HOME_PANEL = "log"  # focused by default, and when the user opens a rank's log
STARTUP_PANEL = "phases"  # focused while a pool starts, until its first run starts
