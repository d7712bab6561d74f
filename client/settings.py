"""The operator's settings file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chorale.spec.line_settings import LineSettings
from chorale.spec.settings_file import check_values, load_mapping
from client.errors import with_hint
from crypto.errors import ConfigError

ENV_PREFIX = "CHORALE_OPERATOR_"


class OperatorSettings(LineSettings):
    """Who submits jobs, and to whom. Paths are relative to the working directory."""


def operator_settings(
    config: Path | None,
    *,
    given: Mapping[str, object],
    identity: Mapping[str, object],
    options: Mapping[str, str] | None = None,
) -> OperatorSettings:
    """Settings from file and environment, with the options that were given on top.

    options: what errors call them, by field. Raises ConfigError that names what is missing.
    """
    values = load_mapping(config, ENV_PREFIX)
    values |= {name: value for name, value in given.items() if value is not None}
    chosen = {name: value for name, value in identity.items() if value is not None}
    if chosen:
        values["identity"] = {**values.get("identity", {}), **chosen}
    given_by = str(config or "options")
    try:
        return check_values(OperatorSettings, values, source=given_by, env_prefix=ENV_PREFIX, options=options)
    except ConfigError as error:
        raise error if config else with_hint(error, "--config FILE names the operator's settings") from None
