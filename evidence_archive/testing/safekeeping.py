"""A fault at every passing of a rotation and of shreds, and what is true after it.

Each operation of a custodian is rehearsed once, then met again with every kind of fault. After each an archive opened
anew looks, runs the operation again, and looks again. All of it takes place in orgs that nothing else uses, and that
are shredded in the end. A rotation, and a shred until it is complete, make and destroy key versions: they are swept
only where the keys are those of the sweep alone, such as :func:`own_keys` makes them.
"""

import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from evidence_archive.archive import Archive
from evidence_archive.custody import Custody
from evidence_archive.errors import EvidenceArchiveError, FormatError, MisuseError, NotAvailableError, ShreddedError
from evidence_archive.keys import FileKeys, new_keys
from evidence_archive.model import Principal, format_result_id
from evidence_archive.policy import Policy
from evidence_archive.ports import KeyLifecycle, KeyProvider, Reader, ShredRow
from evidence_archive.proof import leaf as audit
from evidence_archive.testing.conversing import Probe, Told, probe_facts, tell
from evidence_archive.testing.faults import Crashed, FaultPlan
from evidence_archive.testing.sweeping import (
    KINDS,
    NOT_KILLED,
    NOT_MET,
    RIVAL,
    OrgLog,
    Outcome,
    Trial,
    check_sweepable,
    restored_equal,
    set_fault,
)
from evidence_archive.vault import FIRST_GENERATION, Vault, open_vault

__all__ = ["DONE", "OPERATIONS", "Act", "CustodySweep", "own_keys", "why_not_swept"]

ROTATE, SHRED_ORIGINAL, SHRED_SESSION, COMPLETE = "rotate", "shred original", "shred session", "complete shred"

DONE = {ROTATE: "rotated", SHRED_ORIGINAL: "pending", SHRED_SESSION: "pending", COMPLETE: "complete"}
"""What each operation tells without faults."""

OPERATIONS = {ROTATE: (ROTATE,), "shred": (SHRED_ORIGINAL, SHRED_SESSION, COMPLETE)}
"""The operations that go together."""

TRIALS_PER_ORG = 40
"""After so many an org is left for a new one: what is read of it in pages must not grow by a page."""

SHREDDED_ID, RIVAL_ID = "r2", "r3"
"""The original that is shredded, and the one that somebody else shreds during a rotation."""


@dataclass(frozen=True, slots=True)
class Act:
    """One operation of a custodian; equal in every process.

    Args:
        operation: one of :data:`DONE`.
        principal: owns the session and is a custodian.
        session_id: what is shredded, or of what.
    """

    operation: str
    principal: Principal
    session_id: str

    def perform(
        self, archive: Archive, *, begins: Callable[[], object] = lambda: None, new_version: bool = True
    ) -> Told:
        """What the operation tells.

        Args:
            archive: opened for this.
            begins: is called once the org is open, just before the operation.
            new_version: of a rotation, whether it makes one.

        Raises:
            EvidenceArchiveError: the org cannot be opened.
        """
        custody = archive.custody(self.principal)

        def rotate() -> str:
            custody.rotate(new_version=new_version)
            return DONE[ROTATE]

        def complete() -> str:
            _retire_older(custody)
            return next(shred.status for shred in custody.shreds() if shred.session_id == self.session_id)

        verbs: dict[str, Callable[[], str]] = {
            ROTATE: rotate,
            SHRED_ORIGINAL: lambda: custody.shred(session_id=self.session_id, result_id=SHREDDED_ID).status,
            SHRED_SESSION: lambda: custody.shred(session_id=self.session_id).status,
            COMPLETE: complete,
        }
        begins()
        return tell(self.operation, verbs[self.operation])


def _retire_older(custody: Custody) -> None:
    """Destroy all versions but the current one; the keys are the sweep's own, so no other org needs one of them."""
    for version in (custody.census().available or ())[:-1]:
        custody._rekeying.retire(version, others={})


@dataclass(frozen=True, slots=True)
class _Seen:
    """What whoever may restore sees of the sessions."""

    shredded: set[str]
    equal: bool | None
    view: str
    violations: list[str]


@dataclass(frozen=True, slots=True)
class _Found:
    """What an archive opened anew found."""

    state: str
    next_view: str
    equal: bool | None
    violations: tuple[str, ...]


