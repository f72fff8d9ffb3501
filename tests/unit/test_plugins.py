"""Plugin protocol: checks, order of hooks, arguments and suggestions."""

import inspect
import os
import pickle
import re
import socket
import subprocess
import sys
from abc import ABC
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import skyward_core
from skyward_core import plugins, providers
from skyward_core.api import older_api_names
from skyward_core.model.deprecated_and_unknown_arguments import did_you_mean
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.model.specs import Image, PipIndex, PoolSpec
from skyward_core.plugins import available, factory
from skyward_core.plugins.plugin import (
    Plugin,
    PluginError,
    bootstrap_steps,
    check_plugins,
    decorate_function,
    enter_app,
    enter_client,
    enter_process,
    requirement,
    transform_image,
    with_env,
    with_pip,
)
from skyward_core.plugins.plugin_server_start_and_stop import check_port_free, set_variables
from skyward_core.runtime.instance_info_and_attempt import InstanceInfo
from tests.support.processes import run_command

SPEC = PoolSpec(name="p", provider=None)


def make(plugin_name, **attributes):
    return type(plugin_name.title(), (Plugin,), {"name": plugin_name, **attributes})()


@dataclass
class Tracing(Plugin):
    """Plugin that records its calls, and raises on request."""

    label: str
    trace: list = field(default_factory=list)
    fail: str = ""
    name: ClassVar[str] = "tracing"

    def __post_init__(self):
        self.name = self.label  # type: ignore[misc]

    def _note(self, what):
        self.trace.append(f"{self.label} {what}")
        if what == self.fail:
            raise LookupError("no such thing")

    def transform(self, image, pool_spec):
        self._note("transform")
        return with_pip(image, [self.label])

    def bootstrap(self, pool_spec):
        self._note("bootstrap")
        return [f"echo {self.label}"]

    def decorate(self, fn):
        self._note("decorate")
        return lambda *args: f"{self.label}({fn(*args)})"

    @contextmanager
    def around_process(self, info):
        self._note("enter")
        try:
            yield
        finally:
            self._note("leave")

    around_app = around_client = around_process  # type: ignore[assignment]


def pair(**fail):
    trace: list[str] = []
    return trace, [Tracing(label, trace, fail.get(label, "")) for label in ("a", "b")]


@pytest.mark.parametrize("enter", [enter_app, enter_process, enter_client])
def test_plugin_hooks_enter_in_order_and_exit_in_reverse(enter):
    trace, both = pair()
    with enter(both, InstanceInfo()):
        trace.append("body")
    assert trace == ["a enter", "b enter", "body", "b leave", "a leave"]


def test_plugin_that_fails_to_enter_is_named_and_others_are_exited():
    trace, both = pair(b="enter")
    with pytest.raises(PluginError, match=r"plugin b failed in around_process: LookupError") as caught:
        enter_process(both, InstanceInfo())
    assert (caught.value.plugin, caught.value.hook) == ("b", "around_process")
    assert isinstance(caught.value.__cause__, LookupError)
    assert trace == ["a enter", "b enter", "a leave"]


def test_plugin_that_fails_to_exit_is_named_and_others_are_exited():
    trace, both = pair(b="leave")
    stack = enter_process(both, InstanceInfo())
    with pytest.raises(PluginError, match="plugin b failed in around_process"):
        stack.close()
    assert trace[-1] == "a leave"


def test_client_hook_failure_is_named_and_sees_the_block_exception():
    trace, both = pair(b="enter")
    with pytest.raises(PluginError, match="plugin b failed in around_client: LookupError"):
        enter_client(both, None)
    assert trace == ["a enter", "b enter", "a leave"]

    heard = []

    class Curious(Tracing):
        @contextmanager
        def around_client(self, pool):
            try:
                yield
            except ZeroDivisionError as error:
                heard.append(error)
                raise

    with pytest.raises(ZeroDivisionError) as caught, enter_client([Curious("c", [], "")], None):
        1 / 0  # noqa: B018
    assert heard == [caught.value]


@pytest.mark.parametrize("hook", ["transform", "bootstrap", "decorate"])
def test_failing_transform_bootstrap_or_decorate_hook_is_named(hook):
    _, both = pair(b=hook)
    calls = {
        "transform": lambda: transform_image(both, Image(), SPEC),
        "bootstrap": lambda: bootstrap_steps(both, SPEC),
        "decorate": lambda: decorate_function(both, str),
    }
    with pytest.raises(PluginError, match=f"plugin b failed in {hook}"):
        calls[hook]()


