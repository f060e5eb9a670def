"""What is stored is what docs/format.md says: a second decoder opens all of it, and notices one byte that is off."""

import copy
import hashlib
import io
import json
import re
import shutil
import sqlite3
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import independent_decoder as independent
import pytest
from conftest import Conversation, Desk
from doubles import Characters, arguments, batch_of
from independent_decoder import NotWhatWasSealed, Org, Tables
from sqlmodel import SQLModel

from evidence_archive import Archive, Principal, envelopes
from evidence_archive.books import Books
from evidence_archive.errors import BatchRejectedError, HeldError, NotAvailableError, ShreddedError
from evidence_archive.keys import new_keys
from evidence_archive.objects import open_objects
from evidence_archive.proof.merkle import consistency_proof, leaf_hash
from evidence_archive.testing import FrozenClock

COLUMNS = [(table.name, column.name) for table in SQLModel.metadata.sorted_tables for column in table.c]
NORTH, SOUTH, EAST = (
    Principal(org, "triage-agent", {"agent", "custodian"}) for org in ("north-clinic", "south-clinic", "east-clinic")
)
UGLY = "CRLF\r\n NUL\0 lone \ud800 \N{GRINNING FACE} \u202e\n" * 30
LONG = "".join(f"line {number} of the log, {number * number} ms\n" for number in range(800))
PARTS = [
    {"type": "text", "text": LONG[:900], "cache_control": {"type": "ephemeral"}},
    {"type": "text", "text": "b", "a": [True, 1.0, None, "caf\N{LATIN SMALL LETTER E WITH ACUTE} \ud83d"]},
]
CONTENTS = {"r1": UGLY, "r2": PARTS, "r3": LONG, "r4": "to be shredded\n" * 90, "r5": "shredded as well\n" * 90}
BOOKS = {"card": [{"goal": "a goal \ud800", "at": [1, None]}, {}], "ledger": [{"z": True, "a": {"b": 1.5}}]}
PATTERN = "log, 4 ms \ud800"


def exact(content: Any) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    return json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode("ascii")


def note(result_id: str) -> str:
    return f"note {result_id} \ud800 \N{GRINNING FACE}"


def restored_by_the_model(talk: Conversation, session: Any, result_id: str, **asked: Any) -> None:
    """A copy in the conversation, with the reason that the model gives."""
    nothing = dict.fromkeys(("lines", "pattern", "context_lines", "pointer", "reason"))
    talk.ours(session, "restore_evidence", arguments(id=result_id, **{**nothing, **asked}))
    session.view(talk.messages)
    talk.say()
    session.view(talk.messages)


@dataclass
class Stored:
    """A folder with all that this library stores, and what was put into it."""

    desk: Desk
    lines: dict[str, str]
    holds: dict[str, str]
    bundles: dict[str, bytes]

    @property
    def unwrap(self) -> independent.Unwrap:
        return independent.roots_unwrap(self.desk.keys.read_bytes())

    def read_object(self, name: str) -> bytes:
        return independent.read_objects(self.desk.folder / "evidence.db.objects")(name)

    def tables(self) -> Tables:
        return independent.read_database(self.desk.database)

    def orgs(self, tables: Tables | None = None) -> dict[str, Org]:
        return independent.read_archive(self.tables() if tables is None else tables, self.unwrap, self.read_object)


