"""What a line of a form says, without a layout of the whole screen for each key that changes nothing of it."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static


def say(line: Static, text: Content) -> None:
    """Have a line, or a paragraph, say something. Only where it takes more or fewer rows than before are others moved.

    Args:
        line: as wide as what it lies in, and as high as what it says.
    """
    before, width = line.content, line.content_size.width
    if not isinstance(before, Content):
        line.update(text)
    elif not before.is_same(text):
        rules = line.styles.get_rules()
        moves = not width or before.get_height(rules, width) != text.get_height(rules, width)
        line.update(text, layout=moves)
