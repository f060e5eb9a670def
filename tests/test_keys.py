"""Key files and key variables: who may read them, what is in them, and what no error ever shows."""

import base64
import copy
import hashlib
import hmac
import json
import os
import pickle
import stat
import threading
import traceback
from pathlib import Path

import independent_decoder as independent
import pytest

from evidence_archive.errors import KeyNotFoundError, KeyringError, MisuseError, SealBrokenError, WrongKeyError
from evidence_archive.keys import EnvironmentKeys, FileKeys, new_keys, open_provider, unwrap_checked
from evidence_archive.keys.roots import FILE_BYTES_MAX
from evidence_archive.sealing.keyring import wrap_context

GOLDEN = json.loads((Path(__file__).parent / "vectors" / "keyring-golden.json").read_text("utf-8"))

ROOT = hashlib.sha256(b"made-up root 1").digest()
ROOT_2 = hashlib.sha256(b"made-up root 2").digest()
FORMAT = "evidence-archive/keys/1"
SECRET = bytes(range(32))


def b64(data):
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def document(**changes):
    return {"format": FORMAT, "current": 1, "keys": {"1": b64(ROOT)}, **changes}


def write(path, content, mode=0o600):
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    path.chmod(mode)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "evidence.keys"


@pytest.fixture
def provider(path):
    return FileKeys(write(path, document()))


# --- making keys ------------------------------------------------------------------------------------------------


def test_new_keys_are_32_random_bytes_that_only_their_owner_can_read(path):
    before = os.umask(0)
    try:
        new_keys(path)
    finally:
        os.umask(before)
    status = path.stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    made = json.loads(path.read_bytes())
    assert (made["format"], made["current"], list(made["keys"])) == (FORMAT, 1, ["1"])
    assert len(base64.urlsafe_b64decode(made["keys"]["1"] + "=")) == 32
    assert FileKeys(path).current_version("north-clinic") == 1


def test_new_keys_are_private_under_any_umask(path):
    before = os.umask(0o777)
    try:
        new_keys(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_new_key_files_differ(tmp_path):
    new_keys(tmp_path / "a")
    new_keys(str(tmp_path / "b"))
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()


def test_new_keys_may_be_made_by_a_bare_name_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    new_keys("evidence.keys")
    assert FileKeys("evidence.keys").current_version("north-clinic") == 1


@pytest.mark.parametrize("kind", ["file", "empty", "link", "dangling", "folder"])
def test_new_keys_never_overwrite_what_is_there(path, tmp_path, kind):
    target = tmp_path / "target"
    if kind == "file":
        write(path, b"precious")
    elif kind == "empty":
        write(path, b"")
    elif kind == "link":
        path.symlink_to(write(target, b"precious"))
    elif kind == "dangling":
        path.symlink_to(target)
    else:
        path.mkdir()
    before = path.lstat()
    with pytest.raises(KeyringError, match="exists already"):
        new_keys(path)
    assert path.lstat().st_ino == before.st_ino
    assert kind != "dangling" or not target.exists()
    assert kind not in ("file", "link") or path.read_bytes() == b"precious"


def test_of_many_that_make_the_same_key_file_exactly_one_wins(path):
    outcomes = []

    def make():
        try:
            new_keys(path)
            outcomes.append("made")
        except KeyringError:
            outcomes.append("refused")

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made"] + ["refused"] * 7
    FileKeys(path)


@pytest.mark.parametrize("place", ["missing/evidence.keys", "nul\x00byte"])
def test_new_keys_in_an_impossible_place_are_an_error_that_says_so(tmp_path, place):
    with pytest.raises(KeyringError, match="cannot be made"):
        new_keys(f"{tmp_path}/{place}")


def test_new_keys_are_durable_file_and_folder(path, monkeypatch):
    synced = []
    true_fsync = os.fsync

    def fsync(descriptor):
        synced.append(stat.S_IFMT(os.fstat(descriptor).st_mode))
        true_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    new_keys(path)
    assert synced == [stat.S_IFREG, stat.S_IFDIR]


def test_a_key_file_that_could_not_be_written_durably_is_not_left_behind(path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(KeyringError, match="removed"):
        new_keys(path)
    assert not path.exists()


def test_a_source_of_bytes_that_is_not_random_makes_no_keys(path):
    with pytest.raises(KeyringError):
        new_keys(path, entropy=bytes)
    assert not path.exists()


# --- who may read a key file ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_key_file_is_read(path, mode):
    assert FileKeys(write(path, document(), mode)).current_version("north-clinic") == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o602, 0o620, 0o601, 0o610, 0o777])
