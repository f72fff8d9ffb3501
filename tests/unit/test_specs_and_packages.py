"""Validation of pool specifications, and packages of a project: requirements, locks, local folders."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.model.errors import SpecError
from skyward_core.model.specs import Image, Options, PipIndex, PoolSpec, Worker, generate_pool_name
from skyward_core.tasks.packages import image_packages_from_file as packages
from skyward_core.tasks.packages.lock_file_reading_and_writing import format_lock
from skyward_core.tasks.packages.package_specs_and_local_packages import (
    LocalPackage,
    find_local_packages,
    packages_to_send,
)


class Provider:
    name = "local"


def spec(**more: Any) -> PoolSpec:
    given: dict[str, Any] = {"name": "fit", "provider": Provider()} | more
    return PoolSpec(**given)


@pytest.mark.parametrize("name", ["a", "7", "llama-ft", "a--b", "x" * 48, "a-1"])
def test_valid_pool_name_is_accepted(name: str) -> None:
    assert spec(name=name).name == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a b", "x" * 49, "../up", "é", "a\n", "a/b", "a.b"])
def test_invalid_pool_name_is_rejected(name: str) -> None:
    with pytest.raises(SpecError, match="is not a pool name: use 1 to 48 lower-case letters"):
        spec(name=name)
    if name:
        with pytest.raises(sky.UsageError, match="not a pool name"):
            sky.Compute(nodes=1, name=name)


def test_generated_pool_names_are_valid_and_unique() -> None:
    for script in ("train.py", "/x/My Script_2.py", "-", "", "é.py", "x" * 99 + ".py"):
        assert spec(name=generate_pool_name(script))
    assert generate_pool_name("train.py").startswith("train-")
    assert generate_pool_name("") != generate_pool_name("")


def test_default_pool_name_is_derived_from_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    for argv, begins in ((["/x/My Script_2.py"], "my-script-2-"), ([], "pool-")):
        monkeypatch.setattr("sys.argv", argv)
        assert sky.Compute(provider=sky.Local()).spec.name.startswith(begins)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [(4, 4), (sky.Nodes(min=2, max=8), sky.Nodes(min=2, max=8)), ("2:8", sky.Nodes(min=2, max=8)), ("3:3", 3)],
)
def test_node_count_or_range_is_accepted(nodes: Any, expected: Any) -> None:
    asked = spec(nodes=nodes)
    assert asked.nodes == expected
    assert (asked.least_nodes, asked.most_nodes) == ((2, 8) if nodes not in (4, "3:3") else (expected, expected))
    assert (asked.describe()["nodes"], asked.world_size) == (asked.most_nodes, asked.most_nodes)
    assert sky.Compute(provider=sky.Local(), nodes=nodes).spec.nodes == expected
    with pytest.raises(SpecError, match="must have the same number of nodes"):
        sky.Compute(sky.Spec(provider=sky.Local(), nodes=nodes), nodes="5:6")


@pytest.mark.parametrize(
    ("least", "most", "field"), [(3, 2, "max"), (0, 2, "min"), (True, 2, "min"), (1, 1025, "max"), (1, 2.5, "max")]
)
def test_invalid_node_range_is_rejected(least: Any, most: Any, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        sky.Nodes(min=least, max=most)
    assert caught.value.field == field
    with pytest.raises(SpecError, match='or a range of them such as "2:8"') as caught:
        spec(nodes=f"{least}:{most}")
    assert caught.value.field == "nodes"


@pytest.mark.parametrize("nodes", [0, -1, 1025, 1.5, "many", "4", "2:", ":2", "2:3:4", "-1:2", True, None])
def test_invalid_node_count_is_rejected(nodes: Any) -> None:
    with pytest.raises(SpecError, match="nodes") as caught:
        spec(nodes=nodes)
    assert caught.value.field == "nodes"


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Worker, {"concurrency": 0}), (Worker, {"executor": "fiber"}), (Worker, {"ranks_per_node": 0}),
        (Worker, {"ranks_per_node": 65}), (Worker, {"ranks_per_node": "tpu"}), (Options, {"grace": -1}),
        (Options, {"grace": float("nan")}), (Options, {"idle_timeout": 0}), (Options, {"ttl": 0}),
        (Options, {"start_timeout": 0}), (Options, {"on_loss": "panic"}), (Options, {"start_timeout": "soon"}),
        (Options, {"grace": True}), (Options, {"console": "yes"}), (Options, {"debug_wait": -1}),
        (Options, {"nice": 20}), (Image, {"python": 3.12}), (Image, {"setup": 1}), (Image, {"apt": ["git", 7]}),
        (Image, {"pip_indexes": [{"url": "https://example.org"}]}), (Image, {"env": [("A", "1")]}),
        (Image, {"includes": ["/etc/hosts"]}), (Image, {"includes": ["data", "../secrets"]}),
        (Image, {"includes": ["a**b"]}), (Image, {"excludes": ["/build"]}), (PipIndex, {"url": None}),
        (Image, {"pip": "torch"}), (Image, {"env": {"A": 1}}), (Image, {"env": {"COMPUTE_POOL": "mine"}}),
    ],
)  # fmt: skip
def test_invalid_spec_value_is_rejected_by_field_name(kind: Any, values: dict[str, Any]) -> None:
    given = {"url": "https://example.org"} | values if kind is PipIndex else values
    with pytest.raises(sky.UsageError, match=f"^{next(iter(values))}: ") as caught:
        kind(**given)
    assert isinstance(caught.value, SpecError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_spec_error_states_the_expected_value() -> None:
    with pytest.raises(SpecError, match=r"^grace: should be a number of seconds, 0 to 3600 \(got -1\)$"):
        Options(grace=-1)
    with pytest.raises(SpecError, match=r"^pip: should be a list \(got str\)$"):
        Image(pip="torch")
    with pytest.raises(SpecError, match=r"^includes: '/etc/hosts' leads out of the working folder, but only files"):
        Image(includes=["/etc/hosts"])
    assert Image(includes=["./data/", "..x", "**"], excludes=["*.bin"]).includes == ("data/", "..x", "**")
    with pytest.raises(SpecError, match=r"^ranks_per_node: should be 'gpu', or should be a whole number"):
        Worker(ranks_per_node=65)
    with pytest.raises(TypeError, match="colour"):
        Options(colour="red")  # type: ignore[call-arg]


def test_spec_error_quotes_no_environment_value() -> None:
    with pytest.raises(SpecError, match=r"'TOKEN' is of bytes") as caught:
        Image(env={"TOKEN": b"hunter2"})  # type: ignore[dict-item]
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(Image(env={"TOKEN": "hunter2"}))


def test_spec_stores_lists_as_tuples_and_converts_numbers() -> None:
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    assert Image(pip=["torch"], excludes=(g for g in ("*.bin",))) == Image(  # type: ignore[arg-type]
        pip=("torch",), excludes=("*.bin",)
    )
    assert json.dumps(spec(nodes=np.int64(4)).describe()["nodes"]) == "4"
    assert json.dumps(Options(grace=np.float32(2)).grace) == "2.0"
    assert Image(workdir=Path("jobs")).workdir == "jobs"
    given = {"A": "1"}
    image = Image(env=given)
    given["A"] = "2"
    assert image.env == {"A": "1"}


def test_replaced_spec_is_validated() -> None:
    assert replace(Options(), grace=1).grace == 1.0
    with pytest.raises(SpecError, match="grace"):
        replace(Options(), grace=-1)


def test_world_size_is_nodes_times_ranks_per_node() -> None:
    asked = spec(nodes=3, worker=Worker(ranks_per_node=4))
    assert (asked.ranks_per_node, asked.world_size) == (4, 12)
    assert spec(nodes=3, worker=Worker(ranks_per_node="gpu")).ranks_per_node == 1


def test_described_spec_is_json_without_environment_values() -> None:
    asked = spec(nodes=2, image=Image(pip=("numpy",), env={"TOKEN": "hunter2"}), plugins=(sky.plugins.torch(),))
    written = json.loads(json.dumps(asked.describe()))
    assert "hunter2" not in str(written)
    assert (written["name"], written["provider"], written["nodes"]) == ("fit", "local", 2)
    assert written["plugins"] == ["torch"]
    assert written["image"]["pip"] == ["numpy"]
    assert Options.from_json(written["options"]) == asked.options
    assert Options.from_json(written["options"] | {"of_a_later_release": 1}) == asked.options
    assert Worker(**written["worker"]) == asked.worker


# What projects say of their packages, as installers are told it; what cannot be honoured is refused in words.

SHA = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
CPU = 'source = { registry = "https://cpu" }'
PYPI = 'source = { registry = "https://pypi.org/simple" }'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / "scripts").mkdir()
    return folder


def image_packages(project: Path, version: str = "3.11.7", /, **image: Any) -> dict[str, Any]:
    found = packages.read_image_packages(Image(**image), str(project / "scripts"), version)
    assert found is not None
    return found.add_to_image({})


def image_error(project: Path, /, **image: Any) -> str:
    with pytest.raises(SpecError) as caught:
        image_packages(project, **image)
    (field,) = image
    assert caught.value.field == field
    return caught.value.reason


def package(folder: Path) -> str:
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").touch()
    return str(folder)


def test_requirements_file_is_read_with_its_includes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDEX_TOKEN", "hush")
    mylib = package(project.parent / "my lib")
    (project / "requirements.txt").write_text(
        "\ufeff# all of it\n-r more/base.txt\n-c limits.txt  # not too new\n--extra-index-url=https://me:${INDEX_TOKEN}@i\n"
        "-i https://first -f wheels\ntorch[a, b] >=2,\\\n  <3 ; python_version > '3.8'\n-e '../my lib'\n"
        "own @ https://example.org/own.whl#egg=x\n"
    )
    (project / "more").mkdir()
    (project / "more" / "base.txt").write_text("rich\n-r ../requirements.txt\n")
    (project / "limits.txt").write_text("numpy<2\n")
    assert image_packages(project, requirements="requirements.txt") == {
        "pip": ["rich", "torch[a, b] >=2,   <3 ; python_version > '3.8'", "own @ https://example.org/own.whl#egg=x"],
        "constraints": ["numpy<2"],
        "pip_indexes": [{"url": "https://me:hush@i", "packages": []}],
        "index": "https://first",
        "find_links": [f"file://{project.resolve()}/wheels"],
        "folders": [[mylib, mylib]],
    }
    (project / "requirements.txt").write_text(f"a==1 --hash={SHA} \\\n  --hash={OTHER}\n--require-hashes\n")
    pinned = [{"index": "", "lines": [f"a==1 --hash={SHA} --hash={OTHER}"]}]
    assert image_packages(project, requirements="requirements.txt") == {"pinned": pinned}


def test_dependencies_of_local_packages_are_included(project: Path) -> None:
    """As with pip, which builds local packages, a dependency that is a local package is not searched in an index."""
    data, lib, old = (Path(package(project.parent / name)) for name in ("data", "lib", "old"))
    (lib / "pyproject.toml").write_text(
        '[project]\nname = "My.Lib"\ndependencies = ["tqdm", "data-set[all]>1"]\n[project.optional-dependencies]\n'
        'Train = ["my-lib[more]"]\nmore = ["rich"]\nnever = ["no"]\n'
        '[tool.uv.sources]\ndata_set = { path = "../data" }\n'
    )
    (data / "pyproject.toml").write_text(
        '[project]\nname = "data-set"\ndynamic = ["dependencies"]\noptional-dependencies = { all = ["numpy"] }\n'
        '[tool.setuptools.dynamic]\ndependencies = { file = ["needs.txt"] }\n'
    )
    (data / "needs.txt").write_text("# of all\npandas>2  # new\n-e .\n")
    (old / "setup.cfg").write_text("[options]\ninstall_requires =\n  attrs\n  # no more\n")
    (old / "setup.py").write_text('from setuptools import setup\nsetup(name="old", version=f"{1}")\n')
    (project / "requirements.txt").write_text("-e ../lib[train]\nmy_lib\ntorch\nold @ file:../old\nold>=1\n")
    found = image_packages(project, requirements="requirements.txt")
    assert found["pip"] == ["torch", "tqdm", "attrs", "pandas>2", "numpy", "rich"]
    assert {folder for folder, _ in found["folders"]} == {str(lib), str(old), str(data)}
    (project / "pyproject.toml").write_text(
        '[project]\nname = "train"\ndependencies = ["my-lib", "torch"]\n'
        '[tool.uv.sources]\nmy-lib = { path = "../lib" }\n'
    )
    assert image_packages(project, project=True) == {
        "pip": ["torch", "tqdm", "pandas>2", "numpy"],
        "folders": [[str(lib)] * 2, [str(data)] * 2],
    }
    # A file with hashes has all that is needed in it, and nothing else can be installed beside that.
    (project / "requirements.txt").write_text(f"-e ../lib\na==1 --hash={SHA}\n")
    assert "pip" not in image_packages(project, requirements="requirements.txt")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('dependencies = ["-r x"]', "'-r x' is not a requirement"),
        ('dependencies = ["x"]\n[tool.uv.sources]\nx = { git = "https://g" }', "whose source is not supported"),
        ('dependencies = ["x @ file:///no/such"]', "whose source is not supported"),
        ('dynamic = ["dependencies"]\n[tool.setuptools.dynamic]\ndependencies = { file = "gone" }', "gone"),
        ("dependencies = [", "is not TOML"),
        ("", "has no extra train"),
    ],
)
def test_invalid_metadata_of_a_local_package_is_rejected(project: Path, text: str, why: str) -> None:
    (Path(package(project.parent / "lib")) / "pyproject.toml").write_text(f'[project]\nname = "lib"\n{text}\n')
    (project / "requirements.txt").write_text("-e ../lib\n" if text else "-e ../lib[train]\n")
    assert why in image_error(project, requirements="requirements.txt")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("rich\n--pre\n", r"requirements\.txt, line 2: --pre is not supported; supported: -r, -c, -e"),
        ("-r https://x/y.txt", "https://x/y.txt cannot be included"),
        ("-r gone.txt", r"gone\.txt cannot be read: No such file"),
        ("-e git+https://x/y#egg=y", "is not a folder. Write NAME @ git"),
        ("git+https://x/y", r"git\+https://x/y lacks the package's name"),
        ("./made.whl", r"\./made\.whl does not exist"),
        ("./limits.txt", r"is a file of this machine"),
        ("-e scripts", "has neither pyproject.toml nor setup.py"),
        (f"a==1 --hash={SHA}\nb==2", "line 2: b==2 has no --hash, but other lines have one"),
        (f"a>1 --hash={SHA}", "a>1 does not name an exact version"),
        ("a --config-settings=x=y", "--config-settings is not supported"),
        ("-c", "argument -c/--constraint: expected one argument"),
        ("a 'b", 'line 1: "a \'b" does not exist|does not exist'),
        (b"\xff\xfe", "not UTF-8 text"),
    ],
)
def test_unsupported_requirement_lines_are_rejected(project: Path, text: str | bytes, why: str) -> None:
    (project / "limits.txt").touch()
    (project / "requirements.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert re.search(why, image_error(project, requirements="requirements.txt"))


def _locked(name: str, version: str, source: str, more: str = "", file: str = "") -> str:
    file = file or f"https://x/{name}-{version.replace('+', '%2B')}-py3-none-any.whl"
    wheels = f'wheels = [{{ url = "{file}", hash = "{SHA}" }}]\n'
    return f'[[package]]\nname = "{name}"\nversion = "{version}"\n{source}\n{wheels}{more}'


COMMIT = "01" * 20
CPU_NEEDS = """dependencies = [{ name = "sympy" }, { name = "nvidia", marker = "platform_machine == 'x86_64'" }]"""
UV_LOCK = f"""version = 1
requires-python = ">=3.11"
[[package]]
name = "train"
version = "0.1"
source = {{ editable = "." }}
dependencies = [
  {{ name = "torch", version = "2.4.0", {PYPI}, marker = "sys_platform == 'darwin'" }},
  {{ name = "torch", version = "2.4.0+cpu", {CPU}, marker = "sys_platform != 'darwin'" }},
  {{ name = "jax", extra = ["cuda"] }}, {{ name = "mylib" }}, {{ name = "direct" }}, {{ name = "git" }},
]
[package.optional-dependencies]
docs = [{{ name = "unwanted" }}]
[package.dev-dependencies]
dev = [{{ name = "unwanted" }}]
{_locked("torch", "2.4.0", PYPI, 'dependencies = [{ name = "sympy" }]')}
{_locked("torch", "2.4.0+cpu", CPU, CPU_NEEDS)}
{_locked("sympy", "1", PYPI, f'sdist = {{ url = "https://x/sympy-1.tar.gz", hash = "{OTHER}" }}')}
{_locked("nvidia", "12", PYPI)}
{_locked("jax", "0.6", PYPI, 'dependencies = [{ name = "loop" }]')}
[package.optional-dependencies]
cuda = [{{ name = "nvidia" , marker = "sys_platform == 'linux'" }}]
{_locked("loop", "1", PYPI, 'dependencies = [{ name = "jax" }]')}
{_locked("direct", "1", 'source = { url = "https://x/direct-1-py3-none-any.whl" }')}
{_locked("unwanted", "1", PYPI)}
[[package]]
name = "mylib"
version = "1"
source = {{ directory = "../mylib" }}
[[package]]
name = "git"
version = "1"
source = {{ git = "https://host/git?subdirectory=sub&rev=main#{COMMIT}" }}
"""


@pytest.fixture
def uv_project(project: Path) -> Path:
    """Project with uv's lock, and a ``.venv`` whose interpreter must not run."""
    if shutil.which("uv") is None:
        pytest.skip("uv is not installed here")
    package(project.parent / "mylib")
    (project / "pyproject.toml").write_text('[project]\nname = "train"\nversion = "0.1"\nrequires-python = ">=3.11"\n')
    (project / "uv.lock").write_text(UV_LOCK)
    python = project / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\ntouch {project}/was-run\n")
    python.chmod(0o755)
    (project / ".venv" / "pyvenv.cfg").touch()
    return project


