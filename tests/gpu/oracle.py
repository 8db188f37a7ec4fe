#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Values of transformers + peft for a training step of a model with real widths, for test_step --oracle.

    tests/gpu/oracle.py FOLDER [NAME=NUMBER ...]

makes FOLDER/checkpoint, a Qwen3-MoE checkpoint in FP8 by blocks of 128 x 128, and FOLDER/values.safetensors, in the
manner of tests/data/golden: batch, labels, adapters, the routing that transformers chose, and

    grad.*      loss and gradients by transformers and peft on the dequantised weights, all in fp32
    fp8.grad.*  the same with their products replaced: that routing, inputs and gradients of base products in e4m3
                by 1 x 128, streams in bf16. What is left between these and ours is the order of sums.

NAME is one of SIZES below; the 4 layers of Qwen3-30B-A3B's widths are the default. Weights are random, with routers
and a head scaled so that experts are chosen by a margin and the loss is that of a trained model (ENTROPY).
"""
import json
import os
import re
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

SIZES = {
    "layers": 4,
    "hidden": 2048,
    "experts": 128,
    "top_k": 8,
    "width": 768,
    "heads": 32,
    "kv_heads": 4,
    "head_dim": 128,
    "vocab": 32768,
    "samples": 2,
    "length": 1024,
    "rank": 16,
    "alpha": 32,
    "seed": 1,
}
ENTROPY = 4.5  # of the next token, nats
ROUTER_DEVIATION = 2.5  # of router logits
BLOCK = 128
E4M3_MOST = 448.0
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


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


class Quantised(torch.autograd.Function):
    """Straight through."""

    @staticmethod
    def forward(ctx, x):
        return quantise(x)

    @staticmethod
    def backward(ctx, dy):
        return dy


class QuantisedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        return quantise(dy.contiguous())


def base(x, weight):
    """x W^T of quantised rows, whose gradient is that of quantised rows."""
    return QuantisedGradient.apply(F.linear(x, weight))


def lora(x, a, b, scale):
    return F.linear(bf16(F.linear(x, a)), b) * scale


class Writer:
    """A safetensors file."""

    def __init__(self, path, metadata):
        self.path, self.metadata, self.tensors = path, metadata, {}

    def add(self, name, kind, shape, data):
        self.tensors[name] = (kind, list(shape), np.ascontiguousarray(data))

    def f32(self, name, tensor):
        array = tensor.detach().to(torch.float32).cpu().numpy() if torch.is_tensor(tensor) else np.float32([tensor])
        self.add(name, "F32", array.shape, array)

    def i32(self, name, tensor):
        self.add(name, "I32", tensor.shape, tensor.to(torch.int32).cpu().numpy())

    def bf16(self, name, tensor):
        self.add(name, "BF16", tensor.shape, tensor.to(torch.bfloat16).cpu().view(torch.int16).numpy())

    def close(self):
        header, at = {"__metadata__": self.metadata}, 0
        for name, (kind, shape, data) in self.tensors.items():
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + data.nbytes]}
            at += data.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(self.path, "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for _, _, data in self.tensors.values():
                data.tofile(out)


def random(*shape, deviation=1.0):
    return torch.randn(*shape, device=DEVICE) * deviation


def projection(*shape, gain=1.0):
    """Like trained ones: some columns greater than others."""
    columns = torch.exp(0.3 * random(shape[-1]))
    return random(*shape, deviation=gain * shape[-1] ** -0.5) * columns


def block_quantise(w):
    """Codes, scales and the values they stand for, of matrices [..., rows, cols]."""
    rows, cols = w.shape[-2:]
    tiles = w.reshape(-1, rows // BLOCK, BLOCK, cols // BLOCK, BLOCK)
    scale = bf16(tiles.abs().amax((2, 4), keepdim=True) / E4M3_MOST)
    codes = e4m3_round((tiles / scale).clamp(-E4M3_MOST, E4M3_MOST))
    return codes.reshape(w.shape), scale.reshape(*w.shape[:-2], rows // BLOCK, cols // BLOCK), (codes * scale).reshape(
        w.shape
    )


class Weights:
    """Made a layer at a time: bytes for the checkpoint, the values they stand for into the model's parameters."""

    def __init__(self, s, writer):
        self.s, self.writer = s, writer

    def plain(self, name, parameter, value):
        self.writer.bf16(name, value)
        parameter.data.copy_(bf16(value))

    def matrix(self, name, value):
        codes, scale, values = block_quantise(value)
        self.writer.add(name + ".weight", "F8_E4M3", codes.shape, e4m3_codes(codes))
        self.writer.bf16(name + ".weight_scale_inv", scale)
        return values

    def experts(self, name, module):
        s = self.s
        fused = hasattr(module, "gate_up_proj")
        for e in range(s["experts"]):
            parts = {
                "gate_proj": projection(s["width"], s["hidden"], gain=1.3),
                "up_proj": projection(s["width"], s["hidden"], gain=1.3),
                "down_proj": projection(s["hidden"], s["width"]),
            }
            values = {part: self.matrix(f"{name}.{e}.{part}", w) for part, w in parts.items()}
            if fused:
                module.gate_up_proj.data[e].copy_(torch.cat([values["gate_proj"], values["up_proj"]]))
                module.down_proj.data[e].copy_(values["down_proj"])
            else:
                for part, w in values.items():
                    getattr(module[e], part).weight.data.copy_(w)

    def layer(self, l, layer):
        s, name = self.s, f"model.layers.{l}"
        q, kv = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
        attention = layer.self_attn
        for norm in ("input_layernorm", "post_attention_layernorm"):
            self.plain(f"{name}.{norm}.weight", getattr(layer, norm).weight, 1 + random(s["hidden"], deviation=0.1))
        for norm in ("q_norm", "k_norm"):
            gain = 1.2 + random(s["head_dim"], deviation=0.1)
            self.plain(f"{name}.self_attn.{norm}.weight", getattr(attention, norm).weight, gain)
        for part, rows, cols in (
            ("q_proj", q, s["hidden"]),
            ("k_proj", kv, s["hidden"]),
            ("v_proj", kv, s["hidden"]),
            ("o_proj", s["hidden"], q),
        ):
            values = self.matrix(f"{name}.self_attn.{part}", projection(rows, cols))
            getattr(attention, part).weight.data.copy_(values)
        router = random(s["experts"], s["hidden"], deviation=ROUTER_DEVIATION * s["hidden"] ** -0.5)
        self.plain(f"{name}.mlp.gate.weight", layer.mlp.gate.weight, router)
        self.experts(f"{name}.mlp.experts", layer.mlp.experts)


