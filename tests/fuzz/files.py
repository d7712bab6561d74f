"""Targets: files that a person or a peer wrote: jobs, settings, states, audit logs, ledgers' rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from chorale.privacy.releases import DpSgd, Gaussian, releases_from_json, releases_to_json
from chorale.runtime import plain_yaml
from chorale.runtime.audit import AuditLog, read_entries
from chorale.spec.job_spec import JobSpec
from chorale.spec.selection import expected_cohort_changes
from chorale.spec.settings_file import parse_mapping
from chorale.spec.state import state_digest, state_from_bytes, state_from_file, state_to_bytes
from crypto.errors import ConfigError, RemoteProtocolError
from tests.fuzz import mutate
from tests.fuzz.target import Target

ROOT = Path(__file__).resolve().parents[2]
JOB = b"""name: fuzz
federation: test
nonce: "00000000000000000000000000000000"
not_after: 2027-01-31T00:00:00Z
silos: [silo-000, silo-001, silo-002]
rounds: 3
model: {name: mlp, hidden: [16, 8]}
classes: 10
input_shape: [1, 8, 8]
training:
  learning_rate: 0.05
  schedule: {kind: step, gamma: 0.5}
"""
LAST = b'initial_state: "' + b"0" * 64 + b'"\n'


def in_file(read: Callable[[Path], object], *, name: str = "fuzzed") -> Callable[[bytes], None]:
    """Reads a file of these bytes."""

    def check(data: bytes) -> None:
        with tempfile.TemporaryDirectory(dir=_memory()) as folder:
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            read(path)

    return check


def _memory() -> str | None:
    """A folder in memory, where there is one: a fuzzer writes thousands of files a second."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def job_seeds() -> Iterator[bytes]:
    for more in (
        b"strategy: {preset: fedprox, options: {mu: 0.1}}\n",
        b"strategy: {parts: {head: frozen-etf, features: unit, loss: dot-regression}}\nfraction: 1.0\n",
        b"privacy: {delta: 0.00001, sums: {clip_norm: 1.0, noise_multiplier: 1.0}, "
        b"statistics_noise_multiplier: 1.0}\nthreshold: 3\nmin_cohort: 3\n",
        b"privacy: {delta: 0.00001, records: {clip_norm: 1.0, noise_multiplier: 1.0, sample_rate: 0.1}, "
        b"statistics_noise_multiplier: 1.0}\nupdate_bits: 16\n",
    ):
        yield JOB + more + LAST
    tabular = JOB.replace(b"[1, 8, 8]", b"[2]")
    yield (
        tabular + b"columns: [{name: age, mean: 51.5, scale: 0.001}, {name: sex}]\nlabel_column: ill\n" + LAST
    )


def _job(data: bytes) -> None:
    spec = JobSpec.from_yaml(data, source="job")
    assert JobSpec.from_yaml(spec.to_yaml(), source="job").to_yaml() == spec.to_yaml()
    assert spec.method.round_phases
    assert spec.quantity_names
    assert spec.learning_rate_at(spec.rounds) >= 0
    assert expected_cohort_changes(spec) >= 0


def _mapping(data: bytes) -> None:
    found = parse_mapping(data, source="settings")
    assert repr(parse_mapping(plain_yaml.dump(found).encode(), source="written")) == repr(found)


def _settings() -> Iterator[bytes]:
    for name in ("silo.yaml", "coordinator.yaml", "policy.yaml"):
        yield from (path.read_bytes()[:2000] for path in sorted((ROOT / "docs" / "examples").rglob(name)))
    yield b"a: [1, 2.5, 0x1f, 1e-3, 2027-01-31, true, ~, 'text', \"t\\u00e9xt\"]\nb:\n  c: |\n    lines\n"
    yield b"deep: {a: {b: {c: [[[[1]]]]}}}\n? long\n: key\nanchor: &a 1\n"


