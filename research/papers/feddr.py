"""What FedDr+'s two papers share: data, cuts, networks, rates (conference 6 and 7, journal 6 and 7).

100 silos of which a round draws 10, 320 rounds, the rate a tenth after rounds 160 and 240. The conference
paper is arXiv 2406.02355; its journal version adds ImageNet-100, five baselines, and says how images are
augmented. Both use the same networks and rates for what both have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from research.papers.cells import Cell, DataSet, Federation, Method, Printed
from research.papers.methods import preset, published, untuned, with_parts
from research.papers.printed import numbers

CIFAR10 = DataSet(name="CIFAR-10", form="cifar10", place="cifar10", classes=10, shape=(3, 32, 32))
CIFAR100 = DataSet(name="CIFAR-100", form="cifar100", place="cifar100", classes=100, shape=(3, 32, 32))
IMAGENET100 = DataSet(
    name="ImageNet-100",
    form="image-folder",
    place="imagenet100",
    classes=100,
    shape=(3, 224, 224),
    holdout=0.037,
)
NORMALIZE = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
CROP_AND_FLIP: list[dict[str, Any]] = [{"kind": "random-crop", "padding": 4}, {"kind": "horizontal-flip"}]
RESIZE_AND_FLIP = [{"kind": "random-resized-crop"}, {"kind": "horizontal-flip"}]
READINGS = (
    "images of CIFAR are cropped after padding by 4 and flipped, as in the authors' code; the journal paper "
    "says RandomResizedCrop, the conference paper nothing",
    "a silo's update weighs by its samples, as in the text; the journal's Algorithm 1 has equal weights",
    "how images are normalized is not printed: by ImageNet's means and deviations, as the authors' code does "
    "with CIFAR-10",
    "Dirichlet cuts fill no silo beyond its even share (`balance`), as in the authors' code; the papers do "
    "not say",
)
SGD = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-5, "batch_size": 50}
# rates by network: vgg11 (CIFAR-10), mobilenet (CIFAR-100), resnet18_imagenet (ImageNet-100)
RATES: Mapping[str, tuple[float, float, float]] = {
    "FedETF": (0.05, 0.5, 1.0),
    "SphereFed": (0.55, 6.5, 1.0),
    "Dot-regression": (0.35, 5.0, 1.0),
    "FedDr+": (0.35, 5.0, 1.0),
}
OTHERS = (0.01, 0.1, 0.1)
NETWORKS = ("vgg11", "mobilenet", "resnet18_imagenet")


def federation(data: DataSet, drawn: str) -> Federation:
    """drawn: `s=10`, `a=0.1` or `IID`."""
    model, epochs = {
        CIFAR10.name: ({"name": "vgg11", "norm": "none"}, 10),
        CIFAR100.name: ({"name": "mobilenet"}, 3),
        IMAGENET100.name: ({"name": "resnet18_imagenet"}, 5),
    }[data.name]
    return Federation(
        data=data,
        silos=100,
        drawn=drawn,
        partition=_partition(drawn),
        job={
            "classes": data.classes if data is not IMAGENET100 else [f"class-{at:02}" for at in range(100)],
            "input_shape": list(data.shape),
            "rounds": 320,
            "fraction": 0.1,
            "model": model,
            "normalize": NORMALIZE,
            "augment": RESIZE_AND_FLIP if data is IMAGENET100 else CROP_AND_FLIP,
            "training": {
                **SGD,
                "local_epochs": epochs,
                "schedule": {"kind": "milestones", "milestones": [160, 240]},
            },
        },
    )


def _partition(drawn: str) -> dict[str, Any]:
    if drawn == "IID":
        return {"kind": "iid"}
    kind, _, value = drawn.partition("=")
    if kind == "s":
        return {"kind": "shards", "shards_per_silo": int(value)}
    return {"kind": "dirichlet", "alpha": float(value), "balance": True}


COLUMNS = {"C100": CIFAR100, "C10": CIFAR10, "IN100": IMAGENET100}


def column(words: str) -> Federation:
    """`C100 s=10`."""
    data, _, drawn = words.partition(" ")
    return federation(COLUMNS[data], drawn)


def rate(method: str, at: Federation) -> float:
    """Its tuned one."""
    return RATES.get(method, OTHERS)[NETWORKS.index(at.job["model"]["name"])]


# one global model; the presets' own values are the papers': FedNTD 1 and 3, FedProx 0.001, MOON 1 and 0.5
GLOBAL: Mapping[str, Method] = {
    "FedAvg": preset("fedavg", 0),
    "FedProx": preset("fedprox", 0),
    "SCAFFOLD": preset("scaffold", 0),
    "MOON": preset("moon", 0),
    "FedNTD": published("fedntd", 0),
    "FedExP": preset("fedexp", 0, extrapolation_epsilon=0.001),
    "FedSOL": preset("fedsol", 0, rho=2.0),
    "FedBABU": preset("fedbabu", 0),
    "SphereFed": with_parts("spherefed", 0, closing="none"),  # here without its closing calibration
    "FedETF": preset("fedetf", 0),
    "FedGELA": preset("fedgela", 0),
    "Dot-regression": preset("dot_regression", 0),
    "FedDr+": preset("feddr_plus", 0),
}
DOT_REGRESSION: dict[str, Any] = {"head": "frozen-etf", "features": "unit", "loss": "dot-regression"}
BODY = {"fine_tune_scope": "body", "fine_tune_epochs": 3}
E_EPOCHS = {"fine_tune_epochs": 3}  # E of CIFAR-100: FedDr+'s own fine-tuning trains as long as a round
# a model of each silo's own; the papers give no values for these methods, so each has its preset's
OWN: Mapping[str, Method] = {
    "Local only, CE": preset("local_only", 0),
    "Local only, CE + ETF": with_parts("local_only", 0, head="frozen-etf"),
    "Local only, DR": with_parts("local_only", 0, **DOT_REGRESSION),
    "FedPer": preset("fedper", 0),
    "Per-FedAvg": preset("per_fedavg", 0),
    "FedRep": preset("fedrep", 0),
    "Ditto": preset("ditto", 0),
    "FedAvg-FT": preset("fedavg_ft", 0, **E_EPOCHS),
    "FedBABU-FT": preset("fedbabu_ft", 0, **E_EPOCHS),
    "SphereFed-FT": with_parts("spherefed", 0, closing="fine-tuning", options=BODY),
    "FedETF-FT": with_parts("fedetf", 0, closing="fine-tuning", options=BODY),
    "FedGELA-FT": with_parts("fedgela", 0, closing="fine-tuning", options=BODY),
    "FedDr+ FT": published("feddr_plus_ft", 0),
}
BASE_OF = {"SphereFed-FT": "SphereFed", "FedETF-FT": "FedETF"} | dict.fromkeys(
    ("FedDr+ FT", "Local only, DR"), "FedDr+"
)


def global_cells(text: str) -> Iterator[Cell]:
    """One global model for each row."""
    for row, words, printed in numbers(text):
        yield cell(row, words, column(words), GLOBAL[row], printed)


def own_cells(text: str) -> Iterator[Cell]:
    """The same with models of the silos' own, on CIFAR-100."""
    for row, words, printed in numbers(text):
        found = column(f"C100 {words}")
        yield cell(row, words, found, OWN[row], printed, rate_of=BASE_OF.get(row, row))


