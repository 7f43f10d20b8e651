"""The lab's networks: management, which this machine is on too, and a fabric, which it is not.

Both bridges live in a namespace of their own, so this machine gets one interface only and its packet
filter (an engine's start sets FORWARD to DROP) never sees what goes from node to node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .system import LabError, run

# A permanent neighbour whose hardware address nobody has: packets leave and nothing ever answers.
NOBODY = "02:00:00:00:00:fe"
CONTROLLER, BLACK_HOLE = 254, 250
NODES = [*range(1, 241), *range(257, 1000)]  # numbers of hosts in a subnet of four times 256 addresses
BITS, BLOCK = 22, 4


def namespace(run_id: str, name: str) -> str:
    return f"fdl{run_id}-{name}"


def interface(run_id: str) -> str:
    """This machine's own end in the management network."""
    return f"fdl{run_id}"


@dataclass(frozen=True)
class Network:
    """The networks of one run; ``third`` is the third byte of both subnets' first addresses."""

    run_id: str
    third: int

    @property
    def switch(self) -> str:
        """The namespace that both bridges are in."""
        return namespace(self.run_id, "switch")

    @property
    def interface(self) -> str:
        return interface(self.run_id)

    def management(self, last: int) -> str:
        return f"10.77.{self.third + last // 256}.{last % 256}"

    def fabric(self, last: int) -> str:
        return f"10.78.{self.third + last // 256}.{last % 256}"

    def plug(self, space: str, last: int, *, fabric: bool = False) -> None:
        """Give a namespace a cable into one of the networks, with its address and ``lo``."""
        inner, address = ("fabric0", self.fabric(last)) if fabric else ("eth0", self.management(last))
        _in(self.switch, _cable(port(last, fabric=fabric), "fabric" if fabric else "management", inner, space))
        inside = [f"addr add {address}/{BITS} dev {inner}", f"link set {inner} up", "link set lo up"]
        _in(space, inside if fabric else [*inside, self._black_hole(inner)])

    def link(self, last: int, *, up: bool, fabric: bool = False) -> None:
        """Plug a node's cable in again, or pull it."""
        _in(self.switch, [f"link set {port(last, fabric=fabric)} {'up' if up else 'down'}"])

    def take_fabric(self, space: str, last: int, *, back: bool = False) -> None:
        """Let a namespace answer at a node's fabric address, with the true one's cable pulled; or end that."""
        self.link(last, up=back, fabric=True)
        _in(space, [f"addr {'del' if back else 'add'} {self.fabric(last)}/{BITS} dev fabric0"])

    def forget_neighbours(self, spaces: Iterable[str]) -> None:
        """Who had that fabric address is asked again by the next packet."""
        for space in spaces:
            _in(space, ["neigh flush dev fabric0"])

    def _black_hole(self, device: str) -> str:
        return f"neigh replace {self.management(BLACK_HOLE)} lladdr {NOBODY} dev {device} nud permanent"


def port(last: int, *, fabric: bool = False) -> str:
    """The switch's end of a node's cable."""
    return f"{'f' if fabric else 'm'}{last}"


def make_network(run_id: str) -> Network:
    """Both networks, on subnets that no interface and no route of this machine is in."""
    network = Network(run_id, _free_subnet())
    run("ip", "netns", "add", network.switch)
    _in(network.switch, [part for name in ("management", "fabric") for part in _bridge(name)])
    _in(network.switch, _cable(port(CONTROLLER), "management", network.interface, "1"))
    own = [
        f"addr add {network.management(CONTROLLER)}/{BITS} dev {network.interface}",
        f"link set {network.interface} up",
        network._black_hole(network.interface),
    ]
    run("ip", "-batch", "-", stdin="\n".join(own) + "\n")
    return network


def _bridge(name: str) -> list[str]:
    return [f"link add {name} type bridge", f"link set {name} up"]


def _cable(outer: str, bridge: str, inner: str, space: str) -> list[str]:
    made = f"link add {outer} type veth peer name {inner} netns {space}"
    return [made, f"link set {outer} master {bridge}", f"link set {outer} up"]


def _in(space: str, lines: list[str]) -> None:
    run("ip", "-n", space, "-batch", "-", stdin="\n".join(lines) + "\n")


def _free_subnet() -> int:
    used = run("ip", "-4", "addr").stdout + run("ip", "-4", "route").stdout
    for third in range(BLOCK, 256, BLOCK):
        if not any(f"10.77.{third + more}." in used for more in range(BLOCK)):
            return third
    raise LabError("no subnet of 10.77.0.0/16 is free: see `ip addr`, and remove what is not needed")
