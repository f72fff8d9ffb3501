"""Job files that are kept to be launched again: all that they say, and no secret."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.client.launch.job_launch import JobFile, JobRequest
from skyward_core.client.launch.job_records import CommandRecord, JobRecord
from skyward_core.client.launch.launch_records import parse_saved
from skyward_core.model.errors import JobFileError, UsageError
from skyward_core.tasks.job_files.yaml_document import strip_secrets
from skyward_tui.launch_form.job_form import form_from_shell

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


def test_nothing_that_is_kept_holds_a_secret_and_all_else_comes_back(job: JobFile) -> None:
    asked = JobRequest.from_options(
        job,
        provider="local",
        budget=None,
        idle_timeout=60.0,
        plugins=("torch", "mpi"),
        plugin_settings={"torch.backend": "gloo"},
    )
    kept = JobRecord.from_job(job, asked, setup=False)
    written = json.dumps(kept.to_json())
    for secret in (TOKEN, KEY, "wandb-secret-1", "second-line-2", "given-beside-it"):
        assert secret not in written
    assert parse_saved(JobRecord, json.loads(written)) == kept
    assert kept.lacks_env == ("OPENAI_API_KEY",) and kept.lacks_secrets == ("HF_TOKEN", "WANDB", "MORE")
    with pytest.raises(UsageError, match=r"OPENAI_API_KEY of task.yaml is a secret.*give --env OPENAI_API_KEY"):
        kept.load_job({}, {})
    again = kept.load_job({"OPENAI_API_KEY": "k" * 9}, {"HF_TOKEN": "t" * 9, "WANDB": "w" * 9, "MORE": "m" * 9})
    assert (again.name, again.num_nodes) == ("tuned", 2)
    assert again.envs == {"EPOCHS": "9", "OPENAI_API_KEY": "k" * 9, "WHERE": "here"}
    assert again.secrets == {"HF_TOKEN": "t" * 9, "WANDB": "w" * 9, "MORE": "m" * 9}
    assert again.run == "echo $HF_TOKEN $EPOCHS\n" and again.text == kept.text
    request = kept.to_job_request(again, None)
    assert (request.options.provider, request.idle_timeout) == ("local", 60.0)
    assert request.spec()[0].plugins == (sky.plugins.torch(backend="gloo"), sky.plugins.mpi())
    with pytest.raises(UsageError, match="launched with --plugin, which the form of a job cannot say"):
        form_from_shell(JobRecord.from_job(job, JobRequest.from_options(job, plugins=("mpi",))), "1661b65609")


def test_what_this_shell_has_is_no_lack(job: JobFile, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = JobRecord.from_job(job)
    for name in (*kept.lacks_env, *kept.lacks_secrets):
        monkeypatch.setenv(name, f"shells-{name}")
    assert kept.missing_variables({}, {}) == {} and kept.joined
    assert kept.load_job({}, {}).secrets["WANDB"] == "shells-WANDB"
    assert kept.load_job({}, {"WANDB": "said-here"}).secrets["WANDB"] == "said-here"


@pytest.mark.parametrize(
    "text",
    [
        "secrets: {A: 'aaaaaaaaaa', B: bbbbbbbbbb}\nrun: a\n",
        "secrets:\n  A: >-\n    aaaaaaaaaa\n    bbbbbbbbbb\nrun: a\n",
        "secrets: &all\n  A: aaaaaaaaaa\nrun: a\n",
        'secrets: {A: "aaaaaaaaaa\\tbbbbbbbbbb"}\nrun: a\n',
        "envs: {C: x}\nsecrets:\n  B: short\nrun: echo short\n",
        "\ufeffsecrets: {A: aaaaaaaaaa}\nrun: ä\n",
    ],
)
def test_wherever_a_secret_stands_it_is_left_out(text: str) -> None:
    left = strip_secrets(text, [], ["aaaaaaaaaa", "bbbbbbbbbb", "aaaaaaaaaa\tbbbbbbbbbb", "aaaaaaaaaa bbbbbbbbbb"])
    assert "aaaaaaaa" not in left and "bbbbbbbb" not in left and "run:" in left
    job = JobFile.from_text(left, Path("t.yaml"), secrets={"A": "new-value-1", "B": "new-value-2"})
    assert job.secrets == {"A": "new-value-1", "B": "new-value-2"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("envs: {B: &s aaaaaaaaaa}\nsecrets: {A: *s}\n", "left out|another line"),
        ("secrets: {A: aaaaaaaaaa}\nrun: echo aaaaaaaaaa\n", "another line of it"),
        ("workdir: {url: 'https://me:pass-word-1@host/x.git'}\nrun: a\n", "a password stands in a URL"),
    ],
)
def test_what_cannot_be_left_out_is_not_kept(text: str, said: str) -> None:
    with pytest.raises(JobFileError, match=said):
        strip_secrets(text, [], ["aaaaaaaaaa"])


def test_a_job_with_a_password_in_a_url_is_refused_in_words(tmp_path: Path) -> None:
    text = "workdir: {url: 'https://me:pass-word-1@host/x.git'}\nrun: a\n"
    kept = JobRecord.from_job(JobFile.from_text(text, tmp_path / "t.yaml"))
    assert "pass-word-1" not in json.dumps(kept.to_json())
    with pytest.raises(UsageError, match="launch it again"):
        kept.load_job({}, {})


def test_the_form_takes_the_file_or_what_was_kept_of_it(job: JobFile, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = JobRecord.from_job(job, JobRequest.from_options(job))
    form = form_from_shell(kept, "abc123")
    assert form.script == "task.yaml" and set(shlex.split(form.arguments)) == {"EPOCHS=9", "WHERE=here"}
    Path("task.yaml").write_text("run: other\n")
    copy = Path(form_from_shell(kept, "abc123").script)
    assert copy.read_text() == kept.text and copy.suffix == ".yaml" and copy.stat().st_mode & 0o077 == 0
    with pytest.raises(UsageError, match="--no-setup, which the form cannot say: skyward-tui rerun abc123"):
        form_from_shell(JobRecord.from_job(job, JobRequest.from_options(job), setup=False), "abc123")
    monkeypatch.chdir("/")
    with pytest.raises(UsageError, match="open the app there"):
        form_from_shell(kept, "abc123")


@pytest.mark.parametrize("bent", [{"lacks_env": 3}, {"path": "\0"}, {"env": {"A": 1}}, {"strange": 1}])
def test_what_is_no_kept_job_is_refused(job: JobFile, bent: dict[str, object]) -> None:
    told = JobRecord.from_job(job).to_json() | bent
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        parse_saved(JobRecord, told)


def test_of_a_command_all_but_secrets_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"EPOCHS": "9", "OPENAI_API_KEY": KEY}
    kept = CommandRecord.from_command(["echo", "a  b", "$HOME"], env, {"HF_TOKEN": TOKEN}, (0, 2))
    written = json.dumps(kept.to_json())
    assert TOKEN not in written and KEY not in written
    again = parse_saved(CommandRecord, json.loads(written))
    assert again == kept and again.joined and again.command_line == "echo 'a  b' '$HOME'"
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "of this shell")
    with pytest.raises(UsageError, match=r"HF_TOKEN of the command echo is a secret.*give --secret HF_TOKEN"):
        again.values({}, {})
    found = again.values({"EPOCHS": "10"}, {"HF_TOKEN": "new"})
    assert found == ({"EPOCHS": "10", "OPENAI_API_KEY": None}, {"HF_TOKEN": "new"})
    with pytest.raises(UsageError, match="run r1 is of the command echo, for which the form has no field"):
        form_from_shell(again, "r1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["curl", "https://me:pass-word-1@host/x"], "a password stands in a URL in it"),
        ([f"login --key {KEY}"], "the value of a secret stands in it"),
        ([f"login --key {TOKEN}"], "the value of a secret stands in it"),
        (["login", "--key", "sk-of-this-shell-1"], "the value of a secret stands in it"),
    ],
)
def test_a_command_with_a_secret_in_it_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.setenv("SHELLS_API_KEY", "sk-of-this-shell-1")
    kept = CommandRecord.from_command(words, {"OPENAI_API_KEY": KEY}, {"HF_TOKEN": TOKEN}, None)
    told = json.loads(json.dumps(kept.to_json()))
    assert not any(word in json.dumps(told) for word in words)
    with pytest.raises(UsageError, match=f"the text of the command is not kept, for {said}"):
        parse_saved(CommandRecord, told).values({}, {"HF_TOKEN": "x"})


@pytest.mark.parametrize(
    "bent", [{"words": [3]}, {"words": []}, {"nodes": "2"}, {"nodes": [True]}, {"env": {"A": 1}}, {"more": 1}]
)
def test_what_is_no_kept_command_is_refused(bent: dict[str, object]) -> None:
    told = CommandRecord.from_command(["true"], {}, {}, 2).to_json() | bent
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        parse_saved(CommandRecord, told)


def test_a_secret_that_is_written_once_for_two_of_them_takes_nothing_else_with_it() -> None:
    """It stands in one place, however often it is named."""
    text = f"secrets:\n  A: &both |\n    {'x' * 60}\n  B: *both\nrun: |\n  echo one\n"
    with pytest.raises(JobFileError, match="its secrets cannot be left out of it"):
        strip_secrets(text, (), ())
    lines = f"secrets:\n  A: &both |\n    {'x' * 15}\n  B: *both\nsetup: one\nrun: two\n"
    with pytest.raises(JobFileError, match="its secrets cannot be left out of it"):
        strip_secrets(lines, (), ())
