"""Somebody changes sealed bytes: every bit, every cut, one byte more or less at every offset, swaps and splices.

Whatever is sealed is taken (envelopes of several sizes, read in memory and in pieces; every kind of wrapped key), and
none of its mutants opens. All of them end in the same error; only a header that says so is a newer version's, and
where the digest of the stored bytes is at hand, not even that.
"""

import io
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from conftest import Conversation, Desk
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from test_envelope import ELSEWHERE, KEYS, SLOT, cuts, extensions, flips, wycheproof

from evidence_archive import Principal
from evidence_archive.errors import SealBrokenError, UnsupportedVersionError
from evidence_archive.excerpt import parse_selector
from evidence_archive.keys import FileKeys
from evidence_archive.model import Encoded, ce
from evidence_archive.proof.leaf import decode_leaf
from evidence_archive.restoring import Restoring
from evidence_archive.sealing import keyring
from evidence_archive.sealing.envelope import open_original, open_pieces, seal_original
from evidence_archive.vault import aux_context, part_context

pytestmark = pytest.mark.no_cover  # 300,000 times the same lines, which other tests count

OWNER = Principal(org="north-clinic", subject="owner")
MUTANTS_MIN = 150_000
"""So many of the largest envelope alone."""

HEADER_BYTES, MESSAGE_HEAD_BYTES, CHUNK_BYTES = 40, 56, 16 * 1024 + 16
"""Of an envelope; of a message (salt and commitment); of a full chunk with its tag (docs/format.md)."""


# --- mutants ----------------------------------------------------------------------------------------------------


def insertions(data: bytes) -> Iterator[bytes]:
    """One byte more at every offset: zero, ones, or its neighbour once more."""
    for at in range(len(data) + 1):
        for byte in (b"\x00", b"\xff", data[max(at - 1, 0) : max(at, 1)]):
            yield data[:at] + byte + data[at:]


def deletions(data: bytes) -> Iterator[bytes]:
    """One byte less at every offset, or all up to there."""
    for at in range(len(data)):
        yield data[:at] + data[at + 1 :]
        yield data[at + 1 :]


def swaps(data: bytes) -> Iterator[bytes]:
    """Halves, neighbouring blocks of 16 bytes, and all pairs of chunks exchanged; chunks doubled and dropped."""
    half = len(data) // 2
    yield data[half:] + data[:half]
    yield data[::-1]
    for at in range(0, len(data) - 31, 16):
        yield data[:at] + data[at + 16 : at + 32] + data[at : at + 16] + data[at + 32 :]
    start = (HEADER_BYTES if data.startswith(b"EVA1") else 0) + MESSAGE_HEAD_BYTES
    chunks = [data[at : at + CHUNK_BYTES] for at in range(start, len(data), CHUNK_BYTES)]
    for one in range(len(chunks)):
        yield data[:start] + b"".join(chunks[:one] + chunks[one + 1 :])
        yield data[:start] + b"".join([*chunks[:one], chunks[one], *chunks[one:]])
        for other in range(one):
            order = list(chunks)
            order[one], order[other] = order[other], order[one]
            yield data[:start] + b"".join(order)


def splices(data: bytes, twin: bytes) -> Iterator[bytes]:
    """The beginning of one true message and the end of another, joined at every offset."""
    for at in range(1, min(len(data), len(twin))):
        yield data[:at] + twin[at:]


DAMAGES = (flips, cuts, extensions, insertions, deletions, swaps)


@dataclass(frozen=True)
class Sample:
    """Sealed bytes, others that were sealed with the same key for the same place, and the ways to open them.

    Args:
        data, twin: both open.
        ways: each returns what was sealed, or raises.
    """

    data: bytes = field(repr=False)
    twin: bytes = field(repr=False)
    ways: tuple[Callable[[bytes], Any], ...]

    def mutants(self) -> Iterator[tuple[str, bytes]]:
        """All of them, under the name of their kind of damage; what happens to be true is left out."""
        for kind, made in ((damage.__name__, damage(self.data)) for damage in DAMAGES):
            yield from ((kind, mutant) for mutant in made if mutant not in (self.data, self.twin))
        for mutant in splices(self.data, self.twin):
            if mutant not in (self.data, self.twin):
                yield "splices", mutant