def test_uv_lock_gives_pinned_packages_by_index(uv_project: Path) -> None:
    mylib = uv_project.parent / "mylib"
    (mylib / "src").mkdir()
    found = image_packages(uv_project, lock="uv.lock")
    groups = {each["index"]: each["lines"] for each in found["pinned"]}
    nvidia = (
        '(platform_machine == "x86_64" and sys_platform != "darwin" and sys_platform != "linux") '
        'or sys_platform == "linux"'
    )
    assert groups == {
        "": [
            f"direct @ https://x/direct-1-py3-none-any.whl --hash={SHA}",
            f"git @ git+https://host/git@{COMMIT}#subdirectory=sub",
            f"jax==0.6 --hash={SHA}",
            f"loop==1 --hash={SHA}",
            f"nvidia==12 ; {nvidia} --hash={SHA}",
            f"sympy==1 --hash={SHA} --hash={OTHER}",
            f'torch==2.4.0 ; sys_platform == "darwin" --hash={SHA}',
        ],
        "https://cpu/": [f'torch==2.4.0+cpu ; sys_platform != "darwin" --hash={SHA}'],
    }
    assert found["folders"] == [[str(mylib), f"{mylib}/src"], [str(uv_project)] * 2]
    assert "requires Python >=3.11, but the script is loaded with 3.10.1" in _reason(
        uv_project, "3.10.1", lock="uv.lock"
    )
    assert not (uv_project / "was-run").exists()


