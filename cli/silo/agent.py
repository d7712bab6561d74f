"""`chorale silo csr`, `run`, `check` and `policy`: the agent, its key, and what its files mean."""

from __future__ import annotations

from pathlib import Path

import click

from chorale.runtime.machine import check_memory
from cli.keys import csr_command
from cli.output.facts import json_option, print_json
from cli.silo.settings import CONFIG
from client.errors import require_extra
from crypto.errors import ConfigError
from silo_agent.settings import load_silo_settings

csr = csr_command("silo")


@click.command()
@CONFIG
def run(config: Path) -> None:
    """Take part in the federation until stopped (SIGTERM or Ctrl-C)."""
    settings = load_silo_settings(config)
    check_memory(settings.min_memory_bytes, what="a silo")
    if settings.objective is None:
        require_extra("silo", "torch", "dp_accounting", what="a silo with the built-in training")
    require_extra("privacy", "dp_accounting", what="a silo's account of its privacy budget")
    from silo_agent.agent import run as run_agent

    run_agent(settings, config)


@click.command()
@CONFIG
@click.option(
    "--job", "job_file", type=click.Path(path_type=Path), help="Also check a job, as it would run here."
)
@click.option(
    "--init", type=click.Path(path_type=Path), help="Initial model of the job, safetensors, if one is given."
)
@json_option
def check(config: Path, job_file: Path | None, init: Path | None, is_json: bool) -> None:
    """Check settings, certificate, policy and data, and send nothing.

    With --job also whether the policy accepts it, every record against it, and one batch of each of its
    phases. Nothing is spent and nothing written. Ends with 0 unless there is a problem.
    """
    from cli.silo.check import check_silo

    if init is not None and job_file is None:
        raise ConfigError("--init: expected --job with it")
    check_silo(config, job_file, init, is_json=is_json)


@click.command()
@CONFIG
@json_option
def policy(config: Path, is_json: bool) -> None:
    """Show the effective policy and what it would refuse, of each data set where there are several."""
    from cli.silo.facts import policy_facts
    from silo_agent.disclosure.policy.in_words import described
    from silo_agent.disclosure.policy.policy import load_policy

    settings = load_silo_settings(config)
    if is_json:
        print_json(policy_facts(settings))
        return
    for data_set in settings.data_sets:
        path = settings.policy_of(data_set)
        if len(settings.data_sets) > 1:
            click.echo(f"data set {data_set.name}: {path}")
        click.echo(described(load_policy(path)))
