"""Strategies for arbitrary texts, for properties that hold for every text."""

from __future__ import annotations

from hypothesis import strategies as st

# The default of st.text() has each fresh checkout encode all characters that there are, which takes seconds.
CHARACTERS = st.characters(exclude_categories=["Cs"])
