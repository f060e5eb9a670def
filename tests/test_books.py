"""The books of a session: only ever added to, sealed to their place, noticed when anything is missing or changed."""

import sqlite3
import threading
from dataclasses import replace
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import AWAY, UNANSWERED, UNCOMMITTED, Characters, opened, patient, policy_of
from hypothesis import given
from hypothesis import strategies as st

from evidence_archive import Archive, Principal
from evidence_archive import books as module
from evidence_archive.books import POSTING_BYTES_MAX, Books, Posting, open_posting, posting_key
from evidence_archive.errors import FormatError, SealBrokenError, ShreddedError, StoreUnavailableError
from evidence_archive.store.sql import SqlReader

KEEPER = Principal(org="north-clinic", subject="records", roles={"custodian"})
BOOK = "card"


def books_of(archive: Archive, owner: Principal, name: str = "case") -> Books:
    return Books(archive.session(name, owner)._records)


def put(books: Books, *contents: Any, book: str = BOOK) -> list[Posting]:
    return books.post(book, lambda known: (contents, None))[0]


def contents(books: Books, book: str = BOOK) -> list[Any]:
    return [posting.content for posting in books.read(book)]


def loosened(desk: Desk) -> None:
    """What an attacker does first: the triggers would only be in the way."""
    if desk.server is None:
        for what in ("insert", "update", "delete"):
            desk.execute(f"DROP TRIGGER postings_only_grow_{what}")
    else:
        desk.execute("ALTER TABLE postings DISABLE TRIGGER USER")


# --- what comes back --------------------------------------------------------------------------------------------


def test_what_was_put_down_comes_back_in_order_in_each_book_and_in_another_process(desk: Desk, owner: Principal):
    with desk.open() as archive:
        books = books_of(archive, owner)
        assert books.read(BOOK) == []
        first = put(books, {"a": 1}, {"b": [True, None, "\ud800 ü"]})
        other = put(books, {"else": "x"}, book="ledger")
        last = put(books, {"c": {}})
        assert [one.seq for one in (*first, *other, *last)] == [1, 2, 1, 3]
        assert contents(books) == [{"a": 1}, {"b": [True, None, "\ud800 ü"]}, {"c": {}}]
    with desk.open() as archive:
        assert contents(books_of(archive, owner)) == [{"a": 1}, {"b": [True, None, "\ud800 ü"]}, {"c": {}}]
        assert contents(books_of(archive, owner), "ledger") == [{"else": "x"}]
        assert contents(books_of(archive, owner, "another case")) == []


def test_more_than_one_read_holds_comes_back(archive: Archive, owner: Principal):
    books = books_of(archive, owner)
    put(books, *({"at": at} for at in range(700)))
    put(books, *({"at": at} for at in range(700, 1_300)))
    books = books_of(archive, owner)
    assert [one["at"] for one in contents(books)] == list(range(1_300))


def test_of_a_book_that_holds_much_memory_keeps_what_is_asked_for_and_some_of_it_can_be_read(
    desk: Desk, owner: Principal
):
    with desk.open() as archive:
        session = archive.session("case", owner)
        books = Books(session._records, without=frozenset({"data"}))
        new = put(books, {"at": 1, "data": "x"}, {"at": 2, "data": "y"}, {"at": 3})
        assert [one.content for one in new] == contents(books) == [{"at": 1}, {"at": 2}, {"at": 3}]
        assert contents(books_of(archive, owner)) == [{"at": 1, "data": "x"}, {"at": 2, "data": "y"}, {"at": 3}]
        assert [one.content for one in books.among(BOOK, 2, 3)] == [{"at": 2, "data": "y"}, {"at": 3}]
        for first, last in ((3, 4), (4, 4)):
            with pytest.raises(SealBrokenError):
                books.among(BOOK, first, last)


def test_a_decision_sees_all_that_was_put_down_and_what_it_raises_changes_nothing(archive: Archive, owner: Principal):
    books, other = books_of(archive, owner), books_of(archive, owner)
    put(books, {"a": 1})
    seen = []

    def decide(known: Any) -> Any:
        seen.append([one.content for one in known])
        if len(known) == 1:
            return [{"a": 2}], "decided"
        raise FormatError("no")

    assert other.post(BOOK, decide)[1] == "decided"
    with pytest.raises(FormatError, match="no"):
        other.post(BOOK, decide)
    assert seen == [[{"a": 1}], [{"a": 1}, {"a": 2}]]
    assert contents(books) == [{"a": 1}, {"a": 2}]
    assert books.post(BOOK, lambda known: ([], len(known))) == ([], 2)


