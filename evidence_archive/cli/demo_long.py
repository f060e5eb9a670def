"""The long demo: three days of one task in a window of a fixed size, the third one in another process.

Two days run in this process, the third in one that knows the messages of the application and nothing else. Every
request is measured when it is sent, every fact is checked by the host, and each claim is computed from that.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from evidence_archive.archive import Archive
from evidence_archive.cli.demo_intruder import copy_database, flip_a_byte
from evidence_archive.cli.demo_long_plan import (
    DAYS,
    FULL,
    FULL_LOG,
    GOAL,
    LABEL,
    LATE_MS,
    LOOK_BACK,
    ORDER,
    SPECS,
    figures_of,
    plan,
    report_name,
    run_tool,
    write_logs,
)
from evidence_archive.cli.demo_run import OWNER, Claim, is_paired
from evidence_archive.cli.replay import MessageTokens
from evidence_archive.errors import CheckFailedError
from evidence_archive.keys import new_keys
from evidence_archive.ledger.checks import Check, command_succeeds, file_equals, number_is, pointer_equals, quotes
from evidence_archive.ledger.entries import Books, Fact
from evidence_archive.ledger.keeping import Report
from evidence_archive.session import Session
from evidence_archive.testing import ScriptedModel
from evidence_archive.tokens import default_counter

__all__ = ["LONG_SESSION", "TURNS", "Answer", "LongReport", "run_long_demo"]

LONG_SESSION = "demo-long"
TURNS = 300
WINDOW_TOKENS_MAX = 16_000

POLICY = f"""\
[policy]
name = "demo-long"
version = 1
default = "allow"

[window]
window_tokens_max = {WINDOW_TOKENS_MAX}
archive_tokens_min = 200
reminder_tokens = 8000
reminder_chars = 16000

[[archive]]
id = "orders"
tools = ["read_order"]
effect = "never"
reason = "what the task rests on stays in view"

