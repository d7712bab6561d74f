"""A silo behind a real HTTP proxy: a whole job through CONNECT, logins, and a sentence where it is refused.

The coordinator has a name that the proxy alone knows, so there is no other way to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from client.settings import ENV_PREFIX as OPERATOR_PREFIX
from silo_agent.settings import ENV_PREFIX
from tests.deployment import squid
from tests.deployment.squid import Squid
from tests.support.federation import LocalFederation
from tests.support.history import check_finished
from tests.support.processes import Record, run_cli

HOST = "hub.institution.invalid"
VALUES = 400_000  # 1.6 MB a silo
SILOS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    federation: LocalFederation
    squid: Squid
    coordinator: str  # as the silos dial it

    def start_silo(self, name: str, *, coordinator: str = "", **env: str) -> None:
        """Through the proxy, as its environment says, in the way that a chart would set it."""
        self.federation.start_silo(name, address=coordinator or self.coordinator, env=env)

    def jobs(self) -> str:
        """What the operator sees of the coordinator through the proxy."""
        through = {
            "COORDINATOR": self.coordinator,
            "COORDINATOR_NAME": "localhost",
            "PROXY": self.squid.address,
        }
        env = {f"{OPERATOR_PREFIX}{name}": value for name, value in through.items()}
        done = run_cli("job", "list", "--config", self.federation.folder / "operator.yaml", extra_env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def wait_refused(self, name: str) -> str:
        """Why the silo has no connection."""
        silo = self.federation.services[name]
        refusal: Record = silo.wait_for(lambda record: record["event"] == "not connected")
        return str(refusal["reason"])


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A coordinator and a proxy that opens tunnels to it. No silo yet."""
    with LocalFederation(folder=tmp_path, silos=SILOS, silo={"coordinator_name": "localhost"}) as federation:
        federation.start_coordinator()
        port = int(federation.endpoint["grpc"].rpartition(":")[2])
        with squid.running(host=HOST, tunnel_port=port) as proxy:
            yield Scene(federation=federation, squid=proxy, coordinator=f"{HOST}:{port}")


UNKNOWN_HOST = f"no address is known for {HOST}, the coordinator's host name"


def test_a_job_runs_through_the_proxy_and_there_is_no_other_way(scene: Scene) -> None:
    proxy = f"http://{scene.squid.address}"
    # the setting alone counts: with all of gRPC's own variables and without it there is no way
    scene.start_silo("silo-0", grpc_proxy=proxy, https_proxy=proxy, http_proxy=proxy)
    assert scene.wait_refused("silo-0") == UNKNOWN_HOST
    scene.federation.services["silo-0"].kill()
    assert scene.squid.answers() == []

    scene.federation.silo["proxy"] = scene.squid.address
    for name in scene.federation.names:
        scene.start_silo(name, no_proxy=HOST)
    job_id = scene.federation.submit(values=VALUES, rounds=1)
    history = check_finished(scene.federation, job_id, rounds=1)

    assert history.cohorts() == [scene.federation.names]
    assert job_id in scene.jobs(), "the operator goes through the proxy, too"
    for name in scene.federation.names:
        assert scene.federation.services[name].stop() == 0
    answers = scene.squid.answers()
    assert {(answer.target, answer.status) for answer in answers} == {(scene.coordinator, 200)}
    assert len(answers) == SILOS + 1
    with_model = [answer for answer in answers if answer.size_bytes > VALUES * 4]
    assert len(with_model) == SILOS, "the model did not pass the proxy"


def test_a_proxy_that_refuses_or_is_gone_is_named_in_one_sentence(scene: Scene) -> None:
    elsewhere = f"{HOST}:9"
    variable = f"{ENV_PREFIX}PROXY"
    scene.start_silo("silo-0", coordinator=elsewhere, **{variable: scene.squid.address})
    assert scene.wait_refused("silo-0") == (
        f"proxy {scene.squid.address} does not allow a tunnel to {elsewhere} (HTTP status 403)"
    )
    assert {(answer.target, answer.status) for answer in scene.squid.answers()} == {(elsewhere, 403)}
    scene.start_silo(
        "silo-1",
        coordinator=f"unknown.invalid:{scene.coordinator.rpartition(':')[2]}",
        **{variable: scene.squid.address},
    )
    assert "finds no way to the coordinator at unknown.invalid" in scene.wait_refused("silo-1")

    scene.squid.stop()
    scene.start_silo("silo-2", **{variable: scene.squid.address})
    assert scene.wait_refused("silo-2") == (
        f"proxy {scene.squid.address} is unreachable, and so is the coordinator at {scene.coordinator}"
    )


LOGIN = ("olga", "p%40:ss w/rd")


@pytest.mark.gate  # ten seconds
def test_a_proxy_with_a_login_is_passed_with_the_right_one_alone(tmp_path: Path) -> None:
    """No line of a log shows the password, and each wrong login is one sentence."""
    with LocalFederation(folder=tmp_path, silos=SILOS, silo={"coordinator_name": "localhost"}) as federation:
        federation.start_coordinator()
        port = int(federation.endpoint["grpc"].rpartition(":")[2])
        with squid.running(host=HOST, tunnel_port=port, login=LOGIN) as proxy:
            scene = Scene(federation=federation, squid=proxy, coordinator=f"{HOST}:{port}")
            federation.silo["proxy"] = proxy.address
            scene.start_silo("silo-0")
            asks = (
                f"proxy {proxy.address} asks for a login (HTTP status 407), and proxy_credentials names none"
            )
            assert scene.wait_refused("silo-0") == asks
            wrong = login_file(tmp_path / "wrong", LOGIN[0], "guessed")
            scene.start_silo("silo-1", **{f"{ENV_PREFIX}PROXY_CREDENTIALS": str(wrong)})
            refuses = (
                f"proxy {proxy.address} does not accept the login of proxy_credentials (HTTP status 407)"
            )
            assert scene.wait_refused("silo-1") == refuses
            assert all(answer.status == 407 for answer in proxy.answers())

            federation.silo["proxy_credentials"] = str(login_file(tmp_path / "right", *LOGIN))
            for name in federation.names:
                if name in federation.services:
                    federation.services[name].kill()
                scene.start_silo(name)
            job_id = federation.submit(rounds=1)
            assert check_finished(federation, job_id, rounds=1).cohorts() == [federation.names]
            logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
            assert proxy.address in logs
            assert not [secret for secret in (LOGIN[1], "guessed", "p%2540") if secret in logs]


def test_a_coordinator_of_no_proxy_is_dialed_past_it(scene: Scene) -> None:
    """The proxy alone knows its name: that the name is unknown shows that nobody asked the proxy."""
    past = {f"{ENV_PREFIX}PROXY": scene.squid.address, f"{ENV_PREFIX}NO_PROXY": "[.institution.invalid]"}
    scene.start_silo("silo-0", **past)
    assert scene.wait_refused("silo-0") == UNKNOWN_HOST
    assert scene.squid.answers() == []


def login_file(path: Path, username: str, password: str) -> Path:
    path.write_text(f"{username}:{password}\n")
    path.chmod(0o600)
    return path
