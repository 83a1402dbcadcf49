"""Every order that torch.distributed.pipelining has too, action by action."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed.pipelining.schedules as theirs

from actplan.training.mesh import Mesh
from actplan.training.pipelining import SCHEDULES, Action, Kind

pytestmark = pytest.mark.torch

CLASSES = {
    "interleaved": theirs.ScheduleInterleaved1F1B,
    "interleaved-zb": theirs.ScheduleInterleavedZeroBubble,
    "zbv": theirs.ScheduleZBVZeroBubble,
    "dualpipev": theirs.ScheduleDualPipeV,
}
KINDS: dict[str, Kind] = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}


def their_order(name: str, mesh: Mesh, stage: int, microbatches: int) -> list[Action]:
    """What PyTorch's class makes for one rank, its constructor (which wants real stages) left out."""
    schedule = object.__new__(CLASSES[name])
    schedule.pp_group_size, schedule.n_local_stages = mesh.pp, mesh.vpp
    schedule.num_stages = schedule._num_stages = mesh.pp * mesh.vpp
    schedule._stages, schedule._n_microbatches = [None] * mesh.vpp, microbatches
    schedule.microbatches_per_round = microbatches // max(1, microbatches // mesh.pp)
    made = theirs._merge_bw(list(schedule._calculate_single_rank_operations(stage)))
    return [_ours(action, name, mesh) for one in made for action in (one.sub_actions or (one,))]


def _ours(action: Any, name: str, mesh: Mesh) -> Action:
    folded = SCHEDULES[name].folded
    chunk = action.stage_index >= mesh.pp if folded else action.stage_index // mesh.pp
    return Action(KINDS[action.computation_type.name], int(chunk), action.microbatch_index)


def whole_backwards(order: list[Action]) -> list[Action]:
    """I and its own W in one, as PyTorch merges them."""
    merged: list[Action] = []
    for action in order:
        if merged and action.kind == "W" and merged[-1] == action._replace(kind="I"):
            merged[-1] = action._replace(kind="B")
        else:
            merged.append(action)
    return merged


@pytest.mark.parametrize("pp", [2, 3, 4, 8])
@pytest.mark.parametrize("name", sorted(CLASSES))
def test_the_same_actions_in_the_same_order(name: str, pp: int) -> None:
    for vpp in (2,) if SCHEDULES[name].folded else (2, 3):
        mesh = Mesh(pp=pp, vpp=vpp)
        for rounds in (2, 4, 5):
            for stage in range(pp):
                ours = whole_backwards(list(SCHEDULES[name].order(mesh, stage, rounds * pp)))
                assert ours == their_order(name, mesh, stage, rounds * pp)
