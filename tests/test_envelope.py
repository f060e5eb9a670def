"""The envelope EVA1: what opens, what must never open, and what a newer version looks like."""

import hashlib
import json
import struct
import threading
import zlib
from dataclasses import replace
from pathlib import Path

import independent_decoder as independent
import pytest
import zstandard
from cryptography.cobblestone import Cobblestone256Decryptor, Cobblestone256Encryptor
from cryptography.exceptions import InvalidTag
from hypothesis import given
from hypothesis import strategies as st

from evidence_archive.errors import FormatError, SealBrokenError, UnsupportedVersionError
from evidence_archive.model import PIECE_BYTES, Encoded, LongText, canonical_id, decode_exact, encode_exact
from evidence_archive.sealing import envelope as eva
from evidence_archive.sealing.envelope import (
    Slot,
    envelope_bytes,
    open_original,
    open_pieces,
    seal_original,
    seal_pieces,
)

HERE = Path(__file__).parent
WYCHEPROOF = HERE.parent.parent / "shared" / "data" / "vectors" / "wycheproof-cobblestone-256.json"
GOLDEN = json.loads((HERE / "vectors" / "eva1-golden.json").read_text("utf-8"))["envelopes"]

DEK, ORIGINAL_ID, DEK_ID = bytes(range(32)), b"o" * 16, b"d" * 16
KEYS = {"dek": DEK, "original_id": ORIGINAL_ID, "dek_id": DEK_ID}
SLOT = Slot(
    deployment=b"p" * 16,
    org="north-clinic",
    session_id="case-4711",
    result_id="r7",
    tool_call_id=b"call_1",
    tool_name="logs.search",
    kind="log",
    media_type="text/plain",
    observed_at_us=1_796_000_000_000_000,
)
ELSEWHERE = {
    "deployment": b"q" * 16,
    "org": "south-clinic",
    "session_id": "case-4712",
    "result_id": "r8",
    "tool_call_id": b"call_2",
    "tool_name": "logs.search2",
    "kind": None,
    "media_type": "application/json",
    "observed_at_us": 1_796_000_000_000_001,
}
CIPHER_FAILURES = (SealBrokenError, UnsupportedVersionError)


def seal(content="a made-up result", *, slot=SLOT, compress=True, **other):
    return seal_original(
        slot=slot, encoded=encode_exact(content), acl=b"{}", trust="tool", compress=compress, **{**KEYS, **other}
    )


def pieces_of(data, sizes=(1, 38, 7, 16_400, 5_000, 90_000)):
    at, turn = 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        yield bytes(data[at : at + size])
        at, turn = at + size, turn + 1


def opened_in_pieces(envelope, **named):
    """What opening in pieces gives; or what it raises, with nothing wrong in what it handed out before."""
    taken = []
    try:
        opened = open_pieces(pieces_of(envelope), taken.append, **named)
    except CIPHER_FAILURES as error:
        return type(error)
    assert opened.data == b""
    assert all(len(piece) <= PIECE_BYTES for piece in taken)
    return replace(opened, data=b"".join(taken))


def open_both(envelope, **named):
    """What opening in memory gives, once opening in pieces gave just the same."""
    piecewise = opened_in_pieces(envelope, **named) if isinstance(envelope, bytes | memoryview) else SealBrokenError
    try:
        opened = open_original(envelope, **named)
    except (SealBrokenError, UnsupportedVersionError) as error:
        assert piecewise is type(error), "the two readers disagree"  # noqa: PT017 - it goes on to the caller
        assert str(error).endswith("."), "an error says something"  # noqa: PT017
        raise
    assert piecewise == opened
    return opened


def reopen(sealed, *, slot=SLOT, **other):
    return open_both(sealed.envelope, slot=slot, **{**KEYS, "sealed_size": sealed.sealed_size, **other})


def as_list(slot):
    return [getattr(slot, name) for name in Slot.__dataclass_fields__]


