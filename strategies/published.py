"""Presets whose paper and whose authors' code say different things: both, with their sources.

A job names one by `strategy.as_published`. Without that word a preset is Chorale's own reading, which is the
paper's wherever the paper says anything; docs/methods.md says the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from crypto.errors import ConfigError
from strategies.parts.heads import TRAINED
from strategies.parts.losses import SPHERE_MSE
from strategies.parts.regularizers import CONVEX
from strategies.presets import PRESETS, recipe_of
from strategies.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A preset as its paper prints it and as its authors' code computes it; code: None where none is known.

    of_paper, of_code: where each is written. differs: what is another thing in the code, or in the preset
    where there is no code. left_out: what the code does besides that no job can say; empty where there is
    nothing.
    """

    paper: Recipe
    code: Recipe | None = None
    of_paper: str
    of_code: str = ""
    differs: str
    left_out: str = ""


def _without_ridge(preset: str) -> Published:
    """SphereFed's closed form as Eqs. 9 and 10 print it."""
    recipe = PRESETS[preset]
    return Published(
        paper=replace(recipe, defaults={**recipe.defaults, "ridge": 0.0}),
        of_paper="Eqs. 9 and 10, and the tables; Eq. 12 and 0.C.1 try other ridges",
        differs="the preset's ridge is 0.1, the paper's 0",
    )


FEDDW, FEDCSD, FEDNTD, FEDGELA, FEDDR_PLUS_FT = (
    PRESETS[name] for name in ("feddw", "fedcsd", "fedntd", "fedgela", "feddr_plus_ft")
)

PUBLISHED: Mapping[str, Published] = MappingProxyType(
    {
        "feddw": Published(
            paper=FEDDW,
            code=replace(
                FEDDW,
                head=TRAINED,
                defaults={
                    "mu": 0.1,
                    "init_slm": "identity",
                    "slm_share": 0.5,
                    "slm_sums": "all",
                    "mu_decay_rounds": 9,
                },
            ),
            of_paper="Eqs. 4 to 11, Algorithm 1",
            of_code="liuvvvvv1/FedDW at 4e69f24: main.py, lines 465 to 529, and Updata.py, lines 629 to 636",
            differs="Omega starts as the identity, and each new one is half the old one and half the mean "
            "over all rounds so far; a class that was never summed keeps its row of the identity; mu is "
            "divided by 10 in rounds 9, 18 and so on; the head has a bias",
            left_out="the code's networks give the head features without a ReLU: take model lenet_linear",
        ),
        "fedcsd": Published(
            paper=FEDCSD,
            code=replace(
                FEDCSD,
                statistic=None,
                mix=CONVEX,
                defaults={
                    "beta": 0.5,
                    "tau": 4.0,
                    "alpha": 0.9,
                    "mask": "refined",
                    "form": "kl",
                    "grad_through_delta": True,
                    "own_prototypes": True,
                },
            ),
            of_paper="Eqs. 6 to 15, section V",
            of_code="IAMJackYan/FedCSD at 4b8baaf: train_ours.py, lines 125 to 163 and 207 to 215",
            differs="each silo compares with its own prototypes and none are summed; the mask judges the "
            "refined logits; KL in place of cross-entropy, with the gradient through delta-hat; the loss is "
            "(1 - mu) CE + mu R, here beta = 1 - mu; tau 4 and mu 0.5",
            left_out="the code's teacher stays in training mode, and its prototypes are of augmented images",
        ),
        "fedntd": Published(
            paper=FEDNTD,
            code=replace(FEDNTD, defaults={**FEDNTD.defaults, "tau_squared": True}),
            of_paper="as described in arXiv 2406.02355: cross-entropy and beta times the divergence",
            of_code="Lee-Gihun/FedNTD at be00ee5: algorithms/fedntd/criterion.py, line 42",
            differs="the divergence is multiplied by tau squared, 9 at tau 3",
        ),
        "fedgela": Published(
            paper=FEDGELA,
            code=replace(FEDGELA, defaults={"adapted_tau": 0.2}),
            of_paper="as in FedDr+'s comparison, whose papers print no temperature",
            of_code="MediaBrain-SJTU/FedGELA at b5b20d5: FedGELA.py, lines 148 and 205 to 212",
            differs="the scores are divided by a temperature of 0.2",
            left_out="the code clips the gradient of each step to an L2 norm of 20",
        ),
        **{name: _without_ridge(name) for name in PRESETS if PRESETS[name].loss is SPHERE_MSE},
        "feddr_plus_ft": Published(
            paper=replace(FEDDR_PLUS_FT, defaults={**FEDDR_PLUS_FT.defaults, "fine_tune_epochs": None}),
            code=FEDDR_PLUS_FT,
            of_paper="Algorithm 1, stage 2: E local epochs, as in a round",
            of_code="as described for jhoon-oh/FedBABU, the code base that the paper names: 5 epochs",
            differs="5 epochs of fine-tuning whatever a round has",
        ),
    }
)


def published_recipe(preset: str, as_published: str | None) -> Recipe:
    """The row of that name, as its paper or its authors' code has it. The preset's rates are of neither.

    Raises ConfigError.
    """
    recipe = recipe_of(preset)
    if as_published is None:
        return recipe
    if preset not in PUBLISHED:
        raise ConfigError(
            f"strategy.as_published: expected with {', '.join(sorted(PUBLISHED))} alone, whose paper and "
            f"authors' code differ, got it with {preset}"
        )
    both = PUBLISHED[preset]
    if as_published == "paper":
        return replace(both.paper, rates=None)
    if both.code is None:
        raise ConfigError(
            f"strategy.as_published: expected paper with {preset}, whose authors' code is not known, got code"
        )
    return replace(both.code, rates=None)
