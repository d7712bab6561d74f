"""A revocation that is taken back by mistake, and by a coordinator that helps it: processes over real TLS."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from chorale.runtime.audit import read_entries
from tests.support.federation import LocalFederation

STAYING, REVOKED = ("silo-0", "silo-1", "silo-2"), "silo-3"
LEFT = f"roster: version 3 lists a certificate of silo {REVOKED} that left in version 2"


@pytest.mark.gate
def test_silos_keep_out_whom_a_roster_revoked_though_their_coordinator_lets_it_in(tmp_path: Path) -> None:
    """Revoke, then the weekly command with the certificates of the first page: the member was ready again."""
    with LocalFederation(folder=tmp_path, coordinator={"heartbeat_seconds": 0.2}) as federation:
        federation.start()
        federation.wait_connected()
        federation.ceremony.publish(without=(REVOKED,))
        for name in STAYING:
            _wait(federation, name, event="roster accepted", version=2)
        federation.services[REVOKED].kill()

        federation.ceremony.publish()
        refused = _wait(federation, "hub", event="roster file not taken over", version=3)
        assert refused["reason"].startswith(LEFT)
        seen = federation.scrape()
        assert seen["chorale_coordinator_refused_rosters_total"] == 1
        assert seen["chorale_coordinator_roster_version"] == 2

        # a coordinator that does not remember relays it
        federation.hub.stop()
        shutil.rmtree(federation.folder / "hub")
        federation.start_coordinator()
        for name in STAYING:
            refusal = _wait(federation, name, event="message refused", kind="roster", code="roster")
            assert refusal["reason"].startswith(LEFT)
            entries = read_entries(federation.folder / name / "audit.jsonl")
            (entry,) = (entry for entry in entries if entry["event"] == "roster refused")
            assert (entry["version"], entry["reason"]) == (3, refusal["reason"])

        federation.ceremony.publish(readmitted=(REVOKED,))
        for name in STAYING:
            _wait(federation, name, event="member readmitted", version=4, member=f"silo {REVOKED}")


def _wait(federation: LocalFederation, name: str, **fields: object) -> dict[str, object]:
    """The first line of a party's log with these fields."""
    return federation.services[name].wait_for(lambda record: fields.items() <= record.items())
