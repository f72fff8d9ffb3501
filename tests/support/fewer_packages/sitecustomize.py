"""Interpreters with this folder in PYTHONPATH run as where the packages named in NOT_INSTALLED are not installed.

transformers and keras import what they find, needed or not: scikit-learn, scipy and pandas take a rank as long to load
as all else in them. In the place of torch._dynamo, where it is named, is what training needs of it.
"""

import os
import sys
from importlib.machinery import PathFinder

HIDDEN = frozenset(os.environ.get("NOT_INSTALLED", "").split())


class Fewer(PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return None if path is None and fullname in HIDDEN else super().find_spec(fullname, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Fewer
if "torch._dynamo" in HIDDEN:
    import no_dynamo  # type: ignore[import-not-found]

    no_dynamo.hide(Fewer)
