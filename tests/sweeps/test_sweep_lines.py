"""Whatever line an exception falls into: all of an operation or nothing, in the store and in the next view.

A first run records every line of the package that an operation passes, over all threads; then the operation is run
once for a line, one of its passings, and a kind of exception. Afterwards the same objects have to work on, and fresh
ones have to tell the same story. Writes are not synchronous here: this is about exceptions, not about power.
"""

import asyncio
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import Characters, arguments, batch_of, policy_of
from interrupting import Line, Watch, passings_of

from evidence_archive import Archive, AsyncArchive, AsyncSession, Principal, Session
from evidence_archive.archiving import Archiving
from evidence_archive.errors import EvidenceArchiveError, StoreUnavailableError
from evidence_archive.keys import new_keys, open_provider
from evidence_archive.model import Receipt, Restored, same_value
from evidence_archive.proof.leaf import decode_leaf
from evidence_archive.store import open_store, sqlite
from evidence_archive.store.sql import SqlWriter
from evidence_archive.testing import FrozenClock

pytestmark = [
    # What an exception cut off is closed by the garbage collector, which says so.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.no_cover,  # it has a tracer of its own
]

LOCK_WAIT_MS = 400
OWNER = Principal(org="north-clinic", subject="triage-agent", roles={"agent"})
AUDITOR = Principal(org="north-clinic", subject="auditor", roles={"auditor"})
POLICY = policy_of(
    '[[archive]]\nid = "signed"\nsensitivity = ["signed"]\neffect = "never"\nreason = "it stays"\n'
    '[[archive]]\nid = "said"\ncontent = "never said"\neffect = "never"\nreason = "it stays"\n'
    '[[restore]]\nid = "audit"\ntools = ["logs.*"]\nroles = ["auditor", "agent"]\n'
    '[[live]]\ntools = ["logs.*"]\nmax_age_seconds = 60\nask = "logs.search"\n',
    store_wait_ms_max=LOCK_WAIT_MS,
    view_wait_ms_max=LOCK_WAIT_MS - 100,
    restores_per_turn_max=50,
)
FIRST = "01:00 node 3 timeout, disk sdc\r\n\x00\ud800 \U0001f600\n" * 40
SECOND = "02:00 node 4 timeout, disk sdd\n" * 60
THIRD = [{"type": "text", "text": "03:00 node 5 is fine\n" * 60}]
CONTENTS = {"r1": FIRST, "r2": SECOND, "r3": THIRD}
BATCH = [("r2", "disk sdd of node 4"), ("r3", "node 5 is fine")]
WAIT_SECONDS = 20
"""How long objects that were interrupted may take before they count as locked; no test waits unless one is."""

KINDS = (RuntimeError, KeyboardInterrupt, MemoryError, asyncio.CancelledError)


# --- the scene --------------------------------------------------------------------------------------------------


@dataclass
class Ground:
    """What every scene begins with: keys, and a database with one session, whose first result is archived."""

    desk: Desk
    keys: Any
    database: bytes = b""

    def archive(self) -> Archive:
        store = open_store(self.desk.url, wait_ms=LOCK_WAIT_MS)
        return Archive(store, keys=self.keys, policy=POLICY, counter=Characters(), clock=FrozenClock())


@dataclass
class Scene:
    """One use of the ground: a session that has seen the messages, at work."""

    ground: Ground
    archive: Archive
    session: Session
    messages: list[Any]
    loop: asyncio.AbstractEventLoop | None = None
    task: "asyncio.Task[Any] | None" = None
    escaped: list[object] = field(default_factory=list)
    """What an event loop was told instead of the caller."""

    def cancel(self) -> None:
        """Cancel the task that awaits a verb, from whichever thread; returns once it is cancelled."""
        loop, task = self.loop, self.task
        assert loop is not None
        assert task is not None
        if loop._thread_id == threading.get_ident():  # type: ignore[attr-defined]
            task.cancel()
            return
        done = threading.Event()

        def cancel() -> None:
            task.cancel()
            loop.call_soon(done.set)

        loop.call_soon_threadsafe(cancel)
        assert done.wait(WAIT_SECONDS)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder: Path = tmp_path_factory.mktemp("lines")
    new_keys(folder / "evidence.keys")
    desk = Desk(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "journal_rules", lambda version: ("memory", 0))
        made = Ground(desk, open_provider(desk.keys))
        with made.archive() as archive:
            session = archive.session("case", OWNER)
            session.view(conversation().messages)
            session.archive([("r1", "disk sdc of node 3")])
        made.database = desk.database.read_bytes()
        yield made


