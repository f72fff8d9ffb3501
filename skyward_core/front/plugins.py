"""What plugins declare of themselves, for whoever offers them: names, what they are for, what they take."""

from __future__ import annotations

from ..plugins import PluginInfo, available, by_name

__all__ = ["PluginInfo", "available", "by_name"]
