"""The table of docs/operations.md that says what a command of kubectl or helm is on one machine."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.deployment.runbooks import PAGE, Runbook

HEADING = "Without Kubernetes"
FOREIGN = ("kubectl ", "helm ")
# such as NAME; the same word is the same text wherever it stands
_PLACEHOLDER = re.compile(r"[A-Z]{2,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A command of each world; or a path, in commands of every row."""

    cluster: str
    machine: str

    def translated(self, command: str) -> str | None:
        """None for a command that is not this row's."""
        pattern, known = "", set[str]()
        for part in re.split(rf"({_PLACEHOLDER.pattern}| \.\.\.)", self.cluster):
            if part == " ...":
                pattern += "( .+)?"
            elif not _PLACEHOLDER.fullmatch(part):
                pattern += re.escape(part)
            else:
                pattern += rf"(?P={part})" if part in known else rf"(?P<{part}>.+?)"
                known.add(part)
        found = re.fullmatch(pattern, command)
        return found and _PLACEHOLDER.sub(lambda word: found[word[0]], self.machine)


def rows(page: str = PAGE) -> list[Row]:
    """Of each the last code of the first cell, and the first of the second."""
    table = page.partition(f"\n## {HEADING}\n")[2].partition("\n## ")[0]
    cells = (line.strip("|").split(" | ") for line in re.findall(r"^\| .+ \|$", table, re.MULTILINE)[2:])
    codes = ((re.findall(r"`([^`]+)`", left), re.findall(r"`([^`]+)`", right)) for left, right in cells)
    return [Row(cluster=left[-1], machine=right[0]) for left, right in codes if left]


def foreign(runbook: Runbook) -> list[str]:
    """Its commands of kubectl and helm, those within a sentence too."""
    within = (" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose(runbook)))
    return [command for command in (*runbook.commands, *within) if command.startswith(FOREIGN)]


def prose(runbook: Runbook) -> str:
    """Without the blocks."""
    return re.sub(r"^```\w+\n.*?^```$", "", runbook.text, flags=re.MULTILINE | re.DOTALL)


def translated(command: str, table: list[Row]) -> list[str]:
    """By each row that it matches: there should be one."""
    program, *words = command.split(" ")
    if "--namespace" in words:
        place = words.index("--namespace")
        del words[place : place + 2]
    plain = " ".join([program, *words])
    found = [text for row in table if row.cluster.startswith(FOREIGN) and (text := row.translated(plain))]
    return [_at_paths(text, table) for text in found]


def _at_paths(text: str, table: list[Row]) -> str:
    """chorale-NAME is of the text's own unit or user."""
    name = re.search(r"\bchorale-[a-z0-9-]+", text)
    for row in table:
        if row.cluster.startswith("/") and row.cluster in text:
            assert name is not None, text
            text = text.replace(row.cluster, row.machine.replace("chorale-NAME", name[0]))
    return text
