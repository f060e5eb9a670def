"""Entries that nobody asked for: what a tool wrote is read back by the host, compared, kept and posted, once."""

import json
import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import AWAY, UNWRITABLE, Characters, policy_of
from doubles import opened as flaky
from test_books import loosened

from evidence_archive import Archive, Principal
from evidence_archive.books import Books
from evidence_archive.errors import CheckFailedError, FormatError, MisuseError, SealBrokenError, StoreUnavailableError
from evidence_archive.ledger import keeping, observing
from evidence_archive.ledger import rules as rules_module
from evidence_archive.ledger.checks import quotes
from evidence_archive.ledger.entries import Outcome, added_up
from evidence_archive.ledger.rules import Finding, Rule, arguments_of, artifact_name, written_file
from evidence_archive.model import ToolCall
from evidence_archive.testing import FrozenClock

KEEPER = Principal(org="north-clinic", subject="records", roles={"custodian"})
TEXT = "ward,days\r\nA,3\r\nB,5\r\n"


def opened(desk: Desk) -> Archive:
    return desk.open(policy=policy_of(), counter=Characters())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    return made


def wrote(talk: Conversation, path: Any, content: Any = TEXT, result: str = "ok") -> None:
    """A call of the tool and its answer; what it did is up to the test."""
    call = talk.call("write_file", json.dumps({"path": path, "content": content}))
    talk.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


@pytest.mark.parametrize(
    "given",
    [
        {"root": None},
        {"root": b"x"},
        {"root": "a\0b"},
        {"root": "\ud800"},
        {"tool": 1},
        {"tool": " "},
        {"path": ["x"]},
        {"content": []},
        {"named_below": None},
    ],
)
def test_a_rule_that_cannot_be_is_refused_in_a_sentence_when_it_is_made(root: Path, given: dict[str, Any]):
    with pytest.raises(FormatError, match=r"[a-z]\.$"):
        written_file(**{"tool": "write_file", "root": root, **given})


@pytest.mark.parametrize("path", [None, 1, b"x", ["x"]])
def test_what_is_no_text_is_no_path_of_an_artifact(path: Any):
    with pytest.raises(FormatError, match="is a text"):
        artifact_name(path)


def looked_at(session: Any) -> dict[str, tuple[str, ...]]:
    return dict(session.ledger.books().looked_at)


# --- what was verified ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("absolute", [False, True])
def test_what_a_tool_wrote_is_on_the_books_without_the_models_doing(
    desk: Desk, owner: Principal, root: Path, absolute: bool
):
    file = root / "out" / "avg.csv"
    file.parent.mkdir()
    file.write_bytes(TEXT.encode())
    with opened(desk) as archive:
        session = archive.session("case", owner, rules=[written_file(tool="write_file", root=root)])
        talk = Conversation()
        wrote(talk, str(file) if absolute else "out/avg.csv")
        assert session.view(talk.messages) == talk.messages
        books = session.ledger.books()
        (fact,) = books.current()
        digest = sha256(TEXT.encode()).hexdigest()
        assert fact.text == "write_file wrote out/avg.csv, 21 bytes"
        assert fact.outcome == Outcome(
            "written_file write_file", f"read back and equal to what was to be written: 21 bytes, sha256 {digest}"
        )
        assert [(one.reference, one.sha256) for one in fact.sources] == [("artifact:out/avg.csv", digest)]
        assert (books.artifacts["out/avg.csv"].sha256, books.claims["c1"].by) == (digest, "host")
        assert looked_at(session) == {"r1": ()}
        assert session.restore(fact.sources[0].result_id).content == TEXT
        assert session.ledger.reconcile(strong=True).agrees
        assert archive.custody(KEEPER).verify("full").findings == ()


def test_a_product_stands_under_the_rules_of_the_result_it_came_with(desk: Desk, owner: Principal, root: Path):
    (root / "a").write_bytes(TEXT.encode())
    rules = '[[restore]]\ntools = ["write_file"]\nroles = ["records"]\n'
    with desk.open(policy=policy_of(rules), counter=Characters()) as archive:
        session = archive.session("case", owner, rules=[written_file(tool="write_file", root=root)])
        talk = Conversation()
        wrote(talk, "a")
        session.view(talk.messages)
        (fact,) = session.ledger.books().current()
        report = session.ledger.reconcile(strong=True)
        assert not report.agrees, "who owns the session may not read it back"
        reader = Principal(org=owner.org, subject="other", roles={"records"})
        assert archive.restore("case", fact.sources[0].result_id, principal=reader).content == TEXT


