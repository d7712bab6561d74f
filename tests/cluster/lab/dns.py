"""DNS of the lab: Services by name, and further hosts that folder/aliases.json names as Services.

python -m tests.cluster.lab.dns FOLDER, inside the lab's namespaces.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cluster.lab.settings import NODE

A_OF_INTERNET = b"\0\1"


def main(folder: Path) -> None:
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((NODE, 53))
    while True:
        question, sender = server.recvfrom(1500)
        server.sendto(_answer(question, folder), sender)


def _answer(question: bytes, folder: Path) -> bytes:
    at, labels = 12, []
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode().lower())
        at += 1 + question[at]
    found = _addresses(".".join(labels), folder)
    addresses = (found or []) if question[at + 1 : at + 3] == A_OF_INTERNET else []
    flags = 0x8583 if found is None else 0x8580  # no such name, or an answer by authority
    head = question[:2] + struct.pack(">HHHHH", flags, 1, len(addresses), 0, 0)
    records = b"".join(
        b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 5, 4) + socket.inet_aton(each) for each in addresses
    )
    return head + question[12 : at + 5] + records


def _addresses(name: str, folder: Path) -> list[str] | None:
    """None for a name that is not there."""
    aliases = folder / "aliases.json"
    known = json.loads(aliases.read_text()) if aliases.exists() else {}
    parts = known.get(name, name).split(".")
    if len(parts) != 5 or parts[2:] != ["svc", "cluster", "local"]:
        return None
    service = _get(folder, parts[1], "service", parts[0])
    if not service:
        return None
    if service["spec"]["clusterIP"] != "None":
        return [service["spec"]["clusterIP"]]
    subsets = _get(folder, parts[1], "endpoints", parts[0]).get("subsets") or []
    kinds = ("addresses", "notReadyAddresses")
    return [address["ip"] for each in subsets for kind in kinds for address in each.get(kind) or []]


def _get(folder: Path, namespace: str, kind: str, name: str) -> dict[str, Any]:
    words = ["kubectl", "--kubeconfig", folder / "admin.conf", "--namespace", namespace, "get", kind, name]
    done = subprocess.run([*words, "--output", "json"], check=False, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout or "{}")
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
