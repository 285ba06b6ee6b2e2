#!/usr/bin/env bash
# A sweep in a shell loop: one header, then a row per offset. Run it: bash examples/sweep.sh
set -euo pipefail
columns=implementation,dtype,offset,distinct_positions,verdict
ropeaudit shift --recipe uniform --offset 0 --dtype bf16 --columns $columns -f csv -q
for offset in 1000 2048 4096; do
  ropeaudit shift --recipe uniform --offset $offset --dtype bf16 --columns $columns -f csv -q --no-header
done
# Output:
# implementation,dtype,offset,distinct_positions,verdict
# uniform,bfloat16,0,256,coarse
# uniform,bfloat16,1000,36,broken
# uniform,bfloat16,2048,17,broken
# uniform,bfloat16,4096,9,broken
