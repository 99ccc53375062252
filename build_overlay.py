"""Makes our package tree: stock's files, ours laid over them, the grafts; checks every promise.

python build_overlay.py FOLDER    writes a tree of links to our files, for `make develop`
"""

import base64
import hashlib
import importlib.metadata
import pathlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import build_api
import overlay

OURS = pathlib.Path(__file__).resolve().parent
STOCK_VERSION = "2.9.0"


class BuildError(Exception):
  """The wheel cannot be made; the text says which file or name is at fault and what to do."""


class Stock(NamedTuple):
  """An installed stock wheel: its site-packages folder, its metadata folder, and the files it owns."""

  root: pathlib.Path
  dist_info: pathlib.Path
  files: tuple[importlib.metadata.PackagePath, ...]

  def text(self, name: str) -> str:
    """Returns the text of a file of the metadata folder."""
    return (self.dist_info / name).read_text()

  def tag(self) -> str:
    """Returns the wheel tag, such as cp311-cp311-manylinux_2_28_x86_64."""
    return next(line for line in self.text("WHEEL").splitlines() if line.startswith("Tag: "))[5:]


def find_stock(search: Sequence[str]) -> Stock:
  """Returns the stock wheel that a search path holds.

  Args:
    search: folders, as in sys.path; this checkout is passed over, since its own metadata bears the same name.

  Returns:
    The stock wheel, not yet verified.

  Raises:
    BuildError: if there is none, or it is of another version, or it is this build itself.
  """
  cure = f"install torch_xla=={STOCK_VERSION} there, or build isolated (plain `pip install .`)"
  paths = [path for path in search if path and pathlib.Path(path).resolve() != OURS.resolve()]
  found = next(iter(importlib.metadata.distributions(name="torch_xla", path=paths)), None)
  if found is None:
    raise BuildError(f"torch_xla: no stock wheel in the build environment, wanted {STOCK_VERSION}; {cure}")
  if "+" in found.version:
    raise BuildError(f"torch_xla: the build environment has {found.version}, this build itself; {cure}")
  if found.version != STOCK_VERSION:
    raise BuildError(f"torch_xla: the build environment has {found.version}, not {STOCK_VERSION}; {cure}")
  root = pathlib.Path(str(found.locate_file("")))
  files = found.files or []
  record = next((f for f in files if f.name == "RECORD"), None)
  if record is None:
    raise BuildError(f"torch_xla: {root} has no RECORD of the stock wheel, so it cannot be verified; {cure}")
  wanted = (f for f in files if f.parts[0] != ".." and "__pycache__" not in f.parts)
  return Stock(root, root / record.parts[0], tuple(wanted))


def verify(stock: Stock) -> None:
  """Checks every stock file against the digest in its RECORD.

  Args:
    stock: the stock wheel.

  Raises:
    BuildError: naming the first file that is missing or differs.
  """
  cure = "reinstall the stock wheel"
  for file in stock.files:
    path = stock.root / file
    if file.hash is None:
      if file.name != "RECORD":
        raise BuildError(f"{file}: stock's RECORD gives no digest for it, so it cannot be verified; {cure}")
      continue
    if not path.is_file():
      raise BuildError(f"{file}: stock's RECORD lists it and {stock.root} lacks it; {cure}")
    with path.open("rb") as handle:
      digest = hashlib.new(file.hash.mode)
      while block := handle.read(1 << 20):
        digest.update(block)
    value = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    if value != file.hash.value:
      raise BuildError(f"{file}: its digest is {value}, stock's RECORD says {file.hash.value}; {cure}")


def our_files(ours: pathlib.Path = OURS) -> list[str]:
  """Returns the paths of our package files, relative to the checkout."""
  paths = sorted((ours / "torch_xla").rglob("*.py"))
  return [path.relative_to(ours).as_posix() for path in paths]