def outcome(opens: Callable[[bytes], Any], mutant: bytes) -> str:
    """The error that a mutant ends in, or ``accepted``."""
    try:
        opens(mutant)
    except Exception as error:
        return type(error).__name__
    return "accepted"


def told(sample: Sample, due: Callable[[bytes], str] = lambda mutant: SealBrokenError.__name__) -> Counter[str]:
    """How many mutants of each kind ended in what is due, and how many in what instead."""
    counted: Counter[str] = Counter()
    for kind, mutant in sample.mutants():
        expected = due(mutant)
        wrong = {outcome(opens, mutant) for opens in sample.ways} - {expected}
        counted[f"{kind}: {', '.join(sorted(wrong))} instead of {expected}" if wrong else kind] += 1
    return counted


def opened_alike(sample: Sample) -> bool:
    """Whether both messages open to the same, in every way; so what refuses a mutant does not refuse everything."""
    return all(opens(sample.data) == opens(sample.twin) for opens in sample.ways)


def assert_all_refused(counted: Counter[str], record: Callable[[str, object], None], mutants_min: int) -> None:
    record("mutants", counted.total())
    assert set(counted) == {*(damage.__name__ for damage in DAMAGES), "splices"}, counted
    assert counted.total() >= mutants_min


# --- envelopes --------------------------------------------------------------------------------------------------


def in_pieces(mutant: bytes, data: bytes, **named: Any) -> Any:
    """What opening in pieces gives; what it handed out before it refused is authentic, in its place."""
    taken: list[bytes] = []
    try:
        return open_pieces(iter([mutant]), taken.append, **named)
    finally:
        assert data.startswith(b"".join(taken)), "bytes that were never sealed were handed out"


def envelope_sample(data: bytes, *, compress: bool = False) -> Sample:
    """The envelope of some bytes, opened in memory and in pieces, which have to agree."""
    sealed, twin = (
        seal_original(
            slot=SLOT, encoded=Encoded(data, "text"), acl=b"{}", trust="tool-output", compress=compress, **KEYS
        )
        for _ in range(2)
    )
    named: dict[str, Any] = {"slot": SLOT, "sealed_size": sealed.sealed_size, **KEYS}

    return Sample(
        sealed.envelope,
        twin.envelope,
        (lambda envelope: open_original(envelope, **named), lambda envelope: in_pieces(envelope, data, **named)),
    )


def words(size_bytes: int) -> bytes:
    """Made-up text, half of which compresses away."""
    return secrets.token_hex(size_bytes)[:size_bytes].encode()


ENVELOPES: dict[str, tuple[Callable[[], Sample], int]] = {
    "0 B": (lambda: envelope_sample(b""), 3_000),
    "1 B": (lambda: envelope_sample(b"x"), 3_000),
    "1 KiB": (lambda: envelope_sample(words(1_024)), 15_000),
    "1 KiB, compressed": (lambda: envelope_sample(words(1_024), compress=True), 10_000),
    "16 KiB + 100 B": (lambda: envelope_sample(words(16_384 + 100)), MUTANTS_MIN),
}
"""By name: the envelope, and how many mutants of it there are at least."""


def due_of_an_envelope(mutant: bytes) -> str:
    """The error that docs/format.md names: our magic with another suite, flag or reserved byte is a newer version."""
    newer = len(mutant) >= HEADER_BYTES and mutant[:4] == b"EVA1" and mutant[4:8] != b"\x01\x00\x00\x00"
    return (UnsupportedVersionError if newer else SealBrokenError).__name__


@pytest.mark.parametrize("name", ENVELOPES)
def test_no_mutant_of_an_envelope_opens_in_memory_or_in_pieces(name, record_property):
    made, mutants_min = ENVELOPES[name]
    sample = made()
    assert opened_alike(sample)
    assert_all_refused(told(sample, due_of_an_envelope), record_property, mutants_min)


