"""The working folder is sent again, as a module was edited, and who sends it is killed half way."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.node.bootstrap.receive_working_folder import PARTIAL_SUFFIX
from tests.support.child import Child
from tests.support.loopback_hosts import Hosts
from tests.support.waiting import wait_until

LARGE = 8_000_000
ASKS = """
import skyward_core as sky

@sky.function
def word():
    import sent_helper
    return sent_helper.WORD

with sky.attach("resent") as pool:
    word() >> pool
"""


@sky.function
def found() -> tuple[str, str, list[str]]:
    import sent_helper  # type: ignore[import-not-found]

    left = [path.name for path in Path().rglob(f"*{PARTIAL_SUFFIX}")]
    return sent_helper.WORD, hashlib.sha256(Path("large.bin").read_bytes()).hexdigest(), left


def write(folder: Path, word: str) -> str:
    """Gives the hash of the large file."""
    content = os.urandom(LARGE)
    (folder / "large.bin").write_bytes(content)
    (folder / "sent_helper.py").write_text(f"WORD = {word!r}\n")
    return hashlib.sha256(content).hexdigest()


def test_the_next_client_goes_on_and_no_rank_uses_anything_half(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project := tmp_path / "project").mkdir()
    monkeypatch.chdir(project)
    hosts = Hosts(tmp_path / "hosts")
    copies = hosts.slots[0].home / ".cache" / "skyward" / "work"
    try:
        expected = write(project, "one")
        options = sky.Options(console=False, grace=2.0)
        with sky.Compute(name="resent", provider=hosts.provider(1), nodes=1, options=options) as pool:
            assert (found() >> pool)[:2] == ("one", expected)
            for attempt in range(5):
                expected = write(project, f"two {attempt}")
                with Child([sys.executable, "-c", ASKS], env=dict(os.environ), cwd=project) as child:
                    wait_until(lambda: child.poll() is not None or list(copies.glob(f"*/*{PARTIAL_SUFFIX}")))
                    child.kill()
                    if child.wait() != 0:
                        break
            else:
                raise AssertionError("each time it was done before it was killed")
            assert found() >> pool == (f"two {attempt}", expected, [])
    finally:
        hosts.stop()
