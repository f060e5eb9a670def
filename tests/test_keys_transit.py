"""Keys in Vault's transit engine, against a stand-in for it: bound to their place, told apart, never in a log."""

import base64
import copy
import hashlib
import logging
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from key_services import Answer, Drop, TransitKey, VaultDoor, vault_error

pytest.importorskip("hvac", reason="sweep: hvac is not installed")

from evidence_archive.errors import (
    EvidenceArchiveError,
    FormatError,
    KeyNotFoundError,
    KeyringError,
    MisuseError,
    SealBrokenError,
    WrongKeyError,
)
from evidence_archive.keys import open_provider, unwrap_checked
from evidence_archive.keys.service import org_name
from evidence_archive.keys.transit import ANSWER_BYTES_MAX, TransitKeys
from evidence_archive.ports import KeyProvider
from evidence_archive.testing import KeyProviderContract

ORG, OTHER_ORG = "north-clinic", "south-clinic"
CONTEXT = b"the place it belongs to"
NAME = f"evidence-archive-{org_name(ORG)}"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    """A token made at run time, and nothing else of Vault in the environment."""
    for name in (name for name in os.environ if name.startswith("VAULT_")):
        monkeypatch.delenv(name)
    made = f"hvs.{os.urandom(20).hex()}"
    monkeypatch.setenv("VAULT_TOKEN", made)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    return made


@pytest.fixture
def door(token: str) -> Iterator[VaultDoor]:
    opened = VaultDoor()
    opened.tokens.add(token)
    with opened:
        yield opened


@pytest.fixture
def keys(door: VaultDoor) -> TransitKeys:
    """A provider with one version for each org, that has nothing remembered."""
    made = TransitKeys(door.url)
    for org in (ORG, OTHER_ORG):
        made.new_version(org)
        made.forget(org)
    door.take_asked()
    return made


class TestTransitKeys(KeyProviderContract):
    @pytest.fixture(autouse=True)
    def _service(self, door: VaultDoor) -> None:
        self.url = door.url

    def make(self, folder: Path) -> KeyProvider:
        keys = self.reopen(folder)
        for org in (ORG, OTHER_ORG):
            keys.new_version(org)  # type: ignore[attr-defined]
        return keys

    def reopen(self, folder: Path) -> KeyProvider:
        name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        return open_provider(f"transit:{self.url}/transit?key={name}")


# --- what is asked --------------------------------------------------------------------------------------------------


def test_a_key_is_wrapped_and_unwrapped_in_one_request_each_and_the_rest_is_remembered(
    keys: TransitKeys, door: VaultDoor
):
    key = os.urandom(32)
    wrapped = keys.wrap(ORG, keys.current_version(ORG), key, CONTEXT)
    assert door.take_asked() == ["read", "encrypt"]
    keys.fingerprint(ORG, 1)
    assert door.take_asked() == ["hmac"]
    for _ in range(3):
        keys.fingerprint(ORG, keys.current_version(ORG))
    assert door.take_asked() == []
    assert keys.unwrap(ORG, 1, wrapped, CONTEXT) == key
    keys.wrap(ORG, 1, key, CONTEXT)
    assert door.take_asked() == ["decrypt", "encrypt"]
    assert door.connections == 1


def test_what_is_remembered_counts_for_its_time_and_not_a_moment_longer(keys: TransitKeys, door: VaultDoor):
    now = [0]
    mine = TransitKeys(door.url, clock_ms=lambda: now[0])
    mine.fingerprint(ORG, mine.current_version(ORG))
    keys.new_version(ORG)
    door.take_asked()
    now[0] = 299_999
    mine.fingerprint(ORG, mine.current_version(ORG))
    assert door.take_asked() == []
    now[0] = 300_000
    assert mine.current_version(ORG) == 2
    mine.fingerprint(ORG, 1)
    assert door.take_asked() == ["read", "hmac"]
    door.fault = lambda operation, asked: vault_error(503, "Vault is sealed")
    now[0] = 600_000
    for use in (lambda: mine.current_version(ORG), lambda: mine.fingerprint(ORG, 1)):
        with pytest.raises(KeyringError, match="sealed"):
            use()


