"""Evidence bundles: an original with all that a stranger needs to see that it is the original, in one zip file.

A bundle holds the exact bytes, the sealed envelope, the key that opens this envelope and nothing else, where the
original comes from, every entry of the audit log that names it, each with its proof (C2SP ``tlog-proof``), and the
signed head they are proven under (C2SP ``tlog-checkpoint``). Whoever verifies needs the log's public key, from
somewhere else than the bundle, and neither a database nor a secret.

What ties the files to the log: the entry of the batch names the digest of the envelope; the envelope opens only with
its key and in its place, to bytes of the digest sealed in it; the entry of the export names the digests of the other
files and the places of all entries. The layout is in docs/evidence.md. Equal state gives equal bytes.
"""

import errno
import hmac
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, BinaryIO, NoReturn

from evidence_archive.envelopes import Envelopes
from evidence_archive.errors import (
    AuditBrokenError,
    EvidenceArchiveError,
    FormatError,
    NotAvailableError,
    SealBrokenError,
    UnsupportedVersionError,
)
from evidence_archive.model import PIECE_BYTES, Principal, bytes_of, format_result_id, parse_result_id, text_of
from evidence_archive.ports import ResultRow, SessionRow
from evidence_archive.proof import leaf as audit
from evidence_archive.proof.checkpoint import (
    CHECKPOINT_BYTES_MAX,
    PROOF_BYTES_MAX,
    Checkpoint,
    VerifierKey,
    format_proof,
    open_checkpoint,
    open_proof,
)
from evidence_archive.proof.merkle import leaf_hash, node_hash
from evidence_archive.proving import ProvenEntry, Proving
from evidence_archive.restoring import Found, Restoring
from evidence_archive.sealing.envelope import Slot, envelope_bytes, open_pieces
from evidence_archive.vault import SHREDDED, Vault, asked_session, leaves_of

__all__ = [
    "BUNDLE_ENTRIES_MAX",
    "BUNDLE_ORIGINALS_MAX",
    "Bundle",
    "BundledResult",
    "Exported",
    "export_bundle",
    "proven_entries",
    "verify_bundle",
]

BUNDLE_ENTRIES_MAX = 10_000
"""Most audit entries in one bundle."""

BUNDLE_ORIGINALS_MAX = 5_000
"""Most originals in one bundle."""

TEXT_BYTES_MAX = 16 * 1024 * 1024
"""Longest ``provenance.json`` that is read, in bytes."""

_FORMAT = "evidence-archive/bundle/1"
_ORIGIN = "evidence-archive/"
_README, _PROVENANCE, _KEY, _CHECKPOINT = "README.txt", "provenance.json", "key.txt", "checkpoint.txt"
_PLAIN_FILES = {_README: 64 * 1024, _PROVENANCE: TEXT_BYTES_MAX, _KEY: 1024, _CHECKPOINT: CHECKPOINT_BYTES_MAX}
_CONTENT, _ENVELOPE, _OPENING = "content", "envelope.bin", "opening.json"
_PROOF_NAME = re.compile(r"proofs/(0|[1-9][0-9]{0,18})\.tlog-proof", re.ASCII)
_ORIGINAL_NAME = re.compile(r"originals/(r[1-9][0-9]{0,17})/(content|envelope\.bin|opening\.json)", re.ASCII)
_OPENING_BYTES_MAX = 64 * 1024
_FILES_MAX = len(_PLAIN_FILES) + BUNDLE_ENTRIES_MAX + 3 * BUNDLE_ORIGINALS_MAX + 1
_READ_BYTES_MAX = 8 * 1024 * 1024
"""More than the directory of a bundle with the most files has."""
_STREAMED = 0x08
_END, _END_BYTES = b"PK\x05\x06", 22
_TIME = (1980, 1, 1, 0, 0, 0)
_PRIVATE_FILE = 0o100600 << 16
_UNIX = 3

_NO_BUNDLE = "This is not an evidence bundle, or it is damaged."
_CHANGED = "A file of this bundle is not what was exported: it was changed, added or taken away."
_NOT_LOGGED = "The audit log does not know an envelope of this bundle as the one that was archived."

