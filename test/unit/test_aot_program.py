"""Reading compiled programs: groups in both forms, asynchronous pairs, what lies before a collective."""

import pytest

from torch_xla.aot import program

TEXT = """HloModule m, is_scheduled=true, entry_computation_layout={(f32[4,8]{1,0:T(4,128)})->f32[32,8]{1,0:T(8,128)}}

%sum (a: f32[], b: f32[]) -> f32[] {
  %b = f32[]{:T(256)} parameter(1)
  %a = f32[]{:T(256)} parameter(0)
  ROOT %add = f32[]{:T(256)} add(f32[]{:T(256)} %a, f32[]{:T(256)} %b)
}

%fused (p: f32[4,8]) -> f32[4,8] {
  %p = f32[4,8]{1,0:T(4,128)} parameter(0)
  ROOT %neg = f32[4,8]{1,0:T(4,128)} negate(f32[4,8]{1,0:T(4,128)} %p)
}

ENTRY %main.1 (x: f32[4,8], y: f32[4,8]) -> (f32[32,8], f32[4,8]) {
  %x = f32[4,8]{1,0:T(4,128)} parameter(0)
  %y = f32[4,8]{0,1:T(4,128)} parameter(1)
  %copy-start = (f32[4,8]{1,0:T(4,128)S(3)}, f32[4,8]{1,0:T(4,128)}, u32[]{:S(2)}) copy-start(f32[4,8]{1,0:T(4,128)} %x)
  %copy-done = f32[4,8]{1,0:T(4,128)S(3)} copy-done((f32[4,8]{1,0:T(4,128)S(3)}, f32[4,8]{1,0:T(4,128)}, u32[]{:S(2)}) %copy-start)
  %fusion = f32[4,8]{1,0:T(4,128)} fusion(f32[4,8]{0,1:T(4,128)} %y), kind=kLoop, calls=%fused
  %permute-start = (f32[4,8]{1,0:T(4,128)}, f32[4,8]{1,0:T(4,128)S(3)}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(f32[4,8]{1,0:T(4,128)} %fusion), channel_id=3, source_target_pairs={{0,1},{1,0}}
  %ag = f32[32,8]{1,0:T(8,128)} all-gather(f32[4,8]{1,0:T(4,128)S(3)} %copy-done), replica_groups={{0,2},{1,3}}, dimensions={0}
  %permute-done = f32[4,8]{1,0:T(4,128)S(3)} collective-permute-done((f32[4,8]{1,0:T(4,128)}, f32[4,8]{1,0:T(4,128)S(3)}, u32[]{:S(2)}, u32[]{:S(2)}) %permute-start)
  %ar = (f32[4,8]{1,0}, f32[4,8]{0,1}) all-reduce(f32[4,8]{1,0} %permute-done, f32[4,8]{0,1} %y), replica_groups=[2,2]<=[4], to_apply=%sum
  %one = f32[4,8]{1,0} get-tuple-element((f32[4,8]{1,0}, f32[4,8]{0,1}) %ar), index=0
  ROOT %tuple = (f32[32,8]{1,0:T(8,128)}, f32[4,8]{1,0}) tuple(f32[32,8]{1,0:T(8,128)} %ag, f32[4,8]{1,0} %one)
}
"""  # noqa: E501


def test_collectives_in_the_order_in_which_they_start() -> None:
  permute, gather, reduce = program.collectives(TEXT)
  assert [c.opcode for c in (permute, gather, reduce)] == ["collective-permute", "all-gather", "all-reduce"]
  assert [c.asynchronous for c in (permute, gather, reduce)] == [True, False, False]
  assert [c.channel_id for c in (permute, gather, reduce)] == [3, None, None]


def test_pairs_and_groups() -> None:
  permute, gather, reduce = program.collectives(TEXT)
  assert permute.pairs == ((0, 1), (1, 0))
  assert permute.replica_groups is None
  assert gather.replica_groups == ((0, 2), (1, 3))
  assert gather.pairs is None
  assert reduce.replica_groups == ((0, 1), (2, 3))


def test_shapes_with_layouts() -> None:
  permute, gather, reduce = program.collectives(TEXT)
  table = program.Shape("f32", (4, 8), (1, 0))
  assert permute.operands == permute.results == (table,)
  assert gather.operands == (table,)
  assert gather.results == (program.Shape("f32", (32, 8), (1, 0)),)
  assert reduce.results == (table, program.Shape("f32", (4, 8), (0, 1)))


def test_what_lies_before_a_collective() -> None:
  permute, gather, reduce = program.collectives(TEXT)
  assert (permute.parameters, permute.passes - program.MOVES) == ({1}, {"negate"})
  assert (gather.parameters, gather.passes) == ({0}, {"copy-start", "copy-done"})
  # Not through the permute.
  assert (reduce.parameters, reduce.passes) == ({1}, frozenset())


@pytest.mark.parametrize(
  ("text", "groups"),
  (
    ("replica_groups={{0,1,4},{5,6,7}}, dimensions={0}", ((0, 1, 4), (5, 6, 7))),
    ("replica_groups={}, to_apply=%sum", ()),
    ("replica_groups=[1,4]<=[4]", ((0, 1, 2, 3),)),
    ("replica_groups=[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
    ("replica_groups=[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
    ("replica_groups=[2,4]<=[2,2,2]T(1,0,2)", ((0, 1, 4, 5), (2, 3, 6, 7))),
    ("dimensions={0}", None),
  ),
)
def test_replica_groups_in_both_forms(text: str, groups: tuple | None) -> None:
  assert program.replica_groups(text) == groups
