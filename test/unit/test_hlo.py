"""The HLO writer, checked against modules that torch_xla serializes itself."""

import pytest
import torch

import torch_xla
from torch_xla.collectives import hlo
from torch_xla.collectives.hlo import Array


@pytest.fixture(scope="module", autouse=True)
def on_cpu():
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("PJRT_DEVICE", "CPU")
    yield


def parsed(*tensors):
  """Returns the module that torch_xla writes for some tensors, read by our messages."""
  return hlo.messages()["Module"].FromString(torch_xla._XLAC._get_xla_tensors_hlo_proto(list(tensors)))


def instructions(module):
  return {each.opcode: each for computation in module.computations for each in computation.instructions}


def test_our_field_numbers_are_those_of_xla():
  device = torch_xla.device()
  x, y = torch.ones(2, 3).to(device), torch.ones(2, 3).to(device)
  module = parsed((x.t() @ y).to(torch.bfloat16), torch.where(x > y, x, y), x[1:2] + 1)
  found = instructions(module)
  assert {"parameter", "transpose", "dot", "convert", "compare", "select", "constant"} <= set(found)
  assert module.entry_computation_name == module.computations[-1].name
  assert module.entry_computation_id == module.computations[-1].id
  assert list(found["transpose"].dimensions) == [1, 0]
  assert found["compare"].comparison_direction == "GT"
  assert found["convert"].shape.element_type == hlo.PRIMITIVE_TYPES[torch.bfloat16]
  assert list(found["dot"].shape.dimensions) == [3, 3]
  assert list(found["dot"].shape.layout.minor_to_major) == [1, 0]
  assert len(found["select"].operand_ids) == 3
  assert list(found["constant"].literal.f32s) == [1.0]
  parameters = [i for i in module.computations[-1].instructions if i.opcode == "parameter"]
  assert sorted(p.parameter_number for p in parameters) == list(range(len(parameters)))
  assert len(module.host_program_shape.parameters) == len(parameters)


def test_our_collective_fields_are_those_of_xla():
  x = torch.ones(4, 3).to(torch_xla.device())
  token = torch_xla._XLAC._get_all_reduce_token(str(x.device))
  natives = [
    torch_xla._XLAC._xla_all_gather(x, 0, 1, [[0]], False, 5, True),
    torch_xla._XLAC._xla_reduce_scatter("sum", x, token, 1.0, 0, 1, [[0]], True, None, None)[0],
    torch_xla._XLAC._xla_collective_permute(x, token, [[0, 0]])[0],
  ]
  found = instructions(parsed(*natives))
  gather, scatter, permute = found["all-gather"], found["reduce-scatter"], found["collective-permute"]
  assert gather.channel_id == 5 and gather.use_global_device_ids
  assert [list(group.replica_ids) for group in gather.replica_groups] == [[0]]
  assert list(gather.dimensions) == [0]
  assert scatter.constrain_layout and len(scatter.called_computation_ids) == 1
  assert [(pair.source, pair.target) for pair in permute.source_target_pairs] == [(0, 0)]


def test_every_dtype_has_the_number_that_xla_gives_it():
  for dtype, number in hlo.PRIMITIVE_TYPES.items():
    if dtype in (torch.uint16, torch.uint32, torch.uint64):
      continue  # the bridge has no tensors of these
    tensor = torch.zeros(2, dtype=dtype).to(torch_xla.device())
    assert parsed(tensor.flip(0)).host_program_shape.parameters[0].element_type == number, dtype


def test_ids_are_unique_and_names_end_in_them():
  entry = hlo.Computation(hlo.Module("m"), "entry")
  body = hlo.Computation(entry.module, "body")
  scalar = Array(torch.float32, ())
  body.close(body.add("add", scalar, body.parameter(scalar), body.parameter(scalar)))
  entry.close(entry.full(Array(torch.float16, (2,)), 1.5))
  module = hlo.messages()["Module"].FromString(entry.module.serialize(entry))
  parts = [part for c in module.computations for part in (c, *c.instructions)]
  assert len({part.id for part in parts}) == len(parts)
  assert all(part.name.endswith(f".{part.id}") for part in parts)
  assert module.computations[-1].name == module.entry_computation_name


@pytest.mark.parametrize("dtype", list(hlo.PRIMITIVE_TYPES))
def test_constants_of_every_dtype_compile_and_hold_their_value(dtype):
  entry = hlo.Computation(hlo.Module("m"), "entry")
  entry.parameter(Array(torch.float32, (1,)))
  kind = Array(dtype, (2,))
  as_int = Array(torch.int32, (2,))
  value = entry.full(kind, 1)
  if dtype.is_complex:
    value = entry.add("real", Array(torch.float32, (2,)), value)
  entry.close(entry.add("convert", as_int, value))
  computation = torch_xla._XLAC._xla_op_computation_from_module_proto("m", entry.module.serialize(entry))
  x = torch.zeros(1).to(torch_xla.device())
  (result,) = torch_xla._XLAC._xla_user_computation("xla::test", [x], computation)
  assert result.cpu().tolist() == [1, 1]
