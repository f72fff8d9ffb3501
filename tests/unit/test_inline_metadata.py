"""A script's own word on its packages (PEP 723), and what is said of one that makes no sense."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skyward_core.model.errors import ScriptError
from skyward_core.tasks.packages.inline_metadata import InlineMetadata, find_blocks, read_inline_metadata
from skyward_core.tasks.packages.python_versions import VersionError, satisfies


def read(tmp_path: Path, toml: str) -> InlineMetadata | None:
    lines = (f"# {line}".rstrip() for line in toml.splitlines())
    (tmp_path / "train.py").write_text("import os\n# /// script\n" + "\n".join(lines) + "\n# ///\nx = 1\n")
    return read_inline_metadata(tmp_path / "train.py")


def asked(tmp_path: Path, toml: str) -> Any:
    found = read(tmp_path, toml)
    assert found is not None
    return found.environment


def test_what_a_script_says(tmp_path: Path) -> None:
    toml = 'requires-python = ">=3.12"\ndependencies = [\n  "torch>=2; python_version > \'3.8\'",\n\n  "rich",\n]\n'
    found = read(tmp_path, toml)
    assert found == InlineMetadata(">=3.12", {"pip": ["torch>=2; python_version > '3.8'", "rich"]})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "import os\n",
        "# /// other\n# dependencies = 1\n# ///\n",
        "# /// script\n# dependencies = 1\n",  # never closed
        "# /// script\ndependencies = 1\n# ///\n",
        "    # /// script\n    # dependencies = 1\n    # ///\n",
    ],
)
def test_what_is_no_block_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert read_inline_metadata(tmp_path / "train.py") is None


def test_what_is_no_text_or_not_there_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b"\xff\xfe# /// script\n")
    assert read_inline_metadata(tmp_path / "train.py") is None
    assert read_inline_metadata(tmp_path / "none.py") is None


def test_lines_may_end_as_on_windows_and_the_block_holds_its_like(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b'\xef\xbb\xbf# /// script\r\n# dependencies = ["a"]\r\n# ///\r\n')
    assert read_inline_metadata(tmp_path / "train.py") == InlineMetadata("", {"pip": ["a"]})


def test_where_packages_come_from(tmp_path: Path) -> None:
    toml = """dependencies = ["torch", "mine"]