def test_no_chunk_of_an_envelope_can_be_moved_doubled_or_dropped(record_property):
    sample = envelope_sample(words(5 * 16_384 + 100))
    mutants = [mutant for mutant in swaps(sample.data) if mutant != sample.data]
    assert len({len(mutant) for mutant in mutants}) > 2
    record_property("mutants", len(mutants))
    assert {outcome(opens, mutant) for mutant in mutants for opens in sample.ways} == {SealBrokenError.__name__}


def test_an_envelope_opens_in_no_place_that_differs_in_one_field():
    data = words(1_024)
    sealed = seal_original(slot=SLOT, encoded=Encoded(data, "text"), acl=b"{}", trust="tool-output", **KEYS)
    here = {"slot": SLOT, "sealed_size": sealed.sealed_size, **KEYS}
    places = [{**here, "slot": replace(SLOT, **{name: value})} for name, value in ELSEWHERE.items()]
    places += [{**here, "sealed_size": sealed.sealed_size + more} for more in (-1, 1, 16, 1 << 32)]
    for name, value in KEYS.items():
        places += [{**here, name: other} for other in (bytes(len(value)), value[1:], value[:-1] + b"\xff")]
    assert len(places) >= 20
    for opens in (open_original, partial(in_pieces, data=data)):
        opens(sealed.envelope, **here)
        ended = {outcome(partial(opens, **place), sealed.envelope) for place in places}
        assert ended == {SealBrokenError.__name__}


# --- wrapped keys -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrap:
    """One kind of wrapped key or word: what it is wrapped under, and what its context is made of."""

    key: bytes = field(repr=False)
    prefix: bytes
    fields: tuple[Any, ...]
    secret: bytes = field(repr=False)

    def context(self, **changed: Any) -> bytes:
        """The context, with some of its fields changed, by their place (``f0``)."""
        return self.prefix + ce(*(changed.get(f"f{at}", value) for at, value in enumerate(self.fields)))


WRAPS = ("aux", "scope", "original", "part", "reason")


def wraps_of(desk: Desk) -> dict[str, tuple[Wrap, Sample]]:
    """Every kind of wrap as the library made it in a new store, and the same once more as its twin."""
    with desk.open() as archive:
        session, talk = archive.session("case", OWNER), Conversation()
        talk.tool("made-up finding\n" * 100)
        talk.say()
        session.view(talk.messages)
        session.archive([("r1", "a note")])
        vault, keys = archive._vault(OWNER), session._records.keys
        row, provider = session._records.rows[1], FileKeys(desk.keys)
        org = archive._around.store.org(OWNER.org)
        with vault.store.reading(1_000) as reader:
            scope = reader.scope(keys.scope_id)
        assert org is not None
        assert scope is not None
        selector = parse_selector(pattern="a made-up pattern")
        here, level = (vault.deployment, OWNER.org), b"evidence-archive/v1/wrap\x00"
        kek, version = provider._kek(OWNER.org, 1), 1
        close: dict[str, Any] = {name: getattr(row, name) for name in ("scope_id", "original_id", "dek_id")}
        close |= {"deployment": vault.deployment, "org": OWNER.org, "result_id": "r1"}
        dek, note = vault.open_closed(keys, row)
        reason = decode_leaf(vault.leaf("restore.granted", "owner", reason="a made-up reason")(7)).sealed_reason
        assert row.closed is not None
        assert reason is not None
        made: dict[str, tuple[Wrap, bytes, Callable[[bytes], Any]]] = {
            "aux": (
                Wrap(kek, level, ("aux", *here, None, None, 1, 1), b""),
                org.aux_wrapped,
                lambda data: provider.unwrap(OWNER.org, version, data, aux_context(*here, version)),
            ),
            "scope": (
                Wrap(kek, level, ("scope", *here, keys.scope_id, None, 1, 1), keys.key),
                scope.wrapped,
                lambda data: provider.unwrap(
                    OWNER.org, version, data, vault._scope_context(keys.scope_id, 1, version)
                ),
            ),
            "original": (
                Wrap(
                    keys.key,
                    level,
                    ("original", *here, keys.scope_id, row.original_id, row.dek_id, "r1"),
                    ce(dek, note.encode()),
                ),
                row.closed,
                lambda data: keyring.open_closed(keys.key, data, **close),
            ),
            "part": (
                Wrap(
                    keys.key,
                    b"evidence-archive/v1/part\x00",
                    (*here, keys.scope_id, "r9"),
                    str(selector.canonical()).encode(),
                ),
                Restoring(vault).close_part(keys, 9, selector) or b"",
                lambda data: keyring.unwrap(keys.key, data, part_context(vault, keys.scope_id, 9)),
            ),
            "reason": (
                Wrap(vault._keys.audit, b"evidence-archive/v1/reason\x00", (*here, 7), b"a made-up reason"),
                reason,
                lambda data: keyring.unwrap(vault._keys.audit, data, vault._reason_context(7)),
            ),
        }
    found = {}
    for kind, (wrap, data, opens) in made.items():
        opened = keyring.unwrap(wrap.key, data, wrap.context())  # the context written here is the library's
        assert kind == "aux" or opened == wrap.secret
        found[kind] = wrap, Sample(data, keyring.wrap(wrap.key, opened, wrap.context()), (opens,))
    return found


