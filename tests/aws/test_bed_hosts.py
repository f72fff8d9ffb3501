"""Instances of the bed are lab hosts with EC2's setup and lifecycle."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skyward_core.transport.ssh.asyncssh_patches import asyncssh
from tests.lab.tools import wait_until

from . import Bed
from .images import DEEP
from .waiting import launch, until_ssh, until_state

pytestmark = pytest.mark.proof("7 s of a processor, for what tests stand on")


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


REPOSITORY = Path(__file__).parents[2]
QUERY = "--query-gpu=name,memory.total,driver_version --format=csv,noheader"


@pytest.fixture
def key(bed: Bed, tmp_path: Path) -> Path:
    """Private key of a key pair named mine."""
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_text(bed.client().create_key_pair(KeyName="mine", KeyType="ed25519")["KeyMaterial"])
    return path


def open_group(bed: Bed) -> str:
    """Security group that allows SSH from this machine."""
    ec2 = bed.client()
    group: str = ec2.create_security_group(GroupName=f"open-{len(bed.calls())}", Description="-")["GroupId"]
    ec2.authorize_security_group_ingress(GroupId=group, **ssh_from(f"{bed.client_address()}/32"))
    return group


def ssh_from(network: str) -> dict[str, Any]:
    return {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "CidrIp": network}


def listens(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=0.5):
            return True
    except TimeoutError:
        return False


def one_host(bed: Bed, **more: Any) -> tuple[str, str]:
    """Id and address of a running machine whose sshd answers."""
    ids = launch(bed.client(), KeyName="mine", SecurityGroupIds=[open_group(bed)], **more)
    (found,) = until_state(bed, ids, "running")
    until_ssh(found["public"])
    return found["id"], found["public"]


def test_user_data_runs_in_the_order_of_cloud_init(bed: Bed, key: Path) -> None:
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    config = {
        "bootcmd": ["echo early ${HOME-nowhere} > /etc/order", ["sh", "-c", "exit 3"]],
        "write_files": [{"path": "/opt/mine/file", "content": "written", "permissions": "0600"}],
        "ssh_keys": {"ed25519_private": host_key.export_private_key().decode()},
        "runcmd": ["echo late >> /etc/order; exit 7"],
    }
    _, address = one_host(bed, UserData=f"#cloud-config\n{json.dumps(config)}")
    shown = subprocess.run(["ssh-keyscan", "-t", "ed25519", address], capture_output=True, text=True).stdout
    assert shown.split()[2] == host_key.export_public_key().decode().split()[1]
    done = ssh(address, key, "cloud-init status --wait; cat /etc/order /opt/mine/file; stat -c %a /opt/mine/file")
    assert done.stdout == "status: error\nearly nowhere\nlate\nwritten600\n", done.stderr
    assert bed.instances()[0]["cloud_init"] == "error: part-001 ended with 7"
    refused = ssh(address, key, "true", user="root")
    assert (refused.returncode, refused.stdout) == (
        142,
        'Please login as the user "ubuntu" rather than the user "root".\n',
    )


def test_shutdown_inside_an_instance_terminates_it(bed: Bed, key: Path) -> None:
    bed.minutes(0.5)
    script = "#!/bin/sh\nshutdown -P +2400"
    name, address = one_host(bed, UserData=script, InstanceInitiatedShutdownBehavior="terminate")
    wait_until(lambda: bed.instances()[0]["ends_at"] is not None, "the deadman")
    assert 1100 < bed.instances()[0]["ends_at"] - bed.instances()[0]["launched"] < 1300
    assert ssh(address, key, "shutdown now").returncode == 1  # it takes sudo
    assert ssh(address, key, "cat /run/systemd/shutdown/scheduled; sudo shutdown -c").stdout.startswith("USEC=")
    wait_until(lambda: bed.instances()[0]["ends_at"] is None, "the cancelled deadman")
    ssh(address, key, "sudo -n shutdown -P +1")
    until_state(bed, [name], "terminated")
    (found,) = bed.client().describe_instances()["Reservations"][0]["Instances"]
    assert found["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


def test_reboot_keeps_home_and_host_key_and_loses_armed_shutdown(bed: Bed, key: Path) -> None:
    config = {
        "write_files": [
            {
                "path": "/var/lib/cloud/scripts/per-boot/count",
                "content": "#!/bin/sh\necho boot >> /run/home/ubuntu/boots\n",
                "permissions": "0755",
            }
        ],
        "runcmd": [["shutdown", "-P", "+60"]],
    }
    name, address = one_host(bed, UserData=f"#cloud-config\n{json.dumps(config)}")
    wait_until(lambda: bed.instances()[0]["ends_at"] is not None, "the deadman")
    before = subprocess.run(["ssh-keyscan", "-t", "ed25519", address], capture_output=True, text=True).stdout
    bed.reboot(name)
    wait_until(lambda: bed.instances()[0]["ends_at"] is None, "the loss of the deadman")
    counted = "cloud-init status --wait >/dev/null; cat ~/boots"
    wait_until(lambda: ssh(address, key, counted).stdout.split() == ["boot", "boot"], "the second boot")
    after = subprocess.run(["ssh-keyscan", "-t", "ed25519", address], capture_output=True, text=True).stdout
    assert before == after and [each["state"] for each in bed.instances()] == ["running"]
    assert bed.instances()[0]["ends_at"] is None, "runcmd runs once"


def test_termination_sends_sigterm_unless_os_shutdown_is_skipped(bed: Bed, key: Path) -> None:
    with socket.create_server((bed.client_address(), 0)) as server:
        server.settimeout(20)
        tells = f"exec 3<>/dev/tcp/{bed.client_address()}/{server.getsockname()[1]}; echo $0 >&3"
        for name, more in (("hard", {"SkipOsShutdown": True}), ("soft", {})):
            instance, address = one_host(bed)
            script = f"trap '{tells}; exit' TERM; while :; do sleep 0.05; done"
            ssh(address, key, f"nohup bash -c {shlex.quote(script)} {name} >/dev/null 2>&1 & sleep 0.2")
            bed.client().terminate_instances(InstanceIds=[instance], **more)
            until_state(bed, [instance], "terminated")
        connection, _ = server.accept()
        with connection:
            assert connection.recv(100) == b"soft\n"


def test_instance_metadata_requires_a_token(bed: Bed, key: Path) -> None:
    name, address = one_host(bed, InstanceMarketOptions={"MarketType": "spot"})
    ask = "curl -s -o - -w ' %{http_code}\\n'"
    ttl = "-H 'X-aws-ec2-metadata-token-ttl-seconds: 60'"
    token = f'"X-aws-ec2-metadata-token: $(curl -s -X PUT {ttl} $at/api/token)"'
    at = "at=http://169.254.169.254/latest; "
    assert ssh(address, key, f"{at}{ask} $at/meta-data/instance-id").stdout == " 401\n"
    assert ssh(address, key, f"{at}{ask} -X PUT $at/api/token").stdout == " 400\n"
    asked = f"{at}{ask} -H {token} $at/meta-data/"
    assert ssh(address, key, f"{asked}instance-id").stdout == f"{name} 200\n"
    assert ssh(address, key, f"{asked}spot/instance-action").stdout == " 404\n"
    bed.spot_notice(name, seconds=2)
    notice, _, code = ssh(address, key, f"{asked}spot/instance-action").stdout.strip().rpartition(" ")
    assert (json.loads(notice)["action"], code) == ("terminate", "200")
    (found,) = until_state(bed, [name], "terminated")
    assert found["reason"] == "Server.SpotInstanceTermination"


def test_instance_has_the_gpus_of_its_type(bed: Bed, key: Path) -> None:
    _, address = one_host(bed, InstanceType="g4dn.12xlarge", ImageId=DEEP.ami)
    code = "from pynvml import *; nvmlInit(); print(nvmlDeviceGetName(nvmlDeviceGetHandleByIndex(3)))"
    done = ssh(address, key, f'{sys.executable} -c "{code}"; nvidia-smi {QUERY}')
    assert done.stdout == "Tesla T4\n" + 4 * "Tesla T4, 16384 MiB, 570.0\n", done.stderr


def test_security_group_rules_decide_who_can_connect(bed: Bed) -> None:
    ec2 = bed.client()
    group = ec2.create_security_group(GroupName="mine", Description="-")["GroupId"]
    ec2.authorize_security_group_ingress(GroupId=group, **ssh_from("203.0.113.7/32"))
    (found,) = until_state(bed, launch(ec2, SecurityGroupIds=[group]), "running")
    assert not listens(found["public"])
    ec2.authorize_security_group_ingress(GroupId=group, **ssh_from("127.0.0.1/32"))
    until_ssh(found["public"])
    ec2.revoke_security_group_ingress(GroupId=group, **ssh_from("127.0.0.1/32"))
    assert not listens(found["public"])


def test_unplugged_or_powered_off_instance_is_still_running_for_ec2(bed: Bed, key: Path) -> None:
    name, address = one_host(bed)
    bed.unplug(name)
    assert ssh(address, key, "true").returncode == 255
    bed.plug(name)
    until_ssh(address)
    bed.power_off(name)
    assert ssh(address, key, "true").returncode == 255
    assert bed.instances()[0]["state"] == "running"


def test_bed_of_a_killed_owner_leaves_no_process(bed: Bed) -> None:
    """The bed's process ends when its standard input closes, and its hosts end with it."""
    code = (
        "import sys; from tests.aws import Bed; from tests.aws.waiting import launch, until_state\n"
        "with Bed() as bed:\n"
        "    (found,) = until_state(bed, launch(bed.client()), 'running')\n"
        "    print(bed.endpoint, found['public'], flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code]
    owner = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    with owner:
        assert owner.stdout is not None
        endpoint, address = owner.stdout.readline().split()
        lab = Path(f"/run/skyward-lab/{address.split('.')[2]}")
        assert lab.exists()
        owner.kill()
    wait_until(lambda: not lab.exists(), "the end of the hosts")
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", int(endpoint.rpartition(":")[2])), timeout=1)
