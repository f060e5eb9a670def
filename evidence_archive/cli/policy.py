"""``evidence-archive policy``: run a policy's own tests, and ask it why it decides as it does."""

from pathlib import Path
from typing import Annotated

import typer

from evidence_archive.cli.options import Json
from evidence_archive.cli.render import counted, emit_json, say, table

__all__ = ["register"]

CHECK_FAILED = 1

_File = Annotated[Path, typer.Argument(metavar="FILE", help="Policy file (TOML).", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the ``policy`` commands."""
    group = typer.Typer(
        help="Check and explain policies.",
        epilog="Example: evidence-archive policy check policies/clinical.toml",
        rich_markup_mode=None,
    )
    group.callback()(_policy)
    group.command("check", epilog="Example: evidence-archive policy check policies/clinical.toml")(_check)
    group.command(
        "explain", epilog="Example: evidence-archive policy explain policies/clinical.toml --tool drug_label.lookup"
    )(_explain)
    app.add_typer(group, name="policy")


def _policy() -> None:
    """Check and explain policies."""


def _check(file: _File, as_json: Json = False) -> None:
    """Run the [[test]] entries of a policy; exit 1 when one fails."""
    from evidence_archive.access import may_restore
    from evidence_archive.policy import Policy

    policy = Policy.load(file)
    report = policy.check(may_restore)
    failed = sum(not outcome.passed for outcome in report.outcomes)
    if as_json:
        emit_json(
            {
                "policy": {"name": policy.name, "version": policy.version, "digest": policy.digest},
                "ok": report.ok,
                "tests": report.outcomes,
                "warnings": report.warnings,
            }
        )
    else:
        for outcome in report.outcomes:
            got = "" if outcome.passed else f": got {outcome.explained}, expected {outcome.expected}"
            say(f"{'PASS' if outcome.passed else 'FAIL'}  test[{outcome.index}] {outcome.description}{got}")
        for warning in report.warnings:
            say(f"WARNING  {warning}")
        say(f"{policy.name} version {policy.version}: {counted(len(report.outcomes), 'test')}, {failed} failed.")
        if failed:
            say("Change the rules or the tests, then check again; 'policy explain' says which rule decides.")
    if not report.ok:
        raise typer.Exit(CHECK_FAILED)


def _explain(
    *,
    file: _File,
    tool: Annotated[
        str, typer.Option("--tool", metavar="NAME", help="Tool name as the model calls it.", show_default=False)
    ],
    result_tool: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tool name on the result, where it differs.")
    ] = None,
    sensitivity: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Label the host attached; repeatable.")
    ] = None,
    kind: Annotated[str | None, typer.Option(metavar="NAME", help="Kind the host attached.")] = None,
    size_chars: Annotated[
        int, typer.Option(metavar="NUMBER", min=0, help="Size of the result, in characters.")
    ] = 10_000,
    age_turns: Annotated[
        int,
        typer.Option(
            metavar="NUMBER", min=0, help="Runs of assistant messages after the result; several in a row are one."
        ),
    ] = 0,
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="Text of the result, for content rules.")] = None,
    as_json: Json = False,
) -> None:
    """Say what a policy decides for a result, and why."""
    from evidence_archive.model import Facts
    from evidence_archive.policy import Policy

    policy = Policy.load(file)
    tools = (tool,) if result_tool in (None, tool) else (tool, str(result_tool))
    explanation = policy.explain(
        Facts(
            tools, frozenset(sensitivity or ()), kind, len(text) if text is not None else size_chars, age_turns, text
        )
    )
    if as_json:
        emit_json(explanation)
        return
    decision = explanation.decision
    say(f"{tool}: {'may be archived' if decision.effect == 'allow' else 'is never archived'}")
    say(f"decided by: {decision.rule_id} ({decision.reason})")
    rows = [(step.rule_id, step.effect, "yes" if step.matched else "no", step.why) for step in explanation.steps]
    if rows:
        table("", ("rule", "effect", "matched", "why"), rows)
    live = explanation.live
    if live is not None:
        age = "" if live.max_age_seconds is None else f" (at the latest after {live.max_age_seconds} s)"
        say(f"live: ask {live.ask or 'the tool again'} for the present{age}")
    for roles in explanation.openings:
        say(f"restored by: {'the owner only' if roles is None else 'roles ' + ', '.join(sorted(roles))}")
    days = explanation.retention_days
    say("kept: no retention rule" if days is None else f"kept: {days} {'day' if days == 1 else 'days'}")
