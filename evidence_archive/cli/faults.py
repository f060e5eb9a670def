"""``evidence-archive faults``: what is left of an archive, on your own configuration, after all that can fail."""

import re
import secrets
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    from evidence_archive.testing.sweeping import Outcome, Sweep

__all__ = ["register"]

VIOLATED = 1
COULD_NOT_RUN = 2

SUBJECT = "fault-sweep"
KINDS = "error,outage,delay,crash"
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
    points: Annotated[
        str, typer.Option("--points", metavar="PATTERN", help="Only these fault points, such as 'store.commit.*'.")
    ] = "*",
    as_json: Json = False,
) -> None:
    """Try every fault on your own store, keys and policy.

    In a new org that nothing else uses: an error once, an outage that lasts, a wait, and a process killed by SIGKILL,
    at each point where an archive meets its store, its objects or its keys. After each an archive opened anew looks:
    all of the batch is there or nothing, every original comes back equal, the audit log holds, what was told is true.
    Exit 1 when that fails once, 2 when it could not run. Nothing of your own orgs is read or written, so
    nothing shows whether the keys are theirs: 'evidence-archive audit log' on an org of yours does.
    """
    from evidence_archive.model import Principal
    from evidence_archive.testing.crashing import Configuration

    named = [kind.strip() for kind in kinds.split(",") if kind.strip()]
    if not named or not set(named) <= set(KINDS.split(",")):
        raise typer.BadParameter(f"--kinds names some of {KINDS}.")
    try:
        configuration = Configuration(
            url,
            "env:EVIDENCE_ARCHIVE_KEYS" if keys is None else str(keys),
            None if policy is None else str(policy),
            objects,
        )
        principal = Principal(org or f"faults-{secrets.token_hex(4)}", SUBJECT, role or ())
        report = _Report(principal.org, shown=not as_json)
        _sweep(report, configuration, principal, tool=tool, kinds=named, points=points)
    except EvidenceArchiveError as error:
        vars(error)["exit_code"] = COULD_NOT_RUN  # whatever it is: nothing is said about the configuration
        raise
    if as_json:
        emit_json(report.document())
    else:
        report.show()
    if report.violations:
        raise typer.Exit(VIOLATED)


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
        self.left: dict[str, int] = {}
        self.seconds = 0.0
        self._show: Callable[[Sequence[object]], None] | None = None

    @property
    def violations(self) -> "list[Outcome]":
        """What must not be."""
        return [outcome for outcome in self.outcomes if not outcome.ok]

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
            "left_in_store": self.left,
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
        say("", *self._violated())
        whole = sum(outcome.state == "all" for outcome in self.outcomes)
        points = {outcome.trial.point for outcome in self.outcomes}
        say(
            f"{counted(len(self.outcomes), 'fault')} at {counted(len(points), 'point')} "
            f"in {self.seconds:.0f} s: all of it after {whole}, nothing after "
            f"{sum(outcome.state == 'nothing' for outcome in self.outcomes)}; "
            f"{counted(len(self.violations), 'violation')}.",
            f"The org {self.org} stays in the store: "
            f"{', '.join(f'{count:,} {kind}' for kind, count in self.left.items())}.",
        )

    def show_interrupted(self) -> None:
        """What was found until somebody interrupted; beside the document for programs on stderr."""
        tell = say if self.shown else note
        if self._show is not None:
            say("")
        known = "" if self.planned is None else f" of {self.planned:,}"
        tell(
            *self._violated(),
            f"{len(self.outcomes):,}{known} faults tried; {counted(len(self.violations), 'violation')} so far.",
            f"The org {self.org} stays in the store.",
        )

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
    kinds: Sequence[str],
    points: str,
) -> None:
    from contextlib import closing

    from evidence_archive.testing.conversing import Probe, tool_allowed_by
    from evidence_archive.testing.crashing import Crashing
    from evidence_archive.testing.faults import FaultPlan
    from evidence_archive.testing.sweeping import Sweep

    with closing(configuration.open(FaultPlan(), create=False)) as archive:
        _refuse_used(archive, principal)
        tools = _candidates(archive.policy) if tool is None else [tool]
        keeps_objects = getattr(archive._around, "objects", None) is not None
        report.tool = tool_allowed_by(archive.policy, principal, tools)
    probe = Probe(principal, report.tool, LARGE_CHARS if keeps_objects else 0)
    began = monotonic()
    try:
        with Crashing(configuration, probe) as killed:
            sweep = Sweep(configuration.open, probe=probe, kinds=kinds, points=points, killed=killed)
            _try_all(report, sweep, keeps_objects=keeps_objects and points == "*")
            report.left = sweep.left_behind()
    except KeyboardInterrupt:
        report.show_interrupted()
        raise
    report.seconds = monotonic() - began


def _try_all(report: _Report, sweep: "Sweep", *, keeps_objects: bool) -> None:
    for outcome in sweep.first_use():
        report.add(outcome)
    began = monotonic()
    trials = sweep.rehearse()
    if keeps_objects and not any(trial.point.startswith("objects.") for trial in trials):
        raise MisuseError(
            "No original of the probe went to the objects: check what the policy keeps in the database."
        )
    met = len(report.outcomes)
    report.planned = met + len(trials)
    crashes = sum(trial.kind == "crash" for trial in trials)
    seconds = len(trials) * (monotonic() - began) + crashes * SECONDS_PER_CRASH
    if report.shown:
        before = f", {met:,} of them met while the org was made" if met else ""
        note(f"{counted(report.planned, 'fault')} to meet{before}; the rest takes about {_time(seconds)}.")
    with _progress(len(trials), shown=report.shown and sys.stderr.isatty() and not sys.stdout.isatty()) as advance:
        for trial in trials:
            report.add(sweep.run(trial))
            advance(f"{trial.operation}: {trial.point} {trial.fault}")


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
