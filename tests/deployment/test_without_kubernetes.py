"""Each command of kubectl in a runbook has a row for one machine. `make host-test` does them."""

from __future__ import annotations

import re

import pytest

from tests.deployment.runbooks import Runbook, runbooks
from tests.deployment.without_kubernetes import HEADING, foreign, prose, rows, translated

ROWS, RUNBOOKS = rows(), runbooks()


def missing(alarms: dict[str, Runbook]) -> list[str]:
    return [
        f"{alarm}: {len(found)} rows of {HEADING!r} for: {command}"
        for alarm, runbook in alarms.items()
        for command in foreign(runbook)
        if len(found := translated(command, ROWS)) != 1
    ]


def test_every_command_of_every_runbook_has_one_row() -> None:
    assert missing(RUNBOOKS) == []


@pytest.mark.parametrize(
    "text",
    ["```console\n$ kubectl --namespace heart get nodes\n```", "call `kubectl\n--namespace heart get nodes`"],
    ids=["shown", "within a sentence"],
)
def test_a_command_without_a_row_is_said_with_its_alarm(text: str) -> None:
    (said,) = missing({"ChoraleSiloDown": Runbook.of(text)})
    assert said.startswith("ChoraleSiloDown: 0 rows of 'Without Kubernetes' for: kubectl --namespace heart")


def test_every_row_is_of_use_to_a_runbook() -> None:
    commands = [command for runbook in RUNBOOKS.values() for command in foreign(runbook)]
    assert len(ROWS) >= len({command.split()[0] for command in commands})
    for row in ROWS:
        if row.cluster.startswith("/"):
            assert any(row.cluster in command for command in commands), row
        else:
            assert any(translated(command, [row]) for command in commands), row


def test_names_and_paths_of_a_command_are_those_of_its_machine() -> None:
    in_pod = "kubectl --namespace clinic-a exec clinic-a-chorale-silo-0 --"
    settings, state = "/etc/chorale/settings/silo.yaml", "/var/lib/chorale/state"
    assert translated(f"{in_pod} chorale silo ledger --config {settings}", ROWS) == [
        "runuser --user chorale-clinic-a -- chorale silo ledger --config /etc/chorale-clinic-a/silo.yaml"
    ]
    assert translated(f"{in_pod} du -s {state}", ROWS) == [
        "runuser --user chorale-clinic-a -- du -s /var/lib/chorale-clinic-a"
    ]


def test_sentences_are_for_both_worlds() -> None:
    only_in_a_cluster = re.compile(r"\b(?:restarts? the pod|the Secret|ConfigMap|volume)\b")
    said = {alarm: only_in_a_cluster.findall(prose(runbook)) for alarm, runbook in RUNBOOKS.items()}
    assert {alarm: words for alarm, words in said.items() if words} == {}
