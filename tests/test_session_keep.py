"""What a session archives besides results of tools: turns that left the window, and products of the agent."""

import json
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import policy_of

from evidence_archive import Archive, Principal
from evidence_archive.archiving import Kept
from evidence_archive.errors import BatchRejectedError, HeldError, NotAvailableError, ShreddedError

KEEPER = Principal(org="north-clinic", subject="records", roles={"custodian"})
TURNS = json.dumps([{"role": "assistant", "content": "It was the cache. \ud800"}] * 40)


def keep(session: Any, content: Any = TURNS, **named: Any) -> str:
    receipt = session._archiving.keep(Kept("span", content, "messages 3 to 42", **named))
    return str(receipt.targets[0].result_id)


def read(session: Any, talk: Conversation, text: str) -> None:
    talk.tool(text)
    talk.say()
    session.view(talk.messages)


def test_what_is_kept_gets_the_next_id_and_comes_back_exactly_in_any_process(desk: Desk, owner: Principal):
    talk = Conversation()
    with desk.open() as archive:
        session = archive.session("case", owner)
        read(session, talk, "finding\n" * 100)
        assert keep(session) == "r2"
        read(session, talk, "another finding\n" * 100)
        session.archive([("r1", "a note"), ("r3", "a note")])
        assert keep(session, [{"type": "text", "text": "parts"}]) == "r4"
        assert session.restore("r2").content == TURNS
        assert [info.id for info in session.results()] == ["r1", "r3"]
    with desk.open() as archive:
        session = archive.session("case", owner)
        assert session.restore("r2", lines="1").content == TURNS
        assert archive.restore("case", "r4", principal=owner).content == [{"type": "text", "text": "parts"}]
        view = session.view(talk.messages)
        assert [text for text in (one["content"] for one in view) if text and text.startswith("[archived r")] != []
        assert archive.custody(KEEPER).verify("full").findings == ()
        assert archive.audit(principal=owner).intact


def test_a_model_restores_it_by_its_id_and_cannot_archive_it_again(archive: Archive, owner: Principal):
    session, talk = archive.session("case", owner), Conversation()
    read(session, talk, "finding\n" * 100)
    assert keep(session) == "r2"
    asked = dict.fromkeys(("lines", "pattern", "context_lines", "pointer", "reason"))
    answer = talk.ours(session, "restore_evidence", json.dumps({"id": "r2", **asked}))
    assert TURNS in answer["content"]
    with pytest.raises(BatchRejectedError) as caught:
        session.archive([("r2", "a note")])
    assert caught.value.targets[0].status == "already_archived"


def test_no_message_is_ever_taken_for_it(archive: Archive, owner: Principal):
    """A tool that happens to return the very same text, without a call id, is a result of its own."""
    session, talk = archive.session("case", owner), Conversation()
    assert keep(session) == "r1"
    talk.tool(TURNS, call_id="")
    talk.say()
    view = session.view(talk.messages)
    assert view[2]["content"].startswith("[evidence r2 ")


def test_it_is_held_shredded_and_counted_as_every_original(desk: Desk, owner: Principal):
    with desk.open(policy=policy_of(quota_originals_max=2)) as archive:
        session = archive.session("case", owner)
        assert (keep(session), keep(session)) == ("r1", "r2")
        with pytest.raises(BatchRejectedError) as caught:
            keep(session)
        assert caught.value.reason == "quota"
        custody = archive.custody(KEEPER)
        hold = custody.hold("a lawsuit", session_id="case", result_id="r1")
        with pytest.raises(HeldError):
            custody.shred(session_id="case", result_id="r1")
        custody.release(hold.id)
        custody.shred(session_id="case", result_id="r1")
        with pytest.raises(ShreddedError):
            session.restore("r1")
        assert keep(session) == "r3"
        assert session.restore("r2").content == TURNS
        assert custody.verify("full").findings == ()
    with desk.open() as archive:
        assert archive.session("case", owner).view([{"role": "user", "content": "go on"}])


def test_whoever_may_not_see_what_is_in_it_may_not_restore_it(desk: Desk, owner: Principal):
    rules = (
        '[[restore]]\nroles = ["auditor"]\n[[restore]]\nsensitivity = ["medical"]\nroles = ["physician"]\n'
        '[[restore]]\nsensitivity = ["billing"]\nroles = ["auditor"]\n'
    )
    auditor = Principal(org=owner.org, subject="somebody", roles={"auditor"})
    with desk.open(policy=policy_of(rules)) as archive:
        session = archive.session("case", owner)
        open_to_auditors = keep(session, sensitivity=frozenset({"billing"}))
        not_to_all = keep(session, sensitivity=frozenset({"billing", "medical"}))
        assert archive.restore("case", open_to_auditors, principal=auditor).content == TURNS
        both = Principal(org=owner.org, subject="somebody", roles={"auditor", "physician"})
        assert archive.restore("case", not_to_all, principal=both).content == TURNS
        physician = Principal(org=owner.org, subject="somebody", roles={"nobody"})
        with pytest.raises(NotAvailableError):
            archive.restore("case", not_to_all, principal=physician)


def test_two_processes_that_keep_at_once_get_two_ids(desk: Desk, owner: Principal):
    with desk.open() as one, desk.open() as two:
        first, second = one.session("case", owner), two.session("case", owner)
        found = [keep(session, f"{TURNS}{at}") for at, session in enumerate((first, second, first, second))]
        assert found == ["r1", "r2", "r3", "r4"]
        assert [first.restore(result_id).content for result_id in found] == [f"{TURNS}{at}" for at in range(4)]
