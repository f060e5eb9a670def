"""What every store has to keep: one suite that ours and anybody's inherit."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import pytest

from evidence_archive.errors import (
    IntegrityError,
    MisuseError,
    SealBrokenError,
    StoreBusyError,
    StoreError,
)
from evidence_archive.ports import (
    BatchRow,
    ObjectRow,
    OrgRow,
    OrgStore,
    PostingRow,
    Reader,
    ResultRow,
    ScopeRow,
    SessionRow,
    Store,
    StoredOriginal,
    Writer,
)
from evidence_archive.proof.merkle import Frontier, leaf_hash, root_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["StoreContract"]

R = TypeVar("R", bound="DataclassInstance")

ORG, OTHER_ORG = "north-clinic", "south-clinic"
ROW_KEY = bytes(range(32))
"""Of both orgs, so that a row of the other one is not refused for its seal alone."""
SCOPE = b"s" * 16
WAIT_MS = 10_000
SHORT_WAIT_MS = 50
QUEUE_WAIT_MS = 30_000
THREAD_SECONDS_MAX = 120


class StoreContract:
    """The promises of :class:`~evidence_archive.ports.Store`, as tests.

    Inherit from it in a class whose name begins with ``Test``, and say how a store is made::

        class TestOurStore(StoreContract):
            def make(self, folder):
                return OurStore(folder)
    """

    def make(self, folder: Path) -> Store:
        """An empty store.

        Args:
            folder: exists, is empty, and is kept for the whole test; a store elsewhere uses its name.

        Raises:
            MisuseError: the class that inherits does not say how.
        """
        raise MisuseError("Say how a store is made: define make(folder) in your class.")

    def reopen(self, folder: Path) -> Store:
        """Another object over the durable state of the store that :meth:`make` made in this folder.

        Args:
            folder: as :meth:`make` got it.

        Raises:
            MisuseError: the class that inherits does not say how.
        """
        raise MisuseError("Say how a store is opened again: define reopen(folder) in your class.")

    def alter(self, folder: Path, kind: str) -> bool:
        """Change a stored value of the first org outside the library; whether that was done.

        Without it the tests that need it are skipped.

        Args:
            folder: as :meth:`make` got it.
            kind: which rows: ``org``, ``session`` (its ``version``), ``scope`` (its ``kek_version``), ``result`` (its
                ``tokens``), ``batch`` or ``posting`` (its ``created_at_us``) or ``head`` (its ``policy_digest``).
        """
        return False

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        """An empty store."""
        store = self.make(tmp_path)
        yield store
        store.close()

    @pytest.fixture
    def org(self, store: Store) -> OrgStore:
        """A new org in it."""
        return made(store, ORG)

    @pytest.fixture
    def filled(self, org: OrgStore) -> OrgStore:
        """The org with one row of every kind."""
        with org.writing(WAIT_MS, audited=True) as writer:
            fill(writer)
        return org

    # --- orgs ---------------------------------------------------------------------------------------------------

    def test_an_org_that_was_never_made_is_none(self, store: Store) -> None:
        """Looking makes nothing."""
        assert store.org(ORG) is None
        assert store.org(ORG) is None

    def test_the_first_to_make_an_org_wins_and_the_second_gets_the_same_row(self, store: Store) -> None:
        """Creation is exclusive, so that two processes never seal with two keys; the loser's leaves are not kept."""
        assert store.create_org(org_row(ORG), ROW_KEY, [leaf_of(b"first")]) == org_row(ORG)
        second = replace(org_row(ORG), deployment=b"x" * 16, aux_wrapped=b"other")
        assert store.create_org(second, b"k" * 32, [leaf_of(b"second")]) == org_row(ORG)
        assert store.org(ORG) == org_row(ORG)
        assert log_of(store.scoped(org_row(ORG), ROW_KEY)) == [b"0|first"]

    def test_threads_that_make_an_org_at_once_all_get_one_row(self, store: Store) -> None:
        """Whoever wins, all go on with the winner's key."""
        got: list[OrgRow] = []

        def create(number: int) -> None:
            row = replace(org_row(ORG), deployment=bytes([number]) * 16)
            got.append(store.create_org(row, bytes([number]) * 32, [leaf_of(b"%d" % number)]))

        assert at_once(create) == []
        assert len({row.deployment for row in got}) == 1
        winner = got[0].deployment[0]
        assert log_of(store.scoped(got[0], bytes([winner]) * 32)) == [b"0|%d" % winner]

    def test_an_org_opens_only_with_its_own_row_under_its_own_key(self, store: Store, org: OrgStore) -> None:
        """The org's row carries a seal, checked before anything in the org is believed."""
        for row, row_key in (
            (org_row(ORG), b"k" * 32),
            (replace(org_row(ORG), aux_wrapped=b"else"), ROW_KEY),
            (org_row(OTHER_ORG), ROW_KEY),
        ):
            with pytest.raises(SealBrokenError):
                store.scoped(row, row_key)

    # --- all or nothing -----------------------------------------------------------------------------------------

    def test_what_a_write_did_is_there_when_it_ends(self, store: Store, filled: OrgStore) -> None:
        """Every row of every kind comes back equal, from every method that reads it."""
        assert seen(filled) == everything()
        assert seen(store.scoped(org_row(ORG), ROW_KEY)) == everything()

    def test_it_survives_the_object_that_wrote_it(self, store: Store, filled: OrgStore, tmp_path: Path) -> None:
        """A commit is durable: another object over the same state sees all of it."""
        store.close()
        again = self.reopen(tmp_path)
        try:
            assert again.org(ORG) == org_row(ORG)
            assert seen(again.scoped(org_row(ORG), ROW_KEY)) == everything()
        finally:
            again.close()

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
    def test_a_write_that_raises_leaves_nothing(self, org: OrgStore, error: type[BaseException]) -> None:
        """Whatever is raised, an interrupt too, the transaction is rolled back."""
        before = seen(org)
        with pytest.raises(error), org.writing(WAIT_MS, audited=True) as writer:
            fill(writer, error=error)
        assert seen(org) == before

    @pytest.mark.parametrize("done", range(8))
    def test_a_write_that_stops_after_any_step_leaves_nothing(self, org: OrgStore, done: int) -> None:
        """No part of a transaction is ever there without the rest."""
        before = seen(org)
        with pytest.raises(Stopped), org.writing(WAIT_MS, audited=True) as writer:
            fill(writer, done, error=Stopped)
        assert seen(org) == before

    def test_failed_writes_use_nothing_up(self, org: OrgStore) -> None:
        """After many failures the next write finds a connection and the lock."""
        for _ in range(40):
            with suppress(Stopped), org.writing(WAIT_MS, audited=True):
                raise Stopped
        with org.writing(WAIT_MS, audited=True) as writer:
            fill(writer)
        assert seen(org) == everything()

    def test_nothing_to_write_is_no_error(self, filled: OrgStore) -> None:
        """Empty lists are allowed everywhere."""
        with filled.writing(WAIT_MS, audited=True) as writer:
            writer.insert_results([])
            writer.update_results([])
            writer.insert_originals([])
            writer.append([])
        assert seen(filled) == everything()

    def test_a_writer_sees_what_it_wrote(self, org: OrgStore) -> None:
        """Inside the transaction reads see its own rows, because decisions are taken there."""
        with org.writing(WAIT_MS, audited=True) as writer:
            fill(writer)
            assert seen_by(writer) == everything()

    # --- rows that must, and must not, be there -----------------------------------------------------------------

    def test_an_update_of_a_row_that_is_not_there_is_refused(self, filled: OrgStore) -> None:
        """Exactly the rows that were named must change, or none does."""
        with pytest.raises(StoreError), filled.writing(WAIT_MS, audited=False) as writer:
            writer.update_results([result_row(1, version=9), result_row(99, version=9)])
        with pytest.raises(StoreError), filled.writing(WAIT_MS, audited=False) as writer:
            writer.update_session(replace(session_row(), session_id="nobody"))
        assert seen(filled) == everything()

    @pytest.mark.parametrize("kind", ["session", "result", "original", "batch", "idempotency key", "posting"])
    def test_a_second_row_under_the_same_key_is_refused(self, filled: OrgStore, kind: str) -> None:
        """What is there is never overwritten by an insert."""
        again: dict[str, Callable[[Writer], None]] = {
            "session": lambda writer: writer.insert_session(session_row(), scope_row(b"x" * 16)),
            "result": lambda writer: writer.insert_results([result_row(1)]),
            "original": lambda writer: writer.insert_originals([StoredOriginal(b"1" * 16, b"else")]),
            "batch": lambda writer: writer.insert_batch(replace(BATCH, idempotency_key="other")),
            "idempotency key": lambda writer: writer.insert_batch(replace(BATCH, batch_id=b"c" * 16)),
            "posting": lambda writer: writer.insert_postings([replace(POSTINGS[0], closed=b"else")]),
        }
        with pytest.raises(StoreError), filled.writing(WAIT_MS, audited=False) as writer:
            again[kind](writer)
        assert seen(filled) == everything()

    def test_every_write_of_a_session_stamps_it_anew(self, filled: OrgStore) -> None:
        """A store that was put back and written since must not pass for the one that was known."""
        stamps = []
        for _ in range(3):
            with filled.writing(WAIT_MS, audited=False) as writer:
                row = writer.session("case")
                assert row is not None
                stamps.append(row.stamp)
                writer.update_session(row)
        assert len(set(stamps)) == 3

    # --- values -------------------------------------------------------------------------------------------------

    def test_envelopes_come_back_byte_for_byte(self, org: OrgStore) -> None:
        """Of every length and with every byte, in any number; an unknown one is None."""
        originals = [StoredOriginal(bytes([at]) * 16, bytes(range(256)) * at * 3) for at in range(1, 121)]
        originals.append(StoredOriginal(b"large" * 3 + b"!", bytes(range(256)) * 8_192))
        with org.writing(WAIT_MS, audited=False) as writer:
            writer.insert_originals(originals)
        with org.reading(WAIT_MS) as reader:
            assert [reader.envelope(one.original_id) for one in originals] == [one.envelope for one in originals]
            assert reader.envelope(b"unknown-original") is None

    def test_values_come_back_equal_whatever_they_are(self, org: OrgStore) -> None:
        """Bytes with NUL, empty ones, every kind of letter, the largest number, and what is not set."""
        rows = [
            result_row(1, call_id=b"", tool_name=b"\0\xff\xed\xa0\x80", part=b"", kind="", sensitivity="a\nb"),
            result_row(2, call_id=bytes(range(256)), tokens=2**62, kind="\u00fc \U0001f600 'x' \"y\" %s ;--"),
            result_row(3, result_tool_name=None, own="copy", origin=1, state="archived", closed=b"\0" * 300),
        ]
        name = "case/../\u00fc \U0001f600"
        with org.writing(WAIT_MS, audited=False) as writer:
            writer.insert_session(replace(session_row(), session_id=name, suspended=""), scope_row())
            writer.insert_results(rows)
        with org.reading(WAIT_MS) as reader:
            assert reader.results(SCOPE, -1) == rows
            found = reader.find(name, 2)
        assert found is not None
        assert (found[0].session_id, found[0].suspended, found[1], found[2]) == (name, "", scope_row(), rows[1])

    # --- finding ------------------------------------------------------------------------------------------------

    def test_only_results_that_changed_since_a_version_are_read_by_number(self, filled: OrgStore) -> None:
        """A process that comes second takes over what changed, in order."""
        with filled.writing(WAIT_MS, audited=False) as writer:
            writer.insert_results([result_row(5, version=3), result_row(4, version=2)])
        with filled.reading(WAIT_MS) as reader:
            assert [row.number for row in reader.results(SCOPE, 1)] == [1, 4, 5]
            assert [row.number for row in reader.results(SCOPE, 2)] == [5]
            assert reader.results(SCOPE, 3) == []
            assert reader.results(b"o" * 16, -1) == []

    def test_a_batch_is_found_by_its_key_if_one_is_given_else_by_its_request(self, filled: OrgStore) -> None:
        """And never across sessions."""
        with filled.reading(WAIT_MS) as reader:
            assert reader.batch(SCOPE, BATCH.request_tag, None) == BATCH
            assert reader.batch(SCOPE, b"any request", "key") == BATCH
            assert reader.batch(SCOPE, BATCH.request_tag, "other key") is None
            assert reader.batch(SCOPE, b"z" * 32, None) is None
            assert reader.batch(b"o" * 16, BATCH.request_tag, None) is None
            assert reader.batch(b"o" * 16, BATCH.request_tag, "key") is None

    def test_postings_are_read_by_book_in_order_some_at_a_time(self, filled: OrgStore) -> None:
        """Every book of a session has its own, and other sessions have others."""
        with filled.reading(WAIT_MS) as reader:
            assert reader.postings(SCOPE, "a", 0, 1) == [POSTINGS[0]]
            assert reader.postings(SCOPE, "a", 1, 10) == [POSTINGS[2]]
            assert reader.postings(SCOPE, "b", 0, 10) == [POSTINGS[1]]
            assert reader.postings(SCOPE, "c", 0, 10) == []
            assert reader.postings(b"o" * 16, "a", 0, 10) == []
            assert (reader.posted(SCOPE, "c"), reader.posted(b"o" * 16, "a")) == ((0, 0), (0, 0))

    def test_what_is_not_there_is_none_or_empty(self, filled: OrgStore) -> None:
        """Unknown is no error."""
        with filled.reading(WAIT_MS) as reader:
            assert reader.session("nobody") is None
            assert reader.scope(b"o" * 16) is None
            assert reader.find("case", 99) is None
            assert reader.find("nobody", 1) is None
            assert reader.leaves(99, 10) == []
            assert reader.sessions("zzz", 10) == []

    def test_sessions_and_leaves_are_paged_without_gap_or_repeat(self, org: OrgStore) -> None:
        """Sessions by the order of their ids' UTF-8, leaves by number."""
        ids = sorted(
            ["a", "ab", "b/../c", "case-1", "case-10", "case-2", "\u00fc", "\U0001f600", "~"], key=str.encode
        )
        with org.writing(WAIT_MS, audited=True) as writer:
            for at, name in enumerate(ids):
                scope_id = bytes([at]) * 16
                writer.insert_session(replace(session_row(), session_id=name, scope_id=scope_id), scope_row(scope_id))
            writer.append([leaf_of(b"x")] * 24)
        with org.reading(WAIT_MS) as reader:
            for count in (1, 4, 100):
                found: list[str] = []
                while page := reader.sessions(found[-1] if found else "", count):
                    assert len(page) <= count
                    found += [row.session_id for row in page]
                assert found == ids
            assert [one for start in range(0, 25, 7) for one in reader.leaves(start, 7)] == reader.leaves(0, 1_000)

    # --- the log ------------------------------------------------------------------------------------------------

    def test_leaves_get_their_numbers_and_the_head_moves_with_them(self, org: OrgStore) -> None:
        """A leaf is built from the number it gets; a policy's digest stays until another one comes."""
        for digest in ("one", None, "two"):
            with org.writing(WAIT_MS, audited=True) as writer:
                writer.append([leaf_of(b"x"), leaf_of(b"y")], digest)
        with org.reading(WAIT_MS) as reader:
            assert reader.head().policy_digest == "two"
        assert log_of(org)[:3] == [b"0|made", b"1|x", b"2|y"]
        assert len(log_of(org)) == 7

    def test_a_transaction_that_did_not_lock_the_log_may_not_append(self, org: OrgStore) -> None:
        """Without the lock two of them would fork it."""
        with pytest.raises(StoreError), org.writing(WAIT_MS, audited=False) as writer:
            writer.append([leaf_of(b"x")])
        assert log_of(org) == [b"0|made"]

    def test_threads_that_append_at_once_never_fork_the_log(self, org: OrgStore) -> None:
        """The head is where the writers of an org queue."""

        def append(number: int) -> None:
            for _ in range(8):
                with org.writing(QUEUE_WAIT_MS, audited=True) as writer:
                    writer.append([leaf_of(b"%d" % number)])

        assert at_once(append) == []
        assert len(log_of(org)) == 1 + 8 * 8

    def test_no_update_of_a_session_is_lost_between_writers(self, filled: OrgStore) -> None:
        """A writer has its session for itself from where it reads it, whether or not it locked the log too."""

        def count(number: int) -> None:
            for at in range(8):
                with filled.writing(QUEUE_WAIT_MS, audited=(number + at) % 2 == 0) as writer:
                    row = writer.session("case")
                    assert row is not None
                    writer.update_session(replace(row, version=row.version + 1))

        assert at_once(count) == []
        with filled.reading(WAIT_MS) as reader:
            row = reader.session("case")
        assert row is not None
        assert row.version == session_row().version + 8 * 8

    # --- large originals -----------------------------------------------------------------------------------------

    def test_an_intent_becomes_a_place_and_comes_back_equal(self, org: OrgStore) -> None:
        """Each of the rows that are named changes or goes, and no other."""
        one, two, place = object_row(1), object_row(2), object_row(1, state="stored")
        with org.writing(WAIT_MS, audited=False) as writer:
            writer.insert_objects([one, two])
            assert writer.object(one.original_id) == one
        with org.writing(WAIT_MS, audited=True) as writer:
            writer.update_objects([place])
        assert objects_of(org) == [place, two, None]
        with org.writing(WAIT_MS, audited=True) as writer:
            writer.delete_objects([two])
        assert objects_of(org) == [place, None, None]

    @pytest.mark.parametrize("change", ["update_objects", "delete_objects"])
    def test_a_change_of_objects_of_which_one_is_not_there_is_refused(self, org: OrgStore, change: str) -> None:
        """What another one collected is not committed."""
        with org.writing(WAIT_MS, audited=False) as writer:
            writer.insert_objects([object_row(1)])
        with pytest.raises(StoreError), org.writing(WAIT_MS, audited=True) as writer:
            getattr(writer, change)([object_row(1, state="stored"), object_row(2)])
        assert objects_of(org) == [object_row(1), None, None]

    def test_only_what_is_over_and_named_by_nothing_lapses_the_oldest_first(self, filled: OrgStore) -> None:
        """What lapses is deleted: nothing that is stored, nothing a result names, nothing before its time."""
        rows = [
            object_row(1, expires_at_us=1),  # a result names it
            object_row(3, expires_at_us=2, state="stored"),
            object_row(4, expires_at_us=9),
            object_row(5, expires_at_us=5, state="abandoned"),
            object_row(6, expires_at_us=10),
        ]
        with filled.writing(WAIT_MS, audited=False) as writer:
            writer.insert_objects(rows)
        with filled.reading(WAIT_MS) as reader:
            assert reader.lapsed_objects(9, 10) == [rows[3], rows[2]]
            assert reader.lapsed_objects(9, 1) == [rows[3]]
            assert reader.lapsed_objects(8, 10) == [rows[3]]

    # --- others at the same time --------------------------------------------------------------------------------

    def test_a_reader_sees_one_moment_while_others_write(self, org: OrgStore) -> None:
        """All reads of one ``reading`` block are of one snapshot, whether the others get through or have to wait."""

        def write(number: int) -> None:
            with suppress(StoreBusyError), org.writing(SHORT_WAIT_MS, audited=True) as writer:
                fill(writer)

        with org.reading(WAIT_MS) as reader:
            before = seen_by(reader)
            assert at_once(write, threads=1) == []
            assert seen_by(reader) == before

    def test_nobody_sees_what_is_not_committed(self, org: OrgStore) -> None:
        """Neither by ``reading`` nor by ``peeking``."""
        found: list[object] = []

        def look(number: int) -> None:
            for opened in (org.reading, org.peeking):
                with suppress(StoreBusyError), opened(SHORT_WAIT_MS) as reader:
                    found.append(reader.session("case"))

        with org.writing(WAIT_MS, audited=True) as writer:
            fill(writer)
            assert at_once(look, threads=1) == []
        assert set(found) <= {None}

    def test_who_waits_for_the_lock_is_told_so_in_the_end(self, org: OrgStore) -> None:
        """A wait is bounded, and ends in a StoreBusyError; when the lock is free the next one gets it."""
        errors: list[BaseException] = []

        def write(number: int) -> None:
            with org.writing(SHORT_WAIT_MS, audited=True) as writer:
                writer.append([leaf_of(b"late")])

        with org.writing(WAIT_MS, audited=True) as writer:
            writer.append([leaf_of(b"held")])
            errors += at_once(write, threads=1)
        assert [type(error) for error in errors] == [StoreBusyError]
        assert at_once(write, threads=1) == []
        assert log_of(org) == [b"0|made", b"1|held", b"2|late"]

    def test_peeking_reads_what_was_committed(self, filled: OrgStore) -> None:
        """One statement, without a transaction around it."""
        with filled.peeking(WAIT_MS) as reader:
            assert stripped(reader.session("case")) == session_row()

    # --- orgs do not meet ---------------------------------------------------------------------------------------

    def test_nothing_of_one_org_is_found_through_another(self, store: Store, filled: OrgStore) -> None:
        """The org is part of every statement."""
        other = made(store, OTHER_ORG)
        with other.reading(WAIT_MS) as reader:
            assert reader.session("case") is None
            assert reader.scope(SCOPE) is None
            assert reader.results(SCOPE, -1) == []
            assert reader.find("case", 1) is None
            assert reader.envelope(b"1" * 16) is None
            assert reader.batch(SCOPE, BATCH.request_tag, None) is None
            assert reader.batch(SCOPE, b"", "key") is None
            assert reader.sessions("", 10) == []
            assert reader.leaves(0, 10) == [(0, b"0|made")]
            assert reader.head().size == 1

    def test_nothing_of_one_org_is_changed_through_another(self, store: Store, filled: OrgStore) -> None:
        """A row of another org is one that is not there."""
        other = made(store, OTHER_ORG)
        with pytest.raises(StoreError), other.writing(WAIT_MS, audited=False) as writer:
            writer.update_session(session_row())
        with pytest.raises(StoreError), other.writing(WAIT_MS, audited=False) as writer:
            writer.update_results([result_row(1, version=9)])
        assert seen(filled) == everything()

    def test_two_orgs_may_use_the_same_ids(self, store: Store, filled: OrgStore) -> None:
        """Nobody can tell by a refusal what another org holds."""
        other = made(store, OTHER_ORG)
        with other.writing(WAIT_MS, audited=True) as writer:
            fill(writer)
            writer.update_results([result_row(1, version=9)])
        assert seen(filled) == everything()
        with other.reading(WAIT_MS) as reader:
            assert [row.version for row in reader.results(SCOPE, 1)] == [9]

    # --- bytes that somebody changed ----------------------------------------------------------------------------

    @pytest.mark.parametrize("kind", ["session", "scope", "result", "batch", "head"])
    def test_a_row_that_was_changed_is_never_handed_out(
        self, store: Store, filled: OrgStore, tmp_path: Path, kind: str
    ) -> None:
        """The seal of every row is checked on every read, before anything in it is believed."""
        if not self.alter(tmp_path, kind):
            pytest.skip(f"this class does not say how a {kind} is changed: define alter(folder, kind)")
        handed_out = []
        for name, read in READS[kind].items():
            for opened in (filled.reading, filled.peeking):
                with suppress(IntegrityError), opened(WAIT_MS) as reader:
                    handed_out.append((name, read(reader)))
        assert handed_out == []

    def test_an_org_whose_row_was_changed_does_not_open(self, store: Store, filled: OrgStore, tmp_path: Path) -> None:
        """Nothing in it is believed any more."""
        if not self.alter(tmp_path, "org"):
            pytest.skip("this class does not say how an org is changed: define alter(folder, kind)")
        row = store.org(ORG)
        assert row is not None
        for claimed in (row, org_row(ORG)):
            with pytest.raises(IntegrityError):
                store.scoped(claimed, ROW_KEY)

    # --- closing ------------------------------------------------------------------------------------------------

    def test_closing_twice_is_no_error_and_nothing_works_afterwards_but_reopening(
        self, store: Store, filled: OrgStore, tmp_path: Path
    ) -> None:
        """Close is idempotent, and loses nothing."""
        store.close()
        store.close()
        again = self.reopen(tmp_path)
        assert again.org(ORG) == org_row(ORG)
        again.close()


