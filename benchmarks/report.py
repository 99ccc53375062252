"""The tables of the benchmarks, and their place in README.md."""

from __future__ import annotations

import os
import pathlib
import platform
import re
from collections.abc import Sequence
from typing import Any

README = pathlib.Path(__file__).parent / "README.md"
_PINS = {True: "yes", False: "no", None: "-"}


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """Returns a Markdown table whose columns line up: words to the left, numbers to the right."""
  lines = [list(heads), *[list(row) for row in rows]]
  widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
  left = 2 if heads[0] == "collective" else 1

  def written(cells: Sequence[str]) -> str:
    padded = (
      cell.ljust(width) if column < left else cell.rjust(width)
      for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"| {' | '.join(padded)} |"

  rule = ["-" * width if column < left else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
  return "\n".join([written(lines[0]), written(rule), *map(written, lines[1:])])


def size(count: float) -> str:
  """Returns a number of bytes as people say it."""
  units = ["GiB", "MiB", "KiB", "B"]
  while count >= 1024 and len(units) > 1:
    count /= 1024
    units.pop()
  unit = units[-1]
  return f"{count:.0f} {unit}" if count >= 100 or count == int(count) else f"{count:.1f} {unit}"


def machine() -> str:
  """Returns what the figures depend on."""
  memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
  load = os.getloadavg()[0]
  return (
    f"{os.cpu_count()} cores ({platform.machine()}), {memory / 1024**3:.0f} GiB, Python {platform.python_version()}, "
    f"load {load:.0f} at the end"
  )


def _ratio(ours: float, stock: float) -> str:
  return f"{ours / stock:.2f}" if stock else "-"


def tracing(rows: list[dict[str, Any]]) -> str:
  """Returns the table of tracing costs."""
  cells = []
  for r in rows:
    name = f"{r['name']}, list of {r['operands']}" if r["operands"] else r["name"]
    cells.append([name, r["keywords"], f"{r['ours']:.1f}", f"{r['stock']:.1f}", _ratio(r["ours"], r["stock"])])
  return _under(table(["collective", "how", "ours us", "stock us", "ours/stock"], cells))


def steps(rows: list[dict[str, Any]]) -> str:
  """Returns the table of step times and compilations."""
  cells = []
  for r in rows:
    ours, stock = r["time"]["ours"], r["time"]["stock"]
    times = [f"{ours * 1e3:.2f}", f"{stock * 1e3:.2f}", _ratio(ours, stock)]
    programs = [str(r["programs"]["ours"]), str(r["programs"]["stock"])]
    cells.append([r["name"], _PINS[r["pin"]], size(r["bytes"]), *times, *programs])
  heads = ["collective", "pinned", "per rank", "ours ms", "stock ms", "ours/stock", "programs", "stock's"]
  return _under(table(heads, cells))


def memory(rows: list[dict[str, Any]]) -> str:
  """Returns the table of peaks."""
  cells = []
  for r in rows:
    ours, stock = r["peak"]["ours"], r["peak"]["stock"]
    cells.append([r["name"], _PINS[r["pin"]], size(r["bytes"]), size(ours), size(stock), _ratio(ours, stock)])
  return _under(table(["collective", "pinned", "per rank", "ours", "stock", "ours/stock"], cells))


def imports(times: dict[str, dict[str, float]]) -> str:
  """Returns the table of import times."""
  cells = []
  for kind, label in (("wall", "wall clock"), ("cpu", "CPU time")):
    ours, stock = times["ours"][kind], times["stock"][kind]
    cells.append([label, f"{ours:.0f}", f"{stock:.0f}", f"{ours - stock:+.0f}"])
  return _under(table(["import torch_xla", "ours ms", "stock ms", "more ms"], cells))


def _under(text: str) -> str:
  return f"{text}\n\nMachine: {machine()}."


def write(section: str, text: str) -> None:
  """Puts a table into README.md, between the marks of its section.

  Args:
    section: its name; README.md has the marks `<!-- NAME -->` and `<!-- /NAME -->`.
    text: the table.

  Raises:
    ValueError: README.md lacks the marks.
  """
  old = README.read_text()
  new, count = re.subn(
    rf"(<!-- {section} -->\n).*?(<!-- /{section} -->)", lambda m: f"{m[1]}\n{text}\n\n{m[2]}", old, flags=re.DOTALL
  )
  if count != 1:
    raise ValueError(f"{README.name}: has {count} places for {section!r}; give it one pair of marks")
  README.write_text(new)
