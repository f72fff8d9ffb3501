"""The page that tells what each module is for is what the modules say, and each says something."""

from __future__ import annotations

import re

from tests.modules_page import PAGE, page


def test_the_page_is_what_the_modules_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.modules_page writes it anew"


def test_every_module_says_what_it_is_for() -> None:
    assert re.findall(r"^- `[^`]+`: $", page(), re.MULTILINE) == []
