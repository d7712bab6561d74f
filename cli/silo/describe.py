"""`chorale silo describe`: what the files of a data set hold, before anybody knows a job."""

from __future__ import annotations

from pathlib import Path

import click

from cli.keys import check_new, write_new
from cli.output.progress import said_if_slow
from cli.silo.settings import CONFIG
from crypto.errors import ConfigError, printable
from silo_agent.settings import load_silo_settings
from silo_agent.training.data.settings import TABLE_FORMATS, DataFormat, DataSettings

OWN_EYES = "for this institution's own eyes: values of single people are in it; nothing is sent anywhere"
IMAGES = (DataFormat.IMAGE_FOLDER, DataFormat.DICOM, DataFormat.NIFTI)


@click.command()
@CONFIG
@click.option("--data-set", help="Name of the data set; default: the only one.")
@click.option("--write", type=click.Path(path_type=Path), help="Write the proposal to this new file.")
def describe(config: Path, data_set: str | None, write: Path | None) -> None:
    """Show what the data hold: columns, ranges, missing values, classes, images.

    Needs no job and changes no file. Ends with a proposal for `data:` of the settings and, of a table, for
    `columns:` of a job; of texts, the proposal has those that five records or more hold.
    """
    from silo_agent.training.data.formats import described

    if write is not None:
        check_new(write, what="a file")
    settings = load_silo_settings(config)
    names = [each.name for each in settings.data_sets]
    if (data_set is None and len(names) > 1) or (data_set is not None and data_set not in names):
        raise ConfigError(f"--data-set: expected one of {', '.join(names)}, got {data_set or 'none'}")
    data = settings.data_set(data_set or names[0])
    click.echo(f"data set {data.name}, format {data.format}: {OWN_EYES}")
    if data.format not in TABLE_FORMATS:
        if write is not None:
            raise ConfigError(f"--write: not allowed with format {data.format}, whose files have no columns")
        return _describe_others(data)
    if data.format is DataFormat.CSV:
        data = _in_its_dialect(data)
    with said_if_slow(f"reading {data.path or 'the database'}"):
        table = described.TABLES[DataFormat(data.format)](data)
    click.echo(f"{table.rows} records, {len(table.cells)} columns")
    for line in table.problems.lines[: described.FEW]:
        click.echo(f"not read: {line}")
    if (left := table.problems.count) > described.FEW:
        click.echo(f"{left} problems of lines in all: `chorale silo check --job FILE` lists them")
    columns = []
    width = max(map(len, table.cells), default=0)
    with said_if_slow("counting the values of each column"):
        for column in described.columns_of(table, data):
            columns.append(column)
            click.echo(f"  {printable(column.name):<{width}}  {column.in_words()}")
    _give(described.proposal(data, columns), write)


def _in_its_dialect(data: DataSettings) -> DataSettings:
    """As its beginning is written. Raises ConfigError."""
    from silo_agent.training.data.formats.proposals import in_line, likely_dialect

    try:
        best, doubts = likely_dialect(data)
    except OSError as error:
        raise ConfigError(f"data.path: {data.path}: {error.strerror}") from None
    if best != data.dialect:
        click.echo(f"by its first lines the file is written otherwise than its settings say: {in_line(best)}")
    for doubt in doubts:
        click.echo(f"please ask who wrote the file: {doubt}")
    return data.model_copy(update={"dialect": best})


def _describe_others(data: DataSettings) -> None:
    from silo_agent.training.data.formats.described import folders_in_words
    from silo_agent.training.data.records import records_of

    if data.format in IMAGES:
        with said_if_slow("looking at the images"):
            for line in folders_in_words(data):
                click.echo(f"  {line}")
    else:
        with said_if_slow("reading the records"):
            records = records_of(data)
            count = 0 if records is None else sum(1 for _ in records.train)
        click.echo("only a job says what its function gives" if records is None else f"{count} records")


def _give(proposal: str, write: Path | None) -> None:
    if write is None:
        click.echo(f"\nproposal, to be read before it is used:\n\n{proposal}", nl=False)
    else:
        write_new(write, proposal.encode(), what="a file")
        click.echo(f"{write}: the proposal, to be read before it is used; nothing reads it by itself")
