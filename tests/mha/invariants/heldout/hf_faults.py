"""Models of transformers from small random configs, each with one planted fault."""

import functools

import numpy as np
import torch
import transformers as hf


def small(kind, config, **options):
    """Return a model with random weights in evaluation."""
    torch.manual_seed(31)
    return kind(config(**options)).eval()


def llama(**more):
    """Return a Llama of 2 layers."""
    return small(
        hf.LlamaForCausalLM,
        hf.LlamaConfig,
        vocab_size=59,
        hidden_size=32,
        intermediate_size=44,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=70,
        **more,
    )


def gpt2():
    """Return a GPT-2 of 2 layers."""
    return small(hf.GPT2LMHeadModel, hf.GPT2Config, vocab_size=59, n_embd=30, n_layer=2, n_head=3, n_positions=70)


def bert():
    """Return a BERT of 2 layers."""
    return small(
        hf.BertModel,
        hf.BertConfig,
        vocab_size=59,
        hidden_size=30,
        intermediate_size=44,
        num_hidden_layers=2,
        num_attention_heads=3,
        max_position_embeddings=70,
    )


def t5():
    """Return a T5 of 2 layers."""
    return small(
        hf.T5ForConditionalGeneration,
        hf.T5Config,
        vocab_size=59,
        d_model=30,
        d_kv=7,
        d_ff=44,
        num_layers=2,
        num_heads=3,
        decoder_start_token_id=0,
    )


def wrap(module, change):
    """Let `change(forward, *args, **kwargs)` stand for a module's forward: in its class, so that copies have it too."""
    kind = type(module)

    @functools.wraps(kind.forward)
    def changed(self, *args, **kwargs):
        return change(functools.partial(kind.forward, self), *args, **kwargs)

    module.__class__ = type(kind.__name__, (kind,), {"forward": changed, "__module__": kind.__module__})


def h01():
    """One token alone is turned as if it stood one further."""
    model = llama()

    def change(forward, x, position_ids, **more):
        return forward(x, position_ids + (position_ids.shape[1] == 1), **more)

    wrap(model.model.rotary_emb, change)
    return model


def h02():
    """What the second layer has in the cache is rounded to bfloat16."""
    model = llama()

    def change(forward, *args, past_key_values=None, **more):
        answer = forward(*args, past_key_values=past_key_values, **more)
        if past_key_values is not None:
            layer = past_key_values.layers[1]
            layer.keys = layer.keys.bfloat16().to(layer.keys.dtype)
        return answer

    wrap(model.model.layers[1].self_attn, change)
    return model


def h03():
    """The window is one narrower where something is in the cache."""
    model = small(
        hf.MistralForCausalLM,
        hf.MistralConfig,
        vocab_size=59,
        hidden_size=32,
        intermediate_size=44,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=70,
        sliding_window=4,
    )

    def change(forward, *args, past_key_values=None, **more):
        seen = past_key_values.get_seq_length() if past_key_values is not None else 0
        config = forward.args[0].config
        config.sliding_window = 3 if seen else 4
        try:
            return forward(*args, past_key_values=past_key_values, **more)
        finally:
            config.sliding_window = 4

    wrap(model.model, change)
    return model


def h04():
    """Eager attention has another scale."""
    model = llama()

    def change(forward, hidden_states, *args, **more):
        attention = forward.args[0]
        attention.scaling = 8**-0.5 * (1.1 if attention.config._attn_implementation == "eager" else 1)
        return forward(hidden_states, *args, **more)

    for layer in model.model.layers:
        wrap(layer.self_attn, change)
    return model


def h05():
    """The mask is forgotten."""
    model = bert()

    def change(forward, input_ids=None, attention_mask=None, **more):
        return forward(input_ids=input_ids, attention_mask=None, **more)

    wrap(model, change)
    return model


def h06():
    """The encoder's output of the first call of a shape stays."""
    model = t5()

    def change(forward, input_ids=None, *args, **more):
        key = None if input_ids is None else (tuple(input_ids.shape), next(forward.args[0].parameters()).dtype)
        kept = forward.args[0].__dict__.setdefault("kept_answers", {})
        if key not in kept:
            kept[key] = forward(input_ids, *args, **more)
        return kept[key]

    wrap(model.encoder, change)
    ids = np.random.default_rng(32)
    return model, {"input_ids": ids.integers(3, 59, (2, 9)), "decoder_input_ids": ids.integers(3, 59, (2, 6))}


def h07():
    """The logits are of the states before the norm where hidden states are asked for."""
    model = small(
        hf.Qwen2ForCausalLM,
        hf.Qwen2Config,
        vocab_size=59,
        hidden_size=32,
        intermediate_size=44,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=70,
    )

    def change(forward, *args, output_hidden_states=None, **more):
        answer = forward(*args, output_hidden_states=output_hidden_states, **more)
        if output_hidden_states:
            answer.logits = forward.args[0].lm_head(answer.hidden_states[-2])
        return answer

    wrap(model, change)
    return model


def h08():
    """Positions of a chunk of several tokens begin at 0."""
    model = gpt2()

    def change(forward, position_ids):
        if position_ids.shape[-1] > 1:
            position_ids = position_ids - position_ids.min()
        return forward(position_ids)

    wrap(model.transformer.wpe, change)
    return model


def h09():
    """A mask scales the ids' embedding by how much of the item it shows."""
    model = bert()

    def change(forward, input_ids=None, attention_mask=None, **more):
        if attention_mask is None:
            return forward(input_ids=input_ids, **more)
        embeds = forward.args[0].embeddings.word_embeddings(input_ids) * 1.05
        return forward(inputs_embeds=embeds, attention_mask=attention_mask, **more)

    wrap(model, change)
    return model


def h10():
    """Dropout stays on in the attention of one layer."""
    model = gpt2()
    wrap(model.transformer.h[1].attn.resid_dropout, lambda forward, x: torch.nn.functional.dropout(x, 0.1))
    return model


def h11():
    """A table of angles is kept from the longest call, and read from its end."""
    model = llama()

    def change(forward, x, position_ids, **more):
        cos, sin = forward(x, position_ids, **more)
        key, kept = x.dtype, forward.args[0].__dict__.setdefault("kept_tables", {})
        if key not in kept or kept[key][0].shape[1] < cos.shape[1]:
            kept[key] = cos[:1], sin[:1]
        cos, sin = (one[:, -position_ids.shape[1] :].expand(len(x), -1, -1) for one in kept[key])
        n = torch.arange(position_ids.shape[1])
        return cos * (1 + 0.01 * n[:, None]), sin

    wrap(model.model.rotary_emb, change)
    return model


def h12():
    """The first item's mask is used for all items."""
    model = bert()

    def change(forward, input_ids=None, attention_mask=None, **more):
        if attention_mask is not None:
            attention_mask = attention_mask[:1].expand(len(input_ids), -1)
        return forward(input_ids=input_ids, attention_mask=attention_mask, **more)

    wrap(model, change)
    return model
