"""Attacks and accidents that no other test is about: each notices a change of the code that all others miss."""

import base64
import hmac
import io
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Conversation, Desk
from cryptography.cobblestone import Cobblestone256Encryptor
from doubles import UNAUDITED, opened, policy_of
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect

from evidence_archive import Archive, Principal, anchors, policy_file
from evidence_archive.access import may_restore
from evidence_archive.books import Books
from evidence_archive.envelopes import Envelopes
from evidence_archive.errors import (
    AuditBrokenError,
    FormatError,
    HeldError,
    KeyringError,
    NotAvailableError,
    SealBrokenError,
    StoreBusyError,
    StoreUnavailableError,
)
from evidence_archive.keys import FileKeys
from evidence_archive.keys.service import Known, ServiceKeys
from evidence_archive.model import Encoded, ce, ce_read
from evidence_archive.ports import OrgRow
from evidence_archive.proof.checkpoint import (
    CHECKPOINT_BYTES_MAX,
    Signer,
    VerifierKey,
    format_proof,
    open_checkpoint,
    open_proof,
)
from evidence_archive.proof.leaf import decode_leaf, encode_leaf
from evidence_archive.proof.merkle import (
    EMPTY_ROOT,
    SIZE_MAX,
    leaf_hash,
    node_hash,
    verify_consistency,
    verify_inclusion,
)
from evidence_archive.rekeying import Rekeying
from evidence_archive.sealing import envelope
from evidence_archive.sealing.envelope import Slot, open_original, open_pieces, seal_original
from evidence_archive.sealing.keyring import check_row_seal, request_tag, row_seal
from evidence_archive.store import sql, statements
from evidence_archive.store.migrations import walls
from evidence_archive.verifying.findings import VerifyReport

OWNER = Principal(org="north-clinic", subject="triage-agent", roles={"agent"})
OFFICER = Principal(org="north-clinic", subject="key-officer", roles={"custodian"})
LINES = "a line of a log that is long enough\n" * 40
WAIT_MS = 1_000


def filled(archive: Archive, name: str = "case", count: int = 2) -> Conversation:
    """A session whose first results are archived."""
    talk = Conversation()
    session = archive.session(name, OWNER)
    for at in range(count):
        talk.tool(f"{name} {at} {LINES}")
    talk.say()
    session.view(talk.messages)
    session.archive([(f"r{at + 1}", f"note {at}") for at in range(count)], idempotency_key="k")
    return talk


@pytest.fixture
def archive(sqlite_desk: Desk) -> Iterator[Archive]:
    """An archive that can be made to fail, with an archived session."""
    with opened(sqlite_desk) as made:
        filled(made)
        yield made


# --- secrets --------------------------------------------------------------------------------------------------------


def _envelope() -> bytes:
    slot = Slot(b"d" * 16, "north-clinic", "case", "r1", b"call", "logs", None, "text/plain", 0)
    place = {"slot": slot, "dek": os.urandom(32), "original_id": b"o" * 16, "dek_id": b"k" * 16}
    sealed = seal_original(**place, encoded=Encoded(b"found", "text"), acl=b"", trust="")  # type: ignore[arg-type]
    open_original(sealed.envelope, **place, sealed_size=sealed.sealed_size)  # type: ignore[arg-type]
    return sealed.sha256


def _row_seal() -> bytes:
    key = os.urandom(32)
    seal = row_seal(key, b"table", ("a", 1))
    check_row_seal(key, b"table", ("a", 1), seal)
    return seal


@pytest.mark.parametrize("use", [_envelope, _row_seal], ids=["envelope", "row seal"])
def test_secrets_are_compared_in_constant_time(use: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch):
    compared: list[bytes] = []
    real = hmac.compare_digest

    def heard(left: Any, right: Any) -> bool:
        compared.append(right)
        return real(left, right)

    monkeypatch.setattr(hmac, "compare_digest", heard)
    assert use() in compared


