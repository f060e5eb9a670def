"""Somebody guesses ids: no door tells whether there is anything behind a "no".

Every door of the read path is asked for what is unknown, another org's, another session's, forbidden, not archived
and malformed. What comes back and what is left behind is compared whole: answer or error with its traceback, events,
statements, calls of the key provider, audit entries. What was asked for itself may differ, nothing else.
"""

import asyncio
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import structlog
from conftest import Conversation, Desk
from test_access_path import (
    COLLEAGUE,
    FOREIGNER,
    OWNER,
    REQUESTS,
    Place,
    Trace,
    restore_call,
    traced,
    watched,
)

from evidence_archive import AsyncArchive, NotAvailableError, Principal, Session
from evidence_archive.aio import AsyncSession, _Verbs
from evidence_archive.errors import FormatError
from evidence_archive.restoring import Found, Restoring
from evidence_archive.vault import asked_session

ASIDE, OURS = "made-up finding " * 60, "case"
THEIRS_ONLY, OTHERS_ONLY = "r5", "r6"
"""Numbers that only the other org's session, and only the owner's other session, has issued."""
SHREDDED_ORIGINAL, SHREDDED_SESSION = "emptied", "ended"
"""Sessions of the owner: of one the only original was shredded, of the other the whole session."""


@contextmanager
def with_late_numbers(desk: Desk) -> Iterator[Place]:
    """The store of the access path, in which sessions have issued numbers that no other has."""
    with watched(desk) as place:
        for principal, name, count in ((FOREIGNER, "theirs", 1), (OWNER, "other", 2)):
            session, talk = place.archive.session(name, principal), Conversation()
            for number in range(count):
                talk.tool(f"{number} {ASIDE}", call_id=f"late_{number}")
            talk.say()
            session.view(talk.messages)
            session.archive([(f"r{5 + number}", "a note") for number in range(count)])
        for name in (SHREDDED_ORIGINAL, SHREDDED_SESSION):
            session, talk = place.archive.session(name, OWNER), Conversation()
            talk.tool(ASIDE)
            talk.say()
            session.view(talk.messages)
            session.archive([("r1", "a note")])
        custody = place.archive.custody(Principal(OWNER.org, "records-office", {"custodian"}))
        custody.shred(session_id=SHREDDED_ORIGINAL, result_id="r1")
        custody.shred(session_id=SHREDDED_SESSION)
        yield place
    structlog.reset_defaults()


@pytest.fixture
def guessed(desk: Desk) -> Iterator[Place]:
    with with_late_numbers(desk) as place:
        yield place


@pytest.fixture
def sqlite_guessed(sqlite_desk: Desk) -> Iterator[Place]:
    with with_late_numbers(sqlite_desk) as place:
        yield place


# --- doors of an archive ----------------------------------------------------------------------------------------


def restore(place: Place, principal: Principal, session_id: Any, result_id: Any) -> Any:
    return place.archive.restore(session_id, result_id, principal=principal, reason="curious")


def restore_part(place: Place, principal: Principal, session_id: Any, result_id: Any) -> Any:
    return place.archive.restore(session_id, result_id, principal=principal, pattern="finding", context_lines=1)


def restore_to(place: Place, principal: Principal, session_id: Any, result_id: Any) -> Any:
    file = io.BytesIO()
    try:
        return place.archive.restore_to(file, session_id, result_id, principal=principal)
    finally:
        assert file.getvalue() == b""


def restore_awaited(place: Place, principal: Principal, session_id: Any, result_id: Any) -> Any:
    return asyncio.run(AsyncArchive(place.archive).restore(session_id, result_id, principal=principal))


def restore_to_awaited(place: Place, principal: Principal, session_id: Any, result_id: Any) -> Any:
    file = io.BytesIO()
    return asyncio.run(AsyncArchive(place.archive).restore_to(file, session_id, result_id, principal=principal))


ARCHIVE_DOORS = (restore, restore_part, restore_to, restore_awaited, restore_to_awaited)

ARCHIVE_REQUESTS = {
    **REQUESTS,
    "a number that only the other org has issued": (OWNER, OURS, THEIRS_ONLY),
    "a number that only another session has issued": (OWNER, OURS, OTHERS_ONLY),
    "a number that only another subject's session has issued": (COLLEAGUE, "other", OTHERS_ONLY),
    "another subject's shredded original": (COLLEAGUE, SHREDDED_ORIGINAL, "r1"),
    "another subject's shredded session": (COLLEAGUE, SHREDDED_SESSION, "r1"),
    "the other org asks for what was shredded": (FOREIGNER, SHREDDED_ORIGINAL, "r1"),
}


