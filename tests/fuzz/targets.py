"""All targets by name. A new parser of foreign bytes gets a row in one of the modules named here."""

from __future__ import annotations

from tests.fuzz import data, files, messages, signed
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target for target in (*signed.TARGETS, *messages.TARGETS, *files.TARGETS, *data.TARGETS)
}
