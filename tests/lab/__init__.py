"""The lab: real hosts on one machine, made of Linux namespaces, each with OpenSSH's ``sshd`` as its PID 1.

``with Lab(4) as lab`` gives hosts with addresses, names, a power switch and a cable; ``python -m tests.lab up
4`` gives the same to try things by hand. Needs root, iproute2, util-linux and openssh-server; :func:`missing`
tells.
"""

from .host import Host
from .lab import Lab
from .options import HostOptions
from .proxy import DelayProxy
from .tools import LabError, missing

__all__ = ["DelayProxy", "Host", "HostOptions", "Lab", "LabError", "missing"]
