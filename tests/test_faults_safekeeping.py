"""Rotations and shreds under every fault: all stays readable, nothing is half destroyed, naive ones are found out."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from conftest import Desk
from doubles import Characters, policy_of
from test_faults_sweep import Naive, Piecemeal, Writing, found

from evidence_archive import Archive, Policy, Principal
from evidence_archive.disposal import Disposal
from evidence_archive.errors import FormatError, MisuseError, StoreUnavailableError
from evidence_archive.keys import open_provider
from evidence_archive.proof import leaf as audit
from evidence_archive.rekeying import Rekeying, Rotation
from evidence_archive.store import sqlite
from evidence_archive.testing import sweeping as sweep_module
from evidence_archive.testing.conversing import Probe
from evidence_archive.testing.crashing import Configuration, Crashing
from evidence_archive.testing.faults import FaultPlan, faulted
from evidence_archive.testing.safekeeping import DONE, Act, CustodySweep, own_keys, why_not_swept
from evidence_archive.testing.sweeping import NOT_KILLED, NOT_MET, Outcome, Trial

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


def swept(make: Make, operation: str, **named: Any) -> list[Outcome]:
    """The outcomes of all trials of an operation."""
    with CustodySweep(make, probe=PROBE, operation=operation, **named) as one:
        return [one.run(trial) for trial in one.found()]


# --- on what ships ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", DONE)
def test_after_any_fault_nothing_is_half_done_and_the_operation_can_be_run_again(
    make: Make, desk: Desk, operation: str, record_property: Callable[[str, object], None]
) -> None:
    samples = [("*", ["error"]), ("*.*.*", ["outage", "delay", "crash"])]
    if desk.server is not None:  # the long run meets everything on a server too
        samples = [
            ("store.commit.*", ["error", "crash"]),
            ("store.writing.begin", ["delay"]),
            ("keys.re*", ["error"]),
        ]
    outcomes = [one for points, kinds in samples for one in swept(make, operation, points=points, kinds=kinds)]
    record_property("trials", len(outcomes))
    assert [(outcome.trial, outcome.told, outcome.violation) for outcome in outcomes if not outcome.ok] == []
    assert len(outcomes) >= (80 if desk.server is None else 4)
    states = {outcome.state for outcome in outcomes}
    assert states == ({"all", "part", "nothing"} if operation == "rotate" else {"all", "nothing"})
    assert {one.trial.kind for one in outcomes} >= {"error", "delay", "crash"}
    assert ("rival" in {one.trial.kind for one in outcomes}) == (operation == "rotate")
    views = {"rotate": {"same"}, "complete shred": {"new"}, "shred original": {"old", "new"}}
    assert {one.next_view for one in outcomes} == views.get(operation, {"old", "none"})


@pytest.mark.parametrize("operation", DONE)
def test_every_point_that_an_operation_passes_is_met_with_every_kind(make: Make, operation: str) -> None:
    with CustodySweep(make, probe=PROBE, operation=operation) as one:
        trials = one.found()
    points = {trial.point for trial in trials}
    for kind in ("error", "outage", "delay", "crash"):
        assert {trial.point for trial in trials if trial.kind == kind} == points
    wanted = {
        "rotate": {"keys.new_version.after", "store.update_scopes.before", "store.update_org.after", "keys.reopened"},
        "shred original": {
            "store.update_scopes.after",
            "store.insert_shreds.before",
            "store.destroy_originals.after",
        },
        "shred session": {"store.update_scopes.after", "store.insert_shreds.before", "store.destroy_originals.after"},
        "complete shred": {"keys.retire.before", "keys.retire.after", "store.update_shreds.after", "keys.versions"},
    }
    assert wanted[operation] <= points


def test_the_orgs_of_a_sweep_are_shredded_and_stand_in_nobodys_way(make: Make, desk: Desk) -> None:
    owner = Principal("north-clinic", "triage-agent", {"custodian"})
    with desk.open() as archive:
        archive.session("case", owner)
    with own_keys(lambda: False) as path:

        def on_own_keys(plan: FaultPlan) -> Archive:
            return faulted(desk.open(keys=path), plan)

        with CustodySweep(
            on_own_keys, probe=PROBE, operation="rotate", kinds=["error"], points="store.commit.*"
        ) as one:
            assert found(map(one.run, one.found())) == set()
            assert len(one.orgs) == 2
    assert not path.parent.exists()
    assert one.stuck == []
    with desk.open() as archive:  # retiring asks every org of the store for its census
        archive.custody(owner).rotate()
        archive.custody(owner).retire(1)
        assert archive.custody(owner).backup(desk.folder / "monday").orgs


@pytest.mark.parametrize("operation", ["shred original", "shred session"])
def test_no_object_is_left_of_what_was_shredded(desk: Desk, policy: Policy, operation: str) -> None:
    folder = desk.folder / "objects"

    def make(plan: FaultPlan) -> Archive:
        archive = desk.open(policy=policy, counter=Characters(), objects=folder, inline_size_max=1_000)
        return faulted(archive, plan)

    outcomes = swept(make, operation, points="objects.*")
    assert len(outcomes) >= 8
    assert found(iter(outcomes)) == set()
    assert list(folder.rglob("*.0*")) == []


def test_a_killed_process_leaves_a_rotation_that_goes_on_and_a_shred_whole_or_not_begun(desk: Desk) -> None:
    desk.open().close()
    configuration = Configuration(desk.url, str(desk.keys))
    told = []
    with Crashing(configuration, PROBE) as crashing:

        def killed(trial: Trial, act: Act) -> Any:
            return crashing(trial, act.session_id, principal=act.principal)

        for operation, points in (("rotate", "store.update_scopes.*"), ("complete shred", "keys.retire.*")):
            with CustodySweep(
                configuration.open, probe=PROBE, operation=operation, kinds=["crash"], points=points, killed=killed
            ) as one:
                told += [(out.told, out.state, out.violation) for out in map(one.run, one.found())]
    assert told == [("killed", "part", None)] * 2 + [("killed", "nothing", None)] * 2


# --- what cannot be swept ---------------------------------------------------------------------------------------


def test_what_does_not_exist_is_refused_and_what_is_not_met_is_no_trial(make: Make) -> None:
    for named in ({"operation": "forget"}, {"kinds": ["eror"]}, {"points": "store.comit"}):
        with pytest.raises(FormatError):
            CustodySweep(make, **{"probe": PROBE, "operation": "rotate", **named})  # type: ignore[arg-type]
    with CustodySweep(make, probe=PROBE, operation="rotate", points="objects.put.before") as one:
        assert one.found() == ()
    assert one.stuck == []


def test_a_fault_that_was_never_met_and_a_process_that_was_not_killed_are_violations(make: Make) -> None:
    with CustodySweep(make, probe=PROBE, operation="shred original", killed=lambda trial, act: None) as one:
        never = one.run(Trial("shred original", "store.commit.before", 99, "error"))
        alive = one.run(Trial("shred original", "store.commit.before", 1, "crash"))
    assert (never.violations, alive.violations) == ((NOT_MET,), (NOT_KILLED,))


def test_why_something_is_not_swept_is_said_in_words(
    sqlite_desk: Desk, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Service:
        shared_by_orgs = False
        versions = new_version = retire = reopened = lambda *given: None

    monkeypatch.setenv("EVA_TEST_KEYS", sqlite_desk.keys.read_text())
    assert why_not_swept(open_provider(sqlite_desk.keys), policy, PROBE) == {}
    assert set(why_not_swept(open_provider("env:EVA_TEST_KEYS"), policy, PROBE)) == {"rotate", "complete shred"}
    service = why_not_swept(Service(), policy, PROBE)  # type: ignore[arg-type]
    keeping = why_not_swept(
        open_provider(sqlite_desk.keys), policy_of('[[retention]]\ntools=["faults.*"]\ndays=3'), PROBE
    )
    assert set(service) == set(keeping) == set(DONE)
    assert "each org has keys of its own" in service["rotate"]
    assert "the policy keeps results of the tool 'faults.probe'" in keeping["shred original"]


def test_an_org_that_cannot_be_shredded_is_named_and_its_keys_stay(desk: Desk) -> None:
    with own_keys(lambda: one.stuck) as path:
        one = CustodySweep(
            lambda plan: faulted(desk.open(keys=path), plan), probe=PROBE, operation="shred original", kinds=["error"]
        )
        with one:
            one._prepared()
            officer = one._probe.principal
            with desk.open(keys=path) as archive:
                hold = archive.custody(officer).hold("It is asked for.")
    assert one.stuck == [officer.org]
    with desk.open(keys=path) as archive:
        archive.custody(officer).release(hold.id)
        assert archive.custody(officer).shred().originals == 3
    path.unlink()
    path.parent.rmdir()


# --- what it must find: naive rotations and shreds ----------------------------------------------------------------


def _overwrites(self: Rekeying, version: int) -> int:
    """Wraps what it has read, whatever became of it since."""
    vault = self._vault
    new = [vault.wrapped_scope(vault.scope_keys(one), one.created_at_us) for one in self._scopes(b"") if one.wrapped]
    vault.transact(lambda writer: writer.update_scopes(new))
    return len(new)


def _retires_first(self: Rekeying, *, new_version: bool = True) -> Rotation:
    """Holds all keys in memory, and destroys what opens them before they are written."""
    keys: Any = self._vault.around.keys
    version = keys.new_version(self._vault.org) if new_version else keys.current_version(self._vault.org)
    self._append(audit.KEY_ROTATED, {"version": version})
    self._sweep_org(version)
    for scope in self._scopes(b""):
        self._vault.scope_keys(scope)
    for older in keys.versions(self._vault.org)[:-1]:
        keys.retire(self._vault.org, older)
    rewrapped = self._sweep_scopes(version)
    self._raise_floor(version)
    return Rotation(self._vault.org, version, rewrapped, self.census())


def _raises_the_floor_first(self: Rekeying, *, new_version: bool = True) -> Rotation:
    keys: Any = self._vault.around.keys
    version = keys.new_version(self._vault.org) if new_version else keys.current_version(self._vault.org)
    self._append(audit.KEY_ROTATED, {"version": version})
    self._sweep_org(version)
    for scope in self._scopes(b""):
        self._vault.scope_keys(scope)
    self._vault.transact(lambda writer: self._vault.counted(writer, kek_floor=version))
    return Rotation(self._vault.org, version, self._sweep_scopes(version), self.census())


def _completes_first(self: Rekeying, version: int, *, others: Any) -> None:
    """Says that shreds are complete, and then destroys the key that would open them."""
    vault, now_us = self._vault, self._vault.around.clock.now_us()

    def completed(writer: Any) -> None:
        rows = [replace(row, completed_at_us=now_us) for row in writer.shreds() if row.completed_at_us is None]
        writer.update_shreds(rows)
        details = [{"shred": row.shred_id.hex()} for row in rows]
        writer.append([vault.leaf(audit.SHRED_COMPLETED, "fault-sweep", details=one) for one in details])

    vault.transact(completed)
    keys: Any = vault.around.keys
    keys.retire(vault.org, version)


@pytest.mark.parametrize(
    ("owner", "name", "naive", "operation", "trial", "said"),
    [
        (
            Rekeying,
            "_sweep_scopes",
            _overwrites,
            "rotate",
            ("delay", "store.writing.begin"),
            "does not come back equal",
        ),
        (Rekeying, "rotate", _retires_first, "rotate", ("error", "store.update_scopes.before"), "come back equal"),
        (
            Rekeying,
            "rotate",
            _retires_first,
            "rotate",
            ("error", "store.scopes"),
            "A version is destroyed under which",
        ),
        (Rekeying, "rotate", _raises_the_floor_first, "rotate", ("crash", "store.update_scopes.before"), "the floor"),
        (
            Rekeying,
            "retire",
            _completes_first,
            "complete shred",
            ("error", "keys.retire.before"),
            "says complete, and",
        ),
        (
            Rekeying,
            "retire",
            _completes_first,
            "complete shred",
            ("crash", "keys.retire.before"),
            "says complete, and",
        ),
    ],
)
def test_a_naive_rotation_or_completion_is_found_out(
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    naive: Any,
    operation: str,
    trial: tuple[str, str],
    said: str,
) -> None:
    monkeypatch.setattr(owner, name, naive)
    violations = found(iter(swept(make, operation, kinds=[trial[0]], points=trial[1])))
    assert any(said in violation for violation in violations), violations
    monkeypatch.undo()
    assert found(iter(swept(make, operation, kinds=[trial[0]], points=trial[1]))) == set()


class Forgets(Writing):
    """Goes on when the old key of a session could not be overwritten."""

    class Writer(Naive):
        def update_scopes(self, rows: Any) -> None:
            with suppress(StoreUnavailableError):
                self.inner.update_scopes(rows)


class LeavesRows(Writing):
    """Goes on when the keys of what is shredded could not be taken out of their rows."""

    class Writer(Naive):
        def update_results(self, rows: Any) -> None:
            with suppress(StoreUnavailableError):
                self.inner.update_results(rows)


class LeavesEnvelopes(Writing):
    """Goes on when an envelope could not be destroyed."""

    class Writer(Naive):
        def destroy_originals(self, ids: Any) -> None:
            with suppress(StoreUnavailableError):
                self.inner.destroy_originals(ids)


class Unrecorded(Writing):
    """Goes on when the record of a shred, or its entry, could not be written."""

    class Writer(Naive):
        def insert_shreds(self, rows: Any) -> None:
            with suppress(StoreUnavailableError):
                self.inner.insert_shreds(rows)

        def append(self, *given: Any) -> None:
            with suppress(StoreUnavailableError):
                self.inner.append(*given)


@pytest.mark.parametrize(
    ("naive", "operation", "point", "said"),
    [
        (Forgets, "shred session", "store.update_scopes.before", "The session's key is left that opens what is"),
        (Forgets, "shred original", "store.update_scopes.before", "The session's key is left that opens what is"),
        (LeavesRows, "shred original", "store.update_results.before", "It was told that it is pending, and nothing"),
        (LeavesEnvelopes, "shred original", "store.destroy_originals.before", "The envelope of an original that is"),
        (Unrecorded, "shred original", "store.insert_shreds.before", "There are 0 records of a shred, and 1"),
        (Unrecorded, "shred session", "store.append.before", "The audit log holds 0 requests to shred, and 3"),
        (Piecemeal, "shred original", "store.update_scopes.before", "The session's key is left"),
        (Piecemeal, "shred session", "store.insert_shreds.before", "There are 0 records of a shred"),
    ],
)
def test_a_naive_store_under_a_shred_is_found_out(
    desk: Desk, policy: Policy, naive: type[Naive], operation: str, point: str, said: str
) -> None:
    def make(plan: FaultPlan) -> Archive:
        archive = desk.open(policy=policy, counter=Characters())
        faulted(archive, plan)
        archive._around = replace(archive._around, store=naive(archive._around.store))
        return archive

    violations = found(iter(swept(make, operation, kinds=["error"], points=point)))
    assert any(said in violation for violation in violations), violations


def test_a_shred_that_is_wrong_even_without_a_fault_is_said_so(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    shredded = Disposal._shred_row
    monkeypatch.setattr(
        Disposal, "_shred_row", lambda *given: replace(shredded(*given), completed_at_us=1)
    )  # complete before any key is destroyed
    with (
        CustodySweep(make, probe=PROBE, operation="shred original") as one,
        pytest.raises(MisuseError, match="complete"),
    ):
        one.found()
