"""Inline metadata of scripts (PEP 723), Python locks, and arguments of whole scripts and modules."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.launch.launch_plan import make_plan, resolve_call, script_python
from skyward_core.model.errors import ScriptError, SpecError, UsageError
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.specs import Image, Interpreter, PoolSpec
from skyward_core.plugins.plugin import Plugin
from skyward_core.providers.aws.provider import AWS
from skyward_core.providers.local.provider import Local
from skyward_core.providers.slurm.provider import Slurm
from skyward_core.providers.ssh.provider import SSH, check_line
from skyward_core.tasks import missing_packages
from skyward_core.tasks.packages.inline_metadata import InlineMetadata, find_blocks, read_inline_metadata
from skyward_core.tasks.python_compatibility import MINOR_VERSION, VersionError, satisfies
from skyward_core.transport.ssh.host_address_and_python import HostPythons, WantedPython, parse_pythons
from skyward_core.transport.transport import image_for_hosts
from skyward_tui.cli.commands import exec_launch_queue
from skyward_tui.cli.commands import launched_and_attached_runs as run
from skyward_tui.cli.main import cli
from tests.support.commands import COMMANDS
from tests.support.pythons import another_python


def read_metadata(tmp_path: Path, toml: str) -> InlineMetadata | None:
    lines = (f"# {line}".rstrip() for line in toml.splitlines())
    (tmp_path / "train.py").write_text("import os\n# /// script\n" + "\n".join(lines) + "\n# ///\nx = 1\n")
    return read_inline_metadata(tmp_path / "train.py")


def read_environment(tmp_path: Path, toml: str) -> Any:
    found = read_metadata(tmp_path, toml)
    assert found is not None
    return found.environment


def test_inline_metadata_block_is_parsed(tmp_path: Path) -> None:
    toml = 'requires-python = ">=3.12"\ndependencies = [\n  "torch>=2; python_version > \'3.8\'",\n\n  "rich",\n]\n'
    found = read_metadata(tmp_path, toml)
    assert found == InlineMetadata(">=3.12", {"pip": ["torch>=2; python_version > '3.8'", "rich"]})


def test_binary_or_missing_script_has_no_inline_metadata(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b"\xff\xfe# /// script\n")
    assert read_inline_metadata(tmp_path / "train.py") is None
    assert read_inline_metadata(tmp_path / "none.py") is None


def test_inline_metadata_accepts_windows_line_ends_and_bom(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b'\xef\xbb\xbf# /// script\r\n# dependencies = ["a"]\r\n# ///\r\n')
    assert read_inline_metadata(tmp_path / "train.py") == InlineMetadata("", {"pip": ["a"]})


def test_inline_metadata_reads_package_indexes_and_sources(tmp_path: Path) -> None:
    toml = """dependencies = ["torch", "mine"]
