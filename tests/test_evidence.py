"""Evidence bundles: exact, tied to the log, verifiable by strangers, and refused when anything in them is not so."""

import io
import json
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import arguments

from evidence_archive import Archive, Principal, evidence
from evidence_archive.cli import main
from evidence_archive.errors import (
    AuditBrokenError,
    EvidenceArchiveError,
    FormatError,
    NotAvailableError,
    SealBrokenError,
    ShreddedError,
)
from evidence_archive.evidence import Bundle, verify_bundle
from evidence_archive.keys import new_keys
from evidence_archive.model import Encoded, bytes_of
from evidence_archive.proof.checkpoint import VerifierKey, open_proof
from evidence_archive.sealing.envelope import Slot, seal_original
from evidence_archive.testing.scripted import FrozenClock

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "evidence.md").read_text("utf-8")
SCRIPT = next(body for body in re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S) if "def verify(" in body)

KEEPER = Principal("north-clinic", "triage-agent", {"custodian"})
"""Owns the sessions, so that the default policy lets it restore, and may export."""
STRANGER = Principal("north-clinic", "records", {"custodian"})
"""May export, and restore nothing."""

UGLY = "CRLF\r\n NUL\0 lone \ud800 \N{GRINNING FACE} \u202e\n" * 30
LONG = "\n".join(f"line {number} of the log" for number in range(800))
PARTS = [{"type": "text", "text": LONG[:2_000]}, {"type": "text", "text": "b", "a": [True, 1.0, None]}]
CONTENTS = {"r1": UGLY, "r2": PARTS, "r3": LONG}
INLINE = {"inline_size_max": 8_000}
"""So that r3 lies in objects, and the others in the database."""


def exact(content: Any) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    return json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def fill(archive: Archive, session_id: str = "case-4711", principal: Principal = KEEPER) -> Conversation:
    """A session with three originals, a copy of the first one, and another person's denied request."""
    session, talk = archive.session(session_id, principal), Conversation()
    for content in CONTENTS.values():
        talk.tool(content)
    talk.say()
    session.view(talk.messages)
    session.archive([(result_id, "seen") for result_id in CONTENTS])
    talk.ours(session, "restore_evidence", arguments(id="r1"))
    with pytest.raises(NotAvailableError):
        archive.restore(session_id, "r2", principal=Principal(principal.org, "somebody"))
    return talk


@pytest.fixture
def desk(sqlite_desk: Desk) -> Desk:
    with sqlite_desk.open(**INLINE, clock=FrozenClock()) as archive:
        fill(archive)
    return sqlite_desk


def exported(desk: Desk, result_id: str | None = None, *, who: Principal = KEEPER, **named: Any) -> bytes:
    file = io.BytesIO()
    with desk.open(**INLINE, clock=FrozenClock()) as archive:
        archive.custody(who).export(file, "case-4711", result_id, **named)
    return file.getvalue()


def key_of(desk: Desk, org: str = "north-clinic") -> VerifierKey:
    with desk.open() as archive:
        return VerifierKey.parse(archive.custody(Principal(org, "triage-agent", {"custodian"})).key())


def events(desk: Desk) -> list[str]:
    with desk.open() as archive:
        return [entry.event for entry in archive.audit(principal=KEEPER).entries]


# --- two verifiers ----------------------------------------------------------------------------------------------

Verifier = Callable[[bytes, VerifierKey], object]


def by_library(data: bytes, key: VerifierKey) -> Bundle:
    return verify_bundle(io.BytesIO(data), key)


def by_script(data: bytes, key: VerifierKey) -> Any:
    names: dict[str, Any] = {"__name__": "verify_bundle"}
    exec(compile(SCRIPT, "docs/evidence.md", "exec"), names)
    return names["verify"](io.BytesIO(data), key.text())


VERIFIERS = [by_library, by_script]


