"""Audit leaves are canonical bytes; their tree is that of RFC 6962."""

import contextlib
import hashlib
import json
import re
from pathlib import Path

import independent_decoder as independent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence_archive.errors import AuditBrokenError, FormatError, UnsupportedVersionError
from evidence_archive.model import ce
from evidence_archive.proof import leaf as leaves
from evidence_archive.proof import merkle
from evidence_archive.proof.leaf import decode_leaf, encode_leaf
from evidence_archive.proof.merkle import Frontier, leaf_hash, node_hash, root_of

GOLDEN = json.loads((Path(__file__).parent / "vectors" / "leaf-golden.json").read_text("utf-8"))["leaves"]

# Inputs and roots of the reference Merkle tree tests of Certificate Transparency (RFC 6962).
CT_LEAVES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
CT_ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]

ENTRY = {
    "org": "north-clinic",
    "seq": 7,
    "time_us": 1_796_000_000_000_000,
    "event": leaves.RESTORE_GRANTED,
    "subject": "triage-agent",
    "session_id": "case-4711",
    "batch_id": "0123456789abcdef" * 2,
    "policy_digest": "ab" * 32,
    "details": {"result": "r7", "nested": {"b": [1, True, None], "a": "\ud800"}},
    "sealed_reason": b"\x00\xff",
}


# --- the tree ---------------------------------------------------------------------------------------------------


def grown(hashes):
    frontier = Frontier()
    for item in hashes:
        frontier.append(item)
    return frontier


@pytest.mark.parametrize("size", range(9))
def test_roots_are_those_of_certificate_transparency(size):
    hashes = [leaf_hash(data) for data in CT_LEAVES[:size]]
    assert root_of(hashes).hex() == CT_ROOTS[size]
    assert grown(hashes).root().hex() == CT_ROOTS[size]


def one_leaf_passes_for_two(hash_leaf, hash_node):
    """Whether a log with a single made-up leaf has the root of a log with two true ones."""
    left, right = hash_leaf(CT_LEAVES[3]), hash_leaf(CT_LEAVES[4])
    return hash_leaf(left + right) == hash_node(left, right)


def test_a_node_never_passes_for_a_leaf():
    assert not one_leaf_passes_for_two(leaf_hash, node_hash)


def test_must_fail_control_without_domain_separation_a_node_passes_for_a_leaf():
    def naive(*parts):
        return hashlib.sha256(b"".join(parts)).digest()

    assert one_leaf_passes_for_two(naive, naive)


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=70))
def test_the_frontier_agrees_with_the_definition_at_every_size(hashes):
    frontier = Frontier()
    for count, item in enumerate(hashes, 1):
        frontier = Frontier.from_bytes(frontier.size, frontier.to_bytes())
        frontier.append(item)
        assert frontier.size == count
        assert len(frontier.to_bytes()) == 32 * count.bit_count()
        assert frontier.root() == root_of(hashes[:count])


def test_the_frontier_holds_complete_subtrees_largest_first():
    hashes = [leaf_hash(data) for data in CT_LEAVES[:7]]
    expected = root_of(hashes[:4]) + root_of(hashes[4:6]) + hashes[6]
    assert grown(hashes).to_bytes() == expected


def test_a_change_of_one_leaf_or_of_the_order_changes_the_root():
    hashes = [leaf_hash(data) for data in CT_LEAVES]
    true = grown(hashes).root()
    for at in range(8):
        assert grown([*hashes[:at], bytes(32), *hashes[at + 1 :]]).root() != true
        assert grown(hashes[:at] + hashes[at + 1 :]).root() != true
    assert grown(hashes[::-1]).root() != true


@pytest.mark.parametrize(
    ("size", "data"),
    [
        (0, bytes(32)),
        (1, b""),
        (1, bytes(31)),
        (1, bytes(64)),
        (3, bytes(32)),
        (4, bytes(64)),
        (-1, bytes(32)),
        (2**63, bytes(32)),
    ],
)
def test_a_frontier_that_does_not_fit_its_size_is_refused(size, data):
    with pytest.raises(AuditBrokenError):
        Frontier.from_bytes(size, data)


def test_a_full_log_and_a_leaf_that_is_no_hash_are_refused():
    full = Frontier.from_bytes(merkle.SIZE_MAX, bytes(32 * 63))
    for frontier, item in [(full, bytes(32)), (Frontier(), b"leaf")]:
        before = frontier.to_bytes()
        with pytest.raises(AuditBrokenError):
            frontier.append(item)
        assert frontier.to_bytes() == before


# --- leaves -----------------------------------------------------------------------------------------------------


def test_a_leaf_comes_back_equal():
    leaf = decode_leaf(encode_leaf(**ENTRY))
    assert {name: getattr(leaf, name) for name in ENTRY} == ENTRY


