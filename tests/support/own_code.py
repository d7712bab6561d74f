"""What an institution's distribution holds in tests: models with and without a cut, a task, losses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

from chorale.runtime import distributions
from tests.support import wheels

NAME, PACKAGE = "hospital-models", "hospital_models"
PINNED = f"{NAME}==1.2.0"
FILES = {
    f"{PACKAGE}/__init__.py": "",
    f"{PACKAGE}/code.py": dedent(
        '''
        import torch
        from torch import nn
        from chorale_models import Data, Loss, Normal, Regularizer, Sum, Target, Task, model


        class Attending(nn.Module):
            """Tied weights, a table of positions, a mask of whole numbers, half precision."""

            def __init__(self, width, outputs, *, depth=1):
                super().__init__()
                self.first = nn.Linear(1, width, dtype=torch.float16)
                self.layers = nn.ModuleList(
                    nn.TransformerEncoderLayer(width, 2, width, dropout=0.0, batch_first=True)
                    for _ in range(depth)
                )
                if depth > 1:
                    self.layers[1].linear1.weight = self.layers[0].linear1.weight
                self.register_buffer("table", torch.linspace(0.0, 1.0, width))
                self.register_buffer("places", torch.arange(4))
                self.last = nn.Linear(width, outputs)

            def forward(self, x):
                hidden = self.first(x.flatten(1).unsqueeze(2)) + self.table
                for layer in self.layers:
                    hidden = layer(hidden)
                return self.last(hidden.mean(1))


        @model(head="last", starts={"layers.*.norm2.weight": 0.5, "*.linear2.weight": Normal(std=0.02)})
        def net(sizes, *, width=4, depth=1):
            float(torch.ones(1).sum())  # which the meta device has no value for
            return Attending(width, sizes.classes, depth=depth)


        @model()
        def headless(sizes):
            return nn.Sequential(nn.Flatten(), nn.Linear(4, sizes.classes))


        @model(head="0")
        def early(sizes):
            return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, sizes.classes))


        @model(head="0")
        def narrow(sizes):
            return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, sizes.classes))


        @model()
        def wide(sizes):
            return nn.Linear(4, 9)


        @model(head="1")
        def tied(sizes):
            layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            layers[1].weight = layers[0].weight
            return layers


        class Random(nn.Linear):
            def __init__(self, *sizes):
                super().__init__(*sizes)
                self.register_buffer("draw", torch.rand(3), persistent=False)


        @model(head="")
        def nameless(sizes):
            return nn.Linear(4, sizes.classes)


        @model()
        def random(sizes):
            return Random(4, sizes.classes)


        class Pair(nn.Linear):
            def forward(self, x):
                return (super().forward(x), x) if self.training else super().forward(x)


        @model()
        def pair(sizes):
            return Pair(4, sizes.classes)


        class Absolute(Task):
            target = Target(low=-10.0, high=10.0)
            sums = (
                Sum(name="error_sum", bound=1e6, per_record=20.0),
                Sum(name="near", is_count=True, at_most="tested"),
            )
            metrics = {"mae": ("error_sum", "tested"), "share_near": ("near", "tested")}

            def __init__(self, sizes, *, near=1.0):
                super().__init__(sizes)
                self.near = near

            def loss(self, outputs, targets):
                return (outputs[:, 0] - targets).abs()

            def measure(self, outputs, targets):
                errors = self.loss(outputs, targets)
                return {"error_sum": errors.sum(), "near": (errors < self.near).sum()}


        class Flat(Absolute):
            def loss(self, outputs, targets):
                return (outputs[:, 0] - targets).abs().mean()


        class Reserved(Absolute):
            sums = (Sum(name="delta"),)
            metrics = {}


        class Focal(Loss):
            def __init__(self, sizes, *, gamma=2.0):
                super().__init__(sizes)
                self.gamma = gamma

            def loss(self, outputs, targets):
                chance = outputs.softmax(1).gather(1, targets[:, None])[:, 0]
                return -((1 - chance) ** self.gamma) * chance.clamp_min(1e-9).log()


        class Endless(Loss):
            def loss(self, outputs, targets):
                return outputs.sum(1) * float("nan")


        class Centered(Loss):
            is_mean = False

            def loss(self, outputs, targets):
                return (outputs - outputs.mean(0)).square().sum(1)


        def line(sizes, *, samples=20):
            x = [[place / samples] * sizes.input_shape[0] for place in range(samples)]
            return Data(train=[(each, place % 2) for place, each in enumerate(x)])


        def spoiled(sizes):
            raise OSError("the archive is not mounted")


        COMPARED = 1


        class Stored:
            def __len__(self):
                return 4

            def __getitem__(self, place):
                return torch.zeros(1).numpy(), COMPARED


        def stored(sizes):
            return Data(train=Stored())


        class Near(Regularizer):
            def penalty(self, outputs, teacher, targets):
                return (outputs - teacher).square().sum(1)
        '''
    ),
}
OFFERS = {
    "chorale.models": {
        name: f"{PACKAGE}.code:{name}"
        for name in ("net", "headless", "early", "narrow", "wide", "tied", "nameless", "random", "pair")
    },
    "chorale.tasks": {name.lower(): f"{PACKAGE}.code:{name}" for name in ("Absolute", "Flat", "Reserved")},
    "chorale.data": {name: f"{PACKAGE}.code:{name}" for name in ("line", "spoiled", "stored")},
    "chorale.parts": {
        name.lower(): f"{PACKAGE}.code:{name}" for name in ("Focal", "Endless", "Centered", "Near")
    },
}


def install(folder: Path, *, version: str = "1.2.0") -> Path:
    """A folder with the distribution, as site-packages has it."""
    site = folder / f"site-{version}"
    wheels.install(wheels.build(folder, name=NAME, version=version, files=FILES, offers=OFFERS), site)
    return site


@contextmanager
def importable(folder: Path) -> Iterator[Path]:
    """The distribution, found by this process and those that it starts, and forgotten afterwards."""
    site = install(folder)
    sys.path.insert(0, str(site))
    try:
        yield site
    finally:
        sys.path.remove(str(site))
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]
        distributions._owners.clear()
        distributions._running.clear()
