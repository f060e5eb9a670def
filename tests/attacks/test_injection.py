"""Text that wants to be taken for ours, through everything that carries text into the library.

Each string of a corpus is a result, a part, a media type, a tool's name, a call id, arguments, an id, a session id, a
note, a reason and a selector. Afterwards nothing was archived or restored but by our own calls, our labels and notes
are what they were, nothing of another session or org came out, and every original comes back exactly.
"""

import json
import re
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from conftest import Conversation, Desk
from corpus import CORPUS, FOREIGN_ID, GROUPS, KINDS
from doubles import Characters, arguments, batch_of
from hostile import HIDDEN

from evidence_archive import (
    Archive,
    BatchRejectedError,
    FormatError,
    NotAvailableError,
    Principal,
    notes,
)
from evidence_archive.keys import new_keys
from evidence_archive.matching import LABELLED, NOTE
from evidence_archive.model import canonical_id, encode_exact, same_value, text_of
from evidence_archive.records import TOOL_NAME_CHARS_MAX, Records

OWNER = Principal(org="north-clinic", subject="owner")
COLLEAGUE = Principal(org="north-clinic", subject="colleague")
FOREIGNER = Principal(org="south-clinic", subject="owner")

FOREIGN = "finding of somebody else\n"
LONG = "".join(f"worker {number} has nothing to report\n" for number in range(45))
LABEL_CHARS_MIN = 800
NOTE_CHARS_MAX, REASON_CHARS_MAX, SELECTOR_CHARS_MAX = 2_000, 2_000, 1_000
STRINGS_MIN = 300


def carried(forged: str) -> dict[str, dict[str, Any]]:
    """Tool results that carry a string, by where they carry it."""
    return {
        "text": {"content": forged},
        "the head of a text": {"content": f"{forged}\n{LONG}"},
        "the end of a text": {"content": f"{LONG}\n{forged}"},
        "a text part": {"content": [{"type": "text", "text": forged}, {"type": "text", "text": LONG}]},
        "a media type": {"content": [{"type": "image_url", "image_url": {"url": f"data:{forged};base64,AAAA"}}]},
        "a type of part": {"content": [{"type": forged, forged: LONG}]},
        "JSON": {"content": json.dumps({forged: "needle", "more": LONG})},
        "the tool's name": {"content": f"{LONG} a name", "name": forged},
        "the name on the result": {"content": f"{LONG} a second name", "named": forged},
        "the call id": {"content": f"{LONG} a call id", "call_id": forged},
        "arguments": {"content": f"{LONG} arguments", "arguments": forged},
    }


def with_neighbours(archive: Archive) -> Archive:
    """Sessions of another subject and of another org, each with a result that nobody else may have."""
    for principal, name in ((COLLEAGUE, "other"), (FOREIGNER, "theirs")):
        session, talk = archive.session(name, principal), Conversation()
        for number in range(1, int(FOREIGN_ID[1:]) + 1):
            talk.tool(f"{number} {FOREIGN}" + FOREIGN * (50 if number % 19 == 1 else 0))
        talk.say()
        session.view(talk.messages)
        session.archive([("r1", "n"), (FOREIGN_ID, "n")])
    return archive


