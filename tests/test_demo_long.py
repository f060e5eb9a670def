"""The long demo: three days in a window of a fixed size, in two processes, and claims that can fail."""

import contextlib
import io
import json
import sqlite3
import stat
import subprocess
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evidence_archive import Session
from evidence_archive.access import may_restore
from evidence_archive.cli import demo_intruder, demo_long, demo_long_plan, demo_long_show, main, render
from evidence_archive.policy import Policy
from evidence_archive.testing import ScriptedRequest
from evidence_archive.window.card import Card

CLAIMS = 15
BUDGET = demo_long.WINDOW_TOKENS_MAX


# --- the whole of it --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Any, Path]:
    """What ``demo --long --json`` prints, with the folder it kept."""
    folder, out = tmp_path_factory.mktemp("long") / "kept", io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["demo", "--long", "--json", "--keep", str(folder)])
    return code, json.loads(out.getvalue()), folder


def test_three_days_of_300_turns_keep_every_claim(document: tuple[int, Any, Path]):
    code, said, _ = document
    assert [claim["words"] for claim in said["claims"] if not claim["holds"]] == []
    assert (code, said["ok"], len(said["claims"])) == (0, True, CLAIMS)
    assert said["turns_per_day"] == [100, 100, 100]
    assert said["figures"]["requests"] == 300


def test_the_series_is_flat_in_the_window_and_grows_without_it(document: tuple[int, Any, Path]):
    _, said, _ = document
    figures, series = said["figures"], said["tokens_per_request"]
    assert len(series["whole"]) == len(series["window"]) == 300
    assert series["whole"] == sorted(series["whole"])
    assert series["whole"][-1] > 15 * BUDGET
    assert max(series["window"]) == figures["window_tokens_highest"] <= BUDGET == figures["window_tokens_max"]
    peaks = [max(series["window"][first : first + 100]) for first in (0, 100, 200)]
    assert max(peaks) < 1.2 * min(peaks)
    assert figures["prefixes_kept"] > 200
    assert figures["results_archived"] > 200
    assert figures["spans"] >= 3
    assert (figures["periods"], figures["facts_superseded"], figures["restores"]) == (3, 2, 1)
    assert said["facts_per_period"][-1] == figures["facts"] - 2
    assert said["answer"]["sha256_said"] == said["answer"]["sha256_restored"]


def test_what_is_kept_can_be_looked_into(document: tuple[int, Any, Path], capsysbinary: Any):
    _, said, folder = document
    assert said["kept"] == str(folder)
    names = {path.name for path in folder.iterdir()}
    assert {"evidence.db", "evidence.keys", "policy.toml"} <= names
    assert all(name.startswith("evidence.") or name == "policy.toml" for name in names)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    store = ["--url", f"sqlite:///{folder}/evidence.db", "--keys", f"{folder}/evidence.keys"]
    who = ["--policy", f"{folder}/policy.toml", "--org", "north-clinic", "--subject", "triage-agent"]
    original = said["answer"]["result_id"]
    assert main(["restore", demo_long.LONG_SESSION, original, *store, *who]) == 0
    assert capsysbinary.readouterr().out.count(b"DISK FULL") == 1
    data = b"".join(path.read_bytes() for path in folder.glob("evidence.db*"))
    assert all(words not in data for words in (b"DISK FULL", b"analyser-", b"laboratory"))


def test_its_policy_passes_its_own_tests():
    report = Policy.loads(demo_long.POLICY).check(may_restore)
    assert report.ok
    assert report.warnings == ()


# --- must-fail controls: each claim can be false ----------------------------------------------------------------