def forge(meta, stored, *, context=None, dek=DEK):
    """An envelope with any metadata and content, made without the library: what a holder of the key could write."""
    packed = independent.pack(meta)
    plaintext = struct.pack(">I", len(packed)) + packed + stored
    header = b"EVA1\x01\x00\x00\x00" + ORIGINAL_ID + DEK_ID
    bound = independent.envelope_context(header, as_list(SLOT), len(plaintext)) if context is None else context
    return header + independent.encrypt(dek, bound, plaintext, b"s" * 24), len(plaintext)


def open_forged(meta, stored):
    envelope, sealed_size = forge(meta, stored)
    return open_both(envelope, slot=SLOT, sealed_size=sealed_size, **KEYS)


def meta(stored, data, **changes):
    fields = {
        "version": b"1",
        "sha256": hashlib.sha256(data).digest(),
        "size": b"%d" % len(data),
        "encoding": b"text",
        "compression": b"none",
        "stored_size": b"%d" % len(stored),
        "acl": b"{}",
        "trust": b"tool",
    }
    return list({**fields, **changes}.values())


# --- what opens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(
    "content",
    [
        "",
        "x",
        "\ud800 lone \udfff \x00 \r\n \u202e \U0001f600",
        "a line that repeats\r\n" * 500,
        "".join(hashlib.sha256(bytes([n])).hexdigest() for n in range(255)),
        "0123456789abcdef" * 1024,
        [{"type": "text", "text": "\ud83d"}, {"type": "image", "n": [1, True, None, 1.5, -0.0]}],
        [],
    ],
    ids=["empty", "one", "hostile", "repeating", "hex", "full-chunk", "parts", "no-parts"],
)
def test_what_was_sealed_opens_equal_in_type_and_value(content, compress):
    sealed = seal(content, compress=compress)
    opened = reopen(sealed)
    assert decode_exact(opened.data, opened.encoding) == content
    assert (opened.acl, opened.trust, opened.sha256) == (b"{}", "tool", sealed.sha256)
    assert sealed.sha256 == hashlib.sha256(opened.data).digest()
    assert sealed.envelope_sha256 == hashlib.sha256(sealed.envelope).digest()


@given(data=st.binary(max_size=40_000), acl=st.binary(max_size=200), trust=st.text(max_size=200), parts=st.booleans())
def test_any_bytes_come_back_exactly_and_the_independent_decoder_agrees(data, acl, trust, parts):
    encoded = Encoded(data, "parts" if parts else "text")
    sealed = seal_original(slot=SLOT, encoded=encoded, acl=acl, trust=trust, **KEYS)
    opened = reopen(sealed)
    assert (opened.data, opened.encoding, opened.acl, opened.trust) == (data, encoded.encoding, acl, trust)
    other = independent.open_envelope(sealed.envelope, as_list(SLOT), DEK, sealed.sealed_size)
    assert (other["data"], other["acl"]) == (data, acl)
    assert len(sealed.envelope) == envelope_bytes(sealed.sealed_size)


def test_five_megabytes_come_back_exactly():
    text = "a long made-up log \ud800 line\r\n" * 180_000
    assert reopen(seal(text)).data == text.encode("utf-8", "surrogatepass")


def test_an_envelope_opens_from_a_memoryview():
    sealed = seal()
    opened = open_both(memoryview(sealed.envelope), slot=SLOT, sealed_size=sealed.sealed_size, **KEYS)
    assert opened.data == b"a made-up result"


def test_the_same_original_sealed_twice_gives_different_envelopes():
    assert seal().envelope != seal().envelope


def test_compression_starts_at_1_kib_and_only_where_it_is_smaller():
    def compression(content, **other):
        sealed = seal(content, **other)
        return independent.open_envelope(sealed.envelope, as_list(SLOT), DEK, sealed.sealed_size)["compression"]

    assert compression("a" * 1023) == b"none"
    assert compression("a" * 1024) == b"zstd"
    assert compression("a" * 1024, compress=False) == b"none"
    noise = "".join(chr(0x4E00 + int(hashlib.sha256(b"%d" % n).hexdigest()[:4], 16) % 20_000) for n in range(40_000))
    assert compression(noise) == b"zstd"
    random_bytes = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(64))
    sealed = seal_original(slot=SLOT, encoded=Encoded(random_bytes, "text"), acl=b"", trust="", **KEYS)
    assert (
        independent.open_envelope(sealed.envelope, as_list(SLOT), DEK, sealed.sealed_size)["compression"] == b"none"
    )


