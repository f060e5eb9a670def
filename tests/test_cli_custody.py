"""The command line of records officers, holders of keys and auditors: exact words, exit codes, JSON."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Conversation, Desk

from evidence_archive import Principal
from evidence_archive.cli import main
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
    code, _, err = run("shred", "--yes")
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
    answers = tmp_path / "answers"
    for words, command in (("n\n", ["shred"]), ("\n", ["shred"]), ("", ["shred"]), ("n\n", ["keys", "retire", "1"])):
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
    for command in (["hold", "list"], ["shred", "--yes"], ["gc"], ["keys", "rotate"], ["audit", "key"], ["shreds"]):
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
    run("hold", "add", "something happens")
    code, out, _ = run("audit", "verify-checkpoint", str(kept))
    assert (code, out.startswith("CONSISTENT")) == (0, True)
    kept.write_text(note.replace("\n", "\n1", 1), "utf-8")
    assert run("audit", "verify-checkpoint", str(kept))[0] == 32
    assert loaded(run, "audit", "checkpoint")["checkpoint"].startswith("evidence-archive/")