def test_uv_lock_of_a_script_or_workspace_is_read(uv_project: Path) -> None:
    (uv_project / "train.py").write_text("# /// script\n# dependencies = ['rich']\n# ///\n")
    (uv_project / "train.py.lock").write_text(
        'version = 1\nrequires-python = ">=3.11"\n[manifest]\nrequirements = [{ name = "rich" }]\n'
        + _locked("rich", "14.0", PYPI)
    )
    assert image_packages(uv_project, lock="train.py.lock") == {
        "pinned": [{"index": "", "lines": [f"rich==14.0 --hash={SHA}"]}]
    }
    (uv_project / "pyproject.toml").write_text('[tool.uv.workspace]\nmembers = ["member"]\n')
    package(uv_project / "member")
    (uv_project / "member" / "pyproject.toml").write_text('[project]\nname = "member"\nversion = "1"\n')
    (uv_project / "uv.lock").write_text(
        'version = 1\nrequires-python = ">=3.11"\n[manifest]\nmembers = ["member"]\n[[package]]\nname = "member"\n'
        'version = "1"\nsource = { virtual = "member" }\ndependencies = [{ name = "rich" }]\n'
        + _locked("rich", "14.0", PYPI)
    )
    assert image_packages(uv_project, lock="uv.lock")["pinned"] == [
        {"index": "", "lines": [f"rich==14.0 --hash={SHA}"]}
    ]


