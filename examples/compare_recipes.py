"""The audit as a function: which recipes still hold at 128k positions in bfloat16?

Run it: python examples/compare_recipes.py
"""

from ropeaudit import shift, to_frame

frame = to_frame(shift(131072, "bf16", ["hf", "vllm-cuda", "meta", "hf-autocast-bf16", "uniform"]))
safe = frame[frame["verdict"] == "floor"].sort_values("drift_rms")
print("safe, best first:", ", ".join(safe["subject"]))
print("not safe:", ", ".join(frame[frame["verdict"] != "floor"]["subject"]))

# Output:
# safe, best first: vllm-cuda, meta, hf
# not safe: hf-autocast-bf16, uniform
