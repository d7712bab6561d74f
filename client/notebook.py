"""A simulation from a program or a notebook: a module and data of this process, without a distribution.

The engine and the numbers are those of `chorale simulate`: docs/simulation.md.
"""

from __future__ import annotations

import copy
import inspect
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chorale.results import RoundResult
from chorale.runtime.files import read_limited
from chorale.spec.job_spec import JobSpec
from chorale.spec.settings_file import MAX_BYTES, check_values, parse_mapping
from chorale.spec.state import state_from_bytes
from chorale_models import Data, Model
from client.errors import require_extra
from client.submission import NEVER, initial_bytes, rate_notes, solved, spec_of, with_code
from crypto.errors import ConfigError

if TYPE_CHECKING:
    from silo_agent.disclosure.policy.policy import Policy
    from silo_agent.training.data.settings import DataSettings
    from simulation.engine import Simulation

HERE = "client.notebook:simulate"  # stands where a silo's settings name a function
SILOS = 4  # where neither job nor data say how many
MODULE = "module"
_NUMBERS = count(1)


def print_round(result: RoundResult, rounds: int) -> None:
    """One line a round, on stderr."""
    measured = "" if result.accuracy is None else f"  accuracy {result.accuracy}"
    measured += "" if result.loss is None else f"  loss {result.loss.brief}"
    why = f"  {result.result}: {result.reason}" if result.reason else ""
    sys.stderr.write(f"round {result.round}/{rounds}  {len(result.silos)} silos{measured}{why}\n")


def simulate(
    model: Any,
    data: Any,
    job: Mapping[str, object] | str | Path,
    *,
    head: str | None = None,
    keeps_weights: bool = False,
    partition: Mapping[str, object] | None = None,
    holdout: float = 0.2,
    policy: Policy | None = None,
    device: str = "auto",
    is_secure: bool = False,
    tell: Callable[[RoundResult, int], None] | None = print_round,
) -> Simulation:
    """Run a job to its end in this process. Gives the simulation: `results()`, `plot()`, `fetch()`.

    model: a torch module; a function of nothing or of `chorale_models.Sizes` that returns one; or None: the
    job names it. head: name of the module's last linear layer, where the method needs one.
    keeps_weights: begin with the module's own weights; else they are drawn by the job, as a federation does.
    data: a map-style data set or `chorale_models.Data`, which is cut into silos by `partition` (kind iid, or
    dirichlet and alpha); or a list or mapping of them, one a silo. holdout: share of each that is tested on.
    job: a mapping of a job file's fields, its text or its path. What it leaves out is filled in: `name`,
    `federation`, `silos`, `not_after`, `model`, and `input_shape` by the first sample.
    policy: of every silo; None: the default one, with exact counts. tell: called after each round, or None.
    Raises ConfigError for what does not go together.
    """
    require_extra("silo", "torch", what="simulate, whose silos train in this process,")
    from silo_agent.disclosure.policy.policy import Policy
    from simulation.engine import Simulation

    parts = _by_silo(data)
    first = next(iter(parts.values())) if parts else data
    spec = _spec(job, model, head, silos=[*(parts or ())], first=_own(first))
    spec = with_code(spec) if model is None else _tried(spec)
    settings = {"format": "module", "module": HERE, "holdout": holdout}
    silos = dict(zip(spec.silos, _data(parts, data, settings, partition, spec), strict=True))
    drawn = _start(spec, model if keeps_weights else None)
    spec, promised = solved(spec, drawn)
    exact = Policy(federation=spec.federation, count_granularity=1, distributions=spec.distributions)
    simulation = Simulation(
        spec,
        silos,
        state=state_from_bytes(drawn),
        policy=policy or exact,
        device=device,
        is_secure=is_secure,
    )
    for line in [*promised, *rate_notes(spec)] if tell else ():
        sys.stderr.write(f"{line}\n")
    for result in simulation.run():
        if tell is not None:
            tell(result, spec.rounds)
    return simulation