def test_uv_lock_without_installed_uv_is_rejected(uv_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "bin")
    monkeypatch.setattr("sys.executable", str(uv_project / "python"))
    assert "cannot be read: uv is not installed. Install it" in image_error(uv_project, lock="uv.lock")


def _reason(project: Path, version: str, /, **image: Any) -> str:
    with pytest.raises(SpecError) as caught:
        image_packages(project, version, **image)
    return caught.value.reason


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("version = 1\n", "version = 9\n", "uv rejected .*version"),
        ("version = 1\n", "version = \n", "uv rejected .*TOML"),
        ('name = "loop"\nversion', 'name = "lop"\nversion', "uv rejected .*loop"),
        ('registry = "https://cpu"', 'registry = "../wheels"', "torch comes from .*wheels.*, on this machine"),
        (
            'url = "https://x/direct-1-py3-none-any.whl" }\nwheels',
            'path = "d.whl" }\nwheels',
            "uv rejected|on this machine",
        ),
        ('version = "0.6"', 'version = "0.6\\n-i https://evil"', "uv rejected"),
        ("../mylib", "../gone", "package mylib: .*gone is not a folder"),
    ],
)
def test_unsupported_uv_lock_is_rejected(uv_project: Path, before: str, after: str, why: str) -> None:
    (uv_project / "uv.lock").write_text(UV_LOCK.replace(before, after))
    assert re.search(why, image_error(uv_project, lock="uv.lock"))


