"""The built wheel: what it says of itself, that it keeps stock's names, that it comes and goes cleanly."""

import email
import os
import sys
import tarfile
import zipfile

import checkout
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

build_api, build_overlay = checkout.module("build_api"), checkout.module("build_overlay")


class Contents:
  """A wheel's files and its metadata."""

  def __init__(self, path):
    self.zip = zipfile.ZipFile(path)
    self.names = set(self.zip.namelist())
    self.folder = next(n.split("/")[0] for n in self.names if n.endswith(".dist-info/RECORD"))
    self.metadata = email.message_from_string(self.text("METADATA"))

  def text(self, name):
    return self.zip.read(f"{self.folder}/{name}").decode()

  def requirements(self):
    found = set()
    for requirement in map(Requirement, self.metadata.get_all("Requires-Dist")):
      # A requirement that no Python of ours meets asks for nothing.
      extra = str(requirement.marker).partition("extra == ")[2]
      if requirement.marker is None or requirement.marker.evaluate({"extra": extra.strip('"')}):
        found.add((requirement.name.lower(), str(requirement.specifier), extra))
    return found


@pytest.fixture(scope="module")
def ours(wheel):
  return Contents(wheel)


@pytest.fixture(scope="module")
def stock(stock_wheel):
  return Contents(stock_wheel)


@pytest.fixture(scope="module")
def unpacked(ours, tmp_path_factory):
  """The sources in our wheel, as a folder."""
  out = tmp_path_factory.mktemp("unpacked")
  ours.zip.extractall(out, [name for name in ours.names if name.endswith(".py")])
  return out


def test_its_version_satisfies_a_pin_on_stock(ours):
  version = ours.metadata["Version"]
  assert version.startswith("2.9.0+ordinal.")
  assert SpecifierSet("==2.9.0").contains(version)
  assert SpecifierSet("~=2.9.0").contains(version)


def test_it_asks_for_all_that_stock_asks_for_and_for_torch(ours, stock):
  assert stock.requirements() <= ours.requirements()
  assert ("torch", "==2.9.*", "") in ours.requirements()


def test_its_tag_and_entry_points_are_those_of_stock(wheel, stock_wheel, ours, stock):
  assert wheel.name.split("-")[2:] == stock_wheel.name.split("-")[2:]
  tags = [line for line in stock.text("WHEEL").splitlines() if line.startswith("Tag:")]
  assert [line for line in ours.text("WHEEL").splitlines() if line.startswith("Tag:")] == tags
  assert ours.text("entry_points.txt").split() == stock.text("entry_points.txt").split()


def test_both_licenses_are_inside(ours, stock):
  assert ours.text("licenses/LICENSE") == (checkout.ROOT / "LICENSE").read_text()
  assert ours.text("licenses/LICENSE.torch_xla") == stock.text("licenses/LICENSE")


def test_it_holds_stocks_files_and_ours_and_nothing_else(ours, stock):
  def content(wheel):
    return {name for name in wheel.names if not name.startswith(wheel.folder)}

  assert content(ours) == content(stock) | set(build_overlay.our_files())


def test_every_public_name_of_stock_is_there_with_a_compatible_signature(stock_env, unpacked):
  theirs, mine = build_api.Source(stock_env.site), build_api.Source(unpacked)
  count, found = 0, []
  for module in theirs.modules():
    if module.split(".")[0] not in ("torch_xla", "torchax"):
      continue
    for name in theirs.public(module):
      count += 1
      entry = mine.lookup(module, name) if mine.path(module) else None
      found += build_api.incompatibilities(f"{module}.{name}", theirs.lookup(module, name), entry)
  assert count > 700
  assert not found, "\n".join(found)


def test_it_installs_over_stock_and_gives_stock_back(environment, wheel, stock_wheel, dependencies):
  environment.pip("install", "--no-deps", stock_wheel)
  environment.pip("install", "--no-deps", wheel)
  assert "torch_xla-2.9.0+ordinal" in " ".join(os.listdir(environment.site))
  assert "Would install" not in environment.pip("install", "--dry-run", "--no-deps", "torch_xla==2.9.0")

  (environment.site / "dependencies.pth").write_text(f"{dependencies}\n")
  program = "import torch_xla, torch_xla.core.xla_model; print(torch_xla.__version__, torch_xla.__file__)"
  done = environment.run("-W", "ignore", "-c", program)
  assert done.split() == [
    str(wheel.name).split("-")[1],
    str(environment.site / "torch_xla" / "__init__.py"),
  ]

  environment.pip("uninstall", "--yes", "torch_xla")
  left = [name for name in os.listdir(environment.site) if name.startswith(("torch_xla", "torchax", "_XLAC"))]
  assert not left

  environment.pip("install", "--no-deps", stock_wheel)
  build_overlay.verify(build_overlay.find_stock([str(environment.site)]))


def test_all_that_this_environment_asks_for_is_installed(command):
  done = command(sys.executable, "-m", "pip", "check")
  assert done.returncode == 0, done.stdout


def test_a_source_distribution_builds_the_same_tree(stock_env, command, tmp_path):
  base = ("egg_info", "--egg-base", tmp_path)
  done = command(stock_env.python, "setup.py", "-q", *base, "sdist", "--dist-dir", tmp_path, cwd=checkout.ROOT)
  assert done.returncode == 0, done.stderr
  with tarfile.open(next(tmp_path.glob("torch_xla-*.tar.gz"))) as archive:
    archive.extractall(tmp_path, filter="data") if sys.version_info >= (3, 12) else archive.extractall(tmp_path)
  folder = next(path for path in tmp_path.glob("torch_xla-*") if path.is_dir())
  done = command(stock_env.python, "setup.py", "-q", "build_py", "--build-lib", tmp_path / "out", cwd=folder)
  assert done.returncode == 0, done.stderr
  missing = [name for name in build_overlay.our_files() if not (tmp_path / "out" / name).is_file()]
  assert not missing
