"""Fault plans: every edge has its points; a fault strikes where, when and as often as it was set, never elsewhere."""

import copy
import inspect
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import Characters

from evidence_archive import Archive, Policy, Principal
from evidence_archive import ports as ports_module
from evidence_archive.errors import (
    BatchRejectedError,
    FormatError,
    KeyringError,
    StoreBusyError,
    StoreUnavailableError,
)
from evidence_archive.keys import open_provider
from evidence_archive.store import open_store
from evidence_archive.testing import FrozenClock
from evidence_archive.testing.faults import (
    FAULT_POINTS,
    Crashed,
    FaultPlan,
    FaultyKeys,
    FaultyObjects,
    FaultyStore,
    Passing,
    faulted,
)

NAMES = [point.name for point in FAULT_POINTS]
EDGES = {"Store": "store", "OrgStore": "store", "Reader": "store", "Writer": "store", "ObjectStore": "objects"}
EDGES["KeyProvider"] = EDGES["KeyLifecycle"] = "keys"
LONG = "01:00 node 3 timeout, disk sdc\n" * 60
WAIT_MS = 5_000


def methods(protocol: type) -> set[str]:
    return {
        name
        for name, value in inspect.getmembers(protocol, callable)
        if not name.startswith("_") and name not in ("close", "name", "scrub")
    }


@pytest.fixture
def plan() -> FaultPlan:
    return FaultPlan()


@pytest.fixture
def faulty(desk: Desk, plan: FaultPlan) -> Any:
    with desk.open(counter=Characters()) as archive:
        yield faulted(archive, plan)


@pytest.fixture
def session(faulty: Archive, owner: Principal, talk: Conversation) -> Any:
    """A session whose first result was read."""
    session = faulty.session("case", owner)
    talk.tool(LONG)
    talk.say()
    session.view(talk.messages)
    return session