# --- rows, and looking at all of them ---------------------------------------------------------------------------


class Stopped(Exception):  # noqa: N818 - it is not an error, it is what the test does
    """Raised in the middle of a write."""


def made(store: Store, org: str) -> OrgStore:
    """A new org."""
    return store.scoped(store.create_org(org_row(org), ROW_KEY, [leaf_of(b"made")]), ROW_KEY)


def row_of(cls: type[R], /, **named: Any) -> R:
    """A row with a value in every field that needs one, and ``None`` in every other."""
    needed = {one.name: None if NoneType in get_args(one.type) else _VALUES[one.type] for one in fields(cls)}
    return cls(**{**needed, **named})


_VALUES: dict[Any, Any] = {bytes: b"value", str: "value", int: 1}


def org_row(org: str) -> OrgRow:
    """The row of an org."""
    return row_of(OrgRow, org=org)


def scope_row(scope_id: bytes = SCOPE) -> ScopeRow:
    """A wrapped key."""
    return row_of(ScopeRow, scope_id=scope_id)


def session_row() -> SessionRow:
    """A session, not stamped."""
    return row_of(SessionRow, session_id="case", scope_id=SCOPE, stamp=b"")


def result_row(number: int, **named: Any) -> ResultRow:
    """A result; every field that may be left out is."""
    return row_of(ResultRow, **{"scope_id": SCOPE, "number": number, "version": 1, **named})


