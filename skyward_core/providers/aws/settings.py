"""What a person may choose of machines rented from Amazon EC2, for a form and a command line."""

from __future__ import annotations

from ...model.setting import Field, Setting, flag, words

SETTINGS = (
    Setting(
        name="region",
        help="where; several with commas, the cheapest first; else that of the profile",
        type=lambda text: words(text)[0] if len(words(text)) == 1 else words(text),
        example="us-east-1",
        field=lambda: Field("Region", placeholder="that of your AWS profile, or us-east-1"),
    ),
    Setting(
        name="instance_type",
        help="the type of machine; else the cheapest with the accelerator",
        example="g5.xlarge",
        field=lambda: Field("Machine", placeholder="the cheapest type that fits; or one, such as g5.xlarge"),
    ),
    Setting(name="zones", help="the only zones to use, in order", type=words),
    Setting(name="profile", help="the profile of ~/.aws/config"),
    Setting(name="endpoint_url", help="address of all services, in place of AWS's own"),
    Setting(name="ami", help="a machine image of your own"),
    Setting(name="subnet", help="a subnet of your own"),
    Setting(name="security_group", help="a security group of your own"),
    Setting(name="instance_profile", help="the instance profile that machines have, by name or ARN"),
    Setting(name="ssh_user", help="who logs in; else the usual one of the image"),
    Setting(name="ssh_from", help="the network from which SSH is let in; else this machine's address alone"),
    Setting(name="public", help="whether machines have public addresses", type=flag, default=True),
    Setting(
        name="placement_group",
        help="whether machines with GPUs or EFA stand close together where they can",
        type=flag,
        default=True,
    ),
    Setting(name="probe", help="whether machines are measured before they count", type=flag, default=True),
    Setting(name="disk_gb", help="size of each machine's disk in GB; else 100", type=int),
    Setting(name="reservation", help="a capacity reservation or Capacity Block of yours", example="cr-0123"),
    Setting(name="python", help="the interpreter on the machines"),
)