[[test]]
tool = "read_order"
expect = "never"
rule = "orders"
"""

SYSTEM = "You look into late results of a laboratory, carefully, and keep the card of the task."

CHILD_SECONDS_MAX = 600

_STATE = "state.json"
_CITED = ("read_log", "measure", "read_order")
_ORDER, _FULL = f"read_order {ORDER}", f"read_log {FULL_LOG}"
_IS_SOUND = "import json, sys; said = json.load(sys.stdin); sys.exit(not 0 < said['late'] < said['of'])"
_SPAN = re.compile(r"^> (r[1-9][0-9]*): messages [0-9]+ to [0-9]+", re.MULTILINE)


# --- the run ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Request:
    """What was measured of a request when it was sent.

    Args:
        day: of the task.
        whole: tokens of the application's list, as it would have been sent without a window.
        window: tokens of what was sent.
        paired: whether every call in it has its one result, in order.
        order, goal, full: whether the signed order, the goal of the card and the refused upload stand in it.
        grown: whether it begins with all of the request before.
    """

    day: int
    whole: int
    window: int
    paired: bool
    order: bool
    goal: bool
    full: bool
    grown: bool


@dataclass(slots=True)
class _State:
    """What the application keeps between two processes: its messages, and what the demo needs for its claims.

    Args:
        turns: of the model on each day.
        messages: the whole list.
        requests: what was measured.
        ids: result IDs by what was called, as the labels in view say.
        digests: sha256 of what those calls said, in hex, taken before the archive saw it.
        spans: IDs of turns that left the window, as the views name them.
        slowest: the fact that says which upload was the slowest so far.
        full_line: the line about the refused upload, as the log was written.
        false_claim: the claim that is false, once a check refused it.
        answer: the last words of the model to the question about the first day.
        pids: of both processes.
        views: sha256 of the last view of the first process and of the first view of the second one, in hex.
    """

    turns: list[int]
    messages: list[Any] = field(default_factory=list)
    requests: list[_Request] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    spans: list[str] = field(default_factory=list)
    slowest: str | None = None
    full_line: str = ""
    false_claim: str | None = None
    answer: str = ""
    pids: list[int] = field(default_factory=list)
    views: list[str] = field(default_factory=list)

    def save(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)), "utf-8")

    @classmethod
    def load(cls, file: Path) -> "_State":
        said = json.loads(file.read_text("utf-8"))
        return cls(**{**said, "requests": [_Request(**one) for one in said["requests"]]})


class _Task:
    """The task in one process.

    Args:
        session: of the archive.
        workspace: the folder with logs and reports.
        state: where it stands.
    """

    def __init__(self, session: Session, workspace: Path, state: _State) -> None:
        self.session = session
        self.workspace = workspace
        self.state = state
        self._tally = MessageTokens(default_counter())
        self._called: dict[str, str] = {}
        self._whole: list[int] = []
        self._before: list[Any] = []
        self._lasting: list[Any] = []

    def view(self) -> list[Any]:
        """What goes to the model."""
        view = self.session.view(self.state.messages)
        newest = self.state.messages[-1]
        is_ephemeral = view[-1]["role"] == "user" and view[-1]["content"] != newest["content"]
        self._before, self._lasting = self._lasting, view[:-1] if is_ephemeral else view
        return view

    def noted(self) -> None:
        """Note process and view, without what is said at its very end and stored nowhere."""
        self.view()
        self.state.pids.append(os.getpid())
        self.state.views.append(sha256(json.dumps(self._lasting).encode("ascii")).hexdigest())

    def day(self, day: int, progress: Callable[[str], None]) -> None:
        """A day of work, from its first log to its closed books.

        Args:
            day: from 1.
            progress: is told in words what happens.
        """
        state, first = self.state, len(self.state.messages) + 1
        write_logs(self.workspace, day)
        blocks = plan(day, state.turns[day - 1])
        model = ScriptedModel(
            [step for block in blocks for step in block.steps],
            call_ids=[f"day{day}_call{number}" for number in range(1, 4 * state.turns[day - 1] + 1)],
        )
        for block in blocks:
            state.messages.append({"role": "user", "content": block.question})
            for _ in block.steps:
                self._turn(day, model)
                sent = state.requests[-1]
                progress(f"day {day}: request {len(state.requests)}, {sent.window:,} of {sent.whole:,} tokens")
            if block.question == LOOK_BACK:
                state.answer = str(state.messages[-1]["content"])
        progress(f"day {day}: the host checks what was established, and closes the books")
        self._settle(day, first)

    def _turn(self, day: int, model: ScriptedModel) -> None:
        session, messages = self.session, self.state.messages
        view = self.view()
        self._measure(day, view)
        reply = model.chat.completions.create(model="scripted", messages=view, tools=[*SPECS, *session.tools])
        message = reply.choices[0].message
        messages.append(message)
        messages += [session.answer(call) or self._tool(call) for call in message.tool_calls or ()]

    def _tool(self, call: Any) -> dict[str, Any]:
        """The application's own tools; of what facts may rest on the host notes the digest."""
        name, arguments = call.function.name, json.loads(call.function.arguments)
        said = run_tool(name, arguments, self.workspace)
        message = {"role": "tool", "tool_call_id": call.id, "content": said}
        if name in _CITED:
            self._called[call.id] = key = " ".join([name, *arguments.values()])
            self.state.digests[key] = sha256(said.encode("utf-8")).hexdigest()
        return message

    def _measure(self, day: int, view: list[Any]) -> None:
        state = self.state
        self._whole += self._tally.each(state.messages[len(self._whole) :])
        texts = [str(message["content"]) for message in view]
        state.spans += [found for text in texts for found in _SPAN.findall(text) if found not in state.spans]
        for message in view:
            if message.get("tool_call_id") in self._called and (label := LABEL.match(str(message["content"]))):
                state.ids[self._called[message["tool_call_id"]]] = label[1]
        order = run_tool("read_order", {"number": ORDER}, self.workspace)
        state.requests.append(
            _Request(
                day=day,
                whole=sum(self._whole),
                window=sum(self._tally.each(view)),
                paired=is_paired(view),
                order=any(order in text for text in texts),
                goal=any(GOAL in text for text in texts),
                full=any(FULL in text for text in texts),
                grown=view[: len(self._before)] == self._before,
            )
        )

    # --- its books ---------------------------------------------------------------------------------------------

    def _settle(self, day: int, first: int) -> None:
        """What the day established, checked by the host, and its period closed."""
        ids, workspace = self.state.ids, self.workspace
        if day == 1:
            self._fact(
                f"An upload is late above {LATE_MS} ms.", f"{ids[_ORDER]}#L2", quotes(f"{LATE_MS} ms"), key=True
            )
            self._refused_upload()
        for key in [key for key in ids if key.startswith(f"measure day-{day}/hour-")]:
            log = key.removeprefix("measure ")
            late = figures_of([workspace / log]).late
            self._fact(f"{late} uploads were late in {log}.", f"{ids[key]}#/late", number_is(late))
        whole = ids[f"measure day-{day}/*.log"]
        figures = figures_of(sorted(workspace.glob(f"day-{day}/*.log")))
        self._fact(f"Day {day} has {figures.uploads} uploads.", whole, pointer_equals("/uploads", figures.uploads))
        slowest = self._fact(
            f"The slowest upload so far took {figures.slowest_ms} ms: trace {figures.slowest_trace}.",
            f"{whole}#/slowest/ms",
            number_is(figures.slowest_ms),
            key=True,
            supersedes=self.state.slowest,
        )
        self.state.slowest = slowest.id
        report = workspace / report_name(day)
        ledger = self.session.ledger
        ledger.store(report_name(day), report.read_bytes())
        written = f"artifact:{report_name(day)}"
        self._fact(f"The report of day {day} is written.", written, file_equals(report), key=True)
        self._fact(
            f"The report of day {day} counts no more late uploads than uploads.",
            written,
            command_succeeds(sys.executable, "-I", "-c", _IS_SOUND),
        )
        ledger.close(window_from=first, window_to=len(self.state.messages))

    def _fact(
        self, text: str, source: str, check: Check, *, key: bool = False, supersedes: str | None = None
    ) -> Fact:
        ledger = self.session.ledger
        return ledger.verify(ledger.claim(text, [source]), check, key=key, supersedes=supersedes)

    def _refused_upload(self) -> None:
        """The fact that the third day asks about, and a claim of the model that is false."""
        ids, ledger = self.state.ids, self.session.ledger
        lines = (self.workspace / FULL_LOG).read_text("utf-8").splitlines()
        number, line = next((at, line) for at, line in enumerate(lines, 1) if FULL in line)
        self.state.full_line = line
        self._fact("One upload was refused: a disk was full.", f"{ids[_FULL]}#L{number}", quotes(line), key=True)
        claim = ledger.claim("No upload was late on day 1.", [f"{ids['measure day-1/*.log']}#/late"], by="model")
        try:
            ledger.verify(claim, number_is(0))
        except CheckFailedError:
            self.state.false_claim = claim.id