def object_row(number: int, **named: Any) -> ObjectRow:
    """An intent for the original of this number."""
    return row_of(ObjectRow, **{"original_id": b"%d" % number * 16, "state": "intended", **named})


def objects_of(org: OrgStore) -> list[ObjectRow | None]:
    """The rows of the objects of three originals."""
    with org.reading(WAIT_MS) as reader:
        return [reader.object(b"%d" % number * 16) for number in (1, 2, 3)]


POSTINGS = [PostingRow(SCOPE, book, seq, b"closed %d" % seq, seq) for book, seq in (("a", 1), ("b", 1), ("a", 2))]
BATCH = row_of(BatchRow, scope_id=SCOPE, batch_id=b"b" * 16, request_tag=b"r" * 32, idempotency_key="key")


def leaf_of(text: bytes) -> Callable[[int], bytes]:
    """A leaf that shows its number."""
    return lambda seq: b"%d|%s" % (seq, text)


def steps() -> list[Callable[[Writer], None]]:
    """One write of every kind."""
    return [
        lambda writer: writer.insert_session(session_row(), scope_row()),
        lambda writer: writer.insert_results([result_row(1, version=0), result_row(2)]),
        lambda writer: writer.insert_originals([StoredOriginal(b"1" * 16, b"first"), StoredOriginal(b"2" * 16, b"")]),
        lambda writer: writer.update_results([result_row(1, version=2, state="archived", original_id=b"1" * 16)]),
        lambda writer: writer.insert_batch(BATCH),
        lambda writer: writer.insert_postings(POSTINGS),
        lambda writer: writer.update_session(session_row()),
        lambda writer: writer.append([leaf_of(b"a"), leaf_of(b"b")], "digest"),
    ]