def test_plugin_hooks_do_nothing_by_default():
    plain = make("plain")
    assert transform_image([plain], Image(pip=("x",)), SPEC) == Image(pip=("x",))
    assert bootstrap_steps([plain], SPEC) == ()
    assert decorate_function([plain], str) is str
    with enter_app([plain], InstanceInfo()), enter_process([plain], InstanceInfo()), enter_client([plain], None):
        pass


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([make("a"), make("a")], "plugin a is given twice"),
        ([make("hub", requires=("torch",))], "plugin hub requires plugin torch before it"),
        ([make("hub", requires=("torch",)), make("torch")], "plugin hub requires plugin torch before it"),
        ([make("a", conflicts=("b",)), make("b")], "a and b cannot be combined"),
        ([make("b"), make("a", conflicts=("b",))], "a and b cannot be combined"),
        (["torch"], "'torch' is not a plugin"),
        ([Plugin()], "Plugin has no name"),
    ],
)
def test_incompatible_plugins_are_rejected(given, message):
    with pytest.raises(UsageError, match=message):
        check_plugins(given)


def test_plugin_class_without_call_is_rejected():
    with pytest.raises(UsageError, match=r"Call it: Torch\(\)"):
        check_plugins([plugins.torch])


def test_plugin_error_is_unchanged_by_pickling():
    error = pickle.loads(pickle.dumps(PluginError("plugin a failed in decorate: x", "a", "decorate")))
    assert str(error) == "plugin a failed in decorate: x"
    assert (error.plugin, error.hook) == ("a", "decorate")


def test_package_requirement_is_made_of_name_and_version():
    assert requirement("torch", "latest") == requirement("torch", None) == "torch"
    assert requirement("torch", "2.3.0") == "torch==2.3.0"
    assert requirement("torch", "2.3.0+cpu") == "torch==2.3.0+cpu"
    assert requirement("torch", ">=2.3,<3") == "torch>=2.3,<3"
    for wrong in ("newest", "", "v2"):
        with pytest.raises(UsageError, match="is not a version of torch"):
            requirement("torch", wrong)


def test_packages_and_variables_of_the_user_override_plugin_defaults():
    index = PipIndex(url="https://example.org")
    image = Image(pip=("Torch==2.0", "numpy"), env={"A": "mine"})
    assert with_pip(image, ["torch", "torch-vision"], index).pip == ("Torch==2.0", "numpy", "torch-vision")
    assert with_pip(image, ["torch"], index).pip_indexes == ()
    twice = with_pip(with_pip(image, ["x"], index), ["y"], index)
    assert twice.pip_indexes == (index,)
    assert with_env(image, A="ours", B="ours").env == {"A": "mine", "B": "ours"}
    assert image.pip == ("Torch==2.0", "numpy")


def test_every_listed_plugin_can_be_created():
    for info in plugins.available():
        plugin = plugins.by_name(info.name)
        assert plugin.name == info.name
        assert info.help
        assert pickle.loads(pickle.dumps(plugin)) == plugin


def test_misspelled_plugin_name_gets_a_suggestion():
    with pytest.raises(UsageError, match="did you mean torch"):
        plugins.by_name("troch")
    with pytest.raises(UsageError, match="available: torch"):
        plugins.by_name("zzz")
    with pytest.raises(AttributeError):
        plugins.zzz  # noqa: B018