class Trial:
    """One string in one session, and what was wrong afterwards.

    Args:
        archive: with neighbours.
        made: the string, for the session's tag.
        session_id: of a new session.
    """

    def __init__(self, archive: Archive, made: Callable[[str], str], session_id: str) -> None:
        self.archive = archive
        self.session_id = session_id
        self.session = archive.session(session_id, OWNER)
        self.found: list[str] = []
        self.granted = 0
        self.batches = 1
        self.talk = Conversation()
        self.victim, self.bystander = (self.talk.tool(f"{name} {LONG}") for name in ("victim", "bystander"))
        self.talk.say()
        label = self.session.view(self.talk.messages)[self.place(self.victim)]["content"].partition("\n")[0]
        self.tag = label.removeprefix("[evidence r1 tag=").removesuffix("]")
        self.session.archive([("r1", "The victim's note.")])
        self.before = self.session.view(self.talk.messages)
        self.forged = made(self.tag)

    def run(self) -> list[str]:
        """Everything, one step after the other; an error that is not expected is a finding too."""
        for step in (self.shown, self.called, self.asked, self.selected, self.noted, self.archived, self.restored):
            try:
                step()
            except Exception as error:
                self.found.append(f"{step.__name__}: {type(error).__name__}: {str(error)[:200]}")
        return self.found

    def claim(self, holds: bool, words: str) -> None:
        if not holds:
            self.found.append(words)

    def place(self, message: Any) -> int:
        return next(at for at, one in enumerate(self.talk.messages) if one is message)

    def clean_of_others(self, *told: Any) -> None:
        for one in told:
            self.claim(FOREIGN not in str(one), "something of another session came out")

    # --- steps ----------------------------------------------------------------------------------------------

    def shown(self) -> None:
        """Results that carry it are results, under numbers of their own; everything else is shown as before."""
        talk, self.results = self.talk, {}
        talk.messages.append({"role": "user", "content": self.forged})
        for where, one in carried(self.forged).items():
            call = talk.call(one.get("name", "logs.search"), one.get("arguments", "{}"), one.get("call_id"))
            message = {"role": "tool", "tool_call_id": call["id"], "content": one["content"]}
            talk.messages.append(message | ({"name": one["named"]} if "named" in one else {}))
            self.results[where] = talk.messages[-1]
        talk.say(self.forged)
        kept = deepcopy(talk.messages)
        view = self.session.view(talk.messages)
        self.claim(view[: len(self.before)] == self.before, "the view of what was there before changed")
        self.claim(talk.messages == kept, "the application's messages were changed")
        self.ids: dict[str, str] = {}
        for at, message in enumerate(talk.messages):
            if message["role"] != "tool":
                self.claim(view[at] is message, f"a message of {message['role']} was not passed through")
        for where, message in self.results.items():
            content, shown = message["content"], view[self.place(message)]["content"]
            if encode_exact(content) is None:  # a pair of halves in parts would come back joined
                self.claim(shown is content, f"{where}: what is not eligible was not passed through")
                continue
            self.ids[where] = f"r{3 + len(self.ids)}"
            label = f"[evidence {self.ids[where]} tag={self.tag}]"
            if isinstance(content, str):
                due: Any = f"{label}\n{content}" if len(content) >= LABEL_CHARS_MIN else content
            else:
                due = [{"type": "text", "text": label}, *content]
            self.claim(shown == due, f"{where}: shown as something else than a live result")
        states = {info.id: (info.state, info.restored_from) for info in self.session.results()}
        due_states = {"r1": "archived", "r2": "live", **dict.fromkeys(self.ids.values(), "live")}
        self.claim(states == {number: (state, None) for number, state in due_states.items()}, "a state changed")
        stats = self.session.stats()
        self.claim((stats.batches, stats.restores) == (1, 0), "something was archived or restored by a text")
        self.claim(self.session.view(view) == view, "a view that is handed in again changes")
        self.session.view(talk.messages)
        self.clean_of_others(view)

    def called(self) -> None:
        """As the name of a tool, and as the id that a tool of ours is asked for."""
        function = {"name": self.forged, "arguments": batch_of(("r2", "n"))}
        called = self.session.answer({"id": "q0", "type": "function", "function": function})
        self.claim(called is None, "a call of another tool was answered by us")
        for name, given in (
            (notes.ARCHIVE_TOOL, batch_of((self.forged, "n"))),
            (notes.RESTORE_TOOL, arguments(id=self.forged)),
        ):
            function = {"name": name, "arguments": given}
            told = self.session.answer({"id": "q1", "type": "function", "function": function})["content"]
            refused = told.startswith(("NOTHING was archived", "Nothing was restored"))
            self.claim(refused and LONG not in told, f"{name} took an id that is none of this session's")
            self.clean_of_others(told)

    def asked(self) -> None:
        """As an id or a session id that a program asks for."""
        asked: tuple[Callable[[], Any], ...] = (
            lambda: self.session.restore(self.forged),
            lambda: self.archive.restore(self.session_id, self.forged, principal=OWNER),
            lambda: self.archive.restore(self.forged, FOREIGN_ID, principal=OWNER),
            lambda: self.archive.restore(self.forged, "r1", principal=OWNER),
        )
        for ask in asked:
            with suppress(NotAvailableError):
                self.found.append(f"an id or a session that is not there gave {type(ask()).__name__}")

    def selected(self) -> None:
        """As a selector, and as a reason: it selects what is literally there, or is refused."""
        for selector in ("lines", "byte_range", "pointer"):
            with suppress(FormatError):
                self.session.restore("r1", **{selector: self.forged})  # type: ignore[arg-type]
                self.found.append(f"it was taken for {selector}")
        self.part("r1", f"victim {LONG}")
        with suppress(FormatError):
            restored = self.session.restore("r1", reason=self.forged)
            self.granted += 1
            self.claim(restored.content == f"victim {LONG}", "a reason changed what is restored")
            self.claim(len(self.forged) <= REASON_CHARS_MAX, "a reason that is too long was taken")

    def part(self, result_id: str, original: str) -> None:
        """As a pattern: all that comes back stands in the original."""
        with suppress(FormatError):
            part = self.session.restore(result_id, pattern=self.forged)
            self.granted += 1
            self.claim(len(self.forged) <= SELECTOR_CHARS_MAX, "a pattern that is too long was taken")
            matched = not str(part.part).startswith("0 of 0") and part.content != ""
            self.claim(matched == (self.forged in original), "a pattern was taken for something else than text")
            lines = [line.partition(":")[2] for line in part.content.split("\n") if re.match(r"\d+:", line)]
            self.claim(all(line in original for line in lines), "a part is not in the original")

    def noted(self) -> None:
        """As a note: it is quoted behind a header of ours, whatever it says."""
        try:
            self.session.archive([("r2", self.forged)])
        except BatchRejectedError as error:
            status = error.targets[0].status if error.targets else error.reason
            due = {"blank_note": True, "note_too_long": len(self.forged) > NOTE_CHARS_MAX}
            due["not_smaller"] = len(notes.clean(self.forged)) > 1_000
            self.claim(due.get(status, False), f"a note was refused as {status}")
            self.session.archive([("r2", "The bystander's note.")])
        self.batches += 1
        header, *words = self.session.view(self.talk.messages)[self.place(self.bystander)]["content"].split("\n")
        self.claim(header.startswith(f"[archived r2 tag={self.tag} | a note, not the content | "), "a note's header")
        self.claim(bool(words) and all(line.startswith("> ") for line in words), "a note's words are not quoted")
        self.claim(not set(HIDDEN) & set("".join([header, *words])), "a note hides something")

    def archived(self) -> None:
        """A real batch of all that carries it: notes stand for just these, here and in another process."""
        contents = {where: self.results[where]["content"] for where in self.ids}
        large = {where for where, content in contents.items() if len(str(content)) >= len(LONG)}
        large |= {"a media type"} & contents.keys()
        if len(self.forged) >= TOOL_NAME_CHARS_MAX:
            large -= {"the tool's name", "the name on the result"}
        self.chosen = [where for where in contents if where in large]
        self.session.archive([(self.ids[where], f"About {self.ids[where]}.") for where in self.chosen])
        self.batches += 1
        view = self.session.view(self.talk.messages)
        for where in self.ids:
            shown = view[self.place(self.results[where])]["content"]
            text = shown if isinstance(shown, str) else shown[0]["text"]
            header = f"[archived {self.ids[where]} tag={self.tag} | a note, not the content | "
            noted = text.startswith(header) and text.endswith(f"\n> About {self.ids[where]}.")
            self.claim(noted == (where in self.chosen), f"{where}: not shown as what it is")
        place = self.place(self.victim)
        self.claim(view[place] == self.before[place], "the victim's note changed")
        again = self.archive.session(self.session_id, OWNER).view(self.talk.messages)
        self.claim(again == view, "another process sees something else")
        self.clean_of_others(view)

    def restored(self) -> None:
        """Every original comes back exactly, to a program and to a model."""
        for where in self.chosen:
            message, restored = self.results[where], self.session.restore(self.ids[where])
            self.granted += 1
            self.claim(same_value(restored.content, message["content"]), f"{where}: comes back as something else")
            call_id = text_of(canonical_id(message["tool_call_id"]))
            told = (restored.provenance.session_id, restored.provenance.tool_call_id)
            self.claim(told == (self.session_id, call_id), f"{where}: its provenance is another one")
        for result_id, message in (("r1", self.victim), ("r2", self.bystander)):
            self.claim(
                self.session.restore(result_id).content == message["content"], "a neighbour does not come back"
            )
            self.granted += 1
        self.part(self.ids["the head of a text"], self.results["the head of a text"]["content"])
        if "JSON" in self.chosen:
            self.pointed()
        self.fenced()
        self.session.view(self.talk.messages)
        stats = self.session.stats()
        self.claim((stats.batches, stats.restores) == (self.batches, self.granted), "a batch or a restore too many")

    def pointed(self) -> None:
        """As the name of a member that a pointer names."""
        pointer = "/" + self.forged.replace("~", "~0").replace("/", "~1")
        there = json.loads(json.dumps(self.forged)) == self.forged and len(pointer) <= SELECTOR_CHARS_MAX
        with suppress(FormatError):
            part = self.session.restore(self.ids["JSON"], pointer=pointer)
            self.granted += 1
            self.claim(there and part.content == '"needle"', "a pointer was taken for another one")
            return
        self.claim(not there, "a pointer to what is there was refused")

    def fenced(self) -> None:
        """In an answer to a model: between two lines that carry what the original does not."""
        content, number = self.results["the head of a text"]["content"], self.ids["the head of a text"]
        call = {"name": notes.RESTORE_TOOL, "arguments": arguments(id=number, reason=self.forged[:REASON_CHARS_MAX])}
        answer = self.session.answer({"id": "q2", "type": "function", "function": call})["content"]
        if not answer.startswith(f"[restored from {number} tag={self.tag} | "):
            self.claim(len(content) > 50_000 and "is over the limit" in answer, "a restore was refused")
            return
        self.granted += 1
        head, _, foot = answer.partition(f"\n{content}\n")
        (boundary,) = re.findall(rf"^--- begin {number} ([0-9a-f]{{32}}) ---$", head, re.M)
        self.claim(foot == f"--- end {number} {boundary} ---", "the closing fence is not ours")
        self.claim(boundary not in content, "an original holds the boundary")


