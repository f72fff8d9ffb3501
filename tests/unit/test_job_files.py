"""Job files: meaning of their keys, and errors for unsupported content."""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from base64 import b64decode
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import skyward_core as sky
from skyward_core.client.launch.job_and_shell_launch import JobRequest, parse_variables
from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.model.errors import JobFileError
from skyward_core.model.provider_capability_protocols import RunsHere
from skyward_core.tasks.job_file import JobFile
from skyward_core.tasks.job_file_resources import WantedMachine
from skyward_core.tasks.job_yaml_validation import IGNORED_KEYS, UNSUPPORTED_KEYS, JobKeys, ResourceKeys
from skyward_tui.cli.shared_options_and_command_class import variable_options
from tests.support.examples import examples

FILE = Path("train.yaml")


def parse_job(text: str, **options: Any) -> JobFile:
    return JobFile.from_text(textwrap.dedent(text), FILE, **options)


def parse_error(text: str, **options: Any) -> str:
    with pytest.raises(JobFileError) as caught:
        parse_job(text, **options)
    return str(caught.value)


def test_job_file_with_every_key_is_parsed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    job = parse_job(
        f"""
        name: train-${{SIZE}}
        workdir: {tmp_path}
        num_nodes: 4
        resources:
          accelerators: H100:8
          cpus: 32+
          memory: 512GB
          use_spot: true
          infra: aws/us-east-1/us-east-1a
          disk_size: 1TB
          autostop: 2h
        envs: {{SIZE: 13, LR: 0.1, FLAG: true, DAY: 2026-11-26}}
        secrets: {{HF_TOKEN: hf_abcdefgh}}
        file_mounts:
          /data/${{SIZE}}: {tmp_path}/data
        setup: pip install -r requirements.txt
        run: |
          python train.py
          echo done
        """
    )
    assert (job.name, job.workdir, job.num_nodes, job.gpus) == ("train-13", tmp_path, 4, 8)
    assert job.ways == (
        WantedMachine(
            cloud="aws", region="us-east-1", zone="us-east-1a", accelerator="H100:8", gpus=8, vcpus=32,
            memory_gb=512, disk_gb=1024, spot=True,
        ),
    )  # fmt: skip
    assert job.idle_seconds == 7200
    assert job.envs == {"SIZE": "13", "LR": "0.1", "FLAG": "True", "DAY": "2026-11-26"}
    assert job.mounts == {"/data/13": tmp_path / "data"}
    assert (job.setup, job.run) == ("pip install -r requirements.txt", "python train.py\necho done\n")
    assert [call.name for call in job.calls()] == ["file_mounts", "setup", "train-13"]
    assert [call.name for call in job.calls(setup=False)] == ["file_mounts", "train-13"]
    assert "hf_abcdefgh" not in repr(job)


@pytest.mark.parametrize(
    "resources, ways",
    [
        ("accelerators: A100", ["A100:1"]),
        ("accelerators: {A100: 8}", ["A100:8"]),
        ("accelerators: {A100:1, V100:2}", ["A100:1", "V100:2"]),
        ("accelerators: [L4:1, {T4: 2}, null]", ["L4:1", "T4:2", ""]),
        ("accelerators: L4:0.5", ["L4:1"]),
        ("any_of: [{accelerators: A100:8}, {accelerators: H100:8}]", ["A100:8", "H100:8"]),
        ("{accelerators: H100, ordered: [{infra: aws/us-east-1}, {infra: aws/us-west-2}]}", ["H100:1", "H100:1"]),
        ("cpus: 2", [""]),
    ],
)
def test_each_form_of_accelerators_becomes_alternatives(resources: str, ways: list[str]) -> None:
    inner = resources if resources.startswith("{") else f"{{{resources}}}"
    job = parse_job(f"resources: {inner}")
    assert [way.accelerator for way in job.ways] == ways
    assert job.ordered == ("ordered" in resources or "accelerators: [" in resources)


def test_alternatives_override_resources_beside_them() -> None:
    job = parse_job(
        """
        resources:
          infra: aws/us-east-1
          cpus: 8+
          any_of:
            - cpus: 4
            - infra: gcp
            - region: us-west-2
              infra: null
              cloud: aws
        """
    )
    reported = [(way.cloud, way.region, way.vcpus) for way in job.ways]
    assert reported == [("aws", "us-east-1", 4), ("gcp", "", 8), ("aws", "us-west-2", 8)]


