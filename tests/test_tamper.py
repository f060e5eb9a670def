"""Somebody who can write the database but has no keys: what is found out, and when.

The attacks are made from the tables' metadata: every column of every table is flipped, emptied, given another type,
and given the values of other rows. ``FOUND`` states per column at which use this is found and by which error; a
column that is not listed fails the tests. Whatever is attacked, no use ever hands out altered content as valid.
"""

import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import ANY, Mock

import pytest
from conftest import Conversation, Desk
from sqlalchemy import LargeBinary, Table, Text
from sqlmodel import SQLModel

from evidence_archive import Archive, BatchRejectedError, EvidenceArchiveError, Principal, SealBrokenError
from evidence_archive.keys import new_keys
from evidence_archive.policy import Policy
from evidence_archive.store import rows as store_rows

ORGS, SESSIONS = ("north-clinic", "south-clinic"), ("case", "other")
NORTH, SOUTH = (Principal(org=org, subject="owner") for org in ORGS)
POLICY = Policy.default()
TABLES = {table.name: table for table in SQLModel.metadata.tables.values()}

# --- the table: at which use an attack on a column is found, and how it shows ------------------------------------
# open: the org is used at all        session: the session is opened       restore: the original is asked for
# results: the session is listed      replay: the batch is sent again      audit: the log is read
# outside: an original that lies outside the database is asked for
# "X" a typed error; "finding" the audit report says so; "looks like nothing" the caller is told what it would be told
# if the row had never been there (only a comparison with the log finds that; see SECURITY.md).

SEAL, WRONG_KEY, NO_KEY, AUDIT = "SealBrokenError", "WrongKeyError", "KeyNotFoundError", "AuditBrokenError"
GONE = "NotAvailableError"
SUSPENDED, ARCHIVED = "BatchRejectedError: suspended", "BatchRejectedError: targets"


def _all(names: str, use: str, *shows: str) -> dict[str, tuple[str, frozenset[str]]]:
    return {name: (use, frozenset(shows)) for name in names.split()}


FOUND: dict[str, dict[str, tuple[str, frozenset[str]]]] = {
    "orgs": {
        **_all("org deployment aux_wrapped generation created_at_us seal", "open", SEAL),
        **_all("kek_version", "open", NO_KEY, SEAL),
        **_all("kek_fingerprint", "open", WRONG_KEY, SEAL),
    },
    "scope_keys": {
        **_all("org scope_id", "restore", GONE),  # looks like nothing
        **_all("wrapped kek_version kek_fingerprint generation created_at_us seal", "restore", SEAL),
    },
    "sessions": {
        **_all("org session_id", "restore", GONE, SEAL),  # looks like nothing, or another row stands there
        **_all("scope_id", "session", SEAL),
        **_all("subject dialect tag version next_number suspended batches restores", "restore", SEAL),
        **_all("tokens_saved created_at_us books stamp seal", "restore", SEAL),
    },
    "results": {
        **_all("org scope_id number", "results", SEAL),
        **_all("version seen call_id tool_name result_tool_name own kind sensitivity media_type", "restore", SEAL),
        **_all("size_chars size_bytes tokens labelled observed_at_us observed_by content_tag", "restore", SEAL),
        **_all("labelled_tag origin part state note_tag rendering live_ask note_tokens batch_id", "restore", SEAL),
        **_all("original_id dek_id envelope_sha256 sealed_size closed archived_at_us", "restore", SEAL),
        **_all("retention_until_us seal", "restore", SEAL),
    },
    "originals": {
        **_all("org original_id envelope", "restore", SEAL),
    },
    "objects": {
        **_all("org original_id key size_bytes part_bytes state expires_at_us created_at_us seal", "outside", SEAL),
    },
    "batches": {
        **_all("org scope_id idempotency_key", "replay", ARCHIVED, SUSPENDED),  # looks like nothing
        **_all("batch_id request_tag receipt created_at_us seal", "replay", SUSPENDED),
    },
    "postings": {
        **_all("org scope_id book seq closed created_at_us seal", "card", SEAL),
    },
    "audit_heads": {
        **_all("org", "audit", AUDIT, SEAL),
        **_all("size frontier last_leaf_hash policy_digest custody_version seal", "audit", SEAL),
    },
    "audit_leaves": {
        **_all("org seq leaf", "audit", "finding", AUDIT, SEAL),
    },
}

