"""`from chorale import Federation`: what the commands of `chorale job` do, for programs and notebooks.

    federation = Federation("operator.yaml")
    job = federation.submit("job.yaml")
    for round in federation.watch(job):                 # a RoundResult each, as it ends
        print(round.round, round.accuracy, round.loss)
    federation.results(job)                             # a pandas DataFrame, a row a round
    federation.fetch(job)                               # a state_dict

Whatever goes wrong is raised as a ChoraleError, with the sentence that the command would end with; what may
help is in its notes. docs/python.md explains it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from chorale.job import sign_job
from chorale.results import JobResults, RoundResult
from chorale.runtime.files import read_limited, write_atomic
from chorale.spec.job_spec import JobSpec
from chorale.spec.model_file import described_job, open_model
from chorale.transport.tls import load_authority
from client.analysis.results import AnalysisResults
from client.analysis.submission import analysis_of, prepared_analysis, read_analysis
from client.history import JobHistory, check_done, silo_facts, summary_facts
from client.operations import Operations, connect
from client.planning import Plan, plan_of, with_timing
from client.results import results_of, rounds_of
from client.settings import operator_settings
from client.submission import Submission, absent_notes, prepared, read_spec, spec_of
from strategies.base import MODEL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from client.settings import OperatorSettings

File = str | PathLike[str]
JobFile = File | Mapping[str, Any]  # a YAML file, or its fields
T = TypeVar("T")
SHORT = 12  # digits of an id that people read
WATCHING = "chorale-watch"  # name of a thread that reads a job's events


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    """A job that the coordinator has taken.

    id: SHA-256 of the signed job, in hexadecimal. promised: what a private job promises, in lines. notes:
    what silos' policies must allow, and which silos are not there.
    """

    id: str
    name: str
    promised: tuple[str, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.id[:SHORT]}  {self.name}"


JobId = str | SubmittedJob


class Federation:
    """One operator of one federation. Each call opens a connection of its own and closes it.

    config: the operator's settings file (docs/examples/operator.yaml), whose fields variables of the
    environment may give instead. Raises ConfigError that names what is missing.
    """

    def __init__(self, config: File | None = None) -> None:
        self.settings: OperatorSettings = operator_settings(None if config is None else Path(config))

    def __repr__(self) -> str:
        return f"Federation({self.settings.federation!r} at {self.settings.coordinator!r})"

    def plan(self, job: JobFile, *, init: File | None = None) -> Plan:
        """What a job would do, before it is submitted: `chorale job plan`.

        Bytes are of one silo, seconds by past rounds of this coordinator (`timing`, None without any). job,
        init and errors are those of `submit`, but that nothing is signed or sent.
        """
        planned = plan_of(self._prepared(job, init))
        with connect(self.settings) as (operations, _):
            return with_timing(planned, operations)

    def submit(self, job: JobFile, *, init: File | None = None) -> SubmittedJob:
        """Sign a job and submit it: `chorale job submit`.

        job: a YAML file, or a mapping with its fields. init: a safetensors file with the starting weights;
        None: drawn from the job, which needs the extra `silo`. Raises ConfigError for a job that no silo
        could run, RemoteProtocolError where the coordinator refuses it.
        """
        ready = self._prepared(job, init)
        with connect(self.settings) as (operations, identity):
            digest = operations.submit(sign_job(ready.spec.to_yaml(), identity), ready.state)
            connected = {silo.name: silo.connected for silo in operations.silos().silos}
        notes = (*ready.notes, *absent_notes(ready.spec, connected))
        return SubmittedJob(id=digest.hex(), name=ready.spec.name, promised=ready.promised, notes=notes)

    def analyze(self, analysis: JobFile) -> AnalysisResults:
        """Sign and submit an analysis, wait until it ends, and read what it published.

        analysis: a YAML file, or a mapping with its fields (docs/examples/analysis.yaml). Results have
        `frame()`, `plot(column)` and `to_text()`. Where institutions approve by hand it waits for them:
        `analysis_results` reads an analysis that was submitted before. Raises as `submit` and `watch`.
        """
        if isinstance(analysis, Mapping):
            source, spec = "analysis", analysis_of(analysis, source="analysis")
        else:
            source, spec = str(analysis), read_analysis(Path(analysis))
        now = datetime.now(UTC)
        ready = prepared_analysis(spec, source=source, federation=self.settings.federation, now=now)
        with connect(self.settings) as (operations, identity):
            digest = operations.submit(sign_job(ready.spec.to_yaml(), identity), ready.state)
        for _ in self.watch(digest.hex()):
            pass  # it has no rounds
        return self.analysis_results(digest.hex())

    def analysis_results(self, job: JobId) -> AnalysisResults:
        """What an analysis of one's own published so far: `chorale analysis results`.

        Raises ConfigError for another kind of job, and before anything was counted.
        """
        with connect(self.settings) as (operations, _):
            return AnalysisResults.fetched(operations, _find(operations, job))

    def watch(self, job: JobId) -> Iterator[RoundResult]:
        """Each round of a job as it ends, those that have ended first; waits until the job ends.

        job: what `submit` gave, or the first digits of a job's id. Raises PolicyRefusal, BudgetExhausted or
        JobNotDone after the last round of a job that did not reach its end, ConfigError for an unknown id.
        """
        yield from self._watch(job, on_open=lambda _operations: None)

    def results(self, job: JobId) -> DataFrame:
        """The rounds so far, a row each: columns and units are those of `JobResults.frame`.

        Raises ConfigError for an unknown id, and without the extra `notebook`.
        """
        return self._results(job).frame()

    def plot(self, job: JobId, figure: str | None = None, *, ax: Axes | None = None) -> Axes:
        """Draw a figure over the rounds so far; default: the one that the job's task tells first.

        ax: where to draw it; None: in a new one. Raises ConfigError for a figure that no round has.
        """
        return self._results(job).plot(figure, ax=ax)

    def fetch(self, job: JobId, *, out: File | None = None) -> dict[str, Any]:
        """The model that a job of one's own hands out, as a state_dict.

        Where torch is installed its values are tensors on the CPU, by the names of the author's own module:
        `module.load_state_dict(federation.fetch(job))`. Elsewhere they are float32 arrays by the names of the
        global state. out: a file to write it to as well, safetensors with facts, as `chorale job fetch`.
        Raises RemoteProtocolError where the coordinator refuses, or sends what is no model.
        """
        with connect(self.settings) as (operations, _):
            _, parts = operations.fetch(_find(operations, job))
            data = b"".join(parts)
        if out is not None:
            write_atomic(Path(out), data)
        state, facts = open_model(data)
        if find_spec("torch") is None or not facts:
            return {
                name.removeprefix(MODEL): array for name, array in state.items() if name.startswith(MODEL)
            }
        from silo_agent.training.models.plain import model_state_dict

        return dict(model_state_dict(described_job(facts, source="model"), state))

    def evidence(self, job: JobId, out: File, *, added: Sequence[File] = ()) -> Path:
        """Write all that proves a job of one's own into one signed archive: `chorale job evidence`.

        out: its file, zip. added: files of `chorale silo evidence` that institutions handed on. Returns the
        path. Raises EvidenceMismatch where something in it does not fit, ConfigError for a file that cannot
        be read.
        """
        from chorale.evidence import MAX_STATEMENT_BYTES
        from client.evidence.pack import collect

        silos = {str(path): read_limited(Path(path), MAX_STATEMENT_BYTES) for path in added}
        authority = load_authority(self.settings.authority)
        with connect(self.settings) as (operations, identity):
            digest = _find(operations, job)
            data = collect(operations, digest, identity=identity, authority=authority, silos=silos)
        write_atomic(Path(out), data, mode=0o644)
        return Path(out)

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs that the coordinator knows: the rows of `chorale job list --json`."""
        with connect(self.settings) as (operations, _):
            return [summary_facts(summary) for summary in operations.jobs()]

    def silos(self) -> list[dict[str, Any]]:
        """The roster's silos, and which are connected: the rows of `chorale job silos --json`."""
        with connect(self.settings) as (operations, _):
            rows: list[dict[str, Any]] = silo_facts(operations.silos())["silos"]
            return rows

    def pause(self, job: JobId) -> None:
        """Start no further phase until the job is resumed: `chorale job pause`."""
        self._control(job, "pause")

    def resume(self, job: JobId) -> None:
        """Go on with a paused job: `chorale job resume`."""
        self._control(job, "resume")

    def skip_round(self, job: JobId) -> None:
        """Give up a round that stands still for silos whose input is there: `chorale job skip-round`."""
        self._control(job, "skip_round")

    def cancel(self, job: JobId) -> None:
        """End a job for good; the rounds that are done stay: `chorale job cancel`."""
        self._control(job, "cancel")

    def to_mlflow(self, job: JobId, uri: str, *, experiment: str | None = None) -> str:
        """Write a job's rounds and figures to an MLflow server; returns the run's id: mlflow_export.export.

        uri: of the tracking server. experiment: its name; None: the federation's. Raises ConfigError without
        the extra `mlflow`, PeerFailed where the server does not take it.
        """
        from client.mlflow_export import export

        return export(self._history(job), uri, experiment=experiment or self.settings.federation)

    def _control(self, job: JobId, action: str) -> None:
        with connect(self.settings) as (operations, _):
            operations.control(_find(operations, job), action)

    def _prepared(self, job: JobFile, init: File | None) -> Submission[JobSpec]:
        spec: JobSpec = spec_of(job, source="job") if isinstance(job, Mapping) else read_spec(Path(job))
        return prepared(
            spec,
            source="job" if isinstance(job, Mapping) else str(job),
            federation=self.settings.federation,
            init=None if init is None else Path(init),
            now=datetime.now(UTC),
        )

    def _results(self, job: JobId) -> JobResults:
        return results_of(self._history(job))

    def _history(self, job: JobId) -> JobHistory:
        with connect(self.settings) as (operations, _):
            return operations.history(_find(operations, job))

    def _watch(self, job: JobId, *, on_open: Callable[[Operations], None]) -> Iterator[RoundResult]:
        """on_open: is given the connection, which it may close from another thread."""
        history = JobHistory()
        with connect(self.settings) as (operations, _):
            on_open(operations)
            yield from rounds_of(operations.watch(_find(operations, job)), history)
        check_done(history)