@pytest.mark.parametrize(
    "text, words",
    [
        ("run: [", "line 1"),
        ("run: a\n  b: c\n", "line 2: mapping values are not allowed here"),
        ("just words\n", "not a text"),
        ("a: 1\n---\nb: 2\n", "line 3: several documents"),
        ("run: a\nrun: b\n", "line 2: run is repeated (first in line 1)"),
        ("runn: a\n", "line 1: unknown key 'runn'. Did you mean run?"),
        ("run: a\nresources:\n  acelerators: A100\n", "line 3: unknown key 'acelerators'. Did you mean acc"),
        ("run: a\nservice:\n  replicas: 2\n", "line 2: service is not supported: run the server"),
        ("resources:\n  any_of:\n  - accelerator_args: {}\n", "line 3: resources.accelerator_args is not supported"),
        ("num_nodes: many\n", "line 1: num_nodes cannot be 'many': "),
        ("num_nodes: 0\n", "num_nodes cannot be 0"),
        ("resources:\n  cpus: lots\n", "line 2: resources.cpus cannot be 'lots': expected a number"),
        ("resources:\n  accelerators: A100:x\n", "line 2: an accelerator must be NAME:COUNT"),
        ("resources:\n  accelerators: tpu-v2-8\n", "Google TPU machines"),
        ("resources:\n  infra: aws/a/b/c\n", "infra must be CLOUD/REGION/ZONE"),
        ("resources:\n  infra: aws\n  region: us-east-1\n", "line 3: region is already part of infra"),
        ("resources:\n  image_id: docker:ubuntu\n", "line 2: containers are not supported"),
        ("resources:\n  image_id: {us-east-1: ami-1}\n", "Set a region"),
        ("resources:\n  any_of: [{cpus: 1}]\n  ordered: [{cpus: 1}]\n", "line 3: any_of and ordered are both set"),
        ("resources:\n  autostop: soon\n", "'soon' is not a duration"),
        ("envs:\n  A:\n", "line 2: envs: A has no value. Set it with --env A=VALUE"),
        ("envs:\n  a-b: 1\n", "'a-b' is not a variable name"),
        ("envs: {A: 1}\nsecrets: {A: 2}\n", "line 2: A is in envs and in secrets"),
        ("workdir: /no/such\n", "line 1: workdir: folder /no/such does not exist"),
        ("file_mounts:\n  /a: /no/such\n", "line 2: file_mounts: /a: /no/such does not exist"),
        ("file_mounts:\n  /a: s3://bucket/x\n", "line 2: file_mounts: /a: buckets, volumes and repositories"),
        ("file_mounts:\n  /tmp/x: /tmp\n", "/tmp/x is inside of its own source /tmp"),
        ("file_mounts:\n  /etc/x: /usr\n  /usr/x: /etc\n", "a circle"),
        ("run: !!python/object/apply:os.system [x]\n", "line 1"),
        ("run:\n\techo\n", "line 2: a tab is used in place of spaces"),
        ("name: a\nrun: a\0b\n", r"line 2: the character '\x00' is not allowed in YAML"),
        ('run: "a\\0b"\n', r"line 1: the character '\x00' is not supported"),
        ("name: 5\n", "line 1: name cannot be 5: expected a text. Put it in quotes"),
        ("resources:\n  any_of: []\n", "line 2: resources.any_of cannot be empty: expected at least one item"),
        ("resources:\n  autostop: {idle_minutes: 0}\n", "idle_minutes cannot be 0: expected more than 0"),
        ("workdir: {ref: main}\n", "line 1: workdir lacks url"),
        ("workdir: /etc/passwd\n", "workdir: /etc/passwd is not a folder"),
        ("workdir: https://u:pass@h/x\n", "write a repository as workdir: {url: https://h/x}"),
        ("workdir: ~nobody-at-all/x\n", "workdir: ~nobody-at-all/x: this machine has no such user"),
        ("file_mounts: {/a: ''}\n", "/a: expected a path on the nodes and a local path"),
        ("resources: {job_recovery: {strategy: none, max_restarts_on_errors: 1}}\n", "none allows no restarts. Remove"),
        ("file_mounts: {/a: 'git@github.com:a/b'}\n", "Clone a repository in setup"),
    ],
)  # fmt: skip
def test_invalid_job_file_error_names_its_line(text: str, words: str) -> None:
    message = parse_error(text)
    assert message.startswith("train.yaml") and words in message and "\n" not in message


