"""``python -m benchmarks view``, or ``storage``, ``imports``, ``postgres``, ``window``; ``--json`` for programs."""

import argparse
import json
import sys

from benchmarks import imports, postgres, storage, surroundings, view, window

_RUNS = {"imports": imports, "postgres": postgres, "storage": storage, "view": view, "window": window}


def main() -> int:
    """Run one benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=sorted(_RUNS))
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds; figures are medians over them")
    parser.add_argument("--transcript", help="of window: a JSON file with the messages of a task")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    chosen = parser.parse_args()
    given = {"transcript": chosen.transcript} if chosen.transcript and chosen.name == "window" else {}
    figures = {"machine": surroundings.machine(), **_RUNS[chosen.name].measure(chosen.rounds, **given)}
    if chosen.json:
        json.dump(figures, sys.stdout, indent=1)
        print()
    else:
        print(" ".join(f"{key}={value}" for key, value in figures["machine"].items()))
        print(_RUNS[chosen.name].table(figures))
    return 0


sys.exit(main())