def model_make(s, folder):
    import transformers

    config = transformers.Qwen3MoeConfig(
        vocab_size=s["vocab"],
        hidden_size=s["hidden"],
        intermediate_size=4 * s["width"],
        num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"],
        num_key_value_heads=s["kv_heads"],
        head_dim=s["head_dim"],
        num_experts=s["experts"],
        num_experts_per_tok=s["top_k"],
        moe_intermediate_size=s["width"],
        norm_topk_prob=True,
        tie_word_embeddings=False,
        output_router_logits=False,
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        use_cache=False,
    )
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"  # the plain loop, for fp32
    with torch.device(DEVICE) if DEVICE == "cuda" else open(os.devnull):
        model = transformers.Qwen3MoeForCausalLM(config)
    model = model.to(DEVICE, torch.float32)
    theta = (getattr(config, "rope_parameters", None) or {}).get("rope_theta") or getattr(config, "rope_theta", 1e4)
    return model, {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": s["vocab"],
        "hidden_size": s["hidden"],
        "num_hidden_layers": s["layers"],
        "num_attention_heads": s["heads"],
        "num_key_value_heads": s["kv_heads"],
        "head_dim": s["head_dim"],
        "hidden_act": "silu",
        "num_experts": s["experts"],
        "num_experts_per_tok": s["top_k"],
        "moe_intermediate_size": s["width"],
        "norm_topk_prob": True,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": float(theta),
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
        },
    }


