"""The Bazel files against the tree: every test file has a target, every label a file."""

import re

import checkout

BUILD_FILES = sorted((checkout.ROOT / "test").rglob("BUILD.bazel"))


def test_every_folder_of_tests_makes_targets_of_its_files():
  folders = {path.parent for path in (checkout.ROOT / "test").rglob("test_*.py")}
  assert folders
  for folder in folders:
    text = (folder / "BUILD.bazel").read_text()
    assert 'load("//test:pytest.bzl", "pytest_tests")' in text, folder
    assert re.search(r"^pytest_tests\(", text, re.M), folder


def test_every_label_names_something_that_exists():
  files = [
    *BUILD_FILES,
    checkout.ROOT / "WORKSPACE",
    checkout.ROOT / "BUILD.bazel",
    checkout.ROOT / "test/pytest.bzl",
  ]
  labels = {label for path in files for label in re.findall(r'"//([\w/]*):([\w.]+)"', path.read_text())}
  assert ("test", "pytest.bzl") in labels
  for package, name in labels - {("test", "__subpackages__"), ("visibility", "public")}:
    build = (checkout.ROOT / package / "BUILD.bazel").read_text()
    assert f'"{name}"' in build, f"//{package}:{name}"


def test_the_files_that_the_root_names_exist():
  text = (checkout.ROOT / "BUILD.bazel").read_text()
  names = re.findall(r'"([\w.]+)"', text.partition("]) + [")[2])
  assert "pyproject.toml" in names
  assert all((checkout.ROOT / name).is_file() for name in names)