def test_a_key_file_that_others_can_read_or_change_is_refused_and_says_chmod(path, mode):
    write(path, document(), mode)
    with pytest.raises(KeyringError, match="chmod 600"):
        FileKeys(path)


@pytest.mark.parametrize(
    ("mode", "accepted"), [(0o440, True), (0o640, True), (0o660, False), (0o644, False), (0o650, False)]
)
def test_group_read_alone_is_accepted_where_it_is_allowed(path, mode, accepted):
    write(path, document(), mode)
    if accepted:
        FileKeys(path, allow_group_read=True)
    else:
        with pytest.raises(KeyringError, match="chmod 600"):
            FileKeys(path, allow_group_read=True)


def test_a_key_file_of_another_user_is_refused(path, monkeypatch):
    write(path, document())
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(KeyringError, match="another user"):
        FileKeys(path)


@pytest.mark.parametrize(("owner", "accepted"), [(0, True), (1234, False)])
def test_a_mounted_secret_may_belong_to_root_but_to_nobody_else(path, monkeypatch, owner, accepted):
    write(path, document(), 0o440)
    true_fstat = os.fstat

    def fstat(descriptor):
        return os.stat_result((*true_fstat(descriptor)[:4], owner, *true_fstat(descriptor)[5:]))

    monkeypatch.setattr(os, "fstat", fstat)
    monkeypatch.setattr(os, "geteuid", lambda: 77)
    if accepted:
        FileKeys(path, allow_group_read=True)
    else:
        with pytest.raises(KeyringError, match="another user"):
            FileKeys(path, allow_group_read=True)
    with pytest.raises(KeyringError, match="another user"):
        FileKeys(path)


def test_a_link_to_a_key_file_is_refused_unless_it_is_a_mounted_secret(path, tmp_path):
    path.symlink_to(write(tmp_path / "target", document()))
    with pytest.raises(KeyringError, match="not a link"):
        FileKeys(path)
    assert FileKeys(path, allow_group_read=True).current_version("north-clinic") == 1


def test_a_link_to_a_file_that_others_can_read_is_refused_even_as_a_mounted_secret(path, tmp_path):
    path.symlink_to(write(tmp_path / "target", document(), 0o644))
    with pytest.raises(KeyringError, match="chmod 600"):
        FileKeys(path, allow_group_read=True)


def test_a_link_in_a_circle_is_refused(path):
    path.symlink_to(path)
    with pytest.raises(KeyringError):
        FileKeys(path, allow_group_read=True)


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
def test_what_is_not_a_regular_file_is_refused_and_does_not_hang(path, kind):
    if kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "folder":
        path.mkdir(0o700)
    else:
        path = Path("/dev/zero")
    with pytest.raises(KeyringError, match="regular file"):
        FileKeys(path)


def test_a_missing_file_says_how_to_make_one(path):
    for open_it in (lambda: FileKeys(path), lambda: open_provider(str(path))):
        with pytest.raises(KeyNotFoundError, match=f"evidence-archive keys new {path}"):
            open_it()


def test_a_path_that_is_none_is_refused():
    with pytest.raises(KeyringError):
        FileKeys("nul\x00byte")


def test_a_file_that_fails_to_read_is_an_error_of_the_keys(path, monkeypatch):
    def broken(descriptor, size):
        raise OSError(5, "Input/output error")

    write(path, document())
    monkeypatch.setattr(os, "read", broken)
    with pytest.raises(KeyringError, match="cannot be read"):
        FileKeys(path)


def test_no_descriptor_is_left_open(path):
    write(path, document(), 0o644)
    count = len(os.listdir("/dev/fd"))
    for _ in range(20):
        with pytest.raises(KeyringError):
            FileKeys(path)
    assert len(os.listdir("/dev/fd")) == count


# --- what a key file holds --------------------------------------------------------------------------------------

