"""Launches by name in skyward.toml: what is saved comes back, and what is gone since is told."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_core.client.launch.presets import Preset, delete, drop_unknown, presets, save
from skyward_core.model.errors import UsageError

SCRIPT = """
import skyward_core as sky

@sky.function
def train(epochs: int, lr: float = 0.01): ...
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "train.py").write_text(SCRIPT)
    return project


FULL = LaunchRequest(
    script="train.py", function="train", arguments=["epochs=3", 'lr="1"'], provider="ssh", python="python3",
    settings={"hosts": "gpu1 me@gpu2:22"}, nodes="2:8", ranks_per_node="gpu", accelerator="A100:8",
    max_hourly_cost=2.5, plugins=["torch"], outputs=["out/**"], keep=True, pool="mine", project=True,
    image_settings=["pip=einops", "env.WORD=a b", "secret=HOST_TOKEN"],
    plugin_settings={"torch.backend": "gloo", "torch.version": ">=2.3"},
)  # fmt: skip


def test_what_is_saved_comes_back_and_the_file_says_it_in_words(folder: Path) -> None:
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


def test_a_person_has_some_for_all_folders_and_those_of_the_folder_come_first(folder: Path, tmp_path: Path) -> None:
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


def test_what_there_is_not_any_more_is_told_and_the_rest_is_there() -> None:
    entry = {
        "script": "train.py", "provider": "cupboard", "settings": {"shelf": 3}, "nodes": True, "colour\x1b[2J": "red",
        "plugins": ["torch", "magic"], "keep": True,
        "plugin_settings": {"torch.init": False, "torch.wheel": "x", "magic.wand": 1},
    }  # fmt: skip
    request, said = Preset("p", Path(), entry).request()
    kept = {"torch.init": "false"}
    assert request == LaunchRequest(script="train.py", plugins=["torch"], plugin_settings=kept, keep=True)
    told = "\n".join(said)
    for each in (
        "no provider cupboard",
        "nodes is a whole number or a text, not True",
        "no colour",
        "no plugin magic",
        "no parameter torch.wheel",
        "magic.wand is a parameter of no plugin",
    ):
        assert each in told
    assert "\x1b" not in told
    request, said = Preset("p", Path(), {"pool": "a\x1b[2J", "outputs": ["a\nb"], "keep": True}).request()
    assert (request.pool, request.outputs, request.keep) == (None, (), True) and len(said) == 2
    request, said = Preset("p", Path(), {"settings": {"hosts": "x", "spares": 2}, "provider": "ssh"}).request()
    assert dict(request.settings) == {"hosts": "x"} and said == ["provider ssh has no setting spares any more"]
    assert Preset("p", Path(), 3).request()[1] == ["preset p is no table"]


def test_functions_and_arguments_that_the_script_lost_are_told(folder: Path) -> None:
    asked = LaunchRequest(script="train.py", function="train", arguments=["epochs=3", "warmup=2"])
    left, said = drop_unknown(asked)
    assert left.arguments == ("epochs=3",) and said == ["train takes no argument warmup any more"]
    left, said = drop_unknown(LaunchRequest(script="train.py", function="fit", arguments=["epochs=3"]))
    assert (left.function, left.arguments) == (None, ()) and "has no function fit" in said[0]
    gone = LaunchRequest(script="gone.py", function="fit", arguments=["epochs=3"])
    assert drop_unknown(gone) == (gone, []), "whoever looks for the script says so"


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 61])
def test_a_name_that_nobody_could_read_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="a preset's name"):
        save(name, FULL)


def test_a_file_that_is_no_toml_or_could_be_anybodys_is_not_touched(folder: Path) -> None:
    file = folder / "skyward.toml"
    file.write_text("[hosts\n")
    for do in (presets, lambda: save("a", FULL)):
        with pytest.raises(UsageError, match="does not parse"):
            do()
    assert file.read_text() == "[hosts\n"
    file.write_text("")
    file.chmod(0o666)
    for do in (presets, lambda: save("a", FULL)):
        with pytest.raises(UsageError, match="is not believed"):
            do()


def test_a_link_stays_one_and_a_file_that_cannot_be_written_stays_as_it_was(folder: Path, tmp_path: Path) -> None:
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