_TEXT = f"""\
Evidence bundle ({_FORMAT})

What is in it

  provenance.json          where each original comes from: org, session, tool, time of observation
  originals/ID/content     the exact bytes of the original: UTF-8 of a text, or compact JSON of a list of parts
  originals/ID/envelope.bin  the same, sealed, as it was stored; its SHA-256 is in the audit log
  originals/ID/opening.json  the key of this one envelope, and the rest of what opening it takes
  proofs/N.tlog-proof      entry N of the audit log with the proof that it is in it (C2SP tlog-proof)
  checkpoint.txt           the signed head of the log that the proofs lead to (C2SP tlog-checkpoint)
  key.txt                  the public key of the log; compare it with the one you were given elsewhere

Without originals/ the bundle holds the history only.

How to verify it, on any machine, without a database and without a secret

  evidence-archive evidence verify BUNDLE.zip --key 'THE PUBLIC KEY YOU WERE GIVEN'
  evidence-archive audit verify-proof proofs/N.tlog-proof --key 'THE PUBLIC KEY YOU WERE GIVEN'

or with the short script that is printed in docs/evidence.md of evidence-archive; it needs Python and
the package cryptography, and nothing else.

What it proves: these bytes are what the tool returned then and the archive took in, and these are the entries of its
log that name them, as of the signed head. It does not prove that what the tool said was true.

Keep the bundle as you would keep the original: whoever has it has the original, also after the archive destroyed it.
"""


# --- proofs -------------------------------------------------------------------------------------------------------


def proven_entries(vault: Vault, proving: Proving, seqs: Sequence[int]) -> tuple[str, list[ProvenEntry]]:
    """A newly signed head, and entries of the log with their proofs under it; the log is read once.

    Args:
        vault: the org's keys, store and log.
        proving: signs.
        seqs: places in the log, from 0; all are there.

    Raises:
        AuditBrokenError: the log is not what its head says.
        StoreError: the store cannot be written, or an anchor does not take the head.
    """
    note = proving.checkpoint()
    size = open_checkpoint(note, vault.signer.verifier).size
    wanted, hashes, kept = set(seqs), [], {}
    with vault.store.reading(vault.store_wait_ms) as reader:
        for seq, data in leaves_of(reader, size):
            hashes.append(leaf_hash(data))
            if seq in wanted:
                kept[seq] = data
    path = _paths(hashes)
    return note, [
        ProvenEntry(audit.decode_leaf(kept[seq]), format_proof(kept[seq], seq, path(seq), note)) for seq in seqs
    ]


def _paths(hashes: Sequence[bytes]) -> Callable[[int], list[bytes]]:
    """Inclusion proofs for many leaves of one tree (RFC 9162 section 2.1.3.1), level by level from the leaves."""
    levels = [list(hashes)]
    while len(levels[-1]) > 1:
        row = levels[-1]
        above = [node_hash(row[at], row[at + 1]) for at in range(0, len(row) - 1, 2)]
        levels.append(above + row[-1:] if len(row) % 2 else above)

    def path(index: int) -> list[bytes]:
        found = []
        for row in levels[:-1]:
            if index ^ 1 < len(row):
                found.append(row[index ^ 1])
            index //= 2
        return found

    return path


# --- exporting ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exported:
    """What went into a bundle.

    Args:
        session_id, result_id: what it is of; ``None`` for the whole session.
        results: results it tells about.
        originals: those of them whose bytes are in it.
        entries: audit entries.
    """

    session_id: str
    result_id: str | None
    results: tuple[str, ...]
    originals: tuple[str, ...]
    entries: int