def lay(stock: Stock, out: pathlib.Path, ours: pathlib.Path = OURS, link: bool = False) -> None:
  """Writes the whole package tree.

  Args:
    stock: the stock wheel.
    out: the folder to write to; emptied first, so that nothing of an earlier build stays.
    ours: the checkout.
    link: links our files, so that an edit of the checkout is seen at once, rather than copying them.
  """
  shutil.rmtree(out, ignore_errors=True)
  for file in stock.files:
    if stock.dist_info.name != file.parts[0]:
      (out / file).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy2(stock.root / file, out / file)
  for path, grafts in overlay.GRAFTS.items():
    if not (out / path).is_file():
      raise BuildError(f"{path}: it is grafted in overlay.py and stock has no such file; correct the path")
    with (out / path).open("a") as handle:
      handle.writelines(f"\n{overlay.graft_line(graft)}\n" for graft in grafts)
  for path in our_files(ours):
    (out / path).parent.mkdir(parents=True, exist_ok=True)
    (out / path).unlink(missing_ok=True)
    if link:
      (out / path).symlink_to(ours / path)
    else:
      shutil.copy2(ours / path, out / path)


def problems(stock: pathlib.Path, built: pathlib.Path, ours: Sequence[str]) -> Iterator[str]:
  """Compares a laid tree with stock, in the files that the overlay touches.

  Args:
    stock: the folder that holds the stock packages.
    built: the folder that holds the laid tree.
    ours: the paths of our files.

  Yields:
    One sentence per broken promise, beginning with the file and the name.
  """
  for path in ours:
    if path not in overlay.REPLACED and (stock / path).exists():
      yield f"{path}: stock has this file; list it in overlay.REPLACED or give ours another path"
  for path in overlay.REPLACED:
    if not (stock / path).is_file():
      yield f"{path}: overlay.REPLACED lists it and stock has no such file; take it off the list"
    elif path not in ours:
      yield f"{path}: overlay.REPLACED lists it and the checkout has no such file; write it or take it off"
  for path in set(overlay.REPLACED) & set(overlay.GRAFTS):
    yield f"{path}: it is both replaced and grafted; write the names into the replaced file"
  theirs, mine = build_api.Source(stock), build_api.Source(built)
  replaced = {build_api.module_name(path) for path in overlay.REPLACED if (stock / path).is_file()}
  for module in sorted(replaced):
    for name in theirs.public(module):
      yield from build_api.incompatibilities(f"{module}.{name}", theirs.lookup(module, name), mine.lookup(module, name))
  for path, grafts in overlay.GRAFTS.items():
    module = build_api.module_name(path)
    for graft in grafts:
      for name in graft.names + graft.new_names:
        if mine.path(graft.module) is None or mine.lookup(graft.module, name) is None:
          yield f"{path}: the graft takes {name} from {graft.module}, which has no such name; define it there"
        elif name in graft.new_names and theirs.lookup(module, name) is not None:
          yield f"{module}.{name}: overlay.py lists it as new and stock has it; move it to names"
        elif name in graft.names:
          yield from build_api.incompatibilities(
            f"{module}.{name}", theirs.lookup(module, name), mine.lookup(graft.module, name)
          )
  for user in mine.modules():
    if theirs.path(user) and user not in replaced:
      for module, name in theirs.uses(user):
        if module in replaced and mine.lookup(module, name) is None:
          yield f"{module}.{name}: stock's {user} uses it and our replaced file has it not; define it"


def build(search: Sequence[str], out: pathlib.Path, ours: pathlib.Path = OURS, link: bool = False) -> Stock:
  """Verifies the stock wheel, lays our tree and checks it.

  Args:
    search: folders to look for the stock wheel in, as in sys.path.
    out: the folder to write the tree to.
    ours: the checkout.
    link: links our files rather than copying them.

  Returns:
    The stock wheel.

  Raises:
    BuildError: naming every file or name that is at fault.
  """
  stock = find_stock(search)
  verify(stock)
  lay(stock, out, ours, link)
  found = sorted(set(problems(stock.root, out, our_files(ours))))
  if found:
    raise BuildError("\n  ".join([f"the overlay breaks {len(found)} promise(s):", *found]))
  return stock


if __name__ == "__main__":
  try:
    build(sys.path, pathlib.Path(sys.argv[1]), link=True)
  except BuildError as error:
    sys.exit(f"error: {error}")
