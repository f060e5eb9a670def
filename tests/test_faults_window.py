"""A fault at every passing of every edge while a card changes, facts are posted and turns leave the window.

Whatever happens: a book holds a whole posting or none, what was told is so, no message that left is lost, a view goes
on within its budget, and an archive opened anew does the same work again.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import Characters, policy_of
from test_session_window import BUDGET, everything, size

from evidence_archive import Archive, Principal, Receipt, Session, Target
from evidence_archive.archiving import Archiving, Kept
from evidence_archive.books import Books, Posting
from evidence_archive.carding import Carding
from evidence_archive.errors import EvidenceArchiveError, StoreError
from evidence_archive.keys import new_keys
from evidence_archive.ledger.checks import quotes
from evidence_archive.store import sqlite
from evidence_archive.testing.conversing import Told, tell
from evidence_archive.testing.faults import Crashed, FaultPlan, faulted
from evidence_archive.testing.sweeping import Trial, set_fault
from evidence_archive.windowing import Windowing

OWNER = Principal(org="north-clinic", subject="triage-agent", roles={"agent", "custodian"})
POLICY = policy_of(
    f"[window]\nwindow_tokens_max = {BUDGET}\narchive_tokens_min = 50\n", view_wait_ms_max=50, store_wait_ms_max=200
)
KINDS = ("error", "outage", "crash")
PRODUCT = "the average is 24.87 M\n"
CHANGES = [{"goal": "find the fault"}, {"add": "step", "text": "measure"}]
PAGE = "page {at} of a made-up log: nothing is the matter\n"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No syncing: power is not what is swept here."""
    monkeypatch.setattr(sqlite, "journal_rules", lambda version: ("memory", 0))


def spoken() -> list[Any]:
    """A conversation that does not fit: turns have to leave, and results are archived."""
    talk = Conversation()
    for at in range(9):
        talk.tool(PAGE.format(at=at) * 30)
        talk.say(f"Turn {at}: I have read it. " * 40)
    return talk.messages


@dataclass
class Work:
    """What is done in one session, and what was told of it.

    Args:
        session_id: of a new session.
    """

    session_id: str
    told: list[Told] = field(default_factory=list)
    begins: Callable[[str], object] = lambda operation: None

    def run(self, archive: Archive) -> None:
        session, messages = archive.session(self.session_id, OWNER), spoken()
        other = list[Session]()
        self._told("view", lambda: self.seen(session.view(messages[:3])))
        self._told("card", lambda: str(len(session.update_card(CHANGES).items)))
        self._told("fact", lambda: self.posted(session))
        self._told("commit", lambda: self.seen(session.view(messages)))
        self._told("search", lambda: str(session.search("page 2").searched > 0))
        self._told("open again", lambda: str(other.append(archive.session(self.session_id, OWNER))))
        if other:
            self._told("resume", lambda: self.seen(other[0].view(messages)))

    def _told(self, operation: str, verb: Callable[[], str]) -> None:
        self.begins(operation)
        told = tell(operation, verb)
        self.told.append(told)
        if isinstance(told.error, Crashed):
            raise told.error

    def posted(self, session: Session) -> str:
        ledger = session.ledger
        ledger.store("out/avg.txt", PRODUCT)
        claim = ledger.claim("it is 24.87 M", ["artifact:out/avg.txt#L1", "r1#L1"])
        ledger.verify(claim, quotes("24.87"), key=True)
        return ledger.close().id

    @staticmethod
    def seen(view: list[Any]) -> str:
        return "fits" if size(view) <= BUDGET else "too large"


CLEAN = {"view": "fits", "card": "1", "fact": "p1", "commit": "fits", "search": "True"}
CLEAN |= {"open again": "None", "resume": "fits"}


