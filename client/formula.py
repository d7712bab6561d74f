"""A model's formula as statisticians write it, made into the outcome and terms that its signed file holds.

The library formulaic parses it, and evaluates nothing: it is columns, joined by + : * ** and parentheses.
"""

from __future__ import annotations

from collections.abc import Mapping

from client.errors import with_hint
from crypto.errors import ConfigError

OPERATORS = ("~", "+", ":", "*", "**")
POWERS = ("2", "3")  # a term has three columns at most


def with_terms(values: Mapping[str, object], *, source: str) -> Mapping[str, object]:
    """Fields of an analysis's file, where its model may have a formula. Raises ConfigError."""
    model = values.get("model")
    if not isinstance(model, Mapping) or "formula" not in model:
        return values
    source = f"{source}: model.formula"
    if both := [name for name in ("outcome", "terms") if name in model]:
        raise ConfigError(f"{source}: cannot be combined with model.{both[0]}, which it says")
    outcome, terms = _parsed(model["formula"], source)
    others = {name: value for name, value in model.items() if name != "formula"}
    return {**values, "model": {"outcome": outcome, "terms": terms, **others}}


def _parsed(formula: object, source: str) -> tuple[str, list[list[str]]]:
    """Terms of fewer columns first."""
    try:
        from formulaic.errors import FormulaParsingError
        from formulaic.parser import DefaultFormulaParser
        from formulaic.parser.algos.tokenize import tokenize
    except ModuleNotFoundError as error:
        message = f"{source}: {error.name} is not installed, which parses formulas"
        raise with_hint(
            ConfigError(message), "write outcome and terms, or pip install '.[formula]'"
        ) from error
    if not isinstance(formula, str):
        raise ConfigError(f"{source}: expected a text such as 'ill ~ age * sex'")
    try:
        before = ""
        for token in tokenize(formula):
            kind, text = token.kind.value, token.token
            is_power = before == "**" and text in POWERS
            is_known = (
                text in OPERATORS if kind == "operator" else text in "()" if kind == "context" else is_power
            )
            if kind != "name" and not is_known:
                raise ConfigError(f"{source}: expected columns joined by + : * ** 2 or 3, got {text!r}")
            before = text
        parser = DefaultFormulaParser(feature_flags={"TWOSIDED"}, include_intercept=False)
        found = parser.get_terms(formula)
    except FormulaParsingError as error:
        raise ConfigError(f"{source}: {str(error).splitlines()[0]}") from None
    sides = [
        [[factor.expr for factor in term.factors] for term in getattr(found, side, ())]
        for side in ("lhs", "rhs")
    ]
    if [len(term) for term in sides[0]] != [1]:
        raise ConfigError(f"{source}: expected one outcome before ~")
    return sides[0][0][0], sorted(sides[1], key=len)
