"""Folders for what is of use only while a process lives, such as a log that is read in a pager."""

from __future__ import annotations

from ..store.passing_folders import TASKS, begin, held, sweep

__all__ = ["TASKS", "begin", "held", "sweep"]