PASSPHRASE = "correct horse battery staple 42!"
BAD_DOCUMENTS = {
    "empty": b"",
    "passphrase": PASSPHRASE.encode(),
    "raw-bytes": ROOT,
    "hex": ROOT.hex().encode(),
    "list": [],
    "number": 1,
    "other-format": document(format="evidence-archive/keys/2"),
    "no-format": {"current": 1, "keys": {"1": b64(ROOT)}},
    "no-current": {"format": FORMAT, "keys": {"1": b64(ROOT)}},
    "unknown-name": document(note="mine"),
    "keys-is-a-list": document(keys=[b64(ROOT)]),
    "no-keys": document(keys={}),
    "current-missing": document(current=2),
    "current-text": document(current="1"),
    "current-true": document(current=True),
    "current-float": document(current=1.0),
    "version-0": document(current=0, keys={"0": b64(ROOT)}),
    "version-01": document(keys={"01": b64(ROOT)}),
    "version-name": document(keys={"1": b64(ROOT), "old": b64(ROOT_2)}),
    "version-huge": document(keys={"1": b64(ROOT), "9" * 10: b64(ROOT_2)}),
    "short": document(keys={"1": b64(ROOT[:31])}),
    "long": document(keys={"1": b64(ROOT + b"x")}),
    "padded": document(keys={"1": b64(ROOT) + "="}),
    "standard-base64": document(keys={"1": "+/" + b64(ROOT)[2:]}),
    "second-spelling": document(keys={"1": b64(ROOT)[:-1] + chr(ord(b64(ROOT)[-1]) + 1)}),
    "number-key": document(keys={"1": 7}),
    "absent-key": document(keys={"1": None}),
    "one-bad-of-two": document(keys={"1": b64(ROOT), "2": b64(ROOT_2[:16])}),
    "passphrase-in-disguise": document(keys={"1": b64(PASSPHRASE.encode())}),
    "zeros": document(keys={"1": b64(bytes(32))}),
    "pattern": document(keys={"1": b64(b"\x00\x01\x02\xff" * 8)}),
    "one-key-twice": document(keys={"1": b64(ROOT), "2": b64(ROOT)}),
    "version-twice": b'{"format":"%s","current":1,"keys":{"1":"%s","1":"%s"}}'
    % (FORMAT.encode(), b64(ROOT).encode(), b64(ROOT_2).encode()),
    "name-twice": b'{"format":"%s","current":2,"current":1,"keys":{"1":"%s"}}'
    % (FORMAT.encode(), b64(ROOT).encode()),
    "cut": json.dumps(document()).encode()[:-3],
    "trailing": json.dumps(document()).encode() + b"{}",
    "utf-16": json.dumps(document()).encode("utf-16"),
    "byte-order-mark": b"\xef\xbb\xbf" + json.dumps(document()).encode(),
    "deep": b"[" * 60_000,
    "too-large": json.dumps(document()).encode() + b" " * 65_536,
}


@pytest.mark.parametrize("name", BAD_DOCUMENTS)
def test_anything_but_a_key_file_is_refused_and_no_error_shows_what_was_read(path, name, monkeypatch):
    content = BAD_DOCUMENTS[name]
    write(path, content)
    with pytest.raises(KeyringError) as caught:
        FileKeys(path)
    assert type(caught.value) is KeyringError
    assert "evidence-archive keys new" in str(caught.value)
    assert_shows_no_key(caught.value)

    text = path.read_bytes()
    if b"\x00" not in text:
        monkeypatch.setenv("MADE_UP_KEYS", os.fsdecode(text))
        with pytest.raises(KeyringError) as caught:
            EnvironmentKeys("MADE_UP_KEYS")
        assert_shows_no_key(caught.value)


def assert_shows_no_key(error):
    shown = "".join(traceback.format_exception(error))
    chain = [error]
    while chain[-1].__cause__ or chain[-1].__context__:
        chain.append(chain[-1].__cause__ or chain[-1].__context__)
    shown += "".join(repr(link) + repr(link.args) + repr(vars(link)) for link in chain)
    for secret in (b64(ROOT), b64(ROOT_2), ROOT.hex(), repr(ROOT)[2:-1], PASSPHRASE, b64(PASSPHRASE.encode())):
        assert secret not in shown


def test_must_fail_control_an_error_of_the_json_reader_shows_the_whole_file():
    try:
        json.loads(json.dumps(document())[:-3])
    except ValueError as error:
        with pytest.raises(AssertionError):
            assert_shows_no_key(error)


def test_a_key_file_at_the_size_bound_is_read(path):
    text = json.dumps(document()).encode()
    write(path, text + b" " * (FILE_BYTES_MAX - len(text)))
    FileKeys(path)


# --- providers --------------------------------------------------------------------------------------------------


