"""docs/deploy-kubernetes.md without a cluster: what it shows exists. `make cluster-test` does it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from cli.main import COMMANDS, chorale
from tests.cluster.adaptations import OF_RELEASES
from tests.cluster.lab.lab import Lab
from tests.cluster.page import HUB, PAGE, SILOS, Step, steps
from tests.cluster.sections import AROUND
from tests.deployment import helm
from tests.host.checks import AFTER, BEFORE
from tests.host.page import MEMBERS, OFFICE, OTHERS, WHO, commands, moves, sections
from tests.host.page import PAGE as ONE_MACHINE

OPERATIONS = PAGE.with_name("operations.md")
STEPS = tuple(steps(PAGE.read_text()))
PROGRAMS = {"chorale", "helm", "kubectl", "umask", *OF_RELEASES}


def words(page: Path = PAGE) -> list[list[str]]:
    """Every command of every pipe."""
    shown = [step.text for step in steps(page.read_text()) if not step.name]
    return [shlex.split(command) for line in shown for command in line.split(" | ")]


def test_every_command_is_marked_as_one() -> None:
    assert {command[0] for command in words()} == PROGRAMS
    script = re.sub(r"^```sh\n.*?^```$", "", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert not re.findall(rf"^(?:{'|'.join(PROGRAMS)}) ", script, re.MULTILINE)


def test_every_section_is_one_that_the_cluster_test_checks() -> None:
    sections = [line.removeprefix("## ") for line in PAGE.read_text().splitlines() if line.startswith("## ")]
    assert sections == list(AROUND)


@pytest.mark.parametrize("page", [PAGE, ONE_MACHINE], ids=["kubernetes", "one machine"])
def test_every_command_of_chorale_and_each_of_its_options_exists(page: Path) -> None:
    for command in words(page):
        if "chorale" in command:
            _check_options(command[command.index("chorale") + 1 :])


def test_every_section_of_one_machines_page_is_done_by_the_machines_of_the_host_test() -> None:
    shown = sections(ONE_MACHINE.read_text())
    assert [section for section in shown if section not in OTHERS] == list(WHO)
    assert {*BEFORE, *AFTER} <= set(WHO)
    for section, text in shown.items():
        by_some = {
            command
            for group in WHO.get(section, ())
            for each in group
            for command in commands(section, text, each)
        }
        assert section in OTHERS or set(re.findall(r"^\$ (.+)$", text, re.MULTILINE)) <= by_some, section


def test_requests_and_certificates_move_and_no_key() -> None:
    moved = list(moves(ONE_MACHINE.read_text()))
    assert {Path(each.file).suffix for each in moved} == {".csr", ".crt", ".json"}
    to_authority = {(each.file, each.source[0]) for each in moved if each.target[0] == OFFICE}
    assert to_authority == {(f"{member}.csr", member) for member in MEMBERS}
    from_authority = {(Path(each.file).name, each.target) for each in moved if each.source[0] == OFFICE}
    for member in MEMBERS:
        for file in (f"{member}.crt", "authority.crt"):
            assert (file, (member, f"/etc/chorale-{member}")) in from_authority


def test_what_is_shown_for_one_hospital_is_done_by_each() -> None:
    installed = [step.text for step in STEPS if step.text.startswith("helm install")]
    assert [each.split()[2] for each in installed] == [HUB, *SILOS, *SILOS]
    policies = [step.text for step in STEPS if " silo policy " in step.text]
    assert [each.split()[2] for each in policies] == list(SILOS)


@pytest.mark.parametrize("release", [HUB, *SILOS])
def test_the_values_of_the_guide_render(release: str, tmp_path: Path) -> None:
    (file,) = (step for step in STEPS if step.name == f"{release}.yaml")
    (tmp_path / file.name).write_text(file.text)
    chart = f"chorale-{'coordinator' if release == HUB else 'silo'}"
    done = helm.run("template", release, chart, "--kube-version", "1.33.0", "--values", tmp_path / file.name)
    assert done.returncode == 0, done.stderr


def test_every_file_that_kubectl_or_helm_reads_is_shown_before() -> None:
    shown: set[str] = {"-"}
    for step in STEPS:
        read = set(re.findall(r"--filename=(\S+)|--values (\S+)", step.text)) if not step.name else set()
        assert {name for pair in read for name in pair if name} <= shown, step.text
        shown.add(step.name)


@pytest.mark.parametrize("page", [PAGE, OPERATIONS], ids=["guide", "operations"])
def test_no_private_key_goes_through_kubectl_apply(page: Path) -> None:
    """It kept a copy of the whole Secret in the annotation last-applied-configuration."""
    shown = page.read_text()
    commands = re.findall(r"^\$ (.+)$", shown, re.MULTILINE)
    made = [command for command in commands if " create " in command and " | " in command]
    assert made
    for command in made:
        what, taken = command.split(" | ")
        assert ("apply" in taken) is (" create configmap " in what), command
        assert "apply" in taken or " replace " in taken, command
    identities = [command for command in commands if " create secret " in command and "-identity" in command]
    assert identities
    for command in identities:
        assert " create secret tls " in command, command
        assert "ca.crt" not in command, "the authority's certificate has a ConfigMap of its own"
    assert not [command for command in commands if " apply " in command and command not in made]
    assert not re.findall(r"^kind: Secret$", shown, re.MULTILINE)


def test_the_authoritys_change_is_shown_with_the_config_map_of_every_namespace() -> None:
    section = OPERATIONS.read_text().partition("\n## Change the authority's key\n")[2].partition("\n## ")[0]
    commands = re.findall(r"^\$ (.+)$", section, re.MULTILINE)
    steps_shown = [each.split("rotate ")[1].split()[0] for each in commands if "authority rotate" in each]
    assert steps_shown == ["--directory", "--switch", "--finish"]
    for namespace in ("heart", "clinic-a"):
        begin = f"kubectl --namespace {namespace} create configmap heart-authority "
        assert any(each.startswith(begin) for each in commands), namespace


def _check_options(arguments: list[str]) -> None:
    command: click.Command = chorale
    while isinstance(command, click.Group):
        name, *arguments = arguments
        found = command.get_command(click.Context(command), name)
        assert found is not None, f"no command {name} in {list(COMMANDS)}"
        command = found
    known = {option for parameter in command.params for option in parameter.opts}
    given = {each for each in arguments if each.startswith("--")}
    assert given <= known, f"{command.name}: {sorted(given - known)}"


def test_the_steps_of_a_page_come_in_its_order() -> None:
    page = "\n## One\n\n`a.yaml`:\n\n```yaml\nx: 1\n```\n\n```console\n$ first\n```\n"
    page += "\n## Two\n\n```console\n$ last\n```\n"
    assert list(steps(page)) == [
        Step(section="One", name="a.yaml", text="x: 1\n"),
        Step(section="One", name="", text="first"),
        Step(section="Two", name="", text="last"),
    ]


def test_a_lab_in_use_is_left_alone(tmp_path: Path) -> None:
    """A second test ended the first one's cluster, which said "exit -9"."""
    Lab(tmp_path).reserve()
    with pytest.raises(RuntimeError, match="another process tests in this lab; wait, or set CHORALE_LAB"):
        Lab(tmp_path).reserve()
