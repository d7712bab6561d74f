"""Local training against bare PyTorch, for each objective, and DP-SGD against opacus' own loop.

A round of local training (two epochs, batches of 32) is timed in turn with plain PyTorch: `model(inputs)`,
`cross_entropy`, `backward`, torch.optim.SGD. An objective that asks a teacher, or takes a statistic, passes
all samples once more without gradients, so the bare loop is given that many bare passes besides. A ratio is
bare seconds by ours, CPU time or on a GPU wall time, each the least of all turns: above 1 the loop is faster
than the bare one.

On a GPU the forms of models (forms.py) are compared, too: seconds of a step of 256 images of 3 x 32 x 32 in
float32 by those of the fastest form. `bash bench/gpu.sh` runs all that there is for a GPU.

On a small mlp a step lasts 150 microseconds, and each operation of a loss 5 to 10: there an objective's own
arithmetic shows, which no pass explains. `ratios_small_mlp` says how much.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench.device_seconds import seconds_of
from bench.dp_sgd import LENGTH, RECORDS, WIDTH, Block, Compared, compare
from bench.options import Parser, whole
from bench.rows import Row, table
from chorale.spec.job_spec import JobSpec
from chorale.spec.state import buffer_names, trained_names
from chorale_models.model import Sizes
from crypto.errors import ConfigError
from silo_agent.training.base.batches import Tensors
from silo_agent.training.base.setting import model_to_keep
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.machine.devices import device_of, float32_kernels
from silo_agent.training.machine.seeding import seeded
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.forms import ON_GPU, PLAIN, Form, timed
from silo_agent.training.models.registry import build_model, model_of
from silo_agent.training.models.starting import initial_state
from silo_agent.training.objective import LocalState, Work
from silo_agent.training.parts.regularizers.moon import PREVIOUS
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import PhaseContext
from strategies.parts.statistics.logit_prototypes import PROTOTYPES
from strategies.phases.training import TRAIN

EPOCHS, BATCH, CLASSES, RATE = 2, 32, 10, 0.05
TARGET, TARGET_OF_OBJECTIVES, TARGET_OF_OPACUS = 0.95, 0.9, 0.25
TARGET_ELSEWHERE = 1.15  # of opacus' loop where gradients are multiplied out

# passes over all samples without gradients, beside the training itself
OBJECTIVES = {
    "fedavg": 0,
    "fedprox": 0,
    "scaffold": 0,
    "fednova": 0,
    "dot_regression": 0,
    "spherefed": 0,
    "fedetf": 0,
    "fedgela": 0,
    "feddr_plus": 1,
    "fedntd": 1,
    "feddw": 1,  # its statistic, of the trained model
    "fedcsd": 1,  # its teacher; the prototypes phase leaves the answers for the training
    "moon": 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is trained. samples: random, of one silo."""

    model: dict[str, Any]
    input_shape: tuple[int, ...]
    samples: int