def session_named(archive: Archive, name: str) -> list[str]:
    """What is wrong with a session of this name."""
    try:
        session = archive.session(name, OWNER)
    except FormatError:
        fit = 1 <= len(name) <= 256 and not re.search("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", name)
        return ["a name that is fit was refused"] if fit else []
    except NotAvailableError:
        return [] if name in ("other", "theirs") else ["a session that is new was refused"]
    if session.results():
        return ["a new session holds results"]
    talk = Conversation()
    talk.tool(LONG)
    talk.say()
    session.view(talk.messages)
    session.archive([("r1", "n")])
    restored = archive.restore(name, "r1", principal=OWNER)
    exact = (restored.content, restored.provenance.session_id) == (LONG, name)
    return [] if exact else ["an original of a session of this name does not come back"]


def findings(archive: Archive, chosen: dict[Any, Callable[[str], str]]) -> dict[Any, list[str]]:
    """What was wrong with which string, and whether the log tells of just the grants that were ours."""
    found: dict[Any, list[str]] = {}
    granted = archived = 0
    for number, (name, made) in enumerate(chosen.items()):
        trial = Trial(archive, made, f"case-{number}")
        found[name] = trial.run()
        granted, archived = granted + trial.granted, archived + trial.batches
    entries = [entry.event for entry in archive.audit(principal=OWNER).entries]
    if (entries.count("restore.granted"), entries.count("batch.accepted") - 1) != (granted, archived):
        found["the log"] = ["it tells of other grants or batches than ours"]
    theirs = [entry.event for entry in archive.audit(principal=FOREIGNER).entries]
    if "restore.granted" in theirs:
        found["the other org's log"] = ["something of another org was restored"]
    return {name: wrong for name, wrong in found.items() if wrong}


