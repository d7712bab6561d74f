"""The operators' console as a process beside a LocalFederation."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from chorale.runtime.files import write_atomic
from crypto.identity import certificates
from crypto.identity.certificates import Role
from tests.support.federation import LocalFederation
from tests.support.ports import free_ports
from tests.support.processes import Service

CONSOLE = "console"


def own_certificate(folder: Path) -> dict[str, str]:
    """A certificate for 127.0.0.1 signed by itself, and its key, as a page's `tls`."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    names = [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = {"certificate": folder / "page.crt", "key": folder / "page.key"}
    write_atomic(paths["certificate"], certificates.certificate_to_pem(certificate))
    write_atomic(paths["key"], certificates.key_to_pem(key))
    return {name: str(path) for name, path in paths.items()}


@dataclass(kw_only=True)
class ConsoleProcess:
    """operator: as whom the console asks the coordinator. settings: fields that differ."""

    federation: LocalFederation
    operator: str = "ops"
    settings: dict[str, Any] = field(default_factory=dict)

    def start(self) -> Service:
        (port,) = free_ports(1)
        self.url = f"https://127.0.0.1:{port}"
        ceremony, folder = self.federation.ceremony, self.federation.folder
        values = {
            "federation": ceremony.federation,
            "coordinator": self.federation.endpoint["grpc"],
            "identity": dict(
                zip(("certificate", "key"), map(str, self.files_of(self.operator)), strict=True)
            ),
            "authority": str(ceremony.certificate_path),
            "roster": str(ceremony.roster_path),
            "listen": f"127.0.0.1:{port}",
            "url": self.url,
            "tls": own_certificate(folder),
            **self.settings,
        }
        path = folder / "console.yaml"
        path.write_text(yaml.safe_dump(values))
        service = Service(
            CONSOLE, ["console", "--config", str(path)], log=folder / "console.log", extra_env={}
        )
        self.federation.services[CONSOLE] = service
        service.wait_for(lambda line: line.get("event") == "console serves")
        return service

    def files_of(self, operator: str) -> tuple[Path, Path]:
        """Certificate and key of an operator."""
        ceremony = self.federation.ceremony
        return (
            ceremony.path_of(Role.OPERATOR, operator, "crt"),
            ceremony.path_of(Role.OPERATOR, operator, "key"),
        )
