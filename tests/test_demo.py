"""The demo: real tools, a scripted model, and claims that are checked and can fail."""

import json
import stat
from pathlib import Path

import pytest

from evidence_archive.cli import demo, demo_run, demo_tools, main
from evidence_archive.policy import Policy
from evidence_archive.tokens import EstimateCounter


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    """What ``demo --json`` prints, with the folder it kept."""
    import contextlib
    import io

    folder = tmp_path_factory.mktemp("demo") / "kept"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["demo", "--json", "--keep", str(folder)])
    return code, json.loads(out.getvalue()), folder


def test_every_claim_holds(document):
    code, said, _ = document
    assert [claim["words"] for claim in said["claims"] if not claim["holds"]] == []
    assert (code, said["ok"]) == (0, True)
    assert len(said["claims"]) == 11


def test_the_figures_are_those_of_the_requests(document):
    _, said, _ = document
    figures, series = said["figures"], said["tokens_per_request"]
    for name in ("whole", "archived"):
        assert figures[f"requests_{name}"] == len(series[name])
        assert figures[f"tokens_{name}"] == sum(series[name])
        assert figures[f"final_tokens_{name}"] == series[name][-1]
    assert figures["tokens_archived"] < figures["tokens_whole"]
    assert figures["final_tokens_archived"] < figures["final_tokens_whole"] / 2
    assert figures["originals_equal"] == figures["originals_archived"] == 15
    assert figures["restores"] == 2


def test_what_is_kept_can_be_looked_into(document, capsysbinary):
    _, said, folder = document
    assert said["kept"] == str(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    store = ["--url", f"sqlite:///{folder}/evidence.db", "--keys", f"{folder}/evidence.keys"]
    who = ["--policy", f"{folder}/policy.toml", "--org", demo_run.OWNER.org, "--subject", demo_run.OWNER.subject]
    assert main(["results", "demo", *store, *who, "--json"]) == 0
    states = {info["id"]: info for info in json.loads(capsysbinary.readouterr().out)["results"]}
    (protected,) = (info for info in states.values() if info["protected_by"])
    assert (protected["tool"], protected["state"]) == (demo_tools.LOOKUP, "live")
    archived = next(info["id"] for info in states.values() if info["tool"] == "list_packages")
    assert main(["restore", "demo", archived, *store, *who]) == 0
    assert b"evidence-archive" in capsysbinary.readouterr().out
    assert main(["audit", "log", *store, *who]) == 0
    assert b"INTACT" in capsysbinary.readouterr().out


def test_people_see_a_chart_a_table_and_a_line_per_claim(capsys, monkeypatch, tmp_path):
    folder = tmp_path / "kept"
    assert main(["demo", "--keep", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.count("\nPASS  ") == 11
    assert "FAIL" not in out
    assert "11 of 11 claims hold." in out
    assert "tokens per request" in out
    assert "% less" in out
    assert f"evidence-archive results demo --url sqlite:///{folder}/evidence.db" in out


def test_a_folder_that_exists_is_left_alone(tmp_path, capsys):
    (tmp_path / "precious").write_text("x")
    assert main(["demo", "--keep", str(tmp_path)]) == 2
    assert "nothing is overwritten" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_demo_that_is_interrupted_leaves_nothing_it_made(error, tmp_path, monkeypatch, capsys):
    def stopped(folder, progress):
        (folder / "evidence.db").write_text("half done")
        raise error

    monkeypatch.setattr(demo_run, "run_demo", stopped)
    (tmp_path / "mine").mkdir()
    assert main(["demo", "--keep", str(tmp_path / "mine" / "new" / "kept")]) == (
        130 if error is KeyboardInterrupt else 70
    )
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("columns", [40, 50, 60, 80])
def test_a_narrow_terminal_shows_every_figure(columns, monkeypatch, capsys):
    from evidence_archive.cli import render

    claims = [demo_run.Claim("it holds", True)]
    report = demo_run.Report([100, 2_345_678], [100, 1_234_567], 15, 599_717, 15, 2, 2.6, False, claims)
    monkeypatch.setattr(demo_run, "run_demo", lambda folder, progress: report)
    monkeypatch.setattr(render, "width_columns", lambda: columns)
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    for words in ("2,345,678", "1,234,567", "599,717 bytes", "15 of 15", "2.6 ms", "47.4 % less"):
        assert words in out
    figures = out.split("> requests")[1].split("PASS")[0]
    assert max(map(len, figures.splitlines())) <= columns


def test_estimates_say_so(capsys, monkeypatch):
    monkeypatch.setattr(demo_run, "default_counter", EstimateCounter)
    assert main(["demo"]) == 0
    assert "estimates" in capsys.readouterr().out


def test_progress_is_shown_to_a_terminal_only(monkeypatch, capsys):
    with demo._progress(shown=False) as progress:
        progress("nothing")
    assert capsys.readouterr().err == ""
    with demo._progress(shown=True) as progress:
        progress("list_packages")


# --- must-fail controls: each claim can be false ----------------------------------------------------------------


def verdicts(tmp_path):
    folder = tmp_path / "control"
    folder.mkdir()
    report = demo_run.run_demo(folder, lambda words: None)
    return report, [claim.words for claim in report.claims if not claim.holds]


def test_control_without_damage_nothing_is_detected(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_run, "_flip_a_byte", lambda database: None)
    report, false = verdicts(tmp_path)
    assert false == ["one changed byte in a sealed original is detected, and nothing altered is released"]
    assert not report.ok


def test_control_a_principal_of_the_same_org_is_not_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_run, "STRANGER", demo_run.OWNER)
    assert verdicts(tmp_path)[1] == ["another org is refused, in the very words of an unknown ID"]


def test_control_a_policy_that_allows_everything_breaks_the_claims_on_protection(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_run, "POLICY", '[policy]\nname = "demo"\nversion = 1\ndefault = "allow"\n')
    false = verdicts(tmp_path)[1]
    assert any("refused as a whole" in words for words in false)


def test_control_plain_text_beside_the_database_is_found(tmp_path, monkeypatch):
    real = demo_run._is_closed

    def leaking(folder, run, originals):
        (folder / "evidence.db-copy").write_text(next(iter(originals.values())), "utf-8")
        return real(folder, run, originals)

    monkeypatch.setattr(demo_run, "_is_closed", leaking)
    assert any("plain text" in words for words in verdicts(tmp_path)[1])


def test_control_a_false_claim_ends_the_command_with_1(monkeypatch, capsys):
    monkeypatch.setattr(demo_run, "_notes_stay", lambda requests: False)
    assert main(["demo"]) == 1
    out = capsys.readouterr().out
    assert "FAIL  a note, once shown, stays the same byte for byte" in out
    assert "10 of 11 claims hold." in out


@pytest.mark.parametrize(
    ("messages", "paired"),
    [
        ([{"role": "user"}], True),
        (
            [
                {"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b"}]},
                {"role": "tool", "tool_call_id": "a"},
                {"role": "tool", "tool_call_id": "b"},
            ],
            True,
        ),
        (
            [
                {"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b"}]},
                {"role": "tool", "tool_call_id": "b"},
                {"role": "tool", "tool_call_id": "a"},
            ],
            False,
        ),
        ([{"role": "assistant", "tool_calls": [{"id": "a"}]}, {"role": "user"}], False),
        ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], False),
        ([{"role": "tool", "tool_call_id": "a"}], False),
    ],
)
def test_pairing_is_checked_strictly(messages, paired):
    assert demo_run.is_paired(messages) is paired