def test_job_file_that_expands_without_bound_is_rejected() -> None:
    """Nested aliases expand ten lines to a thousand million values."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
    assert "too many or too deeply nested values" in parse_error("\n".join(lines))
    assert "characters" in parse_error("#" * (1 << 20) + "\n")


def test_missing_or_binary_job_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    found = (("none.yaml", "No such file"), ("bytes.yaml", "it is not text"), ("a.py", "Run it with `run .*a.py`"))
    for name, words in found:
        with pytest.raises(JobFileError, match=words):
            sky.Task.from_yaml(tmp_path / name)


def test_variables_of_the_command_line_override_the_job_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_SHELL", "here")
    text = "envs: {A: 1, B: , FROM_SHELL: }\nsecrets: {KEY: }\n"
    env = parse_variables("--env", ["B=x=y", "FROM_SHELL", "C=new"])
    job = parse_job(text, env=env, secrets={"KEY": "abcdefgh"})
    assert job.envs == {"A": "1", "B": "x=y", "FROM_SHELL": "here", "C": "new"}
    assert job.secrets == {"KEY": "abcdefgh"} and job.blanked == ("abcdefgh",)
    assert parse_job("secrets: {PIN: 1234}").notes == (
        "secrets: PIN has fewer than 8 characters, so it is not redacted in logs",
    )
    with pytest.raises(sky.UsageError, match="--env NONE: this shell has no variable of that name"):
        parse_job(text, env={"NONE": None})
    with pytest.raises(sky.UsageError, match="NAME=VALUE"):
        parse_variables("--env", ["=x"])
    job = parse_job("secrets: {KEY: }", env={"KEY": "abcdefgh"})
    assert job.blanked == ("abcdefgh",) and not job.envs and job.secrets == {"KEY": "abcdefgh"}


def test_env_file_sets_variables_and_its_errors_name_the_line(tmp_path: Path) -> None:
    seen: list[Sequence[str]] = []

    @click.command()
    @variable_options
    def command(env: Sequence[str], secrets: Sequence[str]) -> None:
        seen.append(env)

    file = tmp_path / "variables"
    file.write_text("# comment\n\n  export A=1\nB = \"x y\"\nC='it=s'\nD=\n")
    assert CliRunner().invoke(command, ["--env", "A=2", "--env-file", str(file)]).exit_code == 0
    assert parse_variables("--env", seen[0]) == {"A": "2", "B": "x y", "C": "it=s", "D": ""}
    for text, expected in (
        (b"A=1\nsecret-value\n", "line 2: it is not NAME=VALUE"),
        (b"2A=secret-value\n", "line 1: it is not NAME=VALUE"),
        (b"A=secret-value\0\n", "line 1: it is not NAME=VALUE"),
        (b"\xff=secret-value\n", "it is not text"),
    ):
        file.write_bytes(text)
        output = CliRunner().invoke(command, ["--env-file", str(file)], terminal_width=999).output
        assert expected in output and "variables" in output and "secret-value" not in output, output
    assert "No such file" in CliRunner().invoke(command, ["--env-file", str(tmp_path / "none")]).output


def test_secret_in_job_variables_is_noted_and_redacted() -> None:
    job = parse_job("envs: {HF_TOKEN: hf_NobodyMayRead, MAX_TOKENS: 4096, TOKENIZER_PATH: ~/tokens}")
    (note,) = job.notes
    assert note == "envs: HF_TOKEN has the name of a secret and is redacted in logs. Move it to secrets"
    assert job.blanked == ("hf_NobodyMayRead",) and "NobodyMayRead" not in repr(job)


def test_job_file_errors_quote_no_secret() -> None:
    key = "sk-NobodyMayRead"
    assert key not in parse_error(f"secrets: {{KEY: [{key}]}}")
    assert key not in parse_error(f"secrets: {{KEY: {key}}}\nenvs: {{KEY: {key}}}")


def test_keys_without_effect_are_noted_with_their_line() -> None:
    job = parse_job("resources:\n  ports: 8080\n  any_of:\n  - labels: {a: b}\nrun: x\n")
    assert [note.split(" has no effect")[0] for note in job.notes] == [
        "resources.ports (line 2)",
        "resources.labels (line 4)",
    ]


@pytest.mark.parametrize(
    "recovery, restarts, notes",
    [
        ("NONE", False, 0),
        ("none", False, 0),
        ("{strategy: none}", False, 0),
        ("EAGER_NEXT_REGION", True, 1),
        ("{}", True, 0),
    ],
)
def test_recovery_strategy_none_allows_no_restarts(recovery: str, *, restarts: bool, notes: int) -> None:
    job = parse_job(f"resources: {{job_recovery: {recovery}}}\nrun: a\n")
    assert (job.restarts_on_loss, len(job.notes)) == (restarts, notes)


def test_ignored_keys_are_known_and_unsupported_keys_are_not() -> None:
    for name in IGNORED_KEYS:
        assert name.removeprefix("resources.") in ResourceKeys.model_fields
    for name in UNSUPPORTED_KEYS:
        model = ResourceKeys if name.startswith("resources.") else JobKeys
        assert name.removeprefix("resources.") not in model.model_fields


@settings(max_examples=examples(150), deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.sampled_from(["", "run: ", "resources:\n  "]))
def test_any_job_file_text_is_parsed_or_rejected(text: str, before: str) -> None:
    try:
        JobFile.from_text(before + text, FILE)
    except JobFileError as error:
        assert str(error).startswith("train.yaml") and "\n" not in str(error)


_PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text("ab:/$~\n0.+", max_size=8)
_VALUES = st.recursive(
    _PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*JobKeys.model_fields, *ResourceKeys.model_fields]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=examples(200), deadline=None)
@given(st.dictionaries(st.sampled_from([*JobKeys.model_fields]), _VALUES, max_size=5))
def test_any_values_of_job_file_keys_are_parsed_or_rejected(values: dict[str, Any]) -> None:
    import json

    try:
        job = JobFile.from_text(json.dumps(values), FILE)  # JSON is YAML, too
        assert job.gpus >= 0 and job.folder
    except JobFileError as error:
        assert str(error).startswith("train.yaml") and "\n" not in str(error)


# -- the pool ------------------------------------------------------------------------------------------------


def test_job_file_without_cloud_runs_on_this_machine(tmp_path: Path) -> None:
    spec, notes = JobRequest.from_options(parse_job("num_nodes: 2\nresources: {accelerators: A100:8, cpus: 4+}")).spec()
    assert isinstance(spec.provider, RunsHere) and spec.nodes == 2 and str(spec.accelerator) == "A100:8"
    assert notes == ["cpus: ignored by provider local"]


def test_unsupported_cloud_error_lists_available_providers() -> None:
    with pytest.raises(sky.UsageError, match=r"train.yaml needs provider gcp, .* --provider \(aws, "):
        JobRequest.from_options(parse_job("resources: {infra: gcp}")).spec()
    spec, _ = JobRequest.from_options(parse_job("resources: {infra: gcp/us-central1}"), provider="local").spec()
    assert spec.provider.name == "local"


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["torch.backend=gloo"], ""),
        (["torch.backnd=gloo"], "plugin torch has no argument 'backnd'. Did you mean 'backend'"),
        (["jax.platform=cpu"], "jax.platform is not a parameter of a plugin of this launch (torch)"),
        (["backend=gloo"], "--plugin-set backend=gloo: invalid plugin parameter. Write PLUGIN.NAME=VALUE"),
    ],
)
def test_job_plugins_get_parameters_of_the_command_line(texts: list[str], words: str) -> None:
    data: Any = {"plugins": ("torch",), "plugin_settings": texts}
    if words:
        with pytest.raises(sky.UsageError, match=re.escape(words)):
            JobRequest(job=parse_job("run: a"), options=LaunchRequest.from_options("t.yaml", **data)).spec()
    else:
        request = JobRequest(job=parse_job("run: a"), options=LaunchRequest.from_options("t.yaml", **data))
        assert request.spec()[0].plugins == (sky.plugins.torch(backend="gloo"),)
        assert request.shapes_pool == ["--plugin", "--plugin-set"]


def test_alternatives_on_unsupported_clouds_are_ignored_and_noted() -> None:
    spec, notes = JobRequest.from_options(
        parse_job("resources: {any_of: [{infra: gcp}, {infra: aws/us-east-1, accelerators: H100:8}]}")
    ).spec()
    assert spec.provider.name == "aws" and spec.provider.region == ("us-east-1",)
    assert notes == ["alternatives on gcp are ignored: no such provider"]


def test_aws_resources_of_a_job_file_reach_the_pool_spec() -> None:
    spec, notes = JobRequest.from_options(
        parse_job(
            """
            resources:
              infra: aws/us-east-1/us-east-1a
              instance_type: p5.48xlarge
              image_id: ami-0123
              disk_size: 256
              use_spot: true
              cpus: 96+
            """
        ),
        budget=10,
        wait_for_capacity="2h",
        idle_timeout=300,
    ).spec()
    found = spec.provider
    assert (found.region, tuple(found.zones), found.instance_type, found.ami, found.disk_gb) == (
        ("us-east-1",), ("us-east-1a",), "p5.48xlarge", "ami-0123", 256,
    )  # fmt: skip
    assert spec.wish is not None and (spec.wish.allocation, spec.wish.vcpus) == ("spot", 96)
    assert (spec.options.budget, spec.options.wait_for_capacity, spec.options.idle_timeout) == (10, 7200, 300)
    assert notes == []


def test_hosts_option_overrides_the_cloud_of_the_job_file() -> None:
    job = parse_job("num_nodes: 2\nresources: {infra: aws/us-east-1, use_spot: true, accelerators: A100:8}")
    spec, notes = JobRequest(job=job, options=LaunchRequest.from_options("t.yaml", hosts="a.example,b.example")).spec()
    assert spec.provider.name == "ssh" and spec.nodes == 2
    assert notes == ["region, use_spot: ignored by provider ssh"]


def test_job_without_workdir_sends_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    spec, _ = JobRequest(
        job=parse_job("run: x"), options=LaunchRequest.from_options("t.yaml", hosts="a.example")
    ).spec()
    folder = Path(spec.image.workdir or "")
    assert folder.is_relative_to(tmp_path) and not list(folder.iterdir())


def test_git_workdir_of_a_job_is_cloned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))

    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    git("init", "--initial-branch=main")
    (tmp_path / "train.py").write_text("old")
    for words in (("add", "."), ("commit", "-m", "one"), ("tag", "v1")):
        git(*words)
    (tmp_path / "train.py").write_text("new")
    git("commit", "-am", "two")
    for ref, content in (("", "new"), ("v1", "old")):
        job = parse_job(f"workdir: {{url: {tmp_path}{f', ref: {ref}' if ref else ''}}}")
        spec, _ = JobRequest.from_options(job).spec()
        assert (Path(spec.image.workdir or "") / "train.py").read_text() == content
    with pytest.raises(JobFileError, match="git cannot fetch v9 of"):
        JobRequest.from_options(parse_job(f"workdir: {{url: {tmp_path}, ref: v9}}")).spec()


def test_repository_password_reaches_only_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The password appears neither in process arguments nor on the screen."""
    asked: list[str] = []

    class Forge(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if login := self.headers.get("Authorization", ""):
                asked.append(b64decode(login.removeprefix("Basic ")).decode())
            self.send_response(404 if login else 401)
            self.send_header("WWW-Authenticate", "Basic realm=x")
            self.end_headers()

        def log_message(self, *words: object) -> None: ...

    words = tmp_path / "words"
    script = tmp_path / "bin" / "git"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\necho "$@" >> {words}\nexec {shutil.which("git")} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Forge) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        job = parse_job(f"workdir: {{url: 'http://ann:Nobody%20Reads@127.0.0.1:{port}/x.git'}}")
        with pytest.raises(JobFileError, match=f"of http://127.0.0.1:{port}/x.git: ") as caught:
            JobRequest.from_options(job).spec()
        server.shutdown()
    assert set(asked) == {"ann:Nobody Reads"}
    assert "Nobody" not in f"{caught.value} {job.folder} {words.read_text()}"


def test_job_on_a_pool_with_another_working_folder_is_rejected(tmp_path: Path) -> None:
    """A job that a script launches runs only in the folder that the job file names."""
    ran = []

    class Somewhere:
        working_folder = str(tmp_path)
        run_one = None

        def run_all(self, call: Any) -> list[None]:
            ran.append(call)
            return []

    pool: Any = Somewhere()
    (tmp_path / "sub").mkdir()
    (tmp_path / "same").symlink_to(tmp_path)
    for refused, words in (
        (f"workdir: {tmp_path}/sub", r"Create the pool with image=sky.Image\(workdir='.*/sub'\)"),
        ("workdir: {url: https://me:hush@host/x}", "run_on does not clone repositories"),
    ):
        with pytest.raises(JobFileError, match=words):
            parse_job(f"{refused}\nrun: x").run_on(pool)
    assert not ran
    for same in (f"workdir: {tmp_path}/same", "name: x"):
        parse_job(f"{same}\nrun: x").run_on(pool)
    assert len(ran) == 2
    with pytest.warns(UserWarning, match="has no run, setup or file_mounts: nothing was run"):
        parse_job("name: x").run_on(pool)
    assert len(ran) == 2
