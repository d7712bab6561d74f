"""What makes a job's method refused at submission: parts that do not go together, and private jobs that a
part cannot be in. What each part needs, and how it stands, is said in its declaration.
"""

from __future__ import annotations

from crypto.errors import ConfigError
from strategies.recipe import Options, Recipe
from strategies.tasks.base import DeclaredTask


def check_recipe(recipe: Recipe, options: Options) -> None:
    """Raises ConfigError for parts that make no sense together, or with these options, with the reason.

    options: all of the method's, defaults included.
    """
    parts = recipe.parts
    for part in parts.values():
        for need in part.needs:
            if not need.holds(recipe):
                got = ", ".join(f"{field} {named}" for field, named in parts.items())
                raise ConfigError(f"strategy: {need.reason}; got {got}")
    for part in parts.values():
        if part.check_options is not None:
            part.check_options(recipe, options)


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
    regularizer, update = recipe.regularizer, recipe.server_update
    if classes < regularizer.min_classes:
        raise ConfigError(
            f"strategy.regularizer: {regularizer} compares the other classes and needs "
            f"{regularizer.min_classes} or more, the job has {classes}"
        )
    if update.counts_steps and optimizer != "sgd":
        raise ConfigError(
            f"training.optimizer: {update} knows the weights of gradients under sgd alone, got {optimizer}"
        )


def check_private(
    recipe: Recipe, options: Options, task: DeclaredTask, *, has_records: bool, has_sums: bool
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
        standing = part.standing
        if standing is None:
            raise ConfigError(f"strategy.{field}: it is not declared what {part} costs in a private job")
        if has_records and standing.records:
            raise ConfigError(f"strategy.{field}: {part} {standing.records} (privacy.records)")
        if has_sums and standing.sums:
            raise ConfigError(f"strategy.{field}: {part} {standing.sums} (privacy.sums)")
    for part in recipe.parts.values():
        if part.check_private is not None:
            part.check_private(options)
