"""What makes a job's method refused at submission: parts that do not go together, and private jobs that a
part cannot be in. What each part needs, and how it stands, is in its declaration.
"""

from __future__ import annotations

from typing import Protocol

from crypto.errors import ConfigError
from strategies.base import options_of
from strategies.parts.csd import MOST_ALPHA_OF_DRAWN_ROUNDS, TeacherOptions
from strategies.parts.regularizers import NO_REGULARIZER
from strategies.parts.statistics.feature_prototypes import FEATURE_PROTOTYPE_SUMS
from strategies.parts.statistics.logit_prototypes import LOGIT_PROTOTYPES
from strategies.recipe import Options, Recipe, Regularizer
from strategies.tasks.base import DeclaredTask


def check_recipe(recipe: Recipe, options: Options, *, allow_unusual: bool = False) -> tuple[str, ...]:
    """The rules that the recipe breaks and that `allow_unusual` passes over, each with its reason.

    options: all of the method's, defaults included. Raises ConfigError for any other part that makes no sense
    with the rest, or with these options.
    """
    _check_second(recipe)
    parts, passed_over = recipe.parts, list[str]()
    for part in parts.values():
        for need in part.needs:
            if need.holds(recipe):
                continue
            if allow_unusual and need.is_advice:
                passed_over.append(need.reason)
                continue
            got = ", ".join(f"{field} {named}" for field, named in parts.items())
            hint = "; allow_unusual: true passes over this rule" if need.is_advice else ""
            raise ConfigError(f"strategy: {need.reason}; got {got}{hint}")
    for part in parts.values():
        if part.check_options is not None:
            part.check_options(recipe, options)
    return tuple(dict.fromkeys(passed_over))


def _check_second(recipe: Recipe) -> None:
    """Raises ConfigError for a second regularizer that is none, or of which a job could not say anything
    that is not said of the first, too."""
    first, second = recipe.regularizers[0], recipe.second_regularizer
    if second is None:
        return
    if first is NO_REGULARIZER or second is first:
        raise ConfigError(
            f"strategy.second_regularizer: {second} needs another one as regularizer, got {first}"
        )
    both = sorted(first.options.model_fields.keys() & second.options.model_fields.keys())
    if both:
        raise ConfigError(
            f"strategy.second_regularizer: {first} and {second} share the option {both[0]}, so a job cannot "
            "set it for each"
        )


def check_task(recipe: Recipe, options: Options, task: DeclaredTask) -> None:
    """Raises ConfigError for a part that needs one class a sample where the task has none."""
    if task.has_classes:
        return
    for field, part in recipe.parts.items():
        if part.needs_classes:
            raise ConfigError(
                f"strategy.{field}: {part} is computed by the classes of samples, and task {task.word} has "
                "none: it needs task classification"
            )


def check_training(recipe: Recipe, *, classes: int, optimizer: str) -> None:
    """Raises ConfigError for a recipe that has nothing to do with so few classes, or whose server update
    needs another local optimizer than the job's."""
    update = recipe.server_update
    for field, part in recipe.parts.items():
        if isinstance(part, Regularizer) and classes < part.min_classes:
            raise ConfigError(
                f"strategy.{field}: {part} compares the other classes and needs {part.min_classes} or more, "
                f"the job has {classes}"
            )
    if update.counts_steps and optimizer != "sgd":
        raise ConfigError(
            f"training.optimizer: {update} knows the weights of gradients under sgd alone, got {optimizer}"
        )


def check_adapters(recipe: Recipe, *, has_adapters: bool, is_private: bool) -> None:
    """Raises ConfigError for a statistic over a body whose own weights nobody trains.

    Security: with a small `alpha` adapters move nothing, at any learning rate (docs/threat-model.md).
    """
    if has_adapters and recipe.statistic is not None and not is_private:
        raise ConfigError(
            f"adapters: not allowed with statistic {recipe.statistic}: a body that hardly moves gives the "
            "same features in every round, and sums over several sets of silos would tell each silo's"
        )