def _state(data: bytes) -> None:
    """Read from bytes and from a file, the same arrays come; what is written again is read again."""
    arrays = error = None
    try:
        arrays = state_from_bytes(data)
    except RemoteProtocolError as refused:
        error = refused

    def read(path: Path) -> None:
        mapped = None
        with suppress(RemoteProtocolError):
            mapped = state_from_file(path)
        assert (mapped is None) == (arrays is None), "one reader refuses what the other takes"
        if mapped is None or arrays is None:
            return
        assert list(mapped) == list(arrays)
        for name, array in arrays.items():
            assert array.dtype == mapped[name].dtype
            assert array.shape == mapped[name].shape
            assert array.tobytes() == mapped[name].tobytes()

    in_file(read)(data)
    if arrays is None:
        assert error is not None
        raise error
    written = state_to_bytes(arrays)
    again = state_from_bytes(written)
    assert state_digest(state_to_bytes(again)) == state_digest(written)


def _states() -> Iterator[bytes]:
    yield state_to_bytes(
        {
            "model/body.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
            "model/norm.num_batches_tracked": np.array(3, dtype=np.int64),
            "method/mean": np.ones((0, 2), dtype=np.float64),
            "draw": np.zeros(32, dtype=np.uint8),
        }
    )


def _audit(path: Path) -> None:
    """A check of a log, and the process that goes on with it."""
    with suppress(ConfigError):
        assert all(isinstance(entry, dict) for entry in read_entries(path))
    log = AuditLog(path)
    try:
        log.append("fuzzed")
    finally:
        log.close()


def _audit_logs() -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "audit.jsonl"
        log = AuditLog(path)
        log.append("phase.applied", round=1, digest=b"d" * 32, share=0.5)
        log.append("phase.used_up", silos=["a", "b"], facts={"reason": "budget"})
        log.close()
        yield path.read_bytes()
        yield path.read_bytes()[:-9]


def _releases(data: bytes) -> None:
    releases = releases_from_json(data.decode(errors="replace"))
    assert releases_from_json(releases_to_json(releases)) == releases


def _release_rows() -> Iterator[bytes]:
    made = (
        DpSgd(noise_multiplier=1.1, sample_rate=0.1, steps=10, draws=3),
        Gaussian(noise_multiplier=2.0, draws=2),
    )
    yield releases_to_json(made).encode()


YAML_WORDS = (
    *JobSpec.model_fields,
    *("preset", "parts", "options", "head", "loss", "regularizer", "personalization", "closing", "epsilon"),
    *(
        "records",
        "sums",
        "delta",
        "noise_multiplier",
        "clip",
        "norm",
        "hidden",
        "kind",
        "gamma",
        "milestones",
    ),
    *("ffc", "fedprox", "scaffold", "feddr-plus", "fedntd", "cosine", "1e308", ".inf", ".nan", "0x", "1:60"),
    *(
        "[",
        "]",
        "{",
        "}",
        "- ",
        "? ",
        "<<: ",
        "&a ",
        "*a",
        "!!int ",
        "|",
        ">",
        "%YAML 1.1",
        "---",
        "...",
        '"',
    ),
)
TARGETS = (
    Target(
        name="job",
        read=_job,
        seeds=job_seeds,
        refuses=(ConfigError,),
        mutate=mutate.either(mutate.raw, mutate.tokens(YAML_WORDS)),
    ),
    Target(
        name="yaml",
        read=_mapping,
        seeds=_settings,
        refuses=(ConfigError,),
        mutate=mutate.either(mutate.raw, mutate.tokens(YAML_WORDS)),
    ),
    Target(name="state", read=_state, seeds=_states, mutate=mutate.either(mutate.raw, mutate.headed)),
    Target(
        name="audit",
        read=in_file(_audit),
        seeds=_audit_logs,
        refuses=(ConfigError,),
        mutate=mutate.either(mutate.raw, mutate.json_values),
    ),
    Target(
        name="releases",
        read=_releases,
        seeds=_release_rows,
        refuses=(ConfigError,),
        mutate=mutate.either(mutate.raw, mutate.json_values),
    ),
)
