"""Runs the fuzzers: ``python tests/fuzz/run.py [SECONDS [TARGET...]]``; needs ``atheris`` (the extra ``audit``).

Each target runs for so many seconds, 60 by default, from its own seeds and instrumented for coverage
(https://github.com/google/atheris), in a process of its own, as many at once as there are cores. Exit code 0: no
input broke a property.
"""

import importlib
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
TARGETS = tuple(sorted(path.stem for path in HERE.glob("fuzz_*.py")))
SECONDS_AT_ONCE_MAX = 10
"""An input that takes longer broke the bound on time."""

MEMORY_MIB_MAX = 1_024
"""A target that holds more broke the bound on memory."""


def fuzz(name: str, *options: str) -> None:
    """Runs one target in this process until libFuzzer ends it."""
    import atheris

    sys.path.insert(0, str(HERE))
    with atheris.instrument_imports(include=["evidence_archive"]):
        target = importlib.import_module(name)
    atheris.Setup([name, *options], target.one)
    atheris.Fuzz()


def ran(name: str, seconds: int) -> bool:
    """Whether a target ran for its time and no input broke a property; what was run is printed."""
    seeds = importlib.import_module(name).SEEDS
    with TemporaryDirectory() as folder:
        corpus, found = Path(folder) / "corpus", Path(folder) / "found"
        corpus.mkdir()
        found.mkdir()
        for at, seed in enumerate(seeds):
            (corpus / str(at)).write_bytes(seed)
        options = [
            f"-max_total_time={seconds}",
            f"-timeout={SECONDS_AT_ONCE_MAX}",
            f"-rss_limit_mb={MEMORY_MIB_MAX}",
            "-max_len=8192",
            "-print_final_stats=1",
            f"-artifact_prefix={found}/",
            str(corpus),
        ]
        command = [sys.executable, __file__, "--target", name, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        runs = re.search(r"stat::number_of_executed_units: *(\d+)", done.stderr)
        broken = [path.read_bytes() for path in sorted(found.iterdir())]
    ok = done.returncode == 0 and runs is not None and not broken
    print(f"{name}: {int(runs[1]) if runs else 0:,} inputs in {seconds} s, {'ok' if ok else 'BROKEN'}", flush=True)
    if not ok:
        print(done.stdout[-4_000:], done.stderr[-1_000:])
        for data in broken:
            print(f"input: {data!r}")
    return ok


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--target"]:
        fuzz(*arguments[1:])
        return 0
    sys.path.insert(0, str(HERE))
    seconds = int(arguments[0]) if arguments else 60
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return 0 if all(list(pool.map(partial(ran, seconds=seconds), arguments[1:] or TARGETS))) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
