"""A database full of made-up traffic, made once and kept outside of the checkout.

Out:    `${XDG_CACHE_HOME:-~/.cache}/tailspan/traffic-vVERSION-REQUESTS-SEED/`: `clickhouse` (an embedded ClickHouse
        with our schema) and `truths.json` (what is planted, and what it did), written last to say that all is there.
Errors: `UserError` where the arrival traces are absent, the disk is too small or the folder is in use.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.traffic import rows
from benchmarks.traffic.effects import effects
from benchmarks.traffic.requests import HOUR_NS, Made, Traffic, make
from benchmarks.traffic.truths import SINCE
from tailspan.errors import UserError
from tailspan_collector.embedded import Engine, Folder
from tailspan_schemas import migrations

VERSION = 3
"""Goes up whenever the same plan gives other data."""
BYTES_A_REQUEST = 1200
"""Disk for a request with all its spans, while parts are merged."""
DAY_H = 24.0
STORED_STEPS_RATIO = 0.5
"""Stored engine steps for each request; the others are what sampling left out."""
_TABLES = ("spans", "spans_sample", "stage_minutes", "stage_hours", "traces", "layers")
_INSERT = "insert_deduplicate = 0, max_insert_threads = 1, min_insert_block_size_rows = 1000000, max_block_size = 65536"


@dataclass(frozen=True, slots=True)
class Dataset:
    """A finished data set."""

    traffic: Traffic
    folder: Path
    summary: dict[str, Any]

    @property
    def clickhouse(self) -> Path:
        """Folder of the embedded ClickHouse."""
        return self.folder / "clickhouse"


def folder_of(traffic: Traffic) -> Path:
    """Return where the data set of a plan is kept."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailspan"
    hours = "" if traffic.hours == DAY_H else f"-{traffic.hours:g}h"
    return base / f"traffic-v{VERSION}-{traffic.requests}-{traffic.seed}{hours}"


def dataset(traffic: Traffic) -> Dataset:
    """Return the data set of a plan, which made if it is not there; of the plan, count, hours and seed may vary.

    Raises: UserError as above.
    """
    folder = folder_of(traffic)
    if not (folder / "truths.json").is_file():
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        fill(traffic, folder)
    return Dataset(traffic, folder, json.loads((folder / "truths.json").read_text(encoding="utf-8")))


def fill(traffic: Traffic, folder: Path) -> None:
    """Make a database in `folder/clickhouse`; say how far it is on standard error.

    Raises: UserError as above.
    """
    needed = traffic.requests * BYTES_A_REQUEST
    if (free := shutil.disk_usage(folder).free) < needed:
        raise UserError(
            f"{traffic.requests:,} requests need {needed / 1e9:.1f} GB in {folder}, {free / 1e9:.1f} GB are free",
            "Free space, or name another folder with XDG_CACHE_HOME",
        )
    begin_s = time.monotonic()
    lock = Folder(folder)
    try:
        with Engine(folder / "clickhouse") as engine:
            migrations.apply(engine)
            found = _records(engine, traffic, folder)
            _say(begin_s, f"{traffic.requests:,} requests are planned")
            _spans(engine, traffic, begin_s)
            _merge(engine, begin_s)
            summary = {"requests": traffic.requests, "hours": traffic.hours, "begin_ns": traffic.begin_ns,
                       "made_s": round(time.monotonic() - begin_s), **_sizes(engine), "truths": found}  # fmt: skip
    finally:
        lock.close()
    (folder / "truths.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")


def _records(engine: Engine, traffic: Traffic, folder: Path) -> list[dict[str, Any]]:
    """Store the records of all requests, and return what the truths did."""
    engine.command("create database made")
    engine.command(rows.REQUESTS_TABLE)
    engine.command(rows.WORKERS_TABLE)
    found = []
    for made in make(traffic):
        file = folder / "records.bin"
        made.records.tofile(file)
        engine.command(f"insert into made.requests from infile '{file}' format RowBinary")
        file.unlink()
        engine.command(f"insert into made.workers values {_workers(made)}")
        found += effects(traffic, made)
    engine.command(rows.LOAD_TABLE)
    return found


def _workers(made: Made) -> str:
    """Return the rows of a service's workers for `insert ... values`."""
    service = made.service
    found = []
    for number in range(made.workers):
        instance = f"{service.name}-{number}"
        resource = {
            "service.name": service.name,
            "service.instance.id": instance,
            "service.version": "1.4.0",
            "host.name": f"gpu-node-{made.first_worker + number:02}",
            "telemetry.sdk.language": "python",
        }
        text = ",".join(f"(\\'{key}\\',\\'string:{value}\\')" for key, value in resource.items())
        texts = (service.name, instance, service.model, f"vllm-{instance}-0", service.lora, f"[{text}]")
        quoted = ", ".join(f"'{text}'" for text in texts)
        found.append(f"({made.first_worker + number}, {quoted})")
    return ", ".join(found)


def step_weight(traffic: Traffic, workers: int) -> int:
    """Return how many engine steps a stored one stands for."""
    steps = workers * traffic.length_s * 1e9 / rows.STEP_NS
    return max(1, round(steps / (traffic.requests * STORED_STEPS_RATIO)))


def _spans(engine: Engine, traffic: Traffic, begin_s: float) -> None:
    """Insert hour by hour, as the collector would have got them."""
    since_ns = traffic.begin_ns + round(SINCE * traffic.length_s * 1e9)
    weight = step_weight(traffic, int(engine.rows("select count() from made.workers")[0][0]))
    hours = int(-(-traffic.hours // 1))
    for hour in range(hours):
        first_ns, last_ns = traffic.begin_ns + hour * HOUR_NS, traffic.begin_ns + (hour + 1) * HOUR_NS
        engine.command(f"{rows.request_spans(first_ns, last_ns, since_ns)} settings {_INSERT}")
        engine.command(f"{rows.step_spans(first_ns, last_ns, weight, since_ns)} settings {_INSERT}")
        _say(begin_s, f"hour {hour + 1} of {hours} is stored")
    engine.command("drop database made")


def _merge(engine: Engine, begin_s: float) -> None:
    """Merge each table into one part a day, as time does."""
    for table in _TABLES:
        engine.command(f"optimize table tailspan.{table} final")
        _say(begin_s, f"{table} is merged")


def _sizes(engine: Engine) -> dict[str, Any]:
    parts = engine.rows(
        "select table, sum(rows), sum(bytes_on_disk), count() from system.parts "
        "where active and database = 'tailspan' and rows > 0 group by table order by table"
    )
    return {"tables": {name: {"rows": int(count), "bytes": int(size), "parts": int(number)}
                       for name, count, size, number in parts}}  # fmt: skip


def _say(begin_s: float, text: str) -> None:
    print(f"{time.monotonic() - begin_s:6.0f} s  {text}", file=sys.stderr, flush=True)