def test_pylock_toml_is_read(project: Path) -> None:
    mylib = package(project / "mylib")
    head = 'lock-version = "1.0"\ncreated-by = "me"\n[[packages]]\nname = "a"\nversion = "1"\n'
    hashes = f'hashes = {{ sha256 = "{"a" * 64}" }}'
    (project / "pylock.toml").write_text(
        head + f'marker = "os_name == \'posix\'"\nindex = "https://i"\n'
        f'wheels = [{{ url = "https://x/a-1-py3-none-any.whl", {hashes} }}]\n'
        '[[packages]]\nname = "b"\n[packages.vcs]\ntype = "git"\nurl = "https://g"\ncommit-id = "01"\n'
        f'[[packages]]\nname = "c"\n[packages.archive]\nurl = "https://c"\nhashes = {{ sha256 = "{"b" * 64}" }}\n'
        '[[packages]]\nname = "mylib"\n[packages.directory]\npath = "mylib"\n'
    )
    assert image_packages(project, lock="pylock.toml") == {
        "pinned": [
            {"index": "", "lines": ["b @ git+https://g@01", f"c @ https://c --hash={OTHER}"]},
            {"index": "https://i", "lines": [f'a==1 ; os_name == "posix" --hash={SHA}']},
        ],
        "folders": [[mylib, mylib]],
    }
    wheel = 'wheels = [{ url = "https://x/a-1-py3-none-any.whl", '
    for more, why in (
        (f"marker = \"'x' in extras\"\n{wheel}{hashes} }}]", "for some extras or groups only"),
        (f'wheels = [{{ path = "a-1-py3-none-any.whl", {hashes} }}]', "comes from a-1-py3-none-any.whl, on this"),
        ('vcs = { type = "hg", url = "https://h", commit-id = "1" }', "comes from hg; only git is supported"),
        ("wheels = 3", "is not a lock of version 1: Unexpected type"),
    ):
        (project / "pylock.toml").write_text(head + more)
        assert why in image_error(project, lock="pylock.toml")
    (project / "pylock.toml").write_text('lock-version = "2.0"\ncreated-by = "me"\npackages = []\n')
    assert "version 2.0 is not supported" in image_error(project, lock="pylock.toml")


