"""What may be part of a private job, part by part, and why the rest may not.

Two ways of protecting the trained update are told apart. *records*: DP-SGD, one record moves the clipped
sum of a batch by at most the clip. *sums*: the silo's whole update is clipped and noised in the ring.
A part stands here or it is refused: nobody has said what it would cost. docs/privacy.md has the same table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from crypto.errors import ConfigError
from strategies.parts.logit_prototypes import PrototypeOptions
from strategies.recipe import (
    Closing,
    Features,
    Head,
    Loss,
    Mix,
    OptionValue,
    Own,
    Recipe,
    Regularizer,
    ServerUpdate,
    StatisticName,
    options_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Why a part may be in a private job, or why not. records, sums: the refusal's sentence, "" if it may.

    Sentences read on after the part's name.
    """

    why: str = ""
    records: str = ""
    sums: str = ""


_NO_DATA = Standing(why="says how the model is built; no data")
_PER_SAMPLE = Standing(why="a mean of losses of single samples")
_GLOBAL_TEACHER = Standing(
    why="compares each sample with the received model, which is post-processing of sums paid for before"
)
_WEIGHTS_ALONE = "of the weights alone, so its exact gradient is added after clipping and noise"
_COUNTS = (
    "weighs every sample by the silo's class counts, so one record changes the gradients of all the others "
    "and no clip of single gradients bounds it"
)
_BY_COUNTS = Standing(why="under sums the whole update is clipped", records=_COUNTS)
_SERVER = Standing(why="post-processing of the summed delta")
_FINE_TUNED = (
    "fine-tunes a model for each silo without any noise, so one record may change all of its answers and the "
    "silo's accuracy from 0 to 1"
)
_NOT_NOISED = (
    "trains parameters of each silo's own without any noise and sums how good they are, so one record may "
    "change the silo's accuracy from 0 to 1"
)
_OWN = Standing(records=_NOT_NOISED, sums=_NOT_NOISED)
_CONTROLS = (
    "keeps a silo's gradients without noise between rounds and sums how they change, which no clip bounds"
)
_PERSONAL = Standing(records=_FINE_TUNED, sums=_FINE_TUNED)

# by field of the recipe and part: two fields have parts of the same name
STANDINGS: Mapping[tuple[str, str], Standing] = MappingProxyType(
    {
        **{("head", part): _NO_DATA for part in Head},
        **{("features", part): _NO_DATA for part in Features},
        **{("mix", part): _NO_DATA for part in Mix},
        ("loss", Loss.CROSS_ENTROPY): _PER_SAMPLE,
        ("loss", Loss.SPHERE_MSE): _PER_SAMPLE,
        ("loss", Loss.DOT_REGRESSION): _PER_SAMPLE,
        ("loss", Loss.BALANCED_SOFTMAX): _BY_COUNTS,
        ("loss", Loss.CLIENT_ADAPTED): _BY_COUNTS,
        ("regularizer", Regularizer.NONE): Standing(why="adds nothing"),
        ("regularizer", Regularizer.PROX): Standing(why=_WEIGHTS_ALONE),
        ("regularizer", Regularizer.KD): _GLOBAL_TEACHER,
        ("regularizer", Regularizer.NTD): _GLOBAL_TEACHER,
        ("regularizer", Regularizer.LD): _GLOBAL_TEACHER,
        ("regularizer", Regularizer.FD): _GLOBAL_TEACHER,
        ("regularizer", Regularizer.MOON): Standing(
            why="compares each sample with the received model and with the one that the silo sent last, "
            "which came out of DP-SGD; under sums the whole update is clipped",
        ),
        ("regularizer", Regularizer.CSD): Standing(
            why="compares each sample with a mean of global models and with noised prototypes, both "
            "post-processing of sums paid for before"
        ),
        ("regularizer", Regularizer.SOFT_LABELS): Standing(why=_WEIGHTS_ALONE),
        ("server_update", ServerUpdate.WEIGHTED_MEAN): _SERVER,
        ("server_update", ServerUpdate.FEDOPT): _SERVER,
        ("server_update", ServerUpdate.SCAFFOLD): Standing(records=_CONTROLS, sums=_CONTROLS),
        ("server_update", ServerUpdate.FEDEXP): Standing(
            why="under records the update's length is post-processing of DP-SGD",
            sums="sums the length of the silo's update beside the update, which the clip of the update does "
            "not bound and no noise covers",
        ),
        ("server_update", ServerUpdate.FEDNOVA): Standing(
            why="under records the number of steps is the job's own and tells nothing",
            sums="sums the silo's number of steps, which tells how many samples it holds",
        ),
        ("statistic", StatisticName.SOFT_LABELS): Standing(
            why="under records the trained model is post-processing of DP-SGD, and one record moves the sums "
            "of its answers by 1",
            sums="sums what the silo's own trained model answers, and no clip bounds what one record, or one "
            "silo, changes of that",
        ),
        ("statistic", StatisticName.LOGIT_PROTOTYPES): Standing(
            why="sums answers of a global model, clipped to logit_clip"
        ),
        ("own", Own.NONE): Standing(why="adds nothing"),
        **{("own", part): _OWN for part in Own if part is not Own.NONE},
        ("closing", Closing.NONE): Standing(why="adds nothing"),
        ("closing", Closing.FFC): Standing(why="sums products of unit features of the global model"),
        ("closing", Closing.PERSONAL): _PERSONAL,
        ("closing", Closing.FFC_PERSONAL): _PERSONAL,
    }
)


def check_private(
    recipe: Recipe, options: Mapping[str, OptionValue], *, has_records: bool, has_sums: bool
) -> None:
    """Raises ConfigError for a method that a private job cannot protect, with the reason.

    options: all of the method's, defaults included.
    """
    for field, part in parts_of(recipe):
        standing = STANDINGS.get((field, part))
        if standing is None:
            raise ConfigError(f"strategy.{field}: nobody has said what {part} costs in a private job")
        if has_records and standing.records:
            raise ConfigError(f"strategy.{field}: {part} {standing.records} (privacy.records)")
        if has_sums and standing.sums:
            raise ConfigError(f"strategy.{field}: {part} {standing.sums} (privacy.sums)")
    has_logits = recipe.statistic is StatisticName.LOGIT_PROTOTYPES
    if has_logits and options_of(PrototypeOptions, options).logit_clip is None:
        raise ConfigError(
            "strategy.options.logit_clip: a private job needs it, because logits have no bound of their own"
        )


def parts_of(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Field and part of everything that the recipe names."""
    yield "head", recipe.head
    yield "features", recipe.features
    yield "loss", recipe.loss
    yield "regularizer", recipe.regularizer
    yield "mix", recipe.mix
    yield "server_update", recipe.server_update
    if recipe.statistic is not None:
        yield "statistic", recipe.statistic
    yield "own", recipe.own
    yield "closing", recipe.closing
