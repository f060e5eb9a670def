"""The door: opening, owning, listing, restoring across sessions, resuming, closing, and what never gets outside."""

import base64
import contextlib
import json
import logging
import re
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from conftest import Conversation, Desk
from doubles import listen_to, patient
from test_access_path import restore_call
from test_vault import CONTENT, OWNER, filled

from evidence_archive import (
    Archive,
    BatchRejectedError,
    EvidenceArchiveError,
    FormatError,
    MisuseError,
    NotAvailableError,
    PolicyError,
    Principal,
)
from evidence_archive.dialects import dialect as archive_dialect
from evidence_archive.errors import KeyringError, SealBrokenError, StoreError
from evidence_archive.excerpt import WHOLE
from evidence_archive.keys import FileKeys
from evidence_archive.model import checked_name
from evidence_archive.policy import Policy
from evidence_archive.restoring import Restoring

STRANGER = Principal(org=OWNER.org, subject="stranger")
AUDITOR = Principal(org=OWNER.org, subject="auditor", roles={"auditor"})
CLINICAL = Policy.loads(
    """
[policy]
name = "door"
version = 3
default = "allow"

[[archive]]
id = "kept"
tools = ["signed.*"]
effect = "never"
reason = "signed results stay in view"

[[restore]]
sensitivity = ["clinical"]
roles = ["auditor"]
"""
)


def events(archive: Archive, principal: Principal = OWNER) -> list[str]:
    return [entry.event for entry in archive.audit(principal=principal).entries]


# --- opening ----------------------------------------------------------------------------------------------------


def test_an_archive_opens_with_paths_as_text_or_as_paths_and_with_the_default_policy(desk: Desk) -> None:
    for keys in (desk.keys, str(desk.keys)):
        with Archive.open(desk.url, keys=keys) as archive:
            assert archive.policy == Policy.default()


@pytest.mark.parametrize(
    ("named", "kind"),
    [
        ({"policy": "no-such-policy.toml"}, PolicyError),
        ({"keys": 7}, KeyringError),
        ({"keys": "env:"}, KeyringError),
        ({"objects": "ftp://somewhere"}, StoreError),
        ({"inline_size_max": -1}, FormatError),
        ({"url": "postgresql://u:p@h/d"}, StoreError),
        ({"url": ""}, StoreError),
        ({"url": "sqlite:///a\0b"}, StoreError),
        ({"url": "sqlite:///a\ud800b"}, StoreError),
        ({"url": "sqlite://h:x/y.db"}, StoreError),
        ({"url": "sqlite://h/y.db"}, StoreError),
        ({"url": "sqlite:///y.db?mode=memory"}, StoreError),
        ({"url": "sqlite:////" + "n" * 5_000}, StoreError),
        ({"url": "sqlite:////" + "n" * 5_000, "create": False}, StoreError),
        ({"url": None}, StoreError),
    ],
)
def test_what_cannot_be_opened_is_a_typed_error_and_makes_nothing(
    desk: Desk, named: dict[str, Any], kind: type[EvidenceArchiveError]
) -> None:
    with pytest.raises(kind):
        Archive.open(**{"url": desk.url, "keys": desk.keys, **named})
    assert not (desk.folder / "evidence.db").exists() or {"objects", "inline_size_max"} & named.keys()


def test_the_repr_tells_place_and_policy_and_no_secret(desk: Desk) -> None:
    with desk.open() as archive:
        place = re.sub("//.*@", "//", desk.url)  # whose database it is stays out
        assert repr(archive) == f"Archive('{place}', policy={archive.policy.name!r})"
        root = json.loads(desk.keys.read_text())["keys"]["1"]
        session = filled(archive)
        vault = archive._vault(OWNER)
        for shown in (archive, session, vault, vault.around, vault.around.keys, vars(vault), vars(archive)):
            assert root not in repr(shown)
            assert "made-up" not in repr(shown)