# --- the tools --------------------------------------------------------------------------------------------------


def test_the_demo_policy_passes_its_own_tests():
    from evidence_archive.access import may_restore

    report = Policy.loads(demo_run.POLICY).check(may_restore)
    assert report.ok
    assert report.warnings == ()


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("list_packages", {}, "evidence-archive"),
        ("report_environment", {}, "implementation"),
        ("read_source", {"module": "calendar"}, "class Calendar"),
        ("outline_source", {"module": "calendar"}, "ClassDef Calendar"),
        ("search_sources", {"pattern": "timedelta"}, "datetime"),
        ("run_tests", {}, "FAILED (failures=3)"),
        ("lookup_prescription", {"case": "4711"}, "made up"),
    ],
)
def test_the_tools_really_run_and_their_results_get_a_label(name, arguments, words, tmp_path):
    said = demo_tools.run(name, arguments, tmp_path)
    assert words in said
    assert len(said) >= 800
    said.encode("utf-8")


def test_a_search_is_bounded_and_says_how_much_is_left(tmp_path):
    lines = demo_tools.run("search_sources", {"pattern": "def "}, tmp_path).splitlines()
    assert len(lines) == demo_tools.SEARCH_MATCHES_MAX + 1
    assert lines[-1].startswith("... and ")


def test_a_module_without_source_says_so(tmp_path):
    assert "no source" in demo_tools.run("read_source", {"module": "sys"}, tmp_path)
    assert "no source" in demo_tools.run("read_source", {"module": "no_such_module_here"}, tmp_path)


def test_no_tool_tells_the_process_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("A_SECRET_OF_THE_HOST", "hush-hush-4711")
    for spec in demo_tools.SPECS:
        function = spec["function"]
        said = demo_tools.run(
            function["name"], dict.fromkeys(function["parameters"]["required"], "calendar"), tmp_path
        )
        assert "hush-hush" not in said
        assert str(Path.home() / ".ssh") not in said
