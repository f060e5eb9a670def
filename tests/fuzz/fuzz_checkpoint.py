"""Signed notes and verifier keys: what opens was signed, and says exactly what was signed."""

import base64
from contextlib import suppress

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from evidence_archive.errors import AuditBrokenError, FormatError
from evidence_archive.proof.checkpoint import Signer, VerifierKey, open_checkpoint
from evidence_archive.proof.merkle import EMPTY_ROOT

NAME = "evidence-archive/00"
_SEED = bytes(range(32))
SIGNER = Signer(NAME, _SEED)
KEY = SIGNER.verifier
_NOTE = SIGNER.sign(70, EMPTY_ROOT)
_WITNESS = Signer("witness.example.com/w1", bytes(32)).sign(70, EMPTY_ROOT).split("\n")[-2]

SEEDS = (
    b"",
    _NOTE.encode(),
    (_NOTE + _WITNESS + "\n").encode(),
    _NOTE.replace("70", "070").encode(),
    f"{NAME}\n70\n{_NOTE.split(chr(10))[2]}\n".encode(),
    f"{NAME}\n9223372036854775808\n{_NOTE.split(chr(10))[2]}\n".encode(),
    f"{NAME}\n70\n{_NOTE.split(chr(10))[2]}\nextension\n".encode(),
    f"{NAME}\n70\nAAAA\n".encode(),
    KEY.text().encode(),
    KEY.text().replace("+", " +").encode(),
    b"\xff\xfe\n\n\x00",
)
NOTES = (_NOTE, _NOTE + _WITNESS + "\n")


def one(data: bytes) -> None:
    """As a note, as a text that the key signed, and as a key."""
    try:
        opened = open_checkpoint(data, KEY)
    except AuditBrokenError:
        pass
    else:
        assert data.startswith(opened.text().encode() + b"\n"), "a note says another thing than what was read"
        assert opened.text() == f"{NAME}\n70\n{_NOTE.split(chr(10))[2]}\n", "a head opened that nobody signed"
    text = data.decode("utf-8", "replace")
    _signed(text)
    with suppress(FormatError):
        assert VerifierKey.parse(text).text() == text.strip()


def _signed(text: str) -> None:
    signature = Ed25519PrivateKey.from_private_bytes(_SEED).sign(text.encode())
    line = base64.b64encode(KEY.key_id + signature).decode()
    try:
        opened = open_checkpoint(f"{text}\n\N{EM DASH} {NAME} {line}\n", KEY)
    except AuditBrokenError:
        return
    assert opened.text() == text, "what was signed is not what was read"
    assert opened.origin == NAME