class AsyncFederation:
    """A Federation whose calls are awaited: each runs in a thread. Errors are Federation's."""

    def __init__(self, config: File | None = None) -> None:
        self._federation = Federation(config)

    async def plan(self, job: JobFile, *, init: File | None = None) -> Plan:
        """Federation.plan."""
        return await asyncio.to_thread(self._federation.plan, job, init=init)

    async def submit(self, job: JobFile, *, init: File | None = None) -> SubmittedJob:
        """Federation.submit."""
        return await asyncio.to_thread(self._federation.submit, job, init=init)

    async def analyze(self, analysis: JobFile) -> AnalysisResults:
        """Federation.analyze."""
        return await asyncio.to_thread(self._federation.analyze, analysis)

    async def analysis_results(self, job: JobId) -> AnalysisResults:
        """Federation.analysis_results."""
        return await asyncio.to_thread(self._federation.analysis_results, job)

    async def watch(self, job: JobId) -> AsyncIterator[RoundResult]:
        """Federation.watch, for `async for`. A task that is cancelled closes its connection."""
        opened: list[Operations] = []
        is_over = threading.Event()

        def on_open(operations: Operations) -> None:
            opened.append(operations)
            if is_over.is_set():  # cancelled meanwhile
                operations.close()

        def close() -> None:
            is_over.set()
            for operations in opened:
                operations.close()

        rounds = self._federation._watch(job, on_open=on_open)
        async with aclosing(_items(rounds, close=close)) as items:
            async for each in items:
                yield each

    async def results(self, job: JobId) -> DataFrame:
        """Federation.results."""
        return await asyncio.to_thread(self._federation.results, job)

    async def plot(self, job: JobId, figure: str | None = None, *, ax: Axes | None = None) -> Axes:
        """Federation.plot; drawn in the caller's thread, as matplotlib wants it."""
        found = await asyncio.to_thread(self._federation._results, job)
        return found.plot(figure, ax=ax)

    async def fetch(self, job: JobId, *, out: File | None = None) -> dict[str, Any]:
        """Federation.fetch."""
        return await asyncio.to_thread(self._federation.fetch, job, out=out)

    async def evidence(self, job: JobId, out: File, *, added: Sequence[File] = ()) -> Path:
        """Federation.evidence."""
        return await asyncio.to_thread(self._federation.evidence, job, out, added=added)

    async def jobs(self) -> list[dict[str, Any]]:
        """Federation.jobs."""
        return await asyncio.to_thread(self._federation.jobs)

    async def silos(self) -> list[dict[str, Any]]:
        """Federation.silos."""
        return await asyncio.to_thread(self._federation.silos)

    async def pause(self, job: JobId) -> None:
        """Federation.pause."""
        await asyncio.to_thread(self._federation.pause, job)

    async def resume(self, job: JobId) -> None:
        """Federation.resume."""
        await asyncio.to_thread(self._federation.resume, job)

    async def skip_round(self, job: JobId) -> None:
        """Federation.skip_round."""
        await asyncio.to_thread(self._federation.skip_round, job)

    async def cancel(self, job: JobId) -> None:
        """Federation.cancel."""
        await asyncio.to_thread(self._federation.cancel, job)

    async def to_mlflow(self, job: JobId, uri: str, *, experiment: str | None = None) -> str:
        """Federation.to_mlflow."""
        return await asyncio.to_thread(self._federation.to_mlflow, job, uri, experiment=experiment)


def _find(operations: Operations, job: JobId) -> bytes:
    return operations.find(job.id if isinstance(job, SubmittedJob) else job)


async def _items(items: Iterator[T], *, close: Callable[[], None]) -> AsyncGenerator[T, None]:
    """The items of a blocking iterator, read by a thread of its own; `close` makes it end."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[tuple[T | None, BaseException | None]]()

    def put(item: T | None, error: BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            loop.call_soon_threadsafe(queue.put_nowait, (item, error))

    def read() -> None:
        try:
            for item in items:
                put(item, None)
            put(None, None)
        except Exception as error:
            put(None, error)

    threading.Thread(target=read, name=WATCHING, daemon=True).start()
    try:
        while True:
            item, error = await queue.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        close()
