"""Worker processes that survive a crash or a hang of one operator: only the aspect at work is lost, and says so."""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait

from .runner import ASPECTS, check_operator

# A worker is replaced after this many jobs: caches of compiled programs do not grow without end.
JOBS_A_WORKER = 200


@dataclass
class Job:
    """An operator (by position in op_db) for one dtype, and what is known so far."""

    position: int
    name: str
    dtype: str
    aspects: tuple[str, ...] = ASPECTS
    outcomes: dict[str, dict] = field(default_factory=dict)
    running: str | None = None
    seconds: float = 0.0


def serve(connection: Connection, samples: int, device: str) -> None:
    """A worker's life: receive jobs, answer with the outcomes of their aspects as they come."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    torch.set_num_threads(1)
    connection.send(("ready", None))
    while True:
        position, dtype, aspects = connection.recv()
        for aspect, outcome in check_operator(op_db[position], getattr(torch, dtype), samples, device, aspects):
            connection.send((aspect, outcome))
        connection.send(("finished", None))


class Worker:
    """A process, the job it has, and when that job's time is up."""

    def __init__(self, samples: int, device: str, timeout: float):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, samples, device))
        self.process.start()
        theirs.close()
        self.timeout = timeout
        self.job: Job | None = None
        self.began = self.deadline = 0.0
        self.done = 0
        self.ready = False

    def give(self, job: Job) -> None:
        self.job, self.began = job, time.monotonic()
        self.deadline = self.began + self.timeout
        self.connection.send((job.position, job.dtype, job.aspects))

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def lost(job: Job, reason: str) -> None:
    """Records the aspect that took its process along, and leaves the rest to do."""
    aspect = job.running or job.aspects[0]
    job.outcomes[aspect] = {"passed": 0, "failed": 1, "failures": [reason], "notes": {}}
    job.aspects = tuple(a for a in job.aspects if a not in job.outcomes)
    job.running = None


def run_jobs(
    jobs: list[Job], workers: int, samples: int, device: str, timeout: float, until: float = float("inf")
) -> Iterator[Job]:
    """Runs every job and yields it when it is finished. Ends at a time of the monotonic clock, whatever is not."""
    waiting = deque(jobs)
    crew: list[Worker] = []
    try:
        while (waiting or any(w.job for w in crew)) and time.monotonic() < until:
            while len(crew) < min(workers, len(waiting) + sum(w.job is not None for w in crew)):
                crew.append(Worker(samples, device, timeout))
            for worker in crew:
                if worker.ready and worker.job is None and waiting:
                    worker.give(waiting.popleft())
            readable = wait([w.connection for w in crew], timeout=min(0.5, timeout))
            for worker in list(crew):
                finished = attend(worker, worker.connection in readable)
                if finished is None:
                    continue
                if finished.aspects:
                    waiting.appendleft(finished)
                else:
                    yield finished
                if not worker.process.is_alive() or worker.done >= JOBS_A_WORKER:
                    crew.remove(worker)
                    worker.end()
    finally:
        for worker in crew:
            worker.end()


def attend(worker: Worker, readable: bool) -> Job | None:
    """Handles one message, one crash or one hang; returns a job that left the worker."""
    job = worker.job
    try:
        if readable:
            aspect, outcome = worker.connection.recv()
            if aspect == "ready":
                worker.ready = True
            elif aspect == "finished":
                job.aspects = ()
                worker.job, worker.done = None, worker.done + 1
                job.seconds += time.monotonic() - worker.began
                return job
            elif outcome is None:
                job.running = aspect
            else:
                job.outcomes[aspect], job.running = outcome, None
            return None
        if job is None or time.monotonic() < worker.deadline:
            return None
        lost(job, f"no end within {worker.timeout:g} seconds")
    except EOFError:
        worker.process.join()
        if job is None:
            raise RuntimeError(f"a worker ended with {worker.process.exitcode} before it had a job") from None
        lost(job, f"the process ended with {worker.process.exitcode}")
    worker.process.kill()
    worker.process.join()
    worker.job = None
    job.seconds += time.monotonic() - worker.began
    return job
