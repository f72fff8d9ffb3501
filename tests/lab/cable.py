"""Network cable between a machine and the lab's switch. It can be disconnected and slowed down."""

from __future__ import annotations

from .tools import call


class Cable:
    """Pair of virtual Ethernet interfaces: ``end`` on the machine, ``port`` on the switch.

    Args:
        end: Name of the machine's interface.
        port: Name of the switch's interface.
    """

    def __init__(self, end: str, port: str) -> None:
        self.end = end
        self.port = port
        self.mbit: float | None = None

    def pull(self) -> None:
        """Disconnect the cable. Both ends lose their carrier. Addresses and routes remain, and packets are lost."""
        call(["ip", "link", "set", self.port, "down"])

    def put_back(self) -> None:
        call(["ip", "link", "set", self.port, "up"])

    def limit(self, mbit: float | None, machine: int | None) -> None:
        """Limit each direction to ``mbit`` megabits a second; None lifts the limit.

        Args:
            machine: Process in the machine's network namespace; None for this process's namespace.
        """
        inside = [] if machine is None else ["nsenter", f"--net=/proc/{machine}/ns/net"]
        for words, device in (([], self.port), (inside, self.end)):
            if mbit is None:
                if self.mbit is not None:
                    call([*words, "tc", "qdisc", "del", "dev", device, "root"])
            else:
                # The bucket has to hold what the kernel sends between two of its ticks (4 ms at most).
                burst = max(32_000, int(mbit * 1e6 / 8 * 0.004))
                shape = f"qdisc replace dev {device} root tbf rate {mbit:g}mbit burst {burst}b latency 50ms"
                call([*words, "tc", *shape.split()])
        self.mbit = mbit
