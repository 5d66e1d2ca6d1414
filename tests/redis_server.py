"""A real redis-server for tests: its own port, its own folder, nothing on disk, and it ends with the test run."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

BINARY = shutil.which("redis-server")
needs_redis = pytest.mark.skipif(BINARY is None, reason="there is no redis-server on the PATH")


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """One server that can be killed and started again on the same port."""

    def __init__(self, folder: Path, *options: str) -> None:
        if BINARY is None:
            pytest.skip("there is no redis-server on the PATH")
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._command = [BINARY, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *options]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and return once it answers."""
        self._process = subprocess.Popen(
            self._command, cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while self.ask("PING") != b"+PONG":
            time.sleep(0.01)

    def kill(self) -> None:
        """Kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ask(self, *words: str) -> bytes:
        """The first line of the reply to a command; empty where nobody answers."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(" ".join(words).encode() + b"\r\n")
                return connection.recv(1 << 20).split(b"\r\n")[0]
        except OSError:
            return b""

    def all_keys(self) -> list[str]:
        """Every key."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            connection.sendall(b"KEYS *\r\n")
            received = connection.recv(1 << 20)
        return sorted(line.decode() for line in received.split(b"\r\n")[1:] if line and not line.startswith(b"$"))


class Proxy:
    """Stands before a server: passes bytes on after `delay` seconds, and can cut every connection."""

    def __init__(self, port: int) -> None:
        self.delay = 0.0
        self.url = ""
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, both ways."""
        onward, back = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._pass(reader, back), self._pass(onward, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(OSError):
            while part := await reader.read(1 << 16):
                await asyncio.sleep(self.delay)
                writer.write(part)
                await writer.drain()
        self._writers.discard(writer)
        writer.close()

    def cut(self) -> None:
        """End every connection in the middle of whatever it carries."""
        for writer in self._writers:
            writer.transport.abort()

    def half_close(self) -> None:
        """Say on every connection that nothing more will come, and go on listening."""
        for writer in self._writers:
            with suppress(OSError):
                writer.write_eof()


@asynccontextmanager
async def proxied(server: RedisServer) -> AsyncIterator[Proxy]:
    """A proxy before a server; its `url` stands for the server's."""
    proxy = Proxy(server.port)
    listener = await asyncio.start_server(proxy.meet, "127.0.0.1", 0)
    proxy.url = f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}/0"
    try:
        yield proxy
    finally:
        listener.close()
        proxy.cut()
