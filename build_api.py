"""Reads the public names of a package's source files and their signatures, without importing them."""

import ast
import functools
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

Node = ast.stmt | ast.alias
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Binding(NamedTuple):
  """What a module binds to one name: a statement, or a name of another module ("" for the module itself)."""

  node: Node
  module: str = ""
  name: str = ""


class Parameter(NamedTuple):
  """One parameter of a signature; `default` is its source text, or None when it has none."""

  kind: str
  name: str
  default: str | None

  def __str__(self) -> str:
    star = {"*args": "*", "**kwargs": "**"}.get(self.kind, "")
    default = "" if self.default is None else f"={self.default}"
    return f"{star}{self.name}{default}" + (" (keyword only)" if self.kind == "keyword" else "")


class Entry(NamedTuple):
  """What a name stands for: a function, a class, a value, a module, or a thing from outside the package."""

  kind: str
  parameters: tuple[Parameter, ...] = ()
  decorator: str = ""
  members: dict[str, "Entry"] = {}
  bases: frozenset[str] = frozenset()


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
  """Yields the statements of a body, those inside `if`, `try`, `with` and loops included."""
  for node in body:
    yield node
    if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
      for field in ("body", "orelse", "finalbody"):
        yield from statements(getattr(node, field, []))
      for handler in getattr(node, "handlers", []):
        yield from statements(handler.body)


def targets(node: ast.stmt) -> Iterator[str]:
  """Yields the names that an assignment binds."""
  if isinstance(node, ast.Assign):
    for target in node.targets:
      yield from (leaf.id for leaf in ast.walk(target) if isinstance(leaf, ast.Name))
  elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
    yield node.target.id


