"""All targets by name. A new parser of foreign bytes gets a row in one of the modules named here."""

from __future__ import annotations

from tests.fuzz import data, files, messages, signed, states
from tests.fuzz.target import Target

MODULES = (signed, messages, files, states, data)
TARGETS: dict[str, Target] = {target.name: target for module in MODULES for target in module.TARGETS}
