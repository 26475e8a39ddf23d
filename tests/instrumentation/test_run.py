"""The three ways to switch tracing on, each in real processes against a real OTLP endpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan import attributes as attr
from tests.support.otlp_sink import OtlpSink

BIN = Path(sys.executable).parent
RECORD = """
from tailspan.recorder import begin_request, now_ns
begin_request("generate", now_ns()).end(now_ns())
"""


def environment(sink: OtlpSink, tmp_path: Path) -> dict[str, str]:
    """Return an environment that sends to the sink and keeps its rings below tmp_path."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TAILSPAN_"))}
    return env | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint,
        "TAILSPAN_RUNTIME_DIR": str(tmp_path / "runtime"),
        "TAILSPAN_STRICT": "1",
    }


def run(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def assert_nothing_left(tmp_path: Path) -> None:
    """Wait until no worker folder is left."""
    deadline = time.monotonic() + 15
    while list((tmp_path / "runtime").iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    "prefix",
    [
        [sys.executable, "-m", "tailspan", "run", "--"],
        [str(BIN / "opentelemetry-instrument")],
    ],
    ids=["tailspan run", "opentelemetry-instrument"],
)
def test_a_command_is_traced_without_a_change(prefix: list[str], sink: OtlpSink, tmp_path: Path) -> None:
    """The program's spans arrive before the command returns, and nothing is left behind."""
    done = run([*prefix, sys.executable, "-c", RECORD], environment(sink, tmp_path))
    assert done.returncode == 0, done.stderr
    assert [span.kind for span in sink.spans] == [Span.SPAN_KIND_SERVER]
    assert_nothing_left(tmp_path)


def test_instrument_and_uninstrument_from_python(sink: OtlpSink, tmp_path: Path) -> None:
    """Two rounds in one process each deliver their spans; after uninstrument nothing records."""
    script = f"""
import tailspan
for _ in range(2):
    tailspan.instrument()
    tailspan.instrument()
    {RECORD.strip().splitlines()[0]}
    {RECORD.strip().splitlines()[1]}
    tailspan.uninstrument()
from tailspan.recorder import process
assert not process.is_started()
"""
    done = run([sys.executable, "-c", script], environment(sink, tmp_path))
    assert done.returncode == 0, done.stderr
    sink.wait_for(2)
    assert len(sink.spans) == 2
    assert_nothing_left(tmp_path)


def test_spawned_children_belong_to_the_same_worker(sink: OtlpSink, tmp_path: Path) -> None:
    """Parent and spawned child use one folder, one agent and one instance id."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import multiprocessing\n"
        "from tailspan.recorder import begin_request, now_ns\n"
        "def work():\n"
        "    begin_request('generate', now_ns()).end(now_ns())\n"
        "if __name__ == '__main__':\n"
        "    work()\n"
        "    child = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    child.start()\n"
        "    child.join()\n"
    )
    command = [sys.executable, "-m", "tailspan", "run", "--", sys.executable, str(script)]
    done = run(command, environment(sink, tmp_path))
    assert done.returncode == 0, done.stderr
    assert len(sink.spans) == 2
    instances = {
        next(pair.value.string_value for pair in rs.resource.attributes if pair.key == attr.SERVICE_INSTANCE)
        for request in sink.requests
        for rs in request.resource_spans
    }
    assert len(instances) == 1


def test_the_exit_code_of_the_command_is_kept(sink: OtlpSink, tmp_path: Path) -> None:
    """`tailspan run` ends as its command did, also when a signal ended it."""
    env = environment(sink, tmp_path)
    base = [sys.executable, "-m", "tailspan", "run", "--"]
    assert run([*base, "sh", "-c", "exit 7"], env).returncode == 7
    assert run([*base, "sh", "-c", "kill -TERM $$"], env).returncode == 128 + signal.SIGTERM


def test_sigterm_reaches_the_command_and_its_spans_still_arrive(sink: OtlpSink, tmp_path: Path) -> None:
    """A supervisor's SIGTERM to `tailspan run` lets the worker end in its own way."""
    script = (
        "import signal, sys, time\n"
        "def stop(*_):\n"
        "    begin_request('generate', now_ns()).end(now_ns())\n"
        "    sys.exit(3)\n"
        "from tailspan.recorder import begin_request, now_ns\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('ready', flush=True)\n"
        "time.sleep(30)\n"
    )
    command = [sys.executable, "-m", "tailspan", "run", "--", sys.executable, "-c", script]
    with subprocess.Popen(command, env=environment(sink, tmp_path), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 3
    assert len(sink.spans) == 1


def test_a_users_sitecustomize_still_runs(sink: OtlpSink, tmp_path: Path) -> None:
    """The hook that `tailspan run` uses does not hide the user's own."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.user_hook_ran = True\n")
    env = environment(sink, tmp_path) | {"PYTHONPATH": str(tmp_path)}
    script = f"import sys\nassert sys.user_hook_ran\n{RECORD}"
    done = run([sys.executable, "-m", "tailspan", "run", "--", sys.executable, "-c", script], env)
    assert done.returncode == 0, done.stderr
    assert len(sink.spans) == 1


def test_switched_off_means_not_patched(sink: OtlpSink, tmp_path: Path) -> None:
    """TAILSPAN_ENABLED=0 in the command's environment wins: no recorder, no spans, and the program runs."""
    script = "from tailspan.recorder import process\nassert not process.is_started()"
    command = [str(BIN / "opentelemetry-instrument"), sys.executable, "-c", script]
    done = run(command, environment(sink, tmp_path) | {"TAILSPAN_ENABLED": "0"})
    assert done.returncode == 0, done.stderr
    assert sink.spans == []


def test_the_resource_says_who_the_worker_is(sink: OtlpSink, tmp_path: Path) -> None:
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES reach every span."""
    env = environment(sink, tmp_path) | {
        "OTEL_SERVICE_NAME": "chat",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=staging,service.instance.id=pod-1",
    }
    done = run([sys.executable, "-m", "tailspan", "run", "--", sys.executable, "-c", RECORD], env)
    assert done.returncode == 0, done.stderr
    assert sink.resource[attr.SERVICE_NAME] == "chat"
    assert sink.resource[attr.SERVICE_INSTANCE] == "pod-1"
    assert sink.resource["deployment.environment.name"] == "staging"


def test_a_sidecar_serves_every_worker_below_its_folder(sink: OtlpSink, tmp_path: Path) -> None:
    """Workers with an external agent only record; the watching agent delivers, cleans up, and ends on SIGTERM."""
    env = environment(sink, tmp_path)
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    with subprocess.Popen([sys.executable, "-m", "tailspan", "agent", "--watch", str(runtime)], env=env) as sidecar:
        script = f"import tailspan\ntailspan.instrument()\n{RECORD}"
        workers = [
            subprocess.Popen([sys.executable, "-c", script], env=env | {"TAILSPAN_AGENT": "external"}) for _ in range(3)
        ]
        assert [worker.wait(30) for worker in workers] == [0, 0, 0]
        sink.wait_for(3)
        assert_nothing_left(tmp_path)
        sidecar.terminate()
        assert sidecar.wait(20) == 0
    assert len(sink.spans) == 3


WRONG_SETTING = {"TAILSPAN_RING_RECORDS": "1000"}
WRONG_FOLDER = {"TAILSPAN_RUNTIME_DIR": "/proc/nowhere"}


@pytest.mark.parametrize(
    ("way", "wrong"),
    [
        ("tailspan run", WRONG_SETTING),
        ("tailspan run", WRONG_FOLDER),
        ("opentelemetry-instrument", WRONG_SETTING),
        ("opentelemetry-instrument", WRONG_FOLDER),
        ("python", WRONG_FOLDER),  # a wrong setting raises in code that calls instrument() itself
    ],
)
def test_a_worker_that_cannot_be_traced_serves_as_before(
    sink: OtlpSink, tmp_path: Path, way: str, wrong: dict[str, str]
) -> None:
    """One line says why there are no traces; the program runs and keeps its exit code."""
    program = "print('served')"
    command = {
        "tailspan run": [sys.executable, "-m", "tailspan", "run", "--", sys.executable, "-c", program],
        "opentelemetry-instrument": [str(BIN / "opentelemetry-instrument"), sys.executable, "-c", program],
        "python": [sys.executable, "-c", f"import tailspan\ntailspan.instrument()\n{program}"],
    }[way]
    done = run(command, environment(sink, tmp_path) | wrong)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "served\n"
    assert next(iter(wrong.values())) in done.stderr