@dataclass
class Worked:
    """A shorter run, as the checks find it."""

    folder: Path
    scratch: Path
    state: Any
    session: Session
    view: Any
    books: Any
    answer: Any

    def false(self, state: Any = None, **others: Any) -> list[str]:
        """The claims that do not hold with another state, or other findings."""
        use = {"session": self.session, "view": self.view, "books": self.books, "answer": self.answer, **others}
        state = state or self.state
        claims = [
            *demo_long._claims_on_the_window(use["session"], state, use["view"]),
            *demo_long._claims_on_the_books(use["session"], state, use["books"]),
            *demo_long._claims_on_the_resume(use["session"], state, use["answer"]),
        ]
        assert len(claims) == CLAIMS - 1
        return [claim.words for claim in claims if not claim.holds]


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    folder, scratch = tmp_path_factory.mktemp("short"), tmp_path_factory.mktemp("scratch")
    demo_long.new_keys(folder / "evidence.keys")
    (folder / "policy.toml").write_text(demo_long.POLICY, "utf-8")
    demo_long._days_before(folder, scratch, demo_long._State([40, 40, 40]), lambda words: None)
    demo_long._run_last_day(folder, scratch)
    state = demo_long._State.load(scratch / "state.json")
    with demo_long._opened(folder) as archive:
        session = archive.session(demo_long.LONG_SESSION, demo_long.OWNER)
        view = session.view(state.messages)
        answer = demo_long._answer(session, state)
        yield Worked(folder, scratch, state, session, view, session.ledger.books(), answer)


def test_without_a_change_every_claim_holds(worked: Worked):
    assert worked.false() == []


def too_large(state: Any) -> None:
    state.requests[40].window = BUDGET + 1


def no_history(state: Any) -> None:
    state.requests[-1].whole = BUDGET


def unpaired(state: Any) -> None:
    state.requests[40].paired = False


def without_order(state: Any) -> None:
    state.requests[40].order = False


def without_goal(state: Any) -> None:
    state.requests[40].goal = False


def without_spans(state: Any) -> None:
    state.spans = []


def another_digest(state: Any) -> None:
    state.digests["measure day-1/hour-00.log"] = "0" * 64


def believed(state: Any) -> None:
    state.false_claim = "c1"


def not_superseded(state: Any) -> None:
    state.slowest = "f1"


def same_process(state: Any) -> None:
    state.pids = [state.pids[0], state.pids[0]]


def another_view(state: Any) -> None:
    state.views[1] = "0" * 64


def still_in_view(state: Any) -> None:
    next(one for one in state.requests if one.day == 3).full = True


def never_restored(state: Any) -> None:
    for one in state.requests:
        one.full = False


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (too_large, "no request has more than"),
        (no_history, "without a window the last request"),
        (unpaired, "every call of every request"),
        (without_order, "the signed order and the goal"),
        (without_goal, "the signed order and the goal"),
        (without_spans, "is in the window or comes back"),
        (another_digest, "read again and as the tool said it"),
        (believed, "passed a check of the host"),
        (not_superseded, "took the place of"),
        (same_process, "ran in another process"),
        (another_view, "ran in another process"),
        (still_in_view, "not in view when asked for"),
        (never_restored, "the model finds it"),
    ],
)
def test_control_what_was_measured_otherwise_breaks_just_its_claim(
    worked: Worked, change: Callable[[Any], None], words: str
):
    state = deepcopy(worked.state)
    change(state)
    (false,) = worked.false(state)
    assert words in false


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"words": "It was trace 0000000000."}, "the model finds it"),
        ({"sha256_restored": "0" * 64}, "comes back with the sha256"),
        ({"sha256_said": "0" * 64}, "comes back with the sha256"),
    ],
)
def test_control_another_answer_breaks_just_its_claim(worked: Worked, change: Any, words: str):
    (false,) = worked.false(answer=replace(worked.answer, **change))
    assert words in false


def test_control_a_message_that_is_nowhere_is_missed(worked: Worked):
    """The span without its first message, and the view without its last one."""
    spans = {name: worked.session.restore(name).content for name in worked.state.spans}
    cut = SimpleNamespace(restore=lambda name: SimpleNamespace(content=spans[name].partition("\n")[2]))
    assert len(demo_long._missing(cut, worked.state, worked.view)) == len(spans) > 0
    said = json.dumps(worked.state.messages[-1]["content"])
    cut_view = [one for one in worked.view if one["content"] != worked.state.messages[-1]["content"]]
    (missing,) = demo_long._missing(worked.session, worked.state, cut_view)
    assert said in missing


def test_control_a_card_that_was_lost_is_missed(worked: Worked, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Session, "card", lambda self: Card())
    (false,) = worked.false()
    assert "steps of the card" in false


