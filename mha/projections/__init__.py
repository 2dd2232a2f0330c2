"""Record attention layers of a class that is not listed, by the names of their projections.

    layers = {"blocks.*.attn": mha.Projections(query="q_proj", key="k_proj", value="v_proj", output="o_proj")}
    with mha.capture(model, "calls.safetensors", layers=layers):
        model(...)

The inputs of the projections are the queries, keys and values; the output of the output projection is the output.
Nothing of that shows what stands between them, so each call is compared with the reference before it counts: what
differs is recorded with a warning where somebody said the projections, and not at all where they were found by names.
"""
