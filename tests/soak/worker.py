"""Worker processes under tracing, as a user starts them, in a runtime folder of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


def autoload() -> str:
    """Folder whose `sitecustomize` instruments a process, as `tailspan run` uses it."""
    import tailspan

    return str(Path(tailspan.__file__).parent / "autoload")


@dataclass(slots=True)
class Worker:
    """Starts programs; `folder` holds their logs and their rings."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def runtime_dir(self) -> Path:
        """Parent of the worker folders."""
        return self.folder / "runtime"

    def environment(self, **variables: str) -> dict[str, str]:
        """The tester's environment without settings of its own."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TAILSPAN_"))}
        return env | {"TAILSPAN_RUNTIME_DIR": str(self.runtime_dir)} | variables

    def start(
        self, program: str, *arguments: str, through_run: bool = True, linger_s: float = 20, **variables: str
    ) -> subprocess.Popen[str]:
        """Start a program of `programs/`, with `tailspan run` or instrumented from inside."""
        command = [sys.executable, str(PROGRAMS / program), *arguments]
        env = self.environment(**variables)
        if through_run:
            command = [sys.executable, "-m", "tailspan", "run", "--linger", str(linger_s), "--", *command]
        else:
            env |= {"TAILSPAN_ENABLED": "1"}
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (autoload(), env.get("PYTHONPATH", ""))))
        errors = (self.folder / f"stderr-{len(self.started)}").open("w")
        with errors:
            child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.started.append(child)
        return child

    def stderr(self) -> str:
        """What all of them wrote to standard error, their agents included."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("stderr-*")))

    def agents(self) -> list[int]:
        """Processes whose command line names the runtime folder: its agents."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"tailspan.agent" in words and any(word.startswith(os.fsencode(self.runtime_dir)) for word in words):
                found.append(int(entry.name))
        return found

    def left(self) -> list[str]:
        """Worker folders that are still there."""
        return [path.name for path in self.runtime_dir.glob("*")] if self.runtime_dir.exists() else []

    def wait_clean(self, timeout_s: float = 20.0) -> None:
        """Wait until no ring and no agent is left."""
        deadline = time.monotonic() + timeout_s
        while self.left() or self.agents():
            assert time.monotonic() < deadline, f"left: {self.left()}, agents {self.agents()}\n{self.stderr()[-2000:]}"
            time.sleep(0.02)

    def end_all(self) -> None:
        """End what a failed test left."""
        for child in self.started:
            if child.poll() is None:
                child.kill()
            child.wait()
            if child.stdout:
                child.stdout.close()
        for pid in self.agents():
            os.kill(pid, signal.SIGKILL)
