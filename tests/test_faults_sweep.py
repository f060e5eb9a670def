"""The sweep: it meets every passing, finds nothing on our store, and finds what naive archives do wrong."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from conftest import Desk
from doubles import Characters, policy_of

from evidence_archive import Archive, Policy, Principal
from evidence_archive.errors import FormatError, MisuseError, PolicyError, StoreUnavailableError
from evidence_archive.keys import open_provider
from evidence_archive.objects.directory import DirectoryObjects
from evidence_archive.store import open_store, sqlite
from evidence_archive.testing import crashing
from evidence_archive.testing import sweeping as sweep_module
from evidence_archive.testing.conversing import CLEAN, PROBE_NOTE, Probe, Told, tool_allowed_by
from evidence_archive.testing.crashing import Configuration, Crashing
from evidence_archive.testing.faults import FaultPlan, faulted
from evidence_archive.testing.sweeping import Outcome, Sweep, Trial, set_fault, sweep

PROBE = Probe(Principal("faults-probe", "fault-sweep"))
Make = Callable[[FaultPlan], Archive]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting, and no syncing: power is not what is swept here."""
    monkeypatch.setattr(sweep_module, "DELAY_MS", 1)
    monkeypatch.setattr(sqlite, "journal_rules", lambda version: ("memory", 0))


@pytest.fixture
def policy() -> Policy:
    return policy_of(view_wait_ms_max=50, store_wait_ms_max=200)


@pytest.fixture
def make(desk: Desk, policy: Policy) -> Make:
    return lambda plan: faulted(desk.open(policy=policy, counter=Characters()), plan)


def found(outcomes: Iterator[Outcome]) -> set[str]:
    return {violation for outcome in outcomes for violation in outcome.violations}


# --- on what ships ----------------------------------------------------------------------------------------------


def test_every_fault_at_every_passing_leaves_all_or_nothing_and_the_truth(
    make: Make, record_property: Callable[[str, object], None]
) -> None:
    one = Sweep(make, probe=PROBE, kinds=["error", "outage", "crash"])
    outcomes = [*one.first_use(), *map(one.run, one.rehearse())]
    waiting = Sweep(make, probe=PROBE, kinds=["delay"], points="store.commit.*")  # the long run waits everywhere
    outcomes += map(waiting.run, waiting.rehearse())
    record_property("trials", len(outcomes))
    assert [(outcome.trial, outcome.violation) for outcome in outcomes if not outcome.ok] == []
    assert len(outcomes) > 300
    met = {(outcome.trial.operation, outcome.trial.kind) for outcome in outcomes}
    everywhere = {*CLEAN, "first use"}
    assert {operation for operation, _ in met} == everywhere
    assert {kind for _, kind in met} == {"error", "outage", "delay", "crash", "held"}
    assert {outcome.state for outcome in outcomes} == {"all", "nothing"}
    assert all(outcome.restored_equal is True for outcome in outcomes if outcome.next_view == "new")
    points = {outcome.trial.point for outcome in outcomes}
    assert {"store.create_org.after", "store.commit.after", "store.insert_originals.before", "keys.unwrap"} <= points


def test_a_commit_that_fails_is_nothing_and_one_that_is_only_said_to_fail_is_all(make: Make) -> None:
    for point, state, told in (
        ("store.commit.before", "nothing", "rejected: store_unavailable"),
        ("store.commit.after", "all", "receipt"),
    ):
        outcomes = sweep(make, probe=PROBE, kinds=["error"], points=point)
        archiving = [one for one in outcomes if one.trial.operation == "archive"]
        assert [(one.state, one.told, one.next_view) for one in archiving] == [
            (state, told, "new" if state == "all" else "old")
        ]


def test_a_sweep_counts_what_it_leaves_in_the_store(make: Make) -> None:
    one = Sweep(make, probe=PROBE, kinds=["error"], points="store.insert_batch.before")
    trials = one.rehearse()
    assert [outcome.ok for outcome in map(one.run, trials)] == [True] * len(trials)
    left = one.left_behind()
    assert (left["sessions"], left["originals"], left["batches"]) == (2 + len(trials), 3 * (2 + len(trials)), 3)
    assert left["audit entries"] > left["sessions"]


def test_a_second_sweep_in_the_same_org_has_sessions_of_its_own(make: Make) -> None:
    for _ in range(2):
        one = Sweep(make, probe=PROBE, kinds=["error"], points="store.commit.after")
        assert found(map(one.run, one.rehearse())) == set()
    assert list(one.first_use()) == []


