"""Alias of ``skyward_core`` for ``import skyward``, if no other package has that name."""

import sys

import skyward_core
from skyward_core.runtime import skyward_alias_and_import_hooks

skyward_alias_and_import_hooks.install()
sys.modules[__name__] = skyward_core
