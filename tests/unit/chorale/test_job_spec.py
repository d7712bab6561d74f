from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from chorale.spec import job_spec
from chorale.spec.job_spec import JobSpec
from client.submission import prepared, spec_of
from crypto.errors import ConfigError
from tests.unit.chorale.conftest import NOW, SILOS, MakeSpec, job_fields


def stated(**fields: Any) -> dict[str, Any]:
    """A task of another distribution, with one sum."""
    sums = [{"name": "error_sum", "bound": 1.0, "per_record": 1.0, **fields}]
    return {"name": "error", "from": "tasks==1.0", "sums": sums, "is_mean": True}


def test_a_job_survives_its_file(make_spec: MakeSpec) -> None:
    spec = make_spec(
        columns=[{"name": "age", "mean": 51.5, "scale": 1e-3, "fill": 50}, {"name": "sex"}],
        label_column="outcome",
        input_shape=[2],
        strategy={"preset": "fedavg"},
        model={"name": "mlp", "hidden": [16, 8], "norm": "group", "seed": 3},
        training={"learning_rate": 1e-5, "schedule": {"kind": "step", "gamma": 0.5}},
        threshold=4,
    ).filled(nonce="ab" * 16, initial_state=b"\x01" * 32)
    data = spec.to_yaml()
    assert JobSpec.from_yaml(data, source="job.yaml") == spec
    assert JobSpec.from_yaml(data, source="job.yaml").to_yaml() == data


def test_a_job_without_the_words_of_later_releases_keeps_its_bytes(make_spec: MakeSpec) -> None:
    """Its digest is what silos approved."""
    text = make_spec(strategy={"preset": "feddw"}).to_yaml().decode()
    assert not [word for word in ("aggregate", "local_steps", "unusual", "published") if word in text]
    assert "local_epochs: 1\n" in text


@pytest.mark.parametrize("classes", [2, ["healthy", "no", "1", "Größe 2: x"]])
def test_classes_are_signed_as_they_were_written(make_spec: MakeSpec, classes: int | list[str]) -> None:
    spec = make_spec(classes=classes).filled(nonce="ab" * 16, initial_state=None)
    data = spec.to_yaml()
    assert yaml.safe_load(data)["classes"] == classes
    again = JobSpec.from_yaml(data, source="job.yaml")
    assert (again, again.to_yaml()) == (spec, data)
    names = classes if isinstance(classes, list) else []
    assert (again.classes, list(again.class_names)) == (len(names) or classes, names)


def test_steps_stand_in_the_place_of_epochs_in_a_jobs_file(make_spec: MakeSpec) -> None:
    spec = make_spec(training={"learning_rate": 1, "local_steps": 30})
    assert (spec.training.local_epochs, spec.training.local_steps) == (None, 30)
    assert "local_epochs" not in spec.to_yaml().decode()
    assert JobSpec.from_yaml(spec.to_yaml(), source="job.yaml") == spec


def test_a_job_that_a_person_wrote_gets_its_defaults() -> None:
    text = yaml.safe_dump({**job_fields(), "silos": list(SILOS), "input_shape": [1, 8, 8]})
    spec = JobSpec.from_yaml(text.encode(), source="job.yaml")
    assert (spec.strategy.name, spec.update_bound, spec.update_bits) == ("fedavg", 8.0, 32)
    assert (spec.threshold, spec.min_cohort, spec.max_attempts, spec.fraction) == (None, None, 5, 1.0)