@pytest.mark.parametrize("beyond", [0, 1, 2**15])
def test_metadata_that_claims_to_end_behind_the_plaintext_does_not_open(beyond: int):
    """Such a message can only be made with the key; still, an original has one form and no other."""
    slot = Slot(b"d" * 16, "north-clinic", "case", "r1", b"call", "logs", None, "text/plain", 0)
    meta = ce("1", sha256(b"").digest(), 0, "text", "none", 0, b"", "")
    plaintext = (len(meta) + beyond).to_bytes(4, "big") + meta
    key, header = os.urandom(32), envelope._HEAD + b"o" * 16 + b"k" * 16
    cipher = Cobblestone256Encryptor(key, envelope._context(header, slot, len(plaintext)))
    sealed = header + cipher.update(plaintext) + cipher.finalize()
    place: dict[str, Any] = {"slot": slot, "dek": key, "original_id": b"o" * 16, "dek_id": b"k" * 16}
    for read in (
        lambda: open_original(sealed, **place, sealed_size=len(plaintext)),
        lambda: open_pieces([sealed], bytes, **place, sealed_size=len(plaintext)),
    ):
        if beyond:
            with pytest.raises(SealBrokenError):
                read()
        else:
            assert read().data == b""


# --- rows -----------------------------------------------------------------------------------------------------------

READS: dict[str, tuple[str, Callable[[Any, bytes, bytes], Any]]] = {
    "session": ("sessions", lambda reader, scope, original: reader.session("case")),
    "sessions": ("sessions", lambda reader, scope, original: reader.sessions("", 9)),
    "scope": ("scope_keys", lambda reader, scope, original: reader.scope(scope)),
    "scopes": ("scope_keys", lambda reader, scope, original: reader.scopes(b"", 9)),
    "results": ("results", lambda reader, scope, original: reader.results(scope, -1)),
    "named": ("results", lambda reader, scope, original: reader.named(original)),
    "object": ("objects", lambda reader, scope, original: reader.object(original)),
    "batch": ("batches", lambda reader, scope, original: reader.batch(scope, b"", "k")),
    "postings": ("postings", lambda reader, scope, original: reader.postings(scope, "card", 0, 9)),
    "holds": ("holds", lambda reader, scope, original: reader.holds()),
    "shreds": ("shreds", lambda reader, scope, original: reader.shreds()),
    "checkpoint": ("checkpoints", lambda reader, scope, original: reader.checkpoint()),
    "checkpoints": ("checkpoints", lambda reader, scope, original: reader.checkpoints(0, 9)),
    "expired": ("results", lambda reader, scope, original: reader.expired(2**62, 9)),
    "lapsed objects": ("objects", lambda reader, scope, original: reader.lapsed_objects(2**62, 9)),
    "custody": ("custody", lambda reader, scope, original: reader.custody()),
    "head": ("audit_heads", lambda reader, scope, original: reader.head()),
    "org row": ("orgs", lambda reader, scope, original: reader.org_row()),
    "the session of a find": ("sessions", lambda reader, scope, original: reader.find("case", 1)),
    "the key of a find": ("scope_keys", lambda reader, scope, original: reader.find("case", 1)),
    "the result of a find": ("results", lambda reader, scope, original: reader.find("case", 1)),
}
"""Every way to read a sealed row, and the table whose seals are changed."""


