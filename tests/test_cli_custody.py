"""The command line of records officers, holders of keys and auditors: exact words, exit codes, JSON."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import Conversation, Desk

from evidence_archive import Principal
from evidence_archive.cli import app, main, opening
from evidence_archive.proof.checkpoint import VerifierKey, open_proof

LINES = "a line of a log that is long enough\n" * 40


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("EVIDENCE_ARCHIVE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def store(sqlite_desk: Desk, owner: Principal, talk: Conversation) -> Desk:
    """A session with three archived originals."""
    with sqlite_desk.open() as archive:
        session = archive.session("case-4711", owner)
        for at in range(4):
            talk.tool(f"{at} {LINES}")
        talk.say()
        session.view(talk.messages)
        session.archive([(f"r{at}", f"note {at}") for at in (1, 2, 3)])
    return sqlite_desk


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(store: Desk, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command on the store; exit code, standard output, standard error."""

    def ran(*words: str, subject: str = "records-office") -> tuple[int, str, str]:
        options = ["--url", store.url, "--keys", str(store.keys), "--org", "north-clinic", "--subject", subject]
        code = main([*words, *options])
        return code, *capsys.readouterr()

    return ran


def loaded(run: Run, *words: str) -> Any:
    code, out, err = run(*words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


COMMANDS = [
    ["hold", "add"],
    ["hold", "release"],
    ["hold", "list"],
    ["retain"],
    ["shred"],
    ["shreds"],
    ["gc"],
    ["verify"],
    ["fsck"],
    ["evidence", "export"],
    ["evidence", "verify"],
    ["backup", "make"],
    ["backup", "restore"],
    ["register", "append"],
    ["keys", "check"],
    ["keys", "rotate"],
    ["keys", "census"],
    ["keys", "retire"],
    ["audit", "checkpoint"],
    ["audit", "reanchor"],
    ["audit", "key"],
    ["audit", "prove"],
    ["audit", "verify-proof"],
    ["audit", "verify-checkpoint"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example_and_json(command: list[str], capsys: pytest.CaptureFixture[str]):
    assert main([*command, "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"Example: evidence-archive {' '.join(command)}" in out
    assert "--json" in out


@pytest.mark.parametrize("command", [["hold"], ["audit"], ["keys"]], ids=" ".join)
def test_a_group_without_a_command_shows_its_help(command: list[str], capsys: pytest.CaptureFixture[str]):
    main(command)
    out, err = capsys.readouterr()
    assert "Commands:" in out + err


# --- holds and shredding --------------------------------------------------------------------------------------------


def test_a_hold_is_placed_listed_obeyed_and_released(run: Run):
    code, out, _ = run("hold", "add", "claim 12/34", "--session", "case-4711", "--result", "r1")
    assert code == 0
    hold = out.split()[1]
    assert out == f"Hold {hold} is on r1 of session case-4711.\n"
    code, out, _ = run("hold", "list")
    assert (code, "claim 12/34" in out, "1 active hold." in out) == (0, True, True)
    code, _, err = run("shred", "--session", "case-4711", "--result", "r1", "--yes")
    assert (code, hold in err) == (61, True)
    code, _, err = run("shred", "--whole-org", "--yes")
    assert (code, hold in err) == (61, True)
    assert loaded(run, "hold", "release", hold)["released_by"] == "records-office"
    assert run("hold", "release", hold)[0] == 40
    assert run("hold", "release", "0" * 32)[0] == 12
    assert [one["id"] for one in loaded(run, "hold", "list")] == [hold]
    code, out, _ = run("shred", "--session", "case-4711", "--result", "r1", "--yes")
    assert (code, out.splitlines()[0]) == (
        0,
        "1 original of r1 of session case-4711 destroyed; the keys are gone from this store.",
    )
    assert "Pending" in out
    assert run("shred", "--session", "case-4711", "--result", "r1", "--yes")[0] == 62
    assert [one["status"] for one in loaded(run, "shreds")] == ["pending"]
    assert "1 shred pending." in run("shreds")[1]


def test_nothing_is_destroyed_without_a_yes(run: Run, store: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    answers, org = tmp_path / "answers", ["shred", "--whole-org"]
    for words, command in (("n\n", org), ("\n", org), ("", org), ("n\n", ["keys", "retire", "1"])):
        answers.write_text(words)
        with answers.open() as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            assert run(*command)[0] == 130
    assert len(store.rows("originals")) == 3
    answers.write_text("y\n")
    with answers.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        code, out, err = run("shred", "--session", "case-4711")
    assert (code, "Destroy session case-4711 for good?" in err) == (0, True)
    assert out.lstrip().startswith("3 originals of session case-4711 destroyed")


def test_a_retention_is_lengthened_and_what_is_due_is_listed_before_it_goes(run: Run):
    assert run("retain", "case-4711", "r1", "2999-01-01")[1].startswith("r1 of case-4711 is kept at least until 2999")
    assert run("retain", "case-4711", "r1", "2998-01-01")[0] == 60
    assert run("retain", "case-4711", "r1", "soon")[0] == 2
    assert run("retain", "case-4711", "r2", "2020-01-01")[0] == 0
    assert loaded(run, "gc")["due"][0]["result_id"] == "r2"
    assert "1 original would be destroyed by --run." in run("gc")[1]
    assert "1 original destroyed." in run("gc", "--run")[1]
    assert loaded(run, "gc") == {"dry_run": True, "due": []}
    assert run("shred", "--session", "case-4711", "--result", "r1", "--yes")[0] == 60


def test_who_has_not_the_role_gets_nothing(run: Run):
    for command in (
        ["hold", "list"],
        ["shred", "--whole-org", "--yes"],
        ["gc"],
        ["keys", "rotate"],
        ["audit", "key"],
        ["shreds"],
    ):
        code, out, err = run(*command, "--role", "agent")
        assert (code, out) == (12, ""), command
        assert "Not available" in err
    assert loaded(run, "audit", "log")["entries"][-1]["event"] == "custody.denied"


def test_acts_are_kept_in_a_register_outside_the_store(run: Run, tmp_path: Path):
    register = tmp_path / "acts.jsonl"
    assert run("hold", "add", "claim", "--session", "case-4711", "--register", str(register))[0] == 0
    hold = loaded(run, "hold", "list")[0]["id"]
    assert run("hold", "release", hold, "--register", str(register))[0] == 0
    assert run("shred", "--session", "case-4711", "--yes", "--register", str(register))[0] == 0
    assert len(register.read_text().splitlines()) == 3


@pytest.mark.parametrize("command", [["shred", "--yes"], ["hold", "add", "claim"]], ids=" ".join)
def test_an_option_that_was_forgotten_does_not_mean_the_whole_org(run: Run, store: Desk, command: list[str]):
    code, out, err = run(*command)
    assert (code, out) == (2, "")
    assert "Name --session, or --whole-org." in err
    assert run(*command, "--session", "case-4711", "--whole-org")[0] == 2
    assert run(*command, "--whole-org", "--result", "r1")[0] == 2
    assert (len(store.rows("originals")), store.rows("holds")) == (3, [])
    code, out, _ = run(*command, "--whole-org")
    assert (code, "whole org" in out.lower()) == (0, True)


# --- under which policy ---------------------------------------------------------------------------------------------

RECORDS = """
[policy]
name = "records"
version = 1
default = "allow"

[custody]
roles = ["records"]

[[restore]]
roles = ["records"]
"""

ASKS: dict[str, list[str]] = {
    "hold add": ["claim", "--whole-org"],
    "hold release": ["{hold}"],
    "hold list": [],
    "retain": ["case-4711", "r1", "2999-01-01"],
    "shred": ["--session", "case-4711", "--yes"],
    "shreds": [],
    "gc": ["--run"],
    "verify": [],
    "fsck": ["--quarantine"],
    "evidence export": ["case-4711", "r1", "--out", "{folder}/bundle.zip"],
    "backup make": ["{folder}/backup"],
    "register append": ["{folder}/register.jsonl"],
    "keys check": [],
    "keys rotate": [],
    "keys census": [],
    "keys retire": ["1", "--yes"],
    "audit checkpoint": [],
    "audit reanchor": [],
    "audit key": [],
    "audit prove": ["case-4711", "--out", "{folder}/proofs"],
    "audit verify-checkpoint": ["{folder}/old.checkpoint"],
    "results": ["case-4711"],
    "restore": ["case-4711", "r1"],
}
"""Commands whose answer depends on the policy, with arguments that do something."""

ASKS_BACKUP = "backup restore"
"""The one that asks the databases of a backup."""

ASKS_NOTHING = {"audit log", "resume", "collect", "faults"}
"""Commands that do the same under every policy, and the one that refuses an org that is in use."""

ENDS_WITH_2 = {"verify", "fsck"}
"""What cannot run ends with 2 there."""


def commands_with_a_policy() -> set[str]:
    def walked(command: Any, name: str) -> Iterator[str]:
        for inner, one in getattr(command, "commands", {}).items():
            yield from walked(one, f"{name} {inner}".strip())
        if any(parameter.name == "policy" for parameter in command.params):
            yield name

    return set(walked(typer.main.get_command(app), ""))


def test_every_command_that_takes_a_policy_is_known_to_ask_for_it_or_not_to():
    assert commands_with_a_policy() == {*ASKS, ASKS_BACKUP, *ASKS_NOTHING}


@pytest.fixture
def guarded(run: Run, store: Desk, owner: Principal, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Runs a command by its name on a store that is used under a policy of its own, with things to act on."""
    policy = tmp_path / "records.toml"
    policy.write_text(RECORDS)
    officer = Principal("north-clinic", "records-office", {"records"})
    with store.open(policy=policy) as archive:
        archive.session("case-4711", owner)
        custody = archive.custody(officer)
        hold = custody.hold("claim", session_id="case-4711", result_id="r1").id
        (tmp_path / "old.checkpoint").write_text(custody.checkpoint(), "utf-8")
    given = {"{hold}": hold, "{folder}": str(tmp_path), "{policy}": str(policy)}

    def ran(name: str, *more: str) -> tuple[int, str, str]:
        words = [*name.split(), *ASKS[name], *more]
        for mark, word in given.items():
            words = [one.replace(mark, word) for one in words]
        return run(*words)

    return ran


NAMED = ("--policy", "{policy}", "--role", "records")


@pytest.mark.parametrize("name", ASKS)
def test_without_the_policy_of_the_org_nothing_is_done_and_nobody_is_let_in(
    name: str, guarded: Run, store: Desk, tmp_path: Path
):
    before, files = store.saved(), set(os.listdir(tmp_path))
    code, out, err = guarded(name)
    assert (code, out) == (2 if name in ENDS_WITH_2 else 10, "")
    assert "--policy or EVIDENCE_ARCHIVE_POLICY" in err
    assert (store.saved(), set(os.listdir(tmp_path))) == (before, files)
    if name not in ("results", "restore"):
        code, out, err = guarded(name, "--policy", "{policy}")  # as a custodian, who is nobody there
        assert (code, out) == (2 if name in ENDS_WITH_2 else 12, "")
        assert "--role and --policy" in err
    expected = {"shred": 61, "keys retire": 40}  # what is held, and the version that is current
    assert guarded(name, *NAMED)[0] == expected.get(name, 0)


def test_must_fail_control_a_command_that_takes_the_default_destroys(
    guarded: Run, store: Desk, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(opening, "_check_default", lambda *_, **__: None)
    assert guarded("hold release")[0] == 0
    assert guarded("shred")[0] == 0
    assert store.rows("originals") == []


def test_a_backup_is_not_put_back_under_a_policy_that_was_guessed(
    guarded: Run, store: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert guarded("backup make", *NAMED)[0] == 0
    words = ["backup", "restore", str(tmp_path / "backup"), f"sqlite:///{tmp_path}/new.db"]
    words += ["--keys", str(store.keys), "--subject", "records-office"]
    before = set(os.listdir(tmp_path))
    assert main(words) == 10
    assert "--policy or EVIDENCE_ARCHIVE_POLICY" in capsys.readouterr().err
    policy = ["--policy", str(tmp_path / "records.toml")]
    assert main([*words, *policy]) == 12
    assert "--role and --policy" in capsys.readouterr().err
    assert set(os.listdir(tmp_path)) == before
    assert main([*words, *policy, "--role", "records"]) == 0


# --- keys -------------------------------------------------------------------------------------------------------


def test_keys_are_checked_rotated_counted_and_retired(run: Run, store: Desk, tmp_path: Path):
    assert run("keys", "check")[1] == "These keys open north-clinic: 2 wrapped keys unwrapped.\n"
    code, out, _ = run("keys", "rotate")
    assert (code, out.splitlines()[0]) == (0, "2 keys of north-clinic wrapped under version 2.")
    assert loaded(run, "keys", "rotate", "--sweep-only")["rewrapped"] == 0
    assert loaded(run, "keys", "census")["counts"] == {"2": 2}
    assert "below 2" in run("keys", "census")[1]
    assert run("keys", "retire", "2", "--yes")[0] == 40
    assert run("keys", "retire", "1", "--yes")[0] == 0
    assert loaded(run, "keys", "census")["available"] == [2]
    code, out, _ = run("restore", "case-4711", "r1", subject="triage-agent")
    assert (code, out.startswith("0 a line")) == (0, True)
    assert main(["keys", "new", str(tmp_path / "other.keys")]) == 0
    store.keys.rename(tmp_path / "away.keys")
    (tmp_path / "other.keys").rename(store.keys)
    assert run("keys", "check")[0] in (21, 22)


# --- proofs -----------------------------------------------------------------------------------------------------


def test_a_proof_is_written_and_verified_with_the_public_key_alone(
    run: Run, store: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    key = run("audit", "key")[1].strip()
    assert loaded(run, "audit", "key") == {"key": key}
    code, out, _ = run("audit", "prove", "case-4711", "r2", "--out", str(tmp_path / "proofs"))
    (path,) = (tmp_path / "proofs").iterdir()
    assert (code, out.splitlines()) == (0, [str(path), "1 proof written."])
    assert open_proof(path.read_text("utf-8"), VerifierKey.parse(key)).leaf.event == "batch.accepted"
    store.database.unlink()  # nothing but the file and the key
    for words in (["--key", key], ["--key", str(tmp_path / "log.key")]):
        (tmp_path / "log.key").write_text(key + "\n")
        assert main(["audit", "verify-proof", str(path), *words]) == 0
        assert capsys.readouterr().out.startswith("PROVEN: entry ")
    assert main(["audit", "verify-proof", str(path), "--key", key, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["entry"]["event"] == "batch.accepted"
    path.write_text(path.read_text("utf-8").replace("index ", "index 1"), "utf-8")
    assert main(["audit", "verify-proof", str(path), "--key", key]) == 32
    assert main(["audit", "verify-proof", str(path), "--key", key[:-4]]) == 40
    assert main(["audit", "verify-proof", str(tmp_path / "absent"), "--key", key]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("Error: ")) == ("", 3)


def test_a_signed_head_goes_to_its_anchors_and_is_held_against_the_log(run: Run, store: Desk, tmp_path: Path):
    anchor = tmp_path / "heads.jsonl"
    code, note, _ = run("audit", "checkpoint", "--anchor", str(anchor), "--anchor", "log")
    assert (code, json.loads(anchor.read_text().splitlines()[0])["note"]) == (0, note)
    kept = tmp_path / "old.checkpoint"
    kept.write_text(note, "utf-8")
    run("hold", "add", "something happens", "--whole-org")
    code, out, _ = run("audit", "verify-checkpoint", str(kept))
    assert (code, out.startswith("CONSISTENT")) == (0, True)
    kept.write_text(note.replace("\n", "\n1", 1), "utf-8")
    assert run("audit", "verify-checkpoint", str(kept))[0] == 32
    assert loaded(run, "audit", "checkpoint")["checkpoint"].startswith("evidence-archive/")
