"""Alias of ``skyward_core`` for ``import skyward``, if no other package has that name."""

import sys

import skyward_core
from skyward_core.runtime import import_alias_and_hooks

import_alias_and_hooks.install()
sys.modules[__name__] = skyward_core
