"""Stock's functions, beside ours in one process.

Our wheel keeps stock's source: a graft only rebinds names at the end of the module. So the definitions that stand in
the files are compiled again into a namespace of their own; they call the same natives as in a stock install.
"""

from __future__ import annotations

import ast
import importlib
import types
from collections.abc import Callable
from typing import Any

_COLLECTIVES = (
  "all_reduce",
  "_all_gather_using_all_reduce",
  "all_gather",
  "all_to_all",
  "collective_permute",
  "collective_broadcast",
  "reduce_scatter",
)
_RANKS = ("world_size", "global_ordinal")


def functions(global_ordinal: Callable[[], int] | None = None) -> types.SimpleNamespace:
  """Returns stock's collectives.

  Args:
    global_ordinal: stands in for stock's runtime.global_ordinal, which is the only thing that makes the graphs of
      stock's collectives differ between ranks.

  Returns:
    A namespace with the names that the collectives have in stock's xla_model.
  """
  ranks = _definitions("torch_xla.runtime", _RANKS, {"_WORLD_SIZE": None, "_ORDINAL": None})
  if global_ordinal is not None:
    ranks["global_ordinal"] = global_ordinal
  names = _definitions("torch_xla.core.xla_model", _COLLECTIVES, {"runtime": types.SimpleNamespace(**ranks)})
  return types.SimpleNamespace(**{name: names[name] for name in _COLLECTIVES})


def _definitions(module: str, names: tuple[str, ...], more: dict[str, Any]) -> dict[str, Any]:
  loaded = importlib.import_module(module)
  assert loaded.__file__
  with open(loaded.__file__) as file:
    tree = ast.parse(file.read(), loaded.__file__)
  found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
  assert len(found) == len(names), f"{module}: stock's source lacks one of {names}"
  namespace = {**vars(loaded), **more}
  exec(compile(ast.Module(found, []), loaded.__file__, "exec"), namespace)
  return {name: namespace[name] for name in names}