def context(**changes):
    place = {"deployment": b"p" * 16, "org": "north-clinic", "scope_id": b"s" * 16, "child": None, "generation": 1}
    return wrap_context("scope", **{**place, "kek_version": 1, **changes})


def test_a_wrapped_key_unwraps_under_its_org_version_and_context_only(path):
    provider = FileKeys(write(path, document(keys={"1": b64(ROOT), "2": b64(ROOT_2)})))
    wrapped = provider.wrap("north-clinic", 1, SECRET, context())
    assert provider.unwrap("north-clinic", 1, wrapped, context()) == SECRET
    for org, version, place in [
        ("south-clinic", 1, context()),
        ("north-clinic", 2, context()),
        ("north-clinic", 1, context(org="south-clinic")),
        ("north-clinic", 1, context(scope_id=b"t" * 16)),
        ("north-clinic", 1, b""),
    ]:
        with pytest.raises(SealBrokenError):
            provider.unwrap(org, version, wrapped, place)


def test_orgs_and_versions_have_keys_of_their_own(path):
    provider = FileKeys(write(path, document(current=2, keys={"1": b64(ROOT), "2": b64(ROOT_2)})))
    marks = {provider.fingerprint(org, version) for org in ("north-clinic", "north-clinic1") for version in (1, 2)}
    assert len(marks) == 4
    assert {len(mark) for mark in marks} == {16}
    assert provider.current_version("anyone") == 2


def test_a_wrong_key_and_damaged_data_are_different_errors(path, tmp_path):
    right = FileKeys(write(path, document()))
    wrong = FileKeys(write(tmp_path / "other.keys", document(keys={"1": b64(ROOT_2)})))
    org, mark = "north-clinic", right.fingerprint("north-clinic", 1)
    wrapped = right.wrap(org, 1, SECRET, context())
    row = {"version": 1, "fingerprint": mark, "wrapped": wrapped, "context": context()}
    assert unwrap_checked(right, org, **row) == SECRET
    with pytest.raises(WrongKeyError):
        unwrap_checked(wrong, org, **row)
    with pytest.raises(SealBrokenError):
        unwrap_checked(right, org, **{**row, "wrapped": wrapped[:-1] + b"\x00"})
    with pytest.raises(SealBrokenError):
        unwrap_checked(right, org, **{**row, "context": context(generation=2)})
    with pytest.raises(KeyNotFoundError):
        unwrap_checked(right, org, **{**row, "version": 2})


def test_must_fail_control_without_the_fingerprint_a_wrong_key_looks_like_damaged_data(path, tmp_path):
    right = FileKeys(write(path, document()))
    wrong = FileKeys(write(tmp_path / "other.keys", document(keys={"1": b64(ROOT_2)})))
    wrapped = right.wrap("north-clinic", 1, SECRET, context())
    with pytest.raises(SealBrokenError):
        wrong.unwrap("north-clinic", 1, wrapped, context())


@pytest.mark.parametrize("version", [0, 2, -1, 10**12])
def test_a_missing_version_is_an_error_and_never_the_current_one(provider, version):
    for use in (
        lambda: provider.fingerprint("north-clinic", version),
        lambda: provider.wrap("north-clinic", version, SECRET, b""),
        lambda: provider.unwrap("north-clinic", version, b"", b""),
    ):
        with pytest.raises(KeyNotFoundError, match=f"version {version} "):
            use()


def test_keys_are_read_once_and_again_when_they_have_changed(path, provider, monkeypatch):
    reads = []
    true_read = os.read
    monkeypatch.setattr(os, "read", lambda *given: reads.append(given) or true_read(*given))
    provider.fingerprint("north-clinic", 1)
    assert provider.current_version("north-clinic") == 1
    assert reads == []
    write(path, document(current=2, keys={"1": b64(ROOT), "2": b64(ROOT_2)}))
    assert provider.current_version("north-clinic") == 2
    assert reads
    write(path, document(current=2, keys={"2": b64(ROOT_2)}))
    with pytest.raises(KeyNotFoundError):
        provider.fingerprint("north-clinic", 1)


def test_a_variable_that_has_changed_is_read_again(monkeypatch):
    monkeypatch.setenv("MADE_UP_KEYS", json.dumps(document()))
    provider = EnvironmentKeys("MADE_UP_KEYS")
    monkeypatch.setenv("MADE_UP_KEYS", json.dumps(document(current=2, keys={"2": b64(ROOT_2)})))
    assert provider.current_version("north-clinic") == 2
    monkeypatch.delenv("MADE_UP_KEYS")
    assert provider.current_version("north-clinic") == 2


