"""Layouts: convert the names, shapes and packing of other layers' weights to canonical weights and back, in NumPy."""

from collections.abc import Iterator, Mapping

from mha_core.errors import BackendError, SpecError, listed, meant, one_line
from mha_core.files.declared import declared
from mha_core.layouts.fused import FUSED_LAYOUTS
from mha_core.layouts.gpt2 import GPT2_LAYOUTS
from mha_core.layouts.kernels import KERNEL_LAYOUTS
from mha_core.layouts.layout import Layout, canonical_gradients, config_of
from mha_core.layouts.matrices import MATRIX_LAYOUTS
from mha_core.layouts.packed import PACKED_LAYOUTS

__all__ = ["LAYOUTS", "Layout", "canonical_gradients", "config_of", "get"]

ENTRY_POINT_GROUP = "mha.layouts"


class _Layouts(Mapping[str, Layout]):
    """This project's layouts by name, then those of other packages, which are imported when they are first needed."""

    def __init__(self, own: tuple[Layout, ...]) -> None:
        self._own = {layout.name: layout for layout in own}
        self._all: dict[str, Layout] | None = None

    def __getitem__(self, name: str) -> Layout:
        return self._own[name] if name in self._own else self._with_others()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._with_others())

    def __len__(self) -> int:
        return len(self._with_others())

    def _with_others(self) -> dict[str, Layout]:
        if self._all is None:
            self._all = {**self._own, **_of_other_packages(self._own)}
        return self._all


def _of_other_packages(own: Mapping[str, Layout]) -> dict[str, Layout]:
    """The layouts of the entry points "mha.layouts". BackendError for another object, or one with a name of ours."""
    found = {}
    for name, entry_point in declared(ENTRY_POINT_GROUP, "a layout").items():
        try:
            layout = entry_point.load()
        except Exception as error:  # whatever a broken package raises while it is imported
            raise BackendError(f"layout {name!r} cannot be imported: {one_line(error)}") from error
        if not isinstance(layout, Layout) or layout.name != name:
            raise BackendError(f"layout {name!r}: {entry_point.value} is not a Layout of that name. Got {layout!r}.")
        if name in own:
            raise BackendError(f"layout {name!r} is this project's; {entry_point.value} needs a name of its own")
        found[name] = layout
    return found


LAYOUTS: Mapping[str, Layout] = _Layouts(
    (*MATRIX_LAYOUTS, *PACKED_LAYOUTS, *GPT2_LAYOUTS, *FUSED_LAYOUTS, *KERNEL_LAYOUTS)
)
"""Every layout by name."""


def get(name: str) -> Layout:
    """Return the layout of this name.

    >>> get("pytorch")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: layout 'pytorch' is not known; did you mean torch? `mha convert --layouts` lists them
    """
    if name not in LAYOUTS:
        near = meant(name, LAYOUTS) or f" (known: {listed(list(LAYOUTS), 8)});"
        raise SpecError(f"layout {name!r} is not known{near} `mha convert --layouts` lists them")
    return LAYOUTS[name]