@pytest.mark.parametrize("path", READS)
def test_a_row_with_another_seal_is_refused_on_every_way_to_read_it(sqlite_desk: Desk, path: str):
    table, read = READS[path]
    with sqlite_desk.open(objects=sqlite_desk.folder / "objects", inline_size_max=100) as archive:
        filled(archive)
        filled(archive, "other", 1)
        Books(archive.session("case", OWNER)._records).post("card", lambda known: ([{"a": 1}], None))
        custody = archive.custody(OFFICER)
        custody.shred(session_id="other")
        custody.retain("case", "r1", 1)
        custody.hold("a lawsuit")
        custody.checkpoint()
        ((scope, original),) = sqlite_desk.execute(
            "SELECT scope_id, original_id FROM results WHERE number = 1 AND state = 'archived'"
        )
        store = custody._vault.store
        with store.reading(WAIT_MS) as reader:
            assert read(reader, scope, original)
        sqlite_desk.execute("DROP TRIGGER postings_only_grow_update")
        sqlite_desk.execute(f"UPDATE {table} SET seal = zeroblob(32)")
        with store.reading(WAIT_MS) as reader, pytest.raises(SealBrokenError):
            read(reader, scope, original)


def test_every_way_to_read_a_sealed_row_is_among_these():
    unsealed = {"envelope", "leaves", "in keeping", "posted", "scopes below"}
    verbs = {name.replace("_", " ") for name in vars(sql.SqlReader) if not name.startswith("_")} - {"find"}
    assert verbs - {name.replace("_", " ") for name in unsealed} <= set(READS)


def test_a_row_of_other_types_is_refused_before_its_key_is_known():
    row = OrgRow("north-clinic", b"d" * 16, b"wrapped", 1, b"f" * 16, 1, 0)
    stored = statements.ORG.values("north-clinic", os.urandom(32), row)
    assert statements.ORG.unchecked(stored) == row
    for at, value in enumerate(stored):
        for other in (None, 1.5, str(value) if type(value) is not str else b"x"):
            with pytest.raises(SealBrokenError):
                statements.ORG.unchecked((*stored[:at], other, *stored[at + 1 :]))


def test_values_that_run_into_each_other_have_another_row_seal():
    key = os.urandom(32)
    seal = row_seal(key, b"table", ("ab", "c", 1, 23))
    for other in (("a", "bc", 1, 23), ("abc", "", 1, 23), ("ab", "c", 12, 3)):
        assert row_seal(key, b"table", other) != seal


def test_values_of_every_length_and_any_text_are_sealed():
    key = os.urandom(32)
    long = [bytes(size) for size in (0, 1, 1_023, 1_024, 1_025, 1_026, 70_000)]
    values = [*long, "\ud800"]
    fields = b"".join(len(data).to_bytes(4, "big") + data for data in [*long, b"\xed\xa0\x80"])
    head = b"evidence-archive/v1/row-seal\x00" + ce(b"table", "b" * len(long) + "s")
    assert row_seal(key, b"table", values) == hmac.digest(key, head + fields, "sha256")
    assert request_tag(key, b"", [("\ud800", "a")]) != request_tag(key, b"", [("?", "a")])


# --- order ----------------------------------------------------------------------------------------------------------


def test_a_file_gets_nothing_before_the_log_has_the_grant(archive: Archive):
    archive.flaky.fault = UNAUDITED  # type: ignore[attr-defined]
    file = io.BytesIO()
    with pytest.raises(StoreUnavailableError):
        archive.restore_to(file, "case", "r1", principal=OWNER)
    assert file.getvalue() == b""
    archive.flaky.fault = None  # type: ignore[attr-defined]
    archive.restore_to(file, "case", "r1", principal=OWNER)
    assert file.getvalue().startswith(b"case 0 ")


def test_the_head_of_the_log_is_locked_before_its_end_is_looked_at():
    calls: list[Any] = []
    leaf = b"leaf"

    class Reader:
        def head(self, *, lock: bool = False) -> Any:
            calls.append(("head", lock))
            return SimpleNamespace(size=1, last_leaf_hash=leaf_hash(leaf))

        def leaves(self, start: int, count: int) -> list[tuple[int, bytes]]:
            calls.append("leaves")
            return [(0, leaf)]

    sql._locked_head(Reader())  # type: ignore[arg-type]
    assert calls == [("head", True), "leaves"]