def test_every_posting_is_in_the_log_by_its_digest_and_nothing_of_what_it_says(desk: Desk, owner: Principal):
    with desk.open() as archive:
        put(books_of(archive, owner), {"note": "made-up secret 4711"}, {})
        entry = archive.audit(principal=owner).entries[-1]
        assert (entry.event, entry.session_id, entry.subject) == ("book.posted", "case", owner.subject)
        assert (entry.details["book"], entry.details["first"], len(entry.details["digests"])) == (BOOK, 1, 2)
        assert archive.custody(KEEPER).verify("full").findings == ()
    assert b"4711" not in desk.stored()


@pytest.mark.parametrize(
    "content",
    [{"x": float("nan")}, {"x": object()}, {"x": "a" * POSTING_BYTES_MAX}, {"x": b"bytes"}],
    ids=["no number", "an object", "too long", "bytes"],
)
def test_what_is_no_json_or_too_long_is_refused_and_nothing_is_put_down(
    archive: Archive, owner: Principal, content: Any
):
    books = books_of(archive, owner)
    with pytest.raises(FormatError):
        put(books, {"fine": 1}, content)
    with pytest.raises(FormatError):
        put(books, *[{}] * (module.POSTINGS_MAX + 1))
    assert contents(books) == []


# --- several at once --------------------------------------------------------------------------------------------


def count_up(books: Books, times: int) -> None:
    for _ in range(times):
        books.post(BOOK, lambda known: ([{"count": len(known)}], None))


def test_posters_at_once_lose_nothing_and_each_sees_what_the_other_decided(desk: Desk, owner: Principal):
    errors: list[BaseException] = []
    with desk.open(policy=patient()) as one, desk.open(policy=patient()) as two:
        shelves = [books_of(archive, owner) for archive in (one, two, one)]

        def work(books: Books) -> None:
            try:
                count_up(books, 12)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(books,)) for books in shelves]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert [one["count"] for one in contents(shelves[0])] == list(range(36))


def test_must_fail_control_a_poster_that_decides_on_what_it_knew_before_counts_twice(
    desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    with desk.open() as one, desk.open() as two:
        first, second = books_of(one, owner), books_of(two, owner)
        count_up(first, 1)
        second.read(BOOK)
        count_up(first, 1)
        monkeypatch.setattr(Books, "_read_on", lambda self, reader, session, book: self._known[book][0])
        count_up(second, 1)
        monkeypatch.undo()
        assert [one["count"] for one in contents(books_of(one, owner))] == [0, 1, 1]


def test_what_a_session_archives_and_what_it_puts_down_do_not_disturb_each_other(
    desk: Desk, owner: Principal, talk: Conversation
):
    with desk.open() as archive:
        session = archive.session("case", owner)
        books = books_of(archive, owner)
        for number in range(1, 4):
            talk.tool(f"finding {number}\n" * 100)
            talk.say()
            session.view(talk.messages)
            put(books, {"read": number})
            session.archive([(f"r{number}", "a note")])
        assert [info.state for info in session.results()] == ["archived"] * 3
        assert len(contents(books)) == 3
        assert archive.custody(KEEPER).verify("full").findings == ()


# --- nothing is changed or removed ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE postings SET created_at_us = 0",
        "UPDATE postings SET closed = closed WHERE seq = 1",
        "DELETE FROM postings",
        "DELETE FROM postings WHERE seq = 2",
    ],
)
def test_the_database_refuses_to_change_or_remove_a_posting(desk: Desk, owner: Principal, statement: str):
    with desk.open() as archive:
        put(books_of(archive, owner), {"a": 1}, {"a": 2})
    before = desk.rows("postings")
    with pytest.raises(Exception, match="postings only grow"):
        desk.execute(statement)
    assert desk.rows("postings") == before