def test_a_password_in_a_url_is_not_shown(desk: Desk) -> None:
    from evidence_archive.archive import _PASSWORD

    assert _PASSWORD.sub("://", "postgresql://user:s3cr3t@host/db") == "postgresql://host/db"
    with desk.open() as archive:
        archive._url = _PASSWORD.sub("://", "postgresql://user:s3cr3t@host/db")
        assert "s3cr3t" not in repr(archive)


@pytest.mark.parametrize("nobody", [None, "owner", ("north-clinic", "owner"), Principal], ids=repr)
def test_whoever_asks_must_be_a_principal(desk: Desk, nobody: Any) -> None:
    with desk.open() as archive:
        filled(archive)
        before = events(archive)
        for verb in (
            lambda: archive.session("case", nobody),
            lambda: archive.restore("case", "r1", principal=nobody),
            lambda: archive.results("case", principal=nobody),
            lambda: archive.audit(principal=nobody),
            lambda: archive.resume("case", principal=nobody),
        ):
            with pytest.raises(FormatError, match="Principal"):
                verb()
        assert events(archive) == before


@pytest.mark.parametrize("reason", [7, b"why", ["why"], "y" * 2_001], ids=["int", "bytes", "list", "long"])
def test_a_reason_that_is_no_text_or_too_long_releases_and_logs_nothing(desk: Desk, reason: Any) -> None:
    with desk.open() as archive:
        session = filled(archive)
        before = events(archive)
        with pytest.raises(FormatError, match="reason"):
            archive.restore("case", "r1", principal=OWNER, reason=reason)
        with pytest.raises(FormatError, match="reason"):
            session.restore("r1", reason=reason)
        assert events(archive) == before
        assert archive.restore("case", "r1", principal=OWNER, reason="\ud800" * 2_000).content == CONTENT


def test_asking_for_an_org_that_was_never_used_makes_none(desk: Desk) -> None:
    nowhere = Principal(org="never-used", subject="owner")
    with desk.open() as archive:
        filled(archive)
        for verb in (
            lambda: archive.restore("case", "r1", principal=nowhere),
            lambda: archive.results("case", principal=nowhere),
            lambda: archive.audit(principal=nowhere),
            lambda: archive.resume("case", principal=nowhere),
        ):
            with pytest.raises(NotAvailableError):
                verb()
    assert desk.execute("SELECT org FROM orgs") == [(OWNER.org,)]


class SlowKeys:
    """A provider that, for one org, answers when it is told to; it counts what it unwraps."""

    def __init__(self, keys: FileKeys, org: str) -> None:
        self._keys, self._org = keys, org
        self.asked, self.go, self.unwrapped = threading.Event(), threading.Event(), 0

    def fingerprint(self, org: str, version: int) -> bytes:
        if org == self._org:
            self.asked.set()
            assert self.go.wait(30)
        return self._keys.fingerprint(org, version)

    def unwrap(self, org: str, version: int, wrapped: bytes, context: bytes) -> bytes:
        self.unwrapped += 1
        return self._keys.unwrap(org, version, wrapped, context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._keys, name)


def asking(archive: Archive, principal: Principal, told: list[Any]) -> threading.Thread:
    def ask() -> None:
        try:
            told.append(archive.audit(principal=principal).size)
        except EvidenceArchiveError as error:
            told.append(type(error))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_a_slow_key_provider_of_one_org_keeps_neither_others_nor_closing_waiting(desk: Desk) -> None:
    elsewhere = Principal(org="south-clinic", subject="owner")
    with desk.open() as archive:
        filled(archive)
        archive.session("case", elsewhere)
    keys = SlowKeys(FileKeys(desk.keys), OWNER.org)
    archive = desk.open(keys=keys)
    waiting, others = [], []
    slow = [asking(archive, OWNER, waiting) for _ in range(3)]
    assert keys.asked.wait(30)
    other = asking(archive, elsewhere, others)
    other.join(10)
    assert (others, waiting) == ([archive.audit(principal=elsewhere).size], [])
    closer = threading.Thread(target=archive.close)
    closer.start()
    closer.join(10)
    assert not closer.is_alive()
    keys.go.set()
    for thread in slow:
        thread.join(30)
    assert waiting == [MisuseError] * 3