class Shelf:
    """An object store in a dict."""

    name = "shelf"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.closed = 0

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data

    def get(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def close(self) -> None:
        self.closed += 1


# --- the points -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", EDGES)
def test_every_method_of_every_protocol_has_its_points(protocol: str) -> None:
    stems = {name.removesuffix(".before").removesuffix(".begin") for name in NAMES}
    assert {f"{EDGES[protocol]}.{name}" for name in methods(getattr(ports_module, protocol))} <= stems


def test_every_point_belongs_to_a_method_and_has_one_sentence() -> None:
    known = {f"{EDGES[one]}.{name}" for one in EDGES for name in methods(getattr(ports_module, one))}
    assert {name.rpartition(".")[0] if name.count(".") == 2 else name for name in NAMES} == known | {"store.commit"}
    assert sorted(set(NAMES)) == NAMES
    assert [point for point in FAULT_POINTS if not point.words.endswith(".") or "``" in point.words] == []


def test_what_changes_something_has_a_point_before_and_after_and_what_reads_has_one() -> None:
    ours = {"store.writing.begin", "store.commit.before", "store.commit.after"}
    assert ours <= set(NAMES)
    for name in methods(ports_module.Writer) - methods(ports_module.Reader):
        assert {f"store.{name}.before", f"store.{name}.after"} <= set(NAMES)
    for name in methods(ports_module.Reader):
        assert f"store.{name}" in NAMES
    assert {"objects.put.before", "objects.put.after", "objects.delete.before", "objects.get"} <= set(NAMES)


@pytest.mark.parametrize(
    ("cls", "protocol"), [(FaultyStore, "Store"), (FaultyObjects, "ObjectStore"), (FaultyKeys, "KeyProvider")]
)
def test_what_stands_in_front_has_every_method_with_its_signature(cls: Any, protocol: str) -> None:
    wanted = getattr(ports_module, protocol)
    for name in methods(wanted):
        assert inspect.signature(getattr(cls, name)) == inspect.signature(getattr(wanted, name))


def test_a_name_that_is_no_point_is_refused_and_not_silently_never_met(plan: FaultPlan) -> None:
    for set_fault in (plan.error, plan.outage, plan.crash):
        with pytest.raises(FormatError, match=r"no fault point 'store\.comit\.after'"):
            set_fault("store.comit.after")
    with pytest.raises(FormatError):
        plan.error("store.org", nth=0)
    with pytest.raises(FormatError):
        plan.error("store.org", times=0)
    with pytest.raises(FormatError):
        plan.delay("store.org", delay_ms=-1)


# --- without a fault --------------------------------------------------------------------------------------------


def test_a_plan_without_faults_changes_nothing_and_records_every_passing_in_order(
    desk: Desk, plan: FaultPlan, session: Any, faulty: Archive, owner: Principal
) -> None:
    plan.clear()
    receipt = session.archive([("r1", "disk sdc")])
    assert receipt.result_ids == ("r1",)
    assert [passing.point for passing in plan.passings] == [
        "store.peeking",
        "store.session",
        "store.writing.begin",
        "store.session",
        "store.insert_originals.before",
        "store.insert_originals.after",
        "store.update_results.before",
        "store.update_results.after",
        "store.custody",
        "store.in_keeping",
        "store.put_custody.before",
        "store.put_custody.after",
        "store.insert_batch.before",
        "store.insert_batch.after",
        "store.insert_results.before",
        "store.insert_results.after",
        "store.update_session.before",
        "store.update_session.after",
        "store.append.before",
        "store.append.after",
        "store.commit.before",
        "store.commit.after",
    ]
    assert plan.passings[3] == Passing("store.session", 2)
    assert plan.count("store.session") == 2
    assert plan.count("store.insert_*.before", "store.peeking") == 4
    with desk.open() as other:
        assert other.restore("case", "r1", principal=owner).content == LONG


def test_threads_that_pass_at_once_are_all_counted_and_struck_exactly_once(plan: FaultPlan) -> None:
    keys = FaultyKeys(_Numbers(), plan)
    plan.error("keys.current_version", nth=500, times=3)
    struck: list[BaseException] = []

    def pass_by() -> None:
        for _ in range(250):
            try:
                keys.current_version("north-clinic")
            except KeyringError as error:
                struck.append(error)

    threads = [threading.Thread(target=pass_by) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert plan.count("keys.current_version") == 2_000
    assert sorted(number for _, number in plan.passings) == list(range(1, 2_001))
    assert len(struck) == 3


class _Numbers:
    """A key provider as far as these tests ask it."""

    def current_version(self, org: str) -> int:
        return 1


# --- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nth", "times", "struck"), [(1, None, [1, 2, 3, 4]), (2, 1, [2]), (2, 2, [2, 3]), (9, 1, [])]
)
def test_a_fault_strikes_at_the_passings_it_was_set_for_and_no_others(
    plan: FaultPlan, nth: int, times: int | None, struck: list[int]
) -> None:
    keys: Any = FaultyKeys(_Numbers(), plan)
    keys.current_version("north-clinic")  # passings before the fault was set do not count
    plan.error("keys.*", nth=nth, times=times)
    found = []
    for number in range(1, 5):
        try:
            keys.current_version("north-clinic")
        except KeyringError:
            found.append(number)
    assert found == struck


@pytest.mark.parametrize("point", NAMES)
def test_every_point_raises_what_the_contract_of_its_edge_allows(point: str) -> None:
    plan = FaultPlan()
    plan.error(point)
    expected = KeyringError if point.startswith("keys.") else StoreUnavailableError
    with pytest.raises(expected):
        plan._passed(point, 0)


def test_an_error_of_ones_own_is_raised_as_it_is(plan: FaultPlan, session: Any) -> None:
    plan.error("store.insert_originals.before", StoreBusyError("Somebody else is writing."))
    with pytest.raises(BatchRejectedError) as refused:
        session.archive([("r1", "n")])
    assert isinstance(refused.value.__cause__, StoreBusyError)


def test_an_outage_lasts_and_spares_the_other_families(plan: FaultPlan, desk: Desk) -> None:
    store, keys = FaultyStore(open_store(desk.url), plan), FaultyKeys(open_provider(desk.keys), plan)
    plan.outage("store.org", nth=2)
    assert store.org("north-clinic") is None
    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            store.org("north-clinic")
        with pytest.raises(StoreUnavailableError):
            store.create_org(None, b"", [])  # type: ignore[arg-type]
    assert keys.current_version("north-clinic") == 1
    plan.clear()
    assert store.org("north-clinic") is None
    store.close()


def test_before_the_commit_nothing_is_there_and_after_it_all_is(
    plan: FaultPlan, session: Any, desk: Desk, owner: Principal
) -> None:
    def archived() -> list[str]:
        with desk.open() as other:
            return [info.state for info in other.results("case", principal=owner)]

    plan.error("store.commit.before", times=1)
    with pytest.raises(BatchRejectedError):
        session.archive([("r1", "n")])
    assert archived() == ["live"]
    plan.error("store.commit.after", times=1)
    assert session.archive([("r1", "n")]).result_ids == ("r1",)  # looked up, and found
    assert archived() == ["archived"]


# --- delays, crashes, whatever ----------------------------------------------------------------------------------


def test_a_delay_waits_by_the_sleep_that_was_handed_in(desk: Desk) -> None:
    clock = FrozenClock()
    plan = FaultPlan(sleep=clock.advance)
    store = FaultyStore(open_store(desk.url), plan)
    plan.delay("store.org", delay_ms=50, times=2)
    for waited_ms in (50, 100, 100):
        store.org("north-clinic")
        assert clock.monotonic_ms() == waited_ms
    store.close()


def test_something_can_happen_elsewhere_at_a_point(
    plan: FaultPlan, session: Any, desk: Desk, talk: Conversation
) -> None:
    def rival() -> None:
        with desk.open() as other:
            theirs = other.session("case", session.principal)
            theirs.view(talk.messages)
            theirs.archive([("r1", "the rival's")])

    plan.run("store.writing.begin", rival)
    with pytest.raises(BatchRejectedError) as refused:
        session.archive([("r1", "n")])
    assert [target.status for target in refused.value.targets] == ["already_archived"]


def test_after_a_crash_nothing_works_until_a_new_archive_is_opened(
    plan: FaultPlan, session: Any, faulty: Archive, desk: Desk, owner: Principal, talk: Conversation
) -> None:
    plan.crash("store.commit.before")
    verbs: list[Callable[[], object]] = [
        lambda: session.archive([("r1", "n")]),
        lambda: session.view(talk.messages),
        lambda: session.archive([("r1", "n")]),
        lambda: faulty.session("other", owner),
    ]
    for verb in verbs:
        with pytest.raises(Crashed):
            verb()
    plan.clear()
    with pytest.raises(Crashed):
        session.view(talk.messages)
    with faulted(desk.open(), plan) as again:
        assert again.session("case", owner).view(talk.messages)[2]["content"].startswith("[evidence r1 ")


def test_a_real_crash_ends_the_process_with_a_signal() -> None:
    script = "\n".join(
        [
            "from evidence_archive.testing.faults import FaultPlan, FaultyKeys",
            "class Keys:",
            "    def current_version(self, org):",
            "        print('not killed', flush=True)",
            "plan = FaultPlan()",
            "plan.crash('keys.current_version', nth=2, kill=True)",
            "keys = FaultyKeys(Keys(), plan)",
            "for _ in range(3):",
            "    keys.current_version('north-clinic')",
        ]
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "not killed\n")


# --- in front of what is there ----------------------------------------------------------------------------------


def test_objects_stand_behind_their_plan(plan: FaultPlan) -> None:
    shelf = Shelf()
    objects = FaultyObjects(shelf, plan)
    objects.put("a", b"1")
    assert (objects.name, objects.get("a"), objects.get("b")) == ("shelf", b"1", None)
    plan.error("objects.put.after", times=1)
    with pytest.raises(StoreUnavailableError):
        objects.put("b", b"2")
    plan.error("objects.put.before", times=1)
    with pytest.raises(StoreUnavailableError):
        objects.put("c", b"3")
    assert shelf.objects == {"a": b"1", "b": b"2"}
    objects.delete("a")
    objects.close()
    assert (shelf.objects, shelf.closed) == ({"b": b"2"}, 1)


def test_closing_never_fails_whatever_is_planned(plan: FaultPlan, desk: Desk) -> None:
    archive = Archive(
        FaultyStore(open_store(desk.url), plan),
        keys=FaultyKeys(open_provider(desk.keys), plan),
        policy=Policy.default(),
    )
    plan.error("*")
    archive.close()
    archive.close()


def test_an_archive_in_front_of_which_a_plan_is_put_keeps_its_keys_and_store(
    plan: FaultPlan, faulty: Archive, owner: Principal
) -> None:
    plan.error("keys.wrap", times=1)
    with pytest.raises(KeyringError):
        faulty.session("case", owner)
    assert faulty.session("case", owner).view([]) == []
    assert {name.partition(".")[0] for name, _ in plan.passings} == {"store", "keys"}


def test_a_faulty_object_can_be_looked_at_and_copied_without_harm(plan: FaultPlan) -> None:
    keys = FaultyKeys(_Numbers(), plan)
    assert repr(keys).startswith("<FaultyKeys over <")
    assert copy.copy(keys).current_version("north-clinic") == 1
    with pytest.raises(AttributeError):
        _ = keys.nothing  # type: ignore[attr-defined]
