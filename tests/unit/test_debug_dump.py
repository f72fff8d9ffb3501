"""Debug dump for bug reports: its parts, without secrets."""

from __future__ import annotations

import json
import stat
import zipfile
from pathlib import Path

import pytest

from skyward_core.client import doctor_and_bug_report
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.outcomes_states_and_alerts import RootCause
from skyward_core.store.ledger import Ledger
from skyward_tui import file_export
from skyward_tui.cli.main import cli
from tests.support.ledger_runs import record_runs

# By the place where each stands.
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIK7MDENGbPxRfiCYzz",
    "SKYWARD_TOKEN": "sky-91h2k3j4h5g6",
    "named": "of-the-log-itself",
    "url": "p4ssw0rd-of-the-url",
    "pool": "value-of-the-pools-env",
}
KEY_ID = "AKIAIOSFODNN7EXAMPLE"


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("SKYWARD_HOME", str(home))
    monkeypatch.delenv("SKYWARD_LOG", raising=False)
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_SECRET_ACCESS_KEY", "SKYWARD_TOKEN"):
        monkeypatch.setenv(name, SECRETS[name])
    return home


def dump(*arguments: str) -> dict[str, str]:
    assert cli.main(["debug-dump", "out.zip", *arguments], standalone_mode=False) == 0
    with zipfile.ZipFile("out.zip") as packed:
        assert packed.testzip() is None
        return {name: packed.read(name).decode() for name in packed.namelist()}


def fill(home: Path) -> None:
    ledger = Ledger()
    spec = {
        "name": "p",
        "variables": ["MY_VARIABLE"],
        "image": {"env": {"MY_VARIABLE": SECRETS["pool"]}, "setup": [f"export MY_TOKEN={SECRETS['named']}"]},
        "cwd": f"https://me:{SECRETS['url']}@host/",
    }
    ledger.record_intent("t0", "p", {"provider": "local"}, spec)
    ledger.record_created("t0", [Machine("m0", 0, "h0", "")])
    ledger.record_replacement_intent("t0", 0, "intent", "1.word")
    cause = RootCause(0, "raised", "ValueError", f"wrong key: {SECRETS['AWS_SECRET_ACCESS_KEY']}", None)
    record_runs(ledger, opened=[("t0", "r1", "train", "broadcast", 1, 1.0)], ends=[("r1", "failed", 2.0, cause)])
    ledger.close()
    (home / "debug").mkdir(mode=0o700)
    text = " ".join(f"{name}={value}" for name, value in SECRETS.items() if name not in ("pool", "url", "named"))
    lines = f"up {text} {KEY_ID} password: {SECRETS['named']} git+https://x:{SECRETS['url']}@h/r\n"
    (home / "debug" / "debug.log").write_text(lines)
    (home / "debug" / "debug.log.1").write_text(f"before that {lines}")


def test_debug_dump_has_every_part_and_no_secret(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fill(world)
    parts = dump()
    assert list(parts) == ["versions.json", "doctor.json", "ledger.json", "debug.log.1", "debug.log"]
    ledger = json.loads(parts["ledger.json"])
    assert [pool["name"] for pool in ledger["pools"]] == ["p"]
    assert ledger["pools"][0]["spec"]["image"]["env"] == ["MY_VARIABLE"]
    assert ledger["runs"][0]["function"] == "train" and "wrong key" in ledger["runs"][0]["root_cause"]["message"]
    assert ledger["replacements"][0]["intent"] == "intent"
    versions = json.loads(parts["versions.json"])
    assert versions["packages"]["skyward-tui"] and versions["packages"]["textual"]
    assert {"SKYWARD_TOKEN", "AWS_SECRET_ACCESS_KEY"} <= set(versions["variables"])
    assert "python" in [check["subject"] for check in json.loads(parts["doctor.json"])]
    assert parts["debug.log"].startswith("up AWS_SECRET_ACCESS_KEY=")
    raw = Path("out.zip").read_bytes()
    for secret in (*SECRETS.values(), KEY_ID):
        assert secret.encode() not in raw
        for name, text in parts.items():
            assert secret not in text, name
    out = capfd.readouterr().out
    assert all(name in out for name in parts) and "Check the file before you send it" in out
    assert stat.S_IMODE(Path("out.zip").stat().st_mode) == 0o600


def test_debug_dump_overwrites_no_existing_file(
    world: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("out.zip").write_text("mine")
    Path("link.zip").symlink_to("nowhere.zip")
    for name in ("out.zip", "link.zip", "."):
        with pytest.raises(SystemExit) as ended:
            cli.main(["debug-dump", name], standalone_mode=False)
        assert ended.value.code == 2 and "already exists" in capfd.readouterr().err
    monkeypatch.setattr(file_export, "require_absent", lambda target: None)  # it comes while we pack
    with pytest.raises(SystemExit):
        cli.main(["debug-dump", "out.zip"], standalone_mode=False)
    assert Path("out.zip").read_text() == "mine" and not Path("nowhere.zip").exists()


def test_debug_dump_without_readable_ledger_has_the_other_parts(world: Path) -> None:
    world.mkdir()
    (world / "ledger.db").mkdir()
    parts = dump()
    assert "Cannot open" in json.loads(parts["ledger.json"])["error"]
    assert [c["state"] for c in json.loads(parts["doctor.json"]) if c["subject"] == "ledger"] == ["fail"]


def test_token_counts_are_not_redacted_as_secrets() -> None:
    clean = doctor_and_bug_report.make_cleaner()
    message = "tokens=4096 num_tokens: 2.1M"
    assert clean(message) == message
    assert clean("tokens=hf_abcdefgh api_token=12345678") == "tokens=*** api_token=***"
