"""Whatever is secret is nowhere outside: random texts are archived, restored, refused, broken off, and searched for.

Searched are databases and their journals at every commit, objects, temporary files, what killed processes leave, a
PostgreSQL server's data, write-ahead log and statement log, our logs, tracebacks and reprs; for the texts in any
encoding, for halves of them, and for digests of what is made of them.
"""

import copy
import io
import json
import logging
import os
import pickle
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import structlog
from conftest import Conversation, Desk
from doubles import Characters, listen_to
from postgres_server import servers
from scanner import CONTAINERS, DIGESTS, FORMS, Scanner, canary
from sqlalchemy import make_url
from test_access_path import restore_call
from test_archive_door import PLACES, worked_through
from test_vault import OWNER

from evidence_archive import Archive, AsyncArchive, EvidenceArchiveError, Principal
from evidence_archive.aio import AsyncSession, _Verbs
from evidence_archive.errors import FormatError, MisuseError
from evidence_archive.events import Events
from evidence_archive.keys import new_keys
from evidence_archive.sealing.envelope import Sealed, seal_original
from evidence_archive.store import open_store
from evidence_archive.store.sqlite import journal_rules
from evidence_archive.testing.faults import FaultPlan, faulted

HERE = Path(__file__).resolve().parent
LARGE = ("large text", "large part")
LARGE_CHARS = 3 * 1024 * 1024
PIECE_BYTES, OVERLAP_BYTES = 64 * 1024, 512
STRANGER = Principal(org=OWNER.org, subject="stranger")
OFFICER = Principal(org=OWNER.org, subject="records-office", roles={"custodian"})

EVERYWHERE = (*PLACES, *LARGE, "conversation of a tool", "user")


def made_up() -> dict[str, str]:
    return {name: canary() for name in EVERYWHERE}


def wholes(canaries: dict[str, str]) -> dict[str, bytes]:
    """The exact bytes of what the conversations archive."""
    content, part = f"{canaries['content']}\n" * 60, canaries["part"] * 60
    texts = {"content": content, "content 3": content + "3", "part": part, "large text": large_text(canaries)}
    parts = {"part": [{"type": "text", "text": part}], "large part": large_parts(canaries)}
    return {
        **{f"all of {name}": text.encode() for name, text in texts.items()},
        **{f"all parts of {name}": json.dumps(one, separators=(",", ":")).encode() for name, one in parts.items()},
    }


def large_text(canaries: dict[str, str]) -> str:
    return "\n".join(_lines(canaries["large text"]))


def large_parts(canaries: dict[str, str]) -> list[Any]:
    return [{"type": "text", "text": " ".join(_lines(canaries["large part"]))}]


