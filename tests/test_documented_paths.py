"""What README and docs told users to import keeps its path, wherever the thing itself now stands."""

from importlib import import_module

import pytest

PATHS = {
    "mha_core.masks": ("AttentionMask", "additive_bias", "allowed_keys", "padding_keys"),
    "mha_core.backend": ("Backend", "Run", "load", "names"),
    "mha_core.layouts": ("get",),
    "mha_core.reference": ("run",),
    "conformance.precision": ("Precision",),
    "conformance.html": ("write_html",),
    "conformance.subjects": ("CannotExpress", "load_subject", "subject_from_function"),
    "mha": ("Recording", "capture", "where"),
    "mha.capturing": ("Call", "register", "unregister"),
    "mha.port_model": ("find_model", "load_encoder"),
    "mha.recipes": ("attention_layers", "record", "replaced"),
    "mha.recipes.checkpoint": ("checkpoint_layers", "read_layer"),
    "mha.recipes.judge": ("judge_original",),
}

PATHS_OF_BACKENDS = {
    "torch": {
        "backends.torch.native": ("from_native", "layout_of", "to_native"),
        "backends.torch.native_subjects": ("MultiheadAttention",),
    },
    "tf": {"backends.tf.native": ("from_native", "layout_of", "to_native")},
    "jax": {"backends.jax.native": ("from_native", "layout_of", "to_native")},
    "mxnet": {
        "backends.mxnet.framework": ("mx",),
        "backends.mxnet.native": ("from_native", "layout_of", "to_native"),
        "backends.mxnet.native_seed": ("SeedMultiHeadAttention",),
    },
}


@pytest.mark.parametrize("module", PATHS)
def test_a_documented_path_leads_to_its_names(module):
    for name in PATHS[module]:
        assert getattr(import_module(module), name) is not None


def test_a_documented_path_of_a_backend_leads_to_its_names(backend_name):
    for module, names in PATHS_OF_BACKENDS[backend_name].items():
        for name in names:
            assert getattr(import_module(module), name) is not None
