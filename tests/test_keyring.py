"""Derived keys, wraps, the closed key and note, tags and row seals."""

import hashlib
import hmac
import json
from pathlib import Path

import independent_decoder as independent
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from hypothesis import given
from hypothesis import strategies as st

from evidence_archive.errors import FormatError, SealBrokenError
from evidence_archive.model import ce
from evidence_archive.sealing import keyring

GOLDEN = json.loads((Path(__file__).parent / "vectors" / "keyring-golden.json").read_text("utf-8"))

KEY, OTHER_KEY, DEK = bytes(range(32)), bytes(range(1, 33)), bytes(range(2, 34))
PLACE = {
    "deployment": b"p" * 16,
    "org": "north-clinic",
    "scope_id": b"s" * 16,
    "original_id": b"o" * 16,
    "dek_id": b"d" * 16,
    "result_id": "r7",
}
ELSEWHERE = {
    "deployment": b"q" * 16,
    "org": "south-clinic",
    "scope_id": b"t" * 16,
    "original_id": b"x" * 16,
    "dek_id": b"y" * 16,
    "result_id": "r8",
}
WRAP = {
    "deployment": b"p" * 16,
    "org": "north-clinic",
    "scope_id": b"s" * 16,
    "child": b"c" * 16,
    "generation": 1,
    "kek_version": 1,
}


def unhex(value):
    return None if value is None else bytes.fromhex(value)


# --- derivation -------------------------------------------------------------------------------------------------


def plain_hkdf(key, label, size=32):
    """HKDF-SHA256 (RFC 5869) from HMAC alone; one block is enough up to 32 bytes."""
    secret = hmac.digest(bytes(32), key, "sha256")
    return hmac.digest(secret, label + b"\x01", "sha256")[:size]


def test_derivation_is_hkdf_sha256_without_salt():
    secret = hmac.digest(bytes(32), KEY, "sha256")
    assert keyring.derive(KEY, b"label") == plain_hkdf(KEY, b"label")
    assert keyring.derive(KEY, b"label", 64) == HKDFExpand(SHA256(), 64, b"label").derive(secret)


def test_every_purpose_has_a_key_of_its_own():
    keys = keyring.org_keys(KEY)
    made = {keys.row, keys.index, keys.audit, keys.signing, keyring.tag_key(KEY), KEY}
    assert len(made) == 6
    assert keys.row == plain_hkdf(KEY, b"evidence-archive/v1/row")
    assert keys.index == plain_hkdf(KEY, b"evidence-archive/v1/index")
    assert keys.audit == plain_hkdf(KEY, b"evidence-archive/v1/audit-metadata")
    assert keys.signing == plain_hkdf(KEY, b"evidence-archive/v1/checkpoint")
    assert keyring.tag_key(KEY) == plain_hkdf(KEY, b"evidence-archive/v1/tag")


def test_keys_are_not_in_a_repr():
    keys = keyring.org_keys(KEY)
    assert repr(keys) == "OrgKeys()"


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33)])
def test_a_key_of_another_length_is_refused_everywhere(key):
    for use in (
        lambda: keyring.derive(key, b"label"),
        lambda: keyring.org_keys(key),
        lambda: keyring.tag_key(key),
        lambda: keyring.wrap(key, b"", b""),
        lambda: keyring.unwrap(key, b"", b""),
        lambda: keyring.close_original(key, dek=b"", note="", **PLACE),
        lambda: keyring.open_closed(key, b"", **PLACE),
    ):
        with pytest.raises(FormatError):
            use()


# --- wraps ------------------------------------------------------------------------------------------------------


@given(secret=st.binary(max_size=200), context=st.binary(max_size=200))
def test_a_wrap_opens_to_what_went_in_and_the_independent_decoder_agrees(secret, context):
    wrapped = keyring.wrap(KEY, secret, context)
    assert keyring.unwrap(KEY, wrapped, context) == secret
    assert independent.decrypt(KEY, context, wrapped) == secret


def contexts():
    """The context of one place, and of every place that differs from it in one field."""
    yield keyring.wrap_context("scope", **WRAP)
    yield keyring.wrap_context("aux", **WRAP)
    for name, value in {
        "deployment": b"q" * 16,
        "org": "south-clinic",
        "scope_id": None,
        "child": None,
        "generation": 2,
        "kek_version": 2,
    }.items():
        yield keyring.wrap_context("scope", **{**WRAP, name: value})


