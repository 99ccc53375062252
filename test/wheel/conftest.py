"""What the wheel tests share: the stock wheel, the built wheel and a fresh environment."""

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import checkout
import pytest

SOURCES = (
  "overlay.py",
  "build_api.py",
  "build_overlay.py",
  "setup.py",
  "pyproject.toml",
  "LICENSE",
  "README.md",
)


def run(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
  """Runs a command and returns what it printed, whatever its exit status."""
  return subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)


def clean_environment() -> dict[str, str]:
  """Returns the process environment without what would put other packages on the path."""
  return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def check(*command: object, **options: Any) -> str:
  """Runs a command that must succeed and returns its output."""
  done = run(*command, **options)
  assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
  return done.stdout


class Environment(NamedTuple):
  """A virtual environment."""

  root: pathlib.Path

  @property
  def python(self) -> pathlib.Path:
    return self.root / "bin" / "python"

  @property
  def site(self) -> pathlib.Path:
    return next((self.root / "lib").glob("python3*")) / "site-packages"

  def pip(self, *arguments: object) -> str:
    return self.run("-m", "pip", "--disable-pip-version-check", *arguments)

  def run(self, *arguments: object) -> str:
    return check(self.python, *arguments, env=clean_environment())


@pytest.fixture(scope="session")
def stock_env() -> Environment:
  """The build environment that `make venv` keeps: stock and setuptools, no torch."""
  root = checkout.ROOT / "build" / "env"
  assert (root / "ready").is_file(), f"{root}: no build environment; run `make venv`"
  return Environment(root)


@pytest.fixture(scope="session")
def stock_wheel(stock_env: Environment) -> pathlib.Path:
  """The stock wheel, as the package index has it."""
  return next((checkout.ROOT / "build" / "stock").glob("torch_xla-*.whl"))


@pytest.fixture(scope="session")
def wheel(stock_env: Environment, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """Our wheel: the one that `make venv` built unless a source is newer, else a new one."""
  sources = [checkout.ROOT / name for name in SOURCES] + list(checkout.PACKAGE.rglob("*.py"))
  newest = max(path.stat().st_mtime for path in sources)
  built = next((checkout.ROOT / "dist").glob("torch_xla-*.whl"), None)
  if built is None or built.stat().st_mtime < newest:
    out = tmp_path_factory.mktemp("dist")
    stock_env.pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, checkout.ROOT)
    built = next(out.glob("torch_xla-*.whl"))
  return built


@pytest.fixture(scope="session")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A folder of links to all that this interpreter has installed but torch_xla itself."""
  out = tmp_path_factory.mktemp("dependencies")
  site = next(pathlib.Path(path) for path in sys.path if (pathlib.Path(path) / "torch").is_dir())
  for entry in site.iterdir():
    if not entry.name.startswith(("torch_xla", "torchax", "_XLAC")):
      (out / entry.name).symlink_to(entry)
  return out


@pytest.fixture
def environment(tmp_path: pathlib.Path) -> Environment:
  """A fresh virtual environment that holds pip alone."""
  check(sys.executable, "-m", "venv", tmp_path / "env")
  return Environment(tmp_path / "env")


@pytest.fixture
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
  """Runs a command and returns what it printed, whatever its exit status."""
  return run
