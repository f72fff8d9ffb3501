"""The plugin protocol: what is checked, and in which order hooks are entered and left."""

import pickle
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest

from skyward_core import plugins
from skyward_core.model.errors import UsageError
from skyward_core.model.specs import Image, PipIndex, PoolSpec
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
from skyward_core.runtime.instance_info import InstanceInfo

SPEC = PoolSpec(name="p", provider=None)


def make(plugin_name, **attributes):
    return type(plugin_name.title(), (Plugin,), {"name": plugin_name, **attributes})()


@dataclass
class Tracing(Plugin):
    """Writes down what is called; raises where it is told to."""

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
def test_entered_in_order_and_left_in_reverse(enter):
    trace, both = pair()
    with enter(both, InstanceInfo()):
        trace.append("body")
    assert trace == ["a enter", "b enter", "body", "b leave", "a leave"]


def test_one_that_fails_to_enter_is_named_and_the_others_are_left():
    trace, both = pair(b="enter")
    with pytest.raises(PluginError, match=r"plugin b failed in around_process: LookupError") as caught:
        enter_process(both, InstanceInfo())
    assert (caught.value.plugin, caught.value.hook) == ("b", "around_process")
    assert isinstance(caught.value.__cause__, LookupError)
    assert trace == ["a enter", "b enter", "a leave"]


def test_one_that_fails_to_leave_is_named_and_the_others_are_left():
    trace, both = pair(b="leave")
    stack = enter_process(both, InstanceInfo())
    with pytest.raises(PluginError, match="plugin b failed in around_process"):
        stack.close()
    assert trace[-1] == "a leave"


def test_a_client_hook_is_named_and_hears_of_what_ends_the_block():
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


def test_an_error_of_the_body_is_not_blamed_on_a_plugin():
    _, both = pair()
    with pytest.raises(ZeroDivisionError), enter_process(both, InstanceInfo()):
        1 / 0  # noqa: B018


def test_client_hooks_run_in_order():
    _, both = pair()
    assert transform_image(both, Image(), SPEC).pip == ("a", "b")
    assert bootstrap_steps(both, SPEC) == ("echo a", "echo b")
    assert decorate_function(both, str)(1) == "a(b(1))"


@pytest.mark.parametrize("hook", ["transform", "bootstrap", "decorate"])
def test_client_hooks_that_raise_are_named(hook):
    _, both = pair(b=hook)
    calls = {
        "transform": lambda: transform_image(both, Image(), SPEC),
        "bootstrap": lambda: bootstrap_steps(both, SPEC),
        "decorate": lambda: decorate_function(both, str),
    }
    with pytest.raises(PluginError, match=f"plugin b failed in {hook}"):
        calls[hook]()


def test_hooks_do_nothing_by_default():
    plain = make("plain")
    assert transform_image([plain], Image(pip=("x",)), SPEC) == Image(pip=("x",))
    assert bootstrap_steps([plain], SPEC) == ()
    assert decorate_function([plain], str) is str
    with (
        enter_app([plain], InstanceInfo()),
        enter_process([plain], InstanceInfo()),
        enter_client([plain], None),
    ):
        pass


def test_plugins_that_go_together():
    torch, hub = make("torch"), make("hub", requires=("torch",))
    assert check_plugins([torch, hub]) == (torch, hub)
    assert check_plugins([]) == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([make("a"), make("a")], "plugin a is given twice"),
        ([make("hub", requires=("torch",))], "plugin hub needs plugin torch before it"),
        ([make("hub", requires=("torch",)), make("torch")], "plugin hub needs plugin torch before it"),
        ([make("a", conflicts=("b",)), make("b")], "a and b do not go together"),
        ([make("b"), make("a", conflicts=("b",))], "a and b do not go together"),
        (["torch"], "'torch' is not a plugin"),
        ([Plugin()], "Plugin has no name"),
    ],
)
def test_plugins_that_do_not(given, message):
    with pytest.raises(UsageError, match=message):
        check_plugins(given)


