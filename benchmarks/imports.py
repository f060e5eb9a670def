"""What importing costs, against a bare interpreter: the package, and the package with its door."""

import subprocess
import sys
from typing import Any

from benchmarks.surroundings import quantile, rows, seconds

PROGRAMS = {
    "bare interpreter": "pass",
    "import evidence_archive": "import evidence_archive",
    "from evidence_archive import Archive": "from evidence_archive import Archive",
}


def measure(rounds: int) -> dict[str, Any]:
    """Milliseconds per whole process, medians, the programs interleaved."""
    took: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for round_ in range(rounds + 1):
        for name, program in PROGRAMS.items():
            command = [sys.executable, "-c", program]
            elapsed = seconds(lambda c=command: subprocess.run(c, check=True))
            if round_:
                took[name].append(elapsed * 1_000)
    bare = quantile(took["bare interpreter"], 0.5)
    return {
        "imports": [
            {"program": name, "ms": quantile(values, 0.5), "beyond_bare_ms": quantile(values, 0.5) - bare}
            for name, values in took.items()
        ]
    }


def table(figures: dict[str, Any]) -> str:
    """The figures for people."""
    body = [[row["program"], f"{row['ms']:.0f}", f"{row['beyond_bare_ms']:.0f}"] for row in figures["imports"]]
    return rows(["program", "ms", "beyond bare ms"], body)