def test_threads_that_use_an_org_first_at_once_ask_its_provider_once(desk: Desk) -> None:
    with desk.open() as archive:
        filled(archive)
    keys = SlowKeys(FileKeys(desk.keys), OWNER.org)
    with desk.open(keys=keys) as archive:
        told: list[Any] = []
        threads = [asking(archive, OWNER, told) for _ in range(8)]
        assert keys.asked.wait(30)
        keys.go.set()
        for thread in threads:
            thread.join(30)
        assert (len(told), len(set(told)), keys.unwrapped) == (8, 1, 1)
        assert archive._opening == {}


# --- sessions ---------------------------------------------------------------------------------------------------


def test_the_first_subject_owns_a_session_and_another_is_denied_and_logged(desk: Desk) -> None:
    with desk.open() as archive:
        archive.session("case", OWNER)
        for _ in range(2):
            with pytest.raises(NotAvailableError):
                archive.session("case", STRANGER)
        assert events(archive)[-2:] == ["session.denied", "session.denied"]
        assert archive.audit(principal=OWNER).entries[-1].subject == "stranger"
        archive.session("case", OWNER)


def test_the_role_of_an_auditor_does_not_open_a_session_that_another_owns(desk: Desk) -> None:
    with desk.open(policy=CLINICAL) as archive:
        archive.session("case", OWNER)
        with pytest.raises(NotAvailableError):
            archive.session("case", AUDITOR)


def test_sessions_of_two_orgs_may_have_one_name_and_share_nothing(desk: Desk) -> None:
    other = Principal(org="south-clinic", subject="owner")
    with desk.open() as archive:
        filled(archive)
        archive.session("case", other)
        assert archive.results("case", principal=other) == []
        assert events(archive, other) == ["key.created", "policy.loaded", "session.opened"]


def test_a_session_goes_on_in_another_archive_with_the_same_tag_and_numbers(desk: Desk) -> None:
    with desk.open() as first, desk.open() as second:
        session = filled(first)
        again = second.session("case", OWNER)
        assert again._records.row.tag == session._records.row.tag
        assert again.results() == session.results()
        assert again.restore("r1").content == CONTENT


def test_opening_again_writes_nothing_and_a_new_policy_is_logged_once(desk: Desk) -> None:
    with desk.open() as archive:
        archive.session("case", OWNER)
        size = archive.audit(principal=OWNER).size
        archive.session("case", OWNER)
        assert archive.audit(principal=OWNER).size == size
    with desk.open(policy=CLINICAL) as archive:
        archive.session("case", OWNER)
        archive.session("case", OWNER)
        archive.session("another", OWNER)
        last = archive.audit(principal=OWNER, start=size).entries
        assert [entry.event for entry in last] == ["policy.loaded", "session.opened"]
        assert last[0].policy_digest == CLINICAL.digest
        assert dict(last[0].details) == {"name": "door", "version": 3}


@pytest.mark.parametrize("name", ["", "c" * 257, "a\x00b", "a\nb", "\ud800", None, 7, b"case"])
def test_a_session_id_that_cannot_be_one_is_refused_before_anything_is_made(desk: Desk, name: Any) -> None:
    with desk.open() as archive:
        with pytest.raises(FormatError, match="session id"):
            archive.session(name, OWNER)
        with pytest.raises(NotAvailableError):
            archive.audit(principal=OWNER)


@pytest.mark.parametrize("name", ["a/../b", "c" * 256, "' OR 1=1 --", "\U0001f600", "%", " ", "\u202e"])
def test_a_session_id_is_opaque(desk: Desk, name: str) -> None:
    with desk.open() as archive:
        assert checked_name(name, "session id") == name
        filled(archive, name)
        assert archive.restore(name, "r1", principal=OWNER).content == CONTENT


