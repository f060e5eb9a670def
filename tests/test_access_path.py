"""A "no" is one and the same, whatever its cause.

Unknown, another org's, another session's, forbidden, not archived and malformed requests are compared by everything a
caller or a bystander could tell them apart by: error, log events, audit entry, the statements the database runs, and
the calls that reach the key provider. What the caller asked for itself may differ, nothing else.
"""

import json
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import listen_to
from structlog.testing import capture_logs

from evidence_archive import Archive, NotAvailableError, Principal, Restored
from evidence_archive.keys import FileKeys
from evidence_archive.policy import Policy

OWNER = Principal(org="north-clinic", subject="owner")
COLLEAGUE = Principal(org="north-clinic", subject="colleague", roles={"agent"})
FOREIGNER = Principal(org="south-clinic", subject="owner", roles={"auditor"})
AUDITOR = Principal(org="north-clinic", subject="auditor", roles={"auditor"})

POLICY = Policy.loads(
    """
[policy]
name = "access"
version = 1
default = "allow"

[[restore]]
sensitivity = ["clinical"]
roles = ["auditor"]

[[restore]]
tools = ["drug.*"]
roles = ["auditor"]
"""
)


class SpyKeys:
    """A key provider that remembers every call."""

    def __init__(self, inner: FileKeys) -> None:
        self.inner = inner
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self.inner, name)

    def current_version(self, org: str) -> int:
        return self.__getattr__("current_version")(org)  # type: ignore[no-any-return]

    def fingerprint(self, org: str, version: int) -> bytes:
        return self.__getattr__("fingerprint")(org, version)  # type: ignore[no-any-return]

    def wrap(self, org: str, version: int, key: bytes, context: bytes) -> bytes:
        return self.__getattr__("wrap")(org, version, key, context)  # type: ignore[no-any-return]

    def unwrap(self, org: str, version: int, wrapped: bytes, context: bytes) -> bytes:
        return self.__getattr__("unwrap")(org, version, wrapped, context)  # type: ignore[no-any-return]


def restore_call(result_id: str) -> str:
    selectors = dict.fromkeys(("lines", "pattern", "context_lines", "pointer", "reason"))
    return json.dumps({"id": result_id, **selectors})


@dataclass
class Place:
    """An open archive, watched."""

    archive: Archive
    keys: SpyKeys
    statements: list[str] = field(default_factory=list)


def filled(archive: Archive, principal: Principal, name: str, words: str) -> None:
    session, talk = archive.session(name, principal), Conversation()
    for tool in ("logs.search", "logs.search", "logs.search", "drug.lookup"):
        talk.tool(words * 60, name=tool)
        talk.say()
        session.view(talk.messages)
    session.archive([("r1", "a note"), ("r2", "another")])
    session.label("r2", sensitivity="clinical")


@contextmanager
def watched(desk: Desk) -> Iterator[Place]:
    """A store of two orgs, opened anew under a watch."""
    with desk.open(policy=POLICY) as archive:
        filled(archive, OWNER, "case", "made-up finding ")
        filled(archive, OWNER, "other", "made-up finding ")
        filled(archive, FOREIGNER, "theirs", "made-up finding ")
    keys = SpyKeys(FileKeys(desk.keys))
    with desk.open(policy=POLICY, keys=keys) as archive:
        for principal in (OWNER, FOREIGNER):
            archive.audit(principal=principal)  # both orgs are in use
        place = Place(archive, keys)
        listen_to(archive, place.statements.append)
        yield place


@pytest.fixture
def place(desk: Desk) -> Iterator[Place]:
    with watched(desk) as place:
        yield place


@dataclass
class Trace:
    """All that a request leaves behind: the answer or the error, and what bystanders see of it."""

    answer: Any
    error: tuple[Any, ...] | None
    events: list[Any]
    statements: list[str]
    provider: list[str]
    audit: list[Any]


ASKED = "<asked>"


def traced(
    place: Place,
    principal: Principal,
    session: Any,
    result: Any,
    ask: Callable[[], Any],
    *,
    warm_up: Callable[[], Any] | None = None,
) -> Trace:
    """What asking shows, with what the caller asked for itself blanked out.

    Args:
        place: under a watch.
        principal, session, result: who asks for what.
        ask: asks, and returns or raises.
        warm_up: asks the same way before, for something else; for a session that is not there by default.
    """
    if warm_up is None:
        ask_once_to_warm_up(place, principal)
    else:
        warm_up()
    size = place.archive.audit(principal=principal).size
    place.statements.clear()
    place.keys.calls.clear()
    answer, caught = None, None
    with capture_logs() as events:
        try:
            answer = ask()
        except NotAvailableError as error:
            caught = error
    statements, calls = [shape(statement) for statement in place.statements], list(place.keys.calls)
    entries = place.archive.audit(principal=principal, start=size).entries

    def blank(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: blank(one) for key, one in value.items()}
        return ASKED if value in (session, result, principal.org, principal.subject, "r0", "", None) else value

    return Trace(
        answer=answer,
        error=None if caught is None else facts_of(caught),
        events=[blank(event) for event in events],
        statements=statements,
        provider=calls,
        audit=[(one.event, blank(one.session_id), blank(one.details), one.sealed_reason) for one in entries],
    )


