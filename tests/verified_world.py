"""A small store with everything in it that can be verified, as it is now and as it was, to be attacked at will."""

import json
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from conftest import Conversation, Desk
from doubles import Characters
from sqlalchemy import Table
from sqlmodel import SQLModel

from evidence_archive import Archive, EvidenceArchiveError, Principal
from evidence_archive.books import Books
from evidence_archive.errors import KeyNotFoundError
from evidence_archive.objects import open_objects
from evidence_archive.sealing.keyring import derive, unwrap, wrap
from evidence_archive.store import open_store
from evidence_archive.verifying import VerifyReport, verify_keyless

__all__ = ["NORTH", "NO_ORG", "ORGS", "SOUTH", "TABLES", "TurningKeys", "World", "content", "copied"]

ORGS = ("north-clinic", "south-clinic")
NORTH, SOUTH = (Principal(org=org, subject="owner", roles={"custodian"}) for org in ORGS)
TABLES: dict[str, Table] = {table.name: table for table in SQLModel.metadata.tables.values()}
NO_ORG = "\x01"


class TurningKeys:
    """A key provider that makes versions and destroys them; one of them serves all orgs."""

    shared_by_orgs = True

    def __init__(self) -> None:
        self._roots = {1: os.urandom(32)}

    def _key(self, org: str, version: int) -> bytes:
        if version not in self._roots:
            raise KeyNotFoundError("There is no such version.")
        return derive(self._roots[version], org.encode())

    def current_version(self, org: str) -> int:
        return max(self._roots)

    def fingerprint(self, org: str, version: int) -> bytes:
        return sha256(self._key(org, version)).digest()[:16]

    def wrap(self, org: str, version: int, key: bytes, context: bytes) -> bytes:
        return wrap(self._key(org, version), key, context)

    def unwrap(self, org: str, version: int, wrapped: bytes, context: bytes) -> bytes:
        return unwrap(self._key(org, version), wrapped, context)

    def versions(self, org: str) -> tuple[int, ...]:
        return tuple(sorted(self._roots))

    def new_version(self, org: str) -> int:
        self._roots[max(self._roots) + 1] = os.urandom(32)
        return max(self._roots)

    def retire(self, org: str, version: int) -> None:
        self._roots.pop(version, None)

    def reopened(self) -> "TurningKeys":
        return self


def content(org: str, session: str, letter: str) -> str:
    """The original of a result; B lies outside the database."""
    return f"made-up finding {letter} of {session} at {org}\r\n" * (70 if letter == "B" else 60)


def copied(talk: Conversation, session: Any, result_id: str) -> None:
    """A copy of the first lines of an original, restored by the model."""
    asked = {"lines": "1-3", "pattern": None, "context_lines": None, "pointer": None, "reason": None}
    talk.ours(session, "restore_evidence", json.dumps({"id": result_id, **asked}))
    session.view(talk.messages)
    talk.say()
    session.view(talk.messages)


def put_down(session: Any, book: str, *contents: Any) -> None:
    """Postings in a book of a session."""
    Books(session._records).post(book, lambda known: (contents, None))


