"""Replay: transcripts are read strictly, played through the real middleware, and measured honestly."""

import io
import json
from itertools import count
from pathlib import Path

import pytest

from evidence_archive import Archive, Principal
from evidence_archive.cli import main
from evidence_archive.cli.replay import Figures, MessageTokens, play
from evidence_archive.cli.transcripts import Conversation, load
from evidence_archive.errors import FormatError, MessageShapeError
from evidence_archive.keys import new_keys
from evidence_archive.tokens import EstimateCounter, default_counter

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "transcripts"
UGLY = "CRLF\r\n NUL\0 lone \ud800 \N{GRINNING FACE} \u202e"


def calling(call_id, name="logs.read"):
    function = {"name": name, "arguments": "{}"}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def result(call_id, content):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def said(text):
    return {"role": "assistant", "content": text}


def log(name, lines=400):
    return "\n".join(f"line {number} of {name} is ordinary" for number in range(lines))


def turn(call_id, content, name="logs.read"):
    return [calling(call_id, name), result(call_id, content)]


QUESTION = {"role": "user", "content": "What is wrong?"}
THREE_LOGS = [
    QUESTION,
    *turn("a", log("alpha")),
    *turn("b", log("beta")),
    *turn("c", log("gamma")),
    said("Nothing."),
    QUESTION,
    said("Still nothing."),
]


@pytest.fixture
def written(tmp_path):
    """Writes a transcript and gives its path."""

    def write(document, name="talk.json"):
        path = tmp_path / name
        path.write_text(document if isinstance(document, str) else json.dumps(document), "utf-8")
        return path

    return write


@pytest.fixture
def played(tmp_path):
    """Plays conversations in a store of their own."""
    new_keys(tmp_path / "keys")
    numbers = count()

    def run(*conversations, tokens_min=500, batch_min=3, counter=None):
        with Archive.open(f"sqlite:///{tmp_path}/{next(numbers)}.db", keys=tmp_path / "keys") as archive:
            return play(
                [Conversation("made up", list(messages)) for messages in conversations],
                place="made up",
                archive=archive,
                tally=MessageTokens(counter or default_counter()),
                tokens_min=tokens_min,
                batch_min=batch_min,
            )

    return run


# --- reading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (json.dumps(THREE_LOGS), 1),
        (json.dumps({"messages": THREE_LOGS, "source": "made up"}, indent=2), 1),
        ("\ufeff" + json.dumps(THREE_LOGS), 1),
        (json.dumps(THREE_LOGS) + "\n\n" + json.dumps({"messages": THREE_LOGS}) + "\n", 2),
        (json.dumps(THREE_LOGS) + "\r\n" + json.dumps(THREE_LOGS), 2),
        ("[]", 1),
    ],
)
def test_a_list_an_object_and_json_lines_are_read(written, text, count):
    conversations = load(written(text))
    assert len(conversations) == count
    assert all(conversation.messages == (THREE_LOGS if text != "[]" else []) for conversation in conversations)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("", FormatError, "line 1, column 1: not JSON"),
        ("{\n  broken", FormatError, "line 2, column 3: not JSON"),
        ('[]\n[]\n{"messages": [}\n', FormatError, "line 3, column 15: not JSON"),
        ("[]\nsecret words\n", FormatError, "line 2, column 1: not JSON"),
        ("[]\n" + "[" * 100_000, FormatError, "line 2: JSON that is nested too deep"),
        ("[" * 100_000, FormatError, "nested too deep"),
        ("7", MessageShapeError, 'an object with a list under "messages"'),
        ('{"message": []}', MessageShapeError, "not a conversation"),
        ('[]\n{"messages": 1}', MessageShapeError, "line 2: not a conversation"),
        ('[{"role": "user"}, {"content": "secret words"}]', MessageShapeError, r"messages\[1\]: not a message"),
        ('["secret words"]', MessageShapeError, r"messages\[0\]"),
    ],
)
def test_a_broken_file_is_named_with_the_place_and_never_quoted(written, text, error, words):
    path = written(text)
    with pytest.raises(error, match=words) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_bytes_that_are_not_utf8_are_named_by_line_and_byte(tmp_path):
    path = tmp_path / "latin1.json"
    data = b'[\n{"role": "user", "content": "caf\xe9"}]'
    path.write_bytes(data)
    place = data.index(b"\xe9")
    with pytest.raises(FormatError, match=rf"latin1\.json: line 2, byte {place}: not UTF-8"):
        load(path)


