"""Answers to the exercises of the track "write" that are a softmax."""

from tests.mha.learn.answers.form import functions

SHORT = {
    "NORMED": """e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)"""
}
"""Word in a body -> the lines that it stands for."""

TEXT = """
== masked_softmax(scores, allowed)
mask-forgotten: I do not use the mask.
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
mask-inverted: I take True for masked.
    s = np.where(allowed, -np.inf, scores)
    NORMED
over-queries: I take the softmax over the queries.
    s = np.where(allowed, scores, -np.inf)
    e = np.exp(s - s.max(-2, keepdims=True))
    return e / e.sum(-2, keepdims=True)
over-heads: I take the softmax over axis 1, the heads.
    s = np.where(allowed, scores, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(1, keepdims=True)
one-sum: I divide by the sum of the whole array.
    s = np.where(allowed, scores, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum()
scores-times-mask: I multiply the scores by the mask, so excluded keys score 0.
    s = scores * allowed
    NORMED
filled-with-zero: I set excluded scores to 0.
    s = np.where(allowed, scores, 0.0)
    NORMED
masked-afterwards: I set weights to 0 after the softmax and do not normalise again.
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return np.where(allowed, e / e.sum(-1, keepdims=True), 0.0)
filled-with-1e9: I fill with -1e9, which a low score can reach.
    s = np.where(allowed, scores, -1e9)
    NORMED
added-1e9: I add -1e9 to the excluded scores.
    s = scores + (1.0 - allowed) * -1e9
    NORMED
added-ten-thousand: I add -10000, as BERT does.
    s = scores - 10000.0 * ~allowed
    NORMED
filled-with-minus-100: I fill with -100, which looks small enough.
    s = np.where(allowed, scores, -100.0)
    NORMED
keepdims-forgotten: I forget keepdims in the sum.
    s = np.where(allowed, scores, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1)
no-maximum: I do not subtract the maximum, and exp overflows.
    e = np.where(allowed, np.exp(scores), 0.0)
    return e / e.sum(-1, keepdims=True)
maximum-of-everything: I subtract the maximum of the whole array.
    e = np.exp(np.where(allowed, scores - scores.max(), -np.inf))
    return e / e.sum(-1, keepdims=True)
maximum-of-excluded: My maximum is over excluded keys too.
    e = np.exp(scores - scores.max(-1, keepdims=True)) * allowed
    return e / e.sum(-1, keepdims=True)
sum-of-excluded: My sum is over excluded keys too.
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e * allowed / e.sum(-1, keepdims=True)
infinity-times-zero: I multiply the mask by -inf, and 0 times -inf is NaN.
    s = scores + ~allowed * -np.inf
    NORMED
epsilon: I add 1e-9 to the sum, to be safe.
    s = np.where(allowed, scores, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / (e.sum(-1, keepdims=True) + 1e-9)
float32-inside: I compute in float32 and return float64.
    s = np.where(allowed, scores, -np.inf).astype(np.float32)
    e = np.exp(s - s.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(np.float64)
logarithm: I return the logarithm of the weights.
    s = np.where(allowed, scores, -np.inf)
    s = s - s.max(-1, keepdims=True)
    return s - np.log(np.exp(s).sum(-1, keepdims=True))
rounded: I round the weights.
    s = np.where(allowed, scores, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.round(e / e.sum(-1, keepdims=True), 4)
scaled-again: I divide by the root of the number of keys.
    s = np.where(allowed, scores, -np.inf) / np.sqrt(scores.shape[-1])
    NORMED
base-two: I use powers of 2.
    s = np.where(allowed, scores, -np.inf)
    e = 2.0 ** (s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
no-exponential: I divide the scores by their sum.
    s = np.where(allowed, scores, 0.0)
    return s / s.sum(-1, keepdims=True)
writes-scores: I write -inf into the caller's scores.
    scores[~allowed] = -np.inf
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
returns-mask-too: I return the mask too.
    s = np.where(allowed, scores, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True), allowed
forgot-return: I forget to return.
    s = np.where(allowed, scores, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    weights = e / e.sum(-1, keepdims=True)
excluded-dropped: I index with the mask, which flattens.
    e = np.exp(scores[allowed] - scores[allowed].max())
    return e / e.sum()
heads-share-a-mask: I use the first head's mask for all heads.
    s = np.where(allowed[:, :1], scores, -np.inf)
    NORMED
right logaddexp: The logarithm of the sum comes from logaddexp.reduce.
    s = np.where(allowed, scores, -np.inf)
    s -= s.max(axis=-1, keepdims=True)
    return np.exp(s - np.logaddexp.reduce(s, axis=-1, keepdims=True))
right row-by-row: A loop over rows, each over its allowed keys.
    weights = np.zeros_like(scores)
    for row in np.ndindex(scores.shape[:-1]):
        s = scores[row][allowed[row]]
        e = np.exp(s - s.max())
        weights[row][allowed[row]] = e / e.sum()
    return weights
== empty_row(scores, allowed)
nan: I take the plain softmax, and empty rows become NaN.
    s = np.where(allowed, scores, -np.inf)
    NORMED
filled-with-1e9: I fill with -1e9, and empty rows become uniform.
    s = np.where(allowed, scores, -1e9)
    NORMED
added-1e9: I add -1e9, and empty rows get the softmax of all scores.
    s = scores - 1e9 * ~allowed
    NORMED
nan-to-num: nan_to_num makes every NaN 0, also one that stood in the scores.
    s = np.where(allowed, scores, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.nan_to_num(e / e.sum(-1, keepdims=True))
mask-multiplied-in: I multiply by the mask, and NaN times 0 is NaN in excluded keys.
    some = allowed.any(-1, keepdims=True)
    m = np.where(allowed, scores, -np.inf).max(-1, keepdims=True)
    e = np.exp(scores - np.where(some, m, 0)) * allowed
    return e / np.where(some, e.sum(-1, keepdims=True), 1)
uniform: I give an empty row equal weights.
    some = allowed.any(-1, keepdims=True)
    s = np.where(some, np.where(allowed, scores, -np.inf), 0.0)
    NORMED
epsilon: I add 1e-9 to the sum, so that nothing is divided by 0.
    some = allowed.any(-1, keepdims=True)
    s = np.where(allowed, scores, -np.inf)
    e = np.exp(s - np.where(some, s.max(-1, keepdims=True), 0.0))
    return e / (e.sum(-1, keepdims=True) + 1e-9)
whole-array-asked: I ask whether anything is allowed in the whole array, not in the row.
    if not allowed.any():
        return np.zeros_like(scores)
    s = np.where(allowed, scores, -np.inf)
    NORMED
first-key: An empty row attends to the first key.
    allowed = allowed.copy()
    allowed[..., 0] |= ~allowed.any(-1)
    s = np.where(allowed, scores, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.where(allowed, e / e.sum(-1, keepdims=True), 0.0)
masked-afterwards: I set weights to 0 after the softmax, without dividing again.
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return np.where(allowed, e / e.sum(-1, keepdims=True), 0.0)
nan-times-zero: I multiply empty rows by 0, and they stay NaN.
    s = np.where(allowed, scores, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) * allowed.any(-1, keepdims=True)
all-for-any: I ask for all instead of any: a row with one excluded key is 0.
    s = np.where(allowed, scores, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.where(allowed.all(-1, keepdims=True), e / e.sum(-1, keepdims=True), 0.0)
any-over-queries: I ask along the queries' axis.
    s = np.where(allowed, scores, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.where(allowed.any(-2, keepdims=True), e / e.sum(-1, keepdims=True), 0.0)
nansum: I skip NaN in maximum and sum.
    s = np.where(allowed, scores, -np.inf)
    e = np.exp(s - np.nanmax(s, -1, keepdims=True, initial=-1e300))
    return np.where(allowed, e / np.maximum(np.nansum(e, -1, keepdims=True), 1e-300), 0.0)
filled-with-1e10-then-zeroed: I fill with -1e10 and zero the excluded weights afterwards.
    s = np.where(allowed, scores, -1e10)
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.where(allowed, e / e.sum(-1, keepdims=True), 0.0)
lowest-float32-then-zeroed: I fill with the lowest float32 and zero the excluded weights afterwards.
    s = np.where(allowed, scores, np.finfo(np.float32).min)
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.where(allowed, e / e.sum(-1, keepdims=True), 0.0)
filled-with-1e9-then-zeroed: I fill with -1e9 and zero the excluded weights afterwards.
    s = np.where(allowed, scores, -1e9)
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.where(allowed, e / e.sum(-1, keepdims=True), 0.0)
no-maximum: I do not subtract the maximum.
    e = np.where(allowed, np.exp(scores), 0.0)
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1.0, total)
over-heads: I sum over the heads.
    some = allowed.any(-1, keepdims=True)
    s = np.where(allowed, scores, -np.inf)
    e = np.exp(s - np.where(some, s.max(-1, keepdims=True), 0.0))
    total = e.sum(1, keepdims=True)
    return e / np.where(total == 0, 1.0, total)
mask-inverted: I take True for masked.
    some = (~allowed).any(-1, keepdims=True)
    s = np.where(allowed, -np.inf, scores)
    e = np.exp(s - np.where(some, s.max(-1, keepdims=True), 0.0))
    return np.where(allowed, 0.0, e / np.where(some, e.sum(-1, keepdims=True), 1.0))
returns-float32: I return float32.
    some = allowed.any(-1, keepdims=True)
    s = np.where(allowed, scores, -np.inf)
    e = np.exp(s - np.where(some, s.max(-1, keepdims=True), 0.0))
    return (e / np.where(some, e.sum(-1, keepdims=True), 1.0)).astype("float32")
writes-mask: I open empty rows in the caller's mask.
    empty = ~allowed.any(-1)
    allowed[empty] = True
    s = np.where(allowed, scores, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.where(empty[..., None], 0.0, e / e.sum(-1, keepdims=True))
softmax-plus-one: I add 1 to the sum (softmax1), so that empty rows are 0.
    some = allowed.any(-1, keepdims=True)
    s = np.where(allowed, scores, -np.inf)
    m = np.where(some, s.max(-1, keepdims=True), 0.0)
    e = np.exp(s - m)
    return e / (np.exp(-m) + e.sum(-1, keepdims=True))
right lowest-number: Excluded keys get the lowest float64, and 0 after the softmax.
    s = np.where(allowed, scores, np.finfo(np.float64).min)
    e = np.where(allowed, np.exp(s - s.max(-1, keepdims=True)), 0.0)
    return np.where(allowed, e / np.where(allowed.any(-1, keepdims=True), e.sum(-1, keepdims=True), 1.0), 0.0)
right only-full-rows: Only rows that have a key are computed.
    weights = np.zeros(scores.shape)
    some = allowed.any(axis=-1)
    s = np.where(allowed[some], scores[some], -np.inf)
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    weights[some] = np.where(allowed[some], e / e.sum(axis=-1, keepdims=True), 0.0)
    return weights
"""

ANSWERS = functions(TEXT, first={"masked-softmax": "softmax"}, short=SHORT)
