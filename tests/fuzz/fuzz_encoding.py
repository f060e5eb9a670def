"""The canonical encoding and audit entries: what decodes encodes to the same bytes, all else is an error of ours."""

from evidence_archive.errors import AuditBrokenError, FormatError, UnsupportedVersionError
from evidence_archive.model import ce, ce_read
from evidence_archive.proof.leaf import EVENTS, decode_leaf, encode_leaf

_NAME = b"evidence-archive/leaf/1"
_LEAF = encode_leaf(
    org="north-clinic",
    seq=7,
    time_us=1_700_000_000_000_000,
    event="restore.granted",
    subject="auditor",
    session_id="case",
    batch_id="0" * 32,
    policy_digest="d" * 64,
    details={"result": "r1", "part": None, "n": [1, True, {"a": "\u00e4"}]},
    sealed_reason=b"sealed",
)

SEEDS = (
    b"",
    ce(None, b"", "a", 1),
    ce("x" * 2_000, b"y" * 1_025),
    _LEAF,
    ce(_NAME),
    ce(b"evidence-archive/leaf/2", b"later"),
    b"\x01" + b"\x1f".join(field if field is not None else b"\x00" for field in ce_read(_LEAF)[1:]),
    b"\x01" + b"north-clinic\x1f0\x1f0\x1fkey.created\x1fhost\x1f\x00\x1f\x00\x1f\x00\x1f{}\x1f\x00",
    b"\x01" + b"a\x1f00\x1f-1\x1fx.y\x1f\x1f\x1f\x1f\x1f[" + b"[" * 2_000,
    b"\x01" + b'a\x1f0\x1f0\x1fkey.created\x1fb\x1f\x00\x1f\x00\x1f\x00\x1f{"a":1e999}\x1f\x00',
)


def one(data: bytes) -> None:
    """As an encoding, as an entry, and as the fields of an entry whose form is known."""
    _encoding(data)
    _entry(data)
    parts = [None if part == b"\x00" else part for part in data[1:].split(b"\x1f")]
    _entry(ce(_NAME, *parts))
    assert ce_read(ce(*parts)) == parts


def _encoding(data: bytes) -> None:
    try:
        fields = ce_read(data)
    except FormatError:
        return
    assert ce(*fields) == data


def _entry(data: bytes) -> None:
    try:
        leaf = decode_leaf(data)
    except (AuditBrokenError, UnsupportedVersionError):
        return
    if leaf.event in EVENTS:
        again = encode_leaf(
            org=leaf.org,
            seq=leaf.seq,
            time_us=leaf.time_us,
            event=leaf.event,
            subject=leaf.subject,
            session_id=leaf.session_id,
            batch_id=leaf.batch_id,
            policy_digest=leaf.policy_digest,
            details=leaf.details,
            sealed_reason=leaf.sealed_reason,
        )
        assert again == data
