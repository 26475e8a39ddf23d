"""`python -m benchmarks.traffic REQUESTS`: make a data set, or find the one that is there, and say what is in it.

Prints the path of the embedded ClickHouse (`tailspan up --data PATH` opens it) and the planted truths as JSON.
Exit code: 0, or 1 with one line where it cannot be made.
"""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks.traffic.dataset import dataset
from benchmarks.traffic.requests import Traffic
from tailspan.errors import UserError


def main() -> int:
    """Make or find it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.traffic", description="make traffic with planted truths"
    )
    parser.add_argument("requests", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hours", type=float, default=24.0, help="time that the arrivals cover")
    given = parser.parse_args()
    try:
        found = dataset(Traffic(given.requests, hours=given.hours, seed=given.seed))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"clickhouse": str(found.clickhouse), **found.summary}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