def test_a_writer_has_the_lock_before_it_reads(archive: Archive, sqlite_desk: Desk):
    """SQLite would let a second transaction begin, read, and only then learn that what it read is old."""
    with sqlite_desk.open() as other:
        first, second = (one.custody(OFFICER)._vault.store for one in (archive, other))
        with first.writing(WAIT_MS, audited=False), pytest.raises(StoreBusyError), second.writing(1, audited=False):
            pass


@pytest.mark.parametrize("way", ["original", "session", "org"])
def test_a_hold_that_is_placed_while_a_shred_waits_is_met(archive: Archive, sqlite_desk: Desk, way: str):
    with sqlite_desk.open() as other:
        custody = archive.custody(OFFICER)
        archive.flaky.before_write = lambda: other.custody(OFFICER).hold("now")  # type: ignore[attr-defined]
        with pytest.raises(HeldError):
            custody.shred(session_id=None if way == "org" else "case", result_id="r1" if way == "original" else None)
        assert other.restore("case", "r1", principal=OWNER).content.startswith("case 0 ")


def test_a_copy_opens_only_where_its_own_rules_let_it_too(sqlite_desk: Desk):
    policy = policy_of('[[restore]]\ntools = ["restore_evidence"]\nroles = ["auditor"]\n')
    auditing = Principal(org=OWNER.org, subject=OWNER.subject, roles={"auditor"})
    with sqlite_desk.open(policy=policy) as archive:
        talk = filled(archive, count=1)
        session = archive.session("case", auditing)
        session.view(talk.messages)
        talk.ours(session, "restore_evidence", '{"id": "r1"}')
        talk.say()
        session.view(talk.messages)
        copy = next(info.id for info in session.results() if info.restored_from)
        session.archive([(copy, "a copy")])
        assert archive.restore("case", copy, principal=auditing).content.startswith("case 0 ")
        assert archive.restore("case", "r1", principal=OWNER).content.startswith("case 0 ")
        with pytest.raises(NotAvailableError):
            archive.restore("case", copy, principal=OWNER)


def test_changed_bytes_never_pass_for_those_of_a_newer_version(archive: Archive, sqlite_desk: Desk):
    sqlite_desk.execute("UPDATE originals SET envelope = CAST(x'4556413102' || substr(envelope, 6) AS BLOB)")
    with pytest.raises(SealBrokenError):
        archive.restore("case", "r1", principal=OWNER)


def test_an_object_is_free_only_where_nothing_needs_it(archive: Archive):
    envelopes = Envelopes(archive.custody(OFFICER)._vault)
    row: Any = SimpleNamespace(original_id=b"o")

    def free(named: Callable[[bytes], Any]) -> bool:
        return envelopes._is_free(SimpleNamespace(named=named), row)  # type: ignore[arg-type]

    def changed(original_id: bytes) -> Any:
        raise SealBrokenError("A stored row is not what was written.")

    assert free(lambda original_id: None)
    assert free(lambda original_id: SimpleNamespace(state="shredded"))
    assert not free(lambda original_id: SimpleNamespace(state="archived"))
    assert not free(changed)


# --- statements -----------------------------------------------------------------------------------------------------


def test_what_a_writer_relies_on_is_locked_on_postgresql():
    dialect = PGDialect_psycopg(paramstyle="format")
    for statement in (statements.LOCK_HEAD, sql.SqlWriter._session_statement, sql.SqlWriter._find_statement):
        assert statement.on(dialect)[0].endswith("FOR UPDATE")


def test_every_statement_names_the_org():
    found = [one for one in vars(statements).values() if isinstance(one, statements.Statement)]
    found += [*statements.INSERTS.values(), *statements.UPDATES.values()]
    assert len(found) > 40
    for statement in found:
        text = statement.on(sqlite_dialect())[0]
        assert text.startswith("INSERT INTO ") or ".org = ?" in text.partition("WHERE")[2], text