def test_a_key_wrapped_in_one_place_does_not_unwrap_in_another():
    here, *others = contexts()
    wrapped = keyring.wrap(KEY, DEK, here)
    assert keyring.unwrap(KEY, wrapped, here) == DEK
    for there in others:
        with pytest.raises(SealBrokenError):
            keyring.unwrap(KEY, wrapped, there)


def test_must_fail_control_a_wrap_without_context_unwraps_anywhere():
    wrapped = keyring.wrap(KEY, DEK, b"")
    assert all(keyring.unwrap(KEY, wrapped, b"") == DEK for _ in contexts())


def test_every_place_has_a_context_of_its_own():
    assert len(set(contexts())) == 8
    assert keyring.wrap_context("scope", **WRAP) == b"evidence-archive/v1/wrap\x00" + independent.pack(
        [b"scope", b"p" * 16, b"north-clinic", b"s" * 16, b"c" * 16, b"1", b"1"]
    )


def test_another_key_does_not_unwrap():
    with pytest.raises(SealBrokenError):
        keyring.unwrap(OTHER_KEY, keyring.wrap(KEY, DEK, b"context"), b"context")


def damaged(data):
    for at in range(len(data)):
        yield data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        yield data[:at]
    yield data + b"\x00"
    yield data + data


def test_no_damage_to_a_wrap_unwraps():
    for data in damaged(keyring.wrap(KEY, DEK, b"context")):
        with pytest.raises(SealBrokenError):
            keyring.unwrap(KEY, data, b"context")


def test_wraps_are_bounded():
    with pytest.raises(FormatError):
        keyring.wrap(KEY, bytes(keyring.WRAPPED_BYTES_MAX + 1), b"")
    with pytest.raises(SealBrokenError):
        keyring.unwrap(KEY, bytes(3 * keyring.WRAPPED_BYTES_MAX), b"")
    largest = bytes(keyring.WRAPPED_BYTES_MAX)
    assert keyring.unwrap(KEY, keyring.wrap(KEY, largest, b""), b"") == largest


def test_a_level_that_belongs_to_nobody_is_refused():
    with pytest.raises(FormatError):
        keyring.wrap_context("original", **WRAP)


# --- the closed key and note ------------------------------------------------------------------------------------


@given(note=st.text(st.characters(), max_size=2000), copy=st.booleans())
def test_key_and_note_come_back_together(note, copy):
    dek = b"" if copy else DEK
    closed = keyring.close_original(KEY, dek=dek, note=note, **PLACE)
    assert keyring.open_closed(KEY, closed, **PLACE) == (dek, note)


@pytest.mark.parametrize(
    "note", ["", "\ud800\udfff \x00 \u202e", "\U0001f600" * 50_000], ids=["empty", "hostile", "long"]
)
def test_a_hostile_note_comes_back_exactly(note):
    closed = keyring.close_original(KEY, dek=DEK, note=note, **PLACE)
    assert keyring.open_closed(KEY, closed, **PLACE) == (DEK, note)


def test_a_copy_has_neither_original_nor_key():
    place = {**PLACE, "original_id": None, "dek_id": None}
    closed = keyring.close_original(KEY, dek=b"", note="a note", **place)
    assert keyring.open_closed(KEY, closed, **place) == (b"", "a note")
    with pytest.raises(SealBrokenError):
        keyring.open_closed(KEY, closed, **PLACE)


@pytest.mark.parametrize("name", list(PLACE))
def test_the_key_and_note_of_another_original_do_not_open(name):
    closed = keyring.close_original(KEY, dek=DEK, note="a note", **PLACE)
    with pytest.raises(SealBrokenError):
        keyring.open_closed(KEY, closed, **{**PLACE, name: ELSEWHERE[name]})


def test_the_key_and_note_of_another_session_key_do_not_open():
    closed = keyring.close_original(KEY, dek=DEK, note="a note", **PLACE)
    with pytest.raises(SealBrokenError):
        keyring.open_closed(OTHER_KEY, closed, **PLACE)


def test_no_damage_to_a_closed_key_and_note_opens():
    for data in damaged(keyring.close_original(KEY, dek=DEK, note="n", **PLACE)):
        with pytest.raises(SealBrokenError):
            keyring.open_closed(KEY, data, **PLACE)


def test_a_wrapped_key_is_not_a_closed_key_and_note():
    with pytest.raises(SealBrokenError):
        keyring.open_closed(KEY, keyring.wrap(KEY, DEK, keyring.wrap_context("scope", **WRAP)), **PLACE)


