"""Pruning of ended pools and environments, results that hosts retain, and saved job files and commands."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core import Options, SpecError
from skyward_core.client.launch.job_and_shell_launch import JobRequest
from skyward_core.client.launch.launch_records_and_script_state import CommandRecord, JobRecord, parse_saved
from skyward_core.model.errors import JobFileError, LedgerError, UsageError
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.outcomes_states_and_alerts import Outcome
from skyward_core.model.output_files import WrittenFile
from skyward_core.node.agent import results_retained_after_node_end
from skyward_core.node.bootstrap import host_command_server, host_inspection
from skyward_core.node.bootstrap.image_environment import MADE_FILE
from skyward_core.pool.output_files import OutputRecord, delete_checkpoints
from skyward_core.protocol.frame_codec import Header, encode_frame
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import RetainedResults
from skyward_core.store.old_pool_environment_and_clone_pruning import prune_environments, prune_pools, prune_when_due
from skyward_core.store.receipts_and_bills import Receipt
from skyward_core.store.state_folder import ENVIRONMENTS_FOLDER, PRUNED_FILE, ensure_pool_folder, state_home
from skyward_core.tasks.job_file import JobFile
from skyward_core.tasks.job_yaml_validation import strip_secrets
from skyward_core.util.redaction import Redactor
from skyward_tui.launch_form.job_file_plan import form_from_shell
from tests.support.ledger_runs import record_runs
from tests.support.sessions import new_session

DAY = 86400.0


def pool(ledger: Ledger, name: str, days: float | None, *results: RetainedResults) -> Path:
    """Create a pool that ended a number of days ago (None: that is up), with files of 1,000 bytes."""
    row = ledger.record_intent(f"t-{name}", name, {"provider": "local"}, {})
    folder = ensure_pool_folder(row.key)
    (folder / "log").write_bytes(bytes(1000))
    record_runs(
        ledger,
        opened=[(row.token, f"run-{name}", "f", "single", 1, 0.0)],
        outcomes=[(f"run-{name}", Outcome(0, 0, 0, "returned"), {})],
    )
    if days is not None:
        ledger.record_teardown(row.token, Receipt(name, 0, (), (), 0.0), results)
        ledger._write([("UPDATE pools SET ended_at=? WHERE token=?", (time.time() - days * DAY, row.token))])
    return folder


def make_retained_results(name: str, until: float) -> RetainedResults:
    machine = Machine("h", 0, "h", "", extra={"folder": "f"})
    return RetainedResults(f"t-{name}", machine, {"aa": 1}, 1, until)


def test_prune_removes_old_ended_pools_with_their_records(ledger: Ledger) -> None:
    old, new = pool(ledger, "old", 100), pool(ledger, "new", 10)
    up, waits = pool(ledger, "up", None), pool(ledger, "waits", 200, make_retained_results("waits", time.time() + DAY))
    assert [each.pool for each in prune_pools(ledger, only_look=True)] == ["old"]
    assert old.exists()
    assert [(each.pool, each.size) for each in prune_pools(ledger)] == [("old", 1000)]
    assert not old.exists()
    assert all(folder.exists() for folder in (new, up, waits))
    assert (ledger.run("run-old"), ledger.outcomes("run-old"), ledger.find_pool("old")) == (None, [], None)
    assert len(ledger.outcomes("run-new")) == 1
    assert prune_pools(ledger) == []


def test_prune_removes_oldest_pools_until_the_size_limit_holds(ledger: Ledger) -> None:
    folders = [pool(ledger, f"p{days}", days) for days in (4, 3, 2, 1)]
    assert [each.pool for each in prune_pools(ledger, most=2500)] == ["p4", "p3"]
    assert [folder.exists() for folder in folders] == [False, False, True, True]


def test_sparse_log_file_counts_only_its_allocated_size(ledger: Ledger) -> None:
    folders = [pool(ledger, f"p{days}", days) for days in (4, 3)]
    with (folders[1] / "log").open("r+b") as log:  # as a node has it that says where its bytes belong
        log.seek(10**11)
        log.write(b"x")
    assert prune_pools(ledger) == []
    assert prune_pools(ledger, most=10**10) == []
    assert all(folder.exists() for folder in folders)


def test_expired_retained_results_do_not_keep_a_pool(ledger: Ledger) -> None:
    pool(ledger, "late", 100, make_retained_results("late", time.time() - 1))
    assert [each.pool for each in prune_pools(ledger)] == ["late"]
    assert ledger.retained_results() == []


def test_automatic_prune_runs_once_a_day(ledger: Ledger, tmp_path: Path) -> None:
    folder = pool(ledger, "old", 100)
    prune_when_due(ledger)  # the first time in a home
    prune_when_due(ledger)
    assert folder.exists()
    os.utime(tmp_path / PRUNED_FILE, (time.time() - 2 * DAY,) * 2)
    prune_when_due(ledger)
    assert not folder.exists()


def test_failed_automatic_prune_is_retried_the_next_day(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(token: str) -> None:
        raise LedgerError("it is locked")

    folder = pool(ledger, "old", 100)
    (tmp_path / PRUNED_FILE).touch()
    os.utime(tmp_path / PRUNED_FILE, (time.time() - 2 * DAY,) * 2)
    monkeypatch.setattr(ledger, "delete_pool", fail)
    prune_when_due(ledger)
    assert ledger.find_pool("old") is not None
    assert not folder.exists()


def test_prune_removes_empty_folders_of_local_pools(ledger: Ledger) -> None:
    names = ("abandoned.t", "in-use.t", "new.t")
    abandoned, in_use, new = (state_home() / "local" / name for name in names)
    for folder in (abandoned, in_use, new):
        folder.mkdir(parents=True)
    (in_use / "node-0").mkdir()
    for folder in (abandoned, in_use):
        os.utime(folder, (0, 0))
    prune_pools(ledger, only_look=True)
    assert abandoned.exists()
    prune_pools(ledger)
    assert [folder.exists() for folder in (abandoned, in_use, new)] == [False, True, True]


def test_checkpoints_of_old_pools_are_removed_on_request_unless_resumed(ledger: Ledger, tmp_path: Path) -> None:
    for name, resume in (("old", None), ("first", None), ("second", "run-first"), ("new", None)):
        options = Options(on_loss="restart", resume=resume).describe()
        spec = {"cwd": str(tmp_path / "project"), "options": options, "image": {}}
        row = ledger.record_intent(f"t-{name}", name, {"provider": "local"}, spec)
        record_runs(ledger, opened=[(row.token, f"run-{name}", "f", "single", 1, 0.0)])
        ledger.record_teardown(row.token, Receipt(name, 0, (), (), 0.0), ())
        days = 10 if name in ("second", "new") else 100
        ledger._write([("UPDATE pools SET ended_at=? WHERE token=?", (time.time() - days * DAY, row.token))])
    for path in ("run-old/step-1/w", "run-first/w", "run-new/w", "of-the-user"):
        (target := tmp_path / "project" / "checkpoints" / path).parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(bytes(1000))
    with new_session() as session:
        for only_look in (True, False):
            delete = partial(session.delete_checkpoints, only_look=only_look)
            pruned = prune_pools(ledger, only_look=only_look, delete_files=delete)
            assert [(each.pool, each.size) for each in pruned] == [("old", 1000), ("first", 0)]
            left = {each.name for each in (tmp_path / "project" / "checkpoints").iterdir()}
            assert left == {"run-first", "run-new", "of-the-user", *(["run-old"] if only_look else [])}


def test_checkpoints_that_another_pool_starts_to_resume_or_still_has_are_not_removed(
    ledger: Ledger, tmp_path: Path
) -> None:
    rows = {}
    for name, resume, has_run in (
        ("first", None, True), ("starting", "run-first", False), ("open", None, True), ("second", "run-open", True),
    ):  # fmt: skip
        options = Options(on_loss="restart", resume=resume).describe()
        spec = {"cwd": str(tmp_path / "project"), "options": options, "image": {}}
        rows[name] = ledger.record_intent(f"t-{name}", name, {"provider": "local"}, spec)
        record_runs(ledger, opened=[(rows[name].token, f"run-{name}", "f", "single", 1, 0.0)] if has_run else [])
        (target := tmp_path / "project" / "checkpoints" / f"run-{name}" / "w").parent.mkdir(parents=True)
        target.write_bytes(bytes(1000))
    with new_session() as session:
        assert [session.delete_checkpoints(rows[name], only_look=False) for name in ("first", "second")] == [0, 0]


def test_downloaded_checkpoints_are_removed_unless_changed_or_elsewhere(tmp_path: Path, ledger: Ledger) -> None:
    spec = {"cwd": str(tmp_path / "project"), "options": Options(on_loss="restart").describe(), "image": {}}
    row = ledger.record_intent("t", "p", {"provider": "ssh"}, spec)
    record = OutputRecord(ensure_pool_folder(row.key) / "outputs.jsonl")
    places = {"outputs/r/checkpoints/r/a": "a", "outputs/r/checkpoints/r/b": "b", "mine/checkpoints/r/c": "c"}
    for place, name in places.items():
        (target := tmp_path / "project" / place).parent.mkdir(parents=True, exist_ok=True)
        target.write_text("x")
        record.add(WrittenFile(f"checkpoints/r/{name}", 1, 0.0, 0, "v"), target)
    (tmp_path / "project" / "outputs/r/checkpoints/r/b").write_text("changed")
    assert delete_checkpoints(row, ["checkpoints/r"], is_local=False, only_look=False) == 1
    assert sorted(each.name for each in tmp_path.rglob("?") if each.is_file()) == ["b", "c"]


def test_running_pool_is_never_deleted_from_the_ledger(ledger: Ledger) -> None:
    pool(ledger, "up", None)
    ledger.delete_pool("t-up")
    assert ledger.find_pool("up") is not None
    assert len(ledger.outcomes("run-up")) == 1


def environment(name: str, days: float, *, made: bool = True) -> Path:
    """Create an environment of slightly more than 1,000 bytes that was last used a number of days ago."""
    folder = state_home() / ENVIRONMENTS_FOLDER / f"env-{name}"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_bytes(bytes(1000))
    used = folder
    if made:
        used = folder / MADE_FILE
        used.write_text("x")
    os.utime(used, (time.time() - days * DAY,) * 2)
    return folder


def test_prune_removes_unused_and_incomplete_environments(ledger: Ledger) -> None:
    old, new = environment("old", 100), environment("new", 10)
    cut_off, being_made = environment("cut-off", 100, made=False), environment("being-made", 100, made=False)
    with being_made.with_name("env-being-made.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert [each.folder for each in prune_environments(ledger, only_look=True)] == ["env-cut-off", "env-old"]
        assert old.exists()
        gone = prune_environments(ledger)
    assert [(each.folder, each.size) for each in gone] == [("env-cut-off", 1000), ("env-old", 1001)]
    assert [folder.exists() for folder in (old, new, cut_off, being_made)] == [False, True, False, True]


def test_environment_that_a_running_pool_may_use_is_kept(ledger: Ledger) -> None:
    used = environment("used", 100)
    ledger.record_intent("t-up", "up", {"provider": "local"}, {})
    ledger._write([("UPDATE pools SET created_at=? WHERE token=?", (time.time() - 101 * DAY, "t-up"))])
    assert prune_environments(ledger) == []
    assert used.exists()
    older = environment("older", 102)
    assert [each.folder for each in prune_environments(ledger)] == ["env-older"]
    assert not older.exists()


def test_linked_environment_folder_is_not_pruned(ledger: Ledger, tmp_path: Path) -> None:
    """The user moved the environment to a larger disk; the report lists only removed folders."""
    old = environment("old", 100)
    elsewhere = tmp_path / "elsewhere"
    old.rename(elsewhere)
    old.symlink_to(elsewhere)
    assert prune_environments(ledger) == []
    assert (elsewhere / MADE_FILE).exists() and old.is_symlink()


# What is kept of a node's folder when nobody is there any more, and what is not.


def outcome(run: str, index: int = 0, kind: str = "returned", **more: Any) -> Header:
    return {"t": "outcome", "run": run, "i": index, "kind": kind, "size": 7, "summary": None} | more


def ack(**calls: list[int] | None) -> Header:
    return {"t": "ack", "calls": calls}


def power_cut(root: Path, *frames: Header, keep: float = 7 * DAY, name: str = "p.t.0") -> Path:
    """Create a node's folder as it remains after a power cut ten days ago."""
    folder = root / "pools" / name
    (folder / "spool").mkdir(parents=True)
    (folder / "blobs").mkdir()
    (folder / "blobs" / "large").write_bytes(bytes(1000))
    (folder / "agent.json").write_text(json.dumps({"idle_timeout": 600, "keep_results": keep}))
    (folder / "spool" / "r000.out").write_text("printed")
    (folder / "spool" / "journal").write_bytes(b"".join(encode_frame(each, b"1234567") for each in frames) + b"cut sh")
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (time.time() - 10 * DAY,) * 2)
    return folder


