"""Keys behind a program: the one in the documents keeps the contract, and what a program does wrong is told apart."""

import base64
import json
import logging
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from evidence_archive.errors import (
    EvidenceArchiveError,
    FormatError,
    KeyNotFoundError,
    KeyringError,
    MisuseError,
    SealBrokenError,
    WrongKeyError,
)
from evidence_archive.keys import open_provider
from evidence_archive.keys.command import ANSWER_BYTES_MAX, CommandKeys
from evidence_archive.ports import KeyLifecycle, KeyProvider
from evidence_archive.testing import KeyProviderContract

PAGE = Path(__file__).resolve().parents[1] / "docs" / "keys.md"
PROTOCOL = "evidence-archive/key-command/1"
ORG, OTHER_ORG = "north-clinic", "south-clinic"
CONTEXT = b"the place it belongs to"
PATIENCE_MS = 60_000
"""How long a program may take that does as it should, on a machine that does much else."""


def reference(folder: Path) -> list[str]:
    """The program of the document, over a file in a folder."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    (source,) = [block for block in blocks if f'PROTOCOL = "{PROTOCOL}"' in block]
    (folder / "reference.py").write_text(source)
    return [sys.executable, "-I", str(folder / "reference.py"), str(folder / "reference.keys")]


def opened(folder: Path) -> CommandKeys:
    keys = CommandKeys(reference(folder), PATIENCE_MS)
    for org in (ORG, OTHER_ORG):
        keys.new_version(org)
    return keys


class TestReferenceCommand(KeyProviderContract):
    trials_over: ClassVar[int] = 10

    def make(self, folder: Path) -> KeyProvider:
        return opened(folder)

    def reopen(self, folder: Path) -> KeyProvider:
        return CommandKeys(reference(folder), PATIENCE_MS)


# --- a program that does what a test says ---------------------------------------------------------------------------

SCRIPT = """
import base64, json, os, sys, time
folder = {folder!r}
request = sys.stdin.readline()
with open(folder + "/asked", "a") as log:
    log.write(request)
ask = json.loads(request)
behaviour = open(folder + "/behaviour").read()

def say(**answer):
    print(json.dumps({{"protocol": "evidence-archive/key-command/1", **answer}}))

def text(data):
    return base64.b64encode(data).decode()

names = {{"1": "first", "2": "second"}}
if ask["verb"] == "list" and not behaviour.startswith("# list"):
    say(current=2, keys=names)
else:
    exec(behaviour)
"""

WRAPS = """
if ask["verb"] == "wrap":  # no cipher at all: what is told apart here does not depend on one
    say(wrapped=text(json.dumps([ask["org"], ask["version"], ask["context"], ask["plaintext"]]).encode()))
else:
    org, version, context, plaintext = json.loads(base64.b64decode(ask["wrapped"]))
    right = (org, version, context) == (ask["org"], ask["version"], ask["context"])
    say(plaintext=plaintext) if right else say(error="broken")