def test_a_wall_is_there_for_reading_and_writing_and_for_the_owner_too(monkeypatch: pytest.MonkeyPatch):
    executed: list[str] = []
    bound = SimpleNamespace(dialect=SimpleNamespace(name="postgresql"))
    monkeypatch.setattr(walls, "op", SimpleNamespace(get_bind=lambda: bound, execute=executed.append))
    walls.wall_by_org("results")
    enabled, forced, policy = executed
    assert enabled == "ALTER TABLE results ENABLE ROW LEVEL SECURITY"
    assert forced == "ALTER TABLE results FORCE ROW LEVEL SECURITY"
    own = "(org = current_setting('evidence_archive.org', true))"
    assert policy == f"CREATE POLICY results_by_org ON results USING {own} WITH CHECK {own}"


# --- keys -----------------------------------------------------------------------------------------------------------


def test_a_key_from_before_a_shred_opens_nothing_after_it(archive: Archive):
    custody = archive.custody(OFFICER)
    vault = custody._vault
    with vault.store.reading(WAIT_MS) as reader:
        before = reader.find("case", 2)
    assert before is not None
    old = vault.scope_keys(before[1])
    assert vault.open_closed(old, before[2])
    custody.shred(session_id="case", result_id="r1")
    with vault.store.reading(WAIT_MS) as reader:
        after = reader.find("case", 2)
    assert after is not None
    with pytest.raises(SealBrokenError):
        vault.open_closed(old, after[2])
    assert vault.open_closed(vault.scope_keys(after[1]), after[2]) == vault.open_closed(old, before[2])


def test_a_shred_is_pending_while_any_version_that_wrapped_it_is_there(archive: Archive):
    custody = archive.custody(OFFICER)
    custody.rotate()
    custody.shred(session_id="case", result_id="r1")  # wrapped under 2, and in older copies under 1
    custody.rotate()
    custody.retire(2)
    assert [one.status for one in custody.shreds()] == ["pending"]
    custody.retire(1)
    assert [one.status for one in custody.shreds()] == ["complete"]


def test_a_version_that_the_log_cannot_take_leave_of_is_not_destroyed(archive: Archive, sqlite_desk: Desk):
    custody = archive.custody(OFFICER)
    custody.rotate()
    archive.flaky.fault = UNAUDITED  # type: ignore[attr-defined]
    with pytest.raises(StoreUnavailableError):
        custody.retire(1)
    assert FileKeys(sqlite_desk.keys).versions(OFFICER.org) == (1, 2)


def test_a_version_that_is_not_where_it_was_kept_wraps_nothing(sqlite_desk: Desk, tmp_path: Path):
    other = tmp_path / "other.keys"
    shutil.copy2(sqlite_desk.keys, other)
    FileKeys(other).new_version(OFFICER.org)

    class Elsewhere(FileKeys):
        """What is read anew has another version 2 than what wraps."""

        def reopened(self) -> FileKeys:
            return FileKeys(other)

    with sqlite_desk.open(keys=Elsewhere(sqlite_desk.keys)) as archive:
        filled(archive)
        before = sqlite_desk.rows("scope_keys")
        with pytest.raises(KeyringError):
            archive.custody(OFFICER).rotate()
        assert sqlite_desk.rows("scope_keys") == before


def test_a_key_that_changed_while_it_was_wrapped_again_is_left_as_it_is(archive: Archive, sqlite_desk: Desk):
    filled(archive, "other", 1)
    rekeying = Rekeying(archive.custody(OFFICER)._vault, OFFICER)
    FileKeys(sqlite_desk.keys).new_version(OFFICER.org)
    with sqlite_desk.open() as elsewhere:
        shred = lambda: elsewhere.custody(OFFICER).shred(session_id="other")  # noqa: E731
        archive.flaky.before_write = shred  # type: ignore[attr-defined]
        assert rekeying._sweep_scopes(2) == 1
    wrapped = sqlite_desk.execute("SELECT wrapped = x'', kek_version FROM scope_keys ORDER BY 1")
    assert wrapped == [(0, 2), (1, 1)]  # what was shredded did not come back


