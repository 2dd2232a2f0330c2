"""Run attention layers of live models on probes, to check that they compute what their recipe reads.

See `mha_core.live.probe`.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.recipes.site import Site
from mha.recipes.torch_arrays import to_array
from mha_core import AttentionInputs, SpecError
from mha_core.call.masks import allowed_keys
from mha_core.heads import split_heads
from mha_core.live.probe import Reading, Words, cannot_run, check_reading


def check_site(site: Site) -> None:
    """Run a layer on small inputs. SpecError if it does not compute attention as its recipe describes it.

    The output of a BERT block is that of the output projection, before residual and normalisation. Masks are given as
    floats, which "eager" and "sdpa" read alike.
    """
    import torch

    from backends.torch.native.live_probe import as_found, check_runs, tensors

    site = site.still()  # its parameters are read once, and not for every probe
    recipe, module, core, config = site.recipe, site.module, site.core, site.config
    parameters = inspect.signature(type(core).forward).parameters
    cross = bool(getattr(core, "is_cross_attention", recipe.other_states in parameters))
    mask_name = recipe.other_mask if cross else "attention_mask"
    masks = ("valid_lens", "allowed", "causal", "bias") if mask_name in parameters else ()

    required = {
        name: None
        for name, one in parameters.items()
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    }
    del required["self"]

    def as_tensors(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(tensors(module, *value))
        return (
            tensors(module, value)[0] if value.dtype.kind == "f" else torch.from_numpy(value).to(site.out.weight.device)
        )

    def call(inputs: AttentionInputs) -> dict[str, Any]:
        queries, keys = tensors(module, inputs.queries, inputs.keys)
        given: dict[str, Any] = {**required, "hidden_states": queries}
        # A layer that attends to others' states is told them also where they are its own.
        if cross:
            given[recipe.other_states] = keys
        given.update({name: as_tensors(value) for name, value in site.tables(inputs).items()})
        if inputs.mask.has_sources or recipe.needs_mask:
            given[mask_name] = tensors(module, _as_float(inputs, config.num_heads, site))[0]
        return given

    def run(inputs: AttentionInputs) -> Mapping[str, NDArray]:
        result, weights = core(**call(inputs))[:2]
        shown = {} if weights is None else {"weights": to_array(weights)}
        if site.out_is_separate:
            shown["heads"] = split_heads(to_array(result), config.num_heads)
            result = site.out(result)
        return {**shown, "output": to_array(result)}

    def meant(inputs: AttentionInputs) -> AttentionInputs:
        return site.inputs((), call(inputs))

    name = f"{type(module).__name__} at {site.name}" if site.name else type(module).__name__
    try:
        _ = site.implementation
    except SpecError as error:
        raise cannot_run(name, str(error)) from error
    words = Words(cross=cross, values=False, masks=masks, positions=recipe.positions(core))
    reading = Reading(name, config, site.weights, run, check_runs(module), words, meant)
    with as_found(module):
        check_reading(reading)


def _as_float(inputs: AttentionInputs, num_heads: int, site: Site) -> NDArray:
    """The mask as models hand it to their layers: 0 or a bias, and the lowest number of the dtype for excluded keys."""
    import torch

    allowed = allowed_keys(inputs.mask, inputs.check(site.config), num_heads)[:, :1]
    bias = np.zeros(allowed.shape) if inputs.mask.bias is None else inputs.mask.bias
    return np.where(allowed, bias, torch.finfo(site.out.weight.dtype).min)