UNSEEN = {
    ("scope_keys", "org"),
    ("scope_keys", "scope_id"),
    ("sessions", "org"),
    ("sessions", "session_id"),
    ("batches", "org"),
    ("batches", "scope_id"),
    ("batches", "idempotency_key"),
}
"""Where a row that was moved away looks as if it had never been there."""


# --- the world that is attacked ---------------------------------------------------------------------------------


class Characters:
    """Counts fast; what is counted does not matter here."""

    name, estimated = "characters", False

    def count(self, text: str) -> int:
        return len(text)


def content(org: str, session: str, letter: str) -> str:
    return f"made-up finding {letter} of {session} at {org}\r\n" * (70 if letter == "B" else 60)


def opened(desk: Desk) -> Archive:
    return desk.open(policy=POLICY, counter=Characters(), inline_size_max=2_700)  # B lies outside the database


def filled(archive: Archive, principal: Principal, name: str) -> list[Any]:
    session, talk = archive.session(name, principal), Conversation()
    for letter in "ABC":
        talk.tool(content(principal.org, name, letter))
        talk.say()
        session.view(talk.messages)
    session.archive([("r1", f"note A of {name}"), ("r2", f"note B of {name}")], idempotency_key="k1")
    nothing = {"lines": None, "pattern": None, "context_lines": None, "pointer": None, "reason": None}
    talk.ours(session, "restore_evidence", json.dumps({"id": "r1", **nothing}))
    session.view(talk.messages)
    talk.say()
    session.view(talk.messages)
    session.archive([("r4", "a copy, read")])
    session.update_card([{"goal": f"the goal of {name}"}])
    return talk.messages


