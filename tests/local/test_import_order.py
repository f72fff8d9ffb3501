"""Ranks find modules where the client does and in the same order, and see nothing of how we start them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import PATIENCE, Cli

# An installed package, as the tests run by it, has the name of the module beside the script.
LOOK = """
import json, sys
import skyward_core as sky

@sky.function
def look():
    import argparse, pluggy
    try:
        import stray
    except ModuleNotFoundError:
        stray = None
    given = argparse.ArgumentParser().parse_args()
    return [pluggy.__file__, stray and stray.__file__, sys.argv, vars(given), "" in sys.path]
"""
MAIN = """
if __name__ == "__main__":
    with sky.Compute(provider=sky.Local(), nodes=1, options=sky.Options(console=False)) as compute:
        print(json.dumps(look() >> compute))
"""


def by_python(script: Path, cwd: Path) -> Any:
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """In a folder below the working folder, which has modules, too."""
    (code := tmp_path / "work" / "code").mkdir(parents=True)
    for name in ("pluggy", "stray"):
        (tmp_path / "work" / f"{name}.py").write_text("")
    (code / "script.py").write_text(LOOK + MAIN)
    return code / "script.py"


@pytest.mark.proof("1 s of a processor")
def test_the_script_s_folder_wins_over_what_is_installed(script: Path, home: Path) -> None:
    (beside := script.parent / "pluggy.py").write_text("")
    found = by_python(script, script.parents[1])
    assert found[0] == str(beside)
    assert found[2:] == [[str(script)], {}, False]


@pytest.mark.proof("1 s of a processor")
def test_so_it_does_for_the_command_line(script: Path, cli: Cli) -> None:
    (beside := script.parent / "pluggy.py").write_text("")
    cli.folder = script.parent
    found = cli.json("run", "script.py")["ranks"][0]["value"]
    assert found[0] == str(beside)
    assert found[2:] == [["script.py"], {}, False]


@pytest.mark.proof("1 s of a processor")
def test_what_is_installed_wins_over_the_working_folder(script: Path, home: Path) -> None:
    assert sys.modules["pluggy"].__file__ is not None
    found = by_python(script, script.parents[1])
    assert Path(found[0]) == Path(sys.modules["pluggy"].__file__)
    assert found[1] == str(script.parents[1] / "stray.py")


def test_a_working_folder_of_everybody_s_is_none_to_import_from(script: Path, home: Path) -> None:
    script.parents[1].chmod(0o777)
    assert by_python(script, script.parents[1])[1] is None


def test_a_file_of_our_name_beside_the_script_is_not_taken_for_us(script: Path, cli: Cli) -> None:
    (script.parent / "skyward_core.py").write_text("raise ImportError('not us')")
    script.write_text(
        "import multiprocessing as mp, skyward_core as sky\n"
        "def double(x): return 2 * x\n"
        "@sky.function\ndef work():\n"
        "    from skyward_core.runtime import sharding as shard\n"
        "    with mp.get_context('spawn').Pool(1) as pool: return pool.map(double, [sky.instance_info().world_size])\n"
    )
    cli.folder = script.parents[1]
    assert cli.json("run", "code/script.py")["ranks"][0]["value"] == [2]