def test_importing_a_plugin_module_does_not_hide_the_plugin():
    code = (
        "import skyward_core.plugins.built_in.torch as m; from skyward_core import plugins; "
        "assert plugins.torch is m.Torch and plugins.torch().name == 'torch'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_plugins_import_without_client_libraries_in_a_worker():
    code = (
        "import sys, pickle; from skyward_core import plugins; "
        "[getattr(plugins, i.name) for i in plugins.available()]; import skyward_core.plugins.plugin; "
        "print(sorted({'torch', 'jax', 'numpy', 'pydantic', 'textual', 'asyncssh'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# An argument that nothing takes is refused with the nearest one that is taken.

sky: Any = skyward_core  # checkers know what is wrong here

REFUSED = [
    (lambda: sky.Compute(pip=["x"]), "sky.Compute has no argument 'pip'; sky.Image has. Use image=sky.Image(pip=...)."),
    (lambda: sky.Compute(grace=2), "sky.Compute has no argument 'grace'; sky.Options has. Use "
        "options=sky.Options(grace=...)."),
    (lambda: sky.Compute(gpus=2), "sky.Compute has no argument 'gpus'. Use accelerator=\"A100:8\"."),
    (lambda: sky.ComputePool(imgae=None), "sky.Compute has no argument 'imgae'; did you mean 'image'?"),
    (
        lambda: sky.Compute.attached("x", consol=1),
        "sky.Compute.attached has no argument 'consol'; did you mean 'console'?",
    ),
    (
        lambda: sky.Worker(xx=2),
        "sky.Worker has no argument 'xx'; known: concurrency, executor, ranks_per_node, buffer, reuse_processes",
    ),
    (lambda: replace(sky.Image(), pips=[]), "sky.Image has no argument 'pips'; did you mean 'pip'?"),
    (lambda: sky.function(timeot=3), "sky.function has no argument 'timeot'; did you mean 'timeout'?"),
    (lambda: sky.Local(nodes=2), "sky.Local has no argument 'nodes'; no arguments are accepted"),
    (lambda: sky.Local(2), "sky.Local takes no arguments, got 1"),
    (lambda: sky.SSH(["a"], "me"), "sky.SSH takes at most 1 positional arguments, got 2 positional"),
    (lambda: sky.AWS("us-east-1"), "sky.AWS takes keyword arguments only, got 1 positional"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message for _, message in REFUSED])
@pytest.mark.filterwarnings("ignore:sky.ComputePool:FutureWarning")
def test_unknown_argument_is_rejected_with_a_suggestion(
    make: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(older_api_names, "_warned", set())  # others have their own first time
    with pytest.raises(TypeError) as raised:
        make()
    assert str(raised.value) == message


@pytest.mark.parametrize(("make", "message"), [
    (lambda: sky.Compute("train"), "everything else by name: sky.Compute(name=...) (got 'train')"),
    (lambda: sky.Compute(sky.Local(), nodes=2), "everything else by name: sky.Compute(provider=...) (got Local())"),
    (lambda: sky.Compute(sky.RunPod), "everything else by name: sky.Compute(provider=...) (got <class "),
    (lambda: sky.Compute(4), "everything else by name (got 4)"),
    (lambda: sky.Compute(options={"console": False}), "options: should be sky.Options(...) (got dict)"),
    (lambda: sky.Compute(name="train", options=3), "options: should be sky.Options(...) (got int)"),
    (lambda: sky.Compute(plugins=["torch"]), "'torch' is not a plugin. Use sky.plugins.torch()."),
])  # fmt: skip
@pytest.mark.parametrize("override", [None, "local"])
def test_argument_of_the_wrong_type_is_rejected(
    make: Any, message: str, override: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "provider_override", override)
    with pytest.raises(sky.UsageError) as raised:
        make()
    assert message in str(raised.value)


def test_star_imported_sky_object_behaves_as_the_library() -> None:
    """`from skyward import *` after `import skyward as sky` replaces the library by this object."""
    star = sky.sky
    assert star.Compute is sky.Compute and star.plugins is sky.plugins and star.sky is star
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        star.nothing  # noqa: B018


@pytest.mark.parametrize("name", [each.name for each in available()])
def test_unknown_plugin_argument_is_rejected_with_a_suggestion(name: str) -> None:
    made = factory(name)
    with pytest.raises(TypeError, match=rf"^sky\.plugins\.{name} has no argument 'zzzz'"):
        made(zzzz=1)
    for each in (each for each in fields(made) if each.init):
        with pytest.raises(TypeError, match=rf"^sky\.plugins\.{name} has no argument '{each.name}x'; did you mean "):
            made(**{f"{each.name}x": 1})


@pytest.mark.parametrize("name", ["Image", "Options", "Spec", "PipIndex", "SSH", "AWS", "Slurm", "Nodes"])
def test_misspelled_argument_gets_a_suggestion(name: str) -> None:
    made = getattr(sky, name)
    for known in inspect.signature(made).parameters:
        with pytest.raises(TypeError, match=rf"^sky\.{name} has no argument '{known}x'; did you mean "):
            made(**{f"{known}x": 1})


def test_known_plugin_and_provider_arguments_are_accepted() -> None:
    assert sky.plugins.torch("nccl").backend == "nccl"
    assert sky.SSH("a", user="me").hosts == ("a",) and sky.SSH(hosts=["a"]).user is None
    assert sky.AWS(username="me").ssh_user == "me"  # an older word
    assert list(inspect.signature(sky.plugins.mig).parameters) == ["profile"]
    for value in (sky.plugins.torch("gloo"), sky.SSH(["a"]), sky.AWS(region="x")):
        assert pickle.loads(pickle.dumps(value)) == value and replace(value) == value


def test_plugins_of_other_packages_keep_their_own_signature() -> None:
    class Greeter(Plugin):
        name = "greeter"

    class Waver(Plugin, ABC):
        def __init__(self, hand: str, **more: Any) -> None:
            self.hand, self.more = hand, more

    @dataclass(frozen=True)
    class Nodder(Plugin):
        times: int = 1

    class Twice(Nodder):
        def __init__(self, times: int, fast: bool) -> None:
            super().__init__(times * 2)
            object.__setattr__(self, "fast", fast)

    assert Waver("left", also=1).more == {"also": 1} and Twice(2, fast=True).times == 4
    with pytest.raises(TypeError, match=r"^Greeter takes no arguments, got 1$"):
        Greeter(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Greeter has no argument 'loud'; no arguments are accepted$"):
        Greeter(loud=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Nodder has no argument 'tims'; did you mean 'times'"):
        Nodder(tims=1)  # type: ignore[call-arg]


def test_did_you_mean_suggests_similar_names() -> None:
    assert did_you_mean("timeout", ["grace", "start_timeout"]) == "; did you mean 'start_timeout'?"
    assert did_you_mean("timeout", ["aaaaaaaaaaa_timeout", "bbbbbbbbbbb_timeout", *"abcdefg"]) == ""
    assert did_you_mean("zz", ["one", "two"]) == "; known: one, two"
    assert did_you_mean("zz", [str(each) for each in range(20)]) == ""


# What plugins with servers of their own have in common.


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_port_in_use_error_names_the_parameter_to_change(family: int, address: str) -> None:
    with socket.socket(family) as taken:
        taken.bind((address, 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = (
            f"port {port} of {address} is not available (Address already in use). Choose another one: dask(port=...)"
        )
        with pytest.raises(PoolError, match=re.escape(message)):
            check_port_free("dask", address, port)
    check_port_free("dask", address, port)


def test_environment_variables_are_restored_after_a_plugin_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAD", "before")
    monkeypatch.delenv("NEW", raising=False)
    with pytest.raises(ZeroDivisionError), set_variables({"HAD": "now", "NEW": "here"}):
        assert (os.environ["HAD"], os.environ["NEW"]) == ("now", "here")
        _ = 1 / 0
    assert os.environ["HAD"] == "before" and "NEW" not in os.environ


# JAX is told who takes part as soon as somebody imports it, and is in all else as it is.

DISTRIBUTED = """
up = False

def initialize(coordinator_address=None, num_processes=None, process_id=None, cluster_detection_method=None,
               coordinator_bind_address=None):
    global up
    print("initialize", coordinator_address, num_processes, process_id)
    up = True

def shutdown():
    global up
    up = False

def is_initialized():
    return up
"""
JAX = """
class config:
    jax_cpu_collectives_implementation, jax_enable_preemption_service = None, True
    update = classmethod(setattr)

from jax import distributed
"""
SCRIPT = """
import importlib.util, inspect, sys
from skyward_core.runtime import instance_info_and_attempt as used_up
from skyward_core.runtime.instance_info_and_attempt import InstanceInfo
from skyward_core.runtime.framework_rendezvous_and_thread_limits import TorchrunEnvironment as ForCalls

OWN = InstanceInfo(head_addr="192.0.2.2", head_port=9)
calls = ForCalls(InstanceInfo(rank=1, world_size=2, head_addr="192.0.2.1", head_port=5), OWN, "unused")
if sys.argv[1] == "late":
    importlib.util.find_spec("jax.distributed")  # who only looks changes nothing
import jax
from jax.distributed import initialize, shutdown

calls.start_call(False)
initialize("mine:1", 1, 0)  # a task's own affair
shutdown()
print(used_up.not_reusable_reason())
calls.start_call(True)
initialize()
initialize(num_processes=2)
try:
    initialize(num_processes=3)
except Exception as error:
    print(type(error).__name__, "num_processes=3" in str(error))
print(jax.config.jax_cpu_collectives_implementation, jax.config.jax_enable_preemption_service)
module = jax.distributed
print(module.__loader__ is module.__spec__.loader, type(module.__loader__).__name__)
print("def is_initialized" in inspect.getsource(module))
"""


def run_script(path: Path, how: str) -> list[str]:
    done = run_command([sys.executable, "-c", SCRIPT, how], env={"PYTHONPATH": str(path)})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_jax_initialize_in_a_script_gets_the_gang_layout(tmp_path: Path) -> None:
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text(JAX)
    (tmp_path / "jax" / "distributed.py").write_text(DISTRIBUTED)
    expected = [
        "initialize mine:1 1 0",
        "it shut down JAX's distributed runtime",
        "initialize 192.0.2.1:9 2 1",  # a port after those that broadcasts take in turns
        "UsageError True",
        "gloo False",
        "True SourceFileLoader",
        "True",
    ]
    assert run_script(tmp_path, "") == expected
    assert run_script(tmp_path, "late") == expected
