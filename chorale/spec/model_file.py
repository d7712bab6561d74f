"""A model in a file of its own: the arrays of a global state, and facts as safetensors metadata.

The facts say of which job and round it is and how it is built. They are added where a model is written for
people; the states that coordinator and silos exchange have none, so their digests are those of the arrays.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import Field

from chorale.runtime.files import Part, read_limited
from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.fields import Sha256, SpecPart
from chorale.spec.job_spec import JobSpec
from chorale.spec.settings_file import check_values, parse_mapping
from chorale.spec.state import MAX_HEADER_BYTES, state_from_bytes
from crypto.errors import ConfigError, RemoteProtocolError
from strategies.base import Array
from strategies.expected import got
from strategies.tasks.temperature import LEAST, MOST, TEMPERATURE

RECALIBRATED = "recalibrated"  # fact of a file that is no job's own: a CalibrationLine
METADATA = "__metadata__"  # of a safetensors header
ANALYSIS = "analysis"  # fact of a file of results: the job as it was signed
MAX_MODEL_BYTES = 4 << 30
# fields of the job that say how the model is built and what its inputs are, each as JSON; who trained it is
# not among them, so that a model can be given away
DESCRIBED = (
    "strategy",
    "model",
    "task",
    "code",
    "classes",
    "input_shape",
    "input_type",
    "normalize",
    "augment",
    "scans",
    "adapters",
    "columns",
    "label_column",
)


# what the file says of the job beside: its form in words, and as a pattern
STATED = {
    "job": ("the job's SHA-256 in hexadecimal", r"[0-9a-f]{64}"),
    "round": ("a number of at most 9 digits", r"[0-9]{1,9}"),
    "silos": ("a number of at most 9 digits", r"[0-9]{1,9}"),
}


def facts_of(
    spec: JobSpec,
    *,
    job_digest: bytes,
    round: int,
    closing: Mapping[str, float | None] | None = None,
    arm: int | None = None,
) -> dict[str, str]:
    """What a file says of a job's model after that round. closing: figures of the job's closing evaluation of
    this model, if it was. arm: of a search, whose model it is."""
    of_arm = spec if arm is None else spec.arms[arm]
    values = of_arm.model_dump(mode="json")
    try:
        version = metadata.version("chorale")
    except metadata.PackageNotFoundError:
        version = "unknown"
    return {
        "job": job_digest.hex(),
        "name": spec.name,
        "method": spec.strategy.name,
        "round": str(round),
        "silos": str(len(spec.silos)),
        **_promised(spec),
        **_fitted((closing or {}).get(TEMPERATURE)),
        **({} if arm is None or spec.search is None else {"search": spec.search.arm_in_words(arm)}),
        "chorale": version,
        **{name: json.dumps(values[name]) for name in DESCRIBED},
    }


def _promised(spec: JobSpec) -> dict[str, str]:
    """Delta, and the epsilon that the whole job was planned for where it says one; nothing without noise."""
    if spec.privacy is None:
        return {}
    found = {"epsilon": spec.privacy.epsilon, "delta": spec.privacy.delta}
    return {name: f"{value:g}" for name, value in found.items() if value is not None}


def _fitted(temperature: float | None) -> dict[str, str]:
    """Nothing where no temperature was asked for, none was the best, or a coordinator made one up."""
    if temperature is None or not LEAST <= temperature <= MOST:
        return {}
    return {TEMPERATURE: f"{temperature:.6g}"}


class CalibrationLine(SpecPart):
    """Log odds of answers: the network's times the slope, and the second of two classes plus the intercept.

    records: that it was fitted to; None: it was given. model: SHA-256 of the file that was recalibrated; None
    for the temperature of a job, 1 / slope.
    """

    slope: float = Field(ge=1.0 / MOST, le=1.0 / LEAST)
    intercept: float = Field(default=0.0, allow_inf_nan=False)
    records: int | None = Field(default=None, ge=1)
    model: Sha256 | None = None


def line_of(facts: Mapping[str, str], *, source: str) -> CalibrationLine | None:
    """What becomes of the network's outputs before the softmax; None: nothing. Raises ConfigError."""
    if RECALIBRATED in facts:
        where = f"{source}: its metadata: {RECALIBRATED}"
        said = facts[RECALIBRATED].encode(errors="surrogatepass")
        return check_values(CalibrationLine, parse_mapping(said, source=where), source=where)
    if TEMPERATURE not in facts:
        return None
    try:
        found = float(facts[TEMPERATURE])
    except ValueError:
        found = math.nan
    if not LEAST <= found <= MOST:
        message = f"expected a number from {LEAST:g} to {MOST:g}, got {got(facts[TEMPERATURE])}"
        raise ConfigError(f"{source}: its metadata: {TEMPERATURE}: {message}")
    return CalibrationLine(slope=1.0 / found)