class World:
    """Two orgs with two sessions each; every attack gets a copy of the same database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.desk = Desk(folder)
        new_keys(self.desk.keys)
        self.messages = {}
        for principal in (NORTH, SOUTH):
            with opened(self.desk) as archive:
                for name in SESSIONS:
                    self.messages[principal.org, name] = filled(archive, principal, name)
        self.attacks = 0

    def loosened(self) -> None:
        """What an attacker does first: STRICT, NOT NULL and UNIQUE would only be in the way."""
        with closing(sqlite3.connect(self.desk.database, isolation_level=None)) as straight:
            for (name,) in straight.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                straight.execute(f"DROP TRIGGER {name}")
            straight.execute("PRAGMA writable_schema=ON")
            for name, sql in straight.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall():
                loose = re.sub(r"STRICT\s*,|,?\s*STRICT", "", sql.replace("NOT NULL", ""))
                straight.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (loose, name))
        with closing(sqlite3.connect(self.desk.database)) as straight:
            assert straight.execute("PRAGMA integrity_check").fetchone() == ("ok",)

    def copy(self) -> Desk:
        self.attacks += 1
        copied = self.folder / f"attack{self.attacks}"
        copied.mkdir()
        shutil.copy(self.desk.database, copied / "evidence.db")
        shutil.copy(self.desk.keys, copied / "evidence.keys")
        shutil.copytree(self.desk.folder / "evidence.db.objects", copied / "evidence.db.objects")
        return Desk(copied)

    def attacked(self, *statements: tuple[str, tuple[Any, ...]]) -> Desk:
        desk = self.copy()
        with closing(sqlite3.connect(desk.database, isolation_level=None)) as straight:
            straight.execute("DROP INDEX IF EXISTS ix_results_original")  # whoever writes the file can do that, too
            for statement, values in statements:
                straight.execute(statement, values)
        return desk


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    # Hundreds of attacks with a commit each: in memory where there is such a place.
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        made = World(Path(folder))
        made.loosened()
        yield made


# --- uses -------------------------------------------------------------------------------------------------------


def use(desk: Desk, world: World, what: str) -> str:
    """What a use of the attacked store shows: ``"as it was"`` or how it failed; altered content is an error here."""
    try:
        with opened(desk) as archive:
            return USES[what](archive, world)
    except BatchRejectedError as error:
        return f"BatchRejectedError: {error.reason}"
    except EvidenceArchiveError as error:
        return type(error).__name__


def caught(verb: Callable[[], Any]) -> tuple[str, Any]:
    """The name of the error that a verb raises, or what it gives."""
    try:
        return "", verb()
    except EvidenceArchiveError as error:
        return type(error).__name__, None


def _open(archive: Archive, _world: World) -> str:
    archive.audit(principal=NORTH)
    return "as it was"


def _session(archive: Archive, world: World) -> str:
    session = archive.session("case", NORTH)
    messages = world.messages[NORTH.org, "case"]
    shown = [message["content"] for message in session.view(messages) if message["role"] == "tool"]
    held = [message["content"] for message in messages if message["role"] == "tool"]
    for text, original, words in zip(shown[:3], held[:3], ("note A of case", "note B of case", None), strict=True):
        note = words is not None and text.startswith("[archived r") and text.endswith(f"\n> {words}")
        assert note or text.endswith(original), "a view showed what is neither the original nor its note"
    return "suspended" if session.stats().suspended else "as it was"


def _restore(archive: Archive, _world: World) -> str:
    restored = archive.restore("case", "r1", principal=NORTH)
    assert restored.content == content(NORTH.org, "case", "A"), "altered content was handed out"
    assert restored.provenance.tool_name == "logs.search"
    assert (restored.provenance.sensitivity, restored.provenance.kind) == ((), None)
    return "as it was"


def _outside(archive: Archive, _world: World) -> str:
    restored = archive.restore("case", "r2", principal=NORTH)
    assert restored.content == content(NORTH.org, "case", "B"), "altered content was handed out"
    return "as it was"


def _results(archive: Archive, _world: World) -> str:
    told = archive.results("case", principal=NORTH)
    assert [(info.id, info.state) for info in told] == [
        ("r1", "archived"),
        ("r2", "archived"),
        ("r3", "live"),
        ("r4", "archived"),
    ]
    return "as it was"


def _replay(archive: Archive, world: World) -> str:
    session = archive.session("case", NORTH)
    session.view(world.messages[NORTH.org, "case"])
    receipt = session.archive([("r1", "note A of case"), ("r2", "note B of case")], idempotency_key="k1")
    assert receipt.replayed
    assert [target.result_id for target in receipt.targets] == ["r1", "r2"]
    return "as it was"


def _audit(archive: Archive, _world: World) -> str:
    report = archive.audit(principal=NORTH)
    assert report.intact == (not report.findings)
    return "as it was" if report.intact else "finding"


def _card(archive: Archive, _world: World) -> str:
    assert archive.session("case", NORTH).card().goal == "the goal of case", "an altered card was shown"
    return "as it was"


USES: dict[str, Callable[[Archive, World], str]] = {
    "open": _open,
    "session": _session,
    "restore": _restore,
    "outside": _outside,
    "results": _results,
    "replay": _replay,
    "audit": _audit,
    "card": _card,
}


@pytest.mark.parametrize("what", USES)
def test_every_use_works_on_a_store_that_nobody_attacked(world: World, what: str) -> None:
    assert use(world.copy(), world, what) == "as it was"


# --- column by column -------------------------------------------------------------------------------------------


def victim(straight: sqlite3.Connection, table: str) -> dict[str, Any]:
    """The primary key of the row that is attacked; of the first session of the first org."""

    def one(statement: str) -> Any:
        return straight.execute(statement, (NORTH.org,)).fetchone()[0]

    org = {"org": NORTH.org}
    scope = {"scope_id": one("SELECT scope_id FROM sessions WHERE org = ? AND session_id = 'case'")}
    if table == "originals":
        found = straight.execute(
            "SELECT original_id FROM results WHERE org = ? AND scope_id = ? AND number = 1",
            (NORTH.org, scope["scope_id"]),
        )
        return {**org, "original_id": found.fetchone()[0]}
    if table == "objects":
        found = straight.execute(
            "SELECT original_id FROM results WHERE org = ? AND scope_id = ? AND number = 2",
            (NORTH.org, scope["scope_id"]),
        )
        return {**org, "original_id": found.fetchone()[0]}
    if table == "postings":
        return {**org, **scope, "book": "card", "seq": 1}
    if table == "batches":
        found = straight.execute(
            "SELECT batch_id FROM batches WHERE org = ? AND scope_id = ? AND idempotency_key = 'k1'",
            (NORTH.org, scope["scope_id"]),
        )
        return {**org, **scope, "batch_id": found.fetchone()[0]}
    return {
        "orgs": org,
        "audit_heads": org,
        "scope_keys": {**org, **scope},
        "sessions": {**org, "session_id": "case"},
        "results": {**org, **scope, "number": 1},
        "audit_leaves": {**org, "seq": 4},
    }[table]


def forged(column: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Other values for a column: one bit or character off, nothing, another type."""
    if isinstance(column.type, LargeBinary):
        yield "flipped", bytes([(value or b"\x00")[0] ^ 1]) + (value or b"")[1:]
        yield "longer", (value or b"") + b"\x00"
        yield "typed", (value or b"\x00").hex()
    elif isinstance(column.type, Text):
        yield "flipped", (value or "") + "x"
        yield "typed", (value or "x").encode()
    else:
        yield "flipped", (value or 0) + 1
        yield "typed", f"x{value}"
    if value is not None:
        yield "emptied", None