def fill(writer: Writer, done: int | None = None, *, error: type[BaseException] | None = None) -> None:
    """The first writes of all kinds, or all of them, and then perhaps an error."""
    for step in steps()[:done]:
        step(writer)
    if error is not None:
        raise error


def everything() -> dict[str, Any]:
    """What is seen after all steps."""
    first = result_row(1, version=2, state="archived", original_id=b"1" * 16)
    return {
        "session": session_row(),
        "sessions": [session_row()],
        "scope": scope_row(),
        "results": [first, result_row(2)],
        "find": (session_row(), scope_row(), first),
        "envelopes": [b"first", b""],
        "batch": BATCH,
        "postings": [POSTINGS[0], POSTINGS[2]],
        "posted": (2, 2),
        "head": (3, "digest"),
        "leaves": [(0, b"0|made"), (1, b"1|a"), (2, b"2|b")],
    }


def stripped(row: SessionRow | None) -> SessionRow | None:
    """A session without its stamp, which is drawn at random."""
    return None if row is None else replace(row, stamp=b"")


def seen_by(reader: Reader) -> dict[str, Any]:
    """What every method of a reader shows."""
    found = reader.find("case", 1)
    head = reader.head()
    return {
        "session": stripped(reader.session("case")),
        "sessions": [stripped(row) for row in reader.sessions("", 10)],
        "scope": reader.scope(SCOPE),
        "results": reader.results(SCOPE, -1),
        "find": None if found is None else (stripped(found[0]), *found[1:]),
        "envelopes": [reader.envelope(b"1" * 16), reader.envelope(b"2" * 16)],
        "batch": reader.batch(SCOPE, BATCH.request_tag, None),
        "postings": reader.postings(SCOPE, "a", 0, 10),
        "posted": reader.posted(SCOPE, "a"),
        "head": (head.size, head.policy_digest),
        "leaves": reader.leaves(0, 10),
    }


