"""Programs of the demo: none is left behind, and one that fails says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tailspan.errors import UserError
from tailspan_queries.demo.processes import ProgramError, clean_environment, free_ports, message, running, script

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
PARENT = (
    "import subprocess, sys, time; "
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True); "
    "print(child.pid, flush=True); time.sleep(60)"
)


def python(code: str) -> list[str]:
    """Return the command that runs a line of Python."""
    return [sys.executable, "-c", code]


def alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(log: Path, text: str = "\n") -> str:
    """Return a log's content as soon as it holds `text`."""
    deadline = time.monotonic() + 10
    while text not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return log.read_text()


def test_leaving_the_block_stops_children_of_children(tmp_path: Path) -> None:
    """A child of the program ends too, even one that left its session as an agent does."""
    with running("parent", python(PARENT), tmp_path / "log", clean_environment(), stop_s=5) as program:
        grandchild = int(wait_for(program.log))
        assert alive(grandchild)
    deadline = time.monotonic() + 5
    while alive(grandchild) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(grandchild)
    assert not alive(program.process.pid)


def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """After its time is up, a stubborn program is killed."""
    begin = time.monotonic()
    with running("stubborn", python(STUBBORN), tmp_path / "log", clean_environment(), stop_s=0.5) as program:
        wait_for(program.log)
    assert program.process.returncode == -signal.SIGKILL
    assert time.monotonic() - begin < 5


def test_children_of_a_program_that_died_are_stopped(tmp_path: Path) -> None:
    """A program that crashed and left a child behind takes nothing with it: the child is found by its mark."""
    with running("parent", python(PARENT), tmp_path / "log", clean_environment(), stop_s=5) as program:
        grandchild = int(wait_for(program.log))
        program.process.kill()
        program.process.wait(5)
        assert alive(grandchild)
    deadline = time.monotonic() + 5
    while alive(grandchild) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(grandchild)


@pytest.mark.parametrize("problem", [KeyboardInterrupt, RuntimeError])
def test_a_failure_stops_the_program(tmp_path: Path, problem: type[BaseException]) -> None:
    """Ctrl-C or an error inside the block ends the program before it is passed on."""
    with (
        pytest.raises(problem),
        running("sleeper", python("import time; time.sleep(60)"), tmp_path / "log", clean_environment()) as program,
    ):
        raise problem
    assert not alive(program.process.pid)


def test_a_program_that_ends_says_how_and_where_its_log_is(tmp_path: Path) -> None:
    """Exit code, last line and log are in one line."""
    code = "import sys; print('first'); print('no such card'); sys.exit(3)"
    with (
        running("the server", python(code), tmp_path / "its log", clean_environment()) as program,
        pytest.raises(ProgramError, match=r"the server ended with exit code 3: no such card \(log: .*its log\)"),
    ):
        program.wait_until(lambda: False, timeout_s=10)


def test_a_users_mistake_in_a_program_stays_a_users_mistake(tmp_path: Path) -> None:
    """A `tailspan` program that ends with code 2 passes its own line and remedy on."""
    code = "import sys; print('tailspan: error: port 1 is in use. Use another one'); sys.exit(2)"
    with (
        running("the collector", python(code), tmp_path / "log", clean_environment()) as program,
        pytest.raises(UserError, match=r"^port 1 is in use\. Use another one$"),
    ):
        program.wait_until(lambda: False, timeout_s=10)


def test_a_program_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    """Waiting ends with the time that it took and the log."""
    with (
        running("slow", python("import time; time.sleep(60)"), tmp_path / "log", clean_environment()) as program,
        pytest.raises(ProgramError, match="slow was not ready after 0 s"),
    ):
        program.wait_until(lambda: False, timeout_s=0.2)


def test_sigterm_to_the_demo_stops_what_it_started(tmp_path: Path) -> None:
    """A demo that is asked to end by SIGTERM takes its programs with it."""
    code = f"""
import sys, time
from pathlib import Path
from tailspan_queries.demo.processes import clean_environment, interrupt_on_termination, running
command = [sys.executable, "-c", "import time; time.sleep(60)"]
with interrupt_on_termination(), running("p", command, Path({str(tmp_path / "log")!r}), clean_environment()) as program:
    print(program.process.pid, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen(python(code), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as demo:
        assert demo.stdout is not None
        child = int(demo.stdout.readline())
        assert alive(child)
        demo.terminate()
        demo.wait(20)
    assert not alive(child)


def test_the_environment_has_no_foreign_telemetry_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of OpenTelemetry and tailspan in the user's shell do not reach the demo's programs."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("TAILSPAN_ENABLED", "0")
    found = clean_environment(OTEL_SERVICE_NAME="x")
    assert {name for name in found if name.startswith(("OTEL_", "TAILSPAN_"))} == {"OTEL_SERVICE_NAME"}
    assert found["PATH"] == os.environ["PATH"]


def test_free_ports_are_different() -> None:
    """Asking for several ports at once never gives the same twice."""
    assert len(set(free_ports(20))) == 20


def test_a_missing_command_says_what_to_install() -> None:
    """A command that is not there is a mistake the user can mend."""
    with pytest.raises(UserError, match=r"pip install 'tailspan\[demo\]'"):
        script("no-such-command-of-ours")


VLLM_LOG = """\
(APIServer pid=1) INFO 11-29 21:28:41 [utils.py:344] non-default args
(Worker pid=3) INFO 11-29 21:29:36 [cpu_model_runner.py:68] Starting to load model SmolLM2...
\x1b[1;36m(EngineCore pid=2)\x1b[0;0m ERROR 11-29 21:29:39 [core.py:1510] ValueError: No available memory.
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "main.py", line 1, in <module>
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.
UserWarning: resource_tracker: There appear to be 1 leaked semaphore objects
"""


@pytest.mark.parametrize(
    ("end", "said", "lines"),
    [
        ("sys.exit(1)", "exit code 1: ValueError: No available memory. (log", 3),
        (
            "sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)",
            "signal SIGKILL: UserWarning: resource_tracker: There appear to be 1 leaked semaphore objects (log",
            7,
        ),
    ],
)
def test_a_failed_server_tells_its_root_cause(tmp_path: Path, end: str, said: str, lines: int) -> None:
    """An exit quotes the exception that caused it, wherever it is in the log; a kill quotes what was printed last."""
    code = f"import os, signal, sys; print({VLLM_LOG!r}); {end}"
    with (
        running("the model server", python(code), tmp_path / "log", clean_environment()) as program,
        pytest.raises(ProgramError) as caught,
    ):
        program.wait_until(lambda: False, timeout_s=10)
    assert f"the model server ended with {said}" in str(caught.value)
    assert len(caught.value.lines) == lines


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("(Worker pid=3) INFO 11-29 21:29:36 [cpu_model_runner.py:68] Starting to load...", "Starting to load..."),
        ("(EngineCore pid=2) (Worker pid=3) WARNING 11-29 21:29:36 [a.py:6] slow", "slow"),
        ("INFO:     Application startup complete.", "Application startup complete."),
        (
            "Loading safetensors: 100% Completed | 1/1 [00:00<00:00]",
            "Loading safetensors: 100% Completed | 1/1 [00:00<00:00]",
        ),
        ("", ""),
    ],
)
def test_the_message_of_a_log_line(line: str, text: str) -> None:
    """Process, level, time and place are left out of what is shown while a server starts."""
    assert message(line) == text
