"""``import skyward`` where nothing else is called so: an alias of ``skyward_core``."""

import sys

import skyward_core
from skyward_core.runtime import import_hooks

import_hooks.install()
sys.modules[__name__] = skyward_core
