"""What is detected when, column by column and row by row, in all tables that there are.

The attacker can write the database and has no keys. Every attack is made from the tables' metadata; ``COLUMNS`` and
``ROWS`` state at which tier it is found, docs/verify.md prints them, and what is not in them fails. In the attacked
store another session has a damaged original: no attack hides it.
"""

import random
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from conftest import Desk
from sqlalchemy import LargeBinary, Text
from test_security_doc import table as table_of
from verified_world import NORTH, TABLES, World, content

from evidence_archive import EvidenceArchiveError
from evidence_archive.anchors import FileAnchor
from evidence_archive.books import Books
from evidence_archive.errors import NotAvailableError, SealBrokenError
from evidence_archive.ports import CheckpointRow
from evidence_archive.proof.leaf import decode_leaf, encode_leaf
from evidence_archive.proof.merkle import Frontier, leaf_hash
from evidence_archive.store import rows as store_rows
from evidence_archive.store.statements import CHECKPOINT, HEAD
from evidence_archive.verifying import VerifyReport
from evidence_archive.verifying.findings import Findings
from evidence_archive.verifying.run import Run
from evidence_archive.verifying.told import Log

VERIFY_MD = Path(__file__).resolve().parents[1] / "docs" / "verify.md"

# --- the table --------------------------------------------------------------------------------------------------
# "use": a restore, a view, a batch or an act of custody that touches the row fails or suspends, and verify finds it.
# "verify": verify finds it; "full": with --level full; "anchor": only with --anchor; "no": nothing.
# "-": there is no such attack.

USE, VERIFY, FULL, ANCHOR, NO, NONE = "use", "verify", "full", "anchor", "no", "-"


def _all(use: str = "", verify: str = "") -> dict[str, str]:
    return {**dict.fromkeys(use.split(), USE), **dict.fromkeys(verify.split(), VERIFY)}


COLUMNS: dict[str, dict[str, str]] = {
    "orgs": _all(use="org deployment aux_wrapped kek_version kek_fingerprint generation created_at_us seal"),
    "scope_keys": _all(
        use="wrapped kek_version kek_fingerprint generation created_at_us seal", verify="org scope_id"
    ),
    "sessions": _all(
        use="scope_id subject dialect tag version next_number suspended batches restores tokens_saved created_at_us"
        " stamp books seal",
        verify="org session_id",
    ),
    "results": _all(
        use="org scope_id number version seen call_id tool_name result_tool_name own kind sensitivity media_type"
        " size_chars size_bytes tokens labelled observed_at_us observed_by content_tag labelled_tag origin part state"
        " note_tag rendering live_ask note_tokens batch_id original_id dek_id envelope_sha256 sealed_size closed"
        " archived_at_us retention_until_us seal"
    ),
    "originals": _all(use="org original_id envelope"),
    "objects": _all(use="org original_id key size_bytes part_bytes state expires_at_us created_at_us seal"),
    "batches": _all(use="org scope_id batch_id request_tag idempotency_key receipt created_at_us seal"),
    "postings": _all(use="org scope_id book seq closed created_at_us seal"),
    "audit_heads": _all(use="org size frontier last_leaf_hash policy_digest custody_version seal"),
    "audit_leaves": _all(verify="org seq leaf"),
    "holds": _all(
        use="hold_id scope_id number reason placed_by placed_at_us released_by released_at_us seal", verify="org"
    ),
    "shreds": _all(
        use="shred_id scope_id number kek_version requested_by requested_at_us completed_at_us seal", verify="org"
    ),
    "checkpoints": {**_all(use="note frontier created_at_us seal", verify="size"), "org": ANCHOR},
    "custody": _all(use="org kek_floor originals original_bytes holds version seal"),
    "org_names": _all(verify="org name"),
}

ATTACKS = ("delete", "duplicate", "reorder", "older")

ROWS: dict[str, tuple[str, str, str, str]] = {
    # deleted, put in again under another key, changed with another, put back as it ever was
    "orgs": (USE, NONE, USE, USE),
    "scope_keys": (VERIFY, USE, USE, USE),
    "sessions": (VERIFY, USE, USE, USE),
    "results": (USE, USE, USE, FULL),
    "originals": (USE, VERIFY, USE, NONE),
    "objects": (USE, VERIFY, USE, NONE),
    "batches": (USE, VERIFY, USE, NONE),
    "postings": (USE, USE, USE, NONE),
    "audit_heads": (USE, NONE, USE, USE),
    "audit_leaves": (VERIFY, USE, VERIFY, NONE),
    "holds": (VERIFY, USE, USE, VERIFY),
    "shreds": (VERIFY, USE, USE, VERIFY),
    "checkpoints": (ANCHOR, USE, USE, NONE),
    "custody": (USE, NONE, USE, USE),
    "org_names": (VERIFY, NO, NONE, NONE),
}


