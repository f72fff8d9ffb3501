"""Start-up file of interpreters that hides the packages named in NOT_INSTALLED, with this folder in PYTHONPATH.

transformers and keras import all packages that they find. scikit-learn, scipy and pandas take a rank as long to load as
everything else. torch._dynamo, if named, is replaced by the part that training needs.
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
