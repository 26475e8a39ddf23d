"""TAILSPAN_PATCH: functions of a private engine measured by name."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailspan import attributes as attr
from tailspan import patch_config
from tailspan.errors import UserError
from tailspan.patching import Patcher
from tests.engines.recorded import Recorded
from tests.support.otlp_sink import OtlpSink

ENGINE = """
import asyncio
import time


def encode(text):
    time.sleep(0.002)
    return text.split()


class Engine:
    def prefill(self, ids):
        time.sleep(0.002)
        return len(ids)

    async def aprefill(self, ids):
        await asyncio.sleep(0.002)
        return len(ids)

    def decode(self, count):
        for number in range(count):
            time.sleep(0.002)
            yield number

    async def adecode(self, count):
        for number in range(count):
            await asyncio.sleep(0.002)
            yield number

    @staticmethod
    def detokenize(numbers):
        time.sleep(0.002)
        return "".join(map(str, numbers))

    @classmethod
    def respond(cls, text):
        time.sleep(0.002)
        return cls.__name__ + text


def handle(text):
    engine = Engine()
    first = engine.prefill(encode(text))
    return engine.respond(engine.detokenize([first, *engine.decode(3)]))


async def ahandle(text):
    engine = Engine()
    first = await engine.aprefill(encode(text))
    return engine.respond(engine.detokenize([first, *[number async for number in engine.adecode(3)]]))


def stream(text):
    yield from Engine().decode(len(encode(text)))


if __name__ == "__main__":
    print(handle("a b"))
"""
STAGES = ["tokenize", "prefill", "decode", "detokenize", "respond"]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A private engine that is importable but not imported yet."""
    name = f"private_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


def patcher_of(module: str) -> Patcher:
    """Return the patcher of the whole private engine."""
    table = {
        "encode": "tokenize",
        "Engine.prefill": "prefill",
        "Engine.aprefill": "prefill",
        "Engine.decode": "decode",
        "Engine.adecode": "decode",
        "Engine.detokenize": "detokenize",
        "Engine.respond": "respond",
        "handle": "request",
        "ahandle": "request",
        "stream": "request",
    }
    variable = ", ".join(f"{module}:{path}={what}" for path, what in table.items())
    patcher = patch_config.patcher({"TAILSPAN_PATCH": variable})
    assert patcher is not None
    return patcher


@pytest.mark.parametrize("imported_first", [True, False])
def test_functions_of_every_kind_are_measured_and_put_back(engine: str, worker_dir: Path, imported_first: bool) -> None:
    """Plain, async, generator, static and class functions give their stage; results and originals are untouched."""
    patcher = patcher_of(engine)
    before: dict[str, Any] = {}
    if imported_first:
        before = dict(vars(importlib.import_module(engine).Engine))
    patcher.apply()
    loaded = importlib.import_module(engine)
    try:
        assert patcher.missing == {}
        assert loaded.handle("a b") == asyncio.run(loaded.ahandle("a b")) == "Engine2012"
        assert list(loaded.stream("a b")) == [0, 1]
    finally:
        patcher.undo()
    plain, coroutine, stream = Recorded(worker_dir).wait(3)
    assert [one.state.name for one in (plain, coroutine, stream)] == ["handle", "ahandle", "stream"]
    assert plain.stage_names == coroutine.stage_names == STAGES
    assert stream.stage_names == ["tokenize", "decode"]
    for one in (plain, coroutine, stream):
        assert all(stage.end_ns - stage.begin_ns >= 2e6 for stage in one.stages)
        assert one.state.outcome == "ok"
    assert stream.state.first_chunk_ns is not None
    if imported_first:
        after = vars(loaded.Engine)
        assert all(after[key] is before[key] for key in before)


def test_an_exception_of_the_engine_passes_and_is_named(engine: str, worker_dir: Path) -> None:
    """The caller gets the error of the private function; the request says so."""
    patcher = patcher_of(engine)
    patcher.apply()
    try:
        with pytest.raises(AttributeError, match="split"):
            importlib.import_module(engine).handle(None)
    finally:
        patcher.undo()
    one = Recorded(worker_dir).one()
    assert (one.state.outcome, one.state.error_type) == ("error", "AttributeError")


