"""`chorale tune`: a search over the learning rates that a job's method was seen to learn at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from chorale.runtime.files import read_limited, write_atomic
from chorale.spec.settings_file import MAX_BYTES, parse_mapping
from client.submission import spec_of
from crypto.errors import ConfigError

if TYPE_CHECKING:
    from chorale.spec.job_spec import JobSpec

MOST_RATES = 5
STEPS = (1.0, 3.0)  # times powers of ten
UNKNOWN = 30.0  # how far rates reach to both sides of the job's own where nothing was measured


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="JOB.yaml")
@click.option("--out", type=click.Path(path_type=Path), help="Write it there; default: print it.")
def tune(file: Path, out: Path | None) -> None:
    """Add a search over learning rates to JOB.yaml: the job's own rate first, then others about it.

    They lie where the preset was seen to learn, or about the job's own rate where that is not known.
    """
    written = read_limited(file, MAX_BYTES)
    values = parse_mapping(written, source=str(file))
    if "search" in values:
        raise ConfigError(f"{file}: search: expected none, which this command writes")
    rates = rates_to_try(spec_of(values, source=str(file)))
    block = f"search:\n  values:\n    training.learning_rate: {rates}\n"
    text = f"{written.decode().rstrip().removesuffix('...').rstrip()}\n{block}"
    spec = spec_of(parse_mapping(text.encode(), source=str(file)), source=str(file))
    assert spec.search is not None
    click.echo(spec.search.in_words(spec.rounds), err=True)
    if out is None:
        click.echo(text, nl=False)
    else:
        write_atomic(out, text.encode(), mode=0o644)


def rates_to_try(spec: JobSpec) -> list[float]:
    """The job's own rate, then the nearest of 1, 3, 10, 30 ... that its method was seen to learn at, in
    order."""
    known, own = spec.known_rates, spec.learning_rate_at(1)
    least, most = (own / UNKNOWN, own * UNKNOWN) if known is None else (known.least, known.most)
    # a grid of powers of ten, read as they are written
    grid = [float(f"{step:g}e{power}") for power in range(-6, 2) for step in STEPS]
    others = [rate for rate in grid if least <= rate <= most and not 0.7 < rate / own < 1.5]
    nearest = sorted(others, key=lambda rate: max(rate / own, own / rate))[: MOST_RATES - 1]
    return [own, *sorted(nearest)]