def test_a_leaf_needs_only_its_core():
    core = {name: ENTRY[name] for name in ("org", "seq", "time_us", "event", "subject")}
    leaf = decode_leaf(encode_leaf(**core))
    assert (leaf.session_id, leaf.batch_id, leaf.policy_digest, leaf.details, leaf.sealed_reason) == (
        None,
        None,
        None,
        {},
        None,
    )


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    subject=st.text(max_size=256),
    event=st.sampled_from(sorted(leaves.EVENTS)),
    details=st.dictionaries(st.text(max_size=8), PLAIN, max_size=4),
    reason=st.none() | st.binary(max_size=64),
)
def test_encoding_is_canonical(subject, event, details, reason):
    entry = {**ENTRY, "subject": subject, "event": event, "sealed_reason": reason}
    data = encode_leaf(**{**entry, "details": details})
    assert encode_leaf(**{**entry, "details": dict(reversed(details.items()))}) == data
    leaf = decode_leaf(data)
    assert encode_leaf(**{**entry, "details": leaf.details}) == data


def test_the_reason_is_not_in_a_repr():
    assert "sealed_reason" not in repr(decode_leaf(encode_leaf(**ENTRY)))


def test_no_bit_flip_or_cut_of_a_leaf_keeps_its_hash_and_none_decodes_to_the_same_entry():
    data = encode_leaf(**ENTRY)
    true = decode_leaf(data)
    for at in range(len(data)):
        for changed in (data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], data[:at]):
            assert leaf_hash(changed) != leaf_hash(data)
            with contextlib.suppress(AuditBrokenError, UnsupportedVersionError):
                assert decode_leaf(changed) != true


def fields(**changes):
    values = {
        "format": b"evidence-archive/leaf/1",
        "org": b"north-clinic",
        "seq": b"7",
        "time_us": b"1",
        "event": b"label.set",
        "subject": b"agent",
        "session_id": None,
        "batch_id": None,
        "policy_digest": None,
        "details": b'{"a":1,"b":2}',
        "sealed_reason": None,
    }
    return ce(*{**values, **changes}.values())


def test_the_unchanged_fields_decode():
    assert decode_leaf(fields()).details == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "change",
    [
        {"format": None},
        {"format": b"other"},
        {"format": b""},
        {"org": None},
        {"subject": None},
        {"subject": b"\xff"},
        {"subject": b"s" * 1025},
        {"event": None},
        {"event": b"Label.Set"},
        {"seq": None},
        {"seq": b"07"},
        {"seq": b"-7"},
        {"seq": b"+7"},
        {"seq": "\u0667".encode()},
        {"seq": b"9223372036854775808"},
        {"time_us": b"1.0"},
        {"batch_id": b"AB" * 16},
        {"batch_id": b"ab"},
        {"details": None},
        {"details": b""},
        {"details": b"[]"},
        {"details": b'{"b":2,"a":1}'},
        {"details": b'{"a":1, "b":2}'},
        {"details": b'{"a":1,"a":1}'},
        {"details": b'{"a":1.0}'},
        {"details": b'{"a":NaN}'},
        {"details": '{"a":"é"}'.encode()},
        {"details": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"},
        {"extra": b"field"},
    ],
    ids=lambda change: str(change)[:40],
)
def test_what_this_library_would_not_have_written_does_not_decode(change):
    with pytest.raises(AuditBrokenError):
        decode_leaf(fields(**change))


@pytest.mark.parametrize("data", [b"", b"\x00", b"leaf", bytes(2 * 1024 * 1024), ce(b"evidence-archive/leaf/1")])
def test_what_is_no_leaf_does_not_decode(data):
    with pytest.raises(AuditBrokenError):
        decode_leaf(data)


def test_a_leaf_of_a_newer_version_is_refused_as_such():
    with pytest.raises(UnsupportedVersionError):
        decode_leaf(fields(format=b"evidence-archive/leaf/2"))


def test_an_event_of_a_newer_version_is_read_but_not_written():
    assert decode_leaf(fields(event=b"retention.held")).event == "retention.held"
    with pytest.raises(FormatError):
        encode_leaf(**{**ENTRY, "event": "retention.held"})


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "change",
    [
        {"event": "made.up"},
        {"seq": -1},
        {"seq": True},
        {"seq": 2**63},
        {"time_us": -1},
        {"time_us": 1.0},
        {"time_us": 2**63},
        {"subject": "s" * 1025},
        {"org": 7},
        {"batch_id": "AB" * 16},
        {"details": {"a": 1.5}},
        {"details": {"a": (1,)}},
        {"details": {1: "a"}},
        {"details": {"a": b"bytes"}},
        {"details": {"a": nested(100_000)}},
        {"details": {"a": "x" * leaves.LEAF_BYTES_MAX}},
    ],
    ids=lambda change: str(change)[:40] if "details" not in change else "details",
)
def test_an_entry_out_of_bounds_is_not_written(change):
    with pytest.raises(FormatError):
        encode_leaf(**{**ENTRY, **change})


