"""Switching the instrumentation of this process on and off."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from tailspan import asgi, engines, patch_config
from tailspan.agent import settings as agent_settings
from tailspan.agent.launch import ENDED_FILE, launch
from tailspan.errors import UserError
from tailspan.guard import logger
from tailspan.patching import Patcher
from tailspan.recorder import process
from tailspan.settings import WORKER_DIR, Settings

_patchers: list[Patcher] = []
_owner_pid: int | None = None
"""The process that started the agent and waits for it at its end."""


def instrument(engines_: Iterable[str] | None = None) -> None:
    """Patch the engines in this process and start recording; a second call does nothing.

    `engines_` limits it to some engines, as TAILSPAN_ENGINES does; default all. Engines that are imported later are
    patched at that moment. TAILSPAN_ENABLED=0 wins: then nothing is patched.

    Raises:
        UserError: an unknown engine or a wrong TAILSPAN_ variable.
    """
    if _patchers:
        return
    settings = Settings.from_environment()
    if settings.enabled is False:
        return
    names = frozenset(engines_) if engines_ is not None else settings.engines
    chosen = _choose(names)
    agent_settings.check()
    try:
        _start_recorder(settings)
    except OSError as error:
        logger.warning("tailspan: this process is not traced: %s; set TAILSPAN_RUNTIME_DIR to another folder", error)
        return
    for patcher in chosen:
        patcher.apply()
        _patchers.append(patcher)


def uninstrument() -> None:
    """Put every original function back by identity, and let the agent deliver what was recorded and end."""
    while _patchers:
        _patchers.pop().undo()
    process.close()
    if _owner_pid == os.getpid():
        os.environ.pop(WORKER_DIR, None)


def patchers() -> tuple[Patcher, ...]:
    """Return the patchers in use, for `tailspan doctor`."""
    return tuple(_patchers)


def _choose(names: frozenset[str] | None) -> list[Patcher]:
    known = engines.ENGINES
    unknown = sorted((names or frozenset()) - known.keys())
    if unknown:
        raise UserError(f"unknown engine {', '.join(unknown)}", f"Use one or more of: {', '.join(known)}")
    private = patch_config.patcher(os.environ)
    chosen = [asgi.patcher(), *(engine.patcher() for name, engine in known.items() if names is None or name in names)]
    return chosen if private is None else [*chosen, private]


def _start_recorder(settings: Settings) -> None:
    global _owner_pid
    inherited = os.environ.get(WORKER_DIR)
    if inherited and not os.path.isdir(inherited):  # noqa: PTH112 (a string from the environment)
        # The worker that this process was a child of is over and its agent is gone.
        del os.environ[WORKER_DIR]
        inherited = None
    directory = process.start(settings)
    if inherited is None and settings.agent == "auto":
        _owner_pid = os.getpid()
        launch(directory, os.getpid())
        atexit.register(_deliver_at_exit, _owner_pid, settings.exit_timeout_s, str(directory))
    elif _owner_pid is None:
        atexit.register(process.close)


def _deliver_at_exit(owner_pid: int, timeout_s: float, directory: str) -> None:
    if os.getpid() != owner_pid:
        return
    recorded = process.close()
    if not recorded and not any(Path(directory).glob("*.ring")):
        with contextlib.suppress(OSError):
            (Path(directory) / ENDED_FILE).touch()
        return
    if not process.wait_delivered(directory, timeout_s):
        logger.warning("tailspan: spans were not delivered within %g s; the agent goes on trying", timeout_s)
