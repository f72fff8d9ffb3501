"""Files of a host's own /etc: names, users, sshd."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .options import HostOptions

HOME = "/run/home"  # of every host, and for every host its own


@dataclass(frozen=True, slots=True)
class Site:
    """Properties that the hosts of one lab share.

    Attributes:
        bridge: Name of the switch.
        network: First three numbers of every address.
        client: Address of the client.
        client_key: Public key that may log in.
        names: Address -> host name, of all hosts and the client.
        clock: Library that shifts the clock of a host with ``clock_offset``.
    """

    bridge: str
    network: str
    client: str
    client_key: str
    names: dict[str, str]
    clock: Path | None = None


def write_etc(folder: Path, name: str, key: bytes, options: HostOptions, site: Site) -> None:
    """Write the files that a host mounts over its /etc, and the files of its sshd.

    Args:
        folder: Folder that becomes the host's /run/lab.
        key: Private host key in OpenSSH's format.
    """
    good = options.names == "good"
    known = "".join(f"{address} {peer}\n" for address, peer in site.names.items()) if good else ""
    files = {
        "hostname": f"{name}\n",
        "hosts": f"127.0.0.1 localhost\n{known}",
        # No server listens at 127.0.0.1, so a query fails at once. The client's port 53 never answers: one short
        # attempt has the same result as two of 5 s, in less time.
        "resolv.conf": f"nameserver {'127.0.0.1' if good else site.client}\noptions timeout:1 attempts:1\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n",
        # In the user database, so that HOME and ~ agree. Root's real home is not covered by a mount, because it may
        # contain the interpreter.
        "passwd": _users("/etc/passwd", *_roots(options)),
        # OpenSSH turns a locked account away even with the right key.
        "shadow": _users("/etc/shadow", *(f"{name}:*:19000:0:99999:7:::" for name in _root_names(options))),
        "authorized_keys": f"{site.client_key}\n",
        "banner": f"{options.banner}\n",
        "sshd_config": _sshd_config(options),
        "host_key": key.decode(),
        "before_sshd": options.before_sshd,
    }
    if site.clock is not None and options.clock_offset:
        (folder / "clock.so").write_bytes(site.clock.read_bytes())
    for file, text in files.items():
        (folder / file).write_text(text)
        (folder / file).chmod(0o600 if file in ("host_key", "shadow", "before_sshd") else 0o644)


def _sshd_config(options: HostOptions) -> str:
    lines = [
        *options.sshd,
        "Port 22",
        "AddressFamily inet",
        f"HostKey {options.host_key_file}",
        "AuthorizedKeysFile /run/lab/authorized_keys",
        "PidFile none",
        "StrictModes no",  # the files belong to whoever made the lab
        "UsePAM no",
        "UseDNS no",
        "PermitRootLogin prohibit-password",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PrintMotd no",
        "LogLevel VERBOSE",
        "Subsystem sftp internal-sftp",
        "AcceptEnv LANG LC_*",
        f"AllowTcpForwarding {_yes(options.tcp_forwarding)}",
        f"AllowStreamLocalForwarding {_yes(options.unix_forwarding)}",
    ]
    if options.banner:
        lines.append("Banner /run/lab/banner")
    if options.max_sessions is not None:
        lines.append(f"MaxSessions {options.max_sessions}")
    if options.max_startups is not None:
        lines.append(f"MaxStartups {options.max_startups}")
    variables = dict(options.variables)
    if options.clock_offset:
        variables |= {"LD_PRELOAD": "/run/lab/clock.so", "SKY_CLOCK_OFFSET": str(options.clock_offset)}
    if variables:  # of several such lines sshd takes the first alone
        lines.append("SetEnv " + " ".join(f'"{name}={value}"' for name, value in variables.items()))
    return "\n".join(lines) + "\n"


def _root_names(options: HostOptions) -> list[str]:
    return ["root", *([options.second_root] if options.second_root else [])]


def _roots(options: HostOptions) -> Iterator[str]:
    for name in _root_names(options):
        home = HOME if name == "root" else f"{HOME}/{name}"
        yield f"{name}:x:0:0:{name}:{home}:{_shell()}"


def _users(path: str, *roots: str) -> str:
    ours = tuple(f"{line.partition(':')[0]}:" for line in roots)
    others = [line for line in Path(path).read_text().splitlines() if not line.startswith(ours)]
    return "\n".join([*roots, *others]) + "\n"


def _shell() -> str:
    return "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"


def _yes(allowed: bool) -> str:
    return "yes" if allowed else "no"