[tool.uv]
extra-index-url = ["https://extra.example/simple"]
find-links = ["wheels of mine", "https://links.example/", "/abs,olute"]
no-index = false
[[tool.uv.index]]
name = "pytorch"
url = "https://pytorch.example/cpu"
explicit = true
[[tool.uv.index]]
name = "unused"
url = "https://unused.example"
explicit = true
[[tool.uv.index]]
url = "https://first.example"
default = true
[tool.uv.sources]
torch = { index = "pytorch" }
[tool.other]
x = 1
"""
    assert read_environment(tmp_path, toml) == {
        "pip": ["torch", "mine"],
        "pip_indexes": [
            {"url": "https://pytorch.example/cpu", "packages": ["torch"]},
            {"url": "https://extra.example/simple", "packages": []},
        ],
        "index": "https://first.example",
        "find_links": [f"file://{tmp_path}/wheels%20of%20mine", "https://links.example/", "file:///abs%2Colute"],
    }
    assert read_environment(tmp_path, "[tool.uv]\nno-index = true\n") == {"pip": [], "no_index": True}
    assert read_environment(tmp_path, '[tool.uv]\nindex-url = "https://i"\n') == {"pip": [], "index": "https://i"}


@pytest.mark.parametrize(
    ("toml", "why"),
    [
        ("dependencies = [", "it is not TOML: "),
        ("dependencies = 'torch'", "dependencies must be a list of texts"),
        ("dependencies = ['--index-url=http://x']", "'--index-url=http://x' is not a requirement"),
        ('dependencies = ["a\\n-r x"]', "is not a requirement"),
        ("requires-python = 'newest'", "requires-python: 'newest' is not a Python version specifier"),
        ("[tool.uv]\nexclude-newer = '2025'", r"\[tool.uv\] exclude-newer is not supported"),
        ("[tool.uv.sources]\na = { git = 'https://x' }", r"\[tool.uv.sources\] a: only { index = ... } is supported"),
        ("[tool.uv.sources]\na = { index = 'none' }", r"no \[\[tool.uv.index\]\] is called 'none'"),
    ],
)
def test_error_names_invalid_inline_metadata(tmp_path: Path, toml: str, why: str) -> None:
    with pytest.raises(ScriptError, match=f"inline metadata of .*train.py .* cannot be used: .*{why}"):
        read_metadata(tmp_path, toml)


VERSIONS = st.tuples(st.integers(2, 4), st.integers(8, 14), st.integers(0, 2)).map("{0[0]}.{0[1]}.{0[2]}".format)
MINORS = st.integers(8, 14).map("3.{}".format)
CLAUSES = st.one_of(
    st.tuples(st.sampled_from([">=", "<=", ">", "<", "==", "!=", "~="]), VERSIONS | MINORS).map("".join),
    st.tuples(st.sampled_from(["==", "!="]), VERSIONS | MINORS, st.just(".*")).map("".join),
)


@given(VERSIONS, st.lists(CLAUSES, max_size=3))
@example("3.12.0", ["===3.12.0"])
@example("3.12.1", [">=3.12rc1", "<3.13.0a1"])
@example("3.12.1", [" >= 3.11", " < 3.13"])
def test_python_versions_are_matched_as_by_packaging(version: str, clauses: list[str]) -> None:
    specifier = ",".join(clauses)
    assert satisfies(version, specifier) is SpecifierSet(specifier).contains(version, prereleases=True)


@pytest.mark.parametrize("specifier", [f">={'9' * 5000}", "3.12", ">=3.*", "~=3", "=>3.1", ">=3.12 or so"])
def test_invalid_version_specifier_is_rejected(specifier: str) -> None:
    with pytest.raises(VersionError, match="is not a Python version specifier"):
        satisfies("3.12.1", specifier)


REFERENCE = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
LINES = st.sampled_from(["# /// script", "# /// other", "# ///", "#", "# a = 1", "", "x", "#x", " # ///"])


@given(st.lists(LINES, max_size=14))
@example(["# /// script", "# ///", "# ///"])
@example(["# /// other", "# a = 1", "# /// script", "# a = 1", "# ///"])
@example(["# /// script", "# /// script", "# ///"])
def test_inline_blocks_match_the_reference_expression(lines: list[str]) -> None:
    text = "\n".join(lines)
    expected = [found["content"] for found in REFERENCE.finditer(text) if found["type"] == "script"]
    assert ["\n".join([*block, ""]) for block in find_blocks(text)] == expected


def test_script_of_unclosed_blocks_is_read_in_linear_time(tmp_path: Path) -> None:
    """The reference expression would take hours and block the app."""
    (tmp_path / "x.py").write_text("# /// script\n" * 200_000)
    assert read_inline_metadata(tmp_path / "x.py") is None


# Which Python a launch takes for its script, where what it asks for needs another than the one that is found.

OWN = ".".join(map(str, sys.version_info[:3]))
SCRIPT = "import nowhere_to_be_found\nimport skyward_core as sky\n\n\n@sky.function\ndef f() -> None: ...\n"
LOCK = 'version = 1\nrequires-python = "{}"\n[[package]]\nname = "train"\nsource = {{ virtual = "." }}\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    folder = tmp_path / "train"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "pyproject.toml").touch()
    monkeypatch.chdir(folder)
    return folder


def launch(project: Path, **asked: str) -> LaunchRequest:
    return LaunchRequest(script=str(project / "train.py"), function="f", **asked)  # type: ignore[arg-type]


def test_lock_for_another_python_selects_an_installed_one(project: Path) -> None:
    other = another_python()
    specifier = f"=={other.version}"
    (project / "uv.lock").write_text(LOCK.format(specifier))
    found = make_plan(launch(project, lock="uv.lock")).interpreter
    assert (found.version, found.base, found.source) == (other.version, other.path, "uv.lock")
    message = f"was skipped: it is {OWN}, but uv.lock requires Python {specifier}"
    assert found.notes == (f"this program's own Python {message}",)
    (project / "pyproject.toml").write_text(
        f'[project]\nname = "train"\nrequires-python = "{specifier}"\ndependencies = []\n'
    )
    found = make_plan(LaunchRequest(script="train.py", project=True)).interpreter
    assert (found.version, found.source) == (other.version, "pyproject.toml")


@pytest.mark.parametrize(
    "heading",
    [
        "installed for pool p with Python {minor}; Image(lock=...) installs it again",
        "nothing was installed for pool p: its ranks had Python {version} at /p/python (.venv of project train), with",
    ],
)
def test_lock_saved_of_a_run_selects_the_python_of_that_run(project: Path, heading: str) -> None:
    other = another_python()
    minor = ".".join(other.version.split(".")[:2])
    first = f"# {heading.format(minor=minor, version=other.version)}\n"
    (project / "run.lock").write_text(first + "skytiny==1.0\n")
    found = make_plan(launch(project, lock="run.lock")).interpreter
    assert (found.minor, found.source) == (minor, "run.lock")
    assert found.notes[0].endswith(f"it is {OWN}, but run.lock requires Python =={minor}.*")
    text = make_plan(launch(project, lock="run.lock", python=sys.executable)).interpreter
    assert (text.version, text.path) == (OWN, sys.executable), "a person's word counts"
    (project / "run.lock").write_text(f"# by hand\n{first}skytiny==1.0\n")
    assert make_plan(launch(project, lock="run.lock")).interpreter.version == OWN


def test_project_environment_with_wrong_python_for_lock_is_skipped(project: Path) -> None:
    (project / "uv.lock").write_text(LOCK.format(f"!={OWN}"))
    other = another_python()
    program = project / ".venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.symlink_to(sys.executable)
    (project / ".venv" / "pyvenv.cfg").touch()
    found = make_plan(launch(project, lock="uv.lock")).interpreter
    assert found.base and found.version != OWN, other
    assert found.notes[0].startswith(f".venv of project train was skipped: it is {OWN}, but uv.lock requires")
    with pytest.raises(SpecError, match="requires Python !="):  # a person's word is not passed over
        make_plan(launch(project, lock="uv.lock", python=str(program)))


def test_error_names_lock_whose_python_is_missing(project: Path) -> None:
    (project / "uv.lock").write_text(LOCK.format(">=3.19"))
    with pytest.raises(ScriptError, match=r'uv\.lock requires Python ">=3\.19", but only ') as caught:
        make_plan(launch(project, lock="uv.lock"))
    assert caught.value.field == "lock"


class Brings(Plugin):
    """Plugin that requires a package."""

    name: ClassVar[str] = "brings"

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        return replace(image, pip=(*image.pip, "nowhere-to-be-found==1.0"))


def test_plugin_packages_are_installed_to_load_the_script(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = project / "train.py"
    spec = PoolSpec(name="p", provider=Local(), plugins=[Brings()])
    assert not script_python(script, None, spec)[0].chosen, "nobody knows what that module is"
    monkeypatch.setattr("skyward_core.tasks.missing_packages.FRAMEWORKS", ("nowhere_to_be_found",))
    found, packages = script_python(script, None, spec)
    assert packages is None and found.source == "plugins of the pool: brings"
    assert found.environment["pip"] == ["nowhere-to-be-found==1.0"] and found.version == OWN
    (project / ".venv").symlink_to(sys.prefix)  # this program lives in the project's own
    assert script_python(script, None, spec)[0].source == "plugins of the pool: brings"
    (project / ".venv").unlink()
    monkeypatch.setattr(missing_packages, "is_missing", lambda module: False)
    assert not script_python(script, None, spec)[0].chosen, "what is here is used"


# Flags of a function, what stands behind ``--``, and torchrun's options, on the command line; nothing is run.

SCRIPT_WORDS_SCRIPT = """
import skyward_core as sky