def test_pyproject_dependencies_are_read(project: Path) -> None:
    mylib = package(project.parent / "mylib")
    head = '[project]\nname = "train"\nrequires-python = ">=3.11"\n'
    (project / "pyproject.toml").write_text(
        head + 'dependencies = ["torch", "My_Lib", "rich>1"]\n[build-system]\nrequires = []\n[tool.uv]\n'
        'dev-dependencies = ["pytest"]\nconstraint-dependencies = ["numpy<2"]\n[[tool.uv.index]]\nname = "cpu"\n'
        'url = "https://cpu"\nexplicit = true\n'
        '[tool.uv.sources]\ntorch = { index = "cpu" }\nmy-lib = { path = "../mylib", editable = true }\n'
    )
    assert image_packages(project, project=True) == {
        "pip": ["torch", "rich>1"],
        "pip_indexes": [{"url": "https://cpu", "packages": ["torch"]}],
        "constraints": ["numpy<2"],
        "folders": [[str(project.resolve())] * 2, [mylib, mylib]],
    }
    for text, why in (
        ("[tool.poetry]", "has no [project] table"),
        ('[project]\ndynamic = ["dependencies"]', "its dependencies are dynamic"),
        (head + 'dependencies = "torch"', "dependencies must be a list of texts"),
        (head + '[tool.uv]\nprerelease = "allow"', "[tool.uv] prerelease is not supported"),
        (head + "[tool.uv.sources]\nx = { workspace = true }", "only uv.lock has its location"),
        (head + '[tool.uv.sources]\nx = { git = "https://g" }', "only { index = ... } is supported"),
        (head.replace("3.11", "3.14"), "requires Python >=3.14"),
    ):
        (project / "pyproject.toml").write_text(text)
        assert why in image_error(project, project=True)