def test_a_later_product_of_the_same_name_supersedes_the_earlier_fact(desk: Desk, owner: Principal, root: Path):
    with opened(desk) as archive:
        session = archive.session("case", owner, rules=[written_file(tool="write_file", root=root)])
        talk = Conversation()
        for text in ("first", "second"):
            (root / "a").write_text(text)
            wrote(talk, "a", text)
            session.view(talk.messages)
        books = session.ledger.books()
        assert [fact.text for fact in books.current()] == ["write_file wrote a, 6 bytes"]
        assert [fact.id for fact in books.history("f2")] == ["f1", "f2"]


def test_each_of_several_facts_on_a_product_is_superseded_by_one_on_the_next(
    sqlite_desk: Desk, owner: Principal, root: Path
):
    rules = [written_file(tool="write_file", root=root, content=content) for content in ("content", None)]
    with opened(sqlite_desk) as archive:
        session, talk = archive.session("case", owner, rules=rules), Conversation()
        for text in ("1", "22", "333"):
            (root / "a").write_text(text)
            wrote(talk, "a", text)
            session.view(talk.messages)
        assert [fact.text for fact in session.ledger.books().current()] == ["write_file wrote a, 3 bytes"] * 2


def test_files_of_two_folders_with_one_name_are_two_products(sqlite_desk: Desk, owner: Principal, root: Path):
    """Also where their artifacts have one name: what one tool wrote does not supersede what another one wrote."""
    for below in ("", "drafts"):
        folders = [root / f"first{below}", root / f"second{below}"]
        for folder in folders:
            folder.mkdir()
        first = written_file(tool="write_file", root=folders[0], named_below="reports/")
        second = written_file(tool="draft_file", root=folders[1], named_below=below or "reports")
        with opened(sqlite_desk) as archive:
            session = archive.session(f"case {below}", owner, rules=[first, second])
            talk = Conversation()
            for folder, tool in zip(folders, ("write_file", "draft_file"), strict=True):
                (folder / "a").write_text(tool)
                call = talk.call(tool, json.dumps({"path": "a", "content": tool}))
                talk.messages.append({"role": "tool", "tool_call_id": call["id"], "content": "ok"})
                session.view(talk.messages)
            books = session.ledger.books()
            assert [fact.text for fact in books.current()] == [
                "write_file wrote reports/a, 10 bytes",
                f"draft_file wrote {below or 'reports'}/a, 10 bytes",
            ]
            assert set(books.artifacts) == {"reports/a", f"{below or 'reports'}/a"}


def two_writes_of_which_the_older_comes_late(desk: Desk, owner: Principal, root: Path) -> tuple[Any, Any]:
    """A session, and another process that looked at a newer result of the same file meanwhile."""
    with opened(desk) as one, opened(desk) as two:
        talk = Conversation()
        (root / "a").write_text("old")
        wrote(talk, "a", "old")
        newer = two.session("case", owner, rules=[written_file(tool="write_file", root=root)])

        def rule(call: ToolCall, result: Any) -> Finding | None:
            found = written_file(tool="write_file", root=root)(call, result)
            (root / "a").write_text("newer")
            newer._observing._done.add(1)  # the older result is this process's affair
            wrote(talk, "a", "newer")
            newer.view(talk.messages)
            return found

        older = one.session("case", owner, rules=[rule])
        older.view(talk.messages[:])
        return older.ledger.books(), older.ledger.reconcile(strong=True)


def test_a_slow_process_does_not_supersede_a_newer_product(desk: Desk, owner: Principal, root: Path):
    books, report = two_writes_of_which_the_older_comes_late(desk, owner, root)
    assert [(fact.text, fact.observed_in) for fact in books.facts.values()] == [("write_file wrote a, 5 bytes", "r2")]
    assert dict(books.looked_at) == {
        "r2": (),
        "r1": ("artifact:a is on the books as r2 left it, which is newer.",),
    }
    assert books.artifacts["a"].size_bytes == 5
    assert report.agrees


