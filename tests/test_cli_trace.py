"""``trace show`` and ``trace diff``: exact words, JSON, exit codes, and nothing begun or given out in passing."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Conversation, Desk

from evidence_archive import Principal
from evidence_archive.cli import main

OWNER = Principal(org="north-clinic", subject="triage-agent")
POLICY = '[policy]\nname = "traced"\nversion = 1\ndefault = "allow"\n[window]\ntrace = "sealed"\n'
LONG = "a line of a log\n" * 80
UGLY = "\x1b[31mred\u202e"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("EVIDENCE_ARCHIVE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def sent(sqlite_desk: Desk, talk: Conversation) -> list[list[Any]]:
    """What was sent at the three requests of a session: a result came, and became a note."""
    (sqlite_desk.folder / "policy.toml").write_text(POLICY)
    with sqlite_desk.open(policy=sqlite_desk.folder / "policy.toml") as archive:
        session = archive.session("case-4711", OWNER)
        archive.ledger("there", OWNER)
        sent = [session.view(talk.messages)]
        talk.tool(LONG)
        talk.say(UGLY)
        sent.append(session.view(talk.messages))
        session.archive([("r1", "a note")])
        talk.messages.append({"role": "user", "content": "and now?", "weight": float("nan")})
        return [*sent, session.view(talk.messages)]


@pytest.fixture
def run(sqlite_desk: Desk, sent: list[Any], capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command on the store; exit code, standard output, standard error."""

    def ran(*words: str, subject: str = "triage-agent", policy: bool = True) -> tuple[int, str, str]:
        options = ["--url", sqlite_desk.url, "--keys", str(sqlite_desk.keys), "--org", "north-clinic"]
        options += ["--policy", str(sqlite_desk.folder / "policy.toml")] if policy else []
        code = main([*words, *options, "--subject", subject])
        return code, *capsys.readouterr()

    return ran


