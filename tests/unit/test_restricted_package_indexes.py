"""Package indexes limited to some packages, without a fallback to other indexes."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from skyward_core.node.bootstrap import image_environment
from tests.support.wheels import wheel

pytestmark = pytest.mark.slow

NEEDS_UV = pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed here")
LOGIN = "Basic " + base64.b64encode(b"me:hush").decode()


def packed(folder: Path, name: str, version: str, *needs: str) -> tuple[str, bytes]:
    """Return the file name and content of a wheel."""
    path = wheel(folder, name, version, *needs)
    return path.name, path.read_bytes()


@contextmanager
def index(*wheels: tuple[str, bytes], login: str = "") -> Iterator[str]:
    """Serve wheels, and return the address without the scheme."""
    files = dict(wheels)

    class Index(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if login and self.headers.get("Authorization") != login:
                self._answer(401, b"")
            elif (data := files.get(self.path.rpartition("/")[2])) is not None:
                self._answer(200, data)
            else:
                name = self.path.strip("/").rpartition("/")[2]
                found = [file for file in files if file.startswith(f"{name}-")]
                self._answer(200 if found else 404, "".join(f'<a href="/f/{f}">{f}</a>' for f in found).encode())

        def do_HEAD(self) -> None:
            self._answer(405, b"")

        def _answer(self, status: int, data: bytes) -> None:
            self.send_response(status)
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="private"')
            self.send_header("Content-Type", "text/html" if data.startswith(b"<") else "application/zip")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}/simple"
        server.shutdown()
        thread.join()


@pytest.fixture
def world() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def private(world: ExitStack, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Private index with the right skytiny, and a skyother that is not requested from it."""
    folder = tmp_path_factory.mktemp("private")
    wheels = packed(folder, "skytiny", "1.0"), packed(folder, "skyother", "7.0")
    return world.enter_context(index(*wheels, login=LOGIN))


@pytest.fixture(params=[pytest.param(True, marks=NEEDS_UV), False], ids=["uv", "pip"])
def env(
    request: pytest.FixtureRequest, world: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """Variables of a host whose public index has a newer skytiny of another author."""
    monkeypatch.setattr(image_environment, "EXTRA_PATH", ())
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    (folder := tmp_path.with_name(f"{tmp_path.name}-public")).mkdir()
    wheels = packed(folder, "skytiny", "9.0"), packed(folder, "skyother", "2.0")
    public = "http://" + world.enter_context(index(*wheels, packed(folder, "skyapp", "1.0", "skytiny")))
    found = {
        "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": public, "PIP_NO_CACHE_DIR": "1", "PIP_RETRIES": "0",
        "UV_DEFAULT_INDEX": public, "UV_NO_CACHE": "1", "UV_NO_CONFIG": "1", "UV_HTTP_RETRIES": "0",
    }  # fmt: skip
    if not request.param:
        tools = tmp_path / "tools"
        tools.mkdir()
        (tools / "sh").symlink_to("/bin/sh")
        found |= {"PATH": str(tools), "HOME": str(tmp_path)}
    return found


def installed(requirements: list[str], address: str, root: Path, env: dict[str, str]) -> dict[str, str]:
    """Return the installed versions of an environment whose index is restricted to skytiny."""
    indexes = [{"url": f"http://me:hush@{address}", "packages": ["SkyTiny"]}]
    lines: list[str] = []
    python = image_environment.ensure_environment(
        {"pip": requirements, "pip_indexes": indexes}, root, env, "", lines.append
    )
    assert not [line for line in lines if "hush" in line]
    code = "import importlib.metadata as m; print(*(f'{d.name}={d.version}' for d in m.distributions()))"
    output = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    return dict(each.split("=") for each in output.split() if each.startswith("sky"))


@pytest.mark.proof("1 s of a processor", after=1)
def test_scoped_index_provides_only_its_own_packages(private: str, tmp_path: Path, env: dict[str, str]) -> None:
    got = installed(["skytiny", "skyother", "skyapp"], private, tmp_path, env)
    assert got == {"skytiny": "1.0", "skyother": "2.0", "skyapp": "1.0"}
    left = [path for path in tmp_path.rglob("*") if path.is_file() and b"hush" in path.read_bytes()]
    assert left == []


@pytest.mark.proof("1 s of a processor", after=1)
def test_unreachable_scoped_index_has_no_fallback(world: ExitStack, tmp_path: Path, env: dict[str, str]) -> None:
    with index() as gone:
        pass
    with pytest.raises(image_environment.EnvironmentFailed, match="skytiny") as caught:
        installed(["skytiny", "skyother"], gone, tmp_path, env)
    assert "hush" not in str(caught.value)


@pytest.mark.proof("1 s of a processor", after=1)
def test_scoped_index_without_the_package_has_no_fallback(
    world: ExitStack, tmp_path: Path, env: dict[str, str]
) -> None:
    empty = world.enter_context(index())
    with pytest.raises(image_environment.EnvironmentFailed, match="skytiny"):
        installed(["skytiny"], empty, tmp_path, env)


@pytest.mark.proof("1 s of a processor", after=1)
def test_package_excluded_by_its_marker_is_not_installed(private: str, tmp_path: Path, env: dict[str, str]) -> None:
    assert installed(["skytiny; python_version < '3'", "skyother"], private, tmp_path, env) == {"skyother": "2.0"}


@pytest.mark.proof("1 s of a processor", after=1)
def test_scoped_package_as_dependency_must_be_listed_explicitly(
    private: str, tmp_path: Path, env: dict[str, str]
) -> None:
    with pytest.raises(image_environment.EnvironmentFailed, match=r"Add it to Image\(pip=") as caught:
        installed(["skyapp"], private, tmp_path, env)
    assert "skytiny" in str(caught.value)
