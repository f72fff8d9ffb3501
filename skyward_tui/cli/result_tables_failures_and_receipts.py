"""Text reports of commands: result tables, failures and receipts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress

from skyward_core.client.run_history import Receipt
from skyward_core.client.session import Session
from skyward_core.model import errors
from skyward_core.model.errors import LedgerError
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.log_buffers_and_rank_activity import rank_prefix
from skyward_core.views.pool_view import PoolView, RunView, TaskView
from skyward_core.views.result_comparison import compare_results, find_disagreements
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.text.error_hint_text import failure_hints
from skyward_tui.text.number_time_and_run_state_format import count, duration, failure, number
from skyward_tui.text.queue_trial_and_comparison_rows import difference_table, parse_rank_pair
from skyward_tui.text.text_width_tables_and_ascii import clip, one_line
from skyward_tui.text.text_width_tables_and_ascii import table as table

GLYPHS = {"returned": "✓", "raised": "✗", "exited": "✗", "lost": "!", "collateral": "⊘", "running": "●"}
COLORS = {"returned": 32, "raised": 31, "exited": 31, "lost": 31, "collateral": 2, "waiting": 2}


def state_text(state: str, many: str = "") -> str:
    """Return the glyph, the number of ranks and the name of a state. "collateral" is shown as "stopped"."""
    return f"{GLYPHS.get(state, '◌')} {many}{'stopped' if state == 'collateral' else state}"


def exit_status(run: RunView) -> int:
    """Return the exit status for a command that followed a run."""
    if run.state in ("done", "cancelled"):
        return errors.OK if run.state == "done" else errors.INTERRUPTED
    return errors.root_cause_exit_code(run.root_cause)


def unfetched_text(pool: PoolView, run: str) -> str:
    """Return a note about the unfetched results of a run on a running pool; "" if there are none."""
    size = pool.unfetched.get(run)
    return "" if size is None else f" (not fetched: {size:,} bytes)"


def run_table(run: RunView) -> tuple[list[tuple[str, ...]], list[int | None]]:
    """Return the rows of a run's result table (header, then one row per rank), and the SGR colour code of each row."""
    tasks = [task for _, task in sorted(run.tasks.items())]
    rows: list[tuple[str, ...]] = [("rank", "node", "outcome", "time", "result")]
    for task in tasks:
        name = rank_prefix(task.rank)[:4] if run.kind == "broadcast" else f"#{task.index} {rank_prefix(task.rank)[:4]}"
        time = duration(task.outcome.seconds, precise=True) if task.outcome else ""
        rows.append((name, f"n{task.node}", state_text(task.state), time, outcome_note(task)))
    return rows, [1, *(COLORS.get(task.state) for task in tasks)]


def outcome_note(task: TaskView) -> str:
    """Return the result or the error of a task, in one line."""
    outcome = task.outcome
    if outcome is None:
        return ""
    if outcome.error is not None:
        return failure(outcome.kind, outcome.error.type, one_line(outcome.error.message))
    text = one_line(outcome.summary.text) if outcome.summary else ""
    return f"{count(task.items, 'item')}; last {task.last_item.text}" if task.items and task.last_item else text


def aggregate_lines(run: RunView) -> list[str]:
    """Return mean, standard deviation and range of numeric results, one line for each name.

    A name with a single result has no line, because the table shows the result.
    """
    return [
        f"{name} of {row['n']:,}: mean {number(row['mean'])} ± {number(row['std'])}, "
        f"{number(row['min'])} … {number(row['max'])}, sum {number(row['sum'])}"
        for name, row in (run.aggregate() or {}).items()
        if row["n"] > 1
    ]


def disagreement_lines(run: RunView) -> list[str]:
    """Return the ranks whose numbers or arrays differ from those of most ranks."""
    return [
        f"ranks disagree in {sanitize_line(each.name)}: most have {clip(one_line(each.usual), 60)}, "
        + ", ".join(f"{rank_prefix(rank)[:4]} {clip(one_line(text), 60)}" for rank, text in each.ranks.items())
        for each in find_disagreements(run)
    ]


