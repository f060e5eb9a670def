"""Signed heads and proofs: what verifies was logged and signed, and nothing else verifies."""

import base64
import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from evidence_archive.errors import AuditBrokenError, EvidenceArchiveError, FormatError
from evidence_archive.proof.checkpoint import (
    CHECKPOINT_BYTES_MAX,
    PROOF_BYTES_MAX,
    Checkpoint,
    Signer,
    VerifierKey,
    format_proof,
    open_checkpoint,
    open_proof,
)
from evidence_archive.proof.leaf import encode_leaf
from evidence_archive.proof.merkle import (
    EMPTY_ROOT,
    Frontier,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    root_of,
    verify_consistency,
    verify_inclusion,
)

VECTORS = Path(__file__).parent / "vectors"
NAME = "evidence-archive/000102030405060708090a0b0c0d0e0f"
LEAVES = [
    encode_leaf(org="north-clinic", seq=seq, time_us=seq, event="key.created", subject="host") for seq in range(70)
]
HASHES = [leaf_hash(leaf) for leaf in LEAVES]


@pytest.fixture
def signer() -> Signer:
    return Signer(NAME, os.urandom(32))


def refused(act: Callable[..., Any], *given_to: Any) -> bool:
    """Whether it is refused, and with the one error there is."""
    try:
        act(*given_to)
    except AuditBrokenError as error:
        assert str(error).endswith("."), "an error says something"  # noqa: PT017 - it is not expected everywhere
        return True
    return False


# --- the tree -------------------------------------------------------------------------------------------------------


def test_every_leaf_of_every_log_is_proven_at_its_place_and_at_no_other():
    for size in range(1, 40):
        root = root_of(HASHES[:size])
        for index in range(size):
            path = inclusion_proof(HASHES, index, size)
            verify_inclusion(HASHES[index], index, size, path, root)
            assert all(
                refused(verify_inclusion, HASHES[index], at, size, path, root) for at in range(size) if at != index
            )
            assert refused(verify_inclusion, HASHES[index + 1], index, size, path, root)
            assert refused(verify_inclusion, HASHES[index], index, size, [*path, HASHES[0]], root)
            assert refused(verify_inclusion, HASHES[index], index, size, path[:-1], root) or not path
            assert refused(verify_inclusion, HASHES[index], index, size, path, HASHES[0]) or size == 1


def test_every_log_is_shown_to_begin_with_every_shorter_one_and_with_no_other():
    for size in range(1, 40):
        root = root_of(HASHES[:size])
        for old in range(1, size + 1):
            path, old_root = consistency_proof(HASHES, old, size), root_of(HASHES[:old])
            verify_consistency(old, old_root, size, root, path)
            if old < size:
                forked = root_of([*HASHES[: old - 1], HASHES[old]])
                assert refused(verify_consistency, old, forked, size, root, path)
                assert refused(verify_consistency, old, old_root, size, root_of(HASHES[1 : size + 1]), path)
                assert refused(verify_consistency, old, old_root, size, root, [*path, HASHES[0]])
                assert refused(verify_consistency, old, old_root, size, root, path[:-1])
                assert refused(verify_consistency, old, old_root, size, root, [])
        verify_consistency(0, EMPTY_ROOT, size, root, [])
        assert refused(verify_consistency, 0, root, size, root, [])
        assert refused(verify_consistency, size + 1, root, size, root, [])
        assert refused(verify_consistency, -1, root, size, root, [])
        assert refused(verify_consistency, size, root[:-1], size, root, [])
        assert refused(verify_consistency, size, HASHES[69], size, root, [])


def naive_inclusion(leaf: bytes, index: int, size: int, path: list[bytes], root: bytes) -> None:
    """Folds the path from the bits of the index alone, as many have written it."""
    found = leaf
    for at, sibling in enumerate(path):
        left, right = (sibling, found) if index >> at & 1 else (found, sibling)
        found = sha256(b"\x01" + left + right).digest()
    if found != root:
        raise AuditBrokenError


def test_must_fail_control_a_verifier_that_does_not_look_at_the_size_accepts_another_place():
    """In a log of 4 with the path of leaf 0, an index of 4 has the same two lowest bits."""
    path, root = inclusion_proof(HASHES, 0, 4), root_of(HASHES[:4])
    naive_inclusion(HASHES[0], 4, 4, path, root)
    assert refused(verify_inclusion, HASHES[0], 4, 4, path, root)
    # An empty path proves anything to whoever takes the log's word for the root.
    naive_inclusion(root, 0, 4, [], root)
    assert refused(verify_inclusion, root, 0, 4, [], root)


