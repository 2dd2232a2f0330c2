"""Live modules of PyTorch: record their calls.

PyTorch is imported when one of these functions is called, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from conformance.cases.problem import Problem
from mha.recipes.torch_arrays import dtype_name, to_array
from mha_core import SpecError
from mha_core.errors import one_line
from mha_core.heads import split_heads

if TYPE_CHECKING:
    from mha.recipes.site import Site

Result = TypeVar("Result")


def record(sites: Iterable[Site], call: Callable[[], Result]) -> tuple[Result, dict[str, list[Problem]]]:
    """Run the function `call`. Record each call of a layer in `sites` during this run.

    Returns:
        (result of `call`, name of a layer -> its calls, in order). The `recorded` of each Problem holds the arrays
        "heads" and "output" of the module, and "weights" if the module returns them.

    Raises:
        SpecError: a layer got an argument that a Problem can't express.
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
    """Return a context that runs `found(problem)` after each call of a layer.

    If a call can't be read, `refused` gets the SpecError that says why. Without `refused`, the SpecError is raised.
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
    """Return the name of the dtype that a layer's parameters and `tensors` share. SpecError if they have several."""
    from mha_core.capture import one_dtype

    layout = site.recipe.layout(site.module)
    parameters = dict(site.module.named_parameters())
    own = [parameters[name] for name in (*layout.required, *layout.optional) if name in parameters]
    return one_dtype(dtype_name(tensor) for tensor in (*own, *tensors))


@contextmanager
def spec_errors(site: Site) -> Iterator[None]:
    """Return a context that turns any exception inside it into a SpecError that names the layer."""
    try:
        yield
    except Exception as error:  # of a module that is not what its class promises
        reason = error if isinstance(error, SpecError) else one_line(error)
        raise SpecError(f"a call of {site.name or type(site.module).__name__} can't be read: {reason}") from error
