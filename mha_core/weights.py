"""Canonical weights: names, shapes, seeded initialisation, validation, and safetensors files.

Every array is (out, in), row-major, heads outermost: row h * d + i of `q_proj.weight` makes
element i of head h. Names are those of a framework's Linear layers, so a PyTorch state_dict of
ours needs no renaming.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core.config import PROJECTIONS, AttentionConfig
from mha_core.dtypes import round_to
from mha_core.errors import SpecError
from mha_core.files.outside import parse_json_object
from mha_core.files.tensorfile import read_tensors, to_sealed
from mha_core.files.writing import write_whole
from mha_core.parts.query_key_norm import NORMS

Weights = Mapping[str, NDArray]
"""Canonical name -> array."""

NAMES = (
    *(f"{projection}.{kind}" for projection in PROJECTIONS for kind in ("weight", "bias")),
    *(f"{norm}.{kind}" for norm in NORMS for kind in ("weight", "bias")),
    *("score.query.weight", "score.key.weight", "score.vector"),
)
"""Every canonical name there is; `weight_shapes` has those of one config."""

METADATA_KEY = "mha_config"
"""Metadata key of a safetensors file under which the config stands, as JSON."""

STANDING_KEY = "mha_standing"
"""Metadata key of how certain it is that a layer computes what its original does, in a file that `mha convert` wrote.