def test_conflicting_or_missing_package_files_are_rejected(project: Path) -> None:
    with pytest.raises(SpecError, match="lock and project cannot be combined") as caught:
        Image(lock="uv.lock", project=True)
    assert caught.value.field == "lock"
    for image in ({"lock": "uv.lock"}, {"requirements": "no/such"}, {"project": True}):
        assert "does not exist" in image_error(project, **image)
    assert image_error(project, lock="/no/such") == "file /no/such does not exist"
    (project.parent / "above.txt").touch()  # of no project
    assert "file above.txt does not exist" in image_error(project, requirements="above.txt")
    (project / "free.lock").write_text("a>=1\n")
    assert "does not name an exact version, which a lock needs" in image_error(project, lock="free.lock")


def test_lock_of_installed_packages_can_be_used_as_image_lock(project: Path) -> None:
    image = {
        "pip": ["c @ https://me:token@x/c.whl", "rich"],
        "pip_indexes": [{"url": "https://me:token@i", "packages": []}, {"url": "https://s", "packages": ["b"]}],
        "pinned": [{"index": "https://cpu", "lines": [f"A_a==1 ; os_name == 'posix' --hash={SHA}", "b==2"]}],
    }
    text = format_lock(image, {"a-a": "1", "b": "3", "c": "", "d": "", "rich": "13.0"}, "of pool p")
    assert text.splitlines() == [
        "# of pool p",
        "--extra-index-url https://i",
        "--extra-index-url https://cpu",
        "# b: from a restricted index; pass Image(pip_indexes=...) again",
        f"a-a==1 --hash={SHA}",
        "b==3",
        "c @ https://x/c.whl",
        "# d: from a folder or an address, which is not saved",
        "rich==13.0",
    ]
    (project / "run.lock").write_text(text)
    again = image_packages(project, lock="run.lock")
    assert again["pinned"] == [
        {"index": "", "lines": [f"a-a==1 --hash={SHA}", "b==3", "c @ https://x/c.whl", "rich==13.0"]}
    ]
    assert [each["url"] for each in again["pip_indexes"]] == ["https://i", "https://cpu"]


