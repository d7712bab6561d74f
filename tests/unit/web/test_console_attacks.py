"""What hostile peers, pages and people try at the console; each attack beside a control that succeeds."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import load, save

from chorale.job import SignedJob
from chorale.v1 import federation_pb2
from chorale.v1 import operations_pb2 as pb
from chorale.v1.records_pb2 import Awaited, JobSummary, LeftOut
from client.evidence.verify import examine
from client.operations import Operations
from crypto.errors import RemoteProtocolError
from research.attacks.forged.scene import Scene
from tests.support.pages import DIGEST, JOB, SPEC, URL, Pages, ToldCoordinator, csrf, record, summary
from web.console.coordinator import Coordinator
from web.shared import sessions
from web.shared.streams import MOST_OF_ONE, Streams

OWN = {"origin": URL}
SCRIPT = "<script>alert(1)</script>"
QUOTE = '"><img src=x onerror=alert(1)>'


@pytest.fixture
def pages(tmp_path: Path) -> Pages:
    return Pages(folder=tmp_path)


def test_names_and_reasons_of_peers_are_text_on_every_page(tmp_path: Path) -> None:
    """A coordinator that is hostile may send any text in any field."""
    hostile = SCRIPT + QUOTE + "\u202e\x00"
    left = LeftOut(silo=hostile, stage=hostile, reason=hostile, rule=hostile, text=hostile)
    coordinator = ToldCoordinator(
        silos=[pb.SiloStatus(name=hostile, connected=True, software_version=hostile)],
        summary=summary(
            name=hostile,
            status=hostile,
            state=hostile,
            progress=hostile,
            reason=hostile,
            strategy=hostile,
            operator=hostile,
            kept=hostile,
            main_figure=hostile,
            awaited=[Awaited(silo=hostile, why=hostile)],
        ),
        records=[record(1, left_out=[left], reason=hostile, result=hostile, quantities=[hostile])],
    )
    pages = Pages(folder=tmp_path, coordinator=coordinator)
    browser = pages.logged_in("ada")
    for path in ("/", JOB, f"{JOB}/rounds"):
        html = browser.get(path).text
        assert "&lt;script&gt;alert(1)" in html, path  # the control: the text itself is there
        assert SCRIPT not in html
        assert "<img" not in html
        assert "\u202e" not in html
        assert "\x00" not in html
        # nothing of it opened an attribute: each script of the page is a file of ours
        assert set(re.findall(r"<script[^>]*>", html)) <= {
            f'<script src="/static/{name}.js" defer>' for name in ("vendor/htmx.min", "vendor/sse.min")
        }


@pytest.mark.parametrize(
    "spec",
    [
        b"strategy: [1, {a: b}]\nsilos: 7\nname: {x: <script>}\nprivacy: [[]]\nrounds: .nan\nnot_after: {}\n",
        b"- a list\n",
        b"\xff",
        b"",
    ],
)
def test_signed_job_of_any_shape_leaves_the_page_whole(tmp_path: Path, spec: bytes) -> None:
    coordinator = ToldCoordinator(spec=spec)
    browser = Pages(folder=tmp_path, coordinator=coordinator).logged_in("olga")
    answer = browser.get(JOB)
    assert answer.status_code == 200
    assert "<script>" not in answer.text
    assert browser.get(f"{JOB}/job.yaml").content == spec


def test_pages_allow_no_inline_script_and_no_frame(pages: Pages) -> None:
    browser = pages.logged_in("olga")
    for path in ("/", JOB, "/static/site.css", "/nowhere", f"{JOB}/rounds.csv"):
        policy = browser.get(path).headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
    html = browser.get(JOB).text
    assert not re.search(r"\son[a-z]+=|\sstyle=|javascript:", html)


def test_cancel_needs_the_token_of_the_session_and_a_page_of_ours(pages: Pages) -> None:
    browser, other = pages.logged_in("olga"), pages.logged_in("olga")
    mine, others = csrf(browser), csrf(other)
    assert mine
    assert mine != others
    for token, headers in (
        ("", OWN),
        (others, OWN),
        (mine, {"origin": "https://evil.example"}),
        (mine, {"origin": "null"}),
        (mine, {}),
    ):
        refused = browser.post(f"{JOB}/cancel", data={"csrf": token}, headers=headers)
        assert refused.status_code == 403
        assert "Nothing was done" in refused.text
    as_text = browser.post(
        f"{JOB}/cancel", content=f"csrf={mine}", headers={**OWN, "content-type": "text/plain"}
    )
    assert as_text.status_code == 403
    assert browser.get(f"{JOB}/cancel").status_code == 405
    assert pages.coordinator.cancelled == []
    done = browser.post(f"{JOB}/cancel", data={"csrf": mine}, headers=OWN)
    assert (done.status_code, done.headers["location"]) == (303, JOB)
    assert pages.coordinator.cancelled == [DIGEST]


def test_login_changes_the_secret_of_the_browser(pages: Pages) -> None:
    """Session fixation: a secret that somebody planted never becomes a login."""
    planted = "planted-by-somebody-else"
    browser = pages.browser("olga")
    browser.cookies.set("__Host-chorale", planted, domain="console.example")
    answer = browser.post("/login/certificate", headers=OWN)
    cookie = answer.headers["set-cookie"]
    assert planted not in cookie
    for word in ("__Host-chorale=", "HttpOnly", "Secure", "SameSite=strict", "Path=/"):
        assert word in cookie
    thief = pages.browser("olga")
    thief.cookies.set("__Host-chorale", planted)
    assert thief.get("/").status_code == 303
    assert thief.get("/").headers["location"] == "/login?next=/"
    first = browser.cookies["__Host-chorale"]
    browser.post("/login/certificate", headers=OWN)  # the one before ends with the next login
    thief.cookies.set("__Host-chorale", first)
    assert thief.get("/").status_code == 303
    assert browser.get("/").status_code == 200


def test_secret_of_a_session_is_worth_nothing_with_another_certificate(pages: Pages) -> None:
    olga = pages.logged_in("olga")
    for name in ("petra", None):
        thief = pages.browser(name)
        thief.cookies.set("__Host-chorale", olga.cookies["__Host-chorale"])
        assert thief.get("/").status_code == 303
    assert olga.get("/").status_code == 200


@pytest.mark.parametrize(
    "next_path",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "/%5cevil",
        "javascript:alert(1)",
        "/a//b",
        "/a\r\nx: y",
    ],
)
def test_login_leads_nowhere_else(pages: Pages, next_path: str) -> None:
    browser = pages.browser("olga")
    assert 'name="next" value="/"' in browser.get("/login", params={"next": next_path}).text
    answer = browser.post("/login/certificate", data={"next": next_path}, headers=OWN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    answer = browser.post("/login/certificate", data={"next": JOB}, headers=OWN)  # the control
    assert answer.headers["location"] == JOB


def test_operators_steer_and_fetch_their_own_jobs_alone(pages: Pages, tmp_path: Path) -> None:
    """The console's own certificate may do more than a person who looks through it."""
    petra, olga, ada = (pages.logged_in(name) for name in ("petra", "olga", "ada"))
    assert f"{JOB}/cancel" not in petra.get(JOB).text
    refused = petra.post(f"{JOB}/cancel", data={"csrf": csrf(petra)}, headers=OWN)
    assert refused.status_code == 403
    assert "belongs to operator olga" in refused.text
    assert pages.coordinator.cancelled == []
    # an admin may cancel, and no more than at the coordinator
    assert f"{JOB}/cancel" in ada.get(JOB).text
    for person in (petra, ada):
        for what in ("model", "evidence", "proof"):
            assert person.get(f"{JOB}/{what}").status_code == 403
            assert f"{JOB}/{what}" not in person.get(JOB).text
    fetched = olga.get(f"{JOB}/model")
    assert (fetched.status_code, fetched.content) == (200, b"model")
    assert olga.get(f"{JOB}/evidence").content == b"evidence"
    pages.coordinator.held = examine(Scene(tmp_path).honest().archive())
    assert "8 entries, 7 of them about this job" in olga.get(f"{JOB}/proof").text
    assert ada.post(f"{JOB}/cancel", data={"csrf": csrf(ada)}, headers=OWN).status_code == 303
    pages.coordinator.own_name = "console"  # its certificate may not fetch, so nobody does through it
    assert olga.get(f"{JOB}/model").status_code == 403