# what fine-tuning a dot-regression model, or a FedDr+ model, comes to: conference table 8, journal table 14
STAGES: Mapping[str, Method] = {
    "Dot-regression, no FT": untuned("dot_regression", 0),
    "Dot-regression, FT with L_DR": with_parts("dot_regression", 0, closing="fine-tuning", options=BODY),
    "FedDr+, no FT": untuned("feddr_plus", 0),
    "FedDr+, FT with L_DR": published("feddr_plus_ft", 0, fine_tune_regularizer=False),
    "FedDr+, FT with L_Dr+": published("feddr_plus_ft", 0),
}
NO_STAGE = "Dot-regression, FT with L_Dr+"
NO_STAGE_REASON = "what joins the loss in fine-tuning joins it in training, too"


def stage_cells(text: str) -> Iterator[Cell]:
    """Global models under shards without fine-tuning are tested on all test samples; the rest by silo."""
    for row, words, printed in numbers(text):
        method = STAGES[row]
        if row.endswith("no FT") and words.startswith("s="):
            method = GLOBAL[row.partition(",")[0]]
        yield cell(row, words, column(f"C100 {words}"), method, printed, rate_of="FedDr+")


BASES = {
    "FedAvg": "fedavg",
    "FedBABU": "fedbabu",
    "SphereFed": "spherefed",
    "FedETF": "fedetf",
    "FedGELA": "fedgela",
    "Dot-regression": "dot_regression",
}


def grid_cells(text: str, drawn: str, *, betas: Mapping[tuple[str, str], float]) -> Iterator[Cell]:
    """beta base + (1 - beta) regularizer. betas: by row and column; where one is missing, 0.9."""
    for row, regularizer, printed in numbers(text):
        method = GLOBAL[row]
        if regularizer != "none":
            options = {"beta": betas.get((row, regularizer), 0.9)}
            if regularizer == "moon":
                options["contrast_tau"] = 0.5
            method = with_parts(
                BASES[row], 0, closing="none", regularizer=regularizer, mix="convex", options=options
            )
        yield cell(row, f"{drawn}, {regularizer}", column(f"C100 {drawn}"), method, printed)


def cell(
    row: str,
    words: str,
    at: Federation,
    method: Method,
    printed: Printed | None = None,
    *,
    rate_of: str = "",
) -> Cell:
    """With the rate of its method, or of the one that is named."""
    at_rate = replace(method, rate=rate(rate_of or row, at))
    return Cell(row=row, column=words, federation=at, method=at_rate, printed=printed)


BETAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


def with_beta(beta: float) -> Method:
    """FedDr+ with that share of dot-regression."""
    return preset("feddr_plus", 0, beta=beta)
