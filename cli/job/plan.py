"""`chorale job plan`: what a job would do, before anything of it is submitted."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chorale.privacy.remembered import remembering
from cli.job.options import operator_options
from cli.output.facts import json_option, print_json
from cli.output.progress import PREPARING, said_if_slow
from client.operations import connect
from client.planning import Plan, plan_of, with_timing
from client.submission import prepared, read_spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from client.settings import OperatorSettings


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="JOB.yaml")
@click.option("--init", type=click.Path(path_type=Path), help="Initial model, as `job submit` takes it.")
@json_option
@operator_options(is_optional=True)
@remembering()
def plan(settings: OperatorSettings | None, file: Path, init: Path | None, is_json: bool) -> None:
    """Show phases, bytes of a silo, epsilon and time of JOB.yaml; nothing is submitted.

    The time is that of past rounds of the coordinator, where operator settings name one.
    """
    with said_if_slow(PREPARING):
        federation = None if settings is None else settings.federation
        ready = prepared(
            read_spec(file), source=str(file), federation=federation, init=init, now=datetime.now(UTC)
        )
        planned = plan_of(ready)
    if settings is not None:
        with connect(settings) as (operations, _):
            planned = with_timing(planned, operations)
    if is_json:
        print_json(planned.facts())
        return
    for line in _lines(planned, has_coordinator=settings is not None):
        click.echo(line)
    for note in planned.notes:
        click.echo(note, err=True)


def _lines(planned: Plan, *, has_coordinator: bool) -> Iterator[str]:
    timing = planned.timing
    yield (
        f"{planned.name}: {planned.strategy} over {planned.silos} silos, {planned.rounds} rounds, "
        f"learning rate {planned.learning_rate:g}"
    )
    if planned.search:
        yield planned.search
    yield from (f"unusual: passes over a rule: {rule}" for rule in planned.unusual)
    yield (
        f"model: {bytes_told(planned.model_bytes)} of parameters; a silo that missed a round downloads "
        f"{bytes_told(planned.state_bytes)}"
    )
    yield f"{'phase':<14}{'times':>6}{'silos':>7}{'a silo sends':>15}{'and receives':>15}  sums of"
    for phase in planned.phases:
        sums = ", ".join(f"{name} ({size:,})" for name, size in phase.quantities.items())
        sums += f"; of {phase.arms} arms each" if phase.arms > 1 else ""
        yield (
            f"{phase.kind:<14}{phase.times:>6}{phase.silos:>7}{bytes_told(phase.sent_bytes):>15}"
            f"{bytes_told(phase.received_bytes):>15}  {sums}"
        )
    yield (
        f"in the whole job a silo sends {bytes_told(planned.sent_bytes)} and receives "
        f"{bytes_told(planned.received_bytes)}, where no attempt is lost"
    )
    if planned.promise is None:
        yield "privacy: none but that of sums: no noise, no epsilon"
    else:
        yield from planned.promise.lines()
        if planned.gradients:
            yield planned.gradients
    if timing is not None:
        yield (
            f"time: about {duration_told(timing.seconds)} once approved, by {timing.rounds} rounds of "
            f"the same method, model size and number of silos (jobs {', '.join(timing.jobs[-3:])})"
        )
    elif has_coordinator:
        yield "time: not known, the coordinator ran no job of this method, model size and number of silos"
    else:
        yield "time: not known without a coordinator's past rounds (--config)"


def bytes_told(count: int) -> str:
    """`532 B`, `12.3 kB`, `4.1 MB`: of 1000 each."""
    if count < 1000:
        return f"{count} B"
    for unit, size in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if count < 999.5 * size or unit == "GB":
            return f"{count / size:.3g} {unit}"
    raise AssertionError("unreachable: GB takes all")


def duration_told(seconds: float) -> str:
    """`40 seconds`, `12 minutes`, `3.5 hours`."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