def test_nothing_is_shown_to_who_is_not_logged_in(pages: Pages) -> None:
    browser = pages.browser("olga")
    for path in (
        "/",
        "/live",
        JOB,
        f"{JOB}/live",
        f"{JOB}/rounds",
        f"{JOB}/rounds.csv",
        f"{JOB}/job.yaml",
        f"{JOB}/model",
        f"{JOB}/evidence",
        f"{JOB}/proof",
    ):
        answer = browser.get(path)
        assert (answer.status_code, answer.content) == (303, b""), path
    assert browser.post(f"{JOB}/cancel", headers=OWN).status_code == 403
    assert pages.coordinator.cancelled == []


def test_page_is_served_under_its_own_name_alone(pages: Pages) -> None:
    """DNS rebinding: a name of an attacker that leads to this address."""
    for url in ("https://evil.example:8443", "https://console.example", "https://127.0.0.1:8443"):
        answer = pages.browser("olga", url=url).get("/login")
        assert answer.status_code == 421
        assert "operator" not in answer.text
    assert pages.browser("olga").get("/login").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/..%2f..%2fsessions.py",
        "/static/%2e%2e/%2e%2e/sessions.py",
        "/static/....//sessions.py",
        "/static//etc/passwd",
        "/jobs/..%2f..%2fetc/rounds.csv",
        f"{JOB}/rounds.csv%2f..%2f..",
        f"{JOB}/rounds.exe",
        "/jobs/" + "0" * 63 + "/rounds.csv",
    ],
)
def test_no_path_leads_out_of_the_pages(pages: Pages, path: str) -> None:
    browser = pages.logged_in("olga")
    answer = browser.get(path)
    assert answer.status_code in (404, 409)
    assert "Sessions" not in answer.text
    assert "root:" not in answer.text
    assert browser.get("/static/site.css").status_code == 200
    assert browser.get(f"{JOB}/rounds.csv").status_code == 200


