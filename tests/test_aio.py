"""The async twins: the same interface, whole state whatever is cancelled, one unbroken log whatever runs at once."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import patient

from evidence_archive import Archive, AsyncArchive, AsyncSession, Policy, Principal, Session
from evidence_archive.aio import AsyncCustody, AsyncLedger
from evidence_archive.errors import BatchRejectedError, MisuseError, StoreUnavailableError
from evidence_archive.keys import open_provider
from evidence_archive.ledger.keeping import Ledger
from evidence_archive.proof.merkle import Frontier, leaf_hash
from evidence_archive.store import open_store

TWINS = [(Session, AsyncSession), (Archive, AsyncArchive), (Ledger, AsyncLedger)]
NOT_AWAITED = {"open"}
TEXT = "01:00 node 3 timeout, disk sdc\n" * 60
BATCH = [("r1", "disk sdc"), ("r2", "disk sdc again")]


# --- the same interface -------------------------------------------------------------------------------------------


def public(cls: type) -> dict[str, Any]:
    return {name: inspect.getattr_static(cls, name) for name in vars(cls) if not name.startswith("_")}


def differences(sync: type, twin: type, attributes: set[str]) -> list[str]:
    """What a user of one would miss or find otherwise in the other.

    Args:
        attributes: names that are plain attributes of the synchronous object; its twin has properties for them.
    """
    ours, theirs = public(sync), public(twin)
    found = [f"{name}: only in one" for name in sorted((ours.keys() | attributes) ^ theirs.keys())]
    for name in sorted((ours.keys() | attributes) & theirs.keys()):
        if name in attributes or isinstance(ours[name], property):
            same = isinstance(theirs[name], property)
        else:
            same = parameters(getattr(sync, name)) == parameters(getattr(twin, name))
            same = same and inspect.iscoroutinefunction(getattr(twin, name)) == (name not in NOT_AWAITED)
        if not same:
            found.append(f"{name}: otherwise")
    return found


def parameters(function: Any) -> list[tuple[str, Any, Any, str]]:
    signature = inspect.signature(function)
    return [(one.name, one.kind, one.default, str(one.annotation)) for one in signature.parameters.values()]


def test_every_public_verb_and_attribute_exists_on_the_twin_with_the_same_parameters(archive: Archive, owner: Any):
    officer = Principal(org=owner.org, subject="records-office", roles={"custodian"})
    session = archive.session("s", owner)
    twins: list[tuple[Any, type]] = [(archive, AsyncArchive), (session, AsyncSession)]
    for made, twin in (*twins, (archive.custody(officer), AsyncCustody), (session.ledger, AsyncLedger)):
        attributes = {name for name in vars(made) if not name.startswith("_")}
        assert differences(type(made), twin, attributes) == []


def test_a_twin_that_lacks_a_verb_or_a_parameter_is_noticed():
    class Sync:
        def one(self, a: int, *, b: int = 1) -> None: ...
        def two(self) -> None: ...
        def three(self) -> None: ...

    class Twin:
        async def one(self, a: int, *, b: int = 2) -> None: ...
        def two(self) -> None: ...

    assert differences(Sync, Twin, {"id"}) == [
        "id: only in one",
        "three: only in one",
        "one: otherwise",
        "two: otherwise",
    ]


def test_documents_of_the_twin_name_the_same_errors():
    for sync, twin in TWINS:
        for name in public(twin):
            if not isinstance(public(twin)[name], property):
                raised = [str(inspect.getdoc(getattr(one, name))).count("Raises:") for one in (sync, twin)]
                assert raised[0] == raised[1], f"{twin.__name__}.{name}"


def test_reprs_of_the_twins_name_ids_and_nothing_else(desk: Desk, owner: Any):
    async def shown() -> tuple[str, str]:
        async with AsyncArchive.open(desk.url, keys=desk.keys) as archive:
            return repr(archive), repr(await archive.session("s", owner))

    assert asyncio.run(shown())[1] == "AsyncSession('s', org='north-clinic')"


def test_the_twins_do_what_the_verbs_do(desk: Desk, owner: Any, talk: Conversation):
    async def everything() -> None:
        async with AsyncArchive.open(desk.url, keys=desk.keys, create=True) as archive:
            assert archive.policy.name == "default"
            session = await archive.session("s", owner)
            assert (session.id, session.principal) == ("s", owner)
            assert session.instructions
            assert len(session.tools) == 2
            talk.tool(TEXT)
            result_id = await session.label(talk.messages[-1], sensitivity="public", kind="log")
            talk.say()
            await session.view(talk.messages)
            receipt = await session.archive([(result_id, "disk sdc")], idempotency_key="once")
            assert receipt.result_ids == (result_id,)
            assert (await session.restore(result_id, lines="1-1")).content.startswith("01:00")
            assert (await archive.restore("s", result_id, principal=owner)).content == TEXT
            assert [info.state for info in await session.results()] == ["archived"]
            assert await archive.results("s", principal=owner) == await session.results()
            assert (await session.stats()).archived == 1
            assert await session.answer(talk.call("logs.search")) is None
            refused = await session.answer(talk.call("restore_evidence", '{"id": "r9"}'))
            assert "othing was restored" in refused["content"]
            await archive.resume("s", principal=owner)
            assert (await archive.audit(principal=owner)).intact
        with pytest.raises(MisuseError):
            await session.view(talk.messages)
        await archive.close()

    asyncio.run(everything())


# --- cancellation -------------------------------------------------------------------------------------------------


class Gate:
    """Stops the thread that makes the n-th passage, until it is let through; then it may fail there."""

    def __init__(self) -> None:
        self.passages = 0
        self.stop_at = -1
        self.error: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reached = asyncio.Event()
        self._open = threading.Event()

    def arm(self, stop_at: int, error: Exception | None = None) -> None:
        self.passages, self.stop_at, self.error = 0, stop_at, error
        self._loop, self._reached = asyncio.get_running_loop(), asyncio.Event()
        self._open.clear()

    async def reached(self) -> None:
        await self._reached.wait()

    def let_through(self) -> None:
        self._open.set()

    def passing(self) -> None:
        at, self.passages = self.passages, self.passages + 1
        if at == self.stop_at and self._loop is not None:
            self._loop.call_soon_threadsafe(self._reached.set)
            assert self._open.wait(30)
            if self.error is not None:
                raise self.error


class GatedStore:
    """A store with a gate before and after everything it does."""

    def __init__(self, inner: Any, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def scoped(self, *arguments: Any) -> "GatedOrg":
        return GatedOrg(self._inner.scoped(*arguments), self._gate)


class GatedOrg:
    def __init__(self, inner: Any, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    @contextmanager
    def _gated(self, context: Any) -> Iterator[Any]:
        self._gate.passing()
        with context as inside:
            self._gate.passing()
            yield inside
            self._gate.passing()  # a transaction is not committed yet
        self._gate.passing()

    def peeking(self, wait_ms: int) -> Any:
        return self._gated(self._inner.peeking(wait_ms))

    def reading(self, wait_ms: int) -> Any:
        return self._gated(self._inner.reading(wait_ms))

    def writing(self, wait_ms: int, *, audited: bool) -> Any:
        return self._gated(self._inner.writing(wait_ms, audited=audited))


@asynccontextmanager
async def gated(desk: Desk) -> Any:
    """An archive over a gated store, and the gate."""
    gate = Gate()
    store = GatedStore(open_store(desk.url), gate)
    sync = Archive(store, keys=open_provider(desk.keys), policy=Policy.default())
    async with AsyncArchive(sync) as archive:
        yield archive, gate


def conversation() -> Conversation:
    talk = Conversation()
    talk.tool(TEXT)
    talk.tool(TEXT + "again")
    talk.say()
    return talk


async def whole(desk: Desk, session: Any, messages: list[Any], owner: Any) -> bool:
    """Whether both results are archived; fails when view, store and log tell different stories."""
    view = await session.view(messages)
    noted = [view[at]["content"].startswith("[archived ") for at in (2, 4)]
    assert noted in ([True, True], [False, False]), "half a batch is in view"
    async with AsyncArchive.open(desk.url, keys=desk.keys) as other:
        again = await other.session(session.id, owner)
        assert await again.view(messages) == view, "another process sees another state"
        states = [info.state for info in await again.results()]
        assert states == (["archived"] * 2 if noted[0] else ["live"] * 2), "the store tells otherwise"
        report = await other.audit(principal=owner)
        assert report.intact
        accepted = sum(leaf.event == "batch.accepted" and leaf.session_id == session.id for leaf in report.entries)
        assert accepted == noted[0], "the log tells otherwise"
        for result_id, text in zip(("r1", "r2"), (TEXT, TEXT + "again"), strict=True):
            assert (await again.restore(result_id)).content == text
    return noted[0]


async def cancelled_at(gate: Gate, passage: int, verb: Awaitable[Any], error: Exception | None = None) -> None:
    """Begin a verb, cancel it while its thread stands at a passage, then let the thread go on."""
    gate.arm(passage, error)
    task = asyncio.ensure_future(verb)
    await gate.reached()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.let_through()


async def passages_of(gate: Gate, verb: Awaitable[Any]) -> int:
    gate.arm(-1)
    await verb
    return gate.passages


@pytest.mark.parametrize("fails", [False, True], ids=["goes on", "fails there"])
def test_an_archive_that_is_cancelled_anywhere_leaves_all_of_it_or_nothing(desk: Desk, owner: Any, fails: bool):
    async def run() -> list[bool]:
        outcomes = []
        async with gated(desk) as (archive, gate):
            session = await archive.session("count", owner)
            await session.view(conversation().messages)
            passages = await passages_of(gate, session.archive(BATCH))
            assert passages >= 4
            for passage in range(passages):
                session = await archive.session(f"s{passage}", owner)
                messages = conversation().messages
                await session.view(messages)
                error = StoreUnavailableError("The store is away: try again.") if fails else None
                await cancelled_at(gate, passage, session.archive(BATCH), error)
                outcomes.append(await whole(desk, session, messages, owner))
        return outcomes

    outcomes = asyncio.run(run())
    if fails:
        assert outcomes == sorted(outcomes), "once it is committed it stays committed"
        assert outcomes[0] is False
        assert outcomes[-1] is True
    else:
        assert all(outcomes), "what was begun is carried through"


@pytest.mark.parametrize("steps", range(5))
def test_an_archive_that_is_cancelled_before_it_begins_leaves_all_of_it_or_nothing(
    desk: Desk, owner: Any, steps: int
):
    async def run() -> bool:
        async with AsyncArchive.open(desk.url, keys=desk.keys) as archive:
            session = await archive.session("s", owner)
            messages = conversation().messages
            await session.view(messages)
            task = asyncio.ensure_future(session.archive(BATCH))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await whole(desk, session, messages, owner)

    assert asyncio.run(run()) == (steps > 0)


def test_a_twin_that_archives_one_by_one_is_caught(desk: Desk, owner: Any):
    async def naive(session: AsyncSession) -> None:
        for item in BATCH:
            await session.archive([item])

    async def run() -> None:
        async with gated(desk) as (archive, gate):
            session = await archive.session("s", owner)
            messages = conversation().messages
            await session.view(messages)
            await cancelled_at(gate, 3, naive(session))
            await whole(desk, session, messages, owner)

    with pytest.raises(AssertionError, match="half a batch"):
        asyncio.run(run())


def test_a_view_that_is_cancelled_anywhere_gives_no_result_two_ids(desk: Desk, owner: Any):
    async def run() -> None:
        async with gated(desk) as (archive, gate):
            session = await archive.session("count", owner)
            for passage in range(await passages_of(gate, session.view(conversation().messages))):
                session = await archive.session(f"s{passage}", owner)
                messages = conversation().messages
                await cancelled_at(gate, passage, session.view(messages))
                view = await session.view(messages)
                assert [info.id for info in await session.results()] == ["r1", "r2"]
                assert await (await archive.session(f"s{passage}", owner)).view(messages) == view

    asyncio.run(run())


def test_a_restore_that_is_cancelled_anywhere_is_in_the_log_once_or_not_at_all(desk: Desk, owner: Any):
    async def granted(archive: AsyncArchive) -> int:
        report = await archive.audit(principal=owner)
        assert report.intact
        return sum(leaf.event == "restore.granted" for leaf in report.entries)

    async def run() -> list[int]:
        counts = []
        async with gated(desk) as (archive, gate):
            session = await archive.session("s", owner)
            await session.view(conversation().messages)
            await session.archive(BATCH)
            for fails in (None, StoreUnavailableError("The store is away: try again.")):
                for passage in range(await passages_of(gate, session.restore("r1"))):
                    before = await granted(archive)
                    await cancelled_at(gate, passage, session.restore("r1"), fails)
                    await session.results()
                    counts.append(await granted(archive) - before)
                    assert (await session.stats()).restores == before + counts[-1]
        return counts

    assert set(asyncio.run(run())) == {0, 1}


def test_closing_waits_for_what_was_cancelled(desk: Desk, owner: Any):
    async def run() -> None:
        messages = conversation().messages
        async with gated(desk) as (archive, gate):
            session = await archive.session("s", owner)
            await session.view(messages)
            gate.arm(6)
            task = asyncio.ensure_future(session.archive(BATCH))
            await gate.reached()
            task.cancel()
            closing = asyncio.ensure_future(archive.close())
            for _ in range(20):
                await asyncio.sleep(0)
            assert not closing.done()
            gate.let_through()
            await closing
        async with AsyncArchive.open(desk.url, keys=desk.keys) as again:
            assert await whole(desk, await again.session("s", owner), messages, owner)

    asyncio.run(run())


def test_a_close_that_is_cancelled_still_closes(desk: Desk, owner: Any):
    async def run() -> None:
        async with gated(desk) as (archive, gate):
            session = await archive.session("s", owner)
            gate.arm(0)
            view = asyncio.ensure_future(session.view(conversation().messages))
            await gate.reached()
            closing = asyncio.ensure_future(archive.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            gate.let_through()
            await view
            await archive.close()
            with pytest.raises(MisuseError):
                await session.view([])

    asyncio.run(run())


def test_a_loop_that_ends_over_a_running_archive_leaves_it_whole(desk: Desk, owner: Any):
    gate = Gate()
    sync = Archive(GatedStore(open_store(desk.url), gate), keys=open_provider(desk.keys), policy=Policy.default())
    messages = conversation().messages
    kept: list[Any] = []

    async def letting_through_when_the_loop_ends() -> Any:
        try:
            yield
        finally:
            gate.let_through()

    async def run() -> None:
        session = await AsyncArchive(sync).session("s", owner)
        await session.view(messages)
        kept.append(letting_through_when_the_loop_ends())
        await anext(kept[0])
        gate.arm(6)
        kept.append(asyncio.ensure_future(session.archive(BATCH)))
        await gate.reached()

    asyncio.run(run())
    sync.close()

    async def look() -> bool:
        async with AsyncArchive.open(desk.url, keys=desk.keys) as archive:
            return await whole(desk, await archive.session("s", owner), messages, owner)

    assert kept[1].cancelled()
    assert asyncio.run(look())


def test_an_error_after_a_cancellation_disturbs_nobody(desk: Desk, owner: Any):
    noticed: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: noticed.append(context))
        async with gated(desk) as (archive, gate):
            session = await archive.session("s", owner)
            await session.view(conversation().messages)
            await cancelled_at(gate, 0, session.archive(BATCH), StoreUnavailableError("Away: try again."))
            await session.results()

    asyncio.run(run())
    assert noticed == []


# --- at once ------------------------------------------------------------------------------------------------------


def chain_holds(leaves: list[tuple[int, bytes]], size: int, frontier: bytes) -> bool:
    """Whether a log is one line of entries that hash to its head."""
    rebuilt = Frontier()
    for _, leaf in leaves:
        rebuilt.append(leaf_hash(leaf))
    return [seq for seq, _ in leaves] == list(range(size)) and rebuilt.to_bytes() == frontier


def stored_log(desk: Desk) -> tuple[list[tuple[int, bytes]], int, bytes]:
    leaves = desk.execute("SELECT seq, leaf FROM audit_leaves ORDER BY seq")
    ((size, frontier),) = desk.execute("SELECT size, frontier FROM audit_heads")
    return leaves, size, frontier


async def side_by_side(*verbs: Callable[[], Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*(verb() for verb in verbs), return_exceptions=True)


def test_gathered_sessions_leave_one_unbroken_log(desk: Desk, owner: Any):
    async def one(archive: AsyncArchive, name: str) -> None:
        session = await archive.session(name, owner)
        messages = conversation().messages
        await session.view(messages)
        await asyncio.gather(session.archive(BATCH), session.stats(), session.results())
        await asyncio.gather(*(session.restore(result_id) for result_id in ("r1", "r2", "r1")))
        await session.view(messages)

    async def run() -> int:
        async with (
            AsyncArchive.open(desk.url, keys=desk.keys) as archive,
            AsyncArchive.open(desk.url, keys=desk.keys) as other,
        ):
            await asyncio.gather(
                *(one(door, f"s{n}-{at}") for n in range(6) for at, door in enumerate((archive, other)))
            )
            report = await archive.audit(principal=owner)
            assert report.intact
            return sum(leaf.event == "restore.granted" for leaf in report.entries)

    assert asyncio.run(run()) == 12 * 3
    assert chain_holds(*stored_log(desk))


def test_a_log_whose_writers_do_not_queue_is_caught():
    leaves: list[tuple[int, bytes]] = []
    head = Frontier()

    async def naive(n: int) -> None:
        nonlocal head
        seen = Frontier.from_bytes(head.size, head.to_bytes())
        await asyncio.sleep(0)
        leaves.append((seen.size, b"%d" % n))
        seen.append(leaf_hash(b"%d" % n))
        head = seen

    async def run(*, at_once: bool) -> bool:
        nonlocal head
        leaves.clear()
        head = Frontier()
        if at_once:
            await asyncio.gather(*(naive(n) for n in range(4)))
        else:
            for n in range(4):
                await naive(n)
        return chain_holds(leaves, head.size, head.to_bytes())

    assert asyncio.run(run(at_once=False))
    assert not asyncio.run(run(at_once=True))


def test_gathered_batches_of_one_result_archive_it_once(desk: Desk, owner: Any):
    async def run() -> None:
        async with AsyncArchive.open(desk.url, keys=desk.keys) as archive:
            session = await archive.session("s", owner)
            twin = await archive.session("s", owner)
            messages = conversation().messages
            await session.view(messages)
            await twin.view(messages)
            done = await side_by_side(*(lambda s=s: s.archive(BATCH) for s in (session, twin, session, twin)))
            refused = [one for one in done if isinstance(one, BatchRejectedError)]
            assert len(refused) == 3, done
            assert {target.status for error in refused for target in error.targets} == {"already_archived"}
            assert await whole(desk, session, messages, owner)

    asyncio.run(run())


def test_gathered_views_of_one_list_give_one_set_of_ids(desk: Desk, owner: Any):
    async def run() -> None:
        async with AsyncArchive.open(desk.url, keys=desk.keys, policy=patient()) as archive:
            sessions = [await archive.session("s", owner) for _ in range(4)]
            messages = conversation().messages
            views = await asyncio.gather(*(session.view(messages) for session in sessions for _ in range(2)))
            assert all(view == views[0] for view in views)
            assert [info.id for info in await sessions[0].results()] == ["r1", "r2"]

    asyncio.run(run())