@pytest.mark.parametrize("dialect", ["nonsense", "", "CHAT"])
def test_a_dialect_that_is_not_known_is_refused(desk: Desk, dialect: str) -> None:
    with desk.open() as archive, pytest.raises(FormatError):
        archive.session("case", OWNER, dialect=dialect)


# --- for whoever may --------------------------------------------------------------------------------------------


def labelled(archive: Archive) -> Any:
    session, talk = archive.session("case", OWNER), Conversation()
    for name in ("logs.search", "logs.search", "signed.form"):
        talk.tool(CONTENT, name=name)
        talk.say()
        session.view(talk.messages)
    session.archive([("r1", "a note"), ("r2", "another")])
    session.label("r2", sensitivity="clinical")
    return session


def test_the_owner_lists_everything_an_auditor_what_rules_open_and_others_nothing(desk: Desk) -> None:
    with desk.open(policy=CLINICAL) as archive:
        labelled(archive)
        told = archive.results("case", principal=OWNER)
        assert [(one.id, one.state, one.protected_by) for one in told] == [
            ("r1", "archived", None),
            ("r2", "archived", None),
            ("r3", "live", "kept"),
        ]
        assert [one.id for one in archive.results("case", principal=AUDITOR)] == ["r2"]
        for principal in (STRANGER, Principal(org="south-clinic", subject="owner")):
            with pytest.raises(NotAvailableError):
                archive.results("case", principal=principal)


def test_an_auditor_restores_what_rules_open_and_nothing_else(desk: Desk) -> None:
    with desk.open(policy=CLINICAL) as archive:
        labelled(archive)
        assert archive.restore("case", "r2", principal=AUDITOR, reason="a review").content == CONTENT
        with pytest.raises(NotAvailableError):
            archive.restore("case", "r1", principal=AUDITOR)
        with pytest.raises(NotAvailableError):
            archive.restore("case", "r2", principal=OWNER)
        last = archive.audit(principal=OWNER).entries[-3:]
        assert [(one.event, one.subject) for one in last] == [
            ("restore.granted", "auditor"),
            ("restore.denied", "auditor"),
            ("restore.denied", "owner"),
        ]


def test_a_part_is_exact_and_a_malformed_selector_releases_and_logs_nothing(desk: Desk) -> None:
    with desk.open() as archive:
        filled(archive)
        part = archive.restore("case", "r1", principal=OWNER, lines="2-3")
        assert part.content == "made-up finding\r\n" * 2
        size = archive.audit(principal=OWNER).size
        for named in ({"lines": "3-2"}, {"lines": "1-2", "pattern": "x"}, {"pattern": ""}, {"pointer": "nonsense"}):
            with pytest.raises(FormatError):
                archive.restore("case", "r1", principal=OWNER, **named)
        assert archive.audit(principal=OWNER).size == size


# --- resuming ---------------------------------------------------------------------------------------------------


def test_a_suspension_for_damage_outlives_the_process_and_ends_only_when_somebody_resumes(desk: Desk) -> None:
    with desk.open() as archive:
        filled(archive)
    ((kept,),) = desk.execute("SELECT envelope FROM originals")
    desk.execute("UPDATE originals SET envelope = ?", bytes(400))
    with desk.open() as archive, pytest.raises(SealBrokenError):
        archive.restore("case", "r1", principal=OWNER)
    desk.execute("UPDATE originals SET envelope = ?", kept)
    with desk.open() as archive:
        session = archive.session("case", OWNER)
        with pytest.raises(BatchRejectedError) as caught:
            session.archive([("r2", "a note")])
        assert caught.value.reason == "suspended"
        assert session.restore("r1").content == CONTENT, "suspension stops archiving, not restoring"
        archive.resume("case", principal=OWNER)
        assert events(archive)[-1] == "session.resumed"
        talk = Conversation()
        for _ in range(2):
            talk.tool(CONTENT)
            talk.say()
        session.view(talk.messages)
        session.archive([("r2", "a note")])


