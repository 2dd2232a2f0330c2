"""Files as transformers 4 wrote them: tf_model.h5 through Keras 2, and flax_model.msgpack; from PyTorch's names."""

import re

import numpy as np

BASE = {"bert": "bert", "gpt2": "transformer", "vit": "vit", "bart": "model"}
"""Family -> what its TensorFlow models call the main layer, and its Flax models' with a head the whole of it."""

DOT = "\0"
NUMBERED_BY = {"bert": f"_{DOT}_", "gpt2": f"_{DOT}_", "vit": f"_{DOT}_", "bart": DOT}
"""Family -> what stands before a layer's number in TensorFlow: encoder/layer_._0, but encoder/layers.0."""


def tf_names(family, name, array):
    """The path and the array in tf_model.h5; TFConv1D keeps its names and has biases of one row."""
    numbered = re.sub(r"\.(\d+)\.", rf"{NUMBERED_BY[family]}\1.", name)
    *parts, last = numbered.split(".")
    path = "/".join(parts).replace(DOT, ".")
    if family == "gpt2" and re.search(r"c_attn|c_proj|c_fc|q_attn", name):
        array = array[None] if last == "bias" else array
    elif last == "weight" and array.ndim == 2:
        last, array = ("embeddings", array) if "embedding" in name or "wte" in name else ("kernel", array.T)
    elif last in ("weight", "bias") and re.search(r"norm|ln_", path, re.IGNORECASE):
        last = {"weight": "gamma", "bias": "beta"}[last]
    return f"{path}/{last}:0", np.ascontiguousarray(array)


def write_tf(path, family, arrays):
    """A group of the main layer, its variables below the model's name again, and their list in an attribute."""
    import h5py

    base = BASE[family]
    names = []
    with h5py.File(path, "w") as file:
        group = file.create_group(base)
        for name, array in arrays.items():
            own, held = tf_names(family, name, array)
            names.append(f"tf_{family}_model/{base}/{own}".encode())
            group.create_dataset(names[-1].decode(), data=held)
        half = len(names) // 2  # Keras 2 cuts long lists
        group.attrs["weight_names0"], group.attrs["weight_names1"] = names[:half], names[half:]
        file.create_group("top_level_model_weights").attrs["weight_names"] = np.array([], "S1")
        file.attrs["layer_names"] = [base.encode(), b"top_level_model_weights"]
        file.attrs["backend"], file.attrs["keras_version"] = b"tensorflow", b"2.12.0"


def write_flax(path, family, arrays):
    """Dicts in dicts: kernels (in, out), but FlaxConv1D's, which are (out, in); embedding, scale."""
    from flax.serialization import to_bytes

    tree: dict = {}
    for name, array in arrays.items():
        *parts, last = name.split(".")
        if last == "weight":
            last = "kernel" if array.ndim > 1 else "scale"
            if "embedding" in name or "wte" in name or "wpe" in name:
                last = "embedding"
            # PyTorch's Conv1D is (in, out) and FlaxConv1D (out, in): for both it is the transposed.
            array = array if last == "embedding" else array.T
        branch = tree
        for part in parts:
            branch = branch.setdefault(part, {})
        branch[last] = np.ascontiguousarray(array)
    path.write_bytes(to_bytes(tree))