def test_sqlite_refuses_to_put_another_posting_in_its_place(sqlite_desk: Desk, owner: Principal):
    with sqlite_desk.open() as archive:
        put(books_of(archive, owner), {"a": 1})
    (row,) = sqlite_desk.rows("postings")
    for words in ("INSERT OR REPLACE", "REPLACE", "INSERT"):
        with pytest.raises(sqlite3.IntegrityError):
            sqlite_desk.execute(f"{words} INTO postings VALUES (?, ?, ?, ?, ?, ?, ?)", *row[:5], 0, row[6])
    assert sqlite_desk.rows("postings") == [row]


def test_postgresql_refuses_to_empty_the_table(postgresql_desk: Desk, owner: Principal):
    with postgresql_desk.open() as archive:
        put(books_of(archive, owner), {"a": 1})
    with pytest.raises(Exception, match="postings only grow"):
        postgresql_desk.execute("TRUNCATE postings")


@pytest.mark.parametrize("seq", [1, 2, 3])
def test_a_posting_that_was_removed_past_all_that_is_noticed_by_whoever_reads_or_posts(
    desk: Desk, owner: Principal, seq: int
):
    with desk.open() as archive:
        put(books_of(archive, owner), {"a": 1}, {"a": 2}, {"a": 3})
    loosened(desk)
    desk.execute("DELETE FROM postings WHERE seq = ?", seq)
    with desk.open() as archive:
        books = books_of(archive, owner)
        with pytest.raises(SealBrokenError):
            books.read(BOOK)
        with pytest.raises(SealBrokenError):
            put(books, {"a": 4})
        found = {one.code for one in archive.custody(KEEPER).verify().findings}
        assert found == {"posting_missing", "session_differs"}


def test_must_fail_control_without_the_count_a_removed_end_would_not_be_noticed(
    desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    with desk.open() as archive:
        put(books_of(archive, owner), {"a": 1}, {"a": 2})
    loosened(desk)
    desk.execute("DELETE FROM postings WHERE seq = 2")
    monkeypatch.setattr(SqlReader, "posted", lambda self, scope_id, book: (2, 2))
    with desk.open() as archive:
        assert contents(books_of(archive, owner)) == [{"a": 1}]


def test_a_posting_stands_only_in_its_own_place(archive: Archive, owner: Principal):
    books = books_of(archive, owner)
    put(books, {"a": 1}, {"a": 2})
    records = books._records
    with records.vault.store.reading(1_000) as reader:
        rows = reader.postings(records.row.scope_id, BOOK, 0, 10)
    key = posting_key(records.keys.tag)
    assert open_posting(records.vault, key, rows[0]) == {"a": 1}
    for changed in (
        replace(rows[0], seq=2),
        replace(rows[0], book="ledger"),
        replace(rows[0], scope_id=b"x" * 16),
        replace(rows[0], closed=rows[1].closed),
        replace(rows[0], closed=rows[0].closed[:-1]),
    ):
        with pytest.raises(SealBrokenError):
            open_posting(records.vault, key, changed)


def test_a_store_that_was_put_back_and_written_since_is_read_anew(desk: Desk, owner: Principal):
    with desk.open() as archive:
        put(books_of(archive, owner), {"a": 1})
    before = desk.saved()
    with desk.open() as archive:
        known = books_of(archive, owner)
        put(known, {"a": 2}, {"a": 3})
    desk.put_back(before)
    with desk.open() as archive:
        books = books_of(archive, owner)
        put(books, {"b": 2}, {"b": 3}, {"b": 4})
        books._known = known._known  # as a process would that was there all the time
        assert contents(books) == [{"a": 1}, {"b": 2}, {"b": 3}, {"b": 4}]


# --- keys -------------------------------------------------------------------------------------------------------


def test_the_books_outlive_the_shred_of_an_original_and_a_rotation(desk: Desk, owner: Principal, talk: Conversation):
    with desk.open() as archive:
        session = archive.session("case", owner)
        talk.tool("finding\n" * 200)
        talk.say()
        session.view(talk.messages)
        session.archive([("r1", "a note")])
        books = books_of(archive, owner)
        put(books, {"a": 1})
        archive.custody(KEEPER).shred(session_id="case", result_id="r1")
        put(books, {"a": 2})
        archive.custody(KEEPER).rotate()
        put(books, {"a": 3})
    with desk.open() as archive:
        assert contents(books_of(archive, owner)) == [{"a": 1}, {"a": 2}, {"a": 3}]
        assert archive.custody(KEEPER).verify("full").findings == ()


def test_a_shredded_session_takes_its_books_with_it(desk: Desk, owner: Principal):
    with desk.open() as archive:
        session = archive.session("case", owner)
        books = Books(session._records)
        put(books, {"a": 1})
        archive.custody(KEEPER).shred(session_id="case")
        with pytest.raises(ShreddedError):
            put(books, {"a": 2})
        assert archive.custody(KEEPER).verify("full").findings == ()


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=8),
        max_size=4,
    )
)
def test_any_json_comes_back_equal(content: dict[str, Any]):
    from types import SimpleNamespace

    from evidence_archive.ports import PostingRow

    vault: Any = SimpleNamespace(deployment=b"d" * 16, org="north-clinic")
    key = posting_key(b"k" * 32)
    closed = module.close_posting(vault, key, scope_id=b"s" * 16, book=BOOK, seq=7, content=content)
    assert open_posting(vault, key, PostingRow(b"s" * 16, BOOK, 7, closed, 0)) == content