def test_a_key_of_the_org_that_changed_meanwhile_is_left_as_it_is(archive: Archive, sqlite_desk: Desk):
    rekeying = Rekeying(archive.custody(OFFICER)._vault, OFFICER)
    FileKeys(sqlite_desk.keys).new_version(OFFICER.org)
    with sqlite_desk.open() as elsewhere:
        archive.flaky.before_write = lambda: elsewhere.custody(OFFICER).shred()  # type: ignore[attr-defined]
        assert rekeying._sweep_org(2) == 0
    assert sqlite_desk.execute("SELECT aux_wrapped FROM orgs") == [(b"",)]


class Plain(ServiceKeys):
    """A service that keeps what it was given as it is."""

    _FORM = "plain"

    def __init__(self) -> None:
        super().__init__(1_000, lambda: 0)

    def _list(self, listing: str) -> dict[str, Known]:
        return {listing: Known(2, {1: "one", 2: "two"})}

    def _encrypt(self, org: str, version: int, plaintext: bytes, place: bytes) -> bytes:
        return plaintext

    def _decrypt(self, org: str, version: int, sealed: bytes, place: bytes) -> bytes:
        return sealed

    def _source(self) -> str:
        return "a test"


def test_a_key_that_a_service_wrapped_has_one_form_and_no_other():
    keys, key = Plain(), os.urandom(32)
    wrapped = keys.wrap("north-clinic", 2, key, b"here")
    assert keys.unwrap("north-clinic", 2, wrapped, b"here") == key
    sealed = ce_read(wrapped)[2]
    for other in (wrapped + ce(b"more"), ce("other", 2, sealed), ce("plain", 1, sealed), ce("plain", "02", sealed)):
        with pytest.raises(SealBrokenError):
            keys.unwrap("north-clinic", 2, other, b"here")


# --- proof ----------------------------------------------------------------------------------------------------------


def test_a_path_that_goes_on_above_the_root_is_refused():
    leaf, sibling = leaf_hash(b"a"), leaf_hash(b"b")
    with pytest.raises(AuditBrokenError):
        verify_inclusion(leaf, 0, 1, [sibling], node_hash(sibling, leaf))


def noted(*lines: str) -> str:
    """A head that was signed by a key of this run, with more lines of signatures behind it."""
    return SIGNER.sign(1, leaf_hash(LEAF)) + "".join(f"{line}\n" for line in lines)


SIGNER = Signer("evidence-archive/00", os.urandom(32))
LEAF = encode_leaf(org="north-clinic", seq=0, time_us=0, event="key.created", subject="host")
DASH = "\N{EM DASH} "


@pytest.mark.parametrize(
    "line", ["", DASH, f"{DASH}name", f"{DASH}a+b AAAAAAA=", f"{DASH}name AAAAAA==", f"{DASH}n x"]
)
def test_a_signature_of_somebody_else_has_to_be_one_in_form(line: str):
    assert open_checkpoint(noted(f"{DASH}name AAAAAAA="), SIGNER.verifier).size == 1  # five bytes: an id and one more
    with pytest.raises(AuditBrokenError, match="not in the form"):
        open_checkpoint(noted(line), SIGNER.verifier)


def test_a_signature_has_one_form_and_no_other():
    """The last character but one has two bits that decode to nothing (RFC 4648 section 3.5)."""
    note = noted()
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    at = note.rindex("=") - 1
    assert note[at + 1 :] == "=\n"
    other = note[:at] + digits[digits.index(note[at]) ^ 1] + "=\n"
    assert base64.b64decode(other.split(" ")[-1]) == base64.b64decode(note.split(" ")[-1])
    with pytest.raises(AuditBrokenError, match="not in the form"):
        open_checkpoint(other, SIGNER.verifier)


