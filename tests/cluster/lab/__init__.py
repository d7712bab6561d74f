"""A one-node Kubernetes for tests, from Debian's packages and sources alone.

Debian 12, root. Everything runs in a network, mount and process namespace of its own: killing its first
process ends all of it, and what is mounted or listens there is gone with it.

What 1.20 cannot show: policy/v1 (1.21), Pod Security admission and the retention policy of claims (1.23).
Debian has no network plugin that enforces a NetworkPolicy. A Service of type LoadBalancer gets no address.
"""

from tests.cluster.lab.lab import Lab

__all__ = ["Lab"]
