#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times of other people's code on our shapes, one "NAME/PEER VALUE UNIT" a line.

    bench/peers.py kernels   cuDNN, cuBLASLt and torch as PyTorch calls them; DeepGEMM where it can be imported
    bench/peers.py step      a training step of transformers + peft (a minute or more)
    bench/peers.py compile   DeepGEMM's kernels of these shapes made beforehand, several at once

Calls are queued one after another between pairs of events, on inputs that rotate beyond the L2 cache; the
median counts. Names are those of bench/run. What cannot run here is told on a line that begins with #.
"""
import os
import statistics
import subprocess
import sys
import time

GROUPED = {  # rows, n, k, groups
    "30B_EP_8_gate_up": (32768, 1536, 2048, 16),
    "30B_EP_8_down": (32768, 2048, 768, 16),
    "30B_EP_8_dX_of_gate_up": (32768, 2048, 1536, 16),
    "30B_EP_8_dX_of_down": (32768, 768, 2048, 16),
    "30B_EP_1_gate_up": (32768, 1536, 2048, 128),
    "30B_EP_1_down": (32768, 2048, 768, 128),
    "480B_EP_8_gate_up": (30720, 5120, 6144, 20),
    "480B_EP_8_down": (30720, 6144, 2560, 20),
}
DENSE = {"dense_qkv": (4096, 5120, 2048), "dense_proj": (4096, 2048, 4096)}
ATTENTION = {  # samples, length, head_dim; 32 query heads, 4 key-value heads
    "2_x_2048,_head_dim_128": (2, 2048, 128),
    "1_x_16384,_head_dim_128": (1, 16384, 128),
    "1_x_16384,_head_dim_64": (1, 16384, 64),
}
ROTATED_BYTES = 3 * 10**8


def tell(name, peer, value, unit):
    print(f"{name}/{peer} {value:.6g} {unit}", flush=True)


def attempt(what, function, *arguments):
    """A peer that fails takes nobody else along."""
    try:
        function(*arguments)
    except Exception as e:  # of any library
        print(f"# {what}: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"[:300], flush=True)


def microseconds(calls, runs=50, warm=10):
    """Median time of calls, which are made in turn."""
    import torch

    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    for i in range(warm):
        calls[i % len(calls)]()
    torch.cuda.synchronize()
    torch.cuda._sleep(20_000_000)  # so that the queue is full when it begins
    for i, (start, stop) in enumerate(pairs):
        start.record()
        calls[i % len(calls)]()
        stop.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(stop) for start, stop in pairs) * 1e3


def sets(each_bytes, make):
    return [make() for _ in range(max(2, ROTATED_BYTES // each_bytes + 1))]


def copy():
    import torch

    a = torch.empty(2**30, dtype=torch.uint8, device="cuda").random_()
    b = torch.empty_like(a)
    us = microseconds([lambda: b.copy_(a)], runs=20)
    tell("device_copy_of_1_GiB", "torch", 2 * a.numel() / us * 1e-6, "TB/s")


def cublas_dense(name, rows, n, k):
    """1x128 by 128x128 scales, which torch hands to cuBLASLt."""
    import torch
    from torch.nn.functional import ScalingType, scaled_mm

    def make():
        a = torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn)
        b = torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn)
        a_scale = torch.rand(k // 128, rows, device="cuda").t()
        b_scale = torch.rand(n // 128, k // 128, device="cuda").t()
        return lambda: scaled_mm(
            a,
            b.t(),
            scale_a=a_scale,
            scale_recipe_a=ScalingType.BlockWise1x128,
            scale_b=b_scale,
            scale_recipe_b=ScalingType.BlockWise128x128,
            output_dtype=torch.bfloat16,
        )

    tell(f"fp8_{name}", "cuBLASLt", microseconds(sets(rows * k + n * k + 2 * rows * n, make)), "us")


def torch_grouped(name, rows, n, k, groups):
    """What there is without FP8."""
    import torch

    each = rows // groups
    offsets = torch.arange(each, rows + 1, each, device="cuda", dtype=torch.int32)

    def make():
        a = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(groups, n, k, device="cuda", dtype=torch.bfloat16)
        return lambda: torch._grouped_mm(a, b.transpose(1, 2), offs=offsets)

    tell(f"fp8_{name}", "torch_bf16", microseconds(sets(2 * (rows * k + groups * n * k), make), runs=30), "us")


def deepgemm_call(rows, n, k, groups):
    """A function that multiplies random rows; groups 0: dense."""
    import deep_gemm
    import torch
    from deep_gemm.utils.math import per_block_cast_to_fp8, per_token_cast_to_fp8

    a, a_scale = per_token_cast_to_fp8(torch.randn(rows, k, device="cuda", dtype=torch.bfloat16), False)
    align = getattr(deep_gemm, "get_mn_major_tma_aligned_tensor", None)
    if align:  # beforehand, as our product has its scales
        a_scale = align(a_scale)
    out = torch.empty(rows, n, device="cuda", dtype=torch.bfloat16)
    if not groups:
        b = per_block_cast_to_fp8(torch.randn(n, k, device="cuda", dtype=torch.bfloat16), False)
        return lambda: deep_gemm.fp8_gemm_nt((a, a_scale), b, out)
    parts = [
        per_block_cast_to_fp8(torch.randn(n, k, device="cuda", dtype=torch.bfloat16), False) for _ in range(groups)
    ]
    b = (torch.stack([p[0] for p in parts]), torch.stack([p[1] for p in parts]))
    layout = torch.arange(groups, device="cuda", dtype=torch.int32).repeat_interleave(rows // groups)
    return lambda: deep_gemm.m_grouped_fp8_gemm_nt_contiguous((a, a_scale), b, out, layout)


def deepgemm(name, rows, n, k, groups=0):
    calls = sets(rows * k + max(1, groups) * n * k + 2 * rows * n, lambda: deepgemm_call(rows, n, k, groups))
    tell(f"fp8_{name}", "DeepGEMM", microseconds(calls), "us")


def deepgemm_shapes():
    return {**DENSE, **GROUPED}


def deepgemm_compile():
    """One process a shape: they share the cache on disk."""
    attempt("DeepGEMM", __import__, "deep_gemm")
    if "deep_gemm" not in sys.modules:
        return
    started = [
        (name, subprocess.Popen([sys.executable, __file__, "compile", name], stdout=subprocess.DEVNULL))
        for name in deepgemm_shapes()
    ]
    for name, process in started:
        if process.wait():
            print(f"# DeepGEMM: {name} did not compile", flush=True)


def attention(name, samples, length, dim):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def make():
        q, k, v = (
            torch.randn(samples, heads, length, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for heads in (32, 4, 4)
        )
        forward = lambda: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out = forward()
        gradient = torch.randn_like(out)
        return forward, lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        calls = [make() for _ in range(3)]
        tell(f"attention_{name},_forward", "cuDNN", microseconds([f for f, _ in calls], runs=20, warm=6), "us")
        tell(f"attention_{name},_backward", "cuDNN", microseconds([b for _, b in calls], runs=20, warm=6), "us")


def cross_entropy():
    import torch

    def make():
        logits = torch.randn(256, 151936, device="cuda", requires_grad=True)
        targets = torch.randint(0, 151936, (256,), device="cuda")
        return lambda: torch.autograd.grad(
            torch.nn.functional.cross_entropy(logits, targets, reduction="sum"), logits
        )

    tell("cross_entropy_with_gradient_256_x_151936", "torch", microseconds([make(), make()], runs=20), "us")


def adamw():
    import torch

    p = torch.nn.Parameter(torch.randn(32 << 20, device="cuda"))
    p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW([p], lr=1e-5, fused=True)
    tell("AdamW_of_32_Mi", "torch_fused", microseconds([optimizer.step], runs=20), "us")


def kernels():
    attempt("copy", copy)
    for name, shape in DENSE.items():
        attempt(f"cuBLASLt {name}", cublas_dense, name, *shape)
    for name, shape in ATTENTION.items():
        attempt(f"cuDNN {name}", attention, name, *shape)
    attempt("cross entropy", cross_entropy)
    attempt("AdamW", adamw)
    for name in ("30B_EP_8_gate_up", "30B_EP_1_gate_up"):
        attempt(f"torch {name}", torch_grouped, name, *GROUPED[name])
    attempt("DeepGEMM", __import__, "deep_gemm")
    if "deep_gemm" in sys.modules:
        for name, shape in deepgemm_shapes().items():
            attempt(f"DeepGEMM {name}", deepgemm, name, *shape)


def step():
    """The 30B model's step as most people would write it: bf16, LoRA of rank 16 on all linear layers, every layer
    computed again, AdamW; 2 samples of 2048 tokens."""
    import peft
    import torch
    import transformers

    samples, length = 2, 2048
    config = transformers.Qwen3MoeConfig(
        vocab_size=151936,
        hidden_size=2048,
        num_hidden_layers=int(os.environ.get("LAYERS", 48)),
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        norm_topk_prob=True,
        tie_word_embeddings=False,
        output_router_logits=True,
    )
    config._attn_implementation = "sdpa"
    print(f"# transformers {transformers.__version__}, peft {peft.__version__}, torch {torch.__version__}", flush=True)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.Qwen3MoeForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model = peft.get_peft_model(
        model,
        peft.LoraConfig(
            r=16,
            lora_alpha=32,
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
            target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        ),
    )
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5, fused=True)
    ids = torch.randint(0, config.vocab_size, (samples, length), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(6):
        torch.cuda.synchronize()
        start = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[2:])
    tell("step_ms", "transformers_peft", median * 1e3, "ms")
    tell("step_tokens_per_s", "transformers_peft", samples * length / median, "tokens/s")
    tell("step_memory", "transformers_peft", torch.cuda.max_memory_allocated() / 2**30, "GiB")
    tell("step_memory_reserved", "transformers_peft", torch.cuda.max_memory_reserved() / 2**30, "GiB")


def main():
    if sys.argv[1:] == ["kernels"]:
        kernels()
    elif sys.argv[1:] == ["step"]:
        step()
    elif sys.argv[1:] == ["compile"]:
        deepgemm_compile()
    elif len(sys.argv) == 3 and sys.argv[1] == "compile":
        deepgemm_call(*(*deepgemm_shapes()[sys.argv[2]], 0)[:4])()
    else:
        sys.exit("usage: bench/peers.py kernels | step | compile")


if __name__ == "__main__":
    main()