def holds(verify: Verifier, data: bytes, key: VerifierKey) -> bool:
    """Whether a verifier accepts a bundle; ours has to refuse with an error of ours."""
    try:
        verify(data, key)
    except EvidenceArchiveError:
        return False
    except Exception:
        if verify is by_library:
            raise
        return False
    return True


# --- taking bundles apart and putting others together ---------------------------------------------------------------


def files_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as bundle:
        return {name: bundle.read(name) for name in bundle.namelist()}


def bundle_of(files: dict[str, bytes] | list[tuple[str, bytes]], kind: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as bundle:
        for name, data in files.items() if isinstance(files, dict) else files:
            bundle.writestr(zipfile.ZipInfo(name), data, kind)
    return out.getvalue()


def mutants(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Each file of a bundle changed at its beginning, middle and end, cut, lengthened, emptied and taken away."""
    files = files_of(data)
    for name, whole in files.items():
        changed = {
            **{
                f"bit at {at}": whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
                for at in sorted({0, len(whole) // 3, len(whole) // 2, len(whole) - 1})
            },
            "cut": whole[:-1],
            "longer": whole + b"\n",
            "empty": b"",
        }
        for what, mutant in changed.items():
            yield f"{name}: {what}", bundle_of({**files, name: mutant})
        yield f"{name}: gone", bundle_of({other: files[other] for other in files if other != name})
        yield (
            f"{name}: under another name",
            bundle_of({(f"{name}.txt" if other == name else other): files[other] for other in files}),
        )


def accepted(verify: Verifier, data: bytes, key: VerifierKey) -> list[str]:
    return [what for what, mutant in mutants(data) if holds(verify, mutant, key)]


# --- what a bundle holds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verify", VERIFIERS)
def test_a_bundle_of_a_session_verifies_with_the_public_key_alone(desk: Desk, verify: Verifier) -> None:
    data, key = exported(desk), key_of(desk)
    shutil.rmtree(desk.folder)
    assert verify(data, key)


def test_the_originals_in_a_bundle_are_the_exact_bytes_from_the_database_and_from_objects(desk: Desk) -> None:
    files = files_of(exported(desk))
    assert (desk.folder / "evidence.db.objects").is_dir()
    assert {name: files[f"originals/{name}/content"] for name in CONTENTS} == {
        name: exact(content) for name, content in CONTENTS.items()
    }


def test_a_bundle_of_one_original_holds_that_one_and_all_entries_that_name_it(desk: Desk) -> None:
    data, key = exported(desk, "r2"), key_of(desk)
    bundle = by_library(data, key)
    assert [(one.id, one.tool, one.state) for one in bundle.results] == [("r2", "logs.search", "archived")]
    assert [entry.event for entry in bundle.entries] == [
        "batch.accepted",
        "restore.denied",
        "restore.granted",
        "evidence.exported",
    ]
    assert sorted({name.split("/")[1] for name in files_of(data) if name.startswith("originals/")}) == ["r2"]
    assert by_script(data, key) == f"VERIFIED: 1 originals, 4 entries of {bundle.checkpoint.size}"


def test_every_proof_of_a_bundle_is_one_that_stands_alone(desk: Desk) -> None:
    files, key = files_of(exported(desk)), key_of(desk)
    proofs = {name: open_proof(data, key) for name, data in files.items() if name.endswith(".tlog-proof")}
    assert len(proofs) == 8
    assert [f"proofs/{proof.leaf.seq}.tlog-proof" for proof in proofs.values()] == list(proofs)


def test_equal_state_gives_equal_bytes(desk: Desk, tmp_path: Path) -> None:
    twin = Desk(shutil.copytree(desk.folder, tmp_path / "twin", ignore=shutil.ignore_patterns("twin")))
    assert exported(desk) == exported(twin)
    assert exported(desk) != exported(desk), (
        "two in a row are equal: the comparison is blind, or exports leave no entry"
    )


def test_each_original_is_granted_as_a_restore_is_and_the_export_has_an_entry(desk: Desk) -> None:
    before = events(desk)
    exported(desk)
    assert events(desk)[len(before) :] == [*["restore.granted"] * 3, "evidence.exported"]


def test_no_key_is_in_a_bundle_but_those_of_its_envelopes(desk: Desk) -> None:
    with desk.open() as archive:
        vault = archive._vault(KEEPER)
        with vault.store.reading(1_000) as reader:
            session = reader.session("case-4711")
            assert session is not None
            scope, rows = reader.scope(session.scope_id), reader.results(session.scope_id, -1)
        assert scope is not None
        keys = vault.scope_keys(scope)
        deks = {f"r{row.number}": vault.open_closed(keys, row)[0] for row in rows if row.original_id}
        secrets = [keys.key, keys.tag, vault._keys.row, vault._keys.audit, vault._keys.signing]
    roots = [root.encode() for root in re.findall(r'"([\w-]{43})"', desk.keys.read_text())]
    assert roots
    data = exported(desk, "r2")
    assert deks["r2"].hex().encode() in data, "the search is blind"
    hidden = [*secrets, deks["r1"], deks["r3"]]
    assert [one for one in (*hidden, *(one.hex().encode() for one in hidden), *roots) if one in data] == []


# --- who may ------------------------------------------------------------------------------------------------------


def test_without_permission_to_restore_nothing_is_exported_and_the_denial_is_logged(desk: Desk) -> None:
    file, before = io.BytesIO(), events(desk)
    with desk.open() as archive, pytest.raises(NotAvailableError):
        archive.custody(STRANGER).export(file, "case-4711")
    assert (file.getvalue(), events(desk)[len(before) :]) == (b"", ["restore.denied"])


def test_the_history_alone_needs_no_permission_to_restore_and_holds_no_content(desk: Desk) -> None:
    data, key = exported(desk, who=STRANGER, include_original=False), key_of(desk)
    for verify in VERIFIERS:
        assert verify(data, key)
    assert [one.sha256 for one in by_library(data, key).results] == [None] * 3
    assert not any(name.startswith("originals/") for name in files_of(data))
    assert b"restore.granted" not in b"".join(files_of(data)[name] for name in ("provenance.json",))


@pytest.mark.parametrize(("session_id", "result_id"), [("case-4712", None), ("case-4711", "r9"), ("case-4711", "x")])
@pytest.mark.parametrize("include_original", [True, False])
def test_what_is_not_there_is_not_available(
    desk: Desk, session_id: str, result_id: str | None, include_original: bool
) -> None:
    with desk.open() as archive, pytest.raises(NotAvailableError):
        archive.custody(KEEPER).export(io.BytesIO(), session_id, result_id, include_original=include_original)


def test_a_copy_is_not_exported_but_names_its_original(desk: Desk) -> None:
    with desk.open() as archive:
        copies = [one for one in archive.results("case-4711", principal=KEEPER) if one.restored_from]
        with pytest.raises(FormatError, match=r"copy: export r1\b"):
            archive.custody(KEEPER).export(io.BytesIO(), "case-4711", copies[0].id, include_original=False)


@pytest.mark.parametrize("limit", ["BUNDLE_ENTRIES_MAX", "BUNDLE_ORIGINALS_MAX"])
def test_more_than_a_bundle_holds_is_refused_and_not_cut(
    desk: Desk, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, limit, 2)
    with desk.open() as archive, pytest.raises(FormatError, match="A bundle holds at most 2"):
        archive.custody(KEEPER).export(io.BytesIO(), "case-4711", include_original=False)


def test_after_a_shred_an_older_bundle_opens_and_a_new_one_tells_of_it(desk: Desk) -> None:
    older, key = exported(desk, "r2"), key_of(desk)
    with desk.open() as archive:
        archive.custody(KEEPER).shred(session_id="case-4711", result_id="r2")
        with pytest.raises(ShreddedError):
            archive.custody(KEEPER).export(io.BytesIO(), "case-4711", "r2")
    assert by_library(older, key).results[0].sha256
    newer = exported(desk)
    assert [(one.id, one.state, one.sha256 is None) for one in by_library(newer, key).results] == [
        ("r1", "archived", False),
        ("r2", "shredded", True),
        ("r3", "archived", False),
    ]
    assert by_script(newer, key)


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verify", VERIFIERS)
@pytest.mark.parametrize("result_id", [None, "r3"])
def test_no_file_of_a_bundle_can_be_changed_cut_lengthened_renamed_or_taken_away(
    desk: Desk, verify: Verifier, result_id: str | None
) -> None:
    data, key = exported(desk, result_id), key_of(desk)
    assert len(list(mutants(data))) > 80
    assert accepted(verify, data, key) == []


NAIVE = {
    "the original is not compared": (
        "_verified_original",
        lambda members, one, slot: "",
        r"originals/r3/content",
    ),
    "the envelope is not looked up in the log": (
        "_verified_result",
        lambda members, told, one, entries, origin: evidence.BundledResult("r3", "", "", "", 0, 0, ""),
        r"originals/r3/envelope.bin",
    ),
    "the other files are not compared": ("_digest", lambda data: _Any(), r"(README.txt|provenance.json)"),
}
"""Verifiers that leave something out -> what they accept."""


class _Any(str):
    """Equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


@pytest.mark.parametrize("what", list(NAIVE))
def test_a_verifier_that_leaves_something_out_is_caught_by_the_same_mutants(
    desk: Desk, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, key = exported(desk, "r3"), key_of(desk)
    name, naive, accepts = NAIVE[what]
    monkeypatch.setattr(evidence, name, naive)
    assert [one for one in accepted(by_library, data, key) if re.match(accepts, one)]


@pytest.mark.parametrize("verify", VERIFIERS)
def test_what_opens_an_envelope_is_written_in_one_way_only(desk: Desk, verify: Verifier) -> None:
    files, key = files_of(exported(desk, "r3")), key_of(desk)
    name = "originals/r3/opening.json"
    told = json.loads(files[name])
    assert any(character in "abcdef" for character in told["dek"])
    for other in (
        {"dek": told["dek"].upper()},
        {"dek": f" {told['dek']}"},
        {"original_id": f"{told['original_id']} "},
        {"sealed_size": float(told["sealed_size"])},
        {"more": 1},
    ):
        data = json.dumps(told | other, sort_keys=True, indent=1).encode() + b"\n"
        assert not holds(verify, bundle_of({**files, name: data}), key), other


@pytest.mark.parametrize("verify", VERIFIERS)
def test_the_bundle_of_another_log_is_refused_under_this_key_and_its_proofs_too(
    desk: Desk, verify: Verifier, tmp_path: Path
) -> None:
    other = Desk(tmp_path / "other")
    other.folder.mkdir()
    new_keys(other.keys)
    with other.open(**INLINE, clock=FrozenClock()) as archive:
        fill(archive)
    with desk.open(**INLINE) as archive:
        fill(archive, principal=Principal("south-clinic", "triage-agent", {"custodian"}))
    ours, theirs = exported(desk), exported(other)
    key, their_key, neighbours_key = key_of(desk), key_of(other), key_of(desk, "south-clinic")
    assert holds(verify, ours, key)
    assert holds(verify, theirs, their_key)
    assert not holds(verify, ours, their_key)
    assert not holds(verify, theirs, key)
    assert not holds(verify, ours, neighbours_key), "the key of another org of the same store"
    mine, yours = files_of(ours), files_of(theirs)
    for name in mine:
        if mine[name] != yours.get(name, mine[name]):
            assert not holds(verify, bundle_of({**mine, name: yours[name]}), key), name
    assert not holds(verify, bundle_of({**yours, "key.txt": mine["key.txt"]}), key)


@pytest.mark.parametrize("verify", VERIFIERS)
def test_the_files_of_one_original_cannot_stand_for_another_one(desk: Desk, verify: Verifier) -> None:
    files, key = files_of(exported(desk)), key_of(desk)
    for part in ("content", "envelope.bin", "opening.json"):
        swapped = {**files, f"originals/r1/{part}": files[f"originals/r2/{part}"]}
        assert not holds(verify, bundle_of(swapped), key), part
    moved = {
        name.replace("/r1/", "/r8/").replace("/r2/", "/r1/").replace("/r8/", "/r2/"): files[name] for name in files
    }
    assert not holds(verify, bundle_of(moved), key)


@pytest.mark.parametrize("verify", VERIFIERS)
@pytest.mark.parametrize("result_id", ["r1", "r3"])
def test_another_content_sealed_anew_for_the_same_place_is_refused(
    desk: Desk, result_id: str, verify: Verifier
) -> None:
    """Somebody's own envelope opens with the key that comes with it; the log holds the digest of another one."""
    files, key = files_of(exported(desk, result_id)), key_of(desk)
    told = json.loads(files[evidence._PROVENANCE])
    (one,) = (each for each in told["results"] if each["id"] == result_id)
    slot = Slot(
        deployment=bytes.fromhex(key.name.removeprefix(evidence._ORIGIN)),
        org=told["org"],
        session_id=told["session"],
        result_id=result_id,
        tool_call_id=bytes_of(one["tool_call_id"]),
        tool_name=one["tool"],
        kind=one["kind"],
        media_type=one["media_type"],
        observed_at_us=one["observed_at_us"],
    )
    other = bytes(reversed(exact(CONTENTS[result_id])))
    opening = {"original_id": os.urandom(16), "dek_id": os.urandom(16), "dek": os.urandom(32)}
    sealed = seal_original(slot=slot, encoded=Encoded(other, "text"), acl=b"", trust="", **opening)
    told_opening = {name: value.hex() for name, value in opening.items()} | {"sealed_size": sealed.sealed_size}
    folder = f"originals/{result_id}"
    forged = {
        f"{folder}/{evidence._OPENING}": evidence._json(told_opening),
        f"{folder}/{evidence._ENVELOPE}": sealed.envelope,
        f"{folder}/{evidence._CONTENT}": other,
    }
    assert forged.keys() <= files.keys()
    assert holds(verify, bundle_of(files), key)
    assert not holds(verify, bundle_of({**files, **forged}), key)


@pytest.mark.parametrize("verify", VERIFIERS)
def test_the_files_of_an_older_export_do_not_mix_with_those_of_a_newer_one(desk: Desk, verify: Verifier) -> None:
    older, newer, key = files_of(exported(desk)), files_of(exported(desk)), key_of(desk)
    assert not holds(verify, bundle_of({**newer, "checkpoint.txt": older["checkpoint.txt"]}), key)
    assert not holds(verify, bundle_of({**older, **{n: newer[n] for n in newer if n.startswith("proofs/")}}), key)
    last = max(newer, key=lambda name: int((re.findall(r"proofs/(\d+)", name) or ["-1"])[0]))
    assert not holds(verify, bundle_of({name: newer[name] for name in newer if name != last}), key)


# --- containers that were made to do harm ---------------------------------------------------------------------------


@contextmanager
def refused() -> Iterator[None]:
    with pytest.raises(FormatError, match="not an evidence bundle, or it is damaged"):
        yield


def hostile(files: dict[str, bytes]) -> dict[str, bytes]:
    """Containers around the true files of a bundle, and what is wrong with them."""
    pairs = list(files.items())
    bundle = bundle_of(files)
    encrypted = bytearray(bundle)
    for head, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        encrypted[encrypted.find(head) + at] |= 1
    lengths = bytearray(bundle)
    first = lengths.find(b"PK\x01\x02")
    lengths[first + 20 : first + 28] = struct.pack("<II", 0x7FFFFFFF, 0x7FFFFFFF)
    directory = bytearray(bundle)
    directory[-10:-6] = struct.pack("<I", 0xFFFFFFF0)
    return {
        "compressed": bundle_of(files, zipfile.ZIP_DEFLATED),
        "a bomb": bundle_of([*pairs, ("originals/r9/content", b"\0" * 50_000_000)], zipfile.ZIP_DEFLATED),
        "a path upwards": bundle_of([*pairs, ("../evidence.txt", b"x")]),
        "a path from the root": bundle_of([*pairs, ("/etc/evidence.txt", b"x")]),
        "a folder": bundle_of([*pairs, ("originals/", b"")]),
        "backslashes": bundle_of([*pairs, ("originals\\r1\\content", b"x")]),
        "a number with a zero before it": bundle_of([*pairs, ("proofs/00.tlog-proof", b"x")]),
        "other digits": bundle_of([*pairs, ("proofs/\N{ARABIC-INDIC DIGIT ONE}.tlog-proof", b"x")]),
        "many files": bundle_of([*pairs, *((f"proofs/{n}.tlog-proof", b"") for n in range(10_000, 36_000))]),
        "a long file": bundle_of([*pairs, ("originals/r9/opening.json", b" " * 100_000)]),
        "an original without its envelope": bundle_of([*pairs, ("originals/r9/content", b"x")]),
        "encrypted": bytes(encrypted),
        "longer than it is": bytes(lengths),
        "a directory before the beginning": bytes(directory),
        "nothing": b"",
        "no zip": b"PK" * 1_000,
        "something before it": b"<html>" + bundle,
        "a zip file before it": bundle_of({"x": b"x"}) + bundle,
        "something behind it": bundle + b"x",
        "a comment": bundle[:-2] + b"\x01\x00x",
        "a name that is cut": bundle_of(
            [(name.replace("key.txt", "key.txt!x"), data) for name, data in pairs]
        ).replace(b"key.txt!x", b"key.txt\0x"),
        "deep": bundle_of({**files, "originals/r3/opening.json": b"[" * 60_000}),
    }


def twice(files: dict[str, bytes]) -> bytes:
    with pytest.warns(UserWarning, match="Duplicate name"):
        return bundle_of([*files.items(), ("README.txt", b"other")])


def overlapping(files: dict[str, bytes]) -> bytes:
    """A directory whose entries all lead to the same large content: small on disk, large when it is read."""
    content = b"\0" * 200_000
    name = b"originals/r%d/content"
    local = struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, 0, 0, 0, 33, 0, len(content), len(content), len(name) - 1, 0)
    body = local + b"originals/r1/content" + content
    entries = b"".join(
        struct.pack(
            "<4s6H3I5H2I", b"PK\x01\x02", 20, 20, 0, 0, 0, 33, 0, *[len(content)] * 2, len(name % n), *[0] * 5, 0
        )
        + name % n
        for n in range(1, 100)
    )
    return body + entries + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 99, 99, len(entries), len(body), 0)


def test_hostile_containers_are_refused_as_no_bundle(desk: Desk) -> None:
    files, key = files_of(exported(desk, "r3")), key_of(desk)
    assert holds(by_library, bundle_of(files), key), "put together anew, the true files have to hold"
    for what, data in {
        **hostile(files),
        "a name twice": twice(files),
        "files upon one another": overlapping(files),
    }.items():
        try:
            with refused():
                by_library(data, key)
        except BaseException as error:
            error.add_note(what)
            raise


def test_a_bundle_cut_anywhere_is_refused(desk: Desk) -> None:
    data, key = exported(desk, "r1"), key_of(desk)
    assert [at for at in range(0, len(data), 37) if holds(by_library, data[:at], key)] == []


def test_a_directory_that_claims_to_be_huge_is_not_read(desk: Desk, tmp_path: Path) -> None:
    path, key = tmp_path / "huge.zip", key_of(desk)
    with path.open("wb") as file:  # as long as its directory says, and full of holes
        file.truncate(1 << 30)
        file.seek(0, 2)
        file.write(struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 9, 9, 1 << 30, 0, 0))
    with path.open("rb") as file, refused():
        verify_bundle(file, key)


