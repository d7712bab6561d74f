"""How often lines may be pinged."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from chorale.spec.settings_file import load_settings
from coordinator.settings import CoordinatorSettings
from crypto.errors import ConfigError
from silo_agent.settings import SiloSettings

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"

either_side = pytest.mark.parametrize(
    "model, example", [(SiloSettings, "silo.yaml"), (CoordinatorSettings, "coordinator.yaml")]
)


def load(model: type[BaseModel], example: str, folder: Path, **fields: object) -> BaseModel:
    path = folder / example
    path.write_text(yaml.safe_dump(yaml.safe_load((EXAMPLES / example).read_text()) | fields))
    return load_settings(model, path, "CHORALE_NONE_")


@either_side
@pytest.mark.parametrize("seconds, sentence", [(0.99, "at least 1"), (3601, "at most 3600")])
def test_keepalive_outside_its_bounds_is_refused_with_a_sentence(
    model: type[BaseModel], example: str, seconds: float, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"keepalive_seconds: expected {sentence}, got {seconds}"):
        load(model, example, tmp_path, keepalive_seconds=seconds)


@either_side
@pytest.mark.parametrize("seconds", [1, 3600])
def test_keepalive_at_its_bounds_is_taken(
    model: type[BaseModel], example: str, seconds: float, tmp_path: Path
) -> None:
    assert (
        load(model, example, tmp_path, keepalive_seconds=seconds).model_dump()["keepalive_seconds"] == seconds
    )
