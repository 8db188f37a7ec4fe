# SPDX-License-Identifier: Apache-2.0
"""The FP8 numerics of ours for a Qwen3-MoE model of transformers with peft's adapters: the same roundings in the same
places, written anew in torch. Base products take rows in e4m3 by 1 x 128; streams, operands of other products and
gradients are bf16 and everything between them is fp32. A gradient that ours keeps in bf16 is rounded by `back`."""
import sys

import numpy as np
import torch
import torch.nn.functional as F

BLOCK = 128
E4M3_MOST = 448.0


def e4m3_round(x):
    """To the nearest e4m3, ties to even; |x| at most 448."""
    if hasattr(torch, "float8_e4m3fn"):
        return x.to(torch.float8_e4m3fn).to(torch.float32)
    _, exponent = torch.frexp(x)  # x = m 2^exponent, m in [1/2, 1)
    step = torch.exp2((exponent.clamp(min=-5) - 4).to(torch.float32))
    return torch.round(x / step) * step


def e4m3_codes(x):
    """Bytes of values that e4m3 holds."""
    if hasattr(torch, "float8_e4m3fn"):
        return x.to(torch.float8_e4m3fn).view(torch.uint8).cpu().numpy()
    codes = np.arange(127)
    e, m = codes >> 3, codes & 7
    table = np.where(e == 0, m * 2.0**-9, (8 + m) * 2.0 ** (e - 10.0))
    x = x.cpu().numpy()
    return (np.searchsorted(table, np.abs(x)) | (np.signbit(x) << 7)).astype(np.uint8)


def quantise(x):
    """e4m3 in blocks of 1 x 128 along the last dimension, as values."""
    blocks = x.reshape(-1, BLOCK)
    scale = blocks.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny * E4M3_MOST) / E4M3_MOST
    return (e4m3_round((blocks * (1 / scale)).clamp(-E4M3_MOST, E4M3_MOST)) * scale).reshape(x.shape)


def bf16(x):
    """Rounded, and so is its gradient."""
    return x.to(torch.bfloat16).to(torch.float32)


class Through(torch.autograd.Function):
    """forward(x) with backward(dy) for its gradient."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.backward_of = backward
        return forward(x) if forward else x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        return ctx.backward_of(dy.contiguous()) if ctx.backward_of else dy, None, None


def quantised(x):
    return Through.apply(x, quantise, None)


def quantised_back(x):
    return Through.apply(x, None, quantise)


def back(x):
    return Through.apply(x, None, bf16)


def base(x, weight):
    return quantised_back(F.linear(x, weight))


def lora(x, a, b, scale):
    return F.linear(bf16(F.linear(bf16(x), a)), b) * scale


class Swiglu(torch.autograd.Function):
    """Of fp32 rows, its gradient of those rows in bf16."""

    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(bf16(gate), bf16(up))
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, d):
        gate, up = ctx.saved_tensors
        s = torch.sigmoid(gate)
        return bf16(d * up * s * (1 + gate * (1 - s))), bf16(d * gate * s)


class Down(torch.autograd.Function):
    """weights * y of an expert's rows. dy is quantised already and goes to every row unweighted; the weights' gradient
    and the rows' are made of one product."""

    @staticmethod
    def forward(ctx, act, weight, a, b, scale, weights):
        narrow = bf16(act)
        low = bf16(F.linear(narrow, a))
        y = bf16(F.linear(quantise(act), weight) + F.linear(low, b) * scale)
        ctx.save_for_backward(narrow, weight, a, b, low, weights)
        ctx.scale = scale
        return y * weights

    @staticmethod
    def backward(ctx, dy):
        act, weight, a, b, low, weights = ctx.saved_tensors
        narrow = bf16(dy)
        dlow = bf16(narrow @ b * ctx.scale)
        d = dy @ weight + dlow @ a
        low, dlow = bf16(low * weights), bf16(dlow * weights)
        return bf16(d * weights), None, dlow.t() @ act, narrow.t() @ low * ctx.scale, None, (d * act).sum(-1, True)


class Attention(torch.autograd.Function):
    """Causal; probabilities and the scores' gradient in bf16."""

    @staticmethod
    def forward(ctx, q, k, v, scale):
        scores = (q @ k.transpose(-1, -2)) * scale
        scores.masked_fill_(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), float("-inf"))
        top = scores.amax(-1, keepdim=True)
        p = torch.exp(scores - top)
        total = p.sum(-1, keepdim=True)
        out = bf16(bf16(p) @ v / total)
        ctx.save_for_backward(q, k, v, scores, top + total.log(), out)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, scores, lse, out = ctx.saved_tensors
        dout = bf16(dout)
        p = torch.exp(scores - lse)
        ds = bf16(p * (dout @ v.transpose(-1, -2) - (dout * out).sum(-1, keepdim=True)))
        dv = bf16(p).transpose(-1, -2) @ dout
        return ds @ k * ctx.scale, ds.transpose(-1, -2) @ q * ctx.scale, dv, None


