"""Archives that claim what did not happen are refused, true ones hold, and each says how much it proves."""

from __future__ import annotations

import html
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from chorale.evidence import RESULTS, STATUSES
from cli.evidence import lines
from cli.main import run
from client.evidence.archive import files_of
from client.evidence.contents import FACTS, MODEL_CARD, README
from client.evidence.facts import document_of
from client.evidence.verify import examine
from coordinator.phase_machine import ENDED
from coordinator.storage.store import JobStatus
from crypto.errors import EvidenceMismatch
from crypto.session.cohort import CohortRule, withstands
from research.attacks import __main__ as program
from research.attacks.forged.federation import DRAW_SEED
from research.attacks.forged.forgeries import FORGED
from research.attacks.forged.scene import COLLUDERS, DRAWN, LEAVES, SILOS, Scene, shown
from research.attacks.forged.true_jobs import TRUE
from tests.support.pages import JOB, Pages

ROOT = Path(__file__).parents[3]


def test_no_forged_archive_is_accepted_and_every_true_one_is(capsys: pytest.CaptureFixture[str]) -> None:
    """A third of the silos, coordinator and operator lie together. Before, nine silos' job that three signed
    alone under an old roster held, and so did one without its last round."""
    assert program.main(["forged-evidence", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["doubts"] == {}
    assert (found["archives"], found["accepted"]) == (len(FORGED), 0)
    assert found["true_archives"] == found["true_accepted"] == len(TRUE)
    for name, (_, sentence) in FORGED.items():
        assert re.search(sentence, found["refusals"][name]), (name, found["refusals"][name])
    assert len(FORGED) >= 12


def test_page_names_every_forged_archive_beside_the_claim_that_it_tests() -> None:
    rows = [line.split(" | ") for line in (ROOT / "docs" / "evidence-pack.md").read_text().splitlines()]
    named = [each for row in rows if len(row) == 5 for each in row[-1].removesuffix(" |").split("; ")]
    assert sorted(each for each in named if each in FORGED) == sorted(FORGED)


def test_what_signatures_withstand_is_what_no_choice_of_liars_breaks() -> None:
    """Of every set of liars so large: an honest silo signed, and two such proofs share an honest one."""
    for named in range(3, 8):
        silos = range(named)
        for signed in range(1, named + 1):
            worst = min(
                (
                    liars
                    for liars in range(named + 1)
                    for first, second in itertools.product(itertools.combinations(silos, signed), repeat=2)
                    if len(set(first) & set(second)) <= liars
                ),
                default=named,
            )
            assert withstands(signed, named) == max(0, worst - 1), (signed, named)
        rule = CohortRule.for_members(named)
        assert withstands(rule.threshold, named) >= rule.colluders


def test_terminal_readme_facts_and_page_say_the_same(tmp_path: Path) -> None:
    """Each printed numbers of the whole job, which were those of no phase."""
    scene = Scene(tmp_path / "scene")
    rosters = [scene.federation.publish(), scene.federation.publish(SILOS[:-1])]
    whole = shown(scene.run().whole(*rosters))
    drawn = shown(scene.run(fraction=0.4).whole(rosters[0]))
    forged = FORGED["a newer roster of colluders alone"][0](Scene(tmp_path / "forged"))
    for number, each in enumerate((whole, drawn, forged)):
        held, files = examine(each.archive), files_of(each.archive)
        pages = Pages(folder=tmp_path / str(number))
        pages.coordinator.held = held
        document = json.loads(files[FACTS])
        assert document == document_of(held.facts)
        surfaces = {
            "terminal": "\n".join(lines(tmp_path, held)),
            "README": files[README].decode(),
            "page": html.unescape(pages.logged_in("olga").get(f"{JOB}/proof").text),
        }
        for surface, text in surfaces.items():
            for name, sentence in (*held.facts.rows(), *held.facts.phase_rows()):
                assert name in text, (surface, name)
                assert sentence in text, (surface, sentence)
        for phase, (_, sentence) in zip(document["phases"], held.facts.phase_rows(), strict=True):
            told = set(re.findall(r"\d+", sentence))
            numbers = [phase[name] for name in ("named", "roster_version", "withstands", "required")]
            expected = [*numbers, len(phase["signers"]), len(SILOS)]
            if phase["signers"]:
                assert told == set(map(str, expected)), (sentence, expected)
                assert set(re.findall(r"clinic-\w", sentence)) == {*phase["silent"], *phase["missing"]}
        weakest = document["weakest"]
        first = surfaces["terminal"].splitlines()[0]
        assert f"round {weakest['round']} {weakest['phase']}" in first
        assert f"withstands {weakest['withstands']} colluders of the job's 9" in first


def test_verify_puts_missing_silos_first_and_no_flag_lowers_what_a_phase_has_to_withstand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def verify(*arguments: object) -> tuple[int, str, str]:
        code, said = run(["evidence", "verify", *map(str, arguments)]), capsys.readouterr()
        return code, said.out, said.err

    scene = Scene(tmp_path / "scene")
    old, now = scene.federation.publish(SILOS[:-1]), scene.federation.publish()
    archive, weak, roster = (tmp_path / name for name in ("evidence.zip", "weak.zip", "roster.json"))
    archive.write_bytes(scene.run().whole(old, now).archive())
    roster.write_bytes(files_of(archive.read_bytes())["rosters/2.json"])
    code, out, err = verify(archive)
    first, second, *_ = out.splitlines()
    assert code == 6
    assert first.startswith(f"{archive}: missing: {LEAVES}; the rest of it holds; the weakest phase is round")
    assert second.startswith(
        f"Missing silos: {LEAVES} from the roster of round 0 enrollment.0. Under a roster"
    )
    assert err.splitlines()[-1].endswith(f"if you know why: --without {LEAVES}")
    assert verify(archive, "--without", LEAVES)[0] == 0
    assert verify(archive, "--json", "--without", SILOS[0])[0] == 6
    code, _, err = verify(archive, "--without", "zeta")
    assert (code, "--without zeta: the job names no such silo" in err) == (2, True)
    code, _, err = verify(archive, "--without", LEAVES, "--roster", roster)
    assert (code, "round 0 enrollment.0: roster 1 is older than roster 2, of the one" in err) == (
        5,
        True,
    )
    weak.write_bytes(FORGED["an old roster of colluders alone"][0](Scene(tmp_path / "weak")).archive)
    code, out, err = verify(weak, *(f"--without={name}" for name in SILOS if name not in COLLUDERS))
    assert (code, out) == (5, "")
    assert "round 0 enrollment.0: unproved: 3 of 3 named silos signed" in err


def test_round_that_a_silo_revealed_and_that_is_called_used_up_is_noted(tmp_path: Path) -> None:
    """Coordinator and operator go back to the model of the round before; the silo revealed the last one."""
    scene = Scene(tmp_path)
    run = scene.honest()
    run.add_silo(LEAVES)
    before = run.proofs[2].next
    lost = {"result": "used-up", "verified_by": 0, "cohort": (), "state": before}
    run.phases[3] = run.phases[3].model_copy(update=lost)
    run.phases[4] = run.phases[4].model_copy(update={"state": before})
    del run.proofs[3]
    held = examine(run.archive(model=before))
    assert held.notes == (
        "silo clinic-i revealed round 3 train, which the coordinator calls used-up and of which silos signed "
        "no state",
    )
    assert held.facts.rows()[-3] == ("Signed by nobody", "round 3 train, round 3 evaluate.0")


def test_what_operator_and_coordinator_write_is_no_markup_of_a_page(tmp_path: Path) -> None:
    """In a reader's browser a tag hid all below it, and an image told who read."""
    scene = Scene(tmp_path)
    run = scene.run(purpose='<details>a\\", reference "EK 17', reference="![](https://x/y)[all holds](z)")
    run.whole(scene.federation.publish())
    run.phases[-1] = run.phases[-1].model_copy(update={"figures": {"<img src=x>|*loss*": 0.5}})
    archive = run.archive()
    files = files_of(archive)
    readme, card = files[README].decode(), files[MODEL_CARD].decode()
    assert '- Purpose: "\\<details\\>a\\\\\\\\\\\\", reference \\\\"EK 17".\n' in readme
    assert '- Reference: "!\\[\\](https://x/y)\\[all holds\\](z)".\n' in readme
    assert "- \\<img src=x\\>\\|\\*loss\\*: 0.5" in card
    assert not re.search(r"(?<!\\)[<\[]", readme + card)


def test_a_third_of_the_silos_in_one_drawn_round_is_in_the_first_line(tmp_path: Path) -> None:
    """The only signers of a round were colluders: the draw names them all in one round of twenty. The facts
    told a chance of at most 1."""
    scene = Scene(tmp_path)
    run, roster = scene.run(**DRAWN, rounds=100), scene.federation.publish()
    drawn = (run.job.named(roster.silo_names, round, "train", DRAW_SEED) for round in range(1, 101))
    lies = next(round for round, named in enumerate(drawn, start=1) if set(COLLUDERS) <= set(named))
    run.steps(roster, (0, "enrollment.0"))
    for round in range(1, 101):
        run.phase(round, "train", roster, result="applied" if round == lies else "used-up", signers=COLLUDERS)
    run.steps(roster, (100, "evaluate.0"))
    held = examine(run.archive())
    first = lines(tmp_path, held)[0]
    assert f"round {lies} train: 3 of 4 named silos signed" in first
    assert first.endswith("drawn rounds withstand 1 of the job's silos, not a third, 3")
    assert held.facts.result in files_of(run.archive())[MODEL_CARD].decode()


def test_rosters_that_a_forger_chooses_from_raise_the_risk_of_a_draw(tmp_path: Path) -> None:
    """Each version may have drawn other silos, and only those that are in the archive are seen."""
    bears, names = [], [f"clinic-{each}" for each in range(200)]
    for number, version in enumerate((1, 3_000)):
        scene = Scene(tmp_path / str(number), silos=names)
        run = scene.run(fraction=0.24).steps(scene.federation.publish(), (0, "enrollment.0"))
        scene.federation.rosters[version] = scene.federation.rosters[1]
        run.steps(scene.federation.publish(), (1, "train"))
        bears.append(examine(run.archive(status="cancelled")).facts.draw_colluders)
    assert bears == [22, 17]


def test_all_silos_that_a_sentence_names_stand_on_the_page(tmp_path: Path) -> None:
    """Cut at 1,000 characters, it lost how many colluders the phase withstands."""
    scene = Scene(tmp_path / "scene", silos=[f"{'a' * 50}{each}" for each in range(60)])
    pages = Pages(folder=tmp_path / "pages")
    pages.coordinator.held = examine(scene.honest().archive())
    text = html.unescape(pages.logged_in("olga").get(f"{JOB}/proof").text)
    assert all(sentence in text for _, sentence in pages.coordinator.held.facts.phase_rows())


def test_reader_without_an_authority_of_ones_own_compares_each_certificate(tmp_path: Path) -> None:
    """Beside the true one an archive can bring one of a whole other federation, under which all holds."""
    held = examine(TRUE["the authority's key is rotated"](Scene(tmp_path)).archive)
    (line,) = (each for each in lines(tmp_path, held) if each.startswith("Authority: "))
    assert all(each in line for each in held.authorities)
    assert line.endswith("the archive's own: each of them has to be one that you were given")


def test_words_of_a_job_are_those_of_the_coordinator() -> None:
    assert tuple(JobStatus) == STATUSES
    assert set(RESULTS) == ENDED


def test_another_roster_of_a_version_that_the_reader_knows_is_refused(tmp_path: Path) -> None:
    """An authority that counts from 1 again has signed two."""
    scene = Scene(tmp_path)
    archive = scene.honest().archive()
    scene.federation.rosters.clear()
    twin = scene.federation.publish(SILOS[:-1])
    with pytest.raises(EvidenceMismatch, match="--roster: the archive has another roster of version 1"):
        examine(archive, roster=twin.signed)