CNN = Problem(model={"name": "cnn"}, input_shape=(1, 28, 28), samples=512)
SMALL_MLP = Problem(model={"name": "mlp", "hidden": (64,)}, input_shape=(1, 8, 8), samples=6000)
RESNET = Problem(model={"name": "resnet18"}, input_shape=(3, 32, 32), samples=256)
WIDE_MLP = Problem(model={"name": "mlp", "hidden": (1200,)}, input_shape=(800,), samples=RECORDS)
PRIVATE_CNN = Problem(model={"name": "cnn", "norm": "group"}, input_shape=(1, 28, 28), samples=RECORDS)
BLOCK = Problem(model={}, input_shape=(LENGTH, WIDTH), samples=RECORDS)
DENSE = "mlp of 10^6"
PRIVATE_PROBLEMS = {DENSE: WIDE_MLP, "cnn": PRIVATE_CNN, "transformer block": BLOCK}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """ratio: FedAvg, bare by ours. ratios: by objective, bare with the passes that it needs by ours.
    dp_sgd: by model, against opacus' own loop. form: on a GPU, plain seconds by those of the fastest form,
    with its name. device: its name."""

    ratio: float
    ratios: dict[str, float]
    ratios_small_mlp: dict[str, float]
    dp_sgd: dict[str, Compared]
    form: tuple[float, str] | None
    device: str

    @property
    def table(self) -> str:
        lines = ["| objective | cnn | small mlp |", "|---|---|---|"]
        lines += [
            f"| {name} | {ratio:.2f} | {self.ratios_small_mlp[name]:.2f} |"
            for name, ratio in self.ratios.items()
        ]
        if self.form is not None:
            lines += [
                "",
                f"A step of resnet18 is {self.form[0]:.2f} times as fast in {self.form[1]} as plain.",
            ]
        return "\n".join(lines)

    def rows(self) -> list[Row]:
        return [
            Row(name="bare FedAvg / ours, cnn", target=TARGET, value=self.ratio, is_at_most=False),
            Row(
                name="bare passes / ours, the slowest objective, cnn",
                target=TARGET_OF_OBJECTIVES,
                value=min(self.ratios.values()),
                is_at_most=False,
            ),
            *(
                Row(
                    name=f"DP-SGD / opacus' own loop, {name}",
                    target=TARGET_OF_OPACUS if name == DENSE else TARGET_ELSEWHERE,
                    value=found.ratio,
                )
                for name, found in self.dp_sgd.items()
            ),
            *(
                Row(name=f"memory of DP-SGD / of opacus' own loop, {name}", target=1.0, value=found.memory)
                for name, found in self.dp_sgd.items()
                if found.memory is not None
            ),
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the options, measure, print."""
    options = _options(arguments)
    torch.set_num_threads(1)
    try:
        device = device_of(options.device)
    except ConfigError as error:
        print(json.dumps({"skipped": str(error)}) if options.json else f"skipped: {error}")
        return 0
    with float32_kernels(device):  # the bare loops compute what ours do
        report = measure(turns=options.turns, device=device)
    rows = report.rows()
    if options.json:
        shown = {"rows": [row.to_json() for row in rows], "table": report.table}
        print(json.dumps({**asdict(report), **shown}))
    else:
        print(f"{report.table}\n\n{table(rows)}")
    return 0


def measure(*, turns: int, device: torch.device) -> Report:
    """Raises ConfigError for an objective that no recipe has."""
    is_gpu = device.type == "cuda"
    ratios = {name: _ratio(name, CNN, turns=turns, device=device) for name in OBJECTIVES}
    return Report(
        ratio=ratios["fedavg"],
        ratios=ratios,
        ratios_small_mlp={name: _ratio(name, SMALL_MLP, turns=turns, device=device) for name in OBJECTIVES},
        dp_sgd=_dp_sgd(turns=turns, device=device),
        form=_form(device) if is_gpu else None,
        device=torch.cuda.get_device_name(device) if is_gpu else "cpu",
    )


def _form(device: torch.device) -> tuple[float, str]:
    """Of all that the device allows."""
    spec = _job("fedavg", RESNET)
    model = build_model(spec.model, classes=CLASSES, input_shape=RESNET.input_shape).to(device)
    inputs = torch.from_numpy(_data(RESNET).train.features).to(device)
    every = [
        Form(is_bfloat16=type_, is_channels_last=order) for type_ in (False, True) for order in (False, True)
    ]
    seconds = timed(model, inputs, every, ON_GPU)
    best = min(seconds, key=lambda form: seconds[form])
    return round(seconds[PLAIN] / seconds[best], 3), str(best)


def _ratio(objective: str, problem: Problem, *, turns: int, device: torch.device) -> float:
    print(f"training: {objective}, {problem.model['name']}", file=sys.stderr, flush=True)
    taken = [_turn(objective, problem, device) for _ in range(turns + 1)]
    bare, passed, ours = (min(each) for each in zip(*taken[1:], strict=True))  # the first loads much
    return float(round((bare + OBJECTIVES[objective] * passed) / ours, 3))


def _turn(objective: str, problem: Problem, device: torch.device) -> tuple[float, float, float]:
    """Seconds: bare training, a bare pass, ours."""
    data, model = _data(problem), _bare_model(problem).to(device)
    inputs, labels_N = (
        torch.from_numpy(each).to(device) for each in (data.train.features, data.train.labels)
    )
    bare = seconds_of(lambda: _train_bare(model, inputs, labels_N), device)
    passed = seconds_of(lambda: _pass_bare(model, inputs), device)
    work, own = _work(objective, problem, data), TorchObjective(device=device.type)
    return bare, passed, seconds_of(lambda: own.compute(work), device)


def _bare_model(problem: Problem) -> nn.Module:
    spec = _job("fedavg", problem)
    options = {"hidden": spec.model.hidden} if spec.model.name == "mlp" else {}
    return model_of(spec.model)(Sizes(classes=CLASSES, input_shape=problem.input_shape), **options)


def _train_bare(model: nn.Module, inputs: Tensor, labels_N: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for places_N in torch.split(torch.randperm(len(inputs)).to(inputs.device), BATCH):
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(model(inputs[places_N]), labels_N[places_N]))
            optimizer.step()


@torch.no_grad()
def _pass_bare(model: nn.Module, inputs: Tensor) -> None:
    for part in torch.split(inputs, BATCH):
        model(part)


def _work(objective: str, problem: Problem, data: SiloData) -> Work:
    """A round of a method at one silo, with a single sample to test the received model on."""
    job = _job(objective, problem)
    state = dict(initial_state(job))
    classes_CC = np.random.default_rng(1).standard_normal((CLASSES, CLASSES)).astype(np.float32)
    if objective == "fedcsd":
        state[PROTOTYPES] = classes_CC
    trained, buffers = job.method.summed(trained_names(state), buffer_names(state))
    context = PhaseContext(
        round=1,
        members=4,
        classes=CLASSES,
        state=state,
        trained=trained,
        buffers=buffers,
        options=job.method.options,
    )
    model = build_model(job.model, classes=CLASSES, input_shape=job.input_shape, recipe=job.method.recipe)
    last = LocalState(model_to_keep(model, PREVIOUS)) if objective == "moon" else LocalState()
    return Work(
        spec=job,
        phase_kind=TRAIN,
        round=1,
        silo="a",
        state=state,
        context=context,
        data=data,
        weight=0.25,
        seed=1,
        is_cancelled=lambda: False,
        class_rows=np.ones(CLASSES, dtype=np.bool_),
        local=last,
    )


def _job(objective: str, problem: Problem) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "bench",
            "federation": "bench",
            "not_after": datetime(2100, 1, 1, tzinfo=UTC),
            "silos": ("a", "b", "c", "d"),
            "rounds": 10,
            "strategy": {"preset": objective},
            "model": problem.model,
            "training": {"local_epochs": EPOCHS, "batch_size": BATCH, "learning_rate": RATE},
            "classes": CLASSES,
            "input_shape": problem.input_shape,
        }
    )


def _data(problem: Problem) -> SiloData:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((problem.samples, *problem.input_shape)).astype(np.float32)
    samples = Samples(features=features, labels=rng.integers(0, CLASSES, problem.samples))
    return SiloData(train=samples, holdout=samples.first(1), name="bench")


def _dp_sgd(*, turns: int, device: torch.device) -> dict[str, Compared]:
    found = {}
    for name, problem in PRIVATE_PROBLEMS.items():
        print(f"training: DP-SGD, {name}", file=sys.stderr, flush=True)
        samples = Tensors.of(_data(problem).train, device)
        found[name] = compare(partial(_private_model, problem), samples, classes=CLASSES, turns=turns)
    return found


def _private_model(problem: Problem) -> FederatedModel:
    if problem is not BLOCK:
        spec = _job("fedavg", problem).model
        return build_model(spec, classes=CLASSES, input_shape=problem.input_shape)
    with seeded(1):
        return FederatedModel(Block(CLASSES), cut="head")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("training", __doc__)
    parser.add_argument("--turns", type=whole(1, 100), default=5, help="of each loop; the fastest counts")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: wall seconds count")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