@pytest.mark.parametrize(
    "secret",
    [
        b"",
        ce(DEK),
        ce(DEK, b"note", b"more"),
        ce(None, b"note"),
        ce(DEK, None),
        ce(b"short", b"note"),
        ce(DEK, b"\xff"),
        b"x",
    ],
    ids=["empty", "one", "three", "no-key", "no-note", "short-key", "not-utf8", "no-ce"],
)
def test_a_message_of_the_right_key_with_other_fields_does_not_open(secret):
    context = b"evidence-archive/v1/wrap\x00" + ce("original", *PLACE.values())
    with pytest.raises(SealBrokenError):
        keyring.open_closed(KEY, keyring.wrap(KEY, secret, context), **PLACE)


@pytest.mark.parametrize("dek", [bytes(31), bytes(33), b"x"])
def test_a_key_of_another_length_is_not_closed(dek):
    with pytest.raises(FormatError):
        keyring.close_original(KEY, dek=dek, note="", **PLACE)


# --- tags -------------------------------------------------------------------------------------------------------


def test_a_content_tag_depends_on_key_content_and_kind():
    one, two = hashlib.sha256(b"one").digest(), hashlib.sha256(b"two").digest()
    tags = {
        keyring.content_tag(key, digest, kind)
        for key in (KEY, OTHER_KEY)
        for digest in (one, two)
        for kind in ("text", "parts")
    }
    assert len(tags) == 8
    assert {len(tag) for tag in tags} == {32}
    with pytest.raises(FormatError):
        keyring.content_tag(KEY, one, "image")


def test_a_request_tag_tells_different_batches_apart():
    long = "n" * 2000
    batches = [
        (b"call_1", []),
        (b"call_2", []),
        (b"call_1", [("r1", "note")]),
        (b"call_1", [("r1", "not"), ("e", "")]),
        (b"call_1", [("r1", "a"), ("r2", "b")]),
        (b"call_1", [("r2", "b"), ("r1", "a")]),
        (b"call_1", [("r1", long)]),
        (b"call_1", [("r1", "sha256:" + hashlib.sha256(long.encode()).hexdigest())]),
        (b"call_1", [("r1", "\ud800")]),
    ]
    tags = {keyring.request_tag(KEY, call_id, items) for call_id, items in batches}
    assert len(tags) == len(batches)
    assert keyring.request_tag(KEY, b"call_1", iter([("r1", "note")])) == keyring.request_tag(KEY, *batches[2])


# --- row seals --------------------------------------------------------------------------------------------------

ROW = [b"\x00\xff", "text", 5, None, "", b"", 0, -1, "n" * 2000]
LONG_NAME = "sha256:" + hashlib.sha256(b"n" * 2000).hexdigest()


def rows_that_pass(seal_it):
    """Changed rows that carry the seal of the true one."""
    seal = seal_it(b"result", ROW)
    changes = [
        (0, b"\x01\xff"), (1, "texT"), (1, b"text"), (2, 6), (2, "5"), (2, b"5"), (3, b""), (3, ""), (3, 0),
        (4, None), (4, b""), (5, ""), (6, None), (6, "0"), (7, 1), (8, LONG_NAME), (8, "n" * 1999),
    ]  # fmt: skip
    changed = [(b"result", [*ROW[:at], value, *ROW[at + 1 :]]) for at, value in changes]
    changed += [
        (b"session", ROW),
        (b"result", ROW[::-1]),
        (b"result", ROW[:-1]),
        (b"result", [*ROW, None]),
        (b"result", [b"\x00", b"\xff", *ROW[1:]]),
    ]
    return [row for row in changed if hmac.compare_digest(seal_it(*row), seal)]


def test_no_change_of_value_type_order_or_table_keeps_a_row_seal():
    assert rows_that_pass(lambda table, fields: keyring.row_seal(KEY, table, fields)) == []


def test_must_fail_control_a_seal_without_types_and_with_digests_for_long_texts_misses_changes():
    assert len(rows_that_pass(lambda table, fields: hmac.digest(KEY, ce(table, *fields), "sha256"))) >= 5


