"""Show, with framework code alone, that planted faults contradict themselves, and that right models can be made.

`python -m tests.mha.invariants.heldout.check_own torch|others` prints the differences, and `right LETTERS` which of the
right models whose names begin with one of LETTERS (h, p, k, f, m) can't be made.
"""

import os
import sys
import threading
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np


def gap(a, b):
    """Return the largest difference."""
    a, b = (np.asarray(one.detach() if hasattr(one, "detach") else one) for one in (a, b))
    return float(np.nanmax(abs(a - b)))


def first(answer):
    """Return the output of an answer."""
    return answer[0] if isinstance(answer, tuple) else answer


def torch_layers():
    """Two ways for each of t01 to t23."""
    import torch

    from tests.mha.invariants.heldout import torch_layers as L

    torch.set_grad_enabled(False)
    no, some = torch.zeros(2, 7, dtype=torch.bool), torch.tensor([[0] * 7, [0] * 4 + [1] * 3]).bool()
    tri = torch.ones(7, 7).triu(1).bool()

    def get(name):
        model, inputs = getattr(L, name)()
        return model, torch.tensor(inputs["x"])

    def pad(m, x):
        y = x.clone()
        y[1, 4:] += 1
        return gap(first(m(x, key_padding_mask=some))[1, :4], first(m(y, key_padding_mask=some))[1, :4])

    m, x = get("t01")
    print("t01", gap(m(x), m(x, key_padding_mask=no)))
    m, x = get("t02")
    print("t02", gap(m(x, is_causal=True), m(x, key_padding_mask=no, is_causal=True)))
    m, x = get("t03")
    a = m(x)
    m(x, key_padding_mask=some)
    print("t03", gap(a, m(x)))
    m, x = get("t04")
    print("t04", pad(m, x))
    m, x = get("t05")
    print("t05", pad(m, x))
    m, x = get("t06")
    print("t06", gap(m(x), m(x)))
    m, x = get("t07")
    print("t07", gap(m(x), m(x, need_weights=True)[0]))
    m, x = get("t08")
    print("t08", gap(m(x), m(x, need_weights=True, average_attn_weights=False)[0]))
    m, x = get("t09")
    print("t09", gap(m(x, attn_mask=tri), m(x, attn_mask=torch.zeros(7, 7).masked_fill(tri, -torch.inf))))
    m, x = get("t10")
    print("t10", gap(m(x)[:1], m(x[:1])))
    m, x = get("t11")
    a = m(x[:, :4])
    m, x = get("t11")
    m(x)
    print("t11", gap(a, m(x[:, :4])))
    m, x = get("t12")
    a = m(x)
    m.train()
    m.eval()
    print("t12", gap(a, m(x)))
    m, x = get("t13")
    a = m(x)
    get("t13")
    print("t13", gap(a, m(x)))
    m, x = get("t14")
    a = m(x)
    b = []
    t = threading.Thread(target=lambda: b.append(m(x)))
    t.start()
    t.join()
    print("t14", gap(a, b[0]))
    m, x = get("t15")
    y = x.clone()
    m(x)
    print("t15", gap(x, y))
    m, x = get("t16")
    m = m.double()
    x = x.double()
    a = m(x)
    m.float()(x.float())
    print("t16", gap(a, m.double()(x)))
    m, x = get("t17")
    print("t17", gap(m(x), m.double()(x.double())))
    m, x = get("t18")
    print("t18", gap(m(x, attn_mask=tri), m(x, attn_mask=tri[None, None])))
    ids = torch.randint(3, 60, (2, 7), generator=torch.Generator().manual_seed(1))
    for name in ("t19", "t20", "t21"):
        m = getattr(L, name)()
        print(name, gap(m(ids[:1, :4]), m(ids[:1], attention_mask=(~some[1:]).long())[:, :4]))
    m = L.t22()
    print("t22", gap(m(ids), m(ids, output_hidden_states=True)[0]))
    m, x = get("t23")
    print("t23", gap(m(x)[:1], m(x[:1])))


def others():
    """Two ways for hf, and the doubtful ones of Flax, Keras, NumPy."""
    import torch

    from tests.mha.invariants.heldout import hf_faults as H
    from tests.mha.invariants.heldout import numpy_functions as N

    torch.set_grad_enabled(False)
    ids = torch.randint(3, 50, (2, 9), generator=torch.Generator().manual_seed(1))
    part = torch.ones(2, 9).long()
    part[1, 5:] = 0
    other = ids.clone()
    other[1, 5:] = 3
    for name in ("h05", "h12"):
        m = getattr(H, name)()
        print(
            name,
            gap(m(input_ids=ids, attention_mask=part)[0][1, :5], m(input_ids=other, attention_mask=part)[0][1, :5]),
        )
    m = H.h06()[0]
    a = m(input_ids=ids, decoder_input_ids=ids).logits
    m2 = H.h06()[0]
    m2(input_ids=ids + 1, decoder_input_ids=ids)
    print("h06", gap(a, m2(input_ids=ids, decoder_input_ids=ids).logits))
    m = H.h11()
    a = m(input_ids=ids[:, :4]).logits
    m = H.h11()
    m(input_ids=ids)
    print("h11", gap(a, m(input_ids=ids[:, :4]).logits))
    m = H.h04()
    a = m(input_ids=ids).logits
    m.set_attn_implementation("eager")
    print("h04", gap(a, m(input_ids=ids).logits))
    m = H.h07()
    print("h07", gap(m(input_ids=ids).logits, m(input_ids=ids, output_hidden_states=True).logits))
    for name in ("h02", "h03"):
        m = getattr(H, name)()
        w = m(input_ids=ids, use_cache=False).logits
        p = None
        o = []
        for i in range(9):
            a = m(input_ids=ids[:, i : i + 1], past_key_values=p, use_cache=True)
            p = a.past_key_values
            o.append(a.logits)
        print(name, gap(w, torch.cat(o, 1)))
    x = N.X
    m, _ = N.n03()
    print("n03", gap(m(x, np.array([8, 5, 3]))[1:2], m(x[1:2], np.array([5]))))
    m, _ = N.n14()
    k = np.ones((3, 8), bool)
    k[1, 5:] = False
    y = x.copy()
    y[1, 5:] += 1
    print("n14", gap(m(x, k)[1, :5], m(y, k)[1, :5]))


def right():
    """Make every right model once."""
    from tests.mha.invariants.heldout import right_models as R

    warnings.simplefilter("ignore")
    for name in [n for n in vars(R) if n[1:2] == "_" and n[0] in sys.argv[2]]:
        try:
            getattr(R, name)()
        except Exception as error:
            print(name, type(error).__name__, str(error)[:300])


if __name__ == "__main__":
    {"torch": torch_layers, "others": others, "right": right}[sys.argv[1]]()
