"""The lab: real hosts on one machine, made of Linux namespaces, each with OpenSSH's ``sshd`` as its PID 1.

``with Lab(4) as lab`` provides hosts with addresses, names, a power switch and a network cable. ``python -m tests.lab
up 4`` starts the same for experiments. Requires root, iproute2, util-linux and openssh-server; :func:`missing` checks
this.
"""

from .host import Host
from .lab import Lab
from .options import HostOptions
from .proxy import DelayProxy
from .tools import LabError, missing

__all__ = ["DelayProxy", "Host", "HostOptions", "Lab", "LabError", "missing"]
