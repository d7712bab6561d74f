"""What a field of a file expects, in the words of a person who writes YAML."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from difflib import get_close_matches

from pydantic_core import ErrorDetails

MAX_SHOWN = 60  # characters of a wrong value that are shown again
MAX_ALIKE = 2  # words that are offered for a misspelled one

EXPECTED = {  # by kind of error; {…} are limits
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "fields and values",
    "model_type": "fields and values",
    "model_attributes_type": "fields and values",
    "path_type": "a path",
    "datetime_type": "a time such as 2027-01-31T00:00:00Z",
    "datetime_parsing": "a time such as 2027-01-31T00:00:00Z",
    "datetime_from_date_parsing": "a time such as 2027-01-31T00:00:00Z",
    "timezone_aware": "a time with its zone, such as 2027-01-31T00:00:00Z",
    "too_short": "at least {min_length} entries",
    "too_long": "at most {max_length} entries",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "text like {pattern}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "union_tag_invalid": "one of {expected_tags}",
    "literal_error": "{expected}",
    "enum": "{expected}",
}


def wrong_value(detail: ErrorDetails) -> str:
    """What was expected and what was given, for one error of pydantic; without the field's name."""
    if detail["type"] in ("missing", "union_tag_not_found"):
        return "a value is required"
    context = detail.get("ctx", {})
    if detail["type"] in ("value_error", "assertion_error"):
        return str(context.get("error", detail["msg"]))
    limits = {
        name: int(limit) if isinstance(limit, float) and limit.is_integer() else limit
        for name, limit in context.items()
    }
    expected = EXPECTED.get(detail["type"])
    if expected is None:
        return f"{detail['msg'][0].lower()}{detail['msg'][1:]}, got {got(detail['input'])}"
    given = (
        context["actual_length"] if "actual_length" in context else got(context.get("tag", detail["input"]))
    )
    return f"expected {expected.format(**limits)}, got {given}"


def got(value: object) -> str:
    """A wrong value, to be named after what was expected."""
    if isinstance(value, date):  # YAML makes one of an unquoted 2027-01-31
        return value.isoformat()
    if not isinstance(value, str | int | float | bool | None):
        return kind_of(value)
    if isinstance(value, bool):
        return str(value).lower()  # as YAML writes it, which reads yes as true
    return "nothing" if value is None else repr(value)[:MAX_SHOWN]


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """The known words that another may be a misspelling of, in brackets; else empty."""
    word = word.lower()
    alike = [word] if word in known else get_close_matches(word, known, MAX_ALIKE)
    return meant(alike)


def meant(words: Sequence[str]) -> str:
    """In brackets; empty where there are none."""
    return f" (did you mean {' or '.join(words)}?)" if words else ""


def kind_of(value: object) -> str:
    if value is None:
        return "nothing"
    names = {"dict": "fields and values", "list": "a list", "str": "text", "int": "a number"}
    return names.get(type(value).__name__, type(value).__name__)
