"""Next-token language modelling: perplexity and token accuracy.

A record is one sequence of a fixed length. The data set gives at each place the token that follows, the
inputs shifted by one, or -1 where nothing is predicted: behind the end, or in a prompt.
The loss of a record is the mean over its predicted places, so a record of few tokens weighs as much as a
full one. Perplexity weighs tokens alike: a record adds what its tokens lose over its length, each at most
MAX_TOKEN_LOSS. Leaks the two over the silos' hold-outs, the loss, how many tokens are predicted and the
total size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from crypto.errors import ConfigError
from strategies.base import Array, PartOptions
from strategies.tasks.base import LOSS_SUM, TESTED, DeclaredTask, Ratio, Sum, Target, TaskSizes, share

MAX_TOKEN_LOSS = 20.0  # nats: chance among 485 million tokens
NOTHING = -1  # in place of a token, where nothing is predicted
TOKENS = Sum(name="tokens")  # the share of a record's places
TOKENS_RIGHT = Sum(name="tokens_right")
TOKEN_LOSS = Sum(name="token_loss", per_record=MAX_TOKEN_LOSS)


class NextToken(DeclaredTask):
    """Targets: int64, as long as the input. Outputs: (length, classes) logits; `classes` counts the
    vocabulary."""

    word = "next-token"
    main = "perplexity"
    least_classes: ClassVar[int | None] = 2
    has_tokens = True

    def __init__(
        self, sizes: TaskSizes, options: PartOptions | None = None, metrics: tuple[str, ...] = ()
    ) -> None:
        super().__init__(sizes, options, metrics)
        if len(sizes.input_shape) != 1:
            raise ConfigError(f"input_shape: expected (length,) for task next-token, got {sizes.input_shape}")

    @property
    def target(self) -> Target:
        return Target(shape=self.sizes.input_shape, is_whole=True, low=NOTHING, high=self.sizes.classes - 1)

    @property
    def round_sums(self) -> tuple[Sum, ...]:
        return (TOKENS, TOKENS_RIGHT, TOKEN_LOSS, TESTED, LOSS_SUM)

    @property
    def ratios(self) -> Mapping[str, Ratio]:
        """perplexity: e to the mean loss of a token."""
        return {
            "perplexity": Ratio(above="token_loss", below="tokens", high=MAX_TOKEN_LOSS, shown=math.exp),
            "token_accuracy": Ratio(above="tokens_right", below="tokens"),
        }

    def score(self, sums: Mapping[str, Array]) -> float:
        """Token accuracy."""
        accuracy = share(sums["tokens_right"], float(sums["tokens"]))
        return 0.0 if math.isnan(accuracy) else accuracy
