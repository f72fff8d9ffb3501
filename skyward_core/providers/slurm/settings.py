"""What a person may choose of nodes that Slurm allocates, for a form and a command line."""

from __future__ import annotations

from ...model.setting import Field, Setting, flag, words

SETTINGS = (
    Setting(
        name="partition",
        help="the partition; else the cluster's default one",
        example="gpu",
        field=lambda: Field("Partition", placeholder="the cluster's default one"),
    ),
    Setting(
        name="login",
        help="the host on which Slurm's commands run, by SSH; else this one",
        example="me@login1",
        field=lambda: Field("Login host", placeholder="this machine, or me@login1"),
    ),
    Setting(
        name="account",
        help="the account that is charged",
        field=lambda: Field("Account", placeholder="your default one"),
    ),
    Setting(name="qos", help="the quality of service"),
    Setting(
        name="time",
        help="the allocation's time limit, as sbatch has it; else the partition's",
        example="2:00:00",
    ),
    Setting(
        name="gres", help="what each node needs, where the accelerator does not say it", example="gpu:a100:4"
    ),
    Setting(name="cpus", help="processors of each node; else what the cluster gives for one task", type=int),
    Setting(name="memory", help="memory of each node, as sbatch has it", example="64G"),
    Setting(name="constraint", help="features that nodes must have"),
    Setting(name="reservation", help="a reservation of the cluster"),
    Setting(name="exclusive", help="whether nobody else's jobs share the nodes", type=flag, default=False),
    Setting(name="keys", help="files of private keys for the login host", type=words),
    Setting(
        name="known_hosts", help="a file of known host keys for the login host, in place of the usual ones"
    ),
    Setting(
        name="host_keys", help="known, ask or accept-new: what to do about an unknown key", default="known"
    ),
    Setting(name="python", help="the interpreter on the nodes"),
)
