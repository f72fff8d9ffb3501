"""cloudpickle, imported without what it asks one thing of, and a start would wait for.

Of platform it asks whether this is PyPy; uuid, which loads platform as well, it needs once a class travels by value.
"""

from __future__ import annotations

import sys

from ..node.put_off import PutOff


def _implementation() -> str:
    return "PyPy" if "__pypy__" in sys.builtin_module_names else "CPython"


_put_off = (PutOff("platform", {"python_implementation": _implementation}), PutOff("uuid"))
for _each in _put_off:
    sys.modules.setdefault(_each.__name__, _each)
try:
    import cloudpickle
finally:
    for _each in _put_off:
        if sys.modules.get(_each.__name__) is _each:
            del sys.modules[_each.__name__]

__all__ = ["cloudpickle"]
