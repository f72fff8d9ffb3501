"""The choice of a script's Python interpreter, and the import path that ranks get."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.launch.launch_plan import make_plan
from skyward_core.model.errors import ScriptError, UsageError
from skyward_core.model.specs import Interpreter, PoolSpec
from skyward_core.providers.local.provider import Local
from skyward_core.tasks import bounded_subprocess, import_path, script_interpreter_and_environment
from skyward_core.tasks.python_compatibility import (
    OWN_SOURCE,
    incompatibility,
    is_own_environment,
    own_interpreter,
    satisfies,
)
from skyward_core.tasks.script_interpreter_and_environment import (
    PythonInfo,
    UnusablePython,
    choose_interpreter,
    find_missing_modules,
    query_python,
    read_python,
)
from skyward_core.views.pool_view import PoolView
from tests.support.pythons import all_ended, another_python, hanging_python
from tests.support.waiting import wait_until

BLOCK = '# /// script\n# dependencies = ["skytiny"]\n# ///\n'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A SKYWARD_HOME for one test."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Folder with a project file, a script in a subfolder, and no environment."""
    folder = tmp_path / "train-it"
    (folder / "src").mkdir(parents=True)
    (folder / "pyproject.toml").touch()
    (folder / "src" / "train.py").touch()
    return folder


def script(project: Path) -> Path:
    return project / "src" / "train.py"


def environment(folder: Path) -> Path:
    """Create a fake environment quickly."""
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    (folder / "bin" / "python").symlink_to(sys.executable)
    return folder


def python_info(path: str) -> PythonInfo:
    """Treat every program as Python 3.12.1 in the environment that contains it."""
    return PythonInfo(path, str(Path(path).parents[1]), "3.12.1")


def chosen(
    project: Path, python: str | None = None, ask: Callable[[str], PythonInfo] = python_info, **environ: str
) -> Interpreter:
    return choose_interpreter(script(project), python, environ, ask)


def test_own_interpreter_is_used_by_default(project: Path) -> None:
    found = chosen(project)
    assert (found.path, found.prefix, found.source) == (sys.executable, sys.prefix, OWN_SOURCE)
    assert not found.chosen and found.minor == f"{sys.version_info[0]}.{sys.version_info[1]}"


def test_interpreter_sources_have_an_order_of_precedence(project: Path, tmp_path: Path) -> None:
    conda, shell = environment(tmp_path / "conda"), environment(tmp_path / "shell")
    environ = {"CONDA_PREFIX": str(conda)}
    found = choose_interpreter(script(project), None, environ, python_info)
    assert (found.source, found.path, found.prefix) == ("CONDA_PREFIX", f"{conda}/bin/python", str(conda))
    environ["VIRTUAL_ENV"] = str(shell)
    assert (
        choose_interpreter(script(project), None, environ, python_info).source,
        choose_interpreter(script(project), None, environ, python_info).prefix,
    ) == ("VIRTUAL_ENV", str(shell))
    venv = environment(project / ".venv")
    found = choose_interpreter(script(project), None, environ, python_info)
    assert (found.source, found.prefix) == (".venv of project train-it", str(venv))
    script(project).write_text(BLOCK)
    assert choose_interpreter(script(project), None, environ, python_info).source == "inline metadata of train.py"
    other = environment(tmp_path / "other")
    found = choose_interpreter(script(project), f"{other}/bin/python", environ, python_info)
    assert (found.source, found.prefix, found.version) == ("--python", str(other), "3.12.1")
    assert found.notes == ("the inline metadata of train.py is ignored because of --python",)
    assert str(found) == f"Python 3.12.1 at {other}/bin/python (--python)"


def test_nearest_environment_up_to_the_project_root_is_used(project: Path) -> None:
    environment(project.parent / ".venv")
    assert chosen(project).source == OWN_SOURCE  # that is beyond the project
    (project.parent / ".git").mkdir()
    assert chosen(project).prefix == str(project.parent / ".venv")  # a part of a larger project
    environment(project / "src" / ".venv")
    assert chosen(project).prefix == str(project / "src" / ".venv")