def made(folder: Path) -> Stored:
    """Three orgs: one with everything, one that is used a little, one that was shredded."""
    new_keys(folder / "evidence.keys")
    stored = Stored(Desk(folder), {}, {}, {})
    clock = FrozenClock()
    with archive_in(stored, clock) as archive:
        for principal in (NORTH, SOUTH, EAST):
            filled(archive, principal)
        custody = archive.custody(NORTH)
        archive.session("case", NORTH).label("r1", sensitivity=["internal", "medical"])
        archive.session("case", NORTH).restore("r3", byte_range="0-9", reason="a program's reason \ud800")
        custody.retain("case", "r1", 4_000_000_000_000_000)
        for words, place in {
            "the whole org": {},
            "a session": {"session_id": "other"},
            "an original \ud800": {"session_id": "case", "result_id": "r1"},
        }.items():
            stored.holds[custody.hold(words, **place).id] = words
        for hold in custody.holds():
            custody.release(hold.id)
        stored.holds[custody.hold("again", session_id="case", result_id="r2").id] = "again"
        custody.shred(session_id="case", result_id="r4")
        custody.shred(session_id="case", result_id="r5")
        custody.shred(session_id="gone")
        with pytest.raises(HeldError):
            custody.shred(session_id="case", result_id="r2")
        custody.verify("full")
        stored.lines = {one.org: archive.custody(one).key() for one in (NORTH, SOUTH, EAST)}
        custody.checkpoint()
    for new_version in (True, False, False):
        with archive_in(stored, clock) as archive:
            archive.custody((NORTH, SOUTH, EAST)[0 if new_version else 1]).rotate(new_version=new_version)
    with archive_in(stored, clock) as archive:
        archive.custody(EAST).rotate(new_version=False)
        archive.custody(NORTH).retire(1)
        archive.custody(EAST).shred()
    with archive_in(stored, clock) as archive:
        custody = archive.custody(NORTH)
        for name, named in {"all": {}, "one": {"result_id": "r2"}, "history": {"include_original": False}}.items():
            file = io.BytesIO()
            custody.export(file, "case", **named)
            stored.bundles[name] = file.getvalue()
        custody.backup(folder / "backup")
    return stored


def archive_in(stored: Stored, clock: Any = None) -> Archive:
    folder = stored.desk.folder
    return stored.desk.open(
        clock=clock or FrozenClock(),
        inline_size_max=3_000,
        anchors=[folder / "heads.jsonl", f"objects:{folder}/heads"],
        register=folder / "register.jsonl",
        counter=Characters(),
    )


