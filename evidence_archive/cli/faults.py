"""``evidence-archive faults``: what is left of an archive, on your own configuration, after all that can fail."""

import re
import secrets
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evidence_archive.cli.options import Json, Keys, Objects, PolicyFile, Roles, Url
from evidence_archive.cli.render import counted, emit_json, note, say, table_rows
from evidence_archive.errors import EvidenceArchiveError, MisuseError, NotAvailableError

if TYPE_CHECKING:
    from evidence_archive.archive import Archive
    from evidence_archive.model import Principal
    from evidence_archive.policy import Policy
    from evidence_archive.testing.crashing import Configuration
    from evidence_archive.testing.safekeeping import CustodySweep
    from evidence_archive.testing.sweeping import Outcome, Trial

__all__ = ["register"]

VIOLATED = 1
COULD_NOT_RUN = 2

SUBJECT = "fault-sweep"
KINDS = "error,outage,delay,crash"
OPERATIONS = "archive,rotate,shred"
LARGE_CHARS = 1_200_000
"""Length of the large original where the archive has objects: more than is kept in the database by default."""

SECONDS_PER_CRASH = 1.0
"""About how long a process takes to start and to die."""

_HEADS = ("operation", "point", "n-th", "fault", "told", "outcome", "next view", "restored equal", "verdict")
_WIDTHS = (15, 0, 4, 22, 27, 7, 9, 14, 9)
"""Of what the columns hold as a rule, since lines are printed before all are known; 0 is that of the points."""

_EXAMPLE = "--url sqlite:///evidence.db --keys evidence.keys --policy policies/default.toml"


def register(app: typer.Typer) -> None:
    """Add the ``faults`` command."""
    app.command("faults", epilog=f"Example: evidence-archive faults {_EXAMPLE}")(_faults)


def _faults(
    *,
    url: Url,
    keys: Keys = None,
    policy: PolicyFile = None,
    objects: Objects = None,
    org: Annotated[
        str | None,
        typer.Option("--org", metavar="NAME", help="New org to sweep in; 'faults-' and a random name without."),
    ] = None,
    tool: Annotated[
        str | None,
        typer.Option("--tool", metavar="NAME", help="Tool that the probe's results come from; chosen without."),
    ] = None,
    role: Roles = None,
    kinds: Annotated[str, typer.Option("--kinds", metavar="NAMES", help="Kinds of faults, with commas.")] = KINDS,
    operations: Annotated[
        str, typer.Option("--operations", metavar="NAMES", help="What is swept, with commas.")
    ] = OPERATIONS,
    points: Annotated[
        str, typer.Option("--points", metavar="PATTERN", help="Only these fault points, such as 'store.commit.*'.")
    ] = "*",
    as_json: Json = False,
) -> None:
    """Try every fault on your own store, keys and policy.

    In a new org that nothing else uses: an error once, an outage that lasts, a wait, and a process killed by SIGKILL,
    at each point where an archive meets its store, its objects or its keys. After each an archive opened anew looks:
    all of the batch is there or nothing, every original comes back equal, the audit log holds, what was told is true.
    Rotations and shreds are swept too, in orgs and under keys that are made for it and destroyed.
    Exit 1 when that fails once, 2 when it could not run. Nothing of your own orgs is read or written, so
    nothing shows whether the keys are theirs: 'evidence-archive audit log' on an org of yours does.
    """
    from evidence_archive.model import Principal
    from evidence_archive.testing.crashing import Configuration

    named, swept = _named("--kinds", kinds, KINDS), _named("--operations", operations, OPERATIONS)
    try:
        configuration = Configuration(
            url,
            "env:EVIDENCE_ARCHIVE_KEYS" if keys is None else str(keys),
            None if policy is None else str(policy),
            objects,
        )
        principal = Principal(org or f"faults-{secrets.token_hex(4)}", SUBJECT, role or ())
        report = _Report(principal.org, shown=not as_json)
        _sweep(report, configuration, principal, tool=tool, operations=swept, kinds=named, points=points)
    except EvidenceArchiveError as error:
        vars(error)["exit_code"] = COULD_NOT_RUN  # whatever it is: nothing is said about the configuration
        raise
    if as_json:
        emit_json(report.document())
    else:
        report.show()
    if report.violations:
        raise typer.Exit(VIOLATED)


