"""Currency and completeness of the modules page."""

from __future__ import annotations

import re

from tests.modules_page import PAGE, page


def test_modules_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.modules_page writes it anew"


def test_every_module_has_a_description() -> None:
    assert re.findall(r"^- `[^`]+`: $", page(), re.MULTILINE) == []
