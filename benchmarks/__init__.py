"""Benchmarks: ratios within one run, on this machine; see docs/benchmarks.md. Not part of the package."""
