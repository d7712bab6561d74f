"""SphereFed (Dong et al. 2022): its tables and figures.

10 silos of CIFAR-100 or TinyImageNet, 10 local epochs in batches of 64, 100 rounds, cosine schedule
(sections 6 and 7 of the method's description). Four base methods, each with its own network and rates
(the paper's Table 16).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from research.papers.cells import Cell, DataSet, Federation, Method, Missing, Printed, Table
from research.papers.feddr import CIFAR100
from research.papers.methods import preset, published, untuned, with_parts
from research.papers.printed import numbers

PAPER = "SphereFed"
TINY = DataSet(name="TinyImageNet", form="npz", place="tinyimagenet.npz", classes=200, shape=(3, 64, 64))
POOLED = DataSet(
    name="CIFAR-100, train and test together",
    form="npz",
    place="cifar100-pooled.npz",
    classes=100,
    shape=(3, 32, 32),
    holdout=0.15,
)
IID, HALF, TENTH = "IID", "a=0.5", "a=0.1"
READINGS = (
    "no augmentation and no normalization of images: the paper describes none",
    "15 % of the training samples are held out in the paper to tune rates; here they train, too",
    "groups of group normalization are not printed: min(32, channels)",
    "no head has a bias, as in the networks of Tables 11 to 15",
)
BARE = "trained-unbiased"
CCVR_LIMIT = (
    "every silo draws CCVR's virtual features and trains the head on them itself, and a job may ask for "
    "6.9e10 products at most: features of width 1280 need 2.1e11 for their covariances alone"
)
CCVR_TINY = (
    "every silo draws CCVR's virtual features and trains the head on them itself, and a job may ask for "
    "6.9e10 products at most: 1,000 features for each of 200 classes need 1.2e11"
)
CCVR_EPOCHS = "epochs of CCVR's head are not printed: 5; there is no Tukey step (below)"
TIN_STRIDE = (
    "on 64 x 64 images the networks take stride 2 at one place where CIFAR-100's take 1; Chorale's pool at "
    "the end instead"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """One of the four base methods. rates: by variant, for CIFAR-100's IID, 0.5, 0.1, and TinyImageNet."""

    method: str
    network: str
    norm: str
    frozen: Method
    sphere: Method
    rates: Mapping[str, tuple[float, float, float, float]]


def _four(rate: float) -> tuple[float, float, float, float]:
    return (rate, rate, rate, rate)


