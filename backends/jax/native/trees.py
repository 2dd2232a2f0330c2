"""The arrays of Flax's nnx layers as plain dicts."""

from typing import Any

from flax import nnx


def pure_dict(state: Any) -> dict[Any, Any]:
    """Return the result of `flax.nnx.state` as nested dicts: name -> array, or name -> dict.

    >>> layer = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    >>> {name: array.shape for name, array in pure_dict(nnx.state(layer)).items()}
    {'bias': (3,), 'kernel': (2, 3)}
    """
    if hasattr(nnx, "to_pure_dict"):
        return nnx.to_pure_dict(state)
    return state.to_pure_dict()  # before flax 0.10.4
