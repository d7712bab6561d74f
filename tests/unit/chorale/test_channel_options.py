"""What is said of a line that a proxy does not let through, and how often lines may be pinged."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from chorale.spec.settings_file import load_settings
from chorale.transport.channel_options import explain_proxy
from coordinator.settings import CoordinatorSettings
from crypto.errors import ConfigError
from silo_agent.settings import SiloSettings

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
FAILED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.8:3128: "
ANSWERED = f"{FAILED}HTTP proxy returned response code "

either_side = pytest.mark.parametrize(
    "model, example", [(SiloSettings, "silo.yaml"), (CoordinatorSettings, "coordinator.yaml")]
)


def load(model: type[BaseModel], example: str, folder: Path, **fields: object) -> BaseModel:
    path = folder / example
    path.write_text(yaml.safe_dump(yaml.safe_load((EXAMPLES / example).read_text()) | fields))
    return load_settings(model, path, "CHORALE_NONE_")


@pytest.mark.parametrize(
    ("details", "sentence"),
    [
        (f"{ANSWERED}403", "proxy out:3128 does not allow a tunnel to hub:1 (HTTP status 403)"),
        (f"{ANSWERED}407", "proxy out:3128 asks for a login (HTTP status 407), and there is none to give"),
        (f"{ANSWERED}503", "proxy out:3128 finds no way to the coordinator at hub:1 (HTTP status 503)"),
        (f"{FAILED}Connection refused", "proxy out:3128 is unreachable, and so is the coordinator at hub:1"),
        ("errors resolving out:3128", "proxy out:3128 is unreachable, and so is the coordinator at hub:1"),
    ],
)
def test_a_proxy_that_lets_nobody_through_is_named_in_one_sentence(details: str, sentence: str) -> None:
    assert explain_proxy(details, proxy="out:3128", target="hub:1") == sentence
    assert explain_proxy(details, proxy=None, target="hub:1") == ""


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


def test_a_proxy_is_given_as_host_and_port_alone(tmp_path: Path) -> None:
    for proxy in ("http://out:3128", "olga:secret@out:3128", "out"):
        with pytest.raises(ConfigError, match="proxy: expected host:port"):
            load(SiloSettings, "silo.yaml", tmp_path, proxy=proxy)
