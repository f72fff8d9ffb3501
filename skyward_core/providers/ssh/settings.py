"""What a person may choose of hosts reached over SSH, for a form and a command line."""

from __future__ import annotations

from ...model.errors import UsageError
from ...model.setting import Field, Setting, flag, words
from ...store.home import host_groups


def _names(text: str) -> list[str] | str:
    """Hosts as a person lists them; a name alone may be a group's."""
    names = words(text)
    return names[0] if len(names) == 1 else names


def _hosts_field() -> Field:
    try:
        groups = sorted(host_groups())
    except UsageError:
        groups = []  # a start tells what is wrong with the file
    listed = ", ".join(groups)
    return Field(
        label="Hosts",
        placeholder=f"gpu1 me@gpu2:2222{f'; a group: {listed}' if groups else ', or a group of skyward.toml'}",
        missing=f"name hosts{f' or a group of skyward.toml ({listed})' if groups else ''}: gpu1 me@gpu2:2222",
        suggestions=groups,
    )


SETTINGS = (
    Setting(
        name="hosts",
        help="name them, or a group of skyward.toml",
        type=_names,
        required=True,
        option="--hosts",
        example="gpu1,gpu2",
        names_machines=True,
        field=_hosts_field,
    ),
    Setting(
        name="gpus",
        help="free: take only GPUs that nobody uses, a rank for each",
        example="free",
        field=lambda: Field(
            label="GPUs",
            placeholder="free: only those that nobody uses, a rank for each",
            suggestions=["free"],
        ),
    ),
    Setting(name="user", help="who to log in as where nothing else says"),
    Setting(name="port", help="where SSH servers listen where nothing else says", type=int),
    Setting(name="keys", help="files of private keys", type=words),
    Setting(name="known_hosts", help="a file of known host keys, in place of the usual ones"),
    Setting(name="python", help="the interpreter on the hosts"),
    Setting(name="config", help="whether ~/.ssh/config is read", type=flag, default=True),
    Setting(name="jump", help="a host to go through"),
    Setting(
        name="host_keys", help="known, ask or accept-new: what to do about an unknown key", default="known"
    ),
)