def test_control_one_changed_original_and_one_more_period_are_noticed(worked: Worked, tmp_path: Path):
    """In a copy: a fact that is not read again unless asked, and books that were closed behind the demo's back."""
    for name in ("evidence.keys", "policy.toml"):
        (tmp_path / name).write_bytes((worked.folder / name).read_bytes())
        (tmp_path / name).chmod(0o600)
    demo_intruder.copy_database(worked.folder / "evidence.db", tmp_path / "evidence.db")
    weak = next(fact for fact in worked.books.current() if not fact.is_key)
    demo_intruder.flip_a_byte(tmp_path / "evidence.db", int(weak.sources[0].result_id[1:]))
    with demo_long._opened(tmp_path) as archive:
        session = archive.session(demo_long.LONG_SESSION, demo_long.OWNER)
        view = session.view(worked.state.messages)
        session.ledger.close()
        false = worked.false(session=session, view=view, books=session.ledger.books())
    assert [words for words in false if "leads to its original" in words or "closed at the end" in words] == false
    assert len(false) == 2


def test_the_tampered_original_is_found_and_without_tampering_nothing_is(
    worked: Worked, monkeypatch: pytest.MonkeyPatch
):
    sound, changed, closed = demo_long._tampered(worked.folder, worked.scratch, worked.answer.result_id)
    assert (sound.agrees, [one.fact_id for one in changed.disagreements], closed) == (True, ["f2"], False)
    monkeypatch.setattr(demo_long, "flip_a_byte", lambda database, number: None)
    report = demo_long._report(worked.folder, worked.scratch, worked.state)
    (false,) = [claim.words for claim in report.claims if not claim.holds]
    assert "one changed byte" in false
    assert not report.ok


def test_only_one_byte_of_one_original_is_changed(worked: Worked, tmp_path: Path):
    def originals() -> dict[bytes, bytes]:
        with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as connection:
            return dict(connection.execute("SELECT original_id, envelope FROM originals").fetchall())

    demo_intruder.copy_database(worked.folder / "evidence.db", tmp_path / "a.db")
    before = originals()
    demo_intruder.flip_a_byte(tmp_path / "a.db", 5)
    changed = {name: data for name, data in originals().items() if data != before[name]}
    ((name, data),) = changed.items()
    assert sum(one != other for one, other in zip(data, before[name], strict=True)) == 1


# --- how it is shown, and how it ends ----------------------------------------------------------------------------