@pytest.mark.parametrize("kind", WRAPS)
def test_no_mutant_of_a_wrapped_key_note_part_or_reason_opens(kind, sqlite_desk, record_property):
    _, sample = wraps_of(sqlite_desk)[kind]
    assert opened_alike(sample)
    assert_all_refused(told(sample), record_property, 1_200)


@pytest.mark.parametrize("kind", WRAPS)
def test_a_wrapped_key_note_part_or_reason_opens_in_no_place_that_differs_in_one_field(kind, sqlite_desk):
    wrap, sample = wraps_of(sqlite_desk)[kind]
    contexts = [replace(wrap, prefix=b"evidence-archive/v1/other\x00").context(), b"", wrap.context() + b"\x00"]
    for at, value in enumerate(wrap.fields):
        others = {
            str: lambda value: (value + "x", value[:-1], value.upper(), None),
            bytes: lambda value: (bytes(len(value)), value[::-1], None),
            int: lambda value: (value + 1, -value, None),
            type(None): lambda value: (b"", bytes(16), 0),
        }[type(value)](value)
        contexts += [wrap.context(**{f"f{at}": other}) for other in others]
    assert len(set(contexts)) == len(contexts) >= 9
    for context in contexts:
        ended = outcome(lambda data, context=context: keyring.unwrap(wrap.key, data, context), sample.data)
        assert ended == SealBrokenError.__name__


def test_no_kind_of_wrap_opens_in_the_place_of_another(sqlite_desk):
    kinds = wraps_of(sqlite_desk)
    assert tuple(kinds) == WRAPS
    for kind, (_, sample) in kinds.items():
        for other, (_, given) in kinds.items():
            ended = outcome(*sample.ways, given.data)
            assert ended == ("accepted" if kind == other else SealBrokenError.__name__), (kind, other)


def test_what_wycheproof_calls_invalid_ends_in_the_one_error_of_a_wrap():
    ended = {"valid": Counter[str](), "invalid": Counter[str]()}
    for test, key, context, message in wycheproof():
        if len(message) <= keyring.WRAPPED_BYTES_MAX and len(key) == keyring.KEY_BYTES:
            ended[test["result"]][
                outcome(lambda data, key=key, context=context: keyring.unwrap(key, data, context), message)
            ] += 1
    assert set(ended["valid"]) == {"accepted"}
    assert set(ended["invalid"]) == {SealBrokenError.__name__}


# --- where the digest of the stored bytes is at hand ------------------------------------------------------------