class CustodySweep:
    """The trials of one operation on one configuration; a context manager that shreds the orgs it used.

    Args:
        make: opens an archive on this configuration with a plan in front of it, always on the same store and keys.
        probe: who archives what; to the name of its org a random one is added.
        operation: one of :data:`DONE`. All but the shreds need keys that nothing but this sweep uses.
        kinds: of faults, from :data:`~evidence_archive.testing.sweeping.KINDS`.
        points: pattern of the points to sweep.
        killed: runs a trial of the kind ``crash`` in a process of its own and gives what was heard from it, or
            ``None`` when it was not killed at the point. Without it crashes are played in this process.

    Raises:
        FormatError: an operation, a kind or a point does not exist.
    """

    def __init__(
        self,
        make: Callable[[FaultPlan], Archive],
        *,
        probe: Probe,
        operation: str,
        kinds: Iterable[str] = KINDS,
        points: str = "*",
        killed: Callable[[Trial, Act], list[Told] | None] | None = None,
    ) -> None:
        if operation not in DONE:
            raise FormatError(f"Operations are {', '.join(DONE)}: name one.")
        self.kinds = check_sweepable(kinds, points)
        self.operation = operation
        self.orgs: list[str] = []
        """Every org that was used."""
        self.stuck: list[str] = []
        """Orgs that could not be shredded."""
        self._make = make
        self._points = points
        self._killed = killed
        # Only the shred of an original or a session meets objects.
        self._given = probe if operation in (SHRED_ORIGINAL, SHRED_SESSION) else replace(probe, large_chars=0)
        self._probe = self._given
        self._used = 0
        self._log: OrgLog | None = None
        self._logged: Counter[tuple[str, str | None]] = Counter()
        self._before = 0
        """The key version before the operation."""
        self._meanwhile: set[str] = set()
        """What somebody else shredded."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Shred the org that was used last; the next trial gets a new one."""
        if self._log is None:
            return
        self._log = None
        try:
            with closing(self._make(FaultPlan())) as archive:
                archive.custody(self._probe.principal).shred()
        except NotAvailableError:  # interrupted before it was made
            self.orgs.remove(self._probe.principal.org)
        except EvidenceArchiveError:
            self.stuck.append(self._probe.principal.org)

    def found(self) -> tuple[Trial, ...]:
        """Every trial there is, found by the operation without faults; none where it meets no such point.

        An error is met at every passing; the other kinds once at a point that only reads, since nothing has changed
        since then, and at every passing of all others.

        Raises:
            MisuseError: the operation does not go as it should even without a fault.
            EvidenceArchiveError: keys, store or objects are not as they should be.
        """
        act, plan = self._prepared(), FaultPlan()
        with closing(self._make(plan)) as archive:
            told = act.perform(archive, begins=plan.clear)
            passings = plan.passings
        if isinstance(told.error, EvidenceArchiveError):
            raise told.error
        trial = Trial(self.operation, "", 0, "none")
        outcome = self._looked(trial, act, told.word, [])
        self.leave()
        if told.word != DONE[self.operation] or not outcome.ok:
            raise MisuseError(
                f"Even without a fault the operation {self.operation!r} told {told.word!r}: nothing can be swept. "
                f"{outcome.violation or ''}".strip()
            )
        trials = [
            Trial(self.operation, passing.point, passing.number, kind)
            for kind in self.kinds
            for passing in passings
            if fnmatchcase(passing.point, self._points)
            and (kind == "error" or passing.number == 1 or passing.point.endswith((".before", ".after")))
        ]
        if self.operation == ROTATE and "delay" in self.kinds:
            trials += [
                Trial(ROTATE, passing.point, passing.number, RIVAL)
                for passing in passings
                if passing.point == "store.writing.begin" and fnmatchcase(passing.point, self._points)
            ]
        return tuple(trials)

    def run(self, trial: Trial) -> Outcome:
        """What is true after one fault.

        Args:
            trial: one that :meth:`found` gave.

        Raises:
            EvidenceArchiveError: without a fault, nothing can be archived.
        """
        if trial.kind == RIVAL:
            self.leave()  # what somebody else shreds is nothing that a later trial should find
        act = self._prepared()
        if trial.kind == "crash" and self._killed is not None:
            heard = self._killed(trial, act)
            word, violations = "killed", [] if heard is not None else [NOT_KILLED]
        else:
            word, violations = self._acted(trial, act)
        outcome = self._looked(trial, act, word, violations)
        if trial.kind == RIVAL or not outcome.ok:
            self.leave()
        return outcome

    # --- before the fault -------------------------------------------------------------------------------------------

    def _prepared(self) -> Act:
        """An org and, of it, what the operation is about."""
        if self._used >= TRIALS_PER_ORG:
            self.leave()
        with closing(self._make(FaultPlan())) as archive:
            if self._log is None:
                self._entered(archive.policy)
            principal = self._probe.principal
            act = Act(self.operation, principal, "kept-1" if self.operation == ROTATE else f"case-{self._used}")
            self._used += 1
            if self.operation != ROTATE or self._used == 1:
                self._archived(archive, act.session_id)
            if self.operation == ROTATE and self._used == 1:
                self._archived(archive, "kept-2")
            if self.operation == COMPLETE:
                custody = archive.custody(principal)
                custody.shred(session_id=act.session_id, result_id=SHREDDED_ID)
                custody.rotate()
            self._before = archive._around.keys.current_version(principal.org)
        return act

    def _entered(self, policy: Policy) -> None:
        given = self._given.principal
        org = f"{given.org}-{secrets.token_hex(4)}"
        roles = given.roles | set(sorted(policy.custodians)[:1])
        self._probe = replace(self._given, principal=Principal(org, given.subject, roles))
        self._log, self._logged, self._used, self._meanwhile = OrgLog(org), Counter(), 0, set()
        self.orgs.append(org)

    def _archived(self, archive: Archive, session_id: str) -> None:
        session = archive.session(session_id, self._probe.principal)
        session.view(self._probe.messages())
        session.archive(self._probe.batch)

    # --- the fault --------------------------------------------------------------------------------------------------

    def _acted(self, trial: Trial, act: Act) -> tuple[str, list[str]]:
        plan, failed = FaultPlan(), list[str]()

        def begins() -> None:
            plan.clear()
            if trial.kind == RIVAL:
                plan.run(trial.point, lambda: failed.extend(self._rivalled(act)), nth=trial.number)
            else:
                set_fault(plan, trial)

        archive = self._make(plan)
        told = act.perform(archive, begins=begins)
        met = plan.count(trial.point) >= trial.number
        with suppress(Crashed):
            archive.close()
        return told.word, failed if met else [*failed, NOT_MET]

    def _rivalled(self, act: Act) -> Iterator[str]:
        """Somebody else gives the session another key, because an original of it is shredded."""
        try:
            with closing(self._make(FaultPlan())) as archive:
                archive.custody(act.principal).shred(session_id=act.session_id, result_id=RIVAL_ID)
            self._meanwhile.add(RIVAL_ID)
        except EvidenceArchiveError as error:
            yield f"While it waited, nobody else could shred: {error}"

    # --- after the fault --------------------------------------------------------------------------------------------

    def _looked(self, trial: Trial, act: Act, word: str, violations: list[str]) -> Outcome:
        """An archive opened anew looks at what is left, runs the operation again, and looks again."""
        found = _Found("unknown", "unknown", None, ())
        try:
            with closing(self._make(FaultPlan())) as archive:
                found = self._left(archive, act)
                violations += [*found.violations, *_said_untrue(trial, word, found.state)]
                told = self._again(archive, act)
            self._retire_older(act)
            with closing(self._make(FaultPlan())) as archive:
                then = self._left(archive, act)
            if told.word != DONE[self.operation] and not (
                found.state == "all" and told.word == ShreddedError.__name__
            ):
                violations.append(f"Run again, the operation told {told.word!r}.")
            if then.state != "all":
                violations.append(f"Run again, the operation has {then.state} of its work done.")
            violations += [f"After it was run again: {one}" for one in then.violations]
        except EvidenceArchiveError as error:
            violations.append(f"After the fault the archive cannot be read any more: {error}")
        if word.startswith("untyped"):
            violations.append(f"The operation raised an {word}, which is no error of this library.")
        return Outcome(trial, word, found.state, found.next_view, found.equal, tuple(violations))

    def _again(self, archive: Archive, act: Act) -> Told:
        current = archive._around.keys.current_version(act.principal.org)
        told = act.perform(archive, new_version=current == self._before)
        if archive._around.objects is not None:
            archive.collect(principal=act.principal)  # so that the next trial finds nothing of this one
        return told

    def _retire_older(self, act: Act) -> None:
        """Behind a rotation nothing needs the older versions: without them everything still has to open."""
        if self.operation == ROTATE:
            with closing(self._make(FaultPlan())) as archive:
                _retire_older(archive.custody(act.principal))

    def _left(self, archive: Archive, act: Act) -> _Found:
        """What is there, and what of it must not be."""
        vault = open_vault(archive._around, act.principal.org, create=False)
        seen = self._seen(archive, act)
        gone, violations = seen.shredded, [*seen.violations, *self._log_wrong(archive)]
        if self.operation == ROTATE:
            state, wrong = self._wrapped(archive, act)
            return _Found(state, seen.view, seen.equal, (*violations, *wrong))
        with vault.store.reading(vault.store_wait_ms) as reader:
            shreds, wrong = self._destroyed(vault, reader, act, gone)
        whole = {SHREDDED_ID} if self.operation != SHRED_SESSION else {one for one, _ in self._probe.batch}
        state = "all" if gone == whole else "part" if gone else "nothing"
        if state == "part":
            wrong.append("Only a part of what was to be shredded is.")
        if self.operation == COMPLETE:
            if state != "all":
                wrong.append("What was shredded before is there again.")
            state = "all" if any(row.completed_at_us is not None for row in shreds) else "nothing"
        if len(shreds) != (1 if gone else 0):
            wrong.append(f"There are {len(shreds)} records of a shred, and {len(gone)} originals are shredded.")
        entries = self._logged[audit.SHRED_REQUESTED, act.session_id]
        if entries != (1 if gone else 0):
            wrong.append(f"The audit log holds {entries} requests to shred, and {len(gone)} originals are shredded.")
        return _Found(state, seen.view, seen.equal, (*violations, *wrong))

    def _seen(self, archive: Archive, act: Act) -> _Seen:
        """What of the sessions is shredded, whether all else came back equal, and what their views show."""
        rotated, ids = self.operation == ROTATE, [one for one, _ in self._probe.batch]
        shredded, equals, views, wrong = set[str](), list[bool](), list[str](), list[str]()
        for session_id in ("kept-1", "kept-2") if rotated else (act.session_id,):
            states = {one.id: one.state for one in archive.results(session_id, principal=act.principal)}
            gone = {one for one in ids if states.get(one) == "shredded"}
            live = [one for one in ids if states.get(one) == "archived"]
            if len(gone) + len(live) != len(ids):
                wrong.append("An original is neither archived nor shredded.")
            if rotated and gone != (self._meanwhile if session_id == act.session_id else set()):
                wrong.append("A rotation changed what is shredded.")
            if live:
                equals.append(restored_equal(archive, self._probe, session_id, live))
            wrong += _answered(archive, act.principal, session_id, gone)
            views.append(self._view(archive, session_id, gone))
            shredded |= gone
        if not all(equals):
            wrong.append("An original that was not shredded does not come back equal.")
        if "mixed" in views:
            wrong.append("A view does not show a tombstone for what is shredded and a note for all else.")
        view = "mixed" if "mixed" in views else "same" if rotated else views[0]
        return _Seen(shredded, all(equals) if equals else None, view, wrong)

    def _view(self, archive: Archive, session_id: str, gone: set[str]) -> str:
        """What a session opened anew shows: ``old`` notes, a ``new`` tombstone among them, or nothing any more."""
        messages, ids = self._probe.messages(), [one for one, _ in self._probe.batch]
        try:
            shown = archive.session(session_id, self._probe.principal).view(messages)
        except ShreddedError:
            return "none" if len(gone) == len(ids) else "mixed"
        except EvidenceArchiveError:
            return "mixed"
        texts = [seen["content"] for message, seen in zip(messages, shown, strict=True) if message["role"] == "tool"]
        wanted = [f"[{'shredded' if one in gone else 'archived'} {one} " for one in ids]
        if not all(text.startswith(begin) for text, begin in zip(texts, wanted, strict=True)):
            return "mixed"
        return "new" if gone else "old"

    def _wrapped(self, archive: Archive, act: Act) -> tuple[str, list[str]]:
        """How far a rotation has come."""
        census, wrong = archive.custody(act.principal).census(), list[str]()
        newer = [version > self._before for version in census.counts]
        state = "all" if all(newer) and census.floor > self._before else "part" if any(newer) else "nothing"
        if census.floor > min(census.counts):
            wrong.append("A key is wrapped under a version below the floor.")
        if not set(census.counts) <= set(census.available or census.counts):
            wrong.append("A version is destroyed under which keys are wrapped.")
        if any(newer) and not self._logged[audit.KEY_ROTATED, None]:
            wrong.append("Keys are wrapped anew, and the audit log holds no rotation.")
        return state, wrong

    def _destroyed(self, vault: Vault, reader: Reader, act: Act, gone: set[str]) -> tuple[list[ShredRow], list[str]]:
        """The records of shreds of the session; and what is left of a key, or says more than is so."""
        wrong = list[str]()
        found = reader.find(act.session_id, 1)
        if found is None:
            return [], ["The session is gone."]
        scope = found[1]
        for row in reader.results(scope.scope_id, -1):
            if format_result_id(row.number) in gone and (row.closed is not None or row.part is not None):
                wrong.append("The key of an original that is shredded is left in its row.")
            if format_result_id(row.number) in gone and reader.envelope(row.original_id or b"") is not None:
                wrong.append("The envelope of an original that is shredded is left.")
        if gone and scope.wrapped and (scope.generation == FIRST_GENERATION or self.operation == SHRED_SESSION):
            wrong.append("The session's key is left that opens what is shredded.")
        shreds = [row for row in reader.shreds() if row.scope_id == scope.scope_id]
        keys = vault.around.keys
        versions = keys.versions(act.principal.org) if isinstance(keys, KeyLifecycle) else ()
        for record in shreds:
            entries = self._logged[audit.SHRED_COMPLETED, record.shred_id.hex()]
            if record.completed_at_us is not None and any(version <= record.kek_version for version in versions):
                wrong.append("A shred says complete, and a key is left that opens older copies.")
            if record.completed_at_us is not None and scope.wrapped and scope.kek_version <= record.kek_version:
                wrong.append("A shred says complete, and a key is left that is wrapped as the destroyed one was.")
            if entries != (0 if record.completed_at_us is None else 1):
                wrong.append(f"The audit log holds {entries} entries that a shred is complete.")
        return shreds, wrong

    def _log_wrong(self, archive: Archive) -> list[str]:
        """What is wrong with the log; what was appended to it is counted."""
        if self._log is None:
            return []
        entries, wrong = self._log.new_entries(archive)
        for one in entries:
            about: Any = one.details.get("shred") if one.event == audit.SHRED_COMPLETED else one.session_id
            self._logged[one.event, about] += 1
        return wrong


