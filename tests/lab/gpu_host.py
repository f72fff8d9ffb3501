"""Lab host with GPUs that users share: a simulated driver, and real processes."""

from __future__ import annotations

from tests.support.fake_driver import compiled

from .host import Host
from .options import HostOptions


def gpu_host(layout: str) -> HostOptions:
    """Return the options of a host with GPUs of 80 GiB.

    Args:
        layout: One letter for each GPU; see ``fake_nvml.c``.
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
    """Install the simulated driver with idle GPUs."""
    compiled(host.root / "etc")
    measure(host)


def measure(host: Host, *lines: str) -> None:
    """Set the values that the driver reports for each GPU, in the format of ``fake_nvml.c``."""
    (host.root / "etc" / "gpus").write_text("".join(f"{line}\n" for line in lines))


def user_process(host: Host, command: str = "sleep 600", uid: int = 65534) -> int:
    """Start a process of a user of the host, by default nobody, which runs until the host is repaired. Return its pid
    there.
    """
    return int(host.run(f"setpriv --reuid={uid} --clear-groups {command} </dev/null >/dev/null 2>&1 & echo $!"))


def put_users(host: Host, *names: str) -> dict[str, int]:
    """Create users on the host and return their user ids."""
    users = {name: uid for uid, name in enumerate(names, 4000)}
    with (host.root / "etc" / "passwd").open("a") as file:
        file.writelines(f"{name}:x:{uid}:{uid}::/:/bin/sh\n" for name, uid in users.items())
    return users