# --- by command -----------------------------------------------------------------------------------------------------


def run(desk: Desk, *words: str, who: Principal = KEEPER) -> int:
    store = ["--url", desk.url, "--keys", str(desk.keys), "--org", who.org, "--subject", who.subject]
    return main([*words, *store, *(word for role in sorted(who.roles) for word in ("--role", role))])


def test_bundles_are_exported_and_verified_by_command(desk: Desk, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "bundle.zip"
    assert run(desk, "evidence", "export", "case-4711", "r2", "-o", str(out)) == 0
    said = capsys.readouterr().out
    key = key_of(desk).text()
    assert said.splitlines()[-1] == key
    assert "1 original and 4 entries of the log" in said
    assert stat.S_IMODE(out.stat().st_mode) == 0o600

    assert main(["evidence", "verify", str(out), "--key", key]) == 0
    assert "VERIFIED: 1 original and 4 entries" in capsys.readouterr().out
    assert main(["evidence", "verify", str(out), "--key", key, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verified"] is True
    assert told["bundle"]["results"][0]["size_bytes"] == len(exact(PARTS))

    proof = tmp_path / "one.tlog-proof"
    proof.write_bytes(next(data for name, data in files_of(out.read_bytes()).items() if name.startswith("proofs/")))
    assert main(["audit", "verify-proof", str(proof), "--key", key]) == 0
    assert "batch.accepted session case-4711 by triage-agent" in capsys.readouterr().out


def test_by_command_whoever_may_not_gets_no_file(desk: Desk, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "bundle.zip"
    assert run(desk, "evidence", "export", "case-4711", "-o", str(out), who=STRANGER) == NotAvailableError.exit_code
    assert not out.exists()
    nobody = Principal("north-clinic", "triage-agent", {"agent"})
    assert run(desk, "evidence", "export", "case-4711", "-o", str(out), who=nobody) == NotAvailableError.exit_code
    assert not out.exists()
    named = ["evidence", "export", "case-4711", "--without-original", "-o", str(out), "--json"]
    assert run(desk, *named, who=STRANGER) == 0
    assert json.loads(capsys.readouterr().out)["exported"]["originals"] == []


def test_the_exit_code_says_what_is_wrong_with_a_bundle(desk: Desk, tmp_path: Path, capsys: Any) -> None:
    files, key = files_of(exported(desk, "r1")), key_of(desk).text()
    path = tmp_path / "bundle.zip"

    def ends_with(data: bytes) -> int:
        path.write_bytes(data)
        return main(["evidence", "verify", str(path), "--key", key])

    content = "originals/r1/content"
    assert ends_with(bundle_of({**files, content: files[content][::-1]})) == SealBrokenError.exit_code
    assert ends_with(bundle_of({**files, "README.txt": b"pay here\n"})) == AuditBrokenError.exit_code
    assert ends_with(b"nothing of ours") == FormatError.exit_code
    assert main(["evidence", "verify", str(path), "--key", "no+key"]) == FormatError.exit_code
    capsys.readouterr()


# --- without this library -------------------------------------------------------------------------------------------


def test_the_printed_script_uses_nothing_of_ours_and_is_short() -> None:
    imported = set(re.findall(r"^(?:import|from) (\w+)", SCRIPT, re.M))
    assert imported - set(sys.stdlib_module_names) == {"cryptography"}
    assert len(SCRIPT.splitlines()) <= 140


def test_the_printed_script_runs_as_it_is_told_to(desk: Desk, tmp_path: Path) -> None:
    script, bundle, key = tmp_path / "verify_bundle.py", tmp_path / "bundle.zip", key_of(desk).text()
    script.write_text(SCRIPT, "utf-8")

    def ended(data: bytes) -> "subprocess.CompletedProcess[str]":
        bundle.write_bytes(data)
        command = [sys.executable, "-I", str(script), str(bundle), key]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    data = exported(desk)
    done = ended(data)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("VERIFIED: 3 originals, 8 entries of ")
    files = files_of(data)
    done = ended(bundle_of({**files, "originals/r1/content": b"other"}))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "NOT VERIFIED: an original is not the sealed one\n"
