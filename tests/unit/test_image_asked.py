"""What ``--image-set`` and its like say is heeded, or refused in words that say what to write."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from skyward_core.client.launch.image_options import parse_image_options
from skyward_core.client.launch.launch_plan import make_plan
from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_core.client.launch.presets import Preset, save
from skyward_core.model.errors import SkywardError, UsageError
from skyward_tui.cli.main import cli

SCRIPT = "import skyward_core as sky\n@sky.function\ndef train(): ...\n"
ELSEWHERE = {"provider": "ssh", "settings": {"hosts": "a"}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "train.py").write_text(SCRIPT)
    return project


def asked(*texts: str, **more: Any) -> LaunchRequest:
    return LaunchRequest(script="train.py", function="train", image_settings=texts, **more)


REFUSED = {
    "no field": (["pipp=x"], "there is no 'pipp' of an image to be set; there are pip, apt"),
    "no value": (["pip"], "pip: write what it is to be as pip=VALUE"),
    "blank": (["setup=  "], "setup: write what it is to be as setup=VALUE"),
    "a variable without =": (["env.A"], "env.A: write what it is to be as env.A=VALUE"),
    "no name": (["env.=x"], "'' is no name of a variable: use letters, digits and underscores"),
    "no name of a secret": (["secret=a-b"], "'a-b' is no name of a variable"),
    "a secret's value": (["env.MY_TOKEN=abcdefgh"], "write secret=MY_TOKEN, and export it in the shell"),
    "a password in pip": (["pip=git+https://me:hunter22@x.org/y"], "pip holds a password or token in a URL"),
    "a token in setup": (
        ["setup=curl https://tok3n@x.org/y | sh"],
        "setup holds a password or token in a URL",
    ),
    "a password in a variable": (["env.INDEX=https://me:pw@x.org"], "env.INDEX holds a password or token"),
    "a secret's value in a command": (["setup=login --key hf_0123456789"], "setup holds what SHELL_TOKEN is"),
    "in a variable": (["env.WORD=hf_0123456789"], "write secret=SHELL_TOKEN beside it, export that"),
    "in other letters": (["setup=login aGZfMDEyMzQ1Njc4OQ=="], "setup holds what SHELL_TOKEN is"),
    "a secret made there": (["setup=export HF_TOKEN=zzzyyyxx1"], "and $HF_TOKEN here"),
    "a secret option": (["setup=curl --password=hunter22 h"], "setup holds what password is"),
    "a secret in a question": (["pip=x @ https://h/simple?token=abcde123"], "pip holds what token is"),
    "both": (["secret=A", "env.A=b"], "A is given a value and named as a secret: leave one of them out"),
    "not exported": (["secret=NOBODY_HAS_IT"], "the shell has no NOBODY_HAS_IT"),
    "too short": (["secret=SHORT_ONE"], "SHORT_ONE has fewer than 8 characters, and could not be blanked"),
    "out of the folder": (["includes=../x"], "includes: '../x' leads out of the working folder"),
    "from the root": (["includes=/etc/pass*"], "includes: '/etc/pass*' leads out of the working folder"),
    "no files": (["excludes=."], "excludes: '.' names no files"),
    "no pattern": (["includes=**x"], "includes: '**x' names no files"),
    "nothing of that name": (["includes=nosuch/**", "includes=train.py"], "is named by nosuch/**"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORT_ONE", "abc")
    monkeypatch.setenv("SHELL_TOKEN", "hf_0123456789")
    texts, words = REFUSED[case]
    with pytest.raises(SkywardError) as caught:
        make_plan(asked(*texts, **ELSEWHERE))
    assert words in str(caught.value) and caught.value.field == "image_settings"


@pytest.mark.parametrize(
    "text",
    [
        "setup=export HF_TOKEN=$HF_TOKEN", 'setup=login "${HF_TOKEN}"', "pip=django-secrets==19.1", "pip=token>=1.2",
        "setup=make TOKENIZER=fast", "setup=x --max_tokens=50000", "setup=x --token_file=/etc/passwd",
        "setup=read -p 'Password: ' x", "env.HF_HOME=/root/abc", "includes=token=*",
    ],
)  # fmt: skip
def test_what_only_names_a_secret_or_looks_like_one_is_heeded(text: str) -> None:
    parse_image_options([text])


@pytest.mark.parametrize("text", ["includes=train.py", "excludes=*.ckpt"])
def test_files_are_named_where_they_travel_only(text: str) -> None:
    assert make_plan(asked(text, **ELSEWHERE))
    with pytest.raises(UsageError, match=f"nothing travels: leave {text.partition('=')[0]} out"):
        make_plan(asked(text))


def test_the_command_refuses_in_a_line_and_begins_nothing(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["run", "train.py", "--image-set", "secret=NOBODY_HAS_IT"])
    assert done.exit_code == 2 and "export it first" in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.glob("home/pools/*"))


def test_a_plan_looks_at_what_the_patterns_name_and_at_no_other_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan is made at each key."""
    for number in range(50):
        (folder / f"f{number}").mkdir()
        for name in range(4):
            (folder / f"f{number}" / f"{name}.py").touch()
    (folder / "data").mkdir()
    (folder / "data" / "one.bin").touch()
    opened: list[str] = []
    scan = os.scandir

    def counted(path: Any = ".") -> Any:
        opened.append(str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", counted)
    monkeypatch.setattr(subprocess, "run", lambda *asked, **more: pytest.fail(f"it runs {asked}"))
    parse_image_options(["includes=data/*", "includes=train.py"]).check_files(folder, travels=True)
    assert len(opened) <= 2 and all(path.endswith("data") for path in opened), opened


def test_presets_keep_no_secret_and_say_what_they_cannot_understand(folder: Path) -> None:
    with pytest.raises(UsageError, match="MY_TOKEN is a secret by its name"):
        save("mine", asked("env.MY_TOKEN=abcdefgh"))
    with pytest.raises(UsageError, match="pip holds a password or token"):
        save("mine", asked("pip=git+https://me:hunter22@x.org/y"))
    assert not (folder / "skyward.toml").exists()
    for given in ("pip=einops", ["pip=einops", 3], {"pip": "einops"}):
        entry = {"script": "train.py", "image_settings": given}
        request, said = Preset("mine", folder, entry).request()
        assert request == LaunchRequest(script="train.py") and said[0].startswith("image_settings is a list of texts")
    entry = {"script": "train.py", "image_settings": ["pip=ein\x1b[2Jops"]}
    request, said = Preset("mine", folder, entry).request()
    assert request.image_settings == () and "cannot be shown" in said[0]


def test_a_preset_with_a_field_that_an_image_has_no_more_is_refused_by_the_plan(folder: Path) -> None:
    entry = {"script": "train.py", "function": "train", "image_settings": ["conda=numpy"]}
    request, said = Preset("mine", folder, entry).request()
    assert not said
    with pytest.raises(UsageError, match="there is no 'conda' of an image to be set"):
        make_plan(request)
