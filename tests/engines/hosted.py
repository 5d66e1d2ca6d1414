"""A real vLLM engine in a process of its own that reads canvases on a CPU, spoken to over a pipe; for tests alone.

vLLM reads canvases through kernels written in Triton, of which the registry has no CPU build. The process therefore
finds what lies in `on_cpu`, and Triton interprets the kernels with numpy: slow, and right to the last bits of float32.
It is another process because vLLM settles on the kernels it uses when it is first imported, and the tests' own process
has the engine without canvases.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from decisions.errors import DecisionError, EngineUnavailable
from decisions.labels import AnswerForm
from decisions.reads import EngineLimits, Read, Readout, Thought, Ticket
from gateway.engines import EngineHealth, ServedModel
from gateway.engines.forms import family
from gateway.engines.tokenizer import HfTokenizer
from gateway.engines.vllm import VllmEngine
from gateway.engines.vllm_start import VllmOptions
from gateway.engines.weights import ModelSource

HERE = Path(__file__).parent
ENVIRONMENT = {
    # Two processes import vLLM here: the second one finds what the first has compiled.
    "PYTHONDONTWRITEBYTECODE": "",
    "TRITON_INTERPRET": "1",
    "TRITON_DEFAULT_BACKEND": "cpu",
    "PYTHONPATH": os.pathsep.join([str(HERE / "on_cpu"), str(HERE.parent.parent)]),
}
START_SECONDS = 900
STOP_SECONDS = 30


class HostedEngine:
    """The engine port, passed on to the `VllmEngine` in the other process; `open` starts that."""

    kind = "vllm"

    def __init__(self, pipe: Connection, process: subprocess.Popen[bytes], source: ModelSource) -> None:
        self._pipe, self._process = pipe, process
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        served: tuple[ServedModel, EngineLimits] = pipe.recv()
        self.model, self.limits = served
        of_family = family(self.model.architecture)
        self.form: AnswerForm = of_family.form
        self.tokenizer = HfTokenizer.open(source.model, empty_thought=of_family.empty_thought)
        asyncio.get_running_loop().add_reader(pipe.fileno(), self._hear)

    @classmethod
    async def open(cls, source: ModelSource, options: VllmOptions) -> HostedEngine:
        """Start the process and wait for the engine in it; `EOFError` says that it has died at that."""
        here, there = multiprocessing.Pipe()
        process = await asyncio.to_thread(start, there)
        there.close()
        here.send((source, options))
        if not await asyncio.to_thread(here.poll, START_SECONDS):
            process.kill()
        return cls(here, process, source)

    def _hear(self) -> None:
        try:
            number, outcome = self._pipe.recv()
        except EOFError:
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            for call in self._calls.values():
                call.set_exception(EngineUnavailable("The process of the engine has ended."))
            return
        call = self._calls.pop(number)
        if call.done():
            return
        if isinstance(outcome, DecisionError):
            call.set_exception(outcome)
        else:
            call.set_result(outcome)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        number = next(self._numbers)
        call = self._calls[number] = asyncio.get_running_loop().create_future()
        self._pipe.send((number, method, arguments))
        try:
            return await call
        except asyncio.CancelledError:
            self._pipe.send((number, "cancel", ()))
            raise

    async def read(self, reads: Sequence[Read], ticket: Ticket) -> Sequence[Readout]:
        readouts: Sequence[Readout] = await self._ask("read", reads, ticket)
        return readouts

    async def think(self, thought: Thought, ticket: Ticket) -> tuple[int, ...]:
        ids: tuple[int, ...] = await self._ask("think", thought, ticket)
        return ids

    async def health(self) -> EngineHealth:
        health: EngineHealth = await self._ask("health")
        return health

    async def close(self) -> None:
        await self._ask("close")
        asyncio.get_running_loop().remove_reader(self._pipe.fileno())
        self._pipe.close()
        try:
            await asyncio.to_thread(self._process.wait, STOP_SECONDS)
        finally:
            self._process.kill()


def start(there: Connection) -> subprocess.Popen[bytes]:
    """The other process, with its end of the pipe."""
    command = [sys.executable, "-m", "tests.engines.hosted", str(there.fileno())]
    return subprocess.Popen(command, env={**os.environ, **ENVIRONMENT}, pass_fds=[there.fileno()])


async def serve(pipe: Connection) -> None:
    """Open the engine, say what it is, and answer calls until the pipe is closed."""
    source, options = pipe.recv()
    engine: Any = await VllmEngine.open(source, options)
    pipe.send((engine.model, engine.limits))
    calls: dict[int, asyncio.Task[None]] = {}
    left = asyncio.Event()

    async def answer(number: int, method: str, arguments: tuple[Any, ...]) -> None:
        outcome: Any = None
        try:
            outcome = await getattr(engine, method)(*arguments)
        except DecisionError as fault:
            outcome = fault
        finally:
            pipe.send((number, outcome))
            del calls[number]

    def hear() -> None:
        try:
            number, method, arguments = pipe.recv()
        except EOFError:
            left.set()
            return
        if method != "cancel":
            calls[number] = asyncio.create_task(answer(number, method, arguments))
        elif number in calls:
            calls[number].cancel()

    asyncio.get_running_loop().add_reader(pipe.fileno(), hear)
    await left.wait()
    asyncio.get_running_loop().remove_reader(pipe.fileno())
    await engine.close()


if __name__ == "__main__":
    asyncio.run(serve(Connection(int(sys.argv[1]))))