def test_what_is_sent_says_nothing_of_org_and_place_but_digests(keys: TransitKeys, door: VaultDoor):
    key = os.urandom(32)
    keys.current_version(ORG)
    door.seen.clear()
    keys.unwrap(ORG, 1, keys.wrap(ORG, 1, key, CONTEXT), CONTEXT)
    encrypt, decrypt = door.seen
    assert encrypt.keys() == {"plaintext", "associated_data", "key_version"}
    assert decrypt.keys() == {"ciphertext", "associated_data"}
    assert encrypt["associated_data"] == decrypt["associated_data"]
    assert len(base64.b64decode(encrypt["associated_data"])) == 32
    assert base64.b64decode(encrypt["plaintext"])[:32] == key
    assert decrypt["ciphertext"].startswith("vault:v1:")
    assert set(door.keys) == {NAME, f"evidence-archive-{org_name(OTHER_ORG)}"}


def test_the_namespace_and_a_deep_mount_are_used(door: VaultDoor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VAULT_NAMESPACE", "team/archive")
    door.mount = "secret/of/transit"
    keys = open_provider(f"transit:{door.url}/secret/of/transit?key=ours")
    assert keys.new_version(ORG) == 1  # type: ignore[attr-defined]
    assert door.namespaces == {"team/archive"}
    assert list(door.keys) == [f"ours-{org_name(ORG)}"]


def test_a_key_is_made_as_it_has_to_be(keys: TransitKeys, door: VaultDoor):
    made = next(given for given in door.seen if "type" in given)
    assert made == {"type": "aes256-gcm96", "derived": False, "exportable": False, "allow_plaintext_backup": False}


@pytest.mark.parametrize("size_bytes", [0, 31, 33, 4096])
def test_only_keys_are_wrapped(keys: TransitKeys, door: VaultDoor, size_bytes: int):
    with pytest.raises(FormatError):
        keys.wrap(ORG, 1, bytes(size_bytes), CONTEXT)
    assert door.take_asked() == []


# --- faults ---------------------------------------------------------------------------------------------------------

SECRET = bytes(range(100, 132))
"""What a service that fails has seen, and says wherever it can."""

TOLD = f"it was {SECRET.hex()} and {base64.b64encode(SECRET).decode()}"


def dropped(operation: str, asked: dict[str, Any]) -> Answer:
    raise Drop


def answering(answer: Any) -> Callable[[str, dict[str, Any]], Answer]:
    return lambda operation, asked: answer


def data(**fields: Any) -> Callable[[str, dict[str, Any]], Answer]:
    return answering((200, {"data": {"ciphertext": "vault:v1:AAAA", **fields}}))


def text(given: bytes) -> str:
    return base64.b64encode(given).decode()


Fault = Callable[[str, dict[str, Any]], Answer | None] | str

FAULTS: dict[str, tuple[Fault, type[EvidenceArchiveError], str]] = {
    "timeout": ("slow", KeyringError, "ReadTimeout"),
    "cut": (dropped, KeyringError, "cannot be asked"),
    "away": ("away", KeyringError, "cannot be asked"),
    "throttled": (answering(vault_error(429, TOLD)), KeyringError, "slow down"),
    "sealed": (answering(vault_error(503, "Vault is sealed", TOLD)), KeyringError, "sealed"),
    "internal": (answering(vault_error(500, TOLD)), KeyringError, "InternalServerError"),
    "gateway": (answering((502, b"<html>" + TOLD.encode())), KeyringError, "BadGateway"),
    "performance standby": (answering(vault_error(473, TOLD)), KeyringError, "UnexpectedError"),
    "redirected": (answering((307, None)), KeyringError, "something else"),
    "denied": (answering(vault_error(403, "permission denied", TOLD)), KeyringError, "check the token"),
    "unauthorized": (answering(vault_error(401, TOLD)), KeyringError, "check the token"),
    "no such mount": (answering(vault_error(404, TOLD)), KeyringError, "mount"),
    "bad request": (answering(vault_error(400, TOLD)), KeyringError, "type"),
    "errors are text": (answering((400, {"errors": TOLD})), KeyringError, "Vault"),
    "nothing": (answering((200, b"")), KeyringError, "something else"),
    "no content": (answering((204, None)), KeyringError, "something else"),
    "not JSON": (answering((200, TOLD.encode())), KeyringError, "something else"),
    "a list": (answering((200, [TOLD])), KeyringError, "something else"),
    "no data": (answering((200, {"data": None})), KeyringError, "something else"),
    "no field": (data(), KeyringError, "something else"),
    "a number": (data(plaintext=7), KeyringError, "something else"),
    "not base64": (data(plaintext="%%%", ciphertext="vault:v1:%%%"), KeyringError, "something else"),
    "base64 of another spelling": (data(plaintext="AAB="), KeyringError, "something else"),
    "another version": (
        data(plaintext=text(SECRET), ciphertext=f"vault:v2:{text(bytes(92))}"),
        KeyringError,
        "not what was wrapped",
    ),
    "no version": (data(plaintext=text(SECRET), ciphertext=text(bytes(92))), KeyringError, "not what was wrapped"),
    "plaintext for ciphertext": (
        data(plaintext=text(SECRET), ciphertext=f"vault:v1:{text(bytes(64))}"),
        KeyringError,
        "not what was wrapped",
    ),
    "key of another length": (data(plaintext=text(SECRET * 2 + b"x")), KeyringError, "not what was wrapped"),
    "another key": (data(plaintext=text(SECRET * 2)), KeyringError, "not what was wrapped"),
    "without end": (answering((200, b" " * (ANSWER_BYTES_MAX + 1))), KeyringError, "cannot be asked"),
}


def shown(error: BaseException) -> str:
    """All that an error tells, its causes too."""
    chain = [error]
    while (link := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(link)
    return "".join(traceback.format_exception(error)) + "".join(
        repr(one) + str(one) + repr(one.args) + repr(vars(one)) for one in chain
    )


def tell_no_secret(told: str, *secrets: bytes | str) -> None:
    for one in secrets:
        forms = [one] if isinstance(one, str) else [one.hex(), base64.b64encode(one).decode()[:40], repr(one)[2:-1]]
        for form in forms:
            assert form not in told


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_of_the_service_is_an_error_of_its_kind_and_over_when_the_fault_is(
    keys: TransitKeys, door: VaultDoor, token: str, name: str, caplog: pytest.LogCaptureFixture
):
    fault, kind, words = FAULTS[name]
    caplog.set_level(logging.DEBUG)
    key = os.urandom(32)
    wrapped = keys.wrap(ORG, 1, key, CONTEXT)
    mark = keys.fingerprint(ORG, 1)
    door.take_asked()
    used = keys
    if fault == "slow":
        door.fault = door.slow
        used = TransitKeys(door.url, read_ms=300)
        used._memory, used._marks = keys._memory, keys._marks
    elif fault == "away":
        door.close()
    else:
        assert callable(fault)
        door.fault = fault
    with pytest.raises(KeyringError) as caught:
        unwrap_checked(used, ORG, version=1, fingerprint=mark, wrapped=wrapped, context=CONTEXT)
    assert type(caught.value) in (kind, KeyNotFoundError if name == "no such mount" else kind)
    assert words in str(caught.value) or name == "no such mount"
    tell_no_secret(shown(caught.value), key, SECRET, token)
    looked = ["read"] if name in ("denied", "no such mount", "bad request", "errors are text") else []
    assert door.take_asked() == ([] if fault == "away" else ["decrypt", *looked])
    with pytest.raises(KeyringError) as caught:
        used.wrap(ORG, 1, key, CONTEXT)
    tell_no_secret(shown(caught.value) + repr(used) + caplog.text, key, SECRET, token)
    door.fault = None
    if fault == "away":
        door.open()
    assert keys.unwrap(ORG, 1, wrapped, CONTEXT) == key


READS: dict[str, dict[str, Any]] = {
    "another type": {"type": "chacha20-poly1305"},
    "derived": {"derived": True},
    "no type": {"type": None},
    "latest is text": {"latest_version": "1"},
    "latest is true": {"latest_version": True},
    "latest is not there": {"latest_version": 2},
    "no floor": {"min_decryption_version": None},
    "keys are a list": {"keys": [1]},
    "a version that is none": {"keys": {"1": 1, "x": 2}},
    "no keys": {"keys": {}},
    "trimmed is text": {"min_available_version": "1"},
}


@pytest.mark.parametrize("name", READS)
def test_a_key_that_is_not_as_it_has_to_be_is_an_error_and_not_remembered(
    keys: TransitKeys, door: VaultDoor, name: str
):
    _, described = door.keys[NAME].described()
    door.fault = answering((200, {"data": {**described["data"], **READS[name]}}))
    for use in (
        lambda: keys.current_version(ORG),
        lambda: keys.fingerprint(ORG, 1),
        lambda: keys.versions(ORG),
        lambda: keys.new_version(ORG),
    ):
        with pytest.raises(KeyringError, match=r"something else|type aes256-gcm96"):
            use()
    door.fault = None
    assert keys.current_version(ORG) == 1


def test_a_mark_that_is_none_is_an_error(keys: TransitKeys, door: VaultDoor):
    keys.current_version(ORG)
    for mark in ("", "AAAA", f"vault:v2:{text(bytes(32))}", f"vault:v1:{text(bytes(31))}", 7):
        door.fault = data(hmac=mark)
        with pytest.raises(KeyringError, match="something else"):
            keys.fingerprint(ORG, 1)
    door.fault = None
    assert len(keys.fingerprint(ORG, 1)) == 16


def test_a_token_that_expired_is_read_again_from_its_file_within_the_same_request(
    door: VaultDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
):
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    monkeypatch.delenv("VAULT_TOKEN")
    monkeypatch.setenv("VAULT_TOKEN_FILE", str(file))
    keys = TransitKeys(door.url)
    keys.new_version(ORG)
    wrapped = keys.wrap(ORG, 1, bytes(32), CONTEXT)
    fresh = f"hvs.{os.urandom(20).hex()}"
    door.tokens = {fresh}
    door.take_asked()
    with pytest.raises(KeyringError, match="check the token"):
        keys.unwrap(ORG, 1, wrapped, CONTEXT)
    assert door.take_asked() == ["decrypt", "read"], "with the same token it is not tried again"
    file.write_text(fresh)
    assert keys.unwrap(ORG, 1, wrapped, CONTEXT) == bytes(32)
    assert door.take_asked() == ["read", "read", "decrypt"]
    keys.wrap(ORG, 1, bytes(32), CONTEXT)
    assert door.take_asked() == ["encrypt"]
    file.unlink()
    keys.wrap(ORG, 1, bytes(32), CONTEXT)
    door.tokens = set()
    with pytest.raises(KeyringError, match="VAULT_TOKEN_FILE"):
        keys.wrap(ORG, 1, bytes(32), CONTEXT)


@pytest.mark.parametrize("value", ["", " ", "two words", "line\nbreak", "\u00fcber", "x" * 9_000])
def test_a_token_that_is_none_is_an_error_that_does_not_repeat_it(
    door: VaultDoor, monkeypatch: pytest.MonkeyPatch, value: str, tmp_path: Path
):
    monkeypatch.setenv("VAULT_TOKEN", value)
    with pytest.raises(KeyringError, match="no token") as caught:
        TransitKeys(door.url).current_version(ORG)
    assert not value.strip() or value not in shown(caught.value)
    monkeypatch.delenv("VAULT_TOKEN")
    (tmp_path / "token").write_bytes(value.encode())
    monkeypatch.setenv("VAULT_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(KeyringError, match="no token"):
        TransitKeys(door.url).current_version(ORG)
    assert door.take_asked() == []


def test_a_service_that_was_restarted_is_used_again(keys: TransitKeys, door: VaultDoor):
    wrapped = keys.wrap(ORG, 1, bytes(32), CONTEXT)
    door.close()
    with pytest.raises(KeyringError, match="cannot be asked"):
        keys.wrap(ORG, 1, bytes(32), CONTEXT)
    door.open()
    assert keys.unwrap(ORG, 1, wrapped, CONTEXT) == bytes(32)


def test_a_key_that_was_destroyed_as_a_whole_is_missing_and_not_made_again(keys: TransitKeys, door: VaultDoor):
    wrapped, mark = keys.wrap(ORG, 1, bytes(32), CONTEXT), keys.fingerprint(ORG, 1)
    del door.keys[NAME]
    with pytest.raises(KeyNotFoundError):
        unwrap_checked(keys, ORG, version=1, fingerprint=mark, wrapped=wrapped, context=CONTEXT)
    keys.wrap(OTHER_ORG, 1, bytes(32), CONTEXT)
    with pytest.raises(KeyNotFoundError):
        keys.wrap(ORG, 1, bytes(32), CONTEXT)
    assert NAME not in door.keys


def test_a_key_that_was_made_anew_under_the_same_name_is_a_wrong_key_and_no_damage(
    keys: TransitKeys, door: VaultDoor
):
    wrapped, mark = keys.wrap(ORG, 1, bytes(32), CONTEXT), keys.fingerprint(ORG, 1)
    door.keys[NAME] = TransitKey(NAME, {})
    for _ in range(2):  # what is remembered of the old key, and what is asked anew
        with pytest.raises(WrongKeyError):
            unwrap_checked(keys, ORG, version=1, fingerprint=mark, wrapped=wrapped, context=CONTEXT)


def test_must_fail_control_without_a_look_at_the_mark_such_a_key_looks_like_damage(
    keys: TransitKeys, door: VaultDoor
):
    wrapped = keys.wrap(ORG, 1, bytes(32), CONTEXT)
    door.keys[NAME] = TransitKey(NAME, {})
    with pytest.raises(SealBrokenError):
        keys.unwrap(ORG, 1, wrapped, CONTEXT)


def test_a_vault_that_ignores_associated_data_is_noticed(keys: TransitKeys, door: VaultDoor):
    encrypt, decrypt = door.keys[NAME].encrypt, door.keys[NAME].decrypt

    def ignoring(operation: str, asked: dict[str, Any]) -> Answer | None:
        work = {"encrypt": encrypt, "decrypt": decrypt}.get(operation)
        return work({**asked, "associated_data": ""}) if work else None

    door.fault = ignoring
    wrapped = keys.wrap(ORG, 1, bytes(32), CONTEXT)
    assert keys.unwrap(ORG, 1, wrapped, CONTEXT) == bytes(32)
    with pytest.raises(KeyringError, match="binds the data"):
        keys.unwrap(ORG, 1, wrapped, b"elsewhere")


def test_no_log_record_has_a_key_or_a_token(keys: TransitKeys, caplog: pytest.LogCaptureFixture, token: str):
    caplog.set_level(logging.DEBUG)
    key = os.urandom(32)
    keys.unwrap(ORG, 1, keys.wrap(ORG, 1, key, CONTEXT), CONTEXT)
    assert caplog.records
    tell_no_secret("".join(record.getMessage() + repr(record.args) for record in caplog.records), key, token)


# --- versions -------------------------------------------------------------------------------------------------------


def test_a_retired_version_is_trimmed_and_its_secret_gone(keys: TransitKeys, door: VaultDoor):
    keys.new_version(ORG)
    keys.retire(ORG, 1)
    assert list(door.keys[NAME].secrets) == [2]
    door.take_asked()
    keys.retire(ORG, 1)
    assert door.take_asked() == ["read"]


def test_an_older_version_is_never_destroyed_in_passing(keys: TransitKeys, door: VaultDoor):
    for _ in range(2):
        keys.new_version(ORG)
    with pytest.raises(KeyringError, match="retire version 1 first"):
        keys.retire(ORG, 2)
    assert list(door.keys[NAME].secrets) == [1, 2, 3]
    keys.retire(ORG, 1)
    keys.retire(ORG, 2)
    assert list(door.keys[NAME].secrets) == [3]


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_retirement_that_was_cut_off_is_brought_to_its_end(keys: TransitKeys, door: VaultDoor, step: int):
    keys.new_version(ORG)
    done: list[str] = []

    def cut(operation: str, asked: dict[str, Any]) -> Answer | None:
        done.append(operation)
        return vault_error(500) if len(done) > step else None

    door.fault = cut
    with pytest.raises(KeyringError):
        keys.retire(ORG, 1)
    door.fault = None
    keys.retire(ORG, 1)
    assert done[: step + 1] == ["read", "config", "config", "trim"][: step + 1]
    assert list(door.keys[NAME].secrets) == [2]


def test_a_floor_that_somebody_else_set_is_never_lowered(keys: TransitKeys, door: VaultDoor):
    for _ in range(3):
        keys.new_version(ORG)
    door.keys[NAME].least_decryption = 3
    assert keys.versions(ORG) == (3, 4)
    keys.retire(ORG, 1)
    assert (door.keys[NAME].least_decryption, door.keys[NAME].available) == (3, 2)
    assert list(door.keys[NAME].secrets) == [2, 3, 4]


def test_a_vault_that_tells_of_the_key_when_it_rotates_is_understood_too(keys: TransitKeys, door: VaultDoor):
    def told(operation: str, asked: dict[str, Any]) -> Answer | None:
        if operation != "rotate":
            return None
        door.keys[NAME].rotate()
        return door.keys[NAME].described()

    door.fault = told
    assert keys.new_version(ORG) == 2


def test_an_org_without_a_key_gets_none_in_passing(door: VaultDoor):
    keys = TransitKeys(door.url)
    for use in (lambda: keys.current_version(ORG), lambda: keys.wrap(ORG, 1, bytes(32), CONTEXT)):
        with pytest.raises(KeyNotFoundError):
            use()
    with pytest.raises(KeyNotFoundError, match="for a new org make its first version"):
        keys.current_version(ORG)
    with pytest.raises(KeyNotFoundError, match="use the service that this store was sealed with"):
        keys.unwrap(ORG, 1, b"whatever was wrapped there", CONTEXT)  # where all keys are lost, none is to be made
    assert keys.versions(ORG) == ()
    keys.retire(ORG, 1)
    assert set(door.take_asked()) == {"read"}
    assert door.keys == {}


# --- opening --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where",
    [
        "",
        "transit",
        "https://",
        "http://vault.example.com:8200/transit",
        "ftp://127.0.0.1/transit",
        "https://made:up-secret@127.0.0.1/transit",
        "https://up-secret@127.0.0.1/transit",
        "https://127.0.0.1:8200",
        "https://127.0.0.1:0/transit",
        "https://127.0.0.1/transit?token=up-secret",
        "https://127.0.0.1/transit?up-secret",
        "https://127.0.0.1/transit?key=a&key=b",
        "https://127.0.0.1/transit?key=a/b",
        "https://127.0.0.1/transit?key=",
        "https://127.0.0.1/../sys?key=a",
        "https://127.0.0.1/transit%2F..%2Fsys",
        "https://127.0.0.1/transit#up-secret",
    ],
)
def test_a_place_that_cannot_be_used_is_refused_and_not_repeated(where: str):
    with pytest.raises(KeyringError) as caught:
        open_provider(f"transit:{where}")
    assert "up-secret" not in shown(caught.value)


def test_a_provider_shows_where_it_is_and_is_neither_copied_nor_pickled(keys: TransitKeys, door: VaultDoor):
    assert repr(keys) == f"<TransitKeys Vault at {door.url}/transit>"
    for use in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(MisuseError):
            use(keys)


def test_without_the_extra_the_error_names_it(door: VaultDoor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "hvac", None)
    with pytest.raises(KeyringError, match=r"evidence-archive\[transit\]"):
        TransitKeys(door.url)
