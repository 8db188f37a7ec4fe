#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Values of transformers + peft for a training step of a model with real widths, for test_step --oracle.

    tests/gpu/oracle.py FOLDER [NAME=NUMBER ...]

makes FOLDER/checkpoint, a Qwen3-MoE checkpoint in FP8 by blocks of 128 x 128, and FOLDER/values.safetensors, in the
manner of tests/data/golden: batch, labels, adapters, the routing that transformers chose, and

    grad.*      loss and gradients by transformers and peft on the dequantised weights, all in fp32
    fp8.grad.*  the same with their products replaced: that routing, inputs and gradients of base products in e4m3
                by 1 x 128, streams in bf16 (fp8_numerics.py). What is left between these and ours is the order
                of sums, and what rounding to e4m3 makes of it.

NAME is one of SIZES below; the 4 layers of Qwen3-30B-A3B's widths are the default. Weights are random, with routers
and a head scaled so that experts are chosen by a margin and the loss is that of a trained model (ENTROPY).
"""
import contextlib
import json
import os
import re
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

from fp8_numerics import (
    BLOCK,
    E4M3_MOST,
    bf16,
    e4m3_codes,
    e4m3_round,
    fp8_patch,
    layers_of,
    of_expert,
    weight_of,
)

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
BRANCH_GAIN = 0.1  # of what a layer adds to the residual stream, which trained layers change little
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


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
                "down_proj": projection(s["hidden"], s["width"], gain=BRANCH_GAIN),
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
            gain = BRANCH_GAIN if part == "o_proj" else 1.0
            values = self.matrix(f"{name}.self_attn.{part}", projection(rows, cols, gain=gain))
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
    with torch.device(DEVICE) if DEVICE == "cuda" else contextlib.nullcontext():
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


def whole(module):
    a, b = weight_of(module, "A"), weight_of(module, "B")
    return a, b, lambda: (a.grad, b.grad)


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


def routing_watch(s, model):
    """Hooks that note every router's choice, and whether a layer returns a tuple."""
    routing, hooks = {}, []

    def note(l):
        def hook(module, inputs, output):
            if isinstance(output, tuple):
                routing[l] = next(t for t in output if not t.is_floating_point())
            else:
                routing[l] = torch.topk(output.detach().reshape(-1, s["experts"]), s["top_k"], -1)[1]

        return hook

    for l, layer in enumerate(layers_of(model)):
        hooks.append(layer.mlp.gate.register_forward_hook(note(l)))
    kinds = []
    hooks.append(layers_of(model)[0].register_forward_hook(lambda m, x, y: kinds.append(isinstance(y, tuple))))
    return routing, kinds, hooks


def step(model, ids, labels, writer, kind):
    """Loss, gradients, and what goes into every layer and into the head."""
    hooks, base_model = [], model.get_base_model()
    model.zero_grad(set_to_none=True)
    for l, module in enumerate([*layers_of(model), base_model.lm_head]):
        hooks.append(
            module.register_forward_pre_hook(lambda m, x, l=l: writer.f32(f"{kind}.hidden.{l}", x[0]))
        )
    logits = model(input_ids=ids).logits
    for hook in hooks:
        hook.remove()
    loss = F.cross_entropy(logits.float().reshape(-1, logits.shape[-1]), labels.reshape(-1))
    loss.backward()
    return loss.item()


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
    routing, kinds, hooks = routing_watch(s, model)
    loss = step(model, ids, labels, values, "grad")
    for hook in hooks:
        hook.remove()
    values.f32("lora.loss", loss)
    values.f32("grad.loss", loss)
    for l, indices in routing.items():
        values.i32(f"routing.{l}", indices)
    for adapter in adapters:
        adapter.gradients(values, "grad")
    tell(f"fp32: loss {loss:.5f}")

    fp8_patch(s, model, routing, kinds[0])
    loss = step(model, ids, labels, values, "fp8.grad")
    values.f32("fp8.grad.loss", loss)
    for adapter in adapters:
        adapter.gradients(values, "fp8.grad")
    tell(f"with the same quantisation: loss {loss:.5f}")
    values.close()
    tell("the values are written")


if __name__ == "__main__":
    main()
