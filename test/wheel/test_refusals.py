"""What the build refuses, and that it says which file or name is at fault."""

import base64
import hashlib
import shutil
import textwrap

import checkout
import pytest

build_api, build_overlay, overlay = map(checkout.module, ("build_api", "build_overlay", "overlay"))

# A stock package small enough to read at a glance.
STOCK = {
  "torch_xla/__init__.py": "from .core import model\n",
  "torch_xla/core/__init__.py": "",
  "torch_xla/core/model.py": """
    SUM = "sum"

    def gather(value, dim=0, *, pin=False):
      pass

    def scatter(kind=SUM, *values):
      pass
    """,
  "torch_xla/core/group.py": """
    from torch_xla.core import model

    class Group(Base):
      def size(self):
        pass

      @property
      def name(self):
        pass

    def _hidden():
      pass
    """,
  "torch_xla/core/user.py": "from torch_xla.core.group import _hidden\n",
}
GROUP = """
  class Group(Base):
    def size(self):
      pass

    @property
    def name(self):
      pass

  def _hidden():
    pass
  """


def write(root, files):
  for name, text in files.items():
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(textwrap.dedent(text))


def install(site, version="2.9.0"):
  """Writes the small stock package as pip would leave it, RECORD included."""
  write(site, STOCK)
  info = f"torch_xla-{version}.dist-info"
  write(site, {f"{info}/METADATA": f"Metadata-Version: 2.1\nName: torch_xla\nVersion: {version}\n"})
  lines = [f"{info}/RECORD,,"]
  for name in [*STOCK, f"{info}/METADATA"]:
    data = (site / name).read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    lines.append(f"{name},sha256={digest},{len(data)}")
  write(site, {f"{info}/RECORD": "\n".join(lines) + "\n"})
  return site


@pytest.fixture
def site(tmp_path):
  return install(tmp_path / "site")


@pytest.fixture
def build(tmp_path, site, monkeypatch):
  """Builds the small package with the given files of ours, replaced list and grafts."""

  def build(ours=(), replaced=(), grafts=()):
    write(tmp_path / "ours", {"torch_xla/added.py": "", **dict(ours)})
    monkeypatch.setattr(overlay, "REPLACED", tuple(replaced))
    monkeypatch.setattr(overlay, "GRAFTS", dict(grafts))
    build_overlay.build([str(site)], tmp_path / "out", tmp_path / "ours")
    return tmp_path / "out"

  return build


def graft(*names, new=()):
  return {"torch_xla/core/model.py": (overlay.Graft("torch_xla.added", names, new),)}


def test_a_sound_overlay_is_laid(build):
  added = {
    "torch_xla/added.py": "def gather(value, dim=0, *, pin=False, extra=None):\n  pass\n\nold = gather\n",
    "torch_xla/core/group.py": GROUP,
  }
  out = build(added, ["torch_xla/core/group.py"], graft("gather", new=("old",)))
  assert (out / "torch_xla/core/group.py").read_text() == textwrap.dedent(GROUP)
  text = (out / "torch_xla/core/model.py").read_text()
  assert text.endswith("\nfrom torch_xla.added import gather, old  # noqa: E402\n")
  entry = build_api.Source(out).lookup("torch_xla.core.model", "gather")
  assert "extra" in {parameter.name for parameter in entry.parameters}


def test_an_earlier_tree_leaves_nothing_behind(build, tmp_path):
  write(tmp_path / "out", {"torch_xla/gone.py": ""})
  assert not (build() / "torch_xla/gone.py").exists()


@pytest.mark.parametrize(
  ("damage", "message"),
  [
    (
      lambda path: path.write_text("pass\n"),
      r"torch_xla/core/model.py: its digest is .*, stock's RECORD says",
    ),
    (lambda path: path.unlink(), r"torch_xla/core/model.py: stock's RECORD lists it and .* lacks it"),
  ],
)
def test_a_damaged_stock_file_is_named(build, site, damage, message):
  damage(site / "torch_xla/core/model.py")
  with pytest.raises(build_overlay.BuildError, match=message):
    build()


@pytest.mark.parametrize(
  ("version", "message"),
  [
    ("2.8.0", r"the build environment has 2\.8\.0, not 2\.9\.0"),
    ("2.9.0+ordinal.1", r"the build environment has 2\.9\.0\+ordinal\.1, this build itself"),
  ],
)
def test_another_stock_version_is_refused(tmp_path, version, message):
  with pytest.raises(build_overlay.BuildError, match=message):
    build_overlay.find_stock([str(install(tmp_path / "other", version))])


def test_a_missing_stock_wheel_is_refused(tmp_path):
  with pytest.raises(build_overlay.BuildError, match="no stock wheel in the build environment, wanted 2.9.0"):
    build_overlay.find_stock([str(tmp_path)])


