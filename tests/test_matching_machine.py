"""Whole conversations in two processes against a model: IDs, labels, notes, restores, whatever the list does."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import pytest
from conftest import Desk
from doubles import registered_without_looking_again_under_the_lock
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from evidence_archive import Archive, BatchRejectedError, Policy, Principal
from evidence_archive.keys import new_keys
from evidence_archive.matching import LABELLED, Place, RecordIndex, Timeline
from evidence_archive.model import same_value

LABEL_CHARS_MIN = 40
POLICY = f"""
[policy]
name = "machine"
version = 1
default = "allow"

[limits]
label_chars_min = {LABEL_CHARS_MIN}
restores_per_turn_max = 3
"""
LONG_ID = "x" * 2_000
NAMES = ("A", "B")
Name = Literal["A", "B"]


class Words:
    """Counts characters, and a note as one token, so that a short content can be worth archiving."""

    name = "characters"
    estimated = False

    def count(self, text: str) -> int:
        return 1 if text.startswith("[archived r") else len(text)


class Record:
    """What the model knows of one result ID."""

    def __init__(self, call_id: str, content: Any, *, own: bool = False, evidence: Any = None) -> None:
        self.call_id = call_id
        self.content = deepcopy(content)
        self.own = own
        self.evidence = self.content if evidence is None else evidence
        self.words: str | None = None
        self.note: str | None = None

    @property
    def labelled(self) -> bool:
        parts = [{"type": "text", "text": self.content}] if isinstance(self.content, str) else self.content
        texts = [part["text"] for part in parts if part["type"] == "text"]
        return len(texts) < len(parts) or sum(map(len, texts)) >= LABEL_CHARS_MIN


class World:
    """One session in two processes, the application's list, and a model of what has to hold; views check it.

    Args:
        desk: where store and keys are.
        archives: the two processes.
        id: of the session.
    """

    def __init__(self, desk: Desk, archives: dict[Name, Archive], id: str) -> None:
        self.desk = desk
        self.archives = archives
        self.id = id
        self.sessions = {name: self.opened(name) for name in NAMES}
        self.tag = self.stored().tag
        self.messages: list[Any] = [{"role": "user", "content": "go on"}]
        self.records: dict[int, Record] = {}
        self.kept: list[int | None] = []
        self.only_grew = True
        self.shown: list[Any] = []
        self.batches = self.restores = self.fresh_ids = 0
        self.unrecorded: list[str] = []
        """Answers of ours that no answer wrote a record of: told twice, or changed by the application."""

    # --- the processes

    def opened(self, name: Name) -> Any:
        return self.archives[name].session(self.id, Principal("north-clinic", "triage-agent", frozenset({"agent"})))

    def stored(self) -> Any:
        with self.sessions["A"]._records.vault.store.peeking(1_000) as reader:
            return reader.session(self.id)

    @property
    def last(self) -> int:
        return max(self.records, default=0)

    # --- what the model says of contents

    def label(self, number: int) -> str:
        return f"[evidence r{number} tag={self.tag}]"

    def labelled(self, number: int, content: Any) -> Any:
        label = self.label(number)
        return f"{label}\n{content}" if isinstance(content, str) else [{"type": "text", "text": label}, *content]

    def noted(self, number: int) -> Any:
        record = self.records[number]
        return record.note if isinstance(record.content, str) else [{"type": "text", "text": record.note}]

    def form(self, number: int, call_id: str, content: Any) -> str | None:
        """Which form of a record a content is."""
        record = self.records[number]
        if record.call_id != call_id:
            return None
        if same_value(content, record.content):
            return "original"
        if record.labelled and same_value(content, self.labelled(number, record.content)):
            return "labelled"
        return "note" if record.note is not None and same_value(content, self.noted(number)) else None

    def ambiguous(self, messages: list[Any]) -> bool:
        """Whether a result could be several records, or a record several results: only growth tells these apart."""
        taken: set[int] = set()
        for message in messages:
            if message["role"] == "tool":
                alike = {n for n in self.records if self.form(n, message["tool_call_id"], message["content"])}
                if len(alike) > 1 or alike & taken:
                    return True
                taken |= alike
        return False

    # --- the conversation

    def turn(self, *results: tuple[str, Any]) -> None:
        """An assistant message with calls, and their results."""
        self.messages.append(asks(*((id, "logs.search", "{}") for id, _ in results)))
        self.messages += [answer(id, content) for id, content in results]

    def say(self) -> None:
        self.messages.append({"role": "assistant", "content": "I have read it."})

    def ours(self, name: Name, tool: str, arguments: dict[str, Any], id: str, beside: list[tuple[str, Any]]) -> str:
        """A call of ours, perhaps beside calls of others, and its answer's text."""
        calls = [(id, tool, json.dumps(arguments)), *((other, "logs.search", "{}") for other, _ in beside)]
        message = asks(*calls)
        self.messages.append(message)
        told = self.sessions[name].answer(message["tool_calls"][0])
        assert told.keys() == {"role", "tool_call_id", "content"}
        assert (told["role"], told["tool_call_id"]) == ("tool", id)
        self.messages += [told, *(answer(other, content) for other, content in beside)]
        content = told["content"]
        text = content if isinstance(content, str) else content[0]["text"]
        granted = text.startswith("[restored from r")
        accepted = text.startswith("Archived ")
        self.batches += accepted
        self.restores += granted
        record = Record(id, content, own=not granted)
        if granted:
            record.evidence = self.records[int(arguments["id"][1:])].evidence
        if self.stored().next_number > self.last + 1:  # a receipt that is told again is no new record
            self.records[self.last + 1] = record
        if accepted:
            self.archived(name, {item["id"]: item["note"] for item in arguments["batch"]})
        return text

    def archive(self, name: Name, batch: dict[str, str]) -> bool:
        """A program archives; whether it was accepted."""
        try:
            receipt = self.sessions[name].archive(list(batch.items()))
        except BatchRejectedError as error:
            rejected = error
        else:
            rejected = None
        if rejected is not None:
            assert [target.result_id for target in rejected.targets] == list(batch)
            assert any(target.status != "ok" for target in rejected.targets)
            return False
        assert [target.result_id for target in receipt.targets] == list(batch)
        self.batches += 1
        self.archived(name, batch)
        return True

    def archived(self, name: Name, batch: dict[str, str]) -> None:
        for result_id, words in batch.items():
            record = self.records[int(result_id[1:])]
            assert record.words is None, "a result is archived once"
            assert not record.own, "answers of ours are not evidence"
            record.words = words
        for result_id in batch:
            self.restore(name, int(result_id[1:]))

    def restore(self, name: Name, number: int) -> None:
        restored = self.sessions[name].restore(f"r{number}")
        self.restores += 1
        assert same_value(restored.content, self.records[number].evidence)

    # --- views

    def view(self, name: Name, messages: list[Any] | None = None, *, session: Any = None) -> list[Any]:
        """A view of the list, or of another one, with everything checked that can be seen in it."""
        session = session or self.sessions[name]
        handed = self.messages if messages is None else messages
        before = deepcopy(handed)
        shown = session.view(handed)
        assert same_value(handed, before), "the application's list is untouched"
        numbers = self.learned(session, handed)
        self.check(handed, shown, numbers)
        if self.only_grew and messages is None:
            assert numbers[: len(self.kept)] == self.kept, "an occurrence keeps its ID while the list only grows"
            self.kept = numbers
        again = session.view(shown)
        assert same_value(again, shown), "a view handed in again comes back as it is"
        assert same_value(session.view(deepcopy(handed)), shown), "equal messages and state, equal view"
        assert self.last == self.stored().next_number - 1, "looking again registers nothing"
        self.told(session)
        self.shown = shown
        return shown

    def learned(self, session: Any, handed: list[Any]) -> list[int | None]:
        """The number of every message's result; new records are noted."""
        numbers: list[int | None] = [None] * len(handed)
        for place in session._records.timeline.places:
            numbers[place.index] = place.number
        given = [number for number in numbers if number is not None]
        assert len(given) == len(set(given)), "an ID stands for one result in a list"
        new = [(at, number) for at, number in enumerate(numbers) if number is not None and number > self.last]
        assert [number for _, number in new] == list(range(self.last + 1, self.last + 1 + len(new)))
        for at, number in new:
            call = called(handed, at)
            ours = call is not None and call["function"]["name"] in ("archive_evidence", "restore_evidence")
            self.records[number] = Record(handed[at]["tool_call_id"], handed[at]["content"], own=ours)
            self.unrecorded += [f"r{number}"] * ours
        assert self.stored().next_number == self.last + 1, "an ID that was issued is one the list shows"
        return numbers

    def check(self, handed: list[Any], shown: list[Any], numbers: list[int | None]) -> None:
        """What one view may show."""
        assert len(shown) == len(handed)
        last_model = max((at for at, message in enumerate(handed) if message["role"] == "assistant"), default=-1)
        for at, (old, new, number) in enumerate(zip(handed, shown, numbers, strict=True)):
            if old["role"] != "tool":
                assert new is old, "only tool results change"
                continue
            others = [[(key, value) for key, value in one.items() if key != "content"] for one in (old, new)]
            assert same_value(*others), "only the content changes"
            if number is None:
                assert called(handed, at) is None or not isinstance(old["content"], str | list)
                assert new is old, "what has no ID passes through"
                continue
            record = self.records[number]
            if record.words is not None and record.note is None:
                record.note = new["content"] if isinstance(new["content"], str) else new["content"][0]["text"]
                assert record.note.startswith(f"[archived r{number} tag={self.tag} | a note, not the content | ")
                way, quoted = (
                    f"restore_evidence id=r{number} returns the exact original",
                    f"\n{record.words}".splitlines(),
                )
                assert record.note.endswith(f" | {way}]" + "\n> ".join(quoted))
            form = self.form(number, old["tool_call_id"], old["content"])
            assert form is not None, "an ID stands for one call id and content"
            if record.words is not None:
                assert same_value(new["content"], self.noted(number)), "a note is the same bytes everywhere"
                assert at < last_model or form != "original", "a new result is never shown as a note"
            elif record.labelled:
                assert same_value(new["content"], self.labelled(number, record.content))
            else:
                assert same_value(new["content"], record.content)

    def both(self, first: Name) -> None:
        """Views in both processes, equal where the list alone decides; then also in a process that starts now."""
        views = [self.view(name) for name in (first, "B" if first == "A" else "A")]
        if self.only_grew or not self.ambiguous(self.messages):
            assert same_value(*views), "both processes show the same"
            assert same_value(self.view(first, session=self.opened(first)), views[0]), "and so does a fresh one"

    def race(self, first: Name) -> None:
        """One process registers after the other has looked and before it writes."""
        slow = self.sessions["B" if first == "A" else "A"]
        register = slow._records.register

        def late(unknown: list[Place], *limits: Any) -> None:
            del slow._records.register
            self.sessions[first].view(self.messages)
            register(unknown, *limits)

        slow._records.register = late
        self.view("B" if first == "A" else "A")
        self.both(first)

    def told(self, session: Any) -> None:
        """Results and statistics agree with the model."""
        told = {f"r{number}": record for number, record in self.records.items() if not record.own}
        results = {info.id: info.state for info in session.results() if info.id not in self.unrecorded}
        assert results == {id: "live" if record.words is None else "archived" for id, record in told.items()}
        stats = session.stats()
        archived = sum(record.words is not None for record in told.values())
        assert 0 <= stats.results - len(told) <= len(self.unrecorded)
        assert stats.archived == archived
        assert (stats.batches, stats.suspended, stats.outage) == (self.batches, None, False)
        assert self.stored().restores == self.restores

    def over(self) -> None:
        """Whatever was archived comes back, in a process that starts now."""
        self.both("A")
        self.sessions = {name: self.opened(name) for name in NAMES}
        for number, record in self.records.items():
            if record.words is not None:
                self.restore("B", number)


