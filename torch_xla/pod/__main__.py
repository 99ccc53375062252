"""`python -m torch_xla.pod`: `info` prints who is who, `run` starts a script on an emulated pod."""

import argparse
import os
import sys
from collections.abc import Sequence

_COLUMNS = (
  "ordinal",
  "replica",
  "device id",
  "slice",
  "host",
  "process",
  "local ordinal",
  "coordinates",
  "machine",
)


def rows(members: Sequence) -> list[list[str]]:
  """Lays the table of a pod out as text.

  Args:
    members: rows of identity.World.

  Returns:
    One list of cells per member, in the order of the columns that `info` prints.
  """
  return [
    [
      *(str(n) for n in (m.ordinal, m.replica, m.device_id, m.slice, m.host, m.process, m.local_ordinal)),
      ",".join(map(str, m.coords)) or "-",
      f"{m.hostname}:{m.pid}",
    ]
    for m in members
  ]


def aligned(lines: Sequence[Sequence[str]]) -> str:
  """Aligns cells under their headings.

  Args:
    lines: rows of cells, headings first.

  Returns:
    The text, one line per row.
  """
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  return "\n".join(
    "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
  )


def _members() -> list:
  """Returns the pod's rows as they are handed from a child to the parent."""
  from torch_xla.pod import identity

  return list(identity.world().members)


def info() -> None:
  """Prints the table of the pod that a program started like this would see.

  On CPU it is made in this process. On other devices one process per chip is started, as a program would be;
  on several hosts the command has to run on each of them.
  """
  from torch_xla._internal import pjrt
  from torch_xla.pod import identity

  if pjrt._device_kind() == "CPU":
    pjrt.initialize_multiprocess(0, 1)
    members = list(identity.world().members)
  else:
    members = next(iter(pjrt.run_multiprocess(_members).values()))
  cells = rows(members)
  if sys.stdout.isatty() and _print_rich(cells):
    return
  print(aligned([_COLUMNS, *cells]))


def _print_rich(cells: Sequence[Sequence[str]]) -> bool:
  try:
    from rich.console import Console
    from rich.table import Table
  except ImportError:
    return False
  table = Table(title=f"{len(cells)} ranks, PJRT_ORDINALS={os.environ.get('PJRT_ORDINALS', 'launch')}")
  for heading in _COLUMNS:
    table.add_column(heading, justify="right")
  for line in cells:
    table.add_row(*line)
  Console().print(table)
  return True


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs one subcommand.

  Args:
    arguments: the command line without the program; None reads it.

  Returns:
    The exit code.
  """
  parser = argparse.ArgumentParser(prog="python -m torch_xla.pod", description=__doc__)
  commands = parser.add_subparsers(dest="command", required=True)
  commands.add_parser("info", help="print ordinal, replica, device, host and process of every rank")
  commands.add_parser("run", help="run a script on an emulated pod", add_help=False)
  words = list(sys.argv[1:] if arguments is None else arguments)
  if words[:1] == ["run"]:  # its options are its own
    from torch_xla.pod import run

    return run.main(words[1:])
  parser.parse_args(words)
  info()
  return 0


if __name__ == "__main__":
  sys.exit(main())