@pytest.mark.parametrize(
  ("source", "message"),
  [
    ("", "model.gather.*the graft takes gather from torch_xla.added, which has no such name|takes gather"),
    ("def gather(value, dim=1, *, pin=False): pass", "model.gather: parameter 2 is dim=0 in stock and dim=1"),
    ("def gather(value, axis=0, *, pin=False): pass", "parameter 2 is dim=0 in stock and axis=0 in ours"),
    ("def gather(dim=0, value=1, *, pin=False): pass", "parameter 1 is value in stock and dim=0 in ours"),
    ("def gather(value, dim=0): pass", r"pin=False \(keyword only\) in stock is absent in ours"),
    ("def gather(value, dim=0, new=1, *, pin=False): pass", "parameter 3, new=1, is not in stock"),
    ("def gather(value, dim=0, *, pin=False, new): pass", "new parameter new has no default"),
    ("gather = partial(print)", "stock's is a function, ours a value; write a def"),
  ],
)
def test_a_graft_that_callers_of_stock_would_trip_over_is_refused(build, source, message):
  with pytest.raises(build_overlay.BuildError, match=message):
    build({"torch_xla/added.py": source + "\n"}, (), graft("gather"))


def test_a_graft_onto_a_name_that_stock_lacks_is_refused(build):
  with pytest.raises(build_overlay.BuildError, match="model.gathre: stock has no such name; correct the spell"):
    build({"torch_xla/added.py": "def gathre(): pass\n"}, (), graft("gathre"))


def test_a_new_name_that_stock_has_is_refused(build):
  with pytest.raises(build_overlay.BuildError, match="model.gather: overlay.py lists it as new and stock has it"):
    build({"torch_xla/added.py": "def gather(): pass\n"}, (), graft(new=("gather",)))


def test_a_graft_onto_a_file_that_stock_lacks_is_refused(build):
  grafts = {"torch_xla/core/modle.py": graft("gather")["torch_xla/core/model.py"]}
  with pytest.raises(build_overlay.BuildError, match="torch_xla/core/modle.py: .* stock has no such file"):
    build((), (), grafts)


@pytest.mark.parametrize(
  ("old", "new", "message"),
  [
    ("def size", "def length", "group.Group.size: stock has it and ours has not"),
    ("(self)", "(self, deep)", "group.Group.size: parameter 2, deep, is not in stock"),
    ("@property", "@staticmethod", "group.Group.name: stock's is a property and ours a staticmethod"),
    ("(Base)", "", "group.Group: stock's derives from Base and ours does not"),
    ("Group(", "Grp(", "group.Group: stock has it and ours has not"),
    (
      "_hidden",
      "_other",
      "group._hidden: stock's torch_xla.core.user uses it and our replaced file has it not",
    ),
  ],
)
def test_a_replaced_file_that_lacks_something_of_stock_is_refused(build, old, new, message):
  with pytest.raises(build_overlay.BuildError, match=message):
    build({"torch_xla/core/group.py": GROUP.replace(old, new)}, ["torch_xla/core/group.py"])


@pytest.mark.parametrize(
  ("ours", "replaced", "message"),
  [
    (
      {"torch_xla/core/group.py": GROUP},
      [],
      "core/group.py: stock has this file; list it in overlay.REPLACED",
    ),
    (
      {"torch_xla/x.py": ""},
      ["torch_xla/x.py"],
      "torch_xla/x.py: .*REPLACED lists it and stock has no such file",
    ),
    ({}, ["torch_xla/core/group.py"], "core/group.py: .*REPLACED lists it and the checkout has no such file"),
  ],
)
def test_the_replaced_list_and_the_files_must_agree(build, ours, replaced, message):
  with pytest.raises(build_overlay.BuildError, match=message):
    build(ours, replaced)


def test_a_default_given_by_a_constants_name_equals_the_constant(build):
  build({"torch_xla/added.py": "def scatter(kind='sum', *values): pass\n"}, (), graft("scatter"))


def test_the_build_command_stops_on_a_damaged_stock(stock_env, command, tmp_path):
  # The real stock wheel, but for its extension, which need not be read before the file that is at fault.
  site = tmp_path / "site"
  shutil.copytree(stock_env.site / "torch_xla", site / "torch_xla", ignore=shutil.ignore_patterns("*.pyc"))
  info = "torch_xla-2.9.0.dist-info"
  shutil.copytree(stock_env.site / info, site / info)
  extension = next(stock_env.site.glob("_XLAC*.so"))
  (site / extension.name).symlink_to(extension)
  target = site / "torch_xla" / "core" / "xla_model.py"
  target.write_text(target.read_text() + "\n")
  done = command(
    stock_env.python, "setup.py", "-q", "build_py", "--build-lib", tmp_path / "out", cwd=checkout.ROOT,
    env={"PYTHONPATH": str(site)},
  )  # fmt: skip
  assert done.returncode != 0
  assert "error: torch_xla/core/xla_model.py: its digest is" in done.stderr
  assert "Traceback" not in done.stderr
