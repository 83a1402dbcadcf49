"""Pipeline schedules: what each stage holds, by the papers' formulas and by PyTorch's own orders."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actplan.basics.errors import InputError
from actplan.training.mesh import Mesh
from actplan.training.pipelining import (
    SCHEDULES,
    Action,
    PipelineSchedule,
    fullest,
    pipeline_schedule,
)

STAGES = (2, 3, 4, 8)


def held(name: str, pp: int, stage: int, microbatches: int | None = None, *, vpp: int = 1) -> set[tuple[int, int]]:
    """(waiting for their backward, waiting for their weights' gradients), the one that runs counted as waiting."""
    moments = SCHEDULES[name].holdings(Mesh(pp=pp, vpp=vpp), stage, microbatches)
    return {(sum(moment.kept) + 1, sum(moment.owed)) for moment in moments}


@pytest.mark.parametrize("pp", STAGES)
def test_1f1b_holds_as_many_as_stages_remain(pp: int) -> None:
    """Narayanan et al., arXiv 2104.04473, section 2.2.1."""
    for stage in range(pp):
        assert held("1f1b", pp, stage) == {(pp - stage, 0)}
        assert held("1f1b", pp, stage, 2) == {(min(2, pp - stage), 0)}


@pytest.mark.parametrize(("pp", "vpp"), [(2, 2), (4, 2), (4, 3), (8, 4)])
def test_interleaved_warms_up_as_megatron_core_does(pp: int, vpp: int) -> None:
    """get_pp_rank_microbatches: 2·(pp - stage - 1) + (vpp - 1)·pp forwards, and one more."""
    for stage in range(pp):
        most = max(kept for kept, _ in held("interleaved", pp, stage, vpp=vpp))
        assert most == 2 * (pp - stage - 1) + (vpp - 1) * pp + 1


@pytest.mark.parametrize("microbatches", [1, 7, 1 << 40])
def test_gpipe_holds_every_microbatch(microbatches: int) -> None:
    assert held("gpipe", 4, 0, microbatches) == held("gpipe", 4, 3, microbatches) == {(microbatches, 0)}


@pytest.mark.parametrize("pp", STAGES)
def test_zero_bubble_by_hand(pp: int) -> None:
    """Qi et al., arXiv 2401.10241, table 2, for worker i from 1: ZB-H1 holds (p - i + 1) activations and (i - 1)
    that wait for weights, ZB-H2 (2p - 2i + 1) and (2i - 2)."""
    for i in range(1, pp + 1):
        assert held("zb-h1", pp, i - 1) == {(pp - i + 1, i - 1)}
        assert held("zb-h2", pp, i - 1) == {(2 * pp - 2 * i + 1, 2 * i - 2)}


@pytest.mark.parametrize("pp", STAGES)
def test_zbv_holds_what_1f1b_holds_on_its_first_stage(pp: int) -> None:
    """Qi et al., section 6: 2·pp chunks of half a stage, on every stage."""
    for stage in range(pp):
        assert max(kept + owed for kept, owed in held("zbv", pp, stage, vpp=2)) == 2 * pp


@pytest.mark.parametrize("pp", STAGES)
def test_dualpipe_holds_one_microbatch_more_than_there_are_stages(pp: int) -> None:
    """DeepSeek-V3, arXiv 2412.19437, table 2: PP + 1 activations of a whole stage's size, folded in two chunks here:
    2·pp + 1 of half the size at most."""
    assert max(kept for kept, _ in held("dualpipev", pp, 0, vpp=2)) == 2 * pp + 1


def suited(schedule: PipelineSchedule) -> st.SearchStrategy[tuple[Mesh, int, int]]:
    chunks = st.just(schedule.chunks) if schedule.chunks else st.integers(2, 4)
    sizes = st.tuples(st.integers(2, 8), chunks, st.integers(0, 24), st.integers(0, 7))
    return sizes.map(lambda s: (Mesh(pp=s[0], vpp=s[1]), s[3] % s[0], max(1, schedule.fewest * s[0]) + s[2]))


@given(st.sampled_from(sorted(SCHEDULES)).flatmap(lambda n: st.tuples(st.just(n), suited(SCHEDULES[n]))))
def test_everything_runs_once_and_in_order(drawn: tuple[str, tuple[Mesh, int, int]]) -> None:
    name, (mesh, stage, microbatches) = drawn
    seen: set[Action] = set()
    counts: Counter[str] = Counter()
    for action in SCHEDULES[name].order(mesh, stage, microbatches):
        kind, chunk, i = action
        assert action not in seen
        seen.add(action)
        counts[kind] += 1
        if kind in ("B", "I"):
            assert Action("F", chunk, i) in seen
        if kind == "W":
            assert Action("I", chunk, i) in seen
        if kind != "W" and i:
            assert any(Action(same, chunk, i - 1) in seen for same in (("F",) if kind == "F" else ("B", "I")))
    assert counts["F"] == counts["B"] + counts["I"] == mesh.vpp * microbatches
    assert counts["I"] == counts["W"]


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@pytest.mark.parametrize("pp", STAGES)
def test_more_microbatches_hold_no_more(name: str, pp: int) -> None:
    schedule = SCHEDULES[name]
    mesh = Mesh(pp=pp, vpp=schedule.chunks or 3)
    for stage in range(pp):
        if schedule.steady is None:
            assert schedule.holdings(mesh, stage, 9) != schedule.holdings(mesh, stage, 8)
            continue
        enough = set(schedule.holdings(mesh, stage, None))
        for more in (5, 9, 16):
            assert enough == set(fullest(schedule.order(mesh, stage, more * pp), mesh.vpp))


def test_a_weight_s_gradient_right_behind_the_input_s_is_one_backward() -> None:
    order = [Action("F", 0, 0), Action("I", 0, 0), Action("W", 0, 0)]
    assert {(held.kind, held.owed) for held in fullest(order, 1)} == {("F", (0,)), ("B", (0,))}


@pytest.mark.parametrize(
    ("name", "mesh", "microbatches", "says"),
    [
        ("zbv", Mesh(pp=4), None, "2 chunks"),
        ("interleaved", Mesh(pp=4), None, "2 or more chunks"),
        ("zb-h1", Mesh(pp=4, vpp=2), None, "1 chunk"),
        ("1f1b", Mesh(), None, "one stage"),
        ("dualpipev", Mesh(pp=4, vpp=2), 7, "8 micro-batches"),
    ],
)
def test_what_does_not_suit_a_schedule(name: str, mesh: Mesh, microbatches: int | None, says: str) -> None:
    with pytest.raises(InputError, match=says):
        pipeline_schedule(name, mesh).check(mesh, microbatches)


def test_an_unknown_schedule_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'interleaved'"):
        pipeline_schedule("interleavd", Mesh(pp=2))


def test_by_default_stages_run_1f1b() -> None:
    assert [pipeline_schedule(None, Mesh(pp=p, vpp=v)).name for p, v in product((2, 4), (1, 2))] == [
        "1f1b",
        "interleaved",
    ] * 2
