"""Absence of secret values from files, command lines, environments, logs, summaries and events."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import skyward_core as sky
from skyward_core.plugins import Plugin
from skyward_core.util.content_hash import hash_bytes
from skyward_core.views import events as ev
from tests.support.cli import Cli
from tests.support.faults import worker_pids
from tests.support.waiting import wait_until

STARTS_WORKERS = True

# Of this copy of the tests: another one may run beside it, and its workers hold values of their own.
OURS = hash_bytes(__file__.encode())[:8]
TOKEN = f"tok_{OURS}" + "NeverShown" * 3
PASSWORD = f"pw-{OURS}" + "NorThis" * 3
INDEX_KEY = f"idx-{OURS}" + "NeitherThat" * 3
SEEN = (TOKEN, PASSWORD, INDEX_KEY, TOKEN[:12])
IMAGE = sky.Image(
    env={"DB_PASSWORD": PASSWORD},
    pip_indexes=(
        sky.PipIndex(url=f"https://me:{INDEX_KEY}@index.example/simple"),
        sky.PipIndex(url=f"https://index.example/{PASSWORD}/simple"),
    ),
)


class Keys(Plugin):
    """Plugin with a token that does not need the gang."""

    name = "keys"
    gang = False

    def secrets(self) -> Sequence[str]:
        return (TOKEN,)

    @contextmanager
    def around_process(self, info: sky.InstanceInfo) -> Iterator[None]:
        os.environ["MY_TOKEN"] = TOKEN
        yield


class Group(Plugin):
    """Stand-in for a plugin that joins the gang."""

    name = "group"

    @contextmanager
    def around_process(self, info: sky.InstanceInfo) -> Iterator[None]:
        os.environ["IN_GROUP"] = "1"
        yield


@sky.function
def tell(fail: bool) -> Any:
    secret = os.environ["MY_TOKEN"]
    print("logged", secret, os.environ["DB_PASSWORD"], flush=True)
    if fail:
        raise ValueError(f"refused: {secret}")
    return {"token": secret, "padded": " " * 170 + secret}


@sky.function
def where(go: str) -> tuple[str | None, str | None]:
    Path(go, str(os.getpid())).touch()
    while len(list(Path(go).iterdir())) < 2:  # both workers of the rank at once
        pass
    return os.environ.get("MY_TOKEN"), os.environ.get("IN_GROUP")


@sky.function
def stream(go: str) -> Iterator[dict[str, Any]]:
    shown = {"token": os.environ["MY_TOKEN"], "index": f"from {INDEX_KEY}", "said": [os.environ["DB_PASSWORD"]]}
    print(shown, flush=True)
    yield shown
    Path(go, str(sky.instance_info().rank)).touch()
    while not Path(go, "on").exists():
        time.sleep(0.01)
    yield {TOKEN: {os.environ["DB_PASSWORD"]: 1}}


def test_secrets_in_yielded_values_are_neither_shown_nor_readable(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    go = tmp_path / "go"
    go.mkdir()
    events: list[object] = []
    with sky.Compute(nodes=2, plugins=[Keys()], image=IMAGE) as compute:
        compute.pool.news.subscribe(events.append, None)
        streams = stream(str(go)) @ compute
        firsts = [next(values) for values in streams]
        wait_until(lambda: len(list(go.iterdir())) == 2)
        workers = set(worker_pids(compute))
        everybody = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        lines = [seen_of(pid, "cmdline") for pid in everybody]
        around = {pid: seen_of(pid, "environ") for pid in everybody}
        (go / "on").touch()
        assert [len(list(values)) for values in streams] == [1, 1]
        assert firsts[0]["token"] == TOKEN, "values are the person's own"
        wait_until(lambda: next(iter(compute.pool.view.runs.values())).state == "done")
        runs, archive = list(compute.pool.view.runs.values()), compute.pool.archive.folder
        files = [path for path in home.rglob("*") if path.is_file()]
        written = [
            path.read_bytes()
            for path in files
            if path.suffix not in (".out", ".err", ".yields") or "spool" not in path.parts
        ]
        spooled = [path.stat().st_mode for path in files if "spool" in path.parts]
    assert [run.state for run in runs] == ["done"], runs
    assert any(isinstance(event, ev.ItemYielded) for event in events)
    shown = [*capfd.readouterr(), repr(runs), repr(events)]
    later = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    assert archive.exists() and any(b"ItemYielded" in data or b"item" in data for data in later)
    for what in [*(text.encode() for text in shown), *lines, *written, *later]:
        assert not [secret for secret in SEEN if secret.encode() in what]
    # The image's variables are in the environment of the workers, and of nobody else.
    holders = {pid for pid, found in around.items() if any(secret.encode() in found for secret in SEEN)}
    assert holders
    assert holders <= workers, [(pid, seen_of(pid, "cmdline")) for pid in holders - workers]
    assert not any(mode & 0o077 for mode in spooled), "the spool, which has what was printed, is its user's alone"


def seen_of(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""  # it ended meanwhile, or is somebody else's


def test_secrets_are_neither_written_nor_shown(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with sky.Compute(nodes=2, plugins=[Keys()], image=IMAGE) as compute:
        assert (tell(False) @ compute)[1]["token"] == TOKEN, "results are the person's own"
        with pytest.raises(sky.RunError) as caught:
            tell(True) @ compute
        runs = list(compute.pool.view.runs.values())
        rings = compute.pool.view.logs
        shown = [str(rings.rank(rank).lines(0, 99)) for rank in (0, 1)]
        archive = compute.pool.archive.folder
    assert [run.state for run in runs] == ["done", "failed"]
    assert f"logged {'*' * len(TOKEN)} {'*' * len(PASSWORD)}" in shown[0]
    assert "refused: ****" in str(caught.value) and "refused: ****" in str(caught.value.__cause__)
    places = [*shown, *capfd.readouterr(), repr(runs), str(caught.value), repr(caught.value.__cause__)]
    files = [path for path in home.rglob("*") if path.is_file()]
    assert any(path.is_relative_to(archive) and path.name == "r000.out" for path in files)
    for what in [place.encode() for place in places] + [path.read_bytes() for path in files]:
        assert not [secret for secret in SEEN if secret.encode() in what]


def test_additional_workers_enter_plugins_that_need_no_gang(home: Path, tmp_path: Path) -> None:
    (tmp_path / "go").mkdir()
    options = sky.Options(console=False)
    with sky.Compute(plugins=[Keys(), Group()], worker=sky.Worker(concurrency=2), options=options) as compute:
        seen = (where(str(tmp_path / "go")) & where(str(tmp_path / "go"))) >> compute
    assert sorted(seen, key=str) == [(TOKEN, "1"), (TOKEN, None)]


SCRIPT = """
import os
import skyward_core as sky

