"""The rows: a number, where it is made, what should break, what was done.

Numbers count from 1: even ones are hidden.
"""

from typing import NamedTuple

PACKAGE = "tests.mha.invariants.heldout"
"""Where the modules are."""


class Row(NamedTuple):
    """One program: `expected` has beginnings of relations' ids, and is empty for a right model."""

    number: int
    module: str
    name: str
    expected: tuple
    done: str
    step: str = ""
    causal: bool | None = None

    @property
    def id(self):
        """The row's name, also in files."""
        return f"{self.module}.{self.name}" if not self.expected else self.name

    @property
    def half(self):
        """Whether its failures may be told."""
        return "hidden" if self.number % 2 == 0 else "open"


FAULTS = """
torch_layers t01 mask- | a key mask that hides nothing adds a bias to the scores
torch_layers t02 mask-,causality- | is_causal is ignored where key_padding_mask is given
torch_layers t03 state- | the mask of the first masked call stays for unmasked calls of the same shape
torch_layers t04 padding- | padded keys are hidden with -2 instead of -inf
torch_layers t05 padding-,batch- | the first item's key mask is used for all items
torch_layers t06 random-,state- | dropout of weights stays on in evaluation
torch_layers t07 returned- | weights asked for: the scale is that of the whole width
torch_layers t08 returned- | each head's weights asked for: the output has no bias
torch_layers t09 mask- | a mask of 0 and -inf is read as booleans: 0 hides
torch_layers t10 batch-,padding- | the mean of the batch is subtracted
torch_layers t11 state- | keys of a longer call are kept and used in shorter ones
torch_layers t12 state- | every eval() multiplies a weight by 1.01
torch_layers t13 state- | the scale depends on how many instances were made
torch_layers t14 state- | the scale is known in the thread that made it alone
torch_layers t15 state- | the input is changed in place
torch_layers t16 state- | a table stays in the dtype of an earlier call
torch_layers t17 implementation- | a norm's epsilon is 1e-2 in float32, 1e-12 else
torch_layers t18 mask- | a mask with four axes is used for the first head alone
torch_layers t19 padding- | the mean of all tokens, padding too, is added
torch_layers t20 padding- | positions count from the end, so right padding moves them
torch_layers t21 padding- | the second layer does not get the mask
torch_layers t22 returned- | hidden states asked for: the last norm is left out
torch_layers t23 batch-,causality- | a gate has room for nine tokens of the whole batch
torch_decoders d01 decoding- | the cache drops its first key from the fifth token on
torch_decoders d02 decoding- | positions restart at 0 in decoding
torch_decoders d03 decoding- | rotary positions are one too large in decoding
torch_decoders d04 decoding- | the window is one wider in decoding
torch_decoders d05 decoding- | the cache is cut to the window, and its length taken for the position
torch_decoders d06 decoding- step=step_ring_wrong | a cache of six is silently overwritten from its start
torch_decoders d07 decoding- | a chunk after the first sees its own future
torch_decoders d08 decoding- step=step_keeps | a new sequence keeps the first token of the one before
torch_decoders d09 returned-,decoding- | with use_cache the last norm is left out
torch_decoders d10 causality-,decoding- | a tenth of the next token's logits is added
torch_decoders d11 causality-,decoding- | the mean of the sequence is subtracted
torch_decoders d12 causality-,decoding- | the scale has the logarithm of the number of keys of the call
torch_decoders d13 decoding- | keys in the cache are turned by one again at every call
torch_decoders d14 positions-,decoding-,causality- | the rotary base depends on the call's last position
torch_decoders d15 positions- | queries are turned and keys are not
torch_decoders d16 decoding- | groups are tiled instead of repeated in decoding
torch_decoders d17 decoding-padded,padding- | with a cache the new tokens' part of the mask stands first
torch_decoders d18 decoding-chunks | decay is applied once a chunk
torch_decoders d19 decoding- | the state after a chunk has no earlier tokens
torch_decoders d20 decoding- | the convolution's state lacks two of three tokens
torch_decoders d21 decoding- | the token shift forgets the last token of the chunk before
torch_decoders d22 padding-,decoding-padded | left padding moves the learned positions
torch_decoders d23 random-,state- | dropout of embeddings stays on in evaluation
torch_decoders d24 decoding- | both layers read the first layer's cache
hf_faults h01 decoding- | Llama: a token alone is turned one further
hf_faults h02 decoding- | Llama: the second layer's cached keys are rounded to bfloat16
hf_faults h03 decoding- | Mistral: the window is one narrower in decoding
hf_faults h04 implementation- | Llama: eager has another scale than sdpa
hf_faults h05 padding- | BERT: the mask is forgotten
hf_faults h06 state- | T5: the encoder's output of the first call of a shape stays
hf_faults h07 returned- | Qwen2: hidden states asked for: the logits are of the layer before
hf_faults h08 decoding- | GPT-2: positions of a chunk of several tokens begin at 0
hf_faults h09 mask- | BERT: a mask scales the embeddings by 1.05
hf_faults h10 random-,state- | GPT-2: one dropout stays on
hf_faults h11 state-,decoding- | Llama: the longest call's table of angles is kept, and read from its end
hf_faults h12 padding-,batch- | BERT: the first item's mask is used for all
keras_layers k01 returned- | scores asked for: the scale is that of the whole width
keras_layers k02 mask-,causality- | use_causal_mask is ignored where a mask is given
keras_layers k03 mask- | a mask that hides nothing adds a bias
keras_layers k04 padding- | padded keys are hidden with -3
keras_layers k05 random-,state- | dropout stays on in inference
keras_layers k06 padding-,batch- | the first item's mask is used for all
keras_layers k07 state- | the last mask stays for unmasked calls of the same shape
keras_layers k08 decoding- step=step_late | keys are written one place late in decoding
keras_layers k09 batch-,padding- | batch statistics are used in inference
keras_layers k10 state-,random- | the scale falls with every call
keras_layers k11 decoding- step=step_restart | positions restart at 0 in decoding
flax_layers f01 mask- | linen: a mask that hides nothing adds a bias
flax_layers f02 padding-,batch- | nnx: the first item's mask is used for all
flax_layers f03 random-,state- | nnx: dropout stays on
flax_layers f04 state-,random- | nnx: a running mean moves with every call
flax_layers f05 returned- | linen: weights asked for: another scale
flax_layers f06 batch-,padding- | linen: the mean of the batch is subtracted
flax_layers f07 decoding- | nnx: the window is one wider in decoding
flax_layers f08 padding- | nnx: padded keys are hidden with -3
flax_layers f09 causality-,decoding- causal | nnx: one later key is seen
flax_layers f10 padding-,batch- | linen: the first item's mask is used for all
numpy_functions n01 mask- | a mask that hides nothing adds a bias
numpy_functions n02 mask-,causality- | causal is ignored where a mask is given
numpy_functions n03 padding-,batch- | the first item's length is used for all
numpy_functions n04 random-,state- | a tenth of the inputs is dropped at random
numpy_functions n05 state- | the input is halved in place
numpy_functions n06 state- | the first answer of a shape stays
numpy_functions n07 decoding- step=step_ring | a cache keeps five tokens and no more
numpy_functions n08 decoding- step=step_late | the last cached token is not seen
numpy_functions n09 decoding- step=step_future | a later chunk sees its own future
numpy_functions n10 returned- | weights asked for: another scale
numpy_functions n11 state- | the scale is known in one thread alone
numpy_functions n12 batch-,padding- | the mean of the batch is subtracted
numpy_functions n13 causality- causal | one later key is seen
numpy_functions n14 padding- | the mean of all tokens, padding too, is added
numpy_functions n15 decoding- step=step_shared | a new sequence keeps a token of the one before
"""

