"""Instances of the bed are hosts: reached, set up and ended as EC2's are."""

from __future__ import annotations

import subprocess
from pathlib import Path

from . import Bed
from .waiting import launch, until_ssh, until_state


def ssh(address: str, key: Path, command: str, user: str = "ubuntu") -> subprocess.CompletedProcess[str]:
    options = [
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
        "IdentitiesOnly=yes",
        "LogLevel=ERROR",
        "ConnectTimeout=1",
    ]
    words = [word for option in options for word in ("-o", option)]
    return subprocess.run(
        ["ssh", "-F", "none", *words, "-i", str(key), f"{user}@{address}", command],
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_an_instance_takes_its_key_pair_and_ends(bed: Bed, tmp_path: Path) -> None:
    ec2 = bed.client()
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_text(ec2.create_key_pair(KeyName="mine", KeyType="ed25519")["KeyMaterial"])
    ids = launch(ec2, 2, KeyName="mine")
    until_state(bed, ids, "running")
    (reservation,) = ec2.describe_instances(InstanceIds=ids)["Reservations"]
    for instance in reservation["Instances"]:
        assert instance["PublicIpAddress"] == instance["PrivateIpAddress"]
        until_ssh(instance["PublicIpAddress"])
    first = reservation["Instances"][0]["PublicIpAddress"]
    done = ssh(first, key, "echo $USER $HOME; touch /etc/mine /usr/mine")
    assert (done.stdout, done.returncode) == ("ubuntu /run/home/ubuntu\n", 0), done.stderr
    assert not Path("/etc/mine").exists() and not Path("/usr/mine").exists()  # its disk is its own
    before = ec2.terminate_instances(InstanceIds=ids)["TerminatingInstances"]
    assert {change["PreviousState"]["Name"] for change in before} == {"running"}
    assert {change["CurrentState"]["Name"] for change in before} == {"shutting-down"}
    until_state(bed, ids, "terminated")
    assert ssh(first, key, "true").returncode == 255