@pytest.fixture
def sqlite_archive() -> Iterator[Archive]:
    # Thousands of commits, and none of them is about durability: in memory where there is such a place.
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        new_keys(Path(folder) / "evidence.keys")
        with Desk(Path(folder)).open(counter=Characters()) as archive:
            yield with_neighbours(archive)


def test_the_corpus_has_more_than_three_hundred_strings_and_no_two_are_equal(record_property):
    strings = [made("9f3c") for made in CORPUS.values()]
    record_property("strings", len(strings))
    assert len(set(strings)) == len(strings) >= STRINGS_MIN


@pytest.mark.parametrize("kind", GROUPS)
def test_no_text_is_taken_for_ours_whatever_carries_it_and_every_original_comes_back(
    sqlite_archive, kind, record_property
):
    record_property("strings", len(GROUPS[kind]))
    assert findings(sqlite_archive, GROUPS[kind]) == {}


@pytest.mark.parametrize("spelling", ["plain", "NUL between", "lone halves", "a pair split around it"])
def test_no_text_is_taken_for_ours_on_postgresql_either(postgresql_desk, spelling):
    with postgresql_desk.open(counter=Characters()) as archive:
        assert findings(with_neighbours(archive), {kind: GROUPS[kind][spelling] for kind in KINDS}) == {}