def attacks(desk: Desk, table: Table, name: str) -> Iterator[tuple[str, list[tuple[str, tuple[Any, ...]]]]]:
    with closing(sqlite3.connect(desk.database)) as straight:
        straight.row_factory = sqlite3.Row
        key = victim(straight, table.name)
        where = " AND ".join(f"{part} = ?" for part in key)
        at = tuple(key.values())
        value = straight.execute(f"SELECT {name} FROM {table.name} WHERE {where}", at).fetchone()[0]
        others = straight.execute(f"SELECT * FROM {table.name} WHERE NOT ({where})", at).fetchall()
    update = f"UPDATE {table.name} SET {name} = ? WHERE {where}"
    for how, other in forged(table.c[name], value):
        yield how, [(update, (other, *at))]
    yield "text that is no UTF-8", [(update.replace("= ?", "= CAST(x'61ff' AS TEXT)", 1), at)]
    seen = [value]
    for row in others:
        if row[name] in seen:
            continue
        seen.append(row[name])
        place = {part: row[name] if part == name else key[part] for part in key}
        taken = f"DELETE FROM {table.name} WHERE " + " AND ".join(f"{part} = ?" for part in place)
        first = [(taken, tuple(place.values()))] if name in key else []
        yield f"as in another row of {row['org']}", [*first, (update, (row[name], *at))]
        if len(seen) > 5:
            break


OF_CUSTODY = frozenset({"checkpoints", "custody", "holds", "org_names", "shreds"})
"""Tables that no agent's use meets; test_matrix.py has them, column by column."""

COLUMNS = [(table, column.name) for table in sorted(TABLES) if table not in OF_CUSTODY for column in TABLES[table].c]


@pytest.mark.parametrize(("table", "name"), COLUMNS, ids=lambda value: value)
def test_a_column_changed_by_hand_is_found_when_the_table_says_and_never_alters_content(
    world: World, table: str, name: str
) -> None:
    assert name in FOUND.get(table, {}), "state in FOUND what is found when for this column"
    when, shows = FOUND[table][name]
    tried = 0
    for how, statements in attacks(world.desk, TABLES[table], name):
        try:
            desk = world.attacked(*statements)
        except sqlite3.IntegrityError:
            continue  # SQLite itself keeps a key from being empty or double
        tried += 1
        outcome = use(desk, world, when)
        assert outcome in shows, f"{how}: {outcome}"
        for what in ("restore", "session"):
            use(desk, world, what)  # asserts that nothing altered comes out
    assert tried >= 2


def test_the_table_names_columns_that_exist_and_uses_that_exist() -> None:
    assert [(table, name) for table in sorted(FOUND) for name in sorted(FOUND[table])] == sorted(COLUMNS)
    assert {when for stated in FOUND.values() for when, _ in stated.values()} <= set(USES)


def test_whatever_looks_like_nothing_is_declared() -> None:
    unseen = {
        (table, name)
        for table, stated in FOUND.items()
        for name, (_, shows) in stated.items()
        if shows & {GONE, ARCHIVED}
    }
    assert unseen == UNSEEN