# --- commits whose end was not told -----------------------------------------------------------------------------


def told_and_there(desk: Desk, owner: Principal, fault: str) -> tuple[str, list[Any], tuple[Any, ...]]:
    """What somebody who tries once more after an error is told first, what stands in the book then, and findings."""
    with opened(desk, policy=policy_of(), counter=Characters()) as archive:
        books = books_of(archive, owner)
        put(books, {"a": 1})
        told = "done"
        if fault == UNCOMMITTED:
            archive.flaky.plan.error("store.commit.before", times=1)
        elif fault == UNANSWERED:
            archive.flaky.plan.error("store.commit.after", times=1)
        else:  # and it stays away, so that nobody can look
            archive.flaky.plan.outage("store.commit.after")
        try:
            put(books, {"a": 2})
        except StoreUnavailableError as error:
            told = str(error)
            archive.flaky.plan.clear()
            if "not known" not in told:
                put(books, {"a": 2})
        there = contents(books)
        assert contents(books_of(archive, owner)) == there
        return told, there, archive.custody(KEEPER).verify("full").findings


def test_a_commit_that_was_reported_as_failed_is_looked_up_and_told_as_it_is(desk: Desk, owner: Principal):
    told, there, findings = told_and_there(desk, owner, UNANSWERED)
    assert (told, there, findings) == ("done", [{"a": 1}, {"a": 2}], ())


def test_a_commit_that_failed_is_told_as_failed(desk: Desk, owner: Principal):
    told, there, findings = told_and_there(desk, owner, UNCOMMITTED)
    assert (told != "done", "not known" in told, there, findings) == (True, False, [{"a": 1}, {"a": 2}], ())


def test_a_commit_that_nobody_can_look_up_is_told_as_unknown(desk: Desk, owner: Principal):
    told, there, findings = told_and_there(desk, owner, AWAY)
    assert "It is not known whether this was put down" in told
    assert (there, findings) == ([{"a": 1}, {"a": 2}], ())


def test_a_looked_up_commit_overtakes_nothing_that_others_did_meanwhile(desk: Desk, owner: Principal):
    with opened(desk, policy=policy_of(), counter=Characters()) as archive, desk.open(policy=patient()) as elsewhere:
        session, other, talk = archive.session("case", owner), elsewhere.session("case", owner), Conversation()
        books = Books(session._records)
        session.view(talk.messages)
        talk.tool("a made-up result")

        def faster() -> None:
            other.view(talk.messages)
            put(Books(other._records), {"b": 1})
            raise StoreUnavailableError("The connection broke.")

        archive.flaky.plan.run("store.commit.after", faster)
        put(books, {"a": 1})
        assert contents(books) == [{"a": 1}, {"b": 1}]
        assert set(session._records.rows) == {1}
        session.view(talk.messages)
        assert archive.custody(KEEPER).verify("full").findings == ()


def test_must_fail_control_books_that_are_not_looked_up_are_written_twice(
    sqlite_desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    def naive(self: Books, last: Any, error: Exception) -> Any:
        raise error

    monkeypatch.setattr(Books, "_settled", naive)
    assert told_and_there(sqlite_desk, owner, UNANSWERED)[1] == [{"a": 1}, {"a": 2}, {"a": 2}]