@sky.function
def train(epochs: int, lr: float = 0.1, fast: bool = False, *, run_name: str = "x", **more): ...

@sky.function
def other(n: int = 1): ...
"""

Asked = Callable[..., LaunchRequest | str]


@pytest.fixture
def parse_script_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Return the request of a command line, or the error that rejects it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.py").write_text(SCRIPT_WORDS_SCRIPT)
    (tmp_path / "one.py").write_text(SCRIPT_WORDS_SCRIPT.partition("@sky.function\ndef other")[0])
    (tmp_path / "plain.py").write_text("print(__name__)\n")
    (tmp_path / "-odd.py").write_text("print(__name__)\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/train.py").write_text("")
    found: list[LaunchRequest] = []
    notes: list[str] = []

    def execute(request: LaunchRequest, console: Any, **_: bool) -> int:
        resolve_call(request)
        found.append(request)
        return 0

    monkeypatch.setattr(run, "run", execute)
    monkeypatch.setattr("skyward_tui.cli.console_and_log_printer.Console.note", lambda self, text: notes.append(text))

    def ask(line: str) -> LaunchRequest | str:
        found.clear()
        notes.clear()
        done = CliRunner().invoke(cli, line.split(), terminal_width=400)
        return found[0] if found else "\n".join([done.output, *notes])

    ask.notes = notes  # type: ignore[attr-defined]
    return ask


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("one.py --epochs 5", ["epochs=5"]),
        ("one.py --epochs=5 --lr -0.5 -n 3 --fast", ["epochs=5", "lr=-0.5", "fast=true"]),
        ("one.py --no-fast --run-name a -a epochs=2", ["epochs=2", "fast=false", "run_name=a"]),
        ("two.py:train --fast no --epochs 1 --other 7", ["fast=no", "epochs=1", "other=7"]),
    ],
)
def test_run_options_become_arguments_of_the_function(parse_script_words, line, arguments):
    request = parse_script_words(f"run {line}")
    assert isinstance(request, LaunchRequest), request
    assert (list(request.arguments), request.script_args) == (arguments, None)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("two.py:other --nodse 4", "unknown option --nodse. Arguments of other: --n. Did you mean --nodes?"),
        ("two.py:other --name x", "Arguments of other: --n. Did you mean --pool?"),
        ("two.py:other --n", "--n of other needs a value"),
        ("one.py epochs=5", "'epochs=5' is not a flag of train"),
        ("one.py epochs=5", "Write: --epochs=5"),
        ("one.py 5", "Write: --NAME VALUE"),
        ("one.py --epochs five", "argument epochs of train must be int, got 'five'"),
        ("plain.py --epochs 5", "Write: plain.py -- --epochs 5"),
        ("one.py:train -- --epochs 5", "Remove one of the two"),
        ("plain.py -a n=5 -- 5", "takes no --arg"),
    ],
)
def test_run_option_unknown_to_the_function_is_rejected(parse_script_words, line, says):
    assert says in parse_script_words(f"run {line}")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("run --repeats 3", "No such option '--repeats'."),
        (
            "run --epochs=3 one.py",
            "No such option '--epochs'. Arguments of a script must follow its name: one.py --epochs.",
        ),
        ("run --nodse 2 one.py", "Did you mean '--nodes'?"),
        ("run plain.py --nodse 2", "Write: plain.py -- --nodse 2. Did you mean --nodes?"),
        ("runn one.py", "No such command 'runn'. Did you mean 'run'?"),
    ],
)
def test_unknown_option_error_names_the_nearest_known_option(parse_script_words: Any, line: str, says: str) -> None:
    text = parse_script_words(line)
    assert says in text and "Usage: cli " in text and "does not exist" not in text


@pytest.mark.parametrize(
    ("line", "script", "own"),
    [
        ("plain.py", "plain.py", ()),
        ("plain.py -n 2 -- --epochs 3 --help", "plain.py", ("--epochs", "3", "--help")),
        ("one.py -- -x -- y", "one.py", ("-x", "--", "y")),
        ("one.py --", "one.py", ()),
        ("-n 2 -- -odd.py a", "-odd.py", ("a",)),
    ],
)
def test_whole_script_gets_arguments_after_double_dash(parse_script_words, line, script, own):
    request = parse_script_words(f"run {line}")
    assert isinstance(request, LaunchRequest), request
    assert (request.script, request.script_args) == (script, own)


def test_run_help_lists_parameters_of_the_script_function(parse_script_words):
    text = " ".join(parse_script_words("run one.py --help").split())
    assert "Arguments of train:" in text and "--epochs INT [required]" in text
    assert "--fast / --no-fast [default: False]" in text and "--run-name STR [default: 'x']" in text
    Path("choices.py").write_text(
        "import enum\nfrom typing import Literal\nimport skyward_core as sky\n"
        "class Optimiser(enum.Enum):\n    SGD = 's'\n    ADAM = 'a'\n"
        "@sky.function\ndef train(how: Literal['fast', 'Well'], by: Optimiser | None = None):\n"
        "    '''Trains.\n\n    Args:\n        how: to train.\n    '''\n"
    )
    text = " ".join(parse_script_words("run choices.py --help").split())
    assert "--how fast|Well to train. [required]" in text and "--by SGD|ADAM|None [default: None]" in text
    assert "Arguments of other" in parse_script_words("run two.py -h") and "Arguments of" not in parse_script_words(
        "run plain.py -h"
    )


def test_module_option_runs_a_module_as_script(parse_script_words):
    request = parse_script_words("run -m package.train -n 2 -- --epochs 3")
    assert isinstance(request, LaunchRequest), request
    assert (request.module, request.script, request.script_args, request.nodes) == (
        "package.train",
        "package/train.py",
        ("--epochs", "3"),
        2,
    )
    words = ["-m", "package.train", "--nodes", "2", "--", "--epochs", "3"]
    assert request.to_argv() == words
    assert parse_script_words(f"run {' '.join(words)}") == request
    assert isinstance(parse_script_words("run -m package.train"), LaunchRequest)
    assert "must follow --" in parse_script_words("run -m package.train --epochs 3")
    with pytest.raises(ScriptError, match=r"script package\.train does not exist.* run -m package\.train"):
        run._make_plan(LaunchRequest(script="package.train", script_args=()), launching=False)
    with pytest.raises(ScriptError, match=r"is a folder. Name a script in it$"):
        run._make_plan(LaunchRequest(script="."), launching=False)


def test_torchrun_options_become_a_launch_request(parse_script_words):
    request = parse_script_words(
        "torchrun --nnodes=2 --nproc_per_node 4 --max-restarts 3 --tee 3 plain.py --nnodes 7 -m"
    )
    assert isinstance(request, LaunchRequest), request
    assert (request.nodes, request.ranks_per_node, request.script_args) == (2, 4, ("--nnodes", "7", "-m"))
    assert (request.restarts, request.error_restarts) == (3, 3)
    assert [note.partition(" ")[0] for note in parse_script_words.notes] == ["--tee"]
    request = parse_script_words("torchrun --standalone --rdzv-backend c10d --node-rank 0 -m package.train a")
    assert isinstance(request, LaunchRequest), request
    assert (request.module, request.script, request.script_args) == ("package.train", "package/train.py", ("a",))
    assert not parse_script_words.notes
    request = parse_script_words("torchrun --requirements r.txt --outputs *.pt plain.py --project")
    assert isinstance(request, LaunchRequest), request
    assert (request.requirements, request.outputs, request.project) == ("r.txt", ("*.pt",), False)
    assert request.torchrun, "it may be one process"
    assert not parse_script_words("torchrun --nnodes 1:4 plain.py").torchrun
    assert not parse_script_words("torchrun --nproc-per-node 2 plain.py").torchrun
    assert parse_script_words("run --torchrun plain.py").to_argv()[-2:] == ["--torchrun", "--"]
    assert "but a function is called" in parse_script_words("run --torchrun one.py --epochs 1")
    request = parse_script_words("torchrun --nnodes 1:4 plain.py")
    assert isinstance(request, LaunchRequest) and request.nodes == "1:4"
    for line, says in (
        ("--nnodes 4:1 plain.py", "a whole number from 1 to 1024, or a range"),
        ("--nproc-per-node 65 plain.py", "not a number from 1 to 64"),
        ("--nproc-per-node cpu --hosts a plain.py", "(on this machine also cpu)"),
        ("--node_rank 1 plain.py", "one command starts all nodes"),
        ("--no-python ls", "ranks run only Python scripts"),
    ):
        assert says in parse_script_words(f"torchrun {line}"), line


def test_torchrun_command_knows_every_option_of_installed_torchrun():
    import re
    from importlib.util import find_spec

    found = find_spec("torch")
    if found is None or found.origin is None:
        pytest.skip("torch is not installed")
    source = Path(found.origin).with_name("distributed").joinpath("run.py").read_text()
    # --local-rank is what another launcher gave to scripts; the text tells of it.
    theirs = set(re.findall(r'"(--[a-z-]+)"', source.partition("def parse_args")[0])) - {"--local-rank"}
    ours = {name for each in COMMANDS["torchrun"].params for name in each.opts}
    assert theirs and theirs <= ours


def test_run_accepts_a_grace_of_zero_and_rejects_a_negative_one(parse_script_words):
    assert parse_script_words("run --grace 0 plain.py").grace == 0
    assert "--grace" in parse_script_words("run --grace -1 plain.py")


@pytest.mark.parametrize("command", ["run", "torchrun", "launch"])
def test_grace_of_each_command_that_starts_runs_reaches_its_request(
    parse_script_words: Any, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    Path("job.yaml").write_text("run: 'true'\n")
    jobs: list[Any] = []
    monkeypatch.setattr(exec_launch_queue, "launch", lambda request, *_, **__: jobs.append(request.options))
    request = parse_script_words(f"{command} --grace 2m {'job.yaml' if command == 'launch' else 'plain.py'}")
    assert (jobs[0] if jobs else request).grace == 120


# What a script's own metadata comes to on other machines, and what cannot be had there.

IMAGE = {"pip": ["rich"], "pip_indexes": [], "setup": ["true"]}


def inline(version: str = f"{MINOR_VERSION}.1", **environment: Any) -> dict[str, Any]:
    found = Interpreter("/e/bin/python", "/e", version, "inline metadata of t.py", base="/b", environment=environment)
    return found.describe()


def test_image_for_hosts_includes_inline_metadata_packages() -> None:
    index = {"url": "https://i", "packages": ["torch"]}
    asked = inline(pip=["torch"], pip_indexes=[index], index="https://d", find_links=["https://f"], alone=True)
    assert image_for_hosts(IMAGE, asked) == {
        "pip": ["rich", "torch"],
        "pip_indexes": [index],
        "setup": ["true"],
        "index": "https://d",
        "find_links": ["https://f"],
    }


def test_package_folder_of_this_machine_is_rejected_for_hosts() -> None:
    with pytest.raises(
        UsageError, match=r"inline metadata of t\.py requires packages from file:///w, a folder of this machine"
    ):
        image_for_hosts(IMAGE, inline(find_links=["file:///w"]))


# Which Pythons a host has, and what a check-up and a plan say of them.

NONE = HostPythons(())
MANY = HostPythons(("3.14.0", "3.12.10", "3.12.9", "3.9.18"))
UV = HostPythons(("3.9.18",), has_uv=True)
PROJECT = WantedPython(minor="3.12", here="")
LACKS = "3.13" if MINOR_VERSION != "3.13" else "3.11"  # which no host of these tests has
OTHER = WantedPython(minor=LACKS, here="")
OWN_PYTHON = WantedPython()


def test_python_versions_printed_by_a_host_are_parsed() -> None:
    message = b"word Python 3.9.18; Python 3.11.2; Python 3.10.13; Python 3.11.2; uv; Python 3.14.0rc1+ (odd);"
    assert parse_pythons(message) == HostPythons(("3.14.0", "3.11.2", "3.10.13", "3.9.18"), has_uv=True)
    assert parse_pythons(message).usable == ("3.14.0", "3.11.2")
    assert parse_pythons(b" \x1b[2JPython is what I am; Python x.y; 3.12.1; nouv;") == NONE
    assert (str(NONE), str(UV)) == ("it has no Python", "it has Python 3.9.18")


@pytest.mark.parametrize(
    ("there", "required_python", "runs", "state", "words"),
    [
        (MANY, PROJECT, ("3.12.10", "/p"), "ok", "Python 3.12.10 (/p); 3.14.0 for projects of other versions"),
        (HostPythons(("3.12.1",), has_uv=True), PROJECT, ("3.12.1", "/p"), "ok",
         "Python 3.12.1 (/p); its uv downloads others"),
        (UV, PROJECT, None, "ok", "the script is loaded with; it has Python 3.9.18; its uv downloads it at the first"),
        (MANY, OTHER, ("3.14.0", "/p"), "fail",
         f"no Python {LACKS}, the version that the script is loaded with; it has Python 3.14.0, 3.12.10, 3.12.9, "
         f"3.9.18: install python{LACKS} or uv there"),
        (HostPythons(("3.90.1",)), OWN_PYTHON, ("3.90.1", "/p"), "warn",
         f"no Python {MINOR_VERSION}, the version that runs here; it has Python 3.90.1: only scripts of projects with "
         f"Python 3.90 run there. For others install python{MINOR_VERSION} or uv there"),
        (NONE, OWN_PYTHON, None, "fail", f"it has no Python: install python{MINOR_VERSION} or uv there"),
    ],
)  # fmt: skip
def test_doctor_reports_whether_host_python_fits_the_scripts(
    there: HostPythons, required_python: WantedPython, runs: tuple[str, str] | None, state: str, words: str
) -> None:
    check = check_line("gpu1", there, required_python, runs)
    assert (check.subject, check.state) == ("gpu1", state)
    assert words in check.detail


CHOSEN = Interpreter("/p/.venv/bin/python", "/p/.venv", "3.99.1", ".venv of project p")


@pytest.mark.parametrize("provider", [SSH(["gpu1"]), AWS(region="us-east-1"), Slurm()])
def test_transport_uses_the_python_version_recorded_for_a_machine(
    provider: SSH | AWS | Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    known = {"host": "gpu1", "folder": "p.0", "token": "t", "user": "me", "port": 22, "launched": time.time()}
    extra = known | {"loaded_with": CHOSEN.for_hosts}

    async def minors() -> list[str]:
        machines = [Machine("gpu1", 0, "gpu1", "", extra=each) for each in (extra, known)]
        return [provider.transport("p", each).python.minor for each in machines]

    there, older = asyncio.run(minors())
    assert there == "3.99" and older != "3.99"