BASES = (
    Base(
        method="FedAvg",
        network="mobilenet_v2_relu",
        norm="batch",
        frozen=preset("fedbabu", 0),
        sphere=published("spherefed", 0),
        rates={
            "base": _four(0.1),
            "BABU": (0.1, 0.1, 0.1, 0.01),
            "SphereFed": (0.5, 0.5, 1.0, 0.5),
        },
    ),
    Base(
        method="FedProx",
        network="resnet18",
        norm="group",
        frozen=with_parts("fedprox", 0, head="frozen-random"),
        sphere=published("spherefed_fedprox", 0),
        rates={"base": _four(0.1), "BABU": _four(0.1), "SphereFed": _four(0.5)},
    ),
    Base(
        method="FedNova",
        network="vgg13",
        norm="group",
        frozen=with_parts("fednova", 0, head="frozen-random"),
        sphere=published("spherefed_fednova", 0),
        rates={"base": _four(0.01), "BABU": (0.01, 0.01, 0.01, 0.001), "SphereFed": _four(0.1)},
    ),
    Base(
        method="FedOpt",
        network="senet18",
        norm="group",
        frozen=with_parts("fedopt", 0, head="frozen-random"),
        sphere=published("spherefed_fedopt", 0),
        rates={"base": _four(0.01), "BABU": _four(0.01), "SphereFed": _four(0.5)},
    ),
)
FEDAVG, FEDPROX, FEDNOVA, FEDOPT = BASES
MAIN = """
row | IID | a=0.5 | a=0.1 | TinyImageNet
FedAvg | 71.86 | 68.78 | 63.90 | 29.95
FedAvg + BABU | 71.84 | 69.35 | 64.91 | 28.38
FedAvg + SphereFed | 73.56 | 71.85 | 66.52 | 34.72
FedProx | 70.19 | 67.50 | 65.63 | 30.55
FedProx + CCVR | 71.31 | 67.89 | 66.09 | 32.56
FedProx + BABU | 71.66 | 69.62 | 67.90 | 31.87
FedProx + SphereFed | 73.41 | 72.20 | 69.19 | 35.21
FedNova | 62.12 | 60.49 | 57.20 | 39.63
FedNova + CCVR | 62.53 | 61.61 | 58.13 | 40.12
FedNova + BABU | 62.03 | 60.54 | 58.95 | 40.87
FedNova + SphereFed | 65.50 | 65.12 | 62.54 | 45.21
FedOpt | 61.89 | 59.60 | 57.46 | 24.29
FedOpt + CCVR | 61.97 | 60.42 | 57.93 | 25.01
FedOpt + BABU | 62.27 | 59.69 | 56.75 | 25.34
FedOpt + SphereFed | 65.15 | 65.69 | 62.61 | 29.84
"""
EPOCHS = """
row | E=1 | E=5
FedAvg | 70.51 | 68.40
FedAvg + BABU | 71.46 | 69.10
FedAvg + SphereFed | 73.26 | 72.02
FedNova | 60.53 | 57.46
FedNova + CCVR | 61.31 | 57.77
FedNova + BABU | 62.75 | 58.50
FedNova + SphereFed | 64.75 | 62.06
"""
HUNDRED = """
row | 100 silos
FedAvg | 68.26
FedAvg + BABU | 69.14
FedAvg + SphereFed | 71.38
FedNova | 49.04
FedNova + CCVR | 50.45
FedNova + BABU | 51.27
FedNova + SphereFed | 55.23
"""
SCHEDULES = """
row | cosine | multi-step
FedAvg | 68.78 | 68.60
FedAvg + BABU | 69.35 | 69.43
FedAvg + SphereFed | 71.85 | 71.06
"""
OWN = """
row | a=0.5 | a=0.1
FedAvg | 69.95±3.96 | 80.16±3.77
LG-FedAvg | 71.67±4.33 | 81.95±3.69
FedRep | 62.39±3.91 | 73.63±3.74
BABU | 72.34±3.84 | 82.12±3.63
SphereFed, local FFC | 75.63±3.13 | 84.06±3.10
SphereFed, local SGD | 75.71±3.32 | 84.12±3.29
"""
SOLVED = {"fine_tune_scope": "solved-head"}
OWN_METHODS = {
    "FedAvg": untuned("fedavg", 0.1, head=BARE),
    "LG-FedAvg": with_parts("lg_fedavg", 0.1, head=BARE),
    "FedRep": with_parts("fedrep", 0.1, head=BARE),
    "BABU": preset("fedbabu_ft", 0.1),
    "SphereFed, local FFC": with_parts("spherefed", 0, closing="fine-tuning", options=SOLVED),
    "SphereFed, local SGD": with_parts(
        "spherefed",
        0,
        closing="fine-tuning",
        options={"fine_tune_scope": "head"},
    ),
}
# Table 3, by loss and head
PARTS: Mapping[str, Method] = {
    "CE": with_parts("fedavg", 0.1, head=BARE),
    "CE + Fix(R)": preset("fedbabu", 0.1),
    "CE + Fix(OU)": with_parts("fedavg", 0.1, head="frozen-orthonormal"),
    "CE + Norm": with_parts("fedavg", 0.1, head=BARE, features="unit", loss="scaled-softmax"),
    "CE + Fix(OU) + Norm": with_parts(
        "fedavg", 0.1, head="frozen-orthonormal", features="unit", loss="scaled-softmax"
    ),
    "MSE": with_parts("fedavg", 0.1, head=BARE, loss="sphere-mse", unusual=True),
    "MSE + Fix(R)": with_parts("fedavg", 0.1, head="frozen-random", loss="sphere-mse", unusual=True),
    "MSE + Fix(OU)": with_parts("fedavg", 0.1, head="frozen-orthonormal", loss="sphere-mse", unusual=True),
    "MSE + Norm": with_parts("fedavg", 0.1, head=BARE, features="unit", loss="sphere-mse"),
    "MSE + Fix(OU) + Norm": published("spherefed", 0.5),
}
PARTS_PRINTED = """
row | accuracy
CE | 68.78
CE + Fix(R) | 69.35
CE + Fix(OU) | 69.65
CE + Norm | 69.76
CE + Fix(OU) + Norm | 70.87
MSE | 66.42
MSE + Fix(R) | 67.05
MSE + Fix(OU) | 67.21
MSE + Norm | -
MSE + Fix(OU) + Norm | 71.85
"""


