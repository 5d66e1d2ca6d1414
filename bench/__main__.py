"""`python -m bench`: loads, compares and judges System One servers over HTTP."""

from __future__ import annotations

import click

from bench.commands.floor import floor
from bench.commands.load import load
from bench.commands.local import local
from bench.commands.peers import peers
from bench.commands.quality import jev, quality
from bench.commands.versus import versus
from bench.commands.vllm import vllm

COMMANDS: tuple[click.Command, ...] = (load, versus, quality, jev, local, peers, vllm, floor)


@click.group()
def main() -> None:
    """Benches for any server with `POST /v1/systemone`: figures that anyone can measure again."""


for command in COMMANDS:
    main.add_command(command)

if __name__ == "__main__":
    main(prog_name="python -m bench")