def stubbed(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    answer = demo_long.Answer("It was trace ab.", "a line", "r5", 4_281, "a" * 64, "a" * 64)
    report = demo_long.LongReport(
        turns=[50, 50, 50],
        whole=[1_000 * at for at in range(1, 151)],
        window=[min(1_000 * at, 14_000) for at in range(1, 151)],
        budget_tokens=16_000,
        tokens_estimated=False,
        archived=252,
        batches=64,
        restores=1,
        spans=7,
        prefixes_kept=255,
        card_changes=16,
        facts=83,
        superseded=2,
        periods=[29, 55, 81],
        answer=answer,
        tampered={"f2": "r5#L29 does not open."},
        seconds=9.87,
        claims=[demo_long.Claim("it holds", True)],
    )
    monkeypatch.setattr(demo_long, "run_long_demo", lambda folder, progress, turns: replace(report, **changes))


@pytest.mark.parametrize("columns", [None, 40, 60, 80])
def test_people_see_both_pictures_every_figure_and_a_line_per_claim(
    columns: int | None, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    stubbed(monkeypatch)
    monkeypatch.setattr(render, "width_columns", lambda: columns)
    monkeypatch.setattr(demo_long_show, "width_columns", lambda: columns)
    assert main(["demo", "--long"]) == 0
    out = capsys.readouterr().out
    for words in (
        "150,000",
        "16,000",
        "day 3",
        "81 facts",
        "r5, 4,281 bytes",
        "f2: r5#L29",
        "9.9 s",
        "PASS  it holds",
    ):
        assert words in out
    drawn = [line for line in out.splitlines() if " | " in line or " +-" in line]
    assert len(drawn) == demo_long_show.GROWING_ROWS + demo_long_show.WINDOW_ROWS + 2
    if columns is not None:
        assert max(map(len, drawn)) <= columns


def test_a_claim_that_is_false_ends_the_command_with_1_and_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    stubbed(monkeypatch, claims=[demo_long.Claim("it holds", True), demo_long.Claim("it fails", False)])
    assert main(["demo", "--long"]) == 1
    out = capsys.readouterr().out
    assert "FAIL  it fails" in out
    assert "1 of 2 claims hold." in out
    assert main(["demo", "--long", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_the_picture_shows_the_highest_of_the_requests_of_a_column(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(demo_long_show, "width_columns", lambda: 15)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):  # an encoding that is not UTF-8 gives plain signs
        flat = demo_long_show.picture((), [0, 0, 0, 8, 0, 0, 4, 0], 2, top=8)
    assert [line.partition("| ")[2] for line in flat[:2]] == ["#", "##"]
    assert [line.split()[0] for line in flat] == ["8", "4", "0"]


def test_too_few_turns_for_what_is_claimed_are_refused(capsys: Any):
    assert main(["demo", "--long", "--turns", "119"]) == 2
    assert "120" in capsys.readouterr().err
    assert main(["demo", "--help"]) == 0
    assert "--turns" not in capsys.readouterr().out


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_one_that_is_interrupted_leaves_nothing_it_made(
    error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    def stopped(folder: Path, scratch: Path, *rest: Any) -> None:
        raise error

    monkeypatch.setattr(demo_long, "_days_before", stopped)
    assert main(["demo", "--long", "--keep", str(tmp_path / "new" / "kept")]) == (
        130 if error is KeyboardInterrupt else 70
    )
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err.count("\n") == 1


def test_a_second_process_that_fails_is_told_with_what_it_said(tmp_path: Path):
    with pytest.raises(subprocess.CalledProcessError) as caught:
        demo_long._run_last_day(tmp_path, tmp_path)
    assert "state.json" in "".join(caught.value.__notes__)


# --- its world --------------------------------------------------------------------------------------------------


def test_the_logs_are_equal_every_time_and_each_day_has_the_slowest_upload_so_far(tmp_path: Path):
    slowest = []
    for day in (1, 2, 3):
        for place in ("a", "b"):
            demo_long_plan.write_logs(tmp_path / place, day)
        logs = sorted((tmp_path / "a").glob(f"day-{day}/*.log"))
        assert len(logs) == 24
        assert all(
            log.read_bytes() == (tmp_path / "b" / log.relative_to(tmp_path / "a")).read_bytes() for log in logs
        )
        slowest.append(demo_long_plan.figures_of(logs).slowest_ms)
    assert slowest == sorted(set(slowest))
    full = [log for log in (tmp_path / "a").rglob("*.log") if demo_long_plan.FULL in log.read_text("utf-8")]
    assert full == [tmp_path / "a" / demo_long_plan.FULL_LOG]


@pytest.mark.parametrize("turns", [demo_long_plan.TURNS_MIN, 30, 33, 100])
@pytest.mark.parametrize("day", [1, 2, 3])
def test_a_day_has_just_as_many_turns_as_asked_for(day: int, turns: int):
    blocks = demo_long_plan.plan(day, turns)
    assert sum(len(block.steps) for block in blocks) == turns
    assert all(block.steps for block in blocks)
    assert [block.question == demo_long_plan.LOOK_BACK for block in blocks][:1] == [day == 3]


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("read_log", {"file": "day-1/hour-00.log"}, "DISK FULL"),
        ("measure", {"files": "day-1/*.log"}, '"uploads": 1440'),
        ("search_logs", {"words": "DISK FULL"}, "hour-00.log:29: "),
        ("read_source", {"module": "subprocess", "first": "90"}, "91: "),
        ("read_source", {"module": "no_such_module_here", "first": "90"}, "no source"),
        ("read_order", {"number": "LAB-77"}, "made up"),
        ("write_report", {"path": "reports/a.json", "content": "{}"}, "2 bytes written"),
    ],
)
def test_the_tools_really_run(name: str, arguments: dict[str, str], words: str, tmp_path: Path):
    demo_long_plan.write_logs(tmp_path, 1)
    assert words in demo_long_plan.run_tool(name, arguments, tmp_path)


def test_a_model_that_is_not_told_the_answer_does_not_have_it():
    """The answer comes from what is restored: nothing in the script knows the trace."""
    answered = demo_long_plan.plan(3, 100)[0].steps[-1]
    nothing = ScriptedRequest(0, ({"role": "tool", "tool_call_id": "a", "content": "[nothing]"},), (), {})
    assert answered(nothing).text == "I do not find it."
