"""Delivers requests to one destination: several in flight, each until it is taken or given up, none silently.

In: windows of requests, one after the other. Out: metrics, and a log line for the first of a row of failures and for
what is lost, never with a payload. `deliver` returns once all of a window is done, so that its caller can move on
durably.
Each courier has its own threads and connections, so that nobody waits for a slow destination but itself.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from tailspan_collector.forward.client import Client
from tailspan_collector.forward.destination import Destination
from tailspan_collector.forward.outcome import Failed, Outcome, Refused, Taken
from tailspan_collector.forward.pace import Pace
from tailspan_collector.forward.window import Item, Window
from tailspan_collector.metrics import Metrics
from tailspan_collector.signals import Signal

_LOG = logging.getLogger(__name__)
_LONGEST_WAIT_S = 1.0
_LOG_EVERY_S = 60.0

Extend = Callable[[Window], None]


class Courier:
    """The threads that talk to one destination about one signal."""

    def __init__(self, destination: Destination, signal: Signal, client: Client, metrics: Metrics) -> None:
        self._name, self._client = destination.name, client
        self._labels = labels = (destination.name, signal.name)
        self._forwarded = metrics.forwarded.labels(*labels)
        self._forwarded_bytes = metrics.forwarded_bytes.labels(*labels)
        self._rejected = metrics.forward_rejected.labels(*self._labels)
        self._failures = metrics.forward_failures.labels(*labels)
        self._dropped = metrics.forward_dropped
        self._most_in_flight = destination.requests_in_flight
        self._most_age_ns = int(destination.most_behind_seconds * 1e9)
        self._changed = threading.Condition()
        self._pace = Pace()
        self._in_flight = 0
        self._last_lost_log: dict[str, float] = {}
        self._is_told, self._tell_at = False, 0.0
        self._stop_at: float | None = None
        self._work: queue.SimpleQueue[tuple[Window, Item] | None] = queue.SimpleQueue()
        names = (f"forward-{destination.name}-{signal.name}-{number}" for number in range(self._most_in_flight))
        self._workers = [threading.Thread(target=self._run, name=name, daemon=True) for name in names]
        for worker in self._workers:
            worker.start()

    def deliver(self, window: Window, extend: Extend | None = None) -> bool:
        """Return True once every request of the window is done, False if told to stop before.

        `extend` is called when only requests are left that fail: it may add others, to show whether the destination
        is well.
        """
        with self._changed:
            while True:
                self._give_up_too_old(window)
                if window.is_done:
                    return True
                now = time.monotonic()
                if self._is_over(now):
                    return False
                if self._start_one(window, now):
                    continue
                if extend is not None and window.is_stuck:
                    before = len(window.items)
                    extend(window)
                    if len(window.items) > before:
                        continue
                self._changed.wait(self._pause(window, now))

    def stop(self, grace_s: float) -> None:
        """Let `deliver` go on for so long, as long as the destination takes requests."""
        with self._changed:
            self._stop_at = time.monotonic() + grace_s
            self._changed.notify_all()

    def close(self) -> None:
        """End the threads and connections at once."""
        self._client.close()
        for _ in self._workers:
            self._work.put(None)
        for worker in self._workers:
            worker.join(_LONGEST_WAIT_S)

    def lost(self, reason: str, detail: str, count: int = 1) -> None:
        """Count requests that the destination will not get, and say so, at most once a minute for each reason."""
        self._dropped.labels(*self._labels, reason).inc(count)
        now = time.monotonic()
        if now - self._last_lost_log.get(reason, float("-inf")) >= _LOG_EVERY_S:
            self._last_lost_log[reason] = now
            _LOG.error(
                "%s will not get %s request(s) of %s: %s: %s", self._name, count, self._labels[1], reason, detail
            )

    def _is_over(self, now: float) -> bool:
        if self._stop_at is None:
            return False
        return now >= self._stop_at or (self._pace.failures > 0 and not self._in_flight)

    def _start_one(self, window: Window, now: float) -> bool:
        if self._in_flight >= self._most_in_flight or not self._pace.may_start(now, self._in_flight):
            return False
        item = window.next(now)
        if item is None:
            return False
        self._in_flight += 1
        self._work.put((window, item))
        return True

    def _pause(self, window: Window, now: float) -> float:
        due = window.next_due()
        wait = _LONGEST_WAIT_S if due is None or self._in_flight else max(due, self._pace.not_before) - now
        if self._stop_at is not None:
            wait = min(wait, self._stop_at - now)
        return min(max(wait, 0.001), _LONGEST_WAIT_S)

    def _give_up_too_old(self, window: Window) -> None:
        if too_old := window.take_older(time.time_ns() - self._most_age_ns):
            self.lost("too_old", "it was further behind than its bound allows", len(too_old))

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            window, item = work
            started = time.monotonic()
            try:
                outcome: Outcome = self._client.send(item.payload)
            except Exception as error:
                _LOG.exception("sending to %s failed in an unforeseen way", self._name)
                outcome = Failed("unforeseen", type(error).__name__)
            with self._changed:
                self._in_flight -= 1
                self._settle(window, item, outcome, started)
                self._changed.notify_all()

    def _settle(self, window: Window, item: Item, outcome: Outcome, started: float) -> None:
        if isinstance(outcome, Failed):
            self._failed(window, item, outcome, started)
            return
        if self._is_told:
            self._is_told = False
            _LOG.warning("%s takes %s again", self._name, self._labels[1])
        self._pace.succeeded()
        if isinstance(outcome, Refused):
            window.given_up(item)
            self._failures.inc()
            self.lost(outcome.reason, outcome.detail)
            return
        window.taken(item)
        self._forwarded.inc()
        self._forwarded_bytes.inc(len(item.payload))
        if outcome.rejected or outcome.message:
            self._partly(outcome)

    def _failed(self, window: Window, item: Item, outcome: Failed, started: float) -> None:
        now = time.monotonic()
        self._failures.inc()
        self._pace.failed(started, now, is_clear=outcome.is_clear, retry_after_s=outcome.retry_after_s)
        if self._pace.failures > 1 and not self._is_told and now >= self._tell_at:
            self._is_told, self._tell_at = True, now + _LOG_EVERY_S
            _LOG.warning(
                "%s does not take %s, trying again until it does: %s %s",
                self._name, self._labels[1], outcome.reason, outcome.detail,
            )  # fmt: skip
        if window.failed(item, now, outcome.is_clear):
            self.lost(outcome.reason, f"it takes others, not this one; {outcome.detail}")

    def _partly(self, outcome: Taken) -> None:
        if outcome.rejected:
            self._rejected.inc(outcome.rejected)
            self.lost("partial_success", f"{outcome.rejected} item(s) rejected by the destination: {outcome.message}")
        else:
            _LOG.warning("%s took a request and says: %s", self._name, outcome.message)