def facts_of(error: BaseException) -> tuple[Any, ...]:
    """All that can be read from an error, but for the line of the test that asked."""
    frames = [(frame.name, frame.line) for frame in traceback.extract_tb(error.__traceback__)]
    return (
        type(error),
        str(error),
        repr(error),
        error.args,
        error.__cause__,
        error.__context__,
        error.__suppress_context__,
        vars(error),
        getattr(error, "__notes__", None),
        frames[2:],
    )


def ask_once_to_warm_up(place: Place, principal: Principal) -> None:
    with pytest.raises(NotAvailableError):
        place.archive.restore("warm", "r1", principal=principal)


def shape(statement: str) -> str:
    """A statement without the values in it."""
    return re.sub(r"x'[0-9A-Fa-f]*'|'(?:[^']|'')*'|\b\d+\b|NULL", "?", statement, flags=re.IGNORECASE)


REQUESTS: dict[str, tuple[Principal, Any, Any]] = {
    "an unknown session": (COLLEAGUE, "nowhere", "r1"),
    "an unknown result": (COLLEAGUE, "case", "r999"),
    "a result far beyond any": (COLLEAGUE, "case", "r" + "9" * 18),
    "another subject's result": (COLLEAGUE, "case", "r1"),
    "another subject's live result": (COLLEAGUE, "case", "r3"),
    "another session's result": (COLLEAGUE, "other", "r1"),
    "a result that its owner may not restore": (OWNER, "case", "r2"),
    "a live result of the owner": (OWNER, "case", "r3"),
    "a live result of the owner that rules forbid": (OWNER, "case", "r4"),
    "an unknown result of the owner": (OWNER, "case", "r999"),
    "a result that the auditor's rules do not open": (AUDITOR, "case", "r1"),
    "another org's session": (OWNER, "theirs", "r1"),
    "the same names in the other org": (FOREIGNER, "case", "r1"),
    "the same session, asked from the other org": (FOREIGNER, "other", "r2"),
    "a malformed result": (COLLEAGUE, "case", "R1"),
    "a result with a blank": (COLLEAGUE, "case", " r1"),
    "an empty result": (COLLEAGUE, "case", ""),
    "a result that is a number": (COLLEAGUE, "case", 1),
    "a result that is nothing": (COLLEAGUE, "case", None),
    "a result in other digits": (COLLEAGUE, "case", "r\u0661"),
    "a result of 2,000 characters": (COLLEAGUE, "case", "r" + "1" * 2_000),
    "a session that is empty": (COLLEAGUE, "", "r1"),
    "a session that is bytes": (COLLEAGUE, b"case", "r1"),
    "a session with a NUL": (COLLEAGUE, "case\x00", "r1"),
    "a session with a lone surrogate": (COLLEAGUE, "case\ud800", "r1"),
    "a session of 2,000 characters": (COLLEAGUE, "c" * 2_000, "r1"),
    "a session in another case": (COLLEAGUE, "CASE", "r1"),
    "a session with SQL in it": (COLLEAGUE, "' OR 1=1 --", "r1"),
    "a session with a wildcard": (COLLEAGUE, "cas%", "r1"),
    "a session as a path": (COLLEAGUE, "../case", "r1"),
}


def test_every_no_to_a_restore_is_the_same_no(place: Place) -> None:
    traces = {
        name: traced(
            place,
            principal,
            session,
            result,
            lambda principal=principal, session=session, result=result: place.archive.restore(  # type: ignore[misc]
                session, result, principal=principal, reason="curious"
            ),
        )
        for name, (principal, session, result) in REQUESTS.items()
    }
    first = next(iter(traces.values()))
    assert first.error is not None
    assert first.provider == [], "nothing is asked of the key provider before permission"
    assert len(first.statements) > 5, "the statements have to be seen at all"
    for name, trace in traces.items():
        assert trace == first, name


def test_a_granted_restore_would_be_seen_by_these_eyes(place: Place) -> None:
    place.archive.restore("case", "r1", principal=OWNER)
    place.statements.clear()
    place.keys.calls.clear()
    with capture_logs() as events:
        assert isinstance(place.archive.restore("other", "r1", principal=OWNER), Restored)
    assert [one["event"] for one in events] == ["evidence_archive.restored"]
    assert "unwrap" in place.keys.calls
    assert any("originals" in statement for statement in place.statements)