def export_bundle(
    vault: Vault,
    proving: Proving,
    principal: Principal,
    file: BinaryIO,
    *,
    session_id: str,
    result_id: str | None,
    include_original: bool,
) -> Exported:
    """Write the bundle of an original or a session.

    Each original is granted as a restore is, with its own audit entry, before anything of it is written; the export
    has an entry of its own. After an error, what the file holds is no bundle.

    Args:
        vault, proving: the org's.
        principal: a custodian of the org.
        file: open for writing bytes.
        session_id, result_id: which; ``None`` for all that the session archived.
        include_original: with the bytes, which the principal then has to be allowed to restore, all of them.

    Raises:
        NotAvailableError: there is no such session or archived original, or the policy does not let the principal
            restore it; the denial is in the log, and nothing was exported.
        ShreddedError: the principal could have had it, and it was shredded.
        FormatError: the result is a copy of another one, or a bundle cannot hold so much.
        SealBrokenError, AuditBrokenError: stored bytes were changed.
        KeyringError, StoreError: keys or store are not at hand.
        OSError: from the file.
    """
    restoring = Restoring(vault)
    founds: dict[str, Found] = {}
    if include_original and result_id is not None:
        founds[result_id] = restoring.find(principal, session_id, result_id)
    session, rows = _rows(vault, session_id, result_id)
    if include_original:
        for name in (format_result_id(row.number) for row in rows if row.state != SHREDDED):
            founds[name] = founds.get(name) or restoring.find(principal, session_id, name)
    for found in founds.values():
        restoring.looked_at(principal, found)
    for found in founds.values():
        restoring.granted(principal, found, part=None, reason=None)

    seqs = proving.entries_of(session.session_id, result_id)
    if len(seqs) >= BUNDLE_ENTRIES_MAX:
        raise FormatError(
            f"A bundle holds at most {BUNDLE_ENTRIES_MAX:,} audit entries: export single originals instead."
        )
    provenance = _json(
        {
            "format": _FORMAT,
            "org": vault.org,
            "session": session.session_id,
            "owner": session.subject,
            "result": result_id,
            "results": [_described(row, format_result_id(row.number) in founds) for row in rows],
        }
    )
    results = [format_result_id(row.number) for row in rows]
    details = {
        "results": results,
        "originals": bool(founds),
        "entries": seqs,
        "files": {_README: _digest(_TEXT.encode()), _PROVENANCE: _digest(provenance)},
    }
    leaf = vault.leaf(audit.EVIDENCE_EXPORTED, principal.subject, session_id=session.session_id, details=details)
    placed: list[int] = []

    def build(seq: int) -> bytes:
        placed.append(seq)
        return leaf(seq)

    vault.transact(lambda writer: writer.append([build]))
    note, entries = proven_entries(vault, proving, [*seqs, placed[-1]])
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as bundle:
        _write(bundle, _README, [_TEXT.encode()])
        _write(bundle, _PROVENANCE, [provenance])
        _write(bundle, _KEY, [vault.signer.verifier.text().encode() + b"\n"])
        _write(bundle, _CHECKPOINT, [note.encode()])
        for entry in entries:
            _write(bundle, f"proofs/{entry.entry.seq}.tlog-proof", [entry.proof.encode()])
        for name, found in founds.items():
            _write_original(bundle, vault, principal, name, found)
    vault.log.info("evidence_archive.exported", session=session.session_id, results=results)
    return Exported(session.session_id, result_id, tuple(results), tuple(founds), len(entries))


def _rows(vault: Vault, session_id: str, result_id: str | None) -> tuple[SessionRow, list[ResultRow]]:
    """A session and what it archived, or the one result that is asked for."""
    with vault.store.reading(vault.store_wait_ms) as reader:
        session = reader.session(asked_session(session_id))
        if session is None:
            raise NotAvailableError
        rows = reader.results(session.scope_id, -1)
    if result_id is not None:
        try:
            number = parse_result_id(result_id)
        except FormatError:
            raise NotAvailableError from None
        rows = [row for row in rows if row.number == number]
        copied = next((row.origin for row in rows), None)
        if copied is not None:
            raise FormatError(f"This is a copy: export {format_result_id(copied)}, which it was taken from.")
    rows = [row for row in rows if row.original_id is not None and row.state != "live" and row.origin is None]
    if result_id is not None and not rows:
        raise NotAvailableError
    if len(rows) > BUNDLE_ORIGINALS_MAX:
        raise FormatError(f"A bundle holds at most {BUNDLE_ORIGINALS_MAX:,} originals: export single ones instead.")
    return session, rows