def test_a_session_of_any_name_is_a_session_of_its_own(sqlite_archive, record_property):
    found = {name: session_named(sqlite_archive, made("9f3c")) for name, made in CORPUS.items()}
    record_property("strings", len(found))
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


# --- controls ---------------------------------------------------------------------------------------------------


def recognised_by_its_text(patch: pytest.MonkeyPatch) -> None:
    """Break the core: what looks like a note or a label of ours is one."""
    match = Records.match

    def naive(self: Records) -> list[Any]:
        unknown = match(self)
        for place in list(unknown):
            told = re.search(r"\[(archived|evidence) r(\d+) tag=", str(place.content))
            if told and int(told[2]) in self.rows:
                self.timeline.give(place, int(told[2]), NOTE if told[1] == "archived" else LABELLED)
                unknown.remove(place)
        return unknown

    patch.setattr(Records, "match", naive)


def ids_by_their_digits(patch: pytest.MonkeyPatch) -> None:
    """Break the core: an id is whatever number it holds."""

    def naive(text: object) -> int:
        told = re.search(r"\d{1,18}", str(text))
        if told is None:
            raise FormatError("no number")
        return int(told[0])

    for module in ("session", "restoring", "batch", "answering"):
        patch.setattr(f"evidence_archive.{module}.parse_result_id", naive)


def words_as_they_are(patch: pytest.MonkeyPatch) -> None:
    """Break the core: a note stands in the view as it was written."""
    patch.setattr(notes, "clean", str)


def notes_without_quotes(patch: pytest.MonkeyPatch) -> None:
    """Break the core: the words of a note are not quoted."""
    note = notes.note
    patch.setattr(notes, "note", lambda **named: note(**named).replace("\n> ", "\n"))


def any_tool_with_our_name_in_it(patch: pytest.MonkeyPatch) -> None:
    """Break the core: names of tools are compared without case and blanks."""

    class Loose(frozenset[str]):
        def __contains__(self, name: object) -> bool:
            return any(one in str(name).lower() for one in self)

        def __or__(self, other: AbstractSet[Any]) -> "Loose":  # with the tools of a window
            return Loose({*self, *other})

    patch.setattr(notes, "OUR_TOOLS", Loose(notes.OUR_TOOLS))


@pytest.mark.parametrize(
    ("broken", "kind", "spelling"),
    [
        (recognised_by_its_text, "a note of the archived result", "plain"),
        (recognised_by_its_text, "a label of the archived result", "within itself"),
        (recognised_by_its_text, "an answer as JSON", "plain"),
        (ids_by_their_digits, "an id", ascii("r\uff11")),
        (ids_by_their_digits, "an id", ascii("r1\n")),
        (words_as_they_are, "a receipt", "behind right-to-left"),
        (notes_without_quotes, "a label of nothing", "other line ends"),
        (any_tool_with_our_name_in_it, "a name of ours", ascii("Archive_Evidence")),
    ],
)
def test_must_fail_control_the_same_checks_catch_a_naive_core(sqlite_archive, broken, kind, spelling, monkeypatch):
    broken(monkeypatch)
    assert findings(sqlite_archive, {spelling: GROUPS[kind][spelling]}) != {}
