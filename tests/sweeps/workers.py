"""What children of the nursery do: an agent that archives, in the library's way and in ways that must be caught."""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from conftest import Desk
from doubles import Characters
from invariants import OWNER, Case, batch_of, conversation, findings, note, view_findings
from nursery import say, serve, wait_for_go

import evidence_archive.objects.directory as directory_module
import evidence_archive.store.sqlite as engine_module
from evidence_archive import Archive, EvidenceArchiveError
from evidence_archive.keys import new_keys
from evidence_archive.ports import StoredOriginal
from evidence_archive.store.sql import SqlOrgStore, SqlWriter

__all__ = ["JOURNALS", "goes_on", "journal", "main", "opened", "prepared", "store_findings"]

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


def opened(folder: str | Path, **named: Any) -> Archive:
    """An archive whose tokens are cheap to count."""
    return Desk(Path(folder)).open(counter=Characters(), **named)


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


def goes_on(folder: Path, case: Case, mode: str) -> list[str]:
    """What does not hold once the session has archived, outside the database, all that is still live in it."""
    try:
        with journal(mode, 0), opened(folder, inline_size_max=0) as archive:
            session = archive.session(case.session_id, OWNER)
            session.view(case.messages)
            live = [info.id for info in session.results() if info.state == "live"]
            if live:
                session.archive([(result_id, note(int(result_id[1:]))) for result_id in live])
    except EvidenceArchiveError as error:
        return [f"The agent cannot go on: {type(error).__name__}: {error}"]
    return store_findings(folder, [replace(case, acknowledged=[*case.acknowledged, *filter(None, [live])])], mode)


# --- ways that must be caught -----------------------------------------------------------------------------------


UNSYNCED = {"file": r"[0-9a-f]{32}\.part", "subfolder": r"[0-9a-f]{2}", "folder": r"evidence\.db\.objects"}
"""What of an object store can be left out of syncing, and how the name of it looks."""


def _sync_all_but(left_out: str) -> None:
    """Objects are stored without ``fsync`` of their file, of their subfolder, or of the folder of all subfolders."""
    sync = directory_module._sync

    def careless(target: int) -> None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{target}"))
        if not re.fullmatch(UNSYNCED[left_out], name):
            sync(target)

    directory_module._sync = careless


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
    with journal(*rules), opened(folder, inline_size_max=ENDLESS_INLINE_SIZE_MAX) as archive:
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


def some_batches(folder: str, rules: tuple[str, int], checkpoint_pages: int, unsynced: str | None = None) -> None:
    """From an empty folder to an archive with the batches of :func:`some`, opened anew after every three of them.

    Args:
        folder: with keys.
        rules: journal mode and ``synchronous``.
        checkpoint_pages: after so many pages in a write-ahead log they are brought into the database.
        unsynced: of ``UNSYNCED``, or ``new database``; a way that must be caught.
    """
    if unsynced == "new database":
        engine_module._sync_folder = lambda folder: None
    elif unsynced is not None:
        _sync_all_but(unsynced)
    connect = engine_module.SqliteEngine._connect

    def connected(self: engine_module.SqliteEngine) -> Any:
        connection = connect(self)
        connection.execute(f"PRAGMA wal_autocheckpoint={checkpoint_pages}")
        return connection

    engine_module.SqliteEngine._connect = connected  # type: ignore[method-assign]
    messages = some()
    wait_for_go()
    for begin in range(1, SOME_RESULTS, 3 * SOME_BATCH):
        with journal(*rules), opened(folder, inline_size_max=SOME_INLINE_SIZE_MAX) as archive:
            session = archive.session("case", OWNER)
            for first in range(begin, begin + 3 * SOME_BATCH, SOME_BATCH):
                last = first + SOME_BATCH - 1
                session.view(messages[: 1 + 3 * last])
                receipt = session.archive(batch_of(first, last))
                say(receipt=[target.result_id for target in receipt.targets])


SOME_SIZES = [900, 14_000, 900, 20_000, 900, 14_000, 18_000, 20_000, 900, 14_000, 900, 20_000]
SOME_RESULTS = len(SOME_SIZES)
SOME_BATCH = 2
SOME_INLINE_SIZE_MAX = 16_000
"""Half of the batches have originals outside the database, one of them nothing else."""


def some() -> list[Any]:
    """The conversation of :func:`some_batches`."""
    return conversation("case", SOME_SIZES)


ENDLESS_RESULTS = 600
ENDLESS_BATCH = 3
ENDLESS_INLINE_SIZE_MAX = 8_000
"""Every second batch has an original outside the database."""


def endless(session_id: str) -> list[Any]:
    """The conversation of :func:`many_batches`; a child comes nowhere near its end."""
    return conversation(session_id, [1_200, 400, 9_000, 1_200, 400, 7_000] * (ENDLESS_RESULTS // 6))


def main() -> None:
    """Be the nursery."""
    warm()
    serve()
