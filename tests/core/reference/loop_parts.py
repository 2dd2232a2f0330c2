"""The parts of attention for one token, number by number, for the loops."""

import math

import numpy as np


def through_parts(config, weights, name, heads, turns):
    """The heads of one token, each (d,), normed by `name` and turned; `turns` has (cosine, sine) of each pair."""
    settings = config.query_key_norm
    if settings is not None and settings.order == "before":
        heads = normed(settings, weights, name, heads)
    if config.rotary is not None:
        heads = [turned(config.rotary, head, turns) for head in heads]
    if settings is not None and settings.order == "after":
        heads = normed(settings, weights, name, heads)
    return heads


def normed(settings, weights, name, heads):
    parts = [np.concatenate(heads)] if settings.scope == "all" else heads
    divided = []
    for part in parts:
        mean = sum(part) / len(part) if settings.kind == "layer" else 0.0
        square = sum((x - mean) ** 2 for x in part) / len(part)
        divided += [(x - mean) / math.sqrt(square + settings.eps) for x in part]
    width = len(heads[0])
    for place, x in enumerate(divided):
        at = place % width if settings.weight == "shared" else place
        if settings.weight != "none":
            divided[place] = (settings.offset + weights[f"{name}.weight"][at]) * x
        if settings.bias:
            divided[place] += weights[f"{name}.bias"][at]
    return [np.array(divided[h * width : (h + 1) * width]) for h in range(len(heads))]


def turned(settings, head, turns):
    made, half = list(head), settings.width // 2
    start = 0 if settings.start == "first" else len(head) - settings.width
    for pair, (cos, sin) in enumerate(turns):
        a, b = (2 * pair, 2 * pair + 1) if settings.interleaved else (pair, pair + half)
        x, y = head[start + a], head[start + b]
        made[start + a], made[start + b] = x * cos - y * sin, y * cos + x * sin
    return np.array(made)


def turns_of_query(config, inputs, b, i):
    offset = np.broadcast_to(inputs.mask.query_offset, (inputs.queries.shape[0],))[b]
    return _turns(config, inputs, b, i, int(offset) + i, ("positions", "cos", "sin"))


def turns_of_key(config, inputs, b, j):
    """Of new key j."""
    past_len = 0 if inputs.past_keys is None else inputs.past_keys.shape[2]
    own = inputs.rotary is not None and (inputs.rotary.key_positions is not None or inputs.rotary.key_cos is not None)
    names = ("key_positions", "key_cos", "key_sin") if own else ("positions", "cos", "sin")
    return _turns(config, inputs, b, j, past_len + j, names)


def _turns(config, inputs, b, row, counted, names):
    settings, given = config.rotary, inputs.rotary
    if settings is None:
        return None
    positions, cos, sin = (None if given is None else getattr(given, name) for name in names)
    if cos is not None:
        return [(_of_item(cos, b)[row][k], _of_item(sin, b)[row][k]) for k in range(settings.width // 2)]
    frequencies, factor = _frequencies(settings, inputs)
    turns = []
    for pair, frequency in enumerate(frequencies):
        if positions is None:
            position = counted
        elif positions.ndim == 3:
            position = positions[_axis(settings, pair)][b][row]
        else:
            position = (positions if positions.ndim == 1 else positions[b])[row]
        angle = float(position) * frequency
        turns.append((factor * math.cos(angle), factor * math.sin(angle)))
    return turns


def _of_item(table, b):
    """(L, r / 2) of a table (L, r / 2) or (1 or B, L, r / 2)."""
    return table if table.ndim == 2 else table[b if len(table) > 1 else 0]


def _axis(settings, pair):
    if settings.sections_interleaved:
        axis = pair % len(settings.sections)
        return axis if pair // len(settings.sections) < settings.sections[axis] else 0
    ends = np.cumsum(settings.sections)
    return next(axis for axis, end in enumerate(ends) if pair < end)


def _frequencies(settings, inputs):
    """Of every pair, and the attention factor; those of rules are compared with others elsewhere."""
    if settings.rule is None:
        return [settings.base ** (-2.0 * pair / settings.width) for pair in range(settings.width // 2)], 1.0
    past_len = 0 if inputs.past_keys is None else inputs.past_keys.shape[2]
    ends = [past_len + inputs.keys.shape[-2], int(np.max(inputs.mask.query_offset)) + inputs.queries.shape[-2]]
    if inputs.rotary is not None:
        given = [x for x in (inputs.rotary.positions, inputs.rotary.key_positions) if x is not None]
        ends = [int(x.max()) + 1 for x in given]
    return settings.frequencies(max(ends))
