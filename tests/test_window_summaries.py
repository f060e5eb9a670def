"""Summaries: four parts or none, and what no number of compressions wears away."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence_archive.errors import FormatError
from evidence_archive.window.summaries import (
    CARRIED_BYTES_MAX,
    Span,
    Summary,
    check_loss,
    parse_summary,
    plain_summary,
    summarised,
)

GOOD = "conclusion:\n- shard 7 is slow\nbasis: r3 and r4\nunresolved:\n- which disk?\nreferences:\n- r3#L4\n- r4"


def span_of(*said: str, tokens: int = 1_000, **named: Any) -> Span:
    facts: dict[str, Any] = {"tools": [("logs.search", 2)], "asked": ["why is it slow?"], "references": ["r3", "r4"]}
    return Span(text="\n".join(said), first=3, last=20, said=said, tokens=tokens, **{**facts, **named})


class Scripted:
    """Gives these answers, one after the other, and remembers why the last one was refused."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.heard: list[str | None] = []

    def summarize(self, span: Span, earlier: Sequence[Summary], refused: str | None) -> str:
        self.heard.append(refused)
        return self.answers.pop(0)


def summary_of(
    span: Span, summarizer: Any, earlier: Sequence[Summary] = (), **named: Any
) -> tuple[Summary, list[str]]:
    return summarised(span, earlier, summarizer, count=len, **{"tokens_max": 900, **named})


def test_the_four_parts_are_read_as_they_are_written() -> None:
    summary = parse_summary(GOOD)
    assert summary == Summary(["shard 7 is slow"], ["r3 and r4"], ["which disk?"], ["r3#L4", "r4"])
    assert parse_summary(summary.text()) == summary
    assert parse_summary(GOOD.replace("which disk?", "None.")).unresolved == []
    assert parse_summary(GOOD.replace("conclusion:", "## Conclusion:").replace("basis:", "**Basis:**")) == summary


words = st.from_regex(r"[a-z0-9][a-z0-9 ,.#]{0,40}[a-z0-9]", fullmatch=True).filter(lambda text: text != "none")


@given(st.lists(st.lists(words, max_size=4), min_size=4, max_size=4))
def test_what_is_written_is_read_again(parts: list[list[str]]) -> None:
    assert parse_summary(Summary(*parts).text()) == Summary(*parts)


@pytest.mark.parametrize(
    "text",
    [
        *("", "it is slow", GOOD + "\nbasis: again", GOOD.replace("basis", "reason"), f"Here it is:\n{GOOD}"),
        GOOD.partition("references")[0],
        GOOD.partition("\n- r3#L4")[0],
        GOOD.replace("- shard 7 is slow\n", ""),
        "\n".join(reversed(GOOD.split("\n"))),
        GOOD.replace("shard", "s" * 400),
        GOOD + "\n- r5" * 50,
        None,
        3,
    ],
)
def test_a_summary_that_lacks_a_part_or_was_cut_off_is_refused(text: object) -> None:
    with pytest.raises(FormatError):
        parse_summary(text)


def test_a_refused_summary_is_asked_for_once_more_with_the_reason_and_then_made_by_the_host() -> None:
    scripted = Scripted("it is slow", GOOD)
    summary, refusals = summary_of(span_of("It is."), scripted)
    assert summary.made_by == "summarizer"
    assert [None, *refusals] == scripted.heard
    scripted = Scripted("it is slow", "it is slow", GOOD)
    summary, refusals = summary_of(span_of("Shard 7 is slow."), scripted)
    assert (summary.made_by, len(refusals), scripted.answers) == ("host", 2, [GOOD])
    assert summary.conclusion == ["Shard 7 is slow."]
    assert summary_of(span_of("Shard 7 is slow."), None)[0] == summary


def test_a_summariser_that_raises_is_asked_once_more_and_then_replaced() -> None:
    class Away:
        def summarize(self, span: Span, earlier: Sequence[Summary], refused: str | None) -> str:
            raise TimeoutError("what somebody else's server says")

    summary, refusals = summary_of(span_of("Shard 7 is slow."), Away())
    assert (summary, refusals) == (
        plain_summary(span_of("Shard 7 is slow.")),
        ["There was no answer (TimeoutError)."] * 2,
    )


