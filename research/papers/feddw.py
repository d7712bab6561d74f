"""FedDW (Liu et al.): its tables and figures.

10 silos cut by Dirichlet: `practical` 0.5 with all silos in a round, `pathological` 0.1 with half of them.
Adam at 0.001, 50 rounds of 5 local epochs in batches of 128 (section V). What the text leaves open is as in
the authors' code, liuvvvvv1/FedDW at 4e69f24: config.py, dataset.py, models.py, utils.py (lines 248 to 275).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from research.papers.cells import Cell, DataSet, Federation, Method, Missing, Table
from research.papers.feddr import CIFAR10, CIFAR100, CROP_AND_FLIP
from research.papers.methods import preset, published, with_parts
from research.papers.printed import numbers

PAPER = "FedDW"
RATE = 0.001
MNIST = DataSet(name="MNIST", form="mnist", place="mnist", classes=10, shape=(1, 28, 28))
DATA = {"MNIST": MNIST, "CIFAR-10": CIFAR10, "CIFAR-100": CIFAR100}
NETWORKS = {"MNIST": "lenet_linear", "CIFAR-10": "lenet_linear", "CIFAR-100": "resnet18"}
MU = {"MNIST": 1.0, "CIFAR-10": 0.1, "CIFAR-100": 10.0}  # MNIST's is not printed: it matters little there
NORMALIZE = {
    "MNIST": {"mean": [0.1307], "std": [0.3081]},
    "CIFAR-10": {"mean": [0.4914, 0.4822, 0.4465], "std": [0.2023, 0.1994, 0.2010]},
    "CIFAR-100": {"mean": [0.5071, 0.4865, 0.4409], "std": [0.2673, 0.2564, 0.2762]},
}
AUGMENT: Mapping[str, list[dict[str, Any]]] = {
    "CIFAR-10": CROP_AND_FLIP,
    "CIFAR-100": [*CROP_AND_FLIP, {"kind": "random-rotation", "degrees": 15}],
}
READINGS = (
    "lenet_linear is the authors' network of CIFAR-10; theirs of MNIST has convolutions of 10 and 20 "
    "channels and dropout",
    "behind ResNet-18 and MobileNet the paper has two layers to width 128; here the head follows the "
    "features, of width 512 and 1024. MobileNet is the first version, which the text cites; the authors have "
    "the second at half its width",
    "FedDW's mu is the paper's best: 0.1 on CIFAR-10, 10 on CIFAR-100; 1 on MNIST, where none is printed",
    "images are normalized and transformed, and other methods have values, as in the authors' code: MOON's "
    "mu is 5, FedProx's 0.01, and FedRep trains its head for one epoch and the body for four. That code "
    "transforms test images, too",
)
NO_FEDUV = Missing(
    name="FedUV",
    reason="FedDW prints no equation of its two terms, the variance of a batch's outputs and the uniformity "
    "of its features, nor their weights",
)
NO_IMDB = Missing(
    name="the columns IMDB",
    reason="no network of Chorale's own is a bidirectional LSTM; the authors' code has 10,000 words, texts "
    "of 200, and widths of 128, which a distribution can bring (docs/own-models.md)",
)
NO_SHUFFLENET = Missing(
    name="the column ShuffleNet",
    reason="no network of Chorale's own; the authors' code has widths 200, 400 and 800 in two groups, and "
    "layers to 256 and 128, which a distribution can bring (docs/own-models.md)",
)
NO_DRAWN_PROTOTYPES = Missing(
    name="FedProto where half of the silos are drawn",
    reason="silos' own models answer nearly the same in every round, so many draws would tell each silo's "
    "class sums: a job refuses it",
)
ON_ALL_CLASSES = (
    "the silos' own models are tested on the whole test set (section V-B), which each silo holds for it "
    "(`whole_test`): a model leaves no silo. Of Per-FedAvg the authors' code tests the global model, which "
    "a job's figure `accuracy` is of"
)
METHODS: Mapping[str, Method] = {
    "FedAvg": preset("fedavg", RATE),
    "MOON": preset("moon", RATE, mu=5.0),
    "FedBABU": preset("fedbabu", RATE),
    "FedProx": preset("fedprox", RATE, mu=0.01),
    "FedRep": preset("fedrep", RATE, head_epochs=1),
    "FedProto": preset("fedproto", RATE),
    "FedALA": preset("fedala", RATE),
    "Per-FedAvg": preset("per_fedavg", RATE),
    "FedPer": preset("fedper", RATE),
    "Local": preset("local_only", RATE),
}
OWN = ("FedRep", "FedProto", "FedALA", "FedPer", "Local")
PRACTICAL, PATHOLOGICAL = "practical", "pathological"
MAIN = {
    PRACTICAL: """
