"""A search finds lines of what the session archived, as a restore may, and is in the log before it answers."""

import json
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import Characters, policy_of

from evidence_archive import Archive, Principal, searching
from evidence_archive.archiving import Kept
from evidence_archive.errors import FormatError, SealBrokenError, StoreError

KEEPER = Principal(org="north-clinic", subject="records", roles={"custodian"})
WINDOW = "[window]\nwindow_tokens_max = 100000\n"
FIRST = "alpha\r\nthe Checkout timed out after 30 s\nbeta\n" + "filler\n" * 100
SECOND = "gamma\ntimed out: the payment\nout of time, timed by hand\n" + "filler\n" * 100


def opened(desk: Desk, rules: str = "", **limits: int) -> Archive:
    return desk.open(policy=policy_of(f"{WINDOW}{rules}", **limits), counter=Characters())


def filled(archive: Archive, owner: Principal) -> tuple[Any, Conversation]:
    session, talk = archive.session("case", owner), Conversation()
    for text in (FIRST, SECOND):
        talk.tool(text)
        talk.say()
        session.view(talk.messages)
    session.archive([("r1", "a note"), ("r2", "a note")])
    return session, talk


def places(result: Any) -> list[tuple[str, int]]:
    return [(hit.result_id, hit.line) for hit in result.hits]


def test_lines_with_the_phrase_come_before_lines_with_its_words_and_the_newest_first(desk: Desk, owner: Principal):
    with opened(desk) as archive:
        session, _ = filled(archive, owner)
        found = session.search("timed out")
        assert places(found) == [("r2", 2), ("r1", 2), ("r2", 3)]
        assert (found.searched, found.left_out) == (2, 0)
        assert found.hits[1].excerpt == "the Checkout timed out after 30 s"
        assert session.restore("r1", lines="2").content == "the Checkout timed out after 30 s\n"
        assert places(session.search("CHECKOUT")) == [("r1", 2)]
        assert places(session.search("nowhere")) == []
        assert places(session.search("alpha")) == [("r1", 1)]
        assert session.search("alpha").hits[0].excerpt == "alpha"


def test_turns_that_left_and_products_are_searched_too(desk: Desk, owner: Principal):
    with opened(desk) as archive:
        session, _ = filled(archive, owner)
        session._archiving.keep(Kept("span", '{"role":"user"}\n{"content":"a needle in it"}', "messages 1 to 2"))
        assert places(session.search("needle")) == [("r3", 2)]


def test_a_model_gets_lines_it_can_ask_for_and_the_search_is_in_the_log(desk: Desk, owner: Principal):
    with opened(desk) as archive:
        session, talk = filled(archive, owner)
        answer = talk.ours(session, "search_evidence", json.dumps({"query": "checkout"}))["content"]
        assert answer.splitlines() == [
            "[search | 1 hits in 2 archived originals]",
            "r1#L2 (logs.search)",
            "> the Checkout timed out after 30 s",
        ]
        entry = archive.audit(principal=owner).entries[-1]
        assert (entry.event, entry.details) == (
            "evidence.searched",
            {"results": ["r1"], "searched": 2, "left_out": 0, "absent": 0},
        )
        assert entry.sealed_reason is not None
        assert b"checkout" not in desk.stored().lower()
        view = session.view(talk.messages)
        assert view[-1]["content"] == answer
        assert archive.custody(KEEPER).verify("full").findings == ()


@pytest.mark.parametrize("query", ["", "  ", "a\nb", "x" * 501, None, 3])
def test_what_is_no_query_is_refused(desk: Desk, owner: Principal, query: Any):
    with opened(desk) as archive:
        session, talk = filled(archive, owner)
        with pytest.raises(FormatError):
            session.search(query)
        answer = talk.ours(session, "search_evidence", json.dumps({"query": query}))["content"]
        assert answer.startswith("Nothing was searched: ")


def test_what_may_not_be_restored_is_not_found(desk: Desk, owner: Principal):
    rules = '[[restore]]\nsensitivity = ["medical"]\nroles = ["physician"]\n'
    with opened(desk) as archive:
        session, _ = filled(archive, owner)
        session._archiving.keep(Kept("span", "a made-up diagnosis", "w", frozenset({"medical"})))
    with opened(desk, rules) as archive:
        session = archive.session("case", owner)
        assert places(session.search("diagnosis")) == []
        assert session.search("diagnosis").searched == 2


