"""What joins the machines: a switch in a network of its own, and each machine's firewall."""

from __future__ import annotations

import subprocess

from tests.host.machine import Machine

SWITCH = "ip link add switch type bridge && ip link set switch up && echo ready && exec sleep infinity"
CLOSED = """\
iptables --append INPUT --in-interface lo --jump ACCEPT
iptables --append INPUT --match conntrack --ctstate ESTABLISHED,RELATED --jump ACCEPT
iptables --policy INPUT DROP
"""


class Network:
    def __init__(self) -> None:
        self._joined = 0

    def up(self) -> None:
        self._switch = subprocess.Popen(
            ["unshare", "--net", "bash", "-c", SWITCH], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        assert self._switch.stdout is not None
        assert self._switch.stdout.readline() == b"ready\n"

    def down(self) -> None:
        self._switch.kill()
        self._switch.wait()

    def join(self, machine: Machine) -> str:
        """Its address. It may call every other machine, and nobody may call it."""
        self._joined += 1
        port, address = f"port{self._joined}", f"10.87.0.{self._joined}"
        for command in (
            f"link add {port} type veth peer name eth0 netns {machine.first}",
            f"link set {port} master switch up",
        ):
            inside = ["nsenter", "--target", str(self._switch.pid), "--net", "ip"]
            subprocess.run([*inside, *command.split()], check=True)
        machine.run(f"{CLOSED}ip address add {address}/24 dev eth0\nip link set eth0 up")
        return address


def open_port(machine: Machine, port: int) -> None:
    machine.run(f"iptables --append INPUT --protocol tcp --destination-port {port} --jump ACCEPT")
