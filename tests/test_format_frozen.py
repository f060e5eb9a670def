"""What was stored once opens for ever: by the second decoder, and by the library, which brings it up to date."""

import base64
import hmac
import io
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import independent_decoder as independent
import pytest
from conftest import Desk
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from independent_decoder import NotWhatWasSealed, Unwrap

from evidence_archive import Policy, Principal
from evidence_archive.backup import restore_backup
from evidence_archive.errors import AuditBrokenError, ShreddedError
from evidence_archive.evidence import verify_bundle
from evidence_archive.keys import open_provider, unwrap_checked
from evidence_archive.keys.service import Known, ServiceKeys
from evidence_archive.proof.checkpoint import VerifierKey, open_checkpoint

GOLDEN = json.loads((Path(__file__).parent / "vectors" / "stored-golden.json").read_text("utf-8"))
KEY_FILE = json.dumps(GOLDEN["key_file"]).encode()
LINE = GOLDEN["verifier"]
KEEPER = Principal("north-clinic", "triage-agent", {"agent", "custodian"})
SERVICES = [pytest.param(one, id=one["form"]) for one in GOLDEN["services"]]


def unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def exact(content: Any) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    return json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode("ascii")


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    for name, text in GOLDEN["backup"].items():
        path = tmp_path / "backup" / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(unpacked(text))
    return tmp_path / "backup"


# --- the second decoder ---------------------------------------------------------------------------------------------


def test_the_second_decoder_reads_the_frozen_backup(backup: Path):
    (org,) = independent.read_backup(backup, independent.roots_unwrap(KEY_FILE)).values()
    found = {result_id: one["data"] for (_, result_id), one in org.originals.items()}
    assert found == {result_id: exact(content) for result_id, content in GOLDEN["originals"].items()}
    assert {result_id: note for (_, result_id), note in org.notes.items()} == GOLDEN["notes"]
    assert {result_id: part for (_, result_id), part in org.parts.items()} == GOLDEN["parts"]
    assert GOLDEN["reasons"].items() <= org.reasons.items()
    assert sorted(result_id for _, result_id in org.shredded) == GOLDEN["shredded"]
    assert org.line == LINE


def test_the_second_decoder_reads_the_frozen_files_beside_it(backup: Path):
    (org,) = independent.read_backup(backup, independent.roots_unwrap(KEY_FILE)).values()
    bundle = independent.read_bundle(unpacked(GOLDEN["bundle"]), LINE)
    assert bundle["originals"] == {"r2": exact(GOLDEN["originals"]["r2"])}
    acts = [act["entry"] for act in independent.read_register(unpacked(GOLDEN["register"]), LINE)]
    assert [one["event"] for one in acts].count("shred.requested") == 1
    assert acts == [org.entries[one["seq"]] for one in acts]
    heads = independent.read_anchor_file(unpacked(GOLDEN["heads"]), LINE)
    known = [(size, root) for size, root in heads if size <= len(org.hashes)]
    assert known
    assert all(independent.root_of(org.hashes[:size]) == root for size, root in known)


def opened_there(one: Mapping[str, str]) -> Unwrap:
    """Opens what a service wrapped, with its published test secret."""

    def there(org: str, version: int, sealed: bytes, place: bytes) -> bytes:
        return AESGCM(bytes.fromhex(one["test_secret"])).decrypt(sealed[:12], sealed[12:], place)

    return independent.service_unwrap(one["form"], lambda org, version: bytes.fromhex(one["identity"]), there)


@pytest.mark.parametrize("one", SERVICES)
def test_the_second_decoder_opens_the_frozen_keys_of_services(one: dict[str, Any]):
    unhex = {name: bytes.fromhex(one[name]) for name in ("fingerprint", "wrapped", "context", "test_key")}
    if one["form"] == "transit/1":
        label = independent.TRANSIT_MARK + independent.transit_name(one["org"]).encode()
        assert hmac.digest(bytes.fromhex(one["test_hmac_secret"]), label, "sha256").hex() == one["identity"]
    where = one["org"], one["version"], unhex["fingerprint"]
    assert opened_there(one)(*where, unhex["wrapped"], unhex["context"]) == unhex["test_key"]
    for at in range(len(unhex["wrapped"])):
        changed = bytearray(unhex["wrapped"])
        changed[at] ^= 1
        with pytest.raises(NotWhatWasSealed):
            opened_there(one)(*where, bytes(changed), unhex["context"])


