"""The command line of records officers, holders of keys and auditors: exact words, exit codes, JSON."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import Conversation, Desk

from evidence_archive import Archive, Principal
from evidence_archive.cli import app, main, opening
from evidence_archive.errors import KeyNotFoundError
from evidence_archive.ledger.checks import quotes
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


def test_a_shred_says_where_the_same_content_is_still_kept(run: Run, store: Desk, owner: Principal):
    with store.open() as archive:
        archive.session("case-4711", owner).ledger.store("copy.txt", f"0 {LINES}")
    _, out, _ = run("shred", "--session", "case-4711", "--result", "r1", "--yes")
    assert "The same content is still in r5 of this session: shred that, too." in out
    assert loaded(run, "shred", "--session", "case-4711", "--result", "r5", "--yes")["same_content"] == []
    assert "same_content" not in loaded(run, "shreds")[0]


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
    assert "originals" not in loaded(run, "shreds")[0]
    assert "1 shred pending." in run("shreds")[1]


def test_nothing_is_destroyed_without_a_yes(run: Run, store: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    answers, org = tmp_path / "answers", ["shred", "--whole-org"]
    for words, command in (("n\n", org), ("\n", org), ("", org), ("n\n", ["keys", "retire", "1"])):
        answers.write_text(words)
        with answers.open() as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            code, _, err = run(*command)
            assert (code, err.endswith("Error: Not done; --yes does it without asking.\n")) == (130, True)
            answers.write_text(words)
        with answers.open() as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            code, out, _ = run(*command, "--json")
            assert (code, json.loads(out)["error"]["exit_code"]) == (130, 130)
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


def test_of_a_shredded_org_the_output_says_what_can_still_be_done(run: Run, store: Desk):
    code, out, _ = run("shred", "--whole-org", "--yes")
    assert (code, "verify --keyless" in out, "another org of these keys" in out) == (0, True, True)
    for command in (["shreds"], ["keys", "rotate"], ["audit", "log"]):
        assert run(*command)[0] == 62
    assert main(["verify", "--url", store.url, "--org", "north-clinic", "--keyless"]) == 0


def test_a_sentence_says_what_to_look_at(run: Run, store: Desk, tmp_path: Path):
    for command in (["verify"], ["gc"], ["keys", "rotate"], ["hold", "release", "0" * 32]):
        assert "check --org, --subject, --role and --policy" in run(*command, "--role", "agent")[2], command
    nowhere = str(tmp_path / "absent" / "register.jsonl")
    code, _, err = run("register", "append", nowhere)
    assert (code, nowhere in err, "register append" in err) == (51, True, False)


def test_what_verify_is_asked_has_to_go_together_and_be_there(
    run: Run, store: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    anchor = tmp_path / "heads.jsonl"
    for command in (["verify"], ["verify", "--keyless"], ["fsck"]):
        code, out, err = run(*command, "--anchor", str(anchor))
        assert (code, out, str(anchor) in err) == (2, "", True)
    anchor.write_text("")  # must-fail control: a file that is there and knows nothing is a finding
    assert run("verify", "--anchor", str(anchor))[0] == 1
    code, _, err = run("verify", "--keyless", "--level", "full")
    assert (code, "--level full needs the keys" in err) == (2, True)
    assert run("verify", "--keyless", "--level", "keyless")[0] == 0
    key = run("audit", "key")[1]
    (tmp_path / "log.key").write_text(key)
    for words in (key.strip(), str(tmp_path / "log.key")):
        code, out, _ = run("verify", "--keyless", "--log-key", words)
        assert (code, "signatures were not checked" in out) == (0, False)
    assert run("verify", "--keyless", "--log-key", str(tmp_path / "absent.key"))[0] == 2


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
    "ledger show": ["--shared", "ward-3"],
    "ledger reconcile": ["--shared", "ward-3"],
    "ledger close": ["--shared", "ward-3"],
    "ledger history": ["f1", "--shared", "ward-3"],
    "ledger audit": ["f1", "--shared", "ward-3"],
}
"""Commands whose answer depends on the policy, with arguments that do something."""

ASKS_BACKUP = "backup restore"
"""The one that asks the databases of a backup."""

ASKS_OF_ITS_OWNER = {"trace show", "trace diff"}
"""Those that answer the owner of a session alone; tests/test_cli_trace.py is about them."""

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
    assert commands_with_a_policy() == {*ASKS, ASKS_BACKUP, *ASKS_OF_ITS_OWNER, *ASKS_NOTHING}


@pytest.fixture
def guarded(run: Run, store: Desk, owner: Principal, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Runs a command by its name on a store that is used under a policy of its own, with things to act on."""
    policy = tmp_path / "records.toml"
    policy.write_text(RECORDS)
    officer = Principal("north-clinic", "records-office", {"records"})
    with store.open(policy=policy) as archive:
        archive.session("case-4711", owner)
        ledger = archive.ledger("ward-3", officer)
        ledger.store("report.md", "all is well")
        ledger.post("all is well", ["artifact:report.md"], quotes("well"))
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
    if name not in ("results", "restore") and not name.startswith("ledger "):
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
    assert len(store.rows("originals")) == 1, "the ledger's, which is no part of the session"


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
    code, out, _ = run("keys", "retire", "1", "--yes")
    assert (code, "Copies of the key file count as well" in out) == (0, True)
    assert loaded(run, "keys", "census")["available"] == [2]
    code, out, _ = run("restore", "case-4711", "r1", subject="triage-agent")
    assert (code, out.startswith("0 a line")) == (0, True)
    assert main(["keys", "new", str(tmp_path / "other.keys")]) == 0
    store.keys.rename(tmp_path / "away.keys")
    (tmp_path / "other.keys").rename(store.keys)
    assert run("keys", "check")[0] in (21, 22)