def test_a_row_seal_is_checked():
    seal = keyring.row_seal(KEY, b"result", ROW)
    keyring.check_row_seal(KEY, b"result", ROW, seal)
    keyring.check_row_seal(KEY, b"result", iter([memoryview(b"\x00\xff"), *ROW[1:]]), memoryview(seal))
    keyring.check_row_seal(KEY, b"result", [bytearray(b"\x00\xff"), *ROW[1:]], seal)
    for key, table, fields, given_seal in [
        (OTHER_KEY, b"result", ROW, seal),
        (KEY, b"results", ROW, seal),
        (KEY, b"result", ROW[1:], seal),
        (KEY, b"result", ROW, b""),
        (KEY, b"result", ROW, None),
        (KEY, b"result", ROW, 32),
        (KEY, b"result", ROW, seal.hex()),
        (KEY, b"result", ROW, seal[:-1]),
        (KEY, b"result", ROW, bytes(32)),
        (KEY, b"result", [*ROW[:-1], 1.5], seal),
    ]:
        with pytest.raises(SealBrokenError):
            keyring.check_row_seal(key, table, fields, given_seal)


@pytest.mark.parametrize("value", [True, 1.0, [], {}])
def test_a_value_of_another_type_is_not_sealed(value):
    with pytest.raises(FormatError):
        keyring.row_seal(KEY, b"result", [value])


# --- frozen vectors ---------------------------------------------------------------------------------------------


def test_golden_derivations_never_change():
    keys = keyring.org_keys(unhex(GOLDEN["aux_key"]))
    derived = GOLDEN["derived"]
    assert (keys.row.hex(), keys.index.hex(), keys.audit.hex()) == (
        derived["row"],
        derived["index"],
        derived["audit"],
    )
    assert keyring.tag_key(unhex(GOLDEN["scope_key"])).hex() == derived["tag"]


@pytest.mark.parametrize("vector", GOLDEN["closed"], ids=[vector["name"] for vector in GOLDEN["closed"]])
def test_a_golden_key_and_note_open_for_ever(vector):
    names = ("deployment", "scope_id", "original_id", "dek_id")
    place = {**vector["place"], **{name: unhex(vector["place"][name]) for name in names}}
    scope_key, closed = unhex(GOLDEN["scope_key"]), unhex(vector["closed"])
    assert keyring.open_closed(scope_key, closed, **place) == (unhex(vector["dek"]), vector["note"])

    fields = [place[name] for name in ("deployment", "org", "scope_id", "original_id", "dek_id", "result_id")]
    context = b"evidence-archive/v1/wrap\x00" + independent.pack(
        [independent.as_field(f) for f in ["original", *fields]]
    )
    dek, note = independent.unpack(independent.decrypt(scope_key, context, closed))
    assert (dek, note.decode("utf-8", "surrogatepass")) == (unhex(vector["dek"]), vector["note"])


def test_golden_tags_and_seals_never_change():
    tag_key = unhex(GOLDEN["derived"]["tag"])
    digest = hashlib.sha256(b"made up").digest()
    assert keyring.content_tag(tag_key, digest, "text").hex() == GOLDEN["tags"]["text"]
    assert keyring.content_tag(tag_key, digest, "parts").hex() == GOLDEN["tags"]["parts"]
    items = [("r1", "first note"), ("r2", "second \u202e note")]
    assert keyring.request_tag(tag_key, b"call_1", items).hex() == GOLDEN["tags"]["request"]
    row = [b"\x00\xff", "5", 5, None, "n" * 2000, -1]
    seal = keyring.row_seal(unhex(GOLDEN["derived"]["row"]), b"result", row).hex()
    assert seal == GOLDEN["row_seal"]["seal"]


def test_the_independent_layout_of_tags_and_seals_agrees():
    tag_key, digest = unhex(GOLDEN["derived"]["tag"]), hashlib.sha256(b"made up").digest()

    def tag(prefix, fields, key=tag_key, tail=b""):
        return hmac.digest(key, prefix + independent.pack(fields) + tail, "sha256").hex()

    assert tag(b"evidence-archive/v1/content-tag\x00", [b"text"], tail=digest) == GOLDEN["tags"]["text"]
    items = [b"call_1", b"r1", b"first note", b"r2", "second \u202e note".encode()]
    assert tag(b"evidence-archive/v1/request-tag\x00", items) == GOLDEN["tags"]["request"]
    row = [b"result", b"bsinsi", b"\x00\xff", b"5", b"5", None, b"n" * 2000, b"-1"]
    row_key = unhex(GOLDEN["derived"]["row"])
    assert tag(b"evidence-archive/v1/row-seal\x00", row, row_key) == GOLDEN["row_seal"]["seal"]