def _named(option: str, given: str, known: str) -> list[str]:
    named = [name.strip() for name in given.split(",") if name.strip()]
    if not named or not set(named) <= set(known.split(",")):
        raise typer.BadParameter(f"{option} names some of {known}.")
    return named


class _Report:
    """What a sweep has found so far.

    Args:
        org: where it takes place.
        shown: whether each outcome is printed as it comes.
    """

    def __init__(self, org: str, *, shown: bool) -> None:
        self.org = org
        self.shown = shown
        self.tool = ""
        self.outcomes: list[Outcome] = []
        self.planned: int | None = None
        self.left: dict[str, int] | None = None
        self.not_swept: dict[str, str] = {}
        self.keeping: list[CustodySweep] = []
        self.keys: Path | None = None
        self.seconds = 0.0
        self._show: Callable[[Sequence[object]], None] | None = None

    @property
    def violations(self) -> "list[Outcome]":
        """What must not be."""
        return [outcome for outcome in self.outcomes if not outcome.ok]

    @property
    def stuck(self) -> list[str]:
        """Orgs that could not be shredded."""
        return [org for sweep in self.keeping for org in sweep.stuck]

    @property
    def shredded(self) -> int:
        """How many orgs were."""
        return sum(len(sweep.orgs) - len(sweep.stuck) for sweep in self.keeping)

    def add(self, outcome: "Outcome") -> None:
        """One more outcome; its line is out when this returns."""
        self.outcomes.append(outcome)
        if not self.shown:
            return
        if self._show is None:
            from evidence_archive.testing.faults import FAULT_POINTS

            longest = max(len(point.name) for point in FAULT_POINTS)
            widths = [width or longest for width in _WIDTHS]
            self._show = table_rows(_HEADS, widths, numbers=[2])
        trial = outcome.trial
        self._show(
            (
                trial.operation,
                trial.point,
                trial.number,
                trial.fault,
                outcome.told,
                outcome.state,
                outcome.next_view,
                {True: "yes", False: "NO", None: "-"}[outcome.restored_equal],
                "ok" if outcome.ok else "VIOLATION",
            )
        )
        sys.stdout.flush()

    def document(self) -> dict[str, Any]:
        """The report for programs."""
        return {
            "ok": not self.violations,
            "org": self.org,
            "tool": self.tool,
            "trials": len(self.outcomes),
            "violations": len(self.violations),
            "seconds": round(self.seconds, 1),
            "not_swept": [{"operation": one, "reason": reason} for one, reason in self.not_swept.items()],
            "left_in_store": self.left or {},
            "shredded_orgs": self.shredded,
            "orgs_not_shredded": self.stuck,
            "keys_kept": str(self.keys) if self.stuck and self.keys else None,
            "outcomes": [
                {
                    "operation": outcome.trial.operation,
                    "point": outcome.trial.point,
                    "number": outcome.trial.number,
                    "fault": outcome.trial.fault,
                    "told": outcome.told,
                    "outcome": outcome.state,
                    "next_view": outcome.next_view,
                    "restored_equal": outcome.restored_equal,
                    "ok": outcome.ok,
                    "violations": outcome.violations,
                }
                for outcome in self.outcomes
            ],
        }

    def show(self) -> None:
        """The end of the report for people: what matters most."""
        say("", *self._violated(), *self._unswept())
        whole = sum(outcome.state == "all" for outcome in self.outcomes)
        parts = sum(outcome.state == "part" for outcome in self.outcomes)
        some = f"a part after {parts}, " if parts else ""
        points = {outcome.trial.point for outcome in self.outcomes}
        say(
            f"{counted(len(self.outcomes), 'fault')} at {counted(len(points), 'point')} "
            f"in {self.seconds:.0f} s: all of it after {whole}, {some}nothing after "
            f"{sum(outcome.state == 'nothing' for outcome in self.outcomes)}; "
            f"{counted(len(self.violations), 'violation')}.",
            *self._stays(),
        )

    def show_interrupted(self) -> None:
        """What was found until somebody interrupted; beside the document for programs on stderr."""
        tell = say if self.shown else note
        if self._show is not None:
            say("")
        known = "" if self.planned is None else f" of {self.planned:,}"
        tell(
            *self._violated(),
            *self._unswept(),
            f"{len(self.outcomes):,}{known} faults tried; {counted(len(self.violations), 'violation')} so far.",
            *self._stays(),
        )

    def _stays(self) -> Iterator[str]:
        """What is left in the store."""
        if self.left is not None:
            left = ", ".join(f"{count:,} {kind}" for kind, count in self.left.items())
            yield f"The org {self.org} stays in the store{f': {left}' if left else ''}."
        if self.shredded:
            yield f"{counted(self.shredded, 'org')} of rotations and shreds: shredded, with all that was in them."
        for org in self.stuck:
            where = "" if self.keys is None else f" with the keys {self.keys}"
            yield f"The org {org} could not be shredded: do it by 'evidence-archive shred --org {org}'{where}."

    def _unswept(self) -> Iterator[str]:
        for operation, reason in self.not_swept.items():
            yield f"not swept: {operation}: {reason}."

    def _violated(self) -> Iterator[str]:
        for outcome in self.violations:
            trial = outcome.trial
            yield f"VIOLATION  {trial.operation}, {trial.point} {trial.number}, {trial.fault}: {outcome.violation}"