@sky.function
def gives():
    token = os.environ["HF_TOKEN"]
    print("printed", token)
    yield {"step": 1, "token": token}
    return {"token": token, token: [1, token]}

@sky.function
def fails():
    raise KeyError(os.environ["HF_TOKEN"])
"""


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize(("function", "status"), [("gives", 0), ("fails", 1)])
def test_run_command_redacts_secrets_in_results(cli: Cli, function: str, status: int) -> None:
    script = cli.write("tokens.py", SCRIPT)
    cli.env["HF_TOKEN"] = TOKEN
    for shape in ([], ["--json"]):
        done = cli("run", f"{script}:{function}", "--plugin", "huggingface", *shape, status=status)
        assert "*" * len(TOKEN) in done.stdout
        assert not [secret for secret in SEEN if secret in done.stdout + done.stderr]
    (rank,) = json.loads(done.stdout.splitlines()[-1])["ranks"]
    assert rank["outcome"] == ("returned" if function == "gives" else "raised")
    files = [path for path in (cli.folder / "home").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]


@sky.function
def print_inherited() -> None:
    key = os.environ["WANDB_API_KEY"]
    basic = base64.b64encode(f"user:{key}".encode()).decode()
    print(f"{key} Basic {basic} {quote(os.environ['APP_PASSWORD'], safe='')} {NAMED}")
    print(f"model in {os.environ['MODEL_TOKEN']}", flush=True)


NAMED = "named-" + "ByOption" * 2


def test_inherited_and_named_secrets_are_redacted_in_whole_lines(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, password, path = "9f" * 4 + "0123456789abcdef" * 2, "p@ss/w0rd & more", str(home / "token.json")
    for name, value in {"WANDB_API_KEY": key, "APP_PASSWORD": password, "MODEL_TOKEN": path}.items():
        monkeypatch.setenv(name, value)
    with sky.Compute(options=sky.Options(secrets=[NAMED], console=False)) as compute:
        print_inherited() @ compute
        shown = compute.pool.view.logs.rank(0).lines(0, 9)
    assert shown[1] == f"model in {path}"
    stars, word, basic, *rest = shown[0].split(" ")
    assert (stars, word, rest) == ("*" * len(key), "Basic", ["*" * len(quote(password, safe="")), "*" * len(NAMED)])
    assert basic.strip("*") == "dXNlcjo", "of the user, and two bits of what follows"
    for file in home.rglob("*"):
        held = file.read_bytes() if file.is_file() else b""
        assert not any(secret.encode() in held for secret in (key, password, NAMED)), file