def federation(base: Base, drawn: str, *, data: DataSet = CIFAR100) -> Federation:
    """drawn: IID, or a Dirichlet cut."""
    alpha = drawn.removeprefix("a=")
    cut = {"kind": "iid"} if drawn == IID else {"kind": "dirichlet", "alpha": float(alpha)}
    norm = "group" if data is TINY else base.norm
    return Federation(
        data=data,
        silos=10,
        drawn=drawn,
        partition=cut,
        job={
            "classes": data.classes,
            "input_shape": list(data.shape),
            "rounds": 100,
            "model": {"name": base.network, "norm": norm},
            "training": {
                "optimizer": "sgd",
                "momentum": 0.9,
                "weight_decay": 1e-5,
                "batch_size": 64,
                "local_epochs": 10,
                "schedule": {"kind": "cosine"},
            },
        },
    )


def column(base: Base, words: str) -> Federation:
    """A column of Table 2. TinyImageNet's alpha is not printed: 0.5."""
    return federation(base, HALF, data=TINY) if words == TINY.name else federation(base, words)


def variant(row: str, at: Federation) -> tuple[Base, Method]:
    """`FedProx + CCVR` with its rate in that column."""
    name, _, added = row.partition(" + ")
    base = next(each for each in BASES if each.method == name)
    place = 3 if at.data is TINY else [IID, HALF, TENTH].index(at.drawn)
    rate = base.rates[added if added in base.rates else "base"][place]
    made = {
        "": with_parts(name.lower(), rate, head=BARE),
        "BABU": base.frozen,
        "SphereFed": base.sphere,
        "CCVR": with_parts(
            name.lower(),
            rate,
            head=BARE,
            closing="ccvr",
            options={"virtual_features": 500, "virtual_epochs": 5} | RATE,
        ),
    }[added]
    if (name, added) == ("FedProx", "SphereFed") and at.data is TINY:
        made = published("spherefed_fedprox", rate, mu=0.001)
    return base, replace(made, rate=rate)


RATE = {"virtual_learning_rate": 1e-5}


def _cell(row: str, words: str, at: Federation, printed: Printed | None) -> Cell:
    base, method = variant(row, at)
    model = {**at.job["model"], "name": base.network}
    return Cell(row=row, column=words, federation=at.job_with(model=model), method=method, printed=printed)


def _main() -> Iterator[Cell]:
    for row, words, printed in numbers(MAIN):
        if words != TINY.name or "CCVR" not in row:
            yield _cell(row, words, column(_base(row), words), printed)


def _base(row: str) -> Base:
    return next(each for each in BASES if each.method == row.split(" + ")[0])


def _with_epochs() -> Iterator[Cell]:
    for row, words, printed in numbers(EPOCHS):
        base, epochs = _base(row), int(words.removeprefix("E="))
        at = federation(base, HALF if base is FEDAVG else TENTH).training(local_epochs=epochs)
        yield _cell(row, words, at.job_with(rounds=500) if epochs == 1 else at, printed)


def _of_hundred() -> Iterator[Cell]:
    for row, words, printed in numbers(HUNDRED):
        at = federation(_base(row), HALF).job_with(rounds=500, fraction=0.1)
        yield _cell(row, words, replace(at, silos=100), printed)


