"""Bills of materials in CycloneDX 1.6, the same bytes for the same components.

A component's list of its own files (RECORD, md5sums) is named by its SHA-256 in a property; `hashes` are of
the files that an index serves, where a lock pins them. Source: https://cyclonedx.org/docs/1.6/json/.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component as Entry
from cyclonedx.model.component import ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from tools.release.archives import as_json
from tools.release.components import DEB, PYPI, Component
from tools.release.licences import expression_of

FILES_SHA256 = "chorale:files:sha256"
_NAMESPACE = uuid.UUID("6f0d7c1e-6a58-5b1c-9f0e-6d1f5a3c2b10")  # drawn once, for serial numbers from content


def of(
    components: Iterable[Component],
    *,
    name: str,
    version: str,
    kind: ComponentType,
    sha256: str,
    epoch: int,
    hashes: Mapping[str, tuple[str, ...]],
) -> bytes:
    """What a thing of the release holds. sha256: the thing's own. hashes: of distributions, by name."""
    subject = Entry(
        name=name,
        version=version,
        type=kind,
        bom_ref=name,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)],
    )
    entries = [_entry(each, hashes.get(each.name, ())) for each in sorted(components)]
    text = json.dumps([[*each.key, each.files_sha256] for each in sorted(components)])
    bom = Bom(
        serial_number=uuid.uuid5(_NAMESPACE, f"{name} {sha256} {hashlib.sha256(text.encode()).hexdigest()}"),
        metadata=BomMetaData(component=subject, timestamp=datetime.fromtimestamp(epoch, UTC)),
        components=entries,
    )
    bom.register_dependency(subject, entries)
    found: dict[str, Any] = json.loads(
        make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()
    )
    return as_json(found)


def _entry(component: Component, hashes: tuple[str, ...]) -> Entry:
    if component.kind == PYPI:
        licences = [LicenseFactory().make_from_string(expression_of(component))]
        purl = PackageURL(PYPI, None, component.name, component.version)
    else:
        licences = [LicenseFactory().make_with_name(each) for each in component.stated]
        qualifiers = {"arch": component.architecture}
        purl = PackageURL(DEB, "debian", component.name, component.version, qualifiers)
    known = component.files_sha256
    return Entry(
        name=component.name,
        version=component.version,
        type=ComponentType.LIBRARY,
        bom_ref=str(purl),
        purl=purl,
        licenses=licences,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=each) for each in hashes],
        properties=[Property(name=FILES_SHA256, value=known)] if known else [],
    )
