"""One package per framework: the same files with the same roles, and the same functions with the same signatures.

    layers.py        multi-head attention: the constructor, the call, the projection step and the seven stages
    single_head.py   dot-product and additive attention without heads
    positional.py    sinusoidal positions
    weights.py       canonical parameters in and out
    backend.py       the contract: NumPy in, NumPy out
    ops/             the functions that layers.py is written in
        framework.py   imports the framework; its dtypes, devices and arrays
        heads.py       split, merge, group
        masks.py       the mask of one call, built on the device
        attention.py   score functions, masked softmax, dropout, weighted sum
        scores.py      the scores of a layer: dot products, or additive with its parameters
        query_key_norm.py, rotary.py   the norm of queries and keys, and their turn by positions, in layers that have it
    fast/            attention without an array of all scores
        attend.py      block by block, with gradients of its own
    native/          the framework's own layers
        convert.py     their parameters in and out
        d2l.py         the layer of d2l.ai's chapter
        subjects.py    each as a subject of the suite
        capture.py     how a call of one is recorded
        live_probe.py  whether a live one computes what its parameters say
        modules.py     any module of a model, by itself, in another dtype

A learner reads `layers.py` of two frameworks beside each other, then `ops/`; `fast/` and `native/` can wait.
The framework decides the body of a function of `ops/` and `fast/`, never the name, the order or the meaning of the
arguments (`tests/backends/test_signatures.py` lists them); what only one framework needs (JAX: `precision`) is given by
keyword.
"""
