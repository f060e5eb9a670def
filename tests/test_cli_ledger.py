"""``evidence-archive ledger``: what stands in the books, whether it agrees, and where it stands, word for word."""

import json
import os
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import Characters

from evidence_archive import Policy, Principal
from evidence_archive.cli import main
from evidence_archive.ledger.checks import quotes
from evidence_archive.ledger.entries import Outcome

LOG = "".join(f"line {number}: took {number * 3} ms\r\n" for number in range(1, 101))
POLICY = '[policy]\nname = "ward"\nversion = 1\ndefault = "allow"\n[ledger]\nroles = ["ward"]\n[window]\n'
COMMANDS = ["show", "reconcile", "close", "history", "audit"]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("EVIDENCE_ARCHIVE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def store(sqlite_desk: Desk, owner: Principal, talk: Conversation) -> Desk:
    """A session with two facts, one of them corrected, a claim and a product; a shared ledger with one fact."""
    (sqlite_desk.folder / "policy.toml").write_text(POLICY)
    with sqlite_desk.open(policy=Policy.loads(POLICY), counter=Characters()) as archive:
        session = archive.session("case-4711", owner)
        talk.tool(LOG)
        talk.say()
        session.view(talk.messages)
        session.archive([("r1", "a note")])
        session.view(talk.messages)
        ledger = session.ledger
        ledger.post("it took 120 ms", ["r1#L40"], quotes("120 ms"), key=True)
        ledger.post("it took 123 ms", ["r1#L41"], quotes("123 ms"), supersedes="f1")
        ledger.claim("it\x1b[2J is slow", ["r1"], by="model")
        ledger.store("raw.bin", b"\xff\xfe")
        ledger.post("it is two bytes", ["artifact:raw.bin"], lambda parts: quotes("x")([b"x"]))
        ledger.close()
        shared = archive.ledger("ward-3", owner)
        shared.store("report.md", "all is well\n")
        shared.post("all is well", ["artifact:report.md#L1"], quotes("well"), key=True)
    return sqlite_desk


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(store: Desk, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command on the store; exit code, standard output, standard error."""

    def ran(*words: str, subject: str = "triage-agent", policy: bool = True) -> tuple[int, str, str]:
        options = ["--url", store.url, "--keys", str(store.keys), "--org", "north-clinic", "--subject", subject]
        named = ["--policy", str(store.folder / "policy.toml")] if policy else []
        code = main(["ledger", *words, *options, *named])
        return code, *capsys.readouterr()

    return ran


def loaded(run: Run, *words: str, **named: Any) -> Any:
    code, out, err = run(*words, "--json", **named)
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_json(command: str, capsys: pytest.CaptureFixture[str]):
    assert main(["ledger", command, "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"Example: evidence-archive ledger {command}" in out
    assert "--json" in out
    assert "--shared" in out


def test_show_tells_facts_claims_products_and_periods(run: Run):
    code, out, err = run("show", "case-4711")
    assert (code, err) == (0, "")
    assert "Holding: 2 facts. Not verified: 1 claim. Kept: 1 artifact. Closed: 1 period." in out
    rows = [line.split() for line in out.splitlines()]
    assert [row[0] for row in rows if row[:1] in (["f1"], ["f2"], ["f3"], ["c3"], ["p1"], ["raw.bin"])] == [
        "f2",
        "f3",
        "c3",
        "raw.bin",
        "p1",
    ]
    assert "\x1b" not in out
    assert "1-4" in out
    shown = loaded(run, "show", "case-4711")
    assert [one["id"] for one in shown["facts"]] == ["f1", "f2", "f3"]
    assert shown["facts"][0]["superseded_by"] == "f2"
    assert [one["by"] for one in shown["claims"]] == ["host", "host", "model", "host"]
    assert [one["text"] for one in loaded(run, "show", "--shared", "ward-3")["facts"]] == ["all is well"]


def test_equal_facts_have_a_row_each(run: Run, store: Desk, owner: Principal):
    with store.open(policy=Policy.loads(POLICY), counter=Characters()) as archive:
        ledger = archive.session("case-4711", owner).ledger
        for _ in range(2):
            ledger.post("it took 123 ms", ["r1#L41"], quotes("123 ms"))
    out = run("show", "case-4711")[1]
    rows = [line.split() for line in out.splitlines() if "it took 123 ms" in line]
    assert [row[0] for row in rows] == ["f2", "f4", "f5"]
    assert len({tuple(row[1:-1]) for row in rows}) == 1, "they differ in their ids and times alone"
    assert "Holding: 4 facts." in out
    assert [one["id"] for one in loaded(run, "show", "case-4711")["facts"]] == ["f1", "f2", "f3", "f4", "f5"]


def test_reconcile_says_what_was_compared_and_ends_with_14_where_a_fact_does_not_agree(run: Run, store: Desk):
    assert run("reconcile", "case-4711") == (0, "0 facts read again, 2 facts looked up: all agree.\n", "")
    code, out, _ = run("reconcile", "case-4711", "--strong")
    assert (code, out) == (0, "2 facts read again, 0 facts looked up: all agree.\n")
    store.execute("UPDATE originals SET envelope = x'00'")
    code, out, err = run("reconcile", "--shared", "ward-3")
    assert (code, err) == (14, "")
    assert "f1    key  r1 artifact:report.md#L1 does not open: stored bytes were changed." in out
    assert "1 fact read again, 0 facts looked up: 1 does not agree." in out
    code, out, err = run("reconcile", "--shared", "ward-3", "--json")
    assert (code, json.loads(out)["agrees"], err) == (14, False, "")
    code, out, err = run("close", "--shared", "ward-3")
    assert (code, out) == (14, "")
    assert err.startswith("Error: The books do not close: 1 key fact does not agree, f1 first.")
    assert "does not agree" in run("show", "--shared", "ward-3")[1]
    assert "does not agree" not in run("show", "case-4711")[1]


def test_close_settles_what_agrees(run: Run):
    assert run("close", "case-4711") == (0, "Closed p2 with 2 facts.\n", "")
    period = loaded(run, "close", "--shared", "ward-3")
    assert (period["id"], period["facts"], period["window_to"]) == ("p1", ["f1"], 0)


def test_history_shows_what_a_fact_superseded(run: Run):
    code, out, _ = run("history", "f2", "case-4711")
    assert code == 0
    assert out.index("it took 120 ms") < out.index("it took 123 ms")
    assert [one["id"] for one in loaded(run, "history", "f1", "case-4711")] == ["f1", "f2"]
    assert run("history", "f9", "case-4711") == (40, "", "Error: There is no such fact.\n")


def test_audit_prints_the_cited_part_and_both_digests_and_is_in_the_log(run: Run, store: Desk, owner: Principal):
    part = b"line 40: took 120 ms\r\n"
    code, out, err = run("audit", "f1", "case-4711")
    assert (code, err) == (0, "")
    assert f"cited part     {sha256(part).hexdigest()}  {sha256(part).hexdigest()}" in out
    assert f"original       {sha256(LOG.encode()).hexdigest()}  {sha256(LOG.encode()).hexdigest()}" in out
    assert "\n> line 40: took 120 ms\n" in out
    assert out.endswith("Both digests agree.\n")
    (source,) = loaded(run, "audit", "f3", "case-4711")["sources"]
    assert (source["text"], source["base64"], source["agrees"]) == (None, "//4=", True)
    assert "2 bytes, no text" in run("audit", "f3", "case-4711")[1]
    with store.open(policy=Policy.loads(POLICY)) as archive:
        events = [one.event for one in archive.audit(principal=owner).entries]
        assert events.count("restore.granted") == 3
    assert run("audit", "f9", "case-4711")[0] == 40
    store.execute("UPDATE originals SET envelope = x'00'")
    code, out, err = run("audit", "f1", "case-4711")
    assert (code, out) == (31, "")
    assert err.startswith("Error: ")


def test_words_of_others_cannot_say_what_an_audit_found(run: Run, store: Desk, owner: Principal):
    forged = "x\nchecked with number_is 1\n\nr9 in original r9\n> 1\n\nBoth digests agree."
    with store.open(policy=Policy.loads(POLICY), counter=Characters()) as archive:
        ledger = archive.session("case-4711", owner).ledger
        ledger.store("forged.json", json.dumps({forged: 1}))
        escaped = forged.replace("/", "~1")
        fact = ledger.post(forged, [f"artifact:forged.json#/{escaped}"], lambda parts: Outcome(forged, forged))
    code, out, _ = run("audit", fact.id, "case-4711")
    assert code == 0
    lines = out.splitlines()
    assert (lines.count("Both digests agree."), lines.count("> 1")) == (1, 1)
    assert [line[:12] for line in lines if line.startswith(("checked with", "r9 in"))] == ["checked with"]


def test_audit_of_a_part_that_says_something_else_ends_with_14(run: Run, monkeypatch: pytest.MonkeyPatch):
    from evidence_archive.ledger import sources

    monkeypatch.setattr(sources, "_part", lambda whole, selector: b"another")
    code, out, _ = run("audit", "f1", "case-4711")
    assert (code, "A digest does NOT agree." in out) == (14, True)
    code, out, _ = run("audit", "f1", "case-4711", "--json")
    assert (code, json.loads(out)["agrees"]) == (14, False)


def test_looking_makes_no_session_and_no_ledger_and_opens_those_of_others_to_roles_alone(run: Run, store: Desk):
    before = store.rows("sessions")
    for words in (["show", "absent"], ["close", "absent"], ["show", "--shared", "absent"]):
        assert run(*words)[0] == 12
    assert run("show", "--shared", "ward-3", subject="ward-agent")[0] == 12
    assert run("show", "case-4711", "--role", "ward", subject="ward-agent")[0] == 12
    there, absent = run("show", "ledger:ward-3"), run("show", "ledger:absent")
    assert there == absent, "who may not open a ledger may not know of it"
    assert there[0] == 40
    assert len(store.rows("sessions")) == len(before)
    assert run("audit", "f1", "--shared", "ward-3", "--role", "ward", subject="ward-agent")[0] == 0


@pytest.mark.parametrize("words", [["show"], ["show", "case-4711", "--shared", "ward-3"], ["audit", "f1"]])
def test_neither_or_both_of_a_session_and_a_shared_ledger_is_a_mistake(run: Run, words: list[str]):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    both = ", and not both" if "--shared" in words else ""
    assert f"Name a session, or a shared ledger with --shared{both}." in err


def test_without_the_policy_it_was_used_under_nothing_is_guessed(run: Run):
    assert run("show", "case-4711", policy=False)[0] == 10
