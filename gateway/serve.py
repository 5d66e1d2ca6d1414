"""Runs the app under uvicorn: signals, drain, and the exit code that a supervisor acts on."""

from __future__ import annotations

import asyncio
import signal
import socket
from types import FrameType

import uvicorn
import uvloop

from .app import Gateway, create_app
from .config import Settings
from .metrics import configure_logging

EXIT_FAILED = 1
"""The engine could not be opened, or it died: a supervisor should start the process again."""


class GatewayServer(uvicorn.Server):
    """A uvicorn server that drains before it stops.

    The first SIGTERM or SIGINT makes the gateway unready and lets it go on for the drain time, so that a load
    balancer can turn away; a second one stops at once. The process then exits with 0, not with the signal.
    """

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self.gateway = gateway
        self.loop: asyncio.AbstractEventLoop | None = None
        gateway.stop_serving = self._stop_serving

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Signal handler; uvicorn's own would stop listening at once and raise the signal again at the end."""
        if self.gateway.draining or sig == signal.SIGINT or self.loop is None:
            self.should_exit = True
        else:
            self.loop.call_soon_threadsafe(self.gateway.start_draining)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop."""
        self.loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def _stop_serving(self) -> None:
        self.should_exit = True


def serve(settings: Settings) -> int:
    """Serve until told to stop; the process' exit code."""
    configure_logging(settings.log_level, settings.log_format)
    app = create_app(settings)
    gateway: Gateway = app.state.gateway
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http="httptools",
        backlog=2048,
        timeout_keep_alive=settings.http_idle_timeout,
        timeout_graceful_shutdown=settings.drain_timeout,
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
    )
    server = GatewayServer(config, gateway)
    uvloop.run(server.serve())
    return EXIT_FAILED if gateway.failed else 0