RIGHT = """
torch_layers right_layer right_encoder
torch_decoders right_learned right_rotary right_window right_unsaid right_linear
keras_layers right_layer right_decoder:right_step
flax_layers right_linen right_nnx right_decoder
numpy_functions r01 r02 r03 r04:right_step
right_models h_llama_eager h_llama_sdpa h_gpt2_eager h_gpt2_sdpa h_bert_eager h_bert_sdpa h_mistral_eager
right_models h_mistral_sdpa h_qwen2_sdpa h_qwen3_eager h_gemma_eager h_gemma2_eager h_phi_sdpa h_neox_sdpa h_opt_eager
right_models h_bloom_eager h_olmo2_sdpa h_mixtral_eager h_distilbert_sdpa h_roberta_sdpa h_electra_eager h_t5_eager
right_models h_t5encoder_eager h_bart_sdpa h_whisper_sdpa h_vit_sdpa
right_models p_mha p_mha_wide p_encoder_layer p_encoder p_decoder_layer p_gru p_ours p_compiled
right_models k_mha k_gqa k_attention k_lstm k_model k_ours f_linen f_nnx f_ours m_ours
"""


def rows():
    """Return all rows, numbered from 1; faults first."""
    made = []
    for line in FAULTS.strip().splitlines():
        left, done = line.split(" | ")
        module, name, expected, *more = left.split()
        step = next((one[5:] for one in more if one.startswith("step=")), "")
        made.append(
            Row(len(made) + 1, module, name, tuple(expected.split(",")), done, step, True if "causal" in more else None)
        )
    for line in RIGHT.strip().splitlines():
        module, *names = line.split()
        for one in names:
            name, _, step = one.partition(":")
            made.append(Row(len(made) + 1, module, name, (), "right", step))
    return made


def group(row):
    """Return which process runs a row: what it imports."""
    if row.module == "keras_layers" or row.name.startswith("k_"):
        return "keras"
    if row.module == "flax_layers" or row.name.startswith("f_"):
        return "flax"
    if row.module == "numpy_functions":
        return "numpy"
    if row.name.startswith("m_"):
        return "mxnet"
    if row.module == "hf_faults" or row.name.startswith("h_"):
        return "hf"
    return "torch"
