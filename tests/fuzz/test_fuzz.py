"""What the fuzzers hold, without a fuzzer: on their seeds, and on inputs that Hypothesis derives from them."""

import importlib
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parent))
import fuzz_checkpoint
import fuzz_encoding
import fuzz_envelope
import fuzz_messages
import fuzz_proof
from run import TARGETS

from evidence_archive import policy
from evidence_archive.errors import AuditBrokenError, FormatError
from evidence_archive.model import ce_read
from evidence_archive.proof import checkpoint, leaf
from evidence_archive.sealing import envelope
from evidence_archive.session import Session

INPUTS = settings(max_examples=2_000)


def spliced(seeds: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
    """Bytes of any kind, and seeds with a part taken out and another put in."""

    def splice(seed: bytes, at: int, gone: int, new: bytes) -> bytes:
        at %= len(seed) + 1
        return seed[:at] + new + seed[at + gone :]

    any_seed = st.sampled_from(seeds)
    pieces = st.binary(max_size=40) | any_seed
    return st.binary(max_size=300) | st.builds(splice, any_seed, st.integers(0, 4_000), st.integers(0, 40), pieces)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    fuzz_messages.close()


def test_the_targets_are_those_that_have_to_be_fuzzed():
    assert TARGETS == (
        "fuzz_checkpoint",
        "fuzz_encoding",
        "fuzz_envelope",
        "fuzz_messages",
        "fuzz_policy",
        "fuzz_proof",
    )


@pytest.mark.parametrize("name", TARGETS)
def test_no_seed_breaks_a_property(name: str):
    target: Any = importlib.import_module(name)
    for seed in target.SEEDS:
        target.one(seed)


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_property(name: str):
    target: Any = importlib.import_module(name)

    @INPUTS
    @given(spliced(target.SEEDS))
    def holds(data: bytes) -> None:
        target.one(data)

    holds()


def lenient_entry(data: bytes) -> Any:
    """An entry in any form that can be read at all."""
    try:
        return leaf._parse(ce_read(data))
    except (FormatError, ValueError, RecursionError) as error:
        raise AuditBrokenError("no entry") from error


def unsigned_head(note: Any, key: Any) -> Any:
    """A head that nobody's signature is looked for."""
    try:
        return checkpoint._head_of(checkpoint._split_note(note)[0])
    except IndexError as error:
        raise AuditBrokenError("no head") from error


SPACED = fuzz_encoding.SEEDS[7].replace(b"{}", b"{ }")
OTHER_SIZE = fuzz_checkpoint.SEEDS[1].replace(b"70", b"71")
NAIVE: dict[str, tuple[Any, str, Any, bytes]] = {
    "fuzz_envelope": (envelope, "_unpacked", lambda packed, size: packed, fuzz_envelope.SEEDS[5]),
    "fuzz_encoding": (fuzz_encoding, "decode_leaf", lenient_entry, SPACED),
    "fuzz_checkpoint": (fuzz_checkpoint, "open_checkpoint", unsigned_head, OTHER_SIZE),
    "fuzz_proof": (fuzz_proof, "verify_inclusion", lambda *_: None, fuzz_proof.SEEDS[5]),
    "fuzz_policy": (policy, "read_file", tomllib.loads, b"a = "),
    "fuzz_messages": (Session, "view", lambda self, messages: [one["role"] for one in messages], b"[1]"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_must_fail_control_what_believes_too_much_breaks_a_property(name: str, monkeypatch: pytest.MonkeyPatch):
    target: Any = importlib.import_module(name)
    module, attribute, naive, data = NAIVE[name]
    target.one(data)
    monkeypatch.setattr(module, attribute, naive)
    with pytest.raises((AssertionError, TypeError, ValueError)):
        target.one(data)