@pytest.mark.parametrize("name", [column.name for column in TABLES["results"].c])
def test_a_column_of_a_restored_copy_changed_by_hand_never_alters_what_the_copy_gives(
    world: World, name: str
) -> None:
    table = TABLES["results"]
    for how, statements in attacks(world.desk, table, name):
        moved = [
            (
                statement,
                tuple(4 if value == 1 and at == len(values) - 1 else value for at, value in enumerate(values)),
            )
            for statement, values in statements
            if statement.startswith("UPDATE")
        ]
        try:
            desk = world.attacked(*moved)
        except sqlite3.IntegrityError:
            continue
        with opened(desk) as archive:
            outcome, restored = caught(lambda: archive.restore("case", "r4", principal=NORTH))
        if restored is None:
            assert outcome in (SEAL, GONE), how
        else:
            assert restored.content == content(NORTH.org, "case", "A"), how
            with closing(sqlite3.connect(desk.database)) as straight:
                assert straight.execute("SELECT count(*) FROM results WHERE number = 4").fetchone() == (4,)


WHERE = "WHERE org = ? AND scope_id = ?"

# --- whole rows -------------------------------------------------------------------------------------------------


def scopes(desk: Desk) -> dict[tuple[str, str], bytes]:
    with closing(sqlite3.connect(desk.database)) as straight:
        return {
            (org, name): scope
            for org, name, scope in straight.execute("SELECT org, session_id, scope_id FROM sessions")
        }


@pytest.mark.parametrize(
    ("table", "use_at", "shows"),
    [
        ("orgs", "open", {SEAL}),
        ("scope_keys", "restore", {GONE}),
        ("sessions", "restore", {GONE}),
        ("results", "results", {SEAL}),
        ("originals", "restore", {SEAL}),
        ("batches", "replay", {ARCHIVED}),
        ("postings", "card", {SEAL}),
        ("audit_heads", "audit", {AUDIT}),
        ("audit_leaves", "audit", {"finding"}),
    ],
)
def test_a_row_that_was_deleted_never_alters_content(world: World, table: str, use_at: str, shows: set[str]) -> None:
    with closing(sqlite3.connect(world.desk.database)) as straight:
        key = victim(straight, table)
    where = " AND ".join(f"{part} = ?" for part in key)
    desk = world.attacked((f"DELETE FROM {table} WHERE {where}", tuple(key.values())))
    assert use(desk, world, use_at) in shows
    for what in ("restore", "session"):
        use(desk, world, what)


@pytest.mark.parametrize(
    "origin", [("north-clinic", "case", 2), ("north-clinic", "other", 1), ("south-clinic", "case", 1)]
)
def test_a_result_row_filled_with_all_values_of_another_does_not_open(
    world: World, origin: tuple[str, str, int]
) -> None:
    names = [column.name for column in TABLES["results"].c if not column.primary_key]
    scope = scopes(world.desk)
    values = ", ".join(names)
    desk = world.attacked(
        (
            f"UPDATE results SET ({values}) = (SELECT {values} FROM results {WHERE} AND number = ?)\
 {WHERE} AND number = 1",
            (origin[0], scope[origin[:2]], origin[2], NORTH.org, scope[NORTH.org, "case"]),
        )
    )
    assert use(desk, world, "restore") == SEAL
    assert use(desk, world, "session") == "suspended"


def original_ids(desk: Desk) -> dict[tuple[str, str, int], bytes]:
    with closing(sqlite3.connect(desk.database)) as straight:
        found = straight.execute(
            "SELECT s.org, s.session_id, r.number, r.original_id FROM sessions s JOIN results r"
            " ON r.org = s.org AND r.scope_id = s.scope_id WHERE r.original_id IS NOT NULL"
        ).fetchall()
    return {(org, session, number): original_id for org, session, number, original_id in found}


@pytest.mark.parametrize(
    "other", [("north-clinic", "case", 2), ("north-clinic", "other", 1), ("south-clinic", "case", 1)]
)
def test_an_envelope_in_the_place_of_another_does_not_open(world: World, other: tuple[str, str, int]) -> None:
    ids = original_ids(world.desk)
    desk = world.attacked(
        (
            "UPDATE originals SET envelope = (SELECT envelope FROM originals WHERE (org, original_id) = (?, ?))\
 WHERE (org, original_id) = (?, ?)",
            (other[0], ids[other], NORTH.org, ids[NORTH.org, "case", 1]),
        )
    )
    assert use(desk, world, "restore") == SEAL


