"""Table of the run screen's panels.

The run screen, key bindings, help and hints are built from its rows. The table is plain data and imports nothing from
the project, because the registry of actions reads it. Each row names the file that implements the panel and its place;
:func:`place_panels` computes the layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from skyward_core.views import group_pairs


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
        place: ``side`` for the left column; ``centre`` for the centre, which shows the first panel with content;
            ``below`` for the row below the centre; ``bottom`` for a row of its own, or free rows of the left column.
        details: IDs of panels that get the rows which the panel leaves free if it is shown alone, the most important
            first.
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
    place: str = "bottom"
    details: tuple[str, ...] = ("metrics", "log")


# All panels of the run screen. Within each place, the panels are in the order of preference.
PANELS: tuple[PanelSpec, ...] = (
    PanelSpec(
        "ranks", 1, "ranks", "Go to the ranks", "skyward_tui.panels.rank_states_and_heat_map:RanksPanel",
        hints=(
            "run.debug", "panel.open", "run.errors", "run.cancel", "run.merge", "run.previous_rank", "run.zoom",
            "run.heat",
        ),
        actions=("run.heat",),
        place="side",
    ),
    PanelSpec(
        "phases", 3, "nodes", "Go to the nodes", "skyward_tui.panels.node_phases:NodesPanel",
        hints=("run.zoom", "run.errors", "run.cancel"),
        place="side",
        details=("machines", "metrics"),
    ),
    PanelSpec(
        "queue", 7, "queue", "Go to the queue of runs that hold or wait for nodes",
        "skyward_tui.panels.queue:QueuePanel",
        hints=("run.cancel", "run.copy", "run.zoom"),
        empty="no run is queued, and no two runs share the nodes",
        hides=True,
        place="below",
    ),
    PanelSpec(
        "metrics", 5, "metrics", "Go to the metrics of the ranks", "skyward_tui.panels.rank_metrics:MetricsPanel",
        hints=(
            "run.previous_rank", "run.merge", "metrics.charts", "panel.left", "metrics.axis", "run.zoom", "run.cancel",
            "run.errors", "metrics.scale", "metrics.smooth",
        ),
        empty="no metrics yet: call sky.log(loss=...) or yield dicts",
        hides=True,
        place="centre",
    ),
    PanelSpec(
        "log", 2, "log", "Go to the log", "skyward_tui.panels.log:LogPanel",
        hints=(
            "run.debug", "run.next_hit", "run.follow", "run.find", "run.errors", "run.cancel", "run.previous_rank",
            "run.merge", "run.filter", "run.pause", "run.save", "run.copy", "run.zoom", "run.beside",
        ),
        actions=(
            "run.find", "run.next_hit", "run.previous_hit", "run.filter", "run.follow", "run.pause", "run.times",
            "run.wrap", "run.beside", "run.pick_beside", "run.align", "run.time", "run.editor", "run.pager",
        ),
        empty="no run on this pool yet ({run.launch}: launch)",
        place="centre",
    ),
    PanelSpec(
        "results", 4, "results", "Go to the results", "skyward_tui.panels.results_and_sweep_trials:ResultsPanel",
        hints=("run.errors", "run.fetch", "run.save", "run.copy", "run.cancel", "run.export", "run.zoom"),
        actions=("run.diff", "run.export", "run.trials"),
        empty="no result yet: results appear when the first rank returns",
        hides=True,
        place="below",
    ),
    PanelSpec(
        "machines", 6, "machines", "Go to the machines", "skyward_tui.panels.machine_metrics:MachinesPanel",
        hints=("run.zoom", "run.errors", "run.cancel"),
        empty="machine metrics appear once a run starts",
        hides=True,
        details=(),
    ),
)  # fmt: skip

HOME_PANEL = "log"  # ID of the panel that has the focus by default, and after the user opens a rank's log
STARTUP_PANEL = "phases"  # ID of the active panel while a pool starts, until its first run starts

# Column, row, width and height of a panel in cells.
Box = tuple[int, int, int, int]
# Rows that each shown panel needs, including its border; None if the panel can use any number.
Rows = Mapping[str, int | None]
WIDE = 140  # cells; a screen at least this wide has a wider left column
SIDE, SIDE_WIDE = 46, 56
LEAST_COLUMNS, LEAST_ROWS = 16, 4  # minimum width and minimum height of a panel, in cells
CENTRE_SHARE = 0.45  # minimum height of the upper panel in the centre, as a share of the screen's rows
TOP_SHARE = 0.6  # minimum height of the upper panel in the centre, as a share of the rows above the bottom panels
CHROME_ROWS = 3  # rows of the screen that do not belong to the grid of panels
# rows of a panel that can use any number of rows; maximum rows of a panel below other panels
USUAL_ROWS, MOST_ROWS = 8, 14
FREE_ROWS = 6  # minimum number of free rows in the left column for one more panel in this column
TALL = 26  # minimum rows that must remain above a panel that occupies a row of the grid by itself


def place_panels(
    rows: Rows, active: str, width: int, height: int, left: int = 0, below: int = 0, *, alone: str = ""
) -> dict[str, Box]:
    """Return the places of panels in a grid. Omit panels without enough room, except the active panel.

    Args:
        rows: Rows by the ID of each shown panel.
        active: ID of the panel with the focus.
        width, height: Size of the grid.
        left: Cells by which the user has moved the border of the left column to the right.
        below: Rows by which the user has moved the border below the first row upwards.
        alone: Reason to show only the active panel and its details: "zoom", "narrow" or "short"; "" to show all panels.
            On narrow and short screens, a long log leaves rows to the charts of the metrics.
    """
    places = group_pairs((row.place, row.id) for row in PANELS if row.id in rows)
    side, centre, low, more = (places.get(each, []) for each in ("side", "centre", "below", "bottom"))
    charts = ceil(CENTRE_SHARE * (height + CHROME_ROWS))
    if alone or len(rows) == 1 or not side or not centre or width < 2 * LEAST_COLUMNS or height < 4 * LEAST_ROWS:
        if alone != "zoom" and active == HOME_PANEL and {"metrics", "log"} <= rows.keys() and height >= 4 * LEAST_ROWS:
            rows = {**rows, active: min(rows[active] or height, height - charts)}
        return _place_alone(rows, active if active in rows else next(iter(rows)), width, height) if rows else {}
    needs = {name: max(LEAST_ROWS - 1, USUAL_ROWS if need is None else need) for name, need in rows.items()}
    column = _clamp((SIDE_WIDE if width >= WIDE else SIDE) + left, LEAST_COLUMNS, width - LEAST_COLUMNS)
    is_split = len(centre) > 1  # whether the metrics are shown above the log
    under = [*centre[1:], *low]

    def top_of(body: int) -> int:
        if not under:
            return body
        share = max(round(TOP_SHARE * body), charts)
        wanted = share if is_split else body - min(MOST_ROWS, max(needs[name] for name in under))
        return _clamp(wanted - below, LEAST_ROWS, body - LEAST_ROWS)

    # whether the left column extends over the whole height of the grid
    spans_column = is_split and width >= WIDE and bool(more)
    free = (height if spans_column else top_of(height)) - sum(needs[name] for name in side)
    beside = more[:1] if is_split and free >= FREE_ROWS else []
    bottom: dict[str, int] = {}
    for name in more[len(beside) :]:
        room = height - sum(bottom.values())
        need = min(MOST_ROWS if width >= WIDE else USUAL_ROWS, needs[name], room - 2 * LEAST_ROWS)
        if name == active or room - need >= TALL:
            bottom[name] = need
    body = max(2 * LEAST_ROWS, height - sum(bottom.values()))
    top = top_of(body)
    boxes: dict[str, Box] = {}
    # In the left column, the last panel that can use any number of rows gets all free rows.
    tall = body if spans_column else top if is_split else body
    flexible = beside[0] if beside else side[0]
    column_rows = {name: needs[name] for name in [*side, *beside]}
    missing = sum(column_rows.values()) - tall
    for name in side[1:]:
        column_rows[name] = min(column_rows[name], max(LEAST_ROWS - 1, tall // 3, column_rows[name] - missing))
        if not under:
            column_rows[name] = _clamp(column_rows[name] + below, LEAST_ROWS, tall - LEAST_ROWS)
    column_rows[flexible] = tall - sum(need for name, need in column_rows.items() if name != flexible)
    y = 0
    for name, need in column_rows.items():
        boxes[name] = (0, y, column, max(0, min(need, tall - y)))
        y += need
    boxes[centre[0]] = (column, 0, width - column, top)
    x = 0 if is_split and not spans_column else column
    for place, name in enumerate(under):
        share = (width - x) * (3 if is_split and place == 0 else 2) // (3 + 2 * (len(under) - place - 1))
        end = width if place == len(under) - 1 else x + share
        boxes[name] = (x, top, end - x, body - top)
        x = end
    y = body
    for name, need in bottom.items():
        boxes[name] = (0, y, width, need)
        y += need
    return boxes


def _place_alone(rows: Rows, active: str, width: int, height: int) -> dict[str, Box]:
    """Return the places of one panel and, below it, of its details if there is enough room."""
    top = max(LEAST_ROWS - 1, rows[active] or height)
    details = [name for row in PANELS if row.id == active for name in row.details if name in rows and name != active]
    if not details or height - top < FREE_ROWS:
        return {active: (0, 0, width, height)}
    details = details[: max(1, width // SIDE)]
    edges = [width * place // len(details) for place in range(len(details) + 1)]
    below = {name: (x, top, end - x, height - top) for name, x, end in zip(details, edges, edges[1:], strict=False)}
    return {active: (0, 0, width, top), **below}


def _clamp(value: int, least: int, most: int) -> int:
    return max(least, min(value, most))
