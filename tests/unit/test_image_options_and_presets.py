"""Image options of the command line, and launch presets."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from skyward_core.client.launch.image_option_parsing import parse_image_options
from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.launch.launch_plan import make_plan
from skyward_core.client.launch.presets import Preset, delete, drop_unknown, presets, save
from skyward_core.model.errors import SkywardError, UsageError

SCRIPT = "import skyward_core as sky\n@sky.function\ndef train(epochs: int = 1, lr: float = 0.01): ...\n"
ELSEWHERE = {"provider": "ssh", "settings": {"hosts": "a"}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "train.py").write_text(SCRIPT)
    return project


def launch_request(*texts: str, **more: Any) -> LaunchRequest:
    return LaunchRequest(script="train.py", function="train", image_settings=texts, **more)


REFUSED = {
    "unknown field": (["pipp=x"], "unknown image option 'pipp'. Known: pip, apt"),
    "missing value": (["pip"], "pip has no value. Write pip=VALUE"),
    "invalid secret name": (["secret=a-b"], "'a-b' is not a variable name"),
    "value of a secret variable": (["env.MY_TOKEN=abcdefgh"], "Write secret=MY_TOKEN, and export it in the shell"),
    "password in a pip URL": (["pip=git+https://me:hunter22@x.org/y"], "pip contains a password or token in a URL"),
    "token in a setup URL": (["setup=curl https://tok3n@x.org/y | sh"], "setup contains a password or token in a URL"),
    "shell secret in setup": (["setup=login --key hf_0123456789"], "setup contains the value of SHELL_TOKEN"),
    "base64 shell secret in setup": (["setup=login aGZfMDEyMzQ1Njc4OQ=="], "setup contains the value of SHELL_TOKEN"),
    "secret literal in setup": (["setup=export HF_TOKEN=zzzyyyxx1"], "write $HF_TOKEN here"),
    "password option in setup": (["setup=curl --password=hunter22 h"], "setup contains the value of password"),
    "token in a URL query": (["pip=x @ https://h/simple?token=abcde123"], "pip contains the value of token"),
    "variable and secret of one name": (["secret=A", "env.A=b"], "A has a value and is a secret. Remove one of them"),
    "secret not exported": (["secret=NOBODY_HAS_IT"], "secret NOBODY_HAS_IT is not set in this shell"),
    "secret too short": (["secret=SHORT_ONE"], "SHORT_ONE has fewer than 8 characters, too few to be redacted"),
    "pattern outside the folder": (["includes=../x"], "includes: '../x' leads out of the working folder"),
    "pattern for no files": (["excludes=."], "excludes: '.' matches no files"),
    "pattern without a match": (["includes=nosuch/**", "includes=train.py"], "matches nosuch/**"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_image_option_is_rejected(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORT_ONE", "abc")
    monkeypatch.setenv("SHELL_TOKEN", "hf_0123456789")
    texts, words = REFUSED[case]
    with pytest.raises(SkywardError) as caught:
        make_plan(launch_request(*texts, **ELSEWHERE))
    assert words in str(caught.value) and caught.value.field == "image_settings"


@pytest.mark.parametrize(
    "text",
    [
        "setup=export HF_TOKEN=$HF_TOKEN", 'setup=login "${HF_TOKEN}"', "pip=django-secrets==19.1", "pip=token>=1.2",
        "setup=make TOKENIZER=fast", "setup=x --max_tokens=50000", "setup=x --token_file=/etc/passwd",
        "setup=read -p 'Password: ' x", "env.HF_HOME=/root/abc", "includes=token=*",
    ],
)  # fmt: skip
def test_image_option_that_only_resembles_a_secret_is_accepted(text: str) -> None:
    parse_image_options([text])


@pytest.mark.parametrize("text", ["includes=train.py", "excludes=*.ckpt"])
def test_includes_and_excludes_are_rejected_for_local_pools(text: str) -> None:
    assert make_plan(launch_request(text, **ELSEWHERE))
    with pytest.raises(UsageError, match=f"Remove {text.partition('=')[0]}"):
        make_plan(launch_request(text))


def test_presets_save_no_secret_and_explain_invalid_values(folder: Path) -> None:
    with pytest.raises(UsageError, match="MY_TOKEN has the name of a secret"):
        save("mine", launch_request("env.MY_TOKEN=abcdefgh"))
    with pytest.raises(UsageError, match="pip contains a password or token"):
        save("mine", launch_request("pip=git+https://me:hunter22@x.org/y"))
    assert not (folder / "skyward.toml").exists()
    for given in ("pip=einops", ["pip=einops", 3], {"pip": "einops"}):
        entry = {"script": "train.py", "image_settings": given}
        request, problems = Preset("mine", folder, entry).request()
        assert request == LaunchRequest(script="train.py") and problems[0].startswith(
            "image_settings must be a list of texts"
        )
    entry = {"script": "train.py", "image_settings": ["pip=ein\x1b[2Jops"]}
    request, problems = Preset("mine", folder, entry).request()
    assert request.image_settings == () and "unprintable characters" in problems[0]


# Launches by name in skyward.toml: what is saved comes back, and what is gone since is told.


FULL = LaunchRequest(
    script="train.py", function="train", arguments=["epochs=3", 'lr="1"'], provider="ssh", python="python3",
    settings={"hosts": "gpu1 me@gpu2:22"}, nodes="2:8", ranks_per_node="gpu", accelerator="A100:8",
    max_hourly_cost=2.5, plugins=["torch"], outputs=["out/**"], keep=True, pool="mine", project=True,
    image_settings=["pip=einops", "env.WORD=a b", "secret=HOST_TOKEN"],
    plugin_settings={"torch.backend": "gloo", "torch.version": ">=2.3"},
)  # fmt: skip


def test_saved_preset_is_loaded_unchanged(folder: Path) -> None:
    file = folder / "skyward.toml"
    file.write_text("# mine\n[hosts]\nlab = 'gpu1'\n")
    file.chmod(0o640)
    assert save("small run", FULL) == file
    (found,) = presets()
    assert (found.name, found.request()) == ("small run", (FULL, []))
    assert file.read_text().startswith("# mine\n[hosts]\nlab = 'gpu1'\n\n[presets.\"small run\"]\nscript = ")
    assert file.stat().st_mode & 0o777 == 0o640
    save("small run", LaunchRequest(script="train.py"))
    assert tomllib.loads(file.read_text())["presets"] == {"small run": {"script": "train.py"}}
    delete(presets()[0])
    assert presets() == [] and file.read_text() == "# mine\n[hosts]\nlab = 'gpu1'\n"
    assert sorted(each.name for each in folder.iterdir()) == ["skyward.toml", "train.py"]


def test_presets_of_the_working_folder_override_those_of_the_home(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    own = tmp_path / "home" / "skyward.toml"
    own.write_text('[presets.a]\nscript = "own.py"\n[presets.b]\nscript = "own.py"\n')
    save("a", LaunchRequest(script="train.py"))
    assert [(each.name, each.file.parent.name, each.entry["script"]) for each in presets()] == [
        ("a", "project", "train.py"),
        ("b", "home", "own.py"),
    ]
    delete(presets()[1])
    assert "presets.b" not in own.read_text() and "presets.a" in own.read_text()


def test_preset_with_unknown_values_reports_them_and_keeps_the_rest() -> None:
    entry = {
        "script": "train.py", "provider": "cupboard", "settings": {"shelf": 3}, "nodes": True, "colour\x1b[2J": "red",
        "plugins": ["torch", "magic"], "keep": True,
        "plugin_settings": {"torch.init": False, "torch.wheel": "x", "magic.wand": 1},
    }  # fmt: skip
    request, problems = Preset("p", Path(), entry).request()
    data = {"torch.init": "false"}
    assert request == LaunchRequest(script="train.py", plugins=["torch"], plugin_settings=data, keep=True)
    text = "\n".join(problems)
    for each in (
        "provider cupboard does not exist",
        "nodes must be a whole number or a text, not True",
        "launch option colour no longer exists",
        "plugin magic does not exist",
        "plugin parameter torch.wheel no longer exists",
        "magic.wand is not a parameter of a plugin",
    ):
        assert each in text
    assert "\x1b" not in text
    request, problems = Preset("p", Path(), {"pool": "a\x1b[2J", "outputs": ["a\nb"], "keep": True}).request()
    assert (request.pool, request.outputs, request.keep) == (None, (), True) and len(problems) == 2
    request, problems = Preset("p", Path(), {"settings": {"hosts": "x", "spares": 2}, "provider": "ssh"}).request()
    assert dict(request.settings) == {"hosts": "x"} and problems == ["provider ssh no longer has setting spares"]
    assert Preset("p", Path(), 3).request()[1] == ["preset p is not a table"]


def test_preset_reports_functions_and_arguments_missing_in_script(folder: Path) -> None:
    asked = LaunchRequest(script="train.py", function="train", arguments=["epochs=3", "warmup=2"])
    left, problems = drop_unknown(asked)
    assert left.arguments == ("epochs=3",) and problems == ["train no longer has argument warmup"]
    left, problems = drop_unknown(LaunchRequest(script="train.py", function="fit", arguments=["epochs=3"]))
    assert (left.function, left.arguments) == (None, ()) and "has no function fit" in problems[0]
    gone = LaunchRequest(script="gone.py", function="fit", arguments=["epochs=3"])
    assert drop_unknown(gone) == (gone, []), "whoever looks for the script says so"


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 61])
def test_invalid_preset_name_is_rejected(name: str) -> None:
    with pytest.raises(UsageError, match="a preset's name"):
        save(name, FULL)


def test_preset_file_that_is_invalid_or_insecure_is_not_changed(folder: Path) -> None:
    file = folder / "skyward.toml"
    file.write_text("[hosts\n")
    for do in (presets, lambda: save("a", FULL)):
        with pytest.raises(UsageError, match="does not parse"):
            do()
    assert file.read_text() == "[hosts\n"
    file.write_text("")
    file.chmod(0o666)
    for do in (presets, lambda: save("a", FULL)):
        with pytest.raises(UsageError, match="Refusing to read"):
            do()


def test_preset_file_link_is_kept_and_failed_save_changes_nothing(folder: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text("# mine\n")
    (folder / "skyward.toml").symlink_to(real)
    save("a", LaunchRequest(script="train.py"))
    assert (folder / "skyward.toml").is_symlink() and "[presets.a]" in real.read_text()
    (tmp_path / "dotfiles.toml.draft").mkdir()
    before = real.read_text()
    with pytest.raises(OSError, match="dotfiles"):
        save("b", LaunchRequest(script="train.py"))
    assert real.read_text() == before