def test_a_plugin_that_was_not_called():
    with pytest.raises(UsageError, match=r"call it: Torch\(\)"):
        check_plugins([plugins.torch])


def test_errors_travel():
    error = pickle.loads(pickle.dumps(PluginError("plugin a failed in decorate: x", "a", "decorate")))
    assert str(error) == "plugin a failed in decorate: x"
    assert (error.plugin, error.hook) == ("a", "decorate")


def test_requirements():
    assert requirement("torch", "latest") == requirement("torch", None) == "torch"
    assert requirement("torch", "2.3.0") == "torch==2.3.0"
    assert requirement("torch", "2.3.0+cpu") == "torch==2.3.0+cpu"
    assert requirement("torch", ">=2.3,<3") == "torch>=2.3,<3"
    for wrong in ("newest", "", "v2"):
        with pytest.raises(UsageError, match="is no version of torch"):
            requirement("torch", wrong)


def test_what_the_person_wrote_stays():
    index = PipIndex(url="https://example.org")
    image = Image(pip=("Torch==2.0", "numpy"), env={"A": "mine"})
    assert with_pip(image, ["torch", "torch-vision"], index).pip == ("Torch==2.0", "numpy", "torch-vision")
    assert with_pip(image, ["torch"], index).pip_indexes == ()
    twice = with_pip(with_pip(image, ["x"], index), ["y"], index)
    assert twice.pip_indexes == (index,)
    assert with_env(image, A="ours", B="ours").env == {"A": "mine", "B": "ours"}
    assert image.pip == ("Torch==2.0", "numpy")


def test_all_that_is_listed_can_be_made():
    for info in plugins.available():
        plugin = plugins.by_name(info.name)
        assert plugin.name == info.name
        assert info.help
        assert pickle.loads(pickle.dumps(plugin)) == plugin


def test_a_typo_gets_a_suggestion():
    with pytest.raises(UsageError, match="did you mean torch"):
        plugins.by_name("troch")
    with pytest.raises(UsageError, match="there are: torch"):
        plugins.by_name("zzz")
    with pytest.raises(AttributeError):
        plugins.zzz  # noqa: B018


def test_importing_a_plugins_module_does_not_hide_the_plugin():
    code = (
        "import skyward_core.plugins.built_in.torch as m; from skyward_core import plugins; "
        "assert plugins.torch is m.Torch and plugins.torch().name == 'torch'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_workers_import_plugins_without_the_clients_libraries():
    code = (
        "import sys, pickle; from skyward_core import plugins; "
        "[getattr(plugins, i.name) for i in plugins.available()]; import skyward_core.plugins.plugin; "
        "print(sorted({'torch', 'jax', 'numpy', 'pydantic', 'textual', 'asyncssh'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Mine(Plugin):
    """As another package would define it."""

    name = "mine"

    def __init__(self, needed=None):
        pass


class Demanding(Mine):
    def __init__(self, needed):
        pass


@pytest.fixture
def installed(monkeypatch):
    points = [
        EntryPoint("mine", f"{__name__}:Mine", plugins.GROUP),
        EntryPoint("demanding", f"{__name__}:Demanding", plugins.GROUP),
        EntryPoint("broken", "no_such_module:X", plugins.GROUP),
        EntryPoint("torch", f"{__name__}:Mine", plugins.GROUP),  # may not hide one of ours
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)


def test_installed_plugins_appear(installed):
    names = [info.name for info in plugins.available()]
    assert names[-3:] == ["broken", "demanding", "mine"]
    assert names.count("torch") == 1
    assert isinstance(plugins.by_name("mine"), Mine)
    assert isinstance(plugins.by_name("torch"), plugins.torch)


def test_installed_plugins_that_cannot_be_made(installed):
    with pytest.raises(PluginError, match=r"plugin broken .*no_such_module"):
        plugins.by_name("broken")
    with pytest.raises(UsageError, match="plugin demanding needs parameters"):
        plugins.by_name("demanding")
