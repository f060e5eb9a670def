"""docs/format.md names all that is stored: every table, column and type, every label, every detail of an entry."""

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import independent_decoder as independent
import pytest
from conftest import Desk
from sqlalchemy import LargeBinary, Table, Text
from sqlmodel import SQLModel
from test_format import NORTH, SOUTH, Stored, filled, stored  # noqa: F401 - a fixture

from evidence_archive import Policy, disposal, ports, records, register
from evidence_archive.backup import restore_backup
from evidence_archive.batch import REASON_CHARS_MAX
from evidence_archive.keys import open_provider, service
from evidence_archive.proof.leaf import EVENTS, LEAF_BYTES_MAX
from evidence_archive.sealing import keyring
from evidence_archive.sealing.envelope import ORIGINAL_BYTES_MAX
from evidence_archive.store.schema import SCHEMA_REVISION
from evidence_archive.store.tables import NO_ORG, sealed_columns

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "format.md").read_text("utf-8")
SOURCES = {
    path.relative_to(ROOT): path.read_text("utf-8")
    for path in (ROOT / "evidence_archive").rglob("*.py")
    if "testing" not in path.parts
}
LABEL = re.compile(r"evidence-archive/(?:v1/[a-z0-9-]+|[a-z-]+/1)\b")


def section(page: str, title: str) -> str:
    """What is under a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", page, re.M | re.S)
    return "" if found is None else found[1]


def cells(text: str) -> list[list[str]]:
    """The rows of the tables in a text, without their heads."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if not set("".join(row)) <= {"-"}]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def told_of(page: str, table: str) -> dict[str, Any]:
    """What the page says of a table: its key, and its columns in order with their types."""
    text = section(page, f"`{table}`")
    key = re.search(r"^Primary key: (.*?)\.", text, re.M)
    rows = cells(text)[1:]
    columns = [(name, quoted(row[1])[0]) for row in rows for name in quoted(row[0])]
    left_out = [re.search(r"added: left out of the seal while it is (0|empty)", row[2]) for row in rows]
    added = {
        quoted(row[0])[0]: {"0": 0, "empty": ""}[found[1]] for row, found in zip(rows, left_out, strict=True) if found
    }
    return {
        "key": quoted(key[1]) if key else [],
        "columns": columns,
        "unsealed": "Not sealed" in text,
        "added": added,
    }


def is_so(table: Table) -> dict[str, Any]:
    """The same, as the metadata has it."""
    letters = {LargeBinary: "b", Text: "s"}
    columns = []
    for column in table.c:
        letter = next((letter for kind, letter in letters.items() if isinstance(column.type, kind)), "i")
        columns.append((column.name, letter + "?" * bool(column.nullable)))
    return {
        "key": [column.name for column in table.primary_key],
        "columns": columns,
        "unsealed": not sealed_columns(table),
        "added": {one.name: one.info["unsealed_while"] for one in table.c if "unsealed_while" in one.info},
    }


TABLES = {table.name: table for table in SQLModel.metadata.sorted_tables}


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_every_column_of_a_table_with_its_type_in_order(name: str):
    assert told_of(PAGE, name) == is_so(TABLES[name])


@pytest.mark.parametrize("name", TABLES)
def test_must_fail_control_a_column_that_the_page_leaves_out_or_has_in_another_type_is_found(name: str):
    so = is_so(TABLES[name])
    text = section(PAGE, f"`{name}`")
    rows = [line for line in text.splitlines() if re.match(r"\| `", line)]
    assert rows
    for row in rows:
        without = PAGE.replace(text, text.replace(f"{row}\n", ""))
        other = PAGE.replace(text, text.replace(row, re.sub(r"\| `([bsi])(\??)` \|", r"| `\1\2?` |", row)))
        assert told_of(without, name) != so
        assert told_of(other, name) != so
    assert told_of(PAGE.replace(f"### `{name}`", "### another"), name) != so
    if so["added"]:
        assert told_of(PAGE.replace("added: left out", "not left out"), name) != so


def test_the_page_has_no_table_that_is_not_there_and_the_second_decoder_has_the_same_layout():
    assert set(re.findall(r"^### `(\w+)`$", PAGE, re.M)) == set(TABLES) == set(independent.LAYOUT)
    for name, table in TABLES.items():
        layout = [(one.partition(":")[0], one.partition(":")[2] or "b") for one in independent.LAYOUT[name].split()]
        assert layout == is_so(table)["columns"]
        assert ("seal" in independent.columns_of(name)) == bool(sealed_columns(table))
        assert independent.ADDED.get(name, {}) == is_so(table)["added"]
    assert (max(independent.SCHEMAS), independent.NO_ORG) == (SCHEMA_REVISION, NO_ORG)
    assert f"`{SCHEMA_REVISION}`" in section(PAGE, "Tables")


