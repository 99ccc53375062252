"""Shows what each rank gets from four collectives: the right value, stock's answer and ours, pinned and not.

    python examples/per_rank.py

Where PJRT_DEVICE is not set, this is a v3-8 emulated on CPU whose physical device order differs from the launch order,
as on a real slice; else it runs on the devices of this host. The exit code is 1 if one of our answers is wrong.
"""

from __future__ import annotations

import os
import sys

# Before the imports: torch_xla chooses a device as soon as it is imported.
if "PJRT_DEVICE" not in os.environ:
  os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES="8", PJRT_CPU_DEVICE_ORDER="0,1,4,5,6,7,2,3")

import torch
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

import torch_xla
from torch_xla.experimental import pjrt

COLLECTIVES = ("all_gather", "reduce_scatter", "all_to_all", "collective_permute")
PINS = (False, True)  # the two marks behind each answer

Values = list[int]
Answers = dict[str, list[Values]]  # collective -> its result for each of PINS, flat


def on_each_rank() -> tuple[int, str, Answers]:
  """Runs the collectives; what they are given is built from the number that the launcher knows this rank by."""
  # On one host the local ordinal is the launcher's number under either numbering, so it tells the ranks of both runs
  # apart in the same way. Programs say xr.global_ordinal().
  rank, world, device = xr.local_ordinal(), xr.world_size(), torch_xla.device()
  own = torch.full((1,), float(rank))
  counted = -torch.arange(world, dtype=torch.float32)
  addressed = torch.cat([counted.view(-1, 1, 1), own.expand(world, 1, 1)], dim=1)
  own, counted, addressed = own.to(device), counted.to(device), addressed.to(device)
  ring = [[source, (source + 1) % world] for source in range(world)]
  results: dict[str, list[torch.Tensor]] = {name: [] for name in COLLECTIVES}
  for pin in PINS:
    results["all_gather"].append(xm.all_gather(own, dim=0, pin_layout=pin))
    results["reduce_scatter"].append(
      xm.reduce_scatter(xm.REDUCE_SUM, counted, 1.0 / world, scatter_dim=0, shard_count=world, pin_layout=pin)
    )
    results["all_to_all"].append(
      xm.all_to_all(addressed, split_dimension=0, concat_dimension=2, split_count=world, pin_layout=pin)
    )
    results["collective_permute"].append(xm.collective_permute(own, ring, pin_layout=pin))
  torch_xla.sync()
  answers = {name: [[int(x) for x in t.flatten().tolist()] for t in tensors] for name, tensors in results.items()}
  return rank, xm.xla_real_devices([device])[0], answers


def run(ordinals: str) -> dict[int, tuple[str, Answers]]:
  """Runs the collectives on a pod; returns launcher's number -> device, answers."""
  # Stock numbers replicas, and with them the members of groups and the shards, by device: PJRT_ORDINALS=device does the
  # same, so that run gives what a launcher's rank would get from stock.
  os.environ["PJRT_ORDINALS"] = ordinals
  return {rank: (device, answers) for rank, device, answers in pjrt.run_multiprocess(on_each_rank).values()}


def right(rank: int, world: int) -> dict[str, Values]:
  """Works out without any device what a rank has to get."""
  return {
    "all_gather": list(range(world)),
    "reduce_scatter": [-rank],
    "all_to_all": [-rank] * world + list(range(world)),
    "collective_permute": [(rank - 1) % world],
  }


def text(name: str, values: Values) -> str:
  """Writes a result; for an all_to_all the block number, if all sent the same, and who sent."""
  if name == "all_to_all":
    blocks, senders = values[: len(values) // 2], values[len(values) // 2 :]
    return f"{blocks[0] if len(set(blocks)) == 1 else text('', blocks)}:{text('', senders)}"
  return ("" if len(values) <= 10 else " ").join(map(str, values))


def answer(name: str, got: list[Values]) -> str:
  """Writes the results with and without pin once if they agree, else both."""
  return "/".join(dict.fromkeys(text(name, values) for values in got))


def show(stock: dict[int, tuple[str, Answers]], ours: dict[int, tuple[str, Answers]]) -> int:
  """Prints the tables; returns how many of our answers are wrong."""
  from rich.console import Console
  from rich.table import Table
  from rich.text import Text

  console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
  good, bad = ("Y", "n") if console.options.ascii_only else ("✓", "✗")
  world = len(ours)
  score = {"stock": 0, "ours": 0}

  for names in (COLLECTIVES[:2], COLLECTIVES[2:]):
    table = Table("rank", "device", padding=(0, 1))
    columns = []
    for name in names:
      cells = []
      for rank in sorted(ours):
        want = right(rank, world)[name]
        cell = [Text(text(name, want))]
        for who, run_of in (("stock", stock), ("ours", ours)):
          got = run_of[rank][1][name]
          cell.append(Text(answer(name, got)))
          for values in got:
            score[who] += values == want
            cell[-1].append(f" {good}", "green") if values == want else cell[-1].append(f" {bad}", "bold red")
        cells.append(cell)
      heads = ["right", "stock", "ours"]
      widths = [max(len(head), *(len(cell[i]) for cell in cells)) for i, head in enumerate(heads)]
      # rich has no headings over several columns: each collective is one column, laid out here.
      heading = "  ".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True))
      table.add_column(Text(f"{name}\n{heading}"), no_wrap=True)
      columns.append(
        [
          Text("  ").join(Text(" " * (width - len(part))) + part for part, width in zip(cell, widths, strict=True))
          for cell in cells
        ]
      )
    for rank, cells in zip(sorted(ours), zip(*columns, strict=True), strict=True):
      table.add_row(str(rank), ours[rank][0], *cells)
    console.print(table)

  total = world * len(COLLECTIVES) * len(PINS)
  console.print(
    f"{good} right, {bad} wrong: first without, then with pin_layout.  "
    f"Stock: {score['stock']} of {total} right. Ours: {score['ours']} of {total}."
  )
  return total - score["ours"]


def main() -> int:
  """Runs both numberings and compares; returns the exit code."""
  return 1 if show(stock=run("device"), ours=run("launch")) else 0


if __name__ == "__main__":
  sys.exit(main())