@pytest.mark.parametrize(("tokens", "tokens_max"), [(50, 900), (1_000, 50)])
def test_a_summary_that_is_not_smaller_is_refused(tokens: int, tokens_max: int) -> None:
    summary, refusals = summary_of(span_of("So.", tokens=tokens), Scripted(GOOD, GOOD), tokens_max=tokens_max)
    assert summary.made_by == "host"
    assert all("has to be smaller" in refusal for refusal in refusals)


class Raising:
    """Fails in this way, every time or the first time only."""

    def __init__(self, error: Exception, then: str | None = None) -> None:
        self.error = error
        self.then = then
        self.asked = 0

    def summarize(self, span: Span, earlier: Sequence[Summary], refused: str | None) -> str:
        self.asked += 1
        if self.asked > 1 and self.then is not None:
            return self.then
        raise self.error


@pytest.mark.parametrize(
    "error",
    [RuntimeError("p-4711"), TimeoutError("p-4711"), OSError(5, "p-4711"), KeyError("p-4711"), RecursionError()],
)
def test_whatever_a_summariser_raises_is_a_refusal_that_repeats_none_of_its_words(error: Exception) -> None:
    summary, refusals = summary_of(span_of("Shard 7 is slow."), Raising(error))
    assert summary == summary_of(span_of("Shard 7 is slow."), None)[0]
    assert refusals == [f"There was no answer ({type(error).__name__})."] * 2
    assert summary_of(span_of("It is."), Raising(error, GOOD))[0].made_by == "summarizer"


@pytest.mark.parametrize(
    "garbage", [None, b"conclusion: x", 3, [], "\ud83d" * 9, "\x00", "none\n" * 10_000, object()]
)
def test_whatever_a_summariser_returns_leads_to_a_summary(garbage: Any) -> None:
    assert summary_of(span_of("So."), Scripted(garbage, garbage))[0].made_by == "host"


def test_a_text_that_cannot_be_counted_is_refused() -> None:
    def count(text: str) -> int:
        return len(text.encode())

    lone = GOOD.replace("shard 7", "\ud83d")
    summary, refusals = summarised(span_of("So."), (), Scripted(lone, lone), count=count, tokens_max=900)
    assert (summary.made_by, len(refusals)) == ("host", 2)


def kept_of(summary: Summary) -> str:
    return "\n".join((summary.text(), *summary.carried))


def compressed(times: int, summarizer: Any, *, carry: bool = True) -> tuple[list[str], Summary]:
    """What was open or decided, and the summary after so many compressions by somebody who drops everything."""
    wanted, summary = [], None
    for at in range(times):
        wanted += [f"is node {at} done?", f"d{at}: use mirror {at}"]
        earlier = [] if summary is None or not carry else [summary]
        span = span_of(f"Working. is node {at} done?", tokens=10**6)
        summary, _ = summary_of(span, summarizer, earlier, tokens_max=10**6, keys=[f"d{at}: use mirror {at}"])
    assert summary is not None
    return wanted, summary


@pytest.mark.parametrize("forgets", [True, False])
def test_fifty_compressions_lose_no_open_point_and_no_confirmed_decision(forgets: bool) -> None:
    class Forgetful:
        def summarize(self, span: Span, earlier: Sequence[Summary], refused: str | None) -> str:
            question = span.said[0].partition(". ")[2]
            return f"conclusion: fine\nbasis: none\nunresolved: {question}\nreferences: none"

    wanted, summary = compressed(50, Forgetful() if forgets else None)
    assert [point for point in wanted if point not in kept_of(summary)] == []


