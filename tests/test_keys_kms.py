"""Keys in AWS KMS: found by their aliases, bound to their place, and every refusal told apart without its words."""

import base64
import copy
import hashlib
import json
import logging
import os
import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from key_services import Answer, Drop, KmsDoor, kms_error, moto_server

pytest.importorskip("boto3", reason="sweep: boto3 is not installed")

from evidence_archive.errors import (
    EvidenceArchiveError,
    FormatError,
    KeyNotFoundError,
    KeyringError,
    MisuseError,
    SealBrokenError,
)
from evidence_archive.keys import kms, open_provider, unwrap_checked
from evidence_archive.keys.kms import KmsKeys
from evidence_archive.keys.service import org_name
from evidence_archive.ports import KeyProvider
from evidence_archive.testing import KeyProviderContract

ORG, OTHER_ORG = "north-clinic", "south-clinic"
CONTEXT = b"the place it belongs to"
PUBLIC_ID = "AKIDMADEUPFORATEST00"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    """Credentials made at run time, and nothing else of AWS in the environment."""
    for name in (name for name in os.environ if name.startswith("AWS_")):
        monkeypatch.delenv(name)
    made = os.urandom(20).hex()
    for name, value in {
        "AWS_ACCESS_KEY_ID": PUBLIC_ID,
        "AWS_SECRET_ACCESS_KEY": made,
        "AWS_SESSION_TOKEN": f"token-{made}",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1,localhost",
    }.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture
def door(moto: str) -> Iterator[KmsDoor]:
    opened = KmsDoor(moto)
    opened.reset()
    with opened:
        yield opened


def prefix_of(folder: Path) -> str:
    return f"alias/test-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return prefix_of(tmp_path)


@pytest.fixture
def keys(door: KmsDoor, prefix: str) -> KmsKeys:
    """A provider with one version for each org, that asks once and has nothing remembered."""
    made = KmsKeys(prefix, region="eu-central-1", endpoint=door.url, tries=1)
    for org in (ORG, OTHER_ORG):
        made.new_version(org)
        made.forget(org)
    door.take_asked()
    return made


class TestKmsKeys(KeyProviderContract):
    trials_over: ClassVar[int] = 4

    @pytest.fixture(autouse=True)
    def _service(self, door: KmsDoor) -> None:
        self.url = door.url

    def make(self, folder: Path) -> KeyProvider:
        keys = self.reopen(folder)
        for org in (ORG, OTHER_ORG):
            keys.new_version(org)  # type: ignore[attr-defined]
        return keys

    def reopen(self, folder: Path) -> KeyProvider:
        return open_provider(f"kms:{prefix_of(folder)}?region=eu-central-1&endpoint={self.url}")


# --- what is asked --------------------------------------------------------------------------------------------------


def test_a_key_is_wrapped_and_unwrapped_in_one_request_each_and_the_rest_is_remembered(keys: KmsKeys, door: KmsDoor):
    key = os.urandom(32)
    wrapped = keys.wrap(ORG, keys.current_version(ORG), key, CONTEXT)
    assert door.take_asked() == ["ListAliases", "Encrypt"]
    for org in (ORG, OTHER_ORG):
        keys.fingerprint(org, keys.current_version(org))
    assert door.take_asked() == []
    assert keys.unwrap(ORG, 1, wrapped, CONTEXT) == key
    keys.wrap(OTHER_ORG, 1, key, CONTEXT)
    assert door.take_asked() == ["Decrypt", "Encrypt"]
    assert door.connections == 1


def test_a_listing_counts_for_its_time_and_not_a_moment_longer(keys: KmsKeys, door: KmsDoor, prefix: str):
    now = [0]
    mine = KmsKeys(prefix, region="eu-central-1", endpoint=door.url, tries=1, clock_ms=lambda: now[0])
    assert mine.current_version(ORG) == 1
    keys.new_version(ORG)
    door.take_asked()
    now[0] = 299_999
    assert mine.current_version(ORG) == 1
    assert door.take_asked() == []
    now[0] = 300_000
    assert mine.current_version(ORG) == 2
    door.fault = lambda operation, asked: kms_error("KMSInternalException")
    now[0] = 600_000
    with pytest.raises(KeyringError):
        mine.current_version(ORG)


