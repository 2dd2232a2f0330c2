"""Case: one entry of the suite. Its sizes, its mask, and the bugs that it catches; the table is in `table.py`.

A case is a recipe; `Case.build()` makes the Problem, the same one each time. Building refuses a
mask that excludes nothing or everything, and equal sizes, which would hide a transposition, unless the
case says why it has them: such a case would test nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem, split_inputs
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, RotaryInputs, SpecError, init_weights
from mha_core.call.masks import allowed_keys

Rng = np.random.Generator


@dataclass(frozen=True)
class Case:
    """A test case of `mha check`: a layer and one call of it, with random numbers unless there is a `source`.

    Args:
        id: its name, as `mha check --case` takes it.
        catches: in words, the mistake that an implementation makes if it fails the case.
        config: the layer.
        batch, query_len, key_len: B, Lq, Lk.
        past_len: Lp, how many of the Lk keys a decoding cache holds already.
        split: whether queries, keys and values are given split into heads (for a config without projections).
        mask: (random generator, case) -> the mask; None if there is none.
        positions: (random generator, case) -> rotary positions or tables. Default: positions are counted.
        training: whether it is a training step, for which a keep-mask of dropout is drawn.
        weight_scale, input_scale: factors on standard weights and on standard normal inputs.
        change: (random generator, problem made from the fields above) -> the final problem; None: no change.
        same_sizes: the reason why two of its sizes may be equal; "" if they may not.
        trivial_mask: the reason why the mask may exclude no key or all keys; "" if it may not.
        source: a function that returns the problem; None: the problem is drawn at random.
        expensive: whether the case is too slow for searches, which run many cases.
        as_users_run: whether frameworks that compile run the case, in float32, with their default compiler settings.
    """

    id: str
    catches: str
    config: AttentionConfig
    batch: int = 2
    query_len: int = 5
    key_len: int = 7
    past_len: int = 0
    split: bool = False
    mask: Callable[[Rng, Case], AttentionMask] | None = None
    positions: Callable[[Rng, Case], RotaryInputs] | None = None
    training: bool = False
    weight_scale: float = 1.0
    input_scale: float = 1.0
    change: Callable[[Rng, Problem], Problem] | None = None
    same_sizes: str = ""
    trivial_mask: str = ""
    source: Callable[[], Problem] | None = None
    expensive: bool = False
    as_users_run: bool = False

    @classmethod
    def of_problem(cls, id: str, catches: str, problem: Problem, why: str) -> Case:
        """Return a case of a given problem. `why` is the reason for both `same_sizes` and `trivial_mask`."""
        sizes = problem.sizes
        return cls(
            id,
            catches,
            problem.config,
            batch=sizes.batch,
            query_len=sizes.query_len,
            key_len=sizes.key_len,
            same_sizes=why,
            trivial_mask=why,
            source=partial(_itself, problem),
        )

    def build(self) -> Problem:
        """Return the Problem of this case. SpecError if sizes are equal or the mask is trivial without a reason."""
        self._check_sizes()
        problem = self._random_problem() if self.source is None else self.source()
        self._check_mask(problem)
        return problem

    def _random_problem(self) -> Problem:
        rng = np.random.default_rng(zlib.crc32(self.id.encode()))
        config = self.config
        weights = init_weights(config, seed=int(rng.integers(2**31)), bias_scale=1.0)
        shape = (self.batch, config.num_heads, self.query_len, self.key_len)
        new_len = self.key_len - self.past_len

        def drawn(*shape: int) -> NDArray:
            return self.input_scale * rng.normal(size=shape)

        inputs = AttentionInputs(
            queries=drawn(self.batch, self.query_len, config.query_dim),
            keys=drawn(self.batch, new_len, config.key_dim),
            values=drawn(self.batch, new_len, config.value_dim),
            mask=AttentionMask() if self.mask is None else self.mask(rng, self),
            dropout_keep=rng.random(shape) >= config.dropout if self.training else None,
            cotangent=rng.normal(size=(self.batch, self.query_len, config.output_dim)),
        )
        if self.past_len:
            _, *of_past = config.head_shapes
            past = [drawn(self.batch, heads, self.past_len, width) for heads, width in of_past]
            inputs = replace(inputs, past_keys=past[0], past_values=past[1])
        if self.split:
            inputs = split_inputs(inputs, config)
        if self.positions is not None:
            inputs = replace(inputs, rotary=self.positions(rng, self))
        scaled = {name: self.weight_scale * array for name, array in weights.items()}
        problem = Problem(config, scaled, inputs)
        return problem if self.change is None else self.change(rng, problem)

    def sizes(self) -> Mapping[str, int]:
        """Return symbol -> size, such as "Lk" -> 7."""
        config = self.config
        return {
            "B": self.batch,
            "Lq": self.query_len,
            "Lk": self.key_len,
            **({"Lp": self.past_len, "Lk - Lp": self.key_len - self.past_len} if self.past_len else {}),
            "H": config.num_heads,
            "d": config.head_dim,
            "dv": config.value_head_dim,
            **({} if config.rotary is None else {"r / 2": (config.rotary.width or 0) // 2}),
            "Dq": config.query_dim,
            "Dk": config.key_dim,
            "Dv": config.value_dim,
            "Do": config.output_dim,
        }

    def _check_sizes(self) -> None:
        if self.same_sizes:
            return
        for (name, size), (other, other_size) in combinations(self.sizes().items(), 2):
            if size == other_size:
                raise SpecError(
                    f"case {self.id!r}: {name} = {other} = {size} can hide a transposition; "
                    "make them differ, or say in same_sizes why they may not"
                )

    def _check_mask(self, problem: Problem) -> None:
        if self.trivial_mask:
            return
        for name, source in _excluding_sources(problem.inputs.mask):
            allowed = allowed_keys(source, problem.sizes, problem.config.num_heads)
            if allowed.all() or not allowed.any():
                excluded = "nothing" if allowed.all() else "everything"
                raise SpecError(
                    f"case {self.id!r}: {name} excludes {excluded}, so it tests nothing; "
                    "change it, or say in trivial_mask why it may"
                )


def _itself(problem: Problem) -> Problem:
    return problem


SOURCES: Mapping[str, tuple[str, ...]] = {
    "valid_lens": ("valid_lens",),
    "allowed": ("allowed",),
    "bias": ("bias",),
    "causal": ("causal", "query_offset"),
    "window": ("window", "query_offset"),
}
"""Source of a mask -> the fields that it is made of."""


def _excluding_sources(mask: AttentionMask) -> Iterator[tuple[str, AttentionMask]]:
    """(name, a mask with this source alone) of each source of the mask that excludes keys."""
    for name, parts in SOURCES.items():
        value = getattr(mask, name)
        is_there = value is not None and value is not False
        if is_there and (name != "bias" or np.isneginf(value).any()):
            yield name, AttentionMask(**{part: getattr(mask, part) for part in parts})