@pytest.mark.parametrize("where", ["in the database", "in an object"])
def test_a_changed_header_never_passes_for_a_newer_version_where_it_is_restored(where, sqlite_desk):
    content = "a made-up finding\n" * 100
    with sqlite_desk.open(inline_size_max=1 << 20 if where == "in the database" else 0) as archive:
        session, talk = archive.session("case", OWNER), Conversation()
        talk.tool(content)
        talk.say()
        session.view(talk.messages)
        session.archive([("r1", "a note")])
        whole, put = stored_envelope(sqlite_desk)
        ended = Counter[str]()
        file = io.BytesIO()
        for bit in range(8 * 8):
            mutant = bytearray(whole)
            mutant[bit // 8] ^= 1 << bit % 8
            put(bytes(mutant))
            ended[outcome(lambda _: archive.restore("case", "r1", principal=OWNER), b"")] += 1
            ended[outcome(lambda _: archive.restore_to(file, "case", "r1", principal=OWNER), b"")] += 1
        assert ended == {SealBrokenError.__name__: 128}
        assert file.getvalue() == b"", "bytes of a changed original were written"
        put(whole)
        assert archive.restore("case", "r1", principal=OWNER).content == content


def stored_envelope(desk: Desk) -> tuple[bytes, Callable[[bytes], None]]:
    """The one envelope of a store, and what puts other bytes in its place."""
    rows = desk.execute("SELECT envelope FROM originals")
    if rows:
        return rows[0][0], lambda data: desk.execute("UPDATE originals SET envelope = ?", data) and None
    (path,) = (desk.folder / "evidence.db.objects").glob("*/*.00000")

    def put(data: bytes) -> None:
        path.write_bytes(data)

    return path.read_bytes(), put


# --- controls ---------------------------------------------------------------------------------------------------


def naive_sample(opens: Callable[[bytes], Any], key: bytes) -> Sample:
    """A message of plain AES-CTR behind a true header, opened in some naive way."""
    header = b"EVA1\x01\x00\x00\x00" + bytes(32)

    def sealed() -> bytes:
        nonce = os.urandom(16)
        cipher = Cipher(AES(key), CTR(nonce)).encryptor()
        return header + nonce + cipher.update(words(200)) + cipher.finalize()

    return Sample(sealed(), sealed(), (opens,))


def unauthenticated(data: bytes, key: bytes) -> bytes:
    """Opens whatever has a true magic and a nonce."""
    if not data.startswith(b"EVA1") or len(data) < HEADER_BYTES + 16:
        raise SealBrokenError("no envelope")
    cipher = Cipher(AES(key), CTR(data[HEADER_BYTES : HEADER_BYTES + 16])).decryptor()
    return cipher.update(data[HEADER_BYTES + 16 :]) + cipher.finalize()


def accepted(counted: Counter[str]) -> set[str]:
    """The kinds of damage of which a mutant opened."""
    return {kind.split(":")[0] for kind in counted if ": accepted" in kind}


def test_must_fail_control_a_cipher_without_authentication_is_caught_by_every_kind_of_damage():
    key = os.urandom(32)
    counted = told(naive_sample(lambda data: unauthenticated(data, key), key))
    assert accepted(counted) == {*(damage.__name__ for damage in DAMAGES), "splices"}


def test_must_fail_control_a_check_that_compares_only_the_length_is_caught():
    key = os.urandom(32)

    def opens(data: bytes) -> bytes:
        if len(data) != HEADER_BYTES + 16 + 200:
            raise SealBrokenError("another length")
        return unauthenticated(data, key)

    assert accepted(told(naive_sample(opens, key))) == {"flips", "swaps", "splices"}


def test_must_fail_control_an_error_of_the_cipher_itself_is_caught():
    def opens(data: bytes) -> bytes:
        raise (SealBrokenError if len(data) > HEADER_BYTES else ValueError)("broken")

    counted = told(naive_sample(opens, os.urandom(32)))
    assert any("ValueError instead of SealBrokenError" in kind for kind in counted)


def test_must_fail_control_a_reader_that_hands_out_what_it_has_not_checked_is_caught(monkeypatch):
    def careless(pieces: Iterable[bytes], take: Callable[[bytes], object], **named: Any) -> None:
        data = b"".join(pieces)
        take(data[HEADER_BYTES:])
        raise SealBrokenError("broken, but too late")

    monkeypatch.setitem(globals(), "open_pieces", careless)
    with pytest.raises(AssertionError, match="never sealed"):
        in_pieces(words(500), words(100))
