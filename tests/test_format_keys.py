"""What each key provider stores beside the data, opened by the second decoder with what the provider holds."""

import hashlib
import hmac
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import independent_decoder as independent
import pytest
from conftest import Conversation, Desk
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from independent_decoder import NotWhatWasSealed, Unwrap
from key_services import KmsDoor, VaultDoor, moto_server

from evidence_archive import Principal
from evidence_archive.keys import open_provider

KEEPER = Principal("north-clinic", "triage-agent", {"agent", "custodian"})
CONTENT = "14 timeouts, all on node 3\n" * 40
Opening = tuple[str, Callable[[], Unwrap]]
"""What ``keys=`` is, and how to open what was wrapped."""


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of AWS or Vault in the environment but what a test puts there."""
    for name in (name for name in os.environ if name.startswith(("AWS_", "VAULT_"))):
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


@pytest.fixture
def file(sqlite_desk: Desk) -> Opening:
    return str(sqlite_desk.keys), lambda: independent.roots_unwrap(sqlite_desk.keys.read_bytes())


@pytest.fixture
def command(tmp_path: Path) -> Opening:
    """The program of the documents, whose key file this test reads itself."""
    page = (Path(__file__).parents[1] / "docs" / "keys.md").read_text("utf-8")
    source = next(one for one in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "key-command/1" in one)
    (tmp_path / "program.py").write_text(source)
    kept = tmp_path / "program.keys"

    def secret(org: str, version: int) -> bytes:
        return bytes.fromhex(json.loads(kept.read_bytes())[org]["keys"][str(version)])

    def there(org: str, version: int, sealed: bytes, place: bytes) -> bytes:
        return AESGCM(secret(org, version)).decrypt(sealed[:12], sealed[12:], place)

    def identity(org: str, version: int) -> bytes:
        return hashlib.sha256(secret(org, version)).hexdigest().encode()

    where = f"command:{sys.executable} -I {tmp_path}/program.py {kept}"
    return where, lambda: independent.service_unwrap("command/1", identity, there)


@pytest.fixture
def kms(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opening]:
    """KMS as moto plays it; the second decoder asks it with nothing but the driver."""
    boto3 = pytest.importorskip("boto3", reason="sweep: boto3 is not installed")
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIDMADEUPFORATEST00",
        "AWS_SECRET_ACCESS_KEY": os.urandom(20).hex(),
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    with moto_server() as moto, KmsDoor(moto) as door:
        client = boto3.client("kms", region_name="eu-central-1", endpoint_url=door.url)

        def alias(org: str, version: int) -> str:
            return f"alias/test/{hashlib.sha256(org.encode()).hexdigest()[:32]}/v{version}"

        def identity(org: str, version: int) -> bytes:
            arn: str = client.describe_key(KeyId=alias(org, version))["KeyMetadata"]["Arn"]
            return arn.encode()

        def there(org: str, version: int, sealed: bytes, place: bytes) -> bytes:
            bound = {"evidence-archive": place.hex()}
            key_id = identity(org, version).decode()
            plaintext: bytes = client.decrypt(CiphertextBlob=sealed, KeyId=key_id, EncryptionContext=bound)[
                "Plaintext"
            ]
            return plaintext

        where = f"kms:alias/test?region=eu-central-1&endpoint={door.url}"
        yield where, lambda: independent.service_unwrap("kms/1", identity, there)
        client.close()


@pytest.fixture
def transit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opening]:
    """Vault as the stand-in plays it, whose secrets the second decoder uses itself."""
    pytest.importorskip("hvac", reason="sweep: hvac is not installed")
    monkeypatch.setenv("VAULT_TOKEN", token := f"hvs.{os.urandom(20).hex()}")
    with VaultDoor() as opened:
        assert isinstance(opened, VaultDoor)
        door = opened
        door.tokens.add(token)

        def identity(org: str, version: int) -> bytes:
            name = independent.transit_name(org)
            return hmac.digest(
                door.keys[name].secrets[version][1], independent.TRANSIT_MARK + name.encode(), "sha256"
            )

        def there(org: str, version: int, sealed: bytes, place: bytes) -> bytes:
            cipher = AESGCM(door.keys[independent.transit_name(org)].secrets[version][0])
            return cipher.decrypt(sealed[:12], sealed[12:], place)

        yield f"transit:{door.url}/transit", lambda: independent.service_unwrap("transit/1", identity, there)


def used(desk: Desk, keys: str) -> None:
    """Two sessions, one of them in its second generation, everything under the second key version."""
    provider: Any = open_provider(keys)
    if not provider.versions(KEEPER.org):
        provider.new_version(KEEPER.org)
    with desk.open(keys=keys) as archive:
        for name in ("case", "other"):
            session, talk = archive.session(name, KEEPER), Conversation()
            for letter in "AB":
                talk.tool(f"{name} {letter} {CONTENT}")
            talk.say()
            session.view(talk.messages)
            session.archive([("r1", "Node 3."), ("r2", "Node 3, again.")])
        archive.custody(KEEPER).shred(session_id="case", result_id="r2")
        archive.custody(KEEPER).rotate()


@pytest.mark.parametrize("provider", ["file", "command", "kms", "transit"])
def test_what_a_provider_wrapped_is_opened_with_what_it_holds_and_a_byte_off_is_noticed(
    sqlite_desk: Desk, provider: str, request: pytest.FixtureRequest
):
    keys, opening = request.getfixturevalue(provider)
    used(sqlite_desk, keys)
    unwrap, tables = opening(), independent.read_database(sqlite_desk.database)
    (org,) = independent.read_archive(tables, unwrap).values()
    found = {place: one["data"].decode() for place, one in org.originals.items()}
    kept = {("case", "r1"): "case A", ("other", "r1"): "other A", ("other", "r2"): "other B"}
    assert found == {place: f"{words} {CONTENT}" for place, words in kept.items()}
    assert {row["kek_version"] for row in (*tables["orgs"], *tables["scope_keys"])} == {2}
    assert {row["generation"] for row in tables["scope_keys"]} == {1, 2}

    (row,) = tables["orgs"]
    place = ("aux", row["deployment"], row["org"], None, None, 1, 2)
    context = b"evidence-archive/v1/wrap\0" + independent.fields_of(*place)
    wrapped, print_ = row["aux_wrapped"], row["kek_fingerprint"]
    assert len(unwrap(row["org"], 2, print_, wrapped, context)) == 32
    step = 7 if provider == "kms" else 1  # each try there is a request
    tried = [wrapped[:at] + bytes([wrapped[at] ^ 1]) + wrapped[at + 1 :] for at in range(0, len(wrapped), step)]
    for changed in (*tried, wrapped[:-1], wrapped + b"\0", b""):
        with pytest.raises(NotWhatWasSealed):
            unwrap(row["org"], 2, print_, changed, context)
    elsewhere = b"evidence-archive/v1/wrap\0" + independent.fields_of(*place[:2], "south-clinic", *place[3:])
    for given in ((print_, wrapped, elsewhere), (bytes(16), wrapped, context)):
        with pytest.raises(NotWhatWasSealed):
            unwrap(row["org"], 2, *given)
    for scope in tables["scope_keys"]:
        with pytest.raises(NotWhatWasSealed):
            unwrap(row["org"], 2, print_, scope["wrapped"], context)


def test_a_variable_holds_what_a_key_file_holds(sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MADE_UP_KEYS", sqlite_desk.keys.read_text("ascii"))
    with sqlite_desk.open(keys="env:MADE_UP_KEYS") as archive:
        archive.session("case", KEEPER)
    unwrap = independent.roots_unwrap(os.environ["MADE_UP_KEYS"].encode())
    assert set(independent.read_archive(independent.read_database(sqlite_desk.database), unwrap)) == {KEEPER.org}


def test_the_check_value_tells_what_a_service_made_up_and_must_fail_control_without_it_that_is_believed(
    monkeypatch: pytest.MonkeyPatch,
):
    key, other, context = os.urandom(32), os.urandom(32), b"the place it belongs to"
    label = b"evidence-archive/v1/key-service-fingerprint\0"
    named = hashlib.sha256(label + independent.fields_of("command/1", "north-clinic", 1, b"name")).digest()[:16]
    bound = hashlib.sha256(
        b"evidence-archive/v1/key-service-place\0" + independent.fields_of("north-clinic", 1, context)
    ).digest()
    check = hmac.digest(key, b"evidence-archive/v1/key-service-check\0" + bound, "sha256")
    wrapped = independent.fields_of("command/1", 1, b"whatever")

    def careless(answer: bytes) -> Unwrap:
        return independent.service_unwrap("command/1", lambda org, version: b"name", lambda *asked: answer)

    assert careless(key + check)("north-clinic", 1, named, wrapped, context) == key
    for answer, place in ((other + check, context), (key + check, b"another place"), (key, context)):
        with pytest.raises(NotWhatWasSealed):
            careless(answer)("north-clinic", 1, named, wrapped, place)
    monkeypatch.setattr(independent, "need", lambda holds, words: None)
    for answer, place in ((other + check, context), (key + check, b"another place")):
        assert careless(answer)("north-clinic", 1, named, wrapped, place) == answer[:32]