def attention(module, query, key, value, attention_mask, scaling, **_):
    """In the place of transformers' eager one."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (bf16(key), value))
    out = Attention.apply(bf16(query), key, value, scaling)
    return out.transpose(1, 2).contiguous(), None


def weight_of(module, half):
    return getattr(module, "lora_" + half)["default"].weight


def of_expert(s, module, e):
    """peft keeps A of all experts as [experts * rank, in] and B as [out, rank * experts]."""
    a, b = weight_of(module, "A"), weight_of(module, "B")
    rows = slice(e * s["rank"], (e + 1) * s["rank"])
    return a[rows], b[:, e :: s["experts"]], lambda: (a.grad[rows], b.grad[:, e :: s["experts"]])


def bottom(module):
    while hasattr(module, "base_layer"):
        module = module.base_layer
    return module


def layers_of(model):
    return model.get_base_model().model.layers


def linear_patch(module, scale):
    """Attention's: the base product reads quantised rows, LoRA's bf16."""
    weight, a, b = bottom(module).weight, weight_of(module, "A"), weight_of(module, "B")

    def forward(x, *_, **__):
        return bf16(base(quantised(x), weight) + lora(x, a, b, scale))

    module.forward = forward


def experts_parts(s, experts):
    """Of every expert (W, A, B) of gate_up, one or two, and of down."""
    found = bottom(experts)
    if not hasattr(found, "gate_up_proj"):
        return [
            [
                [(bottom(m).weight, weight_of(m, "A"), weight_of(m, "B")) for m in modules]
                for modules in ((e.gate_proj, e.up_proj), (e.down_proj,))
            ]
            for e in found
        ]
    modules, module = {}, experts
    while hasattr(module, "base_layer"):
        modules[module.parameter_name] = module
        module = module.base_layer
    return [
        [[(getattr(found, n)[e], *of_expert(s, modules[n], e)[:2])] for n in ("gate_up_proj", "down_proj")]
        for e in range(s["experts"])
    ]


def block_patch(s, block, indices, scale):
    parts = experts_parts(s, block.experts)

    def forward(x):
        rows = x.reshape(-1, s["hidden"])
        logits = F.linear(bf16(rows), block.gate.weight)
        weights = logits.softmax(-1).gather(1, indices)
        weights = weights / weights.sum(-1, keepdim=True)
        sent = back(quantised(rows))
        out = torch.zeros_like(rows)
        for e, (gate_up, down) in enumerate(parts):
            token, k = torch.where(indices == e)
            if token.numel() == 0:
                continue
            mine = back(sent[token])
            # gate's and up's rows are in blocks of their own, so they may be multiplied apart.
            both = [base(mine, w) + lora(mine, a, b, scale) for w, a, b in gate_up]
            gate, up = both if len(both) == 2 else both[0].chunk(2, -1)
            out = out.index_add(0, token, Down.apply(Swiglu.apply(gate, up), *down[0], scale, weights[token, k, None]))
        return out.reshape(x.shape)

    return forward


def layer_patch(layer, block, as_tuple):
    """The residual stream is bf16, summed in fp32 and rounded once; so is its gradient. That of the experts' sum is
    quantised once a token, before it goes to them; the routing weights' see it so too."""

    def forward(x, *arguments, **named):
        attended = layer.self_attn(back(layer.input_layernorm(x)), *arguments, **named)
        middle = bf16(x + (attended[0] if isinstance(attended, tuple) else attended))
        out = bf16(middle + quantised_back(block(back(layer.post_attention_layernorm(middle)))))
        return (out,) if as_tuple else out

    layer.forward = forward


def fp8_patch(s, model, routing, as_tuple):
    """routing: experts of every layer's tokens. as_tuple: what a layer returns."""
    scale = s["alpha"] / s["rank"]
    for l, layer in enumerate(layers_of(model)):
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            linear_patch(getattr(layer.self_attn, part), scale)
        sys.modules[type(layer.self_attn).__module__].eager_attention_forward = attention
        layer_patch(layer, block_patch(s, layer.mlp, routing[l], scale), as_tuple)
    model.get_base_model().lm_head.register_forward_pre_hook(lambda m, x: (bf16(x[0]),))
    model.get_base_model().lm_head.register_forward_hook(lambda m, x, y: back(y))