def filled(archive: Archive, principal: Principal) -> None:
    """Sessions with originals of every kind, copies of a whole, of parts, and an archived copy."""
    session, talk = archive.session("case", principal), Conversation()
    for result_id, content in CONTENTS.items():
        talk.tool(
            content, call_id="x" * 2_000 if result_id == "r2" else None, name=f"logs.{result_id} \N{DEGREE SIGN}"
        )
        talk.say()
    session.view(talk.messages)
    with pytest.raises(BatchRejectedError):
        session.archive([("r99", "no such result")])
    session.archive([("r1", note("r1")), ("r2", note("r2"))], idempotency_key="k1")
    session.archive([("r3", note("r3"))])
    talk.ours(session, "archive_evidence", batch_of(("r4", note("r4")), ("r5", note("r5"))))
    session.view(talk.messages)
    restored_by_the_model(talk, session, "r3", lines="2-700", reason="to compare \N{GRINNING FACE}")
    session.archive([("r7", note("r7"))])
    restored_by_the_model(talk, session, "r3", pattern=PATTERN, context_lines=1)
    restored_by_the_model(talk, session, "r1")
    for book, contents in BOOKS.items():
        Books(session._records).post(book, lambda known, contents=contents: (contents, None))
    with pytest.raises(NotAvailableError):
        archive.restore("case", "r2", principal=Principal(principal.org, "somebody"))
    for name in ("other", "gone"):
        session, talk = archive.session(name, principal), Conversation()
        talk.tool(f"an original of {name}\n" * 60)
        talk.say()
        session.view(talk.messages)
        session.archive([("r1", note("r1"))])


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """One for all tests of a file; none of them changes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envelopes, "OBJECT_BYTES_MAX", 1_000)  # the row says how long parts are
        yield made(tmp_path_factory.mktemp("stored"))


def off(value: Any) -> Any:
    """A value of a column with one byte, or one, off; something where there is nothing."""
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return value[:-1] + chr(ord(value[-1]) ^ 1) if value else "x"
    return bytes([*value[:-1], value[-1] ^ 1]) if value else b"x"


# --- the database ---------------------------------------------------------------------------------------------------


def test_the_second_decoder_opens_everything_that_was_archived(stored: Stored):
    orgs = stored.orgs()
    assert set(orgs) == {"north-clinic", "south-clinic", "east-clinic"}
    north, south = orgs["north-clinic"], orgs["south-clinic"]
    for org, kept in ((north, ("r1", "r2", "r3")), (south, tuple(CONTENTS))):
        case = {result_id: one["data"] for (session, result_id), one in org.originals.items() if session == "case"}
        assert case == {result_id: exact(CONTENTS[result_id]) for result_id in kept}
        assert {org.notes["case", result_id] for result_id in kept} == {note(result_id) for result_id in kept}
        assert org.notes["case", "r7"] == note("r7"), "an archived copy has a note and no key"
        assert org.originals["other", "r1"]["data"] == b"an original of other\n" * 60
        escaped = PATTERN.encode("unicode_escape").decode("ascii")
        assert set(org.parts.values()) == {"lines:2-700", f"pattern:1:{escaped}"}
        assert org.books == {("case", book): contents for book, contents in BOOKS.items()}
    assert north.line == stored.lines["north-clinic"]
    assert {*north.shredded} >= {("case", "r4"), ("case", "r5"), ("gone", "r1")}
    assert {key: words for key, words in north.reasons.items() if len(key) == 32} == stored.holds
    given = {words for key, words in north.reasons.items() if len(key) != 32}
    assert given == {"to compare \N{GRINNING FACE}", "a program's reason \ud800"}


def test_everything_of_the_format_is_in_what_the_decoder_read(stored: Stored):
    tables = stored.tables()
    assert all(tables.values()), "no table is empty"
    scopes = {row["generation"]: row for row in tables["scope_keys"]}
    assert set(scopes) == {1, 3}, "each original that is shredded gives its session a next key"
    assert {row["state"] for row in tables["results"]} == {"live", "archived", "shredded"}
    assert {row["state"] for row in tables["objects"]} >= {"used", "stored"}
    assert any(row["size_bytes"] > 2 * row["part_bytes"] for row in tables["objects"] if row["state"] == "stored")
    assert {row["kek_version"] for row in tables["orgs"]} == {2}
    assert {row["kek_floor"] for row in tables["custody"] if row["org"] != EAST.org} == {2}
    assert {row["completed_at_us"] is None for row in tables["shreds"]} == {False}
    assert {row["released_at_us"] is None for row in tables["holds"]} == {True, False}
    shown = {row["media_type"] for row in tables["results"] if row["labelled_tag"] and row["state"] == "archived"}
    assert shown == {"text/plain", "application/json"}
    compressions = {one["compression"] for org in stored.orgs().values() for one in org.originals.values()}
    assert compressions == {b"none", b"zstd"}


def test_an_org_that_was_shredded_leaves_its_log_and_its_signed_heads(stored: Stored):
    east = stored.orgs()["east-clinic"]
    assert east.is_shredded
    assert (east.originals, east.notes, east.tables["originals"]) == ({}, {}, [])
    assert east.entries[-1]["event"] == "shred.requested"
    east.check_heads(stored.lines["east-clinic"])
    assert max(row["size"] for row in east.tables["checkpoints"]) == len(east.entries)
    with pytest.raises(NotWhatWasSealed):
        east.check_heads(stored.lines["south-clinic"])
    with archive_in(stored) as archive, pytest.raises(ShreddedError):
        archive.custody(EAST)


def changed_in(tables: Tables, table: str, column: str) -> Iterator[Tables]:
    """The rows with one byte off in a column: in a row that holds something there, and in one that does not."""
    rows = [(at, row) for at, row in enumerate(tables[table]) if row["org"] in (NORTH.org, independent.NO_ORG)]
    something = next(((at, row) for at, row in rows if row[column] not in (None, b"", "", 0)), None)
    nothing = next(((at, row) for at, row in rows if row[column] is None), None)
    for found in filter(None, (something, nothing)):
        at, row = found
        kind = independent.LAYOUT[table].split()[independent.columns_of(table).index(column)].partition(":")[2][:1]
        empty = {"i": 0, "s": "", "b": b""}[kind or "b"]
        changed = copy.copy(tables)
        changed[table] = [*tables[table]]
        changed[table][at] = {**row, column: off(empty if row[column] is None else row[column])}
        yield changed


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_one_byte_off_in_a_column_is_noticed(stored: Stored, table: str, column: str):
    tables, tried = stored.tables(), 0
    for changed in changed_in(tables, table, column):
        tried += 1
        with pytest.raises(NotWhatWasSealed):
            stored.orgs(changed)
    assert tried, "every column is tried"


def test_must_fail_control_without_seals_half_of_the_columns_could_be_changed(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Org, "_seals", lambda self: None)
    tables, unnoticed = stored.tables(), set()
    for table, column in COLUMNS:
        for changed in changed_in(tables, table, column):
            try:
                stored.orgs(changed)
            except NotWhatWasSealed:
                continue
            unnoticed.add((table, column))
    assert {("results", "sensitivity"), ("holds", "placed_at_us"), ("results", "retention_until_us")} <= unnoticed
    assert len(unnoticed) >= 40
    assert ("audit_leaves", "leaf") not in unnoticed, "what is hashed and signed is noticed all the same"


def sealed_anew(stored: Stored, table: str, change: dict[str, Any]) -> Tables:
    """The rows with one of the north clinic's changed by whoever has its row key."""
    tables, row_key = stored.tables(), stored.orgs()[NORTH.org].row_key
    rows = [{**row, **change} if row["org"] == NORTH.org else row for row in tables[table]]
    rows = [
        {**row, "seal": independent.row_seal(row_key, table, row)} if row["org"] == NORTH.org else row for row in rows
    ]
    return {**tables, table: rows}