def product(call: ToolCall, result: Any) -> Finding:
    return Finding(f"{call.name} made {result}", Outcome(f"made by {call.name}", "it is"), "a", result.encode())


def test_a_result_that_was_labelled_before_its_first_view_is_newer_than_those_in_front_of_it(
    desk: Desk, owner: Principal
):
    with desk.open() as archive:
        session, talk = archive.session("case", owner, rules=[product]), Conversation()
        talk.tool("old", name="make")
        assert session.label(talk.tool("new", name="make"), kind="report") == "r1"
        session.view(talk.messages)
        books = session.ledger.books()
        assert [(fact.text, fact.observed_in) for fact in books.current()] == [("make made new", "r1")]
        assert session.restore(books.artifacts["a"].result_id).content == "new"


@pytest.mark.parametrize("tool", ["make", "change"])
def test_a_slow_process_does_not_bring_an_older_product_back(desk: Desk, owner: Principal, tool: str):
    """Neither where the fact on the newer one was corrected, nor where another tool made that."""
    with desk.open() as one, desk.open() as two:
        talk = Conversation()
        talk.tool("old", name="make")
        newer = two.session("case", owner, rules=[product])

        def rule(call: ToolCall, result: Any) -> Finding:
            newer._observing._done.add(1)
            talk.tool("new", name=tool)
            newer.view(talk.messages)
            newer.ledger.post("corrected", ["artifact:a"], quotes("new"), supersedes="f1")
            return product(call, result)

        older = one.session("case", owner, rules=[rule])
        older.view(talk.messages[:])
        books = older.ledger.books()
        assert older.restore(books.artifacts["a"].result_id).content == "new"
        told = {"make": ["corrected"], "change": ["corrected", "make made old"]}[tool]
        assert [fact.text for fact in books.current()] == told


def test_a_correction_that_was_taken_back_keeps_no_older_product_from_its_place(desk: Desk, owner: Principal):
    with desk.open() as archive:
        session, talk = archive.session("case", owner, rules=[product]), Conversation()
        for text in ("first", "second", "third"):
            talk.tool(text, name="make")
        session._observing._done.add(2)
        session.view(talk.messages)
        session.ledger.take_back("f2")
        session._observing._done.discard(2)
        session.view(talk.messages)
        assert [fact.text for fact in session.ledger.books().current()] == ["make made second"]