def test_home_folder_is_not_treated_as_a_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "pyproject.toml").unlink()
    venv = environment(project / ".venv")
    assert chosen(project).prefix == str(venv)
    monkeypatch.setenv("HOME", str(project))
    assert chosen(project).source == OWN_SOURCE
    beside = project / "train.py"
    beside.touch()
    assert choose_interpreter(beside, None, {}, python_info).prefix == str(venv)


def test_project_environment_of_this_program_counts_as_chosen(project: Path) -> None:
    (project / ".venv").symlink_to(sys.prefix)
    found = chosen(project, ask=never)
    assert (found.path, found.source, found.chosen) == (sys.executable, ".venv of project train-it", True)
    assert is_own_environment(found.prefix)


def test_active_environment_of_this_program_is_not_a_choice(project: Path, tmp_path: Path) -> None:
    """As documented, ranks then get the packages of plugins and package files."""
    found = chosen(project, ask=never, VIRTUAL_ENV=sys.prefix, CONDA_PREFIX=str(tmp_path))
    assert (found.source, found.chosen, found.notes) == (OWN_SOURCE, False, ())


def test_installed_script_belongs_to_no_project(project: Path) -> None:
    environment(project / ".venv")
    example = project / ".venv" / "lib" / "python3.12" / "site-packages" / "examples" / "ddp.py"
    example.parent.mkdir(parents=True)
    example.touch()
    assert choose_interpreter(example, None, {}, never).source == OWN_SOURCE


def never(path: str) -> PythonInfo:
    raise AssertionError(f"{path} was run")


def test_environment_in_a_folder_writable_by_others_is_skipped(project: Path, tmp_path: Path) -> None:
    (project / "pyproject.toml").unlink()
    venv = environment(tmp_path / "shared" / ".venv")
    (tmp_path / "shared" / "mine").mkdir()
    (tmp_path / "shared").chmod(0o777)
    script = tmp_path / "shared" / "mine" / "train.py"
    script.touch()
    shell = environment(tmp_path / "shell")
    found = choose_interpreter(script, None, {"VIRTUAL_ENV": str(shell)}, python_info)
    assert found.prefix == str(shell)
    assert found.notes == (f"{venv} was skipped: {tmp_path}/shared can be written by others",)


def test_error_names_environment_with_missing_interpreter(project: Path) -> None:
    venv = project / ".venv"
    (venv / "bin").mkdir(parents=True)
    with pytest.raises(ScriptError, match=r"\.venv of project train-it\) has no bin/python. Recreate"):
        chosen(project)
    (venv / "bin" / "python").symlink_to("/nowhere/python3.12")
    with pytest.raises(ScriptError, match=r"is broken: its bin/python leads to /nowhere/python3.12, which does not"):
        chosen(project)


def test_error_names_environment_with_too_old_python(project: Path, tmp_path: Path) -> None:
    venv = environment(project / ".venv")
    (venv / "bin" / "python").unlink()
    program(venv / "bin" / "python", f'["{venv}/bin/python", "{venv}", [3, 9, 2], "cpython"]')
    with pytest.raises(ScriptError, match=r"it is Python 3\.9\.2, but 3\.11 or later is required"):
        chosen(project, ask=query_python)
    with pytest.raises(UsageError, match=r"--python .* it is Python 3\.9\.2, but 3\.11 or later is required"):
        chosen(project, f"{venv}/bin/python", query_python)


def test_missing_virtual_env_folder_is_skipped_and_named(project: Path, tmp_path: Path) -> None:
    found = chosen(project, VIRTUAL_ENV=f"{tmp_path}/gone")
    assert found.source == OWN_SOURCE
    assert found.notes == (f"VIRTUAL_ENV was skipped: folder {tmp_path}/gone does not exist",)
    (tmp_path / "gone").mkdir()
    with pytest.raises(ScriptError, match=r"has no bin/python. Recreate it, or unset VIRTUAL_ENV"):
        chosen(project, VIRTUAL_ENV=f"{tmp_path}/gone")