def test_facts_and_trust_label_may_have_their_full_length_and_no_more():
    encoded = encode_exact("a made-up result")
    for acl, trust in ((bytes(eva.FACTS_BYTES_MAX), "t" * eva.TRUST_BYTES_MAX), (b"", "\ud800")):
        sealed = seal_original(slot=SLOT, encoded=encoded, acl=acl, trust=trust, **KEYS)
        opened = independent.open_envelope(sealed.envelope, as_list(SLOT), DEK, sealed.sealed_size)
        assert opened["data"] == b"a made-up result"
        envelope, sealed_size = sealed_in_pieces(encoded, acl=acl, trust=trust)
        assert open_both(envelope, slot=SLOT, sealed_size=sealed_size, **KEYS)
    for acl, trust in ((bytes(eva.FACTS_BYTES_MAX + 1), ""), (b"", "t" * (eva.TRUST_BYTES_MAX + 1))):
        with pytest.raises(FormatError):
            seal_original(slot=SLOT, encoded=encoded, acl=acl, trust=trust, **KEYS)
        with pytest.raises(FormatError):
            sealed_in_pieces(encoded, acl=acl, trust=trust)


def test_both_sealers_compress_from_1_kib_on_unless_they_are_told_not_to():
    def in_memory(encoded, **named):
        return seal_original(slot=SLOT, encoded=encoded, acl=b"", trust="", **named, **KEYS).sealed_size

    def in_pieces(encoded, **named):
        return seal_pieces(slot=SLOT, encoded=encoded, acl=b"", trust="", **named, **KEYS)[0]

    for sealed_size in (in_memory, in_pieces):
        sizes = [sealed_size(encode_exact("a" * size)) for size in (1_022, 1_023, 1_024)]
        assert sizes[1] == sizes[0] + 1
        assert sizes[2] < 500
        plain = [sealed_size(encode_exact("a" * size), compress=False) for size in (1_023, 1_024)]
        assert plain == [sizes[1], sizes[1] + 1]


def test_threads_seal_at_once_each_with_its_own_compressor():
    failures = []

    def work(number):
        try:
            for turn in range(20):
                text = f"thread {number} turn {turn} " * 200
                assert reopen(seal(text)).data == text.encode()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_neither_evidence_nor_its_digest_is_in_a_repr():
    sealed = seal("evidence words")
    shown = repr(sealed) + repr(reopen(sealed))
    assert "evidence words" not in shown
    assert repr(sealed.sha256) not in shown


# --- frozen vectors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", GOLDEN, ids=[vector["name"] for vector in GOLDEN])
def test_a_golden_envelope_opens_for_ever(vector):
    envelope = bytes.fromhex(vector["envelope"])
    place = {**vector["slot"], "deployment": bytes.fromhex(vector["slot"]["deployment"])}
    slot = Slot(**{**place, "tool_call_id": canonical_id(place["tool_call_id"])})
    dek = bytes.fromhex(vector["test_dek"])
    ids = {"original_id": bytes.fromhex(vector["original_id"]), "dek_id": bytes.fromhex(vector["dek_id"])}

    opened = open_both(envelope, slot=slot, dek=dek, sealed_size=vector["sealed_size"], **ids)
    assert decode_exact(opened.data, opened.encoding) == vector["content"]
    assert opened.sha256.hex() == vector["sha256"]
    assert (opened.encoding, opened.acl.hex(), opened.trust) == (vector["encoding"], vector["acl"], vector["trust"])
    assert hashlib.sha256(envelope).hexdigest() == vector["envelope_sha256"]

    fields = [place[name] for name in Slot.__dataclass_fields__]
    other = independent.open_envelope(envelope, fields, dek, vector["sealed_size"])
    assert other["data"] == opened.data
    assert (other["original_id"], other["dek_id"]) == (ids["original_id"], ids["dek_id"])

    again = seal_original(
        slot=slot,
        encoded=encode_exact(vector["content"]),
        dek=dek,
        acl=opened.acl,
        trust=opened.trust,
        compress=other["compression"] == b"zstd",
        **ids,
    )
    assert again.sha256.hex() == vector["sha256"]
    assert again.envelope[:40] == envelope[:40]


