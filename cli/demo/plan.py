"""What a demo runs: who takes part, the job, and each silo's data and policy. Everything is checked here.

`digits_plan` is the built-in one, `job_plan` that of a job file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from chorale.runtime.files import read_limited
from chorale.spec.job_spec import JobSpec
from chorale.spec.settings_file import MAX_BYTES, check_values, parse_mapping
from chorale.spec.strategy_spec import StrategySpec
from cli.given_data import DataOptions
from client.errors import about
from client.submission import spec_of, with_code
from crypto.errors import ConfigError
from crypto.session.cohort import CohortRule
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.disclosure.policy.privacy_policy import CEILING
from strategies.methods import strategy_for
from strategies.presets import recipe_of

FEDERATION, COORDINATOR, OPERATOR, AUTHORITY = "demo", "hub", "you", "authority"
LOGS, PARTIES = "logs", "federation"
# so that few silos can show every method; report.json says so
OPEN_POLICY: dict[str, Any] = {
    "class_statistics": "allow",
    "drawn_rounds": "with_statistics",
    "local_state": "allow",
    "min_class_holders": 2,
}
# --dp: what digits at the default number of silos and rounds bear best (docs/privacy-proofs.md, "Trying it")
ROUNDS = 10
EPSILONS = {"records": 8.0, "sums": 4.0}
SAMPLE_RATE, RECORDS_RATE = 0.2, 1.0
PRIVACY = {"records": {"clip_norm": 1.0, "sample_rate": SAMPLE_RATE}, "sums": {"clip_norm": 0.5}}
STEPS, STEP_RATE, STEP_MOMENTUM = 50, 1.0, 0.5  # where the silos share the noise
SHARED, OWN = "sum", "silo"
PRIVATE_OPTIONS: dict[str, dict[str, float]] = {"fedcsd": {"logit_clip": 10.0}}  # what --dp makes necessary
TRAIN_RECORDS = 1438  # of all silos together: digits without the hold-outs
OF_A_SIGNED_JOB = ("nonce", "initial_state")  # filled in again: the silos may be others
Settings = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was asked for, checked.

    job: the operator's job file. silos: by name the fields of its settings file that say what it computes,
    and on what. policy: of every silo. init: the initial model, where one is given.
    """

    out: Path
    drop: int
    federation: str
    job: Settings = field(repr=False)
    silos: Mapping[str, Settings] = field(repr=False)
    policy: Settings
    init: Path | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError that names the option and what is allowed."""
        rule = CohortRule.for_members(len(self.silos))
        largest = len(self.silos) - rule.min_survivors
        if not 0 <= self.drop <= largest:
            raise ConfigError(
                f"--drop: expected 0 to {largest}, as {len(self.silos)} silos must keep the "
                f"{rule.min_survivors} that a sum needs, got {self.drop}"
            )
        if self.drop and self.rounds < 2:
            raise ConfigError("--drop: silos are killed in round 2, so --rounds is at least 2")

    @property
    def names(self) -> list[str]:
        return list(self.silos)

    @property
    def rounds(self) -> int:
        """Of training, or steps."""
        return int(self.job.get("steps") or self.job["rounds"])

    @property
    def count(self) -> str:
        return f"{self.rounds} {'steps' if self.job.get('steps') else 'rounds'}"

    @property
    def strategy(self) -> str:
        """What the method is called in reports."""
        return StrategySpec.model_validate(self.job.get("strategy") or {}).name

    @property
    def allowed(self) -> Settings:
        """What the silos allow beyond the defaults."""
        return {name: self.policy[name] for name in OPEN_POLICY}

    @property
    def is_private(self) -> bool:
        return self.job.get("privacy") is not None

    @property
    def doomed(self) -> list[str]:
        """Those that --drop kills."""
        return self.names[len(self.silos) - self.drop :]

    @property
    def parties(self) -> Path:
        return self.out / PARTIES

    def folder(self, party: str) -> Path:
        return self.parties / party

    @property
    def signed_job(self) -> Path:
        """The job as its operator signed it."""
        return self.folder(OPERATOR) / "signed-job.yaml"


def digits_plan(
    *,
    silos: int,
    rounds: int | None,
    strategy: str,
    drop: int,
    out: Path,
    seed: int,
    dp: str | None = None,
    epsilon: float | None = None,
    noise: str | None = None,
    steps: int | None = None,
) -> Plan:
    """The digits, cut unevenly, and a small network. rounds, noise, steps: None where nothing was said.

    Raises ConfigError that names the option.
    """
    names = [f"silo-{number}" for number in range(1, silos + 1)]
    strategy_for(strategy, {})
    budget, noise = _budget(dp, epsilon), _noise(dp, noise)
    if noise == SHARED and rounds is not None:
        raise ConfigError(
            "--rounds: silos that share their noise count steps: expected --steps, or --noise silo"
        )
    if noise != SHARED and steps is not None:
        raise ConfigError("--steps: expected --dp records with it, whose silos share their noise")
    policy: Settings = {"federation": FEDERATION, "approval": "automatic", **OPEN_POLICY}
    if dp is not None:  # nothing leaves without noise, and the budget is what was asked for
        policy["privacy"] = {"epsilon": budget, "required": True, "shared_noise": "allow"}
    cut = {"kind": "dirichlet", "alpha": 0.5, "silos": silos, "seed": seed}
    data = {"format": "digits", "name": "digits"}
    training = {"rounds": rounds or ROUNDS} if noise != SHARED else {"steps": steps or STEPS}
    job = _digits_job(names, training, strategy=strategy, seed=seed, dp=dp, budget=budget)
    if dp is not None:
        # a method that cannot be private says so before anything is started
        check_values(JobSpec, {**job, "not_after": _tomorrow()}, source="--dp")
    return Plan(
        out=out,
        drop=drop,
        federation=FEDERATION,
        job=job,
        silos={
            name: {"data": {**data, "partition": {**cut, "index": index}}, "device": "cpu"}
            for index, name in enumerate(names)
        },
        policy=policy,
    )


def job_plan(
    file: Path,
    options: DataOptions,
    *,
    silos: int | None,
    policy: Policy | None,
    init: Path | None,
    drop: int,
    out: Path,
) -> Plan:
    """A job file's, on data as `chorale simulate` takes them, under its policy: one that refuses nothing if
    None. Raises ConfigError that names file or option, PolicyRefusal where the policy refuses the job."""
    values = parse_mapping(read_limited(file, MAX_BYTES), source=str(file))
    listed = values.get("silos", ())
    names = options.names(listed if isinstance(listed, list) else (), silos)
    job = {name: value for name, value in values.items() if name not in OF_A_SIGNED_JOB}
    job["silos"] = names
    spec = spec_of({"not_after": _tomorrow(), **job}, source=str(file))
    with about(str(file)):
        spec = with_code(spec)
    for name in (COORDINATOR, OPERATOR, AUTHORITY, LOGS):
        if name in names:
            raise ConfigError(f"{file}: silos: {name} is the name of another party of the demo")
    code = list(spec.distributions)
    rules: Settings = {
        **OPEN_POLICY,
        "count_granularity": 1,
        "distributions": code,
        "privacy": {"epsilon": CEILING, "shared_noise": "allow"},
    }
    if policy is not None:
        policy.check_job(spec, operator=policy.operators[0] if policy.operators else OPERATOR)
        rules = {**policy.model_dump(mode="json"), "operators": None}  # the demo's own signs
    elif init is not None:
        rules["initial_state"] = "given"
    plan = Plan(
        out=out,
        drop=drop,
        federation=spec.federation,
        job=job,
        silos=options.settings_of(spec),
        policy={**rules, "federation": spec.federation, "approval": "automatic"},
        init=None if init is None else init.resolve(),
    )
    options.check_cut(spec)
    return plan


def _noise(dp: str | None, noise: str | None) -> str | None:
    """Where the noise of record-level privacy comes from; None without it. Raises ConfigError."""
    if dp != "records":
        if noise is not None:
            raise ConfigError(f"--noise: expected --dp records with it, got {dp or 'neither'}")
        return None
    return noise or SHARED


def _budget(dp: str | None, epsilon: float | None) -> float:
    """Epsilon of the job, and of each silo's data set; of no use without --dp. Raises ConfigError."""
    if dp is None:
        if epsilon is not None:
            raise ConfigError("--epsilon: expected --dp records or --dp sums with it, got neither")
        return EPSILONS["records"]
    if dp not in EPSILONS:
        raise ConfigError(f"--dp: expected {' or '.join(EPSILONS)}, got {dp}")
    budget = EPSILONS[dp] if epsilon is None else epsilon
    if not 0 < budget <= CEILING:
        raise ConfigError(
            f"--epsilon: expected more than 0 and at most {CEILING:g}, all that a silo's policy lets a "
            f"data set spend, got {budget:g}"
        )
    return budget


