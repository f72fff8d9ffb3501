"""Times as a person says them, and the line of a file that a traceback names."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from skyward_tui.external_editor import EditorError, editor_command
from skyward_tui.panels.log import parse_time
from skyward_tui.source_lookup import find_local

NEWEST = datetime(2026, 11, 24, 0, 30, 10).timestamp()


@pytest.mark.parametrize(
    ("said", "at"),
    [
        ("00:30", datetime(2026, 11, 24, 0, 30)),
        ("0:29:59.5", datetime(2026, 11, 24, 0, 29, 59, 500_000)),
        ("23:50", datetime(2026, 11, 23, 23, 50)),  # the day before, for it has not been today
        ("2026-11-20 12:00", datetime(2026, 11, 20, 12, 0)),
        ("-10", datetime(2026, 11, 24, 0, 30)),
        ("- 1.5m", datetime(2026, 11, 24, 0, 28, 40)),
        ("25:00", None),
        ("12:00:61", None),
        ("soon", None),
        ("2026-13-01 12:00", None),
    ],
)
def test_a_time_as_it_is_said(said: str, at: datetime | None) -> None:
    assert parse_time(said, NEWEST) == (None if at is None else at.timestamp())


def test_the_file_of_a_copy_is_the_one_here(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    (own / "nets").mkdir(parents=True)
    other.mkdir()
    for path in (own / "nets/model.py", own / "train.py", other / "lib.py"):
        path.write_text("pass\n")
    frames = [
        "Traceback (most recent call last):",
        '  File "/srv/copy-1f/train.py", line 3, in <module>',
        '\x1b[31m  File "/srv/copy-1f/nets/model.py", line 12, in forward\x1b[0m',
        f'  File "{other / "lib.py"}", line 5, in call',
        "ValueError: no",
    ]
    assert find_local(frames, [own]) == (own / "nets/model.py", 12)  # the innermost of the person's own
    assert find_local(frames[3:], [own]) == (other / "lib.py", 5)
    assert find_local(["nets/model.py:4: error"], [own]) == (own / "nets/model.py", 4)
    assert find_local(['File "../own/train.py", line 1', 'File "<string>", line 1', "at 12:30"], [own]) is None


def test_each_editor_is_told_the_line_in_its_way(tmp_path: Path) -> None:
    path = tmp_path / "a b.py"
    assert editor_command({"EDITOR": "nano"}, path, 3) == ["nano", "+3", str(path)]
    assert editor_command({"EDITOR": "nano", "VISUAL": "code --wait"}, path, 3) == [
        "code",
        "--wait",
        "--goto",
        f"{path}:3",
    ]
    assert editor_command({"EDITOR": "/usr/bin/hx"}, path, 3) == ["/usr/bin/hx", f"{path}:3"]
    for wrong in ({}, {"EDITOR": "  "}, {"EDITOR": "'vi"}):
        with pytest.raises(EditorError):
            editor_command(wrong, path, 3)