def _sweep(
    report: _Report,
    configuration: "Configuration",
    principal: "Principal",
    *,
    tool: str | None,
    operations: Sequence[str],
    kinds: Sequence[str],
    points: str,
) -> None:
    from evidence_archive.keys import open_provider
    from evidence_archive.testing.conversing import Probe, tool_allowed_by
    from evidence_archive.testing.faults import FaultPlan
    from evidence_archive.testing.safekeeping import OPERATIONS, why_not_swept

    with closing(configuration.open(FaultPlan(), create=False)) as archive:
        _refuse_used(archive, principal)
        tools = _candidates(archive.policy) if tool is None else [tool]
        keeps_objects = getattr(archive._around, "objects", None) is not None
        report.tool = tool_allowed_by(archive.policy, principal, tools)
        probe = Probe(principal, report.tool, LARGE_CHARS if keeps_objects else 0)
        reasons = why_not_swept(open_provider(configuration.keys), archive.policy, probe)
    asked = [one for group in operations for one in OPERATIONS.get(group, ())]
    report.not_swept = {one: reasons[one] for one in asked if one in reasons}
    named: dict[str, Any] = {"probe": probe, "kinds": kinds, "points": points}
    began = monotonic()
    try:
        with ExitStack() as stack:
            runs = list[_Run]()
            if "archive" in operations:
                runs.append(_archiving(stack, report, configuration, named))
            kept = [one for one in asked if one not in reasons]
            if kept:
                runs += _keeping(stack, report, configuration, named, kept, with_own_keys=not reasons)
            if not runs:
                raise MisuseError(f"Nothing can be swept: {'; '.join(dict.fromkeys(reasons.values()))}.")
            if not any(run.trials for run in runs):
                raise MisuseError(f"What is to be swept meets no point {points!r}: nothing would be checked.")
            _try_all(report, runs)
    except KeyboardInterrupt:
        report.show_interrupted()
        raise
    report.seconds = monotonic() - began


@dataclass(frozen=True, slots=True)
class _Run:
    """Trials that are still to come.

    Args:
        trials: all of them.
        run: tries one.
        ended: is called after the last one.
        seconds: about how long one takes without a process of its own.
    """

    trials: "Sequence[Trial]"
    run: "Callable[[Trial], Outcome]"
    ended: Callable[[], None]
    seconds: float