class Source:
  """The modules below one folder, as their files say.

  Args:
    root: the folder that holds the packages, as site-packages does.
  """

  def __init__(self, root: pathlib.Path):
    self.root = root
    self.bindings = functools.cache(self._bindings)
    self.tree = functools.cache(self._tree)

  def modules(self) -> list[str]:
    """Returns the dotted names of all modules below the folder."""
    paths = sorted(self.root.rglob("*.py"))
    return [module_name(str(path.relative_to(self.root))) for path in paths]

  def path(self, module: str) -> pathlib.Path | None:
    """Returns the file of a module, or None where the folder has no such module."""
    base = self.root.joinpath(*module.split("."))
    return next((p for p in (base / "__init__.py", base.with_suffix(".py")) if module and p.is_file()), None)

  def _tree(self, module: str) -> ast.Module:
    path = self.path(module)
    assert path is not None, module
    return ast.parse(path.read_bytes(), str(path))

  def import_target(self, module: str, node: ast.ImportFrom) -> str:
    """Returns the absolute module that a `from ... import` in `module` names."""
    path = self.path(module)
    parts = module.split(".") if node.level else []
    drop = node.level - (1 if path and path.name == "__init__.py" else 0)
    parts = parts[: len(parts) - drop] if node.level else parts
    return ".".join(parts + (node.module.split(".") if node.module else []))

  def _bindings(self, module: str) -> dict[str, Binding]:
    found: dict[str, Binding] = {}
    for node in statements(self.tree(module).body):
      if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        found[node.name] = Binding(node)
      elif isinstance(node, ast.ImportFrom):
        origin = self.import_target(module, node)
        for alias in node.names:
          if alias.name != "*":
            found[alias.asname or alias.name] = Binding(alias, origin, alias.name)
          elif self.path(origin):
            names = (name for name in self.bindings(origin) if not name.startswith("_"))
            found.update({name: Binding(alias, origin, name) for name in names})
      elif isinstance(node, ast.Import):
        for alias in node.names:
          found[alias.asname or alias.name.split(".")[0]] = Binding(alias, alias.name if alias.asname else "")
      else:
        found.update({name: Binding(node) for name in targets(node)})
    return found

  def lookup(self, module: str, name: str) -> Entry | None:
    """Returns what `name` stands for in `module`, imports followed; None where the module lacks it."""
    binding = self.bindings(module).get(name)
    if binding is None:
      return Entry("module") if self.path(f"{module}.{name}") else None
    node = binding.node
    if isinstance(node, ast.alias):
      if not binding.name or self.path(f"{binding.module}.{binding.name}"):
        return Entry("module")
      return self.lookup(binding.module, binding.name) if self.path(binding.module) else Entry("external")
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
      return self._function(module, node)
    if isinstance(node, ast.ClassDef):
      return self._class(module, node)
    value = getattr(node, "value", None)
    if isinstance(value, ast.Name) and value.id != name:
      return self.lookup(module, value.id) or Entry("value")
    return Entry("value")

  def public(self, module: str) -> list[str]:
    """Returns the names that users take from a module: what it defines, and what an `__init__` re-exports."""
    path, found = self.path(module), self.bindings(module)
    package = path is not None and path.name == "__init__.py"

    def exported(binding: Binding) -> bool:
      return not isinstance(binding.node, ast.alias) or (package and self.path(binding.module) is not None)

    return [name for name, binding in found.items() if name[0] != "_" and exported(binding)]

  def uses(self, module: str) -> Iterator[tuple[str, str]]:
    """Yields (module, name) for every name, private ones too, that a module takes from its siblings."""
    aliases: dict[str, str] = {}
    for node in ast.walk(self.tree(module)):
      if isinstance(node, ast.ImportFrom):
        origin = self.import_target(module, node)
        for alias in node.names:
          if self.path(f"{origin}.{alias.name}"):
            aliases[alias.asname or alias.name] = f"{origin}.{alias.name}"
          elif self.path(origin) and alias.name != "*":
            yield origin, alias.name
      elif isinstance(node, ast.Import):
        for alias in node.names:
          if self.path(alias.name):
            aliases[alias.asname or alias.name] = alias.name
    for node in ast.walk(self.tree(module)):
      if isinstance(node, ast.Attribute):
        owner = aliases.get(ast.unparse(node.value))
        if owner and not self.path(f"{owner}.{node.attr}"):
          yield owner, node.attr

  def _default(self, module: str, node: ast.expr | None) -> str | None:
    if node is None:
      return None
    if isinstance(node, (ast.Name, ast.Attribute)):
      # A default given by a constant's name equals the constant, wherever each side keeps it.
      name = node.id if isinstance(node, ast.Name) else node.attr
      where = module
      if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = self.bindings(module).get(node.value.id)
        where = ".".join(part for part in owner[1:] if part) if owner else ""
      for _ in range(8):
        binding = self.bindings(where).get(name) if self.path(where) else None
        if binding is None or not isinstance(binding.node, ast.alias):
          break
        where, name = binding.module, binding.name
      value = getattr(binding.node, "value", None) if binding else None
      return ast.unparse(value) if isinstance(value, ast.Constant) else name
    return ast.unparse(node)

  def _function(self, module: str, node: FunctionNode) -> Entry:
    a = node.args
    positional = [*a.posonlyargs, *a.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(a.defaults)) + list(a.defaults)
    found = [
      Parameter("positional only" if arg in a.posonlyargs else "any", arg.arg, self._default(module, default))
      for arg, default in zip(positional, defaults, strict=True)
    ]
    if a.vararg:
      found.append(Parameter("*args", a.vararg.arg, None))
    for arg, default in zip(a.kwonlyargs, a.kw_defaults, strict=True):
      found.append(Parameter("keyword", arg.arg, self._default(module, default)))
    if a.kwarg:
      found.append(Parameter("**kwargs", a.kwarg.arg, None))
    names = {ast.unparse(d).split("(")[0].split(".")[-1] for d in node.decorator_list}
    kinds = sorted(names & {"staticmethod", "classmethod", "property", "setter"})
    return Entry("function", tuple(found), " ".join(kinds))

  def _class(self, module: str, node: ast.ClassDef) -> Entry:
    members: dict[str, Entry] = {}
    bases: set[str] = set()
    for base in node.bases:
      if isinstance(base, ast.Name):
        bases.add(base.id)
        parent = self.lookup(module, base.id)
        if parent and parent.kind == "class":
          members.update(parent.members)
          bases |= parent.bases
      else:
        bases.add(ast.unparse(base).split("[")[0].split(".")[-1])
    for item in statements(node.body):
      if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
        entry = self._function(module, item)
        if entry.decorator != "setter":
          members[item.name] = entry
      else:
        members.update({name: Entry("value") for name in targets(item)})
    return Entry("class", (), "", members, frozenset(bases))