class Sweep:
    """The trials on one store.

    Args:
        desk: with the store; sessions stay in it.
    """

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.count = 0

    def open(self, plan: FaultPlan | None = None) -> Archive:
        archive = self.desk.open(policy=POLICY, counter=Characters())
        return archive if plan is None else faulted(archive, plan)

    def work(self, **named: Any) -> Work:
        self.count += 1
        return Work(f"case {self.count}", **named)

    def rehearse(self, *, all_of_them: bool = False) -> list[Trial]:
        """Every trial there is, or those of a sample: an error wherever something is written, the rest once."""
        for _ in range(2):  # the first one makes the org
            plan, begins = FaultPlan(), list[tuple[str, int]]()
            work = self.work(begins=lambda name, plan=plan, begins=begins: begins.append((name, len(plan.passings))))
            with closing(self.open(plan)) as archive:
                work.run(archive)
            assert {one.operation: one.word for one in work.told} == CLEAN
        met: set[tuple[str, str, str]] = set()
        trials = []
        for at, (point, number) in enumerate(plan.passings):
            if at < begins[0][1]:
                continue
            operation = next(name for name, first in reversed(begins) if first <= at)
            for kind in KINDS:
                writes = point.endswith((".before", ".after"))
                is_new = (operation, point, kind) not in met
                if all_of_them or (is_new and writes) or (kind == "error" and (is_new or writes)):
                    trials.append(Trial(operation, point, number, kind))
                met.add((operation, point, kind))
        return trials

    def wrong(self, trial: Trial) -> list[str]:
        """What is wrong after a fault."""
        plan, work = FaultPlan(), self.work()
        set_fault(plan, trial)
        with closing(self.open(plan)) as archive, suppress(Crashed):
            work.run(archive)
        found = [] if plan.count(trial.point) >= trial.number else ["The fault was never met."]
        words = {one.operation: one.word for one in work.told}
        found += [f"{name} told {word}" for name, word in words.items() if word.startswith("untyped")]
        found += [f"A view told {words[one]}." for one in VIEWS if words.get(one, "fits") not in OF_A_VIEW]
        try:
            with closing(self.open()) as archive:
                found += self.left(archive, work, words)
                found += self.again(archive, work)
            with closing(self.open()) as archive:
                found += self.whole(archive.session(work.session_id, OWNER))
        except EvidenceArchiveError as error:
            found.append(f"After the fault the archive cannot be read any more: {error}")
        return found

    @staticmethod
    def left(archive: Archive, work: Work, words: dict[str, str]) -> Iterator[str]:
        """What of the books must not be."""
        session = archive.session(work.session_id, OWNER)
        card, books = session.card(), session.ledger.books()
        if card.version not in (0, 2) or (card.version == 0 and words.get("card") == "1"):
            yield f"The card has version {card.version}, and it was told {words.get('card')}."
        kinds = [len(books.artifacts), len(books.claims), len(books.facts), len(books.periods)]
        if kinds != sorted(kinds, reverse=True) or max(kinds) > 1 or (words.get("fact") == "p1" and kinds[3] != 1):
            yield f"The ledger holds {kinds}, and it was told {words.get('fact')}."
        yield from Sweep.whole(session)

    @staticmethod
    def whole(session: Session) -> Iterator[str]:
        """Whether a view fits and no message is lost."""
        messages = spoken()
        view = session.view(messages)
        if size(view) > BUDGET:
            yield "A view is too large."
        lost = everything(session, view, messages)
        if lost:
            yield f"Messages {lost} are neither in the view nor in the archive."

    @staticmethod
    def again(archive: Archive, work: Work) -> Iterator[str]:
        """Whether the work can go on in another process."""
        session = archive.session(work.session_id, OWNER)
        if session.update_card([{"add": "step", "text": "go on"}]).version not in (1, 3):
            yield "The card did not go on."
        work.posted(session)
        report = session.ledger.reconcile(strong=True)
        if not report.agrees or not report.strong:
            yield "The ledger did not go on."


VIEWS, OF_A_VIEW = ("view", "commit", "resume"), ("fits", "crashed")