def traces(
    place: Place, door: Callable[..., Any], requests: dict[str, tuple[Principal, Any, Any]]
) -> dict[str, Trace]:
    """What each request shows at a door of the archive."""
    return {
        name: traced(place, who, session, result, lambda: door(place, who, session, result))  # noqa: B023 - called at once
        for name, (who, session, result) in requests.items()
    }


def other_than_the_first(found: dict[str, Trace]) -> list[str]:
    """The requests that can be told apart from the first one."""
    first = next(iter(found.values()))
    return [name for name, trace in found.items() if trace != first]


@pytest.mark.parametrize("door", ARCHIVE_DOORS)
def test_every_no_of_an_archive_is_the_same_no(guessed, door):
    found = traces(guessed, door, ARCHIVE_REQUESTS)
    first = next(iter(found.values()))
    assert first.error is not None
    assert first.error[0] is NotAvailableError
    assert "find" in {name for name, _ in first.error[-1]}, "the traceback was looked at"
    assert len(first.statements) > 5
    assert (first.provider, len(first.audit), len(first.events)) == ([], 1, 1)
    assert other_than_the_first(found) == []


# --- doors of a session -----------------------------------------------------------------------------------------


def session_restore(session: Session, result_id: Any) -> Any:
    return session.restore(result_id, reason="curious")


def session_restore_part(session: Session, result_id: Any) -> Any:
    return session.restore(result_id, lines="1-2")


def session_restore_awaited(session: Session, result_id: Any) -> Any:
    async def awaited() -> Any:
        return await AsyncSession(session, _Verbs()).restore(result_id)

    return asyncio.run(awaited())


def _call(session: Session, result_id: Any) -> dict[str, Any]:
    session._answering.restores_this_turn = 0
    function = {"name": "restore_evidence", "arguments": restore_call(result_id)}
    return {"id": "q", "type": "function", "function": function}


def _without_ids(message: Any) -> Any:
    return {**message, "content": re.sub(r"\br\d+\b", "<id>", message["content"])}


def answered(session: Session, result_id: Any) -> Any:
    """What a model is told, without the ids in it."""
    return _without_ids(session.answer(_call(session, result_id)))


def answered_awaited(session: Session, result_id: Any) -> Any:
    async def awaited() -> Any:
        return await AsyncSession(session, _Verbs()).answer(_call(session, result_id))

    return _without_ids(asyncio.run(awaited()))


WELL_FORMED = {
    "unknown": "r999",
    "far beyond any": "r" + "9" * 18,
    "only the other org's": THEIRS_ONLY,
    "only another session's": OTHERS_ONLY,
    "forbidden": "r2",
    "live, and in no view": "r3",
    "live, forbidden, and in no view": "r4",
}

MALFORMED = {
    f"malformed: {text!a:.40}": text
    for text in (
        *("", "R1", " r1", "r1\n", "r01", "r-1", "r\u0661", "r1\x00", "\ud800", "r" + "1" * 2_000),
        *(1, None, ["r1"], True),
    )
}


def session_traces(place: Place, door: Callable[..., Any], requests: dict[str, Any]) -> dict[str, Trace]:
    """What each request shows at a door of the owner's session."""
    session = place.archive.session(OURS, OWNER)

    def warm_up() -> None:
        with suppress(NotAvailableError):
            door(session, "r777")

    return {
        name: traced(place, OWNER, OURS, result, lambda: door(session, result), warm_up=warm_up)  # noqa: B023
        for name, result in requests.items()
    }


@pytest.mark.parametrize("door", [session_restore, session_restore_part, session_restore_awaited])
def test_every_no_of_a_session_is_the_same_no(guessed, door):
    found = session_traces(guessed, door, WELL_FORMED | MALFORMED)
    first = next(iter(found.values()))
    assert first.error is not None
    assert len(first.statements) > 5
    assert (first.provider, len(first.audit), len(first.events)) == ([], 1, 1)
    assert other_than_the_first(found) == []


@pytest.mark.parametrize("door", [answered, answered_awaited])
def test_every_no_to_a_model_is_the_same_no(guessed, door):
    found = session_traces(guessed, door, WELL_FORMED)
    first = next(iter(found.values()))
    assert "no result of this ID is available here" in str(first.answer)
    assert (first.error, first.provider, len(first.audit), len(first.events)) == (None, [], 1, 1)
    assert other_than_the_first(found) == []