def test_the_golden_envelopes_cover_every_encoding_and_compression():
    assert {"text", "parts", "compressed", "uncompressed-by-choice", "empty", "surrogates", "two-chunks"} <= {
        vector["name"] for vector in GOLDEN
    }


def wycheproof():
    if not WYCHEPROOF.is_file():
        pytest.skip(f"NOT CHECKED against Wycheproof: {WYCHEPROOF.name} is not beside this project")
    groups = json.loads(WYCHEPROOF.read_text("utf-8"))["testGroups"]
    tests = [test for group in groups for test in group["tests"]]
    assert len(tests) == 35
    for test in tests:
        yield (
            test,
            *(bytes.fromhex(test[name]) for name in ("key", "ctx")),
            zlib.decompress(bytes.fromhex(test["ct"])),
        )


def test_the_cipher_agrees_with_wycheproof():
    for test, key, context, message in wycheproof():
        try:
            cipher = Cobblestone256Decryptor(key, context)
            plaintext = cipher.update(message) + cipher.finalize()
        except (InvalidTag, ValueError):
            assert test["result"] == "invalid", test["comment"]
        else:
            assert test["result"] == "valid", test["comment"]
            assert hashlib.sha512(plaintext).hexdigest() == test["msgSha512"]


def test_the_independent_decoder_agrees_with_wycheproof():
    for test, key, context, message in wycheproof():
        try:
            plaintext = independent.decrypt(key, context, message)
        except independent.NotWhatWasSealed:
            assert test["result"] == "invalid", test["comment"]
        else:
            assert test["result"] == "valid", test["comment"]
            assert hashlib.sha512(plaintext).hexdigest() == test["msgSha512"]
            aead_key, nonce, _ = independent.derive_message_keys(key, message[:24], context)
            assert (aead_key.hex(), nonce.hex()) == (test["aeadKey"], test["baseNonce"])


@pytest.mark.parametrize("size", [0, 1, 16383, 16384, 16385, 32768, 50_000])
def test_the_independent_decoder_agrees_with_the_cipher_at_every_chunk_boundary(size):
    plaintext = bytes(n % 251 for n in range(size))
    cipher = Cobblestone256Encryptor(DEK, b"context")
    message = cipher.update(plaintext) + cipher.finalize()
    assert independent.decrypt(DEK, b"context", message) == plaintext
    assert independent.encrypt(DEK, b"context", plaintext, message[:24]) == message


# --- attacks ----------------------------------------------------------------------------------------------------


def fields_that_may_be_swapped(seal_it, open_it):
    """Names of the context's fields that an attacker can change without being noticed."""
    sealed = seal_it()
    swapped = set()
    for name, value in ELSEWHERE.items():
        try:
            open_it(sealed, replace(SLOT, **{name: value}))
            swapped.add(name)
        except (SealBrokenError, InvalidTag):
            pass
    return swapped


def test_an_envelope_of_another_org_session_result_or_tool_does_not_open():
    assert set(ELSEWHERE) == set(Slot.__dataclass_fields__)
    assert fields_that_may_be_swapped(seal, lambda sealed, slot: reopen(sealed, slot=slot)) == set()


