"""`chorale simulate` of an analysis: its table, over one machine's data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
from click.core import ParameterSource

from chorale.runtime.files import read_limited, write_atomic
from chorale.spec.settings_file import MAX_BYTES, parse_mapping
from chorale.spec.state import state_to_bytes
from chorale.transport.wire import phase_kind
from cli.analysis.rendering import FORMS
from cli.given_data import DataOptions
from client.analysis.results import AnalysisResults
from client.analysis.submission import analysis_of
from client.submission import NEVER, solved
from crypto.errors import ConfigError, printable
from silo_agent.disclosure.policy.policy import Policy, load_policy
from silo_agent.rounds.data_sets import check_read
from simulation.analysis import AnalysisSimulation
from strategies.analysis.method import FIRST_STATE

# of the command, by what they become
OF_TRAININGS = frozenset(
    {
        *("parallel", "engine", "address", "gpus", "init", "device", "precision", "memory_format"),
        *("sends_all_rows", "has_test_set"),
    }
)
IID = "iid"


def is_analysis(file: Path) -> bool:
    """Whether the file is no training. Raises ConfigError for one that cannot be read."""
    return "kind" in parse_mapping(read_limited(file, MAX_BYTES), source=str(file))


def simulate_analysis(
    context: click.Context,
    file: Path,
    options: DataOptions,
    *,
    silos: int | None,
    policy: Path | None,
    is_secure: bool,
    out: Path | None,
) -> None:
    """context: of the command, whose options are not all for analyses. Raises ConfigError, and PolicyRefusal
    where a given policy would refuse the job."""
    options = _options(context, options)
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"--out: {out} is a file, expected a folder")
    values = {"not_after": NEVER, **parse_mapping(read_limited(file, MAX_BYTES), source=str(file))}
    listed = values.get("silos", ())
    names = options.names(listed if isinstance(listed, list) else (), silos)
    spec = analysis_of(values, source=str(file), silos=names if options.silo_files or silos else ())
    spec, promised = solved(spec, state_to_bytes(FIRST_STATE))
    for line in promised:
        click.echo(line, err=True)
    rules = Policy(federation=spec.federation, count_granularity=1)
    if policy is not None:
        rules = load_policy(policy)
        rules.check_job(spec, operator=rules.operators[0] if rules.operators else "")
        for data_set in options.data_sets(spec):
            check_read(spec, rules, data_set=data_set.name, format=data_set.format)
    tables = dict(zip(spec.silos, options.tables(spec), strict=True))
    simulation = AnalysisSimulation(spec, tables, policy=rules, is_secure=is_secure)
    click.echo(printable(spec.in_words), err=True)
    for report in simulation.run():
        click.echo(f"{phase_kind(report.phase)}: {len(report.silos)} silos", err=True)
        for silo, why in report.left_out.items():
            click.echo(printable(f"  left out: {silo}: {why}"), err=True)
    results = AnalysisResults.of(spec, simulation.state)
    if out is None:
        click.echo(results.to_text(), nl=False)
        return
    out.mkdir(parents=True, exist_ok=True)
    for form, rendered in FORMS.items():
        path = out / f"results.{'txt' if form == 'text' else form}"
        write_atomic(path, rendered(results).encode(), mode=0o644)
        click.echo(str(path))


def _options(context: click.Context, options: DataOptions) -> DataOptions:
    """A table is cut evenly. Raises ConfigError for options that are given and say nothing here."""
    for parameter in context.command.params:
        is_given = context.get_parameter_source(parameter.name or "") is not ParameterSource.DEFAULT
        if parameter.name in OF_TRAININGS and is_given:
            raise ConfigError(f"{parameter.opts[0]}: not allowed with an analysis, which trains nothing")
    if "partition" in options.named and options.partition != IID:
        raise ConfigError(
            f"--partition: expected {IID} for an analysis, whose records have no classes, "
            f"got {options.partition}"
        )
    cut = replace(options, partition=IID)
    cut.check_used()
    return cut
