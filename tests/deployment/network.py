"""Evaluates NetworkPolicies: may this pod talk to that peer on that port?

Source: https://kubernetes.io/docs/concepts/services-networking/network-policies/. A direction in which
a pod is isolated allows what some rule of some policy allows, and nothing else.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Policy = dict[str, Any]
Labels = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A pod of a namespace, or with `address` alone something outside the cluster."""

    address: str | None = None
    namespace: Labels = field(default_factory=dict)
    pod: Labels = field(default_factory=dict)


def allows(
    policies: Iterable[Policy],
    pod: Labels,
    direction: Literal["Ingress", "Egress"],
    peer: Peer,
    port: int,
    *,
    own_namespace: Labels,
    protocol: str = "TCP",
) -> bool:
    """pod: labels of the pod that the policies guard."""
    applying = [
        policy["spec"]
        for policy in policies
        if direction in policy["spec"]["policyTypes"] and _selects(policy["spec"]["podSelector"], pod)
    ]
    if not applying:
        return True
    rules = [rule for spec in applying for rule in spec.get(direction.lower()) or []]
    side = "from" if direction == "Ingress" else "to"
    return any(
        _has_port(rule, port, protocol)
        and (not rule.get(side) or any(_matches(entry, peer, own_namespace) for entry in rule[side]))
        for rule in rules
    )


def _has_port(rule: dict[str, Any], port: int, protocol: str) -> bool:
    ports = rule.get("ports")
    return not ports or any(
        each.get("protocol", "TCP") == protocol and each.get("port") in (None, port) for each in ports
    )


def _matches(entry: dict[str, Any], peer: Peer, own_namespace: Labels) -> bool:
    if "ipBlock" in entry:
        return peer.address is not None and _in_block(entry["ipBlock"], peer.address)
    if not peer.pod and not peer.namespace:
        return False  # no pod: selectors do not match what is outside
    in_namespace = (
        _selects(entry["namespaceSelector"], peer.namespace)
        if "namespaceSelector" in entry
        else peer.namespace == own_namespace
    )
    return in_namespace and _selects(entry.get("podSelector", {}), peer.pod)


def _in_block(block: dict[str, Any], address: str) -> bool:
    inside = ipaddress.ip_address(address) in ipaddress.ip_network(block["cidr"])
    return inside and not any(
        ipaddress.ip_address(address) in ipaddress.ip_network(each) for each in block.get("except", [])
    )


def _selects(selector: dict[str, Any], labels: Labels) -> bool:
    if set(selector) - {"matchLabels"}:
        raise NotImplementedError(f"selector {selector}")
    return all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
