"""FedCSD (Yan et al. 2023, arXiv 2308.10162): its tables and figures.

10 silos cut by Dirichlet, all of which train in each of 100 rounds, 5 local epochs, SGD at 0.1 with momentum
0.9 (sections 6 and 7 of the method's description). Office-Caltech-10 has a silo for each of four domains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from research.papers.cells import Cell, DataSet, Federation, Method, Missing, Table
from research.papers.feddr import CIFAR100
from research.papers.methods import UNTOUCHED, preset, published, with_parts
from research.papers.printed import numbers

PAPER = "FedCSD"
RATE = 0.1
FEMNIST = DataSet(
    name="FEMNIST, digits", form="npz", place="femnist-digits.npz", classes=10, shape=(1, 28, 28)
)
OFFICE = DataSet(
    name="Office-Caltech-10",
    form="npz",
    place="office-caltech-10",
    classes=10,
    shape=(3, 224, 224),
    of_silos=("amazon", "caltech", "dslr", "webcam"),
)
SGD = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-5, "local_epochs": 5}
ROUNDS = 100
READINGS = (
    "learning rate constant, no augmentation and no normalization of images: the paper says nothing of them",
    "FedAvgM's momentum at the server is not printed: 0.9",
    "FedGKD's number of models is not printed: five, as in its own paper",
    "FedProto here averages models, too, and pulls features toward class means at mu 1: the paper tests one "
    "global model of it",
)
NETWORK = "ResNet-50 with the 3x3 stem of the authors' code; the paper names the network alone"
PROTO: dict[str, Any] = {"regularizer": "feature-prototypes", "statistic": "feature-prototypes"}
METHODS: Mapping[str, Method] = {
    "FedAvg": preset("fedavg", RATE),
    "FedProx": preset("fedprox", RATE),
    "FedNova": preset("fednova", RATE),
    "FedAvgM": preset("fedopt", RATE, server_optimizer="sgd", server_momentum=0.9),
    "MOON": preset("moon", RATE),
    "FedGKD": preset("fedgkd", RATE, mu=0.01),
    "FedProto": with_parts("fedavg", RATE, options={"mu": 1.0}, **PROTO),
    "FedCSD": published("fedcsd", RATE),
}
PRESET_OF = {"FedAvgM": "fedopt"}
LABEL_SKEW = """
row | CIFAR-100 a=0.01 | CIFAR-100 a=0.5 | CIFAR-100 a=5 | FEMNIST a=0.01 | FEMNIST a=0.05 | FEMNIST a=0.5
FedAvg | 58.50 | 66.67 | 68.83 | 86.36 | 97.31 | 99.07
FedProx | 59.37 | 68.64 | 69.64 | 76.40 | 97.53 | 99.24
FedNova | 58.44 | 68.34 | 68.65 | 10.31 | 96.60 | 98.96
FedAvgM | 51.49 | 59.34 | 56.60 | 30.85 | 97.51 | 98.49
MOON | 59.78 | 98.49 | 69.33 | 77.71 | 84.52 | 98.72
FedGKD | 58.08 | 68.91 | 69.00 | 72.44 | 88.06 | 99.23
FedProto | 55.34 | 70.04 | 71.17 | 32.02 | 71.16 | 98.77
FedCSD | 60.15 | 71.36 | 71.53 | 94.83 | 97.70 | 99.32
"""
FEATURE_SKEW = """
row | average of the four
FedAvg | 62.51
FedProx | 61.84
FedNova | 60.71
FedAvgM | 59.83
MOON | 63.20
FedGKD | 62.13
FedProto | 63.84
FedCSD | 64.35
"""
COMPONENTS = """
row | a=0.5
FedAvg | 66.67
Base | 63.66
M1: similarity and mask | 70.19
M2: similarity and teacher | 69.38
M3: mask and teacher | 68.34
FedCSD | 71.36
"""
MASKS = """
row | a=0.01 | a=0.5 | a=5
forcible | 59.95 | 70.03 | 69.61
adaptive | 60.15 | 71.36 | 71.53
"""


def without(**options: Any) -> Method:
    """FedCSD with other options."""
    return published("fedcsd", RATE, **options)


BASE = with_parts(
    "fedavg",
    RATE,
    regularizer="csd",
    options={"mu": 0.001, "tau": 10.0, "alpha": 0.0, "similarity": False, "mask": "none"},
)
ABLATIONS: Mapping[str, Method] = {
    "FedAvg": METHODS["FedAvg"],
    "Base": BASE,
    "M1: similarity and mask": without(alpha=0.0),
    "M2: similarity and teacher": without(mask="none"),
    "M3: mask and teacher": without(similarity=False),
    "FedCSD": METHODS["FedCSD"],
}


def federation(data: DataSet, drawn: str) -> Federation:
    """drawn: `a=0.5`."""
    network = "resnet50" if data is CIFAR100 else "lenet"
    return Federation(
        data=data,
        silos=10,
        drawn=drawn,
        partition={"kind": "dirichlet", "alpha": float(drawn.removeprefix("a="))},
        job={
            "classes": data.classes,
            "input_shape": list(data.shape),
            "rounds": ROUNDS,
            "model": {"name": network},
            "training": {**SGD, "batch_size": 64},
        },
    )


OFFICE_SILOS = Federation(
    data=OFFICE,
    silos=4,
    drawn="a domain each",
    partition={},
    job={
        "classes": OFFICE.classes,
        "input_shape": list(OFFICE.shape),
        "rounds": ROUNDS,
        "model": {"name": "alexnet"},
        "training": {**SGD, "batch_size": 32},
    },
)


def _label_skew() -> Iterator[Cell]:
    for row, words, printed in numbers(LABEL_SKEW):
        name, drawn = words.split()
        at = federation(CIFAR100 if name == CIFAR100.name else FEMNIST, drawn)
        yield Cell(row=row, column=words, federation=at, method=METHODS[row], printed=printed)


def _feature_skew() -> Iterator[Cell]:
    """The mean over the silos of the one model's accuracy on each silo's own test samples."""
    for row, words, printed in numbers(FEATURE_SKEW):
        is_proto = row == "FedProto"
        base = "fedavg" if is_proto else PRESET_OF.get(row, row.lower())
        strategy = METHODS[row].strategy
        options = {**strategy.get("options", {}), **UNTOUCHED}
        if row == "FedCSD":
            options |= {"mu": 0.5, "tau": 4.0}
        method = with_parts(base, RATE, closing="fine-tuning", options=options, **(PROTO if is_proto else {}))
        yield Cell(row=row, column=words, federation=OFFICE_SILOS, method=method, printed=printed)


def _of(text: str, methods: Mapping[str, Method]) -> Iterator[Cell]:
    for row, words, printed in numbers(text):
        yield Cell(
            row=row,
            column=words,
            federation=federation(CIFAR100, words),
            method=methods[row],
            printed=printed,
        )


def _at_half(methods: Mapping[str, Method], column: str = "a=0.5") -> Iterator[Cell]:
    for row, method in methods.items():
        yield Cell(row=row, column=column, federation=federation(CIFAR100, "a=0.5"), method=method)


FEATURES = "features of single samples, in two dimensions: no sum of a job holds a single sample's"
STRENGTHS = {
    **{f"mu {mu:g}": without(mu=mu) for mu in (0.001, 0.01, 0.1, 1.0)},
    **{f"tau {tau:g}": without(tau=tau) for tau in (1.0, 4.0, 10.0, 20.0)},
}
MOMENTA = {f"alpha {alpha:g}": without(alpha=alpha) for alpha in (0.0, 0.8, 0.9, 0.99)}
TABLES = (
    Table(
        paper=PAPER,
        number="Table I",
        shows="eight methods under label skew, accuracy of the global model",
        cells=tuple(_label_skew()),
        readings=(
            *READINGS,
            NETWORK,
            "MOON's 98.49 at a=0.5 stands so in the paper, beside a change of +0.43, and cannot be right",
            "the `simple CNN` is MOON's: LeNet with 5x5 convolutions of 6 and 16 channels",
            "FEMNIST's digits as one file of arrays: the paper counts ten classes and gives no sizes",
        ),
    ),
    Table(
        paper=PAPER,
        number="Table II",
        shows="eight methods under feature skew, a domain a silo",
        cells=tuple(_feature_skew()),
        missing=(
            Missing(
                name="the columns A, C, D, W",
                reason="the accuracy of a single silo: a job sums accuracies over silos and hands out their "
                "mean",
            ),
        ),
        readings=(
            *READINGS,
            "AlexNet's variant and the size of images are not printed: torchvision's, 224 x 224",
            "the mean over four silos, each with the final model on its own test samples, by a closing phase "
            "of fine-tuning that takes no step",
        ),
    ),
    Table(
        paper=PAPER,
        number="Table III",
        shows="FedCSD's three components, CIFAR-100",
        cells=tuple(_of(COMPONENTS, ABLATIONS)),
        readings=(*READINGS, NETWORK, "which components M1 to M3 have was inferred: the ticks are lost"),
    ),
    Table(
        paper=PAPER,
        number="Table IV",
        shows="two masks, CIFAR-100",
        cells=tuple(_of(MASKS, {mask: without(mask=mask) for mask in ("forcible", "adaptive")})),
        readings=(*READINGS, NETWORK),
    ),
    Table(
        paper=PAPER,
        number="Figure 1",
        shows="drift of logits and features over 50 local epochs of one round, from a trained model",
        missing=(
            Missing(
                name="all of it",
                reason="distances of one silo's model from the received one after each local epoch: a job "
                "sums once a round; research.accuracy.mechanism computes the drift by rounds",
            ),
        ),
    ),
    Table(paper=PAPER, number="Figure 2", shows="the method as a picture", has_results=False),
    Table(
        paper=PAPER,
        number="Figure 3",
        shows="accuracy by mu and by tau, CIFAR-100, a=0.5",
        cells=tuple(_at_half(STRENGTHS)),
        readings=(*READINGS, NETWORK, "values on the axes are those of the paper's grids"),
    ),
    Table(
        paper=PAPER,
        number="Figure 4",
        shows="accuracy by alpha, CIFAR-100, a=0.5",
        cells=tuple(_at_half(MOMENTA)),
        readings=(*READINGS, NETWORK),
    ),
    Table(
        paper=PAPER,
        number="Figure 5",
        shows="share of samples that the mask drops, by round",
        missing=(Missing(name="all of it", reason="no sum of a job counts the samples that a mask drops"),),
    ),
    Table(
        paper=PAPER,
        number="Figure 6",
        shows="accuracy by round, label skew and feature skew",
        cells=tuple(
            replace(cell, column=f"{cell.column}, every round", printed=None)
            for cell in (*_label_skew(), *_of("row | a=0.5\nBase | -", ABLATIONS))
            if cell.row in ("FedAvg", "Base", "FedCSD")
        ),
        missing=(
            Missing(
                name="d: the curve under feature skew",
                reason="a mean over silos of each one's accuracy is summed in the end alone, a round sums "
                "over samples",
            ),
        ),
        readings=(*READINGS, NETWORK, "which methods are drawn is told of FedAvg, Base and FedCSD alone"),
    ),
    Table(
        paper=PAPER,
        number="Figure 7",
        shows="features in two dimensions, FEMNIST",
        missing=(Missing(name="all of it", reason=FEATURES),),
    ),
)
