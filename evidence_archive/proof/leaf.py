"""One audit entry as canonical bytes; they are stored as they were hashed and never rebuilt from columns.

A leaf says who decided what and when. It holds no evidence, no digest of evidence and no tool arguments; the reason
somebody gave for a restore is in it sealed. The layout is in docs/format.md.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evidence_archive.errors import AuditBrokenError, FormatError, UnsupportedVersionError
from evidence_archive.model import ce, ce_read

__all__ = [
    "BACKUP_MADE",
    "BACKUP_RESTORED",
    "BATCH_ACCEPTED",
    "BATCH_REJECTED",
    "BOOK_POSTED",
    "CUSTODY_DENIED",
    "EVENTS",
    "EVIDENCE_CHECKED",
    "EVIDENCE_EXPORTED",
    "EVIDENCE_SEARCHED",
    "HOLD_PLACED",
    "HOLD_RELEASED",
    "KEY_CREATED",
    "KEY_FLOOR",
    "KEY_RETIRED",
    "KEY_ROTATED",
    "LABEL_SET",
    "LEAF_BYTES_MAX",
    "LOG_REANCHORED",
    "POLICY_LOADED",
    "RESTORE_DENIED",
    "RESTORE_FAILED",
    "RESTORE_GRANTED",
    "RETENTION_EXTENDED",
    "SESSION_DENIED",
    "SESSION_OPENED",
    "SESSION_RESUMED",
    "SESSION_SUSPENDED",
    "SHRED_COMPLETED",
    "SHRED_REFUSED",
    "SHRED_REQUESTED",
    "STORE_VERIFIED",
    "TRACE_READ",
    "Leaf",
    "decode_leaf",
    "encode_leaf",
]

SESSION_OPENED = "session.opened"
SESSION_DENIED = "session.denied"
POLICY_LOADED = "policy.loaded"
KEY_CREATED = "key.created"
BATCH_ACCEPTED = "batch.accepted"
BATCH_REJECTED = "batch.rejected"
RESTORE_GRANTED = "restore.granted"
RESTORE_DENIED = "restore.denied"
RESTORE_FAILED = "restore.failed"
SESSION_SUSPENDED = "session.suspended"
SESSION_RESUMED = "session.resumed"
LABEL_SET = "label.set"
KEY_ROTATED = "key.rotated"
KEY_FLOOR = "key.floor"
KEY_RETIRED = "key.retired"
HOLD_PLACED = "hold.placed"
HOLD_RELEASED = "hold.released"
RETENTION_EXTENDED = "retention.extended"
SHRED_REQUESTED = "shred.requested"
SHRED_COMPLETED = "shred.completed"
SHRED_REFUSED = "shred.refused"
STORE_VERIFIED = "store.verified"
EVIDENCE_EXPORTED = "evidence.exported"
BACKUP_MADE = "backup.made"
BACKUP_RESTORED = "backup.restored"
CUSTODY_DENIED = "custody.denied"
LOG_REANCHORED = "log.reanchored"
BOOK_POSTED = "book.posted"
EVIDENCE_SEARCHED = "evidence.searched"
EVIDENCE_CHECKED = "evidence.checked"
TRACE_READ = "trace.read"

EVENTS = frozenset(
    {
        SESSION_OPENED,
        SESSION_DENIED,
        POLICY_LOADED,
        KEY_CREATED,
        BATCH_ACCEPTED,
        BATCH_REJECTED,
        RESTORE_GRANTED,
        RESTORE_DENIED,
        RESTORE_FAILED,
        SESSION_SUSPENDED,
        SESSION_RESUMED,
        LABEL_SET,
        KEY_ROTATED,
        KEY_FLOOR,
        KEY_RETIRED,
        HOLD_PLACED,
        HOLD_RELEASED,
        RETENTION_EXTENDED,
        SHRED_REQUESTED,
        SHRED_COMPLETED,
        SHRED_REFUSED,
        STORE_VERIFIED,
        EVIDENCE_EXPORTED,
        BACKUP_MADE,
        BACKUP_RESTORED,
        CUSTODY_DENIED,
        LOG_REANCHORED,
        BOOK_POSTED,
        EVIDENCE_SEARCHED,
        EVIDENCE_CHECKED,
        TRACE_READ,
    }
)
"""Every event this version writes; it reads others, so that a newer log can still be verified."""

LEAF_BYTES_MAX = 1024 * 1024
"""Longest leaf, in bytes."""

_FORMAT = b"evidence-archive/leaf/"
_VERSION = b"1"
_BATCH_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_EVENT = re.compile(r"[a-z]{1,32}\.[a-z_]{1,32}", re.ASCII)
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,18}")
_BROKEN = "An audit entry is not one this library wrote."


@dataclass(frozen=True, slots=True)
class Leaf:
    """One audit entry.

    Args:
        org: whose log.
        seq: place in the log, from 0.
        time_us: microseconds since 1970-01-01 UTC.
        event: such as ``restore.granted``; see ``EVENTS``.
        subject: who caused it.
        session_id: which session, or ``None``.
        batch_id: 32 hex digits, or ``None``.
        policy_digest: digest of the policy in force, or ``None``.
        details: JSON values without floats: ids, counts, statuses; never evidence.
        sealed_reason: the sealed reason of a restore, or ``None``.
    """

    org: str
    seq: int
    time_us: int
    event: str
    subject: str
    session_id: str | None
    batch_id: str | None
    policy_digest: str | None
    details: Mapping[str, Any]
    sealed_reason: bytes | None = field(default=None, repr=False)


def encode_leaf(
    *,
    org: str,
    seq: int,
    time_us: int,
    event: str,
    subject: str,
    session_id: str | None = None,
    batch_id: str | None = None,
    policy_digest: str | None = None,
    details: Mapping[str, Any] | None = None,
    sealed_reason: bytes | None = None,
) -> bytes:
    """The canonical bytes of an entry.

    Args:
        org, seq, time_us, event, subject, session_id, batch_id, policy_digest, details, sealed_reason: as in
            :class:`Leaf`; texts at most 1 KiB of UTF-8 each, the whole leaf at most 1 MiB.

    Raises:
        FormatError: a value is out of bounds or of the wrong type, or the event is unknown.
    """
    if event not in EVENTS:
        raise FormatError("An audit entry names one of the events this version knows.")
    entry = dict(details) if details is not None else {}
    try:
        return _encode(
            Leaf(org, seq, time_us, event, subject, session_id, batch_id, policy_digest, entry, sealed_reason)
        )
    except RecursionError as error:
        raise FormatError("Details of an audit entry are nested too deep.") from error


def decode_leaf(data: bytes) -> Leaf:
    """The entry in these bytes; strict: encoding it again must give the same bytes.

    Args:
        data: a stored leaf, at most 1 MiB.

    Raises:
        UnsupportedVersionError: it is a leaf of a newer version.
        AuditBrokenError: it is not a leaf.
    """
    try:
        fields = ce_read(data) if len(data) <= LEAF_BYTES_MAX else []
    except FormatError as error:
        raise AuditBrokenError(_BROKEN) from error
    name = fields[0] if fields else None
    if name is None or not name.startswith(_FORMAT):
        raise AuditBrokenError(_BROKEN)
    if name != _FORMAT + _VERSION:
        raise UnsupportedVersionError("An audit entry was written by a newer version; upgrade this library.")
    try:
        leaf = _parse(fields)
        if _encode(leaf) == data:
            return leaf
    except (FormatError, ValueError, RecursionError) as error:
        raise AuditBrokenError(_BROKEN) from error
    raise AuditBrokenError(_BROKEN)


def _parse(fields: list[bytes | None]) -> Leaf:
    _, org, seq, time_us, event, subject, session_id, batch_id, policy_digest, details, sealed_reason = fields
    return Leaf(
        _text(org) or "",
        _number(seq),
        _number(time_us),
        _text(event) or "",
        _text(subject) or "",
        _text(session_id),
        _text(batch_id),
        _text(policy_digest),
        json.loads(details or b""),
        sealed_reason,
    )


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "surrogatepass")


def _number(data: bytes | None) -> int:
    if not _NUMBER.fullmatch(data or b""):
        raise ValueError("number")
    return int(data or b"")


def _encode(leaf: Leaf) -> bytes:
    texts = (leaf.org, leaf.event, leaf.subject, leaf.session_id, leaf.batch_id, leaf.policy_digest)
    if not all(text is None or (type(text) is str and _encoded_bytes(text) <= 1024) for text in texts):
        raise FormatError("Texts of an audit entry have at most 1,024 bytes.")
    if not (
        type(leaf.seq) is int and type(leaf.time_us) is int and 0 <= leaf.seq < 2**63 and 0 <= leaf.time_us < 2**63
    ):
        raise FormatError("Sequence number and time of an audit entry are integers from 0.")
    if not _EVENT.fullmatch(leaf.event) or not (leaf.batch_id is None or _BATCH_ID.fullmatch(leaf.batch_id)):
        raise FormatError("An audit entry has an event such as 'batch.accepted' and a batch id of 32 hex digits.")
    if type(leaf.details) is not dict or not _is_plain(leaf.details):
        raise FormatError("Details of an audit entry are JSON values without floats.")
    data = ce(
        _FORMAT + _VERSION,
        leaf.org,
        leaf.seq,
        leaf.time_us,
        leaf.event,
        leaf.subject,
        leaf.session_id,
        leaf.batch_id,
        leaf.policy_digest,
        json.dumps(leaf.details, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode("ascii"),
        leaf.sealed_reason,
    )
    if len(data) > LEAF_BYTES_MAX:
        raise FormatError(f"An audit entry may have at most {LEAF_BYTES_MAX} bytes.")
    return data


def _encoded_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _is_plain(value: object) -> bool:
    if value is None or type(value) in (str, int, bool):
        return True
    if type(value) is dict:
        return all(type(key) is str and _is_plain(item) for key, item in value.items())
    return type(value) is list and all(map(_is_plain, value))
