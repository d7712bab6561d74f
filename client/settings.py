"""The operator's settings file."""

from __future__ import annotations

from pathlib import Path

from chorale.spec.line_settings import LineSettings
from chorale.spec.settings_file import check_values, load_mapping
from client.errors import with_hint
from crypto.errors import ConfigError

ENV_PREFIX = "CHORALE_OPERATOR_"


class OperatorSettings(LineSettings):
    """Who submits jobs, and to whom. Paths are relative to the working directory."""


def operator_settings(config: Path | None) -> OperatorSettings:
    """Settings from file and environment. Raises ConfigError that names what is missing."""
    values = load_mapping(config, ENV_PREFIX)
    source = str(config or "environment")
    try:
        return check_values(OperatorSettings, values, source=source, env_prefix=ENV_PREFIX)
    except ConfigError as error:
        raise error if config else with_hint(error, "--config FILE names the operator's settings") from None
