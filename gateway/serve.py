"""Runs the app under uvicorn: signals, drain, and the exit code that a supervisor acts on."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
from functools import partial
from types import FrameType
from typing import NoReturn, cast

import uvicorn
import uvloop

from .app import Gateway, create_app, url_of
from .config import InvalidSettings, Settings
from .connection import Connection
from .keys import KeysFileError
from .log_lines import configure_logging

log = logging.getLogger("canvasgate")

EXIT_FAILED = 1
"""The engine could not be opened, or it died: a supervisor should start the process again."""
BACKLOG = 2048
"""Connections that the system keeps for us until they are accepted."""
NEVER = 10 * 365 * 24 * 3600
"""Seconds that stand for no limit."""


class GatewayServer(uvicorn.Server):
    """A uvicorn server that drains before it stops.

    SIGTERM makes the gateway unready and lets it go on for the drain time, so that a load balancer can turn away;
    SIGINT only finishes what is in flight; a second signal stops at once. The process then exits with 0, not with the
    signal. SIGHUP looks at the templates' files.
    """

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self.gateway = gateway
        self.loop: asyncio.AbstractEventLoop | None = None
        gateway.stop_serving = self._stop_serving

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Signal handler; uvicorn's own would stop listening at once and raise the signal again at the end."""
        if self.should_exit or self.gateway.draining:
            self.should_exit = self.force_exit = True
        elif sig == signal.SIGINT or self.loop is None:
            self.should_exit = True
        else:
            self.loop.call_soon_threadsafe(self.gateway.start_draining)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop; ends the process itself where something would keep it alive."""
        self.loop = asyncio.get_running_loop()
        self.loop.add_signal_handler(signal.SIGHUP, self.gateway.reload_templates)
        await super().serve(sockets)
        if self.force_exit or not self.gateway.opened.is_set():
            leave()

    def _stop_serving(self) -> None:
        self.should_exit = True


def leave() -> NoReturn:
    """End the process with 0 at once: Python would wait for the thread that loads a model, which nothing can stop."""
    for child in multiprocessing.active_children():
        child.terminate()
    logging.shutdown()
    os._exit(0)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; made before anything is loaded, so that a port that is taken is found at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def server_of(settings: Settings) -> GatewayServer:
    """The server of a gateway with these settings, not yet listening. Raises as `create_app` does."""
    app = create_app(settings)
    gateway: Gateway = app.state.gateway
    config = uvicorn.Config(
        app,
        http=cast("type[Connection]", partial(Connection, patience=settings.request_timeout, metrics=gateway.metrics)),
        ws="none",
        backlog=BACKLOG,
        timeout_keep_alive=settings.http_idle_timeout or NEVER,
        timeout_graceful_shutdown=settings.drain_timeout,
        proxy_headers=False,  # nothing here depends on where a client is
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        date_header=False,
    )
    return GatewayServer(config, gateway)


def serve(settings: Settings) -> int:
    """Serve until told to stop; the process' exit code."""
    configure_logging(settings.log_level, settings.log_format)
    try:
        server = server_of(settings)
    except (InvalidSettings, KeysFileError) as error:
        log.critical("%s", error)
        return EXIT_FAILED
    try:
        listener = listen(settings.host, settings.port)
    except OSError as error:
        log.critical("cannot listen on %s port %d: %s", settings.host, settings.port, os.strerror(error.errno or 0))
        return EXIT_FAILED
    log.info("listening on %s", url_of(settings.host, settings.port))
    uvloop.run(server.serve([listener]))
    return EXIT_FAILED if server.gateway.failed else 0