# --- both processes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """The question of the last day about the first one.

    Args:
        words: of the model.
        log_line: the line it had to find, as the log was written.
        result_id: of the original.
        size_bytes: of it.
        sha256_said: of what the tool said on the first day, taken by the host then.
        sha256_restored: of what the archive gave back on the last day.
    """

    words: str
    log_line: str = field(repr=False)
    result_id: str
    size_bytes: int
    sha256_said: str
    sha256_restored: str


@dataclass(frozen=True, slots=True)
class LongReport:
    """What the long demo measured and checked.

    Args:
        turns: of the model on each day.
        whole, window: tokens of each request, without a window and as it was sent, without the specs of tools.
        budget_tokens: bound on the second.
        tokens_estimated: whether tokens are estimates.
        archived, batches, restores: results that are archived, in how many batches, and restores by the model.
        spans: times that turns left the window, each archived as one original.
        prefixes_kept: requests that begin with all of the request before.
        card_changes: events on the card.
        facts, superseded: facts that the host verified, and how many of them another one took the place of.
        periods: facts in each period.
        answer: to the question about the first day.
        tampered: why each fact does not agree with an original in which a byte was changed, by fact.
        seconds: that all of it took.
        claims: all of them, in the order they were checked.
    """

    turns: list[int]
    whole: list[int]
    window: list[int]
    budget_tokens: int
    tokens_estimated: bool
    archived: int
    batches: int
    restores: int
    spans: int
    prefixes_kept: int
    card_changes: int
    facts: int
    superseded: int
    periods: list[int]
    answer: Answer
    tampered: dict[str, str]
    seconds: float
    claims: list[Claim]

    @property
    def ok(self) -> bool:
        """Whether every claim holds."""
        return all(claim.holds for claim in self.claims)


def run_long_demo(folder: Path, progress: Callable[[str], None], turns: int = TURNS) -> LongReport:
    """Run the long demo in a folder and check what it claims.

    Args:
        folder: an empty folder; afterwards it holds ``evidence.db``, ``evidence.keys`` and ``policy.toml``.
        progress: is told in words what happens.
        turns: of the model in all, at least ``TURNS_MIN`` on each day.
    """
    began = perf_counter()
    new_keys(folder / "evidence.keys")
    (folder / "policy.toml").write_text(POLICY, "utf-8")
    with TemporaryDirectory(prefix="evidence-archive-days-") as place:
        scratch = Path(place)
        state = _State([turns // DAYS + (day < turns % DAYS) for day in range(DAYS)])
        _days_before(folder, scratch, state, progress)
        progress(f"day {DAYS}: in another process")
        _run_last_day(folder, scratch)
        progress("the claims")
        report = _report(folder, scratch, _State.load(scratch / _STATE))
    return replace(report, seconds=round(perf_counter() - began, 3))


def _opened(folder: Path, database: Path | None = None, *, create: bool = False) -> Archive:
    url = f"sqlite:///{database or folder / 'evidence.db'}"
    return Archive.open(url, keys=folder / "evidence.keys", policy=folder / "policy.toml", create=create)


def _days_before(folder: Path, scratch: Path, state: _State, progress: Callable[[str], None]) -> None:
    """All days but the last; then the logs of the first are gone."""
    with _opened(folder, create=True) as archive:
        session = archive.session(LONG_SESSION, OWNER)
        state.messages.append({"role": "system", "content": f"{SYSTEM}\n\n{session.instructions}"})
        task = _Task(session, scratch, state)
        for day in range(1, DAYS):
            task.day(day, progress)
        task.noted()
    shutil.rmtree((scratch / FULL_LOG).parent)
    state.save(scratch / _STATE)


def _run_last_day(folder: Path, scratch: Path) -> None:
    try:
        subprocess.run(  # noqa: S603 - this very module, in this very interpreter
            [sys.executable, "-m", "evidence_archive.cli.demo_long", str(folder), str(scratch)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHILD_SECONDS_MAX,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr)
        raise


def _last_day(folder: Path, scratch: Path) -> None:
    """The last day, by a process that has nothing but the store, the keys and the application's messages."""
    state = _State.load(scratch / _STATE)
    with _opened(folder) as archive:
        task = _Task(archive.session(LONG_SESSION, OWNER), scratch, state)
        task.noted()
        task.day(DAYS, lambda words: None)
    state.save(scratch / _STATE)


