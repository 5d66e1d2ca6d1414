"""Replicas behind the balancers of `deploy/balancer/`: real HAProxy and nginx, real gateway processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gateway.keys import Key, digest_of, write_keys
from tests.clients.test_conformance import conformance
from tests.conftest import ROOT, RunningServer, Start, free_port
from tests.gateway.asking import PATH, asked

CONFIGURATIONS = ROOT / "deploy" / "balancer"
ADDRESSES = [f"127.0.0.1:{port}" for port in (8081, 8082, 8083)]
"""Of the replicas, as the configurations have them."""
KEY = "cg_of-a-test"
HEADERS = {"authorization": f"Bearer {KEY}"}
SETTINGS = {"ENGINE": "stub", "STUB_DELAY_MS": "10", "DRAIN_DELAY": "3"}
NGINX = """
daemon off; master_process off; pid nginx.pid; error_log error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
    include {configuration};
}}
"""


@dataclass
class Cluster:
    """Three replicas and the balancer before them."""

    url: str
    replicas: list[RunningServer]
    start: Start
    settings: dict[str, str]

    def restart(self, place: int) -> None:
        """The replica again, on its port."""
        port = int(self.replicas[place].url.rpartition(":")[2])
        self.replicas[place] = self.start(port=port, **self.settings)


def balancer(name: str, replicas: list[str], folder: Path) -> tuple[list[str], int]:
    """The command that starts a balancer with its configuration for replicas at these addresses, and its port."""
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"no {name} on the PATH")
    port = free_port()
    file = CONFIGURATIONS / {"haproxy": "haproxy.cfg", "nginx": "nginx.conf"}[name]
    text = file.read_text()
    for address, replica in zip(ADDRESSES, replicas, strict=True):
        assert address in text
        text = text.replace(address, replica)
    text = text.replace("listen 8080;", f"listen 127.0.0.1:{port};")
    (folder / file.name).write_text(text)
    if name == "haproxy":
        return [program, "-db", "-f", str(folder / file.name)], port
    (folder / "main.conf").write_text(NGINX.format(configuration=folder / file.name))
    return [program, "-p", f"{folder}/", "-e", "error.log", "-c", str(folder / "main.conf")], port


@pytest.fixture(scope="module", params=["haproxy", "nginx"])
def cluster(
    request: pytest.FixtureRequest, start_server: Start, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Started once for a balancer's tests; each leaves three replicas behind."""
    folder = tmp_path_factory.mktemp(request.param)
    write_keys(folder / "keys.json", [Key("acme", digest_of(KEY))])
    settings = SETTINGS | {"API_KEYS_FILE": str(folder / "keys.json")}
    replicas = [start_server(ready=False, **settings) for _ in ADDRESSES]
    command, port = balancer(request.param, [replica.url.removeprefix("http://") for replica in replicas], folder)
    for replica in replicas:
        wait_for(replica.url)
    url = f"http://127.0.0.1:{port}"
    with running(command, url, folder / "log"):
        wait_for(url)
        yield Cluster(url, replicas, start_server, settings)
    for server in replicas:
        server.process.kill()
        server.process.wait()