def test_the_long_wait_is_in_the_commit_of_the_batch_and_not_in_that_of_the_collector(sqlite_desk: Desk) -> None:
    sqlite_desk.open().close()
    opened = Configuration(sqlite_desk.url, str(sqlite_desk.keys)).open
    one = Sweep(opened, probe=replace(PROBE, large_chars=1_200_000), kinds=["delay"], points="store.commit.before")
    (held,) = [trial for trial in one.rehearse() if trial.kind == "held"]
    assert one.run(held).violation is None
    later = one.run(replace(held, number=held.number + 1))
    assert later.violation == "While the commit was held, another process saw a new view."


# --- what cannot be swept ---------------------------------------------------------------------------------------


def test_a_policy_that_keeps_the_probe_in_view_is_said_so(desk: Desk) -> None:
    rules = policy_of(default="never")
    with pytest.raises(PolicyError, match=r"results of the tool 'faults\.probe' be archived"):
        list(sweep(lambda plan: faulted(desk.open(policy=rules), plan), probe=PROBE))
    with pytest.raises(PolicyError, match=r"'faults\.probe', 'other'"):
        tool_allowed_by(rules, PROBE.principal, ["faults.probe", "other"])


def test_a_tool_is_chosen_that_may_be_archived_and_restored() -> None:
    rules = policy_of(
        '[[archive]]\nid="a"\ntools=["logs.*"]\neffect="allow"\nage_turns_min=3\n'
        '[[archive]]\nid="b"\ntools=["trace.*"]\neffect="allow"\n[[restore]]\nid="c"\ntools=["logs.*"]\nroles=["vet"]',
        default="never",
    )
    tools = ["faults.probe", "logs.x", "trace.x"]
    assert tool_allowed_by(rules, PROBE.principal, tools) == "trace.x"
    assert tool_allowed_by(rules, Principal("o", "s", {"vet"}), tools) == "logs.x"


def test_unknown_kinds_and_points_are_refused(make: Make) -> None:
    for named in ({"kinds": ["eror"]}, {"kinds": []}, {"points": "store.comit"}):
        with pytest.raises(FormatError):
            Sweep(make, probe=PROBE, **named)  # type: ignore[arg-type]
    with pytest.raises(FormatError):
        set_fault(FaultPlan(), Trial("archive", "store.org", 1, "held"))


def test_zero_faults_is_not_a_clean_sweep(make: Make) -> None:
    with pytest.raises(MisuseError, match="meets no point"):
        list(sweep(make, probe=PROBE, points="objects.put.before"))


def test_a_store_that_is_away_cannot_be_swept(make: Make) -> None:
    def away(plan: FaultPlan) -> Archive:
        plan.error("store.reading")
        return make(plan)

    with pytest.raises(StoreUnavailableError):
        Sweep(away, probe=PROBE).rehearse()


def test_a_fault_that_was_never_met_is_a_violation(make: Make) -> None:
    one = Sweep(make, probe=PROBE)
    one.rehearse()
    outcome = one.run(Trial("archive", "store.commit.before", 99, "error"))
    assert "The fault was never met" in str(outcome.violation)


# --- what it must find: naive archives --------------------------------------------------------------------------


class Naive:
    """A store that hands everything on; what inherits from it does one thing as it should not be done."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def scoped(self, *given: Any) -> Any:
        return type(self)(self.inner.scoped(*given))


class WritesBehind(Naive):
    """An object store that brings objects to their place when it is closed."""

    name = "behind"

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.held: dict[str, bytes] = {}

    def put(self, key: str, data: bytes) -> None:
        self.held[key] = data

    def get(self, key: str) -> bytes | None:
        return self.held.get(key) or self.inner.get(key)

    def close(self) -> None:
        for key, data in self.held.items():
            self.inner.put(key, data)
        self.inner.close()


@pytest.mark.parametrize("behind", [False, True])
def test_a_crash_loses_what_an_object_store_only_held_in_memory(desk: Desk, policy: Policy, behind: bool) -> None:
    def make(plan: FaultPlan) -> Archive:
        objects: Any = DirectoryObjects(desk.folder / "objects", create=True)
        objects = WritesBehind(objects) if behind else objects
        store, keys = open_store(desk.url), open_provider(desk.keys)
        archive = Archive(
            store, keys=keys, policy=policy, counter=Characters(), objects=objects, inline_size_max=1_000
        )
        return faulted(archive, plan)

    one = Sweep(make, probe=PROBE, kinds=["crash"], points="store.commit.after")
    violated = found(map(one.run, one.rehearse()))
    assert any("does not come back equal" in violation for violation in violated) == behind
    assert behind or violated == set()


class Writing(Naive):
    """One whose writers are wrapped too."""

    Writer: Callable[..., Any] = Naive

    @contextmanager
    def writing(self, wait_ms: int, *, audited: bool) -> Iterator[Any]:
        with self.inner.writing(wait_ms, audited=audited) as writer:
            yield self.Writer(writer)


class Piecemeal(Naive):
    """Commits every statement on its own, and every row of an update."""

    class Writer(Naive):
        def __init__(self, inner: Any, audited: bool) -> None:
            super().__init__(inner)
            self.audited = audited

        def __getattr__(self, name: str) -> Any:
            def call(*given: Any) -> Any:
                with self.inner.writing(5_000, audited=self.audited) as writer:
                    return getattr(writer, name)(*given)

            return call

        def update_results(self, rows: Any) -> None:
            for row in rows:
                with self.inner.writing(5_000, audited=self.audited) as writer:
                    writer.update_results([row])

    @contextmanager
    def writing(self, wait_ms: int, *, audited: bool) -> Iterator[Any]:
        yield self.Writer(self.inner, audited)


class LosesOriginals(Writing):
    """Goes on when an original could not be written."""

    class Writer(Naive):
        def insert_originals(self, originals: Any) -> None:
            with suppress(StoreUnavailableError):
                self.inner.insert_originals(originals)


class Unaudited(Writing):
    """Goes on when the audit entry could not be written."""

    class Writer(Naive):
        def append(self, *given: Any) -> None:
            with suppress(StoreUnavailableError):
                self.inner.append(*given)


class AcknowledgesFirst(Naive):
    """Says yes, and commits if it can."""

    @contextmanager
    def writing(self, wait_ms: int, *, audited: bool) -> Iterator[Any]:
        block = self.inner.writing(wait_ms, audited=audited)
        writer = block.__enter__()
        yield writer
        with suppress(StoreUnavailableError):
            block.__exit__(None, None, None)


class Untyped(Writing):
    """Hands the driver's errors on."""

    class Writer(Naive):
        def insert_batch(self, row: Any) -> None:
            try:
                self.inner.insert_batch(row)
            except StoreUnavailableError as error:
                raise RuntimeError("the driver's words") from error