# --- the claims -------------------------------------------------------------------------------------------------


def _report(folder: Path, scratch: Path, state: _State) -> LongReport:
    with _opened(folder) as archive:
        session = archive.session(LONG_SESSION, OWNER)
        view = session.view(state.messages)
        stats, card, books = session.stats(), session.card(), session.ledger.books()
        answer = _answer(session, state)
        claims = [
            *_claims_on_the_window(session, state, view),
            *_claims_on_the_books(session, state, books),
            *_claims_on_the_resume(session, state, answer),
        ]
    sound, changed, closed = _tampered(folder, scratch, answer.result_id)
    citing = {
        fact.id
        for fact in books.current()
        if fact.is_key and any(source.result_id == answer.result_id for source in fact.sources)
    }
    tampered = {one.fact_id: one.why for one in changed.disagreements}
    claims.append(
        Claim(
            f"one changed byte in the stored {answer.result_id} is reported by the next reconciliation, and the "
            "books do not close",
            sound.agrees and bool(tampered) and set(tampered) == citing and not closed,
        )
    )
    return LongReport(
        turns=state.turns,
        whole=[one.whole for one in state.requests],
        window=[one.window for one in state.requests],
        budget_tokens=WINDOW_TOKENS_MAX,
        tokens_estimated=stats.tokens_estimated,
        archived=stats.archived,
        batches=stats.batches,
        restores=stats.restores,
        spans=len(state.spans),
        prefixes_kept=sum(one.grown for one in state.requests[1:]),
        card_changes=card.version,
        facts=len(books.facts),
        superseded=len(books.facts) - len(books.current()),
        periods=[len(period.facts) for period in books.periods.values()],
        answer=answer,
        tampered=tampered,
        seconds=0.0,
        claims=claims,
    )


