"""What a person's job file says without any effect on the job: refused where the file is read.

Not in JobSpec: what was signed with it stays readable. A file that Chorale wrote has every field of a part,
most of them at their defaults, and of such a part other values alone are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from chorale.spec.fields import SpecPart
from chorale.spec.job_spec import JobSpec
from chorale.spec.plug_in_specs import OWN_MODELS
from crypto.errors import ConfigError

BATCH_OF_ONE = (
    "normalizing by the batch needs two samples, so batches of one are left out and nothing would be trained"
)


def check_written(values: Mapping[str, object], spec: JobSpec) -> None:
    """values: the file's own. Raises ConfigError that names the field."""
    _check_model(_part(values, "model"), spec)
    _check_schedule(_part(_part(values, "training"), "schedule"), spec)
    if spec.model.norm == "batch" and spec.training.batch_size == 1:
        raise ConfigError(
            f"training.batch_size: expected 2 or more with model.norm batch, got 1: {BATCH_OF_ONE}"
        )


def _check_model(written: Mapping[str, object], spec: JobSpec) -> None:
    model = spec.model
    if model.source is None and model.name in OWN_MODELS and model.name != "mlp":
        for field in _chosen(written, model, {"hidden"}):
            raise ConfigError(f"model.{field}: expected it with mlp alone, got it with {model.name}")
    if model.source is not None:
        for field in _chosen(written, model, {"norm", "hidden"}):
            raise ConfigError(f"model.{field}: not allowed with `from`: what {model.name} takes is options")


def _check_schedule(written: Mapping[str, object], spec: JobSpec) -> None:
    schedule = spec.training.schedule
    of_kinds = {field for used in schedule.USED.values() for field in used}
    for field in _chosen(written, schedule, of_kinds):
        kinds = [kind for kind, used in schedule.USED.items() if field in used]
        if schedule.kind not in kinds:
            where = f"got it with {schedule.kind}" + ("" if "kind" in written else ", the default kind")
            raise ConfigError(
                f"training.schedule.{field}: expected it with kind {' or '.join(kinds)} alone, {where}"
            )


def _chosen(written: Mapping[str, object], part: SpecPart, fields: Collection[str]) -> list[str]:
    """Which of the fields somebody chose."""
    known = type(part).model_fields
    has_every_field = set(known) - {"source"} <= set(written)
    return [
        field
        for field in known
        if field in fields
        and written.get(field) is not None
        and not (has_every_field and getattr(part, field) == known[field].default)
    ]


def _part(values: Mapping[str, object], name: str) -> Mapping[str, object]:
    """A mapping in a file, empty where it is not there."""
    part = values.get(name)
    return part if isinstance(part, Mapping) else {}