@pytest.mark.parametrize(
    ("naive", "point", "said"),
    [
        (Piecemeal, "store.update_results.before", "A part of the batch is archived."),
        (Piecemeal, "store.update_session.before", "cannot be read any more"),
        (LosesOriginals, "store.insert_originals.before", "does not come back equal"),
        (Unaudited, "store.append.before", "originals were released, and the audit log holds"),
        (AcknowledgesFirst, "store.commit.before", "A receipt was given, and not all"),
        (Untyped, "store.insert_batch.before", "no error of this library"),
    ],
)
def test_a_naive_store_is_found_out(desk: Desk, policy: Policy, naive: type[Naive], point: str, said: str) -> None:
    def make(plan: FaultPlan) -> Archive:
        archive = desk.open(policy=policy, counter=Characters())
        faulted(archive, plan)
        archive._around = replace(archive._around, store=naive(archive._around.store))
        return archive

    violations = found(sweep(make, probe=PROBE, kinds=["error"], points=point))
    assert any(said in violation for violation in violations), violations


class Eager:
    """A session that shows notes for what it was asked to archive, whatever became of it."""

    def __init__(self, inner: Any, shown: int) -> None:
        self.inner, self.shown, self.asked = inner, shown, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def archive(self, *given: Any, **named: Any) -> Any:
        self.asked = True
        return self.inner.archive(*given, **named)

    def view(self, messages: Any) -> Any:
        view = self.inner.view(messages)
        results = [message for message in view if message["role"] == "tool"][: self.shown if self.asked else 0]
        return [
            {**message, "content": f"[archived r1]\n> {PROBE_NOTE}"} if message in results else message
            for message in view
        ]


@pytest.mark.parametrize(
    ("shown", "said"),
    [(3, "A note was shown for what is not archived."), (1, "The operation next view told 'mixed'.")],
)
def test_a_view_that_shows_a_note_early_is_found_out(make: Make, shown: int, said: str) -> None:
    def eager(plan: FaultPlan) -> Archive:
        archive = make(plan)
        opened = archive.session
        archive.session = lambda *given, **named: Eager(opened(*given, **named), shown)  # type: ignore[method-assign,assignment,return-value]
        return archive

    outcomes = sweep(eager, probe=PROBE, kinds=["error"], points="store.commit.before")
    assert said in found(outcomes)


def test_a_restore_that_gives_back_something_else_is_found_out(make: Make) -> None:
    def altered(plan: FaultPlan) -> Archive:
        archive = make(plan)
        restore = archive.restore
        archive.restore = lambda *given, **named: replace(restore(*given, **named), content="else")  # type: ignore[method-assign]
        return archive

    outcomes = sweep(altered, probe=PROBE, kinds=["error"], points="store.peeking")
    assert "An archived original does not come back equal." in found(outcomes)