def test_keys_that_were_changed_to_something_else_are_an_error_until_they_are_put_back(path, provider):
    write(path, b"damaged")
    with pytest.raises(KeyringError, match="not a key file"):
        provider.current_version("north-clinic")
    write(path, document())
    assert provider.current_version("north-clinic") == 1


def test_a_reload_that_fails_leaves_the_keys_at_hand(path, provider):
    mark = provider.fingerprint("north-clinic", 1)
    write(path, b"damaged")
    with pytest.raises(KeyringError):
        provider.reload()
    path.unlink()
    with pytest.raises(KeyNotFoundError):
        provider.fingerprint("north-clinic", 2)
    assert provider.fingerprint("north-clinic", 1) == mark


def test_a_variable_holds_the_same_keys_as_a_file(path, monkeypatch):
    monkeypatch.setenv("EVIDENCE_ARCHIVE_KEYS", json.dumps(document()))
    wrapped = FileKeys(write(path, document())).wrap("north-clinic", 1, SECRET, b"context")
    assert EnvironmentKeys().unwrap("north-clinic", 1, wrapped, b"context") == SECRET


@pytest.mark.parametrize("variable", ["MADE_UP_AND_ABSENT", ""])
def test_a_variable_that_is_not_set_is_an_error_that_names_it(variable, monkeypatch):
    monkeypatch.delenv("MADE_UP_AND_ABSENT", raising=False)
    with pytest.raises(KeyNotFoundError, match=repr(variable)):
        open_provider(f"env:{variable}")


def test_open_provider_takes_a_path_a_variable_or_a_provider(path, provider, monkeypatch):
    monkeypatch.setenv("MADE_UP_KEYS", json.dumps(document()))
    assert isinstance(open_provider(path), FileKeys)
    assert isinstance(open_provider(str(path)), FileKeys)
    assert isinstance(open_provider("env:MADE_UP_KEYS"), EnvironmentKeys)
    assert open_provider(provider) is provider
    for nothing in (None, b"bytes", 7, FileKeys, object()):
        with pytest.raises(KeyringError):
            open_provider(nothing)


def test_a_provider_shows_no_key_and_is_neither_copied_nor_pickled(provider, monkeypatch):
    monkeypatch.setenv("MADE_UP_KEYS", json.dumps(document()))
    for each in (provider, EnvironmentKeys("MADE_UP_KEYS")):
        assert "1 versions, current 1" in repr(each)
        for secret in (b64(ROOT), ROOT.hex(), repr(ROOT)):
            assert secret not in repr(each) + str(each)
        assert not hasattr(each, "__dict__")
        for use in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(MisuseError):
                use(each)


# --- frozen vectors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", GOLDEN["wraps"], ids=[vector["place"]["level"] for vector in GOLDEN["wraps"]])
def test_a_golden_wrap_unwraps_for_ever(path, vector):
    provider = FileKeys(write(path, GOLDEN["key_file"]))
    place = dict(vector["place"])
    for name in ("deployment", "scope_id"):
        place[name] = None if place[name] is None else bytes.fromhex(place[name])
    bound, wrapped = wrap_context(place.pop("level"), **place), bytes.fromhex(vector["wrapped"])
    row = {"version": place["kek_version"], "fingerprint": bytes.fromhex(vector["fingerprint"])}
    assert bound.hex() == vector["context"]
    opened = unwrap_checked(provider, place["org"], **row, wrapped=wrapped, context=bound)
    assert opened.hex() == vector["plaintext"]

    root = base64.urlsafe_b64decode(GOLDEN["key_file"]["keys"][str(place["kek_version"])] + "=")
    secret = hmac.digest(bytes(32), root, "sha256")
    named = independent.pack([place["org"].encode(), b"%d" % place["kek_version"]])
    kek = hmac.digest(secret, b"evidence-archive/v1/kek\x00" + named + b"\x01", "sha256")
    mark = hmac.digest(secret, b"evidence-archive/v1/kek-fingerprint\x00" + named + b"\x01", "sha256")[:16]
    assert independent.decrypt(kek, bound, wrapped).hex() == vector["plaintext"]
    assert mark.hex() == vector["fingerprint"]