@pytest.mark.parametrize(("index", "size"), [(-1, 4), (4, 4), (0, 0), (5, 4), (0, 71), (0, 2**63)])
def test_there_is_no_proof_of_what_is_not_there(index: int, size: int):
    with pytest.raises(AuditBrokenError):
        inclusion_proof(HASHES, index, size)
    with pytest.raises(AuditBrokenError):
        consistency_proof(HASHES, size + 1 if size else 0, size)


def test_proofs_are_made_in_one_pass_and_read_no_more_than_the_log():
    class Passing:
        """Hands out hashes once, and counts them."""

        count = 0

        def __iter__(self) -> "Passing":
            return self

        def __next__(self) -> bytes:
            self.count += 1
            return HASHES[self.count - 1]

    passing = Passing()
    inclusion_proof(passing, 20, 40)
    assert passing.count <= 40
    passing = Passing()
    consistency_proof(passing, 33, 40)
    assert passing.count <= 40


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=80), st.data())
def test_proofs_of_any_log_hold_against_the_frontier_that_appending_keeps(leaves: list[bytes], data: st.DataObject):
    hashes, frontier = [leaf_hash(leaf) for leaf in leaves], Frontier()
    for one in hashes:
        frontier.append(one)
    index = data.draw(st.integers(0, len(leaves) - 1))
    verify_inclusion(hashes[index], index, len(leaves), inclusion_proof(hashes, index, len(leaves)), frontier.root())
    old = index + 1
    path = consistency_proof(hashes, old, len(leaves))
    verify_consistency(old, root_of(hashes[:old]), len(leaves), frontier.root(), path)


# --- keys and checkpoints -------------------------------------------------------------------------------------------


def test_a_checkpoint_opens_with_its_key_and_says_what_was_signed(signer: Signer):
    note = signer.sign(70, root_of(HASHES))
    assert open_checkpoint(note, signer.verifier) == Checkpoint(NAME, 70, root_of(HASHES))
    assert open_checkpoint(note.encode(), signer.verifier).size == 70
    assert VerifierKey.parse(signer.verifier.text()) == signer.verifier


def test_a_frozen_checkpoint_and_proof_are_written_and_read_as_they_were():
    """The key in it is a test key."""
    frozen = json.loads((VECTORS / "checkpoint.json").read_text("utf-8"))
    signer = Signer(frozen["name"], bytes.fromhex(frozen["test_seed"]))
    assert signer.verifier.text() == frozen["verifier"]
    assert signer.sign(frozen["size"], root_of(HASHES[: frozen["size"]])) == frozen["note"]
    path = inclusion_proof(HASHES, frozen["index"], frozen["size"])
    assert format_proof(LEAVES[frozen["index"]], frozen["index"], path, frozen["note"]) == frozen["proof"]
    assert open_proof(frozen["proof"], signer.verifier).leaf.seq == frozen["index"]


def test_any_changed_character_of_a_checkpoint_is_refused(signer: Signer):
    note = signer.sign(70, root_of(HASHES))
    for at in range(len(note)):
        for other in ("0", "\n", "é", ""):
            changed = note[:at] + other + note[at + 1 :]
            assert changed == note or refused(open_checkpoint, changed, signer.verifier), at


@pytest.mark.parametrize(
    "text",
    [
        "{n}\n070\n{r}\n",
        "{n}\n+70\n{r}\n",
        "{n}\n70\n{r}\nextension\n",
        "{n}\n70\n\n{r}\n",
        "{n}\n70\nAAAA\n",
        "{n}\n99999999999999999999\n{r}\n",
        "{n}\n9999999999999999999\n{r}\n",
        "other/log\n70\n{r}\n",
        "70\n{r}\n",
        "{n}\n\u0667\u0660\n{r}\n",
    ],
)
def test_a_text_that_is_no_head_is_refused_though_the_key_signed_it(text: str):
    seed = os.urandom(32)
    signer = Signer(NAME, seed)
    good = signer.sign(70, root_of(HASHES))
    body = text.format(n=NAME, r=good.split("\n")[2])
    signature = Ed25519PrivateKey.from_private_bytes(seed).sign(body.encode())
    line = base64.b64encode(signer.verifier.key_id + signature).decode()
    assert refused(open_checkpoint, f"{body}\n\N{EM DASH} {NAME} {line}\n", signer.verifier)


def test_cosignatures_are_left_alone_and_a_bad_one_of_ours_condemns_the_note(signer: Signer):
    note = signer.sign(70, root_of(HASHES))
    witness = Signer("witness.example.com/w1", os.urandom(32))
    line = witness.sign(1, root_of(HASHES)).split("\n")[-2]
    assert open_checkpoint(note + line + "\n", signer.verifier).size == 70
    other = Signer(NAME, os.urandom(32)).sign(70, root_of(HASHES)).split("\n")[-2]
    assert open_checkpoint(note + other + "\n", signer.verifier).size == 70  # another key of the same name
    ours = signer.sign(71, root_of(HASHES)).split("\n")[-2]
    assert refused(open_checkpoint, note + ours + "\n", signer.verifier)
    assert refused(open_checkpoint, note, witness.verifier)
    assert refused(open_checkpoint, note.replace(note.split("\n")[-2], line), signer.verifier)