@pytest.mark.parametrize("vector", GOLDEN, ids=[vector["entry"]["event"] for vector in GOLDEN])
def test_a_golden_leaf_decodes_for_ever_to_the_same_entry(vector):
    entry = dict(vector["entry"])
    if "sealed_reason" in entry:
        entry["sealed_reason"] = bytes.fromhex(entry["sealed_reason"])
    data = bytes.fromhex(vector["leaf"])
    leaf = decode_leaf(data)
    assert {name: getattr(leaf, name) for name in entry} == entry
    assert encode_leaf(**entry) == data
    order = ("org", "seq", "time_us", "event", "subject", "session_id", "batch_id", "policy_digest")
    plain = json.dumps(entry["details"], sort_keys=True, separators=(",", ":")).encode()
    expected = [b"evidence-archive/leaf/1", *(independent.as_field(entry.get(name)) for name in order), plain]
    assert independent.unpack(data) == [*expected, entry.get("sealed_reason")]


def test_golden_roots_and_frontiers_never_change():
    frontier = Frontier()
    for vector in GOLDEN:
        frontier.append(leaf_hash(bytes.fromhex(vector["leaf"])))
        assert (frontier.root().hex(), frontier.to_bytes().hex()) == (vector["root"], vector["frontier"])


# --- proofs of sizes and hashes that no log has -----------------------------------------------------------------

PATH = [leaf_hash(b"%d" % at) for at in range(63)]


@pytest.mark.parametrize(
    ("old_size", "size"),
    [(-1, -1), (-1, 0), (2, 1), (1, 0), (merkle.SIZE_MAX + 1, merkle.SIZE_MAX + 1), (0, merkle.SIZE_MAX + 1)],
)
def test_sizes_that_no_two_logs_have_are_refused_even_where_the_roots_agree(old_size, size):
    for old_root in (PATH[0], merkle.EMPTY_ROOT):
        with pytest.raises(AuditBrokenError):
            merkle.verify_consistency(old_size, old_root, size, PATH[0], [])


def test_the_longest_log_continues_itself():
    merkle.verify_consistency(merkle.SIZE_MAX, PATH[0], merkle.SIZE_MAX, PATH[0], [])


@pytest.mark.parametrize("root", [b"", bytes(31), bytes(33)])
def test_roots_that_are_no_hashes_are_refused_even_where_they_agree(root):
    with pytest.raises(AuditBrokenError):
        merkle.verify_consistency(3, root, 3, root, [])


def test_an_empty_log_has_one_root_and_every_log_begins_with_it():
    merkle.verify_consistency(0, merkle.EMPTY_ROOT, 0, merkle.EMPTY_ROOT, [])
    merkle.verify_consistency(0, merkle.EMPTY_ROOT, 5, PATH[0], [])
    for old_root, size, root in ((merkle.EMPTY_ROOT, 0, PATH[0]), (PATH[0], 0, PATH[0]), (PATH[0], 5, PATH[0])):
        with pytest.raises(AuditBrokenError):
            merkle.verify_consistency(0, old_root, size, root, [])


def test_an_entry_is_shown_in_the_longest_log_there_can_be_and_in_no_longer_one():
    leaf, root = leaf_hash(b"first"), independent.root_by_path(leaf_hash(b"first"), 0, merkle.SIZE_MAX, PATH)
    merkle.verify_inclusion(leaf, 0, merkle.SIZE_MAX, PATH, root)
    assert independent.root_by_path(leaf, 0, merkle.SIZE_MAX + 1, PATH) == root
    with pytest.raises(AuditBrokenError):
        merkle.verify_inclusion(leaf, 0, merkle.SIZE_MAX + 1, PATH, root)


def test_the_format_page_names_every_label_and_event_the_code_writes():
    project = Path(__file__).parent.parent
    page = "".join((project / "docs" / name).read_text("utf-8") for name in ("format.md", "keys.md"))
    package = project / "evidence_archive"
    sources = [
        *(package / "sealing").glob("*.py"),
        *(package / "proof").glob("*.py"),
        *(package / "keys").glob("*.py"),
        package / "vault.py",
        package / "anchors.py",
    ]
    code = "".join(source.read_text("utf-8") for source in sources)
    labels = set(re.findall(r'b"(evidence-archive/[a-z0-9/-]+)', code))
    assert len(labels) >= 12
    assert {label for label in labels if label not in page} == set()
    assert {event for event in leaves.EVENTS if f"`{event}`" not in page} == set()