@pytest.mark.parametrize("name", ["bundle", "register", "heads"])
def test_must_fail_control_a_frozen_file_with_a_signature_off_is_not_read(name: str):
    read = {
        "bundle": independent.read_bundle,
        "register": independent.read_register,
        "heads": independent.read_anchor_file,
    }[name]
    other = independent.key_line(LINE.partition("+")[0], os.urandom(32))
    with pytest.raises(NotWhatWasSealed):
        read(unpacked(GOLDEN[name]), other)


# --- the library ----------------------------------------------------------------------------------------------------


def test_the_library_puts_the_frozen_backup_back_and_restores_all_of_it(backup: Path, tmp_path: Path):
    desk = Desk(tmp_path)
    desk.keys.write_bytes(KEY_FILE)
    desk.keys.chmod(0o600)
    (tmp_path / "register.jsonl").write_bytes(unpacked(GOLDEN["register"]))
    restored = restore_backup(
        backup,
        desk.url,
        keys=open_provider(desk.keys),
        policy=Policy.default(),
        subject="records",
        roles={"custodian"},
        replays=[str(tmp_path / "register.jsonl")],
    )
    assert [one.originals for one in restored.orgs] == [len(GOLDEN["originals"])]
    with desk.open() as archive:
        for result_id, content in GOLDEN["originals"].items():
            assert archive.restore("case-4711", result_id, principal=KEEPER).content == content
        for result_id in GOLDEN["shredded"]:
            with pytest.raises(ShreddedError):
                archive.restore("case-4711", result_id, principal=KEEPER)
        custody = archive.custody(KEEPER)
        assert custody.key() == LINE
        assert {one.id: one.reason for one in custody.holds()} == GOLDEN["reasons"]
        assert custody.verify("full").is_clean
    orgs = independent.read_archive(
        independent.read_database(desk.database),
        independent.roots_unwrap(KEY_FILE),
        independent.read_objects(desk.folder / "evidence.db.objects"),
    )
    assert orgs[KEEPER.org].entries[-1]["event"] == "store.verified", "what the library went on writing is read, too"


def test_the_library_verifies_the_frozen_bundle_and_heads():
    key = VerifierKey.parse(LINE)
    (result,) = verify_bundle(io.BytesIO(unpacked(GOLDEN["bundle"])), key).results
    assert (result.id, result.size_bytes) == ("r2", len(exact(GOLDEN["originals"]["r2"])))
    for line in unpacked(GOLDEN["heads"]).splitlines():
        told = json.loads(line)
        assert open_checkpoint(told["note"], key).size == told["size"]
        with pytest.raises(AuditBrokenError):
            open_checkpoint(told["note"].replace("\n", "\n1", 1), key)


class FrozenService(ServiceKeys):
    """A service with one key version, whose secret is published."""

    def __init__(self, one: Mapping[str, Any]) -> None:
        super().__init__(1_000, lambda: 0)
        self._FORM = one["form"]
        self._one = one

    def _list(self, listing: str) -> Mapping[str, Known]:
        return {listing: Known(self._one["version"], {self._one["version"]: "made-up"})}

    def _identity(self, org: str, version: int, name: str) -> bytes:
        return bytes.fromhex(self._one["identity"])

    def _encrypt(self, org: str, version: int, plaintext: bytes, place: bytes) -> bytes:
        nonce = os.urandom(12)
        return nonce + AESGCM(bytes.fromhex(self._one["test_secret"])).encrypt(nonce, plaintext, place)

    def _decrypt(self, org: str, version: int, sealed: bytes, place: bytes) -> bytes:
        return AESGCM(bytes.fromhex(self._one["test_secret"])).decrypt(sealed[:12], sealed[12:], place)

    def _source(self) -> str:
        return "a frozen service"


@pytest.mark.parametrize("one", SERVICES)
def test_the_library_opens_the_frozen_keys_of_services(one: dict[str, Any]):
    keys = FrozenService(one)
    unhex = {name: bytes.fromhex(one[name]) for name in ("fingerprint", "wrapped", "context", "test_key")}
    named = {"version": one["version"], "fingerprint": unhex["fingerprint"], "wrapped": unhex["wrapped"]}
    assert unwrap_checked(keys, one["org"], context=unhex["context"], **named) == unhex["test_key"]
    with pytest.raises(InvalidTag):
        unwrap_checked(keys, one["org"], context=b"elsewhere", **named)