# --- closing ----------------------------------------------------------------------------------------------------


def test_after_closing_every_verb_is_misuse_and_closing_again_is_nothing(desk: Desk) -> None:
    archive = desk.open()
    session = filled(archive)
    archive.close()
    archive.close()
    for verb in (
        lambda: archive.session("case", OWNER),
        lambda: archive.restore("case", "r1", principal=OWNER),
        lambda: archive.results("case", principal=OWNER),
        lambda: archive.audit(principal=OWNER),
        lambda: archive.resume("case", principal=OWNER),
        lambda: session.view([]),
        lambda: session.archive([("r1", "note")]),
        lambda: session.restore("r1"),
        lambda: session.results(),
        lambda: session.stats(),
    ):
        with pytest.raises(MisuseError, match="closed"):
            verb()


def test_leaving_the_block_closes_it_even_after_an_error(desk: Desk) -> None:
    def fails() -> None:
        with desk.open() as archive:
            kept.append(archive)
            raise ZeroDivisionError

    kept: list[Archive] = []
    with pytest.raises(ZeroDivisionError):
        fails()
    with pytest.raises(MisuseError):
        kept[0].session("case", OWNER)


def test_threads_share_an_archive(desk: Desk) -> None:
    with desk.open(policy=patient()) as archive:
        filled(archive)
        errors: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for _ in range(3):
                    assert archive.restore("case", "r1", principal=OWNER).content == CONTENT
                    filled(archive, f"thread-{number}-{secrets.token_hex(4)}")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert archive.audit(principal=OWNER).intact


# --- nothing outside --------------------------------------------------------------------------------------------


def forms(canary: str) -> list[bytes]:
    """How a text may lie in bytes: plain, hex, base64 at any offset, UTF-16."""
    data = canary.encode()
    shifted = [base64.b64encode(b"x" * shift + data)[4 : -4 - len(data) % 3] for shift in range(3)]
    return [data, data.hex().encode(), *shifted, canary.encode("utf-16-le"), canary.encode("utf-16-be")]


def found_in(data: bytes, canaries: dict[str, str]) -> set[str]:
    lowered = data.lower()
    return {
        name
        for name, canary in canaries.items()
        if any(form in data or form.lower() in lowered for form in forms(canary))
    }