def put_back(stored: Stored) -> list[Tables]:
    """Rows of which each has its seal, with what is in keeping counted as it was before, or not at all."""
    tables = stored.tables()
    (row,) = [row for row in tables["custody"] if row["org"] == NORTH.org]
    return [
        *(sealed_anew(stored, "custody", {name: row[name] - 1}) for name in ("version", "holds", "originals")),
        sealed_anew(stored, "audit_heads", {"custody_version": row["version"] + 1}),
        sealed_anew(stored, "audit_heads", {"custody_version": 0}),
        {**tables, "custody": [one for one in tables["custody"] if one != row]},
    ]


def test_the_row_of_what_is_in_keeping_is_that_which_the_head_knows_and_counts_the_rows(stored: Stored):
    for tables in put_back(stored):
        with pytest.raises(NotWhatWasSealed, match=r"in keeping$"):
            stored.orgs(tables)
    same = sealed_anew(stored, "custody", {})
    assert same == stored.tables(), "sealing anew itself changes nothing"


def test_must_fail_control_seals_alone_let_an_older_count_pass(stored: Stored, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Org, "_custody", lambda self: None)
    for tables in put_back(stored):
        stored.orgs(tables)


def test_the_seal_leaves_out_a_column_that_was_added_while_it_has_nothing(
    sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    """A row from before the column keeps its seal."""
    with sqlite_desk.open() as archive:
        archive.session("case", NORTH)
    unwrap = independent.roots_unwrap(sqlite_desk.keys.read_bytes())
    tables = independent.read_database(sqlite_desk.database)
    assert ([row["custody_version"] for row in tables["audit_heads"]], tables["custody"]) == ([0], [])
    independent.read_archive(tables, unwrap)
    assert [row["books"] for row in tables["sessions"]] == [""]
    for table in ("audit_heads", "sessions"):
        with monkeypatch.context() as patch:
            patch.delitem(independent.ADDED, table)
            with pytest.raises(NotWhatWasSealed, match=table):
                independent.read_archive(tables, unwrap)


def test_a_row_that_is_missing_or_of_another_org_is_noticed(stored: Stored):
    tables = stored.tables()
    for table in set(tables) - {"checkpoints", "objects"}:  # those may be as short as they like
        rows = tables[table]
        at = next(at for at, row in enumerate(rows) if row["org"] in (NORTH.org, independent.NO_ORG))
        with pytest.raises(NotWhatWasSealed):
            stored.orgs({**tables, table: rows[:at] + rows[at + 1 :]})
        if table != "org_names":
            with pytest.raises(NotWhatWasSealed):
                stored.orgs({**tables, table: [*rows[:at], {**rows[at], "org": SOUTH.org}, *rows[at + 1 :]]})


def test_one_byte_off_in_an_object_is_noticed(stored: Stored):
    read, asked = stored.read_object, []

    def once(name: str) -> bytes:
        asked.append(name)
        return read(name)

    independent.read_archive(stored.tables(), stored.unwrap, once)
    assert len(asked) >= 3
    for bad in asked[:4]:
        for change in (off, lambda data: data[:-1], lambda data: data + b"\0"):

            def changed(name: str, bad: str = bad, change: Any = change) -> bytes:
                return change(read(name)) if name == bad else read(name)

            with pytest.raises(NotWhatWasSealed):
                independent.read_archive(stored.tables(), stored.unwrap, changed)


def test_another_key_opens_nothing(stored: Stored, tmp_path: Path):
    new_keys(tmp_path / "other.keys")
    unwrap = independent.roots_unwrap((tmp_path / "other.keys").read_bytes())
    with pytest.raises(NotWhatWasSealed):
        independent.read_archive(stored.tables(), unwrap, stored.read_object)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("keys/1", "keys/2"),
        lambda text: text.replace('"current": 2', '"current": 1'),
        lambda text: text.replace('"2":', '"02":'),
        lambda text: text.replace('"2":', '"2": "", "2":'),
        lambda text: re.sub(r'"([\w-]{43})"', r'"\1="', text),
        lambda text: re.sub(r'"[\w-]{43}"', '"' + "A" * 43 + '"', text),
        lambda text: text.replace("}}", '}, "more": 1}'),
    ],
)
def test_a_key_file_of_another_form_is_refused(stored: Stored, change: Any):
    text = stored.desk.keys.read_text("ascii")
    current, roots = independent.read_key_file(text.encode())
    assert (current, set(roots)) == (2, {2})
    assert change(text) != text
    with pytest.raises(NotWhatWasSealed):
        independent.read_key_file(change(text).encode())


