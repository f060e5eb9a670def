"""Stored books in the hands of somebody who can write the database and has no keys.

Each attack is made past this library, triggers and all. What follows is that of SECURITY.md: whoever reads or adds to
the book notices, or the verification does; nothing that was put in or changed is ever told as what was put down.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from conftest import Conversation, Desk
from doubles import Characters, policy_of
from test_backup import back
from test_books import loosened
from test_session_window import size

from evidence_archive import Archive, EvidenceArchiveError, Principal
from evidence_archive import books as books_module
from evidence_archive.errors import SealBrokenError
from evidence_archive.ledger.checks import quotes
from evidence_archive.store import rows as store_rows
from evidence_archive.store.sql import SqlReader
from evidence_archive.window.carrying import HEAD

ROLES = {"agent", "custodian"}
NORTH = Principal(org="north-clinic", subject="owner", roles=ROLES)
SOUTH = Principal(org="south-clinic", subject="owner", roles=ROLES)
POLICY = policy_of("[window]\nwindow_tokens_max = 4000\n")
PAGE = "took 120 ms\n" * 60


def opened(desk: Desk) -> Archive:
    return desk.open(policy=POLICY, counter=Characters())


def goal_of(principal: Principal, name: str) -> str:
    return f"find the fault of {principal.org} {name}"


def worked(archive: Archive, principal: Principal, name: str) -> list[Any]:
    """A session with a card and a ledger; its messages."""
    session, talk = archive.session(name, principal), Conversation()
    talk.tool(f"{principal.org} {name}\n{PAGE}")
    talk.say()
    session.view(talk.messages)
    session.archive([("r1", "a note")])
    session.update_card([{"goal": goal_of(principal, name)}])
    session.update_card([{"add": "step", "text": "measure"}])
    session.ledger.verify(session.ledger.claim(f"120 ms in {name}", ["r1#L2"]), quotes("120 ms"), key=True)
    return talk.messages


@pytest.fixture
def filled(desk: Desk) -> Desk:
    """Two orgs with two sessions each."""
    with opened(desk) as archive:
        for principal in (NORTH, SOUTH):
            for name in ("case", "other"):
                worked(archive, principal, name)
    return desk


def scope(desk: Desk, principal: Principal = NORTH, name: str = "case") -> bytes:
    ((found,),) = desk.execute("SELECT scope_id FROM sessions WHERE org = ? AND session_id = ?", principal.org, name)
    return bytes(found)


def rows_of(desk: Desk, scope_id: bytes, book: str = "card") -> list[tuple[Any, ...]]:
    return desk.execute(
        "SELECT org, scope_id, book, seq, closed, created_at_us, seal FROM postings"
        " WHERE scope_id = ? AND book = ? ORDER BY seq",
        scope_id,
        book,
    )


def put_in(desk: Desk, *rows: tuple[Any, ...]) -> None:
    for row in rows:
        desk.execute(
            "INSERT INTO postings (org, scope_id, book, seq, closed, created_at_us, seal) VALUES"
            " (?, ?, ?, ?, ?, ?, ?)",
            *row,
        )


def remove(desk: Desk, scope_id: bytes, book: str = "card") -> None:
    desk.execute("DELETE FROM postings WHERE scope_id = ? AND book = ?", scope_id, book)


# --- the attacks ------------------------------------------------------------------------------------------------


def removed(desk: Desk, book: str = "card") -> None:
    desk.execute("DELETE FROM postings WHERE scope_id = ? AND book = ? AND seq = 2", scope(desk), book)


def all_removed(desk: Desk) -> None:
    remove(desk, scope(desk))


def duplicated(desk: Desk, book: str = "card") -> None:
    row = rows_of(desk, scope(desk), book)[-1]
    put_in(desk, (*row[:3], row[3] + 1, *row[4:]))


def swapped_within_a_book(desk: Desk) -> None:
    first, second = rows_of(desk, scope(desk))
    remove(desk, scope(desk))
    put_in(desk, (*first[:3], 2, *first[4:]), (*second[:3], 1, *second[4:]))


def contents_swapped(desk: Desk) -> None:
    first, second = rows_of(desk, scope(desk))
    remove(desk, scope(desk))
    put_in(desk, (*first[:4], second[4], *first[5:]), (*second[:4], first[4], *second[5:]))


def of_another_session(desk: Desk, book: str = "card") -> None:
    theirs = rows_of(desk, scope(desk, name="other"), book)
    remove(desk, scope(desk), book)
    put_in(desk, *((row[0], scope(desk), *row[2:]) for row in theirs))


def of_another_book(desk: Desk) -> None:
    theirs = rows_of(desk, scope(desk), "ledger")
    remove(desk, scope(desk))
    put_in(desk, *((*row[:2], "card", *row[3:]) for row in theirs[:2]))


def of_another_org(desk: Desk) -> None:
    theirs = rows_of(desk, scope(desk, SOUTH))
    remove(desk, scope(desk))
    put_in(desk, *((NORTH.org, scope(desk), *row[2:]) for row in theirs))


def byte_changed(desk: Desk) -> None:
    *before, row = rows_of(desk, scope(desk))
    closed = bytes(row[4])
    remove(desk, scope(desk))
    put_in(desk, *before, (*row[:4], closed[:-1] + bytes([closed[-1] ^ 1]), *row[5:]))


def time_changed(desk: Desk) -> None:
    desk.execute("UPDATE postings SET created_at_us = 1 WHERE scope_id = ? AND book = 'card'", scope(desk))


def count_changed(desk: Desk) -> None:
    desk.execute('UPDATE sessions SET books = \'{"card":1,"ledger":2}\' WHERE scope_id = ?', scope(desk))


def count_forgotten(desk: Desk) -> None:
    desk.execute("UPDATE sessions SET books = '' WHERE scope_id = ?", scope(desk))


ATTACKS: dict[Callable[[Desk], None], set[str]] = {
    removed: {"posting_missing"},
    all_removed: {"posting_missing"},
    duplicated: {"posting_unlogged"},
    swapped_within_a_book: {"posting_differs"},
    contents_swapped: {"posting_differs"},
    of_another_session: {"posting_differs"},
    of_another_book: {"posting_differs"},
    of_another_org: {"posting_differs"},
    byte_changed: {"posting_differs"},
    time_changed: {"seal_broken"},
    count_changed: {"seal_broken"},
    count_forgotten: {"seal_broken"},
}
"""Each with a finding that the verification has at least."""


@dataclass
class Seen:
    """What whoever uses the session is told: the name of an error, or what there is."""

    card: str
    change: str
    view: str


def told(act: Callable[[], Any]) -> str:
    try:
        return str(act())
    except EvidenceArchiveError as error:
        return type(error).__name__


def use(desk: Desk) -> Seen:
    with opened(desk) as archive:
        return Seen(
            told(lambda: archive.session("case", NORTH).card().goal),
            told(lambda: archive.session("case", NORTH).update_card([{"add": "step", "text": "on"}]).version),
            told(lambda: len(archive.session("case", NORTH).view([{"role": "user", "content": "go on"}]))),
        )


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_whoever_uses_a_book_that_was_attacked_notices_and_the_verification_says_what_it_is(filled, attack):
    loosened(filled)
    attack(filled)
    seen = use(filled)
    assert (seen.card, seen.change) == ("SealBrokenError", "SealBrokenError")
    assert seen.view in ("1", "SealBrokenError"), "a view goes on, unless the session's own row was changed"
    with opened(filled) as archive:
        codes = {one.code for one in archive.custody(NORTH).verify("full").findings}
        assert ATTACKS[attack] <= codes, codes
        assert archive.session("case", SOUTH).card().goal == goal_of(SOUTH, "case")


def test_without_an_attack_all_of_it_is_well(filled):
    assert use(filled) == Seen(goal_of(NORTH, "case"), "3", "2")
    with opened(filled) as archive:
        assert archive.custody(NORTH).verify("full").findings == ()


@pytest.mark.parametrize("attack", [removed, duplicated, of_another_session], ids=lambda attack: attack.__name__)
def test_an_attacked_ledger_closes_no_period_and_makes_no_fact(filled, attack):
    loosened(filled)
    attack(filled, "ledger")
    with opened(filled) as archive:
        ledger = archive.session("case", NORTH).ledger
        for act in (ledger.books, ledger.close, ledger.reconcile, lambda: ledger.claim("x", ["r1"])):
            with pytest.raises(SealBrokenError):
                act()


@pytest.mark.parametrize("attack", [removed, duplicated, of_another_book], ids=lambda attack: attack.__name__)
def test_a_view_goes_on_without_what_an_attacked_window_says_and_archiving_is_suspended(desk, attack):
    talk = Conversation()
    with opened(desk) as archive:
        session = archive.session("case", NORTH)
        for at in range(60):
            talk.tool(f"finding {at}\n" * 60)
            talk.say(f"turn {at} " * 90)
            view = session.view(talk.messages)
        assert HEAD in str(view)
    loosened(desk)
    if attack is of_another_book:
        row = rows_of(desk, scope(desk), "window")[-1]
        remove(desk, scope(desk), "window")
        put_in(desk, (*row[:2], "card", *row[3:]))
    else:
        attack(desk, "window")
    with opened(desk) as archive:
        session = archive.session("case", NORTH)
        view = session.view(talk.messages)
        assert HEAD not in str(view), "nothing of it is told"
        assert view[-1] == talk.messages[-1]
        assert size(view) <= 4_000
        assert session.stats().suspended == "integrity"
        assert size(session.view(talk.messages)) <= 4_000


# --- put back ---------------------------------------------------------------------------------------------------


def test_an_older_row_of_a_session_with_fewer_postings_is_found_by_the_verification_only(desk: Desk):
    with opened(desk) as archive:
        worked(archive, NORTH, "case")
    before, older = desk.rows("sessions"), rows_of(desk, scope(desk))
    with opened(desk) as archive:
        archive.session("case", NORTH).update_card([{"id": "s1", "to": "dropped", "reason": "a mistake"}])
    loosened(desk)
    put_back_row(desk, before)
    assert use(desk).card == "SealBrokenError", "it counts fewer postings than there are"
    remove(desk, scope(desk))
    put_in(desk, *older)
    with opened(desk) as archive:
        card = archive.session("case", NORTH).card()
        assert card.items["s1"].state == "draft", "an older state of single rows is not found at use"
        codes = {one.code for one in archive.custody(NORTH).verify("full").findings}
        assert {"posting_missing", "session_differs"} & codes


def put_back_row(desk: Desk, rows: list[tuple[Any, ...]]) -> None:
    """The sessions as they were, seals and all."""
    desk.execute("DELETE FROM sessions")
    for row in rows:
        desk.execute(f"INSERT INTO sessions VALUES ({', '.join('?' * len(row))})", *row)


def test_a_store_put_back_whole_tells_what_it_told_then(desk: Desk):
    with opened(desk) as archive:
        worked(archive, NORTH, "case")
    before = desk.saved()
    with opened(desk) as archive:
        archive.session("case", NORTH).update_card([{"add": "step", "text": "later"}])
    desk.put_back(before)
    with opened(desk) as archive:
        session = archive.session("case", NORTH)
        assert [item.text for item in session.card().items.values()] == ["measure"]
        assert session.update_card([{"add": "step", "text": "else"}]).version == 3
        assert archive.custody(NORTH).verify("full").findings == ()


# --- shreds and backups -----------------------------------------------------------------------------------------


def test_a_shred_of_a_session_leaves_no_key_that_opens_its_books_and_spares_all_others(filled: Desk):
    with opened(filled) as archive:
        own = scope(filled)
        before = rows_of(filled, own)
        wrapped = [bytes(row[0]) for row in filled.execute("SELECT wrapped FROM scope_keys WHERE scope_id = ?", own)]
        assert all(key in filled.stored() for key in wrapped)
        archive.custody(NORTH).shred(session_id="case")
        assert told(lambda: archive.session("case", NORTH).card()) == "ShreddedError"
        assert told(lambda: archive.session("case", NORTH).ledger.books()) == "ShreddedError"
        if filled.server is None:
            assert not [key for key in wrapped if key in filled.stored()]
        assert rows_of(filled, own) in ([], before), "what stays of them is sealed, and no key opens it"
        assert archive.session("other", NORTH).card().goal == goal_of(NORTH, "other")
        assert archive.session("case", SOUTH).ledger.reconcile(strong=True).agrees
        assert archive.custody(NORTH).verify("full").findings == ()


def test_postings_of_a_shredded_session_that_are_put_into_another_one_do_not_open(filled: Desk):
    theirs = rows_of(filled, scope(filled, name="other"))
    with opened(filled) as archive:
        archive.custody(NORTH).shred(session_id="other")
    loosened(filled)
    remove(filled, scope(filled))
    put_in(filled, *((row[0], scope(filled), *row[2:]) for row in theirs))
    assert use(filled).card == "SealBrokenError"


def test_books_come_back_from_a_backup_and_one_with_a_damaged_book_is_none(sqlite_desk: Desk, tmp_path: Path):
    with opened(sqlite_desk) as archive:
        worked(archive, NORTH, "case")
        archive.custody(NORTH).backup(tmp_path / "copy")
        archive.session("case", NORTH).update_card([{"add": "step", "text": "after it"}])
    copy = back(sqlite_desk, tmp_path / "copy", tmp_path / "back", policy=POLICY)
    with opened(copy) as archive:
        session = archive.session("case", NORTH)
        assert [item.text for item in session.card().items.values()] == ["measure"]
        assert session.ledger.reconcile(strong=True).agrees
    loosened(sqlite_desk)
    removed(sqlite_desk)
    with opened(sqlite_desk) as archive, pytest.raises(EvidenceArchiveError):
        archive.custody(NORTH).backup(tmp_path / "second")


# --- controls ---------------------------------------------------------------------------------------------------


def without_row_seals(patch: pytest.MonkeyPatch) -> None:
    """Break the core: rows are believed."""
    patch.setattr(store_rows, "check_row_seal", lambda *_: None)


def without_places(patch: pytest.MonkeyPatch) -> None:
    """Break the core: rows are believed, and a posting opens in any place of any session."""
    without_row_seals(patch)
    patch.setattr(books_module, "_context", lambda vault, scope_id, book, seq: b"anywhere")


def without_counts(patch: pytest.MonkeyPatch) -> None:
    """Break the core: a book is what its rows are."""
    patch.setattr(SqlReader, "posted", lambda self, scope_id, book: ANY)


@pytest.mark.parametrize(
    ("broken", "attack", "goal"),
    [
        (without_places, swapped_within_a_book, "FormatError"),
        (without_counts, removed, goal_of(NORTH, "case")),
        (without_row_seals, time_changed, goal_of(NORTH, "case")),
    ],
)
def test_must_fail_control_a_core_that_believes_what_is_stored_tells_it(
    sqlite_desk, broken, attack, goal, monkeypatch
):
    broken(monkeypatch)
    with opened(sqlite_desk) as archive:
        worked(archive, NORTH, "case")
    loosened(sqlite_desk)
    attack(sqlite_desk)
    with opened(sqlite_desk) as archive:
        assert told(lambda: archive.session("case", NORTH).card().goal) != "SealBrokenError"
        if goal != "FormatError":
            assert archive.session("case", NORTH).card().goal == goal