def test_an_archive_that_does_not_recover_is_found_out(make: Make) -> None:
    struck = False

    def tired(plan: FaultPlan) -> Archive:
        nonlocal struck
        struck = struck or any(fault.points == "store.append.before" for fault in plan._faults)
        if struck and not plan._faults:
            plan.error("store.writing.begin")
        return make(plan)

    outcomes = [
        outcome
        for outcome in sweep(tired, probe=PROBE, kinds=["error"], points="store.append.before")
        if outcome.trial.operation == "archive"
    ]
    assert any("cannot be archived any more" in violation for violation in found(iter(outcomes)))


def test_only_whole_views_of_one_kind_pass_for_old_or_new() -> None:
    messages = PROBE.messages()
    note = {"content": f"[archived r1 tag=0000]\n> {PROBE_NOTE}"}
    results = [at for at, message in enumerate(messages) if message["role"] == "tool"]

    def with_notes(*places: int) -> list[Any]:
        return [{**one, **note} if at in places else one for at, one in enumerate(messages)]

    assert PROBE.shown(messages) == "old"
    assert PROBE.shown(with_notes(*results)) == "new"
    labelled = [
        {**one, "content": f"[evidence r1 tag=0000]\n{one['content']}"} if at in results else one
        for at, one in enumerate(messages)
    ]
    assert PROBE.shown(labelled) == "old"
    changed = [
        {**one, "content": one["content"] + "!"} if at == results[0] else one for at, one in enumerate(messages)
    ]
    for view in (with_notes(results[0]), with_notes(0, *results), messages[:-1], changed):
        assert PROBE.shown(view) == "mixed"


# --- processes that die -----------------------------------------------------------------------------------------


@pytest.fixture
def configuration(desk: Desk) -> Configuration:
    desk.open().close()
    return Configuration(desk.url, str(desk.keys))


def test_a_killed_process_leaves_all_or_nothing(configuration: Configuration) -> None:
    with Crashing(configuration, PROBE) as killed:
        one = Sweep(configuration.open, probe=PROBE, kinds=["crash"], points="store.commit.*", killed=killed)
        trials = [trial for trial in one.rehearse() if trial.operation == "archive"]
        outcomes = [one.run(trial) for trial in trials]
    assert [(one.trial.point, one.told, one.state, one.violation) for one in outcomes] == [
        ("store.commit.before", "killed", "nothing", None),
        ("store.commit.after", "killed", "all", None),
    ]


def test_a_process_killed_while_an_org_is_made_leaves_it_whole_or_not_there(configuration: Configuration) -> None:
    with Crashing(configuration, PROBE) as killed:
        one = Sweep(configuration.open, probe=PROBE, kinds=["crash"], points="store.create_org.before", killed=killed)
        outcomes = list(one.first_use())
        assert [(one.told, one.state, one.violation) for one in outcomes] == [("killed", "nothing", None)]
        never = Sweep(
            configuration.open,
            probe=replace(PROBE, principal=Principal("faults-else", "fault-sweep")),
            kinds=["crash"],
            points="keys.wrap",
            killed=lambda trial, session_id: None,
        )
        assert [one.violation for one in never.first_use()] == [sweep_module.NOT_KILLED]


def test_what_a_process_told_before_it_was_killed_is_heard(configuration: Configuration) -> None:
    with closing(configuration.open(FaultPlan())) as archive:
        archive.session("first", PROBE.principal)
    with Crashing(configuration, PROBE) as killed:
        told = killed(Trial("next view", "store.peeking", 5, "crash"), "case")
    assert told == [Told("open", "opened"), Told("view", "old"), Told("archive", "receipt")]


def test_a_process_that_was_not_killed_at_its_point_is_a_violation(configuration: Configuration) -> None:
    with Crashing(configuration, PROBE) as killed:
        one = Sweep(configuration.open, probe=PROBE, kinds=["crash"], killed=killed)
        outcome = one.run(Trial("archive", "store.commit.before", 99, "crash"))
    assert outcome.violation == "The process was not killed at the point: it was never met."
    with pytest.raises(MisuseError, match="'with' statement"):
        killed(Trial("archive", "store.commit.before", 1, "crash"), "case")


def test_a_process_that_hangs_or_cannot_be_started_is_no_success(
    configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crashing, "CRASH_SECONDS_MAX", 0)
    with Crashing(configuration, PROBE) as killed:
        assert killed(Trial("archive", "store.commit.before", 1, "crash"), "case") is None
    monkeypatch.setattr("sys.executable", str(configuration.keys) + "/none")
    with pytest.raises(MisuseError, match="sweep without crashes"), Crashing(configuration, PROBE):
        pytest.fail("nothing was started")


def test_a_store_that_has_to_exist_is_not_made(sqlite_desk: Desk) -> None:
    with pytest.raises(StoreUnavailableError):
        Configuration(sqlite_desk.url, str(sqlite_desk.keys)).open(FaultPlan(), create=False)
    assert not sqlite_desk.database.exists()