def test_the_rows_are_the_same_on_either_engine(desk: Desk):
    with desk.open(objects=desk.folder / "objects", inline_size_max=3_000, counter=Characters()) as archive:
        filled(archive, NORTH)
        archive.custody(NORTH).shred(session_id="case", result_id="r4")
        archive.custody(NORTH).hold("a reason", session_id="case")
    tables = {
        table: [dict(zip(names, row, strict=True)) for row in desk.execute(f"SELECT {', '.join(names)} FROM {table}")]
        for table in independent.LAYOUT
        if (names := independent.columns_of(table))
    }
    unwrap = independent.roots_unwrap(desk.keys.read_bytes())
    orgs = independent.read_archive(tables, unwrap, independent.read_objects(desk.folder / "objects"))
    assert orgs[NORTH.org].originals["case", "r3"]["data"] == exact(LONG)
    assert ("case", "r4") in orgs[NORTH.org].shredded


# --- the log --------------------------------------------------------------------------------------------------------


def test_every_entry_is_proven_and_one_byte_off_in_a_proof_is_noticed(stored: Stored):
    line = stored.lines[SOUTH.org]
    with archive_in(stored) as archive:
        custody = archive.custody(SOUTH)
        proofs = [custody.prove(seq).proof for seq in range(len(stored.orgs()[SOUTH.org].entries))]
    south = stored.orgs()[SOUTH.org]
    for seq, proof in enumerate(proofs):
        entry, leaf, _ = independent.open_proof(proof, line)
        assert (entry["seq"], independent.leaf_hash(leaf)) == (seq, south.hashes[seq])
    unnoticed = []
    proof = proofs[3]
    for at, character in enumerate(proof):
        changed = proof[:at] + chr(ord(character) ^ 1) + proof[at + 1 :]
        try:
            independent.open_proof(changed, line)
        except NotWhatWasSealed:
            continue
        unnoticed.append(at)
    assert unnoticed == [], "no byte of a proof may be changed"
    with pytest.raises(NotWhatWasSealed):
        independent.open_proof(proof, stored.lines[NORTH.org])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 13])