def described_job(facts: Mapping[str, str], *, source: str) -> JobSpec:
    """A job with the model, the method and the inputs that the facts describe; the rest of it says nothing.

    Raises ConfigError for a file that has no such facts, and for one that names code without its digest.
    Security: a file may come from a stranger; what it says is checked here before anything is built from it.
    """
    if not {*DESCRIBED, *STATED} <= set(facts):
        raise ConfigError(
            f"{source}: its metadata do not describe a model; expected a file of `job fetch`, `simulate` or "
            "`silo personal`"
        )
    for name, (form, pattern) in STATED.items():
        if not re.fullmatch(pattern, facts[name]):
            raise ConfigError(f"{source}: its metadata: {name}: expected {form}, got {got(facts[name])}")
    try:
        values: dict[str, Any] = {name: json.loads(facts[name]) for name in DESCRIBED}
        unsaid = {
            "name": "described",
            "federation": "described",
            "not_after": "2100-01-01T00:00:00Z",
            "silos": ("a", "b", "c"),
            "rounds": 1,
            "training": {"learning_rate": 1.0},
        }
        described = JobSpec.model_validate({**unsaid, **values})
    except (ValueError, RecursionError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"{source}: its metadata describe no model of this release: {first}") from None
    digests = {each.distribution: each.sha256 for each in described.code or ()}
    unpinned = [name for name in described.distributions if digests.get(name) is None]
    if unpinned:
        raise ConfigError(f"{source}: its metadata: code: expected the SHA-256 of {', '.join(unpinned)}")
    return described


def analysis_facts(signed: bytes) -> dict[str, str]:
    """Of a file of results: the analysis as it was signed, and its digest. Raises ConfigError."""
    AnalysisSpec.from_yaml(signed, source="job")
    try:
        return {"job": hashlib.sha256(signed).hexdigest(), ANALYSIS: signed.decode()}
    except UnicodeDecodeError:  # YAML may be UTF-16, Chorale's own is not
        raise ConfigError("job: expected UTF-8") from None


def described_analysis(facts: Mapping[str, str], *, source: str) -> AnalysisSpec:
    """The analysis whose results a file holds.

    Raises ConfigError for a file of anything else. Security: the job is the one of the digest in the facts;
    whether that was signed they do not say.
    """
    if not {"job", ANALYSIS} <= set(facts):
        raise ConfigError(f"{source}: its metadata describe no analysis; expected the results of one")
    signed = facts[ANALYSIS].encode(errors="surrogatepass")
    if hashlib.sha256(signed).hexdigest() != facts["job"]:
        raise ConfigError(f"{source}: its metadata: {ANALYSIS}: expected the job of the digest beside it")
    return AnalysisSpec.from_yaml(signed, source=source)


def with_facts(parts: Iterable[Part], facts: Mapping[str, str]) -> Iterator[Part]:
    """The bytes of a state with the facts in their header; the arrays pass as they are, one part at a time.

    Raises RemoteProtocolError for bytes that do not begin with a header, and for a header with metadata: a
    state has none, and those of a coordinator would stand in the place of the facts.
    """
    stream, start = iter(parts), bytearray()
    while (header := _header_of(start)) is None:
        part = next(stream, None)
        if part is None:
            raise RemoteProtocolError("model: expected a safetensors file, it ends in its header")
        start += part
    entries, end = header
    if METADATA in entries:
        raise RemoteProtocolError("model: expected a state, which has no metadata, its header has some")
    yield _header_bytes({METADATA: dict(facts), **entries} if facts else entries)
    yield bytes(start[end:])
    yield from stream


def read_model(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Arrays and facts of a file that a person named; no facts where it has none. Raises ConfigError."""
    data = read_limited(path, MAX_MODEL_BYTES)
    try:
        has_header = _header_of(data) is not None
    except RemoteProtocolError:
        has_header = False
    if not has_header:
        raise ConfigError(f"{path}: this is no safetensors file, or only a part of one")
    try:
        return open_model(data)
    except RemoteProtocolError as error:
        raise ConfigError(f"{path}: expected a safetensors file: {error}") from None


def open_model(data: bytes) -> tuple[dict[str, Array], dict[str, str]]:
    """As `read_model`, of a file's bytes. Raises RemoteProtocolError, also for types that no state has."""
    found = _header_of(data)
    if found is None or METADATA not in found[0]:
        return state_from_bytes(data), {}
    entries, end = found
    facts = entries.pop(METADATA)
    if not isinstance(facts, dict) or not all(isinstance(value, str) for value in facts.values()):
        raise RemoteProtocolError("state: metadata are texts by name")
    return state_from_bytes(_header_bytes(entries) + data[end:]), facts


def _header_of(start: bytes | bytearray) -> tuple[dict[str, Any], int] | None:
    """Entries by name, and where the arrays begin; None while more bytes are needed."""
    if len(start) < 8:
        return None
    size = int.from_bytes(start[:8], "little")
    if size > MAX_HEADER_BYTES:
        raise RemoteProtocolError(f"state: expected a header of at most {MAX_HEADER_BYTES} bytes, got {size}")
    if len(start) < 8 + size:
        return None
    try:
        entries = json.loads(bytes(start[8 : 8 + size]))
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, dict):
        raise RemoteProtocolError("state: the header is not that of a safetensors file")
    return entries, 8 + size


def _header_bytes(entries: Mapping[str, Any]) -> bytes:
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # arrays begin at a multiple of 8
    return len(header).to_bytes(8, "little") + header
