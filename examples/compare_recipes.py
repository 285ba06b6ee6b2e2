"""The audit as a function: which recipes still hold at 128k positions in bfloat16?

Run it: python examples/compare_recipes.py
"""

from ropeaudit import shift, to_frame

frame = to_frame(shift(131072, "bf16", ["hf", "vllm-cuda", "meta", "hf-autocast-bf16", "uniform"]))
within = frame["within_tolerance"].fillna(False)
print("within 1 %, best first:", ", ".join(frame[within].sort_values("drift_rms")["implementation"]))
print("out of tolerance:", ", ".join(frame[~within]["implementation"]))

# Output:
# within 1 %, best first: vllm-cuda, meta, hf
# out of tolerance: hf-autocast-bf16, uniform
