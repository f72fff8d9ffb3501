"""``docs/upgrade/from-skyward.md`` lists every name of three generations with a correct verdict."""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path

import pytest

import skyward_core as sky
from tests.compat.upstream import FIRST, SECOND, THIRD

PAGE = Path(__file__).parents[2] / "docs" / "upgrade" / "from-skyward.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").partition("\n## Parameters\n")[0].splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| first "))
]
VERDICTS = ("same", "instead", "not available")
# Has to be imported where torch is, and is tested there.
ELSEWHERE = {"sky.DistributedSampler"}


def names(cell: str) -> list[str]:
    return re.findall(r"`(sky\.[\w.]+)`", cell)


def is_here(name: str) -> bool:
    try:
        attrgetter(name.removeprefix("sky."))(sky)
    except AttributeError:
        return False
    return True


def test_every_row_of_the_migration_table_has_a_verdict() -> None:
    assert len(ROWS) > 50
    assert [row for row in ROWS if len(row) != 4 or not row[3].startswith(VERDICTS)] == []


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_names_called_same_exist_and_unavailable_names_do_not() -> None:
    wrong = []
    for row in ROWS:
        older = [name for cell in row[:3] for name in names(cell) if name not in ELSEWHERE]
        if row[3].startswith("same"):
            wrong += [f"{name} is not here" for name in older if not is_here(name)]
        elif row[3].startswith("not available"):
            wrong += [f"{name} is here" for name in older if is_here(name)]
        wrong += [f"{name} is not here" for name in names(row[3]) if not is_here(name)]
    assert wrong == []


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_missing_older_names_explain_their_absence_in_one_sentence() -> None:
    silent = []
    for name in {*SECOND, *THIRD}:
        try:
            attrgetter(name)(sky)
        except AttributeError as error:
            if "Only older releases have it: " not in str(error) or "\n" in str(error):
                silent.append(name)
    assert silent == []


@pytest.mark.parametrize(("column", "generation"), [(0, FIRST), (1, SECOND), (2, THIRD)])
def test_migration_table_describes_every_name_of_a_generation(column: int, generation: list[str]) -> None:
    data = {name for row in ROWS for name in names(row[column])}
    also = {"sky.plugins", "sky.function", "sky.accelerators", "sky.Image"}  # of which the rows name parts
    missing = {f"sky.{name}" for name in generation} - data - also
    assert missing == set()
    assert {name for name in data if name.removeprefix("sky.") not in generation} <= {
        "sky.AMD", "sky.Pool", "sky.accelerators.Custom"
    }  # fmt: skip


def test_upgrade_page_names_the_older_import() -> None:
    assert re.search(r"`import skyward as sky` finds this library when a script is run by", PAGE.read_text("utf-8"))