def _answer(session: Session, state: _State) -> Answer:
    result_id, said = state.ids[_FULL], state.digests[_FULL]
    restored = session.restore(result_id)
    return Answer(state.answer, state.full_line, result_id, restored.size_bytes, said, restored.sha256)


def _claims_on_the_window(session: Session, state: _State, view: Sequence[Any]) -> Iterator[Claim]:
    requests = state.requests
    peaks = [max(one.window for one in requests if one.day == day) for day in range(1, DAYS + 1)]
    yield Claim(
        f"no request has more than {WINDOW_TOKENS_MAX:,} tokens: at most {_listed(peaks)} on the three days",
        max(peaks) <= WINDOW_TOKENS_MAX,
    )
    yield Claim(
        f"without a window the last request would have {requests[-1].whole:,} tokens, more than the window holds",
        requests[-1].whole > WINDOW_TOKENS_MAX,
    )
    yield Claim("every call of every request has its one result, in order", all(one.paired for one in requests))
    yield Claim(
        "the signed order and the goal of the card stand in every request but the first, which led to them",
        all(one.order and one.goal for one in requests[1:]),
    )
    count, spans = len(state.messages), len(state.spans)
    yield Claim(
        f"each of {count:,} messages is in the window or comes back from one of {spans} spans",
        bool(state.spans) and not _missing(session, state, view),
    )


def _missing(session: Session, state: _State, view: Sequence[Any]) -> set[str]:
    """Messages of the application that are neither in the view nor in what left it."""
    spans = [json.loads(line) for name in state.spans for line in session.restore(name).content.split("\n")]
    return set(map(_known_by, state.messages)) - set(map(_known_by, [*view, *spans]))


def _known_by(message: Any) -> str:
    """By its calls, the call it answers, or its words: results look different once they are archived."""
    calls = [call["id"] for call in message.get("tool_calls") or ()]
    return json.dumps([message["role"], calls or message.get("tool_call_id") or message["content"]])