def test_stale_folder_cleanup_retains_unfetched_results(tmp_path: Path) -> None:
    folder = power_cut(tmp_path, outcome("aa"), outcome("aa", 1), outcome("bb", kind="raised"), ack(aa=[0]))
    host_command_server.remove_stale_folders(str(tmp_path))
    left = folder.with_name("kept.p.t.0")
    retained = host_inspection.read_retained_facts(str(left))
    assert retained["runs"] == {"aa": 7, "bb": 7}
    assert 6.9 * DAY < retained["until"] - time.time() <= 7 * DAY
    assert sorted(path.name for path in left.iterdir()) == ["agent.json", "kept.json", "spool"]
    assert [path.name for path in folder.parent.iterdir()] == ["kept.p.t.0"]
    host_command_server.remove_stale_folders(str(tmp_path))
    assert host_inspection.read_retained_facts(str(left)) == retained


@pytest.mark.parametrize(
    "frames",
    [
        (),
        (outcome("aa"), ack(aa=None)),
        (outcome("aa", 1), outcome("aa", 2), ack(aa=[1]), ack(aa=[2, 3], bb=None)),
        (outcome("aa", kind="collateral"), outcome("aa", 1, kind="lost")),
    ],
    ids=["no results", "all fetched", "fetched separately", "collateral and lost"],
)
def test_stale_folder_cleanup_removes_fetched_results(tmp_path: Path, frames: tuple[Header, ...]) -> None:
    folder = power_cut(tmp_path, *frames)
    host_command_server.remove_stale_folders(str(tmp_path))
    assert list(folder.parent.iterdir()) == []