@pytest.mark.parametrize(
    ("name", "norm"), [("mlp", "none"), ("cnn", "none"), ("resnet18", "batch"), ("mobilenet_v2", "batch")]
)
def test_norm_that_is_left_out_follows_the_model(make_spec: MakeSpec, name: str, norm: str) -> None:
    assert make_spec(model={"name": name}).model.norm == norm
    assert make_spec(model={"name": name, "norm": "group"}).model.norm == "group"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"color": "red"}, "color: unknown field, expected one of name, federation, purpose"),
        ({"purpose": "to \x1b[2Jcure"}, "purpose: expected 1 to 500 printable characters on one line"),
        ({"purpose": "a" + " " * 70 + "Unproved: none"}, "purpose: expected 1 to 500 printable characters"),
        ({"reference": "a" + "\u2800" * 70 + "none"}, "reference: expected 1 to 500 printable characters"),
        ({"reference": "EK \u202e17"}, "reference: expected 1 to 500 printable characters on one line"),
        (
            {"training": {"learning_rate": 1, "epochs": 3}},
            r"training.epochs: unknown field \(did you mean local_epochs\?\), expected",
        ),
        (
            {"training": {"learning_rate": 1, "local_epochs": 3, "local_steps": 30}},
            "training.local_steps: expected local_epochs or local_steps, not both",
        ),
        (
            {"training": {"learning_rate": 1, "local_epochs": None}},
            "training.local_epochs: expected a number, or local_steps in its place",
        ),
        ({"strategy": {"aggregate": "median"}}, "strategy.aggregate: expected .*weighted.*uniform"),
        ({"strategy": {"preset": "fedbest"}}, "strategy.preset: expected one of .*fedavg.*, got fedbest"),
        # a misspelt method or network was told all that there are, and not which was meant
        (
            {"strategy": {"preset": "fedagv"}},
            r"preset: .*, got fedagv \(did you mean fedavg or lg_fedavg\?\)",
        ),
        ({"strategy": {"preset": "FedAvg"}}, r"preset: .*, got FedAvg \(did you mean fedavg\?\)$"),
        ({"strategy": {"parts": {"loss": "sphere_mse"}}}, r"got sphere_mse \(did you mean sphere-mse\?\)"),
        ({"model": {"name": "mobilnet"}}, r"model.name: .*, got mobilnet \(did you mean mobilenet or mobile"),
        ({"task": {"name": "clasification"}}, r"got clasification \(did you mean classification\?\)"),
        # a field in the wrong section was told the fields of that section alone
        ({"local_steps": 4}, r"local_steps: unknown field \(did you mean training.local_steps\?\), expected"),
        (
            {"aggregate": "uniform"},
            r"aggregate: unknown field \(did you mean strategy.aggregate\?\), expected",
        ),
        (
            {"strategy": {"allow_unusual": True}},
            r"strategy.allow_unusual: unknown field \(did you mean allow_unusual outside strategy\?\), exp",
        ),
        # one that many sections have is nobody's
        (
            {"training": {"learning_rate": 1, "name": "x"}},
            "training.name: unknown field, expected one of local",
        ),
        ({"strategy": {"options": {"mu": 1}}}, "strategy.options.mu: unknown option, fedavg has none"),
        (
            {"strategy": {"preset": "fedntd"}, "classes": 2},
            "strategy.regularizer: ntd compares the other classes and needs 3 or more, the job has 2",
        ),
        ({"name": "Digits"}, "name: expected 1 to 63 lower-case letters.*, got 'Digits'"),
        ({"federation": "a b"}, "federation: expected 1 to 63 lower-case letters"),
        ({"nonce": "xyz"}, "nonce: expected 32 hexadecimal digits in lower case, got 'xyz'"),
        ({"initial_state": "ab"}, "initial_state: expected 64 hexadecimal digits in lower case"),
        ({"not_after": datetime(2027, 1, 1)}, "not_after: expected a time with its zone"),  # noqa: DTZ001
        (
            {"not_after": "9999-12-31T23:00:00-02:00"},
            "not_after: expected a time of the years 1 to 9999",
        ),
        ({"silos": ["a", "b"]}, "silos: .*at least 3"),
        ({"silos": [f"a{i}" for i in range(10_001)]}, "silos: .*at most 10000"),
        ({"silos": ["a", "b", "c", "a"]}, "silos: expected each silo once, got a twice"),
        ({"silos": ["a", "b", "C"]}, "silos.2: expected 1 to 63 lower-case letters"),
        ({"rounds": -1}, "rounds: .*at least 0, got -1"),
        ({"rounds": 100_001}, "rounds: .*at most 100000"),
        ({"classes": 1}, "classes: expected at least 2 for task classification, got 1"),
        ({"classes": 1_000_001}, "classes: .*at most 1000000"),
        ({"classes": "ill"}, "classes: expected a whole number, got 'ill'"),
        ({"classes": []}, "classes: expected at least 1 entries, got 0"),
        ({"classes": ["ill"]}, "classes: expected at least 2 for task classification, got 1"),
        ({"classes": ["ill", "ill", "well"]}, "classes: expected each name once, got 'ill' twice"),
        ({"classes": ["well", 1]}, "classes.1: expected a name of 1 to 200 printable characters .*, got 1"),
        ({"classes": ["well", "ill "]}, "classes.1: expected a name of 1 to 200 .*, got 'ill '"),
        ({"classes": ["well", "ill\x1b[2J"]}, "classes.1: expected a name of 1 to 200 printable"),
        ({"classes": ["well", "i" * 201]}, "classes.1: expected a name of 1 to 200 printable"),
        (
            {"classes": ["early", "late"], "task": {"name": "survival"}},
            "classes: expected a number for task survival; names are for labels that are classes",
        ),
        ({"fraction": 0}, "fraction: .*more than 0"),
        ({"fraction": 1.5}, "fraction: .*at most 1"),
        ({"fraction": 0.5}, "fraction: expected at least 3 silos in a round, got 2 of 4"),
        ({"threshold": 2}, "threshold: .*at least 3"),
        ({"threshold": 5}, "threshold: expected 3 to 4 for 4 silos, got 5"),
        ({"min_cohort": 5}, "min_cohort: expected 3 to 4 for 4 silos, got 5"),
        ({"update_bound": 0}, "update_bound: .*more than 0"),
        ({"update_bound": float("nan")}, "update_bound: "),
        ({"update_bits": 8}, "update_bits: .*16, 32 or 64, got 8"),
        ({"min_weight": 1.1}, "min_weight: .*at most 1"),
        ({"max_attempts": 0}, "max_attempts: .*at least 1"),
        ({"enrollment_every": 0}, "enrollment_every: .*at least 1"),
        ({"train_deadline_seconds": 7200}, "train_hard_cap_seconds: expected at least .*, 7200, got 3600"),
        ({"seed": -1}, "seed: .*at least 0"),
        ({"input_shape": []}, "input_shape: .*at least 1"),
        ({"input_shape": [0]}, "input_shape.0: .*at least 1"),
        ({"input_shape": [1_000_000, 1_000_000]}, "input_shape: expected at most 16777216 values"),
        ({"model": {"name": "vit"}}, "model.name: expected one of mlp, .*, got vit"),
        ({"model": {"name": "mlp", "hidden": [0]}}, "model.hidden.0: .*at least 1"),
        # they went past the checks of the fields: batch normalization in a private job, 10^9 numbers a layer
        (
            {"model": {"name": "mlp", "options": {"norm": "batch"}}},
            "model.options: needs `from`: .* norm and hidden",
        ),
        ({"task": stated(per_record=1e300)}, "task.sums.0.per_record: expected at most 1000000000000000,"),
        ({"model": "mlp"}, "model: "),
        ({"columns": [{"name": "a"}], "label_column": "y"}, r"input_shape: expected \[1\].*got \[1, 8, 8\]"),
        ({"columns": [{"name": "a"}], "input_shape": [1]}, "label_column: a value is required with columns"),
        (
            {"columns": [{"name": "a"}], "input_shape": [1], "label_column": "a"},
            "columns: a is named twice in columns and label_column",
        ),
        (
            {"columns": [{"name": "a"}, {"name": "a"}], "input_shape": [2], "label_column": "y"},
            "columns: a is named twice in columns and label_column",
        ),
        (
            {"columns": [{"name": "p0..p3"}, {"name": "p2"}], "input_shape": [5], "label_column": "y"},
            "columns: p2 is named twice",
        ),
        ({"columns": [{"name": "p3..p0"}]}, "columns.0: range p3..p0: expected 1 to 65536 columns, the low"),
        ({"columns": [{"name": "p0..p65536"}]}, "columns.0: range p0..p65536: expected 1 to 65536 columns"),
        ({"columns": [{"name": "p00..p256"}]}, "columns.0: range p00..p256: expected as many digits"),
        (
            {"columns": [{"name": "p0..p65535"}, {"name": "q"}], "label_column": "y"},
            "columns: expected at most 65536 inputs",
        ),
        (
            {
                "columns": [{"name": "p"}],
                "input_shape": [1],
                "label_column": ["l0..l65000", "m0..m65000"],
            },
            "label_column: expected at most 65536 columns",
        ),
        (
            {"columns": [{"name": "p"}], "input_shape": [1], "label_column": "l0..l2"},
            "label_column: expected 1 columns for the task's labels, got 3",
        ),
        (
            {"columns": [{"name": "s", "encoding": "index"}]},
            "columns.0.encoding: needs",
        ),
        ({"columns": [{"name": "s", "plausible": [2, 1]}]}, "columns.0.plausible: expected the lowest value"),
        ({"columns": [{"name": "s", "plausible": [2]}]}, "columns.0.plausible"),
        (
            {"columns": [{"name": "s", "unit": "g", "categories": ["f"]}]},
            "columns.0: plausible and unit: no",
        ),
        ({"columns": [{"name": "s", "categories": ["f", "f"]}]}, "columns.0.categories: expected each tex"),
        ({"columns": [{"name": "s", "categories": [" f"]}]}, "columns.0.categories: expected texts without"),
        ({"columns": [{"name": "s", "categories": [1]}]}, "columns.0.categories.0: expected text, got 1"),
        (
            {"columns": [{"name": "s", "categories": ["f", "m"], "fill": 1.0}]},
            "columns.0: mean, scale and fill: not allowed with one-hot categories",
        ),
        (
            {
                "columns": [{"name": "s", "categories": ["f", "m"]}],
                "input_shape": [1],
                "label_column": "y",
            },
            r"input_shape: expected \[2\], the number of inputs that the columns make, got \[1\]",
        ),
        ({"data": "two words"}, "data: expected 1 to 63 letters, digits, dots, underscores"),
        ({"columns": [{"name": "a", "scale": 0}], "input_shape": [1]}, "columns.0.scale: .*more than 0"),
        ({"columns": [{"name": "a", "mean": float("inf")}]}, "columns.0.mean: .*finite"),
        ({"training": {"optimizer": "adam"}}, "training.learning_rate: a value is required"),
        ({"training": {"learning_rate": 0}}, "training.learning_rate: .*more than 0"),
        ({"training": {"learning_rate": 1, "momentum": 1}}, "training.momentum: .*less than 1"),
        ({"training": {"learning_rate": 1, "schedule": {"kind": "warm"}}}, "training.schedule.kind: "),
        (
            {"training": {"learning_rate": 1, "schedule": {"kind": "milestones"}}},
            "schedule.milestones: expected a list with kind: mil",
        ),
        # each kind of value that an option may have added a clause of its own
        (
            {"strategy": {"preset": "spherefed", "options": {"ridge": [1]}}},
            "strategy.options.ridge: expected a finite number, true or false, text or null, got a list$",
        ),
        (
            {"strategy": {"preset": "fedprox", "options": {"mu": None}}},
            "strategy.options.mu: expected a number, got nothing$",
        ),
        (
            {"model": {"name": "unet", "from": "x==1", "options": {"depths": [[1]]}}},
            "model.options.depths: expected a finite number, [^;]*, got a list$",
        ),
        # each form that the value might have was an error of its own, by pydantic's name for it
        (
            {
                "task": {
                    "name": "counts",
                    "from": "x==1",
                    "sums": [{"name": "n", "bound": 1, "per_record": 1, "at_most": "!"}],
                }
            },
            "task.sums.0.at_most: expected 1 to 63 lower-case [^;]*, or '', got '!'$",
        ),
        # the list was called too short, because its entry did not count
        (
            {"augment": [{"kind": "horizontal-flip", "chance": 2}]},
            "augment.0.horizontal-flip.chance: expected at most 1, got 2$",
        ),
        # fields of another transform were offered
        (
            {"augment": [{"kind": "horizontal-flip", "chanse": 1}]},
            r"chanse: unknown field \(did you mean chance\?\), expected one of kind, chance$",
        ),
    ],
)
def test_a_wrong_job_is_refused_by_field(make_spec: MakeSpec, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^job.yaml: .*{message}"):
        make_spec(**fields)


@pytest.mark.parametrize(
    ("preset", "option"),
    [("spherefed", "ridge"), ("feddw", "mu_decay_rounds"), ("fedavg_ft", "fine_tune_epochs")],
)
def test_an_option_whose_default_is_null_may_say_null(make_spec: MakeSpec, preset: str, option: str) -> None:
    spec = make_spec(strategy={"preset": preset, "options": {option: None}})
    again = JobSpec.from_yaml(spec.to_yaml(), source="job.yaml")
    assert again == spec
    assert again.method.options[option] is None


def scheduled(**schedule: Any) -> dict[str, Any]:
    return {"training": {"learning_rate": 0.1, "schedule": schedule}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            scheduled(step_rounds=1, gamma=1e-6),
            "step_rounds: expected it with kind step alone, got it with c",
        ),
        (scheduled(step_rounds=10), "step_rounds: .* step alone, got it with constant, the default kind"),
        (
            scheduled(kind="constant", gamma=0.5),
            "gamma: expected it with kind step or milestones alone, got it",
        ),
        (scheduled(kind="constant", gamma=0.1), "gamma: .* alone, got it with constant$"),
        (scheduled(kind="milestones", milestones=[3], step_rounds=2), "step_rounds: .*, got it with milest"),
        (scheduled(kind="cosine", gamma=0.5), "gamma: .*, got it with cosine$"),
        (
            {"model": {"name": "vgg13", "hidden": [64]}},
            "model.hidden: expected it with mlp alone, got it with v",
        ),
        (
            {"model": {"name": "unet", "from": "x==1", "hidden": [64]}},
            "model.hidden: not allowed with `from`: what unet takes is options",
        ),
        # every batch was left out, and rounds were applied that trained nothing
        (
            {"model": {"name": "mlp", "norm": "batch"}, "training": {"learning_rate": 1, "batch_size": 1}},
            "training.batch_size: expected 2 or more with model.norm batch, got 1: normalizing by the batch",
        ),
        (
            {"model": {"name": "resnet18"}, "training": {"learning_rate": 1, "batch_size": 1}},
            "training.batch_size: expected 2 or more with model.norm batch, got 1",
        ),
    ],
)
def test_what_would_have_no_effect_is_refused_where_a_file_is_read(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^job.yaml: .*{message}"):
        spec_of(job_fields() | fields, source="job.yaml")


@pytest.mark.parametrize(
    "fields",
    [
        scheduled(kind="step"),
        scheduled(kind="milestones", milestones=[3], gamma=0.5),
        {"model": {"name": "cnn", "norm": "group"}},
        {"model": {"name": "cnn"}, "training": {"learning_rate": 1, "batch_size": 1}},
    ],
)
def test_a_file_that_says_every_field_is_read_again(fields: dict[str, Any]) -> None:
    """Of a signed job, or an example: what nobody chose stands at its default."""
    spec = spec_of(job_fields() | fields, source="job.yaml")
    whole = yaml.safe_load(spec.to_yaml())
    assert {"hidden", "seed"} <= set(whole["model"])
    assert spec_of(whole, source="job.yaml") == spec


def test_a_job_may_raise_the_sizes_of_its_rounds_and_never_lower_them(make_spec: MakeSpec) -> None:
    silos = [f"a{number}" for number in range(10)]
    assert (make_spec(silos=silos).rule(10).threshold, make_spec(silos=silos).rule(10).min_cohort) == (7, 5)
    raised = make_spec(silos=silos, threshold=9, min_cohort=10).rule(10)
    assert (raised.threshold, raised.min_cohort) == (9, 10)
    with pytest.raises(ConfigError, match="threshold: expected 7 to 10 for 10 silos, got 6"):
        make_spec(silos=silos, threshold=6)
    with pytest.raises(ConfigError, match="min_cohort: expected 5 to 10 for 10 silos, got 4"):
        make_spec(silos=silos, min_cohort=4)


def test_sizes_raised_for_a_drawn_round_do_not_lower_those_of_a_full_phase(make_spec: MakeSpec) -> None:
    """5 of 10 silos are drawn: t = 5 is a raise there, and must not stand in an enrollment of 10."""
    spec = make_spec(silos=[f"a{number}" for number in range(10)], fraction=0.5, threshold=5)
    assert spec.named_per_round == 5
    assert spec.rule(5).threshold == 5
    assert spec.rule(10).threshold == 7


def test_a_round_with_fewer_silos_than_the_job_asks_for_has_no_sizes(make_spec: MakeSpec) -> None:
    with pytest.raises(ConfigError, match="threshold: expected 3 to 3 for 3 silos, got 4"):
        make_spec(threshold=4).rule(3)


def test_a_decimal_fraction_is_read_as_it_is_written(make_spec: MakeSpec) -> None:
    # 0.07 * 100 is 7.000000000000001, and its ceiling named an eighth silo
    assert make_spec(silos=[f"a{number}" for number in range(100)], fraction=0.07).named_per_round == 7


def test_a_job_is_submittable_when_filled_and_not_past(make_spec: MakeSpec) -> None:
    spec = make_spec()
    with pytest.raises(ConfigError, match="job digits: nonce and initial_state are required"):
        spec.check_submittable(now=NOW)
    filled = spec.filled(nonce="ab" * 16, initial_state=b"\x01" * 32)
    filled.check_submittable(now=NOW)
    assert filled.initial_state == "01" * 32
    with pytest.raises(ConfigError, match=r"job digits: not_after: 2026-11-22T12:00:00\+00:00 has passed"):
        filled.check_submittable(now=NOW + timedelta(days=1))


def test_a_job_of_more_silos_than_a_federation_has_room_for_is_simulated_alone(make_spec: MakeSpec) -> None:
    spec = make_spec(silos=[f"a{place}" for place in range(201)])
    filled = spec.filled(nonce="ab" * 16, initial_state=b"\x01" * 32)
    message = "silos: a federation's job has at most 200, got 201; `chorale simulate` takes up to 10,000"
    with pytest.raises(ConfigError, match=message):
        filled.check_submittable(now=NOW)
    with pytest.raises(ConfigError, match=message):
        prepared(spec, source="job.yaml", federation=None, now=NOW)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ({"kind": "constant"}, {1: 0.4, 10: 0.4}),
        ({"kind": "step", "step_rounds": 3, "gamma": 0.5}, {1: 0.4, 3: 0.4, 4: 0.2, 7: 0.1, 10: 0.05}),
        # FedDr+, example E7: the rate falls after rounds 160 and 240, so first in 161 and 241
        (
            {"kind": "milestones", "milestones": [160, 240]},
            {1: 0.4, 160: 0.4, 161: 0.04, 240: 0.04, 241: 0.004, 320: 0.004},
        ),
        ({"kind": "cosine"}, {1: 0.4, 6: 0.2}),
    ],
)
def test_learning_rate_follows_its_schedule(
    make_spec: MakeSpec, schedule: dict[str, Any], rates: dict[int, float]
) -> None:
    spec = make_spec(training={"learning_rate": 0.4, "schedule": schedule}, rounds=10)
    assert {round: spec.learning_rate_at(round) for round in rates} == pytest.approx(rates)