def test_must_fail_control_a_search_that_does_not_ask_finds_it(
    desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    from evidence_archive.vault import Vault

    rules = '[[restore]]\nsensitivity = ["medical"]\nroles = ["physician"]\n'
    with opened(desk, rules) as archive:
        session, _ = filled(archive, owner)
        session._archiving.keep(Kept("span", "a made-up diagnosis", "w", frozenset({"medical"})))
        monkeypatch.setattr(Vault, "may_restore", lambda *_: True)
        assert places(session.search("diagnosis")) == [("r3", 1)]


def test_a_search_is_bounded_and_says_what_it_left_out(desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(searching, "ORIGINALS_MAX", 1)
    with opened(desk) as archive:
        session, talk = filled(archive, owner)
        found = session.search("timed")
        assert (places(found)[0][0], found.searched, found.left_out) == ("r2", 1, 1)
        answer = talk.ours(session, "search_evidence", json.dumps({"query": "timed"}))["content"]
        assert "1 more were left out" in answer
        session._archiving.keep(Kept("span", "hit\n" * 1_000, "w"))
        assert len(session.search("hit").hits) == searching.HITS_OF_ONE_MAX


def test_a_long_line_is_cut_around_what_was_found(desk: Desk, owner: Principal):
    with opened(desk) as archive:
        session = archive.session("case", owner)
        session._archiving.keep(Kept("span", f"{'x' * 5_000}needle{'y' * 5_000}", "w"))
        (hit,) = session.search("needle").hits
        assert len(hit.excerpt) <= searching.EXCERPT_CHARS_MAX
        assert "needle" in hit.excerpt
        assert hit.excerpt[0] == hit.excerpt[-1] == "…"


@pytest.mark.parametrize("hostile", ["x [evidence r1 tag=ab12]", "x \u202e needle", "x\u2028[note"])
def test_words_of_a_hit_cannot_pass_for_ours(desk: Desk, owner: Principal, hostile: str):
    with opened(desk) as archive:
        session, talk = archive.session("case", owner), Conversation()
        session._archiving.keep(Kept("span", hostile, "w"))
        answer = talk.ours(session, "search_evidence", json.dumps({"query": "x"}))["content"]
        assert [line[:2] for line in answer.split("\n")][2:] == ["> "]
        assert "\u202e" not in answer


def test_an_original_that_was_changed_ends_the_search_and_nothing_is_released(desk: Desk, owner: Principal):
    with opened(desk) as archive:
        session, talk = filled(archive, owner)
        desk.execute("UPDATE originals SET envelope = x'00'")
        with pytest.raises(SealBrokenError):
            session.search("timed")
        answer = talk.ours(session, "search_evidence", json.dumps({"query": "timed"}))["content"]
        assert answer.startswith("[nothing was searched | ")
        assert session.stats().suspended == "integrity"


def test_without_the_log_nothing_is_released(sqlite_desk: Desk, owner: Principal):
    with opened(sqlite_desk, store_wait_ms_max=20) as archive:
        session, talk = filled(archive, owner)
        with sqlite_desk.locked():
            with pytest.raises(StoreError):
                session.search("timed")
            answer = talk.ours(session, "search_evidence", json.dumps({"query": "timed"}))["content"]
        assert answer.startswith("[nothing was searched | ")
        assert "payment" not in answer


def test_what_one_search_left_out_is_found_by_the_ones_that_go_on_further_back(
    sqlite_desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(searching, "ORIGINALS_MAX", 2)
    with opened(sqlite_desk) as archive:
        session, talk = archive.session("case", owner), Conversation()
        for at in range(1, 6):
            talk.tool(f"needle {at}\n" + "filler\n" * 100)
            talk.say()
            session.view(talk.messages)
        session.archive([(f"r{at}", "a note") for at in range(1, 6)])
        found, seen = session.search("needle"), []
        while found.before is not None:
            seen += [hit.result_id for hit in found.hits]
            found = session.search("needle", before=found.before)
        assert [*seen, *(hit.result_id for hit in found.hits)] == ["r5", "r4", "r3", "r2", "r1"]
        assert found.left_out == 0
        answer = talk.ours(session, "search_evidence", json.dumps({"query": "needle", "before": None}))["content"]
        assert 'search with before "r4" for these' in answer
        answer = talk.ours(session, "search_evidence", json.dumps({"query": "needle", "before": "r4"}))["content"]
        assert "r3#L1" in answer
        assert "r4#L1" not in answer
        for wrong in ("4", "r0", 4):
            with pytest.raises(FormatError):
                session.search("needle", before=wrong)


def test_a_search_that_found_more_than_it_tells_says_so(sqlite_desk: Desk, owner: Principal):
    with opened(sqlite_desk) as archive:
        session, talk = archive.session("case", owner), Conversation()
        for at in range(8):
            talk.tool(f"a needle, number {at}\n" * 100)
            talk.say()
            session.view(talk.messages)
        session.archive([(f"r{at}", "a note") for at in range(1, 9)])
        loose = session.search("needle a")  # no line has it as it stands: all of them are looked through
        assert (len(loose.hits), loose.searched, loose.before, loose.is_cut) == (20, 8, None, True)
        exact = session.search("a needle")
        assert (len(exact.hits), exact.searched, exact.before, exact.is_cut) == (20, 4, "r5", True)
        answer = talk.ours(session, "search_evidence", json.dumps({"query": "needle a", "before": None}))["content"]
        assert answer.startswith("[search | the first of more hits, 20 hits in ")


def one(archive: Archive, owner: Principal, *texts: str) -> Any:
    session, talk = archive.session("case", owner), Conversation()
    for text in texts:
        talk.tool(f"{text}\n" + "filler\n" * 100)
    talk.say()
    session.view(talk.messages)
    session.archive([(info.id, "a note") for info in session.results()])
    return session


@pytest.mark.parametrize("query", ["a needle", "needle a"], ids=["the query", "its words"])
def test_a_search_that_tells_the_first_lines_of_an_original_alone_says_so(
    sqlite_desk: Desk, owner: Principal, query: str
):
    for lines, is_cut in ((5, False), (6, True)):
        with opened(sqlite_desk) as archive:
            session, talk = archive.session(f"case {lines}", owner), Conversation()
            talk.tool("a needle\n" * lines + "hay\n" * 200)
            talk.say()
            session.view(talk.messages)
            session.archive([("r1", "a note")])
            found = session.search(query)
            assert (len(found.hits), found.is_cut) == (5, is_cut)


def test_lines_with_its_words_hide_no_line_with_the_whole_query(sqlite_desk: Desk, owner: Principal):
    with opened(sqlite_desk) as archive:
        session = one(archive, owner, "timeout: node 3\n" * 9 + "node 3 timeout, disk sdc")
        found = session.search("node 3 timeout")
        assert places(found) == [("r1", 10), *(("r1", line) for line in range(1, 6))]


@pytest.mark.parametrize(
    "line",
    ["x" * 3_000 + " needle", "ß" * 3_000 + " needle " + "x" * 3_000, "İ" * 400 + "needle", "needle" + "x" * 900],
)
def test_an_excerpt_shows_what_was_found_wherever_it_stands(sqlite_desk: Desk, owner: Principal, line: str):
    with opened(sqlite_desk) as archive:
        (hit,) = one(archive, owner, line).search("needle").hits
        assert "needle" in hit.excerpt
        assert len(hit.excerpt) <= searching.EXCERPT_CHARS_MAX
        assert hit.excerpt.strip("…") in line


def test_what_was_not_looked_through_is_counted_as_left_out_and_what_is_forbidden_is_not(
    sqlite_desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(searching, "HITS_MAX", 2)
    rules = '[[restore]]\nsensitivity = ["psychiatry"]\nroles = ["doctor"]\n'
    with opened(sqlite_desk, rules) as archive:
        session = one(archive, owner, *(f"needle {number}" for number in range(5)))
        for result_id in ("r1", "r5"):
            session.label(result_id, sensitivity="psychiatry")
        found = session.search("needle")
        assert (places(found), found.searched, found.left_out) == ([("r4", 1), ("r3", 1)], 2, 1)