@pytest.mark.parametrize("text", ["\n", "evidence-archive/00\n", "evidence-archive/00\n1\n"])
def test_a_signed_text_without_its_lines_is_no_head(text: str):
    signature = SIGNER._key.sign(text.encode())
    line = base64.b64encode(SIGNER.verifier.key_id + signature).decode()
    with pytest.raises(AuditBrokenError):
        open_checkpoint(f"{text}\n{DASH}{SIGNER.verifier.name} {line}\n", SIGNER.verifier)


def test_a_note_is_read_up_to_its_bounds_and_not_beyond():
    lines = [f"{DASH}n{at} AAAAAAA=" for at in range(63)]
    assert open_checkpoint(noted(*lines), SIGNER.verifier).size == 1
    with pytest.raises(AuditBrokenError, match="not in the form"):
        open_checkpoint(noted(*lines, lines[0]), SIGNER.verifier)
    room = CHECKPOINT_BYTES_MAX - len(noted(f"{DASH} ").encode())
    name = "n" * (room % 4 or 4)
    full = noted(f"{DASH}{name} {base64.b64encode(bytes((room - len(name)) // 4 * 3)).decode()}").encode()
    assert len(full) == CHECKPOINT_BYTES_MAX
    assert open_checkpoint(full, SIGNER.verifier).size == 1
    with pytest.raises(AuditBrokenError, match="not in the form"):
        open_checkpoint(full + b"x", SIGNER.verifier)


def test_heads_of_all_sizes_there_are_can_be_signed():
    for size in (0, 1, SIZE_MAX):
        assert open_checkpoint(SIGNER.sign(size, EMPTY_ROOT), SIGNER.verifier).size == size
    with pytest.raises(FormatError):
        SIGNER.sign(SIZE_MAX + 1, EMPTY_ROOT)


def test_the_only_entry_of_a_log_is_proven_without_a_path_and_a_path_holds_nothing_but_hashes():
    proof = format_proof(LEAF, 0, [], noted())
    assert open_proof(proof, SIGNER.verifier).leaf.seq == 0
    for more in ("x", "AAAA", base64.b64encode(bytes(32)).decode()):
        with pytest.raises(AuditBrokenError):
            open_proof(proof.replace("\n\n", f"\n{more}\n\n", 1), SIGNER.verifier)


def test_a_key_has_a_name_within_bounds_and_32_bytes():
    longest = VerifierKey("n" * 255, bytes(32))
    assert VerifierKey.parse(longest.text()) == longest
    for seed in range(99):  # until the base64 of a key holds a plus, too
        key = Signer("log", seed.to_bytes(32, "big")).verifier
        assert VerifierKey.parse(key.text()) == key
    for public in (b"", bytes(31), bytearray(32)):
        with pytest.raises(FormatError):
            VerifierKey("log", public)  # type: ignore[arg-type]


def test_a_syntax_error_in_words_that_nobody_knows_yet_does_not_quote_the_author():
    said = policy_file._syntax("Something new about 'hunter2' (at line 1, column 2)", "a = 1")
    assert "hunter2" not in said


def test_the_tests_of_a_policy_are_decided_with_their_text():
    rule = '[[archive]]\nid = "words"\neffect = "never"\ncontent = "secret"\n'
    tests = "".join(
        f'[[test]]\ntool = "a"\ntext = "{text}"\nexpect = "{expected}"\n'
        for text, expected in (("harmless", "allow"), ("a secret", "never"))
    )
    assert policy_of(rule + tests).check(may_restore).ok