def module_name(path: str) -> str:
  """Returns the dotted name of the module at a path such as `torch_xla/core/__init__.py`."""
  return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def public_member(name: str) -> bool:
  """Returns whether a class member is for callers: a plain name or a special method."""
  return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def incompatibilities(what: str, stock: Entry | None, ours: Entry | None) -> Iterator[str]:
  """Yields what a program written against `stock` would trip over in `ours`.

  Args:
    what: the name, as the messages give it.
    stock: what upstream's name stands for.
    ours: what our name stands for, None when we lack it.

  Yields:
    One sentence per difference.
  """
  if stock is None:
    yield f"{what}: stock has no such name; correct the spelling, or list it under new_names"
  elif ours is None:
    yield f"{what}: stock has it and ours has not; define it"
  elif stock.kind == "function":
    if ours.kind != "function":
      yield f"{what}: stock's is a function, ours a {ours.kind}; write a def, whose signature can be read"
      return
    if stock.decorator != ours.decorator:
      theirs, mine = (side.decorator or "plain function" for side in (stock, ours))
      yield f"{what}: stock's is a {theirs} and ours a {mine}; decorate ours as stock's is"
    yield from _parameter_differences(what, stock.parameters, ours.parameters)
  elif stock.kind == "class":
    if ours.kind != "class":
      yield f"{what}: stock's is a class, ours a {ours.kind}; write a class, for isinstance and subclasses"
      return
    for base in sorted(stock.bases - ours.bases):
      yield f"{what}: stock's derives from {base} and ours does not; derive from it"
    for name in filter(public_member, stock.members):
      yield from incompatibilities(f"{what}.{name}", stock.members[name], ours.members.get(name))


def _parameter_differences(what: str, stock: tuple[Parameter, ...], ours: tuple[Parameter, ...]) -> Iterator[str]:
  # A stock default of `...` stands for "whatever it is", so any default of ours agrees with it.
  ordered = [p for p in ours if p.kind in ("any", "positional only", "*args")]
  wanted = [p for p in stock if p.kind in ("any", "positional only", "*args")]
  for i in range(max(len(ordered), len(wanted))):
    theirs, mine = (str(side[i]) if i < len(side) else "absent" for side in (wanted, ordered))
    if theirs == "absent":
      yield f"{what}: parameter {i + 1}, {mine}, is not in stock; make it keyword only"
    elif theirs != mine and not (theirs.endswith("=...") and mine.startswith(theirs[:-3])):
      yield f"{what}: parameter {i + 1} is {theirs} in stock and {mine} in ours; take stock's"
  named = {p.name: p for p in ours if p.kind == "keyword"}
  for p in stock:
    if p.kind == "keyword" and str(named.get(p.name)) != str(p):
      yield f"{what}: {p} in stock is {named.get(p.name, 'absent')} in ours; take stock's"
    elif p.kind == "**kwargs" and all(q.kind != "**kwargs" for q in ours):
      yield f"{what}: stock takes **{p.name} and ours does not; take it"
  known = {p.name for p in stock}
  for p in named.values():
    if p.name not in known and p.default is None:
      yield f"{what}: new parameter {p.name} has no default, so calls written for stock fail; give it one"