def test_rows_of_one_org_given_to_another_do_not_open_there(world: World) -> None:
    moved = [
        (f"DELETE FROM {table} WHERE org = ?", (NORTH.org,))
        for table in ("scope_keys", "sessions", "results", "originals", "batches")
    ] + [
        (f"UPDATE {table} SET org = ? WHERE org = ?", (NORTH.org, SOUTH.org))
        for table in ("scope_keys", "sessions", "results", "originals", "batches")
    ]
    desk = world.attacked(*moved)
    assert {use(desk, world, what) for what in ("restore", "session", "results", "replay")} == {SEAL}


def test_a_whole_org_renamed_into_another_does_not_open(world: World) -> None:
    desk = world.attacked(
        *[
            statement
            for table in TABLES
            for statement in (
                (f"DELETE FROM {table} WHERE org = ?", (NORTH.org,)),
                (f"UPDATE {table} SET org = ? WHERE org = ?", (NORTH.org, SOUTH.org)),
            )
        ]
    )
    assert use(desk, world, "restore") == WRONG_KEY


def test_a_plaintext_row_put_in_is_never_handed_out(world: World) -> None:
    scope = scopes(world.desk)[NORTH.org, "case"]
    with closing(sqlite3.connect(world.desk.database)) as straight:
        names = [column.name for column in TABLES["results"].c]
        row = straight.execute(
            "SELECT * FROM results WHERE org = ? AND scope_id = ? AND number = 1", (NORTH.org, scope)
        ).fetchone()
    plain = dict(zip(names, row, strict=True))
    plain.update(number=9, original_id=b"9" * 16, closed=b"plain note", sealed_size=9)
    desk = world.attacked(
        ("INSERT INTO originals VALUES (?, ?, ?)", (NORTH.org, b"9" * 16, b"plaintext")),
        (f"INSERT INTO results VALUES ({', '.join('?' * len(names))})", tuple(plain.values())),
    )
    with opened(desk) as archive, pytest.raises(SealBrokenError):
        archive.restore("case", "r9", principal=NORTH)
    assert use(desk, world, "session") == "suspended"


def test_a_plaintext_envelope_is_refused(world: World) -> None:
    ids = original_ids(world.desk)
    for plain in (content(NORTH.org, "case", "A").encode(), b"", b"EVA1", b"EVA1" + b"\x00" * 60, b"\x00" * 500):
        desk = world.attacked(
            (
                "UPDATE originals SET envelope = ? WHERE org = ? AND original_id = ?",
                (plain, NORTH.org, ids[NORTH.org, "case", 1]),
            )
        )
        assert use(desk, world, "restore") in (SEAL, "UnsupportedVersionError")


