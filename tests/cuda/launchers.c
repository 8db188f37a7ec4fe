// SPDX-License-Identifier: Apache-2.0
// The kernels' launchers, which launch nothing. Their arguments are the caller's affair, so the
// headers of kernels/ are not needed.
#define LAUNCHER(name)                                                                             \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return 0;                                                                                  \
    }

LAUNCHER(attention_tiles_store)
LAUNCHER(dispatch_combine)
LAUNCHER(dispatch_gather)
LAUNCHER(dispatch_plan)
LAUNCHER(dispatch_regroup)
LAUNCHER(dispatch_scatter)
LAUNCHER(embed_rows)
LAUNCHER(fp8_transpose)
LAUNCHER(lora_gradient)
LAUNCHER(lora_input)
LAUNCHER(lora_pack)
LAUNCHER(lora_project)
LAUNCHER(optimizer_adamw)
LAUNCHER(optimizer_scale)
LAUNCHER(optimizer_sum_squares)
LAUNCHER(quantise_to_operand)
LAUNCHER(quantise_to_rows)
LAUNCHER(rms_norm_backward)
LAUNCHER(rms_norm_forward)
LAUNCHER(rope_backward)
LAUNCHER(rope_forward)
LAUNCHER(rope_table)
LAUNCHER(router_backward)
LAUNCHER(router_capacity)
LAUNCHER(router_count)
LAUNCHER(router_load_balance)
LAUNCHER(scales_transpose)
LAUNCHER(sm90_attention_backward)
LAUNCHER(sm90_attention_forward)
LAUNCHER(sm90_cross_entropy)
LAUNCHER(sm90_fp8_gemm)
LAUNCHER(sm90_router_forward)
LAUNCHER(swiglu_backward)
LAUNCHER(swiglu_forward)
LAUNCHER(synth_make_codes)
LAUNCHER(synth_make_values)