def test_every_sealed_column_is_covered_and_what_is_not_sealed_says_why():
    for table in TABLES.values():
        covered = sealed_columns(table)
        assert covered in ((), tuple(column.name for column in table.c)[:-1]), "all columns before the seal, or none"


def missing(page: str) -> set[str]:
    """Labels and names of formats that the package has and a page does not."""
    return {label for text in SOURCES.values() for label in LABEL.findall(text)} - set(LABEL.findall(page))


def test_the_page_names_every_label_and_every_format_of_the_package():
    labels = {label for text in SOURCES.values() for label in LABEL.findall(text)}
    assert {"evidence-archive/v1/key-service-place", "evidence-archive/v1/transit-fingerprint"} <= labels
    assert {f"evidence-archive/{one}/1" for one in ("keys", "bundle", "backup", "objects", "key-command")} <= labels
    assert missing(PAGE) == set()


def test_must_fail_control_a_label_that_the_page_leaves_out_is_found():
    labels = {label for text in SOURCES.values() for label in LABEL.findall(text)}
    for label in labels:
        assert missing(re.sub(rf"{re.escape(label)}\b(?!-)", "something else", PAGE)) >= {label}


def details_of(page: str) -> dict[str, set[str]]:
    """By event, the names that its details may have."""
    rows = cells(section(page, "Audit leaf"))
    return {event: set(quoted(row[2])) for row in rows if len(row) == 3 for event in quoted(row[0])[:1]}


def unexplained(page: str, entries: list[dict[str, Any]]) -> set[tuple[str, str]]:
    told = details_of(page)
    return {
        (entry["event"], name)
        for entry in entries
        for name in entry["details"]
        if name not in told.get(entry["event"], set())
    }


def test_the_page_explains_every_event_and_every_detail_that_was_written(stored: Stored):  # noqa: F811
    assert {event for event in EVENTS if event not in details_of(PAGE)} == set()
    entries = [entry for org in stored.orgs().values() for entry in org.entries]
    assert len({entry["event"] for entry in entries}) >= 16
    assert {"key.floor", "shred.refused", "shred.completed"} <= {entry["event"] for entry in entries}
    assert unexplained(PAGE, entries) == set()
    assert unexplained(PAGE.replace("`envelopes`", "`others`"), entries) == {("batch.accepted", "envelopes")}
    told = {row[0].strip("`"): row[1] for row in cells(section(PAGE, "Audit leaf"))[1:]}
    for entry in entries:
        where = told[entry["event"]]
        assert "absent" in where if entry["session_id"] is None else where != "absent", entry["event"]


def test_what_a_replay_wrote_is_read_and_explained(sqlite_desk: Desk, tmp_path: Path):
    """A backup is put back, and what was done since is done again: the entries say so in details of their own."""
    register_file, anchor, target = tmp_path / "register.jsonl", tmp_path / "heads.jsonl", Desk(tmp_path / "target")
    with sqlite_desk.open(register=register_file, anchors=[anchor]) as archive:
        filled(archive, NORTH)
        custody = archive.custody(NORTH)
        old = custody.hold("an older reason", session_id="case")
        custody.checkpoint()
        custody.backup(tmp_path / "backup")
        kept = custody.hold("a reason", session_id="case", result_id="r1")
        custody.release(old.id)
        custody.retain("case", "r2", 4_000_000_000_000_000)
        custody.shred(session_id="case", result_id="r4")
        custody.shred(session_id="gone")
    target.folder.mkdir()
    target.keys.write_bytes(sqlite_desk.keys.read_bytes())
    target.keys.chmod(0o600)
    restore_backup(
        tmp_path / "backup",
        target.url,
        keys=open_provider(target.keys),
        policy=Policy.default(),
        subject="records",
        roles={"custodian"},
        replays=[str(register_file)],
    )
    with target.open(anchors=[anchor]) as archive:
        line = archive.custody(NORTH).key()
        archive.custody(NORTH).reanchor()
    unwrap = independent.roots_unwrap(target.keys.read_bytes())
    tables = independent.read_database(target.database)
    (org,) = independent.read_archive(tables, unwrap).values()
    again = [entry for entry in org.entries if "replayed" in entry["details"]]
    assert [entry["event"] for entry in again] == [*AGAIN, "shred.requested"]
    assert {entry["subject"] for entry in again} == {"records"}
    first = {entry["details"].get("placed_by", entry["details"].get("requested_by")) for entry in again}
    assert first == {NORTH.subject}
    assert (org.reasons[kept.id], {("case", "r4"), ("gone", "r1")} <= org.shredded) == ("a reason", True)
    rows = [*tables["holds"], *tables["shreds"]]
    assert {row.get("placed_by", row.get("requested_by")) for row in rows} == {NORTH.subject}
    (given_up,) = [entry["details"]["heads"] for entry in org.entries if entry["event"] == "log.reanchored"]
    heads = independent.read_anchor_file(anchor.read_bytes(), line)
    lost = [(size, root) for size, root in heads if independent.root_of(org.hashes[:size]) != root]
    assert sorted(lost) == [(one["size"], bytes.fromhex(one["root"])) for one in given_up] != []
    assert heads[-1][0] > max(entry["seq"] for entry in org.entries if entry["event"] == "log.reanchored")
    assert unexplained(PAGE, org.entries) == set()
    for name, events in {"replayed": AGAIN, "heads": ["log.reanchored"]}.items():
        assert unexplained(PAGE.replace(f"`{name}`", "`another`"), org.entries) == {(one, name) for one in events}
    for table, by in (("holds", "placed_by"), ("holds", "released_by"), ("shreds", "requested_by")):
        rows = [{**row, by: row[by] and "records"} for row in tables[table]]
        rows = [{**row, "seal": independent.row_seal(org.row_key, table, row)} for row in rows]
        with pytest.raises(independent.NotWhatWasSealed, match=by):
            independent.read_archive({**tables, table: rows}, unwrap)


