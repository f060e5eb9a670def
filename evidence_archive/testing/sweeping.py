"""A fault at every passing of every edge, and what is true after it.

A rehearsal of the scripted conversation without faults records every passing. Then each passing is met once with
each kind of fault, every time in a session of its own, and an archive opened anew looks at what is left: the batch is
there as a whole or not at all, no view mixes old and new, every note's original comes back equal, the log of the org
holds, and what the caller was told is true.
"""

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase

from evidence_archive.archive import Archive
from evidence_archive.errors import (
    BatchRejectedError,
    EvidenceArchiveError,
    FormatError,
    MisuseError,
    NotAvailableError,
    PolicyError,
)
from evidence_archive.model import same_value
from evidence_archive.proof import leaf as audit
from evidence_archive.proof.merkle import Frontier, leaf_hash
from evidence_archive.session import Session
from evidence_archive.testing.conversing import CLEAN, Conversation, Probe, Told
from evidence_archive.testing.faults import FAULT_POINTS, Crashed, FaultPlan
from evidence_archive.vault import LEAVES_PER_READ, open_vault

__all__ = [
    "DELAY_MS",
    "FIRST_USE",
    "KINDS",
    "NOT_KILLED",
    "NOT_MET",
    "RIVAL",
    "OrgLog",
    "Outcome",
    "Sweep",
    "Trial",
    "check_sweepable",
    "restored_equal",
    "set_fault",
    "sweep",
]

KINDS = ("error", "outage", "delay", "crash")
"""One failure; a failure that lasts; a wait; the end of the process."""

HELD = "held"
"""The kind of the one delay that lasts until somebody else has given up waiting."""

RIVAL = "rival"
"""The kind of a wait in which somebody else shreds what a rotation is about to write."""

FIRST_USE = "first use"
"""The operation in which an org is made."""

DELAY_MS = 50
"""How long a delay of a sweep is, in milliseconds."""

NOT_MET = "The fault was never met: the operation took another way than in the rehearsal."

NOT_KILLED = "The process was not killed at the point: it was never met."

_ALWAYS_US = 2**62
"""A time when every intent is over."""

_ALL = 2**31 - 1

UNKNOWN = "unknown"
"""The reason of a rejection that cannot say whether the batch was archived."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One fault at one passing.

    Args:
        operation: of the conversation, in which the passing is.
        point, number: the passing.
        kind: one of :data:`KINDS`, or ``held``: a writer who waits inside its transaction until somebody else has
            given up waiting for it; or ``rival``: while a rotation waits, somebody else shreds.
    """

    operation: str
    point: str
    number: int
    kind: str

    @property
    def fault(self) -> str:
        """The fault in words."""
        words = {"delay": f"delay {DELAY_MS} ms", HELD: "delay beyond all waits", RIVAL: "a shred meanwhile"}
        return words.get(self.kind, self.kind)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was true after a trial.

    Args:
        trial: what was tried.
        told: what the operation that met the fault told its caller.
        state: ``all`` of the batch is archived, or ``nothing``; ``part`` must never be.
        next_view: of a session opened anew: ``old`` or ``new``, never ``mixed``; ``none`` where there was no batch.
        restored_equal: whether every archived original came back equal; ``None`` when nothing was archived.
        violations: what must not be, one sentence each.
    """

    trial: Trial
    told: str
    state: str
    next_view: str
    restored_equal: bool | None
    violations: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything that has to hold does."""
        return not self.violations

    @property
    def violation(self) -> str | None:
        """What must not be, in words, or ``None``."""
        return " ".join(self.violations) or None


def set_fault(plan: FaultPlan, trial: Trial, *, kill: bool = False) -> None:
    """Put a trial's fault into a plan.

    Args:
        plan: a new one.
        trial: of a kind of :data:`KINDS`.
        kill: whether a crash ends this very process.

    Raises:
        FormatError: the trial is of another kind, or names no point.
    """
    if trial.kind == "error":
        plan.error(trial.point, nth=trial.number, times=1)
    elif trial.kind == "outage":
        plan.outage(trial.point, nth=trial.number)
    elif trial.kind == "delay":
        plan.delay(trial.point, delay_ms=DELAY_MS, nth=trial.number, times=1)
    elif trial.kind == "crash":
        plan.crash(trial.point, nth=trial.number, kill=kill)
    else:
        raise FormatError(f"A fault is one of {', '.join(KINDS)}.")


