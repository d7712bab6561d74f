"""The images' health check, against probes that are there, not well, or gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from chorale.observability.health_check import USAGE, failure, main
from chorale.observability.probes import ProbeServer


@pytest.fixture
def live() -> dict[str, bool]:
    return {"is": True}


@pytest.fixture
def server(live: dict[str, bool], tmp_path: Path) -> Iterator[ProbeServer]:
    made = ProbeServer(
        "127.0.0.1", 0, registry=CollectorRegistry(), is_live=lambda: live["is"], is_ready=lambda: False
    )
    made.start()
    write(tmp_path, f"127.0.0.1:{made.port}")
    yield made
    made.stop()


def write(directory: Path, address: object) -> None:
    (directory / "endpoint.json").write_text(json.dumps({"metrics": address}))


@pytest.mark.usefixtures("server")
def test_health_check_follows_livez_and_not_readyz(
    live: dict[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # a site's proxy is not asked
    assert main([str(tmp_path)]) == 0
    live["is"] = False
    assert main([str(tmp_path)]) == 1
    assert str(failure(tmp_path)).endswith("/livez answered 503")


def test_health_check_follows_an_address_for_all_interfaces(server: ProbeServer, tmp_path: Path) -> None:
    write(tmp_path, f"0.0.0.0:{server.port}")  # as the charts bind it
    assert main([str(tmp_path)]) == 0


def test_health_check_fails_when_nothing_listens(server: ProbeServer, tmp_path: Path) -> None:
    server.stop()
    assert "ConnectionRefusedError" in str(failure(tmp_path))


@pytest.mark.parametrize(
    "text, reason",
    [
        ('{"metrics": null}', "names no address"),
        ("{}", "KeyError"),
        ("[]", "TypeError"),
        ("{", "JSONDecodeError"),
        ('{"metrics": "127.0.0.1:port"}', "InvalidURL"),
        ('{"metrics": 7}', "names no address"),
    ],
)
def test_health_check_fails_on_an_endpoint_that_names_nothing(
    tmp_path: Path, text: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "endpoint.json").write_text(text)
    assert main([str(tmp_path)]) == 1
    assert reason in capsys.readouterr().err


def test_health_check_fails_before_there_is_an_endpoint(tmp_path: Path) -> None:
    assert "FileNotFoundError" in str(failure(tmp_path))
    assert main([]) == USAGE