def found(sweep: Sweep, trials: list[Trial]) -> dict[str, list[Trial]]:
    """Trials by what was wrong after them."""
    wrong: dict[str, list[Trial]] = {}
    for trial in trials:
        for one in sweep.wrong(trial):
            wrong.setdefault(one, []).append(trial)
    return wrong


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Sweep]:
    # Thousands of commits, and none of them is about durability: in memory where there is such a place.
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        new_keys(Path(folder) / "evidence.keys")
        yield Sweep(Desk(Path(folder)))


def test_a_fault_at_any_edge_leaves_no_half_posting_and_loses_no_span(
    sweep: Sweep, record_property: Callable[[str, object], None]
) -> None:
    trials = sweep.rehearse()
    record_property("trials", len(trials))
    assert found(sweep, trials) == {}
    assert len(trials) > 250
    assert {trial.operation for trial in trials} == set(CLEAN)
    points = {trial.point for trial in trials}
    assert {"store.insert_postings.after", "store.postings", "store.posted", "store.commit.after"} <= points
    with closing(sweep.open()) as archive:
        assert archive.custody(OWNER).verify("full").findings == ()
        assert archive.audit(principal=OWNER).intact


@pytest.mark.nightly
def test_any_fault_at_every_passing_of_every_edge_does_so_too(sweep: Sweep) -> None:
    assert found(sweep, sweep.rehearse(all_of_them=True)) == {}


# --- controls ---------------------------------------------------------------------------------------------------


def changes_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """Break the core: each change of a card is a posting of its own."""
    change = Carding.change

    def naive(self: Carding, changes: Any, call_id: bytes | None = None) -> Any:
        return [change(self, [one], call_id) for one in changes][-1]

    patch.setattr(Carding, "change", naive)


def leaves_without_a_span(patch: pytest.MonkeyPatch) -> None:
    """Break the core: turns leave whether their span was archived or not."""
    keep = Archiving.keep

    def naive(self: Archiving, kept: Kept) -> Receipt:
        try:
            return keep(self, kept)
        except EvidenceArchiveError:
            return Receipt("0" * 32, (Target("r1", "ok", "", 1),), 1, 1, False)

    patch.setattr(Archiving, "keep", naive)


def looks_up_its_place_or_raises(patch: pytest.MonkeyPatch) -> None:
    """Break the core: a view asks the book where it stands and has no answer for a store that is away."""

    shown = Windowing.shown

    def naive(self: Windowing, rendered: Any, render: Any, **named: Any) -> Any:
        self._standing._books.read("window")
        return shown(self, rendered, render, **named)

    patch.setattr(Windowing, "shown", naive)


def closes_whatever_was_posted(patch: pytest.MonkeyPatch) -> None:
    """Break the core: a posting that failed is taken for one that is there."""
    post = Books.post

    def naive(self: Books, book: str, decide: Any) -> Any:
        try:
            return post(self, book, decide)
        except StoreError:
            known = self._known.get(book, ([], None))[0]
            contents, answer = decide(known)
            return [Posting(len(known) + at, 0, one) for at, one in enumerate(contents, 1)], answer

    patch.setattr(Books, "post", naive)


@pytest.mark.parametrize(
    ("broken", "operation", "point", "words"),
    [
        (changes_one_by_one, "card", "store.commit.before", "The card has version 1"),
        (leaves_without_a_span, "commit", "store.insert_originals.before", "are neither in the view nor in the arch"),
        (looks_up_its_place_or_raises, "resume", "store.postings", "A view told StoreUnavailableError."),
        (closes_whatever_was_posted, "card", "store.insert_postings.before", "The card has version 0"),
        (closes_whatever_was_posted, "fact", "store.insert_postings.before", "The ledger holds"),
    ],
)
def test_must_fail_control_the_same_checks_catch_a_naive_core(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, broken: Any, operation: str, point: str, words: str
) -> None:
    broken(monkeypatch)
    trials = [one for one in sweep.rehearse() if (one.operation, one.point, one.kind) == (operation, point, "error")]
    assert any(words in wrong for wrong in found(sweep, trials))
