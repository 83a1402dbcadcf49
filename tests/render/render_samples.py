"""Reports made up for the renderers: their numbers need not agree, only survive."""

from __future__ import annotations

from hypothesis import strategies as st

from actplan import report as r

sizes = st.integers(0, 2**60)
ratios = st.floats(0, 1e9, allow_nan=False)
words = st.text(min_size=1, max_size=6)


@st.composite
def accountings(draw: st.DrawFn) -> r.Accounting:
    boundary, stored, working = draw(sizes), draw(sizes), draw(sizes)
    return r.Accounting(
        boundary_bytes=boundary,
        stored_bytes=stored,
        working_bytes=working,
        peak_bytes=boundary + stored + working,
        reduction_bytes=draw(st.integers(-(2**60), 2**60)),
        reduction_ratio=draw(ratios),
    )


segmentations = st.builds(
    r.Segmentation,
    policy=words,
    num_segments=st.integers(0, 10**6),
    recompute_flops_fraction=st.floats(0, 1),
    textbook=accountings(),
    autograd=accountings(),
)
models = st.builds(
    r.ModelInfo,
    name=words,
    title=words,
    source=words,
    num_layers=st.integers(1, 10**6),
    pattern=words,
    num_parameters=st.integers(1, 10**15),
    layer_kinds=st.dictionaries(words, st.integers(1, 10**6), min_size=1, max_size=3),
)
runs = st.builds(
    r.RunInfo,
    sequence_length=st.integers(1, 2**40),
    micro_batch_size=st.integers(1, 2**40),
    dtype=st.sampled_from(["bf16", "fp32"]),
    stack=st.just("transformers"),
    attention=st.sampled_from(["eager", "sdpa"]),
    linear_attention=st.just("fla"),
    kernels=st.just("hf"),
    loss=st.sampled_from(["naive", "none"]),
    checkpoint=st.sampled_from(["none", "layer"]),
    checkpoint_dtype=st.sampled_from(["bf16", "fp32"]),
)
estimates = st.builds(
    r.Estimates,
    residual=st.builds(r.Residual, saved_bytes=sizes),
    textbook=st.builds(r.Textbook, saved_bytes=sizes, bytes_per_token_per_layer=sizes, ratio_to_residual=ratios),
    autograd=st.builds(
        r.Autograd,
        saved_bytes=sizes,
        layer_saved_bytes=st.lists(sizes, max_size=5).map(tuple),
        outside_layers=st.builds(r.OutsideLayers, embedding=sizes, final_norm=sizes, head=sizes, loss=sizes),
        ratio_to_residual=ratios,
        end_forward_bytes=sizes,
        peak_forward_bytes=sizes,
        peak_backward_bytes=sizes,
    ),
    checkpointed=st.builds(r.Checkpointed, policy=words, textbook=accountings(), autograd=accountings()),
)
shapes = st.lists(st.integers(0, 2**40), max_size=4).map(tuple)
ledger_rows = st.builds(
    r.LedgerRow,
    module=st.sampled_from(["model.layers.0.mlp", "model.layers.1.mlp", "loss", "model.layers.7"]) | words,
    name=words,
    shape=shapes,
    dtype=words,
    bytes=sizes,
    count=st.integers(1, 10**6),
    reason=words,
)
peak_rows = st.builds(
    r.PeakRow,
    module=st.sampled_from(["model.layers.0.mlp", "model.layers.1.mlp", "loss"]),
    name=words,
    shape=shapes,
    dtype=words,
    bytes=sizes,
    count=st.integers(1, 10**6),
)
peaks = st.builds(
    r.Peak,
    phase=st.sampled_from(["forward", "backward"]),
    stage=words,
    bytes=sizes,
    alive=st.lists(peak_rows, max_size=4).map(tuple),
)
notes = st.lists(st.builds(r.Note, code=words, message=words), max_size=3).map(tuple)
reports = st.builds(
    r.Report,
    model=models,
    run=runs,
    estimates=estimates,
    segmentations=st.lists(segmentations, min_size=1, max_size=2).map(tuple),
    peak=peaks,
    ledger=st.lists(ledger_rows, max_size=4).map(tuple),
    notes=notes,
)
bars = st.lists(st.tuples(st.sampled_from(["full_attention", "gated_deltanet"]), words, sizes), max_size=6)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "sequence_length": st.integers(1, 2**40),
            "checkpoint": words,
            "peak_bytes": sizes,
            "recompute_flops_fraction": st.floats(0, 1),
            "held": st.booleans(),
        }
    ),
    max_size=4,
)