[tool.uv]
extra-index-url = ["https://extra.example/simple"]
find-links = ["wheels of mine", "https://links.example/", "/abs,olute"]
no-index = false
[[tool.uv.index]]
name = "pytorch"
url = "https://pytorch.example/cpu"
explicit = true
[[tool.uv.index]]
name = "unused"
url = "https://unused.example"
explicit = true
[[tool.uv.index]]
url = "https://first.example"
default = true
[tool.uv.sources]
torch = { index = "pytorch" }
[tool.other]
x = 1
"""
    assert asked(tmp_path, toml) == {
        "pip": ["torch", "mine"],
        "pip_indexes": [
            {"url": "https://pytorch.example/cpu", "packages": ["torch"]},
            {"url": "https://extra.example/simple", "packages": []},
        ],
        "index": "https://first.example",
        "find_links": [
            f"file://{tmp_path}/wheels%20of%20mine",
            "https://links.example/",
            "file:///abs%2Colute",
        ],
    }
    assert asked(tmp_path, "[tool.uv]\nno-index = true\n") == {"pip": [], "no_index": True}
    assert asked(tmp_path, '[tool.uv]\nindex-url = "https://i"\n') == {"pip": [], "index": "https://i"}


@pytest.mark.parametrize(
    ("toml", "why"),
    [
        ("dependencies = [", "it is no TOML: "),
        ("dependencies = 'torch'", "dependencies should be a list of texts"),
        ("dependencies = [1]", "dependencies should be a list of texts"),
        ("dependencies = ['--index-url=http://x']", "'--index-url=http://x' is no requirement"),
        ('dependencies = ["a\\n-r x"]', "is no requirement"),
        ("requires-python = 3", "requires-python should be a text"),
        ("requires-python = 'newest'", "requires-python: 'newest' is not a version of Python"),
        ("tool = 1", "tool should be a table"),
        ("[tool.uv]\nexclude-newer = '2025'", r"\[tool.uv\] exclude-newer is not known here"),
        (
            "[tool.uv.sources]\na = { git = 'https://x' }",
            r"\[tool.uv.sources\] a: only { index = ... } is known",
        ),
        ("[tool.uv.sources]\na = { index = 'none' }", r"no \[\[tool.uv.index\]\] is called 'none'"),
        ("[[tool.uv.index]]\nname = 'x'", "needs a url"),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path: Path, toml: str, why: str) -> None:
    with pytest.raises(ScriptError, match=f"inline metadata of .*train.py .* cannot be used: .*{why}"):
        read(tmp_path, toml)


def test_two_blocks_are_one_too_many(tmp_path: Path) -> None:
    block = "# /// script\n# dependencies = []\n# ///\n"
    (tmp_path / "train.py").write_text(f"{block}\n{block}")
    with pytest.raises(ScriptError, match="there are 2 such blocks"):
        read_inline_metadata(tmp_path / "train.py")


@pytest.mark.parametrize(
    ("version", "wanted", "takes"),
    [
        ("3.12.1", "", True),
        ("3.12.1", ">=3.12", True),
        ("3.12.0", ">3.12", False),
        ("3.12.1", ">3.12", True),
        ("3.11.7", ">=3.12", False),
        ("3.12.1", ">= 3.11, < 3.13", True),
        ("3.13.0", ">=3.11,<3.13", False),
        ("3.12.1", "==3.12.*", True),
        ("3.12.1", "==3.12", False),
        ("3.12.0", "==3.12", True),
        ("3.12.1", "!=3.12.*", False),
        ("3.12.1", "!=3.12.0", True),
        ("3.12.1", "~=3.11", True),
        ("3.12.1", "~=3.12.0", True),
        ("3.13.0", "~=3.12.0", False),
        ("3.12.0", "===3.12.0", True),
        ("3.9.1", ">=3.11", False),
        ("3.11.7", "<=3.11", False),
        ("3.12.1", ">=3.12rc1,<3.13.0a1", True),
        ("3.12.1", "==3.12.1.*", True),
    ],
)
def test_versions_that_are_wanted(version: str, wanted: str, takes: bool) -> None:
    assert satisfies(version, wanted) is takes


@pytest.mark.parametrize("wanted", [f">={'9' * 5000}", "3.12", ">=3.*", "~=3", "=>3.1", ">=3.12 or so"])
def test_what_is_no_version_is_refused(wanted: str) -> None:
    with pytest.raises(VersionError, match="is not a version of Python"):
        satisfies("3.12.1", wanted)


REFERENCE = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
LINES = st.sampled_from(["# /// script", "# /// other", "# ///", "#", "# a = 1", "", "x", "#x", " # ///"])


@given(st.lists(LINES, max_size=14))
@example(["# /// script", "# ///", "# ///"])
@example(["# /// other", "# a = 1", "# /// script", "# a = 1", "# ///"])
@example(["# /// script", "# /// script", "# ///"])
def test_blocks_are_those_of_the_specification(lines: list[str]) -> None:
    text = "\n".join(lines)
    wanted = [found["content"] for found in REFERENCE.finditer(text) if found["type"] == "script"]
    assert ["\n".join([*block, ""]) for block in find_blocks(text)] == wanted


def test_a_script_of_nothing_but_beginnings_is_read_at_once(tmp_path: Path) -> None:
    """The specification's expression takes hours for it, in which the app stands still."""
    (tmp_path / "x.py").write_text("# /// script\n" * 200_000)
    assert read_inline_metadata(tmp_path / "x.py") is None
