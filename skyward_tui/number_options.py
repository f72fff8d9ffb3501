"""Numbers on a command line that may be something else, too: a range of nodes, a word for ranks."""

from __future__ import annotations

from typing import Any

import click


def number_of_nodes(text: str) -> int | str:
    """A number, or a range in its shortest form.

    Raises:
        ValueError: it is neither.
    """
    from skyward_core.model.errors import SpecError  # late: most commands make no pool
    from skyward_core.model.spec import Spec

    try:
        number = Spec(nodes=int(text) if text.isdecimal() else text).nodes
    except SpecError as error:
        raise ValueError(error.reason) from error
    return number if isinstance(number, int) else str(number)


class NodesOption(click.ParamType[int | str]):
    """A number of machines, or a range of them."""

    name = "N|MIN:MAX"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | str:
        try:
            return number_of_nodes(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class RanksOption(click.ParamType[int | str]):
    """A number of ranks, or "gpu"."""

    name = "N|gpu"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | str:
        if value == "gpu":
            return "gpu"
        if isinstance(value, str) and value.isdecimal() and 1 <= int(value) <= 64:
            return int(value)
        self.fail(f"{value!r} is neither a number from 1 to 64 nor gpu", param, ctx)


class SomeNodes(click.ParamType["int | tuple[int, ...]"]):
    """A number of a pool's nodes, or a list of them: of two at least, or one with a comma behind it."""

    name = "N|LIST"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | tuple[int, ...]:
        if not isinstance(value, str):
            return tuple(value) if isinstance(value, tuple) else int(value)
        parts = value.split(",")
        if value.isdecimal() and int(value) > 0:
            return int(value)
        named = [int(each) for each in parts if each.strip().isdecimal()]
        if len(parts) > 1 and len(named) == len([each for each in parts if each.strip()]) == len(set(named)):
            return tuple(sorted(named))
        self.fail(f"{value!r} is neither a number of nodes nor a list of them, such as 2 or 0,2", param, ctx)
