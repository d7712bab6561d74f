"""Traces of a real federation at a real OTLP receiver: one trace a round, spans of every party, no data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from chorale.observability.spans import root_span_id, trace_id
from tests.support.collector import Collector, Received, collecting
from tests.support.federation import LocalFederation
from tests.support.history import check_finished, read_history
from tests.support.processes import REPOSITORY, run_cli

COORDINATOR, SILO = "chorale-coordinator", "chorale-silo"
SILOS, ROUNDS = 3, 2
# docs/tracing.md
STAGES = {"waiting", "share", "masked", "consistency", "unmask"}
COORDINATOR_SPANS = {"round", "phase", "attempt", "apply", *STAGES}
SILO_SPANS = {"download", "share", "mask", "upload", "consistency", "unmask", "apply"}
EVERY, WITHIN_PHASE = {"chorale.job", "chorale.round"}, {"chorale.phase", "chorale.attempt"}
PROCESS = {"service.name", "service.namespace", "service.instance.id"}
EXAMPLES = REPOSITORY / "docs" / "examples"
# a package of this name that reports who imports it
TELLTALE = (
    "import pathlib, sys; pathlib.Path({mark!r}).touch(); raise ModuleNotFoundError(name='opentelemetry')"
)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def run_job(federation: LocalFederation, *, rounds: int = ROUNDS) -> bytes:
    """A job to its end, every process stopped in order; the job's digest."""
    federation.start()
    job_id = federation.submit(rounds=rounds)
    check_finished(federation, job_id, rounds=rounds)
    for service in reversed(federation.services.values()):
        assert service.stop() == 0, service.tail()
    digest: bytes = read_history(federation).job.digest
    return digest


def by_trace(spans: list[Received]) -> dict[int, list[Received]]:
    found = defaultdict(list)
    for span in spans:
        found[int.from_bytes(span.trace)].append(span)
    return found


def test_each_round_is_one_trace_with_spans_of_every_party(tmp_path: Path, collector: Collector) -> None:
    on = {"tracing_endpoint": collector.endpoint}
    with LocalFederation(folder=tmp_path, silos=SILOS, coordinator=on, silo=on) as federation:
        job = run_job(federation)
        names = federation.names

    traces = by_trace(collector.spans)
    assert set(traces) == {trace_id(job, round) for round in range(ROUNDS + 1)}
    for round in range(ROUNDS + 1):
        spans = traces[trace_id(job, round)]
        check_tree(spans, root=root_span_id(job, round))
        check_names(spans, names, trained=round > 0)
        for each in spans:
            check_attributes(each, job=job, round=round)


def check_tree(spans: list[Received], *, root: int) -> None:
    """One root, the coordinator's; everything else hangs from something of the same trace."""
    ids = {each.span.span_id for each in spans}
    assert len(ids) == len(spans)
    (top,) = [each for each in spans if each.span.name == "round"]
    assert (top.service, top.span.parent_span_id) == (COORDINATOR, b"")
    assert int.from_bytes(top.span.span_id) == root
    for each in spans:
        assert each is top or each.span.parent_span_id in ids, each
        assert each.service == COORDINATOR or each.span.parent_span_id == top.span.span_id, each
        assert each.span.start_time_unix_nano <= each.span.end_time_unix_nano


def check_names(spans: list[Received], silos: list[str], *, trained: bool) -> None:
    found = defaultdict(set)
    for each in spans:
        is_other_phase = trained and each.attributes.get("chorale.phase") != "train"
        if each.service == COORDINATOR or not is_other_phase:
            found[each.process["service.instance.id"]].add(each.span.name)
    own = SILO_SPANS | {"train" if trained else "compute"}
    assert found == {"coordinator": COORDINATOR_SPANS, **dict.fromkeys(silos, own)}


def check_attributes(each: Received, *, job: bytes, round: int) -> None:
    """What docs/tracing.md lists and nothing else: no event, no status, no link that could tell of data."""
    is_round = each.span.name == "round"
    assert set(each.attributes) == (EVERY if is_round else EVERY | WITHIN_PHASE)
    assert each.attributes["chorale.job"] == job.hex()[:12]
    assert each.attributes["chorale.round"] == round
    if not is_round:
        assert each.attributes["chorale.phase"] in ("enrollment.0", "train", "evaluate.0")
        assert each.attributes["chorale.attempt"] == 1
    assert set(each.process) == PROCESS
    assert (list(each.span.events), list(each.span.links)) == ([], [])
    assert not each.span.HasField("status") or each.span.status.ByteSize() == 0
    assert each.span.trace_state == ""


def test_nothing_is_imported_or_sent_while_tracing_is_off(tmp_path: Path, collector: Collector) -> None:
    mark = tmp_path / "imported"
    with LocalFederation(folder=tmp_path, silos=SILOS) as federation:
        federation.env = {
            **without_package(tmp_path, mark),
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": collector.endpoint,
        }
        run_job(federation, rounds=1)
    assert not mark.exists()
    assert (collector.requests, collector.spans) == (0, [])


@pytest.mark.parametrize("party", ["coordinator", "silo"])
def test_a_missing_package_is_one_sentence(tmp_path: Path, party: str) -> None:
    lacking = without_package(tmp_path, tmp_path / "imported")
    on = {f"CHORALE_{party.upper()}_TRACING_ENDPOINT": "http://127.0.0.1:9/v1/traces"}
    done = run_cli(party, "run", "--config", EXAMPLES / f"{party}.yaml", extra_env={**lacking, **on})
    assert done.returncode == 2
    assert done.stderr == (
        "chorale: error: tracing_endpoint: no module opentelemetry: tracing needs the extra otel: "
        "pip install '.[otel]'\n"
    )


def without_package(folder: Path, mark: Path) -> dict[str, str]:
    """An environment in which the package seems not to be installed, and who asks for it leaves a mark."""
    package = folder / "shadow" / "opentelemetry"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(TELLTALE.format(mark=str(mark)))
    return {"PYTHONPATH": str(package.parent)}
