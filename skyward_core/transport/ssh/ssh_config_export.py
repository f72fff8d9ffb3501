"""Export of running pools as OpenSSH configuration, for plain ``ssh POOL`` and ``ssh POOL-1``.

Each pool has its own file. One main file includes the files of all pools, and on request a line is added to the user's
``~/.ssh/config`` that includes this file. All options of a host are written out, because OpenSSH does not resolve the
user's aliases a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from skyward_core.store import state_folder
from skyward_core.transport.ssh.host_address_and_python import Target
from skyward_core.transport.ssh.ssh_config_and_preopened_sockets import SYSTEM_CONFIG, resolve
from skyward_core.util.safe_file_access import exists, read_text


def main_file() -> Path:
    """Return the path of the main file, which includes the files of all pools."""
    return state_folder.state_home() / "ssh_config"


def include_line() -> str:
    """Return the line for the top of the user's ``~/.ssh/config``."""
    return f"Include {_quoted(str(main_file()))}"


async def write(pool: str, targets: Sequence[Target]) -> Path:
    """Write the entries of a pool: ``POOL`` is node 0; ``POOL-1`` and SkyPilot's ``POOL-worker1`` are node 1, and so
    on.

    Returns:
        File for ``ssh -F``, with these entries and the user's own.

    Raises:
        UsageError: If ``~/.ssh/config`` is invalid.
        OSError: If a file cannot be written.
    """
    entries = [await _host_block(pool, node, target) for node, target in enumerate(targets)]
    folder = state_folder.state_home() / "ssh_config.d"
    folder.mkdir(mode=0o700, exist_ok=True)
    _replace(folder / f"{pool}.conf", "\n".join(entries))
    _replace(main_file(), f"Include {_quoted(f'{folder}/*.conf')}\n")
    whole = state_folder.state_home() / "ssh_config.whole"
    user = _quoted(str(Path("~/.ssh/config").expanduser()))
    _replace(whole, f"{include_line()}\nInclude {user}\nInclude {SYSTEM_CONFIG}\n")
    return whole


def remove(pool: str) -> None:
    """Remove the entries of a pool."""
    (state_folder.state_home() / "ssh_config.d" / f"{pool}.conf").unlink(missing_ok=True)


def add_include_line() -> bool:
    """Add :func:`include_line` at the top of the user's ``~/.ssh/config``; return False if it contains the line
    already.
    """
    file = Path("~/.ssh/config").expanduser()
    text = read_text(file) if exists(file) else ""
    if include_line() in text.splitlines():
        return False
    file.parent.mkdir(mode=0o700, exist_ok=True)
    _replace(file.resolve(), f"{include_line()}\n\n{text}")
    return True


async def _host_block(pool: str, node: int, target: Target) -> str:
    route = await resolve(target)
    names = f"{pool} {pool}-{node}" if node == 0 else f"{pool}-{node} {pool}-worker{node}"
    lines = [f"HostName {route.host}", f"Port {route.port}", f"User {_quoted(route.user)}"]
    lines += [f"HostKeyAlias {route.name}"] if route.has_alias else []
    lines += [f"IdentityFile {_file(file)}" for file in route.identities]
    lines += [f"CertificateFile {_file(file)}" for file in route.certificates]
    if agent := route.option("identityagent"):
        lines.append(f"IdentityAgent {agent if agent.startswith('$') else _file(agent)}")
    lines += [f"IdentitiesOnly {route.option('identitiesonly')}"] if route.option("identitiesonly") else []
    lines.append("UserKnownHostsFile " + " ".join(_file(str(file)) for file in route.known_hosts))
    lines += [f"RevokedHostKeys {_file(str(file))}" for file in route.revoked]
    lines.append("StrictHostKeyChecking yes")
    if route.jump:
        lines.append(f"ProxyJump {route.jump}")
    elif route.proxy_command:
        lines.append(f"ProxyCommand {route.proxy_command.replace('%', '%%')}")
    return f"Host {names}\n" + "".join(f"  {line}\n" for line in lines)


def _quoted(text: str) -> str:
    return f'"{text}"' if " " in text else text


def _file(name: str) -> str:
    return _quoted(name.replace("%", "%%"))


def _replace(file: Path, text: str) -> None:
    partial = file.with_name(file.name + ".part")
    partial.write_text(text, encoding="utf-8")
    partial.chmod(0o600)
    partial.replace(file)