def seen(org: OrgStore) -> dict[str, Any]:
    """What every method of a reader shows, in one snapshot."""
    with org.reading(WAIT_MS) as reader:
        return seen_by(reader)


READS: dict[str, dict[str, Callable[[Reader], object]]] = {
    "session": {
        "session": lambda reader: reader.session("case"),
        "sessions": lambda reader: reader.sessions("", 10),
        "find": lambda reader: reader.find("case", 1),
    },
    "scope": {"scope": lambda reader: reader.scope(SCOPE), "find": lambda reader: reader.find("case", 1)},
    "result": {
        "results": lambda reader: reader.results(SCOPE, -1),
        "find": lambda reader: reader.find("case", 1),
    },
    "batch": {
        "batch by request": lambda reader: reader.batch(SCOPE, BATCH.request_tag, None),
        "batch by key": lambda reader: reader.batch(SCOPE, b"", "key"),
    },
    "posting": {"postings": lambda reader: reader.postings(SCOPE, "a", 0, 10)},
    "head": {"head": lambda reader: reader.head()},
}
"""Every way in which a row of a kind is read."""


def log_of(org: OrgStore) -> list[bytes]:
    """The leaves of a log that has neither gap nor fork, and hashes to its head."""
    with org.reading(WAIT_MS) as reader:
        head, leaves = reader.head(), reader.leaves(0, 10_000)
    assert [seq for seq, _ in leaves] == list(range(head.size))
    assert all(leaf.startswith(b"%d|" % seq) for seq, leaf in leaves)
    hashes = [leaf_hash(leaf) for _, leaf in leaves]
    assert head.last_leaf_hash == hashes[-1]
    assert Frontier.from_bytes(head.size, head.frontier).root() == root_of(hashes)
    return [leaf for _, leaf in leaves]


def at_once(work: Callable[[int], None], threads: int = 8) -> list[BaseException]:
    """What was raised by threads that began at the same moment."""
    errors: list[BaseException] = []
    start = threading.Barrier(threads)

    def run(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(THREAD_SECONDS_MAX)
        assert not worker.is_alive(), "a thread waits without end"
    return errors
