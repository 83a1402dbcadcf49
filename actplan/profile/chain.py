"""Stages in a row: what a schedule is chosen for (`schedule`) and evaluated on (`evaluation`).

Sizes are integer bytes, costs integers in any one unit (FLOPs, ns). Stage `l` reads the boundary `x[l]` and
writes `x[l+1]`. The model and its formulae are those of Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova,
"Optimal checkpointing for heterogeneous chains" (hal-02352969), with PyTorch's lifetimes: a checkpoint keeps
its input and nothing else, is run again when its backward begins, and frees each stage's tensors as that
stage's backward ends. An inner boundary of a nested checkpoint lives only while its parent is rematerialised.

Left out: allocator rounding and fragmentation, the parameters, and what lives through the whole step.
"""

from __future__ import annotations

import msgspec

OUTSIDE_LAYERS = frozenset({"embedding", "final_norm", "norm", "head", "loss"})
"""Kinds of stage that are not layers: frameworks' layer-wise flags never checkpoint them."""


class Choice(msgspec.Struct, frozen=True):
    """One more way to run a stage than storing it: a per-op or an offload choice.

    Args:
        kept: bytes kept from the stage's forward to its backward, its boundary in included where it is kept.
        need: bytes needed at most, above what was resident before the stage, with `kept` counted in.
        cost: what the choice costs (recomputation, or time not hidden).
        label: a name; one label in several stages is one setting of a framework.
        backward: bytes needed during the stage's backward, to which the parameter gradients resident by then
            are added; `need` is then the forward's. Leave 0 where `need` says all.
    """

    kept: int
    need: int
    cost: int
    label: str = ""
    backward: int = 0


class Stage(msgspec.Struct, frozen=True):
    """One stage of a chain; a layer, or the embedding, the final norm, the head with the loss.

    Args:
        x: bytes of the boundary coming in.
        s: bytes autograd keeps of it when stored, without both boundaries.
        tf: transient bytes of the forward.
        tb: transient bytes of the backward, the gradient of its input included, that of its output not.
        g: bytes of parameter gradients that become resident when its backward runs.
        r: cost of running its forward again.
        skip: the part of `r` saved by early stopping where the stage is the last of a checkpointed segment.
        tf_last: transient bytes of its replay there, the output included, which early stopping never makes;
            None, or more than the output and `tf`, stands for those: the replay runs to its end.
        ahead: bytes beside its first forward that are gone before backward begins (what the model's own forward
            holds); a replay does not meet them.
        tb_again: transient bytes of its backward after a replay, whose tensors die one by one with their use;
            None stands for `tb`.
        td: transient bytes of a first forward that keeps nothing; None stands for `tf` and `ahead`.
        before_replay: bytes that its backward has made before it first needs what a replay makes, where it is the
            last of a checkpointed segment.
        lingers: bytes that a first forward which keeps nothing leaves until the forward ends (the casts of weights
            that autocast remembers).
        leaves: the same of a stored stage, parts of which keep nothing.
        pinned: bytes that its forward leaves until backward is through, whatever is checkpointed: in the chain they are
            part of what is alive throughout. A replay leaves as much again, until it ends.
        rebuilt: of these bytes, what a replay leaves until the stage's backward, since an op has saved it too.
        pins_input: whether its boundary in is kept to the end of backward as well, whatever is checkpointed; it is in
            `g` then. Inside a segment such a boundary is kept too.
        keeps_input: whether the stored stage keeps its boundary in (a frozen linear does not).
        checkpointable: whether it may be part of a checkpointed segment.
        menu: further choices, beside storing and checkpointing.
    """

    name: str
    kind: str
    x: int
    s: int
    tf: int
    tb: int
    g: int
    r: int
    skip: int = 0
    tf_last: int | None = None
    ahead: int = 0
    td: int | None = None
    tb_again: int | None = None
    before_replay: int = 0
    lingers: int = 0
    leaves: int = 0
    pinned: int = 0
    rebuilt: int = 0
    pins_input: bool = False
    keeps_input: bool = True
    checkpointable: bool = True
    menu: tuple[Choice, ...] = ()

    @property
    def kept(self) -> int:
        """a[l]: bytes kept from forward to backward when stored."""
        return self.s + (self.x if self.keeps_input else 0)

    @property
    def tb_replayed(self) -> int:
        """Transient bytes of the backward after a replay."""
        return self.tb if self.tb_again is None else self.tb_again

    @property
    def is_layer(self) -> bool:
        """Whether a framework's per-layer flags reach it."""
        return self.checkpointable and self.kind not in OUTSIDE_LAYERS


class Chain(msgspec.Struct, frozen=True):
    """Stages in forward order. `x_out` is the last boundary (0 after a loss).

    `cost_scale` is what one unit of the source's cost was multiplied by to become an integer. `copy`, where it
    is not 0, is what every checkpoint keeps in place of its boundary: a copy in another type, from which the
    boundary is made again. `offloaded`: checkpoints keep their boundaries in host memory. `dead`: of each stage the
    bytes that were alive beside the stages when backward began, and are not in its own: its transients are without
    them.
    """

    stages: tuple[Stage, ...]
    x_out: int = 0
    name: str = "chain"
    cost_scale: int = 1
    copy: int = 0
    offloaded: bool = False
    dead: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.stages)

    def boundary(self, index: int) -> int:
        """x[index] in bytes, `index` from 0 to the number of stages."""
        return self.stages[index].x if index < len(self.stages) else self.x_out

    def replay_end(self, index: int) -> int:
        """Transient bytes, output included, of a replay whose last stage is `index`."""
        whole, early = self.boundary(index + 1) + self.stages[index].tf, self.stages[index].tf_last
        return (whole if early is None else min(whole, early)) + self.stages[index].before_replay

    def held(self, index: int) -> int:
        """Bytes that a checkpoint beginning at stage `index` keeps."""
        return 0 if self.offloaded else self.copy or self.boundary(index)

    def held_inside(self, first: int, last: int) -> int:
        """Bytes of boundaries inside a segment that no checkpoint drops (`Stage.pins_input`)."""
        return sum(stage.x for stage in self.stages[first + 1 : last + 1] if stage.pins_input)

    def layers(self) -> tuple[int, ...]:
        """The stages that are layers, which is what frameworks count from 0."""
        return tuple(i for i, stage in enumerate(self.stages) if stage.is_layer)

    def gradients_after(self) -> list[int]:
        """G[l] for l = 0..n: bytes of parameter gradients resident once l's backward runs."""
        total = [0] * (len(self) + 1)
        for i in reversed(range(len(self))):
            total[i] = total[i + 1] + self.stages[i].g
        return total

    def forward_cost(self) -> int:
        """The cost of one whole forward: what recomputation is a fraction of."""
        return sum(stage.r for stage in self.stages)

    def in_source_unit(self, cost: int) -> float | int:
        """An integer cost in the unit of the file or model that it came from."""
        whole, rest = divmod(cost, self.cost_scale)
        return whole if rest == 0 else cost / self.cost_scale