def conversation() -> Conversation:
    talk = Conversation()
    for content in CONTENTS.values():
        talk.tool(content)
    talk.say()
    return talk


# --- the operations ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """What is interrupted, and what it means that it was done.

    Args:
        run: the operation.
        prepare: brings a scene to where the operation begins.
        archives: it archives the batch.
        grants: it restores once; ``copies``: and leaves a copy.
    """

    run: Callable[[Scene], Any]
    prepare: Callable[[Scene], None] = lambda scene: None
    archives: bool = False
    grants: bool = False
    copies: bool = False


def call_of(name: str, text: str) -> dict[str, Any]:
    return {"id": "own", "type": "function", "function": {"name": name, "arguments": text}}


def new_result(scene: Scene) -> None:
    talk = Conversation()
    talk.messages = scene.messages
    talk.tool("04:00 node 6 is fine\n" * 60, call_id="call_new")


def archived_elsewhere(scene: Scene) -> None:
    with scene.ground.archive() as archive:
        session = archive.session("case", OWNER)
        session.view(scene.messages)
        session.archive(BATCH)


def awaiting(verb: Callable[[Scene, AsyncArchive, AsyncSession], Any]) -> Callable[[Scene], Any]:
    async def awaited(scene: Scene) -> Any:
        scene.loop, scene.task = asyncio.get_running_loop(), asyncio.current_task()
        scene.loop.set_exception_handler(lambda _, told: scene.escaped.append(told.get("exception")))
        archive = AsyncArchive(scene.archive)
        return await verb(scene, archive, AsyncSession(scene.session, archive._verbs))

    return lambda scene: asyncio.run(awaited(scene))


ARCHIVE = call_of("archive_evidence", batch_of(*BATCH))
REFUSED = call_of("archive_evidence", batch_of(("r1", "x"), ("r9", "y")))
RESTORE = call_of("restore_evidence", arguments(id="r1"))
RESTORE_PART = call_of("restore_evidence", arguments(id="r1", pattern="sdc", context_lines=1))
OPERATIONS = {
    "view of a new result": Operation(lambda scene: scene.session.view(scene.messages), new_result),
    "archive": Operation(lambda scene: scene.session.archive(BATCH, idempotency_key="once"), archives=True),
    "archive by call": Operation(lambda scene: scene.session.answer(ARCHIVE), archives=True),
    "archive refused": Operation(lambda scene: scene.session.answer(REFUSED)),
    "view of what another archived": Operation(lambda scene: scene.session.view(scene.messages), archived_elsewhere),
    "restore": Operation(lambda scene: scene.session.restore("r1", reason="asked"), grants=True),
    "restore a part": Operation(lambda scene: scene.session.restore("r1", lines="2-3"), grants=True),
    "restore by call": Operation(lambda scene: scene.session.answer(RESTORE), grants=True, copies=True),
    "restore a part by call": Operation(lambda scene: scene.session.answer(RESTORE_PART), grants=True, copies=True),
    "restore for an auditor": Operation(
        lambda scene: scene.archive.restore("case", "r1", principal=AUDITOR), grants=True
    ),
}
AWAITED = {
    "view of a new result": Operation(
        awaiting(lambda scene, _, session: session.view(scene.messages)), prepare=new_result
    ),
    "archive": Operation(
        awaiting(lambda _, __, session: session.archive(BATCH, idempotency_key="once")), archives=True
    ),
    "archive by call": Operation(awaiting(lambda _, __, session: session.answer(ARCHIVE)), archives=True),
    "restore": Operation(awaiting(lambda _, __, session: session.restore("r1")), grants=True),
    "restore by call": Operation(awaiting(lambda _, __, session: session.answer(RESTORE)), grants=True, copies=True),
    "restore for an auditor": Operation(
        awaiting(lambda _, archive, __: archive.restore("case", "r1", principal=AUDITOR)), grants=True
    ),
}


# --- what has to hold -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """What the rows say, and in what they contradict each other."""

    archived: tuple[str, ...]
    grants: int
    copies: int
    torn: tuple[str, ...]


def stored(database: Path) -> Stored:
    """The rows as they lie there.

    Raises:
        sqlite3.OperationalError: somebody still holds a lock.
    """
    with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as straight:
        straight.execute("BEGIN IMMEDIATE")
        (session,) = straight.execute("SELECT next_number, batches, restores FROM sessions").fetchall()
        rows = straight.execute("SELECT number, state, own, original_id FROM results ORDER BY number").fetchall()
        originals = {id for (id,) in straight.execute("SELECT original_id FROM originals")}
        receipts = [receipt for (receipt,) in straight.execute("SELECT receipt FROM batches")]
        (size,) = straight.execute("SELECT size FROM audit_heads").fetchone()
        leaves = straight.execute("SELECT seq, leaf FROM audit_leaves ORDER BY seq").fetchall()
        straight.execute("ROLLBACK")
    archived = tuple(f"r{row[0]}" for row in rows if row[1] == "archived")
    events = [decode_leaf(leaf) for _, leaf in leaves]
    counted = Counter(event.event for event in events)
    logged = sorted(id for event in events if event.event == "batch.accepted" for id in event.details["results"])
    told = sorted(id for receipt in receipts for id, _ in json.loads(receipt)["targets"])
    copies = sum(row[2] == "copy" for row in rows)
    contradictions = {
        "results are lost": [row[0] for row in rows] != [*range(1, session[0])],
        "archived rows and originals differ": {row[3] for row in rows if row[1] == "archived"} != originals,
        "archived rows and receipts differ": told != [*archived],
        "archived rows and the log differ": logged != [*archived],
        "batches and their counter differ": len(receipts) != session[1],
        "grants in the log and their counter differ": session[2] != counted["restore.granted"],
        "the log has a gap": [seq for seq, _ in leaves] != [*range(size)],
    }
    return Stored(archived, session[2], copies, tuple(what for what, so in contradictions.items() if so))


def noted(view: Sequence[Any]) -> tuple[str, ...]:
    """The results for which a note stands."""
    contents = [message["content"] for message in view if message["role"] == "tool"]
    texts = [content if isinstance(content, str) else content[0]["text"] for content in contents]
    return tuple(text.split()[1] for text in texts if text.startswith("[archived r"))


def answered(result: Any) -> str:
    """What an answer to the model says."""
    content = result["content"] if isinstance(result, dict) else ""
    return content if isinstance(content, str) else str(content[0]["text"])


class Sweep:
    """One operation, interrupted anywhere.

    Args:
        ground: what it begins with.
        operation: what is interrupted.
    """

    def __init__(self, ground: Ground, operation: Operation) -> None:
        self.ground, self.operation = ground, operation
        self.points = 0
        self.findings: list[str] = []
        self.wait_seconds = WAIT_SECONDS
        self._views: dict[tuple[str, ...], list[Any]] = {}
        """What has to be in view, by what is archived."""
        for run in (operation.run, operation.run, lambda scene: None):  # the first warms up what the process keeps
            scene = self._begun()
            with scene.archive:
                self._before = stored(ground.desk.database)
                run(scene)
                view = scene.session.view(scene.messages)
                self._views[noted(view)] = view
        assert len(self._views) == 1 + operation.archives
        scene = self._begun()
        with scene.archive:
            self.passings = passings_of(lambda: operation.run(scene))

    def _begun(self) -> Scene:
        self.ground.desk.database.write_bytes(self.ground.database)  # nobody has it open
        archive = self.ground.archive()
        scene = Scene(self.ground, archive, archive.session("case", OWNER), [*conversation().messages])
        scene.session.view(scene.messages)
        self.operation.prepare(scene)
        return scene

    def at(self, line: Line, passing: int, kind: type[BaseException] | None) -> None:
        """One point: an exception falls into one passing of a line; ``None`` cancels the task that awaits."""
        scene = self._begun()
        injected = None if kind is None else kind("made up")

        def interrupt() -> None:
            if injected is None:
                scene.cancel()
            else:
                raise injected

        found: list[str] = []
        watch = Watch(line, passing, interrupt)
        result: Any = None
        seen: BaseException | None = None
        try:
            with watch.watching():
                result = self.operation.run(scene)
        except BaseException as error:
            seen = error  # with its traceback, as a debugger or a log keeps it
        if not watch.acted:
            found.append("it was not passed again")
        if not self._told(scene, injected, seen):
            found.append(f"the caller sees {type(seen).__name__} ({seen})")
        ended: list[bool] = []
        checks = threading.Thread(target=self._checked, args=(scene, result, found, ended), daemon=True)
        checks.start()
        checks.join(self.wait_seconds)
        if not ended:
            found.append("a lock is held")
        scene.archive.close()
        self.points += 1
        name = "cancel" if kind is None else kind.__name__
        self.findings += [f"{line} passing {passing}, {name}: {what}" for what in found]
        del seen

    @staticmethod
    def _told(scene: Scene, injected: BaseException | None, seen: BaseException | None) -> bool:
        """Whether the caller, or the event loop, heard of what went wrong in a form that may be."""
        if injected is None:
            return seen is None or isinstance(seen, asyncio.CancelledError)
        if seen is injected or any(injected is one for one in scene.escaped):
            return True
        return isinstance(injected, Exception) and (seen is None or isinstance(seen, EvidenceArchiveError))

    def _checked(self, scene: Scene, result: Any, found: list[str], ended: list[bool]) -> None:
        """The same objects and fresh ones are asked what happened; then the operation is done once more."""
        try:
            with scene.ground.archive() as fresh:
                session = fresh.session("case", OWNER)
                now = self._compared(scene, found)
                self._all_or_nothing(now, result, found)
                if not same_value(self._views.get(now.archived), session.view(scene.messages)):
                    found.append("another process shows another view")
                if scene.session.results() != session.results():
                    found.append("another process tells of other results")
                result = self.operation.run(scene)
                if not self._acknowledged(result):
                    found.append(f"the next try is answered {answered(result)!r}")
                then = self._compared(scene, found)
                if then.archived != max(self._views, key=len):
                    found.append("what is archived is not archived after the next try")
                if then.grants != now.grants + self.operation.grants:
                    found.append("the next try is not in the log")
                for id in then.archived:
                    door = scene.session.restore if id == "r1" else session.restore
                    if not same_value(door(id).content, CONTENTS[id]):
                        found.append(f"{id} comes back as something else")
                if not fresh.audit(principal=OWNER).intact:
                    found.append("the log is not intact")
        except BaseException as error:
            found.append(f"afterwards {type(error).__name__} ({error})")
        ended.append(True)

    def _compared(self, scene: Scene, found: list[str]) -> Stored:
        """What is stored, once the session shows just that."""
        view = scene.session.view(scene.messages)
        now = stored(self.ground.desk.database)
        found += now.torn
        if not same_value(view, self._views.get(now.archived)):
            found.append(f"archived are {now.archived}, in view are notes for {noted(view)}")
        return now

    def _all_or_nothing(self, now: Stored, result: Any, found: list[str]) -> None:
        if now.archived not in self._views:
            found.append(f"half a batch: {now.archived}")
        granted, copied = now.grants - self._before.grants, now.copies - self._before.copies
        if granted not in (0, self.operation.grants) or copied != (granted if self.operation.copies else 0):
            found.append(f"half a restore: {granted} grants, {copied} copies")
        done = now.archived == max(self._views, key=len) and granted == self.operation.grants
        if not done and result is not None and self._acknowledged(result):
            found.append("what was acknowledged is not there")

    def _acknowledged(self, result: Any) -> bool:
        """Whether a result says that the operation was done."""
        if isinstance(result, Restored):
            return same_value(result.content, FIRST if result.part is None else "".join(FIRST.splitlines(True)[1:3]))
        if isinstance(result, Receipt):
            return result.result_ids == ("r2", "r3")
        if isinstance(result, list):
            return any(same_value(result, view) for view in self._views.values())
        text = answered(result)
        wanted = (
            "[restored from r1" if self.operation.grants else "Archived 2" if self.operation.archives else "NOTHING"
        )
        return wanted in text


# --- the sweeps -------------------------------------------------------------------------------------------------


def swept(sweep: Sweep, *, turn: int = 0, passings_max: int | None = None) -> None:
    """Every line; the sample takes two of its passings where a batch is written, one elsewhere; kinds take turns.

    Args:
        turn: which kind the first line gets.
        passings_max: instead of the sample, every kind at every passing up to this one.
    """
    for at, (line, last) in enumerate(sorted(sweep.passings.items()), turn):
        first, other = (1, KINDS[at % 4]), (last, KINDS[(at + 1) % 4])  # an error and an interrupt
        points = [first, other] if sweep.operation.archives else [first if at % 3 else other]
        if passings_max is not None:
            points = [(passing, kind) for passing in range(1, min(last, passings_max) + 1) for kind in KINDS]
        for passing, kind in points:
            sweep.at(line, passing, kind)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_exception_in_any_line_leaves_all_or_nothing_and_objects_that_work_on(ground: Ground, name: str) -> None:
    sweep = Sweep(ground, OPERATIONS[name])
    swept(sweep, turn=list(OPERATIONS).index(name))
    print(f"{name}: {len(sweep.passings)} lines, {sweep.points} points")
    assert sweep.findings == []
    assert sweep.points >= len(sweep.passings) > 300


@pytest.mark.nightly
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_exception_at_any_passing_of_any_line_leaves_all_or_nothing(ground: Ground, name: str) -> None:
    sweep = Sweep(ground, OPERATIONS[name])
    swept(sweep, passings_max=20)
    print(f"{name}: {len(sweep.passings)} lines, {sweep.points} points")
    assert sweep.findings == []


def of_the_twins(line: Line) -> bool:
    return line.file == "aio.py"


@pytest.mark.parametrize("name", AWAITED)
def test_an_exception_or_a_cancellation_in_any_line_of_the_twins_leaves_all_or_nothing(
    ground: Ground, name: str
) -> None:
    sweep = Sweep(ground, AWAITED[name])
    lines = {line: last for line, last in sweep.passings.items() if of_the_twins(line)}
    for line, last in sorted(lines.items()):
        for passing in range(1, last + 1):
            for kind in (*KINDS, None):
                sweep.at(line, passing, kind)
    print(f"{name}, awaited: {len(lines)} lines, {sweep.points} points")
    assert sweep.findings == []
    assert len(lines) >= 15


def cancelled_at_any_line(ground: Ground, name: str, passings_max: int) -> None:
    sweep = Sweep(ground, AWAITED[name])
    for line, last in sorted(sweep.passings.items()):
        if not of_the_twins(line):
            for passing in range(1, min(last, passings_max) + 1):
                sweep.at(line, passing, None)
    print(f"{name}, cancelled: {len(sweep.passings)} lines, {sweep.points} points")
    assert sweep.findings == []
    assert sweep.points > 400


def test_an_archive_cancelled_while_its_thread_is_at_any_line_leaves_all_or_nothing(ground: Ground) -> None:
    cancelled_at_any_line(ground, "archive", 1)


@pytest.mark.nightly
@pytest.mark.parametrize("name", AWAITED)
def test_a_task_cancelled_at_any_passing_of_any_line_leaves_all_or_nothing(ground: Ground, name: str) -> None:
    cancelled_at_any_line(ground, name, 20)


# --- must-fail controls: what the same sweep catches ------------------------------------------------------------


def archived_in_memory_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    prepared = Archiving._prepared

    def naive(self: Archiving, *given: Any) -> Any:
        made = prepared(self, *given)
        self._records.absorb([made.row])
        return made

    patch.setattr(Archiving, "_prepared", naive)


def original_and_note_in_two_transactions(patch: pytest.MonkeyPatch) -> None:
    insert = SqlWriter.insert_originals

    def naive(self: SqlWriter, originals: Any) -> None:
        insert(self, originals)
        self._cursor().execute("COMMIT")
        self._cursor().execute("BEGIN IMMEDIATE")

    patch.setattr(SqlWriter, "insert_originals", naive)


def an_interrupt_is_swallowed(patch: pytest.MonkeyPatch) -> None:
    archive = Archiving.archive

    def naive(self: Archiving, *given: Any) -> Any:
        try:
            return archive(self, *given)
        except BaseException as error:
            raise StoreUnavailableError("The store is away: try again.") from error

    patch.setattr(Archiving, "archive", naive)


def a_lock_without_a_guard(patch: pytest.MonkeyPatch) -> None:
    archive = Archiving.archive

    def naive(self: Archiving, *given: Any) -> Any:
        self._records.lock.acquire()
        done = archive(self, *given)
        self._records.lock.release()
        return done

    patch.setattr(Archiving, "archive", naive)


@pytest.mark.parametrize(
    ("naive", "symptom"),
    [
        (archived_in_memory_before_the_commit, "in view are notes for ('r1', 'r2', 'r3')"),
        (original_and_note_in_two_transactions, "archived rows and originals differ"),
        (an_interrupt_is_swallowed, "the caller sees"),
        (a_lock_without_a_guard, "a lock is held"),
    ],
)
def test_the_sweep_catches_a_naive_session(
    ground: Ground, naive: Any, symptom: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    naive(monkeypatch)
    sweep = Sweep(ground, OPERATIONS["archive"])
    sweep.wait_seconds = 1
    for line in sorted(sweep.passings):
        if line.file == "archiving.py":
            sweep.at(line, 1, KeyboardInterrupt)
            if any(symptom in finding for finding in sweep.findings):
                return
    pytest.fail(f"nothing was found: {sweep.findings}")