class Watch:
    """All that leaves the library: database and journal at every commit, logs at DEBUG, reprs, errors."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.seen = bytearray()

    def take(self, *things: Any) -> None:
        self.seen += self.desk.stored()
        for thing in things:
            self.seen += f"{thing!r} {thing!s}".encode("utf-8", "surrogatepass")


@pytest.fixture
def watch(desk: Desk, caplog: pytest.LogCaptureFixture) -> Iterator[Watch]:
    caplog.set_level(logging.DEBUG)
    watching = Watch(desk)
    yield watching
    structlog.reset_defaults()


def worked_through(watch: Watch, canaries: dict[str, str]) -> None:
    """Everything a session does, with a canary in every place that may hold evidence."""
    with watch.desk.open() as archive:
        listen_to(archive, lambda sql: watch.take() if sql == "COMMIT" else None)
        session, talk = archive.session("case", OWNER), Conversation()
        text = f"{canaries['content']}\n" * 60
        talk.call("logs.search", json.dumps({"query": canaries["arguments"]}), call_id="c1")
        talk.messages.append({"role": "tool", "tool_call_id": "c1", "content": text})
        talk.say(canaries["conversation"])
        talk.tool([{"type": "text", "text": canaries["part"] * 60}])
        talk.say()
        talk.tool(text + "3")
        talk.say()
        session.view(talk.messages)
        watch.take(session, archive, session.results(), session.stats())
        watch.take(session.archive([("r1", canaries["note"]), ("r2", canaries["note"])], idempotency_key="k"))
        batch = json.dumps({"batch": [{"id": "r3", "note": canaries["model note"]}]})
        talk.ours(session, "archive_evidence", batch)
        session.view(talk.messages)
        restored = session.restore("r1", reason=canaries["reason"])
        assert restored.content == text
        watch.take(restored, session._records.rows, vars(session._records).keys())
        found = Restoring(archive._vault(OWNER)).find(OWNER, "case", "r1")
        watch.take(found, Restoring(archive._vault(OWNER)).opened(OWNER, found, WHOLE, archive_dialect("chat")))
        call = json.loads(restore_call("r3"))
        talk.ours(session, "restore_evidence", json.dumps({**call, "reason": canaries["model reason"]}))
        talk.say()
        session.view(talk.messages)
        session.archive([(session.results()[-1].id, canaries["note"])])
        for error in failures(watch.desk, session, archive, canaries):
            watch.take(error, error.args, error.__cause__, error.__context__, vars(error))
        watch.take(archive.audit(principal=OWNER).entries)
    watch.take()


def failures(desk: Desk, session: Any, archive: Archive, canaries: dict[str, str]) -> list[BaseException]:
    caught: list[BaseException] = []
    verbs: list[Any] = [
        lambda: session.archive([("r1", canaries["note"])]),
        lambda: session.archive([("r99", canaries["note"])]),
        lambda: session.archive([("r1", canaries["note"])], idempotency_key="k"),
        lambda: archive.restore("case", "r1", principal=OWNER, pattern=canaries["pattern"]),
        lambda: archive.restore("case", "r1", principal=STRANGER, reason=canaries["reason"]),
        lambda: archive.restore("case", "r1", principal=OWNER, pointer="/" + canaries["pattern"]),
        lambda: session.view([{"role": "tool", "content": canaries["content"]}, canaries["content"]]),
    ]
    for verb in verbs:
        with contextlib.suppress(Exception):
            try:
                verb()
            except EvidenceArchiveError as error:
                caught.append(error)
                raise
    desk.execute("UPDATE originals SET envelope = ?", bytes(400))
    try:
        archive.restore("case", "r1", principal=OWNER)
    except EvidenceArchiveError as error:
        caught.append(error)
    assert len(caught) >= 5
    return caught


PLACES = (
    *("content", "part", "arguments", "conversation", "note", "model note", "reason", "model reason", "pattern"),
)


def made_up() -> dict[str, str]:
    return {name: f"canary{secrets.token_hex(9)}" for name in PLACES}


def test_no_canary_is_found_in_database_journal_logs_reprs_or_errors(
    watch: Watch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    canaries = made_up()
    worked_through(watch, canaries)
    watch.seen += caplog.text.encode("utf-8", "surrogatepass")
    watch.seen += "".join(capfd.readouterr()).encode("utf-8", "surrogatepass")
    assert b"restore.granted" in watch.seen, "the database was looked at"
    assert b"evidence_archive.archived" in watch.seen, "the logs were looked at"
    assert found_in(bytes(watch.seen), canaries) == set()


@pytest.mark.parametrize("selector", ["pattern", "pointer"])
def test_what_a_model_searched_for_is_not_kept_in_plain_text(desk: Desk, selector: str) -> None:
    canary = f"canary{secrets.token_hex(9)}"
    with desk.open() as archive:
        session, talk = archive.session("case", OWNER), Conversation()
        talk.tool(json.dumps({canary: "made-up finding " * 100}))
        talk.say()
        session.view(talk.messages)
        session.archive([("r1", "a note")])
        asked = json.loads(restore_call("r1"))
        asked[selector] = canary if selector == "pattern" else f"/{canary}"
        talk.ours(session, "restore_evidence", json.dumps(asked))
        talk.say()
        session.view(talk.messages)
        session.archive([("r2", "a copy of a part")])
        assert "made-up finding" in str(session.restore("r2").content)
    assert found_in(desk.stored(), {"it": canary}) == set()


@pytest.mark.parametrize("form", range(7))
def test_the_scan_would_find_a_canary_in_every_form(form: int) -> None:
    canaries = made_up()
    hidden = forms(canaries["note"])[form]
    assert found_in(b"\x00" * 31 + hidden + b"\xff" * 17, canaries) == {"note"}


def test_the_scan_would_find_a_store_that_keeps_plain_text(
    watch: Watch, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    canaries = made_up()
    from evidence_archive.store.sql import SqlWriter

    insert = SqlWriter.insert_originals

    def plainly(self: SqlWriter, originals: Any) -> None:
        insert(self, originals)
        for one in originals:
            plain = f"UPDATE originals SET envelope = x'{(one.envelope + canaries['content'].encode()).hex()}'"
            self._cursor().execute(plain if watch.desk.server is None else plain.replace("x'", "'\\x"))

    monkeypatch.setattr(SqlWriter, "insert_originals", plainly)
    with pytest.raises(EvidenceArchiveError):
        worked_through(watch, canaries)
    watch.take()
    assert "content" in found_in(bytes(watch.seen), canaries)


def test_the_temporary_folder_of_a_test_holds_nothing_but_the_store_and_its_keys(desk: Desk) -> None:
    with desk.open() as archive:
        filled(archive)
    names = {path.name for path in Path(desk.folder).iterdir()}
    assert names <= {"evidence.db", "evidence.keys", "evidence.db-journal", "evidence.db-wal", "evidence.db-shm"}


# --- a database that is gone ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["beside", "named"])
@pytest.mark.parametrize("gone", ["missing", "emptied"])
def test_no_database_is_begun_beside_the_objects_of_another(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, tmp_path: Path, gone: str, place: str
):
    objects = None if place == "beside" else tmp_path / "large"
    named: dict[str, Any] = {"objects": objects, "inline_size_max": 100}
    with sqlite_desk.open(**named) as archive:
        session = archive.session("case-4711", owner)
        talk.tool("a line of a log\n" * 400)
        talk.say()
        session.view(talk.messages)
        session.archive([("r1", "a note")])
    kept = sqlite_desk.database.read_bytes()
    sqlite_desk.database.unlink()
    if gone == "emptied":
        sqlite_desk.database.touch(0o600)
    for _ in range(2):
        with pytest.raises(StoreError, match="put the database back"):
            sqlite_desk.open(**named)
        assert sqlite_desk.database.exists() == (gone == "emptied")
    sqlite_desk.database.write_bytes(kept)
    with sqlite_desk.open(**named) as archive:
        assert archive.restore("case-4711", "r1", principal=owner).content


@pytest.mark.parametrize("there", [(), ("evidence-archive-objects",), ("lost+found", "aa")])
def test_a_fresh_folder_for_objects_keeps_no_database_from_being_made(
    sqlite_desk: Desk, owner: Principal, there: tuple[str, ...]
):
    folder = sqlite_desk.folder / "evidence.db.objects"
    folder.mkdir(mode=0o700)
    for name in there:
        (folder / name).mkdir()
    with sqlite_desk.open() as archive:
        archive.session("case-4711", owner)


def test_must_fail_control_without_looking_a_database_is_begun_beside_orphans(
    sqlite_desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    orphan = sqlite_desk.folder / "evidence.db.objects" / "aa" / f"{'0' * 30}.00000"
    orphan.parent.mkdir(parents=True, mode=0o700)
    orphan.write_bytes(b"x")
    with pytest.raises(StoreError):
        sqlite_desk.open()
    monkeypatch.setattr("evidence_archive.objects.holds_objects", lambda _: False)
    with sqlite_desk.open() as archive:
        archive.session("case-4711", owner)


def test_a_database_that_is_there_is_opened_without_a_look_at_its_objects(
    sqlite_desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    with sqlite_desk.open() as archive:
        archive.session("case-4711", owner)
    monkeypatch.setattr("evidence_archive.objects.holds_objects", lambda _: pytest.fail("looked"))
    with sqlite_desk.open() as archive:
        archive.session("case-4711", owner)
