"""The pages of an archive for people: what its other files hold, in words, and where it stands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from chorale.evidence import CoordinatorStatement, PhaseFacts
from client.evidence.contents import GDPR, MODEL_CARD, README
from client.evidence.facts import EPSILON, Facts
from client.row_figures import class_rows
from strategies.figure import in_words, names_of_figures

MAX_FIGURES = 40
_MARKUP = re.compile(r"[\\`*\[\]<>&|~$]")

_PROVES = """\
## What this proves

Under the authority's key, of each phase, while no more silos of the job lied together than it withstands by
the table above:

- The phase happened, under the job as `job.yaml` has it, and goes on from the state before. So the states
  lead from the first one that the job names to the one with SHA-256 {model}.
- Each state follows from the one before by a sum over the silos that its proof names: each silo that signed
  it had checked the sum and computed the state itself.
- What was summed is what `facts.json` lists: its digest stands in every proof.

## What nobody proves

- That the data of a silo were right, lawful, or those that were meant. Silos check sums and no data.
- Accuracy, loss and other figures, times, who was left out and why: they are the coordinator's word alone. So
  is which round was best, where a job keeps the best one.
- When anything happened. Every date is by a clock of the party that signed it.
- Which operator asked, where no silo's statement is here: every operator can sign a job that it has read.
- A phase that nobody signed, or that is unproved.
- That nothing followed. Operator and coordinator together can leave the last rounds out and say that the job
  was cancelled. The statement of a silo that took part in two phases more would not fit.
- That a silo's audit log is whole. Its lines chain, and it names the last line of the whole log, so that an
  auditor at the institution can compare. What a silo without a statement did is not known beyond the proofs.
- What anybody runs: versions, digests and packages are each party's word about itself.
- That the operator may use the model, or that any law was kept.
"""

_GDPR = """\
# Where a record of processing finds its items

For those who keep a record under Art. 30 GDPR, or write an assessment under Art. 35, on job {job}.
It says where an item stands and whose word it is. It is no legal advice. Nothing here says that the
processing was lawful or that any duty was met.