def test_the_tree_is_that_of_rfc_9162_by_its_definition(size: int):
    hashes = [leaf_hash(b"%d" % number) for number in range(size)]
    root = independent.root_of(hashes)
    assert independent.frontier_root(size, independent.frontier_of(hashes)) == root
    for old in range(1, size + 1):
        path = consistency_proof(hashes, old, size)
        first = independent.root_of(hashes[:old])
        assert independent.roots_by_path(old, size, path, first) == (first, root)
        for at in range(len(path)):
            wrong = [*path[:at], off(path[at]), *path[at + 1 :]]
            with pytest.raises(NotWhatWasSealed):
                independent.need(independent.roots_by_path(old, size, wrong, first) == (first, root), "roots")


def test_an_anchor_holds_signed_heads_of_the_log_and_one_byte_off_is_noticed(stored: Stored):
    data, line = (stored.desk.folder / "heads.jsonl").read_bytes(), stored.lines[NORTH.org]
    heads = independent.read_anchor_file(data, line)
    hashes = stored.orgs()[NORTH.org].hashes
    assert heads
    assert len(set(heads)) == len(heads), "a file has no head twice"
    assert all(independent.root_of(hashes[:size]) == root for size, root in heads)
    objects = open_objects(stored.desk.folder / "heads", create=False)
    notes = [
        objects.get(independent.anchor_object(line.partition("+")[0], number)) for number in range(len(heads) + 1)
    ]
    objects.close()
    told = [independent.open_head(one.decode(), line) for one in notes if one is not None]
    assert told == heads
    assert notes[len(told) :] == [None]
    unnoticed = []
    first = next(one for one in data.splitlines(keepends=True) if line.partition("+")[0].encode() in one)
    for at in range(len(first)):
        changed = first[:at] + bytes([first[at] ^ 1]) + first[at + 1 :]
        try:
            found = independent.read_anchor_file(changed, line)
        except (NotWhatWasSealed, UnicodeDecodeError):
            continue
        if found == heads[:1]:
            unnoticed.append(at)
    assert [first[at : at + 1] for at in unnoticed] == [], "it is refused, or it is no head of this log"


# --- files outside --------------------------------------------------------------------------------------------------


def test_the_register_is_read_and_a_byte_off_in_a_line_is_noticed(stored: Stored):
    data, line = (stored.desk.folder / "register.jsonl").read_bytes(), stored.lines[NORTH.org]
    acts, north = independent.read_register(data, line), stored.orgs()[NORTH.org]
    events = [act["entry"]["event"] for act in acts]
    assert (events.count("hold.placed"), events.count("hold.released"), events.count("shred.requested")) == (4, 3, 3)
    assert [act["entry"] for act in acts] == [north.entries[act["entry"]["seq"]] for act in acts]
    for act in acts:
        if act["reason"] is not None:
            hold = act["entry"]["details"]["hold"]
            assert north.opened_text(act["reason"], b"hold", bytes.fromhex(hold)) == stored.holds[hold]
    mine = [one for one in data.splitlines(keepends=True) if line.partition("+")[0].encode() in one]
    assert independent.read_register(b"".join(mine)[:-1], line) == acts[:-1], "a line that was cut off is none"

    def opened(one: bytes) -> None:
        for act in independent.read_register(one, line):
            if act["reason"] is not None:
                north.opened_text(act["reason"], b"hold", bytes.fromhex(act["entry"]["details"]["hold"]))

    for one in (mine[0], mine[-1]):
        opened(one)
        for name, text in json.loads(one).items():
            if text is not None and name != "origin":
                changed = {**json.loads(one), name: text[:60] + chr(ord(text[60]) ^ 1) + text[61:]}
                with pytest.raises(NotWhatWasSealed):
                    opened(json.dumps(changed).encode() + b"\n")