def test_what_a_model_writes_wrongly_is_told_before_anything_is_looked_up(guessed):
    """It learns from that how to write an id; nothing in it depends on what there is."""
    found = session_traces(guessed, answered, MALFORMED)
    first = next(iter(found.values()))
    looked_up = session_traces(guessed, answered, {"unknown": "r999"})["unknown"].statements
    assert "id must be a string such as" in first.answer["content"]
    assert (first.error, first.provider) == (None, [])
    assert any(" JOIN " in statement for statement in looked_up)
    assert not any(" JOIN " in statement for statement in first.statements)
    assert other_than_the_first(found) == []


def test_an_answer_and_a_grant_would_be_seen_by_these_eyes(guessed):
    session = guessed.archive.session(OURS, OWNER)
    found = session_traces(guessed, answered, {**WELL_FORMED, "its own": "r1"})
    assert other_than_the_first(found) == ["its own"]
    assert session.restore("r1").content == ASIDE
    assert other_than_the_first(traces(guessed, restore, {**REQUESTS, "its own": (OWNER, "other", "r1")})) == [
        "its own"
    ]


# --- controls ---------------------------------------------------------------------------------------------------


def there(session_id: Any, result_id: Any) -> bool:
    """Whether something is there, found out without a trace."""
    return (session_id, result_id) in {(OURS, "r1"), (OURS, "r2"), ("other", "r1"), ("theirs", "r1")}


def another_text(restoring: Restoring, find: Callable[..., Found], *asked: Any) -> Found:
    try:
        return find(restoring, *asked)
    except NotAvailableError as error:
        if there(*asked[1:]):
            error.args = ("Forbidden.",)
        raise


def another_cause(restoring: Restoring, find: Callable[..., Found], *asked: Any) -> Found:
    try:
        return find(restoring, *asked)
    except NotAvailableError:
        if type(asked[2]) is not str:
            raise NotAvailableError from FormatError("no id")
        raise


def a_hidden_context(restoring: Restoring, find: Callable[..., Found], *asked: Any) -> Found:
    try:
        return find(restoring, *asked)
    except NotAvailableError as error:
        if there(*asked[1:]):
            error.__context__ = PermissionError()
        raise


def a_note_on_it(restoring: Restoring, find: Callable[..., Found], *asked: Any) -> Found:
    try:
        return find(restoring, *asked)
    except NotAvailableError as error:
        if not there(*asked[1:]):
            error.add_note("nothing there")
        raise


def refused_elsewhere(restoring: Restoring, find: Callable[..., Found], *asked: Any) -> Found:
    def refuse() -> None:
        raise NotAvailableError

    try:
        return find(restoring, *asked)
    except NotAvailableError:
        pass
    if there(*asked[1:]):
        refuse()
    raise NotAvailableError


def session_first(restoring: Restoring, find: Callable[..., Found], *asked: Any) -> Found:
    vault = restoring._vault
    with vault.store.reading(vault.store_wait_ms) as reader:
        session = reader.session(asked_session(asked[1]))
        if session is not None:
            reader.scope(session.scope_id)
    return find(restoring, *asked)


def keys_before_permission(restoring: Restoring, find: Callable[..., Found], *asked: Any) -> Found:
    if there(*asked[1:]):
        restoring._vault.around.keys.current_version("north-clinic")
    return find(restoring, *asked)


def logged_why(restoring: Restoring, find: Callable[..., Found], *asked: Any) -> Found:
    try:
        return find(restoring, *asked)
    except NotAvailableError:
        restoring._vault.log.warning("why", there=there(*asked[1:]))
        raise


def audited_twice(restoring: Restoring, find: Callable[..., Found], *asked: Any) -> Found:
    if there(*asked[1:]):
        restoring.denied(asked[0], asked[1], 1)
    return find(restoring, *asked)


@pytest.mark.parametrize(
    "naive",
    [
        another_text,
        another_cause,
        a_hidden_context,
        a_note_on_it,
        refused_elsewhere,
        session_first,
        keys_before_permission,
        logged_why,
        audited_twice,
    ],
)
def test_must_fail_control_a_door_that_tells_more_is_caught(sqlite_guessed, naive, monkeypatch):
    find = Restoring.find
    monkeypatch.setattr(
        Restoring, "find", lambda self, who, session, result, also=None: naive(self, find, who, session, result)
    )
    assert other_than_the_first(traces(sqlite_guessed, restore, ARCHIVE_REQUESTS)) != []
