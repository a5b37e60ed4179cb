"""`semistream bench …`: measure the joins."""

from __future__ import annotations

import click

from semistream.cli.bench.list import list_benchmarks
from semistream.cli.bench.papers import RunGroup, plot_command, report_command, run_command
from semistream.cli.bench.run_auto import run_auto_command
from semistream.cli.bench.run_core import run_core_command
from semistream.cli.bench.run_cost_models import (
    run_buffers_command,
    run_cost_models_command,
    run_least_memory_command,
)
from semistream.cli.bench.run_shedding import run_shedding_command
from semistream.cli.bench.run_spark import run_spark_command


@click.group()
def bench() -> None:
    """Measure the joins; every result is verified before a number is shown."""


@bench.group(cls=RunGroup)
def run() -> None:
    """Run a benchmark, or experiments of the papers by id (`bench list` has them)."""


bench.add_command(list_benchmarks)
bench.add_command(plot_command)
bench.add_command(report_command)
run.add_command(run_command("papers"))
run.add_command(run_core_command)
run.add_command(run_shedding_command)
run.add_command(run_spark_command)
run.add_command(run_cost_models_command)
run.add_command(run_buffers_command)
run.add_command(run_least_memory_command)
run.add_command(run_auto_command)
