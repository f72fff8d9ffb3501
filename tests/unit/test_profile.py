"""Profiles of ranks by py-spy: hottest lines and export files."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.node import stack_dumps_and_profiles
from skyward_core.views.stack_groups_and_profiles import (
    as_json,
    hottest_lines,
    parse_profile,
    profile_table,
    speedscope,
)
from tests.support.examples import examples
from tests.support.hostile_text import Acts

OURS = "<module> (<string>:28);main (/b/all.zip/skyward_core/node/worker/worker.py:60);"
RAW = f"""\
{OURS}train (/w/a.py:4);step (/w/a.py:9) 30
{OURS}train (/w/a.py:4);step (/w/a.py:9);forward (/env/lib/python3.12/site-packages/torch/nn/m.py:5) 60
{OURS}train (/w/a.py:6) 10
{OURS[:-1]} 500
no count
"""


def test_hottest_profile_lines_are_sorted_by_own_samples() -> None:
    profile = parse_profile(RAW)
    assert profile.samples == 100, "what was ours alone is nobody's"
    assert [(line.frame.function, line.own, line.total) for line in hottest_lines(profile)] == [
        ("forward", 60, 60),
        ("step", 30, 90),
        ("train", 10, 10),
        ("train", 0, 90),
    ]
    assert profile_table(profile, 1)[1] == ("60.0%", "60.0%", "forward  torch/nn/m.py:5")


def test_recursive_function_counts_once_per_sample() -> None:
    (line,) = hottest_lines(parse_profile("f (/a.py:1);f (/a.py:1);f (/a.py:1) 7"))
    assert (line.own, line.total) == (7, 7)


def test_speedscope_file_lists_the_outermost_call_first() -> None:
    data = json.loads(speedscope(parse_profile(RAW), "p-r1"))
    (seen,) = data["profiles"]
    names = [frame["name"] for frame in data["shared"]["frames"]]
    assert [names[each] for each in seen["samples"][0]] == ["train", "step", "forward"]
    assert (seen["weights"], seen["endValue"]) == ([60, 30, 10], 100)


@settings(max_examples=examples(40))
@given(st.lists(st.text() | st.sampled_from(RAW.splitlines())).map("\n".join), st.text())
def test_any_profile_is_exported_safely(raw: str, name: str) -> None:
    profile = parse_profile(f"{raw}\n{name}\x1b]0;x\x07 (/w/<b>&\x00\x1b[2J.py:3) 7")
    json.loads(speedscope(profile, name))
    rows = [cell for row in profile_table(profile) for cell in row]
    assert all(Acts.on(cell.encode()).done <= {"draw"} for cell in rows)
    assert "\x1b" not in json.dumps(as_json(profile), ensure_ascii=False)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            b"Error: Permission Denied: Try running again with elevated permissions by going 'sudo !!'",
            stack_dumps_and_profiles.REFUSED,
        ),
        (b"Error: Failed to suspend process\nReason: EPERM: Operation not permitted", stack_dumps_and_profiles.REFUSED),
        (b"Error: No such file or directory (os error 2)\n", "py-spy failed: No such file or directory (os error 2)"),
        (b"", "py-spy exited without output: the rank may have ended"),
        (
            b"py-spy> Sampling process 100 times a second for 15 seconds.\n\n",
            "py-spy exited without output: the rank may have ended",
        ),
    ],
)  # fmt: skip
def test_py_spy_failure_is_explained(answer: bytes, why: str) -> None:
    assert stack_dumps_and_profiles.describe_failure(answer) == why


def test_py_spy_next_to_the_agent_interpreter_is_used_without_one_in_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", f"{tmp_path}/tool/python")
    (tmp_path / "tool").mkdir()
    assert stack_dumps_and_profiles.find_py_spy(f"{tmp_path}/script/python") == ""
    program = tmp_path / "tool" / "py-spy"
    program.touch(0o755)
    assert stack_dumps_and_profiles.find_py_spy(f"{tmp_path}/script/python") == str(program)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert any(each.startswith("py-spy") for each in project["dependencies"])


def test_missing_py_spy_message_names_the_install_command() -> None:
    with pytest.raises(stack_dumps_and_profiles.PySpyError, match="pip install py-spy"):
        stack_dumps_and_profiles.record_profile("", os.getpid(), 1.0, "/none")
