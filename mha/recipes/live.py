"""Live modules of PyTorch: record their calls, and run another implementation in their place.

PyTorch is imported when one of these functions is called, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from mha.recipes.torch_arrays import dtype_name, to_array
from mha_core import AttentionInputs, SpecError, Trace
from mha_core.backend import Run
from mha_core.errors import one_line
from mha_core.heads import split_heads

if TYPE_CHECKING:
    from mha.recipes.site import Site

Result = TypeVar("Result")


def record(sites: Iterable[Site], call: Callable[[], Result]) -> tuple[Result, dict[str, list[Problem]]]:
    """Run `call`, and record every call of these layers in it.

    Returns:
        The result of `call`, and the name of each layer -> its calls, in order. `recorded` of each Problem
        holds the stages that the module itself computed: heads and output, and weights where it returns them.

    Raises:
        SpecError: a layer was called in a way that has no translation.
    """
    problems: dict[str, list[Problem]] = {}
    with ExitStack() as hooks:
        for site in sites:
            problems[site.name] = []
            hooks.enter_context(watched(site.still(), problems[site.name].append))
        return call(), problems


@contextmanager
def watched(
    site: Site, found: Callable[[Problem], None], refused: Callable[[SpecError], None] | None = None
) -> Iterator[None]:
    """Return a context in which `found` is told of each call of the layer, and `refused` why one can't be read.

    Without `refused`, the call itself raises that SpecError.
    """
    calls: list[dict[str, Any]] = []

    @contextmanager
    def reading() -> Iterator[None]:
        try:
            with spec_errors(site):
                yield
        except SpecError as error:
            calls.clear()
            if refused is None:
                raise
            refused(error)

    def called(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with reading():
            now = site.still()
            calls.append({"inputs": now.inputs(args, kwargs), "site": now})

    def attended(_module: Any, _args: Any, answer: tuple[Any, ...]) -> None:
        with reading():
            if calls and answer[1] is not None:
                calls[-1]["weights"] = to_array(answer[1])
            if calls and "output" in calls[-1]:
                finish()

    def projected(_module: Any, args: tuple[Any, ...], output: Any) -> None:
        if not calls:
            return  # the call can't be read
        with reading():
            dtype_of(site, args[0], output)
            calls[-1]["heads"] = split_heads(to_array(args[0]), calls[-1]["site"].config.num_heads)
            calls[-1]["output"] = to_array(output)
            if site.out_is_separate:  # otherwise the weights are still to come
                finish()

    def finish() -> None:
        seen = calls.pop()
        now = seen.pop("site")
        found(Problem(now.config, now.weights, seen.pop("inputs"), seen))

    handles = (
        site.core.register_forward_pre_hook(called, with_kwargs=True),
        site.core.register_forward_hook(attended),
        site.out.register_forward_hook(projected),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def dtype_of(site: Site, *tensors: Any) -> str:
    """Return the one dtype, by name, of a layer's parameters and of these tensors. SpecError if there are several."""
    from mha_core.capture import one_dtype

    layout = site.recipe.layout(site.module)
    parameters = dict(site.module.named_parameters())
    own = [parameters[name] for name in (*layout.required, *layout.optional) if name in parameters]
    return one_dtype(dtype_name(tensor) for tensor in (*own, *tensors))


@contextmanager
def spec_errors(site: Site) -> Iterator[None]:
    """Return a context that turns any exception while a call is read into a SpecError that names the layer."""
    try:
        yield
    except Exception as error:  # of a module that is not what its class promises
        reason = error if isinstance(error, SpecError) else one_line(error)
        raise SpecError(f"a call of {site.name or type(site.module).__name__} can't be read: {reason}") from error


@contextmanager
def replaced(site: Site, run: Run) -> Iterator[None]:
    """Return a context in which the layer computes by `run`, on NumPy arrays made from its tensors; without gradients.

    The module itself still does everything after the output projection: dropout, residual, normalisation.
    """
    import torch

    def tensor(array: NDArray, like: Any) -> Any:
        return torch.from_numpy(np.array(array)).to(device=like.device, dtype=like.dtype)

    def forward(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        with spec_errors(site):
            inputs = site.inputs(args, kwargs)
        trace = run(inputs)
        like = args[0] if args else kwargs["hidden_states"]
        if kwargs.get(site.recipe.cache) is not None:
            keep(kwargs[site.recipe.cache], trace, inputs, like)
        assert trace.output is not None
        weights = None if trace.weights is None else tensor(trace.weights, like)
        return tensor(trace.output, like), weights

    def keep(cache: Any, trace: Trace, inputs: AttentionInputs, like: Any) -> None:
        """Put the new keys and values of a call into its cache, as the module itself does."""
        if trace.keys is None or trace.values is None:
            raise SpecError("what runs in place of a layer with a cache must show its keys and values")
        past_len = 0 if inputs.past_keys is None else inputs.past_keys.shape[2]
        config = site.config
        times = config.num_heads // config.num_kv_heads if site.recipe.repeated(site.core) else 1
        new = (np.repeat(x[:, :, past_len:], times, axis=1) for x in (trace.keys, trace.values))
        cache.update(*(tensor(x, like) for x in new), getattr(site.core, site.recipe.place))

    with ExitStack() as stack:
        stack.enter_context(_instead(site.core, forward))
        if site.out_is_separate:
            stack.enter_context(_instead(site.out, lambda projected: projected))
        yield


@contextmanager
def _instead(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """A context in which `module` runs another forward; its own is restored afterwards."""
    own = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own