def _scheduled() -> Iterator[Cell]:
    for row, words, printed in numbers(SCHEDULES):
        at = federation(FEDAVG, HALF)
        if words == "multi-step":
            at = at.training(schedule={"kind": "step", "step_rounds": 40, "gamma": 0.1})
        yield _cell(row, words, at, printed)


def _own() -> Iterator[Cell]:
    for row, words, printed in numbers(OWN):
        method = OWN_METHODS[row]
        if "SphereFed" in row:
            method = replace(method, rate=0.5 if words == HALF else 1.0)
        at = federation(FEDAVG, words, data=POOLED)
        yield Cell(row=row, column=words, federation=at, method=method, printed=printed)


def _on_fedavg(row: str, words: str, method: Method, printed: Printed | None) -> Cell:
    return Cell(row=row, column=words, federation=federation(FEDAVG, words), method=method, printed=printed)


def _calibrated(words: str, name: str, method: Method, printed: float) -> Cell:
    at, method = federation(FEDOPT, words), replace(method, rate=0.5)
    return Cell(row=name, column=words, federation=at, method=method, printed=Printed(mean=printed))


NO_FFC = with_parts("spherefed_fedopt", 0, closing="none")
NO_CCVR = Missing(name="FedAvg + CCVR", reason=CCVR_LIMIT)
PER_SILO_FEATURES = (
    "it shows features of single samples at two silos, and no sum of a job holds a single sample's"
)
HARDWARE = (
    "memory and latency on an FPGA accelerator: a job measures no hardware; part a, the bytes sent, is what "
    "`job plan` prints"
)
TABLES = (
    Table(
        paper=PAPER,
        number="Table 1",
        shows="what the classifier costs: bytes and operations",
        cells=tuple(
            _cell(row, HALF, federation(FEDAVG, HALF), Printed(mean=printed))
            for row, printed in (("FedAvg", 68.78), ("FedAvg + SphereFed", 71.85))
        ),
        missing=(
            NO_CCVR,
            Missing(
                name="operations", reason="a job counts bytes (`job plan`), no floating-point operations"
            ),
        ),
        readings=READINGS,
    ),
    Table(
        paper=PAPER,
        number="Table 2",
        shows="four base methods, each with CCVR, BABU and SphereFed with FFC",
        cells=tuple(_main()),
        missing=(NO_CCVR, Missing(name="CCVR on TinyImageNet", reason=CCVR_TINY)),
        readings=(
            *READINGS,
            CCVR_EPOCHS,
            "TinyImageNet's alpha is not printed: 0.5; its validation images are the test",
            TIN_STRIDE,
        ),
    ),
    Table(
        paper=PAPER,
        number="Table 3",
        shows="loss, frozen head and unit features, one by one",
        cells=tuple(_on_fedavg(row, HALF, PARTS[row], printed) for row, _, printed in numbers(PARTS_PRINTED)),
        readings=(
            *READINGS,
            "the rates of these rows and the factor of the scores are not printed: 0.1 and 16; MSE + Norm "
            "diverges in the paper",
        ),
    ),
    Table(
        paper=PAPER,
        number="Table 4",
        shows="what follows SphereFed's training with FedOpt: nothing, CCVR, FFC, an oracle",
        cells=(
            _calibrated(IID, "none", NO_FFC, 65.07),
            _calibrated(TENTH, "none", NO_FFC, 61.66),
            _calibrated(IID, "FFC", FEDOPT.sphere, 65.15),
            _calibrated(TENTH, "FFC", FEDOPT.sphere, 62.61),
        ),
        missing=(
            Missing(
                name="CCVR after SphereFed",
                reason="CCVR trains a head by cross-entropy, and SphereFed's loss is another: refused",
            ),
            Missing(name="oracle", reason="it pools the silos' data"),
        ),
        readings=READINGS,
    ),
    Table(
        paper=PAPER,
        number="Table 5",
        shows="1 and 5 local epochs",
        cells=tuple(_with_epochs()),
        missing=(NO_CCVR,),
        readings=(*READINGS, CCVR_EPOCHS, "rounds at 5 epochs are not printed: 100"),
    ),
    Table(
        paper=PAPER,
        number="Table 6",
        shows="100 silos of which a round draws 10, 500 rounds",
        cells=tuple(_of_hundred()),
        missing=(NO_CCVR,),
        readings=(*READINGS, CCVR_EPOCHS),
    ),
    Table(
        paper=PAPER,
        number="Table 7",
        shows="two schedules of the learning rate",
        cells=tuple(_scheduled()),
        missing=(NO_CCVR,),
        readings=READINGS,
    ),
    Table(
        paper=PAPER,
        number="Table 8",
        shows="accuracy of the silos' own models",
        cells=tuple(_own()),
        readings=(
            *READINGS,
            "settings of LG-FedAvg, FedRep and of fine-tuning are not printed: the presets' values",
        ),
    ),
    Table(
        paper=PAPER,
        number="Table 9",
        shows="FFC after training by cross-entropy",
        cells=tuple(
            _on_fedavg(row, TENTH, method, Printed(mean=printed))
            for row, method, printed in (
                ("FedAvg", with_parts("fedavg", 0.1, head=BARE), 63.90),
                ("Fix(R)", preset("fedbabu", 0.1), 64.91),
                (
                    "Fix(R) + FFC",
                    with_parts("fedbabu", 0.1, closing="ffc", options={"ridge": 0.0}, unusual=True),
                    65.36,
                ),
            )
        ),
        readings=(*READINGS, "network and cut are not printed; the numbers are those of Table 2 at a=0.1"),
    ),
    Table(
        paper=PAPER,
        number="Table 10",
        shows="how the frozen head is drawn",
        cells=(_cell("FedAvg + SphereFed", HALF, federation(FEDAVG, HALF), Printed(mean=71.85)),),
        missing=(Missing(name="Tammes", reason="no head is drawn by 10,000 steps of gradient descent"),),
        readings=READINGS,
    ),
    Table(
        paper=PAPER,
        number="Tables 11 to 15",
        shows="five networks, layer by layer: convnet7, vgg13, senet18, mobilenet_v2_relu and resnet18",
        has_results=False,
    ),
    Table(paper=PAPER, number="Table 16", shows="learning rates, in the jobs", has_results=False),
    Table(paper=PAPER, number="Figure 1", shows="the method as a picture", has_results=False),
    Table(
        paper=PAPER,
        number="Figure 2",
        shows="how far the silos' heads lie apart, FedAvg, 50 rounds",
        cells=tuple(
            Cell(
                row="FedAvg",
                column=words,
                federation=federation(FEDPROX, words).job_with(rounds=50),
                method=with_parts("fedavg", 0.1, head=BARE),
            )
            for words in (IID, HALF, TENTH)
        ),
        missing=(
            Missing(
                name="cosines of heads (Eq. 2)",
                reason="their mean over all pairs follows from one sum of the rows at unit length, which no "
                "job takes: research.accuracy.mechanism takes it beside a simulation",
            ),
            Missing(
                name="differences of norms (Eq. 3)",
                reason="a mean of absolute differences of single silos' norms follows from no sum",
            ),
        ),
        readings=(*READINGS, "which cuts are drawn stands in the picture alone: those of Table 2"),
    ),
    Table(
        paper=PAPER,
        number="Figure 3",
        shows="features of two silos in two dimensions",
        missing=(Missing(name="all of it", reason=PER_SILO_FEATURES),),
    ),
    Table(
        paper=PAPER,
        number="Figure 4",
        shows="three learning rates, FedNova and SphereFed",
        missing=(Missing(name="all of it", reason="the three rates stand in the picture alone"),),
    ),
    Table(
        paper=PAPER,
        number="Figure 5",
        shows="memory and latency of training on an accelerator",
        missing=(Missing(name="all of it", reason=HARDWARE),),
    ),
)