row | MNIST | CIFAR-10 | CIFAR-100
FedAvg | 99.31±0.2 | 63.44±0.4 | 62.16±0.6
MOON | 99.42±0.1 | 64.33±0.5 | 63.35±0.3
FedBABU | 99.51±0.1 | 65.59±0.2 | 63.49±0.2
FedProx | 99.39±0.1 | 64.74±0.2 | 62.81±1.0
FedRep | 96.88±0.3 | 52.42±1.1 | 39.03±2.2
FedProto | 97.11±0.1 | 45.52±0.8 | 23.15±0.9
FedALA | 99.02±0.1 | 48.39±1.5 | 41.97±3.3
Per-FedAvg | 99.12±0.1 | 64.23±0.1 | 62.22±0.5
FedPer | 96.55±0.5 | 48.78±1.5 | 36.87±1.2
Local | 95.35±3.2 | 42.38±5.1 | 22.83±6.2
FedDW | 99.52±0.1 | 66.24±0.6 | 63.53±0.3
""",
    PATHOLOGICAL: """
row | MNIST | CIFAR-10 | CIFAR-100
FedAvg | 95.05±0.5 | 48.36±0.3 | 43.47±0.5
MOON | 96.11±0.1 | 54.01±0.4 | 49.04±0.2
FedBABU | 96.78±0.2 | 53.06±0.2 | 50.12±0.3
FedProx | 95.12±0.4 | 51.39±0.3 | 46.07±0.2
FedRep | 67.23±1.2 | 28.05±1.5 | 23.46±0.9
FedProto | 49.83±4.2 | 27.64±1.6 | 16.48±1.3
FedALA | 79.16±1.2 | 32.58±0.8 | 28.16±1.2
Per-FedAvg | 96.21±0.5 | - | -
FedPer | 64.89±2.2 | 30.38±1.3 | 22.82±4.2
Local | 55.76±9.2 | 25.75±3.2 | 15.54±8.8
FedDW | 96.66±0.5 | 57.73±0.5 | 50.21±0.3
""",
}
SCALED = """
row | reference | N=50 | N=100 | Sr=25 Cr=10 | Sr=125 Cr=2 | ResNet-18 | MobileNet
FedAvg | 63.4±0.4 | 56.07±0.1 | 51.41±0.3 | 65.72±0.3 | 66.09±0.2 | 62.16±0.6 | 52.77±0.5
MOON | 64.33±0.5 | 53.59±0.4 | 49.59±0.5 | 65.84±0.4 | 65.76±0.7 | 63.35±0.3 | 52.98±0.5
FedBABU | 65.59±0.2 | 56.12±0.2 | 50.55±0.1 | 66.89±0.1 | 66.33±0.2 | 63.49±0.2 | 53.05±0.4
FedProx | 64.74±0.2 | 55.87±0.6 | 51.19±0.5 | 65.84±0.2 | 66.19±0.4 | 62.81±0.6 | 50.52±0.2
FedRep | 52.42±1.1 | 38.66±1.3 | 34.68±1.4 | 45.84±0.3 | 45.19±0.4 | 39.03±1.1 | 41.66±0.7
FedProto | 45.52±0.8 | 37.15±1.1 | 34.57±0.8 | 44.52±0.6 | 45.04±0.3 | 23.15±0.9 | 30.43±0.8
FedALA | 48.39±1.5 | 39.71±1.0 | 35.87±0.7 | 46.55±0.3 | 47.54±0.2 | 41.97±0.5 | 32.64±0.6
Per-FedAvg | 64.23±0.1 | 55.23±0.3 | 51.10±0.3 | 63.55±0.2 | 64.53±0.5 | 62.22±0.5 | 49.11±0.3
FedPer | 48.78±1.5 | 40.84±2.2 | 36.78±1.9 | 46.68±1.5 | 47.74±1.9 | 36.87±1.2 | 35.89±0.9
Local | 42.38±1.5 | 28.13±1.2 | 28.13±1.2 | 40.68±3.4 | 41.02±2.8 | 22.83±6.2 | 27.94±0.5
FedDW | 66.24±0.6 | 57.6±0.3 | 51.73±0.4 | 67.06±0.4 | 67.21±0.2 | 63.53±0.3 | 53.71±0.3
"""
# the columns of Table II: data, then what is changed
CHANGES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "reference": ("CIFAR-10", {}),
    "N=50": ("CIFAR-10", {"silos": 50}),
    "N=100": ("CIFAR-10", {"silos": 100}),
    "Sr=25 Cr=10": ("CIFAR-10", {"rounds": 25, "local_epochs": 10}),
    "Sr=125 Cr=2": ("CIFAR-10", {"rounds": 125, "local_epochs": 2}),
    "ResNet-18": ("CIFAR-100", {}),
    "MobileNet": ("CIFAR-100", {"model": "mobilenet"}),
}
# Table IV has other deviations than Table I
ADDED = """
row | accuracy
FedAvg without FedDW's term | 43.47±0.5
MOON without FedDW's term | 49.04±0.9
FedProx without FedDW's term | 46.07±0.3
FedAvg + DW | 50.21±0.3
MOON + DW | 52.81±0.2
FedProx + DW | 48.39±0.8
FedDistill+ | 43.96±0.8
FedDistill+ + DW | 47.26±0.6
"""
# FedDW's term at its mu, beside another regularizer at that one's own
ADDED_TO: Mapping[str, Method] = {"FedDistill+": preset("feddistill_plus", RATE)} | {
    f"{row} + DW": with_parts(
        "feddw",
        RATE,
        regularizer=word,
        second_regularizer="soft-labels",
        options={**options, "second_mu": MU["CIFAR-100"]},
    )
    for row, word, options in (
        ("MOON", "moon", {"mu": 5.0}),
        ("FedProx", "prox", {"mu": 0.01}),
        ("FedDistill+", "class-distillation", {"mu": 1.0}),
    )
}
TIMED = ("FedAvg", "MOON", "FedBABU", "Per-FedAvg", "FedProx", "FedDW")


def federation(
    data: str, setting: str, *, silos: int = 10, rounds: int = 50, local_epochs: int = 5, model: str = ""
) -> Federation:
    """setting: practical or pathological."""
    is_pathological = setting == PATHOLOGICAL
    found = DATA[data]
    alpha = 0.1 if is_pathological else 0.5
    return Federation(
        data=found,
        silos=silos,
        drawn=f"a={alpha:g}" + (", half of them a round" if is_pathological else ""),
        partition={"kind": "dirichlet", "alpha": alpha},
        job={
            "classes": found.classes,
            "input_shape": list(found.shape),
            "rounds": rounds,
            "fraction": 0.5 if is_pathological else 1.0,
            "model": {"name": model or NETWORKS[data]},
            "normalize": NORMALIZE[data],
            "augment": AUGMENT.get(data),
            "training": {"optimizer": "adam", "local_epochs": local_epochs, "batch_size": 128},
        },
    )


def method(row: str, data: str) -> Method:
    """FedDW with the mu of that data set."""
    return published("feddw", RATE, mu=MU[data]) if row == "FedDW" else METHODS[row]


def _of(row: str, at: Federation) -> Federation:
    """As that method trains and is tested in it."""
    if row == "FedRep":
        at = at.training(local_epochs=at.job["training"]["local_epochs"] - 1)
    return replace(at, partition={**at.partition, "whole_test": True}) if row in OWN else at


def _main() -> Iterator[Cell]:
    for setting, text in MAIN.items():
        for row, data, printed in numbers(text):
            if row == "FedProto" and setting == PATHOLOGICAL:
                continue
            yield Cell(
                row=row,
                column=f"{setting} {data}",
                federation=_of(row, federation(data, setting)),
                method=method(row, data),
                printed=printed,
            )


def _scaled() -> Iterator[Cell]:
    for row, words, printed in numbers(SCALED):
        data, changes = CHANGES[words]
        at = _of(row, federation(data, PRACTICAL, **changes))
        yield Cell(row=row, column=words, federation=at, method=method(row, data), printed=printed)


def _strengths() -> Iterator[Cell]:
    for setting in (PRACTICAL, PATHOLOGICAL):
        for data in ("CIFAR-10", "CIFAR-100"):
            for mu in (0.01, 0.1, 1.0, 10.0, 100.0):
                yield Cell(
                    row=f"FedDW, mu {mu:g}",
                    column=f"{setting} {data}",
                    federation=federation(data, setting),
                    method=published("feddw", RATE, mu=mu),
                )


def _added() -> Iterator[Cell]:
    for name, _, printed in numbers(ADDED):
        row = "FedDW" if name == "FedAvg + DW" else name.partition(" ")[0]
        yield Cell(
            row=name,
            column="pathological CIFAR-100",
            federation=federation("CIFAR-100", PATHOLOGICAL),
            method=ADDED_TO.get(name) or method(row, "CIFAR-100"),
            printed=printed,
        )


SINGLE = "features of single samples, in two dimensions: no sum of a job holds a single sample's"
TABLES = (
    Table(
        paper=PAPER,
        number="Table I",
        shows="twelve methods in two settings, accuracy, five runs",
        cells=tuple(_main()),
        missing=(NO_FEDUV, NO_IMDB, NO_DRAWN_PROTOTYPES),
        readings=(*READINGS, ON_ALL_CLASSES),
    ),
    Table(
        paper=PAPER,
        number="Table II",
        shows="more silos, other rounds, other networks, practical setting",
        cells=tuple(_scaled()),
        missing=(NO_FEDUV, NO_SHUFFLENET),
        readings=(*READINGS, ON_ALL_CLASSES),
    ),
    Table(
        paper=PAPER,
        number="Table III",
        shows="time of training by epoch, ResNet-18",
        cells=tuple(
            Cell(
                row=row,
                column="pathological CIFAR-100",
                federation=federation("CIFAR-100", PATHOLOGICAL),
                method=method(row, "CIFAR-100"),
            )
            for row in TIMED
        ),
        missing=(NO_FEDUV,),
        readings=(*READINGS, "times are of the paper's machine; a report has its own, by rounds"),
    ),
    Table(
        paper=PAPER,
        number="Table IV",
        shows="FedDW's regularizer added to other methods",
        cells=tuple(_added()),
        missing=(NO_FEDUV,),
        readings=(
            *READINGS,
            "FedDistill+ takes the trained models' mean outputs over all silos, samples alike; the method "
            "that is cited takes those of the other silos, silos alike. Its weight is not printed: mu 1",
        ),
    ),
    Table(
        paper=PAPER,
        number="Figures 1 to 3",
        shows="what a silo sends, how it trains, and a round, as pictures",
        has_results=False,
    ),
    Table(
        paper=PAPER,
        number="Figure 4",
        shows="norm of a class's row in the head by its share of the samples, 100 runs",
        missing=(
            Missing(
                name="all of it",
                reason="it trains one model on one data set of random class shares: no federation",
            ),
        ),
    ),
    Table(
        paper=PAPER,
        number="Figure 5",
        shows="features in two dimensions, MNIST",
        missing=(Missing(name="all of it", reason=SINGLE),),
    ),
    Table(
        paper=PAPER,
        number="Figure 6",
        shows="accuracy by mu, two data sets, both settings",
        cells=tuple(_strengths()),
        readings=READINGS,
    ),
    Table(
        paper=PAPER,
        number="Figure 7",
        shows="accuracy by round, two data sets",
        cells=tuple(
            replace(cell, column=f"{cell.column}, every round", printed=None)
            for cell in _main()
            if "CIFAR" in cell.column and cell.row in ("FedAvg", "FedDW")
        ),
        missing=(Missing(name="which other methods", reason="the text does not say whose curves are drawn"),),
        readings=READINGS,
    ),
    Table(
        paper=PAPER,
        number="Figure 8",
        shows="soft labels and class relations as maps, FedAvg and FedDW",
        cells=tuple(
            replace(cell, column=f"{cell.column}, soft labels", printed=None)
            for cell in _main()
            if cell.column == "pathological CIFAR-10" and cell.row == "FedDW"
        ),
        missing=(
            Missing(
                name="FedAvg's maps",
                reason="a job sums soft labels for the method that uses them alone; "
                "research.accuracy.mechanism computes them beside a simulation",
            ),
        ),
        readings=(*READINGS, "data set and cut are not told: CIFAR-10"),
    ),
)