def test_stale_folder_cleanup_removes_expired_retained_results(tmp_path: Path) -> None:
    power_cut(tmp_path, outcome("aa"), keep=0)
    late = power_cut(tmp_path, outcome("bb"), name="kept.q.t.0")
    (late / "kept.json").write_text(json.dumps({"until": time.time() - 1, "runs": {"bb": 7}, "bytes": 9}))
    for path in (late, *late.iterdir()):
        os.utime(path, (time.time() - DAY,) * 2)
    host_command_server.remove_stale_folders(str(tmp_path))
    assert not (tmp_path / "pools").exists() or list((tmp_path / "pools").iterdir()) == []


@pytest.mark.parametrize(
    "at",
    [
        0,
        5,
        results_retained_after_node_end.REDACT_CHUNK_BYTES - 4,
        results_retained_after_node_end.REDACT_CHUNK_BYTES,
        2 * results_retained_after_node_end.REDACT_CHUNK_BYTES - 1,
    ],
)
def test_secrets_in_retained_logs_are_redacted_at_any_offset(tmp_path: Path, at: int) -> None:
    secret, log = b"hush-hush-hush", tmp_path / "r000.out"
    log.write_bytes(b"x" * at + secret + b"\ny")
    redactor = Redactor([secret.decode()])
    results_retained_after_node_end.redact_logs(tmp_path, redactor.redact_bytes, redactor.reach)
    assert log.read_bytes() == b"x" * at + b"*" * len(secret) + b"\ny"


