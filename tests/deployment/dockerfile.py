"""A Dockerfile as its instructions: continued lines joined, comments and empty lines left out."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    word: str
    text: str

    @property
    def exec_form(self) -> list[str]:
        """The list of an exec form. Raises ValueError for a shell's."""
        found = json.loads(self.text)
        if not isinstance(found, list) or not all(isinstance(part, str) for part in found):
            raise ValueError(f"{self.word} {self.text} is no list of strings")
        return found

    @property
    def pairs(self) -> dict[str, str]:
        """What ARG, ENV and LABEL set; an ARG without a default is empty."""
        return {name: value for name, _, value in (p.partition("=") for p in shlex.split(self.text))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dockerfile:
    before: tuple[Instruction, ...]  # the ARGs in front of the first FROM
    stages: tuple[tuple[Instruction, ...], ...]  # each begins with its FROM

    @property
    def every(self) -> tuple[Instruction, ...]:
        return (*self.before, *(each for stage in self.stages for each in stage))

    def stage(self, number: int, word: str) -> list[Instruction]:
        return [each for each in self.stages[number] if each.word == word]

    def pairs(self, number: int, word: str) -> dict[str, str]:
        return {name: value for each in self.stage(number, word) for name, value in each.pairs.items()}


def parsed(text: str) -> Dockerfile:
    """Raises ValueError for heredocs and parser directives, which this reader does not know."""
    if "<<" in text or re.match(r"#\s*\w+\s*=", text):
        raise ValueError("a heredoc or a parser directive")
    # a comment inside a continued instruction belongs to no line of it
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    every = []
    for line in joined.splitlines():
        word, _, rest = line.strip().partition(" ")
        every.append(Instruction(word=word.upper(), text=rest.strip()))
    starts = [place for place, each in enumerate(every) if each.word == "FROM"]
    stages = [tuple(every[start:end]) for start, end in zip(starts, [*starts[1:], None], strict=True)]
    return Dockerfile(before=tuple(every[: starts[0]]), stages=tuple(stages))


def read(path: Path) -> Dockerfile:
    return parsed(path.read_text())