def test_aliases_are_found_on_every_page_and_those_of_others_are_none(
    keys: KmsKeys, door: KmsDoor, prefix: str, moto: str
):
    for _ in range(3):
        keys.new_version(ORG)
    client = keys._connected()
    arn = client.create_key()["KeyMetadata"]["Arn"]
    mine = f"{prefix}/{org_name(ORG)}"
    for name in (f"{mine}/v05", f"{mine}/v9x", f"{mine}/v0", f"{mine}/x/v9", f"{prefix}-x/{org_name(ORG)}/v9"):
        client.create_alias(AliasName=name, TargetKeyId=arn)
    door.page = 2
    door.take_asked()
    keys.forget(ORG)
    assert keys.current_version(ORG) == 4
    assert len(door.take_asked()) > 4
    assert keys.current_version(OTHER_ORG) == 1


def test_a_listing_without_end_has_one(keys: KmsKeys, door: KmsDoor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kms, "PAGES_MAX", 5)
    door.fault = lambda operation, asked: (200, {"Aliases": [], "Truncated": True, "NextMarker": "again"})
    with pytest.raises(KeyringError, match="aliases"):
        keys.current_version(ORG)
    assert door.take_asked() == ["ListAliases"] * 5


def test_what_is_sent_says_nothing_of_the_place_but_a_digest(keys: KmsKeys, door: KmsDoor):
    seen: list[dict[str, Any]] = []

    def watch(operation: str, asked: dict[str, Any]) -> None:
        seen.append(asked)

    door.fault = watch
    key = os.urandom(32)
    keys.unwrap(ORG, 1, keys.wrap(ORG, 1, key, CONTEXT), CONTEXT)
    listed, encrypt, decrypt = seen
    assert listed.keys() == {"Limit"}
    assert encrypt["EncryptionContext"] == decrypt["EncryptionContext"]
    assert [*encrypt["EncryptionContext"]] == ["evidence-archive"]
    assert len(bytes.fromhex(encrypt["EncryptionContext"]["evidence-archive"])) == 32
    assert encrypt["KeyId"] == decrypt["KeyId"]
    assert ":key/" in encrypt["KeyId"]
    assert base64.b64decode(encrypt["Plaintext"])[:32] == key
    for told in (json.dumps(listed), json.dumps(encrypt), json.dumps(decrypt)):
        assert ORG not in told
        assert CONTEXT.decode() not in told


@pytest.mark.parametrize("size_bytes", [0, 31, 33, 4096])
def test_only_keys_are_wrapped(keys: KmsKeys, door: KmsDoor, size_bytes: int):
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


def with_plaintext(data: bytes) -> Callable[[str, dict[str, Any]], Answer]:
    return lambda operation, asked: (
        200,
        {"KeyId": asked["KeyId"], "Plaintext": base64.b64encode(data).decode(), "CiphertextBlob": 7},
    )


Fault = Callable[[str, dict[str, Any]], Answer | None] | str