def show_difference(run: RunView, ranks: str, console: Console) -> None:
    """Print the difference between the results of two ranks, or tasks.

    Args:
        run: The run.
        ranks: Two numbers, such as "0,1".
        console: Console for the output.

    Raises:
        UsageError: If the text does not name two ranks.
    """
    pair = parse_rank_pair(run, ranks)
    found, equal = compare_results(*(task.outcome.summary if task.outcome else None for task in pair))
    names = [f"r{task.index}" if run.kind == "broadcast" else f"#{task.index}" for task in pair]
    rows = [{"at": each.at, "left": each.left, "right": each.right, "by": each.by} for each in found]
    console.result({"run": run.id, "left": pair[0].index, "right": pair[1].index, "rows": rows, "equal": equal})
    if console.as_json:
        return
    for task, name in zip(pair, names, strict=True):
        if task.state != "returned":
            console.note(f"{name} has no result: {outcome_note(task) or task.state}")
    for at, line in enumerate(difference_table(names, found, equal)):
        console.print_line(clip(line, console.width), *([1] if not at and found else []))


# Removed before tracebacks are compared: the folder of a file, because folders differ between nodes and client, and the
# prefix "[rank1]: " that PyTorch writes before each line.
_VARYING = re.compile(r'(?<=File ")[^"]*/(?=[^"/]+")|^\[rank\d+\]: ', re.MULTILINE)


def _traceback_lines(text: str) -> set[str]:
    return {line.strip() for line in _VARYING.sub("", text).splitlines()} - {"", "Traceback (most recent call last):"}


def failure_lines(run: RunView, printed: Callable[[int], str] | None = None) -> list[str]:
    """Return the root cause of a failed run, with its traceback unless the rank has printed the same traceback.

    Args:
        run: The run.
        printed: Returns the last output of a rank that this command has shown; None if it shows no output.
    """
    cause = run.root_cause
    if cause is None:
        return []
    rank = f"{rank_prefix(cause.rank)[:4]} " if cause.rank_prefix else ""
    lines = [f"root cause: {rank}{cause.outcome}: {failure(cause.outcome, cause.type, cause.message)}"]
    if (metrics := run.cause_metrics) is not None:
        from skyward_tui.text.hardware_and_offer_cells import metrics_line  # imported late, because few runs fail

        lines.append(metrics_line(metrics))
    lines += failure_hints(run)
    task = next((t for t in run.tasks.values() if t.rank == cause.rank and t.state == cause.outcome), None)
    trace = task.outcome.error.traceback if task and task.outcome and task.outcome.error else ""
    shown = printed(cause.rank) if printed is not None else ""
    if shown and trace and _traceback_lines(trace) <= _traceback_lines(shown):
        return [*lines, "its traceback is in the output above"]
    return [*lines, *trace.rstrip().splitlines()]


def receipt_line(receipt: Receipt, *, machines: bool = False) -> str:
    """Return how a teardown was verified, or a warning that it was not, followed by one line for each note.

    Args:
        receipt: The receipt.
        machines: Whether to list all machines, for the user to check the account.
    """
    more = "".join(f"\n  {note}" for note in receipt.notes)
    if machines and receipt.machines:
        more += f"\n  machines: {', '.join(receipt.machines)}"
    if receipt.retained:
        more += f"\n  fetch the retained results: skyward-tui down {receipt.pool} (discard them: --discard)"
    if receipt.ok:
        return f"pool {receipt.pool} is down: {receipt} ({duration(receipt.seconds, precise=True)}){more}"
    if not receipt.unaccounted:
        return f"pool {receipt.pool} is down, but the ledger could not be updated and still lists it: {receipt}{more}"
    return f"pool {receipt.pool} is NOT verified down; it may still run and cost money: {receipt}{more}"


def queue_receipt(session: Session, pool: str, receipt: Receipt) -> None:
    """Save a receipt, so that the next ``ls`` prints it if this command cannot; see :func:`drop_receipts`.

    Args:
        session: The session.
        pool: Key of the pool.
        receipt: The receipt.
    """
    with suppress(LedgerError):  # if the ledger cannot be written, the printed receipt says so
        if row := session.ledger.find_pool(pool):
            session.ledger.save_receipt_text(row.token, receipt_line(receipt))


def drop_receipts(session: Session, tokens: Iterable[str]) -> None:
    """Record that the receipts of these pools have been printed."""
    with suppress(LedgerError):  # if the ledger cannot be written, the next ``ls`` prints the receipts again
        session.ledger.mark_receipts_printed(tokens)


def show_run(run: RunView, console: Console, printed: Callable[[int], str] | None = None) -> None:
    """Print the result table, the statistics, differing ranks and the root cause of a failure.

    Args:
        run: The run.
        console: Console for the output.
        printed: Same as for :func:`failure_lines`.
    """
    console.print_table(*run_table(run), clipped=True)
    for line in aggregate_lines(run):
        console.print_line(line)
    for line in disagreement_lines(run):
        console.note(line)
    for line in failure_lines(run, printed):
        console.note(line)