def test_patched_functions_work_while_nothing_records(engine: str) -> None:
    """No recorder, no records, the same results."""
    patcher = patcher_of(engine)
    patcher.apply()
    try:
        assert importlib.import_module(engine).handle("a b") == "Engine2012"
    finally:
        patcher.undo()


def test_a_function_that_does_not_exist_is_named(engine: str) -> None:
    """It is reported as missing like a hook of any engine, and the others work."""
    patcher = patch_config.patcher({"TAILSPAN_PATCH": f"{engine}:Engine.gone=prefill,{engine}:encode=tokenize"})
    assert patcher is not None
    importlib.import_module(engine)
    patcher.apply()
    assert list(patcher.missing) == [f"{engine}:Engine.gone"]
    assert patcher.patched == 1
    patcher.undo()


@pytest.mark.parametrize("value", ["", "  ", ","])
def test_an_empty_table_patches_nothing(value: str) -> None:
    """No variable, no patcher."""
    assert patch_config.patcher({"TAILSPAN_PATCH": value}) is None
    assert patch_config.patcher({}) is None


@pytest.mark.parametrize(
    ("value", "entry", "remedy"),
    [
        ("mypkg.engine:prefill", "mypkg.engine:prefill", "MODULE:PATH=WHAT"),
        ("a:b=prefill,mypkg.engine.prefill=prefill", "mypkg.engine.prefill=prefill", "MODULE:PATH=WHAT"),
        ("my pkg:b=prefill", "my pkg:b=prefill", "MODULE:PATH=WHAT"),
        ("mypkg:b..c=prefill", "mypkg:b..c=prefill", "MODULE:PATH=WHAT"),
        (":b=prefill", ":b=prefill", "MODULE:PATH=WHAT"),
        ("mypkg:b=", "mypkg:b=", "request or a stage"),
        ("mypkg:b=prefil", "mypkg:b=prefil", "prefill"),
        ("mypkg:b=prefill,mypkg:b=decode", "mypkg:b", "one entry"),
    ],
)
def test_an_entry_that_cannot_be_read_is_named(value: str, entry: str, remedy: str) -> None:
    """The message has the variable and the entry, the remedy what is allowed."""
    with pytest.raises(UserError) as caught:
        patch_config.patcher({"TAILSPAN_PATCH": value})
    assert "TAILSPAN_PATCH" in caught.value.what
    assert entry in caught.value.what
    assert remedy in caught.value.remedy


def run_private(tmp_path: Path, engine: str, table: str, endpoint: str) -> subprocess.CompletedProcess[str]:
    """Run a program that uses the private engine under `tailspan run`."""
    program = tmp_path / "serve.py"
    program.write_text(f"import {engine}\nprint({engine}.handle('a b'))\n")
    return subprocess.run(
        [sys.executable, "-m", "tailspan", "run", "--", sys.executable, str(program)],
        env=os.environ
        | {
            "TAILSPAN_PATCH": table,
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "PYTHONPATH": str(tmp_path),
            "TAILSPAN_RUNTIME_DIR": str(tmp_path / "run"),
            "TAILSPAN_EXIT_TIMEOUT": "20",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_private_engine_is_traced_without_code(tmp_path: Path, engine: str, sink: OtlpSink) -> None:
    """`tailspan run` with the table: the program's output is its own, its request arrives with its stages."""
    table = f"{engine}:handle=request,{engine}:encode=tokenize,{engine}:Engine.prefill=prefill"
    done = run_private(tmp_path, engine, table, sink.endpoint)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Engine2012\n", "")
    names = {span.name: span for span in sink.wait_for(3)}
    assert set(names) == {"handle", "tokenize", "prefill"}
    assert names["prefill"].parent_span_id == names["handle"].span_id
    assert {kv.key for kv in names["prefill"].attributes} >= {attr.ROLE, attr.STAGE}


def test_instrument_refuses_a_wrong_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake shows at the call, before anything starts."""
    from tailspan import api, instrument

    monkeypatch.setenv("TAILSPAN_PATCH", "mypkg:b=nothing")
    with pytest.raises(UserError, match="TAILSPAN_PATCH entry 'mypkg:b=nothing'"):
        instrument()
    assert api.patchers() == ()
