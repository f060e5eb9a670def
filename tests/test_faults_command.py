"""``evidence-archive faults``: a table to believe, exit 1 on a single violation, 2 when nothing could be swept."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import TABLES, Desk

from evidence_archive import Archive, Principal
from evidence_archive.cli import main
from evidence_archive.rekeying import Rekeying
from evidence_archive.testing.crashing import Configuration
from evidence_archive.testing.faults import FaultPlan
from evidence_archive.testing.safekeeping import DONE, CustodySweep
from evidence_archive.testing.sweeping import Outcome, Sweep, Trial

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("EVIDENCE_ARCHIVE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def words(desk: Desk) -> list[str]:
    """The command on a store that exists, for what is archived and restored."""
    desk.open().close()
    return ["faults", "--url", desk.url, "--keys", str(desk.keys), "--operations", "archive"]


@pytest.fixture
def keeping(words: list[str]) -> list[str]:
    """The same for rotations and shreds."""
    return [*words[:-1], "rotate,shred"]


def refused(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """The one sentence of a sweep that could not run."""
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    return err


# --- what it shows ----------------------------------------------------------------------------------------------


def test_the_table_has_a_line_for_every_fault_and_the_end_says_what_counts(
    words: list[str], desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--points", "store.insert_batch.*", "--kinds", "error,crash", "--org", "faults-here"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split("  ")[0] == "operation"
    assert " ".join(lines[0].split()) == ("operation point n-th fault told outcome next view restored equal verdict")
    table = lines[2 : lines.index("")]
    assert all(line.endswith(" ok") for line in table)
    archiving = [" ".join(line.split()[1:]) for line in table if line.startswith("archive ")]
    assert archiving == [
        "store.insert_batch.before 1 error rejected: store_unavailable nothing old - ok",
        "store.insert_batch.after 1 error rejected: store_unavailable nothing old - ok",
        "store.insert_batch.before 1 crash killed nothing old - ok",
        "store.insert_batch.after 1 crash killed nothing old - ok",
    ]
    assert f"{len(table)} faults at 2 points in " in lines[-2]
    assert lines[-2].endswith("; 0 violations.")
    assert lines[-1].startswith("The org faults-here stays in the store: ")
    assert f"{len(table)} faults to meet; the rest takes about" in err
    with desk.open() as archive:
        size = archive.audit(principal=Principal("faults-here", "auditor")).size
    assert f"{size:,} audit entries" in lines[-1]


def test_with_json_stdout_is_one_document_with_every_outcome(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--points", "store.insert_originals.*", "--kinds", "error,outage,delay", "--json"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert err == ""
    assert (report["ok"], report["violations"], report["tool"]) == (True, 0, "faults.probe")
    assert report["trials"] == len(report["outcomes"]) == 6
    assert report["org"].startswith("faults-")
    assert report["left_in_store"]["sessions"] == 8
    assert report["outcomes"][0] == {
        "operation": "archive",
        "point": "store.insert_originals.before",
        "number": 1,
        "fault": "error",
        "told": "rejected: store_unavailable",
        "outcome": "nothing",
        "next_view": "old",
        "restored_equal": None,
        "ok": True,
        "violations": [],
    }
    assert report["outcomes"][-1]["fault"] == "delay 50 ms"


def test_a_single_violation_is_exit_1_and_is_told_in_words(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from test_faults_sweep import LosesOriginals

    opened = Configuration.open

    def naive(configuration: Configuration, plan: FaultPlan, **named: bool) -> Archive:
        archive = opened(configuration, plan, **named)
        object.__setattr__(archive._around, "store", LosesOriginals(archive._around.store))
        return archive

    monkeypatch.setattr(Configuration, "open", naive)
    assert main([*words, "--points", "store.insert_originals.before", "--kinds", "error"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "VIOLATION" in lines[2]
    assert lines[-3].startswith("VIOLATION  archive, store.insert_originals.before 1, error: ")
    assert "An archived original does not come back equal." in lines[-3]
    assert lines[-2].endswith("; 1 violation.")


def test_the_announced_count_holds_the_faults_of_the_first_use(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--points", "store.create_org.*", "--kinds", "error"]) == 2  # met in no conversation
    capsys.readouterr()
    assert main([*words, "--points", "keys.wrap", "--kinds", "error"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    first = [line for line in lines if line.startswith("first use ")]
    assert first
    assert f"{lines[-2].split()[0]} faults to meet, {len(first)} of them met while the org was made;" in err


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupted_sweep_keeps_what_it_found(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    run, ran = Sweep.run, list[Trial]()

    def interrupted(sweep: Sweep, trial: Trial) -> Outcome:
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append(trial)
        outcome = run(sweep, trial)
        lines = capsys.readouterr().out.splitlines()
        assert as_json or len(lines) == (0 if len(ran) == 1 else 3)  # the first is out before the second is met
        return replace(outcome, violations=("It is not so.",)) if len(ran) == 1 else outcome

    monkeypatch.setattr(Sweep, "run", interrupted)
    only = ["--points", "store.insert_batch.*", "--kinds", "error,outage", "--org", "faults-here"]
    assert main([*words, *only, *(["--json"] if as_json else [])]) == 130
    out, err = capsys.readouterr()
    if as_json:
        assert json.loads(out)["error"]["exit_code"] == 130
    found = [" ".join(line.split()) for line in (err if as_json else out).splitlines()]
    assert "VIOLATION archive, store.insert_batch.before 1, error: It is not so." in found
    assert "2 of 4 faults tried; 1 violation so far." in found
    assert "The org faults-here stays in the store." in found


def test_what_given_up_batches_leave_in_the_objects_is_counted(
    sqlite_desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    sqlite_desk.open().close()
    words = ["faults", "--url", sqlite_desk.url, "--keys", str(sqlite_desk.keys), "--org", "faults-here"]
    words += ["--operations", "archive"]
    assert main([*words, "--points", "store.insert_originals.before", "--kinds", "error"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(", 3 batches, 3 objects, 1 intents.")


def test_on_a_terminal_a_bar_shows_how_far_it_is(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main([*words, "--points", "store.insert_batch.before", "--kinds", "error"]) == 0
    assert "1/1" in capsys.readouterr().err


# --- on whose configuration -------------------------------------------------------------------------------------


def test_a_policy_that_names_its_tools_is_swept_with_one_of_them(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    clinical = ["--policy", str(ROOT / "policies" / "clinical.toml")]
    only = ["--points", "store.commit.after", "--kinds", "error", "--json"]
    assert main([*words, *clinical, *only]) == 0
    assert json.loads(capsys.readouterr().out)["tool"] == "logs.x"
    assert main([*words, *clinical, "--tool", "trace.read", *only]) == 0
    assert json.loads(capsys.readouterr().out)["tool"] == "trace.read"
    assert "'drug_label.lookup' be archived" in refused(capsys, [*words, *clinical, "--tool", "drug_label.lookup"])


def test_a_policy_that_lets_nothing_be_archived_cannot_be_swept(
    words: list[str], desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    strict = desk.folder / "strict.toml"
    strict.write_text('[policy]\nname = "strict"\nversion = 1\ndefault = "never"\n')
    assert "lets no result of 'faults.probe' be archived" in refused(capsys, [*words, "--policy", str(strict)])


def test_only_a_new_org_is_swept_in(words: list[str], desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    with desk.open() as archive:
        archive.session("case", Principal("north-clinic", "triage-agent"))
    assert "The org north-clinic is in use already" in refused(capsys, [*words, "--org", "north-clinic"])
    with desk.open() as archive:
        assert archive.audit(principal=Principal("north-clinic", "auditor")).size == 3


def test_what_cannot_run_is_one_sentence_and_exit_2(
    words: list[str], desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = f"sqlite:///{desk.folder}/none.db"
    assert "There is no database" in refused(capsys, ["faults", "--url", nowhere, "--keys", str(desk.keys)])
    assert not (desk.folder / "none.db").exists()
    empty = desk.folder / "empty.db"
    empty.touch()
    assert "There is no database" in refused(capsys, ["faults", "--url", f"sqlite:///{empty}", *words[3:]])
    assert empty.stat().st_size == 0
    folder = desk.folder / "empty"
    folder.mkdir(mode=0o700)
    said = refused(capsys, [*words, "--objects", str(folder)])
    assert "There are no objects at" in said
    assert "takes an empty folder over when opened with Archive.open(url, keys=..., objects=...)." in said
    assert "There is no key file" in refused(capsys, [*words[:3], "--keys", str(desk.folder / "none.keys")])
    assert "EVIDENCE_ARCHIVE_KEYS" in refused(capsys, words[:3])
    assert "--kinds names some of error,outage,delay,crash." in refused(capsys, [*words, "--kinds", "flood"])
    assert "--operations names some of archive,rotate,shred." in refused(capsys, [*words, "--operations", "gc"])
    assert "There is no fault point" in refused(capsys, [*words, "--points", "store.comit.*"])
    assert "meets no point" in refused(capsys, [*words, "--points", "objects.tidy.before"])
    assert main([*words, "--tool", "x" * 5, "--policy", str(desk.folder / "none.toml"), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["type"], error["exit_code"]) == ("PolicyError", 2)


def test_keys_from_the_environment_are_used_by_the_processes_that_die_too(
    words: list[str], desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EVIDENCE_ARCHIVE_KEYS", desk.keys.read_text())
    assert main([*words[:3], "--points", "store.insert_batch.before", "--kinds", "crash", "--json"]) == 0
    assert [one["told"] for one in json.loads(capsys.readouterr().out)["outcomes"]] == ["killed"]


def test_the_help_has_an_example_and_says_what_the_exit_codes_mean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Example: evidence-archive faults --url" in out
    assert "Exit 1 when that fails once, 2 when it could not run." in out
    assert "'evidence-archive audit log' on an org of yours" in out
    assert "..." not in out


# --- rotations and shreds ---------------------------------------------------------------------------------------


def test_rotations_and_shreds_are_swept_without_touching_a_key_or_an_org_in_use(
    keeping: list[str], desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    officer = Principal("north-clinic", "key-officer", {"custodian"})
    with desk.open() as archive:
        archive.session("case", officer)
    keys, before = desk.keys.read_bytes(), {name: desk.rows(name, "org = 'north-clinic'") for name in TABLES}
    assert main([*keeping, "--points", "store.commit.*", "--kinds", "error"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    table = [line.split("  ")[0] for line in lines[2 : lines.index("")]]
    assert list(dict.fromkeys(table)) == ["rotate", "shred original", "shred session", "complete shred"]
    assert (
        " ".join(lines[2].split()) == "rotate store.commit.before 1 error StoreUnavailableError nothing same yes ok"
    )
    assert ", a part after " in lines[-2]
    assert lines[-1] == "8 orgs of rotations and shreds: shredded, with all that was in them."
    own = re.search(r"keys of their own in (\S+), which go", err)
    assert own is not None
    assert not Path(own[1]).parent.exists()
    assert desk.keys.read_bytes() == keys
    assert {name: desk.rows(name, "org = 'north-clinic'") for name in TABLES} == before
    with desk.open() as archive:
        assert archive.custody(officer).rotate().version == 2
        archive.custody(officer).retire(1)


def test_what_is_not_swept_is_in_the_table_and_in_the_document_with_its_reason(
    keeping: list[str], desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EVIDENCE_ARCHIVE_KEYS", desk.keys.read_text())
    words = [*keeping[:3], *keeping[5:], "--points", "store.commit.before", "--kinds", "error"]
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {one["operation"] for one in report["outcomes"]} == {"shred original", "shred session"}
    assert [one["operation"] for one in report["not_swept"]] == ["rotate", "complete shred"]
    assert "make and destroy no versions by themselves" in report["not_swept"][0]["reason"]
    assert (report["shredded_orgs"], report["orgs_not_shredded"], report["keys_kept"]) == (4, [], None)
    assert (report["ok"], report["left_in_store"]) == (True, {})
    assert main(words) == 0
    assert "\nnot swept: rotate: these keys make and destroy no versions" in capsys.readouterr().out
    keeps = desk.folder / "keeps.toml"
    keeps.write_text('[policy]\nname = "k"\nversion = 1\ndefault = "allow"\n[[retention]]\ndays = 3\n')
    assert "Nothing can be swept: the policy keeps" in refused(capsys, [*keeping, "--policy", str(keeps)])
    assert main([*keeping[:-1], "archive,shred", "--policy", str(keeps), *words[-4:]]) == 0
    assert "not swept: shred original: the policy keeps results" in capsys.readouterr().out


def test_an_interrupted_sweep_shreds_its_orgs_and_destroys_its_keys(
    keeping: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, ran = CustodySweep.run, list[Trial]()

    def interrupted(sweep: CustodySweep, trial: Trial) -> Outcome:
        ran.append(trial)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return run(sweep, trial)

    monkeypatch.setattr(CustodySweep, "run", interrupted)
    assert main([*keeping, "--points", "store.commit.*", "--kinds", "error"]) == 130
    out, err = capsys.readouterr()
    assert " faults tried; 0 violations so far." in out
    assert out.splitlines()[-1] == "5 orgs of rotations and shreds: shredded, with all that was in them."
    own = re.search(r"keys of their own in (\S+), which go", err)
    assert own is not None
    assert not Path(own[1]).parent.exists()


def test_a_naive_rotation_is_exit_1(
    keeping: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from test_faults_safekeeping import _retires_first

    monkeypatch.setattr(Rekeying, "rotate", _retires_first)
    words = [*keeping[:-1], "rotate", "--points", "store.update_scopes.before", "--kinds", "error"]
    assert main(words) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].endswith("VIOLATION")
    assert any(line.startswith("VIOLATION  rotate, store.update_scopes.before 1, error: ") for line in lines)


@pytest.mark.nightly
def test_the_whole_sweep_with_real_kills_finds_nothing(
    words: list[str], capsys: pytest.CaptureFixture[str], record_property: Any
) -> None:
    code = main([*words[:-2], "--json"])
    report = json.loads(capsys.readouterr().out)
    record_property("trials", report["trials"])
    assert [one for one in report["outcomes"] if not one["ok"]] == []
    assert code == 0
    assert sum(one["told"] == "killed" for one in report["outcomes"]) > 200
    assert {*DONE, "archive"} <= {one["operation"] for one in report["outcomes"]}
