"""Any mix of the verbs, in two processes, with failing stores and crashes, against a dict that says what has to be.

Conversations here only grow; what lists may do otherwise is the matter of ``test_matching_machine``. Writes are not
synchronous: a crash drops the objects, not the power.
"""

import gc
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
from conftest import Desk
from doubles import (
    AWAY,
    UNANSWERED,
    UNCOMMITTED,
    UNWRITABLE,
    Characters,
    Flaky,
    policy_of,
    registered_without_looking_again_under_the_lock,
)
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from evidence_archive import Archive, Principal, Session
from evidence_archive.errors import BatchRejectedError, FormatError, NotAvailableError, StoreError
from evidence_archive.keys import open_provider
from evidence_archive.model import Receipt, Restored, same_value
from evidence_archive.store import open_store, sqlite
from evidence_archive.store.sql import SqlWriter
from evidence_archive.testing.faults import FaultyStore
from evidence_archive.vault import Vault

pytestmark = [
    # Objects that a crash dropped are closed by the garbage collector, which says so.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    # Counting lines takes time and tells nothing here; other tests, which say what each line is for, are counted.
    pytest.mark.no_cover,
]

LABEL_CHARS_MIN = 40
NOTE_CHARS_MAX = 100
RESTORES_MAX = 3
POLICY = policy_of(
    '[[archive]]\nid = "signed"\nsensitivity = ["signed"]\neffect = "never"\nreason = "it stays"\n'
    '[[archive]]\nid = "basis"\ntools = ["prescription.*"]\neffect = "never"\nreason = "it stays"\n'
    '[[restore]]\nid = "audit"\ntools = ["logs.*"]\nroles = ["agent", "auditor"]\n',
    label_chars_min=LABEL_CHARS_MIN,
    note_chars_max=NOTE_CHARS_MAX,
    restores_per_turn_max=RESTORES_MAX,
    store_failures_max=100,
)
TEXT = "timeout after 30 s \r\n\x00\ud800 \U0001f600 in shard 7\n" * 2
POOL: tuple[Any, ...] = (
    "alpha line of a log\n" * 4,
    TEXT,
    [{"type": "text", "text": TEXT}],
    "ok",
    "",
    [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
)
OURS = ("archive_evidence", "restore_evidence")
FAULTS = (AWAY, UNWRITABLE, UNCOMMITTED, UNANSWERED, "append", "insert_batch", "update_session", "insert_results")
PROCESSES = ("A", "B")
SESSIONS = ("one", "two", "south")
LOST = object()
"""Stands for the content of an answer that nobody ever saw."""


class Words(Characters):
    """Counts characters, and a note as one token, so that a short content can be worth archiving."""

    def count(self, text: str) -> int:
        return 1 if text.startswith("[archived r") else len(text)


@dataclass
class Record:
    """What the dict knows of one result ID."""

    call_id: str
    tool: str
    content: Any
    own: str | None = None
    evidence: Any = None
    origin: int | None = None
    part: bool = False
    labelled: bool = False
    sensitivity: frozenset[str] = frozenset()
    words: str | None = None
    note: Any = None

    @property
    def tokens(self) -> int:
        return 1_000 if self.content is LOST else sum(map(len, texts_of(self.content)))


@dataclass
class Seat:
    """A session as one process has it open: how much of the list it has seen."""

    session: Session
    viewed: int = 0
    restores: int = 0
    answered: set[int] = field(default_factory=set)
    bare: set[int] = field(default_factory=set)


@dataclass
class Talk:
    """A conversation, and the dict of its results."""

    id: str
    owner: Principal
    messages: list[Any] = field(default_factory=lambda: [{"role": "user", "content": "go on"}])
    numbers: dict[int, int] = field(default_factory=dict)
    records: dict[int, Record] = field(default_factory=dict)
    accepted: list[tuple[Any, list[tuple[str, str]]]] = field(default_factory=list)
    tag: str = ""

    @property
    def last(self) -> int:
        return len(self.records)

    def spoken(self, viewed: int) -> int:
        """Where the model spoke last in the first messages."""
        return max((at for at in range(viewed) if self.messages[at]["role"] == "assistant"), default=-1)

    def place(self, number: int) -> int | None:
        return next((at for at, known in self.numbers.items() if known == number), None)


def texts_of(content: Any) -> list[str]:
    """What a counter counts; a part that is no text stands for 765 words."""
    if isinstance(content, str):
        return [content]
    return [part["text"] if part["type"] == "text" else " the" * 765 for part in content]


def large(content: Any) -> bool:
    """Whether a label names it: long, or not text alone."""
    parts = [] if isinstance(content, str) else content
    return any(part["type"] != "text" for part in parts) or sum(map(len, texts_of(content))) >= LABEL_CHARS_MIN


def first_line(text: str) -> str:
    line, end, _ = text.partition("\n")
    return line + end


def call_of(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


class Process:
    """An archive over a store that can be made to fail, and the sessions it has open."""

    def __init__(self, make: Callable[[], tuple[Archive, Flaky]]) -> None:
        self.make = make
        self.begin()

    def begin(self) -> None:
        self.archive, self.flaky = self.make()
        self.seats: dict[str, Seat] = {}


class World:
    """Three sessions of two orgs in two processes, and what has to be.

    Args:
        processes: by name.
        run: makes the orgs' names unlike those of any other run.
    """

    def __init__(self, processes: dict[str, Process], run: str) -> None:
        self.processes = processes
        for process in processes.values():
            process.seats = {}
        owner = Principal(f"north-clinic-{run}", "triage-agent", frozenset({"agent"}))
        self.auditor = Principal(owner.org, "reviewer", frozenset({"auditor"}))
        self.stranger = Principal(f"south-clinic-{run}", "triage-agent", frozenset({"agent", "auditor"}))
        owners = (owner, owner, self.stranger)
        ids = ("one", "two", "one")  # an id says nothing about whose session it is
        self.talks = {name: Talk(id, who) for name, id, who in zip(SESSIONS, ids, owners, strict=True)}
        self.log: dict[str, list[str]] = {owner.org: [], self.stranger.org: []}
        self.calls = 0
        for name, talk in self.talks.items():
            self.seat("A", name)
            talk.tag = self.row(name).tag
        for org in self.log:
            self.adopt(org)

    # --- what is stored

    def seat(self, process: str, name: str) -> Seat:
        at, talk = self.processes[process], self.talks[name]
        if name not in at.seats:
            at.seats[name] = Seat(at.archive.session(talk.id, talk.owner))
        return at.seats[name]

    def row(self, name: str) -> Any:
        """The session's row."""
        session = self.seat("A", name).session
        with session._records.vault.store.peeking(1_000) as reader:
            row = reader.session(session.id)
        assert row is not None
        return row

    def stored(self, name: str) -> tuple[Any, dict[int, Any]]:
        """The session's row and its results, by number."""
        session = self.seat("A", name).session
        with session._records.vault.store.reading(1_000) as reader:
            row = reader.session(session.id)
            assert row is not None
            return row, {one.number: one for one in reader.results(row.scope_id, -1)}

    def events(self, org: str) -> list[str]:
        principal = next(talk.owner for talk in self.talks.values() if talk.owner.org == org)
        report = self.processes["B"].archive.audit(principal=principal)
        assert report.intact, report.findings
        return [leaf.event for leaf in report.entries]

    def adopt(self, org: str) -> Counter[str]:
        """After a fault: what was in the log is still there; what came is taken over, and told."""
        events, known = self.events(org), len(self.log[org])
        assert events[:known] == self.log[org], "the log only grows"
        self.log[org] = events
        return Counter(events[known:])

    def logged(self, name: str, event: str) -> None:
        self.log[self.talks[name].owner.org].append(event)

    def check(self, process: str, name: str) -> None:
        """Rows, results and log are what the dict says."""
        talk = self.talks[name]
        _, rows = self.stored(name)
        assert [*rows] == [*talk.records], "every ID there is was expected, and the other way round"
        states = {number: "live" if record.words is None else "archived" for number, record in talk.records.items()}
        assert {number: one.state for number, one in rows.items()} == states, "rows say otherwise"
        told = {f"r{n}": states[n] for n, record in talk.records.items() if record.own in (None, "copy")}
        assert {info.id: info.state for info in self.seat(process, name).session.results()} == told, (
            "results say otherwise"
        )
        org = talk.owner.org
        assert self.events(org) == self.log[org], "the log says otherwise"
        counted = Counter(self.log[org])
        org_rows = [self.row(other) for other, one in self.talks.items() if one.owner.org == org]
        assert sum(one.batches for one in org_rows) == counted["batch.accepted"]
        assert sum(one.restores for one in org_rows) == counted["restore.granted"]

    # --- the conversation

    def call_id(self, kind: str) -> str:
        self.calls += 1
        return {"fresh": f"call_{self.calls}", "long": "x" * 300, "": ""}.get(kind, kind)

    def turn(self, name: str, results: list[tuple[str, str, Any]]) -> None:
        asked = [call_of(id, tool, "{}") for id, tool, _ in results]
        self.talks[name].messages.append({"role": "assistant", "content": None, "tool_calls": asked})
        self.talks[name].messages += [
            {"role": "tool", "tool_call_id": id, "content": deepcopy(content)} for id, _, content in results
        ]

    def tool_at(self, talk: Talk, at: int) -> str:
        """The tool that the result at a place answers."""
        id = talk.messages[at]["tool_call_id"]
        back = max(b for b in range(at) if any(c["id"] == id for c in talk.messages[b].get("tool_calls", ())))
        earlier = sum(m.get("tool_call_id") == id for m in talk.messages[back + 1 : at])
        calls = [call for call in talk.messages[back]["tool_calls"] if call["id"] == id]
        return str(calls[earlier]["function"]["name"])

    # --- views

    def view(self, process: str, name: str) -> None:
        """A view, in which everything is as the dict says."""
        talk, seat = self.talks[name], self.seat(process, name)
        before = deepcopy(talk.messages)
        shown = seat.session.view(talk.messages)
        assert same_value(talk.messages, before), "the application's list is untouched"
        self.viewed(process, name)
        assert len(shown) == len(talk.messages)
        for at, (old, new) in enumerate(zip(talk.messages, shown, strict=True)):
            if old["role"] != "tool":
                assert new is old, "only tool results change"
                continue
            record = talk.records[talk.numbers[at]]
            if record.words is not None and record.note is None:
                record.note = self.checked_note(talk, talk.numbers[at], new["content"])
            wanted = record.note if record.words is not None else self.labelled(talk, talk.numbers[at])
            assert same_value(new, {**old, "content": wanted}), f"r{talk.numbers[at]} is shown otherwise"

    def labelled(self, talk: Talk, number: int) -> Any:
        record = talk.records[number]
        if not record.labelled:
            return record.content
        label = f"[evidence r{number} tag={talk.tag}]"
        if isinstance(record.content, str):
            return f"{label}\n{record.content}"
        return [{"type": "text", "text": label}, *record.content]

    def checked_note(self, talk: Talk, number: int, content: Any) -> Any:
        record = talk.records[number]
        text = content if isinstance(record.content, str) else content[0]["text"]
        assert text.startswith(f"[archived r{number} tag={talk.tag} | a note, not the content | "), text
        assert text.endswith(f"\n> {record.words}"), text
        return content

    def viewed(self, process: str, name: str) -> None:
        """What a view that could write has registered."""
        talk, seat = self.talks[name], self.seat(process, name)
        for at, message in enumerate(talk.messages):
            if message["role"] == "tool" and at not in talk.numbers:
                id, content = message["tool_call_id"], message["content"]
                taken = set(talk.numbers.values())
                alike = [
                    n for n, one in talk.records.items() if one.call_id == id and same_value(one.content, content)
                ]
                free = [number for number in alike if number not in taken]
                talk.numbers[at] = free[0] if free else self.registered(talk, at, alike, bare=at in seat.bare)
        seat.viewed, seat.restores = len(talk.messages), 0

    def registered(self, talk: Talk, at: int, alike: list[int], *, bare: bool) -> int:
        message, tool = talk.messages[at], self.tool_at(talk, at)
        record = Record(message["tool_call_id"], tool, message["content"], own="error" if tool in OURS else None)
        record.evidence, record.labelled = record.content, large(record.content) and not bare
        twins = [talk.records[number] for number in alike if talk.records[number].own is None]
        record.sensitivity = frozenset().union(*(twin.sensitivity for twin in twins))
        talk.records[talk.last + 1] = record
        return talk.last

    # --- archiving

    def status(self, process: str, name: str, id: str, words: str, ids: list[str]) -> str:
        """What stands against one target, by the words of the contract."""
        talk, seat = self.talks[name], self.seat(process, name)
        number = int(id[1:])
        record = talk.records.get(number)
        if record is None:
            return "unknown"
        place = talk.place(number)
        root = talk.records[record.origin or number]
        # The first that applies counts.
        return next(
            status
            for status, applies in (
                ("duplicate", ids.count(id) > 1),
                ("already_archived", record.words is not None),
                ("not_eligible", record.own not in (None, "copy") or place is None or place >= seat.viewed),
                ("unread", (place or 0) > talk.spoken(seat.viewed) and number not in seat.answered),
                ("protected", root.tool.startswith("prescription.") or "signed" in root.sensitivity),
                ("blank_note", not words.strip()),
                ("note_too_long", len(words) > NOTE_CHARS_MAX),
                ("not_smaller", record.tokens <= 1),
                ("ok", True),
            )
            if applies
        )

    def statuses(self, process: str, name: str, batch: list[tuple[str, str]]) -> list[str]:
        ids = [id for id, _ in batch]
        return [self.status(process, name, id, words, ids) for id, words in batch]

    def archived(self, name: str, batch: list[tuple[str, str]]) -> None:
        for id, words in batch:
            record = self.talks[name].records[int(id[1:])]
            assert record.words is None, "a result is archived once"
            record.words = words

    def archive(self, process: str, name: str, batch: list[tuple[str, str]], key: str | None = None) -> None:
        """A program archives."""
        seat, talk = self.seat(process, name), self.talks[name]
        try:
            told: Any = seat.session.archive(batch, idempotency_key=key)
        except BatchRejectedError as error:
            told = error
        wanted = self.statuses(process, name, batch)
        assert [(target.result_id, target.status) for target in told.targets] == [
            (id, status) for (id, _), status in zip(batch, wanted, strict=True)
        ]
        if isinstance(told, Receipt):
            assert not told.replayed
            self.archived(name, batch)
            self.logged(name, "batch.accepted")
            if key is not None:
                talk.accepted.append((key, batch))
        else:
            assert any(status != "ok" for status in wanted), "what could be archived was refused"
            self.logged(name, "batch.rejected")

    def asked(self, process: str, name: str, tool: str, arguments: dict[str, Any], kind: str) -> dict[str, Any]:
        """The model's call, in the list; what it had before it counts as read now."""
        call = call_of(self.call_id(kind), tool, json.dumps(arguments))
        self.mark_read(process, name, call)
        self.talks[name].messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        return call

    def mark_read(self, process: str, name: str, call: dict[str, Any]) -> None:
        talk, seat = self.talks[name], self.seat(process, name)
        if any(call in message.get("tool_calls", ()) for message in talk.messages[: seat.viewed]):
            return  # it was made long ago, and tells nothing of what came since
        spoken = talk.spoken(seat.viewed)
        seat.answered |= {talk.numbers[at] for at in range(spoken + 1, seat.viewed) if at in talk.numbers}

    def answered(self, name: str, told: dict[str, Any], own: str, **more: Any) -> None:
        """An answer of ours, in the list and in the dict."""
        talk = self.talks[name]
        talk.messages.append(told)
        tool = talk.messages[-2]["tool_calls"][0]["function"]["name"]
        record = Record(told["tool_call_id"], tool, told["content"], own, told["content"], **more)
        record.labelled = large(told["content"])
        talk.records[talk.last + 1] = record

    def archive_call(self, process: str, name: str, batch: list[tuple[str, str]], kind: str) -> None:
        items = [{"id": id, "note": words} for id, words in batch]
        call = self.asked(process, name, OURS[0], {"batch": items}, kind)
        wanted = self.statuses(process, name, batch)
        told = self.seat(process, name).session.answer(call)
        if (call["id"], batch) in [(known["id"], sent) for known, sent in self.accepted_calls(name)]:
            # The same call once more, of a model that uses one id for all: its receipt comes back, nothing happens.
            assert told["content"].startswith("This batch was accepted before")
            self.talks[name].messages.pop()
            return
        if told["content"].startswith("Archived "):
            assert set(wanted) == {"ok"}
            self.archived(name, batch)
            self.logged(name, "batch.accepted")
            self.talks[name].accepted.append((call, batch))
            self.answered(name, told, "receipt")
        else:
            assert told["content"].startswith("NOTHING was archived")
            assert set(wanted) != {"ok"}, "what could be archived was refused"
            self.logged(name, "batch.rejected")
            self.answered(name, told, "rejection")

    def accepted_calls(self, name: str) -> list[tuple[dict[str, Any], list[tuple[str, str]]]]:
        """The calls that a batch was accepted for, with their batches."""
        return [(known, batch) for known, batch in self.talks[name].accepted if not isinstance(known, str)]

    def replay(self, process: str, name: str, at: int) -> None:
        """An accepted batch is sent again: its receipt comes back, and nothing happens."""
        talk, session = self.talks[name], self.seat(process, name).session
        known, batch = talk.accepted[at % len(talk.accepted)]
        if isinstance(known, str):
            receipt = session.archive(batch, idempotency_key=known)
            assert receipt.replayed
            assert receipt.result_ids == tuple(id for id, _ in batch)
            with pytest.raises(FormatError):
                session.archive([*batch, ("r1", "more")], idempotency_key=known)
        else:
            self.mark_read(process, name, known)
            text = session.answer(known)["content"]
            assert text.startswith("This batch was accepted before")
            assert all(id in text for id, _ in batch)

    # --- restoring

    def restore(self, process: str, name: str, number: int, *, part: bool) -> None:
        """A program restores in its own session."""
        talk, seat = self.talks[name], self.seat(process, name)
        record, place = talk.records.get(number), talk.place(number)
        in_view = record is not None and record.words is None and place is not None and place < seat.viewed
        wanted = None if record is None else record.content if in_view else record.evidence
        lines = "1-1" if part and isinstance(wanted, str) and wanted and not (record and record.part) else None
        try:
            restored = seat.session.restore(f"r{number}", lines=lines)
        except NotAvailableError:
            assert not in_view
            assert record is None or record.words is None, "what is archived can be had"
            self.logged(name, "restore.denied")
            return
        assert record is not None
        assert in_view or record.words is not None
        assert same_value(restored.content, wanted if lines is None else first_line(wanted))
        if not in_view:
            self.logged(name, "restore.granted")

    def restore_call(self, process: str, name: str, number: int, kind: str, *, part: bool) -> None:
        talk, seat = self.talks[name], self.seat(process, name)
        record, place = talk.records.get(number), talk.place(number)
        evidence = None if record is None else record.evidence
        lines = "1-1" if part and isinstance(evidence, str) and evidence and not (record and record.part) else None
        call = self.asked(process, name, OURS[1], {"id": f"r{number}", "lines": lines}, kind)
        told = seat.session.answer(call)
        text = texts_of(told["content"])[0]
        in_view = record is not None and record.words is None and place is not None and place < seat.viewed
        if seat.restores >= RESTORES_MAX:
            assert "one turn may hold" in text
        elif in_view:
            assert "is not archived, so nothing was restored" in text
        else:
            seat.restores += 1
            if record is not None and record.words is not None:
                assert text.startswith("[restored from r"), text
                got = evidence if lines is None else first_line(evidence)
                inside = told["content"]
                assert got in inside if isinstance(got, str) else all(one in inside for one in got)
                root = record.origin or number
                facts = talk.records[root].sensitivity
                is_part = lines is not None or record.part
                self.answered(name, told, "copy", origin=root, part=is_part, sensitivity=facts)
                talk.records[talk.last].evidence = got
                self.logged(name, "restore.granted")
                return
            assert text.startswith("Nothing was restored")
        self.answered(name, told, "error")
        self.logged(name, "restore.denied")

    def restore_for(self, process: str, name: str, number: int, who: Principal) -> None:
        """Somebody restores through the archive's door, by an id that another org may use too."""
        id = self.talks[name].id
        records = [one.records for one in self.talks.values() if (one.id, one.owner.org) == (id, who.org)]
        record = records[0].get(number) if records else None
        may = who.subject == "triage-agent" or (record is not None and record.tool.startswith("logs."))
        try:
            restored = self.processes[process].archive.restore(id, f"r{number}", principal=who)
        except NotAvailableError:
            assert record is None or record.words is None or not may, "who may has it"
            self.log[who.org].append("restore.denied")
            return
        assert may, "who may not has nothing"
        assert record is not None
        assert record.words is not None
        assert same_value(restored.content, record.evidence)
        self.log[who.org].append("restore.granted")

    def label(self, process: str, name: str, number: int, sensitivity: str) -> None:
        talk = self.talks[name]
        try:
            self.seat(process, name).session.label(f"r{number}", sensitivity=sensitivity)
        except NotAvailableError:
            assert number not in talk.records
            return
        root = talk.records[number].origin or number
        for other, record in talk.records.items():
            if (record.origin or other) == root:
                record.sensitivity |= {sensitivity}
        self.logged(name, "label.set")

    # --- faults

    def disturbed(self, process: str, name: str, fault: str, verb: str, batch: list[tuple[str, str]]) -> None:
        """A verb while the store fails: all of it or nothing, then everything works again."""
        talk, seat = self.talks[name], self.seat(process, name)
        call, number = None, int(batch[0][0][1:])
        if verb == "archive call":
            items = [{"id": id, "note": words} for id, words in batch]
            call = self.asked(process, name, OURS[0], {"batch": items}, "fresh")
        elif verb == "restore call":
            call = self.asked(process, name, OURS[1], {"id": batch[0][0]}, "fresh")
        archives = verb.startswith("archive") and set(self.statuses(process, name, batch)) == {"ok"}
        flaky = self.processes[process].flaky
        flaky.fault = fault
        told: Any = None
        try:
            if verb == "view":
                told = seat.session.view(talk.messages)
            elif verb == "archive":
                told = seat.session.archive(batch)
            elif verb == "restore":
                told = seat.session.restore(batch[0][0])
            elif call is not None:
                told = seat.session.answer(call)
        except (BatchRejectedError, NotAvailableError, StoreError) as error:
            told = error
        finally:
            flaky.fault = None
        self.settled(name, told, call, batch if archives else [], number)
        if verb == "view":
            self.seen_through(process, name, told)
        self.view(process, name)

    def settled(
        self, name: str, told: Any, call: dict[str, Any] | None, batch: list[tuple[str, str]], number: int
    ) -> None:
        """What is stored is all of it or nothing; the dict takes over which."""
        talk = self.talks[name]
        _, rows = self.stored(name)
        came = self.adopt(talk.owner.org)
        text = texts_of(told["content"])[0] if isinstance(told, dict) else ""
        states = {at: one.state for at, one in rows.items() if at in talk.records}
        wanted = {at: "live" if record.words is None else "archived" for at, record in talk.records.items()}
        if states != wanted:
            wanted |= {int(id[1:]): "archived" for id, _ in batch}
            assert states == wanted, "half a batch"
            self.archived(name, batch)
            assert came["batch.accepted"] == 1, "half a batch"
        else:
            assert came["batch.accepted"] == 0, "half a batch"
            assert not isinstance(told, Receipt), "an acknowledged batch is lost"
            assert not text.startswith("Archived "), "an acknowledged batch is lost"
        if isinstance(told, Restored):
            record = talk.records[number]
            live = record.words is None
            # A live copy is what its message says, with the fence around it; an archived one is what it is a copy of.
            assert same_value(told.content, record.content if live else record.evidence)
            assert live or came["restore.granted"] == 1, "a restore that is not in the log"
        new = [rows[at] for at in sorted(rows) if at > talk.last]
        if call is not None:
            talk.messages.append(told)
            tag = self.seat("A", name).session._records.tag(told["content"])
            for one in new:
                assert one.own is not None
                content = told["content"] if one.content_tag == tag else LOST
                record = Record(call["id"], call["function"]["name"], content, one.own, content)
                record.labelled, record.origin = bool(one.labelled), one.origin
                if one.origin is not None:
                    known = talk.records[number]
                    record.evidence, record.part = known.evidence, known.part
                    record.sensitivity = talk.records[one.origin].sensitivity
                talk.records[talk.last + 1] = record
            assert sum(one.own == "copy" for one in new) == came["restore.granted"], "half a restore"
            assert not text.startswith("[restored") or came["restore.granted"] == 1, (
                "a restore that is not in the log"
            )
            assert len(new) <= 2
        elif isinstance(told, list) and new:
            place = [at for at, message in enumerate(talk.messages) if message["role"] == "tool"]
            assert len(new) <= len(set(place) - set(talk.numbers)), "a result got two IDs"
        else:
            assert new == [], "what made no result has made one"

    def seen_through(self, process: str, name: str, shown: list[Any]) -> None:
        """A view of an outage: every result is itself, with or without its label, or the note that stands for it."""
        talk, seat = self.talks[name], self.seat(process, name)
        for at, (old, new) in enumerate(zip(talk.messages, shown, strict=True)):
            if old["role"] != "tool":
                assert new is old
            elif at in talk.numbers:
                number = talk.numbers[at]
                record = talk.records[number]
                forms = [record.content, self.labelled(talk, number)]
                if not any(same_value(new["content"], form) for form in forms):
                    assert record.words is not None, f"r{number} is shown otherwise"
                    self.checked_note(talk, number, new["content"])
            elif same_value(new, old):
                seat.bare.add(at)
        if self.row(name).next_number - 1 > talk.last:  # the fault came after the commit
            seat.bare -= {at for at in seat.bare if at not in talk.numbers}


# --- the machine ------------------------------------------------------------------------------------------------

processes = st.sampled_from(PROCESSES)
sessions = st.sampled_from(("one", "one", "one", "one", "one", "two", "south"))
ids = st.sampled_from(("fresh", "fresh", "call_0", "", "long"))
tools = st.sampled_from(("logs.search", "logs.search", "memory.lookup", "prescription.read"))
contents = st.sampled_from((*POOL[:3], *POOL))
notes = st.sampled_from(("fine", "3 timeouts", *["all in shard 7"] * 10, " ", "x" * (NOTE_CHARS_MAX + 1)))
seeds = st.integers(0, 1_000)
chosen = st.lists(st.tuples(seeds, notes), min_size=1, max_size=2)
results = st.lists(st.tuples(ids, tools, contents), min_size=1, max_size=3)


class Machine(RuleBasedStateMachine):
    """Any order of the verbs; every rule checks what it did."""

    processes: dict[str, Process]
    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1
        self.world = World(self.processes, f"{type(self).made}")
        for name in SESSIONS:  # something to begin with
            asked = [
                (self.world.call_id("fresh"), tool, content)
                for tool, content in zip(("memory.lookup", "logs.search"), POOL, strict=False)
            ]
            self.world.turn(name, asked)
            self.world.talks[name].messages.append({"role": "assistant", "content": "I have read it."})
            self.world.view("A", name)

    def _archived(self, name: str, seed: int) -> int:
        """Mostly a result that is archived; else any number, one that was not issued included."""
        records = self.world.talks[name].records
        fit = [number for number, record in records.items() if record.words is not None]
        return fit[seed % len(fit)] if fit and seed % 5 != 3 else 1 + seed % (len(records) + 1)

    def _batch(self, at: str, name: str, drawn: list[tuple[int, str]]) -> list[tuple[str, str]]:
        """Mostly results that can be archived; else any, one that was not issued included."""
        last = self.world.talks[name].last
        fit = [
            f"r{number}"
            for number in range(1, last + 1)
            if self.world.status(at, name, f"r{number}", "fine", []) == "ok"
        ]
        batch = []
        for seed, words in drawn:
            any_id = f"r{1 + seed % (last + 1)}"
            batch.append((any_id if seed % 9 == 5 or not fit else fit.pop(seed % len(fit)), words))
        return batch

    @rule(at=processes, name=sessions, drawn=results, seen=st.booleans())
    def turn(self, at: str, name: str, drawn: list[tuple[str, str, Any]], seen: bool) -> None:
        self.world.turn(name, [(self.world.call_id(id), tool, content) for id, tool, content in drawn])
        if seen:
            self.world.view(at, name)
            self.world.check(at, name)

    @rule(at=processes, name=sessions)
    def read(self, at: str, name: str) -> None:
        self.world.talks[name].messages.append({"role": "assistant", "content": "I have read it."})
        self.world.view(at, name)

    @rule(at=processes, name=sessions)
    def view(self, at: str, name: str) -> None:
        self.world.view(at, name)
        self.world.check(at, name)

    @rule(at=processes, name=sessions, drawn=results)
    def view_in_a_race(self, at: str, name: str, drawn: list[tuple[str, str, Any]]) -> None:
        """The other process registers after this one has looked and before it writes."""
        self.world.turn(name, [(self.world.call_id(id), tool, content) for id, tool, content in drawn])
        other = "B" if at == "A" else "A"
        flaky = self.world.processes[at].flaky
        self.world.seat(at, name), self.world.seat(other, name)
        flaky.before_write = lambda: self.world.view(other, name)
        self.world.view(at, name)
        flaky.before_write = None
        self.world.check(at, name)

    @rule(at=processes, name=sessions, drawn=chosen, key=st.booleans())
    def archive(self, at: str, name: str, drawn: list[tuple[int, str]], key: bool) -> None:
        self.world.archive(at, name, self._batch(at, name, drawn), self.world.call_id("fresh") if key else None)
        self.world.check(at, name)

    @rule(at=processes, name=sessions, drawn=chosen)
    def archive_in_a_race(self, at: str, name: str, drawn: list[tuple[int, str]]) -> None:
        """The other process archives the first target after this one has looked and before it writes."""
        batch = self._batch(at, name, drawn)
        other = "B" if at == "A" else "A"
        self.world.seat(at, name), self.world.seat(other, name)
        flaky = self.world.processes[at].flaky
        if set(self.world.statuses(at, name, batch)) == {"ok"}:
            flaky.before_write = lambda: self.world.archive(other, name, batch[:1])
        self.world.archive(at, name, batch)
        flaky.before_write = None
        self.world.check(at, name)

    @rule(at=processes, name=sessions, drawn=chosen, id=ids)
    def archive_call(self, at: str, name: str, drawn: list[tuple[int, str]], id: str) -> None:
        self.world.archive_call(at, name, self._batch(at, name, drawn), id)
        self.world.check(at, name)

    @rule(at=processes, name=sessions, seed=seeds)
    def replay(self, at: str, name: str, seed: int) -> None:
        if self.world.talks[name].accepted:
            self.world.replay(at, name, seed)
            self.world.check(at, name)

    @rule(at=processes, name=sessions, seed=seeds, part=st.booleans())
    def restore(self, at: str, name: str, seed: int, part: bool) -> None:
        self.world.restore(at, name, self._archived(name, seed), part=part)
        self.world.check(at, name)

    @rule(at=processes, name=sessions, seed=seeds, id=ids, part=st.booleans())
    def restore_call(self, at: str, name: str, seed: int, id: str, part: bool) -> None:
        self.world.restore_call(at, name, self._archived(name, seed), id, part=part)
        self.world.check(at, name)

    @rule(at=processes, name=sessions, seed=seeds, who=st.sampled_from(("owner", "auditor", "stranger")))
    def restore_for(self, at: str, name: str, seed: int, who: str) -> None:
        world = self.world
        asking = {"owner": world.talks["one"].owner, "auditor": world.auditor, "stranger": world.stranger}[who]
        world.restore_for(at, name, self._archived(name, seed), asking)
        world.check(at, "south" if who == "stranger" else "one")

    @rule(at=processes)
    def open_what_is_not_mine(self, at: str) -> None:
        with pytest.raises(NotAvailableError):
            self.world.processes[at].archive.session("one", self.world.auditor)
        self.world.logged("one", "session.denied")

    @rule(at=processes, name=sessions, seed=seeds, sensitivity=st.sampled_from(("public", "public", "signed")))
    def label(self, at: str, name: str, seed: int, sensitivity: str) -> None:
        self.world.label(at, name, 1 + seed % (self.world.talks[name].last + 1), sensitivity)
        self.world.check(at, name)

    @rule(
        at=processes,
        name=sessions,
        fault=st.sampled_from(FAULTS),
        verb=st.sampled_from(
            ("archive", "archive call", "view", "restore", "restore call", "archive", "archive call")
        ),
        drawn=chosen,
    )
    def disturbed(self, at: str, name: str, fault: str, verb: str, drawn: list[tuple[int, str]]) -> None:
        self.world.seat(at, name)
        batch = self._batch(at, name, drawn)
        if verb.startswith("restore"):
            batch = [(f"r{self._archived(name, drawn[0][0])}", "")]
        self.world.disturbed(at, name, fault, verb, batch)
        self.world.check(at, name)

    @precondition(lambda self: self.world.calls % 5 == 0)
    @rule(at=processes, crash=st.booleans())
    def reopen(self, at: str, crash: bool) -> None:
        """A process ends, or is gone, and another begins."""
        process = self.world.processes[at]
        if not crash:
            process.archive.close()
        process.begin()

    @rule(at=processes, name=sessions)
    def open_again(self, at: str, name: str) -> None:
        self.world.processes[at].seats.pop(name, None)
        self.world.view(at, name)

    def teardown(self) -> None:
        if sys.exception() is not None:
            return  # what was found first counts
        for name, talk in self.world.talks.items():
            self.world.processes["B"].seats.pop(name, None)
            self.world.view("B", name)
            for number, record in talk.records.items():
                if record.words is not None:
                    self.world.restore("B", name, number, part=False)
            for at in PROCESSES:
                self.world.check(at, name)


@contextmanager
def paired(desk: Desk) -> Iterator[dict[str, Process]]:
    def make() -> tuple[Archive, Flaky]:
        flaky = Flaky()
        store = FaultyStore(open_store(desk.url, wait_ms=1_000), flaky.plan)
        return Archive(store, keys=open_provider(desk.keys), policy=POLICY, counter=Words()), flaky

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "journal_rules", lambda version: ("memory", 0))
        both = {name: Process(make) for name in PROCESSES}
        yield both
        for process in both.values():
            process.archive.close()


@pytest.fixture
def pair(desk: Desk) -> Iterator[dict[str, Process]]:
    """Two processes on one store, of each engine in turn."""
    with paired(desk) as both:
        yield both


@pytest.fixture
def sqlite_pair(sqlite_desk: Desk) -> Iterator[dict[str, Process]]:
    """Two processes on one SQLite store."""
    with paired(sqlite_desk) as both:
        yield both


def run(pair: dict[str, Process], examples: int, steps: int, phases: tuple[Phase, ...] = tuple(Phase)) -> Any:
    machine = type("Running", (Machine,), {"processes": pair, "made": 0})
    checked = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(machine, settings=checked)
    finally:
        gc.collect()  # here, where what crashed processes left open is expected, and not when the test run ends
    return machine


EXAMPLES, STEPS = 300, 50


def test_whatever_happens_in_whatever_order_is_what_the_dict_says(pair: dict[str, Process]) -> None:
    assert run(pair, EXAMPLES, STEPS).made >= EXAMPLES


@pytest.mark.nightly
def test_whatever_happens_in_whatever_order_however_long(pair: dict[str, Process]) -> None:
    assert run(pair, 5_000, 100).made >= 5_000


# --- must-fail controls: broken cores that the machine finds within its budget -----------------------------------


def restored_without_asking_for_permission(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Vault, "may_restore", lambda self, principal, owner, *rows: True)


def a_batch_in_two_transactions(patch: pytest.MonkeyPatch) -> None:
    update = SqlWriter.update_results

    def naive(self: SqlWriter, rows: Any) -> None:
        update(self, rows)
        if any(row.state == "archived" for row in rows):
            self._cursor().execute("COMMIT")
            self._cursor().execute("BEGIN IMMEDIATE")

    patch.setattr(SqlWriter, "update_results", naive)


@pytest.mark.parametrize(
    ("broken", "symptom"),
    [
        (registered_without_looking_again_under_the_lock, r"r\d+ is shown otherwise|every ID there is was expected"),
        (restored_without_asking_for_permission, "who may not has nothing"),
        (a_batch_in_two_transactions, "half a batch|otherwise"),
    ],
)
def test_the_machine_finds_a_broken_core(
    sqlite_pair: dict[str, Process], broken: Any, symptom: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError, match=symptom):
        run(sqlite_pair, EXAMPLES, STEPS, (Phase.generate,))