def check_models(recipe: Recipe, options: Options, *, draws_rounds: bool, has_layers: bool) -> None:
    """Raises ConfigError where what silos sum hardly follows from a model that moves, and would show silo
    by silo.

    draws_rounds: whether a round names fewer silos than the job has. has_layers: whether the features are
    more than the inputs. Source: docs/threat-model.md, features by class.
    """
    own, statistic = recipe.personalization, recipe.statistic
    if own.shares_nothing and statistic is not None and draws_rounds:
        raise ConfigError(
            f"fraction: expected 1 with personalization {own} and statistic {statistic}: silos answer with "
            "models of their own, nearly the same in every round, and many draws would tell each silo's sums"
        )
    alpha = options_of(TeacherOptions, options).alpha
    if statistic is LOGIT_PROTOTYPES and draws_rounds and alpha > MOST_ALPHA_OF_DRAWN_ROUNDS:
        raise ConfigError(
            f"strategy.options.alpha: expected at most {MOST_ALPHA_OF_DRAWN_ROUNDS:g} with statistic "
            f"{statistic} and fraction below 1, got {alpha:g}: the teacher would hardly move, and many draws "
            "would tell each silo's sums"
        )
    if statistic is FEATURE_PROTOTYPE_SUMS and not has_layers:
        raise ConfigError(
            f"model.hidden: expected a hidden layer with statistic {statistic}: without one the features are "
            "the inputs, and sums of the records themselves would leave"
        )


def check_trains_head(recipe: Recipe, *, has_adapters: bool, is_private: bool) -> None:
    """Raises ConfigError where a job cannot train the last linear layer alone."""
    if recipe.head.is_frozen:
        raise ConfigError(f"trains: head is all that is trained, and {recipe.head} leaves it out of the sum")
    if recipe.personalization.own is not None:
        raise ConfigError(
            f"trains: head is all that is trained, and personalization {recipe.personalization} trains a "
            "part of each silo's own"
        )
    if recipe.statistic is not None and not is_private:
        # Security: at any rate a body that stays gives the same features of the same records in every round,
        # and sums over other silos are equations for each silo's own (docs/threat-model.md)
        raise ConfigError(
            f"trains: expected all with statistic {recipe.statistic}, got head: features of a body that "
            "nobody trains are the same in every round, and sums over several sets of silos would tell each "
            "silo's"
        )
    if has_adapters:
        raise ConfigError(
            "trains: adapters are trained beside the head: expected all with adapters, got head"
        )


class StepTraining(Protocol):
    """What a job says of its steps (chorale/spec/strategy_spec.py, TrainingSpec)."""

    @property
    def local_epochs(self) -> int | None: ...

    @property
    def optimizer(self) -> str: ...

    @property
    def momentum(self) -> float: ...

    @property
    def has_exact_rates(self) -> bool: ...


def check_steps(recipe: Recipe, training: StepTraining, *, update_bits: int) -> None:
    """Raises ConfigError for what a job of steps, which the server takes, cannot have."""
    if training.local_epochs != 1:
        got = "local_steps" if training.local_epochs is None else training.local_epochs
        raise ConfigError(f"training.local_epochs: a step sums one gradient: expected 1, got {got}")
    if not training.has_exact_rates:
        raise ConfigError(
            "training.schedule.kind: silos compute the server's step to the last bit, and machines differ in "
            "that of a cosine: expected constant, step or milestones"
        )
    if update_bits == 16:
        raise ConfigError("update_bits: noise in the sum needs 32 or 64 bits a number, got 16")
    update = recipe.server_update
    if update.is_optimizer and (training.optimizer != "sgd" or training.momentum != 0.0):
        raise ConfigError(
            f"training.optimizer: {update} is the optimizer of the server's steps: expected sgd with "
            f"momentum 0, got {training.optimizer} with momentum {training.momentum:g}"
        )


def check_private(
    recipe: Recipe,
    options: Options,
    task: DeclaredTask,
    *,
    has_records: bool,
    has_shared_noise: bool,
    has_sums: bool,
) -> None:
    """Raises ConfigError for a method or task that a private job cannot protect, with the reason.

    options: all of the method's, defaults included.
    """
    if not task.is_mean:
        raise ConfigError(
            f"task.name: {task.word} judges records together (is_mean is False), so one record changes the "
            "gradients and losses of others and no clip bounds it: a private job needs a loss that is a mean "
            "over records"
        )
    for field, part in recipe.parts.items():
        under_privacy = part.under_privacy
        if under_privacy is None:
            raise ConfigError(f"strategy.{field}: it is not declared what {part} costs in a private job")
        if has_records and under_privacy.records:
            raise ConfigError(f"strategy.{field}: {part} {under_privacy.records} (privacy.records)")
        if has_shared_noise and under_privacy.shared:
            raise ConfigError(f"strategy.{field}: {part} {under_privacy.shared} (privacy.records.noise: sum)")
        if has_sums and under_privacy.sums:
            raise ConfigError(f"strategy.{field}: {part} {under_privacy.sums} (privacy.sums)")
    for part in recipe.parts.values():
        if part.check_private is not None:
            part.check_private(options)