def _described(row: ResultRow, with_original: bool) -> dict[str, Any]:
    return {
        "id": format_result_id(row.number),
        "state": row.state,
        "tool": text_of(row.tool_name),
        "tool_call_id": text_of(row.call_id),
        "kind": row.kind,
        "sensitivity": list(filter(None, row.sensitivity.split("\n"))),
        "media_type": row.media_type,
        "size_bytes": row.size_bytes,
        "observed_at_us": row.observed_at_us,
        "observed_by": row.observed_by,
        "archived_at_us": row.archived_at_us,
        "envelope_sha256": (row.envelope_sha256 or b"").hex(),
        "original": with_original,
    }


def _write_original(bundle: zipfile.ZipFile, vault: Vault, principal: Principal, name: str, found: Found) -> None:
    origin, folder = found.origin, f"originals/{name}"
    dek, _ = vault.open_closed(vault.scope_keys(found.scope), origin)
    opening = {
        "original_id": (origin.original_id or b"").hex(),
        "dek_id": (origin.dek_id or b"").hex(),
        "sealed_size": origin.sealed_size,
        "dek": dek.hex(),
    }
    _write(bundle, f"{folder}/{_OPENING}", [_json(opening)])
    sealed = Envelopes(vault).stored(origin)
    _write(bundle, f"{folder}/{_ENVELOPE}", sealed, envelope_bytes(origin.sealed_size or 0))
    with bundle.open(_member(f"{folder}/{_CONTENT}", origin.size_bytes), "w") as member:
        Restoring(vault).released_to(principal, found, member.write)


def _write(bundle: zipfile.ZipFile, name: str, pieces: Iterable[bytes], size_bytes: int = 0) -> None:
    with bundle.open(_member(name, size_bytes), "w") as member:
        for piece in pieces:
            member.write(piece)


def _member(name: str, size_bytes: int) -> zipfile.ZipInfo:
    """A file of the bundle without a time or an owner; the size says whether it needs the large form."""
    info = zipfile.ZipInfo(name, _TIME)
    info.external_attr, info.create_system, info.file_size = _PRIVATE_FILE, _UNIX, size_bytes
    return info


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=True, sort_keys=True, indent=1).encode("ascii") + b"\n"


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()