def _claims_on_the_books(session: Session, state: _State, books: Books) -> Iterator[Claim]:
    card, ledger = session.card(), session.ledger
    periods = list(books.periods.values())
    report = ledger.reconcile(strong=True)
    said = {result_id: state.digests[key] for key, result_id in state.ids.items()}
    sources = [source for fact in books.facts.values() for source in fact.sources]
    cited = [(source.reference.partition("#")[0], source.original_sha256) for source in sources]
    yield Claim(
        "steps of the card move one at a time: all are done, and a jump was refused",
        [item.state for item in card.items.values() if item.kind == "step"] == ["done"] * DAYS
        and any("s1 is draft and cannot become done" in str(message["content"]) for message in state.messages),
    )
    yield Claim(
        f"{len(books.facts)} facts passed a check of the host; a claim of the model that is false became none",
        state.false_claim in books.claims
        and all(fact.claim_id != state.false_claim for fact in books.facts.values())
        and len(books.facts) == len(books.claims) - 1,
    )
    yield Claim(
        f"each of {report.strong} facts that hold leads to its original, read again and as the tool said it",
        report.agrees
        and report.strong == len(books.current()) > 0
        and all(said[head] == digest for head, digest in cited if not head.startswith("artifact:")),
    )
    yield Claim(
        "the books were closed at the end of each day, each period begins with the balance of the one before",
        [period.opening_balance_ref for period in periods] == [None, "p1", "p2"],
    )
    slowest = [fact.id for fact in books.history(state.slowest or "")]
    holding = [line.partition(":")[0] for line in ledger.opening()]
    yield Claim(
        f"{slowest[-1]} took the place of {_listed(slowest[:-1])}, still there, but not in the balance",
        [books.facts[one].superseded_by for one in slowest] == [*slowest[1:], None]
        and len(slowest) == DAYS
        and [one for one in slowest if one in holding] == [state.slowest],
    )


def _claims_on_the_resume(session: Session, state: _State, answer: Answer) -> Iterator[Claim]:
    sent = [one for one in state.requests if one.day == DAYS]
    trace = re.search(r"trace=(\w+)", answer.log_line)
    pointers = [line for line in session.ledger.opening(f"p{DAYS - 1}") if f"[{answer.result_id}#L" in line]
    yield Claim(
        f"day {DAYS} ran in another process, whose first view is the last one of the first, byte for byte",
        len(set(state.pids)) == 2 and len(set(state.views)) == 1,
    )
    yield Claim(
        f"the opening balance of day {DAYS} points to {answer.result_id}, archived, not in view when asked for",
        len(pointers) == 1
        and not sent[0].full
        and {one.id: one.state for one in session.results()}[answer.result_id] == "archived",
    )
    yield Claim(
        f"the model finds it, restores it and answers what the log of day 1 says: {answer.words}",
        trace is not None and trace[1] in answer.words and any(one.full for one in sent),
    )
    yield Claim(
        f"the original of day 1 comes back with the sha256 of what the tool said: {answer.sha256_said[:16]}...",
        answer.sha256_restored == answer.sha256_said,
    )


def _tampered(folder: Path, scratch: Path, result_id: str) -> tuple[Report, Report, bool]:
    """What reconciliations find in a copy of the store, and once a byte of an original was changed in it.

    Args:
        folder: with the store.
        scratch: for the copy.
        result_id: of the original.

    Returns:
        Both reports, and whether the books closed after the second.
    """
    with TemporaryDirectory(dir=scratch) as place:
        copy = Path(place, "evidence.db")
        copy_database(folder / "evidence.db", copy)
        with _opened(folder, copy) as archive:
            ledger = archive.session(LONG_SESSION, OWNER).ledger
            sound = ledger.reconcile()
            flip_a_byte(copy, int(result_id[1:]))
            changed = ledger.reconcile()
            try:
                ledger.close()
            except CheckFailedError:
                return sound, changed, False
            return sound, changed, True


def _listed(values: Sequence[object]) -> str:
    words = [f"{value:,}" if isinstance(value, int) else str(value) for value in values]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


if __name__ == "__main__":
    _last_day(Path(sys.argv[1]), Path(sys.argv[2]))