@pytest.mark.parametrize(
    "facts",
    [
        None, [], {}, {"runs": []}, {"runs": {"../x": 1}, "bytes": 1, "until": 2e9}, {"runs": {"aa": "many"}},
        {"runs": {"aa": 1}, "bytes": 1, "until": 1e300}, {"runs": {"aa": 1}, "bytes": 1, "until": float("nan")},
    ],
)  # fmt: skip
def test_invalid_retained_facts_of_a_host_are_ignored(facts: Any) -> None:
    machine = Machine("h", 0, "h", "", extra={"folder": "p.t.0", "kept": facts})
    assert RetainedResults.from_machine("t", machine) is None


@pytest.mark.parametrize(
    "words, seconds",
    [("7d", 7 * DAY), ("12 hours", 43200), ("1.5h", 5400), ("90 s", 90), ("2 Weeks", 14 * DAY), ("10min", 600), (0, 0)],
)
def test_duration_option_accepts_seconds_or_text(words: float | str, seconds: float) -> None:
    assert Options(keep_results=words).keep_results == seconds


@pytest.mark.parametrize("wrong", ["", "soon", "7 years", "-1d", -1, float("nan"), float("inf"), None, True, "1e3d"])
def test_invalid_duration_option_is_rejected(wrong: Any) -> None:
    with pytest.raises(SpecError, match="keep_results"):
        Options(keep_results=wrong)


