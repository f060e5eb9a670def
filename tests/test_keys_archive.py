"""An archive over a key service: a request for each session, and no fault by which anything is lost or shown."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Conversation, Desk
from key_services import Answer, Drop, TransitKey, VaultDoor, vault_error

pytest.importorskip("hvac", reason="sweep: hvac is not installed")

from evidence_archive import Principal
from evidence_archive.errors import KeyNotFoundError, KeyringError, WrongKeyError
from evidence_archive.keys.service import org_name
from evidence_archive.keys.transit import TransitKeys

NAME = f"evidence-archive-{org_name('north-clinic')}"
CONTENT = "14 timeouts, all on node 3\n" * 40


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[VaultDoor]:
    for name in (name for name in os.environ if name.startswith("VAULT_")):
        monkeypatch.delenv(name)
    monkeypatch.setenv("VAULT_TOKEN", made := f"hvs.{os.urandom(20).hex()}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    opened = VaultDoor()
    opened.tokens.add(made)
    with opened:
        TransitKeys(opened.url).new_version("north-clinic")
        opened.take_asked()
        opened.connections = 0
        yield opened


def archived(desk: Desk, door: VaultDoor, owner: Principal, count: int = 1) -> None:
    """A session ``case`` with some originals in the archive."""
    with desk.open(keys=f"transit:{door.url}/transit") as archive:
        session, talk = archive.session("case", owner), Conversation()
        for number in range(count):
            talk.tool(f"{number} {CONTENT}")
        talk.say()
        session.view(talk.messages)
        session.archive([(f"r{number}", "Node 3.") for number in range(1, count + 1)])


def test_keys_are_asked_for_once_per_session_and_not_per_original(
    sqlite_desk: Desk, door: VaultDoor, owner: Principal
):
    archived(sqlite_desk, door, owner, count=20)
    asked = door.take_asked()
    # Each is unwrapped again before it is stored, and once more by whoever opens the org.
    assert (asked.count("encrypt"), asked.count("decrypt")) == (2, 3), "the org's key and the session's"
    assert (asked.count("read"), asked.count("hmac"), len(asked)) == (1, 1, 7)
    with sqlite_desk.open(keys=f"transit:{door.url}/transit") as archive:
        for number in range(1, 21):
            assert archive.restore("case", f"r{number}", principal=owner).content == f"{number - 1} {CONTENT}"
    asked = door.take_asked()
    assert (asked.count("decrypt"), asked.count("read"), asked.count("hmac")) == (2, 1, 1)
    assert "encrypt" not in asked


def dropped(operation: str, asked: dict[str, Any]) -> Answer:
    raise Drop


OUTAGES: dict[str, tuple[Any, type[KeyringError]]] = {
    "away": ("away", KeyringError),
    "cut": (dropped, KeyringError),
    "throttled": (lambda operation, asked: vault_error(429), KeyringError),
    "sealed": (lambda operation, asked: vault_error(503, "Vault is sealed"), KeyringError),
    "expired": (lambda operation, asked: vault_error(403, "permission denied"), KeyringError),
    "nonsense": (lambda operation, asked: (200, b"<html>"), KeyringError),
    "another key": (
        lambda operation, asked: (200, {"data": {"plaintext": "A" * 86 + "=="}}) if operation == "decrypt" else None,
        KeyringError,
    ),
    "destroyed": ("destroyed", KeyNotFoundError),
    "made anew": ("made anew", WrongKeyError),
}


@pytest.mark.parametrize("name", OUTAGES)
def test_while_keys_cannot_be_had_nothing_is_stored_or_shown_and_then_all_is_as_before(
    sqlite_desk: Desk, door: VaultDoor, owner: Principal, name: str
):
    fault, kind = OUTAGES[name]
    archived(sqlite_desk, door, owner)
    key = door.keys[NAME]
    stored = sqlite_desk.saved()
    with sqlite_desk.open(keys=f"transit:{door.url}/transit") as archive:
        if fault == "away":
            door.close()
        elif fault == "destroyed":
            del door.keys[NAME]
        elif fault == "made anew":
            door.keys[NAME] = TransitKey(NAME, {})
        else:
            door.fault = fault
        for use in (
            lambda: archive.restore("case", "r1", principal=owner),
            lambda: archive.session("case", owner),
            lambda: archive.session("new", owner),
        ):
            with pytest.raises(KeyringError) as caught:
                use()
            assert type(caught.value) is kind
        assert sqlite_desk.saved() == stored
        door.fault, door.keys[NAME] = None, key
        if fault == "away":
            door.open()
        assert archive.restore("case", "r1", principal=owner).content == f"0 {CONTENT}"
        assert archive.session("new", owner).results() == []


def test_a_session_that_is_open_archives_on_while_the_service_is_away(
    sqlite_desk: Desk, door: VaultDoor, owner: Principal, talk: Conversation
):
    with sqlite_desk.open(keys=f"transit:{door.url}/transit") as archive:
        session = archive.session("case", owner)
        talk.tool(CONTENT)
        talk.say()
        session.view(talk.messages)
        door.close()
        session.archive([("r1", "Node 3.")])
        assert session.restore("r1").content == CONTENT
        with pytest.raises(KeyringError):
            archive.session("new", owner)
        door.open()
        archive.session("new", owner)


def test_a_process_that_was_forked_asks_over_a_connection_of_its_own(door: VaultDoor):
    keys = TransitKeys(door.url)
    wrapped = keys.wrap("north-clinic", 1, bytes(32), b"")
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if keys.unwrap("north-clinic", 1, wrapped, b"") == bytes(32) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert keys.unwrap("north-clinic", 1, wrapped, b"") == bytes(32)
    assert door.connections == 2
