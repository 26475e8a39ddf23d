"""Benchmarks: every performance claim of the documentation is measured by a file of this folder."""
