"""Slices by name, and the options that ask libtpu to compile for them."""

import pytest

from torch_xla.aot import compiler, topologies


def test_cloud_names_are_what_a_slice_shows() -> None:
  assert topologies.topology("v3-8") == topologies.topology("v3:2x2")
  assert topologies.topology("v4-8").devices == 4
  assert topologies.topology("v4-8").create_options == {"chip_config_name": "megacore"}
  assert topologies.topology("v4:2x2x1").devices == 8
  assert topologies.topology("v4:2x2x1").create_options == {}


def test_an_unknown_name_lists_what_there_is() -> None:
  with pytest.raises(ValueError, match=r"'v3-9' is unknown; did you mean 'v3-8'\? choose one of v2-8, v3-8, .*v6e:2x4"):
    topologies.topology("v3-9")


def test_compile_options_are_a_protocol_buffer() -> None:
  flags = {"use_spmd_partitioning": True, "a": True, "b": 300, "c": "on"}
  # One replica on each of devices 4 and 5, then each flag by its kind: bool, int64, string.
  assignment = bytes.fromhex("0802 1001 1a04 0a02 0405")
  build = bytes.fromhex("08ffffffffffffffffff01 2002 2801 3001") + bytes([0x4A, len(assignment)]) + assignment
  overrides = bytes.fromhex("3a07 0a0161 12021001 3a08 0a0162 120318ac02 3a09 0a0163 12040a026f6e")
  assert compiler._compile_options([4, 5], flags) == bytes([0x1A, len(build)]) + build + overrides


def test_the_program_is_unwrapped() -> None:
  module = bytes(300)
  assert compiler._module(b"\x0a\xac\x02" + module + b"\x12\x01x") == module
  with pytest.raises(RuntimeError, match="use libtpu 0.0.21"):
    compiler._module(b"\x12\x01x")
