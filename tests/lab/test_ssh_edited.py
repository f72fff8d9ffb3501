"""A module that is edited here while a pool is up elsewhere is used there by the next run."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import time
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.store.pool_folder import read_events
from skyward_core.views.events import PoolState

from . import Lab
from .pools import pool, ssh

SECOND = time.time_ns() // 10**9 * 10**9
EDITS = itertools.count()


@sky.function
def loads(name: str) -> str:
    import importlib

    return str(importlib.import_module(name).WORD)


@sky.function
def trained(text: str) -> tuple[str, str]:
    """What the files are that were sent; then they are written."""
    files = Path("model.pt"), Path("notes.txt")
    found = files[0].read_text(), files[1].read_text()
    for file in files:
        file.write_text(text)
    return found


def write(name: str, word: str) -> None:
    """All in one second, by which Python tells what it has compiled before."""
    path = Path(f"{name}.py")
    path.write_text(f"WORD = {word!r}\n\ndef word():\n    return WORD\n")
    os.utime(path, ns=(0, SECOND + next(EDITS)))


@pytest.mark.proof("2 s of a processor")
def test_the_next_run_uses_what_was_edited(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path.cwd()))
    write("far_helper", "one")
    write("near_helper", "one")
    write("later_helper", "one")
    with pool(lab, ssh(lab, lab.hosts[:2]), name="far") as compute:
        assert loads("far_helper") @ compute == ["one", "one"]
        write("far_helper", "two")
        assert loads("far_helper") @ compute == ["two", "two"]
        # What this process loads, and ranks have not: a notebook's module, which was not even there.
        write("new_helper", "one")
        for name, word in (("near_helper", "two"), ("new_helper", "one")):
            write(name, word)
            importlib.invalidate_caches()
            remote = sky.function(importlib.import_module(name).word)
            assert remote() @ compute == [word, word]
            del sys.modules[name]
        write("far_helper", "three")
        write("third_helper", "one")
        with sky.attach("far") as other:
            assert loads("third_helper") >> other == "one"
            assert loads("far_helper") @ other == ["three", "three"]
            write("far_helper", "four")
            assert loads("far_helper") >> other == "four"
        assert loads("far_helper") @ compute == ["four", "four"]
        # What was sent before anybody loads it.
        write("later_helper", "two")
        assert loads("later_helper") @ compute == ["two", "two"]


def test_what_ranks_have_written_is_not_overwritten_by_what_is_sent_after_an_edit(lab: Lab) -> None:
    write("edited_helper", "one")
    for name in ("model.pt", "notes.txt"):
        Path(name).write_text("sent")
    with pool(lab, ssh(lab, lab.hosts[:1]), name="kept") as compute:
        assert loads("edited_helper") >> compute == "one"
        assert trained("by a rank") >> compute == ("sent", "sent")
        write("edited_helper", "two")
        Path("notes.txt").write_text("edited, too")
        assert loads("edited_helper") >> compute == "two"
        assert trained("later") >> compute == ("by a rank", "edited, too")
        assert {file.path for file in compute.files("*t*")} == {"model.pt", "notes.txt", "notes.txt.of-ranks"}
        folder = compute.pool.context.archive.folder
    told = read_events(folder)
    said = [event.detail for event in told if isinstance(event, PoolState) and "notes.txt" in event.detail]
    assert len(said) == 1 and said[0].startswith("node 0: notes.txt was changed by you and by ranks")