def asks(*calls: tuple[str, str, str]) -> dict[str, Any]:
    made = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id, name, arguments in calls
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def answer(id: str, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def called(messages: list[Any], at: int) -> dict[str, Any] | None:
    """The call that a result answers: of the nearest message before it with that id, equal ids in order."""
    id = messages[at]["tool_call_id"]
    for back in range(at - 1, -1, -1):
        calls = [call for call in messages[back].get("tool_calls", ()) if call["id"] == id]
        if calls:
            between = messages[back + 1 : at]
            earlier = sum(message["role"] == "tool" and message["tool_call_id"] == id for message in between)
            return calls[earlier] if earlier < len(calls) else None
    return None


# --- the machine ------------------------------------------------------------------------------------------------

TEXT = "timeout after 30 s \r\n\x00\ud800 \U0001f600 in shard 7\n" * 2
POOL: tuple[Any, ...] = (
    "ok",
    "",
    "alpha line of a log\n" * 4,
    TEXT,
    [{"type": "text", "text": TEXT}],
    [{"type": "text", "text": "ok"}],
    [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
    7,
)
names = st.sampled_from(NAMES)
ids = st.sampled_from(("", "call_0", "long", "fresh"))
words = st.sampled_from(("fine", "3 timeouts, all in shard 7", "one\n> two"))
seeds = st.integers(0, 1_000)


class Growing(RuleBasedStateMachine):
    """A list that only grows."""

    desk: Desk
    archives: dict[Name, Archive]
    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1
        self.world = World(self.desk, self.archives, f"{type(self).__name__}-{self.made}")

    def _id(self, id: str) -> str:
        self.world.fresh_ids += 1
        return {"fresh": f"call_{self.world.fresh_ids}", "long": LONG_ID}.get(id, id)

    def _content(self, kind: str, seed: int) -> Any:
        """A content from the pool, or one that imitates what this session has shown or will show."""
        world = self.world
        content = POOL[seed % len(POOL)]
        if kind != "pool" and content != 7 and world.last:
            number = 1 + seed % world.last
            if kind == "label":
                return world.labelled(number, world.records[number].content)
            if kind == "next":
                return world.labelled(world.last + 1 + seed % 3, content)
            if kind == "note" and world.records[number].note is not None:
                return world.noted(number)
            if kind == "again":
                return deepcopy(world.records[number].content)
            results = [message for message in world.shown if message["role"] == "tool"]
            if kind == "shown" and results:
                return deepcopy(results[seed % len(results)]["content"])
        return deepcopy(content)

    def _results(self, drawn: list[tuple[str, str, int]]) -> list[tuple[str, Any]]:
        return [(self._id(id), self._content(kind, seed)) for id, kind, seed in drawn]

    def _target(self, seed: int, *, archived: bool) -> int:
        """Mostly a result that can be archived, or was; else any number, the next one included."""
        fit = [
            number
            for number, record in self.world.records.items()
            if not record.own and (record.words is not None) is archived and record.content != ""
        ]
        return 1 + seed % (self.world.last + 1) if seed % 7 == 0 or not fit else fit[seed % len(fit)]

    results = st.lists(
        st.tuples(ids, st.sampled_from(("pool", "pool", "pool", "label", "next", "note", "again", "shown")), seeds),
        max_size=3,
    )

    @rule(drawn=results, name=names)
    def turn(self, drawn: list[tuple[str, str, int]], name: Name) -> None:
        self.world.turn(*self._results(drawn))
        self.world.both(name)

    @rule(drawn=results)
    def turn_unseen(self, drawn: list[tuple[str, str, int]]) -> None:
        self.world.turn(*self._results(drawn))

    @rule(drawn=results, name=names)
    def turn_in_a_race(self, drawn: list[tuple[str, str, int]], name: Name) -> None:
        self.world.turn(*self._results(drawn))
        self.world.race(name)

    @rule(drawn=st.tuples(ids, st.just("pool"), seeds))
    def orphan(self, drawn: tuple[str, str, int]) -> None:
        ((id, content),) = self._results([drawn])
        self.world.messages.append(answer(id, content))

    @rule(name=names)
    def say(self, name: Name) -> None:
        self.world.say()
        self.world.both(name)

    @rule()
    def ask(self) -> None:
        self.world.messages.append({"role": "user", "content": "and now?"})

    @rule(name=names)
    def view(self, name: Name) -> None:
        self.world.view(name)

    @rule(name=names)
    def view_of_a_stored_view(self, name: Name) -> None:
        self.world.view(name, deepcopy(self.world.shown))

    @rule(name=names)
    def view_of_a_copied_list(self, name: Name) -> None:
        self.world.messages = deepcopy(self.world.messages)
        self.world.view(name)

    @precondition(lambda self: self.world.records)
    @rule(name=names, chosen=st.lists(st.tuples(seeds, words), min_size=1, max_size=2))
    def archive(self, name: Name, chosen: list[tuple[int, str]]) -> None:
        self.world.archive(name, {f"r{self._target(seed, archived=False)}": note for seed, note in chosen})

    @precondition(lambda self: self.world.records)
    @rule(name=names, chosen=st.lists(st.tuples(seeds, words), min_size=1, max_size=2), id=ids, drawn=results)
    def archive_call(
        self, name: Name, chosen: list[tuple[int, str]], id: str, drawn: list[tuple[str, str, int]]
    ) -> None:
        batch = {f"r{self._target(seed, archived=False)}": note for seed, note in chosen}
        arguments = {"batch": [{"id": result_id, "note": note} for result_id, note in batch.items()]}
        self.world.ours(name, "archive_evidence", arguments, self._id(id), self._results(drawn))
        self.world.both(name)

    @precondition(lambda self: self.world.records)
    @rule(name=names, seed=seeds, id=ids, drawn=results)
    def restore_call(self, name: Name, seed: int, id: str, drawn: list[tuple[str, str, int]]) -> None:
        arguments = {"id": f"r{self._target(seed, archived=True)}"}
        self.world.ours(name, "restore_evidence", arguments, self._id(id), self._results(drawn))
        self.world.both(name)

    @rule(name=names, whole=st.booleans())
    def restart(self, name: Name, whole: bool) -> None:
        if whole:
            self.archives[name].close()
            self.archives[name] = opened(self.desk)
            self.world.sessions = {**self.world.sessions, name: self.world.opened(name)}
        self.world.sessions[name] = self.world.opened(name)

    @rule(seed=seeds)
    def rewrite_a_message(self, seed: int) -> None:
        others = [
            message for message in self.world.messages if "tool_calls" not in message and "user" in message["role"]
        ]
        others[seed % len(others)]["content"] = f"go on {seed}"

    def teardown(self) -> None:
        self.world.over()


class Changing(Growing):
    """A list that grows, loses old turns, is cut back, and grows again otherwise."""

    @rule(name=names, seed=seeds)
    def drop_old_messages(self, name: Name, seed: int) -> None:
        del self.world.messages[1 : 1 + seed % len(self.world.messages)]
        self.world.only_grew = False
        self.world.both(name)

    @rule(name=names, seed=seeds)
    def view_of_the_beginning_of_a_stored_view(self, name: Name, seed: int) -> None:
        self.world.only_grew = False
        self.world.view(name, deepcopy(self.world.shown[: seed % (len(self.world.shown) + 1)]))

    @rule(name=names, seed=seeds)
    def cut_back(self, name: Name, seed: int) -> None:
        del self.world.messages[1 + seed % len(self.world.messages) :]
        self.world.only_grew = False
        self.world.both(name)

    @rule(name=names, seed=seeds, content=seeds)
    def rewrite_a_result(self, name: Name, seed: int, content: int) -> None:
        results = [message for message in self.world.messages if message["role"] == "tool"]
        if results:
            results[seed % len(results)]["content"] = self._content("pool", content)
            self.world.only_grew = False
        self.world.both(name)


def opened(desk: Desk) -> Archive:
    return desk.open(policy=Policy.loads(POLICY), counter=Words())


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared_desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder: Path = tmp_path_factory.mktemp("machine")
    if request.param == "sqlite":
        new_keys(folder / "evidence.keys")
        yield Desk(folder)
    else:
        with request.getfixturevalue("postgresql_desks")(folder) as desk:
            yield desk


@pytest.fixture
def archives(shared_desk: Desk) -> Iterator[dict[Name, Archive]]:
    """Two processes on one store."""
    pair = {name: opened(shared_desk) for name in NAMES}
    yield pair
    for archive in pair.values():
        archive.close()


def run(machine: type[Growing], desk: Desk, archives: dict[Name, Archive], examples: int, steps: int) -> None:
    bound = type(machine.__name__, (machine,), {"desk": desk, "archives": archives, "made": 0})
    checked = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(bound, settings=checked)


@pytest.mark.parametrize("machine", [Growing, Changing])
def test_in_any_conversation_what_is_shown_is_what_was_said_or_the_note_of_what_can_be_restored(
    machine: type[Growing], shared_desk: Desk, archives: dict[Name, Archive]
) -> None:
    run(machine, shared_desk, archives, 30 if shared_desk.server is None else 10, 25)


@pytest.mark.nightly
@pytest.mark.parametrize("machine", [Growing, Changing])
def test_in_any_conversation_however_long(
    machine: type[Growing], shared_desk: Desk, archives: dict[Name, Archive]
) -> None:
    run(machine, shared_desk, archives, 400, 60)


# --- must-fail controls: what the same checks catch -------------------------------------------------------------


@pytest.fixture
def world(shared_desk: Desk, archives: dict[Name, Archive], request: pytest.FixtureRequest) -> World:
    return World(shared_desk, archives, request.node.name)


def a_label_repeated_under_another_call_id(world: World) -> None:
    world.turn(("c1", TEXT))
    world.both("A")
    del world.messages[1:]
    world.only_grew = False
    world.turn(("c2", world.labelled(1, TEXT)))
    world.both("A")


def a_call_id_used_for_another_result(world: World) -> None:
    world.turn(("call_0", TEXT))
    world.both("A")
    del world.messages[1:]
    world.only_grew = False
    world.turn(("call_0", "alpha line of a log\n" * 4))
    world.both("A")


def two_processes_that_meet_a_result_at_once(world: World) -> None:
    world.turn(("c1", TEXT))
    world.race("A")


def an_equal_result_after_an_archived_one_is_gone(world: World) -> None:
    world.turn(("call_0", TEXT))
    world.both("A")
    world.say()
    world.both("A")
    assert world.archive("A", {"r1": "fine"})
    del world.messages[1:]
    world.only_grew = False
    world.turn(("call_0", TEXT))
    world.both("B")


def by_the_shape_of_the_text(patch: pytest.MonkeyPatch) -> None:
    match = Timeline.match

    def naive(self: Timeline, *known: Any, **more: Any) -> list[Place]:
        for place in self.bare():
            shape = (
                re.match(r"\[evidence r(\d+) tag=\w+\]\n", place.content) if isinstance(place.content, str) else None
            )
            if shape and int(shape[1]) not in self.by_number:
                self.give(place, int(shape[1]), LABELLED)
        self.settle()
        return match(self, *known, **more)

    patch.setattr(Timeline, "match", naive)


def by_the_call_id_alone(patch: pytest.MonkeyPatch) -> None:
    def naive(self: RecordIndex, call_id: bytes, tag: bytes) -> list[tuple[int, str]]:
        forms = [found for (id, _), found in self._forms.items() if id == call_id]
        return sorted(item for found in forms for item in found.items())

    patch.setattr(RecordIndex, "find", naive)


def without_the_rule_of_the_live_turn(patch: pytest.MonkeyPatch) -> None:
    match = Timeline.match
    patch.setattr(
        Timeline,
        "match",
        lambda self, index, _, tag_of, **more: match(self, index, lambda number: False, tag_of, **more),
    )


CONTROLS = [
    (a_label_repeated_under_another_call_id, by_the_shape_of_the_text),
    (a_call_id_used_for_another_result, by_the_call_id_alone),
    (two_processes_that_meet_a_result_at_once, registered_without_looking_again_under_the_lock),
    (an_equal_result_after_an_archived_one_is_gone, without_the_rule_of_the_live_turn),
]


@pytest.mark.parametrize(("scene", "naive"), CONTROLS, ids=lambda it: it.__name__)
def test_the_checks_catch_a_naive_matcher_and_only_that(
    world: World, scene: Any, naive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene(world)
    world.over()
    with monkeypatch.context() as patch:
        naive(patch)
        with pytest.raises(AssertionError):
            scene(World(world.desk, world.archives, f"{world.id} naive"))


# --- scenes that any history may hold ---------------------------------------------------------------------------


def test_an_orphan_that_equals_a_proper_result_is_left_alone_in_every_process(world: World) -> None:
    world.messages.append(answer("", TEXT))
    world.turn(("", TEXT))
    world.both("A")
    assert world.kept == [None, None, None, 1]


def test_a_field_added_to_a_labelled_result_in_place_is_in_the_next_view(world: World) -> None:
    world.turn(("c1", TEXT))
    world.both("A")
    world.messages[2]["cache_control"] = {"type": "ephemeral"}
    assert world.view("A")[2]["cache_control"] == {"type": "ephemeral"}


def test_a_view_comes_back_as_it_is_though_an_older_result_foresaw_its_label(world: World) -> None:
    world.turn(("c1", world.labelled(2, TEXT)))
    world.turn(("c1", TEXT))
    world.both("A")
    del world.messages[1:3]
    world.only_grew = False
    world.view("A")


def test_a_restore_of_what_another_process_archived_is_audited(world: World) -> None:
    world.turn(("c1", TEXT))
    world.both("A")
    world.say()
    world.both("A")
    assert world.archive("A", {"r1": "fine"})
    granted = world.restores
    world.restore("B", 1)
    assert world.stored().restores == granted + 1


def test_what_a_program_does_with_a_restored_live_result_changes_no_later_restore(world: World) -> None:
    world.turn(("c1", [{"type": "text", "text": TEXT}]))
    session = world.sessions["A"]
    world.view("A")
    session.restore("r1").content[0]["text"] = "changed"
    assert session.restore("r1").content == [{"type": "text", "text": TEXT}]


STRICT = (
    POLICY
    + """
[[archive]]
id = "basis"
tools = ["prescription.*"]
sensitivity = ["signed"]
effect = "never"
reason = "it stays"
"""
)


def test_the_tool_that_was_called_protects_its_result_under_whatever_record_it_is_known(shared_desk: Desk) -> None:
    policy = Policy.loads(STRICT.replace('sensitivity = ["signed"]\n', ""))
    with shared_desk.open(policy=policy, counter=Words()) as archive:
        session = archive.session("protected by call", Principal("north-clinic", "triage-agent"))
        read = [asks(("", "prescription.read", "{}")), answer("", TEXT), {"role": "assistant", "content": "read"}]
        session.view([asks(("", "logs.search", "{}")), answer("", TEXT), *read])
        session.view(read)
        for result_id in ("r1", "r2"):
            with pytest.raises(BatchRejectedError):
                session.archive([(result_id, "fine")])


def test_a_label_set_before_the_first_view_protects_the_result_it_was_set_on(shared_desk: Desk) -> None:
    policy = Policy.loads(STRICT.replace('tools = ["prescription.*"]\n', ""))
    with shared_desk.open(policy=policy, counter=Words()) as archive:
        session = archive.session("protected by label", Principal("north-clinic", "triage-agent"))
        messages = [asks(("", "a", "{}"), ("", "b", "{}")), answer("", TEXT), answer("", TEXT)]
        session.label(messages[2], sensitivity="signed")
        session.view([*messages, {"role": "assistant", "content": "read"}])
        with pytest.raises(BatchRejectedError):
            session.archive([("r2", "fine")])
