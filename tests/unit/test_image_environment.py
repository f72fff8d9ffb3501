"""Image environments: creation, reuse, repair and installers; real installers without network."""

from __future__ import annotations

import base64
import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import cloudpickle
import pytest

from skyward_core.node.bootstrap import image_environment
from skyward_core.node.bootstrap.installed_packages import is_marker_true
from tests.support.processes import run_command
from tests.support.wheels import tiny_wheels

pytestmark = pytest.mark.slow

NEEDS_UV = pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed here")


@pytest.fixture
def wheels(tmp_path: Path) -> dict[str, str]:
    """Variables that make installers use only a folder with skytiny 1.0 and 2.0."""
    return tiny_wheels(tmp_path / "wheels", "1.0", "2.0")


class Lines(list[str]):
    def __call__(self, line: str) -> None:
        self.append(line)


def ensure(image: dict[str, Any], root: Path, env: dict[str, str]) -> tuple[str, Lines]:
    lines = Lines()
    return image_environment.ensure_environment(image, root, env, "", lines), lines


def version_in(python: str) -> str:
    done = run_command([python, "-I", "-c", "import skytiny; print(skytiny.VERSION)"], check=True)
    return done.stdout.strip()


def without_uv(env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Variables with a PATH that has the system's tools but not uv."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for tool in ("sh", "cat", "echo"):
        (folder / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
    return env | {"PATH": str(folder), "HOME": str(tmp_path)}


@pytest.fixture(autouse=True)
def no_other_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_environment, "EXTRA_PATH", ())


@pytest.mark.parametrize(
    "requirement", ["skytiny", "cloudpickle<1", "cloudpickle @ https://example.org/x.whl", "not a requirement !"]
)
def test_unmet_requirement_of_an_image_is_found(requirement: str) -> None:
    assert image_environment.find_unmet_requirements(sys.executable, [requirement]) == [requirement]


def test_extras_of_a_requirement_are_checked() -> None:
    assert (
        image_environment.find_unmet_requirements(sys.executable, ["pytest-asyncio", "pydantic[no-such-extra]"]) == []
    )
    lacking = image_environment.find_unmet_requirements(sys.executable, ["pydantic", "pytest-asyncio[docs]"])
    assert lacking and all("docs" in text for text in lacking)


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("uv", [pytest.param(True, marks=NEEDS_UV), False], ids=["uv", "venv and pip"])
def test_image_environment_is_created_once_and_reused(tmp_path: Path, wheels: dict[str, str], uv: bool) -> None:
    env = wheels if uv else without_uv(wheels, tmp_path)
    image = {"pip": ["skytiny==1.0"], "setup": ['echo done >> "$HOME_OF_TEST/setup.txt"; echo said by setup']}
    env |= {"HOME_OF_TEST": str(tmp_path)}
    root = tmp_path / "root"
    root.mkdir()
    python, lines = ensure(image, root, env)
    assert Path(python).is_relative_to(root) and version_in(python) == "1.0"
    assert "said by setup" in lines and any("skytiny" in line for line in lines)
    again, text = ensure(image, root, env)
    assert again == python and len(text) == 1
    assert (tmp_path / "setup.txt").read_text() == "done\n"

    # A half-made environment, as a power cut leaves it, is made anew.
    folder = Path(python).parents[1]
    (folder / ".made").unlink()
    (folder / "bin" / "python").unlink()
    assert version_in(ensure(image, root, env)[0]) == "1.0"


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("uv", [pytest.param(True, marks=NEEDS_UV), False], ids=["uv", "venv and pip"])
def test_installer_ignores_modules_and_settings_of_working_folder(
    tmp_path: Path, wheels: dict[str, str], uv: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The project has modules named like standard modules, and its parent folder has uv settings."""
    project = tmp_path / "project"
    project.mkdir()
    for name in ("shutil", "random", "email"):
        (project / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w'); raise SystemExit(3)")
    (tmp_path / "uv.toml").write_text("[pip]\nrequire-hashes = true\n")
    monkeypatch.chdir(project)
    env = wheels if uv else without_uv(wheels, tmp_path)
    root = tmp_path / "root"
    root.mkdir()
    python, _ = ensure({"pip": ["skytiny==1.0"], "setup": ["pwd > here"]}, root, env)
    assert version_in(python) == "1.0" and not (tmp_path / "imported").exists()
    assert (project / "here").read_text().strip() == str(project), "set-up commands are the person's own"


@pytest.mark.proof("1 s of a processor")
def test_environment_with_missing_interpreter_is_created_again(tmp_path: Path, wheels: dict[str, str]) -> None:
    """A system update removed the Python of the environment."""
    image, env = {"pip": ["skytiny==1.0"]}, without_uv(wheels, tmp_path)
    root = tmp_path / "root"
    root.mkdir()
    python, _ = ensure(image, root, env)
    Path(python).unlink()
    Path(python).symlink_to(tmp_path / "gone")
    assert image_environment.find_ready_environment(image, root) == ""
    assert version_in(ensure(image, root, env)[0]) == "1.0"
    assert image_environment.find_ready_environment(image, root) == python


@pytest.mark.proof("1 s of a processor")
def test_reused_interpreter_is_checked_for_its_packages_again(
    tmp_path: Path, wheels: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requested packages were in the client's environment and were removed later."""
    image, env = {"pip": ["skytiny"], "setup": ["echo set up"]}, without_uv(wheels, tmp_path)
    root = tmp_path / "root"
    root.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(image_environment, "find_unmet_requirements", lambda python, requirements: [])
        assert ensure(image, root, env)[0] == sys.executable
    assert image_environment.find_ready_environment(image, root) == ""
    assert version_in(ensure(image, root, env)[0]) == "2.0"


def test_link_in_place_of_an_environment_is_replaced_not_followed(tmp_path: Path) -> None:
    image = {"setup": ["true"]}
    folder = tmp_path / f"env-{image_environment.environment_key(image, sys.executable)}"
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.tex").touch()
    for there in (tmp_path / "theirs", tmp_path / "nowhere"):
        folder.symlink_to(there)
        assert ensure(image, tmp_path, {})[0] == sys.executable
        assert not folder.is_symlink() and (folder / image_environment.MADE_FILE).exists()
        shutil.rmtree(folder)
    folder.touch()
    assert ensure(image, tmp_path, {})[0] == sys.executable
    assert (tmp_path / "theirs" / "thesis.tex").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small disk, which takes root")
def test_full_disk_during_environment_setup_is_reported(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=True)
    try:
        fills = f"head -c 1000000 /dev/zero > {tmp_path}/all; true"
        with pytest.raises(image_environment.EnvironmentFailed, match=rf"^{tmp_path}.*: No space left on device$"):
            ensure({"setup": [fills]}, tmp_path, {})
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


# A uv that notes what it is told: of the environments that it is to make there is only an interpreter.
PRETENDED = (
    f'for a; do last=$a; done; [ "$1" = venv ] && mkdir "$last/bin" && ln -s {sys.executable} "$last/bin/python"\n'
)


def test_package_index_urls_are_not_on_command_lines(tmp_path: Path, wheels: dict[str, str]) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    seen = tmp_path / "seen"
    (tools / "uv").write_text(
        f'#!/bin/sh\n{PRETENDED}echo "$@" >> {seen}\ncat >> {seen}\nenv >> {seen}.env\n'
        'for a; do case $a in *pyproject.toml) cat "$a" >> '
        f"{seen};; esac; done\n"
    )
    (tools / "uv").chmod(0o755)
    url = "https://me:token@pypi.example/simple"
    other = "https://me:secret@other.example/simple"
    image = {"pip": ["skytiny", "other"], "pip_indexes": [{"url": url, "packages": ["skytiny"]}, {"url": other}]}
    ensure(image, tmp_path, {"PATH": f"{tools}:{os.environ['PATH']}"})
    variables = Path(f"{seen}.env").read_text().splitlines()
    assert {"UV_INDEX_IMAGE0_USERNAME=me", "UV_INDEX_IMAGE0_PASSWORD=token", f"UV_INDEX=image1={other}"} <= {*variables}
    assert "token" not in seen.read_text() and "secret" not in seen.read_text()
    assert '"skytiny" = { index = "image0" }' in seen.read_text()


def test_index_settings_of_a_script_reach_the_installer(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "uv").write_text(f'#!/bin/sh\n{PRETENDED}echo "$@" >> {tmp_path}/said\nenv > {tmp_path}/env\n')
    (tools / "uv").chmod(0o755)
    image = {
        "pip": ["skytiny"],
        "alone": True,
        "index": "https://me:token@first.example",
        "find_links": ["file:///a%20b", "https://me:token@links.example"],
        "no_index": True,
    }
    given = {"PATH": f"{tools}:{os.environ['PATH']}", "PIP_FIND_LINKS": "/w", "UV_FIND_LINKS": "/w", "HOME": "/x"}
    python, _ = ensure(image, tmp_path, given)
    assert python != sys.executable
    variables = dict(line.partition("=")[::2] for line in (tmp_path / "env").read_text().splitlines())
    assert variables["PIP_INDEX_URL"] == "https://first.example"
    assert variables["UV_DEFAULT_INDEX"] == "https://me:token@first.example"
    assert variables["PIP_FIND_LINKS"] == "file:///a%20b https://links.example /w"
    assert variables["UV_FIND_LINKS"] == "file:///a%20b,https://me:token@links.example,/w"
    assert variables["PIP_NO_INDEX"] == "1" and "--no-index" in (tmp_path / "said").read_text()
    assert "token" not in (tmp_path / "said").read_text()


def test_isolated_environment_excludes_packages_of_its_interpreter(tmp_path: Path, wheels: dict[str, str]) -> None:
    python, _ = ensure({"pip": [], "alone": True}, tmp_path, wheels)
    assert Path(python).is_relative_to(tmp_path)
    code = "import importlib.util as u; print(u.find_spec('cloudpickle'))"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


BACKEND = """
import os, pathlib, sys, zipfile
def ancestors():
    pid = os.getpid()
    while pid > 1:
        yield f"/proc/{pid}/cmdline"
        pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
def note():
    with open(os.environ["SEEN"], "ab") as seen:
        seen.writelines(pathlib.Path(path).read_bytes() + b"\\n" for path in ancestors())
def build_wheel(folder, settings=None, metadata=None):
    note()
    name = "NAME-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("NAME.py", "")
        for part, text in (
            ("METADATA", "Metadata-Version: 2.1\\nName: NAME\\nVersion: 1.0\\n"),
            ("WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"),
            ("RECORD", ""),
        ):
            wheel.writestr(f"NAME-1.0.dist-info/{part}", text)
    return name
"""


def source_archive(name: str, needs: str) -> bytes:
    """Create a source distribution whose build records the command lines of all its parent processes."""
    project = f'[build-system]\nrequires = [{needs}]\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        files = {"pyproject.toml": project, "backend.py": BACKEND.replace("NAME", name), "PKG-INFO": metadata}
        for path, text in files.items():
            info = tarfile.TarInfo(f"{name}-1.0/{path}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return packed.getvalue()


@pytest.fixture
def private_index() -> Iterator[str]:
    """Address, without credentials, of an index that only the user "me" with the password may read."""
    archives = {"skymade": source_archive("skymade", '"skyneeded"'), "skyneeded": source_archive("skyneeded", "")}
    credentials = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()

    class Index(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = next((name for name in archives if f"/{name}" in self.path), "")
            allowed = self.headers.get("Authorization") == credentials
            self.send_response(401 if not allowed else 200 if name else 404)
            if not allowed:
                self.send_header("WWW-Authenticate", 'Basic realm="private"')
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            if allowed and self.path.endswith(".tar.gz"):
                self.wfile.write(archives[name])
            elif allowed and name:
                self.wfile.write(f'<a href="/files/{name}-1.0.tar.gz">{name}-1.0.tar.gz</a>'.encode())

        def log_message(self, *args: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}/simple"
        server.shutdown()
        thread.join()


PASSWORD = 'hush "hush" \\ hush'


@pytest.mark.proof("2 s of a processor", after=1)
@pytest.mark.parametrize("uv", [pytest.param(True, marks=NEEDS_UV), False])
def test_index_credentials_are_neither_printed_nor_saved(
    tmp_path: Path, private_index: str, uv: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    empty = tmp_path / "empty"
    empty.mkdir()
    address = f"http://me:{quote(PASSWORD)}@{private_index}"
    env = {
        "SEEN": str(tmp_path / "seen"), "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": address,
        "PIP_NO_CACHE_DIR": "1", "UV_NO_CACHE": "1", "UV_DEFAULT_INDEX": address, "UV_NO_CONFIG": "1",
    }  # fmt: skip
    if not uv:
        env = without_uv(env, tmp_path)
    image = {"pip": ["skymade"], "pip_indexes": [{"url": address}], "setup": ['cat "$NETRC" || true']}
    _, lines = ensure(image, tmp_path, env)
    seen = (tmp_path / "seen").read_bytes()
    assert b"install" in seen or uv, "the backends saw the installers above them"
    assert not [line for line in [*lines, repr(seen)] if "hush" in line]
    with pytest.raises(image_environment.EnvironmentFailed, match="skyabsent") as caught:
        ensure(image | {"pip": ["skyabsent"]}, tmp_path, env)
    assert "hush" not in str(caught.value)
    left = [path for path in tmp_path.rglob("*") if path.is_file() and b"hush" in path.read_bytes()]
    assert left == []
    assert image_environment.environment_key(image, "p") == image_environment.environment_key(
        image | {"pip_indexes": [{"url": f"http://{private_index}"}]}, "p"
    )


def test_host_secrets_in_setup_output_are_redacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_TOKEN", "of-this-host-alone")
    _, lines = ensure({"setup": ['echo "login with $REGISTRY_TOKEN"']}, tmp_path, {})
    assert f"login with {'*' * 18}" in lines


def test_requirements_are_checked_without_packaging_and_pip(tmp_path: Path) -> None:
    """An environment without pip offers no other information about its packages."""
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; sys.modules |= {'packaging': None, 'pip': None}\n"
        "from skyward_core.node.bootstrap.installed_packages import unmet_requirements as lacking\n"
        "print(lacking(['cloudpickle', 'pytest_asyncio', 'cloudpickle>=1', 'skynowhere', 'a b',"
        f"'cloudpickle=={cloudpickle.__version__}', 'cloudpickle==0.1', 'skynowhere==1; python_version < \"3.8\"']))"
    )
    done = run_command([sys.executable, "-c", code, image_environment.ROOT], check=True)
    assert done.stdout == "['cloudpickle>=1', 'skynowhere', 'a b', 'cloudpickle==0.1']\n"


@pytest.mark.parametrize(
    ("marker", "held"),
    [
        ("python_version >= '3.11' and (os_name == \"posix\" or sys_platform == 'win32')", True),
        ("python_full_version >= '3.11.0'", True),
        ("'linux' in sys_platform", sys.platform.startswith("linux")),
        ("platform_machine not in 'a b' and extra == ''", True),
        ("python_version ~= '3.11'", None),
        ("__import__('os') == 'x'", None),
        ("(" * 50, None),
    ],
)
def test_environment_markers_are_evaluated_without_packaging(marker: str, held: bool | None) -> None:
    assert is_marker_true(marker) is held
