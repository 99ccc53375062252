"""The docstring form: a one-sentence summary everywhere; for what users call, Args, Returns, Raises too."""

import ast
import re
from collections.abc import Iterator

import checkout
import pytest

build_api, overlay = checkout.module("build_api"), checkout.module("overlay")
OURS = build_api.Source(checkout.ROOT)
MODULES = [
  module
  for module in (f"torch_xla.{name}" for name in build_api.Source(checkout.PACKAGE).modules())
  if re.match(r"torch_xla\.(collectives|pod|aot|options)\b", module)
]
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def reached_by_users() -> set[tuple[str, str]]:
  """Returns (module, name) of what packages and options export and grafts bring in, where it is defined."""
  roots = [m for m in MODULES if m.count(".") == 1]
  pending = [(m, name) for m in roots for name in OURS.bindings(m) if not name.startswith("_")]
  for graft in (graft for grafts in overlay.GRAFTS.values() for graft in grafts):
    pending += [(graft.module, name) for name in graft.names + graft.new_names]
  found = set()
  while pending:
    module, name = pending.pop()
    binding = OURS.bindings(module).get(name) if OURS.path(module) else None
    if binding and isinstance(binding.node, ast.alias):
      pending += [(binding.module, binding.name)] if binding.name else []
    elif binding:
      found.add((module, name))
  return found


REACHED = reached_by_users()


def public(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Definition]]:
  """Yields the public functions, classes and methods of a body with dotted names; overrides are left out."""
  described: set[str] = set()
  for node in body:
    if isinstance(node, Definition) and not node.name.startswith("_"):
      yield prefix + node.name, node
      if isinstance(node, ast.ClassDef):
        for name, method in public(node.body, f"{prefix}{node.name}."):
          if method.name not in described:
            yield name, method
          described.add(method.name)


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
  """Yields the nodes of a function, those of the functions inside it left out."""
  for node in ast.iter_child_nodes(function):
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
      yield node
      yield from own_nodes(node)


def sections(docstring: str) -> dict[str, str]:
  """Returns the text of each `Name:` section; that of the first paragraph under ''."""
  parts = re.split(r"^(Args|Returns|Yields|Raises|Example|Examples|Note|Source):$", docstring, flags=re.M)
  return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def flaws(name: str, node: Definition, full: bool) -> Iterator[str]:
  """Yields what a docstring lacks; `full` asks for the sections too."""
  docstring = ast.get_docstring(node)
  if not docstring:
    yield f"{name}: no docstring"
    return
  found = sections(docstring)
  summary = found[""].strip().split("\n\n")[0]
  if "\n" in summary or not summary.endswith("."):
    yield f"{name}: the summary must be one sentence on one line, with a full stop: {summary!r}"
  decorators = [ast.unparse(d) for d in node.decorator_list]
  if not full or isinstance(node, ast.ClassDef) or any("property" in d or "overload" in d for d in decorators):
    return
  a = node.args
  parameters = [p.arg for p in [*a.posonlyargs, *a.args, a.vararg, *a.kwonlyargs, a.kwarg] if p]
  for parameter in parameters:
    if parameter not in ("self", "cls") and not re.search(
      rf"^\s*[\w, *]*\b{parameter}\b[^:\n]*:", found.get("Args", ""), re.M
    ):
      yield f"{name}: Args does not list {parameter}"
  nodes = list(own_nodes(node))
  yields = any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in nodes)
  returns = any(isinstance(n, ast.Return) and n.value is not None for n in nodes)
  wanted = "Yields" if yields else "Returns" if returns and ast.unparse(node.returns or node) != "None" else ""
  if wanted and wanted not in found and not summary.startswith((wanted, "Whether")):
    yield f"{name}: no {wanted} section"
  raised = {
    match[1]
    for n in nodes
    if isinstance(n, ast.Raise) and n.exc and (match := re.match(r"(ValueError|TypeError)\b", ast.unparse(n.exc)))
  }
  for error in sorted(raised):
    if error not in found.get("Raises", ""):
      yield f"{name}: Raises does not list {error}"


@pytest.mark.parametrize("module", MODULES)
def test_public_names_have_docstrings_of_the_form(module):
  tree = OURS.tree(module)
  assert ast.get_docstring(tree), f"{module}: no module docstring"
  found = [f for name, node in public(tree.body) for f in flaws(name, node, (module, name) in REACHED)]
  assert not found, "\n".join([module, *found])


def test_the_form_is_asked_of_what_users_reach():
  assert MODULES
  assert ("torch_xla.options", "get") in REACHED
