"""What a script's own metadata comes to on other machines, and what cannot be had there."""

from __future__ import annotations

from typing import Any

import pytest

from skyward_core.model.errors import UsageError
from skyward_core.model.script_interpreter import Interpreter
from skyward_core.tasks.client_interpreter import own_interpreter
from skyward_core.transport.transport import MINOR, check_python, image_for_hosts

IMAGE = {"pip": ["rich"], "pip_indexes": [], "setup": ["true"]}


def inline(version: str = f"{MINOR}.1", **environment: Any) -> dict[str, Any]:
    found = Interpreter("/e/bin/python", "/e", version, "inline metadata of t.py", base="/b", environment=environment)
    return found.describe()


def test_what_nobody_asks_for_changes_nothing() -> None:
    assert image_for_hosts(IMAGE, None) == image_for_hosts(IMAGE, own_interpreter().describe()) == IMAGE


def test_what_a_script_asks_for_is_there_too() -> None:
    index = {"url": "https://i", "packages": ["torch"]}
    asked = inline(pip=["torch"], pip_indexes=[index], index="https://d", find_links=["https://f"], alone=True)
    assert image_for_hosts(IMAGE, asked) == {
        "pip": ["rich", "torch"],
        "pip_indexes": [index],
        "setup": ["true"],
        "index": "https://d",
        "find_links": ["https://f"],
    }


def test_a_folder_of_this_machine_is_refused_in_words() -> None:
    with pytest.raises(
        UsageError, match=r"inline metadata of t\.py takes packages from file:///w, which other machines"
    ):
        image_for_hosts(IMAGE, inline(find_links=["file:///w"]))


def test_an_image_s_python_is_that_of_the_script() -> None:
    check_python({"python": "3.99"}, inline("3.99.1"))
    check_python({"python": MINOR}, None)
    with pytest.raises(UsageError, match=rf"the one that runs here, {MINOR}\. Start skyward from Python 3\.99"):
        check_python({"python": "3.99"}, None)
    with pytest.raises(
        UsageError,
        match=r"the one that loads the script, Python 3\.99\.1 at /e/bin/python \(inline metadata of t\.py\)",
    ):
        check_python({"python": MINOR}, inline("3.99.1"))