FAULTS: dict[str, tuple[Fault, type[EvidenceArchiveError], str]] = {
    "timeout": ("slow", KeyringError, "ReadTimeoutError"),
    "cut": (dropped, KeyringError, "cannot be asked"),
    "away": ("away", KeyringError, "cannot be asked"),
    "throttled": (answering(kms_error("ThrottlingException", TOLD)), KeyringError, "slow down"),
    "internal": (answering(kms_error("KMSInternalException", TOLD)), KeyringError, "try again"),
    "key store away": (answering(kms_error("KMSInvalidStateException", TOLD)), KeyringError, "cannot be asked"),
    "unavailable": (answering((503, b"<html>" + TOLD.encode())), KeyringError, "cannot be asked"),
    "denied": (answering(kms_error("AccessDeniedException", TOLD)), KeyringError, "credentials"),
    "expired": (answering(kms_error("ExpiredTokenException", TOLD)), KeyringError, "credentials"),
    "unknown client": (answering(kms_error("UnrecognizedClientException", TOLD)), KeyringError, "credentials"),
    "destroyed": (answering(kms_error("NotFoundException", TOLD)), KeyNotFoundError, "version 1"),
    "disabled": (answering(kms_error("DisabledException", TOLD)), KeyNotFoundError, "version 1"),
    "pending": (
        answering(kms_error("KMSInvalidStateException", "arn is pending deletion.")),
        KeyNotFoundError,
        "version 1",
    ),
    "a code with words": (answering(kms_error(TOLD, TOLD)), KeyringError, "no code"),
    "no code": (answering((400, {})), KeyringError, "cannot be asked"),
    "error is a list": (answering((400, [TOLD])), KeyringError, "K"),
    "nothing": (answering((200, b"")), KeyringError, "something else"),
    "not JSON": (answering((200, TOLD.encode())), KeyringError, "something else"),
    "a list": (answering((200, [1])), KeyringError, "K"),
    "empty": (answering((200, {})), KeyringError, "something else"),
    "not base64": (
        lambda operation, asked: (200, {"KeyId": asked["KeyId"], "Plaintext": "%%%", "CiphertextBlob": "%%%"}),
        KeyringError,
        "K",
    ),
    "by another key": (
        answering((200, {"KeyId": "arn:else", "Plaintext": "AAAA", "CiphertextBlob": "AAAA"})),
        KeyringError,
        "something else",
    ),
    "key of another length": (with_plaintext(SECRET + b"x"), KeyringError, "not what was wrapped"),
    "another key": (with_plaintext(SECRET * 2), KeyringError, "not what was wrapped"),
}