def test_a_file_that_cannot_be_read_and_one_that_is_too_long_are_refused(tmp_path, monkeypatch, written):
    with pytest.raises(FormatError, match=r"none\.json: cannot be read"):
        load(tmp_path / "none.json")
    monkeypatch.setattr("evidence_archive.cli.transcripts.FILE_BYTES_MAX", 10)
    with pytest.raises(FormatError, match="longer than 10 bytes"):
        load(written(THREE_LOGS))


# --- playing ----------------------------------------------------------------------------------------------------


def test_three_long_results_are_archived_in_one_batch_and_come_back_equal(played):
    figures = played(THREE_LOGS)
    assert (figures.conversations, figures.requests) == (1, 5)
    assert (figures.batches, figures.originals_archived, figures.originals_equal) == (1, 3, 3)
    assert figures.bytes_archived == sum(len(log(name)) for name in ("alpha", "beta", "gamma"))
    assert figures.tokens_archived < figures.tokens_whole
    assert figures.restores_forced == 0
    assert figures.exact


def test_whole_history_is_counted_as_it_was_sent(played):
    messages = [QUESTION, said("one"), QUESTION, said("two")]
    # EstimateCounter: 14 characters are 4 tokens, 3 are 1; each message has 4 more.
    assert played(messages, counter=EstimateCounter()).tokens_whole == (4 + 4) + (4 + 4) + (1 + 4) + (4 + 4)


@pytest.mark.parametrize(
    ("limits", "archived"), [({"tokens_min": 100_000}, 0), ({"batch_min": 4}, 0), ({"batch_min": 1}, 3)]
)
def test_the_rule_decides_what_is_archived(played, limits, archived):
    assert played(THREE_LOGS, **limits).originals_archived == archived


def test_the_last_result_is_not_flushed_and_nothing_unread_is_archived(played):
    # The third log is read by the last request only: one request later never comes.
    figures = played([*THREE_LOGS[:7], said("Nothing.")], batch_min=1)
    assert figures.originals_archived == 2


def test_a_word_that_only_an_archived_original_holds_forces_one_restore(played):
    secret = log("alpha") + "\nbuild-4711-final failed"
    talk = [
        QUESTION,
        *turn("a", secret),
        *turn("b", log("beta")),
        *turn("c", log("gamma")),
        said("All read."),
        QUESTION,
    ]
    quoting = [*talk, said("It was build-4711-final."), QUESTION, said("Yes, build-4711-final.")]
    assert played(quoting).restores_forced == 1
    assert played([*talk, said("It was a failure."), QUESTION, said("Yes.")]).restores_forced == 0


def test_a_word_that_the_view_still_holds_forces_nothing(played):
    question = {"role": "user", "content": "Did build-4711-final fail?"}
    secret = log("alpha") + "\nbuild-4711-final failed"
    talk = [
        question,
        *turn("a", secret),
        *turn("b", log("beta")),
        *turn("c", log("gamma")),
        said("All read."),
        QUESTION,
    ]
    assert played([*talk, said("It was build-4711-final.")]).restores_forced == 0


def test_a_restored_original_counts_as_tokens_of_the_archive(played):
    secret = log("alpha") + "\nbuild-4711-final failed"
    talk = [
        QUESTION,
        *turn("a", secret),
        *turn("b", log("beta")),
        *turn("c", log("gamma")),
        said("All read."),
        QUESTION,
    ]
    with_restore = played([*talk, said("It was build-4711-final."), QUESTION, said("Yes.")])
    unquoted = played([*talk, said("It was some other build."), QUESTION, said("Yes.")])
    assert with_restore.tokens_overhead > unquoted.tokens_overhead + 1_000