# --- the world that is attacked ---------------------------------------------------------------------------------


class Attacked:
    """A copy of the world that is put back before every attack, with one damaged original that nobody may hide."""

    def __init__(self, folder: Path) -> None:
        self.world = World(Desk(folder))
        self.world.loosened()
        copied = folder / "attacked"
        copied.mkdir()
        self.desk = self.world.copy(copied)
        self.desk.execute(
            "UPDATE originals SET envelope = zeroblob(500) WHERE org = ? AND original_id ="
            " (SELECT original_id FROM results r JOIN sessions s ON r.org = s.org AND r.scope_id = s.scope_id"
            " WHERE s.org = ? AND session_id = 'other' AND number = 1)",
            NORTH.org,
            NORTH.org,
        )
        self.whole = self.planted()
        self._bytes = self.desk.database.read_bytes()
        self.known: set[tuple[str, str]] = set()
        self.known = self.found()
        assert self.known == {("original_changed", "other r1")}, self.known

    def planted(self) -> list[tuple[Any, ...]]:
        """The rows of the damage in the other session, which an attack may replace by its own."""
        return self.desk.execute(
            "SELECT * FROM sessions s JOIN results r ON r.org = s.org AND r.scope_id = s.scope_id"
            " JOIN originals o ON o.org = r.org AND o.original_id = r.original_id"
            " WHERE s.org = ? AND session_id = 'other' AND number = 1",
            NORTH.org,
        )

    def hides(self, found: set[tuple[str, str]]) -> bool:
        """Whether damage that is still there is not found."""
        return not found >= self.known and self.planted() == self.whole

    def put_back(self) -> None:
        for path in self.desk.folder.glob("evidence.db-*"):
            path.unlink()
        self.desk.database.write_bytes(self._bytes)

    def attack(self, *statements: tuple[str, tuple[Any, ...]]) -> None:
        self.put_back()
        with closing(sqlite3.connect(self.desk.database, isolation_level=None)) as straight:
            straight.execute("DROP INDEX IF EXISTS ix_results_original")  # whoever writes the file can do that, too
            for statement, values in statements:
                straight.execute(statement, values)

    def found(self, level: str = "seals", **named: Any) -> set[tuple[str, str]]:
        """What verify finds; an org that does not open any more is a finding of its own."""
        report = self.world.verified(self.desk, level, **named)
        if not isinstance(report, VerifyReport):
            return {("could not run", report), *self.known}
        return {(finding.code, finding.place) for finding in report.findings}

    def found_without_keys(self) -> set[tuple[str, str]]:
        return {(finding.code, finding.place) for finding in self.world.keyless(self.desk).findings}


@pytest.fixture(scope="module")
def attacked() -> Iterator[Attacked]:
    # Hundreds of attacks with a commit each: in memory where there is such a place.
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Attacked(Path(folder))


# --- uses -------------------------------------------------------------------------------------------------------


def restored(attacked: Attacked, result_id: str, letter: str) -> None:
    with attacked.world.opened(attacked.desk) as archive:
        found = archive.restore("case", result_id, principal=NORTH)
    assert found.content == content(NORTH.org, "case", letter), "altered content was handed out"
    assert found.provenance.tool_name == "logs.search"
    assert found.provenance.sensitivity in ((), ("internal",))


def viewed(attacked: Attacked) -> None:
    with attacked.world.opened(attacked.desk) as archive:
        session = archive.session("case", NORTH)
        session.view(attacked.world.messages[NORTH.org, "case"])
        if session.stats().suspended:
            raise SealBrokenError("suspended")
        receipt = session.archive([("r1", "note 1"), ("r2", "note 2"), ("r4", "note 4")], idempotency_key="k1")
        assert receipt.replayed or session.stats().batches == 1, "a batch was accepted twice"


def looked_up(attacked: Attacked) -> None:
    with attacked.world.opened(attacked.desk) as archive:
        session = archive.session("case", NORTH)
        if not session.results():
            raise NotAvailableError  # there is no such session any more, and another one was opened
        books = Books(session._records)
        read = [[posting.content for posting in books.read(book)] for book in ("card", "ledger")]
    assert read == [[{"at": 1}, {"at": 2}], [{"at": 3}]], "an altered book was handed out"