@contextmanager
def running(command: list[str], url: str, log: Path) -> Iterator[None]:
    """The balancer runs meanwhile."""
    address = url.removeprefix("http://")
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env={**os.environ, "BALANCER_BIND": address}, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def wait_for(url: str) -> None:
    """Return once somebody is ready there."""
    for _ in range(600):
        try:
            if httpx.get(f"{url}/ready", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    pytest.fail(f"nobody is ready at {url}")


def answered(replica: RunningServer) -> int:
    """Decisions that the replica has made."""
    lines = httpx.get(f"{replica.url}/metrics").text.splitlines()
    return sum(
        int(float(line.split()[-1])) for line in lines if line.startswith('canvasgate_decisions_total{key="acme"}')
    )


async def ask_until(done: asyncio.Event, url: str, seen: Counter[object]) -> None:
    """Ask again and again, over a connection that is kept; what comes is counted by status or by what went wrong."""
    async with httpx.AsyncClient(base_url=url, headers=HEADERS, timeout=20) as client:
        while not done.is_set():
            try:
                seen[(await client.post(PATH, json=asked())).status_code] += 1
            except httpx.TransportError as error:
                seen[repr(error)] += 1


def test_requests_spread_and_carry_their_names_and_keys(cluster: Cluster) -> None:
    """Every replica answers some; the caller's id comes back, or one that the balancer gave."""
    with httpx.Client(base_url=cluster.url, headers=HEADERS) as client:
        before = [answered(replica) for replica in cluster.replicas]
        statuses = {client.post(PATH, json=asked()).status_code for _ in range(60)}
        after = [answered(replica) for replica in cluster.replicas]
        named = client.get("/v1/models", headers={"x-request-id": "mine-1"}).headers["x-request-id"]
        unnamed = client.get("/v1/models").headers

    assert {200} == statuses
    assert all(now > then for then, now in zip(before, after, strict=True))
    assert "mine-1" == named
    assert unnamed["x-request-id"] != unnamed["x-typesafe-request-id"]
    assert 403 == httpx.post(f"{cluster.url}{PATH}", json=asked()).status_code


def test_a_client_keeps_its_connection(cluster: Cluster) -> None:
    """And a body of 5 MB goes through, also one of which the gateway says that it is too large."""
    with httpx.Client(base_url=cluster.url, headers=HEADERS, timeout=20) as client:
        streams = {id(client.get("/v1/models").extensions["network_stream"]) for _ in range(5)}
        large = client.post(PATH, content=b" " * 5_000_000, headers={"content-type": "application/json"})
        too_large = client.post(PATH, content=b" " * (33_554_432 + 1))

    assert 1 == len(streams)
    assert 422 == large.status_code
    assert (413, "body_too_large") == (too_large.status_code, too_large.json()["detail"]["error_type"])


@pytest.mark.timeout(600)
def test_the_cluster_is_conformant(cluster: Cluster, tmp_path: Path) -> None:
    """MUST 32/32, SHOULD 15/15 with a client's key, through the balancer."""
    front = RunningServer(cluster.url, cluster.replicas[0].process, cluster.replicas[0].log)

    assert "MUST 32/32, SHOULD 15/15" in conformance(front, tmp_path / "report.json", "--key", KEY)


@pytest.mark.parametrize("name", ["haproxy", "nginx"])
def test_a_server_key_passes(name: str, start_server: Start, tmp_path: Path) -> None:
    """`X-DGem-Key` reaches the replica, beside an `Authorization` header of the platform's."""
    replica = start_server(ENGINE="stub", DGEM_SERVER_KEY="server-key")
    command, port = balancer(name, [replica.url.removeprefix("http://")] * 3, tmp_path)
    url = f"http://127.0.0.1:{port}"
    with running(command, url, tmp_path / "log"):
        wait_for(url)
        statuses = [
            httpx.post(f"{url}{PATH}", json=asked(), headers=HEADERS | {"x-dgem-key": key}).status_code
            for key in ("server-key", "another")
        ]
    replica.process.kill()

    assert [200, 401] == statuses


@pytest.mark.timeout(600)
def test_a_killed_replica_loses_no_later_request(cluster: Cluster) -> None:
    """From the first one after it has died, on kept and on new connections."""
    with httpx.Client(base_url=cluster.url, headers=HEADERS) as kept:
        for _ in range(12):
            kept.post(PATH, json=asked())
        cluster.replicas[0].process.kill()
        cluster.replicas[0].process.wait()
        statuses = Counter(kept.post(PATH, json=asked()).status_code for _ in range(100))
        statuses += Counter(
            httpx.post(f"{cluster.url}{PATH}", json=asked(), headers=HEADERS).status_code for _ in "x" * 20
        )
    cluster.restart(0)

    assert {200: 120} == statuses


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_rolling_restart_under_load_fails_no_request(cluster: Cluster) -> None:
    """SIGTERM to one after the other; each is back before the next one goes."""
    done, seen = asyncio.Event(), Counter[object]()
    load = [asyncio.create_task(ask_until(done, cluster.url, seen)) for _ in range(8)]
    for place in range(3):
        process = cluster.replicas[place].process
        process.send_signal(signal.SIGTERM)
        assert 0 == await asyncio.to_thread(process.wait)
        await asyncio.to_thread(cluster.restart, place)
        await asyncio.sleep(2.5)  # until both balancers send it requests again
    done.set()
    await asyncio.gather(*load)

    assert {200} == seen.keys()
    assert seen[200] > 100
    assert all(answered(replica) > 0 for replica in cluster.replicas)


@pytest.mark.parametrize("name", ["haproxy", "nginx"])
def test_where_no_replica_is_ready_the_answer_says_so(name: str, tmp_path: Path) -> None:
    """503 in the gateway's shape, with when to come again."""
    command, port = balancer(name, [f"127.0.0.1:{free_port()}" for _ in ADDRESSES], tmp_path)
    url = f"http://127.0.0.1:{port}"
    with running(command, url, tmp_path / "log"):
        answers = [until_answered(url) for _ in range(5)]

    assert {(503, "2", "engine_unavailable")} == {
        (answer.status_code, answer.headers["retry-after"], answer.json()["detail"]["error_type"]) for answer in answers
    }


def until_answered(url: str) -> httpx.Response:
    """The first answer of a balancer that has just been started."""
    while True:
        try:
            return httpx.post(f"{url}{PATH}", json=asked())
        except httpx.ConnectError:
            time.sleep(0.05)