def program(path: Path, says: str) -> Path:
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def test_unusable_python_option_is_an_error(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv, other = environment(tmp_path / "venv"), another_python()
    monkeypatch.setattr(script_interpreter_and_environment, "find_other_pythons", lambda environ: iter([other.path]))
    for text, why in (
        (str(tmp_path), "is a folder. Name an interpreter"),
        (str(venv), f"is a folder. Name the interpreter in it: {venv}/bin/python"),
        ("python9", "PATH has no such program. Give a path"),
        (other.version, f"PATH has no such program. Give {other.path}"),
        ("", " is empty"),
        (str(program(tmp_path / "hello", "hello")), "it is not a usable Python"),
        (str(program(tmp_path / "other", '["/p", "/", [3, 12, 1], "pypy"]')), "it is pypy, but CPython is required"),
        (str(project / "pyproject.toml"), "it cannot be run: Permission denied"),
    ):
        with pytest.raises(UsageError) as caught:
            chosen(project, text, query_python, PATH="/usr/bin:/bin")
        assert str(caught.value).startswith(f"--python {text}") and why in str(caught.value)


def test_python_option_is_searched_on_the_path(project: Path, tmp_path: Path) -> None:
    venv = environment(tmp_path / "venv")
    assert chosen(project, "python", PATH=f"{venv}/bin").path == f"{venv}/bin/python"


def test_environment_path_depends_on_inline_metadata_content(project: Path) -> None:
    names = set()
    for text in (BLOCK, BLOCK.replace("skytiny", "other"), BLOCK + "# more\n"):
        script(project).write_text(text)
        names.add(chosen(project).path)
    assert len(names) == 2


def test_missing_python_version_names_those_found(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        script_interpreter_and_environment, "find_other_pythons", lambda environ: iter(["/x/bin/python", "/y"])
    )
    script(project).write_text('# /// script\n# requires-python = ">=3.19"\n# ///\n')

    def seen(path: str) -> PythonInfo:
        if path == "/y":
            raise UnusablePython("it is none")
        return python_info(path)

    with pytest.raises(ScriptError, match=r'requires Python ">=3\.19", but only [^"]*3\.12\.1[^"]* was found'):
        chosen(project, ask=seen)


@pytest.mark.parametrize("specifier", ["==3.10.*", "<3.11", "==2.7.*", "~=3.9.2"])
def test_script_that_requires_too_old_python_is_rejected(project: Path, specifier: str) -> None:
    script(project).write_text(f'# /// script\n# requires-python = "{specifier}"\n# ///\n')
    with pytest.raises(ScriptError) as caught:
        chosen(project)
    asks = f"The inline metadata of {script(project)} requires Python"
    assert str(caught.value) == f'{asks} "{specifier}", but 3.11 or later is required'


def test_interpreter_round_trips_through_json_of_another_release(project: Path) -> None:
    script(project).write_text(BLOCK)
    found = chosen(project)
    data = json.loads(json.dumps(found.describe())) | {"later": 1}
    assert Interpreter.from_json(data) == found


def test_credentials_of_package_indexes_are_not_saved(project: Path) -> None:
    block = """# /// script
# [tool.uv]
# index-url = "https://me:hush-hush@i.example/simple"
# find-links = ["https://me:hush-hush@l.example/"]
# ///
"""
    script(project).write_text(block)
    found = chosen(project)
    assert "hush-hush" in str(found.describe()) and "hush-hush" not in str(found)
    written = str(PoolSpec(name="p", provider=Local(), interpreter=found).describe())
    assert "hush-hush" not in written and "i.example" in written
    script(project).write_text(block.replace("me:hush-hush@", ""))
    assert chosen(project).path == found.path


OTHER = Interpreter("/p/bin/python", "/p", "3.99.1", ".venv of project p")


@pytest.mark.parametrize(
    ("task", "pool", "here", "why"),
    [
        (None, None, True, ""),
        (own_interpreter(), own_interpreter(), True, ""),
        (OTHER, None, True, ""),
        (None, OTHER, False, "bytecode"),
        (OTHER, own_interpreter(), False, "bytecode"),
        (own_interpreter(), OTHER, True, "bytecode"),
        (Interpreter("/q/bin/python", "/q", "3.99.2", "VIRTUAL_ENV"), OTHER, False, ""),
        (Interpreter("/q/bin/python", "/q", "3.99.2", "VIRTUAL_ENV"), OTHER, True, "has other packages"),
        (Interpreter("/q/bin/python", "/q", "3.99.2", OWN_SOURCE, chosen=False), OTHER, True, ""),
        (
            None,
            Interpreter("/q/bin/python", "/q", "3.99.2", OWN_SOURCE, chosen=False),
            True,
            "3.99.2 at /q/bin/python (of the program that created the pool)",
        ),
    ],
)
def test_incompatible_interpreters_of_task_and_pool_are_explained(
    task: Interpreter | None, pool: Interpreter | None, here: bool, why: str
) -> None:
    message = incompatibility(task, pool, here=here)
    assert why in message and bool(message) == bool(why)


def test_plan_on_a_pool_of_another_python_is_rejected(project: Path) -> None:
    minor = ".".join(another_python().version.split(".")[:2])
    block = f'# /// script\n# requires-python = "=={minor}.*"\n# ///\n'
    script(project).write_text(block + "import skyward_core as sky\n@sky.function\ndef f(): ...\n")
    plan = make_plan(LaunchRequest(script=str(script(project)), pool="p"))
    of_ours, of_its_own, older = (
        PoolView("p", "ssh", spec=spec)
        for spec in ({"interpreter": own_interpreter().describe()}, {"interpreter": plan.interpreter.describe()}, {})
    )
    with pytest.raises(UsageError, match=r"^f cannot run in pool p: .* needs the same Python version") as caught:
        plan.on_pool(of_ours)
    assert caught.value.field == "python" and not Path(plan.interpreter.prefix).exists()
    assert plan.on_pool(of_its_own).pool is of_its_own and plan.on_pool(older).pool is older


def test_hanging_interpreter_is_named_and_killed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_subprocess, "DEFAULT_TIMEOUT", 2)
    children = hanging_python(project / ".venv")
    for _ in range(4):  # who asks again is not kept waiting again
        with pytest.raises(ScriptError, match=r"bin/python \(\.venv .*did not print its version within 2 s. "):
            choose_interpreter(script(project), ask=query_python)
    wait_until(lambda: all_ended(children))  # who is killed takes a moment to end
    assert children.read_text().count("\n") == 1
    program = project / ".venv" / "bin" / "python"
    program.unlink()
    program.symlink_to(sys.executable)  # another program is asked anew
    monkeypatch.setattr(bounded_subprocess, "DEFAULT_TIMEOUT", 60)
    assert choose_interpreter(script(project), ask=query_python).path == str(program)