def test_downloads_are_named_by_us_and_hold_no_formula(tmp_path: Path) -> None:
    left = LeftOut(silo="=cmd|' /C calc'!A0", stage="train", reason="late")
    coordinator = ToldCoordinator(
        summary=summary(name='x"\r\nset-cookie: a=b'), records=[record(1, left_out=[left])]
    )
    browser = Pages(folder=tmp_path, coordinator=coordinator).logged_in("olga")
    answer = browser.get(f"{JOB}/rounds.csv")
    assert answer.headers["content-disposition"] == f'attachment; filename="rounds-{DIGEST.hex()[:12]}.csv"'
    assert "set-cookie" not in answer.headers
    assert "'=cmd" in answer.text
    assert ",=cmd" not in answer.text
    assert browser.get(f"{JOB}/rounds.json").json()["phases"][0]["left_out"][0]["silo"] == left.silo


def test_session_ends_when_it_rests_and_when_it_is_old(pages: Pages) -> None:
    browser = pages.logged_in("olga")
    pages.seconds += 29 * 60
    assert browser.get("/").status_code == 200
    pages.seconds += 31 * 60
    assert browser.get("/").status_code == 303
    browser = pages.logged_in("olga")
    for _ in range(4 * 4):
        pages.seconds += 15 * 60
        last = browser.get("/").status_code
    assert last == 200
    pages.seconds += 1
    assert browser.get("/").status_code == 303


def test_logout_ends_the_session_at_the_server(pages: Pages) -> None:
    browser = pages.logged_in("olga")
    secret = browser.cookies["__Host-chorale"]
    browser.post("/logout", data={"csrf": csrf(browser)}, headers=OWN)
    browser.cookies.set("__Host-chorale", secret)
    assert browser.get("/").status_code == 303


def test_large_request_is_refused(pages: Pages) -> None:
    browser = pages.logged_in("olga")
    token = csrf(browser)
    large = browser.post(f"{JOB}/cancel", data={"csrf": token, "more": "x" * 10_000}, headers=OWN)
    assert large.status_code == 413
    assert pages.coordinator.cancelled == []