@pytest.mark.parametrize(
    ("effect", "selector"),
    [("allow", ""), ("never", 'sensitivity = ["a"]\n'), ("never", 'kind = ["a"]\n'), ("never", 'tools = ["a"]\n')],
)
def test_every_rule_that_changes_nothing_is_warned_of(effect: str, selector: str):
    rules = "".join(f'[[archive]]\nid = "{name}"\neffect = "{effect}"\n{selector}' for name in ("r1", "r2", "r3"))
    warnings = " ".join(policy_of(rules).check(may_restore).warnings)
    assert [name in warnings for name in ("rule r1 ", "rule r2 ", "rule r3 ")] == [effect == "allow", True, True]


def test_logs_are_compared_by_whole_hashes_and_possible_sizes():
    other = leaf_hash(LEAF)
    for size, root in ((0, EMPTY_ROOT), (1, other), (SIZE_MAX, other)):
        verify_consistency(size, root, size, root, [])
    for old_size, old_root, size, root in (
        (1, b"x", 1, b"x"),
        (2, other, 1, other),
        (-1, b"", 0, b""),
        (0, EMPTY_ROOT, 0, other),
        (0, other, 0, other),
        (SIZE_MAX + 1, other, SIZE_MAX + 1, other),
    ):
        with pytest.raises(AuditBrokenError):
            verify_consistency(old_size, old_root, size, root, [])


def test_a_log_that_is_shorter_than_its_last_signed_head_is_not_signed(archive: Archive, sqlite_desk: Desk):
    custody = archive.custody(OFFICER)
    (head,) = sqlite_desk.rows("audit_heads")
    size = len(sqlite_desk.rows("audit_leaves"))
    archive.restore("case", "r1", principal=OWNER)
    custody.checkpoint()
    sqlite_desk.execute("DELETE FROM audit_leaves WHERE seq >= ?", size)
    sqlite_desk.execute("DELETE FROM audit_heads")
    sqlite_desk.execute(f"INSERT INTO audit_heads VALUES ({', '.join('?' * len(head))})", *head)
    with pytest.raises(AuditBrokenError, match="shorter"):
        custody._vault.transact(custody._vault.sign_head)


def test_a_head_that_its_entries_do_not_lead_to_is_not_signed(archive: Archive, sqlite_desk: Desk):
    sqlite_desk.execute("UPDATE audit_leaves SET leaf = (SELECT leaf FROM audit_leaves WHERE seq = 2) WHERE seq = 1")
    with pytest.raises(AuditBrokenError, match="do not hash"):
        archive.custody(OFFICER).checkpoint()


def test_an_entry_rewritten_in_our_own_form_is_found_by_the_report(archive: Archive, sqlite_desk: Desk):
    ((data,),) = sqlite_desk.execute("SELECT leaf FROM audit_leaves WHERE seq = 1")
    old = decode_leaf(data)
    named = {one: getattr(old, one) for one in ("org", "seq", "time_us", "event", "session_id", "policy_digest")}
    other = encode_leaf(**named, subject="somebody-else", details=old.details)
    sqlite_desk.execute("UPDATE audit_leaves SET leaf = ? WHERE seq = 1", other)
    report = archive.audit(principal=OWNER)
    assert (report.intact, report.entries[1].subject) == (False, "somebody-else")


def test_a_log_with_a_gap_is_not_signed(archive: Archive, sqlite_desk: Desk):
    sqlite_desk.execute("DELETE FROM audit_leaves WHERE seq = 1")
    with pytest.raises(AuditBrokenError, match="Entry 1 of the audit log is missing"):
        archive.custody(OFFICER).checkpoint()


def test_an_anchor_file_is_synced_before_a_head_counts_as_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[int] = []
    path = tmp_path / "heads"
    monkeypatch.setattr(anchors.os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    anchors.FileAnchor(path).publish("log", 1, "a note")
    assert synced == [path.stat().st_size]


def test_a_run_that_looked_at_nothing_is_not_clean():
    report = VerifyReport("north-clinic", "keyless", 0, "", {"entries": 0}, (), 0, {})
    assert not report.is_clean
    assert replace(report, counts={"entries": 1}).is_clean
