"""The commands of docs/deploy-kubernetes.md: what can run here runs, the rest renders."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from chorale.tls import load_authority, load_identity
from crypto.identity import fingerprint
from crypto.roster import roster_from_file_bytes
from silo_agent.settings import IdentityFiles
from tests.deployment import helm
from tests.support import programs
from tests.support.processes import environment

GUIDE = (helm.ROOT / "docs" / "deploy-kubernetes.md").read_text()
# what needs a cluster: its objects are looked up in what the guide's values render to
CLUSTER = ("rollout", "exec", "scale", "delete", "label")


def commands(program: str) -> list[list[str]]:
    """Every `$ program ...` of the guide; a pipe's second half is left out."""
    lines = re.findall(rf"^\$ ({program} .*)$", GUIDE, re.MULTILINE)
    return [shlex.split(line.partition(" | ")[0]) for line in lines]


def files() -> dict[str, str]:
    """The files that the guide shows, by name."""
    return dict(re.findall(r"^`([\w.-]+\.yaml)`:\n\n```yaml\n(.*?)```$", GUIDE, re.MULTILINE | re.DOTALL))


def rendered(command: list[str], directory: Path) -> tuple[helm.Object, ...]:
    """What `helm install` or `helm upgrade` of the guide would send."""
    _, _, release, chart, *options = command
    assert options[:3] == ["--namespace", "heart", "--values"]
    values = directory / options[3]
    values.write_text(files()[options[3]])
    done = helm.run(
        *("template", release, helm.ROOT / chart, "--kube-version", "1.33.0", "--namespace", "heart"),
        *("--values", values),
    )
    assert done.returncode == 0, done.stderr
    return helm.parsed(done.stdout)


def test_every_command_is_of_a_program_that_is_tested_here() -> None:
    every = re.findall(r"^\$ (\S+)", GUIDE, re.MULTILINE)
    assert set(every) == {"chorale", "docker", "helm", "kubectl"}  # docker: test_images.py
    assert not re.findall(r"^(?:chorale|docker|helm|kubectl) ", GUIDE, re.MULTILINE)


def test_helm_commands_render_with_the_values_of_the_guide(tmp_path: Path) -> None:
    done = [command[1] for command in commands("helm")]
    assert done.count("install") == 2
    releases = set()
    for command in commands("helm"):
        if command[1] in ("install", "upgrade"):
            assert rendered(command, tmp_path)
            releases.add(command[2])
        else:
            assert command[1] in ("test", "uninstall")
            assert command[2] in releases
            assert command[3:] == ["--namespace", "heart"]


def test_kubectl_commands_name_objects_that_the_charts_make(tmp_path: Path) -> None:
    made = {
        f"{each['kind'].lower()}/{each['metadata']['name']}": each
        for command in commands("helm")
        if command[1] == "install"
        for each in rendered(command, tmp_path)
    }
    seen = set()
    for command in commands("kubectl"):
        text = shlex.join(command)
        verb = next(part for part in command if part in (*CLUSTER, "create"))
        seen.add(verb)
        if verb in ("rollout", "scale"):
            assert any(part in made for part in command), text
        elif verb == "exec":
            pod = command[command.index("exec") + 1]
            assert f"statefulset/{pod.removesuffix('-0')}" in made, text
            assert command[command.index("--") + 1 :][:2] == ["chorale", "silo"]
            assert command[-1] == "ID" or command[-1] == "/etc/chorale/settings/silo.yaml"
        elif verb == "delete":
            stateful = command[-1].removeprefix("state-").removesuffix("-0")
            claims = made[f"statefulset/{stateful}"]["spec"]["volumeClaimTemplates"]
            assert [claim["metadata"]["name"] for claim in claims] == ["state"]
    assert seen == {*CLUSTER, "create"}


@pytest.fixture(scope="module")
def ceremony(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder after every `chorale` command of the guide that needs no coordinator."""
    directory = tmp_path_factory.mktemp("ceremony")
    for command in commands("chorale"):
        if command[1] == "job":
            continue
        _run([sys.executable, "-m", "cli.main", *command[1:]], directory)
    return directory


def test_the_ceremony_runs_as_it_stands(ceremony: Path) -> None:
    authority = load_authority(ceremony / "authority" / "authority.crt")
    for name in ("hub", "clinic-a", "clinic-b", "clinic-c", "olga"):
        files = IdentityFiles(
            certificate=ceremony / name / f"{name}.crt", key=ceremony / name / f"{name}.key"
        )
        load_identity(files).certificate.verify_directly_issued_by(authority)
    roster = roster_from_file_bytes((ceremony / "roster.json").read_bytes())
    assert fingerprint(load_authority(ceremony / "hub" / "hub.crt")) in roster.body
    assert fingerprint(load_authority(ceremony / "clinic-a-2" / "clinic-a.crt")) in roster.body  # rotated
    assert fingerprint(load_authority(ceremony / "clinic-a" / "clinic-a.crt")) not in roster.body
    assert b"clinic-b" in roster.body
    assert b"clinic-c" not in roster.body  # revoked


def test_secrets_and_config_maps_are_made_as_the_values_name_them(ceremony: Path) -> None:
    kubectl = programs.needed("kubectl")
    made = {}
    for command in commands("kubectl"):
        if "create" not in command or "namespace" in command:
            continue
        plain = [part for part in command if not part.startswith(("--dry-run", "--output"))]
        found = yaml.safe_load(_run([kubectl, *plain[1:], "--dry-run=client", "--output=yaml"], ceremony))
        made[found["metadata"]["name"]] = set(found.get("data", {}))
    assert made == {
        "hub-identity": {"tls.crt", "tls.key", "ca.crt"},
        "clinic-a-identity": {"tls.crt", "tls.key", "ca.crt"},
        "heart-roster": {"roster.json"},
    }
    named = [yaml.safe_load(text) for text in files().values()]
    assert {each["identity"]["secretName"] for each in named} == {"hub-identity", "clinic-a-identity"}
    assert {each["roster"]["configMapName"] for each in named if "roster" in each} == {"heart-roster"}


def test_job_commands_are_those_of_the_readme() -> None:
    readme = (helm.ROOT / "README.md").read_text()
    for command in commands("chorale"):
        if command[1] == "job":
            assert f"$ {shlex.join(command)}\n" in readme  # which another test runs


def _run(command: list[str], directory: Path) -> str:
    done = subprocess.run(
        command, cwd=directory, env=environment({}), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"
    return done.stdout
