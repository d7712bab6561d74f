"""Formulas, and what is refused of one."""

from __future__ import annotations

import re
import sys

import pytest

from client.formula import with_terms
from crypto.errors import ConfigError

JOINED = "expected columns joined by + : * ** 2 or 3, got "


@pytest.mark.parametrize(
    ("formula", "terms"),
    [
        ("ill ~ age * sex", [["age"], ["sex"], ["age", "sex"]]),
        ("ill~(a + b)**2+`chest pain`", [["a"], ["b"], ["chest pain"], ["a", "b"]]),
        ("ill ~ a:b + b + a", [["b"], ["a"], ["a", "b"]]),
    ],
)
def test_a_formula_becomes_terms(formula: str, terms: list[list[str]]) -> None:
    values = {"kind": "analysis", "model": {"formula": formula, "family": "logistic"}}
    expected = {"kind": "analysis", "model": {"outcome": "ill", "terms": terms, "family": "logistic"}}
    assert with_terms(values, source="analysis.yaml") == expected


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("ill ~ log(age)", f"{JOINED}'log(age)'"),
        ("ill ~ Q('age')", JOINED),
        ("ill ~ 'age'", JOINED),
        ("ill ~ {age + 1}", f"{JOINED}'age + 1'"),
        ("ill ~ age - 1", f"{JOINED}'-'"),
        ("ill ~ 0 + age", f"{JOINED}'0'"),
        ("ill ~ age:2", f"{JOINED}'2'"),
        ("ill ~ (age + sex)**99", f"{JOINED}'99'"),
        ("ill ~ .", f"{JOINED}'.'"),
        ("ill ~ age / sex", f"{JOINED}'/'"),
        ("ill ~ age**sex", "The right-hand argument"),
        ("ill ~ (age", "Could not find matching context marker"),
        ("ill + age ~ sex", "expected one outcome before ~"),
        ("age * sex", "expected one outcome before ~"),
        (3, "expected a text such as"),
    ],
)
def test_other_formulas_are_refused(formula: object, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"a.yaml: model.formula: {message}")):
        with_terms({"model": {"formula": formula}}, source="a.yaml")


def test_a_formula_beside_terms_is_refused() -> None:
    values = {"model": {"formula": "ill ~ age", "terms": [["age"]]}}
    with pytest.raises(ConfigError, match="formula: cannot be combined with model.terms, which it says"):
        with_terms(values, source="a.yaml")


def test_who_lacks_the_library_is_told_how_to_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "formulaic.parser", None)
    with pytest.raises(ConfigError, match="formulaic.parser is not installed") as caught:
        with_terms({"model": {"formula": "ill ~ age"}}, source="a.yaml")
    assert caught.value.__notes__ == ["write outcome and terms, or pip install '.[formula]'"]