def test_must_fail_control_a_sealer_without_context_lets_every_swap_open():
    def naive_seal():
        cipher = Cobblestone256Encryptor(DEK, b"")
        return cipher.update(b"a made-up result") + cipher.finalize()

    def naive_open(message, slot):
        cipher = Cobblestone256Decryptor(DEK, b"")
        return cipher.update(message) + cipher.finalize()

    assert fields_that_may_be_swapped(naive_seal, naive_open) == set(ELSEWHERE)


def test_fields_that_run_into_each_other_are_told_apart():
    sealed = seal(slot=replace(SLOT, org="ab", session_id="c"))
    with pytest.raises(SealBrokenError):
        reopen(sealed, slot=replace(SLOT, org="a", session_id="bc"))


def test_an_absent_kind_is_not_an_empty_kind():
    sealed = seal(slot=replace(SLOT, kind=None))
    with pytest.raises(SealBrokenError):
        reopen(sealed, slot=replace(SLOT, kind=""))


@pytest.mark.parametrize(
    "row",
    [
        {"dek": bytes(32)},
        {"dek": b"short"},
        {"dek": b""},
        {"original_id": b"x" * 16},
        {"dek_id": b"x" * 16},
        {"original_id": ORIGINAL_ID[:15], "dek_id": b"o" + DEK_ID},
        {"original_id": DEK_ID, "dek_id": ORIGINAL_ID},
    ],
    ids=["swapped-dek", "short-dek", "no-dek", "original-id", "dek-id", "shifted-ids", "exchanged-ids"],
)
def test_a_swapped_key_or_id_does_not_open(row):
    with pytest.raises(SealBrokenError):
        reopen(seal(), **row)


@pytest.mark.parametrize("size", [-1, 0, 3, 10**30])
def test_a_wrong_sealed_size_does_not_open(size):
    with pytest.raises(SealBrokenError):
        reopen(seal(), sealed_size=size)
    sealed = seal()
    for near in (sealed.sealed_size - 1, sealed.sealed_size + 1):
        with pytest.raises(SealBrokenError):
            reopen(sealed, sealed_size=near)


def survivors(changed, open_it):
    """How many of the changed byte strings open."""
    count = 0
    for data in changed:
        try:
            open_it(data)
            count += 1
        except CIPHER_FAILURES:
            pass
    return count


def flips(data):
    for at in range(len(data)):
        for bit in range(8):
            yield data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def cuts(data):
    return (data[:size] for size in range(len(data)))


def extensions(data):
    return (data + tail for tail in (b"\x00", b"\xff" * 16, data[-16:], data[40:], data))


@pytest.mark.parametrize("damage", [flips, cuts, extensions])
def test_no_bit_flip_truncation_or_extension_of_an_envelope_opens(damage):
    sealed = seal("small")
    row = {"slot": SLOT, "sealed_size": sealed.sealed_size, **KEYS}
    assert survivors(damage(sealed.envelope), lambda data: open_both(data, **row)) == 0


@pytest.mark.parametrize("damage", [flips, cuts, extensions])
def test_must_fail_control_without_a_cipher_the_same_damage_opens(damage):
    def naive_open(data):
        if not data.startswith(b"EVA1"):
            raise SealBrokenError("no envelope")
        return data[40:]

    assert survivors(damage(seal("small").envelope), naive_open) > 0


def test_an_envelope_of_another_length_never_reaches_the_cipher(monkeypatch):
    sealed = seal("small")

    def untouched(key, context):
        raise AssertionError("the cipher was asked")

    monkeypatch.setattr(eva, "Cobblestone256Decryptor", untouched)
    with pytest.raises(AssertionError):
        reopen(sealed)
    for data in (sealed.envelope + b"x", sealed.envelope[:-1], sealed.envelope + bytes(1_000_000)):
        with pytest.raises(SealBrokenError):
            open_original(data, slot=SLOT, sealed_size=sealed.sealed_size, **KEYS)


@pytest.mark.parametrize("row", [None, 7, "EVA1 text in a column of bytes"])
def test_what_is_not_bytes_does_not_open(row):
    with pytest.raises(SealBrokenError):
        open_both(row, slot=SLOT, sealed_size=7, **KEYS)