"""


class Program:
    """A key command whose next behaviour can be set."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "program.py"
        self.script.write_text(SCRIPT.format(folder=str(folder)))
        self.does(WRAPS)

    def does(self, behaviour: str) -> None:
        (self.folder / "behaviour").write_text(behaviour)

    def keys(self, **named: Any) -> CommandKeys:
        return CommandKeys([sys.executable, "-I", "-S", str(self.script)], **{"timeout_ms": PATIENCE_MS, **named})

    def asked(self) -> list[dict[str, Any]]:
        log = self.folder / "asked"
        found = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        log.write_text("")
        return found


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def shown(error: BaseException) -> str:
    """All that an error tells, its causes too."""
    chain = [error]
    while (link := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(link)
    return "".join(traceback.format_exception(error)) + "".join(
        repr(one) + str(one) + repr(one.args) + repr(vars(one)) for one in chain
    )


def tell_no_key(text: str, *keys: bytes) -> None:
    for key in keys:
        for form in (key.hex(), base64.b64encode(key).decode(), repr(key)[2:-1]):
            assert form not in text


def test_a_key_is_wrapped_and_unwrapped_in_one_request_each_and_the_rest_is_remembered(program: Program):
    keys, key = program.keys(), os.urandom(32)
    wrapped = keys.wrap(ORG, keys.current_version(ORG), key, CONTEXT)
    keys.fingerprint(ORG, 2)
    assert [ask["verb"] for ask in program.asked()] == ["list", "wrap"]
    for _ in range(3):
        keys.fingerprint(ORG, keys.current_version(ORG))
        keys.fingerprint(ORG, 1)
    assert program.asked() == []
    assert keys.unwrap(ORG, 2, wrapped, CONTEXT) == key
    keys.wrap(ORG, 2, key, CONTEXT)
    assert [ask["verb"] for ask in program.asked()] == ["unwrap", "wrap"]


def test_what_is_remembered_counts_for_its_time_and_not_a_moment_longer(program: Program):
    now = [0]
    keys = program.keys(remember_ms=1_000, clock_ms=lambda: now[0])
    keys.current_version(ORG)
    program.asked()
    now[0] = 999
    keys.current_version(ORG)
    assert program.asked() == []
    now[0] = 1_000
    keys.current_version(ORG)
    assert [ask["verb"] for ask in program.asked()] == ["list"]
    program.does('# list\nsay(error="unavailable")')
    now[0] = 2_000
    with pytest.raises(KeyringError, match="try again"):
        keys.current_version(ORG)


def test_a_request_has_the_fields_of_the_protocol_and_the_key_only_on_standard_input(
    program: Program, tmp_path: Path
):
    program.does(f"open({str(tmp_path / 'seen')!r}, 'w').write(repr((sys.argv, dict(os.environ))))\n" + WRAPS)
    keys, key = program.keys(), os.urandom(32)
    keys.wrap(ORG, 2, key, CONTEXT)
    listed, wrap = program.asked()
    assert listed == {"protocol": PROTOCOL, "verb": "list", "org": ORG}
    assert wrap.keys() == {"protocol", "verb", "org", "version", "plaintext", "context"}
    assert (wrap["protocol"], wrap["verb"], wrap["org"], wrap["version"]) == (PROTOCOL, "wrap", ORG, 2)
    assert base64.b64decode(wrap["plaintext"])[:32] == key
    assert len(base64.b64decode(wrap["plaintext"])) == 64
    assert len(base64.b64decode(wrap["context"])) == 32
    tell_no_key((tmp_path / "seen").read_text(), key)


SECRET = bytes(range(100, 132))
"""What a program that fails has seen, and says wherever it can."""

TELLS = f"import sys; sys.stderr.write({base64.b64encode(SECRET).decode()!r})\n"

Faults = dict[str, tuple[str, type[EvidenceArchiveError], str]]

FAULTS: Faults = {
    "not found": ('say(error="not_found")', KeyNotFoundError, "does not have"),
    "wrong key": ('say(error="wrong_key")', WrongKeyError, "another key"),
    "unavailable": ('say(error="unavailable")', KeyringError, "try again"),
    "denied": ('say(error="denied")', KeyringError, "credentials"),
    "unsupported": ('say(error="unsupported")', KeyringError, "cannot do this"),
    "unknown error": (f'say(error="{SECRET.hex()}")', KeyringError, "something else"),
    "error and answer": (f'say(error="broken", plaintext="{SECRET.hex()}")', KeyringError, "something else"),
    "error is a list": ('say(error=["broken"])', KeyringError, "something else"),
    "exit status": ('say(plaintext="AAAA"); sys.exit(3)', KeyringError, "exit status 3"),
    "killed": ("os.kill(os.getpid(), 9)", KeyringError, "exit status -9"),
    "nothing": ("", KeyringError, "something else"),
    "not JSON": (f'print("{SECRET.hex()}")', KeyringError, "something else"),
    "two answers": ('say(plaintext="AAAA"); say(plaintext="AAAA")', KeyringError, "something else"),
    "a field twice": (
        f'print(\'{{"protocol":"{PROTOCOL}","plaintext":"AAAA","plaintext":"AAAA"}}\')',
        KeyringError,
        "something else",
    ),
    "a list": ("print([1])", KeyringError, "something else"),
    "deep": ("print('[' * 30000)", KeyringError, "something else"),
    "another protocol": ('print(json.dumps({"protocol": "x/2", "plaintext": ""}))', KeyringError, "something else"),
    "a field more": ('say(plaintext="AAAA", more=1)', KeyringError, "something else"),
    "a field less": ("say()", KeyringError, "something else"),
    "not base64": ('say(plaintext="%%%%")', KeyringError, "something else"),
    "not padded": ('say(plaintext="AAA")', KeyringError, "something else"),
    "a number": ("say(plaintext=7)", KeyringError, "something else"),
    "empty": ('say(plaintext="")', KeyringError, "something else"),
    "key of another length": ("say(plaintext=text(bytes(33)))", KeyringError, "not what was wrapped"),
    "another key": (
        f"say(plaintext=text(bytes.fromhex('{(SECRET * 2).hex()}')))",
        KeyringError,
        "not what was wrapped",
    ),
    "too long": (f"sys.stdout.write('A' * {ANSWER_BYTES_MAX + 1})", KeyringError, "something else"),
    "without end": ("while True: sys.stdout.write('A' * 65536)", KeyringError, "something else"),
    "slow": ("time.sleep(10)", KeyringError, "did not answer"),
    "slow to end": (
        'say(plaintext="AAAA"); sys.stdout.flush(); os.close(1); time.sleep(10)',
        KeyringError,
        "did not",
    ),
    "its child is slow": ("os.fork() or time.sleep(10)", KeyringError, "did not answer"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_of_a_program_is_an_error_of_its_kind_and_over_when_the_fault_is(
    program: Program, fault: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    behaviour, kind, words = FAULTS[fault]
    caplog.set_level(logging.DEBUG)
    keys = program.keys()
    key = os.urandom(32)
    wrapped = keys.wrap(ORG, 2, key, CONTEXT)
    program.does(TELLS + behaviour)
    if "slow" in fault:
        monkeypatch.setattr(keys, "_timeout_ms", 1_000)
    with pytest.raises(KeyringError) as caught:
        keys.unwrap(ORG, 2, wrapped, CONTEXT)
    assert type(caught.value) is kind
    assert words in str(caught.value)
    tell_no_key(shown(caught.value) + repr(keys) + caplog.text, key, SECRET)
    with pytest.raises(KeyringError) as caught:
        keys.wrap(ORG, 2, key, CONTEXT)
    tell_no_key(shown(caught.value) + repr(keys) + caplog.text, key, SECRET)
    program.does(WRAPS)
    monkeypatch.undo()
    assert keys.unwrap(ORG, 2, wrapped, CONTEXT) == key


LISTS = {
    "no keys": "say(current=1, keys={})",
    "current is not there": 'say(current=3, keys={"1": "first"})',
    "current is text": 'say(current="1", keys={"1": "first"})',
    "current is true": 'say(current=True, keys={"True": "first"})',
    "keys are a list": 'say(current=1, keys=["first"])',
    "a version that is none": 'say(current=1, keys={"1": "first", "zero": "second"})',
    "a name that is none": 'say(current=1, keys={"1": "first", "2": 7})',
    "an empty name": 'say(current=1, keys={"1": ""})',
    "one name twice": 'say(current=1, keys={"1": "first", "2": "first"})',
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_that_cannot_be_is_an_error_and_is_not_remembered(program: Program, name: str):
    keys = program.keys()
    program.does("# list\n" + LISTS[name])
    for use in (lambda: keys.current_version(ORG), lambda: keys.fingerprint(ORG, 1), lambda: keys.versions(ORG)):
        with pytest.raises(KeyringError, match="something else"):
            use()
    program.does(WRAPS)
    assert keys.current_version(ORG) == 2


@pytest.mark.parametrize("answer", ['version="3"', "version=0", "version=True", f"version={10**9}"])
def test_a_new_version_that_is_none_is_an_error(program: Program, answer: str):
    program.does(f"say({answer})")
    with pytest.raises(KeyringError, match="something else"):
        program.keys().new_version(ORG)


def test_a_wrapped_key_that_is_larger_than_one_can_be_is_an_error(program: Program):
    program.does("say(wrapped=text(bytes(20000)))")
    with pytest.raises(KeyringError, match="larger"):
        program.keys().wrap(ORG, 2, bytes(32), CONTEXT)


@pytest.mark.parametrize("size_bytes", [0, 31, 33, 4096])
def test_only_keys_are_wrapped(program: Program, size_bytes: int):
    with pytest.raises(FormatError):
        program.keys().wrap(ORG, 2, bytes(size_bytes), CONTEXT)
    assert program.asked() == []


def test_what_was_wrapped_for_another_org_version_or_place_is_broken(program: Program):
    keys = program.keys()
    wrapped = keys.wrap(ORG, 2, bytes(32), CONTEXT)
    for org, version, context in ((OTHER_ORG, 2, CONTEXT), (ORG, 1, CONTEXT), (ORG, 2, b"elsewhere")):
        with pytest.raises(SealBrokenError):
            keys.unwrap(org, version, wrapped, context)


def test_a_program_that_binds_nothing_is_noticed(program: Program):
    program.does('say(wrapped=ask["plaintext"]) if ask["verb"] == "wrap" else say(plaintext=ask["wrapped"])')
    keys = program.keys()
    wrapped = keys.wrap(ORG, 2, bytes(32), CONTEXT)
    assert keys.unwrap(ORG, 2, wrapped, CONTEXT) == bytes(32)
    for org, context in ((OTHER_ORG, CONTEXT), (ORG, b"elsewhere")):
        with pytest.raises(KeyringError, match="binds"):
            keys.unwrap(org, 2, wrapped, context)


def test_must_fail_control_without_the_check_value_such_a_program_would_hand_out_keys_of_elsewhere(
    program: Program, monkeypatch: pytest.MonkeyPatch
):
    program.does('say(wrapped=ask["plaintext"]) if ask["verb"] == "wrap" else say(plaintext=ask["wrapped"])')
    monkeypatch.setattr("evidence_archive.keys.service._check", lambda key, place: bytes(32))
    keys = program.keys()
    assert keys.unwrap(OTHER_ORG, 2, keys.wrap(ORG, 2, bytes(32), CONTEXT), CONTEXT) == bytes(32)


def test_what_a_program_started_is_killed_with_it(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    child = tmp_path / "child"
    program.does(f"pid = os.fork()\nif pid:\n    open({str(child)!r}, 'w').write(str(pid))\ntime.sleep(60)")
    keys = program.keys()
    keys.current_version(ORG)
    monkeypatch.setattr(keys, "_timeout_ms", 3_000)
    with pytest.raises(KeyringError, match="did not answer"):
        keys.wrap(ORG, 2, bytes(32), CONTEXT)
    pid = int(child.read_text())
    for _ in range(500):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            state = "X"
        if state in "XZ":
            return
        time.sleep(0.01)
    pytest.fail("a process is left")


def test_no_process_and_no_descriptor_is_left(program: Program, monkeypatch: pytest.MonkeyPatch):
    started: list[subprocess.Popen[bytes]] = []

    class Told(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Told)
    keys = program.keys()
    keys.current_version(ORG)
    count = len(os.listdir("/dev/fd"))
    for behaviour in ('say(error="denied")', "sys.exit(1)", f"sys.stdout.write('A' * {ANSWER_BYTES_MAX + 1})"):
        program.does(behaviour)
        with pytest.raises(KeyringError):
            keys.wrap(ORG, 2, bytes(32), CONTEXT)
    assert len(os.listdir("/dev/fd")) == count
    assert len(started) == 4
    assert [one.returncode for one in started if one.returncode is None] == []


def test_a_program_that_does_not_read_its_input_is_believed_all_the_same(program: Program, tmp_path: Path):
    deaf = tmp_path / "deaf"
    deaf.write_text(f'#!/bin/sh\nexec 0<&-\necho \'{{"protocol": "{PROTOCOL}", "error": "denied"}}\'\n')
    deaf.chmod(0o700)
    with pytest.raises(KeyringError, match="credentials"):
        open_provider(f"command:{deaf}").current_version(ORG)


# --- opening --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["", " ", "'", "/no/such/program", "no-such-program-of-that-name x", "\0"])
def test_a_command_that_is_none_is_refused_and_not_repeated(line: str):
    with pytest.raises(KeyringError, match="no such key command") as caught:
        open_provider(f"command:{line}")
    assert "no-such" not in str(caught.value)


def test_a_program_that_cannot_be_started_is_an_error_and_works_once_it_can(tmp_path: Path):
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o700)
    keys = open_provider(f"command:{broken}")
    with pytest.raises(KeyringError, match="cannot be started"):
        keys.current_version(ORG)
    broken.write_text(f'#!/bin/sh\necho \'{{"protocol": "{PROTOCOL}", "current": 1, "keys": {{"1": "a"}}}}\'\n')
    assert keys.current_version(ORG) == 1


def test_a_command_line_is_split_and_reaches_no_shell(tmp_path: Path):
    argv = reference(tmp_path)
    marker = tmp_path / "marker"
    keys = open_provider(
        f"command:{' '.join(argv[:-1])} '{tmp_path}/a b.keys' '$(touch {marker})' ';' touch {marker}"
    )
    assert isinstance(keys, KeyLifecycle)
    assert keys.new_version(ORG) == 1
    assert (tmp_path / "a b.keys").exists()
    assert not marker.exists()


def test_a_provider_shows_its_program_without_arguments_and_is_neither_copied_nor_pickled(program: Program):
    import copy
    import pickle

    keys = program.keys()
    assert repr(keys) == f"<CommandKeys key command {sys.executable!r}>"
    for use in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(MisuseError):
            use(keys)


def test_an_org_without_a_key_gets_none_in_passing(tmp_path: Path):
    keys = CommandKeys(reference(tmp_path))
    uses: list[Callable[[], object]] = [
        lambda: keys.current_version(ORG),
        lambda: keys.fingerprint(ORG, 1),
        lambda: keys.wrap(ORG, 1, bytes(32), CONTEXT),
    ]
    for use in uses:
        with pytest.raises(KeyNotFoundError):
            use()
    with pytest.raises(KeyNotFoundError, match="for a new org make its first version"):
        keys.current_version(ORG)
    with pytest.raises(KeyNotFoundError, match="use the service that this store was sealed with"):
        keys.unwrap(ORG, 1, b"whatever was wrapped there", CONTEXT)  # where all keys are lost, none is to be made
    assert keys.versions(ORG) == ()
    keys.retire(ORG, 1)
    assert not (tmp_path / "reference.keys").exists()
    assert keys.new_version(ORG) == 1
    assert keys.current_version(ORG) == 1