PROGRAM = """
import base64, json, os, sys

path, ask = sys.argv[1], json.loads(sys.stdin.readline())
orgs = json.load(open(path)) if os.path.exists(path) else {}
keys = orgs.setdefault(ask["org"], {})
answer = {"error": "not_found"}
if ask["verb"] == "new_version":
    keys[str(len(keys) + 1)] = os.urandom(8).hex()
    answer = {"version": len(keys)}
    json.dump(orgs, open(path, "w"))
elif ask["verb"] == "list" and keys:
    answer = {"current": len(keys), "keys": keys}
elif ask["verb"] in ("wrap", "unwrap") and str(ask["version"]) in keys:  # nothing is encrypted here
    given, given_name = ("plaintext", "wrapped") if ask["verb"] == "wrap" else ("wrapped", "plaintext")
    answer = {given_name: ask[given]}
print(json.dumps({"protocol": "evidence-archive/key-command/1", **answer}))
"""


def test_the_first_version_of_an_org_is_made_where_its_keys_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys.py").write_text(PROGRAM)
    where, keeper = f"command:{sys.executable} keys.py kept.json", Principal("north-clinic", "keeper")
    with (
        Archive.open("sqlite:///e.db", keys=where) as archive,
        pytest.raises(KeyNotFoundError, match="keys new WHERE --org ORG"),
    ):
        archive.session("case-4711", keeper)
    assert main(["keys", "new", where]) == 2
    assert "Name --org" in capsys.readouterr().err
    assert main(["keys", "new", where, "--org", "north-clinic"]) == 0
    assert capsys.readouterr().out.startswith("Made key version 1 of north-clinic.")
    with Archive.open("sqlite:///e.db", keys=where) as archive:
        archive.session("case-4711", keeper)
    assert main(["keys", "new", where, "--org", "north-clinic"]) == 20
    assert "keys rotate" in capsys.readouterr().err
    assert main(["keys", "new", where, "--org", "south-clinic", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"where": where, "org": "south-clinic", "version": 1}
    (tmp_path / "kept.json").unlink()
    store = ["--url", "sqlite:///e.db", "--keys", where, "--org", "north-clinic", "--subject", "keeper"]
    assert main(["keys", "check", *store]) == 21
    err = capsys.readouterr().err
    assert ("the service that this store was sealed with" in err, "keys new" in err) == (True, False)
    assert not [path.name for path in tmp_path.iterdir() if ":" in path.name]


@pytest.mark.parametrize("where", ["env:NO_SUCH_KEYS", "command:no-such-program", "kms:", "transit:"])
def test_what_is_no_file_is_not_made_one(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert main(["keys", "new", where, "--org", "north-clinic"]) in (20, 21)
    assert list(tmp_path.iterdir()) == []


# --- proofs -----------------------------------------------------------------------------------------------------


def test_a_log_of_one_entry_is_told_in_the_singular(
    sqlite_desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    keeper = Principal("north-clinic", "records-office", {"custodian"})
    old = str(tmp_path / "old.checkpoint")
    with sqlite_desk.open() as archive:
        archive._vault(keeper, create=True)  # the org begins, and no session
        custody = archive.custody(keeper)
        (tmp_path / "old.checkpoint").write_text(custody.checkpoint())
        (tmp_path / "first.tlog-proof").write_text(custody.prove(0).proof)
        key = custody.key()
    options = ["--url", sqlite_desk.url, "--org", "north-clinic"]
    acting = [*options, "--keys", str(sqlite_desk.keys), "--subject", "records-office"]
    for words, told in (
        (["verify", "--keyless", *options], "log of 1 entry, root"),
        (
            ["audit", "verify-checkpoint", old, *acting],
            "with the 1 entry that was signed.",
        ),
        (["audit", "verify-proof", str(tmp_path / "first.tlog-proof"), "--key", key], "of 1 entry."),
    ):
        assert main(words) == 0
        assert told in capsys.readouterr().out


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
    for words in (["audit", "verify-proof"], ["evidence", "verify"]):
        capsys.readouterr()
        assert main([*words, str(tmp_path / "absent"), "--key", key]) == 1
        out, err = capsys.readouterr()
        assert (out, str(tmp_path / "absent") in err) == ("", True)


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
