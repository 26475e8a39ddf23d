"""Driving the load client as a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tailspan_queries.demo.client import Target
from tailspan_queries.demo.driver import send_load
from tailspan_queries.demo.load import Job
from tailspan_queries.demo.processes import ProgramError, clean_environment, running
from tailspan_queries.demo.workload import plan_load

ChatServer = Callable[..., AbstractAsyncContextManager[Any]]


def test_a_job_survives_its_way_to_the_client() -> None:
    """What the client process reads is what was planned."""
    job = Job(Target("127.0.0.1", 1, "m"), plan_load(5, 2.0, seed=1), sampled=False)
    assert Job.from_json(job.to_json()) == job


async def test_every_planned_request_is_sent_at_its_time(chat_server: ChatServer) -> None:
    """Each request is observed once, in the order of the plan, and the load takes as long as it was planned."""
    plan = plan_load(12, 20.0, seed=4)
    progress: list[int] = []
    async with chat_server(first_s=0.0, gap_s=0.0) as server:
        job = Job(Target("127.0.0.1", server.port, "m"), plan)
        observations = await asyncio.to_thread(send_load, job, (), progress.append)
        received = list(server.bodies)
    assert [each.number for each in observations] == list(range(12))
    assert not any(each.error for each in observations)
    span_s = (observations[-1].sent_unix_ns - observations[0].sent_unix_ns) / 1e9
    assert span_s == pytest.approx(plan[-1].at_s, abs=0.1)
    assert progress[-1] == 12
    assert {body["messages"][0]["content"] for body in received} == {request.prompt for request in plan}
    assert all(body["model"] == "m" for body in received)


async def test_arrivals_do_not_wait_for_answers(chat_server: ChatServer) -> None:
    """The load is open: with answers slower than arrivals, requests overlap."""
    async with chat_server(first_s=0.5, gap_s=0.0) as server:
        job = Job(Target("127.0.0.1", server.port, "m"), plan_load(8, 40.0, seed=4))
        observations = await asyncio.to_thread(send_load, job, ())
    last_sent = max(each.sent_unix_ns for each in observations)
    first_answered = min(each.sent_unix_ns + each.last_byte_ns for each in observations)
    assert last_sent < first_answered


async def test_a_server_that_dies_ends_the_load(tmp_path: Path, chat_server: ChatServer) -> None:
    """The load does not wait for its end when a program that it needs is gone."""
    async with chat_server(first_s=30.0) as server:
        job = Job(Target("127.0.0.1", server.port, "m"), plan_load(2, 5.0, seed=1))
        command = [sys.executable, "-c", "print('out of memory'); raise SystemExit(9)"]
        with (
            running("the model server", command, tmp_path / "log", clean_environment()) as program,
            pytest.raises(ProgramError, match="exit code 9: out of memory"),
        ):
            await asyncio.to_thread(send_load, job, (program,))