Beside the config of a layer with a prefix, ":PREFIX" follows in both keys.
"""


def weight_shapes(config: AttentionConfig) -> dict[str, tuple[int, ...]]:
    """Return the canonical names of the weights that `config` has, in order, with their shapes.

    >>> weight_shapes(AttentionConfig(6, 2, num_kv_heads=1, bias={"q_proj": True}))
    {'q_proj.weight': (6, 6), 'q_proj.bias': (6,), 'k_proj.weight': (3, 6), \
'v_proj.weight': (3, 6), 'out_proj.weight': (6, 6)}
    """
    rows_and_columns = {
        "q_proj": (config.num_heads * config.head_dim, config.query_dim),
        "k_proj": (config.num_kv_heads * config.head_dim, config.key_dim),
        "v_proj": (config.num_kv_heads * config.value_head_dim, config.value_dim),
        "out_proj": (config.output_dim, config.num_heads * config.value_head_dim),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name in PROJECTIONS if config.projections else ():
        shapes[f"{name}.weight"] = rows_and_columns[name]
        if getattr(config.bias, name):
            shapes[f"{name}.bias"] = rows_and_columns[name][:1]
    shapes |= config.norm_shapes
    if config.score_dim is not None:
        shapes["score.query.weight"] = (config.score_dim, config.head_dim)
        shapes["score.key.weight"] = (config.score_dim, config.head_dim)
        shapes["score.vector"] = (config.score_dim,)
    return shapes


def init_weights(config: AttentionConfig, seed: int, *, bias_scale: float = 0.0) -> Weights:
    """Return random float64 weights; equal configs and seeds give equal weights.

    Matrices are uniform in +-sqrt(6 / (in + out)) (Glorot & Bengio 2010, equation 16), and so is the additive score's
    vector, as a matrix with one row. Biases are `bias_scale` times standard normal numbers, and weights of a query-key
    norm are 1 plus such numbers. Layers start with `bias_scale` 0; other numbers are for tests.

    >>> weights = init_weights(AttentionConfig(6, 2), seed=0)
    >>> weights["q_proj.weight"].shape, weights["q_proj.weight"].flags.writeable
    ((6, 6), False)
    """
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in weight_shapes(config).items():
        if name.endswith(".bias"):
            weights[name] = bias_scale * rng.normal(size=shape)
        elif config.query_key_norm is not None and name.startswith(NORMS):
            weights[name] = config.query_key_norm.start + bias_scale * rng.normal(size=shape)
        else:
            out_size, in_size = shape if len(shape) == 2 else (1, *shape)
            limit = np.sqrt(6.0 / (in_size + out_size))
            weights[name] = rng.uniform(-limit, limit, size=shape)
    return check_weights(config, weights)


def check_weights(config: AttentionConfig, weights: Mapping[str, NDArray]) -> Weights:
    """Return checked weights in canonical order, as read-only views; SpecError if they are wrong.

    Every array of `weight_shapes(config)` must be there, and no other; floating-point (float64,
    float32 or float16), of the right shape, and finite. CheckedWeights of this config are not checked again.
    """
    if isinstance(weights, CheckedWeights) and weights.fit(config):
        return dict(weights)
    checked = {}
    for name, shape in _shapes_of(config, weights).items():
        array = _of_form(name, weights[name], shape)
        _check_finite(name, array)
        checked[name] = array.view()
        checked[name].flags.writeable = False
    return checked


def _shapes_of(config: AttentionConfig, weights: Mapping[str, NDArray]) -> dict[str, tuple[int, ...]]:
    """The shape that each array must have; SpecError if one is missing, or not of this config."""
    shapes = weight_shapes(config)
    missing = [name for name in shapes if name not in weights]
    if missing:
        raise SpecError(f"weights lack {missing[0]!r}, which this config needs (it needs: {', '.join(shapes)})")
    extra = [name for name in weights if name not in shapes]
    if extra:
        raise SpecError(f"weights hold {extra[0]!r}, which this config does not have (it has: {', '.join(shapes)})")
    return shapes


_FLOATING = frozenset(map(np.dtype, ("float64", "float32", "float16")))


def _of_form(name: str, given: NDArray, shape: tuple[int, ...]) -> NDArray:
    array = np.asarray(given)
    if array.shape != shape:
        raise SpecError(f"{name} must have shape {shape}. Got {array.shape}.")
    if array.dtype not in _FLOATING:
        raise SpecError(f"{name} must be float64, float32 or float16. Got {array.dtype}.")
    return array


def _check_finite(name: str, array: NDArray) -> None:
    if not np.isfinite(array).all():
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise SpecError(f"{name} must be finite. Got {array[index]} at {index}.")


class CheckedWeights(Mapping[str, NDArray]):
    """A mapping of weights that were checked for `config`; its arrays are read-only, so that they stay valid."""

    def __init__(self, config: AttentionConfig, arrays: Mapping[str, NDArray]) -> None:
        self.config = config
        self._arrays = dict(arrays)

    def fit(self, config: AttentionConfig) -> bool:
        """Return whether `config` has weights of the same names and shapes as these."""
        return self.config == config or weight_shapes(self.config) == weight_shapes(config)

    def __getitem__(self, name: str) -> NDArray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._arrays,)  # arrays out of a pickle can be written: they are to be checked again


def rounded_weights(config: AttentionConfig, weights: Mapping[str, NDArray], dtype: str) -> CheckedWeights:
    """Return copies of the weights rounded to `dtype`, in canonical order; `check_weights` does not check them again.

    Raises:
        SpecError: as `check_weights` for the weights, or for a number that is infinite in `dtype`.

    >>> config = AttentionConfig(6, 2)
    >>> weights = rounded_weights(config, init_weights(config, seed=0), "float32")
    >>> weights["q_proj.weight"].dtype, weights["q_proj.weight"].flags.writeable
    (dtype('float32'), False)
    """
    rounded = {}
    try:
        for name, shape in _shapes_of(config, weights).items():
            rounded[name] = round_to(_of_form(name, weights[name], shape), dtype)
            _check_finite(name, rounded[name])
            rounded[name].flags.writeable = False
    except SpecError:
        check_weights(config, weights)  # of what was given, if that is wrong already
        raise
    return CheckedWeights(config, rounded)


def common_dtype(weights: Weights) -> str:
    """Return the dtype that all the arrays have; "float32" if there are none.

    Raises SpecError if the dtypes differ: the caller then has to choose one.
    """
    dtypes = sorted({str(array.dtype) for array in weights.values()})
    if len(dtypes) > 1:
        raise SpecError(f"weights must share one dtype unless dtype is given. Got {', '.join(dtypes)}.")
    return dtypes[0] if dtypes else "float32"


def save_weights(path: str | os.PathLike[str], config: AttentionConfig, weights: Mapping[str, NDArray]) -> None:
    """Write weights and config to one safetensors file, atomically.

    A file of `mha convert` states how the layer's arithmetic is verified: "proved" by a recorded call, "known" from the
    model's config, or "moved" (not verified). If this process has loaded the same numbers from such a file with
    `load_weights`, the new file repeats the statement.

    >>> import tempfile, pathlib
    >>> config = AttentionConfig(6, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder) / "layer.safetensors"
    ...     save_weights(file, config, init_weights(config, seed=0))
    ...     loaded_config, loaded = load_weights(file)
    >>> loaded_config == config, sorted(loaded)
    (True, ['k_proj.weight', 'out_proj.weight', 'q_proj.weight', 'v_proj.weight'])
    """
    checked = check_weights(config, weights)
    standing = _standings.get(_digest(checked)) if _standings else None
    more = {} if standing is None else {STANDING_KEY: standing}
    arrays = {name: np.ascontiguousarray(array) for name, array in checked.items()}  # not the whole buffer of a view
    write_whole(path, to_sealed(arrays, {METADATA_KEY: json.dumps(config.to_dict()), **more}))


def load_weights(path: str | os.PathLike[str]) -> tuple[AttentionConfig, Weights]:
    """Return config and weights from a file that `save_weights` wrote.

    Raises:
        SpecError: the file is not safetensors, is truncated, holds no config, or its arrays do not fit the config.
        FileNotFoundError: there is no such file.
    """
    arrays, metadata = read_tensors(path)
    if METADATA_KEY not in metadata:
        raise SpecError(f"{path} holds no config: its metadata must have {METADATA_KEY!r}, as save_weights writes it")
    fields = parse_json_object(metadata[METADATA_KEY], what=f"{path}: the config in its metadata")
    try:
        config = AttentionConfig.from_dict(fields)
        weights = check_weights(config, arrays)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from error
    if weights and STANDING_KEY in metadata:
        _standings[_digest(weights)] = metadata[STANDING_KEY]
    return config, weights


_standings: dict[bytes, str] = {}
"""Digest of the matrices of a layer that was loaded in this process -> its standing, as its file's metadata has it.

Arrays lose what a file says of them on their way through a framework's layer; their numbers remain.
"""


def _digest(weights: Mapping[str, NDArray]) -> bytes:
    """A digest of the numbers in all matrices, the same in every dtype that holds them."""
    found = hashlib.sha256()
    for name in sorted(weights):
        if weights[name].ndim == 2:
            found.update(f"{name} {weights[name].shape}".encode())
            found.update(np.ascontiguousarray(weights[name], dtype=np.float64).tobytes())
    return found.digest()