def test_a_new_batch_archives_a_restored_original_again(played):
    words = "\nbuild-4711-final failed, build-4712-final passed"
    first = [QUESTION, *turn("a", log("alpha") + words), *turn("b", log("beta")), said("Read."), QUESTION]
    one, other = [said("It was build-4711-final."), QUESTION], [said("Not build-4712-final."), QUESTION]
    rest = [*turn("c", log("gamma")), *turn("d", log("delta")), said("Read."), QUESTION]
    assert played([*first, *one, *other, *rest], batch_min=2).restores_forced == 1
    figures = played([*first, *one, *rest, *other], batch_min=2)
    assert (figures.batches, figures.restores_forced) == (2, 2)


def test_only_what_was_archived_breaks_the_prefix(played):
    kept = played(THREE_LOGS, tokens_min=100_000)
    assert kept.prefix_kept_tokens == kept.prefix_tokens > 0
    broken = played(THREE_LOGS)
    assert 0 < broken.prefix_kept_tokens < broken.prefix_tokens


@pytest.mark.parametrize("call_ids", [("", "", ""), ("x" * 2_000,) * 3, ("same", "same", "same"), (UGLY, "b", UGLY)])
def test_hard_call_ids_are_told_apart(played, call_ids):
    turns = [
        message
        for call_id, name in zip(call_ids, ("alpha", "beta", "gamma"), strict=True)
        for message in turn(call_id, log(name))
    ]
    figures = played([QUESTION, *turns, said("Nothing."), QUESTION, said("Still nothing.")])
    assert (figures.originals_archived, figures.originals_equal) == (3, 3)


def test_orphans_and_contents_that_cannot_come_back_stay_where_they_are(played):
    orphan, odd = result("never called", log("orphan")), result("a", None)
    talk = [
        QUESTION,
        orphan,
        calling("a"),
        odd,
        *turn("b", UGLY + log("beta")),
        *turn("c", [{"type": "text", "text": log("gamma")}]),
    ]
    figures = played([*talk, *turn("d", log("delta")), said("Nothing."), QUESTION, said("Still nothing.")])
    assert (figures.originals_archived, figures.originals_equal) == (3, 3)


def test_a_rejected_batch_is_counted_and_goes_on_without_its_bad_targets(played):
    # Without a lower bound a result that is shorter than its note gets into a batch.
    short = turn("s", "ok")
    figures = played([QUESTION, *short, *THREE_LOGS[1:]], tokens_min=0, batch_min=1)
    assert figures.batches_rejected >= 1
    assert (figures.originals_archived, figures.originals_equal) == (3, 3)


def test_control_an_original_that_came_back_changed_is_noticed(played, monkeypatch):
    from evidence_archive.session import Session

    real = Session.restore

    def changed(self, *args, **named):
        restored = real(self, *args, **named)
        object.__setattr__(restored, "content", f"{restored.content} ")
        return restored

    monkeypatch.setattr(Session, "restore", changed)
    figures = played(THREE_LOGS)
    assert figures.originals_equal == 0
    assert not figures.exact


def test_figures_without_anything_are_shares_of_nothing():
    empty = Figures("empty").as_json()
    assert (empty["tokens_saved_share"], empty["prefix_kept_share"], empty["view_ms_max"], empty["exact"]) == (
        0,
        1,
        0,
        True,
    )


# --- the command ------------------------------------------------------------------------------------------------