def shown(error: BaseException) -> str:
    """All that an error tells, its causes too."""
    chain = [error]
    while (link := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(link)
    return "".join(traceback.format_exception(error)) + "".join(
        repr(one) + str(one) + repr(one.args) + repr(vars(one)) for one in chain
    )


def tell_no_secret(text: str, *secrets: bytes | str) -> None:
    for one in secrets:
        forms = [one] if isinstance(one, str) else [one.hex(), base64.b64encode(one).decode(), repr(one)[2:-1]]
        for form in forms:
            assert form not in text


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_of_the_service_is_an_error_of_its_kind_and_over_when_the_fault_is(
    keys: KmsKeys, door: KmsDoor, prefix: str, secret: str, name: str, caplog: pytest.LogCaptureFixture
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
        used = KmsKeys(prefix, region="eu-central-1", endpoint=door.url, tries=1, read_ms=300)
        used._memory = keys._memory
    elif fault == "away":
        door.close()
    else:
        assert callable(fault)
        door.fault = fault
    with pytest.raises(KeyringError) as caught:
        unwrap_checked(used, ORG, version=1, fingerprint=mark, wrapped=wrapped, context=CONTEXT)
    assert type(caught.value) is kind
    assert words in str(caught.value)
    tell_no_secret(shown(caught.value), key, SECRET, secret)
    assert door.take_asked() == ([] if fault == "away" else ["Decrypt"])
    with pytest.raises(KeyringError) as caught:
        used.wrap(ORG, 1, key, CONTEXT)
    tell_no_secret(shown(caught.value) + repr(used) + caplog.text, key, SECRET, secret)
    door.fault = None
    if fault == "away":
        door.open()
    assert keys.unwrap(ORG, 1, wrapped, CONTEXT) == key


def test_a_request_is_tried_three_times_and_no_more(door: KmsDoor, prefix: str, keys: KmsKeys):
    patient = KmsKeys(prefix, region="eu-central-1", endpoint=door.url)
    refusals = [kms_error("ThrottlingException")] * 2

    def twice(operation: str, asked: dict[str, Any]) -> Answer | None:
        return refusals.pop() if refusals else None

    door.fault = twice
    assert patient.current_version(ORG) == 1
    assert door.take_asked() == ["ListAliases"] * 3
    door.fault = answering(kms_error("ThrottlingException"))
    patient.forget(ORG)
    with pytest.raises(KeyringError, match="slow down"):
        patient.current_version(ORG)
    assert door.take_asked() == ["ListAliases"] * 3


def test_the_driver_is_given_the_bounds_of_its_waits(prefix: str, door: KmsDoor):
    config = KmsKeys(prefix, region="eu-central-1", endpoint=door.url)._connected().meta.config
    assert (config.connect_timeout, config.read_timeout) == (2, 5)
    assert config.retries["total_max_attempts"] == 3


def test_credentials_that_expired_are_looked_for_again_at_the_next_use(
    keys: KmsKeys, door: KmsDoor, monkeypatch: pytest.MonkeyPatch
):
    wrapped = keys.wrap(ORG, 1, bytes(32), CONTEXT)
    fresh = os.urandom(8).hex()
    door.session_token = fresh
    for _ in range(2):
        with pytest.raises(KeyringError, match="ExpiredTokenException"):
            keys.unwrap(ORG, 1, wrapped, CONTEXT)
    monkeypatch.setenv("AWS_SESSION_TOKEN", fresh)
    assert keys.unwrap(ORG, 1, wrapped, CONTEXT) == bytes(32)


def test_without_credentials_or_region_the_error_says_so(prefix: str, monkeypatch: pytest.MonkeyPatch, door: KmsDoor):
    nowhere = KmsKeys(prefix, endpoint=door.url)
    with pytest.raises(KeyringError, match="NoRegionError"):
        nowhere.current_version(ORG)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setattr("botocore.utils.InstanceMetadataFetcher.retrieve_iam_role_credentials", lambda self: {})
    with pytest.raises(KeyringError, match="NoCredentialsError"):
        KmsKeys(prefix, region="eu-central-1", endpoint=door.url).current_version(ORG)


def test_a_service_that_was_restarted_is_used_again(keys: KmsKeys, door: KmsDoor):
    wrapped = keys.wrap(ORG, 1, bytes(32), CONTEXT)
    door.close()
    with pytest.raises(KeyringError, match="cannot be asked"):
        keys.wrap(ORG, 1, bytes(32), CONTEXT)
    door.open()
    assert keys.unwrap(ORG, 1, wrapped, CONTEXT) == bytes(32)


# --- logs -----------------------------------------------------------------------------------------------------------


def logged(keys: KmsKeys, caplog: pytest.LogCaptureFixture) -> tuple[str, bytes]:
    """What all loggers tell of a wrap and an unwrap, and the key."""
    caplog.set_level(logging.DEBUG)
    caplog.clear()
    key = os.urandom(32)
    keys._client = None
    keys.unwrap(ORG, 1, keys.wrap(ORG, 1, key, CONTEXT), CONTEXT)
    told = "".join(record.getMessage() + repr(record.args) for record in caplog.records)
    return told, key


def holds(told: str, key: bytes) -> bool:
    """Whether the key is in there, wherever base64 of it may begin."""
    return any(base64.b64encode(key + tail)[:40].decode() in told for tail in (b"", b"x"))


def test_no_log_record_has_a_key_or_a_token(keys: KmsKeys, caplog: pytest.LogCaptureFixture, secret: str):
    told, key = logged(keys, caplog)
    assert not holds(told, key)
    tell_no_secret(told, secret)


def test_must_fail_control_what_the_driver_logs_has_the_key_and_the_token(
    keys: KmsKeys, caplog: pytest.LogCaptureFixture, secret: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kms._Discreet, "filter", lambda self, record: True)
    told, key = logged(keys, caplog)
    assert holds(told, key)
    assert secret in told


def test_the_driver_s_records_of_other_uses_are_not_held_back(keys: KmsKeys, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    keys.current_version(ORG)
    caplog.clear()
    logging.getLogger("botocore.endpoint").debug("of somebody else")
    assert "of somebody else" in caplog.text


# --- versions -------------------------------------------------------------------------------------------------------


def test_a_retired_version_is_disabled_and_its_destruction_scheduled(keys: KmsKeys, door: KmsDoor):
    arn = keys._known(ORG, 1).names[1]
    keys.new_version(ORG)
    door.take_asked()
    keys.retire(ORG, 1)
    assert door.take_asked() == ["ListAliases", "DescribeKey", "DisableKey", "ScheduleKeyDeletion"]
    metadata = keys._connected().describe_key(KeyId=arn)["KeyMetadata"]
    assert metadata["KeyState"] == "PendingDeletion"
    assert 29 < (metadata["DeletionDate"] - metadata["CreationDate"]).total_seconds() / 86_400 < 31
    door.take_asked()
    keys.retire(ORG, 1)
    assert door.take_asked() == ["ListAliases", "DescribeKey"]


def test_a_retirement_that_was_cut_off_is_brought_to_its_end(keys: KmsKeys, door: KmsDoor):
    keys.new_version(ORG)

    def cut(operation: str, asked: dict[str, Any]) -> Answer | None:
        return kms_error("KMSInternalException") if operation == "ScheduleKeyDeletion" else None

    door.fault = cut
    with pytest.raises(KeyringError):
        keys.retire(ORG, 1)
    assert keys.versions(ORG) == (2,), "it is disabled already"
    door.fault = None
    keys.retire(ORG, 1)
    assert keys._state(keys._known(ORG, 1).names[1]) == "PendingDeletion"


@pytest.mark.parametrize("step", ["CreateKey", "CreateAlias", "ListAliases", "DescribeKey"])
def test_a_service_that_fails_on_the_way_leaves_the_versions_as_they_were(keys: KmsKeys, door: KmsDoor, step: str):
    keys.new_version(ORG)

    def failing(operation: str, asked: dict[str, Any]) -> Answer | None:
        return kms_error("KMSInternalException") if operation == step else None

    door.fault = failing
    with pytest.raises(KeyringError):
        keys.new_version(ORG) if step != "DescribeKey" else keys.retire(ORG, 1)
    door.fault = None
    assert keys.versions(ORG) == (1, 2)
    assert keys.new_version(ORG) == 3


def test_an_alias_that_was_made_although_the_answer_got_lost_is_not_made_twice(keys: KmsKeys, door: KmsDoor):
    client = keys._connected()

    def lost(operation: str, asked: dict[str, Any]) -> Answer | None:
        if operation != "CreateAlias":
            return None
        door.fault = None
        client.create_alias(**asked)  # took place; the driver repeats the request and hears that it exists
        return None

    door.fault = lost
    assert keys.new_version(ORG) == 2
    names = keys._known(ORG).names
    assert len(set(names.values())) == len(names) == 2


def test_two_versions_of_one_key_are_not_retired_one_by_one(keys: KmsKeys, prefix: str):
    arn = keys._known(ORG, 1).names[1]
    keys._connected().create_alias(AliasName=f"{prefix}/{org_name(ORG)}/v2", TargetKeyId=arn)
    wrapped = keys.wrap(ORG, 1, bytes(32), CONTEXT)
    with pytest.raises(KeyringError, match="in common"):
        keys.retire(ORG, 1)
    assert keys.unwrap(ORG, 1, wrapped, CONTEXT) == bytes(32)


def test_a_new_version_waits_until_it_is_listed(keys: KmsKeys, door: KmsDoor, monkeypatch: pytest.MonkeyPatch):
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    hidden: list[int] = []

    def late(operation: str, asked: dict[str, Any]) -> Answer | None:
        if operation == "CreateAlias":
            hidden[:] = [1, 1]
        return (
            (200, {"Aliases": [], "Truncated": False})
            if operation == "ListAliases" and hidden and hidden.pop()
            else None
        )

    door.fault = late
    assert keys.new_version(ORG) == 2
    assert pauses == [0, 0.2, 0.4]
    door.fault = lambda operation, asked: (200, {"Aliases": []}) if operation == "ListAliases" else None
    with pytest.raises(KeyringError, match="does not list"):
        keys.new_version(ORG)


def test_an_org_without_a_key_gets_none_in_passing(door: KmsDoor, prefix: str):
    keys = KmsKeys(prefix, region="eu-central-1", endpoint=door.url, tries=1)
    for use in (lambda: keys.current_version(ORG), lambda: keys.wrap(ORG, 1, bytes(32), CONTEXT)):
        with pytest.raises(KeyNotFoundError):
            use()
    with pytest.raises(KeyNotFoundError, match="for a new org make its first version"):
        keys.current_version(ORG)
    with pytest.raises(KeyNotFoundError, match="use the service that this store was sealed with"):
        keys.unwrap(ORG, 1, b"whatever was wrapped there", CONTEXT)  # where all keys are lost, none is to be made
    assert keys.versions(ORG) == ()
    keys.retire(ORG, 1)
    assert set(door.take_asked()) == {"ListAliases"}


def test_a_version_under_an_alias_that_was_turned_to_another_key_is_told_by_its_fingerprint(
    keys: KmsKeys, prefix: str
):
    from evidence_archive.errors import WrongKeyError

    mark, wrapped = keys.fingerprint(ORG, 1), keys.wrap(ORG, 1, bytes(32), CONTEXT)
    client = keys._connected()
    other = client.create_key()["KeyMetadata"]["Arn"]
    client.update_alias(AliasName=f"{prefix}/{org_name(ORG)}/v1", TargetKeyId=other)
    keys.forget(ORG)
    with pytest.raises(WrongKeyError):
        unwrap_checked(keys, ORG, version=1, fingerprint=mark, wrapped=wrapped, context=CONTEXT)
    with pytest.raises(SealBrokenError):
        keys.unwrap(ORG, 1, wrapped, CONTEXT)


# --- opening --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where",
    [
        "",
        "evidence-archive",
        "alias/",
        "alias/aws/evidence",
        "alias/a//b",
        "alias/a b",
        "alias/" + "a" * 200,
        "alias/a?region=eu central",
        "alias/a?region=a&region=b",
        "alias/a?endpoint=ftp://127.0.0.1",
        "alias/a?endpoint=http://kms.example.com",
        "alias/a?endpoint=https://127.0.0.1/path",
        "alias/a?endpoint=https://127.0.0.1:0",
        "alias/a?endpoint=https://[::1",
        "alias/a?endpoint=https://made:up-secret@127.0.0.1",
        "alias/a?secret=up-secret",
        "alias/a?up-secret",
    ],
)
def test_a_place_that_cannot_be_used_is_refused_and_not_repeated(where: str):
    with pytest.raises(KeyringError) as caught:
        open_provider(f"kms:{where}")
    assert "up-secret" not in shown(caught.value)


@pytest.mark.parametrize("days", [6, 31])
def test_days_that_aws_does_not_have_are_refused(days: int, prefix: str):
    with pytest.raises(KeyringError, match="7 to 30"):
        KmsKeys(prefix, deletion_days=days)


def test_a_provider_shows_its_alias_and_is_neither_copied_nor_pickled(keys: KmsKeys, prefix: str):
    assert repr(keys) == f"<KmsKeys KMS under {prefix}>"
    for use in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(MisuseError):
            use(keys)


def test_without_the_extra_the_error_names_it(prefix: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "boto3.session", None)
    with pytest.raises(KeyringError, match=r"evidence-archive\[kms\]"):
        KmsKeys(prefix)
