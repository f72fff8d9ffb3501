"""A plan is made anew with each letter that a person types: its answers may be a little old, those of a start not."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

AGE = 60.0  # seconds for which an answer counts as new
MOST = 256  # answers that are kept

_allowed: ContextVar[bool] = ContextVar("remembering", default=False)


@contextmanager
def remembering() -> Iterator[None]:
    """Inside it questions to providers may be answered by what they said a little while ago."""
    before = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(before)


class RememberedAnswers:
    """Answers of one account, by what was asked. Whoever asks outside :func:`remembering` gets none of them, and
    refreshes them."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, tuple[float, Any]] = {}

    def find(self, question: Hashable) -> Any:
        """What was said; None where that was too long ago, or must not be used."""
        if not _allowed.get():
            return None
        at, answer = self._answers.get(question, (0.0, None))
        return answer if answer is not None and time.monotonic() - at < AGE else None

    def keep(self, question: Hashable, answer: Any) -> None:
        """Note what was said."""
        self._answers.pop(question, None)
        self._answers[question] = time.monotonic(), answer
        while len(self._answers) > MOST:
            del self._answers[next(iter(self._answers))]

    def forget(self) -> None:
        """Whose account it is has changed."""
        self._answers.clear()
