"""User settings: read only from the user's own file, with notes about invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward_core.client.user_settings_and_app_state import NotifySettings, UserSettings, read_user_settings


@pytest.fixture
def user_settings(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home" / "skyward.toml"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path / "skyward.toml"


def test_user_settings_without_a_file_are_the_defaults(user_settings: Path, project: Path) -> None:
    assert (
        read_user_settings(user_settings, project)
        == UserSettings()
        == UserSettings("", False, True, 64.0, NotifySettings((), True, True, 10.0), {}, ())
    )


def test_user_settings_of_the_file_are_applied(user_settings: Path, project: Path) -> None:
    user_settings.write_text(
        '[app]\ntheme = "nord"\nascii = true\n[keys]\n"run.merge" = "m"\n[hosts]\nlab = ["gpu1"]\n'
        '[notify]\ncommand = "sh -c \'notify-send \\"$SKYWARD_MESSAGE\\"\'"\n'
        "bell = false\nterminal = false\nafter = 60\n"
    )
    expected = NotifySettings(("sh", "-c", 'notify-send "$SKYWARD_MESSAGE"'), False, False, 60.0)
    assert read_user_settings(user_settings, project) == UserSettings(
        "nord", True, keys={"run.merge": "m"}, notify=expected
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[notify]\ncommand = 5", "notify.command is ignored: it must be a text in quotes"),
        ('[notify]\ncommand = "notify-send \'a"', "notify.command is ignored: No closing quotation"),
        ('[notify]\ncommand = "a\\u0000b"', "notify.command is ignored: it contains a zero byte"),
        ("[notify]\nbell = 1", "notify.bell is ignored: it must be true or false"),
        ("[notify]\nafter = -1", "notify.after is ignored: it must be a number of seconds, 0 or more"),
        ("[notify]\nafter = inf", "notify.after is ignored: it must be a number of seconds, 0 or more"),
        ("[notify]\nafter = true", "notify.after is ignored: it must be a number of seconds, 0 or more"),
        ("[notify]\ncomand = 'x'", "unknown setting notify.comand"), ("notify = 7", "notify must be a table, [notify]"),
        ("[keys]\n'app.help' = 7", "keys.app.help is ignored: it must be a text in quotes"),
        ("[commands]\na = 'true'", "commands.a is ignored: it must be a table such as "
         '{key = "f7", command = "nvitop", background = false}'),
        ("[commands]\na = {key = 'f7', command = ''}", "commands.a is ignored: its command is empty"),
        ("[commands]\na = {key = 'f7', command = 'x {host}'}", "commands.a is ignored: unknown field {host}. Known: "
         "{pool}, {run}, {rank}, {script}. Write {{ and }} for braces"),
        ("[commands]\na = {key = 'f7', command = 'x {pool.name}'}", "commands.a is ignored: unknown field {pool.name}. "
         "Known: {pool}, {run}, {rank}, {script}. Write {{ and }} for braces"),
        ("[app]\ntheme = 7", "app.theme is ignored: it must be a text in quotes"),
        ("[app]\nascii = 'yes'", "app.ascii is ignored: it must be true or false"),
    ],
)  # fmt: skip
def test_invalid_user_setting_is_reported_and_default_applies(
    user_settings: Path, project: Path, content: str, message: str
) -> None:
    user_settings.write_text(content)
    found = read_user_settings(user_settings, project)
    assert found == UserSettings(refused=(f"{user_settings}: {message}",))


@pytest.mark.parametrize(
    "content", [b"nodes = ", b"\xff\xfe", b"a = 1\na = 2\n", b"x" * 2_000_000, b"a = " + b"[" * 9999]
)
def test_unparsable_user_settings_file_is_ignored_and_reported(
    user_settings: Path, project: Path, content: bytes
) -> None:
    user_settings.write_bytes(content)
    (text,) = read_user_settings(user_settings, project).refused
    assert text.startswith(f"{user_settings} is ignored: ")


def test_columns_of_the_user_are_names_in_a_text(user_settings: Path, project: Path) -> None:
    user_settings.write_text('[columns]\nruns = " lr, val/loss ,lr,"\n')
    assert read_user_settings(user_settings, project) == UserSettings(columns=("lr", "val/loss"))
    user_settings.write_text("[columns]\nruns = 7\nother = 'lr'\n")
    found = read_user_settings(user_settings, project)
    assert found.columns == () and [each.partition(": ")[2] for each in found.refused] == [
        "columns.runs is ignored: it must be a text in quotes",
        "unknown setting columns.other",
    ]


def test_unreadable_user_settings_file_is_ignored_and_reported(user_settings: Path, project: Path) -> None:
    user_settings.mkdir()
    (text,) = read_user_settings(user_settings, project).refused
    assert text.startswith(f"{user_settings} is ignored: ")


def test_keys_and_notify_of_project_settings_are_ignored(user_settings: Path, project: Path) -> None:
    """Otherwise the settings of a downloaded project could run its commands."""
    project.write_text(
        '[notify]\ncommand = "rm -rf /"\n[commands]\na = {key = "f7", command = "rm"}\n'
        '[keys]\n"hostkey.accept" = "enter"\n[hosts]\nlab = ["a"]\n'
    )
    assert read_user_settings(user_settings, project) == UserSettings(
        refused=(f"[keys] and [notify] and [commands] in {project} is ignored. Move it to {user_settings}",)
    )
    project.write_text('[hosts]\nlab = ["a"]\n')
    assert read_user_settings(user_settings, project) == UserSettings()
    project.write_text("not toml")
    assert read_user_settings(user_settings, project) == UserSettings(), "who wants a group of it is told"


def test_user_settings_are_read_if_home_is_the_working_folder(user_settings: Path) -> None:
    user_settings.write_text('[notify]\ncommand = "say done"\n')
    assert read_user_settings(user_settings, user_settings) == UserSettings(notify=NotifySettings(("say", "done")))
