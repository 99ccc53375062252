"""Builds the wheel: pyproject.toml says what it is, overlay.py what changes, build_overlay.py how."""

import pathlib
import shutil
import sys
import zipfile

import setuptools
from setuptools.command import bdist_wheel, build_py, editable_wheel
from setuptools.errors import SetupError

HERE = pathlib.Path(__file__).parent.resolve()
sys.path.insert(0, str(HERE))  # PEP 517 front ends leave the checkout off the path

import build_overlay  # noqa: E402


def attempt(function, *args):
  """Calls a build step; its error text ends the build without a traceback."""
  try:
    return function(*args)
  except build_overlay.BuildError as error:
    raise SetupError(str(error)) from None


class BuildPy(build_py.build_py):
  """Lays the package tree; in editable mode a path file that points at a tree of links takes its place."""

  editable = False

  def run(self):
    out = pathlib.Path(self.build_lib)
    if self.editable:
      tree = HERE / "build" / "editable"
      attempt(build_overlay.build, sys.path, tree, HERE, True)
      shutil.rmtree(out, ignore_errors=True)
      out.mkdir(parents=True)
      (out / "torch_xla_editable.pth").write_text(f"{tree}\n")
    else:
      attempt(build_overlay.build, sys.path, out)

  def get_outputs(self, include_bytecode=True):
    return [str(path) for path in pathlib.Path(self.build_lib).rglob("*") if path.is_file()]


class QuickWheelFile(bdist_wheel.WheelFile):
  """A wheel compressed at zlib's level 1: 90 MB in 8 s, where level 6 makes 80 MB in 21 s."""

  def writestr(self, zinfo_or_arcname, data, compress_type=None):
    if isinstance(zinfo_or_arcname, zipfile.ZipInfo):
      zinfo_or_arcname._compresslevel = 1  # type: ignore[attr-defined]  # zipfile has no public way per wheel
    super().writestr(zinfo_or_arcname, data, compress_type)


bdist_wheel.WheelFile = QuickWheelFile


class BdistWheel(bdist_wheel.bdist_wheel):
  """Tags the wheel as stock's is: its extension decides where it runs."""

  def get_tag(self):
    return tuple(attempt(build_overlay.find_stock, sys.path).tag().split("-"))


class EditableWheel(editable_wheel.editable_wheel):
  """`pip install -e .`: the ordinary wheel around a path file."""

  def run(self):
    self.get_finalized_command("build_py").editable = True
    self.reinitialize_command("bdist_wheel", dist_dir=self.dist_dir)
    self.run_command("bdist_wheel")


class Distribution(setuptools.Distribution):
  """A distribution that holds an extension although none is compiled here."""

  def has_ext_modules(self):
    return True


(HERE / "build").mkdir(exist_ok=True)
stock = attempt(build_overlay.find_stock, sys.path)
(HERE / "LICENSE.torch_xla").write_text(stock.text("licenses/LICENSE"))
setuptools.setup(
  distclass=Distribution,
  cmdclass={"build_py": BuildPy, "bdist_wheel": BdistWheel, "editable_wheel": EditableWheel},
  # A torch_xla.egg-info at the root would pass for an installed package.
  options={"egg_info": {"egg_base": "build"}},
)
