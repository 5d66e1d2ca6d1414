"""`python -m bench vllm`: our gateway beside vLLM's own System One route, on the CPU build of vLLM."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from bench import record
from bench.commands.asking import CONSOLE, SEED, TIMEOUT, WorkloadName, described, posting, telling
from bench.commands.versus import Side, ask_both, summary, table
from bench.peers.environment import cache
from bench.peers.vllm import as_qwen3, ours, own
from bench.serving import Server
from bench.workloads import Workload
from gateway.config import load
from gateway.engines.weights import resolve


@click.command()
@click.option(
    "--workload", "workloads", type=WorkloadName(), multiple=True, default=("W1", "W2", "W3"), show_default=True
)
@click.option("--count", default=30, show_default=True, help="Pairs per workload.")
@SEED
@TIMEOUT
@click.option("--out", type=click.Path(path_type=Path), default=record.RESULTS / "vllm.json", show_default=False)
def vllm(workloads: tuple[Workload, ...], count: int, **given: Any) -> None:
    """Start both on one model folder, and compare them pair by pair as `versus` does.

    The model has SmolLM2's size and weights in an architecture that vLLM's route takes: its answers mean nothing, and
    theirs and ours differ where the prompts do.

    \b
    Example:
      python -m bench vllm --workload W1 --workload W3 --count 20
    """
    source = resolve("", Path(load().model_cache), click.echo)
    model = as_qwen3(Path(source.model), cache() / f"{Path(source.model).name}-qwen3")
    try:
        with ours(model) as first, own(model) as second:
            sides = [side(server, given["timeout"]) for server in (first, second)]
            rows = [compared(sides, workload, count, given["seed"]) for workload in workloads]
            heads = {each.name: described(each.url) for each in sides}
    except RuntimeError as fault:
        raise click.ClickException(f"not run: {fault}") from fault
    CONSOLE.print(table(sides, rows))
    record.write(given["out"], {"model": f"{model.name}, answers mean nothing", "servers": heads, "workloads": rows})


def compared(sides: list[Side], workload: Workload, count: int, seed: int) -> dict[str, Any]:
    """The figures of one workload."""
    with telling() as tell:
        return summary(workload, asyncio.run(ask_both(sides, workload, count, seed, tell)))


def side(server: Server, timeout: float) -> Side:
    """A started server as one side of the comparison."""
    url = f"http://127.0.0.1:{server.target.port}"
    return Side(server.name, url, *posting(url, None, timeout))
