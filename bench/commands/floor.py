"""`python -m bench floor`: how far each workload is from what the device could do at best."""

from __future__ import annotations

import asyncio
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from bench import record
from bench.answers import Body
from bench.commands.asking import CONSOLE, KEY, OUT, SEED, TIMEOUT, WorkloadName, described, posting, telling
from bench.load import Bench, Rules, ServerFailed, Unloaded
from bench.workloads import Workload

DEFAULT = ("W1", "W2", "W3", "W4", "W5", "W7", "W8")
FLOAT32, BFLOAT16 = 4, 2


@click.command()
@click.option("--model", default="", help="Model folder.  [default: the one that `make serve` fetches]")
@click.option("--url", help="A server of this model on this device; without it only the floor is shown.")
@KEY
@click.option("--workload", "workloads", type=WorkloadName(), multiple=True, default=DEFAULT, show_default=True)
@click.option("--count", default=10, show_default=True, help="Serial requests per workload.")
@SEED
@TIMEOUT
@OUT
def floor(model: str, url: str | None, key: str | None, workloads: tuple[Workload, ...], **given: Any) -> None:
    """Measure what this device copies and multiplies, and compare every workload with the least that it needs.

    The floor reads every token of state and questions once, and none of a state that a server may still have (W8); a
    server that reads the state once per question, or adds a chat template, needs more.
    Measure on a quiet machine, with the server idle meanwhile.

    \b
    Examples:
      python -m bench floor
      python -m bench floor --url http://127.0.0.1:8080 --workload W1 --workload W3
    """
    # Torch takes seconds to load.
    from bench.floor import floor_of, model_of, rates  # noqa: PLC0415
    from gateway.config import load  # noqa: PLC0415
    from gateway.engines.tokenizer import HfTokenizer  # noqa: PLC0415
    from gateway.engines.weights import resolve  # noqa: PLC0415

    source = resolve(model, Path(load().model_cache), click.echo)
    measured = rates()
    sizes = model_of(Path(source.model), source.name, FLOAT32 if measured.device == "cpu" else BFLOAT16)
    tokenizer = HfTokenizer.open(source.model)
    said = f"{measured.bytes_per_s / 1e9:.1f} GB/s copied, {measured.flops_per_s / 1e9:.0f} GFLOP/s multiplied"
    CONSOLE.print(f"{sizes.name} on {measured.device}, {measured.threads} threads: {said}", highlight=False)
    rows = []
    for workload in workloads:
        body = workload.body(given["seed"], 0)
        tokens = sum(len(tokenizer.encode(text)) for text in texts(body, warm=workload.warm))
        least = floor_of(sizes, measured, tokens, workload.questions)
        p50 = asyncio.run(unloaded(url, key, workload, given)).p50 if url else math.nan
        flops = sizes.flops(tokens, workload.questions)
        rows.append({"workload": workload.name, "flops": flops, "floor_s": least.seconds, "p50_s": p50} | asdict(least))
    CONSOLE.print(table(rows))
    if given["out"]:
        head = described(url) if url else {"machine": record.machine()}
        found = {"model": asdict(sizes) | {"weight_bytes": sizes.weight_bytes}, "rates": asdict(measured)}
        record.write(given["out"], head | found | {"workloads": rows})


def texts(body: Body, *, warm: bool) -> list[str]:
    """Everything that a model must read of a request; where the state is warm, it has read that before."""
    found = [] if warm else [body["state"]]
    for question in body["questions"].values():
        found.append(question["instructions"])
        criteria = question.get("criteria") or []
        found += list(criteria)
        if isinstance(criteria, dict):
            found += [text for text in criteria.values() if text]
    return found


async def unloaded(url: str, key: str | None, workload: Workload, given: dict[str, Any]) -> Unloaded:
    """What serial requests take."""
    target, pool = posting(url, key, given["timeout"])
    with telling() as tell:
        try:
            return await Bench(target, pool.exchange, workload, Rules(seed=given["seed"]), tell).unloaded(
                given["count"]
            )
        except ServerFailed as fault:
            raise click.ClickException(f"{workload.name}: {fault}") from fault
        finally:
            await pool.close()


def table(rows: list[dict[str, Any]]) -> Table:
    """A row per workload."""
    heads = ("tokens", "GFLOP", "floor ms", "bound by", "p50 ms", "times the floor")
    shown = Table("workload", *heads, box=None, header_style="bold")
    for row in rows:
        bound = "operations" if row["by_flops"] >= row["by_bytes"] else "bytes"
        far = "-" if math.isnan(row["p50_s"]) else f"{row['p50_s'] / row['floor_s']:.1f}"
        p50 = "-" if math.isnan(row["p50_s"]) else f"{row['p50_s'] * 1e3:.4g}"
        figures = (str(row["tokens"]), f"{row['flops'] / 1e9:.1f}", f"{row['floor_s'] * 1e3:.3g}")
        shown.add_row(row["workload"], *figures, bound, p50, far)
    return shown