def held(attacked: Attacked) -> None:
    with attacked.world.opened(attacked.desk) as archive:
        custody = archive.custody(NORTH)
        custody.holds()
        custody.shreds()
        custody.census()
        custody.checkpoint()
        archive.results("case", principal=NORTH)


USES: tuple[Callable[[Attacked], None], ...] = (
    lambda attacked: restored(attacked, "r1", "A"),
    lambda attacked: restored(attacked, "r2", "B"),
    looked_up,
    viewed,
    held,
)


def failing(attacked: Attacked) -> list[str]:
    """How the uses fail; each of them hands out what is right, or nothing."""
    outcomes = []
    for use in USES:
        try:
            use(attacked)
        except NotAvailableError:
            pass  # looks as if it had never been there
        except EvidenceArchiveError as error:
            outcomes.append(type(error).__name__)
    return outcomes


def test_every_use_works_on_a_store_that_nobody_attacked(attacked: Attacked) -> None:
    attacked.put_back()
    assert failing(attacked) == []


# --- column by column -------------------------------------------------------------------------------------------


def forged(column: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Other values for a column: a bit or a character off, nothing, another type."""
    if isinstance(column.type, LargeBinary):
        data = value or b"\x00"
        yield "first bit", bytes([data[0] ^ 0x80]) + data[1:]
        yield "last bit", data[:-1] + bytes([data[-1] ^ 1])
        yield "empty", b""
        yield "typed", data.hex()
    elif isinstance(column.type, Text):
        yield "one more", f"{value or ''}x"
        yield "first character", chr(ord((value or "a")[0]) ^ 1) + (value or "a")[1:]
        yield "empty", ""
        yield "typed", (value or "x").encode()
    else:
        yield "one more", (value or 0) + 1
        yield "one less", (value or 0) - 1
        yield "zero", 0
        yield "typed", f"x{value}"
    yield "NULL", None


def attacks_on(attacked: Attacked, table: str, name: str) -> Iterator[tuple[str, list[tuple[str, tuple[Any, ...]]]]]:
    key = attacked.world.key_of(table)
    names = [column.name for column in TABLES[table].c]
    where = " AND ".join(f"{part} = ?" for part in key)
    at = tuple(key.values())
    attacked.put_back()
    rows = [dict(zip(names, row, strict=True)) for row in attacked.desk.rows(table)]
    victim = next(row for row in rows if all(row[part] == value for part, value in key.items()))
    others = sorted((row for row in rows if row is not victim), key=lambda row: row["org"] != victim["org"])
    values = list(forged(TABLES[table].c[name], victim[name]))
    for org in dict.fromkeys(row["org"] for row in others):
        different = [row[name] for row in others if row["org"] == org and row[name] != victim[name]]
        values += [(f"as in another row of {org!r}", value) for value in different[:1]]
    values += [("as it was", old[names.index(name)]) for old in attacked.world.olders(table, key)[:1]]
    update = f"UPDATE {table} SET {name} = ? WHERE {where}"
    tried = [victim[name]]
    for how, value in values:
        if any(type(value) is type(other) and value == other for other in tried):
            continue
        tried.append(value)
        place = {part: value if part == name else key[part] for part in key}
        taken = f"DELETE FROM {table} WHERE " + " AND ".join(f"{part} IS ?" for part in place)
        first = [(taken, tuple(place.values()))] if name in key else []
        yield how, [*first, (update, (value, *at))]
    yield "text that is no UTF-8", [(update.replace("= ?", "= CAST(x'61ff' AS TEXT)", 1), at)]


UNIQUE = {"sessions": "scope_id", "batches": "idempotency_key"}
"""What SQLite keeps from being double besides the keys."""


def whole_rows(attacked: Attacked, table: str, how: str) -> list[list[tuple[str, tuple[Any, ...]]]]:
    """A row deleted, put in twice, changed with another, or as it ever was; none where there is no such attack."""
    key = attacked.world.key_of(table)
    names = [column.name for column in TABLES[table].c]
    where = " AND ".join(f"{part} = ?" for part in key)
    at = tuple(key.values())
    attacked.put_back()
    rows = [dict(zip(names, row, strict=True)) for row in attacked.desk.rows(table)]
    victim = next(row for row in rows if all(row[part] == value for part, value in key.items()))
    inserted = f"INSERT INTO {table} VALUES ({', '.join('?' * len(names))})"
    delete = (f"DELETE FROM {table} WHERE {where}", at)
    if how == "delete":
        return [[delete]]
    if how == "older":
        return [[delete, (inserted, old)] for old in attacked.world.olders(table, key)]
    last = list(key)[-1]
    if how == "duplicate":
        if last == "org":
            return []  # one row for each org
        other = {name: another(victim[name]) for name in (last, UNIQUE.get(table)) if name is not None}
        return [[(inserted, tuple({**victim, **other}.values()))]]
    rest = [name for name in names if name not in key and name != UNIQUE.get(table)]
    if not rest:
        return []  # the row is its key
    others = [row for row in rows if row is not victim and any(row[name] != victim[name] for name in rest)]
    second = min(others, key=lambda row: (row["org"] != victim["org"], repr(row)))
    update = f"UPDATE {table} SET {', '.join(f'{name} = ?' for name in rest)} WHERE {where}"
    return [
        [
            (update, (*(second[name] for name in rest), *at)),
            (update, (*(victim[name] for name in rest), *(second[part] for part in key))),
        ]
    ]


def another(value: Any) -> Any:
    """A value of the same type that no row has."""
    if isinstance(value, bytes):
        return value[::-1]
    return 10_000 if isinstance(value, int) else f"{value}2"


PLACES = [(table, column.name) for table in sorted(TABLES) for column in TABLES[table].c]


@pytest.mark.parametrize(("table", "name"), PLACES, ids=lambda value: value)
def test_a_column_changed_by_hand_is_found_at_its_tier_hides_nothing_and_alters_no_content(
    attacked: Attacked, table: str, name: str
) -> None:
    assert name in COLUMNS.get(table, {}), "state in COLUMNS when this column is found, and in docs/verify.md"
    tried = 0
    for how, statements in attacks_on(attacked, table, name):
        try:
            attacked.attack(*statements)
        except sqlite3.IntegrityError:
            continue  # SQLite itself keeps a key from being empty or double
        tried += 1
        assert_found(attacked, statements, COLUMNS[table][name], how)
    assert tried >= 2


def assert_found(attacked: Attacked, statements: list[Any], tier: str, how: str) -> None:
    assert not attacked.hides(attacked.found_without_keys()), f"{how}: hides the other damage from who has no keys"
    found = attacked.found()
    assert not attacked.hides(found), f"{how}: hides the other damage"
    new = found - attacked.known
    if tier in (ANCHOR, FULL) and not new:
        attacked.attack(*statements)
        found = attacked.found("full", **({"anchors": [attacked.world.anchor]} if tier == ANCHOR else {}))
        new = found - attacked.known
    assert new, f"{how}: verify finds nothing"
    attacked.attack(*statements)
    failed = failing(attacked)  # asserts that nothing altered comes out
    assert failed or tier != USE, f"{how}: no use finds it"


@pytest.mark.parametrize(
    "seed", [*range(20), *(pytest.param(one, marks=pytest.mark.nightly) for one in range(20, 500))]
)
def test_many_attacks_at_once_end_no_run_and_hide_nothing(attacked: Attacked, seed: int) -> None:
    chosen = random.Random(seed)
    statements: list[tuple[str, tuple[Any, ...]]] = []
    for _ in range(chosen.randint(2, 8)):
        statements += chosen.choice(list(attacks_on(attacked, *chosen.choice(PLACES))))[1]
    attacked.put_back()
    with closing(sqlite3.connect(attacked.desk.database, isolation_level=None)) as straight:
        for statement, values in statements:
            with suppress(sqlite3.IntegrityError):
                straight.execute(statement, values)
    found = attacked.found_without_keys()
    assert not attacked.hides(found)
    assert (attacked.found("full") | found) - attacked.known


def test_every_table_is_in_both_tables_and_every_column_in_one() -> None:
    assert sorted(ROWS) == sorted(COLUMNS) == sorted(TABLES)
    assert {(table, name) for table, stated in COLUMNS.items() for name in stated} == set(PLACES)


@pytest.mark.parametrize("how", ATTACKS)
@pytest.mark.parametrize("table", sorted(TABLES))
def test_a_row_removed_doubled_moved_or_put_back_is_found_at_its_tier(
    attacked: Attacked, table: str, how: str
) -> None:
    tier = ROWS[table][ATTACKS.index(how)]
    tries = whole_rows(attacked, table, how)
    assert bool(tries) == (tier != NONE)
    unseen = 0
    for statements in tries:
        attacked.attack(*statements)
        if tier == NO:
            unseen += attacked.found("full", anchors=[attacked.world.anchor]) == attacked.known
            attacked.attack(*statements)
            assert failing(attacked) == []
        else:
            assert_found(attacked, statements, tier if how != "older" or tier != USE else VERIFY, how)
    assert bool(unseen) == (tier == NO), "docs/verify.md says that this is not always found: say that it is"


# --- what only an anchor finds, and what nothing finds ------------------------------------------------------------


def test_an_older_copy_of_everything_is_found_with_an_anchor_and_only_there(
    attacked: Attacked, tmp_path: Path
) -> None:
    attacked.put_back()
    anchor = tmp_path / "heads.jsonl"
    shutil.copy(attacked.world.anchor, anchor)
    with attacked.world.opened(attacked.desk, anchors=[anchor]) as archive:
        archive.restore("case", "r1", principal=NORTH)
    attacked.put_back()
    assert attacked.found("full") == attacked.known, "docs/verify.md says that this is not found without an anchor"
    attacked.put_back()
    looked = attacked.world.keyless(attacked.desk, anchors=[FileAnchor(anchor)])
    assert ("rolled_back", "file 1") in {(one.code, one.place) for one in looked.findings}
    assert ("rolled_back", "file 1") in attacked.found(anchors=[anchor])


def rewritten(attacked: Attacked) -> None:
    """What somebody with keys can do: another past of the same length, with its head and its checkpoints."""
    with attacked.world.opened(attacked.desk) as archive:
        vault = archive._vault(NORTH)
        with vault.store.reading(1_000) as reader:
            size = reader.head().size
            leaves = [data for _, data in reader.leaves(0, size)]
            sizes = [row.size for row in reader.checkpoints(0, size)]
            head = reader.head()
        at, entry = next(
            (at, entry) for at, entry in enumerate(map(decode_leaf, leaves)) if entry.event == "session.opened"
        )
        leaves[at] = encode_leaf(
            org=entry.org, seq=at, time_us=entry.time_us + 1, event=entry.event, subject=entry.subject,
            session_id=entry.session_id, policy_digest=entry.policy_digest, details=entry.details,
        )  # fmt: skip
        frontier, rows = Frontier(), []
        for data in leaves:
            frontier.append(leaf_hash(data))
            if frontier.size in sizes:
                note = vault.signer.sign(frontier.size, frontier.root())
                rows.append(CheckpointRow(frontier.size, note, frontier.to_bytes(), 1))
        head.frontier, head.last_leaf_hash = frontier.to_bytes(), leaf_hash(leaves[-1])
        seal = HEAD.values(NORTH.org, vault._keys.row, head)
        checkpoints = [CHECKPOINT.values(NORTH.org, vault._keys.row, row) for row in rows]
    desk = attacked.desk
    desk.execute("UPDATE audit_leaves SET leaf = ? WHERE org = ? AND seq = ?", leaves[at], NORTH.org, at)
    for table, written in (("audit_heads", [seal]), ("checkpoints", checkpoints)):
        desk.execute(f"DELETE FROM {table} WHERE org = ?", NORTH.org)
        for row in written:
            desk.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", *row)


def test_another_past_of_the_same_length_written_with_the_keys_is_found_with_an_anchor_and_only_there(
    attacked: Attacked,
) -> None:
    attacked.put_back()
    rewritten(attacked)
    assert attacked.found("full") == attacked.known, "docs/verify.md says that only an anchor finds this"
    assert ("rewritten", "file 1") in attacked.found(anchors=[attacked.world.anchor])


def test_must_fail_control_a_verifier_that_compares_sizes_only_believes_another_past(
    attacked: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sizes_only(self: Run, table: str, place: str, size: int, root: bytes) -> None:
        if size > self._log.size:
            self._add("rolled_back", table, place, "The log is shorter.")

    attacked.put_back()
    rewritten(attacked)
    monkeypatch.setattr(Run, "_check_head", sizes_only)
    assert attacked.found(anchors=[attacked.world.anchor]) == attacked.known


# --- must-fail controls -----------------------------------------------------------------------------------------


def test_must_fail_control_a_verifier_that_trusts_the_head_believes_changed_entries(
    attacked: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = attacked.desk.execute("SELECT leaf FROM audit_leaves WHERE org = ? AND seq = 3", NORTH.org)[0][0]
    told = decode_leaf(entry)
    altered = encode_leaf(
        org=told.org, seq=3, time_us=told.time_us + 1, event=told.event, subject=told.subject,
        session_id=told.session_id, batch_id=told.batch_id, policy_digest=told.policy_digest, details=told.details,
    )  # fmt: skip
    attack = ("UPDATE audit_leaves SET leaf = ? WHERE org = ? AND seq = 3", (altered, NORTH.org))
    attacked.attack(attack)
    assert {code for code, _ in attacked.found() - attacked.known} == {"head_differs", "rewritten"}
    monkeypatch.setattr(Log, "_compare", lambda *_: None)
    monkeypatch.setattr(Run, "_check_head", lambda *_: None)
    attacked.attack(attack)
    assert attacked.found() == attacked.known


def test_must_fail_control_a_verifier_that_stops_at_its_first_finding_hides_the_other_damage(
    attacked: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Findings.add

    def first_only(self: Findings, *given: Any) -> None:
        if not self.count:
            whole(self, *given)

    monkeypatch.setattr(Findings, "add", first_only)
    attacked.attack(*whole_rows(attacked, "holds", "delete")[0])
    attacked.attack(("UPDATE sessions SET tag = 'x' WHERE org = ? AND session_id = 'case'", (NORTH.org,)))
    assert attacked.hides(attacked.found())


def test_must_fail_control_a_store_without_seals_would_not_find_most_columns(
    attacked: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_rows, "check_row_seal", lambda *_: None)
    attacked.attack(("UPDATE results SET tokens = tokens + 1 WHERE org = ? AND number = 1", (NORTH.org,)))
    assert attacked.found() == attacked.known


# --- PostgreSQL, a sample ---------------------------------------------------------------------------------------


def test_on_postgresql_a_row_changed_or_removed_in_each_table_is_found(postgresql_desk: Desk) -> None:
    world, desk = World(postgresql_desk), postgresql_desk
    desk.execute("ALTER TABLE postings DISABLE TRIGGER USER")  # as whoever owns it can
    assert findings(world, desk) == set()
    for table in sorted(TABLES):
        key = world.key_of(table)
        where = " AND ".join(f"{part} = ?" for part in key)
        name = next(
            (column.name for column in TABLES[table].c if column.name in ("seal", "envelope", "leaf")), "name"
        )
        value = desk.execute(f"SELECT {name} FROM {table} WHERE {where}", *key.values())[0][0]
        changed = f"{value}x" if isinstance(value, str) else bytes(value)[:-1] + bytes([bytes(value)[-1] ^ 1])
        rows = desk.rows(table)
        desk.execute(f"UPDATE {table} SET {name} = ? WHERE {where}", changed, *key.values())
        assert findings(world, desk), f"{table} changed"
        moved = {**key, name: changed} if name in key else key
        again = " AND ".join(f"{part} = ?" for part in moved)
        desk.execute(f"UPDATE {table} SET {name} = ? WHERE {again}", value, *moved.values())
        if table in ("audit_heads", "audit_leaves", "checkpoints"):
            continue  # the log went on since: what is put back would not be what is there
        names = TABLES[table].c.keys()
        mine = next(one for one in rows if key.items() <= dict(zip(names, one, strict=True)).items())
        desk.execute(f"DELETE FROM {table} WHERE {where}", *key.values())
        assert findings(world, desk), f"{table} removed"
        desk.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(mine))})", *mine)
    assert findings(world, desk) == set()


def findings(world: World, desk: Desk, **named: Any) -> set[str]:
    report = world.verified(desk, **named)
    return {report} if isinstance(report, str) else {finding.code for finding in report.findings}


# --- the page ---------------------------------------------------------------------------------------------------


def test_the_page_prints_the_table() -> None:
    page = VERIFY_MD.read_text("utf-8")
    columns: dict[str, dict[str, str]] = {}
    for table, names, tier in table_of(page, "table"):
        stated = columns.setdefault(table.strip("`"), {})
        stated.update(dict.fromkeys(re.findall(r"`(\w+)`", names), tier))
        if names in ("all", "all others"):
            stated.update({name: tier for name in COLUMNS[table.strip("`")] if name not in stated})
    assert columns == COLUMNS
    rows = {name.strip("`"): tuple(tiers) for name, *tiers in table_of(page, "row of")}
    assert rows == ROWS