"""

_CARD_END = """
This card was made without looking at any data. What the records were, how they were chosen, whom the model
may be used for and on whom it was not tested, the institutions know, and this page does not.
"""


def pages_of(
    facts: Facts,
    statement: CoordinatorStatement,
    silos: Sequence[str],
    sboms: Iterable[str],
) -> dict[str, bytes]:
    """By file name. silos: those whose statements are in the archive. sboms: files of bills of materials."""
    return {
        README: _readme(facts, statement, silos).encode(),
        GDPR: _gdpr(facts, silos, sorted(sboms)).encode(),
        MODEL_CARD: _model_card(facts, statement).encode(),
    }


def _readme(facts: Facts, statement: CoordinatorStatement, silos: Sequence[str]) -> str:
    rows = [
        ("`authority.crt`", "nobody", "compare its SHA-256 with the one that your institution was given"),
        ("`rosters/`", "the authority", "who was a member, with which certificate, and when"),
        ("`job.yaml`", "the operator", "all that was asked, before it began; signed in `job-signature.json`"),
        (
            "`proofs/`",
            "silos, by the table above",
            "who is in a sum, its digest, what was summed, the states before and after",
        ),
        (
            "`silos/`",
            "that silo alone",
            "who asked, approvals, what left it, epsilon, its policy's digest, audit lines",
        ),
        ("`coordinator.json`", "the coordinator", "times, figures, who was left out and why, audit lines"),
        ("`manifest.json`", "the operator", "which files there are, with their SHA-256"),
        ("`facts.json`, pages", "nobody", "computed again by the person who checks the archive"),
        ("`sbom/`", "nobody", "listed in the manifest, and not checked: a release signs its own"),
    ]
    absent = sorted(set(facts.silos) - set(silos))
    return "\n".join(
        [
            f"# Evidence of job {facts.job[:12]}, {facts.name}",
            "",
            *(f"- {name}: {_plain(text)}." for name, text in facts.rows()),
            f"- By the coordinator's word: {statement.status}.",
            "",
            _table(("phase", "its silos"), facts.phase_rows()),
            "",
            "Check it without any network, with the authority's certificate that you have from elsewhere:",
            "",
            "    chorale evidence verify evidence.zip --authority authority.crt --model model.safetensors",
            "",
            "## Who signed what",
            "",
            _table(("file", "signed by", "says"), rows),
            "",
            f"Statements of silos in this archive: {', '.join(silos) or 'none'}. "
            f"Missing: {', '.join(absent) or 'none'}.",
            "",
            _PROVES.format(model=facts.model_sha256),
        ]
    )


def _gdpr(facts: Facts, silos: Sequence[str], sboms: Sequence[str]) -> str:
    statements = ", ".join(f"`silos/{name}.json`" for name in silos) or "no silo's statement is here"
    bills = ", ".join(f"`{name}`" for name in sboms) or "no bill of materials is here (`job evidence --sbom`)"
    least = facts.least_silos_in_a_sum
    rows = [
        ("Art. 30(1)(a) controller", "names in `rosters/`", "authority", "legal names, contacts, officer"),
        (
            "Art. 30(1)(b) purposes",
            "purpose, reference and method in `job.yaml`",
            "operator",
            "legal basis",
        ),
        (
            "Art. 30(1)(c) persons, data",
            "task and columns in `job.yaml`",
            "operator",
            "who they are, Art. 9 data",
        ),
        ("Art. 30(1)(d) recipients", "members in `rosters/`", "authority", "who was given the model later"),
        ("Art. 30(1)(e) transfers", "not here", "", "where each member's machines stand"),
        ("Art. 30(1)(f) time limits", "not here", "", "how long data, model and this archive are kept"),
        (
            "Art. 30(1)(g) security",
            f"signed sums of {least} silos or more; noise below",
            "job",
            "measures at each site",
        ),
        ("Art. 35(7)(a) description", "`job.yaml`, `facts.json`, `coordinator.json`", "each", "the context"),
        ("Art. 35(7)(b) necessity", "each quantity, in `facts.json`", "job", "why each one is needed"),
        ("Art. 35(7)(c) risks", "what sums tell, below", "job", "the risk to persons, rated"),
        (
            "Art. 35(7)(d) measures",
            f"approvals, policies, epsilon: {statements}",
            "each silo",
            "what else was done",
        ),
        ("Software", f"`coordinator.json`, `silos/`; {bills}", "each of itself", "your own inventory"),
    ]
    tells = {each["what_it_tells"] for kind in facts.quantities.values() for each in kind["summed"]}
    return "\n".join(
        [
            _GDPR.format(job=facts.job[:12]),
            _table(("item", "here", "whose word", "you add"), rows),
            "",
            f"{EPSILON}: {facts.epsilon_told()}.",
            "Docs of this release say what follows: docs/threat-model.md, docs/privacy.md.",
            "",
            "The sums of this job are:",
            "",
            *(f"- {each}" for each in sorted(tells)),
            "",
        ]
    )


def _model_card(facts: Facts, statement: CoordinatorStatement) -> str:
    last = next((each for each in reversed(statement.phases) if each.figures and each.cohort), None)
    rows = class_rows(statement.phases)
    return "\n".join(
        [
            f"# Model of job {facts.job[:12]}, {facts.name}",
            "",
            f"- SHA-256 of its arrays: {facts.model_sha256}, after round {facts.model_round}",
            f"- Network {facts.model_name}, {facts.model_numbers} numbers; task {facts.task}",
            f"- Trained with {facts.method} over {len(facts.silos)} institutions, "
            f"{facts.least_silos_in_a_sum} or more of them in each sum that silos signed",
            f"- Starting weights: SHA-256 {facts.first_state_sha256}",
            f"- {EPSILON}: {facts.epsilon_told()}.",
            "",
            f"How far that is proved: {_plain(facts.result)}.",
            *([f"Missing silos: {', '.join(facts.missing)}."] if facts.missing else []),
            "",
            "Figures of the last phase that has some, by the coordinator's word (intervals of 95 %):",
            "",
            *_figures(last),
            *([] if rows is None else ["", f"By the coordinator's word, too: {rows}."]),
            _CARD_END,
        ]
    )


def _figures(phase: PhaseFacts | None) -> list[str]:
    if phase is None:
        return ["- none"]
    names = names_of_figures(phase.figures)[:MAX_FIGURES]
    lines = (f"- {_plain(name)}: {in_words(phase.figures, name)}" for name in names)
    return [f"- round {phase.round} {phase.phase}, {len(phase.cohort)} silos", *lines]


def _plain(text: str) -> str:
    """What an operator or a coordinator wrote, as a page shows it: nothing in it is markup."""
    return _MARKUP.sub(r"\\\g<0>", text)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(each)} |" for each in lines)