def _digits_job(
    names: Sequence[str],
    count: Mapping[str, int],
    *,
    strategy: str,
    seed: int,
    dp: str | None,
    budget: float,
) -> Settings:
    """A small network at the preset's own rate: 0.95 in ten rounds, and under --dp what noise leaves of it.

    count: rounds, or the steps of silos that share their noise.
    """
    rates = recipe_of(strategy).rates
    training: Settings = {"local_epochs": 3, "batch_size": 8, "learning_rate": rates and rates.default}
    options: dict[str, float] = {}
    privacy: Settings = {}
    if dp is not None:
        options = PRIVATE_OPTIONS.get(strategy, {})
        privacy = {"privacy": {"epsilon": budget, dp: PRIVACY[dp]}}
    if dp == "records":
        expected_batch = max(1, round(SAMPLE_RATE * TRAIN_RECORDS / len(names)))
        training = {"local_epochs": 1, "batch_size": expected_batch, "learning_rate": RECORDS_RATE}
    if "steps" in count:
        privacy["privacy"]["records"] = {**PRIVACY["records"], "noise": SHARED}
        training |= {"learning_rate": STEP_RATE, "momentum": STEP_MOMENTUM}
        privacy["enrollment_every"] = 1_000  # each costs epsilon, and the silos do not change
    return {
        "name": "digits",
        "federation": FEDERATION,
        "silos": list(names),
        **count,
        "strategy": {"preset": strategy, "options": options},
        "model": {"name": "mlp", "hidden": [128], "seed": seed},
        "classes": 10,
        "input_shape": [1, 8, 8],
        "training": training,
        "seed": seed,
        **privacy,
    }


def _tomorrow() -> datetime:
    """not_after of a job that names none, to check it by: `job submit` has its own."""
    return datetime.now(UTC) + timedelta(days=1)
