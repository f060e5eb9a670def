"""The rules for an original hold for what a window makes of it: spans, products and what a fact is made from."""

import json
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import Characters, policy_of
from test_session_window import everything

from evidence_archive import Archive, FormatError, NotAvailableError, Principal
from evidence_archive.archiving import Archiving, Kept
from evidence_archive.books import POSTING_BYTES_MAX, Books
from evidence_archive.leaving import Leaving
from evidence_archive.ledger.checks import quotes
from evidence_archive.records import Records

PHYSICIAN = Principal(org="north-clinic", subject="owner", roles={"physician"})
CLERK = Principal(org="north-clinic", subject="owner", roles={"agent"})
WINDOW = "[window]\nwindow_tokens_max = 4000\narchive_tokens_min = 50\n"
RULES = f'{WINDOW}[[restore]]\nsensitivity = ["medical"]\nroles = ["physician"]\n'
NEVER = '[[archive]]\nid = "chart"\neffect = "never"\ntools = ["chart.*"]\n'
SECRET = "a made-up diagnosis\n"


def opened(desk: Desk, rules: str = RULES) -> Archive:
    return desk.open(policy=policy_of(rules), counter=Characters())


def filled(archive: Archive, principal: Principal = PHYSICIAN) -> tuple[Any, Conversation]:
    """A session with a labelled result in view."""
    session, talk = archive.session("case", principal), Conversation()
    session.label(talk.tool(SECRET * 3), sensitivity="medical")
    talk.say()
    session.view(talk.messages)
    return session, talk


def longer(session: Any, talk: Conversation, turns: int = 30) -> list[Any]:
    """A view after so many turns that those before them have left."""
    view = []
    for at in range(turns):
        talk.tool(f"finding {at}\n" * 60)
        talk.say(f"turn {at} " * 60)
        view = session.view(talk.messages)
    return view


def spans_with_it(archive: Archive, principal: Principal) -> list[str]:
    """The ids of spans and products that hold the secret, as far as somebody may have them."""
    session, found = archive.session("case", principal), []
    session._records.refresh(1_000)
    for row in session._records.rows.values():
        if row.own in ("span", "artifact"):
            try:
                if "made-up diagnosis" in str(session.restore(f"r{row.number}").content):
                    found.append(f"r{row.number}")
            except NotAvailableError:
                continue
    return found


def test_what_left_a_window_is_under_the_rules_of_every_result_in_it(desk: Desk):
    """A span is under all their rules, for what was said of them; what they said is in their originals alone."""
    with opened(desk) as archive:
        longer(*filled(archive))
        session, clerk = archive.session("case", PHYSICIAN), archive.session("case", CLERK)
        assert session.restore("r1").content == SECRET * 3
        first = next(row.number for row in session._records.rows.values() if row.own == "span")
        assert "[r1: a result" in session.restore(f"r{first}").content
        for id in ("r1", f"r{first}"):
            with pytest.raises(NotAvailableError):
                clerk.restore(id)
        assert spans_with_it(archive, PHYSICIAN) == []
        assert archive.session("case", CLERK).search("diagnosis").hits == ()
        assert archive.session("case", PHYSICIAN).search("diagnosis").hits != ()


def test_what_is_kept_for_a_fact_is_under_the_rules_of_what_it_is_made_from(desk: Desk):
    with opened(desk) as archive:
        session, _ = filled(archive)
        session.ledger.verify(session.ledger.claim("a claim", ["r1#L1"]), quotes("diagnosis"), key=True)
        assert spans_with_it(archive, PHYSICIAN) == ["r2"]
        assert spans_with_it(archive, CLERK) == []
        clerk = archive.session("case", CLERK).ledger
        with pytest.raises(NotAvailableError):
            clerk.claim("another", ["r2#L1"])
        with pytest.raises(NotAvailableError):
            clerk.verify(clerk.books().claims["c1"], quotes("diagnosis"))
        assert not clerk.reconcile(strong=True).agrees, "what may not be read again does not agree"