@pytest.mark.parametrize(
    "data", ["", "\n", "\n\n", "a", "a\n\n", b"\xff\xfe", "\ud800\n\n", "x" * (CHECKPOINT_BYTES_MAX + 1)]
)
def test_what_is_no_note_is_refused(data: Any, signer: Signer):
    assert refused(open_checkpoint, data, signer.verifier)
    assert refused(open_proof, data, signer.verifier)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a+b",
        "a+00000000+AAAA",
        "{n}+{i}+{k}x",
        "{n}+deadbeef+{k}",
        "{n} x+{i}+{k}",
        "x{n}+{i}+{k}",
        "{n}+{i}+{k}\n{n}",
        None,
        3,
    ],
)
def test_a_key_line_that_is_none_is_refused(text: Any, signer: Signer):
    name, key_id, key = signer.verifier.text().split("+", 2)
    given_text = text.format(n=name, i=key_id, k=key) if isinstance(text, str) else text
    with pytest.raises(FormatError):
        VerifierKey.parse(given_text)


def test_names_and_seeds_that_cannot_be_used_are_refused():
    for name in ("", "a b", "a+b", "a\nb", "x" * 256, "a\u2003b"):
        with pytest.raises(FormatError):
            Signer(name, os.urandom(32))
    with pytest.raises(FormatError):
        Signer(NAME, b"short")
    with pytest.raises(FormatError):
        Signer(NAME, os.urandom(32)).sign(-1, EMPTY_ROOT)
    with pytest.raises(FormatError):
        Signer(NAME, os.urandom(32)).sign(1, b"")


def test_a_signer_does_not_show_its_key():
    seed = os.urandom(32)
    assert seed.hex() not in repr(Signer(NAME, seed))


# --- proofs -----------------------------------------------------------------------------------------------------


def proof_of(signer: Signer, index: int = 33, size: int = 70) -> str:
    path = inclusion_proof(HASHES, index, size)
    return format_proof(LEAVES[index], index, path, signer.sign(size, root_of(HASHES[:size])))


def test_a_proof_opens_with_the_public_key_alone(signer: Signer):
    proof = open_proof(proof_of(signer), VerifierKey.parse(signer.verifier.text()))
    assert (proof.leaf.seq, proof.data, proof.checkpoint.size) == (33, LEAVES[33], 70)


def test_any_changed_line_of_a_proof_is_refused(signer: Signer):
    lines = proof_of(signer).split("\n")
    for at, line in enumerate(lines):
        for other in ("", line + "x", line[:-1], "A" + line[1:], lines[at - 1]):
            changed = "\n".join([*lines[:at], other, *lines[at + 1 :]])
            assert changed == "\n".join(lines) or refused(open_proof, changed, signer.verifier), (at, other)
        assert refused(open_proof, "\n".join(lines[:at] + lines[at + 1 :]), signer.verifier), at


def test_a_proof_under_another_log_or_key_is_refused(signer: Signer):
    proof = proof_of(signer)
    assert refused(open_proof, proof, Signer(NAME, os.urandom(32)).verifier)
    assert refused(open_proof, proof, VerifierKey("other/log", signer.verifier.public))
    elsewhere = Signer("evidence-archive/other", os.urandom(32))
    head, _, _ = proof.partition("\n\n")
    swapped = f"{head}\n\n{elsewhere.sign(70, root_of(HASHES))}"
    assert refused(open_proof, swapped, signer.verifier)


def test_an_entry_that_names_another_place_is_refused_though_the_tree_holds_it(signer: Signer):
    leaves = [LEAVES[1], LEAVES[0]]
    hashes = [leaf_hash(leaf) for leaf in leaves]
    note = signer.sign(2, root_of(hashes))
    assert refused(open_proof, format_proof(leaves[0], 0, inclusion_proof(hashes, 0, 2), note), signer.verifier)


def test_a_proof_that_is_too_long_is_refused_unread(signer: Signer):
    assert refused(open_proof, "x" * (PROOF_BYTES_MAX + 1), signer.verifier)


@given(st.binary(max_size=300) | st.text(max_size=300))
def test_whatever_it_is_it_is_refused_with_one_error(data: Any):
    key = VerifierKey(NAME, b"\x01" * 32)
    for act in (open_checkpoint, open_proof):
        with pytest.raises(EvidenceArchiveError):
            act(data, key)
