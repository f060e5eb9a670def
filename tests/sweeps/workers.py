"""What children of the nursery do: an agent that archives, in the library's way and in ways that must be caught."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conftest import Desk
from doubles import Characters
from invariants import OWNER, Case, batch_of, conversation, findings, view_findings
from nursery import say, serve, wait_for_go

import evidence_archive.store.sqlite as engine_module
from evidence_archive import Archive, EvidenceArchiveError
from evidence_archive.keys import new_keys
from evidence_archive.ports import StoredOriginal
from evidence_archive.store.sql import SqlOrgStore, SqlWriter

__all__ = ["JOURNALS", "journal", "main", "opened", "prepared", "store_findings"]

JOURNALS = {"truncate": ("truncate", 3), "wal": ("wal", 2)}
"""The durability rules that ship, by name, as ``journal_rules`` gives them."""


@contextmanager
def journal(mode: str, synchronous: int) -> Iterator[None]:
    """Stores that are opened meanwhile have this journal mode, whatever version of SQLite is linked."""
    rules = engine_module.journal_rules
    engine_module.journal_rules = lambda version: (mode, synchronous)
    try:
        yield
    finally:
        engine_module.journal_rules = rules


def opened(folder: str | Path) -> Archive:
    """An archive whose tokens are cheap to count."""
    return Desk(Path(folder)).open(counter=Characters())


def prepared(folder: Path, mode: str, cases: Sequence[Case] = ()) -> Path:
    """A folder with keys, and a closed store in which these sessions have seen their messages."""
    folder.mkdir()
    new_keys(folder / "evidence.keys")
    with journal(*JOURNALS[mode]), opened(folder) as archive:
        for case in cases:
            archive.session(case.session_id, OWNER).view(case.messages)
    return folder


def store_findings(folder: Path, cases: Sequence[Case], mode: str) -> list[str]:
    """The invariants of a store, opened in the journal mode it was written in.

    Without ``fsync``, which nothing here depends on any more: what is checked is what the fault left behind.
    """
    with journal(mode, 0):
        return findings(Desk(folder).url, lambda: opened(folder), cases)


# --- ways that must be caught -----------------------------------------------------------------------------------


def _original_apart() -> None:
    """The originals of a batch follow in a transaction of their own."""
    insert, writing = SqlWriter.insert_originals, SqlOrgStore.writing
    waiting: list[StoredOriginal] = []

    @contextmanager
    def apart(self: SqlOrgStore, wait_ms: int, *, audited: bool) -> Iterator[SqlWriter]:
        with writing(self, wait_ms, audited=audited) as writer:
            yield writer
        if waiting:
            with writing(self, wait_ms, audited=False) as writer:
                insert(writer, waiting)
            waiting.clear()

    def kept_back(_self: SqlWriter, originals: Sequence[StoredOriginal]) -> None:
        waiting.extend(originals)

    SqlWriter.insert_originals = kept_back  # type: ignore[assignment]
    SqlOrgStore.writing = apart  # type: ignore[method-assign]


# --- works ------------------------------------------------------------------------------------------------------


def warm() -> None:
    """Load whatever a batch loads, so that no import falls into a child's faults."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "store"
        case = Case("case", conversation("warm", [1_000, 1_000]))
        prepared(folder, "truncate", [case])
        with opened(folder) as archive:
            session = archive.session("case", OWNER)
            session.view(case.messages)
            session.archive(batch_of(1, 2))
            session.view(case.messages)
        assert not store_findings(folder, [case], "truncate")
        shutil.rmtree(folder)


def one_batch(folder: str, rules: tuple[str, int], sizes: list[int], naive: str | None = None) -> None:
    """Archive one batch after the word to go; where it is refused, look at the view and try once more.

    Args:
        folder: with keys and a store in which the session ``case`` has seen the conversation ``case``.
        rules: journal mode and ``synchronous``.
        sizes: of the conversation's results.
        naive: ``early`` acknowledges before it archives, ``apart`` writes originals in a second transaction.
    """
    if naive == "apart":
        _original_apart()
    messages, batch = conversation("case", sizes), batch_of(1, len(sizes))
    ids = [result_id for result_id, _ in batch]
    with journal(*rules), opened(folder) as archive:
        session = archive.session("case", OWNER)
        session.view(messages)
        wait_for_go()
        for _ in range(2):
            try:
                if naive == "early":
                    say(receipt=ids)
                session.archive(batch)
                say(receipt=ids)
                break
            except EvidenceArchiveError as error:
                say(refused=type(error).__name__)
            finally:
                say(wrong=view_findings(session.view(messages), messages))


def many_batches(folder: str, session_id: str, rules: tuple[str, int], naive: str | None = None) -> None:
    """View, archive, acknowledge, again and again, until the end comes from outside.

    Args:
        folder: with keys and perhaps a store.
        session_id: of a new session.
        rules: journal mode and ``synchronous``.
        naive: ``early`` acknowledges before it archives.
    """
    messages = endless(session_id)
    with journal(*rules), opened(folder) as archive:
        session = archive.session(session_id, OWNER)
        wait_for_go()
        for first in range(1, ENDLESS_RESULTS, ENDLESS_BATCH):
            last = first + ENDLESS_BATCH - 1
            session.view(messages[: 1 + 3 * last])
            batch = batch_of(first, last)
            if naive == "early":
                say(receipt=[result_id for result_id, _ in batch])
            receipt = session.archive(batch)
            say(receipt=[target.result_id for target in receipt.targets])


def some_batches(folder: str, rules: tuple[str, int], checkpoint_pages: int) -> None:
    """From an empty folder to an archive with the batches of :func:`some`, opened anew after every three of them.

    Args:
        folder: with keys.
        rules: journal mode and ``synchronous``.
        checkpoint_pages: after so many pages in a write-ahead log they are brought into the database.
    """
    connect = engine_module.SqliteEngine._connect

    def connected(self: engine_module.SqliteEngine) -> Any:
        connection = connect(self)
        connection.execute(f"PRAGMA wal_autocheckpoint={checkpoint_pages}")
        return connection

    engine_module.SqliteEngine._connect = connected  # type: ignore[method-assign]
    messages = some()
    wait_for_go()
    for begin in range(1, SOME_RESULTS, 3 * SOME_BATCH):
        with journal(*rules), opened(folder) as archive:
            session = archive.session("case", OWNER)
            for first in range(begin, begin + 3 * SOME_BATCH, SOME_BATCH):
                last = first + SOME_BATCH - 1
                session.view(messages[: 1 + 3 * last])
                receipt = session.archive(batch_of(first, last))
                say(receipt=[target.result_id for target in receipt.targets])


SOME_RESULTS = 12
SOME_BATCH = 2


def some() -> list[Any]:
    """The conversation of :func:`some_batches`."""
    return conversation("case", [900, 14_000] * (SOME_RESULTS // 2))


ENDLESS_RESULTS = 600
ENDLESS_BATCH = 3


def endless(session_id: str) -> list[Any]:
    """The conversation of :func:`many_batches`; a child comes nowhere near its end."""
    return conversation(session_id, [1_200, 400, 9_000] * (ENDLESS_RESULTS // 3))


def main() -> None:
    """Be the nursery."""
    warm()
    serve()
