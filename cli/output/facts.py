"""`--json`: the facts of a command as one JSON object on stdout, for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import click

json_option = click.option("--json", "is_json", is_flag=True, help="The same as one JSON object.")


def print_json(facts: Mapping[str, Any]) -> None:
    """Numbers that JSON does not have are null."""
    click.echo(json.dumps(_finite(facts), indent=1, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