@pytest.mark.parametrize(
    ("name", "originals", "results"),
    [("all", ["r1", "r2", "r3"], ["r1", "r2", "r3", "r4", "r5"]), ("one", ["r2"], ["r2"]), ("history", [], None)],
)
def test_a_bundle_is_read_and_one_byte_off_in_any_file_of_it_is_noticed(
    stored: Stored, name: str, originals: list[str], results: list[str] | None
):
    data, line = stored.bundles[name], stored.lines[NORTH.org]
    told = independent.read_bundle(data, line)
    assert told["originals"] == {result_id: exact(CONTENTS[result_id]) for result_id in originals}
    assert [one["id"] for one in told["provenance"]["results"]] == (results or ["r1", "r2", "r3", "r4", "r5"])
    assert told["entries"] == [stored.orgs()[NORTH.org].entries[entry["seq"]] for entry in told["entries"]]
    with zipfile.ZipFile(io.BytesIO(data)) as bundle:
        names = bundle.namelist()
        sizes = {one: bundle.getinfo(one).file_size for one in names}
    for one in names:
        for at in {0, sizes[one] // 2, sizes[one] - 1}:
            with pytest.raises(NotWhatWasSealed):
                independent.read_bundle(rewritten(data, one, at), line)
    assert independent.read_bundle(rewritten(data, "", 0), line) == told, "the rewriting itself changes nothing"
    with pytest.raises(NotWhatWasSealed):
        independent.read_bundle(data, stored.lines[SOUTH.org])
    for more in (b"more" + data, data + b"more", data[:-2] + b"\4\0more"):
        with zipfile.ZipFile(io.BytesIO(more)) as bundle:
            assert bundle.namelist() == names
        with pytest.raises(NotWhatWasSealed):
            independent.read_bundle(more, line)


def rewritten(data: bytes, name: str, at: int) -> bytes:
    """A bundle with a byte of a file off, and a checksum that fits."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            content = bytearray(old.read(info))
            if info.filename == name:
                content[at] ^= 1
            new.writestr(info, bytes(content))
    return file.getvalue()


def test_a_backup_is_read_and_one_byte_off_in_any_file_of_it_is_noticed(stored: Stored, tmp_path: Path):
    folder = stored.desk.folder / "backup"
    orgs = independent.read_backup(folder, stored.unwrap)
    assert orgs[NORTH.org].originals == stored.orgs()[NORTH.org].originals
    assert orgs[EAST.org].is_shredded
    files = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert len([path for path in files if path.parts[0] == "evidence.db.objects"]) >= 4
    for path, data in files.items():
        for change in (off, lambda data: data[:-2], lambda data: data + b"\0"):
            broken = tmp_path / "backup"
            for other, content in files.items():
                (broken / other).parent.mkdir(parents=True, exist_ok=True)
                (broken / other).write_bytes(change(content) if other == path else content)
            if path.name == "manifest.json" and change is off:
                (broken / path).write_bytes(data.replace(b'"size_bytes": ', b'"size_bytes": 1', 1))
            with pytest.raises(NotWhatWasSealed):
                independent.read_backup(broken, stored.unwrap)
    for path, data in files.items():
        (tmp_path / "backup" / path).write_bytes(data)
    assert independent.read_backup(tmp_path / "backup", stored.unwrap).keys() == orgs.keys()
    (tmp_path / "backup" / "more").write_bytes(b"")
    with pytest.raises(NotWhatWasSealed):
        independent.read_backup(tmp_path / "backup", stored.unwrap)


def test_must_fail_control_a_manifest_that_was_made_to_fit_needs_the_seals(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The manifest is not signed: whoever changes a file can change it, too."""
    folder = shutil.copytree(stored.desk.folder / "backup", tmp_path / "backup")
    with sqlite3.connect(folder / "evidence.db") as database:
        database.execute("UPDATE results SET sensitivity = 'none' WHERE number = 1 AND org = 'north-clinic'")
    database.close()
    data = (folder / "evidence.db").read_bytes()
    told = json.loads((folder / "manifest.json").read_bytes())
    for one in told["files"]:
        if one["path"] == "evidence.db":
            one.update(size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    (folder / "manifest.json").write_bytes(json.dumps(told).encode())
    with pytest.raises(NotWhatWasSealed):
        independent.read_backup(folder, stored.unwrap)
    monkeypatch.setattr(Org, "_seals", lambda self: None)
    independent.read_backup(folder, stored.unwrap)
