"""`chorale silo personal`: the models that jobs fine-tuned on this silo's own data."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chorale.runtime.files import write_atomic
from cli.output.facts import json_option, print_json
from cli.silo.settings import CONFIG, opened_ledger
from crypto.errors import ConfigError
from silo_agent.disclosure.policy.policy import load_policy
from silo_agent.settings import load_silo_settings
from strategies.figure import Figure
from strategies.intervals import ratio_interval

if TYPE_CHECKING:
    from silo_agent.local_storage.personal_models import KeptModel


@click.command("personal")
@CONFIG
@click.argument("job", required=False)
@json_option
@click.option("--out", type=click.Path(path_type=Path), help="File for a copy of JOB's model, safetensors.")
def show_personal(config: Path, job: str | None, is_json: bool, out: Path | None) -> None:
    """Show or copy the models that jobs fine-tuned on this silo's own data.

    Without JOB all of them. They are made without noise and belong to this institution: giving one away
    discloses something of its data.
    """
    from silo_agent.local_storage.personal_models import PersonalModels

    if out is not None and job is None:
        raise ConfigError("--out: expected JOB with it; without --out all jobs are listed")
    settings = load_silo_settings(config)
    with closing(opened_ledger(settings)) as ledger:
        # which answers left is the same for every data set
        reveals = ledger.reveals(policy=load_policy(settings.policy), data_set=settings.data_sets[0].name)
        models = PersonalModels(
            settings.personal_directory,
            is_revealed=lambda key: reveals.is_revealed(
                key.job_digest, key.round, key.phase, silo=settings.name
            ),
        )
        found = models.kept() if job is None else [models.find(job)]
        is_confirmed = {kept.id: models.is_confirmed(kept) for kept in found}
    if out is not None:
        write_atomic(out, found[0].path.read_bytes())
    if is_json:
        return print_json({"models": [_model_facts(kept, is_confirmed[kept.id]) for kept in found]})
    for kept in found:
        click.echo(_personal_line(kept, is_confirmed=is_confirmed[kept.id]))
    if not found:
        click.echo("no job has fine-tuned a model here")
    if out is not None:
        click.echo(f"{out}: the personal model of job {found[0].id}")


def _model_facts(kept: KeptModel, is_confirmed: bool) -> dict[str, Any]:
    """facts: texts of the file, such as name, method, accuracy. is_confirmed: a sum with this silo shows that
    its global model is the one that the others had."""
    return {
        "job": kept.key.job_digest.hex(),
        "file": str(kept.path),
        "is_confirmed": is_confirmed,
        "facts": dict(kept.facts),
    }


def _figure(score: str, tested: int) -> Figure:
    low, high = ratio_interval(float(score) * tested, tested, records=float(tested))
    return Figure(value=float(score), sampling=(float(low), float(high)), records=tested)


def _personal_line(kept: KeptModel, *, is_confirmed: bool) -> str:
    """Which job's, how good on this silo's hold-out, from which global model, where."""
    facts = kept.facts
    measured = "no hold-out to test it on"
    if "accuracy" in facts:
        before, tested = facts.get("accuracy_of_global_model"), int(facts["tested"])
        beside = "" if before is None else f", the global model {_figure(before, tested)}"
        measured = f"accuracy {_figure(facts['accuracy'], tested)}{beside}"
    origin = "the one that the other silos had" if is_confirmed else "not confirmed by a sum with this silo"
    return (
        f"{kept.id}  {facts['name']}  {facts['method']}  {measured}\n"
        f"  from global model {facts['global_model'][:12]}, {origin}\n"
        f"  {kept.path}"
    )