def test_what_is_carried_over_is_bounded_the_newest_of_it_and_refuses_no_summariser() -> None:
    class Asks:
        def summarize(self, span: Span, earlier: Sequence[Summary], refused: str | None) -> str:
            return f"conclusion: fine\nbasis: none\nunresolved: {span.said[0]}\nreferences: none"

    summary = None
    for at in range(1_000):
        summary, refusals = summary_of(span_of(f"what of {at}? {'x' * 200}"), Asks(), [summary] if summary else [])
        assert refusals == []
    assert summary is not None
    assert sum(len(point) for point in summary.carried) <= CARRIED_BYTES_MAX
    assert "what of 998?" in kept_of(summary)
    assert "what of 3?" not in kept_of(summary)


def test_must_fail_control_without_carrying_over_fifty_compressions_wear_facts_away() -> None:
    wanted, summary = compressed(50, None, carry=False)
    assert len([point for point in wanted if point not in kept_of(summary)]) > 90


def test_a_summary_is_measured_without_what_it_carries_over() -> None:
    earlier = [Summary([], [], [f"is node {at} done?" for at in range(40)], [])]
    assert summary_of(span_of("Fine."), Scripted(GOOD), earlier, tokens_max=200)[0].made_by == "summarizer"


def test_a_decision_that_was_dropped_is_not_carried_over() -> None:
    earlier = [Summary([], [], ["is it done?"], [], ("use mirror 1", "use mirror 2"))]
    summary, _ = summary_of(span_of("Fine."), None, earlier, withdrawn=["use mirror 1", "never there"])
    assert summary.carried == ("use mirror 2", "is it done?")


def test_equal_spans_give_equal_summaries_with_what_is_open_in_them() -> None:
    span = span_of("I looked.", "TODO: ask the owner. Shard 7 is slow. It is not yet clear why.")
    assert plain_summary(span) == plain_summary(span)
    assert plain_summary(span).unresolved == ["why is it slow?", "TODO: ask the owner.", "It is not yet clear why."]
    assert plain_summary(span).basis == ["2 calls of logs.search"]
    assert plain_summary(span).references == ("r3", "r4")
    assert plain_summary(span_of()).text().startswith("conclusion: none")


def test_loss_counts_what_the_model_said_and_its_summary_does_not() -> None:
    span = span_of("p95 is 340 ms on OPS-12, see src/app.py. Which disk is it?", "42 retries, r3 says so.")
    summary = Summary(["340 ms on OPS-12"], [], [], ["r3"])
    loss = check_loss(span, summary)
    assert loss.numbers == (1, 2)
    assert loss.identifiers == (1, 3)
    assert loss.unresolved == (1, 1)
    assert loss.rate == pytest.approx(3 / 6)
    assert check_loss(span_of("fine"), summary).rate == 0


@pytest.mark.parametrize("piece", ["-a", "/a", "./a-", "a."])
def test_loss_of_a_megabyte_made_to_be_looked_through_again_and_again_is_counted(piece: str) -> None:
    assert check_loss(span_of(piece * (1_000_000 // len(piece))), Summary([], [], [], [])).numbers == (0, 0)


def test_loss_counts_a_number_or_a_name_in_a_longer_one_as_lost_and_a_file_in_a_path_as_kept() -> None:
    span = span_of("It took 340 ms in app.py on OPS-1. Is it slow?")
    summary = Summary(["13405 requests, 24.340 s, OPS-12"], ["src/app.py:7"], ["Is it slow? Nobody knows."], [])
    loss = check_loss(span, summary)
    assert (loss.numbers, loss.identifiers, loss.unresolved) == ((1, 1), (1, 2), (0, 1))
    assert check_loss(span, Summary(["340ms"], [], [], [], ["OPS-1"])).gone == 2


def test_loss_of_any_number_of_numbers_and_questions_is_counted_in_one_look_at_what_was_kept() -> None:
    numbers = " ".join(f"{at} ms" for at in range(10**6, 10**6 + 150_000))
    asked = " ".join(f"is shard {at} on it?" for at in range(150_000))
    carried = [f"is point {at} of the plan with mirror {at} still open and why?" for at in range(2_000)]
    loss = check_loss(span_of(numbers, asked), Summary(["1000000 ms"], [], ["is shard 3 on it?"], [], carried))
    assert loss.numbers == (300_000 - 2_001, 300_000)
    assert loss.unresolved == (149_999, 150_000)