def test_must_fail_control_facts_that_do_not_tell_what_they_came_from_are_superseded_by_older_ones(
    sqlite_desk: Desk, owner: Principal, root: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(observing, "_number", lambda result_id: 0)
    books, _ = two_writes_of_which_the_older_comes_late(sqlite_desk, owner, root)
    assert [fact.text for fact in books.current()] == ["write_file wrote a, 3 bytes"]


def test_a_product_that_was_written_again_stands_on_no_original_that_was_changed(
    desk: Desk, owner: Principal, root: Path
):
    with opened(desk) as archive:
        session = archive.session("case", owner, rules=[written_file(tool="write_file", root=root)])
        talk = Conversation()
        (root / "a").write_text(TEXT)
        wrote(talk, "a")
        session.view(talk.messages)
        wrote(talk, "a")
        session.view(talk.messages)
        first, second = session.ledger.books().facts.values()
        assert first.sources == second.sources  # nothing is kept twice
        desk.execute("UPDATE originals SET envelope = x'00'")
        wrote(talk, "a")
        session.view(talk.messages)
        assert len(session.ledger.books().facts) == 2
        assert session.stats().suspended == "integrity"


def test_a_product_of_a_result_of_several_tools_is_not_kept_under_the_rules_of_one(
    desk: Desk, owner: Principal, root: Path
):
    (root / "a").write_bytes(TEXT.encode())
    rules = '[[restore]]\ntools = ["records.*"]\nroles = ["records"]\n'
    with desk.open(policy=policy_of(rules), counter=Characters()) as archive:
        session = archive.session("case", owner, rules=[written_file(tool="write_file", root=root)])
        talk = Conversation()
        wrote(talk, "a")
        talk.messages[-1]["name"] = "records.write"
        session.view(talk.messages)
        assert not session.ledger.books().facts
        assert "several tools" in looked_at(session)["r1"][0]
        assert all(row.own != "artifact" for row in session._records.rows.values())


def test_an_empty_file_is_a_product_as_any_other(desk: Desk, owner: Principal, root: Path):
    (root / "a").touch()
    with opened(desk) as archive:
        session = archive.session("case", owner, rules=[written_file(tool="write_file", root=root)])
        talk = Conversation()
        wrote(talk, "a", "")
        session.view(talk.messages)
        (fact,) = session.ledger.books().current()
        assert (fact.text, session.ledger.audit(fact.id)[0].part) == ("write_file wrote a, 0 bytes", b"")
        assert session.ledger.reconcile(strong=True).agrees


def test_a_name_that_no_artifact_can_have_is_encoded(root: Path):
    assert artifact_name("week 12/50% #1\\é.md") == "week%2012/50%25%20%231%5Cé.md"
    (root / "a b#c").write_text("x")
    call = ToolCall("1", "write_file", {"path": "a b#c", "content": "x"})
    finding = written_file(tool="write_file", root=root)(call, "ok")
    assert finding is not None
    assert (finding.name, finding.data) == ("a%20b%23c", b"x")


def test_a_folder_that_is_a_link_is_named_either_way(root: Path):
    (root / "a").write_bytes(TEXT.encode())
    alias = root.parent / "alias"
    alias.symlink_to(root)
    rule = written_file(tool="write_file", root=alias)
    for path in (alias / "a", root / "a", "a"):
        assert rule(ToolCall("1", "write_file", {"path": str(path), "content": TEXT}), "ok")


# --- once, whatever happens -------------------------------------------------------------------------------------


def counting(asked: list[str], root: Path) -> list[Rule]:
    rule = written_file(tool="write_file", root=root)

    def counted(call: ToolCall, result: Any) -> Finding | None:
        asked.append(call.id)
        return rule(call, result)

    return [counted]


def test_a_result_is_looked_at_once_also_after_a_resume_in_another_process(desk: Desk, owner: Principal, root: Path):
    (root / "a").write_bytes(TEXT.encode())
    asked: list[str] = []
    with opened(desk) as archive:
        session, talk = archive.session("case", owner, rules=counting(asked, root)), Conversation()
        wrote(talk, "a")
        wrote(talk, "absent")
        for _ in range(3):
            session.view(talk.messages)
            talk.say()
        assert asked == ["call_1", "call_2"]
        facts = session.ledger.books().facts
    with opened(desk) as archive:
        session = archive.session("case", owner, rules=counting(asked, root))
        session.view(talk.messages)
        assert asked == ["call_1", "call_2"]
        assert session.ledger.books().facts == facts
        assert looked_at(session) == {"r1": (), "r2": ("written_file: the file cannot be read back.",)}
    with opened(desk) as one, opened(desk) as two:
        wrote(talk, "a")
        first = one.session("case", owner, rules=counting(asked, root))
        second = two.session("case", owner, rules=counting(asked, root))

        def rule(call: ToolCall, result: Any) -> Finding | None:
            if call.id == "call_3":
                second.view(talk.messages)  # another process is faster
            return counting(asked, root)[0](call, result)

        first = one.session("case", owner, rules=[rule])
        first.view(talk.messages)
        assert sorted(looked_at(first)) == ["r1", "r2", "r4"]
        assert len(first.ledger.books().facts) == 2


@pytest.mark.parametrize("fault", [AWAY, UNWRITABLE])
def test_without_the_store_the_view_goes_on_and_a_later_one_looks(
    sqlite_desk: Desk, owner: Principal, root: Path, fault: str
):
    (root / "a").write_bytes(TEXT.encode())
    with flaky(sqlite_desk, policy=policy_of(), counter=Characters()) as archive:
        talk = Conversation()

        def rule(call: ToolCall, result: Any) -> Finding | None:
            if len(talk.messages) == 3:
                archive.flaky.fault = fault  # it goes away after the result was registered
            return written_file(tool="write_file", root=root)(call, result)

        session = archive.session("case", owner, rules=[rule])
        wrote(talk, "a")
        assert session.view(talk.messages) == talk.messages
        archive.flaky.fault = None
        assert not session.ledger.books().facts
        talk.say()
        session.view(talk.messages)
        assert len(session.ledger.books().facts) == 1
        assert sum(row.own == "artifact" for row in session._records.rows.values()) == 1


def test_what_could_not_be_kept_while_archiving_was_suspended_is_looked_at_afterwards(
    sqlite_desk: Desk, owner: Principal, root: Path
):
    """Also where the result was archived meanwhile: the application's list still says what the tool said."""
    (root / "a").write_bytes(TEXT.encode())
    with opened(sqlite_desk) as archive:
        session, talk = (
            archive.session("case", owner, rules=[written_file(tool="write_file", root=root)]),
            Conversation(),
        )
        session._records.suspend("integrity")
        wrote(talk, "a")
        talk.messages[-1]["content"] = "written\n" * 200
        session.view(talk.messages)
        assert not session.ledger.books().facts
        archive.resume("case", principal=owner)
        talk.say()
        other = archive.session("case", owner)
        other.view(talk.messages)
        other.archive([("r1", "it was written")])
        session.view(talk.messages)
        assert len(session.ledger.books().facts) == 1


def test_an_empty_file_that_was_written_is_a_fact_too(sqlite_desk: Desk, owner: Principal, root: Path):
    (root / "empty").write_bytes(b"")
    with opened(sqlite_desk) as archive:
        session, talk = (
            archive.session("case", owner, rules=[written_file(tool="write_file", root=root)]),
            Conversation(),
        )
        call = talk.call("write_file", json.dumps({"path": "empty", "content": ""}))
        talk.messages.append({"role": "tool", "tool_call_id": call["id"], "content": "done"})
        session.view(talk.messages)
        assert [fact.text for fact in session.ledger.books().facts.values()] == ["write_file wrote empty, 0 bytes"]


def test_what_came_while_archiving_was_suspended_is_looked_at_afterwards(
    sqlite_desk: Desk, owner: Principal, root: Path
):
    (root / "a").write_bytes(TEXT.encode())
    clock = FrozenClock()
    with flaky(sqlite_desk, policy=policy_of(), counter=Characters(), clock=clock) as archive:
        session = archive.session("case", owner, rules=[written_file(tool="write_file", root=root)])
        talk = Conversation()
        archive.flaky.fault = AWAY
        for _ in range(3):
            session.view(talk.messages)
        archive.flaky.fault = None
        wrote(talk, "a")
        session.view(talk.messages)
        assert session.stats().suspended == "store"
        clock.advance(3_600)
        session.view(talk.messages)
        assert [fact.text for fact in session.ledger.books().current()] == ["write_file wrote a, 21 bytes"]


def test_must_fail_control_rules_that_forget_what_they_looked_at_post_twice(
    desk: Desk, owner: Principal, root: Path, monkeypatch: pytest.MonkeyPatch
):
    (root / "a").write_bytes(TEXT.encode())
    monkeypatch.setattr(keeping, "added_up", lambda *given: replace(added_up(*given), looked_at={}))
    talk = Conversation()
    wrote(talk, "a")
    for _ in range(2):
        with opened(desk) as archive:
            session = archive.session("case", owner, rules=counting([], root))
            session.view(talk.messages)
            facts = session.ledger.books().facts
    assert len(facts) == 2


# --- what is not verified is no fact -----------------------------------------------------------------------------


def prepared(root: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "a").write_bytes(TEXT.encode())
    (root / "other").write_bytes(TEXT.encode() + b"!")
    (root / "link").symlink_to(outside / "a")
    (root / "links").symlink_to(outside)
    (root / "folder").mkdir()
    os.mkfifo(root / "fifo")


@pytest.mark.parametrize(
    "path",
    [
        "absent",
        "other",
        "../outside/a",
        "folder/../../outside/a",
        "link",
        "links/a",
        "folder",
        "fifo",
        ".",
        "",
        "/etc/hostname",
        "other/a",
        "a\0b",
        "\ud800",
        "x" * 300,
        "d/" * 120 + "a",
        7,
        None,
    ],
)
def test_a_file_that_is_not_what_was_written_or_not_in_the_folder_is_no_fact(
    sqlite_desk: Desk, owner: Principal, root: Path, path: Any
):
    prepared(root)
    with opened(sqlite_desk) as archive:
        session = archive.session("case", owner, rules=[written_file(tool="write_file", root=root)])
        talk = Conversation()
        wrote(talk, path)
        assert session.view(talk.messages) == talk.messages
        books = session.ledger.books()
        assert (books.facts, books.claims, books.artifacts) == ({}, {}, {})
        (why,) = looked_at(session)["r1"]
        assert why.startswith("written_file: ")
        assert not any(row.own == "artifact" for row in session._records.rows.values())


def test_a_rule_that_misuses_another_archive_breaks_no_view(sqlite_desk: Desk, owner: Principal, tmp_path: Path):
    elsewhere = opened(sqlite_desk)
    theirs = elsewhere.session("another case", owner)
    elsewhere.close()

    def rule(call: ToolCall, result: Any) -> Finding | None:
        theirs.view([])
        return None

    with opened(sqlite_desk) as archive:
        session, talk = archive.session("case", owner, rules=[rule]), Conversation()
        wrote(talk, "a")
        assert session.view(talk.messages) == talk.messages
        assert looked_at(session) == {"r1": ("A rule failed with MisuseError.",)}


def test_must_fail_control_a_rule_that_opens_what_is_named_leaves_the_folder(root: Path):
    prepared(root)
    for path in ("../outside/a", "link", "links/a"):
        assert (root / path).read_bytes() == TEXT.encode()


def test_a_file_above_the_bound_is_not_read_to_its_end(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rules_module, "FILE_BYTES_MAX", 20)
    (root / "a").write_bytes(TEXT.encode())
    rule = written_file(tool="write_file", root=root)
    with pytest.raises(CheckFailedError, match="more than 20 bytes"):
        rule(ToolCall("1", "write_file", {"path": "a", "content": TEXT}), "ok")


def test_without_a_content_argument_whatever_is_there_is_kept(root: Path):
    (root / "a").write_bytes(b"\xff\xfe")
    rule = written_file(tool="save", root=root, path="file", content=None)
    finding = rule(ToolCall("1", "save", '{"file": "./a"}'), "ok")
    assert finding is not None
    assert (finding.name, finding.data) == ("a", b"\xff\xfe")
    assert rule(ToolCall("1", "write_file", '{"file": "a"}'), "ok") is None


@pytest.mark.parametrize("arguments", ["", "[]", "{", "3", None, "[" * 100_000])
def test_arguments_that_are_no_object_are_empty(arguments: Any):
    assert arguments_of(ToolCall("1", "x", arguments)) == {}


# --- rules of the host -------------------------------------------------------------------------------------------


def broken(kind: str) -> Rule:
    def rule(call: ToolCall, result: Any) -> Any:
        if kind == "raises":
            raise ZeroDivisionError
        if kind == "seal":
            raise SealBrokenError("not the archive's")
        if kind == "store":
            raise StoreUnavailableError("not the archive's")
        found = Finding("fine", Outcome("mine", "looked"), "a", b"x")
        return {
            "text": found.text,
            "long": Finding("x" * 1001, found.outcome, "a", b"x"),
            "name": Finding("fine", found.outcome, "../a", b"x"),
            "str": Finding("fine", found.outcome, "a", "x"),  # type: ignore[arg-type]
            "outcome": Finding("fine", None, "a", b"x"),  # type: ignore[arg-type]
            "check": Finding("fine", Outcome(["mine"], "looked"), "a", b"x"),  # type: ignore[arg-type]
            "details": Finding("fine", Outcome("mine", object()), "a", b"x"),  # type: ignore[arg-type]
            "many words": Finding("fine", Outcome("mine", "x" * 2_000_000), "a", b"x"),
            "path": Finding("fine", found.outcome, Path("a"), b"x"),  # type: ignore[arg-type]
            "key": Finding("fine", found.outcome, "a", b"x", key=object()),  # type: ignore[arg-type]
        }[kind]

    return rule


BROKEN = [
    "raises",
    "seal",
    "store",
    "text",
    "long",
    "name",
    "str",
    "outcome",
    "check",
    "details",
    "many words",
    "path",
]


@pytest.mark.parametrize("kind", [*BROKEN, "key"])
def test_a_rule_that_is_broken_breaks_no_view_and_keeps_no_other_from_its_entry(
    sqlite_desk: Desk, owner: Principal, root: Path, kind: str
):
    (root / "a").write_bytes(TEXT.encode())
    with opened(sqlite_desk) as archive:
        session = archive.session("case", owner, rules=[broken(kind), written_file(tool="write_file", root=root)])
        talk = Conversation()
        wrote(talk, "a")
        assert session.view(talk.messages) == talk.messages
        assert [fact.text for fact in session.ledger.books().current()] == ["write_file wrote a, 21 bytes"]
        assert len(looked_at(session)["r1"]) == 1
        for _ in range(4):
            wrote(talk, "a")
            assert session.view(talk.messages) == talk.messages
        assert session.stats().suspended is None


def test_a_rule_that_has_nothing_to_say_leaves_no_entry(desk: Desk, owner: Principal):
    asked: list[Any] = []
    with opened(desk) as archive:
        session, talk = archive.session("case", owner, rules=[lambda *given: asked.append(given)]), Conversation()
        talk.tool("a result\n" * 200)
        talk.messages.append({"role": "tool", "tool_call_id": "nobody's", "content": "an orphan"})
        talk.ours(session, "restore_evidence", '{"id": "r9"}')
        for _ in range(2):
            session.view(talk.messages)
        assert [(call.name, result) for call, result in asked] == [("logs.search", "a result\n" * 200)]
        assert looked_at(session) == {}
        talk.say()
        session.view(talk.messages)
        session.archive([(session.results()[0].id, "a note")])
        view = session.view(talk.messages)
    with opened(desk) as archive:
        archive.session("case", owner, rules=[lambda *given: asked.append(given)]).view(view)
        assert len(asked) == 1, "a note is no result"


def test_an_archive_that_was_closed_by_a_rule_is_misused(sqlite_desk: Desk, owner: Principal, root: Path):
    with opened(sqlite_desk) as archive:
        (root / "a").write_bytes(TEXT.encode())

        def rule(call: ToolCall, result: Any) -> Finding | None:
            archive.close()
            return written_file(tool="write_file", root=root)(call, result)

        session, talk = archive.session("case", owner, rules=[rule]), Conversation()
        wrote(talk, "a")
        with pytest.raises(MisuseError):
            session.view(talk.messages)


# --- what goes wrong after a rule passed --------------------------------------------------------------------------


def test_an_entry_that_cannot_be_written_is_made_by_a_later_view_from_the_same_original(
    sqlite_desk: Desk, owner: Principal, root: Path, monkeypatch: pytest.MonkeyPatch
):
    (root / "a").write_bytes(TEXT.encode())
    with opened(sqlite_desk) as archive:
        session = archive.session("case", owner, rules=[written_file(tool="write_file", root=root)])
        talk = Conversation()
        wrote(talk, "a")

        def away(*_: Any) -> Any:
            raise StoreUnavailableError("The store is away: try again.")

        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(Books, "post", away)
            assert session.view(talk.messages) == talk.messages
        assert not session.ledger.books().facts
        session.view(talk.messages)
        assert len(session.ledger.books().facts) == 1
        assert sum(row.own == "artifact" for row in session._records.rows.values()) == 1


def test_books_that_were_changed_break_no_view_and_suspend_archiving(sqlite_desk: Desk, owner: Principal, root: Path):
    (root / "a").write_bytes(TEXT.encode())
    talk = Conversation()
    for removed in (False, True):
        if removed:
            loosened(sqlite_desk)
            sqlite_desk.execute("DELETE FROM postings")
        with opened(sqlite_desk) as archive:
            session = archive.session("case", owner, rules=[written_file(tool="write_file", root=root)])
            wrote(talk, "a")
            assert session.view(talk.messages) == talk.messages
            assert session.stats().suspended == ("integrity" if removed else None)


def test_what_the_quota_forbids_to_keep_is_no_fact_and_breaks_no_view(
    sqlite_desk: Desk, owner: Principal, root: Path
):
    (root / "a").write_bytes(TEXT.encode())
    asked: list[str] = []
    with sqlite_desk.open(policy=policy_of(quota_bytes_max=5), counter=Characters()) as archive:
        session, talk = archive.session("case", owner, rules=counting(asked, root)), Conversation()
        wrote(talk, "a")
        for _ in range(2):
            assert session.view(talk.messages) == talk.messages
        assert asked == ["call_1"]
        assert session.ledger.books().facts == {}
