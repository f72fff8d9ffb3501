"""A host of a lab with GPUs of its own, which people use: the driver's stand-in, and real processes."""

from __future__ import annotations

from tests.support.fake_driver import compiled

from .host import Host
from .options import HostOptions


def gpu_host(layout: str) -> HostOptions:
    """The quirks of a host with GPUs of 80 GiB.

    Args:
        layout: a letter for each, as ``fake_nvml.c`` has it.
    """
    return HostOptions(
        variables={
            "FAKE_GPUS": layout,
            "FAKE_GPU_MIB": "81920",
            "FAKE_GPU_FILE": "/run/lab/gpus",
            "LD_LIBRARY_PATH": "/run/lab",
        },
        # Where a driver is, there is this folder.
        before_sshd="mount -n -t tmpfs tmpfs /proc/driver && mkdir -p /proc/driver/nvidia/gpus",
    )


def put_driver(host: Host) -> None:
    """Have the driver there, and all GPUs idle."""
    compiled(host.root / "etc")
    measure(host)


def measure(host: Host, *lines: str) -> None:
    """What the driver says of each GPU from now on, as ``fake_nvml.c`` has it."""
    (host.root / "etc" / "gpus").write_text("".join(f"{line}\n" for line in lines))


def user_process(host: Host, command: str = "sleep 600", uid: int = 65534) -> int:
    """A process of a user of the host, nobody by default, which goes on until the host is healed; its number there."""
    return int(host.run(f"setpriv --reuid={uid} --clear-groups {command} </dev/null >/dev/null 2>&1 & echo $!"))


def put_users(host: Host, *names: str) -> dict[str, int]:
    """Have these users there; gives their numbers."""
    users = {name: uid for uid, name in enumerate(names, 4000)}
    with (host.root / "etc" / "passwd").open("a") as file:
        file.writelines(f"{name}:x:{uid}:{uid}::/:/bin/sh\n" for name, uid in users.items())
    return users