def test_json_holds_every_file_and_their_sum(written, capsys):
    paths = [written(THREE_LOGS), written([*THREE_LOGS[:3], said("Done.")], "short.json")]
    assert main(["replay", *map(str, paths), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [file["place"] for file in document["files"]] == [str(path) for path in paths]
    for key in ("requests", "tokens_whole", "tokens_archived", "originals_archived", "batches"):
        assert document["total"][key] == sum(file[key] for file in document["files"])
    assert document["rule"] == {"tokens_min": 500, "batch_min": 3}
    assert document["total"]["exact"] is True


def test_people_get_a_table_per_file_and_a_total(written, capsys):
    paths = [written(THREE_LOGS), written(json.dumps(THREE_LOGS) + "\n" + json.dumps(THREE_LOGS), "two.jsonl")]
    assert main(["replay", *map(str, paths), "--tokens-min", "800", "--batch-min", "2"]) == 0
    out = capsys.readouterr().out
    assert "more than 800 tokens" in out
    for words in ("talk.json", "two.jsonl", "total", "restored equal", "6 of 6", "ms per view"):
        assert words in out
    assert "line 1 of alpha" not in out


def test_originals_that_differ_end_the_command_with_1(written, monkeypatch, capsys):
    from evidence_archive.cli import replay

    monkeypatch.setattr(replay, "play", lambda *args, **named: Figures("x", originals_archived=2, originals_equal=1))
    assert main(["replay", str(written(THREE_LOGS))]) == 1
    assert "1 of 2" in capsys.readouterr().out


def test_a_broken_file_among_good_ones_stops_before_anything_is_played(written, capsys):
    assert main(["replay", str(written(THREE_LOGS)), str(written("[]\nno", "bad.jsonl")), "--json"]) == 40
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]["type"] == "FormatError"
    assert "bad.jsonl: line 2, column 1" in captured.err
    assert captured.err.count("\n") == 1


def test_a_file_without_tool_results_is_asked_about_and_gets_no_silly_shares(written, capsys):
    paths = [written(THREE_LOGS), written([QUESTION, said("Nothing.")], "other.json")]
    assert main(["replay", *map(str, paths), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == f"{paths[1]}: no tool results found; is this chat completions?\n"
    assert [file["results"] for file in json.loads(out)["files"]] == [3, 0]
    assert main(["replay", str(paths[1])]) == 0
    assert "%" not in capsys.readouterr().out


def test_a_transcript_comes_from_standard_input(monkeypatch, capsys):
    class Piped:
        buffer = io.BytesIO(json.dumps(THREE_LOGS).encode())

    monkeypatch.setattr("sys.stdin", Piped)
    assert main(["replay", "-", "--json"]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert (file["place"], file["results"], file["originals_archived"]) == ("standard input", 3, 3)
    assert main(["replay", "-"]) == 40
    assert "standard input: line 1, column 1: not JSON" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [40, 50, 60, 80])
def test_a_narrow_terminal_shows_every_figure(columns, written, monkeypatch, capsys):
    from evidence_archive.cli import render

    monkeypatch.setattr(render, "width_columns", lambda: columns)
    assert main(["replay", str(written(THREE_LOGS))]) == 0
    out = capsys.readouterr().out
    assert "3 in 1 batch\n" in out
    assert "restored equal" in out
    figures = out.split("talk.json\n")[1]
    assert max(map(len, figures.splitlines())) <= columns


def test_nothing_is_left_behind(written, monkeypatch, tmp_path, capsys):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    assert main(["replay", str(written(THREE_LOGS))]) == 0
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("name", ["bugfix-short.json", "browser.json", "issue-fix-1.json"])
def test_recorded_conversations_come_back_equal(name, capsys):
    path = SHARED / name
    if not path.is_file():
        pytest.skip("the recorded transcripts are not here")
    assert main(["replay", str(path), "--batch-min", "2", "--json"]) == 0
    total = json.loads(capsys.readouterr().out)["total"]
    assert total["originals_equal"] == total["originals_archived"] > 0
    assert total["tokens_archived"] < total["tokens_whole"]


@pytest.mark.nightly
def test_all_recorded_conversations_come_back_equal(capsys):
    paths = sorted(SHARED.glob("*.json*"))
    if not paths:
        pytest.skip("the recorded transcripts are not here")
    assert main(["replay", *map(str, paths), "--json"]) == 0
    total = json.loads(capsys.readouterr().out)["total"]
    assert total["originals_equal"] == total["originals_archived"] >= 50
    assert total["requests"] > 1_000


def test_a_session_of_the_replay_belongs_to_nobody_else(played, tmp_path):
    played(THREE_LOGS)
    with Archive.open(f"sqlite:///{tmp_path}/0.db", keys=tmp_path / "keys", create=False) as archive:
        infos = archive.results("replay-1", principal=Principal("replay", "replay"))
    assert [info.state for info in infos] == ["archived"] * 3