def test_no_bit_of_an_envelope_can_be_flipped_and_no_byte_cut_or_added(world: World) -> None:
    ids = original_ids(world.desk)
    key = (NORTH.org, ids[NORTH.org, "case", 1])
    with closing(sqlite3.connect(world.desk.database)) as straight:
        whole = straight.execute("SELECT envelope FROM originals WHERE org = ? AND original_id = ?", key).fetchone()[
            0
        ]
    desk = world.copy()
    size = len(whole)
    places = sorted({*range(0, 40, 2), *range(40, size, size // 30), size - 1})
    flipped = [whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :] for at in places]
    cut = [whole[:at] for at in (0, 1, 39, 40, 41, 64, 96, size // 2, size - 17, size - 16, size - 1)]
    added = [whole + b"\x00", whole + whole, b"\x00" + whole, whole[:40] + b"\x00" + whole[40:]]
    with opened(desk) as archive, closing(sqlite3.connect(desk.database, isolation_level=None)) as straight:
        for bad in (*flipped, *cut, *added):
            straight.execute("UPDATE originals SET envelope = ? WHERE org = ? AND original_id = ?", (bad, *key))
            outcome, _ = caught(lambda: archive.restore("case", "r1", principal=NORTH))
            assert outcome in (SEAL, "UnsupportedVersionError"), "an altered envelope was opened"
        straight.execute("UPDATE originals SET envelope = ? WHERE org = ? AND original_id = ?", (whole, *key))
        assert archive.restore("case", "r1", principal=NORTH).content == content(NORTH.org, "case", "A")


def test_a_broken_seal_is_logged_and_suspends_archiving_in_that_session_alone(world: World) -> None:
    ids = original_ids(world.desk)
    desk = world.attacked(
        (
            "UPDATE originals SET envelope = zeroblob(500) WHERE org = ? AND original_id = ?",
            (NORTH.org, ids[NORTH.org, "case", 1]),
        )
    )
    assert use(desk, world, "restore") == SEAL
    with opened(desk) as archive:
        entries = archive.audit(principal=NORTH).entries
        assert [entry.event for entry in entries][-2:] == ["restore.failed", "session.suspended"]
        for name, suspended in (("case", "integrity"), ("other", None)):
            session = archive.session(name, NORTH)
            session.view(world.messages[NORTH.org, name])
            assert session.stats().suspended == suspended


# --- the log ----------------------------------------------------------------------------------------------------

LOG_ATTACKS: dict[str, list[str]] = {
    "an entry edited": [
        "UPDATE audit_leaves SET leaf = replace(leaf, 'owner', 'other') WHERE org = :org AND seq = 3"
    ],
    "the first entry removed": ["DELETE FROM audit_leaves WHERE org = :org AND seq = 0"],
    "an entry removed": ["DELETE FROM audit_leaves WHERE org = :org AND seq = 3"],
    "an entry removed and the gap closed": [
        "DELETE FROM audit_leaves WHERE org = :org AND seq = 3",
        "UPDATE audit_leaves SET seq = -seq WHERE org = :org AND seq > 3",
        "UPDATE audit_leaves SET seq = -seq - 1 WHERE org = :org AND seq < 0",
    ],
    "the last entry removed": [
        "DELETE FROM audit_leaves WHERE org = :org AND seq = (SELECT max(seq) FROM audit_leaves WHERE org = :org)"
    ],
    "all entries removed": ["DELETE FROM audit_leaves WHERE org = :org"],
    "two entries reordered": [
        "UPDATE audit_leaves SET seq = -1 WHERE org = :org AND seq = 3",
        "UPDATE audit_leaves SET seq = 3 WHERE org = :org AND seq = 4",
        "UPDATE audit_leaves SET seq = 4 WHERE org = :org AND seq = -1",
    ],
    "an entry appended": [
        "INSERT INTO audit_leaves SELECT :org, max(seq) + 1, leaf FROM audit_leaves WHERE org = :org"
    ],
    "an entry of another org put in its place": [
        (
            "UPDATE audit_leaves SET leaf = (SELECT leaf FROM audit_leaves WHERE org = 'south-clinic' AND seq = 3)"
            " WHERE org = :org AND seq = 3"
        ),
    ],
    "a fork: other last entries of the same number": [
        (
            "UPDATE audit_leaves SET leaf = (SELECT leaf FROM audit_leaves l WHERE l.org = 'south-clinic'"
            " AND l.seq = audit_leaves.seq) WHERE org = :org AND seq > 5"
        ),
    ],
    "the head counts fewer": ["UPDATE audit_heads SET size = size - 1 WHERE org = :org"],
    "the head removed": ["DELETE FROM audit_heads WHERE org = :org"],
    "the head of another org": [
        (
            "UPDATE audit_heads SET (size, frontier, last_leaf_hash, policy_digest, custody_version, seal) = (SELECT"
            " size, frontier, last_leaf_hash, policy_digest, custody_version, seal FROM audit_heads"
            " WHERE org = 'south-clinic') WHERE org = :org"
        ),
    ],
}


@pytest.mark.parametrize("attack", LOG_ATTACKS)
def test_the_audit_report_finds(world: World, attack: str) -> None:
    desk = world.copy()
    with closing(sqlite3.connect(desk.database, isolation_level=None)) as straight:
        for statement in LOG_ATTACKS[attack]:
            # replace() on a blob gives text, which hashes to something else and has another type: both are attacks
            straight.execute(statement, {"org": NORTH.org})
    assert use(desk, world, "audit") in ("finding", AUDIT, SEAL)
    with opened(desk) as archive:
        assert archive.audit(principal=SOUTH).intact, "the log of another org is not touched"


def test_an_old_head_put_back_alone_is_found_by_the_next_writer_and_by_the_report(world: World) -> None:
    desk = world.copy()
    with closing(sqlite3.connect(desk.database)) as straight:
        old = straight.execute("SELECT * FROM audit_heads WHERE org = ?", (NORTH.org,)).fetchone()
    assert use(desk, world, "restore") == "as it was"  # the log grows
    with closing(sqlite3.connect(desk.database, isolation_level=None)) as straight:
        straight.execute("REPLACE INTO audit_heads VALUES (?, ?, ?, ?, ?, ?, ?)", old)
    assert use(desk, world, "restore") == AUDIT, "nothing is released that the log cannot take"
    assert use(desk, world, "audit") == "finding"


def test_an_older_copy_of_everything_is_not_found_yet(world: World) -> None:
    desk = world.copy()
    older = desk.database.read_bytes()
    assert use(desk, world, "restore") == "as it was"
    desk.database.write_bytes(older)
    assert use(desk, world, "audit") == "as it was", "SECURITY.md says that this is not found without an anchor"


def test_an_older_row_put_back_with_its_seal_is_not_found_yet(world: World) -> None:
    desk = world.copy()
    scope = scopes(desk)[NORTH.org, "case"]
    key = (NORTH.org, scope)
    with closing(sqlite3.connect(desk.database)) as straight:
        older = straight.execute(f"SELECT * FROM results {WHERE} AND number = 1", key).fetchone()
    with opened(desk) as archive:
        session = archive.session("case", NORTH)
        session.label("r1", sensitivity="signed")
        assert session.restore("r1").provenance.sensitivity == ("signed",)
    with closing(sqlite3.connect(desk.database, isolation_level=None)) as straight:
        straight.execute(f"REPLACE INTO results VALUES ({', '.join('?' * len(older))})", older)
    assert use(desk, world, "restore") == "as it was", "SECURITY.md says that the label is gone and nobody notices"
    with opened(desk) as archive:
        report = archive.audit(principal=NORTH)
        assert "label.set" in [entry.event for entry in report.entries], "only the log still tells of it"


# --- must-fail controls -----------------------------------------------------------------------------------------


def test_a_store_without_row_seals_would_hand_originals_to_strangers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = Principal(org=NORTH.org, subject="stranger")
    desk = world.attacked(("UPDATE sessions SET subject = 'stranger' WHERE org = ?", (NORTH.org,)))
    with opened(desk) as archive, pytest.raises(SealBrokenError):
        archive.restore("case", "r1", principal=stranger)

    desk = world.attacked(("UPDATE sessions SET subject = 'stranger' WHERE org = ?", (NORTH.org,)))
    monkeypatch.setattr(store_rows, "check_row_seal", lambda *_: None)
    with opened(desk) as archive:
        assert archive.restore("case", "r1", principal=stranger).content == content(NORTH.org, "case", "A")


def test_a_store_without_row_seals_would_return_altered_provenance(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    statement = ("UPDATE results SET sensitivity = 'signed' WHERE org = ?", (NORTH.org,))
    assert use(world.attacked(statement), world, "restore") == SEAL
    monkeypatch.setattr(store_rows, "check_row_seal", lambda *_: None)
    with pytest.raises(AssertionError):
        use(world.attacked(statement), world, "restore")


def test_a_store_that_kept_plain_bytes_would_return_altered_content(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evidence_archive import envelopes
    from evidence_archive.sealing.envelope import Opened

    def unsealed(envelope: bytes, **_: Any) -> Opened:
        return Opened(envelope, "text", b"", b"", "")

    ids = original_ids(world.desk)
    statement = (
        "UPDATE originals SET envelope = ? WHERE org = ? AND original_id = ?",
        (b"altered", NORTH.org, ids[NORTH.org, "case", 1]),
    )
    assert use(world.attacked(statement), world, "restore") == SEAL
    monkeypatch.setattr(envelopes, "open_original", unsealed)
    monkeypatch.setattr(envelopes, "sha256", lambda _: Mock(digest=lambda: ANY))
    with pytest.raises(AssertionError, match="altered content was handed out"):
        use(world.attacked(statement), world, "restore")