def loaded(run: Run, *words: str) -> Any:
    code, out, err = run(*words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize("command", ["show", "diff"])
def test_every_command_has_help_with_an_example_and_json(command: str, capsys: pytest.CaptureFixture[str]):
    assert main(["trace", command, "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"Example: evidence-archive trace {command}" in out
    assert "--json" in out
    assert "..." not in out


def test_the_group_without_a_command_shows_its_help(capsys: pytest.CaptureFixture[str]):
    assert main(["trace"]) == 2
    assert "show" in "".join(capsys.readouterr())


def test_requests_are_listed_for_people_and_hold_no_messages(run: Run):
    code, out, err = run("trace", "show", "case-4711")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "trace of case-4711"
    assert lines[1].split() == ["request", "sent", "messages", "tokens", "new", "bytes", "of", "them"]
    assert [line.split()[0] for line in lines[3:6]] == ["1", "2", "3"]
    assert lines[3].endswith("session opened")
    assert "3 requests, 0 missing." in lines
    assert "a line of a log" not in out


def test_requests_are_listed_for_programs(run: Run):
    document = loaded(run, "trace", "show", "case-4711")
    assert document["session"] == "case-4711"
    told = [(one["request"], one["messages"], one["added_messages"], one["missing"]) for one in document["requests"]]
    assert told == [(1, 1, 1, 0), (2, 4, 3, 0), (3, 5, 2, 0)]
    assert document["requests"][0]["sent_at"].endswith("Z")


def test_the_messages_of_a_request_are_shown_for_people_without_steering_the_terminal(run: Run):
    code, out, _ = run("trace", "show", "case-4711", "2")
    assert code == 0
    assert "--- 1 of 4: user\n> go on\n--- 2 of 4: assistant\n" in out
    assert '> tool_calls: [{"id":"call_1",' in out
    heads = [line for line in out.splitlines() if not line.startswith("> ")]
    assert [line[:10] for line in heads] == [f"--- {at} of 4" for at in range(1, 5)], "no text passes for a head"
    assert "> a line of a log\n" * 80 in out
    assert "red" in out
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_the_messages_of_a_request_are_exact_for_programs_and_logged(run: Run, sent: list[list[Any]]):
    assert loaded(run, "trace", "show", "case-4711", "2")["messages"] == sent[1]
    document = loaded(run, "trace", "show", "case-4711", "3")
    assert document["messages"][:4] == sent[2][:4]
    assert document["messages"][4]["weight"] == "NaN", "JSON has no number for it"
    entries = loaded(run, "audit", "log")["entries"]
    reads = [(one["subject"], one["details"]) for one in entries if one["event"] == "trace.read"]
    assert reads == [("triage-agent", {"request": 2}), ("triage-agent", {"request": 3})]


def test_a_difference_says_what_left_and_what_came(run: Run, sent: list[list[Any]]):
    code, out, _ = run("trace", "diff", "case-4711", "2", "3")
    assert code == 0
    lines = out.splitlines()
    assert lines[:2] == ["--- request 2", "+++ request 3"]
    assert [line[:24] for line in lines if line[0] == "-"][1:] == ['-{"role":"tool","tool_ca']
    assert [json.loads(line[1:])["role"] for line in lines if line[0] == "+" and line[1] != "+"] == ["tool", "user"]
    document = loaded(run, "trace", "diff", "case-4711", "2", "3")
    assert (document["from"], document["to"]) == (2, 3)
    assert document["removed"] == [{"at": 3, "message": sent[1][2]}]
    assert [one["at"] for one in document["added"]] == [3, 5]
    assert document["added"][0]["message"] == sent[2][2]
    assert loaded(run, "trace", "diff", "case-4711", "3", "2")["added"] == document["removed"]


def test_requests_that_are_the_same_are_said_to_be(run: Run):
    assert run("trace", "diff", "case-4711", "2", "2")[1] == "Requests 2 and 2 are the same.\n"
    assert loaded(run, "trace", "diff", "case-4711", "2", "2")["added"] == []


def test_what_is_missing_or_shredded_is_in_the_list(run: Run, sqlite_desk: Desk):
    with sqlite_desk.open(policy=sqlite_desk.folder / "policy.toml") as archive:
        archive.custody(Principal("north-clinic", "records", {"custodian"})).shred(
            session_id="case-4711", result_id="r1"
        )
        session = archive.session("case-4711", OWNER)
        session._tracing.missed()
        session.view([{"role": "user", "content": "go on"}])
    code, out, _ = run("trace", "show", "case-4711")
    lines = out.splitlines()
    assert [line.rpartition("  ")[2] for line in lines[3:7]] == [
        "session opened, shredded",
        "shredded",
        "shredded",
        "session opened, 1 MISSING before",
    ]
    assert "4 requests, 1 missing." in lines
    code, out, err = run("trace", "show", "case-4711", "2")
    assert (code, out) == (62, "")
    assert "shredded" in err


@pytest.mark.parametrize(
    ("words", "named", "code"),
    [
        (["show", "case-0"], {}, 12),
        (["show", "ledger:there"], {}, 40),
        (["show", "ledger:absent"], {}, 40),
        (["show", "case-4711"], {"subject": "another-agent"}, 12),
        (["show", "case-4711", "2"], {"subject": "another-agent"}, 12),
        (["diff", "case-4711", "1", "2"], {"subject": "another-agent"}, 12),
        (["show", "case-4711", "9"], {}, 40),
        (["show", "case-4711", "0"], {}, 2),
        (["show", "case-4711", "x"], {}, 2),
        (["diff", "case-4711", "1"], {}, 2),
        (["diff", "case-4711", "1", "9"], {}, 40),
        (["show", "case-4711"], {"policy": False}, 10),
        (["diff", "case-4711", "1", "2"], {"policy": False}, 10),
    ],
    ids=str,
)
def test_what_cannot_be_shown_ends_with_a_code_and_one_sentence(
    run: Run, words: list[str], named: dict[str, Any], code: int
):
    got, out, err = run("trace", *words, **named)
    assert (got, out) == (code, "")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert json.loads(run("trace", *words, "--json", **named)[1])["error"]["exit_code"] == code


def test_looking_begins_no_session(run: Run, sqlite_desk: Desk):
    before = sqlite_desk.rows("sessions"), sqlite_desk.rows("audit_leaves")
    assert run("trace", "show", "case-0")[0] == 12
    assert run("trace", "show", "case-4711")[0] == 0
    assert (sqlite_desk.rows("sessions"), sqlite_desk.rows("audit_leaves")) == before


def test_a_session_without_a_trace_says_so(run: Run, sqlite_desk: Desk):
    with sqlite_desk.open(policy=sqlite_desk.folder / "policy.toml") as archive:
        archive.session("quiet", OWNER)
    assert "Nothing was traced." in run("trace", "show", "quiet")[1]
    assert loaded(run, "trace", "show", "quiet")["requests"] == []