def test_cosine_falls_and_stays_positive(make_spec: MakeSpec) -> None:
    spec = make_spec(training={"learning_rate": 0.4, "schedule": {"kind": "cosine"}}, rounds=10)
    rates = [spec.learning_rate_at(round) for round in range(1, 11)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0


def test_every_field_says_what_it_is() -> None:
    models = [one for one in vars(job_spec).values() if isinstance(one, type) and issubclass(one, BaseModel)]
    bare = [
        f"{model.__name__}.{name}"
        for model in models
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert bare == []
    assert JobSpec in models


def test_a_job_cannot_be_changed(make_spec: MakeSpec) -> None:
    with pytest.raises(ValueError, match="frozen"):
        make_spec().rounds = 20


def test_dates_are_told_in_utc(make_spec: MakeSpec) -> None:
    spec = make_spec(not_after="2026-11-21T13:00:00+02:00").filled(nonce="ab" * 16, initial_state=b"\1" * 32)
    assert spec.not_after.tzinfo is UTC
    with pytest.raises(ConfigError, match=r"not_after: 2026-11-21T11:00:00\+00:00 has passed"):
        spec.check_submittable(now=datetime(2026, 11, 21, 12, tzinfo=UTC))


def test_a_method_is_put_together_once_for_all_jobs_that_ask_for_it(make_spec: MakeSpec) -> None:
    first, again = (make_spec(strategy={"preset": "fedprox", "options": {"mu": 0.1}}) for _ in range(2))
    other = make_spec(strategy={"preset": "fedprox", "options": {"mu": 0.2}})
    assert first.method is again.method
    assert (first.method.options["mu"], other.method.options["mu"]) == (0.1, 0.2)


def test_ranges_and_categories_say_how_many_inputs_a_table_makes(make_spec: MakeSpec) -> None:
    sex = {"name": "sex", "categories": ["f", "m"]}
    ward = {"name": "ward", "categories": ["a", "b", "c"], "encoding": "index", "fill": 2.0}
    columns = [{"name": "p08..p11", "mean": 3.0}, {"name": "age"}, sex, ward]
    spec = make_spec(columns=columns, input_shape=[8], label_column="sick")
    assert [column.name for column in spec.inputs] == ["p08", "p09", "p10", "p11", "age", "sex", "ward"]
    assert [column.width for column in spec.inputs] == [1, 1, 1, 1, 1, 2, 1]
    assert {column.mean for column in spec.inputs[:4]} == {3.0}
    again = JobSpec.from_yaml(spec.to_yaml(), source="job.yaml")
    assert (again, again.to_yaml()) == (spec, spec.to_yaml())


@given(
    columns=st.lists(
        st.sampled_from([(3, {}), (1, {"categories": ["x"]}), (6, {"categories": ["f", "m"]})]), min_size=1
    )
)
def test_the_input_shape_of_a_table_follows_from_its_columns(columns: list[tuple[int, Any]]) -> None:
    inputs = sum(width for width, _ in columns)
    named = [
        {"name": f"c{place}_1" if width == 1 else f"c{place}_1..c{place}_3", **rest}
        for place, (width, rest) in enumerate(columns)
    ]
    fields = {**job_fields(), "columns": named, "label_column": "ill", "model": {"name": "mlp"}}
    del fields["input_shape"]
    spec = JobSpec.model_validate(fields)
    assert spec.input_shape == (inputs,)
    assert JobSpec.from_yaml(spec.to_yaml(), source="job") == spec, "it is signed as if it was written"
