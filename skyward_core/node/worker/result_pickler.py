"""Pickler for results: objects that the client cannot import are pickled by value."""

from __future__ import annotations

import functools
from types import CodeType
from typing import Any

import cloudpickle

from skyward_core.protocol.pickle_failures_and_reducers import (
    has_tblib_reducer,
    reduce_cached_property,
    reduce_code,
    set_unless_found,
)


class ResultPickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Variant of cloudpickle's pickler whose pickles do not overwrite classes that the client already has.

    The client has the original class. A rank's copy may have other globals and files.
    """

    dispatch_table = cloudpickle.CloudPickler.dispatch_table.new_child(
        {CodeType: reduce_code, functools.cached_property: reduce_cached_property}
    )

    def reducer_override(self, value: Any) -> Any:
        if has_tblib_reducer(value):
            return value.__reduce_ex__(5)
        made = super().reducer_override(value)
        if type(made) is tuple and isinstance(value, type) and len(made) == 6:
            return *made[:5], set_unless_found
        return made


def dump(value: Any, file: Any) -> None:
    """Pickle a value into a file, like :func:`cloudpickle.dump`."""
    ResultPickler(file, protocol=5).dump(value)


def dumps(value: Any) -> bytes:
    """Return the pickle of a value, like :func:`cloudpickle.dumps`."""
    import io

    with io.BytesIO() as file:
        dump(value, file)
        return file.getvalue()