@pytest.mark.parametrize(
    "row", [b"", b"plaintext", b"a made-up plaintext row " * 20, b'[{"type":"text"}]', bytes(300)]
)
def test_a_plaintext_row_instead_of_an_envelope_does_not_open(row):
    with pytest.raises(SealBrokenError):
        open_both(row, slot=SLOT, sealed_size=max(len(row) - 112, 0), **KEYS)


def test_a_plaintext_row_with_a_true_header_does_not_open():
    sealed = seal("small")
    row = sealed.envelope[:40] + b"p" * (len(sealed.envelope) - 40)
    with pytest.raises(SealBrokenError):
        open_both(row, slot=SLOT, sealed_size=sealed.sealed_size, **KEYS)


@pytest.mark.parametrize(("at", "value"), [(4, 0), (4, 2), (5, 1), (5, 128), (6, 1), (7, 1)])
def test_an_unknown_suite_flag_or_reserved_byte_is_a_newer_version(at, value):
    envelope = bytearray(seal().envelope)
    envelope[at] = value
    with pytest.raises(UnsupportedVersionError):
        open_both(bytes(envelope), slot=SLOT, sealed_size=seal().sealed_size, **KEYS)


def test_every_cipher_failure_has_the_same_words():
    sealed = seal("evidence words")
    said = set()
    for data, other in [
        (sealed.envelope[:-1] + b"\x00", {}),
        (sealed.envelope[:-1], {}),
        (sealed.envelope, {"dek": bytes(32)}),
        (sealed.envelope, {"slot": replace(SLOT, org="south-clinic")}),
        (b"evidence words", {}),
    ]:
        with pytest.raises(SealBrokenError) as caught:
            open_both(data, **{"slot": SLOT, "sealed_size": sealed.sealed_size, **KEYS, **other})
        said.add(str(caught.value))
    assert len(said) == 1
    assert "evidence words" not in said.pop()


# --- what a holder of the key could forge -----------------------------------------------------------------------


def test_the_forger_makes_envelopes_that_open_when_they_are_true():
    assert open_forged(meta(b"data", b"data"), b"data").data == b"data"
    packed = zstandard.ZstdCompressor().compress(b"data" * 99)
    opened = open_forged(meta(packed, b"data" * 99, compression=b"zstd"), packed)
    assert opened.data == b"data" * 99


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": bytes(32)},
        {"sha256": b""},
        {"size": b"5"},
        {"size": b"04"},
        {"size": b"-4"},
        {"stored_size": b"3"},
        {"stored_size": b"04"},
        {"size": None},
        {"trust": None},
        {"trust": b"\xff"},
        {"extra": b"field"},
    ],
    ids=str,
)
def test_metadata_that_does_not_fit_the_content_does_not_open(change):
    with pytest.raises(SealBrokenError):
        open_forged(meta(b"data", b"data", **change), b"data")


@pytest.mark.parametrize("change", [{"version": b"2"}, {"encoding": b"xml"}, {"compression": b"lzma"}], ids=str)
def test_metadata_of_a_newer_version_is_refused_as_such(change):
    with pytest.raises(UnsupportedVersionError):
        open_forged(meta(b"data", b"data", **change), b"data")


