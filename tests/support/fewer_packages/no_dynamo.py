"""Stand-in for ``torch._dynamo`` for training without ``torch.compile``. It loads the real module when more is needed.

Optimizers, DDP and FSDP import torch._dynamo only to disable it. The import takes half of the time that a rank needs to
train a small model. A quarter of the rest is the module for shapes of tensors without data, which only compilers and
DTensor use in Python.
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace

NAME = "torch._dynamo"
ALONE = f"{NAME}._trace_wrapped_higher_order_op"  # needs nothing of the rest; every model of transformers loads it
SHAPES = ("torch._meta_registrations", "torch.distributed._meta_registrations")
WANT_SHAPES = "torch.distributed.tensor"


class Part:
    """Stand-in for one of its modules."""

    def __init__(self, module, **used):
        self._module = module
        self.__dict__ |= used

    def __getattr__(self, name):
        Finder.real()
        return getattr(import_module(f"{NAME}.{self._module}"), name)


class Quiet(ModuleType):
    def __init__(self):
        super().__init__(NAME)
        self.__path__ = []
        self.allowed = []
        nothing = SimpleNamespace(cache_clear=lambda: None)
        self.utils = Part("utils", get_optimize_ddp_mode=lambda: "ddp_optimizer")
        self.trace_rules = Part(
            "trace_rules", clear_lru_cache=lambda: None, LEGACY_MOD_INLINELIST=set(), get_legacy_mod_inlinelist=nothing
        )
        self.eval_frame = Part("eval_frame", OptimizedModule=type("OptimizedModule", (), {}))

    @staticmethod
    def graph_break(msg=""):
        return None

    @staticmethod
    def disable(fn=None, recursive=True, **how):
        return fn if fn is not None else lambda fn: fn

    @staticmethod
    def assume_constant_result(fn):
        fn._dynamo_marked_constant = True
        return fn

    def allow_in_graph(self, fn):
        self.allowed.append(fn)  # the real one is told once it is there
        return fn

    def __getattr__(self, name):
        if name.startswith("__"):  # what Python itself looks for in a module
            raise AttributeError(name)
        return getattr(Finder.real(), name)


class There:
    """Loader of a module that is already loaded."""

    def create_module(self, spec):
        return sys.modules[spec.name]

    def exec_module(self, module):
        return None


class NoShapes:
    """Loader of an empty module, except for a generator class that the real module's import prepares."""

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        from torch._C import _set_generator_metaclass
        from torch._opaque_base import OpaqueBaseMeta

        _set_generator_metaclass(OpaqueBaseMeta)


class Finder:
    """Finder of the stand-ins, until the real modules are needed."""

    on = True
    shapes = False

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname == WANT_SHAPES:
            cls.real_shapes()
        if fullname in SHAPES and not cls.shapes:
            return ModuleSpec(fullname, NoShapes())  # type: ignore[arg-type]
        if not cls.on:
            return None
        if fullname == NAME:
            return ModuleSpec(NAME, cls, is_package=True)  # type: ignore[arg-type]
        if fullname == ALONE:
            return PathFinder.find_spec(fullname, [f"{folder}/_dynamo" for folder in sys.modules["torch"].__path__])
        if fullname.startswith(f"{NAME}."):
            cls.real()
            import_module(fullname)
            return ModuleSpec(fullname, There())  # type: ignore[arg-type]
        return None

    @classmethod
    def real(cls):
        if cls.on:
            cls.on = False
            quiet = sys.modules.pop(NAME, None)
            sys.modules["torch"].__dict__.pop("_dynamo", None)
            cls.real_shapes()
            if quiet is not None:
                import_module(NAME).allow_in_graph(quiet.allowed)
        return import_module(NAME)

    @classmethod
    def real_shapes(cls):
        if not cls.shapes:
            cls.shapes = True
            for name in SHAPES:
                if sys.modules.pop(name, None):  # else PyTorch is about to load it
                    import_module(name)

    @staticmethod
    def create_module(spec):
        return Quiet()

    @staticmethod
    def exec_module(module):
        return None


def hide(before):
    sys.meta_path.insert(sys.meta_path.index(before), Finder)