@cache
def _lines(secret: str) -> list[str]:
    """Half of it compresses away; the same in every process."""
    noise = random.Random(secret).randbytes(LARGE_CHARS * 5 // 12).hex()
    return [f"{secret} was seen by {noise[at : at + 200]}" for at in range(0, len(noise), 200)]


# --- what is looked at ------------------------------------------------------------------------------------------


class Bag:
    """All that was ever outside of the library; equal pieces of it are kept once.

    Args:
        desk: with the database, the objects and the keys in its folder.
        temporary: folder for temporary files.
    """

    def __init__(self, desk: Desk, temporary: Path) -> None:
        self.desk = desk
        self.temporary = temporary
        self.pieces: set[bytes] = set()

    def add(self, data: bytes) -> None:
        """Bytes, in pieces that overlap by more than any pattern has."""
        self.pieces.update(data[at : at + PIECE_BYTES + OVERLAP_BYTES] for at in range(0, len(data), PIECE_BYTES))

    def files(self, *folders: Path) -> None:
        for folder in folders or (self.desk.folder, self.temporary):
            for path in folder.rglob("*"):
                if path.is_file() and path.name != "evidence.keys":
                    with suppress(FileNotFoundError):  # a journal goes when its transaction ends
                        self.add(path.read_bytes())
                        self.add(str(path).encode())

    def take(self, *things: Any) -> None:
        """Things as they show themselves, with all files as they are now where the database is a file."""
        if self.desk.server is None:
            self.files()
        for thing in things:
            self.add(f"{thing!r} {thing!s}".encode("utf-8", "surrogatepass"))
            if isinstance(thing, BaseException):
                self.add("".join(traceback.format_exception(thing)).encode("utf-8", "surrogatepass"))

    def found(self, scanner: Scanner) -> set[str]:
        return {told for data in self.pieces for told in scanner.found(data)}

    def __contains__(self, data: bytes) -> bool:
        return any(data in one for one in self.pieces)


class Everything(logging.Formatter):
    """A record with all its fields and its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{super().format(record)} {vars(record)}"


@pytest.fixture
def logs() -> Iterator[io.StringIO]:
    """Everything that is logged anywhere at DEBUG, drivers and SQLAlchemy included."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(Everything())
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield written
    root.setLevel(before)
    root.removeHandler(handler)
    structlog.reset_defaults()


def to_a_console(written: io.StringIO) -> None:
    """structlog as an application configures it for people."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=False),
        ],
        logger_factory=structlog.PrintLoggerFactory(written),
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
    )


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this test's own for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    for name in ("TMPDIR", "SQLITE_TMPDIR"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.fixture
def bag(sqlite_desk: Desk, temporary: Path) -> Bag:
    return Bag(sqlite_desk, temporary)


def reachable(*roots: Any) -> Iterator[Any]:
    """Every object of this library that others can be led to, from attribute to attribute."""
    waiting, met = list(roots), {}
    while waiting:
        thing = waiting.pop()
        if id(thing) in met:
            continue
        met[id(thing)] = thing
        if isinstance(thing, dict):
            waiting += [*thing.keys(), *thing.values()]
        elif isinstance(thing, list | tuple | set | frozenset):
            waiting += thing
        elif type(thing).__module__.startswith("evidence_archive"):
            yield thing
            names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
            waiting += [getattr(thing, name) for name in names if hasattr(thing, name)]
            waiting += getattr(thing, "__dict__", {}).values()


# --- conversations ----------------------------------------------------------------------------------------------


def large(archive: Archive, canaries: dict[str, str], name: str = "large") -> Conversation:
    """Originals that lie in objects, or in more pages of a database than are held in memory."""
    session, talk = archive.session(name, OWNER), Conversation()
    talk.messages.append({"role": "user", "content": canaries["user"]})
    for content in (large_text(canaries), large_parts(canaries)):
        call = talk.call("logs.search", json.dumps({"query": canaries["arguments"]}))
        talk.messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    talk.say(canaries["conversation of a tool"])
    session.view(talk.messages)
    session.archive([("r1", canaries["note"]), ("r2", canaries["model note"])])
    assert session.restore("r1", reason=canaries["reason"]).content == large_text(canaries)
    assert session.restore("r2").content == large_parts(canaries)
    session.restore("r1", pattern=canaries["large text"])
    session.restore("r1", byte_range="0-99")
    archive.restore_to(io.BytesIO(), name, "r1", principal=OWNER, reason=canaries["model reason"])
    for selector in (
        {},
        {"lines": "1-2"},
        {"pattern": canaries["large text"]},
        {"pointer": f"/{canaries['pattern']}"},
    ):
        talk.ours(session, "restore_evidence", json.dumps({**json.loads(restore_call("r1")), **selector}))
    session.view(talk.messages)
    return talk


def stumbling(archive: Archive, canaries: dict[str, str], name: str) -> Iterator[BaseException]:
    """A conversation in which anything may fail; what was raised."""
    talk = Conversation()
    opened: list[Any] = []
    steps: list[Callable[[], Any]] = [
        lambda: opened.append(archive.session(name, OWNER)),
        lambda: opened[0].view(talk.messages),
        lambda: opened[0].label("r1", sensitivity="clinical"),
        lambda: opened[0].archive([("r1", canaries["note"]), ("r2", canaries["note"])], idempotency_key="k"),
        lambda: opened[0].view(talk.messages),
        lambda: opened[0].restore("r1", reason=canaries["reason"]),
        lambda: opened[0].restore("r2", pattern=canaries["pattern"]),
        lambda: archive.restore_to(io.BytesIO(), name, "r2", principal=OWNER),
        lambda: archive.restore(name, "r1", principal=STRANGER, reason=canaries["reason"]),
        lambda: opened[0].answer(talk.call("archive_evidence", json.dumps({"batch": canaries["model note"]}))),
        lambda: opened[0].answer(talk.call("restore_evidence", restore_call("r1"))),
        lambda: opened[0].archive([("r1", canaries["note"])]),
    ]
    talk.tool(f"{canaries['content']}\n" * 60)
    talk.tool([{"type": "text", "text": canaries["part"] * 60}])
    talk.say(canaries["conversation"])
    for step in steps:
        try:
            step()
        except (EvidenceArchiveError, IndexError) as error:
            yield error


# --- one file, and what stands beside it ------------------------------------------------------------------------


@pytest.mark.parametrize("journal", ["truncate", "wal"])
def test_no_canary_is_in_files_of_any_kind_logs_tracebacks_or_reprs(bag, logs, journal, monkeypatch, record_property):
    rules = {"truncate": journal_rules((3, 40, 1)), "wal": journal_rules((3, 51, 3))}[journal]
    assert rules[0] == journal
    monkeypatch.setattr("evidence_archive.store.sqlite.journal_rules", lambda version: rules)
    canaries = made_up()
    console = io.StringIO()
    to_a_console(console)
    for size in (1 << 20, 64 << 20):  # beside the database, and in it
        with bag.desk.open(counter=Characters(), inline_size_max=size) as archive:
            listen_to(archive, lambda sql: bag.take() if sql == "COMMIT" else None)
            talk = large(archive, canaries, f"large {size}")
            session = archive.session(f"large {size}", OWNER)
            session.view(talk.messages)
            bag.take(*reachable(archive, session, session.results(), session.stats(), AsyncArchive(archive)))
    structlog.reset_defaults()
    worked_through(bag, canaries)
    bag.add(console.getvalue().encode())
    bag.add(logs.getvalue().encode("utf-8", "surrogatepass"))
    beside = {"truncate": b"evidence.db-journal", "wal": b"evidence.db-wal"}[journal]
    for seen in (b"evidence_archive.archived", b"restore.granted", b"[info", b".objects/", beside):
        assert seen in bag, f"{seen!r} was not looked at"
    assert list(bag.temporary.iterdir()) == []
    record_property("bytes", sum(map(len, bag.pieces)))
    assert bag.found(Scanner(canaries, wholes(canaries))) == set()


FAULTS = (
    *("store.insert_originals.after", "store.insert_objects.after", "store.update_results.before"),
    *("store.append.before", "store.commit.before", "store.commit.after", "store.find", "store.envelope"),
    *("store.object", "store.insert_batch.after", "objects.put.before", "objects.put.after", "objects.get"),
    *("keys.wrap", "keys.unwrap", "keys.fingerprint"),
)


def test_no_canary_is_in_what_is_left_of_what_was_broken_off_half_way(bag, logs):
    canaries = made_up()
    raised = 0
    for point in FAULTS:
        for times in (1, None):
            plan = FaultPlan()
            archive = faulted(bag.desk.open(counter=Characters(), inline_size_max=1_900), plan)
            with archive:
                plan.error(point, times=times)
                for error in stumbling(archive, canaries, f"{point} {times}"):
                    bag.take(error)
                    raised += 1
                bag.take(archive)
            assert plan.count(point), f"{point} was never passed"
    assert raised > len(FAULTS)
    bag.add(logs.getvalue().encode("utf-8", "surrogatepass"))
    assert b"evidence_archive.trouble" in bag
    assert bag.found(Scanner(canaries, wholes(canaries))) == set()


def test_no_canary_is_in_what_custody_leaves_in_backups_registers_anchors_and_a_history(bag, logs, tmp_path):
    canaries = made_up()
    outside = bag.desk.folder / "outside"
    outside.mkdir()
    kept = {"anchors": [outside / "heads.jsonl", f"objects:{outside / 'heads'}"], "register": outside / "register"}
    with bag.desk.open(counter=Characters(), inline_size_max=1 << 20, **kept) as archive:
        large(archive, canaries)
        large(archive, canaries, "second")
        custody = archive.custody(OFFICER)
        hold = custody.hold(canaries["reason"], session_id="large")
        assert hold.reason == canaries["reason"]
        for at, act in enumerate(
            (
                lambda: custody.backup(outside / "first"),
                lambda: custody.shred(session_id="large", result_id="r1"),
                lambda: custody.shred(session_id="second", result_id="r1"),
                custody.rotate,
                lambda: custody.verify("full"),
                lambda: custody.release(hold.id),
                lambda: custody.backup(outside / "second"),
            )
        ):
            try:
                bag.take(act())
            except EvidenceArchiveError as error:
                assert at == 1, "the one that is held"
                bag.take(error)
        with (outside / "history.zip").open("wb") as file:
            custody.export(file, "large", include_original=False)
        bag.take(*reachable(custody, custody.holds(), custody.shreds(), custody.census()))
    bag.add(logs.getvalue().encode("utf-8", "surrogatepass"))
    for seen in (b"hold.placed", b"shred.requested", b"manifest.json", b"tlog-proof", b"EVA1"):
        assert seen in bag, f"{seen!r} was not looked at"
    assert bag.found(Scanner(canaries, wholes(canaries))) == set()


# --- processes that are killed ----------------------------------------------------------------------------------

_DYING = f"import sys; sys.path[:0] = {[str(HERE), str(HERE.parent)]!r}; import test_canaries; test_canaries.die()"


def die() -> None:
    """What a child does: archive large originals until it is killed at a point."""
    told = json.loads(sys.stdin.readline())
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    plan = FaultPlan()
    plan.crash(told["point"], nth=told["nth"], kill=True)
    desk = Desk(Path(told["folder"]), told["url"])
    with faulted(desk.open(counter=Characters(), inline_size_max=told["inline_size_max"]), plan) as archive:
        large(archive, told["canaries"], "killed")


def killed(desk: Desk, canaries: dict[str, str], point: str, nth: int, inline_size_max: int) -> bytes:
    """What a child said until it was killed."""
    told = {"folder": str(desk.folder), "url": desk.url, "canaries": canaries, "point": point, "nth": nth}
    child = subprocess.run(
        [sys.executable, "-c", _DYING],
        input=json.dumps(told | {"inline_size_max": inline_size_max}).encode() + b"\n",
        capture_output=True,
        check=False,
        cwd=desk.folder,
        timeout=120,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr[-500:]
    return child.stdout + child.stderr


@pytest.mark.parametrize(
    ("point", "nth", "inline_size_max"),
    [
        ("objects.put.after", 1, 1 << 20),
        ("store.append.after", 3, 1 << 20),
        ("store.append.after", 2, 64 << 20),
        ("store.find", 3, 64 << 20),
    ],
)
def test_no_canary_is_in_what_a_killed_process_leaves(bag, point, nth, inline_size_max):
    canaries = made_up()
    bag.add(killed(bag.desk, canaries, point, nth, inline_size_max))
    bag.files()
    assert list(bag.temporary.iterdir()) == []
    assert sum(map(len, bag.pieces)) > LARGE_CHARS // 4, "large originals were on their way"
    assert bag.found(Scanner(canaries, wholes(canaries))) == set()


# --- a server ---------------------------------------------------------------------------------------------------


def test_no_canary_is_in_the_data_the_write_ahead_log_or_the_log_of_a_server(temporary, tmp_path, logs):
    canaries = made_up()
    new_keys(tmp_path / "evidence.keys")
    with servers() as server:
        assert server.process is not None
        data = server.process.folder
        server.process.stop()
        server.process.settings |= {
            "log_min_messages": "debug1",
            "log_statement": "all",
            "log_min_duration_statement": "0",
            "log_error_verbosity": "verbose",
            "wal_keep_size": "256MB",
        }
        server.process.start()
        url = server.database(server.role())
        desk = Desk(tmp_path, url.render_as_string(hide_password=False), server)
        open_store(desk.url).close()
        server.run("CHECKPOINT")
        before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
        bag = Bag(desk, temporary)
        with desk.open(counter=Characters()) as archive:
            large(archive, canaries)
            bag.add(desk.stored())  # as a superuser reads it: unpacked, and without the wall
            for error in stumbling(archive, canaries, "stumbling"):
                bag.take(error)
        bag.add(killed(desk, canaries, "store.commit.before", 4, 64 << 20))
        worked_through(bag, canaries)
        bag.add(desk.stored())
        server.run("CHECKPOINT")
        server.run("CHECKPOINT", database=make_url(desk.url).database)
        changed = [path for path in data.rglob("*") if path.is_file() and before.get(path) != path.read_bytes()]
        for path in changed:
            bag.add(path.read_bytes())
    names = {path.relative_to(data).parts[:2] for path in changed}
    assert {("data", "base"), ("data", "pg_wal"), ("log",)} <= names
    bag.add(logs.getvalue().encode("utf-8", "surrogatepass"))
    for seen in (b"INSERT INTO originals", b"restore.granted", b"evidence_archive.archived"):
        assert seen in bag, f"{seen!r} was not looked at"
    assert bag.found(Scanner(canaries, wholes(canaries))) == set()


# --- values that travel -----------------------------------------------------------------------------------------


def test_nothing_that_holds_keys_or_messages_is_pickled_or_copied(bag):
    with bag.desk.open(counter=Characters()) as archive:
        session, talk = archive.session("case", OWNER), Conversation()
        talk.tool("made-up finding\n" * 60)
        talk.say()
        session.view(talk.messages)
        holders = (archive, session, AsyncArchive(archive), AsyncSession(session, _Verbs()), archive._vault(OWNER))
        for holder in holders:
            for travel in (pickle.dumps, copy.deepcopy):
                with pytest.raises((TypeError, AttributeError, MisuseError)):
                    travel(holder)


def test_of_all_values_only_a_restored_one_holds_evidence_and_shows_none(bag):
    canaries = made_up()
    scanner = Scanner(canaries, wholes(canaries))
    with bag.desk.open(counter=Characters()) as archive:
        talk = large(archive, canaries)
        session = archive.session("large", OWNER)
        session.view(talk.messages)
        receipt = session.archive([(session.results()[-1].id, canaries["note"])])
        restored = session.restore("r1", reason=canaries["reason"])
        values = [
            receipt,
            *session.results(),
            session.stats(),
            archive.audit(principal=OWNER),
            OWNER,
            restored.provenance,
        ]
        assert all(scanner.found(pickle.dumps(value)) == set() for value in values)
        assert {one.name for one in fields(restored) if scanner.found(pickle.dumps(getattr(restored, one.name)))} == {
            "content",
            "sha256",
        }
        shown = [restored, *values, *filter(is_dataclass, reachable(archive, session))]
        assert scanner.found("".join(f"{one!r} {one!s}" for one in shown).encode("utf-8", "surrogatepass")) == set()


def test_names_and_labels_are_found_as_security_md_says(bag):
    """The scan sees what is there: these are metadata, and not hidden."""
    names = {name: canary().replace("~?>", "x") for name in ("session", "tool", "call", "sensitivity", "kind", "key")}
    with bag.desk.open(counter=Characters()) as archive:
        session, talk = archive.session(names["session"], OWNER), Conversation()
        talk.tool("made-up finding\n" * 60, names["tool"], names["call"])
        talk.say()
        session.view(talk.messages)
        session.label("r1", sensitivity=names["sensitivity"], kind=names["kind"])
        session.archive([("r1", "a note")], idempotency_key=names["key"])
    bag.take()
    told = {one.split(",")[0] for one in bag.found(Scanner(names))}
    assert told == set(names)


# --- controls ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("form", [*FORMS, *DIGESTS])
def test_must_fail_control_a_file_with_a_secret_in_any_form_is_found(bag, form, container):
    canaries = made_up()
    name = "note"
    written = FORMS[form](canaries[name]) if form in FORMS else DIGESTS[form](canaries[name].encode())
    noise = secrets.token_bytes(30)
    (bag.desk.folder / "a.file").write_bytes(noise + CONTAINERS[container](noise + written + noise) + noise)
    bag.files()
    told = {one.removesuffix(", packed").removesuffix(", packed") for one in bag.found(Scanner(canaries))}
    assert f"{name}, {form}".replace("base64url", "base64") in {one.replace("base64url", "base64") for one in told}


def seal_naively(patch: pytest.MonkeyPatch, more: Callable[[bytes, Sealed], bytes]) -> None:
    """Break the core: something of an original is stored behind its envelope."""

    def naive(*, encoded: Any, **named: Any) -> Sealed:
        sealed = seal_original(encoded=encoded, **named)
        return replace(sealed, envelope=sealed.envelope + more(encoded.data, sealed))

    patch.setattr("evidence_archive.archiving.seal_original", naive)


def keeps_plain_text(patch: pytest.MonkeyPatch) -> None:
    seal_naively(patch, lambda data, sealed: data)


def keeps_hex(patch: pytest.MonkeyPatch) -> None:
    seal_naively(patch, lambda data, sealed: data.hex().encode())


def keeps_a_digest(patch: pytest.MonkeyPatch) -> None:
    seal_naively(patch, lambda data, sealed: sealed.sha256)


def logs_notes(patch: pytest.MonkeyPatch) -> None:
    """Break the core: an event tells what a batch was called with."""
    from evidence_archive.archiving import Archiving

    archive = Archiving.archive

    def naive(self: Archiving, items: Any, *given: Any) -> Any:
        Events(org="north-clinic").info("archiving", batch=[item.note for item in items])
        return archive(self, items, *given)

    patch.setattr(Archiving, "archive", naive)


def raises_patterns(patch: pytest.MonkeyPatch) -> None:
    """Break the core: an error repeats what was searched for."""

    def naive(lines: Any = None, pattern: Any = None, *rest: Any) -> Any:
        raise FormatError(f"There is no {pattern}.") from ValueError(lines)

    patch.setattr("evidence_archive.session.parse_selector", naive)


def leaves_a_temporary_file(patch: pytest.MonkeyPatch) -> None:
    """Break the core: what is restored goes through a file that nobody removes."""
    from evidence_archive.model import decode_exact

    def naive(data: bytes, encoding: str) -> Any:
        descriptor, _ = tempfile.mkstemp()
        os.write(descriptor, data)
        os.close(descriptor)
        return decode_exact(data, encoding)

    patch.setattr("evidence_archive.restoring.decode_exact", naive)


def shows_itself(patch: pytest.MonkeyPatch) -> None:
    """Break the core: a session's repr tells its notes."""
    from evidence_archive import Session

    patch.setattr(Session, "__repr__", lambda self: f"Session({self._records.notes})")


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (keeps_plain_text, "content, plain"),
        (keeps_hex, "content, hex"),
        (keeps_a_digest, "all of content, sha256, raw"),
        (logs_notes, "note, plain"),
        (raises_patterns, "pattern, plain"),
        (leaves_a_temporary_file, "content, plain"),
        (shows_itself, "note, plain"),
    ],
)
def test_must_fail_control_a_core_that_tells_is_caught(bag, logs, broken, name, monkeypatch):
    broken(monkeypatch)
    canaries = made_up()
    with bag.desk.open(counter=Characters()) as archive:
        for error in stumbling(archive, canaries, "case"):
            bag.take(error)
        bag.take(*reachable(archive, archive.session("case", OWNER)))
        session = archive.session("case", OWNER)
        session.results()
        bag.take(session)
    bag.add(logs.getvalue().encode("utf-8", "surrogatepass"))
    assert name in bag.found(Scanner(canaries, wholes(canaries)))