def installed(prefix: Path, name: str, folder: Path, files: dict[str, str], editable: bool = True) -> None:
    packages = prefix / "lib" / "python3.12" / "site-packages"
    info = packages / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "direct_url.json").write_text(json.dumps({"url": folder.as_uri(), "dir_info": {"editable": editable}}))
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file, text in files.items():
        (packages / file).write_text(text)


def test_editable_local_packages_are_found_once(tmp_path: Path) -> None:
    flat, inner, plain, beside = (tmp_path / name for name in ("flat one", "inner", "plain", "work/beside"))
    for folder in (flat, inner / "src", plain, beside):
        folder.mkdir(parents=True)
    mapping = {"flat": f"{flat}/flat", "flat.sub": "/e", "odd": "/x/even"}
    finder = f"from x import y\nMAPPING: dict[str, str] = {mapping!r}\n"
    installed(tmp_path, "flat", flat, {"__editable___flat_finder.py": finder})
    installed(tmp_path, "inner", inner, {"inner.pth": f"import os\n{inner}/src\n/elsewhere\n"})
    installed(tmp_path, "plain", plain, {}, editable=False)
    installed(tmp_path, "beside", beside, {"beside.pth": "import that\n"})
    (tmp_path / "lib/python3.12/site-packages/broken-1.dist-info").mkdir()
    (tmp_path / "lib/python3.12/site-packages/broken-1.dist-info/direct_url.json").write_text("[]")
    image = {"folders": [[str(plain), f"{plain}/x"], [str(inner), str(inner)]]}
    found = find_local_packages(image, str(tmp_path), "3.12")
    assert found == [
        LocalPackage("beside", str(beside), str(beside)),
        LocalPackage("flat", str(flat), str(flat)),
        LocalPackage("inner", str(inner), f"{inner}/src", True),
        LocalPackage("plain", str(plain), f"{plain}/x", True),
    ]
    assert [each.name for each in packages_to_send(found, str(tmp_path / "work"))] == ["flat", "inner", "plain"]
    assert find_local_packages({}, str(tmp_path), "3.13") == []