def _archiving(stack: ExitStack, report: _Report, configuration: "Configuration", named: dict[str, Any]) -> _Run:
    """The conversation: archiving and restoring."""
    from evidence_archive.testing.crashing import Crashing
    from evidence_archive.testing.sweeping import Sweep

    killed = stack.enter_context(Crashing(configuration, named["probe"]))
    sweep = Sweep(configuration.open, killed=killed, **named)
    left = report.left = {}
    for outcome in sweep.first_use():
        report.add(outcome)
    began = monotonic()
    trials = sweep.found()
    large = named["probe"].large_chars and named["points"] == "*"
    if large and not any(one.point.startswith("objects.") for one in trials):
        raise MisuseError(
            "No original of the probe went to the objects: check what the policy keeps in the database."
        )
    return _Run(trials, sweep.run, lambda: left.update(sweep.left_behind()), monotonic() - began)


def _keeping(
    stack: ExitStack,
    report: _Report,
    configuration: "Configuration",
    named: dict[str, Any],
    operations: Sequence[str],
    *,
    with_own_keys: bool,
) -> Iterator[_Run]:
    """Rotations and shreds, one after the other: what one of them destroys, the next one must not need."""
    from evidence_archive.testing.crashing import Crashing
    from evidence_archive.testing.safekeeping import CustodySweep, own_keys

    if with_own_keys:
        report.keys = stack.enter_context(own_keys(lambda: report.stuck))
        configuration = replace(configuration, keys=str(report.keys))
    killed = stack.enter_context(Crashing(configuration, named["probe"]))
    for operation in operations:
        sweep = CustodySweep(
            configuration.open,
            operation=operation,
            killed=lambda trial, act: killed(trial, act.session_id, principal=act.principal),
            **named,
        )
        report.keeping.append(stack.enter_context(sweep))
        began = monotonic()
        yield _Run(sweep.found(), sweep.run, sweep.leave, (monotonic() - began) / 2)


def _try_all(report: _Report, runs: "Sequence[_Run]") -> None:
    met, total = len(report.outcomes), sum(len(run.trials) for run in runs)
    report.planned = met + total
    crashes = sum(trial.kind == "crash" for run in runs for trial in run.trials)
    seconds = sum(len(run.trials) * run.seconds for run in runs) + crashes * SECONDS_PER_CRASH
    if report.shown:
        before = f", {met:,} of them met while the org was made" if met else ""
        note(f"{counted(report.planned, 'fault')} to meet{before}; the rest takes about {_time(seconds)}.")
        if report.keys is not None:
            note(
                f"Rotations and shreds have keys of their own in {report.keys}, which go in the end. Until then "
                "'backup' and 'keys retire' of this store are refused."
            )
    with _progress(total, shown=report.shown and sys.stderr.isatty() and not sys.stdout.isatty()) as advance:
        for run in runs:
            for trial in run.trials:
                report.add(run.run(trial))
                advance(f"{trial.operation}: {trial.point} {trial.fault}")
            run.ended()


def _time(seconds: float) -> str:
    return f"{max(seconds, 1):.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


@contextmanager
def _progress(total: int, *, shown: bool) -> Iterator[Callable[[str], None]]:
    if not shown:
        yield lambda words: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        task = progress.add_task("", total=total)
        yield lambda words: progress.update(task, advance=1, description=words)


def _refuse_used(archive: "Archive", principal: "Principal") -> None:
    """Only an org that nobody has used may be swept in."""
    try:
        archive.audit(principal=principal)
    except NotAvailableError:
        return
    raise MisuseError(f"The org {principal.org} is in use already: name a new one, or none, with --org.")


def _candidates(policy: "Policy") -> list[str]:
    """Tools whose results the policy might let be archived: one that no rule names, then those that rules allow."""
    from evidence_archive.testing.conversing import PROBE_TOOL

    tables: dict[str, Any] = {}
    if policy.path is not None:
        tables = tomllib.loads(Path(policy.path).read_text("utf-8-sig"))
    rules = [rule for rule in tables.get("archive", ()) if rule.get("effect") == "allow"]
    globs = [glob for rule in rules for glob in rule.get("tools", ())]
    return [PROBE_TOOL, *dict.fromkeys(re.sub(r"\[[^]]*\]|[*?]", "x", glob) for glob in globs)]
