"""Names of earlier releases: they exist again, and say what they no longer do."""

import pytest
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

import torch_xla
from torch_xla.experimental import pjrt

NAMES = """addressable_device_count broadcast_master_param device_attributes device_type global_device_attributes
global_device_count global_ordinal initialize_multiprocess initialize_singleprocess local_device_count local_ordinal
local_process_count process_count process_index rendezvous requires_pjrt run_multiprocess set_device_type
set_global_ordinal set_local_ordinal spawn spawn_threads using_pjrt world_size xla_device""".split()


def test_the_names_that_programs_for_earlier_releases_use():
  assert sorted(NAMES) == pjrt.__all__
  assert all(callable(getattr(pjrt, name)) for name in NAMES)
  with pytest.raises(AttributeError, match="has no 'global_cardinal'; look in torch_xla.runtime"):
    pjrt.global_cardinal  # noqa: B018


def test_ranks_outside_of_a_pod_take_the_default():
  assert (pjrt.global_ordinal(), pjrt.global_ordinal(-1), pjrt.local_ordinal(-2)) == (0, -1, -2)
  assert (xm.get_ordinal(-1), xm.get_ordinal(), xm.xrt_world_size(0), xm.xrt_world_size()) == (-1, 0, 0, 1)
  assert pjrt.world_size() == xr.world_size() == 1


def test_ordinals_cannot_be_set():
  pjrt.set_global_ordinal(0)
  with pytest.raises(ValueError, match=r"set_global_ordinal\(3\): this rank is 0, as launched"):
    pjrt.set_global_ordinal(3)
  with pytest.raises(ValueError, match=r"set_local_ordinal\(1\): this rank is 0"):
    pjrt.set_local_ordinal(1)


def test_using_and_requiring_pjrt(monkeypatch):
  @pjrt.requires_pjrt
  def answer(value):
    return value

  monkeypatch.setenv("PJRT_DEVICE", "CPU")
  assert pjrt.using_pjrt() and xr.using_pjrt()
  assert answer(42) == 42
  monkeypatch.delenv("PJRT_DEVICE")
  assert not pjrt.using_pjrt()
  with pytest.raises(NotImplementedError, match="answer: no PJRT device is selected; set PJRT_DEVICE"):
    answer(42)


def test_a_device_of_another_kind_is_refused(monkeypatch):
  monkeypatch.setenv("PJRT_DEVICE", "CPU")
  with pytest.raises(ValueError, match="devkind='TPU', but PJRT_DEVICE=CPU"):
    pjrt.xla_device(devkind="TPU")


def test_grafted_names_are_ours():
  from torch_xla._internal import pjrt as launcher
  from torch_xla.pod import identity, replication

  assert torch_xla.launch is launcher.launch
  assert xr.world_size is identity.world_size
  assert xr.global_ordinal is identity.global_ordinal
  assert xr.local_ordinal is identity.local_ordinal
  assert xm.set_replication is replication.set_replication
  assert xm.get_ordinal is replication.get_ordinal
