"""What of a lost rank's log is a run's, where only marks tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward_core.model.outcomes import ErrorInfo, Outcome
from skyward_core.protocol.output_order_marks import AFTER, BEFORE, encode_mark
from skyward_core.store.ledger import Ledger
from skyward_core.store.run_logs import RunLogs
from skyward_core.store.state_folder import ensure_pool_folder
from tests.support.ledger_runs import record_runs
from tests.support.ledgers import LOCAL, SPEC

RUN, OTHER = "1661b65609", "2661b65609"
LOG = b"setup\nmine\nmine too\nothers\n"
AT = {name: LOG.index(name.encode()) for name in ("mine", "others")}


@pytest.mark.parametrize(
    ("marks", "found"),
    [
        ([(BEFORE, 0, ""), (BEFORE, AT["mine"], RUN)], b"mine\nmine too\nothers\n"),  # and then its node was lost
        ([(BEFORE, AT["mine"], RUN), (BEFORE, AT["others"], OTHER)], b"mine\nmine too\n"),
        ([(AFTER, AT["mine"], ""), (AFTER, AT["others"], RUN), (AFTER, len(LOG), OTHER)], b"mine\nmine too\n"),
        ([(AFTER, AT["mine"], ""), (AFTER, AT["others"], RUN)], b"mine\nmine too\nothers\n"),
        ([(BEFORE, AT["mine"], OTHER)], b""),
        ([], b""),
    ],
)  # fmt: skip
def test_marks_tell_where_it_begins_and_ends(
    marks: list[tuple[str, int, str]], found: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    ledger = Ledger()
    row = ledger.record_intent("t", "pool", LOCAL, SPEC)
    lost = Outcome(0, 0, 0, "lost", error=ErrorInfo("NodeLost", "gone"))
    record_runs(
        ledger,
        opened=[("t", RUN, "f", "broadcast", 1, 1.0)],
        outcomes=[(RUN, lost, {})],
        ends=[(RUN, "failed", 2.0, None)],
    )
    folder = ensure_pool_folder(row.key) / "logs"
    folder.mkdir(parents=True)
    (folder / "r000.out").write_bytes(LOG)
    (folder / "r000.marks").write_bytes(b"".join(encode_mark(kind, 1.0, at, 0, run) for kind, at, run in marks))
    assert b"".join(piece.data for piece in RunLogs(ledger, RUN).pieces(0)) == found
    ledger.close()