AGAIN = ["hold.placed", "hold.released", "retention.extended", "shred.requested"]


def test_the_page_names_every_name_in_the_files_outside(stored: Stored):  # noqa: F811
    line = stored.lines[NORTH.org]
    provenance = independent.read_bundle(stored.bundles["all"], line)["provenance"]
    manifest = json.loads((stored.desk.folder / "backup" / "manifest.json").read_bytes())
    named = {
        "Evidence bundle": {*provenance, *provenance["results"][0], "original_id", "dek_id", "dek", "sealed_size"},
        "Backup": {*manifest, *manifest["orgs"][0], *manifest["files"][0]},
        "Register": set(json.loads((stored.desk.folder / "register.jsonl").read_bytes().splitlines()[0])),
        "Anchors": set(json.loads((stored.desk.folder / "heads.jsonl").read_bytes().splitlines()[0])),
        "`batches`": set(json.loads(stored.orgs()[SOUTH.org].tables["batches"][0]["receipt"])),
    }
    for title, names in named.items():
        assert unnamed(section(PAGE, title), names) == set(), title
        for name in names:
            assert unnamed(section(PAGE, title).replace(f"`{name}`", "`another`"), names) == {name}


def unnamed(text: str, names: set[str]) -> set[str]:
    return names - set(quoted(text))


# --- the decoder itself ---------------------------------------------------------------------------------------------


def imported_by(source: str) -> set[str]:
    """The packages that a module imports from anywhere but the standard library, with what it takes of them."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        found |= {name for name in names if name.partition(".")[0] not in sys.stdlib_module_names}
    return found


def test_the_second_decoder_has_nothing_of_the_library_nor_its_cipher():
    source = Path(str(independent.__file__)).read_text("utf-8")
    used = imported_by(source)
    assert {name.partition(".")[0] for name in used} == {"cryptography", "zstandard"}
    assert "cryptography.cobblestone" not in used
    control = f"{source}\nfrom evidence_archive.model import ce\nimport cryptography.cobblestone\n"
    assert imported_by(control) - used == {"evidence_archive.model", "cryptography.cobblestone"}


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("Envelope `EVA1`", f"at most {ORIGINAL_BYTES_MAX // 2**30} GiB"),
        ("Wrapped keys", f"at most {service.WRAPPED_BYTES_MAX // 1024} KiB"),
        ("DEK and note, closed together", f"at most {keyring.WRAPPED_BYTES_MAX // 2**20} MiB"),
        ("Objects outside the database", f"({ports.OBJECT_BYTES_MAX:,} in this"),
        ("Audit leaf", f"the leaf at most {LEAF_BYTES_MAX // 2**20} MiB"),
        ("Register", f"{register.LINE_BYTES_MAX:,} bytes"),
        ("Words of people and models", f"at most {REASON_CHARS_MAX:,} characters"),
        ("`custody`", str(disposal.KEK_VERSION_MAX)),
        ("`results`", f"at most {records.TOOL_NAME_CHARS_MAX:,} characters"),
    ],
)
def test_the_bounds_on_the_page_are_those_of_the_code(title: str, words: str):
    assert words in section(PAGE, title)
    assert words not in section(PAGE, "States")