def _by_silo(data: Any) -> dict[str, Any] | None:
    """None of a data set that is to be cut. A list of pairs is one data set."""
    if isinstance(data, Mapping):
        return {str(name): each for name, each in data.items()}
    if isinstance(data, list | tuple) and data and not isinstance(data[0], list | tuple):
        return {f"silo-{number}": each for number, each in enumerate(data, start=1)}
    return None


def _spec(
    job: Mapping[str, object] | str | Path, model: Any, head: str | None, *, silos: list[str], first: Data
) -> JobSpec:
    """silos: of data that is given by silo. first: one of the data sets."""
    values, source = _fields(job)
    if model is not None:
        if "model" in values:
            raise ConfigError("job: model: expected none beside a module of this process")
        values["model"] = {"name": MODULE, "from": _registered(model, head)}
    if "input_shape" not in values and "columns" not in values:
        shape = np.shape(np.asarray(first.train[0][0]))
        values["input_shape"] = [1, *shape] if len(shape) == 2 else [*shape]
    names = silos or [f"silo-{number}" for number in range(1, SILOS + 1)]
    if silos and values.get("silos", names) != names:
        raise ConfigError(f"job: silos: expected those of the data, {', '.join(names)}")
    filled = {"name": "notebook", "federation": "notebook", "silos": names, **values}
    return spec_of(filled, source=source, not_after=NEVER)


def _tried(spec: JobSpec) -> JobSpec:
    """With what the code declares, after a step on made-up samples. Raises ConfigError where it fails."""
    from silo_agent.training.plug_ins import checked

    return checked(spec)


def _fields(job: Mapping[str, object] | str | Path) -> tuple[dict[str, Any], str]:
    if isinstance(job, Mapping):
        return dict(job), "job"
    if isinstance(job, str) and "\n" in job:
        return dict(parse_mapping(job.encode(), source="job")), "job"
    return dict(parse_mapping(read_limited(Path(job), MAX_BYTES), source=str(job))), str(job)


def _registered(model: Any, head: str | None) -> str:
    """What stands for its distribution in this process."""
    from silo_agent.training.models.registry import GIVEN

    if isinstance(model, Model):
        made = model
    elif hasattr(model, "state_dict") and not isinstance(model, type):
        made = Model(build=lambda sizes: copy.deepcopy(model), head=head)
    elif callable(model):
        takes_sizes = bool(inspect.signature(model).parameters)
        made = Model(build=model if takes_sizes else lambda sizes: model(), head=head)
    else:
        raise ConfigError(f"model: expected a torch module or a function, got {type(model).__name__}")
    name = f"notebook=={next(_NUMBERS)}"
    GIVEN[name] = made
    return name


def _data(
    parts: dict[str, Any] | None,
    data: Any,
    settings: Mapping[str, object],
    partition: Mapping[str, object] | None,
    spec: JobSpec,
) -> Iterator[Any]:
    from silo_agent.training.data.loading import load_data, parts_of

    if parts is not None:
        if partition is not None:
            raise ConfigError("partition: not allowed with data that is given by silo")
        for name in spec.silos:
            yield load_data(_settings({**settings, "name": name}), spec, own=_own(parts[name]))
        return
    cut = {"kind": "iid", **(partition or {}), "silos": len(spec.silos), "index": 0}
    yield from parts_of(_settings({**settings, "partition": cut}), spec, own=_own(data))


def _settings(values: Mapping[str, object]) -> DataSettings:
    from silo_agent.training.data.settings import DataSettings

    return check_values(DataSettings, dict(values), source="data", options={"partition": "partition"})


def _own(data: Any) -> Data:
    if isinstance(data, Data):
        return data
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        found = type(data).__name__
        raise ConfigError(f"data: expected a map-style data set, with a length and places, got {found}")
    return Data(train=data)


def _start(spec: JobSpec, module: Any) -> bytes:
    """module: whose weights are the first ones; None: drawn by the job."""
    if module is None:
        return initial_bytes(spec, None)
    from safetensors.torch import save_file

    if not hasattr(module, "state_dict"):
        raise ConfigError("keeps_weights: expected a module, whose weights they are, got a function")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "weights.safetensors")
        save_file({name: each.contiguous().clone() for name, each in module.state_dict().items()}, path)
        return initial_bytes(spec, path)