def test_pythons_in_the_working_folder_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The form lists other interpreters and runs each to get its version, without a request of the user."""
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, tmp_path / "bin"):
        folder.mkdir(exist_ok=True)
        program = folder / "python3.20"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    away = {"HOME": str(tmp_path / "none")}
    assert list(script_interpreter_and_environment.find_other_pythons({"PATH": ".::bin", **away})) == []
    assert list(script_interpreter_and_environment.find_other_pythons({"PATH": f".:{tmp_path}/bin", **away})) == [
        f"{tmp_path}/bin/python3.20"
    ]


def test_python_version_is_read_from_files_without_running_it(project: Path) -> None:
    for known in (another_python(), query_python(sys.executable)):
        assert read_python(known.path) == known
    venv = environment(project / ".venv")
    assert read_python(f"{venv}/bin/python").version.startswith("{}.{}".format(*sys.version_info))


@pytest.mark.parametrize(
    ("config", "link", "version"),
    [
        ("version = 3.12.4", "", "3.12.4"),
        ("version_info = 3.13.1.final.0\nimplementation = CPython", "", "3.13.1"),
        ("version = 3.12.4", "/nowhere/3/bin/python3.13", "3.13"),  # the link leads to another Python since
        ("", "/nowhere/cpython-3.13.2-linux-x86_64-gnu/bin/python3.13", "3.13.2"),
        ("version = a\n\0\nhome", "", ""),
    ],
)
def test_environment_version_is_read_from_pyvenv_cfg_or_link(
    tmp_path: Path, config: str, link: str, version: str
) -> None:
    (tmp_path / "e" / "bin").mkdir(parents=True)
    (tmp_path / "e" / "pyvenv.cfg").write_text(config)
    real = tmp_path / link.lstrip("/") if link else tmp_path / "e" / "bin" / "python"
    real.parent.mkdir(parents=True, exist_ok=True)
    program(real, "never run")
    if link:
        (tmp_path / "e" / "bin" / "python").symlink_to(real)
    found = read_python(f"{tmp_path}/e/bin/python")
    assert (found.version, found.prefix) == (version, f"{tmp_path}/e")


@pytest.mark.parametrize(
    ("config", "why"),
    [("version = 3.9.1", "it is Python 3.9.1, but 3.11"), ("implementation = PyPy", "it is pypy, but CPython")],
)
def test_unusable_interpreter_is_recognized_from_files(tmp_path: Path, config: str, why: str) -> None:
    venv = environment(tmp_path / "e")
    (venv / "bin" / "python").unlink()
    program(venv / "bin" / "python", "never run")
    (venv / "pyvenv.cfg").write_text(config)
    with pytest.raises(UnusablePython, match=why):
        read_python(f"{venv}/bin/python")


def test_missing_modules_are_found_by_files_of_the_environment(tmp_path: Path) -> None:
    site = tmp_path / "e" / "lib" / "python3.12" / "site-packages"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "__init__.py").touch()
    (site / "jax.py").touch()
    (tmp_path / "own" / "keras").mkdir(parents=True)
    (site / "own.pth").write_text(f"import os; os._exit(9)\n{tmp_path}/own\n/nowhere\n")
    names = ["torch", "jax", "keras", "numpy"]
    found = Interpreter(str(tmp_path / "e/bin/python"), str(tmp_path / "e"), "3.12.1", "--python")
    assert find_missing_modules(found, names) == ["numpy"]
    elsewhere = Interpreter(str(tmp_path / "bin/python"), str(tmp_path / "none"), "", "--python")
    assert find_missing_modules(elsewhere, names) == [], "nothing is known of it"


@pytest.mark.parametrize(
    ("version", "specifier", "fits"),
    [("3.12", "==3.12.4", True), ("3.12", ">=3.13", False), ("", ">=3.13", True), ("3.12", "!=3.12.*", False)],
)
def test_partial_python_version_matches_if_some_release_does(version: str, specifier: str, fits: bool) -> None:
    assert satisfies(version, specifier) is fits


# The import path that ranks get.


LIBRARY = str(Path(os.__file__).parent)


@pytest.fixture(autouse=True)
def no_script_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_path, "_script_folders", [])


def test_import_path_is_split_at_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/mine", LIBRARY, "/site"])
    assert import_path.import_path_entries() == (["", "/mine"], [LIBRARY, "/site"])


def test_script_folders_precede_sys_path_newest_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", ["/mine", LIBRARY])
    for folder in ("a", "b", "a"):
        import_path.add_script_folder(tmp_path / folder / "script.py")
    assert import_path.import_path_entries() == ([str(tmp_path / "a"), str(tmp_path / "b"), "/mine"], [LIBRARY])
    assert sys.path == ["/mine", LIBRARY]


def test_folder_of_the_command_is_not_a_script_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path / "bin"), "/of-pythonpath", LIBRARY])
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "skyward-tui")])
    assert import_path.import_path_entries() == ([str(tmp_path / "bin"), "/of-pythonpath"], [LIBRARY])
    import_path.add_script_folder(tmp_path / "script.py")
    assert import_path.import_path_entries() == ([str(tmp_path), "/of-pythonpath"], [LIBRARY])
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "own.py")])  # a program that has its modules there
    assert import_path.import_path_entries()[0] == [str(tmp_path), str(tmp_path / "bin"), "/of-pythonpath"]