@pytest.mark.parametrize("is_hostile", [False, True])
async def test_words_about_another_job_stand_on_no_page(is_hostile: bool) -> None:
    """The form to cancel names the job of the summary: that of another one would cancel that."""
    events = [pb.JobEvent(summary=summary()), pb.JobEvent(record=record(1))]
    if is_hostile:
        other = JobSummary(job_digest=b"o" * 32, name="two", status="running", rounds=3)
        events.append(pb.JobEvent(summary=other))

    async def events_of(_request: pb.WatchRequest) -> AsyncIterator[pb.JobEvent]:
        for event in events:
            yield event
        await asyncio.Event().wait()

    coordinator = _coordinator()
    coordinator._stub = cast(Any, SimpleNamespace(WatchJob=events_of))
    async with coordinator.watched(DIGEST) as job:
        for _ in range(10):
            await asyncio.sleep(0)
        assert (job.history.summary.name, len(job.history.records)) == ("one", 1)
        trouble = "coordinator: it tells of another job than was asked for" if is_hostile else ""
        assert job.trouble == trouble
    await coordinator.close()


def _coordinator() -> Coordinator:
    """Without a line."""
    calls = dict.fromkeys(("unary_unary", "unary_stream", "stream_unary"), lambda *_, **__: None)
    member = SimpleNamespace(member=SimpleNamespace(name="olga"))
    return Coordinator(
        cast(Any, SimpleNamespace(**calls)), cast(Any, member), settings=cast(Any, None), clock=lambda: 0.0
    )


@pytest.mark.parametrize("metadata", [None, {"format": "pt", "job": "another"}])
async def test_model_carries_no_word_of_the_coordinators(
    monkeypatch: pytest.MonkeyPatch, metadata: dict[str, str] | None
) -> None:
    """`model export` goes by what stands in the file: `job fetch` refuses a state that says something."""
    job = SignedJob(spec_bytes=SPEC, signature=b"s", operator_certificate=b"c").to_wire()
    state = save({"model/weight": np.ones(2, np.float32)}, metadata=metadata)
    messages = [
        pb.FetchMessage(summary=summary(), job=job),
        pb.FetchMessage(chunk=federation_pb2.Chunk(offset=0, data=state)),
    ]

    @contextmanager
    def connected(_settings: object) -> Iterator[tuple[Operations, None]]:
        operations = object.__new__(Operations)
        operations._stub = cast(Any, SimpleNamespace(FetchModel=lambda _request: messages))
        yield operations, None

    monkeypatch.setattr("web.console.coordinator.connect", connected)
    if metadata is None:  # the control
        parts = await _coordinator().model(DIGEST)
        assert load(b"".join(parts))["model/weight"].tolist() == [1.0, 1.0]
        return
    with pytest.raises(RemoteProtocolError, match="model: expected a state, which has no metadata"):
        await _coordinator().model(DIGEST)


async def test_one_person_does_not_take_the_live_pages_of_all() -> None:
    streams = Streams(stopping=asyncio.Event())

    async def fragments() -> AsyncGenerator[str, None]:
        while True:
            yield "news"

    opened = []
    for _ in range(MOST_OF_ONE):
        assert not streams.is_full("olga")
        answer = streams.answer("job", fragments, who="olga", is_allowed=lambda: True)
        opened.append(cast(AsyncGenerator[str, None], answer.body_iterator))
        assert "news" in await anext(opened[-1])
    assert streams.is_full("olga")
    assert not streams.is_full("petra")  # the control
    async with aclosing(opened.pop()):
        pass
    assert not streams.is_full("olga")
    for each in opened:
        await each.aclose()


def test_nobody_logs_others_out_by_logging_in(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest session goes where there are too many: a viewer's own, before anybody else's."""
    monkeypatch.setattr(sessions, "MOST", 2 * sessions.MOST_OF_ONE)
    olga, first = pages.logged_in("olga"), pages.logged_in("petra")
    for _ in range(sessions.MOST_OF_ONE - 1):
        pages.logged_in("petra")
    assert first.get(JOB).status_code == 200  # the control
    for _ in range(sessions.MOST_OF_ONE + 1):
        last = pages.logged_in("petra")
    assert olga.get(JOB).status_code == 200
    assert (first.get(JOB).status_code, last.get(JOB).status_code) == (303, 200)