def test_a_lookup_in_two_steps_would_leak_by_its_statements(place: Place) -> None:
    def two_steps(principal: Principal, session_id: str, result: str) -> None:
        vault = place.archive._vault(principal)
        with vault.store.reading(vault.store_wait_ms) as reader:
            session = reader.session(session_id)
            if session is None:
                raise NotAvailableError
            rows = reader.results(session.scope_id, -1)
            if not any(f"r{row.number}" == result for row in rows) or session.subject != principal.subject:
                raise NotAvailableError

    def count(session_id: str) -> int:
        ask_once_to_warm_up(place, COLLEAGUE)
        place.statements.clear()
        with pytest.raises(NotAvailableError):
            two_steps(COLLEAGUE, session_id, "r1")
        return len(place.statements)

    assert count("nowhere") != count("case")


def test_every_no_to_a_model_is_the_same_text(desk: Desk) -> None:
    with desk.open(policy=POLICY) as archive:
        session, talk = archive.session("case", OWNER), Conversation()
        for _ in range(2):
            talk.tool("made-up finding " * 60)
            talk.say()
            session.view(talk.messages)
        session.archive([("r1", "a note"), ("r2", "another")])
        session.label("r2", sensitivity="clinical")
        texts = []
        for number, asked in enumerate(("r2", "r999", "r123456789012345678")):
            arguments = (
                '{"id": "%s", "lines": null, "pattern": null, "context_lines": null, "pointer": null, "reason": null}'
            )
            text = talk.ours(session, "restore_evidence", arguments % asked)["content"]
            texts.append(text.replace(f"r{2 + number}", "<last>").replace(asked, ASKED))
        assert len(set(texts)) == 1


@pytest.mark.parametrize("session", ["nowhere", "theirs", "", "case\ud800", "c" * 2_000, None, b"case"])
def test_every_no_to_a_listing_is_the_same_no(place: Place, session: Any) -> None:
    def trace(principal: Principal, session: Any) -> tuple[Any, ...]:
        place.statements.clear()
        place.keys.calls.clear()
        with capture_logs() as events, pytest.raises(NotAvailableError) as caught:
            place.archive.results(session, principal=principal)
        error = caught.value
        return (
            (str(error), repr(error), error.args, error.__cause__, error.__context__),
            events,
            [shape(statement) for statement in place.statements],
            list(place.keys.calls),
        )

    place.archive.audit(principal=COLLEAGUE)
    forbidden = trace(COLLEAGUE, "case")
    assert len(forbidden[2]) >= 2
    assert trace(COLLEAGUE, session) == forbidden


@pytest.mark.parametrize("session", ["nowhere", "theirs", "", "case\ud800", "c" * 2_000, None])
def test_a_session_that_is_not_there_cannot_be_resumed(place: Place, session: Any) -> None:
    before = place.archive.audit(principal=OWNER).size
    with pytest.raises(NotAvailableError) as caught:
        place.archive.resume(session, principal=OWNER)
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    assert place.archive.audit(principal=OWNER).size == before


def test_the_rules_for_an_original_hold_for_the_copy_of_it_too(desk: Desk) -> None:
    owner = Principal(org="north-clinic", subject="owner", roles={"auditor"})
    with desk.open(policy=POLICY) as archive:
        session, talk = archive.session("case", owner), Conversation()
        talk.tool("made-up finding " * 60, name="drug.lookup")
        talk.say()
        session.view(talk.messages)
        session.archive([("r1", "a note")])
        talk.ours(session, "restore_evidence", restore_call("r1"))
        session.view(talk.messages)
        talk.say()
        session.view(talk.messages)
        session.archive([("r2", "a copy")])
        assert archive.restore("case", "r2", principal=owner).content == "made-up finding " * 60
        without = Principal(org="north-clinic", subject="owner")
        for result in ("r1", "r2"):
            with pytest.raises(NotAvailableError):
                archive.restore("case", result, principal=without)
        assert [info.id for info in archive.results("case", principal=AUDITOR)] == ["r1"]


def test_a_label_put_on_an_original_afterwards_closes_the_copy_too(desk: Desk) -> None:
    with desk.open(policy=POLICY) as archive:
        session, talk = archive.session("case", OWNER), Conversation()
        talk.tool("made-up finding " * 60)
        talk.say()
        session.view(talk.messages)
        session.archive([("r1", "a note")])
        talk.ours(session, "restore_evidence", restore_call("r1"))
        session.view(talk.messages)
        talk.say()
        session.view(talk.messages)
        session.archive([("r2", "a copy")])
        assert session.restore("r2").content == "made-up finding " * 60
        session.label("r1", sensitivity="clinical")
        with pytest.raises(NotAvailableError):
            archive.restore("case", "r2", principal=OWNER)