# --- verifying ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BundledResult:
    """One result that a verified bundle tells about.

    Args:
        id: in its session.
        state: ``archived`` or ``shredded``, when the bundle was made.
        tool, media_type, observed_at_us: from its provenance.
        size_bytes: of the original.
        sha256: of the exact original, in hex; ``None`` where its bytes are not in the bundle.
    """

    id: str
    state: str
    tool: str
    media_type: str
    observed_at_us: int
    size_bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that was verified.

    Args:
        org, session_id, result_id: what it is of; ``None`` for a whole session.
        checkpoint: the signed head.
        results: what it tells about.
        entries: the audit entries, by place.
    """

    org: str
    session_id: str
    result_id: str | None
    checkpoint: Checkpoint
    results: tuple[BundledResult, ...]
    entries: tuple[audit.Leaf, ...]


def verify_bundle(file: BinaryIO, key: VerifierKey) -> Bundle:
    """What a bundle says, once everything in it was verified: nothing but the public key is trusted.

    A few MiB are in memory, whatever the size of the originals; what is not in the form that exporting gives is
    refused before it is looked into.

    Args:
        file: open for reading bytes, and seekable.
        key: of the log, from somewhere else than the bundle.

    Raises:
        FormatError: this is no bundle, or a damaged one.
        UnsupportedVersionError: a newer version wrote it.
        AuditBrokenError: a file or an entry is not what the log says.
        SealBrokenError: an original is not the one that was sealed.
        OSError: from the file.
    """
    with _container():
        source = _Bounded(file)
        if not source.is_bare():  # what nobody exported must not travel under the proofs of what somebody did
            _refuse()
        with zipfile.ZipFile(source) as bundle:
            return _verified(_Members(bundle, source.size_bytes), key)


def _verified(members: "_Members", key: VerifierKey) -> Bundle:
    if members.whole(_KEY) != key.text().encode() + b"\n":
        raise AuditBrokenError("This bundle is of another log than the one this key signs for.")
    note = members.whole(_CHECKPOINT)
    checkpoint = open_checkpoint(note, key)
    entries = []
    for seq in members.proofs:
        proof = open_proof(members.whole(f"proofs/{seq}.tlog-proof"), key)
        if proof.checkpoint != checkpoint or proof.leaf.seq != seq:
            raise AuditBrokenError("A proof of this bundle is of another entry, or leads to another head.")
        entries.append(proof.leaf)
    export = entries[-1] if entries else None
    readme, provenance = members.whole(_README), members.whole(_PROVENANCE)
    if (
        export is None
        or export.event != audit.EVIDENCE_EXPORTED
        or export.details.get("files") != {_README: _digest(readme), _PROVENANCE: _digest(provenance)}
        or export.details.get("entries") != members.proofs[:-1]
    ):
        raise AuditBrokenError(_CHANGED)
    told = _object(provenance)
    if told.get("format") != _FORMAT:
        raise UnsupportedVersionError("A newer version wrote this bundle: upgrade this library.")
    if (told["org"], told["session"]) != (export.org, export.session_id):
        raise AuditBrokenError(_CHANGED)
    if sorted(one["id"] for one in told["results"] if one["original"]) != sorted(members.originals):
        raise AuditBrokenError(_CHANGED)
    results = tuple(_verified_result(members, told, one, entries, checkpoint.origin) for one in told["results"])
    return Bundle(told["org"], told["session"], told["result"], checkpoint, results, tuple(entries))


def _verified_result(
    members: "_Members", told: Mapping[str, Any], one: Mapping[str, Any], entries: Sequence[audit.Leaf], origin: str
) -> BundledResult:
    named = [
        envelope
        for entry in entries
        if entry.event == audit.BATCH_ACCEPTED and (entry.org, entry.session_id) == (told["org"], told["session"])
        for result_id, envelope in zip(entry.details["results"], entry.details["envelopes"], strict=True)
        if result_id == one["id"] and envelope is not None
    ]
    if named != [one["envelope_sha256"]]:
        raise AuditBrokenError(_NOT_LOGGED)
    digest = None
    if one["original"]:
        slot = Slot(
            deployment=bytes.fromhex(origin.removeprefix(_ORIGIN)),
            org=told["org"],
            session_id=told["session"],
            result_id=one["id"],
            tool_call_id=bytes_of(one["tool_call_id"]),
            tool_name=one["tool"],
            kind=one["kind"],
            media_type=one["media_type"],
            observed_at_us=one["observed_at_us"],
        )
        digest = _verified_original(members, one, slot)
    return BundledResult(
        one["id"], one["state"], one["tool"], one["media_type"], one["observed_at_us"], one["size_bytes"], digest
    )


def _verified_original(members: "_Members", one: Mapping[str, Any], slot: Slot) -> str:
    """The digest of an original that is the one in its envelope, which is the one in the log."""
    folder = f"originals/{one['id']}"
    opening = _object(written := members.whole(f"{folder}/{_OPENING}"))
    ids = {name: bytes.fromhex(opening[name]) for name in ("original_id", "dek_id", "dek")}
    if _json({"sealed_size": opening["sealed_size"]} | {name: one.hex() for name, one in ids.items()}) != written:
        _refuse()
    sealed, plain, size_bytes = sha256(), sha256(), 0

    def hashed() -> Iterator[bytes]:
        for piece in members.pieces(f"{folder}/{_ENVELOPE}"):
            sealed.update(piece)
            yield piece

    opened = open_pieces(
        hashed(),
        lambda piece: None,
        slot=slot,
        **ids,
        sealed_size=opening["sealed_size"],
    )
    if sealed.hexdigest() != one["envelope_sha256"]:
        raise AuditBrokenError(_NOT_LOGGED)
    for piece in members.pieces(f"{folder}/{_CONTENT}"):
        plain.update(piece)
        size_bytes += len(piece)
    if size_bytes != one["size_bytes"] or not hmac.compare_digest(plain.digest(), opened.sha256):
        raise SealBrokenError("An original of this bundle is not the one that was sealed: its bytes were changed.")
    return plain.hexdigest()


class _Members:
    """The files of a bundle, once their names, kinds and sizes are those that exporting gives.

    Args:
        bundle: the container.
        size_bytes: of the container.

    Raises:
        FormatError: a file is twice in it, compressed, encrypted, missing, too long or of no known name.
    """

    def __init__(self, bundle: zipfile.ZipFile, size_bytes: int) -> None:
        self._bundle = bundle
        self._infos = {info.filename: info for info in bundle.infolist()}
        self.proofs: list[int] = []
        self.originals: list[str] = []
        found: set[str] = set()
        if len(self._infos) != len(bundle.infolist()) or len(self._infos) > _FILES_MAX:
            _refuse()
        for name, info in self._infos.items():
            proof, original = _PROOF_NAME.fullmatch(name), _ORIGINAL_NAME.fullmatch(name)
            if proof:
                bytes_max = PROOF_BYTES_MAX
                self.proofs.append(int(proof[1]))
            elif original:
                bytes_max = _OPENING_BYTES_MAX if original[2] == _OPENING else size_bytes
                found.add(name)
                self.originals += [original[1]] if original[2] == _OPENING else []
            else:
                bytes_max = _PLAIN_FILES.get(name, -1)
            stored = info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
            if info.orig_filename != name or not stored or info.flag_bits & ~_STREAMED or info.file_size > bytes_max:
                _refuse()
        # Files that lie upon one another, so that a small bundle unfolds into a large one, are more than it has room
        # for; each of them is read once.
        whole = {f"originals/{one}/{part}" for one in self.originals for part in (_CONTENT, _ENVELOPE, _OPENING)}
        begins = min((info.header_offset for info in self._infos.values()), default=-1)
        if sum(info.file_size for info in self._infos.values()) > size_bytes or found != whole or begins:
            _refuse()
        if not self._infos.keys() >= _PLAIN_FILES.keys():
            _refuse()
        self.proofs.sort()

    def whole(self, name: str) -> bytes:
        """A small file."""
        return b"".join(self.pieces(name))

    def pieces(self, name: str) -> Iterator[bytes]:
        """A file, in pieces."""
        with self._bundle.open(self._infos[name]) as member:
            while piece := member.read(PIECE_BYTES):
                yield piece


class _Bounded:
    """A file of which nobody reads more at once than a bundle's directory can have.

    Args:
        file: open for reading bytes, and seekable.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size_bytes = file.seek(0, 2)
        file.seek(0)
        self.seek, self.tell = file.seek, file.tell

    def is_bare(self) -> bool:
        """Whether it ends as a zip file without a comment does (PKWARE APPNOTE 4.3.16)."""
        self._file.seek(-min(_END_BYTES, self.size_bytes), 2)
        last = self._file.read(_END_BYTES)
        self._file.seek(0)
        return last.startswith(_END) and last.endswith(b"\0\0")

    def seekable(self) -> bool:
        """True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """At most ``_READ_BYTES_MAX`` bytes."""
        if size > _READ_BYTES_MAX or (size < 0 and self.size_bytes - self._file.tell() > _READ_BYTES_MAX):
            _refuse()
        return self._file.read(size)


@contextmanager
def _container() -> Iterator[None]:
    """Turn what becomes of bytes that are no bundle into one error; what the log and the seals say stays."""
    try:
        yield
    except EvidenceArchiveError:
        raise
    except Exception as error:  # a zip file that was made to be wrong ends in many ways
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # a place before the file's beginning
            raise
        raise FormatError(_NO_BUNDLE) from error


def _object(data: bytes) -> dict[str, Any]:
    """A JSON object; what is missing in it, or of another type, is met by :func:`_container`."""
    value = json.loads(data)
    if type(value) is not dict:
        _refuse()
    return value


def _refuse() -> NoReturn:
    raise FormatError(_NO_BUNDLE)