class World:
    """Two orgs with two sessions each, on any engine; each session has three postings in two books.

    r1 to r4 of every session are A to D, r5 is a copy of a part of r1. In the session ``case`` r1 was labelled and is
    kept for a year, and r4 was shredded; there are holds, two rotations, and several signed heads.

    Args:
        desk: an empty one.
    """

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.keys = TurningKeys()
        self.anchor = desk.folder / "heads.jsonl"
        self.history: list[dict[str, list[tuple[Any, ...]]]] = []
        self.messages: dict[tuple[str, str], list[Any]] = {}
        for principal in (NORTH, SOUTH):
            self._filled(principal)
        for principal in (NORTH, SOUTH):
            self._ruled(principal)
        self._rotated()
        for principal in (NORTH, SOUTH):
            self._shredded(principal)
        self._rotated()
        for principal in (NORTH, SOUTH):
            self._went_on(principal)
        self.remember()

    @contextmanager
    def open(self) -> Iterator[Archive]:
        with self.opened(self.desk, anchors=[self.anchor]) as archive:
            yield archive
        self.remember()

    def opened(self, desk: Desk, **named: Any) -> Archive:
        """The store of a desk, with this world's keys."""
        return Archive.open(
            desk.url,
            **{
                "keys": self.keys,
                "objects": self.desk.folder / "objects",
                "inline_size_max": 2_700,
                "counter": Characters(),
                **named,
            },
        )

    def verified(
        self, desk: Desk, level: str = "seals", principal: Principal = NORTH, **named: Any
    ) -> VerifyReport | str:
        """The report, or the name of the error for which there is none."""
        try:
            with self.opened(desk) as archive:
                return archive.custody(principal).verify(level, **named)
        except EvidenceArchiveError as error:
            return type(error).__name__

    def keyless(self, desk: Desk, org: str = NORTH.org, **named: Any) -> VerifyReport:
        """The report of somebody without keys."""
        store = open_store(desk.url, create=False)
        try:
            objects = open_objects(self.desk.folder / "objects", create=False)
            return verify_keyless(store, org, objects=objects, **named)
        finally:
            store.close()

    def remember(self) -> None:
        """What is stored now becomes an older version of what is stored later."""
        if self.desk.server is None:
            self.history.append({name: self.desk.rows(name) for name in TABLES})

    def _filled(self, principal: Principal) -> None:
        for name in ("case", "other"):
            with self.open() as archive:
                session, talk = archive.session(name, principal), Conversation()
                for letter in "ABCD":
                    talk.tool(content(principal.org, name, letter))
                    talk.say()
                    session.view(talk.messages)
                self.remember()
                session.archive([(f"r{number}", f"note {number}") for number in (1, 2, 4)], idempotency_key="k1")
                copied(talk, session, "r1")
                session.archive([("r5", "a copy, read")])
                self.messages[principal.org, name] = talk.messages
                put_down(session, "card", {"at": 1}, {"at": 2})
                self.remember()
                put_down(session, "ledger", {"at": 3})

    def _ruled(self, principal: Principal) -> None:
        with self.open() as archive:
            archive.session("case", principal).label("r1", sensitivity="internal")
            self.remember()
            custody = archive.custody(principal)
            custody.retain("case", "r1", 4_000_000_000_000_000)
            released = custody.hold("made-up reason", session_id="case", result_id="r2")
            custody.hold("another reason", session_id="other")
            self.remember()
            custody.release(released.id)

    def _rotated(self) -> None:
        self.keys.new_version("")
        for principal in (NORTH, SOUTH):
            with self.open() as archive:
                archive.custody(principal).rotate(new_version=False)
        with self.open() as archive:
            for old in self.keys.versions("")[:-1]:
                archive.custody(NORTH).retire(old)
            archive.custody(SOUTH).shreds()

    def _shredded(self, principal: Principal) -> None:
        with self.open() as archive:
            archive.custody(principal).shred(session_id="case", result_id="r4")
            archive.custody(principal).checkpoint()

    def _went_on(self, principal: Principal) -> None:
        with self.open() as archive:
            session, talk = archive.session("case", principal), Conversation()
            talk.messages = self.messages[principal.org, "case"]
            talk.tool(content(principal.org, "case", "E"))
            talk.say()
            session.view(talk.messages)
            session.archive([("r6", "note 6")])

    # --- attacks --------------------------------------------------------------------------------------------------

    def loosened(self) -> None:
        """What an attacker of a SQLite file does first: STRICT and NOT NULL would only be in the way."""
        with closing(sqlite3.connect(self.desk.database, isolation_level=None)) as straight:
            for name in straight.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                straight.execute(f"DROP TRIGGER {name[0]}")
            straight.execute("PRAGMA writable_schema=ON")
            for name, sql in straight.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall():
                loose = re.sub(r"STRICT\s*,|,?\s*STRICT", "", sql.replace("NOT NULL", ""))
                straight.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (loose, name))
        with closing(sqlite3.connect(self.desk.database)) as straight:
            assert straight.execute("PRAGMA integrity_check").fetchone() == ("ok",)

    def copy(self, folder: Path) -> Desk:
        """Another desk with all of it; the objects are shared, because nothing here changes them."""
        shutil.copy(self.desk.database, folder / "evidence.db")
        return Desk(folder)

    def key_of(self, table: str) -> dict[str, Any]:
        """The primary key of the row that is attacked: of the first org, and there of the session ``case``."""
        return self._key_of(table, NORTH.org, "case")

    def _key_of(self, table: str, org: str, session: str) -> dict[str, Any]:
        def one(statement: str, *values: Any) -> Any:
            return self.desk.execute(statement, *values)[0][0]

        scope_id = one("SELECT scope_id FROM sessions WHERE org = ? AND session_id = ?", org, session)
        original = "SELECT original_id FROM results WHERE org = ? AND scope_id = ? AND number = ?"
        keys = {
            "orgs": {},
            "audit_heads": {},
            "custody": {},
            "scope_keys": {"scope_id": scope_id},
            "sessions": {"session_id": session},
            "results": {"scope_id": scope_id, "number": 1},
            "originals": {"original_id": one(original, org, scope_id, 1)},
            "objects": {"original_id": one(original, org, scope_id, 2)},
            "batches": {
                "scope_id": scope_id,
                "batch_id": one(
                    "SELECT batch_id FROM batches WHERE org = ? AND idempotency_key = 'k1'\
 AND scope_id = ?",
                    org,
                    scope_id,
                ),
            },
            "postings": {"scope_id": scope_id, "book": "card", "seq": 2},
            "audit_leaves": {"seq": 4},
            "holds": {"hold_id": one("SELECT hold_id FROM holds WHERE org = ? AND number IS NOT NULL", org)},
            "shreds": {"shred_id": one("SELECT shred_id FROM shreds WHERE org = ?", org)},
            "checkpoints": {"size": one("SELECT max(size) FROM checkpoints WHERE org = ?", org)},
        }
        if table == "org_names":
            return {"org": NO_ORG, "name": org}
        return {"org": org, **keys[table]}

    def olders(self, table: str, key: dict[str, Any]) -> list[tuple[Any, ...]]:
        """The row with this key in all its older versions, the latest first."""
        names = [column.name for column in TABLES[table].c]
        found: list[tuple[Any, ...]] = []
        for moment in reversed(self.history):
            for row in moment[table]:
                named = dict(zip(names, row, strict=True))
                if all(named[part] == value for part, value in key.items()) and row not in found:
                    found.append(row)
        return found[1:]