def test_must_fail_control_what_is_kept_without_labels_is_open_to_others(
    sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    keep = Archiving.keep
    monkeypatch.setattr(Archiving, "keep", lambda self, kept: keep(self, Kept(kept.own, kept.content, kept.words)))
    with opened(sqlite_desk) as archive:
        session, _ = filled(archive)
        session.ledger.claim("a claim", ["r1#L1"])
        assert spans_with_it(archive, CLERK) != []


def test_must_fail_control_a_span_of_messages_as_they_were_holds_what_results_said(
    sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    def naive(self: Leaving, at: int, message: Any) -> str:
        return self._records.dialect.plain(self._records.timeline.messages[at])

    monkeypatch.setattr(Leaving, "_line", naive)
    with opened(sqlite_desk) as archive:
        longer(*filled(archive))
        assert spans_with_it(archive, PHYSICIAN) != []


def test_a_large_result_that_a_policy_keeps_in_view_is_not_archived_by_the_host(desk: Desk):
    with opened(desk, f"{WINDOW}{NEVER}") as archive:
        session, talk = archive.session("case", CLERK), Conversation()
        talk.tool("chart of a made-up patient\n" * 80, name="chart.show")
        talk.say()
        view = longer(session, talk)
        states = {info.id: info.state for info in session.results()}
        assert states["r1"] == "live"
        assert any(str(one["content"]).endswith("chart of a made-up patient\n" * 80) for one in view)
        assert "archived" in states.values(), "others are"


def test_must_fail_control_a_host_that_does_not_ask_archives_it(sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Records, "protection", lambda *_: None)
    with opened(sqlite_desk, f"{WINDOW}{NEVER}") as archive:
        session, talk = archive.session("case", CLERK), Conversation()
        talk.tool("chart of a made-up patient\n" * 80, name="chart.show")
        talk.say()
        longer(session, talk)
        assert session.results()[0].state != "live"


def test_a_model_makes_claims_and_changes_on_the_card_and_no_fact(desk: Desk):
    """Whatever tools a model is offered, none of them verifies, closes or posts a fact."""
    with opened(desk, WINDOW) as archive:
        session, talk = archive.session("case", CLERK), Conversation()
        talk.tool("took 120 ms\n" * 50)
        talk.say()
        session.view(talk.messages)
        for tool in [one["function"]["name"] for one in session.tools]:
            for given in ({"text": "it is so", "sources": ["r1#L1"]}, {"changes": [{"goal": "x"}]}, {"verify": "c1"}):
                talk.ours(session, tool, json.dumps(given))
        assert session.ledger.books().facts == {}
        assert session.ledger.books().periods == {}


def test_a_card_refers_to_nothing_of_another_session(desk: Desk):
    with opened(desk) as archive:
        filled(archive)
        other = archive.session("other", PHYSICIAN)
        decision = {"add": "decision", "text": "x", "reason": "y", "references": ["r1"]}
        with pytest.raises(FormatError):
            other.update_card([decision])
        with pytest.raises(NotAvailableError):
            other.ledger.claim("x", ["r1"])
        assert other.search("diagnosis").hits == ()


def test_no_name_of_a_tool_and_no_number_of_open_points_keeps_turns_from_being_archived(sqlite_desk: Desk):
    with opened(sqlite_desk, WINDOW) as archive:
        session, talk = archive.session("case", CLERK), Conversation()
        for at in range(60):
            talk.tool(f"finding {at}\n", name=("tool " * 600 if at % 9 == 0 else "logs.search"))
            points = [f"Point {at}.{nth} is not yet clear{' at all' * 30}." for nth in range(8)]
            talk.say(" ".join(points))
            view = session.view(talk.messages)
        told = [row for row in session._records.rows.values() if row.own == "span"]
        assert len(told) > 5
        assert everything(session, view, talk.messages) == []
        assert session.stats().suspended is None
        book = Books(session._records).read("window")
        assert len(book) == len(told), "each span is told of"
        assert max(len(json.dumps(dict(one.content))) for one in book) < POSTING_BYTES_MAX // 2