def _answered(archive: Archive, principal: Principal, session_id: str, gone: Iterable[str]) -> Iterator[str]:
    """Originals that are shredded and are not refused as such."""
    for result_id in sorted(gone):
        try:
            archive.restore(session_id, result_id, principal=principal)
        except ShreddedError:
            continue
        except EvidenceArchiveError as error:
            yield f"An original that is shredded is refused in other words: {error}"
        else:
            yield "An original that is shredded came back."


def _said_untrue(trial: Trial, word: str, state: str) -> Iterator[str]:
    """What was told and is not so."""
    if word == DONE[trial.operation] and state != "all":
        yield f"It was told that it is {word}, and {state} of it is."
    if trial.kind in ("delay", RIVAL) and word != DONE[trial.operation]:
        yield f"A wait made the operation fail ({word})."


# --- whose keys -------------------------------------------------------------------------------------------------


@contextmanager
def own_keys(needed: Callable[[], object]) -> Iterator[Path]:
    """A new key file in a folder of its own, readable by its owner only; both are gone when the block ends.

    Args:
        needed: whether something is left then that only these keys open, so that they have to stay.

    Raises:
        KeyringError: the file cannot be made.
    """
    folder = Path(tempfile.mkdtemp(prefix="evidence-archive-faults-"))
    try:
        path = folder / "sweep.keys"
        new_keys(path)
        yield path
    finally:
        if not needed():
            shutil.rmtree(folder)


def why_not_swept(keys: KeyProvider, policy: Policy, probe: Probe) -> dict[str, str]:
    """The operations that cannot be swept on a configuration, with the reason in words; none where all can.

    Args:
        keys: the provider that is configured, without a plan in front of it.
        policy: the rules.
        probe: who archives what.
    """
    facts = [
        replace(probe_facts(probe.tool), size_chars=len(content), text=content) for content in set(probe.contents)
    ]
    if any(policy.retention_days(one) for one in facts):
        reason = f"the policy keeps results of the tool {probe.tool!r}, so nothing of them may be shredded"
        return dict.fromkeys(DONE, reason)
    if isinstance(keys, FileKeys):
        return {}
    if isinstance(keys, KeyLifecycle) and not keys.shared_by_orgs:
        reason = "each org has keys of its own where these are kept, and what a sweep makes there would stay"
        return dict.fromkeys(DONE, reason)
    reason = "these keys make and destroy no versions by themselves: it is done where they are kept"
    return dict.fromkeys((ROTATE, COMPLETE), reason)
