"""Which files of a working folder are meant by a pattern, and that no name leads out of it: not of a rank, not of a
client."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.model.errors import SpecError
from skyward_core.model.specs import Image
from skyward_core.node.agent import written_files
from skyward_core.node.agent.written_files import OutputFile, file_version, find_written_files
from skyward_core.node.bootstrap.receive_working_folder import FolderItem, to_json
from skyward_core.protocol.output_file_patterns import (
    CHANGED_MESSAGE,
    matches,
    may_contain,
    normalize_pattern,
)
from skyward_core.protocol.validators import is_relative_subpath
from tests.support.examples import examples

NAMES = st.text("ab.*?[]!-~ \n\x1b\\é\udcff", min_size=1, max_size=6) | st.sampled_from(["..", ".", "", "**", "*.pt"])
LEADS_TO = ["/etc", "..", "a", "d", "l", "../outside", "../../outside"]
PATHS = st.lists(NAMES, min_size=1, max_size=5).map("/".join)


@pytest.mark.parametrize(
    ("path", "text", "meant"),
    [
        ("out/a", "out/**", True),
        ("out/x/a", "out/**", True),
        ("a/out/x", "out/**", False),
        ("x/y/a.pt", "*.pt", True),
        ("x/a.ptx", "*.pt", False),
        ("ck/b/a.pt", "ck/*.pt", False),
        ("ck/a.pt", "ck/**/*.pt", True),
        ("ck/b/c/a.pt", "ck/**/*.pt", True),
        ("a/b/c", "**/c", True),
        ("b/out/c", "out", True),
        ("out/c", "./out/", True),
        ("a\nb/c", "a?b/c", True),
    ],
)
def test_patterns_mean_what_people_expect(path: str, text: str, meant: bool) -> None:
    assert matches(path, [normalize_pattern(text)]) is meant
    assert matches(path, [])


@pytest.mark.parametrize("text", ["/etc/passwd", "../x", "a/../../b", "~/x", "", ".", "a//b", "a\0b", 3])
def test_patterns_that_lead_out_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"leads out|names no files|should be text"):
        normalize_pattern(text)
    with pytest.raises(SpecError, match="outputs"):
        Image(outputs=[text])


@given(path=PATHS, text=PATHS)
def test_whatever_a_name_and_a_pattern_are_they_stay_below(path: str, text: str) -> None:
    leads_out = path.startswith("/") or path == ".." or path.startswith("../")
    assert is_relative_subpath(path) == (os.path.normpath(path) == path and not leads_out and path != ".")
    try:
        wanted = normalize_pattern(text)
    except ValueError:
        return
    assert ".." not in wanted.split("/") and not wanted.startswith("/")
    assert matches(path, [wanted]) in (True, False)


def test_no_pattern_takes_long() -> None:
    assert not matches("/".join("a" * 60 for _ in range(60)), ["**/" * 30 + "*a" * 30 + "b"])


@settings(max_examples=examples(60), deadline=None)
@given(
    st.dictionaries(st.sampled_from(["a", "b", "d/a", "d/e/a", "é\n", "\udcff"]), st.binary(max_size=9), max_size=5),
    st.dictionaries(
        st.sampled_from(["l", "d/l", "m"]),
        st.sampled_from(LEADS_TO),
        max_size=4,
    ),
    PATHS,
)
def test_nothing_but_files_of_the_folder_is_given_out(
    files: dict[str, bytes], links: dict[str, str], asked: str
) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "copy"
        (folder / "d/e").mkdir(parents=True)
        (Path(made) / "outside").write_bytes(b"secret")
        Path(f"{folder}.json").write_bytes(to_json([FolderItem("sent", 1, 5, 0o644)]))
        (folder / "sent").write_bytes(b"s")
        os.utime(folder / "sent", ns=(5, 5))
        for path, data in files.items():
            (folder / path).write_bytes(data)
        for path, target in links.items():
            (folder / path).symlink_to(target)
        rows, more = find_written_files(str(folder), [], 0.0, float("inf"))
        assert more == 0 and {row["path"] for row in rows} == set(files)
        for row in rows:
            file = OutputFile(str(folder), row["path"], row["version"])
            assert b"".join(file.read_chunks(0)) == files[row["path"]]
            file.check_unchanged()
            file.close()
        for path in (asked, *links, *(f"{link}/a" for link in links), f"l/../../{'outside'}"):
            for look in (Path.lstat, Path.stat):  # of the link, and of what it leads to
                try:
                    OutputFile(str(folder), path, file_version(look(folder / path))).close()
                except (OSError, ValueError):
                    continue
                assert path in files or path == "sent"


PARTS_OF_NAMES = st.sampled_from(["a", "b", "out", "x.pt", "\udcff"])
PATTERNS = st.lists(st.sampled_from(["*.pt", "out/**", "a/*/x.pt", "**/b/*", "a", "b/out"]), max_size=2)


@settings(max_examples=examples(60), deadline=None)
@given(st.sets(st.lists(PARTS_OF_NAMES, min_size=1, max_size=4).map("/".join), max_size=12), PATTERNS)
def test_all_files_are_named_one_answer_after_the_other(paths: set[str], patterns: list[str]) -> None:
    files = {path for path in paths if not any(other.startswith(f"{path}/") for other in paths)}
    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        folder = Path(made) / "copy"
        Path(f"{folder}.json").write_bytes(to_json([]))
        folder.mkdir()
        for path in files:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).touch()
        meant = sorted(path for path in files if matches(path, patterns))
        patch.setattr(written_files, "MAX_LISTED_FILES", 2)
        named: list[str] = []
        while True:
            rows, more = find_written_files(str(folder), patterns, 0.0, float("inf"), named[-1] if named else "")
            named += [row["path"] for row in rows]
            assert more == len(meant) - len(named)
            if not more:
                break
        assert named == meant
        # Where there is too much to look at, that is told.
        patch.setattr(written_files, "MAX_SCANNED_FILES", 3)
        rows, more = find_written_files(str(folder), patterns, 0.0, float("inf"))
        assert [row["path"] for row in rows] == meant[:2] or more


@given(PATHS, PATHS)
def test_no_folder_of_a_file_that_is_meant_is_passed_over(path: str, text: str) -> None:
    try:
        wanted = [normalize_pattern(text)]
    except ValueError:
        return
    if is_relative_subpath(path) and matches(path, wanted):
        names = path.split("/")
        assert all(may_contain("/".join(names[:many]), wanted) for many in range(1, len(names)))


def test_what_changes_while_it_is_read_is_told_as_changed(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "x").write_bytes(b"1" * 3_000_000)
    version = file_version((folder / "x").lstat())
    for change in (b"2" * 3_000_000, b"short"):
        (folder / "x").write_bytes(b"1" * 3_000_000)
        version = file_version((folder / "x").lstat())
        file = OutputFile(str(folder), "x", version)
        pieces = file.read_chunks(1_000_000)
        got = len(next(pieces))
        (folder / "x").write_bytes(change)
        assert got + sum(map(len, pieces)) == 2_000_000  # as many as were said, so that a line goes on
        with pytest.raises(OSError, match=CHANGED_MESSAGE):
            file.check_unchanged()
        file.close()
        with pytest.raises(OSError, match=CHANGED_MESSAGE):
            OutputFile(str(folder), "x", version)
