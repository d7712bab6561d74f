"""Kinds of text and numbers that several settings files share."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)

from chorale.runtime.validation_errors import MANY, ONE
from chorale.transport.wire import MAX_SILOS
from crypto.errors import ConfigError
from crypto.identity.certificates import NAME_PATTERN
from strategies.expected import got

HIGHEST_PORT = 65_535
MAX_SIMULATED_SILOS = 10_000  # of a job that is only simulated

# what is allowed, in errors and on the pages of docs/reference
ADDRESS_FORM = f"host:port with a port up to {HIGHEST_PORT}"
NAME_FORM = "1 to 63 lower-case letters, digits and inner hyphens"
ENTRY_POINT_FORM = "package.module:function"

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")
_ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def checked_address(value: object) -> str:
    """host:port as it is. Raises ValueError."""
    found = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if found is None or int(found["port"]) > HIGHEST_PORT:
        has_login = isinstance(value, str) and "@" in value  # which no log may show
        raise ValueError(f"expected {ADDRESS_FORM}, got {'one with a login' if has_login else got(value)}")
    return found.string


def checked(pattern: re.Pattern[str], form: str, value: object) -> str:
    """Text of a pattern. form: the pattern in words. Raises ValueError."""
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"expected {form}, got {got(value)}")
    return value


def in_words(form: str) -> WrapValidator:
    """What a person reads of a value that the constraints before it refuse, in place of their pattern."""

    def explained(value: object, check: ValidatorFunctionWrapHandler) -> object:
        try:
            return check(value)
        except ValidationError:
            raise ValueError(f"expected {form}, got {got(value)}") from None

    return WrapValidator(explained)


def one_or_many(value: object) -> str:
    """Which of its two forms a value has, that of one thing or a list."""
    return MANY if isinstance(value, list | tuple) else ONE


def _no_truth_value(value: object) -> object:
    if isinstance(value, bool):  # YAML's true and yes would pass for 1
        raise ValueError(f"expected a number, got {got(value)}")
    return value


def _in_utc(moment: datetime) -> datetime:
    # nor is pydantic's own zone kept: released as a process ends, it reads what datetime has freed
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"expected a time of the years 1 to 9999 in UTC, got {moment.isoformat()}") from None


Sha256 = Annotated[
    str, StringConstraints(pattern="^[0-9a-f]{64}$"), in_words("64 hexadecimal digits in lower case")
]
Nonce = Annotated[
    str, StringConstraints(pattern="^[0-9a-f]{32}$"), in_words("32 hexadecimal digits in lower case")
]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Number = Annotated[float, BeforeValidator(_no_truth_value)]  # a float that a person wrote as a number
Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]
Address = Annotated[
    str,
    BeforeValidator(checked_address),
    WithJsonSchema({"type": "string", "format": ADDRESS_FORM}),
]
Name = Annotated[  # of a federation, a member or a job
    str,
    BeforeValidator(partial(checked, NAME_PATTERN, NAME_FORM)),
    WithJsonSchema({"type": "string", "format": NAME_FORM}),
]
DataSetName = Annotated[  # and of an entry point
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"),
    in_words(
        "1 to 63 letters, digits, dots, underscores and hyphens of which the first is a letter or a digit"
    ),
]
EntryPoint = Annotated[
    str,
    BeforeValidator(partial(checked, _ENTRY_POINT, ENTRY_POINT_FORM)),
    WithJsonSchema({"type": "string", "format": ENTRY_POINT_FORM}),
]


_BLANK = re.compile("[\u115f\u1160\u2800\u3164\uffa0]")  # printable, and nothing is seen


def _on_one_line(text: str) -> str:
    """Security: blanks in a row would move what follows to the start of a terminal's next line."""
    if not text.isprintable() or text != " ".join(text.split()) or _BLANK.search(text):
        raise ValueError
    return text


OneLine = Annotated[  # what an operator says to people; also first on their screens, so it steers none
    str,
    StringConstraints(min_length=1, max_length=500),
    AfterValidator(_on_one_line),
    in_words("1 to 500 printable characters on one line, without spaces at either end or several in a row"),
]


def check_not_over(job: str, not_after: datetime, *, now: datetime) -> None:
    """Raises ConfigError for a job that no session starts for any more."""
    if not_after <= now:
        raise ConfigError(f"job {job}: not_after: {not_after.isoformat()} has passed")


def check_federation(job: str, silos: int) -> None:
    """Raises ConfigError for a job of more silos than can be sent what they need of one another."""
    if silos > MAX_SILOS:
        raise ConfigError(
            f"job {job}: silos: a federation's job has at most {MAX_SILOS}, got {silos}; `chorale simulate` "
            f"takes up to {MAX_SIMULATED_SILOS:,}"
        )


class SpecPart(BaseModel):
    """A mapping in a job file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