def check_sweepable(kinds: Iterable[str], points: str) -> tuple[str, ...]:
    """The kinds, each once.

    Args:
        kinds: of faults.
        points: pattern of the points to sweep.

    Raises:
        FormatError: a kind or a point does not exist.
    """
    named = tuple(dict.fromkeys(kinds))
    if not named or not set(named) <= set(KINDS):
        raise FormatError(f"Kinds of faults are {', '.join(KINDS)}: name at least one.")
    if not any(fnmatchcase(point.name, points) for point in FAULT_POINTS):
        raise FormatError(f"There is no fault point {points!r}: FAULT_POINTS lists them all.")
    return named


class Sweep:
    """The trials on one configuration; :meth:`rehearse` finds them, :meth:`run` runs one.

    Args:
        make: opens an archive on this configuration with a plan in front of it, always on the same store;
            :func:`~evidence_archive.testing.faults.faulted` puts it there.
        probe: who archives what. The sessions stay in the store.
        kinds: of faults, from :data:`KINDS`.
        points: pattern of the points to sweep.
        killed: runs a trial of the kind ``crash`` in a process of its own, given the trial and the session's id,
            and gives what was heard from it, or ``None`` when the process was not killed at the point. Without it
            crashes are played in this process.

    Raises:
        FormatError: a kind or a point does not exist.
    """

    def __init__(
        self,
        make: Callable[[FaultPlan], Archive],
        *,
        probe: Probe,
        kinds: Iterable[str] = KINDS,
        points: str = "*",
        killed: Callable[[Trial, str], list[Told] | None] | None = None,
    ) -> None:
        self.kinds = check_sweepable(kinds, points)
        self.probe = probe
        self._make = make
        self._points = points
        self._killed = killed
        self._name = secrets.token_hex(4)
        self._sessions = 0
        self._log = OrgLog(probe.principal.org)

    def _session_id(self) -> str:
        self._sessions += 1
        return f"faults-{self._name}-{self._sessions}"

    def first_use(self) -> Iterator[Outcome]:
        """The outcomes of faults while the org is made, for an org that was never used; none for any other.

        Waits are left out, because they would make it. ``state`` says whether the org is there.

        Raises:
            EvidenceArchiveError: keys or store are not as they should be.
        """
        at = 0
        while not self._org_exists():
            at += 1
            plan = FaultPlan()
            plan.error("*", nth=at, times=1)
            told = self._opened(plan)
            if len(plan.passings) < at:
                return  # nothing went wrong any more: the org is made
            point, number = plan.passings[at - 1]
            trial = Trial(FIRST_USE, point, number, "error")
            if fnmatchcase(point, self._points):
                if "error" in self.kinds:
                    yield self._made(trial, told)
                for kind in ("outage", "crash"):
                    if kind in self.kinds and not self._org_exists():
                        trial = Trial(FIRST_USE, point, number, kind)
                        yield self._made(trial, self._first_opened(trial))

    def _first_opened(self, trial: Trial) -> list[Told] | None:
        if trial.kind == "crash" and self._killed is not None:
            return self._killed(trial, self._session_id())
        plan = FaultPlan()
        set_fault(plan, trial)
        return self._opened(plan)

    def _opened(self, plan: FaultPlan) -> list[Told]:
        """What opening one session told."""
        told = list[Told]()
        with closing(self._make(plan)) as archive, suppress(Crashed):
            Conversation(self.probe, self._session_id(), heard=told.append).open(archive, FIRST_USE)
        return told

    def _made(self, trial: Trial, told: list[Told] | None) -> Outcome:
        state = "all" if self._org_exists() else "nothing"
        violations = [NOT_KILLED] if told is None else list(_said_wrong(told))
        return Outcome(trial, self._word(trial, told or []), state, "none", None, tuple(violations))

    def _org_exists(self) -> bool:
        with closing(self._make(FaultPlan())) as archive:
            try:
                archive.audit(principal=self.probe.principal)
            except NotAvailableError:
                return False
            return True

    def rehearse(self) -> tuple[Trial, ...]:
        """Every trial there is, found by a conversation without faults.

        Raises:
            PolicyError: the policy does not let the probe's results be archived and restored.
            MisuseError: the conversation does not go as it should even without a fault, or meets no such point.
            EvidenceArchiveError: keys, store or objects are not as they should be.
        """
        if trials := self.found():
            return trials
        raise MisuseError(f"The conversation meets no point {self._points!r}: nothing would be checked.")

    def found(self) -> tuple[Trial, ...]:
        """As :meth:`rehearse`; none where the conversation meets no such point.

        Raises:
            EvidenceArchiveError: as :meth:`rehearse`.
        """
        for _ in range(2):  # the first one makes the org and loads the policy; the second is like all that follow
            plan, begins = self._rehearsed()
        trials = [
            Trial([name for name, first in begins if first <= at][-1], passing.point, passing.number, kind)
            for kind in self.kinds
            for at, passing in enumerate(plan.passings)
            if fnmatchcase(passing.point, self._points)
        ]
        points = [passing.point for passing in plan.passings]
        if "delay" in self.kinds and fnmatchcase("store.commit.before", self._points):
            # The batch's own commit: after it the collector of large originals may commit too.
            held = plan.passings[points.index("store.commit.before", points.index("store.insert_batch.after"))]
            trials.append(Trial("archive", held.point, held.number, HELD))
        return tuple(trials)

    def _rehearsed(self) -> tuple[FaultPlan, list[tuple[str, int]]]:
        """What a conversation passes, and at which passing each of its operations begins."""
        plan, begins = FaultPlan(), list[tuple[str, int]]()
        talk = Conversation(
            self.probe, self._session_id(), begins=lambda name: begins.append((name, len(plan.passings)))
        )
        with closing(self._make(plan)) as archive:
            talk.run(archive)
        _check_rehearsal(talk.told, self.probe)
        return plan, begins

    def run(self, trial: Trial) -> Outcome:
        """What is true after one fault.

        Args:
            trial: one that :meth:`rehearse` gave.

        Raises:
            EvidenceArchiveError: the archive cannot be opened.
        """
        session_id = self._session_id()
        if trial.kind == "crash" and self._killed is not None:
            told = self._killed(trial, session_id)
            violations = [] if told is not None else [NOT_KILLED]
            told = told or []
        else:
            told, violations = self._conversed(trial, session_id)
        return self._looked(trial, session_id, told, violations)

    def left_behind(self) -> dict[str, int]:
        """What this sweep has left in the store and its objects, by kind.

        ``objects`` are of archived originals and stay, as all rows do. ``intents`` are those of batches that were
        given up; when their hours are over, the collector deletes them with the objects that they may have left.

        Raises:
            EvidenceArchiveError: keys or store are not as they should be.
        """
        counts = Counter[str]()
        org, after = self.probe.principal.org, f"faults-{self._name}"
        with closing(self._make(FaultPlan())) as archive:
            vault = open_vault(archive._around, org, create=False)
            with vault.store.reading(vault.store_wait_ms) as reader:
                counts["audit entries"] = reader.head().size
                while rows := [
                    one for one in reader.sessions(after, 100) if one.session_id.startswith(f"faults-{self._name}-")
                ]:
                    after = rows[-1].session_id
                    for row in rows:
                        results = reader.results(row.scope_id, -1)
                        counts["sessions"] += 1
                        counts["results"] += len(results)
                        counts["originals"] += sum(one.original_id is not None for one in results)
                        counts["batches"] += row.batches
                        places = [reader.object(one.original_id) for one in results if one.original_id is not None]
                        counts["objects"] += sum(-(-one.size_bytes // one.part_bytes) for one in places if one)
                counts["intents"] = len(reader.lapsed_objects(_ALWAYS_US, _ALL))
        return dict(counts)

    def _conversed(self, trial: Trial, session_id: str) -> tuple[list[Told], list[str]]:
        plan, seen = FaultPlan(), list[str]()
        if trial.kind == HELD:
            plan.run(trial.point, lambda: seen.append(self._neighbour(session_id)), nth=trial.number)
        else:
            set_fault(plan, trial)
        talk = Conversation(self.probe, session_id)
        archive = self._make(plan)
        try:
            talk.run(archive)
        except Crashed:
            pass
        finally:
            archive.close()
        violations = []
        if plan.count(trial.point) < trial.number:
            violations.append(NOT_MET)
        if seen not in ([], ["old"]):
            violations.append(f"While the commit was held, another process saw a {seen[0]} view.")
        return talk.told, violations

    def _neighbour(self, session_id: str) -> str:
        """What somebody else sees, who gives up waiting while a writer sits in its transaction."""
        try:
            with closing(self._make(FaultPlan())) as archive:
                session = archive.session(session_id, self.probe.principal)
                return self.probe.shown(session.view(self.probe.messages()))
        except EvidenceArchiveError:
            return "old"  # it could not look, and so still shows what its messages hold

    def _looked(self, trial: Trial, session_id: str, told: list[Told], violations: list[str]) -> Outcome:
        """An archive opened anew looks at what is left, and then goes on with the work."""
        probe, found = self.probe, _Found("unknown", "unknown", None, 0)
        try:
            with closing(self._make(FaultPlan())) as archive:
                state, archived = self._state(archive, session_id)
                equal = restored_equal(archive, probe, session_id, archived) if archived else None
                session = archive.session(session_id, probe.principal)
                next_view = probe.shown(session.view(probe.messages()))
                entries, findings = self._log.new_entries(archive)
                granted = [
                    one for one in entries if one.event == audit.RESTORE_GRANTED and one.session_id == session_id
                ]
                found = _Found(state, next_view, equal, len(granted) - len(archived))
                violations += [*findings, *_said_untrue(trial, told, found), *_left_wrong(found)]
                violations += _recovery(session, probe, session_id)
        except EvidenceArchiveError as error:
            violations.append(f"After the fault the archive cannot be read any more: {error}")
        violations += _said_wrong(told)
        word = self._word(trial, told)
        return Outcome(trial, word, found.state, found.next_view, found.equal, tuple(violations))

    def _word(self, trial: Trial, told: Iterable[Told]) -> str:
        """What the operation told that met the fault."""
        if trial.kind == "crash" and self._killed is not None:
            return "killed"
        return next((one.word for one in told if one.operation == trial.operation), "nothing")

    def _state(self, archive: Archive, session_id: str) -> tuple[str, list[str]]:
        try:
            results = archive.results(session_id, principal=self.probe.principal)
        except NotAvailableError:
            return "nothing", []
        archived = [info.id for info in results if info.state == "archived" and info.restored_from is None]
        wanted = [result_id for result_id, _ in self.probe.batch]
        return ("all" if archived == wanted else "part" if archived else "nothing"), archived


class OrgLog:
    """The org's audit log, read on from where it was read last, so that a long sweep does not reread it all.

    Args:
        org: whose.
    """

    def __init__(self, org: str) -> None:
        self._org = org
        self._frontier = Frontier()

    def new_entries(self, archive: Archive) -> tuple[list[audit.Leaf], list[str]]:
        """What was appended since, and what is wrong with it."""
        vault, frontier = open_vault(archive._around, self._org, create=False), self._frontier
        entries, findings = list[audit.Leaf](), list[str]()
        with vault.store.reading(vault.store_wait_ms) as reader:
            head = reader.head()
            while rows := reader.leaves(frontier.size, LEAVES_PER_READ):
                for seq, data in rows:
                    entry = audit.decode_leaf(data)
                    if (seq, entry.seq, entry.org) != (frontier.size, seq, self._org):
                        findings.append(f"Entry {frontier.size} of the audit log is missing.")
                    frontier.append(leaf_hash(data))
                    entries.append(entry)
        if (head.size, head.frontier) != (frontier.size, frontier.to_bytes()):
            findings.append("The audit log does not hash to what its head holds.")
        return entries, findings


def _check_rehearsal(told: Iterable[Told], probe: Probe) -> None:
    for one in told:
        if isinstance(one.error, BatchRejectedError) and one.error.targets:
            raise PolicyError(
                f"The policy does not let results of the tool {probe.tool!r} be archived "
                f"({one.error.targets[0].reason}): name a tool that it does."
            )
        if isinstance(one.error, EvidenceArchiveError):
            raise one.error
        if one.word != CLEAN.get(one.operation):
            raise MisuseError(
                f"Even without a fault the operation {one.operation!r} told {one.word!r}: nothing can be swept."
            )


def restored_equal(archive: Archive, probe: Probe, session_id: str, archived: Iterable[str]) -> bool:
    """Whether originals of a session come back as they were.

    Args:
        archive: opened anew.
        probe: what was archived.
        session_id: where.
        archived: result IDs.
    """
    contents = dict(zip((result_id for result_id, _ in probe.batch), probe.contents, strict=True))
    equal = True
    for result_id in archived:
        try:
            content = archive.restore(session_id, result_id, principal=probe.principal).content
        except EvidenceArchiveError:
            content = None
        equal = equal and same_value(content, contents.get(result_id))
    return equal


@dataclass(frozen=True, slots=True)
class _Found:
    """What an archive opened anew found."""

    state: str
    next_view: str
    equal: bool | None
    granted: int
    """Restores of the conversation in the audit log."""


def _said_wrong(told: Iterable[Told]) -> Iterator[str]:
    """What no operation may tell, whatever the fault."""
    for one in told:
        if one.word.startswith("untyped"):
            yield f"The operation {one.operation} raised an {one.word}, which is no error of this library."
        elif one.word in ("unequal", "mixed", "receipt of something else"):
            yield f"The operation {one.operation} told {one.word!r}."
        elif one.operation in ("view", "next view") and one.word not in ("old", "new", "crashed"):
            yield f"The {one.operation} raised a {one.word} and did not show the originals."


def _said_untrue(trial: Trial, told: Sequence[Told], found: _Found) -> Iterator[str]:
    """What was told and is not so."""
    words = {one.operation: one.word for one in told}
    archive, view = words.get("archive", ""), words.get("next view")
    if archive == "receipt" and found.state != "all":
        yield "A receipt was given, and not all of the batch is archived."
    if archive not in ("", "receipt", "crashed", f"rejected: {UNKNOWN}") and found.state != "nothing":
        yield f"The caller was told that nothing was archived ({archive}), and the batch is there."
    if "new" in (words.get("view"), view) and found.state != "all":
        yield "A note was shown for what is not archived."
    if archive == "receipt" and view == "old" and trial.kind != "outage" and trial.operation != "next view":
        yield "The view after a receipt still shows the originals."
    restores = [one for one in told if one.operation.startswith("restore") and one.word == "restored"]
    if archive == "receipt" and found.granted < len(restores):
        yield f"{len(restores)} originals were released, and the audit log holds {found.granted} of the grants."
    if trial.kind in ("delay", HELD):
        late = [one for one in told if one.word != CLEAN[one.operation]]
        if late or found.state != "all":
            yield f"A wait made the operation {late[0].operation if late else trial.operation} fail."


def _left_wrong(found: _Found) -> Iterator[str]:
    """What must not be left behind."""
    if found.state == "part":
        yield "A part of the batch is archived."
    elif found.next_view != ("new" if found.state == "all" else "old"):
        yield f"A session opened anew shows a view that is {found.next_view}; {found.state} of the batch is archived."
    if found.equal is False:
        yield "An archived original does not come back equal."


def _recovery(session: Session, probe: Probe, session_id: str) -> Iterator[str]:
    """Whether the work can go on: the same batch again is acknowledged, as new or as the one that is there."""
    try:
        session.archive(probe.batch, idempotency_key=session_id)
        if probe.shown(session.view(probe.messages())) != "new":
            yield "After the fault the batch could be archived, and the view does not show it."
    except EvidenceArchiveError as error:
        yield f"After the fault the batch cannot be archived any more: {error}"


def sweep(
    make: Callable[[FaultPlan], Archive],
    *,
    probe: Probe,
    kinds: Iterable[str] = KINDS,
    points: str = "*",
) -> Iterator[Outcome]:
    """The outcome of every fault at every passing; see :class:`Sweep`.

    Args:
        make, probe, kinds, points: as for :class:`Sweep`.

    Raises:
        FormatError: a kind or a point does not exist.
        PolicyError: the policy does not let the probe's results be archived.
        EvidenceArchiveError: keys, store or objects are not as they should be even without a fault.
    """
    trials = Sweep(make, probe=probe, kinds=kinds, points=points)
    yield from trials.first_use()
    yield from map(trials.run, trials.rehearse())