@pytest.mark.parametrize(
    "words, size", [("10 GB", 10**10), ("1.5kB", 1500), ("7", 7), ("200 mb", 2 * 10**8), (0, 0), ("2T", 2 * 10**12)]
)
def test_size_option_accepts_bytes_or_text(words: int | str, size: int) -> None:
    assert Options(log_limit=words).log_limit == size


@pytest.mark.parametrize("wrong", ["", "much", "-1", "10 GiB!", -1, 1.5, float("nan"), None, True])
def test_invalid_size_option_is_rejected(wrong: Any) -> None:
    with pytest.raises(SpecError, match="log_limit"):
        Options(log_limit=wrong)


# Job files that are kept to be launched again: all that they say, and no secret.

TOKEN, KEY = "hf-7f3e9a1c2d", "sk-live-55a1b2c3"
TEXT = f"""# a job
name: tuned
num_nodes: 2
envs: {{EPOCHS: 3, OPENAI_API_KEY: {KEY}, WHERE: here}}
secrets:
  HF_TOKEN: "{TOKEN}"
  WANDB: |
    wandb-secret-1
    second-line-2
run: |
  echo $HF_TOKEN $EPOCHS
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFile:
    monkeypatch.chdir(tmp_path)
    for name in ("HF_TOKEN", "WANDB", "OPENAI_API_KEY", "MORE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "task.yaml").write_text(TEXT)
    return JobFile.from_yaml("task.yaml", env={"EPOCHS": "9"}, secrets={"MORE": "given-beside-it"})


def test_saved_job_has_no_secret_and_restores_the_rest(job: JobFile) -> None:
    asked = JobRequest.from_options(
        job,
        provider="local",
        budget=None,
        idle_timeout=60.0,
        plugins=("torch", "mpi"),
        plugin_settings={"torch.backend": "gloo"},
    )
    record = JobRecord.from_job(job, asked, setup=False)
    written = json.dumps(record.to_json())
    for secret in (TOKEN, KEY, "wandb-secret-1", "second-line-2", "given-beside-it"):
        assert secret not in written
    assert parse_saved(JobRecord, json.loads(written)) == record
    assert record.lacks_env == ("OPENAI_API_KEY",) and record.lacks_secrets == ("HF_TOKEN", "WANDB", "MORE")
    with pytest.raises(UsageError, match=r"OPENAI_API_KEY of task.yaml is a secret.*Give --env OPENAI_API_KEY"):
        record.load_job({}, {})
    again = record.load_job({"OPENAI_API_KEY": "k" * 9}, {"HF_TOKEN": "t" * 9, "WANDB": "w" * 9, "MORE": "m" * 9})
    assert (again.name, again.num_nodes) == ("tuned", 2)
    assert again.envs == {"EPOCHS": "9", "OPENAI_API_KEY": "k" * 9, "WHERE": "here"}
    assert again.secrets == {"HF_TOKEN": "t" * 9, "WANDB": "w" * 9, "MORE": "m" * 9}
    assert again.run == "echo $HF_TOKEN $EPOCHS\n" and again.text == record.text
    request = record.to_job_request(again)
    assert (request.options.provider, request.idle_timeout) == ("local", 60.0)
    assert request.spec()[0].plugins == (sky.plugins.torch(backend="gloo"), sky.plugins.mpi())
    with pytest.raises(UsageError, match="launched with --plugin, which the form of a job does not support"):
        form_from_shell(JobRecord.from_job(job, JobRequest.from_options(job, plugins=("mpi",))), "1661b65609")


def test_saved_job_takes_missing_secrets_from_the_environment(job: JobFile, monkeypatch: pytest.MonkeyPatch) -> None:
    record = JobRecord.from_job(job)
    for name in (*record.lacks_env, *record.lacks_secrets):
        monkeypatch.setenv(name, f"shells-{name}")
    assert record.missing_variables({}, {}) == {} and record.joined
    assert record.load_job({}, {}).secrets["WANDB"] == "shells-WANDB"
    assert record.load_job({}, {"WANDB": "said-here"}).secrets["WANDB"] == "said-here"


@pytest.mark.parametrize(
    "text",
    [
        "secrets: {A: 'aaaaaaaaaa', B: bbbbbbbbbb}\nrun: a\n",
        "secrets:\n  A: >-\n    aaaaaaaaaa\n    bbbbbbbbbb\nrun: a\n",
        "secrets: &all\n  A: aaaaaaaaaa\nrun: a\n",
        'secrets: {A: "aaaaaaaaaa\\tbbbbbbbbbb"}\nrun: a\n',
        "envs: {C: x}\nsecrets:\n  B: short\nrun: echo short\n",
        "\ufeffsecrets: {A: aaaaaaaaaa}\nrun: ä\n",
        "secrets:\n  A:\n  B:\nrun: a\n",
        "secrets: {A: , B: bbbbbbbbbb}\nrun: a\n",
        "secrets:\n  A:  # from the shell\n  B: bbbbbbbbbb\nrun: a\n",
    ],
)
def test_secrets_are_stripped_from_any_job_file_syntax(text: str) -> None:
    left = strip_secrets(text, [], ["aaaaaaaaaa", "bbbbbbbbbb", "aaaaaaaaaa\tbbbbbbbbbb", "aaaaaaaaaa bbbbbbbbbb"])
    assert "aaaaaaaa" not in left and "bbbbbbbb" not in left and "run:" in left
    job = JobFile.from_text(left, Path("t.yaml"), secrets={"A": "new-value-1", "B": "new-value-2"})
    assert job.secrets == {"A": "new-value-1", "B": "new-value-2"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("envs: {B: &s aaaaaaaaaa}\nsecrets: {A: *s}\n", "removed|another line"),
        ("secrets: {A: aaaaaaaaaa}\nrun: echo aaaaaaaaaa\n", "another line"),
        ("workdir: {url: 'https://me:pass-word-1@host/x.git'}\nrun: a\n", "a URL in it contains a password"),
    ],
)
def test_job_file_whose_secrets_cannot_be_stripped_is_not_saved(text: str, message: str) -> None:
    with pytest.raises(JobFileError, match=message):
        strip_secrets(text, [], ["aaaaaaaaaa"])


def test_rerun_of_job_with_a_password_in_a_url_is_rejected(tmp_path: Path) -> None:
    text = "workdir: {url: 'https://me:pass-word-1@host/x.git'}\nrun: a\n"
    record = JobRecord.from_job(JobFile.from_text(text, tmp_path / "t.yaml"))
    assert "pass-word-1" not in json.dumps(record.to_json())
    with pytest.raises(UsageError, match="Launch it by hand"):
        record.load_job({}, {})


def test_rerun_form_uses_the_job_file_or_its_saved_copy(job: JobFile, monkeypatch: pytest.MonkeyPatch) -> None:
    record = JobRecord.from_job(job, JobRequest.from_options(job))
    form = form_from_shell(record, "abc123")
    assert form.script == "task.yaml" and set(shlex.split(form.arguments)) == {"EPOCHS=9", "WHERE=here"}
    Path("task.yaml").write_text("run: other\n")
    copy = Path(form_from_shell(record, "abc123").script)
    assert copy.read_text() == record.text and copy.suffix == ".yaml" and copy.stat().st_mode & 0o077 == 0
    with pytest.raises(UsageError, match="--no-setup, which the form does not support"):
        form_from_shell(JobRecord.from_job(job, JobRequest.from_options(job), setup=False), "abc123")
    monkeypatch.chdir("/")
    with pytest.raises(UsageError, match="Open the app there"):
        form_from_shell(record, "abc123")


@pytest.mark.parametrize("bent", [{"lacks_env": 3}, {"path": "\0"}, {"env": {"A": 1}}, {"strange": 1}])
def test_invalid_saved_job_is_rejected(job: JobFile, bent: dict[str, object]) -> None:
    data = JobRecord.from_job(job).to_json() | bent
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        parse_saved(JobRecord, data)


def test_saved_command_restores_everything_but_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"EPOCHS": "9", "OPENAI_API_KEY": KEY}
    record = CommandRecord.from_command(["echo", "a  b", "$HOME"], env, {"HF_TOKEN": TOKEN}, (0, 2))
    written = json.dumps(record.to_json())
    assert TOKEN not in written and KEY not in written
    again = parse_saved(CommandRecord, json.loads(written))
    assert again == record and again.joined and again.command_line == "echo 'a  b' '$HOME'"
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "of this shell")
    with pytest.raises(UsageError, match=r"HF_TOKEN of the command echo is a secret.*Give --secret HF_TOKEN"):
        again.values({}, {})
    found = again.values({"EPOCHS": "10"}, {"HF_TOKEN": "new"})
    assert found == ({"EPOCHS": "10", "OPENAI_API_KEY": None}, {"HF_TOKEN": "new"})
    with pytest.raises(UsageError, match="the form does not support the command echo"):
        form_from_shell(again, "r1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["curl", "https://me:pass-word-1@host/x"], "a URL in it contains a password"),
        ([f"login --key {KEY}"], "it contains the value of a secret"),
        ([f"login --key {TOKEN}"], "it contains the value of a secret"),
        (["login", "--key", "sk-of-this-shell-1"], "it contains the value of a secret"),
    ],
)
def test_command_containing_a_secret_is_not_saved(
    monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.setenv("SHELLS_API_KEY", "sk-of-this-shell-1")
    record = CommandRecord.from_command(words, {"OPENAI_API_KEY": KEY}, {"HF_TOKEN": TOKEN}, None)
    data = json.loads(json.dumps(record.to_json()))
    assert not any(word in json.dumps(data) for word in words)
    with pytest.raises(UsageError, match=f"the command cannot be rerun: its text was not saved because {message}"):
        parse_saved(CommandRecord, data).values({}, {"HF_TOKEN": "x"})


@pytest.mark.parametrize(
    "bent", [{"words": [3]}, {"words": []}, {"nodes": "2"}, {"nodes": [True]}, {"env": {"A": 1}}, {"more": 1}]
)
def test_invalid_saved_command_is_rejected(bent: dict[str, object]) -> None:
    report = CommandRecord.from_command(["true"], {}, {}, 2).to_json() | bent
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        parse_saved(CommandRecord, report)


def test_aliased_secret_that_cannot_be_stripped_alone_is_rejected() -> None:
    """The aliased secret stands in one place for several names."""
    text = f"secrets:\n  A: &both |\n    {'x' * 60}\n  B: *both\nrun: |\n  echo one\n"
    with pytest.raises(JobFileError, match="the secrets of the job file cannot be removed"):
        strip_secrets(text, (), ())
    lines = f"secrets:\n  A: &both |\n    {'x' * 15}\n  B: *both\nsetup: one\nrun: two\n"
    with pytest.raises(JobFileError, match="the secrets of the job file cannot be removed"):
        strip_secrets(lines, (), ())
