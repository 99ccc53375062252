"""The table: its form, and what each row writes."""

import re

import cases
import pytest
import torch

import torch_xla
from torch_xla.collectives import hlo, rules
from torch_xla.collectives.hlo import Array

ORDER = (0, 1, 4, 5, 6, 7, 2, 3)
WORLD = cases.with_replicas(ORDER)
RING = ((0, 1), (1, 2))
ARGS = {
  "all_gather": (0, None, True, None, False),
  "reduce_scatter": ("sum", 1.0, 0, 8, None, True, None, False),
  "all_reduce": ("sum", 1.0, None, True),
  "all_to_all": (0, 0, 8, None, True),
  "collective_permute": (RING, True),
  "collective_broadcast": (1, None, True),
}


def text(name, kinds, args, cpu=True, ordered=False):
  """Returns the HLO text of a call, after XLA has read and verified the module."""
  module = rules.emit(rules.TABLE[name].plan(WORLD, kinds, *args), cpu, ordered)
  return torch_xla._XLAC._xla_computation_text(torch_xla._XLAC._xla_op_computation_from_module_proto(name, module))


def of(dtype, *dims):
  return (Array(dtype, dims),)


F32 = of(torch.float32, 8, 2)


def test_every_row_has_arguments_here():
  assert set(ARGS) == set(rules.TABLE)


@pytest.mark.parametrize("name", ARGS)
def test_the_dual_of_the_dual_is_the_collective(name):
  dual = rules.TABLE[name].dual
  if dual is None:
    assert name == "collective_broadcast"
    return
  other, args = dual(*ARGS[name])
  assert rules.TABLE[other].dual(*args)[0] == name


@pytest.mark.parametrize(("name", "opcode"), [(n, n.replace("_", "-")) for n in ARGS if n != "collective_broadcast"])
def test_a_call_is_one_instruction_over_the_translated_group(name, opcode):
  lines = [line for line in text(name, F32, ARGS[name]).splitlines() if f" {opcode}(" in line]
  assert len(lines) == 1
  group = "source_target_pairs={{0,1},{1,4}}" if name == "collective_permute" else "replica_groups={{0,1,4,5,6,7,2,3}}"
  assert group in lines[0]


@pytest.mark.parametrize("name", ARGS)
@pytest.mark.parametrize("cpu", [True, False])
def test_the_module_is_the_same_bytes_each_time(name, cpu):
  plan = rules.TABLE[name].plan(WORLD, F32, *ARGS[name])
  assert rules.emit(plan, cpu) == rules.emit(plan, cpu)


@pytest.mark.parametrize("name", ARGS)
def test_a_pin_is_a_layout_constraint_on_its_side(name):
  pinned = text(name, F32, ARGS[name])
  bare = text(name, F32, tuple(False if arg is True else arg for arg in ARGS[name]))
  assert pinned.count('custom_call_target="LayoutConstraint"') == 1
  assert "LayoutConstraint" not in bare
  on_operand = re.search(r"custom-call\(f32\[8,2\]\{1,0\} %?parameter", pinned) is not None
  assert on_operand == (rules.TABLE[name].pin == "operand")
  assert "constrain_layout=true" not in re.sub(r".*custom-call.*", "", pinned)


@pytest.mark.parametrize("name", ["all_gather", "all_reduce", "all_to_all"])
def test_wide_types_are_not_pinned_on_a_tpu(name):
  # Its compiler refuses the custom call for them, and a constrained all-reduce beside an unconstrained one.
  written = text(name, of(torch.int64, 8, 2), ARGS[name], cpu=False)
  assert "LayoutConstraint" not in written and "constrain_layout" not in written


def test_a_tpu_gathers_ragged_lines_as_integers_by_themselves():
  kinds = of(torch.float32, 100) + of(torch.float32, 8, 128) + of(torch.float32, 128)
  gathers = [
    line for line in text("all_gather", kinds, ARGS["all_gather"], cpu=False).splitlines() if " all-gather(" in line
  ]
  assert sorted("u32[800]" in line for line in gathers) == [False, True]


@pytest.mark.parametrize("name", ["all_reduce", "collective_broadcast"])
def test_a_tpu_gets_no_groups_of_several_sizes(name):
  args = {"all_reduce": ("sum", 1.0), "collective_broadcast": (1,)}[name]
  written = text(name, F32, (*args, ((0,), tuple(range(1, 8))), False), cpu=False)
  assert " all-reduce(" not in written and "replica_groups={{0,1,2,3,4,5,6,7}}" in written


def test_a_tpu_gets_one_reduce_scatter_an_operand():
  written = text("reduce_scatter", F32 + F32, ARGS["reduce_scatter"], cpu=False)
  assert written.count(" reduce-scatter(") == 2


def test_what_a_backend_lacks_becomes_a_move_and_a_local_reduction():
  both = ("and", 1.0, None, False)
  assert " all-reduce(" in text("all_reduce", of(torch.int32, 2), both, cpu=False)
  assert " all-reduce(" in text("all_reduce", of(torch.bool, 2), both, cpu=True)
  on_cpu = text("all_reduce", of(torch.int32, 2), both, cpu=True)
  assert " all-gather(" in on_cpu and " reduce(" in on_cpu and " all-reduce(" not in on_cpu
  wide = text("reduce_scatter", of(torch.int64, 8), ("max", 1.0, 0, 8, None, False, None, False), cpu=False)
  assert " all-to-all(" in wide and " reduce(" in wide and " reduce-scatter(" not in wide


def test_a_list_is_one_instruction_a_dtype():
  kinds = F32 + of(torch.float32, 8) + of(torch.int32, 8)
  assert text("all_reduce", kinds, ARGS["all_reduce"]).count(" all-reduce(") == 2
  assert text("all_gather", kinds, ARGS["all_gather"], cpu=False).count(" all-gather(") == 3  # one line is ragged
  assert text("all_gather", F32 + F32, ARGS["all_gather"]).count(" all-gather(") == 1
  assert text("collective_permute", kinds, ARGS["collective_permute"]).count(" collective-permute(") == 3


def test_a_channel_is_written_where_xla_takes_it():
  args = (0, None, False, 3, True)
  assert "channel_id=3" in text("all_gather", F32, args)
  assert "use_global_device_ids=true" in text("all_gather", F32, args)
  lacking = ("max", 1.0, 0, 8, None, False, 3, True)
  assert "channel_id" not in text("reduce_scatter", of(torch.int64, 8), lacking, cpu=False)


def test_nothing_is_moved_for_empty_tensors():
  assert "all-gather" not in text("all_gather", of(torch.float32, 0, 3), ARGS["all_gather"]).split("\n", 1)[1]
  mixed = text("all_reduce", of(torch.float32, 0) + F32, ARGS["all_reduce"])
  assert mixed.count(" all-reduce(") == 1


@pytest.mark.parametrize("name", ARGS)
def test_strict_order_takes_and_gives_a_token(name):
  plan = rules.TABLE[name].plan(WORLD, F32, *ARGS[name])
  module = hlo.messages()["Module"].FromString(rules.emit(plan, False, ordered=True))
  token = module.host_program_shape.parameters[-1]
  assert (token.element_type, list(token.dimensions)) == (hlo.PRIMITIVE_TYPES[torch.int32], [1])
  assert len(module.host_program_shape.result.tuple_shapes) == 2
  assert " select(" in text(name, F32, ARGS[name], ordered=True)
