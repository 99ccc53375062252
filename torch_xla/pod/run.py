"""`python -m torch_xla.pod run`: a program on an emulated pod that is numbered as a real slice is."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from torch_xla.pod import cpu


class Topology(NamedTuple):
  """A slice to emulate.

  Args:
    order: the device that each rank runs on.
    shape: what the slice is made of.
  """

  order: tuple[int, ...]
  shape: str


# The launch numbers ranks host by host and process by process, the runtime numbers devices along the torus. So on real
# slices the two differ; each order below is one such walk.
TOPOLOGIES = {
  "v2-8": Topology((0, 1, 2, 3, 6, 7, 4, 5), "2x2 chips with 2 cores each"),
  "v3-8": Topology((0, 1, 4, 5, 6, 7, 2, 3), "2x2 chips with 2 cores each"),
  "v4-8": Topology((0, 1, 3, 2), "2x2x1 chips"),
  "v5e-8": Topology((0, 1, 3, 2, 6, 7, 5, 4), "2x4 chips"),
  "v6e-8": Topology((0, 4, 1, 5, 2, 6, 3, 7), "2x4 chips"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares what `run` takes.

  Args:
    parser: the parser of the subcommand.
  """
  presets = "; ".join(f"{name}: {','.join(map(str, t.order))} ({t.shape})" for name, t in TOPOLOGIES.items())
  parser.description = f"Runs a script on a pod emulated on CPU. Topologies and their device orders: {presets}."
  parser.add_argument("--topology", choices=TOPOLOGIES, help="the slice to emulate")
  parser.add_argument("--ranks", type=int, help="number of ranks, without or instead of a topology's")
  parser.add_argument("--device-order", help="the device that each rank runs on, e.g. 0,1,4,5,6,7,2,3")
  parser.add_argument("script", help="the program; it starts its ranks with torch_xla.launch, xmp.spawn, ...")
  parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own arguments")


def environment(args: argparse.Namespace) -> dict[str, str]:
  """Makes the environment that the script runs in.

  Args:
    args: what `add_arguments` declares.

  Returns:
    Environment variables: this process's, and those of the emulated pod.

  Raises:
    ValueError: neither a topology nor a number of ranks is given, or the order does not fit the number.
  """
  order = args.device_order
  if order is None and args.topology and args.ranks in (None, len(TOPOLOGIES[args.topology].order)):
    order = ",".join(map(str, TOPOLOGIES[args.topology].order))
  if args.ranks is not None:
    ranks = args.ranks
  elif args.topology:
    ranks = len(TOPOLOGIES[args.topology].order)
  elif order is not None:
    ranks = order.count(",") + 1
  else:
    raise ValueError("pod run: the number of ranks is open; give --topology, --ranks or --device-order")
  environ = dict(os.environ, PJRT_DEVICE="CPU", CPU_NUM_DEVICES=str(ranks))
  environ.pop("PJRT_CPU_DEVICE_ORDER", None)
  if order is not None:
    environ["PJRT_CPU_DEVICE_ORDER"] = order
  cpu.prepare(environ)
  return environ


def main(arguments: Sequence[str]) -> int:
  """Becomes the script; its exit code is this process's.

  Args:
    arguments: the command line after `run`.

  Returns:
    2 where the arguments do not fit; else this does not return.
  """
  parser = argparse.ArgumentParser(prog="python -m torch_xla.pod run")
  add_arguments(parser)
  args = parser.parse_args(arguments)
  try:
    environ = environment(args)
    if not os.path.isfile(args.script):
      raise ValueError(f"pod run: {args.script!r} is not a file; give the path of a Python program")
  except ValueError as error:
    print(error, file=sys.stderr)
    return 2
  sys.stdout.flush()
  os.execve(sys.executable, [sys.executable, args.script, *args.arguments], environ)