def head_make(weights, model, ids):
    """Scaled to the entropy that is wanted. Returns labels drawn from the model."""
    s = weights.s
    head = random(s["vocab"], s["hidden"], deviation=s["hidden"] ** -0.5)
    with torch.no_grad():
        hidden = model.model(input_ids=ids)[0]
        sample = F.linear(hidden.reshape(-1, s["hidden"])[:: max(1, ids.numel() // 256)], head)
        low, high = 0.0, 64.0
        for _ in range(30):
            middle = (low + high) / 2
            p = F.log_softmax(middle * sample, -1)
            low, high = (middle, high) if -(p.exp() * p).sum(-1).mean() > ENTROPY else (low, middle)
        weights.plain("lm_head.weight", model.lm_head.weight, head * low)
        return torch.stack([torch.multinomial(model.lm_head(h).softmax(-1), 1)[:, 0] for h in hidden])


def adapters_add(s, model):
    import peft

    fused = hasattr(model.model.layers[0].mlp.experts, "gate_up_proj")
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    experts = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    options = {"target_modules": attention, "target_parameters": experts}
    if not fused:
        options = {"target_modules": attention + ["gate_proj", "up_proj", "down_proj"]}
    config = peft.LoraConfig(r=s["rank"], lora_alpha=s["alpha"], lora_dropout=0.0, bias="none", **options)
    return peft.get_peft_model(model, config)


class Adapter:
    """One A and B by our naming, with what peft keeps of it: (A, B, rows of that B) of one or more modules."""

    def __init__(self, name, places):
        self.name, self.places = name, places

    def fill(self, writer):
        a = bf16((torch.rand(self.places[0][0].shape, device=DEVICE) * 2 - 1) * self.places[0][0].shape[1] ** -0.5)
        for place, b, _ in self.places:
            place.data.copy_(a)
            b.data.copy_(bf16(random(*b.shape, deviation=0.012)))
        writer.f32(f"lora.{self.name}.lora_A", a)
        writer.f32(f"lora.{self.name}.lora_B", torch.cat([b for _, b, _ in self.places]))

    def gradients(self, writer, kind):
        grads = [grad() for _, _, grad in self.places]
        writer.f32(f"{kind}.{self.name}.lora_A", sum(a for a, _ in grads))
        writer.f32(f"{kind}.{self.name}.lora_B", torch.cat([b for _, b in grads]))


def weight_of(module, half):
    return getattr(module, "lora_" + half)["default"].weight


def whole(module):
    a, b = weight_of(module, "A"), weight_of(module, "B")
    return a, b, lambda: (a.grad, b.grad)


def of_expert(s, module, e):
    """peft keeps A of all experts as [experts * rank, in] and B as [out, rank * experts]."""
    a, b = weight_of(module, "A"), weight_of(module, "B")
    rows = slice(e * s["rank"], (e + 1) * s["rank"])
    return a[rows], b[:, e :: s["experts"]], lambda: (a.grad[rows], b.grad[:, e :: s["experts"]])


def adapters_list(s, model):
    found, fused, split = [], {}, {}
    for name, module in model.named_modules():
        if not hasattr(module, "lora_A") or "default" not in module.lora_A:
            continue
        layer = re.search(r"layers\.(\d+)\.", name).group(1)
        if hasattr(module, "parameter_name"):
            fused[int(layer), module.parameter_name] = module
        elif "self_attn" in name:
            found.append(Adapter(f"layers.{layer}.self_attn.{name.split('.')[-1]}", [whole(module)]))
        else:
            expert = re.search(r"experts\.(\d+)\.", name).group(1)
            split[int(layer), int(expert), name.split(".")[-1]] = module
    for (layer, parameter), module in fused.items():
        expected = s["hidden"] if parameter == "gate_up_proj" else s["width"]
        if weight_of(module, "A").shape != (s["rank"] * s["experts"], expected):
            sys.exit(f"this peft keeps A of {parameter} as {tuple(weight_of(module, 'A').shape)}: not known here")
        for e in range(s["experts"]):
            name = f"layers.{layer}.mlp.experts.{e}.{parameter[:-5]}"
            found.append(Adapter(name, [of_expert(s, module, e)]))
    for layer, e, part in split:
        if part != "up_proj":
            parts = ["gate_proj", "up_proj"] if part == "gate_proj" else [part]
            name = f"layers.{layer}.mlp.experts.{e}." + ("gate_up" if part == "gate_proj" else "down")
            found.append(Adapter(name, [whole(split[layer, e, p]) for p in parts]))
    return found


def fused_check(s, model):
    """That our reading of peft's shapes is peft's own."""
    for _, module in model.named_modules():
        if hasattr(module, "parameter_name"):
            with torch.no_grad():
                e = s["experts"] - 1
                a, b, _ = of_expert(s, module, e)
                delta = module.get_delta_weight("default")[e]
                ours = b @ a * (s["alpha"] / s["rank"])
                if delta.shape != ours.shape or not torch.allclose(delta, ours, atol=1e-5):
                    sys.exit("this peft orders the ranks of experts in another way than is known here")
            return


def bottom(module):
    while hasattr(module, "base_layer"):
        module = module.base_layer
    return module


def layers_of(model):
    return model.get_base_model().model.layers


def routing_watch(s, model):
    """Hooks that note every router's choice."""
    routing, hooks = {}, []

    def note(l):
        def hook(module, inputs, output):
            if isinstance(output, tuple):
                routing[l] = output[2].detach()
            else:
                routing[l] = torch.topk(output.detach().reshape(-1, s["experts"]), s["top_k"], -1)[1]

        return hook

    for l, layer in enumerate(layers_of(model)):
        hooks.append(layer.mlp.gate.register_forward_hook(note(l)))
    return routing, hooks


def step(model, ids, labels):
    model.zero_grad(set_to_none=True)
    logits = model(input_ids=ids).logits
    loss = F.cross_entropy(logits.float().reshape(-1, logits.shape[-1]), labels.reshape(-1))
    loss.backward()
    return loss.item()


def linear_patch(s, module):
    """Attention's: the base product reads quantised rows, LoRA's bf16."""
    weight, a, b = bottom(module).weight, weight_of(module, "A"), weight_of(module, "B")
    first = s["alpha"] / s["rank"]

    def forward(x, *_, **__):
        return bf16(base(Quantised.apply(x), weight) + lora(bf16(x), a, b, first))

    module.forward = forward


def experts_parts(s, experts):
    """Of every expert (W, A, B) of gate_up and of down."""
    found = bottom(experts)
    if not hasattr(found, "gate_up_proj"):
        parts = []
        for expert in found:
            gate, up, down = expert.gate_proj, expert.up_proj, expert.down_proj
            pairs = [(bottom(m).weight, weight_of(m, "A"), weight_of(m, "B")) for m in (gate, up, down)]
            parts.append((pairs[:2], pairs[2:]))
        return parts
    modules, module = {}, experts
    while hasattr(module, "base_layer"):
        modules[module.parameter_name] = module
        module = module.base_layer
    return [
        tuple(
            [(getattr(found, name)[e], *of_expert(s, modules[name], e)[:2])] for name in ("gate_up_proj", "down_proj")
        )
        for e in range(s["experts"])
    ]


def block_patch(s, block, indices):
    parts, scale = experts_parts(s, block.experts), s["alpha"] / s["rank"]
    fused = hasattr(bottom(block.experts), "gate_up_proj")

    def forward(x, *_, **__):
        rows = x.reshape(-1, s["hidden"])
        logits = F.linear(bf16(rows), block.gate.weight)
        weights = logits.softmax(-1).gather(1, indices)
        weights = weights / weights.sum(-1, keepdim=True)
        quantised = Quantised.apply(rows)
        out = torch.zeros_like(rows)
        for e, (gate_up, down) in enumerate(parts):
            token, k = torch.where(indices == e)
            if token.numel() == 0:
                continue
            mine = quantised[token]
            # gate and up have rows of their own in blocks, so they may be multiplied apart.
            both = [bf16(base(mine, w) + lora(mine, a, b, scale)) for w, a, b in gate_up]
            gate, up = both if len(both) == 2 else both[0].chunk(2, -1)
            act = F.silu(gate) * up
            w, a, b = down[0]
            y = F.linear(Quantised.apply(act), w) + lora(bf16(act), a, b, scale)
            out = out.index_add(0, token, bf16(y) * weights[token, k, None])
        # The gradient is quantised once a token, before it goes to the experts.
        out = QuantisedGradient.apply(bf16(out)).reshape(x.shape)
        return out if fused else (out, logits)

    block.forward = forward


def fp8_patch(s, model, routing):
    for l, layer in enumerate(layers_of(model)):
        for part in ("q_proj", "k_proj", "v_proj"):
            linear_patch(s, getattr(layer.self_attn, part))
        linear_patch(s, layer.self_attn.o_proj)
        layer.self_attn.o_proj.register_forward_pre_hook(lambda m, x: (bf16(x[0]), *x[1:]))
        block_patch(s, layer.mlp, routing[l])
        layer.register_forward_hook(
            lambda m, x, y: (bf16(y[0]), *y[1:]) if isinstance(y, tuple) else bf16(y),
        )
    head = model.get_base_model().lm_head
    head.register_forward_pre_hook(lambda m, x: (bf16(x[0]),))


def main():
    if len(sys.argv) < 2 or not all(re.fullmatch(r"\w+=\d+", w) and w.split("=")[0] in SIZES for w in sys.argv[2:]):
        sys.exit("usage: tests/gpu/oracle.py FOLDER [NAME=NUMBER ...]; names: " + " ".join(SIZES))
    folder, start = sys.argv[1], time.time()
    s = {**SIZES, **{name: int(value) for name, value in (w.split("=") for w in sys.argv[2:])}}
    checkpoint = os.path.join(folder, "checkpoint")
    os.makedirs(checkpoint, exist_ok=True)
    import peft
    import transformers

    def tell(what):
        print(f"# {time.time() - start:6.1f} s  {what}", flush=True)

    tell(f"transformers {transformers.__version__}, peft {peft.__version__}, torch {torch.__version__}, {DEVICE}")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(s["seed"])
    model, config = model_make(s, checkpoint)
    model.eval()
    with open(os.path.join(checkpoint, "config.json"), "w") as out:
        json.dump(config, out, indent=1)
    file = Writer(os.path.join(checkpoint, "model.safetensors"), {"format": "pt"})
    values = Writer(
        os.path.join(folder, "values.safetensors"),
        {"transformers": transformers.__version__, "peft": peft.__version__, "torch": torch.__version__},
    )
    weights = Weights(s, file)
    with torch.no_grad():
        weights.plain("model.embed_tokens.weight", model.model.embed_tokens.weight, random(s["vocab"], s["hidden"]))
        for l, layer in enumerate(model.model.layers):
            weights.layer(l, layer)
        weights.plain("model.norm.weight", model.model.norm.weight, 1 + random(s["hidden"], deviation=0.1))
    ids = torch.randint(0, s["vocab"], (s["samples"], s["length"]), device=DEVICE)
    labels = head_make(weights, model, ids)
    file.close()
    tell("the checkpoint is written")

    model = adapters_add(s, model)
    model.eval()  # there is no dropout; nothing is computed again
    adapters = adapters_list(s, model)
    for adapter in adapters:
        adapter.fill(values)
    fused_check(s, model)
    values.i32("input_ids", ids)
    values.i32("labels", labels)
    values.f32("lora.alpha", float(s["alpha"]))
    routing, hooks = routing_watch(s, model)
    loss = step(model, ids, labels)
    for hook in hooks:
        hook.remove()
    values.f32("lora.loss", loss)
    values.f32("grad.loss", loss)
    for l, indices in routing.items():
        values.i32(f"routing.{l}", indices)
    for adapter in adapters:
        adapter.gradients(values, "grad")
    tell(f"fp32: loss {loss:.5f}")

    fp8_patch(s, model, routing)
    loss = step(model, ids, labels)
    values.f32("fp8.grad.loss", loss)
    for adapter in adapters:
        adapter.gradients(values, "fp8.grad")
    tell(f"with the same quantisation: loss {loss:.5f}")
    values.close()
    tell("the values are written")


if __name__ == "__main__":
    main()
