"""Alias of ``skyward_core`` for ``import skyward``, if no other package has that name."""

import sys

import skyward_core
from skyward_core.runtime import import_hooks_gc_pause_and_alias

import_hooks_gc_pause_and_alias.install()
sys.modules[__name__] = skyward_core
