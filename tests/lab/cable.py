"""A machine's cable to the lab's switch: can be pulled, and made slow."""

from __future__ import annotations

from .tools import call


class Cable:
    """A pair of virtual Ethernet ends: ``end`` at the machine, ``port`` at the switch.

    Args:
        end: name of the machine's interface.
        port: name of the switch's.
    """

    def __init__(self, end: str, port: str) -> None:
        self.end = end
        self.port = port
        self.mbit: float | None = None

    def pull(self) -> None:
        """Both ends lose their carrier; addresses and routes stay, packets go nowhere."""
        call(["ip", "link", "set", self.port, "down"])

    def put_back(self) -> None:
        call(["ip", "link", "set", self.port, "up"])

    def limit(self, mbit: float | None, machine: int | None) -> None:
        """Limit each direction to ``mbit`` megabits a second; None lifts the limit.

        Args:
            machine: a process in the machine's network namespace; None for our own.
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