@pytest.mark.parametrize(
    "plaintext",
    [b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x08\x00\x00\x00\x09abcd", b"\x00\x00\x00\x02ab"],
)
def test_a_plaintext_without_readable_metadata_does_not_open(plaintext):
    header = b"EVA1\x01\x00\x00\x00" + ORIGINAL_ID + DEK_ID
    context = independent.envelope_context(header, as_list(SLOT), len(plaintext))
    envelope = header + independent.encrypt(DEK, context, plaintext, bytes(24))
    with pytest.raises(SealBrokenError):
        open_both(envelope, slot=SLOT, sealed_size=len(plaintext), **KEYS)


BOMB = b"\x00" * 3_000_000


def unsized(data):
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


def lying(data, declared):
    """A frame whose header declares another size than it holds: a four-byte size field, overwritten."""
    frame = bytearray(zstandard.ZstdCompressor().compress(data))
    at = frame.index(struct.pack("<I", len(data)))
    frame[at : at + 4] = struct.pack("<I", declared)
    return bytes(frame)


@pytest.mark.parametrize(
    "packed",
    [
        zstandard.ZstdCompressor().compress(BOMB),
        unsized(BOMB),
        unsized(b"data"),
        lying(BOMB, 100_000),
        zstandard.ZstdCompressor().compress(b"data") + b"extra",
        zstandard.ZstdCompressor().compress(b"data") * 2,
        zstandard.ZstdCompressor().compress(b"data")[:-1],
        b"",
        b"not a frame",
    ],
    ids=["true-bomb", "unsized-bomb", "unsized", "lying", "extra", "two-frames", "cut", "empty", "no-frame"],
)
@pytest.mark.parametrize("size", [4, 100_000])
def test_a_decompression_bomb_or_a_lying_frame_does_not_open(packed, size, monkeypatch):
    released = []

    class Watched:
        def decompress(self, *args, **kwargs):
            data = zstandard.ZstdDecompressor().decompress(*args, **kwargs)
            released.append(len(data))
            return data

    monkeypatch.setattr(eva, "_codec", lambda: (zstandard.ZstdCompressor(), Watched()))
    fields = meta(packed, b"data", compression=b"zstd", size=b"%d" % size)
    with pytest.raises(SealBrokenError):
        open_forged(fields, packed)
    assert all(count <= size for count in released)


def test_must_fail_control_max_output_size_alone_does_not_stop_a_bomb():
    packed = zstandard.ZstdCompressor().compress(BOMB)
    assert len(zstandard.ZstdDecompressor().decompress(packed, max_output_size=4)) == len(BOMB)


def test_a_frame_that_declares_more_than_the_format_holds_does_not_open(monkeypatch):
    monkeypatch.setattr(eva, "ORIGINAL_BYTES_MAX", 2_000_000)
    packed = zstandard.ZstdCompressor().compress(BOMB)
    with pytest.raises(SealBrokenError):
        open_forged(meta(packed, BOMB, compression=b"zstd"), packed)


# --- in pieces --------------------------------------------------------------------------------------------------


def sealed_in_pieces(encoded, *, compress=True, acl=b"{}", trust="tool"):
    sealed_size, pieces = seal_pieces(slot=SLOT, encoded=encoded, acl=acl, trust=trust, compress=compress, **KEYS)
    made = list(pieces)
    assert all(len(piece) <= 2 * PIECE_BYTES for piece in made)
    return b"".join(made), sealed_size


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(
    "text",
    ["", "x" * 1_024, "a made-up line \ud800 \U0001f600\r\n" * 150_000, "\u65e5" * 1_048_577, "a" * 12_000_000],
    ids=["empty", "small", "hostile", "wide", "bomb"],
)
def test_what_was_sealed_in_pieces_opens_in_memory_and_in_pieces(text, compress):
    envelope, sealed_size = sealed_in_pieces(LongText(text), compress=compress)
    opened = open_both(envelope, slot=SLOT, sealed_size=sealed_size, **KEYS)
    assert opened.data == text.encode("utf-8", "surrogatepass")
    assert (opened.encoding, opened.acl, opened.trust) == ("text", b"{}", "tool")
    assert len(envelope) == envelope_bytes(sealed_size)
    assert independent.open_envelope(envelope, as_list(SLOT), DEK, sealed_size)["data"] == opened.data


@given(data=st.binary(max_size=40_000), parts=st.booleans(), compress=st.booleans())
def test_any_bytes_sealed_in_pieces_come_back_exactly(data, parts, compress):
    envelope, sealed_size = sealed_in_pieces(Encoded(data, "parts" if parts else "text"), compress=compress)
    assert open_both(envelope, slot=SLOT, sealed_size=sealed_size, **KEYS).data == data


def test_a_long_text_has_the_bytes_digest_and_size_of_its_encoding():
    text = "\ud83d\ude00 \U0001f600 \x00\r\n" * 170_000
    exact, whole = encode_exact(text), text.encode("utf-8", "surrogatepass")
    assert isinstance(exact, LongText)
    assert (exact.data, exact.size_bytes, exact.digest) == (whole, len(whole), hashlib.sha256(whole).digest())
    assert isinstance(encode_exact("x" * 1_000_000), Encoded)


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("second", ["y" * 5_001, "y" * 4_999], ids=["longer", "shorter"])
def test_an_original_that_changes_while_it_is_sealed_is_not_sealed(second, compress):
    class Changing(Encoded):
        turns = 0

        def pieces(self):
            Changing.turns += 1
            yield self.data if Changing.turns == 1 and compress else second.encode()

    with pytest.raises(SealBrokenError, match="nothing was archived"):
        sealed_in_pieces(Changing(b"y" * 5_000, "text"), compress=compress)


def test_a_bomb_is_handed_out_in_bounded_pieces():
    envelope, sealed_size = sealed_in_pieces(LongText("a" * 30_000_000))
    assert len(envelope) < 10_000
    sizes = []
    open_pieces(iter([envelope]), lambda piece: sizes.append(len(piece)), slot=SLOT, sealed_size=sealed_size, **KEYS)
    assert sum(sizes) == 30_000_000
    assert max(sizes) <= PIECE_BYTES


def test_a_frame_that_holds_more_than_it_declares_hands_out_no_more_than_the_format_holds(monkeypatch):
    envelope, sealed_size = sealed_in_pieces(LongText("a" * 5_000_000))
    monkeypatch.setattr(eva, "ORIGINAL_BYTES_MAX", 2_000_000)
    taken = []
    with pytest.raises(SealBrokenError):
        open_pieces(
            iter([envelope]), lambda piece: taken.append(len(piece)), slot=SLOT, sealed_size=sealed_size, **KEYS
        )
    assert sum(taken) <= 2_000_000


# --- sealing refuses --------------------------------------------------------------------------------------------


class LyingCompressor:
    def compress(self, data):
        return zstandard.ZstdCompressor().compress(b"x" * len(data))


def test_a_compressor_that_lies_is_found_before_anything_is_stored(monkeypatch):
    monkeypatch.setattr(eva, "_codec", lambda: (LyingCompressor(), zstandard.ZstdDecompressor()))
    with pytest.raises(SealBrokenError, match="nothing was archived"):
        seal("y" * 5000)


def test_a_cipher_that_lies_is_found_before_anything_is_stored(monkeypatch):
    class LyingCipher:
        def __init__(self, key, context):
            self._true = Cobblestone256Encryptor(key, context)

        def update(self, data):
            return self._true.update(bytes(len(data)))

        def finalize(self):
            return self._true.finalize()

    monkeypatch.setattr(eva, "Cobblestone256Encryptor", LyingCipher)
    with pytest.raises(SealBrokenError, match="nothing was archived"):
        seal("y" * 50)


@pytest.mark.parametrize(
    "bad",
    [
        {"dek": b""},
        {"dek": bytes(31)},
        {"original_id": bytes(15)},
        {"dek_id": bytes(17)},
        {"acl": bytes(64 * 1024 + 1)},
        {"trust": "t" * 1025},
        {"encoded": Encoded(b"", "xml")},
    ],
    ids=lambda bad: next(iter(bad)),
)
def test_sealing_refuses_what_the_format_does_not_hold(bad):
    good = {"slot": SLOT, "encoded": Encoded(b"", "text"), "acl": b"", "trust": "", **KEYS}
    seal_original(**good)
    with pytest.raises(FormatError):
        seal_original(**{**good, **bad})


def test_sealing_refuses_an_original_above_the_bound(monkeypatch):
    monkeypatch.setattr(eva, "ORIGINAL_BYTES_MAX", 10)
    seal("x" * 10)
    with pytest.raises(FormatError):
        seal("x" * 11)
