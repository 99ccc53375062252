"""The import arrows: who may know whom, read from the sources without importing them."""

import ast
import graphlib
import pathlib
from collections.abc import Iterator

import pytest
from checkout import PACKAGE

# Each floor of torch_xla/collectives may import from its own floor and from those before it.
FLOORS = (
  ("hlo", "groups", "reductions"),
  ("plan", "lowering"),
  ("rules",),
  ("call", "grad", "functional"),
  ("ops", "training", "functions"),
  ("__init__",),
)

# Cost tens of milliseconds each, or start threads: only inside the functions that need them.
HEAVY = ("google", "jax", "requests", "rich", "sklearn", "tqdm", "yaml")


def sources(folder: str = "") -> list[pathlib.Path]:
  return sorted(path for path in (PACKAGE / folder).rglob("*.py"))


def imported(path: pathlib.Path, nested: bool = True) -> Iterator[str]:
  """Yields the dotted names that a file imports; without `nested`, only what importing the file runs."""
  tree = ast.parse(path.read_text(), str(path))
  pending: list[ast.AST] = list(tree.body)
  while pending:
    node = pending.pop()
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      package = ("torch_xla", *path.relative_to(PACKAGE).parts)
      base = ".".join(package[: len(package) - node.level]) if node.level else ""
      origin = ".".join(part for part in (base, node.module) if part)
      yield origin
      yield from (f"{origin}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
      pending.extend(node.orelse)
    elif nested or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
      pending.extend(ast.iter_child_nodes(node))


def within(name: str, module: str) -> bool:
  return name == module or name.startswith(module + ".")


@pytest.mark.parametrize(("side", "other"), [("collectives", "pod"), ("pod", "collectives")])
def test_device_side_and_host_side_do_not_know_each_other(side, other):
  files = sources(side)
  assert files, side
  seen = {
    f"{path.relative_to(PACKAGE)} imports {name}"
    for path in files
    for name in imported(path)
    if within(name, f"torch_xla.{other}")
  }
  assert not seen


def test_collectives_import_downwards_only():
  floor = {name: number for number, names in enumerate(FLOORS) for name in names}
  files = {path.stem: path for path in sources("collectives")}
  assert set(files) <= set(floor), "give the new module a floor in FLOORS"
  graph: dict[str, set[str]] = {}
  for stem, path in files.items():
    names = {name.removeprefix("torch_xla.collectives.").split(".")[0] for name in imported(path)}
    graph[stem] = {name for name in names if name in files and name != stem}
    for name in graph[stem]:
      assert floor[name] <= floor[stem], f"{stem} imports {name}, which stands on a higher floor"
  list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which shows the cycle


@pytest.mark.parametrize("folder", ["collectives", "pod"])
def test_our_halves_do_not_import_the_model_module_at_import_time(folder):
  # xla_model's last lines import them, so the way back would be a cycle.
  seen = {
    f"{path.relative_to(PACKAGE)}: {name}"
    for path in sources(folder)
    for name in imported(path, nested=False)
    if within(name, "torch_xla.core.xla_model")
  }
  assert not seen


def test_options_import_nothing_of_ours():
  names = {name for name in imported(PACKAGE / "options.py") if within(name, "torch_xla")}
  assert not names


def test_importing_us_imports_nothing_heavy():
  seen = {
    f"{path.relative_to(PACKAGE)}: {name}"
    for path in sources()
    for name in imported(path, nested=False)
    if name.split(".")[0] in HEAVY and path.stem not in ("__main__", "worker")
  }
  assert not seen
