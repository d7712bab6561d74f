"""A federation on disk for real processes: keys, certificates, roster, one settings file a party."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from chorale.runtime.files import write_atomic
from chorale.spec.state import state_parts
from crypto.identity import certificates, issuing
from crypto.identity.certificates import MemberId, Role
from crypto.identity.roster import Member, roster_to_file_bytes, sign_roster

FEDERATION, COORDINATOR, OPERATOR = "bench", "hub", "ops"
HOST = "127.0.0.1"
Settings = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """PEM files of one member and of the authority that signed it."""

    certificate: Path
    key: Path
    authority: Path


class FederationFiles:
    """Everything that the processes of one federation read."""

    def __init__(self, folder: Path, *, silos: int) -> None:
        self.folder = folder
        self.silos = [f"silo-{place:02}" for place in range(silos)]
        self.endpoint = folder / COORDINATOR / "endpoint.json"
        self._authority = folder / "authority.crt"
        self._now = datetime.now(UTC)
        self._enroll()

    def party(self, name: str) -> Party:
        return Party(
            certificate=self.folder / f"{name}.crt",
            key=self.folder / f"{name}.key",
            authority=self._authority,
        )

    def coordinator(self, **changes: Any) -> Path:
        """changes: of the default settings."""
        settings = {
            **self._membership(COORDINATOR),
            "listen": f"{HOST}:0",
            "roster": str(self.folder / "roster.json"),
            "directory": str(self.folder / COORDINATOR),
            **changes,
        }
        return self._write(f"{COORDINATOR}.yaml", settings)

    def silo(
        self, name: str, *, coordinator: str, has_metrics: bool = True, objective: str = "objective"
    ) -> Path:
        """objective: a function of bench.parties.untrained_silo."""
        policy = {
            "federation": FEDERATION,
            "approval": "automatic",
            "initial_state": "given",
            "max_cohort_changes": 1000,
        }
        settings = {
            **self._membership(name),
            "name": name,
            "coordinator": coordinator,
            "directory": str(self.folder / name),
            **({} if has_metrics else {"metrics_listen": None}),
            "policy": str(self._write(f"{name}-policy.yaml", policy)),
            "data": {"format": "module", "module": "bench.parties.untrained_silo:data", "name": name},
            "objective": f"bench.parties.untrained_silo:{objective}",
        }
        return self._write(f"{name}.yaml", settings)

    def operator(self, *, coordinator: str) -> Path:
        return self._write("operator.yaml", {**self._membership(OPERATOR), "coordinator": coordinator})

    def job(self, *, rounds: int, name: str) -> Path:
        settings = {
            "name": name,
            "federation": FEDERATION,
            "silos": self.silos,
            "rounds": rounds,
            "model": {"name": "custom"},
            "classes": 2,
            "input_shape": [2],
            "training": {"learning_rate": 0.1},
        }
        return self._write(f"{name}.yaml", settings)

    def initial_state(self, *, length: int) -> Path:
        path = self.folder / f"initial-{length}.safetensors"
        with path.open("wb") as file:
            file.writelines(state_parts({"model/weight": np.zeros(length, np.float32)}))
        return path

    def _enroll(self) -> None:
        key, authority = issuing.new_authority(FEDERATION, now=self._now, valid_days=10)
        self._authority.write_bytes(certificates.certificate_to_pem(authority))
        members = []
        roles = [(Role.COORDINATOR, COORDINATOR), (Role.OPERATOR, OPERATOR)]
        for role, name in [*roles, *((Role.SILO, name) for name in self.silos)]:
            own, hosts = certificates.new_key(), [HOST] if role is Role.COORDINATOR else []
            member = MemberId(federation=FEDERATION, role=role, name=name)
            certificate = issuing.sign_csr(
                issuing.new_csr(own, member, hosts),
                authority_key=key,
                authority_certificate=authority,
                role=role,
                now=self._now,
                valid_days=5,
                hosts=hosts,
            )
            party = self.party(name)
            party.certificate.write_bytes(certificates.certificate_to_pem(certificate))
            write_atomic(party.key, certificates.key_to_pem(own))
            members.append(Member(role, name, certificates.fingerprint(certificate)))
        signed = sign_roster(
            authority_key=key,
            federation=FEDERATION,
            version=1,
            issued=self._now,
            expires=self._now + timedelta(days=5),
            members=members,
        )
        (self.folder / "roster.json").write_bytes(roster_to_file_bytes(signed))

    def _membership(self, name: str) -> Settings:
        party = self.party(name)
        return {
            "federation": FEDERATION,
            "identity": {"certificate": str(party.certificate), "key": str(party.key)},
            "authority": str(party.authority),
        }

    def _write(self, name: str, settings: Settings) -> Path:
        path = self.folder / name
        path.write_text(yaml.safe_dump(settings, explicit_end=True))
        return path
